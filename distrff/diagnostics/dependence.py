"""Partial dependence: the mean of a model's predictions against the value of a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from distrff.diagnostics.evaluate import judged_model, judged_rows
from distrff.diagnostics.importance import (
    MAX_ROWS,
    SHOWN_ROWS,
    ColumnGroup,
    DrawnRows,
    JudgedResult,
    Means,
    PermutationImportance,
    chosen_groups,
    column_groups,
    drawn_rows,
    importance_of,
    means,
    n_results,
    of_columns,
    output_names,
    outside_rows,
    with_columns,
)
from distrff.engine.run import Run, begin_run
from distrff.errors import InputError
from distrff.io.dataset import Dataset
from distrff.model.model import Model
from distrff.model.rows import rows_for
from distrff.preprocessing.table import (
    PARTS,
    CyclicTimeEncoder,
    HashedStep,
    NumberStep,
    OneHotEncoder,
    SecondsStep,
)
from distrff.utils.arrays import chosen_rows, dense_rows
from distrff.utils.random import resolve_seed
from distrff.utils.text import Table
from distrff.utils.validation import check_count

_GRID_SIZE = 20


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
class PartialDependence(JudgedResult):
    """Curves of mean results against columns; see `partial_dependence`.

    Attributes
    ----------
    result : {"prediction", "probability", "decision"}
        The quantity that the curves show.
    outputs : tuple of str
        Names of the targets or classes, one for each column of `mean`.
    curves : tuple of DependenceCurve
    n_samples, n_judged, n_outside : int
        All rows, the judged ones, and those left out, which are outside of the bounds of the model.
    seed : int
    """

    _title, _items = "Partial dependence", "curves"

    result: str
    outputs: tuple[str, ...]
    curves: tuple[DependenceCurve, ...]
    n_samples: int
    n_judged: int
    n_outside: int
    seed: int

    def __getitem__(self, column: str) -> DependenceCurve:
        """The curve of a column."""
        # Reversed, so that the first of two curves of one name is found.
        return {curve.column: curve for curve in reversed(self.curves)}[column]

    def _table(self) -> Table:
        """The ends of each curve, as far as they fit."""
        rows = [
            [curve.column, len(curve.values), name, float(F.min()), float(F.max())]
            for curve in self.curves[:SHOWN_ROWS]
            for name, F in zip(self.outputs[:SHOWN_ROWS], curve.mean.T, strict=False)
        ]
        return Table(["column", "values", "output", f"lowest mean {self.result}", "highest"], rows)


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
    """The mean result of a model over rows in which a column is set to one value after another.

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
        its own. A value that may be missing is set to one that is there.
    sample_weight : array-like of shape (n_samples,), optional
        Weights are multiplicities.
    grid_size : int
        At most so many values of numbers or categories.
    max_rows : int
        At most so many rows are judged.
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
    One pass over the rows, which draws 20,000 or `max_rows` of them for the values of the columns, as in
    `permutation_importance`; then a task for each curve predicts `max_rows` of these, drawn evenly, once for
    each value: max_rows·grid_size predictions a column.

    J. Friedman, Greedy function approximation, Annals of Statistics 29 (2001), section 8.2.
    """
    frozen = judged_model(model)
    check_count("max_rows", max_rows, 2)
    check_count("grid_size", grid_size, 2)
    seed = resolve_seed(random_state)
    dataset = rows_for(frozen, data, None, sample_weight, with_target=False)
    groups = chosen_groups(with_parts(frozen, column_groups(frozen, dataset.column_names)), columns)
    run = begin_run()
    # More rows than are judged: the values of the columns, such as rare categories, need them, and cost no
    # prediction.
    rows = drawn_rows(run, frozen, dataset, max(max_rows, MAX_ROWS), seed, with_target=False)
    grids = [grid for group in groups for grid in grids_of(group, rows, grid_size)]
    return dependence_on(run, frozen, dataset, grids, rows.thinned(max_rows, seed), seed)


def what_matters(
    model: Any,
    data: Any = None,
    *,
    n_columns: int = 3,
    max_rows: int = MAX_ROWS,
    max_curve_rows: int = 2_000,
    random_state: int | None = 0,
) -> tuple[PermutationImportance, PartialDependence | None]:
    """Importance of all columns, and the curves of the few most important ones, from one pass over the rows.

    Curves are of columns whose importance is more than twice its standard error and that have a scale or
    categories; None if there are no such columns. The parameters are those of `permutation_importance` and
    `partial_dependence`.
    """
    judged, run, seed = judged_rows(model, data), begin_run(), resolve_seed(random_state)
    groups = column_groups(judged.model, judged.dataset.column_names)
    rows = drawn_rows(run, judged.model, judged.dataset, MAX_ROWS, seed, with_target=True)
    # One pass draws the rows of both; importance is judged on fewer, as each column takes a prediction of
    # all.
    importance = importance_of(run, judged, groups, rows, max_rows, seed)
    # NaN, of a column whose replacements all lie outside, is not larger.
    matter = [c.column for c in importance.columns if c.importance > 2 * c.std_error][:n_columns]
    grids: list[Grid] = []
    for group in chosen_groups(groups, matter or None) if matter else ():
        with suppress(InputError):  # such as lists of numbers
            grids += grids_of(group, rows)
    if not grids:
        return importance, None
    rows = rows.thinned(max_curve_rows, seed)
    return importance, dependence_on(run, judged_model(model), judged.dataset, grids, rows, seed)


def dependence_on(
    run: Run, model: Model, dataset: Dataset, grids: Sequence[Grid], rows: DrawnRows, seed: int
) -> PartialDependence:
    """The curves of some grids, of the predictions of drawn rows."""
    is_number = not (model.is_classifier or model.is_multilabel)
    found = of_columns(run, "dependence", model, rows, _mean_results, grids)
    for curve in found:
        if curve.n_left_out == len(rows):
            raise InputError(
                f"no judged row stays within the bounds of the model ({rows.n_outside + len(rows)} are "
                f"outside); give other rows, or judge more by a larger max_rows"
            )
    return PartialDependence(
        result="probability" if model.likelihood is not None else "prediction" if is_number else "decision",
        outputs=output_names(model, dataset),
        curves=tuple(map(_curve, grids, found)),
        n_samples=dataset.n_rows,
        n_judged=len(rows),
        n_outside=rows.n_outside,
        seed=seed,
    )


def _mean_results(model: Model, rows: DrawnRows, grid: Grid) -> Means:
    """Mean results for each pair of value and output."""
    results = model.predict_proba if model.likelihood is not None else model.values
    F = np.zeros((len(rows), len(grid.settings), n_results(model)))
    left_out = np.zeros(len(rows), dtype=bool)
    for i, values in enumerate(grid.settings):
        X = with_columns(rows.X, grid.positions, values[None])
        outside = outside_rows(model, X)
        # A row that one value moves outside leaves the whole curve, whose points would else be of different
        # rows.
        left_out |= outside
        if len(inside := np.flatnonzero(~outside)):
            F[inside, i] = results(chosen_rows(X, inside))
    return means(F.reshape(len(rows), -1), rows.weight, left_out)


def _curve(grid: Grid, found: Means) -> DependenceCurve:
    mean, error, std = (part.reshape(len(grid.values), -1) for part in found[:3])
    return DependenceCurve(
        grid.column, grid.kind, grid.values, grid.unit, grid.shares, mean, error, std, found.n_left_out
    )


# The values that a column is set to.


@dataclass(frozen=True)
class Grid:
    """The values of a curve, and the settings of the columns of X for each."""

    column: str
    kind: str
    values: tuple[Any, ...]
    positions: tuple[int, ...]
    settings: np.ndarray  # (n_values, n_positions)
    unit: str | None = None
    shares: tuple[float, ...] | None = None


_CIRCLES: Mapping[str, tuple[str, ...]] = {
    "year": ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
    "weekday": ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
    "hour": tuple(map(str, range(24))),
}


def with_parts(model: Model, groups: Sequence[ColumnGroup]) -> list[ColumnGroup]:
    """The groups, and each column of X by its own name where a list of numbers became several."""
    names = () if model.steps is None else model.steps.names_out
    known = {group.name for group in groups}
    single = [
        ColumnGroup(names[position], (position,), None)
        for group in groups
        if isinstance(group.step, NumberStep) and group.step.width
        for position in group.positions
        # Names of raw columns come first.
        if names[position] not in known
    ]
    return [*groups, *single]


def grids_of(group: ColumnGroup, rows: DrawnRows, grid_size: int = _GRID_SIZE) -> list[Grid]:
    """The grids of a column: one, or for a time's parts, and its seconds beside them, one each."""
    step = group.step
    indicator = len(step.names_out) - 1 if step is not None and step.indicates else None
    values, s = dense_rows(rows.X[:, list(group.positions)]), rows.weight
    flags = [j for j, made in enumerate(group.made) if made == indicator]
    rest = [j for j, made in enumerate(group.made) if made != indicator]
    if flags:
        # Values that stand for missing ones are of no row: a curve is of values that are there.
        present = values[:, flags[0]] == 0
        if not present.any():
            raise InputError(f"column {group.name!r} is missing in all of the sampled rows; leave it out")
        values, s = values[present], s[present]
    if not rest:
        raise InputError(f"of column {group.name!r} the model knows only where it is missing; leave it out")
    if isinstance(step, OneHotEncoder | HashedStep):
        return [_category_grid(group, step, values, s, rest, grid_size)]
    circles = []
    if isinstance(step, CyclicTimeEncoder):
        circles = _circle_grids(group, rest, flags)
        if not (rest := [j for j in rest if group.made[j] >= 2 * len(PARTS)]):
            return circles
    if len(rest) > 1:
        raise InputError(
            f"column {group.name!r} became {len(rest)} columns, which have no one scale; name one of them, "
            f"such as {step.names_out[group.made[rest[0]]]!r}"  # type: ignore[union-attr]
        )
    numbers = _quantiles(values[:, rest[0]], s, grid_size)
    # The indicator of missing values, where there is one, stays 0: the value set is there.
    settings = np.zeros((len(numbers), 1 + len(flags)), values.dtype)
    settings[:, 0] = numbers
    positions, unit = tuple(group.positions[j] for j in (rest[0], *flags)), None
    if isinstance(step, SecondsStep):
        unit = f"seconds since {np.datetime64(step.origin // step.ticks, 's')}"
    return [*circles, Grid(group.name, "number", tuple(numbers.tolist()), positions, settings, unit)]


def _quantiles(values: np.ndarray, s: np.ndarray, n: int) -> np.ndarray:
    """All values if they are few, else the n middles of equal shares of the weight, each once."""
    distinct = np.unique(values)
    if len(distinct) <= n:
        return distinct
    order = np.argsort(values, kind="stable")
    cumulated = np.cumsum(s[order])
    # The middles of the shares, not their ends: one extreme value would stretch the axis of the curve.
    at = np.searchsorted(cumulated, (np.arange(n) + 0.5) / n * cumulated[-1])
    return np.unique(values[order[np.minimum(at, len(order) - 1)]])


def _category_grid(
    group: ColumnGroup,
    step: OneHotEncoder | HashedStep,
    values: np.ndarray,
    s: np.ndarray,
    rest: Sequence[int],
    grid_size: int,
) -> Grid:
    # Not their sum: a filled indicator holds a share, which is no row of that category.
    weight = s @ (values[:, rest] == 1)
    order = np.argsort(-weight, kind="stable")[:grid_size]
    # One indicator is 1, the others and that of missing values 0, as in any row of this category.
    settings = np.zeros((len(order), len(group.positions)), values.dtype)
    settings[np.arange(len(order)), np.asarray(rest)[order]] = 1
    prefix = len(step.name) + 1  # of names such as "carrier=UA"
    labels = tuple(step.names_out[group.made[rest[i]]][prefix:] for i in order)
    shares = tuple((weight[order] / s.sum()).tolist())
    return Grid(group.name, "category", labels, group.positions, settings, None, shares)


def _circle_grids(group: ColumnGroup, rest: Sequence[int], flags: Sequence[int]) -> list[Grid]:
    """A grid for each circle of which the model has both coordinates."""
    grids = []
    at = {group.made[j]: group.positions[j] for j in rest}
    flag_positions = [group.positions[j] for j in flags]
    for i, part in enumerate(PARTS):
        # The model may have been fitted to some of the columns: one coordinate alone is no angle.
        if 2 * i not in at or 2 * i + 1 not in at:
            continue
        labels = _CIRCLES[part]
        # Months in their middle; days and hours advance by steps.
        angles = 2 * np.pi * (np.arange(len(labels)) + 0.5 * (part == "year")) / len(labels)
        settings = np.zeros((len(labels), 2 + len(flags)))
        settings[:, 0], settings[:, 1] = np.sin(angles), np.cos(angles)
        positions = (at[2 * i], at[2 * i + 1], *flag_positions)
        grids.append(Grid(f"{group.name}_{part}", "time", labels, positions, settings))
    if not grids:
        raise InputError(f"of column {group.name!r} the model has no whole circle of a time; leave it out")
    return grids
