"""What a fitted model's predictions depend on: permutation importance and partial dependence of columns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distrff.diagnostics.dependence import (
    DependenceReduction,
    DependenceSums,
    Grid,
    grids_of,
    n_results,
    result_kind,
    settings_to_send,
    with_parts,
)
from distrff.diagnostics.replacement import (
    ColumnGroup,
    DonorReduction,
    Donors,
    ImportanceReduction,
    ImportanceSums,
    RowDraw,
    WeightedMoments,
    column_groups,
)
from distrff.diagnostics.strict import strict
from distrff.engine.reduction import Segmentation, light_segmentation, light_segmentation_of_features
from distrff.engine.run import Run, begin_run
from distrff.errors import ColumnError, InputError, InputTypeError
from distrff.io.dataset import Dataset, check_known
from distrff.model.model import Model
from distrff.model.predict import light_model
from distrff.model.rows import rows_for
from distrff.model.write import frozen_model
from distrff.preprocessing.coding import ClassTargets
from distrff.utils.html import Bars, Section, Table, html_card
from distrff.utils.random import child_seed, resolve_seed
from distrff.utils.text import listed, number_text
from distrff.utils.validation import check_count, is_finite

_BATCH_BYTES = 2**24  # of the rows and results that are judged together
_DONOR_BYTES, _MIN_DONORS = 2**25, 2**10
_DONORS = 20_000  # from which the values of curves come
_GRID_SIZE = 20
_SHOWN_ROWS = 20


@dataclass(frozen=True)
class ColumnImportance:
    """How much worse predictions are without what one column says.

    Attributes
    ----------
    column : str
        The raw column, or the column of X where no steps of a table made it; its index without names.
    importance, std_error : float
        Fall of R² (the mean over the targets that vary) or of accuracy, and its standard error over rows.
    mse_rise, mse_rise_error : tuple of float, or None
        Rise of the mean squared error of each target, in its unit squared, and standard errors.
    n_columns : int
        Columns of X that were replaced together.
    n_left_out : int
        Rows that the replacement moved outside of the bounds of the model; they are left out.
    """

    column: str
    importance: float
    std_error: float
    mse_rise: tuple[float, ...] | None
    mse_rise_error: tuple[float, ...] | None
    n_columns: int
    n_left_out: int


@dataclass(frozen=True, repr=False)
class PermutationImportance:
    """The importance of each column; see `permutation_importance`.

    Attributes
    ----------
    measure : {"r2", "accuracy"}
        What falls.
    score : float
        R² or accuracy of the judged rows as they are; R² in units of the variance of all rows' targets.
    mse : tuple of float, or None
        Mean squared error of each target.
    targets : tuple of str
        Names of the targets, of numbers.
    columns : tuple of ColumnImportance
        The most important first.
    n_samples, n_judged, n_outside : int
        All rows, those judged, and those left out because they are outside of the bounds of the model.
    n_unseen : int
        Rows judged whose label the model never saw; they are wrong before and after.
    seed : int
    """

    measure: str
    score: float
    mse: tuple[float, ...] | None
    targets: tuple[str, ...]
    columns: tuple[ColumnImportance, ...]
    n_samples: int
    n_judged: int
    n_outside: int
    n_unseen: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return the result as strict JSON data: the attributes, each column as a dict of its own."""
        found = vars(self) | {"columns": [vars(column) for column in self.columns]}
        return strict(found)

    def _rows(self) -> list[list[Any]]:
        return [
            [c.column, c.importance, c.std_error, *(c.mse_rise or ())] for c in self.columns[:_SHOWN_ROWS]
        ]

    def _heads(self) -> list[str]:
        falls = {"r2": "fall of R²", "accuracy": "fall of accuracy"}[self.measure]
        rises = ["rise of MSE" if len(self.targets) == 1 else f"rise of MSE, {t}" for t in self.targets]
        return ["column", falls, "± standard error", *rises]

    def _facts(self) -> dict[str, str]:
        name = {"r2": "R²", "accuracy": "accuracy"}[self.measure]
        judged = f"{number_text(self.n_judged)} of {number_text(self.n_samples)}"
        facts = {name: number_text(self.score), "rows judged": judged}
        if self.n_outside:
            facts["outside the bounds, left out"] = number_text(self.n_outside)
        if self.n_unseen:
            facts["labels never seen, always wrong"] = number_text(self.n_unseen)
        if len(self.columns) > _SHOWN_ROWS:
            facts["columns shown"] = f"{_SHOWN_ROWS} of {number_text(len(self.columns))}"
        return facts

    def lines(self) -> list[str]:
        """Return the result as lines of text: what was judged, then a row for each column."""
        return [*(f"{name}: {value}" for name, value in self._facts().items()), *_text_table(self)]

    def __repr__(self) -> str:
        return "\n".join(["<PermutationImportance", *self.lines()]) + ">"

    def _repr_html_(self) -> str:
        bars = [
            (c.column, c.importance, f"{number_text(c.importance)} ± {number_text(c.std_error)}")
            for c in self.columns[:_SHOWN_ROWS]
        ]
        parts = [Section(self._heads()[1], [Bars(bars)])]
        return html_card("Permutation importance", self._facts().items(), (), parts)


@dataclass(frozen=True, eq=False)
class DependenceCurve:
    """Mean results with one column set to some values.

    Attributes
    ----------
    column : str
        The raw column or the column of X; of a time also the part of it, as in "departure_hour".
    kind : {"number", "category", "time"}
    values : tuple
        Numbers in rising order; categories, the most frequent first; hours, days or months.
    unit : str or None
        Of numbers that stand for points in time.
    shares : tuple of float, or None
        The share of the sample's weight with each category.
    mean, std_error, std : ndarray of shape (n_values, n_outputs)
        The mean result over the judged rows, its standard error, and the deviation over the rows. The same
        rows are judged for all values, so differences along the curve are more exact than each mean.
    n_left_out : int
        Rows that one of the values moves outside of the bounds of the model.
    """

    column: str
    kind: str
    values: tuple[Any, ...]
    unit: str | None
    shares: tuple[float, ...] | None
    mean: np.ndarray
    std_error: np.ndarray
    std: np.ndarray
    n_left_out: int


@dataclass(frozen=True, eq=False, repr=False)
class PartialDependence:
    """Curves of mean results against columns; see `partial_dependence`.

    Attributes
    ----------
    result : {"prediction", "probability", "decision"}
        What the curves show.
    outputs : tuple of str
        Names of the targets or classes, one for each column of `mean`.
    curves : tuple of DependenceCurve
    n_samples, n_judged, n_outside : int
        All rows, those judged, and those left out because they are outside of the bounds of the model.
    seed : int
    """

    result: str
    outputs: tuple[str, ...]
    curves: tuple[DependenceCurve, ...]
    n_samples: int
    n_judged: int
    n_outside: int
    seed: int

    def __getitem__(self, column: str) -> DependenceCurve:
        """Return the curve of a column."""
        for curve in self.curves:
            if curve.column == column:
                return curve
        raise KeyError(column)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as strict JSON data: the attributes, each curve as a dict of its own."""
        return strict(vars(self) | {"curves": [vars(curve) for curve in self.curves]})

    def _rows(self) -> list[list[Any]]:
        """Return the ends of each curve, as far as they fit."""
        rows = []
        for curve in self.curves[:_SHOWN_ROWS]:
            low, high = curve.mean.min(axis=0), curve.mean.max(axis=0)
            for name, a, b in list(zip(self.outputs, low, high, strict=True))[:_SHOWN_ROWS]:
                rows.append([curve.column, len(curve.values), name, float(a), float(b)])
        return rows

    def _heads(self) -> list[str]:
        return ["column", "values", "output", f"lowest mean {self.result}", "highest"]

    def _facts(self) -> dict[str, str]:
        facts = {"rows judged": f"{number_text(self.n_judged)} of {number_text(self.n_samples)}"}
        if self.n_outside:
            facts["outside the bounds, left out"] = number_text(self.n_outside)
        return facts

    def __repr__(self) -> str:
        return "\n".join(["<PartialDependence", *_text_table(self)]) + ">"

    def _repr_html_(self) -> str:
        parts = [Section("Curves", [Table(self._heads(), self._rows())])]
        return html_card("Partial dependence", self._facts().items(), (), parts)


def _text_table(found: PermutationImportance | PartialDependence) -> list[str]:
    """Return a result's rows as lines, its columns one under the other."""
    rows = [[v if isinstance(v, str) else number_text(v) for v in row] for row in found._rows()]
    texts = [found._heads(), *rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return ["  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in texts]


def permutation_importance(
    model: Any,
    data: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    columns: Sequence[str | int] | None = None,
    max_rows: int = 20_000,
    random_state: int | None = 0,
) -> PermutationImportance:
    """Return how much worse a model predicts rows when a column's values come from other rows.

    With x' = x except for the column j, which is another row's, the importance of j is the mean over rows of

        L(y, f(x')) − L(y, f(x)),

    where L is the squared error in units of the target's variance (the mean of these over several targets),
    so that it is the fall of R², or for classes 1 where the label is wrong, so that it is the fall of
    accuracy. Columns that one raw column of a table became, such as categories or parts of a time, are
    replaced together. It says what this model uses, not what could be learned: of two columns that say the
    same, each may seem to matter little. On rows of the fit it also counts what the model learned by heart,
    so give others.

    Parameters
    ----------
    model : fitted estimator or Model
        Not of principal components.
    data : Dataset, array-like, DataFrame, scipy sparse matrix, dask array or dask DataFrame
        Rows of any storage. A frame of raw columns goes through the model's steps, and brings its target if y
        is not given.
    y : array-like of shape (n_samples,) or (n_samples, n_targets), optional
    sample_weight : array-like of shape (n_samples,), optional
        Weights are multiplicities, of rows judged and of rows that values come from.
    columns : sequence of str or int, optional
        Raw columns, or columns of X by name or index where no steps of a table made them; default all. A
        column has the same importance whichever others are judged.
    max_rows : int
        At most so many rows are judged: one of each ⌈n/max_rows⌉ consecutive ones.
    random_state : int or None

    Returns
    -------
    PermutationImportance

    Raises
    ------
    InputError
        For data that do not fit the model, a column that it does not have, a target that does not vary, or
        if no judged row has a positive weight within the bounds of the model.

    Notes
    -----
    Two passes over the rows; the result has the same bits for any number of workers and any chunks. The first
    draws up to `max_rows` rows evenly from all of the data (fewer where they exceed 32 MB); the second
    predicts each judged row once, and again for each column that changes, with the value of a row that a hash
    of the row number and the column's place chooses: at most max_rows·(1 + n) predictions for n columns. The
    standard error is that of the mean of the paired differences, σ/√(n − 1) with the effective number
    n = (Σs)²/Σs² of rows.

    L. Breiman, Random forests, Machine Learning 45 (2001), section 10; A. Fisher, C. Rudin and F. Dominici,
    All models are wrong, but many are useful, JMLR 20 (2019), section 3.
    """
    frozen, seed = _checked(model, max_rows, random_state)
    if frozen.is_multilabel:
        raise InputError(
            "permutation_importance judges numbers or one class a row; of several labels, fit one classifier "
            "each"
        )
    dataset = rows_for(frozen, data, y, sample_weight)
    groups = _chosen_groups(column_groups(frozen, dataset.column_names), columns)
    run = begin_run()
    kind = "classes" if frozen.is_classifier else "numeric"
    donors = _drawn(run, frozen, dataset, kind, max_rows, seed)
    draw = RowDraw.of(dataset.n_rows, max_rows, seed, "judged rows")
    light, sent = light_model(frozen)
    cuts = _cuts(frozen, dataset, len(groups), draw)
    reduction = ImportanceReduction(
        light,
        tuple(groups),
        tuple(child_seed(seed, "donors", group.positions[0]) for group in groups),
        draw,
        _units(donors),
        cuts.tile_rows,
        _batch_rows(dataset, frozen.n_outputs),
    )
    sums: ImportanceSums = run.total("importance", dataset, reduction, cuts, {**sent, **donors.arrays()})
    _check_judged(sums.losses, sums.losses.n_left_out)
    if sums.n_unseen == sums.n_judged and isinstance(frozen.targets, ClassTargets):
        raise InputError(
            f"the model knows the label of none of {sums.n_judged} judged rows, so all are wrong whatever "
            f"their columns hold; its classes are {listed(frozen.targets.classes.tolist())}"
        )
    return _importance(frozen, dataset, groups, sums, seed)


def partial_dependence(
    model: Any,
    data: Any,
    columns: str | int | Sequence[str | int],
    *,
    sample_weight: Any = None,
    grid_size: int = _GRID_SIZE,
    max_rows: int = 2_000,
    random_state: int | None = 0,
) -> PartialDependence:
    """Return the mean result of a model over rows in which a column is set to one value after another.

    For the value v of a column it is Σᵢ sᵢ f(xᵢ with v in this column)/Σᵢ sᵢ, where f is the prediction of
    numbers, the probability of each class where the model has them, else the decision values.

    Parameters
    ----------
    model : fitted estimator or Model
        Not of principal components.
    data : Dataset, array-like, DataFrame, scipy sparse matrix, dask array or dask DataFrame
        As for `permutation_importance`; a target is not needed.
    columns : str, int or sequence of these
        Raw columns, or columns of X by name or index. Numbers are set to quantiles of a sample of the rows,
        or to all their values if these are few; categories and hashed words one at a time, the most frequent
        first; of a time's parts, the months, the days of the week and the hours of the day, each a curve of
        its own. Where a value may be missing, it is set to one that is there.
    sample_weight : array-like of shape (n_samples,), optional
        Weights are multiplicities.
    grid_size : int
        At most so many values of numbers or categories.
    max_rows : int
        At most so many rows are judged: one of each ⌈n/max_rows⌉ consecutive ones.
    random_state : int or None

    Returns
    -------
    PartialDependence

    Raises
    ------
    InputError
        For data that do not fit the model, a column that it does not have, or one of lists of numbers, whose
        columns of X can be named instead.

    Notes
    -----
    Two passes over the rows, as in `permutation_importance`; the second predicts each judged row once for
    each value of each column: max_rows·grid_size predictions a column.

    J. Friedman, Greedy function approximation, Annals of Statistics 29 (2001), section 8.2.
    """
    frozen, seed = _checked(model, max_rows, random_state)
    check_count("grid_size", grid_size, 2)
    dataset = rows_for(frozen, data, None, sample_weight, with_target=False)
    groups = _chosen_groups(with_parts(frozen, column_groups(frozen, dataset.column_names)), columns)
    run = begin_run()
    donors = _drawn(run, frozen, dataset, "none", max(max_rows, _DONORS), seed)
    grids = [grid for group in groups for grid in grids_of(group, donors, grid_size)]
    return _dependence(run, frozen, dataset, grids, max_rows, seed)


def what_matters(
    model: Any,
    data: Any,
    *,
    n_columns: int = 3,
    max_rows: int = 20_000,
    max_curve_rows: int = 2_000,
    random_state: int | None = 0,
) -> tuple[PermutationImportance, PartialDependence | None]:
    """Return the importance of all columns, and the curves of the few most important ones, for a report.

    Curves are of columns whose importance is more than twice its standard error and that have a scale or
    categories; None if there are no such columns. The parameters are those of `permutation_importance` and
    `partial_dependence`.
    """
    importance = permutation_importance(model, data, max_rows=max_rows, random_state=random_state)
    frozen, seed = _checked(model, max_curve_rows, importance.seed)
    dataset = rows_for(frozen, data)
    matter = [c.column for c in importance.columns if c.importance > 2 * c.std_error][:n_columns]
    if not matter:
        return importance, None
    run = begin_run()
    donors = _drawn(run, frozen, dataset, "none", max(max_curve_rows, _DONORS), seed)
    grids: list[Grid] = []
    for group in _chosen_groups(column_groups(frozen, dataset.column_names), matter):
        with suppress(InputError):  # such as lists of numbers
            grids += grids_of(group, donors, _GRID_SIZE)
    return importance, _dependence(run, frozen, dataset, grids, max_curve_rows, seed) if grids else None


def _dependence(
    run: Run, frozen: Model, dataset: Dataset, grids: Sequence[Grid], max_rows: int, seed: int
) -> PartialDependence:
    """Return the curves of some grids, by a pass over the rows."""
    n_values = tuple(len(grid.values) for grid in grids)
    draw = RowDraw.of(dataset.n_rows, max_rows, seed, "judged rows")
    light, sent = light_model(frozen)
    cuts = _cuts(frozen, dataset, sum(n_values), draw)
    batch_rows = _batch_rows(dataset, n_results(frozen) * max(n_values))
    positions = tuple(grid.positions for grid in grids)
    reduction = DependenceReduction(light, positions, n_values, draw, cuts.tile_rows, batch_rows)
    arrays = {**sent, **settings_to_send([grid.settings for grid in grids])}
    sums: DependenceSums = run.total("dependence", dataset, reduction, cuts, arrays)
    for curve in sums.curves:
        _check_judged(curve, sums.n_outside + curve.n_left_out)
    curves = [_curve(grid, found) for grid, found in zip(grids, sums.curves, strict=True)]
    return PartialDependence(
        result=result_kind(frozen),
        outputs=_output_names(frozen, dataset),
        curves=tuple(curves),
        n_samples=dataset.n_rows,
        n_judged=sums.n_judged,
        n_outside=sums.n_outside,
        seed=seed,
    )


# Checked arguments, and the passes.


def _checked(model: Any, max_rows: int, random_state: int | None) -> tuple[Model, int]:
    """Return the frozen model and the seed."""
    if not isinstance(model, Model) and not hasattr(model, "fit"):
        raise InputTypeError(f"expected a fitted estimator or a model of load_model, got {model!r}")
    frozen = frozen_model(model)
    if frozen.kind == "KernelPCA":
        raise InputError("principal components have no predictions, so no column matters to them")
    check_count("max_rows", max_rows, 2)
    return frozen, resolve_seed(random_state)


def _chosen_groups(
    groups: Sequence[ColumnGroup], columns: str | int | Sequence[str | int] | None
) -> list[ColumnGroup]:
    """Return the groups that were asked for, each once."""
    if columns is None:
        return list(groups)
    asked = (
        list(columns)
        if isinstance(columns, Sequence | np.ndarray) and not isinstance(columns, str)
        else [columns]
    )
    if not asked:
        raise InputError("columns must name at least one column, got none")
    known = {group.name: group for group in groups}
    # Where raw columns became several, an index could mean either.
    are_of_X = all(group.step is None for group in groups)
    by_index = dict(enumerate(groups)) if are_of_X else {}
    found = {}
    for column in asked:
        group = known.get(column) if isinstance(column, str) else by_index.get(_index(column))
        if group is None:
            raise InputError(f"the model has no column {column!r}; it has: {listed(list(known))}")
        found[group.positions] = group
    return list(found.values())


def _index(value: Any) -> int:
    return int(value) if is_finite(value) and int(value) == value else -1


def _drawn(run: Run, model: Model, dataset: Dataset, kind: str, max_rows: int, seed: int) -> Donors:
    """Return the rows that values come from, after a check of all rows."""
    check_known(dataset, kind)
    most = min(max_rows, max(_MIN_DONORS, _DONOR_BYTES // dataset.row_bytes))
    draw = RowDraw.of(dataset.n_rows, most, seed, "donors")
    cuts = light_segmentation(dataset.n_rows, max(dataset.n_columns, 64))
    n_targets = dataset.n_targets if kind == "numeric" else 0
    reduction = DonorReduction(draw, kind, n_targets, dataset.row_bytes, cuts.tile_rows)
    try:
        drawn: Donors = run.total("donors", dataset, reduction, cuts)
    except ColumnError as error:
        raise error.named(dataset.column_names) from None
    return drawn.usable(model)


def _units(donors: Donors) -> np.ndarray:
    """Return by what squared errors are divided, so that their mean over targets is that of 1 − R².

    Targets that do not vary have no R², and do not count.
    """
    if donors.targets is None:
        return np.ones(1)
    varies = ~donors.targets.is_constant()
    if not varies.any():
        raise InputError("the target does not vary in these rows, so there is no R² that could fall")
    variance = np.square(donors.targets.standard_deviation())
    return np.where(varies, variance * varies.sum() / len(varies), np.inf)


def _cuts(model: Model, dataset: Dataset, n_predictions: int, draw: RowDraw) -> Segmentation:
    """Return the cuts of a pass that predicts each judged row so many times."""
    n, specification = dataset.n_rows, model.specification
    light = light_segmentation(n, max(dataset.n_columns, 64))
    if at_once := specification.rows_at_once:  # a transform for few rows takes as long as for many
        return replace(light, segment_rows=max(light.segment_rows, at_once // 2))
    per_row = max(1, specification.row_entries * n_predictions // draw.stride)
    fine = light_segmentation_of_features(n, per_row, light.tile_rows)
    return replace(light, segment_rows=min(light.segment_rows, fine.segment_rows))


def _batch_rows(dataset: Dataset, n_numbers: int) -> int:
    return max(64, _BATCH_BYTES // max(dataset.row_bytes, 8 * n_numbers))


def _check_judged(found: WeightedMoments, n_left_out: int) -> None:
    if not found.moments.weight > 0:
        raise InputError(
            f"no judged row has a positive weight within the bounds of the model ({n_left_out} are outside); "
            f"give such rows, or judge more by a larger max_rows"
        )


def _importance(
    model: Model, dataset: Dataset, groups: Sequence[ColumnGroup], sums: ImportanceSums, seed: int
) -> PermutationImportance:
    columns = []
    for group, rise in zip(groups, sums.rises, strict=True):
        mean, error = rise.mean(), rise.standard_error()
        columns.append(
            ColumnImportance(
                column=group.name,
                importance=float(mean[-1]),
                std_error=float(error[-1]),
                mse_rise=None if model.is_classifier else _floats(mean[:-1]),
                mse_rise_error=None if model.is_classifier else _floats(error[:-1]),
                n_columns=len(group.positions),
                n_left_out=rise.n_left_out,
            )
        )
    # NaN, of columns that leave no row within the bounds, come last.
    columns.sort(key=lambda column: -column.importance if column.importance == column.importance else np.inf)
    losses = sums.losses.mean()
    return PermutationImportance(
        measure="accuracy" if model.is_classifier else "r2",
        score=1.0 - float(losses[-1]),
        mse=None if model.is_classifier else _floats(losses[:-1]),
        targets=() if model.is_classifier else _output_names(model, dataset),
        columns=tuple(columns),
        n_samples=dataset.n_rows,
        n_judged=sums.n_judged,
        n_outside=sums.losses.n_left_out,
        n_unseen=sums.n_unseen,
        seed=seed,
    )


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(values.tolist())


def _output_names(model: Model, dataset: Dataset) -> tuple[str, ...]:
    """Return the names of the results: classes, or targets."""
    k = n_results(model)
    if isinstance(model.targets, ClassTargets):
        labels = [str(label) for label in model.targets.classes.tolist()]
        return tuple(labels[-1:] if k == 1 else labels)  # one decision value is positive for the second class
    steps = model.steps.target if model.steps is not None else None
    for names in (dataset.target_names, None if steps is None else steps.names):
        if names is not None and len(names) == k:
            return tuple(map(str, names))
    return ("y",) if k == 1 else tuple(map(str, range(k)))


def _curve(grid: Grid, found: WeightedMoments) -> DependenceCurve:
    m = len(grid.values)
    parts = (found.mean(), found.standard_error(), found.standard_deviation())
    mean, error, std = (part.reshape(m, -1) for part in parts)
    return DependenceCurve(
        grid.column, grid.kind, grid.values, grid.unit, grid.shares, mean, error, std, found.n_left_out
    )
