"""The errors of a model, and its intervals, from one light pass over rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distrff.diagnostics.errors import (
    DETAILED_TARGETS,
    ClassErrors,
    Errors,
    LabelErrors,
    NormalSums,
    NumberErrors,
)
from distrff.diagnostics.quality import evaluation_sections, quality_facts
from distrff.engine.reduction import Arrays, Reduction, Segmentation, light_segmentation
from distrff.engine.run import Run, begin_run, check_reading
from distrff.errors import DataWarning, InputError, InputTypeError, warn
from distrff.features.fitted import FittedMap, Trait
from distrff.io.dataset import Dataset, RowBlock, Rows, check_block
from distrff.model.intervals import CALIBRATED, OUT_OF_FOLD, Intervals, QuantileSketch
from distrff.model.model import FoldModels, Model
from distrff.model.rows import ROWS_UNKNOWN, check_columns, check_target, rows_for
from distrff.preprocessing.coding import ClassTargets, LabelCounts, MultilabelTargets, NumericTargets
from distrff.preprocessing.folds import Folds, SomeFolds, group_hashes
from distrff.preprocessing.table import FIELDS
from distrff.utils.arrays import Sums, as_columns, chosen_rows
from distrff.utils.serialize import StrictMapping
from distrff.utils.text import html_card, html_page, number_text, page_lines

_SKETCH_BYTES = 2**20  # of residuals over many decades; a sample is less


class Evaluation(StrictMapping):
    """The result of `evaluate`: a read-only mapping of strict JSON values.

    Keys
    ----
    model, n_samples : of what, and how many rows were judged
    rows : "out of fold", where each row was judged by a model that did not see it; "the rows of the fit",
        which is optimistic; "rows that partial_fit may have seen"; "other rows"; or "the rows
        given" to a stored model, which does not know those of its fit
    n_outside : rows outside the bounds of the model; numbers leave them out, for classes they count as wrong
    kind : "numbers", "classes", or "labels", where a row has any number of several
    n_unseen_categories : of a table with categories that the fit never saw, how many rows hold one, by column
    pinball_loss, poisson_deviance, gamma_deviance, constant_…, d2 : of models of quantiles, counts and
        amounts; the mean loss, that of the best constant, and the share of it that is explained, averaged
        over targets
    crps, negative_log_density : of numbers, over all targets, where deviations were judged
    bands : of quantiles τ and 1 − τ, the `coverage` of the rows between them, which is to be `nominal`, and
        the `interval_score`
    r2, rmse, constant_rmse, mae, relative_error : of numbers, over all targets; constant_rmse is that of
        the targets' mean, relative_error ‖f − y‖/‖y‖; r2 is None where all targets are equal
    targets : list, of each target the same with its `target` and `bias` = mean of f − y; of the first eight
        `residual_quantiles` of y − f, within 2⁻¹¹ of a residual of that rank, and from a sample of 8,192
        rows `points` (prediction, actual) and `bins` of the prediction with the quantiles `bin_shares` of
        `actual` and `residual`; of a bin of m rows, the rank of a quantile is off by √(q(1 − q)/m)
    accuracy, error, majority, majority_accuracy, balanced_accuracy : of classes; the accuracy of the most
        frequent class for all rows; the mean recall
    log_loss, majority_log_loss, brier, reliability : with probabilities: −mean log p of the true class in
        nats, that of the classes' shares, Σ_c (p_c − [y = c])² on average, and in 20 bins of the probability
        of the second of two classes, or of the predicted one, how often it came true
    classes : list, of each class its `label`, `n_rows`, `weight`, `precision`, `recall` and `f1`
    confusion : `labels` and `matrix` (true by predicted, weights), for at most 64 classes
    confused : the pairs of classes that are confused most
    n_unseen, n_unseen_labels, unseen_labels : rows with labels that the fit never saw, which count as wrong,
        how many such labels, and the most frequent of them with `label` and `n_rows`
    accuracy, error, hamming_loss, constant_hamming_loss, labels : of labels; the share of the rows with all
        labels right, of single labels that are wrong, of those where each label has its more frequent value
        in all rows, and of each `label` its `share` of the rows, `error`, `precision`, `recall` and `f1`
    roc, roc_auc, precision_recall, average_precision, positive : of two classes, for the second one; the
        areas are off by at most roc_auc_error and average_precision_error
    """

    def to_html(self, *, title: str | None = None) -> str:
        """The evaluation as one self-contained HTML page; write it as UTF-8."""
        from distrff.diagnostics.pages import error_charts

        title = self._title() if title is None else title
        charts = error_charts(self)
        return html_page(title, quality_facts(self), sections=evaluation_sections(self, charts))

    def _title(self) -> str:
        return f"Evaluation of {self['model']}"

    def _repr_html_(self) -> str:
        return html_card(self._title(), quality_facts(self), sections=evaluation_sections(self))

    def __repr__(self) -> str:
        head = f"{self._title()} on {number_text(self['n_samples'])} rows"
        lines = page_lines(quality_facts(self), evaluation_sections(self))
        return "\n".join([head, *(f"  {line}" for line in lines)])


def evaluate(
    model: Any,
    data: Any = None,
    y: Any = None,
    sample_weight: Any = None,
    *,
    exposure: Any = None,
    return_std: bool = False,
) -> Evaluation:
    """Errors of a model's predictions, from one light pass over rows of any storage.

    The rows that the estimator was fitted to are judged out of fold, if the fit had folds (``alpha="cv"`` or
    ``C="cv"``): each row by the model, of the chosen penalty, that did not see it. Scaling, map, widths and
    penalty did see all rows. Without folds the errors on these rows are optimistic, and `rows` says so.
    After `partial_fit` it is not known which rows the fit saw, and `rows` says that.

    Parameters
    ----------
    model : fitted estimator, or Model
        Not one of principal components.
    data : Dataset, array-like, DataFrame, scipy sparse matrix, dask array or dask DataFrame, optional
        Of shape (n_samples, n_columns), or a table of the raw columns of the fit. Default: the rows of the
        estimator's fit, which are read again.
    y, sample_weight : array-like, optional
        As for `fit`. A dataset brings its own.
    exposure : array-like or str, optional
        Of a model of counts or amounts, as for `KernelRegressor.fit`.
    return_std : bool
        Judge the standard deviations of observations as well, as those of normal laws: by the mean continuous
        ranked probability score, σ·(z·(2Φ(z) − 1) + 2φ(z) − 1/√π) with z = (y − f)/σ, and the mean negative
        log density (Gneiting and Raftery 2007, JASA 102, equations 21 and 35). For rows that the fit did not
        see, of a model that has deviations; costs those of the rows.

    Returns
    -------
    Evaluation
        Errors beside those of the mean or the most frequent class, residuals, confusions, curves. A mapping
        with a page of its own: `to_html`.

    Raises
    ------
    InputError
        For rows without targets, and rows or models that cannot be used.

    Notes
    -----
    n·(2dD + 2Dk) flops and n·D cosines, as predictions take. Sums are exact but for rounding;
    quantiles and curves come from sketches of fixed buckets: their errors are given with them. The bits are
    the same for any number of workers and any chunking.
    """
    if exposure is not None:
        from distrff.io.open import exposed  # with the readers of all storages

        loss = (judged_model(model).loss or {"loss": "squares"})["loss"]
        if loss not in ("poisson", "gamma") or data is None:
            raise InputError(
                "exposures are of models of counts and amounts, with the rows to judge; leave them out"
            )
        data, y, sample_weight = exposed(data, y, sample_weight, exposure, weighted=loss == "poisson")
    if return_std and hasattr(model, "_with_posterior"):
        model._with_posterior()  # computed at first use
    judge, dataset, rows = judged_rows(model, data, y, sample_weight)
    if return_std:
        judge.check_has_std()
        if not isinstance(judge.targets, NumericTargets):
            raise InputError("standard deviations are those of numbers, and this model predicts classes")
        if judge.fold_models is not None or rows == "the rows of the fit":
            raise InputError(
                "deviations are judged on rows that the fit did not see, and these are its own; give others"
            )
    errors = errors_of(judge, dataset, with_std=return_std)
    return Evaluation(
        {
            "model": judge.kind,
            "n_samples": errors.n_rows,
            "rows": rows,
            "n_outside": errors.n_outside,
            **dataset.unseen_categories,
            **errors.values(dataset.target_names),
        }
    )


class JudgedRows(NamedTuple):
    """Rows to judge a frozen model on; this has the models of the fit's folds where they are its rows."""

    model: Model
    dataset: Dataset
    which: str  # as `Evaluation` says


def judged_model(model: Any) -> Model:
    """The frozen model of a fitted estimator, or a model itself; InputError for one without predictions."""
    if not isinstance(model, Model):
        if not hasattr(model, "fit"):
            raise InputTypeError(f"expected a fitted estimator or a model of load_model, got {model!r}")
        check_is_fitted(model, "model_")
    frozen: Model = getattr(model, "model_", model)
    if frozen.kind == "KernelPCA":
        raise InputError("principal components have no predictions; give a model that predicts")
    return frozen


def judged_rows(model: Any, data: Any = None, y: Any = None, sample_weight: Any = None) -> JudgedRows:
    """Rows to judge a model on; an estimator knows those of its fit."""
    frozen = judged_model(model)
    if hasattr(model, "_judged_rows"):
        dataset, folds, which = model._judged_rows(data, y, sample_weight)
        return JudgedRows(replace(frozen, fold_models=folds), dataset, which)
    if data is None:
        raise InputError(ROWS_UNKNOWN)
    return JudgedRows(frozen, rows_for(model, data, y, sample_weight), "the rows given")


# The pass.


def errors_of(
    model: Model,
    dataset: Dataset,
    run: Run | None = None,
    *,
    n_sketched: int = DETAILED_TARGETS,
    groups: LabelCounts | None = None,
    with_std: bool = False,
) -> Errors:
    """The errors of a frozen model, in one light pass over the rows.

    Of a model with folds, which must be of the fit to these very rows, each row is judged by the one that did
    not see it. Of so many targets the residuals are sketched. With `groups`, as `GroupWeights` counts them,
    each group has the weight 1.
    """
    run = begin_run() if run is None else run
    light, sent = model.for_tasks(with_std=with_std)
    cuts = judging_cuts(model, dataset)
    reduction = ErrorSum(light, cuts.tile_rows, min(model.n_outputs, n_sketched), with_std=with_std)
    reduction, sent = _by_groups(reduction, dataset, groups, sent)
    errors: Errors = run.total("score", dataset, reduction, cuts, sent)
    if not errors.weight > 0:
        if errors.n_outside:
            raise InputError(
                f"all {errors.n_outside} rows of positive weight are outside the bounds of the model; score "
                f"rows within them, or fit with wider bounds"
            )
        raise InputError("all sample weights are zero; give at least one row a positive weight")
    return errors


def _by_groups(reduction: Any, dataset: Dataset, groups: LabelCounts | None, sent: Arrays) -> Any:
    """The reduction of rows of which each group has the weight 1, and what its tasks are sent."""
    if groups is None:
        return reduction, sent
    reduction = replace(reduction, group=dataset.groups, n_groups=len(groups.labels))
    return reduction, {**sent, "groups": groups.labels, "group_weights": groups.weights}


def judging_cuts(model: Model, dataset: Dataset) -> Segmentation:
    """The cuts of a pass that judges all rows by the model."""
    # Few columns are light to read, but not to predict: segments as of 64 columns bound a task.
    cuts = light_segmentation(dataset.n_rows, max(dataset.n_columns, 64))
    if at_once := model.specification.rows_at_once:  # a transform for few rows takes as long as for many
        cuts = replace(
            cuts, segment_rows=max(cuts.segment_rows, at_once // 2), tile_rows=max(cuts.tile_rows, at_once)
        )
    return cuts


@dataclass(frozen=True)
class ErrorSum(Reduction):
    """Reduction to the `Errors` of a model, or of those of its folds."""

    model: Model
    tile_rows: int
    n_sketched: int = 1  # targets whose residuals are sketched
    group: str | None = None  # id column of the groups, of which each has the weight 1
    n_groups: int = 0
    with_std: bool = False

    def shared(self) -> FittedMap:
        return self.model.specification

    def size_bytes(self, n_rows: int) -> int:
        # The misfits of all rows, and the decision values of either of two classes.
        n_sketches = 3 if self.model.is_classifier else self.n_sketched
        return (1 + n_sketches) * min(_SKETCH_BYTES, 64 * n_rows) + 16 * self.n_groups  # and their table

    def update(self, total: Errors | None, rows: Rows, arrays: Arrays) -> Errors:
        model = self.model.restored(arrays)
        for block in rows.tiles(self.tile_rows):
            if block.y is None:
                raise InputError("scoring needs targets; give y, or the target's name")
            check_block(block, model.targets.kind)
            s = _weights(block) if self.group is None else _shares(block, self.group, arrays)
            total = self.merge(total, self._of_block(model, block, block.y, s))
        assert total is not None
        return total

    def _of_block(self, model: Model, block: RowBlock, y: np.ndarray, s: np.ndarray) -> Errors:
        X, targets, numbers = block.X, model.targets, block.keys.numbers
        # Decision values, of which labels, probabilities and scores all follow: features are made once.
        judges, F = model.judged(block.keys)
        if (rows := judges.rows) is not None:  # those of no fold are left out, and m judgements count 1/m
            X, y, s, numbers = chosen_rows(X, rows), y[rows], s[rows] * judges.shares(), numbers[rows]
        outside = model.outside(X)
        errors: Errors
        if isinstance(targets, ClassTargets):
            errors = ClassErrors.of(model, F, y, s, outside)
        elif isinstance(targets, MultilabelTargets):
            errors = LabelErrors.of(targets, F, y, s, outside)
        else:
            errors = NumberErrors.of(model, F, y, s, numbers, outside, self.n_sketched)
            if self.with_std:
                inside = np.flatnonzero(~outside)
                of_rows = chosen_rows(X, inside), as_columns(np.asarray(y, float))[inside], s[inside]
                errors = replace(errors, normal=NormalSums.of(model, *of_rows))
        if rows is None:
            return errors
        # Above they counted judgements; a row that several folds judge is one row.
        return replace(errors, n_rows=len(np.unique(rows)), n_outside=len(np.unique(rows[outside])))


# Groups of which each has the weight 1: Σs of their rows is known only after a pass over all rows.


def _weights(block: RowBlock) -> np.ndarray:
    if block.sample_weight is None:
        return np.ones(len(block.y))
    # Contiguous: the order in which products add up follows the layout.
    return np.ascontiguousarray(block.sample_weight, dtype=np.float64)


@dataclass(frozen=True)
class GroupWeights(Reduction):
    """Reduction to Σs of the rows of each group, by the hash of its value; 0 for rows outside the bounds."""

    group: str  # id column
    n_rows: int
    tile_rows: int
    bounds: FittedMap | None  # of the model, where it has any

    def size_bytes(self, n_rows: int) -> int:
        return 24 * n_rows  # hash, number of rows and weight, of as many groups as rows

    def zero(self) -> LabelCounts:
        return LabelCounts.empty()

    def update(self, total: LabelCounts, rows: Rows, arrays: Arrays) -> LabelCounts:
        for block in rows.tiles(self.tile_rows):
            s = _weights(block)
            if self.bounds is not None:
                s = np.where(self.bounds.outside(block.X), 0.0, s)
            hashes = group_hashes(block.ids[self.group])
            total = self.merge(total, LabelCounts.of_values(hashes, s, max_labels=self.n_rows))
        return total

    def merge(self, first: LabelCounts, second: LabelCounts) -> LabelCounts:
        return first.merge(second, max_labels=self.n_rows)


def _group_weights(run: Run, model: Model, dataset: Dataset) -> LabelCounts:
    """Σs of each group, in a pass that reads groups, targets and weights; also X, of a model with bounds."""
    assert dataset.groups is not None
    check_reading(run.execution, dataset)  # what the next pass reads is refused before this one
    bounds = model.specification if Trait.SUMS in model.specification.traits else None
    fields = ("y", "sample_weight") if bounds is None else FIELDS
    cuts = light_segmentation(dataset.n_rows, 1 if bounds is None else dataset.n_columns)
    rows = [dataset.rows(start, stop, fields) for start, stop in cuts.bounds()]
    counted: LabelCounts = run.total(
        "count groups", rows, GroupWeights(dataset.groups, dataset.n_rows, cuts.tile_rows, bounds)
    )
    return counted


def _shares(block: RowBlock, group: str, arrays: Arrays) -> np.ndarray:
    """Each row's share of the weight of its group; 0 where this has none."""
    s, hashes = _weights(block), group_hashes(block.ids[group])
    of_group = arrays["group_weights"][np.searchsorted(arrays["groups"], hashes)]
    return np.divide(s, of_group, out=np.zeros_like(s), where=of_group > 0)


# Intervals from the errors of rows that a model did not see.


_FLOORS = 1.0, 0.1, 0.01, 0.001


@dataclass(frozen=True, eq=False)
class ScaledErrors(Sums):
    """Sums of |y − f|/u of k targets for m widths u each: u² = a + std²/σ̂² with floors a, or spreads at x."""

    weight: float
    logs: np.ndarray  # (m, k): Σ s·log u
    misses: np.ndarray  # (m, k): Σ s·|y − f|/u
    sketches: tuple[tuple[QuantileSketch, ...], ...]  # m times k
    by_width: tuple[tuple[QuantileSketch, ...], ...]  # the same with weights s·u

    def best(self) -> np.ndarray:
        """The likeliest floor of each target, were errors of Laplace's law in units of u."""
        with np.errstate(divide="ignore"):
            return np.argmin(self.logs / self.weight + np.log(self.misses / self.weight), axis=0)


@dataclass(frozen=True)
class ScaledErrorSum(ErrorSum):
    """Reduction to the `ScaledErrors` of a model with its posterior, or of the rows of one fold."""

    floors: tuple[tuple[float, ...], ...] = ()  # m times k; () for the model's spreads at x
    folds: Folds | None = None
    fold: int = 0

    def size_bytes(self, n_rows: int) -> int:
        return 2 * max(1, len(self.floors)) * super().size_bytes(n_rows)

    def _of_block(self, model: Model, block: RowBlock, y: np.ndarray, s: np.ndarray) -> Any:
        X, Y = block.X, as_columns(np.asarray(y, dtype=np.float64))
        judged = ~model.outside(X)
        if self.folds is not None:
            judges = self.folds.held_out(block.keys)
            share = np.zeros(len(judged))
            share[judges.of(self.fold)] = judges.shares()[judges.numbers == self.fold]
            s, judged = s * share, judged & (share > 0)
        rows = np.flatnonzero(judged & (s > 0))
        X, Y, s = chosen_rows(X, rows), Y[rows], s[rows]
        # Without rows a transform has nothing to do, and a map may refuse it.
        E = np.abs(Y - model.values(X)) if len(rows) else Y
        logs, misses, sketches, by_width = [], [], [], []
        for U in self._widths(model, X) if len(rows) else [np.ones_like(Y)] * max(1, len(self.floors)):
            scores = E / U
            logs.append(s @ np.log(U))
            misses.append(s @ scores)
            sketches.append(tuple(QuantileSketch.of(one, s) for one in scores.T))
            by_width.append(tuple(QuantileSketch.of(*pair) for pair in zip(scores.T, (U.T * s), strict=True)))
        sums = np.array(logs), np.array(misses)
        return ScaledErrors(float(s.sum()), *sums, tuple(sketches), tuple(by_width))

    def _widths(self, model: Model, X: Any) -> list[np.ndarray]:
        """Each u, of shape (n, k)."""
        if not self.floors:
            return [as_columns(model.spreads(X))]
        V = as_columns(model.relative_variance(X))
        return [np.sqrt(V + np.array(floors)) for floors in self.floors]


def _scaled_errors(
    run: Run, model: Model, dataset: Dataset, groups: LabelCounts | None = None, **own: Any
) -> ScaledErrors:
    """The errors of a model in units of its deviations, or of its spreads at x, in a pass with these."""
    light, sent = model.for_tasks(with_std=bool(own.get("floors")))
    cuts = judging_cuts(model, dataset)
    reduction = ScaledErrorSum(light, cuts.tile_rows, model.n_outputs, **own)
    reduction, sent = _by_groups(reduction, dataset, groups, sent)
    found: ScaledErrors = run.total("score deviations", dataset, reduction, cuts, sent)
    return found


def calibrate(model: Model, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> Model:
    """A frozen model with intervals, or prediction sets, from rows that its fit did not see.

    This is split conformal prediction: see `predict_interval` and `predict_set` of the model for what is
    guaranteed. Rows that chose a width, a metric or a penalty were seen by the fit. Leave out copies of its
    rows, and others of the same group, such as a second measurement of one patient. Fitted estimators have
    a method of this name.

    Parameters
    ----------
    model : Model
        From `load_model`, or an estimator's `model_`.
    X : Dataset, array-like, DataFrame, scipy sparse matrix, dask array or dask DataFrame
        Of shape (n_samples, n_columns), or a frame of the raw columns of the fit. A `Dataset` brings its own
        y, and so may a raw frame.
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
    sample_weight : array-like of shape (n_samples,), optional
        Multiplicities: a row of weight 3 counts as three rows.
    groups : array-like of shape (n_samples,), optional
        Numbers, text or times: which rows come together, such as those of a patient. New rows are then of
        new groups: a group counts as one, however many rows it has. A `Dataset` brings its own.

    Raises
    ------
    InputError
        For rows that cannot be used or do not fit the model, and groups that lack a value.

    Notes
    -----
    One light pass, of n predictions; where the model has standard deviations another, of n of these, for
    intervals that are wider where the fit had few rows. Errors are kept to 2⁻¹⁰, rounded up, mostly in far
    less than a megabyte.
    With groups there is a pass before it that reads them, y and the weights; it keeps 24 bytes a group.
    """
    if not isinstance(model, Model):
        raise InputTypeError(
            f"expected a Model, as load_model returns, got {model!r}; a fitted estimator calibrates itself: "
            f"estimator.calibrate(X, y)"
        )
    return calibrated(model, rows_for(model, X, y, sample_weight, groups=groups))


def out_of_fold(model: Model, dataset: Dataset, folds: FoldModels) -> Model:
    """The model with intervals from the rows of its fit, each scored by the model without its fold."""
    errors = errors_of(replace(model, fold_models=folds), dataset, n_sketched=model.n_outputs)
    return _with_intervals(model, errors, OUT_OF_FOLD)


def scaled_out_of_fold(model: Model, dataset: Dataset, folds: FoldModels, posteriors: Iterable[Any]) -> Model:
    """The model whose intervals out of fold have scores in standard deviations as well.

    `posteriors` are of the folds' models, for noise of variance 1. A pass a fold over all rows, which judges
    its own: so one posterior of D² numbers is with a worker, as for predictions.
    """
    run, parts = begin_run(), []
    floors = tuple((a,) * model.n_outputs for a in _FLOORS)
    for fold, posterior in enumerate(posteriors):
        judge = replace(folds.of(model, fold), posterior=posterior)
        parts.append(_scaled_errors(run, judge, dataset, floors=floors, folds=folds.folds, fold=fold))
    found: ScaledErrors = reduce(add, parts)
    best, intervals = found.best(), model.intervals
    assert intervals is not None
    scaled, by_width = ([of[i][j] for j, i in enumerate(best)] for of in (found.sketches, found.by_width))
    chosen = tuple(_FLOORS[i] for i in best)
    intervals = replace(intervals, scaled=tuple(scaled), floors=chosen)
    return replace(model, intervals=_preferring(intervals, "deviation", by_width))


def spread_out_of_fold(model: Model, dataset: Dataset, folds: FoldModels, spreads: FoldModels) -> Model:
    """The model whose intervals out of fold have scores in spreads at x as well, each by the model of spreads
    without the row's fold; a pass a fold, as above."""
    run, parts = begin_run(), []
    # Rows that no fold holds out have no errors, and of theirs alone a fold has no model of spreads.
    for i, fold in enumerate(_numbers(spreads.folds, folds.folds)):
        judge = replace(folds.of(model, fold), spread=(spreads.coef[i], spreads.intercept[i]))
        parts.append(_scaled_errors(run, judge, dataset, folds=folds.folds, fold=fold))
    found: ScaledErrors = reduce(add, parts)
    assert model.intervals is not None
    intervals = replace(model.intervals, residual=found.sketches[0])
    return replace(model, intervals=_preferring(intervals, "residual", found.by_width[0]))


def _numbers(some: Folds, whole: Folds) -> list[int]:
    """The numbers that some of the folds have among all."""
    if isinstance(some, SomeFolds) and _depth(some) > _depth(whole):
        return [_numbers(some.whole, whole)[k] for k in some.kept]
    return list(range(whole.n_folds))


def _depth(folds: Folds) -> int:
    """How often folds were left out of others: the others themselves may be so already."""
    return 1 + _depth(folds.whole) if isinstance(folds, SomeFolds) else 0


_COMPARED_AT = 0.9  # the coverage at which methods are compared


def _preferring(intervals: Intervals, method: str, by_width: Iterable[QuantileSketch]) -> Intervals:
    """The intervals, with the method of least interval score; `by_width` are scores with weights s·u."""
    if intervals.sketches[0].weight < 1 / (1 - _COMPARED_AT):
        return intervals
    scores = dict(intervals.scores)
    for name, sketches in (("constant", intervals.sketches), (method, by_width)):
        radii, alpha = intervals.radius(_COMPARED_AT, name), 1 - _COMPARED_AT
        # In units of each target's constant intervals, for their sum to mean something.
        units = [
            one.interval_score(r, alpha)
            for one, r in zip(intervals.sketches, intervals.radius(_COMPARED_AT), strict=True)
        ]
        found = [one.interval_score(r, alpha) for one, r in zip(sketches, radii, strict=True)]
        scores[name] = float(np.mean(np.divide(found, np.maximum(units, np.finfo(float).tiny))))
    return replace(intervals, scores=scores)


def calibrated(model: Model, dataset: Dataset) -> Model:
    """The model with intervals from rows that its fit did not see; all calibrations lead here.

    Raises InputError for rows that do not fit the model.
    """
    model.check_intervals_belong()
    check_columns(model, dataset, with_target=True)
    check_target(model, dataset)
    # A stored model knows no rows, but the place and number of those of its fit.
    fitted = model.report.get("source"), model.report.get("n_samples")
    # A warning, and no error: rows at the same place may have been written anew since.
    if dataset.places and fitted == (dataset.source, dataset.n_rows):
        warn(
            f"{dataset.source} is where the rows of the fit came from; intervals from rows that the fit saw "
            f"are too narrow, and carry no guarantee",
            DataWarning,
        )
    # As text: a report that comes from a file may hold anything.
    if dataset.groups is None and "whole groups" in str(model.report.get("folds")):
        warn(
            "the fit held out whole groups, but these rows come without groups: coverage is that of new rows "
            "of these same groups; give groups, or --groups, for rows of new ones",
            DataWarning,
        )
    run = begin_run()
    groups = None if dataset.groups is None else _group_weights(run, model, dataset)
    # Sketches of all targets, since each has an interval.
    errors = errors_of(model, dataset, run=run, n_sketched=model.n_outputs, groups=groups)
    n_groups = 0 if groups is None else int(np.count_nonzero(groups.weights > 0))
    found = _with_intervals(model, errors, CALIBRATED, n_groups)
    if not isinstance(model.targets, NumericTargets):
        return found
    assert found.intervals is not None
    if model.intervals is not None:  # compared on other rows: by these it would cost the guarantee
        found = replace(found, intervals=replace(found.intervals, scores=model.intervals.scores))
    if model.spread is not None:
        (residual,) = _scaled_errors(run, model, dataset, groups).sketches
        assert found.intervals is not None
        found = replace(found, intervals=replace(found.intervals, residual=residual))
    if model.posterior is None:
        return found
    assert found.intervals is not None
    # Chosen by these rows, it would cost the guarantee.
    before = model.intervals.floors if model.intervals is not None else ()
    floors = before or (1.0,) * model.n_outputs
    (scaled,) = _scaled_errors(run, model, dataset, groups, floors=(floors,)).sketches
    return replace(found, intervals=replace(found.intervals, scaled=scaled, floors=floors))


def _with_intervals(model: Model, errors: Errors, source: str, n_groups: int = 0) -> Model:
    """The model with the intervals of errors; warns of rows that bear on them oddly."""
    if errors.n_outside:
        warn(f"{errors.n_outside:,} rows are outside the bounds of the model and are left out", DataWarning)
    if errors.n_unseen:
        warn(
            f"{errors.n_unseen:,} of {errors.n_rows:,} rows have labels that the model never saw, and which "
            f"no prediction set holds",
            DataWarning,
        )
    counts = errors.n_rows, errors.n_outside, errors.n_unseen, n_groups
    return replace(model, intervals=Intervals(errors.conformal_scores(), source, *counts))
