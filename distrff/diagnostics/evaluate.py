"""The evaluation sweep: a frozen model's predictions against the targets, in one light pass over the rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distrff.diagnostics.class_errors import ClassErrors
from distrff.diagnostics.label_errors import LabelErrors
from distrff.diagnostics.number_errors import DETAILED_TARGETS, NumberErrors
from distrff.diagnostics.quality import Evaluation
from distrff.diagnostics.report import FitReport
from distrff.engine.reduction import Arrays, Reduction, Segmentation, light_segmentation
from distrff.engine.run import Run, begin_run
from distrff.errors import InputError
from distrff.features.specification import MapSpecification
from distrff.io.dataset import Dataset, RowBlock, Rows, check_block
from distrff.model.model import FoldModels, Model
from distrff.model.predict import light_model, restored
from distrff.model.rows import rows_for
from distrff.preprocessing.coding import ClassTargets, MultilabelTargets

Errors = NumberErrors | ClassErrors | LabelErrors

_SKETCH_BYTES = 2**20  # of residuals over many decades; a sample is less


@dataclass(frozen=True)
class EvaluationReduction(Reduction):
    """Reduction to the errors of a model; with `folds`, each row's by the model that did not see it."""

    model: Model
    tile_rows: int
    folds: FoldModels | None = None
    n_sketched: int | None = None  # targets whose residuals are sketched; default the first few

    def shared(self) -> MapSpecification:
        return self.model.specification

    def size_bytes(self, n_rows: int) -> int:
        n_sketches = 3 if self.model.is_classifier else self._n_sketched
        return (1 + n_sketches) * min(_SKETCH_BYTES, 64 * n_rows)

    def zero(self) -> Errors:
        targets = self.model.targets
        if isinstance(targets, ClassTargets):
            return ClassErrors.empty(targets, has_probabilities=self.model.likelihood is not None)
        if isinstance(targets, MultilabelTargets):
            return LabelErrors.empty(targets.n_labels)
        return NumberErrors.empty(self.model.n_outputs, self._n_sketched)

    @property
    def _n_sketched(self) -> int:
        return min(self.model.n_outputs, self.n_sketched or DETAILED_TARGETS)

    def update(self, errors: Errors, rows: Rows, arrays: Arrays) -> Errors:
        model = restored(self.model, arrays)
        folds = None if self.folds is None else self.folds.restored(arrays)
        for block in rows.tiles(self.tile_rows):
            if block.y is None:
                raise InputError("scoring needs targets; give y, or the target's name")
            check_block(block, model.targets.kind)
            errors = self.merge(errors, self._of_block(model, folds, block, block.y))
        return errors

    def merge(self, first: Any, second: Any) -> Errors:
        return first.merge(second)

    def _of_block(self, model: Model, folds: FoldModels | None, block: RowBlock, y: np.ndarray) -> Errors:
        X, s = block.X, block.sample_weight
        F = model.decision(X) if folds is None else folds.decision(model, X, block.start)
        outside = model.outside(X)
        if isinstance(model.targets, ClassTargets):
            P = None if model.likelihood is None else model.probabilities(F)
            return ClassErrors.of(model.targets, F, P, y, s, outside)
        if isinstance(model.targets, MultilabelTargets):
            return LabelErrors.of(model.targets, F, y, s, outside)
        rows = np.arange(block.start, block.start + len(F))
        return NumberErrors.of(F, y, s, rows, outside, self._n_sketched)


def errors_of(
    model: Model,
    dataset: Dataset,
    folds: FoldModels | None = None,
    run: Run | None = None,
    *,
    n_sketched: int | None = None,
) -> Errors:
    """Return the errors of a frozen model, in one light pass over the rows.

    With `folds`, which must be of the fit to these very rows, each row is judged by the model that did not
    see it. Of so many targets the residuals are sketched; by default of the first few.
    """
    run = begin_run() if run is None else run
    light, sent = light_model(model)
    if folds is not None:
        folds, sent = folds.light(), {**sent, **folds.arrays()}
    cuts = judging_cuts(model, dataset)
    reduction = EvaluationReduction(light, cuts.tile_rows, folds, n_sketched)
    errors: Errors = run.total("score", dataset, reduction, cuts, sent)
    if not errors.weight > 0:
        if errors.n_outside:
            raise InputError(
                f"all {errors.n_outside} rows of positive weight are outside the bounds of the model; score "
                f"rows within them, or fit with wider bounds"
            )
        raise InputError("all sample weights are zero; give at least one row a positive weight")
    return errors


def judging_cuts(model: Model, dataset: Dataset) -> Segmentation:
    """Return the cuts of a pass that judges all rows by the model."""
    cuts = light_segmentation(dataset.n_rows, max(dataset.n_columns, 64))
    if at_once := model.specification.rows_at_once:  # a transform for few rows takes as long as for many
        cuts = replace(
            cuts, segment_rows=max(cuts.segment_rows, at_once // 2), tile_rows=max(cuts.tile_rows, at_once)
        )
    return cuts


def evaluate(model: Any, data: Any = None, y: Any = None, sample_weight: Any = None) -> Evaluation:
    """Return how good a model's predictions are, from one light pass over rows of any storage.

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
    frozen = model if isinstance(model, Model) else getattr(model, "model_", None)
    if frozen is None:
        check_is_fitted(model, "model_")
    if not isinstance(frozen, Model) or frozen.kind == "KernelPCA":
        raise InputError(f"expected a fitted model that predicts, got {model!r}")
    dataset, folds, rows = judged_rows(model, data, y, sample_weight)
    errors = errors_of(frozen, dataset, folds)
    values = {
        "model": frozen.kind,
        "n_samples": errors.n_rows,
        "rows": rows,
        "n_outside": errors.n_outside,
        **dataset.unseen_categories,
        **(errors.values() if isinstance(errors, ClassErrors) else errors.values(dataset.target_names)),
    }
    return Evaluation(values)


_DRAWN_COLUMNS = 4
_MOST_JUDGED, _LEAST_JUDGED, _CURVE_ROWS = 5_000, 500, 1_000
_DETAILS = ("targets", "labels", "classes", "confusion", "confused", "roc", "precision_recall", "reliability")


def judge_fit(estimator: Any) -> None:
    """Take into an estimator's report how good it is on its rows, and what matters to it there.

    Three or four light passes, of which those for the columns judge some thousand rows.
    """
    evaluation = evaluate(estimator)
    report = estimator.report_.to_dict()
    of_linear = {name: value for name, value in report["quality"].items() if name.startswith("linear_")}
    quality = {name: value for name, value in evaluation.items() if name not in _DETAILS} | of_linear
    report |= {"quality": quality, "evaluation": evaluation.to_dict()}
    if not estimator.model_.is_multilabel:  # which columns matter is not judged for several labels
        report |= _what_matters(estimator)
    estimator.report_ = FitReport(report)


def _what_matters(estimator: Any) -> dict[str, Any]:
    """Return the importance of columns, and the dependence on the most important ones, for the report."""
    from distrff.diagnostics.importance import what_matters  # loads dask.array, which a fit may not need

    rows = judged_rows(estimator).dataset
    # Each judged row is predicted anew for each column: together about as often as two passes do.
    n_judged = min(_MOST_JUDGED, max(_LEAST_JUDGED, 2 * rows.n_rows // (1 + rows.n_columns)))
    importance, dependence = what_matters(
        estimator.model_,
        rows,
        n_columns=_DRAWN_COLUMNS,
        max_rows=n_judged,
        max_curve_rows=_CURVE_ROWS,
        random_state=estimator.seed_,
    )
    found = {"importance": importance.to_dict()}
    return found if dependence is None else found | {"dependence": dependence.to_dict()}


class JudgedRows(NamedTuple):
    """Rows with targets, and what a model knows of them."""

    dataset: Dataset
    folds: FoldModels | None  # of the fit to these rows, if it held some out
    rows: str  # which ones they are, as `Evaluation` says


def judged_rows(model: Any, data: Any = None, y: Any = None, sample_weight: Any = None) -> JudgedRows:
    """The rows to judge a model on: an estimator knows those of its fit."""
    if hasattr(model, "_judged_rows"):
        found: JudgedRows = model._judged_rows(data, y, sample_weight)
        return found
    if data is None:
        raise InputError(ROWS_UNKNOWN)
    return JudgedRows(rows_for(model, data, y, sample_weight), None, "the rows given")


ROWS_UNKNOWN = (
    "the rows of the fit are known only to an estimator that was fitted in this process, to rows in "
    "memory or stored ones; give data"
)
