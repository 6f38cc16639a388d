"""Mean results of a frozen model over rows in which some columns are set to one value after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

from distrff.diagnostics.replacement import (
    ColumnGroup,
    Donors,
    RowDraw,
    WeightedMoments,
    with_columns,
    within_bounds,
)
from distrff.engine.reduction import Arrays, Reduction
from distrff.errors import InputError
from distrff.features.specification import MapSpecification
from distrff.io.dataset import Rows
from distrff.model.model import Model
from distrff.preprocessing.encoders import (
    PARTS,
    CyclicTimeEncoder,
    HashedStep,
    NumberStep,
    OneHotEncoder,
    SecondsStep,
)
from distrff.utils.arrays import dense_rows


@dataclass(frozen=True)
class DependenceSums:
    """For each setting of columns, moments of the results of all judged rows."""

    n_judged: int
    n_outside: int
    curves: tuple[WeightedMoments, ...]  # of one column for each pair of value and output


@dataclass(frozen=True)
class DependenceReduction(Reduction):
    """Reduction to `DependenceSums`; the values are sent apart, as `settings_to_send` returns them."""

    model: Model
    positions: tuple[tuple[int, ...], ...]  # of each curve
    n_values: tuple[int, ...]
    draw: RowDraw
    tile_rows: int
    batch_rows: int

    def shared(self) -> MapSpecification:
        return self.model.specification

    def size_bytes(self, n_rows: int) -> int:
        return 8 * 6 * sum(self.n_values) * n_results(self.model)

    def zero(self) -> DependenceSums:
        k = n_results(self.model)
        return DependenceSums(0, 0, tuple(WeightedMoments.empty(m * k) for m in self.n_values))

    def update(self, sums: DependenceSums, rows: Rows, arrays: Arrays) -> DependenceSums:
        model = self.model.restored(arrays)
        for drawn in self.draw.batches(rows, self.tile_rows, self.batch_rows):
            numbers, batch, n_outside = within_bounds(model, *drawn)
            s = np.ones(len(numbers)) if batch.sample_weight is None else batch.sample_weight
            curves = []
            for i, positions in enumerate(self.positions):
                found = [
                    _results_inside(model, with_columns(batch.X, positions, values[None]))
                    for values in arrays[f"{_SETTINGS}{i}"]
                ]
                kept = np.logical_and.reduce([inside for _, inside in found])
                curves.append(WeightedMoments.of(np.column_stack([F for F, _ in found]), s, kept))
            sums = self.merge(sums, DependenceSums(len(numbers), n_outside, tuple(curves)))
        return sums

    def merge(self, first: DependenceSums, second: DependenceSums) -> DependenceSums:
        return DependenceSums(
            first.n_judged + second.n_judged,
            first.n_outside + second.n_outside,
            tuple(a.merge(b) for a, b in zip(first.curves, second.curves, strict=True)),
        )


_SETTINGS = "values of curve "


def settings_to_send(settings: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the values of the columns of each curve, each of shape (n_values, n_positions), by name."""
    return {f"{_SETTINGS}{i}": np.asarray(values) for i, values in enumerate(settings)}


def result_kind(model: Model) -> str:
    """Return what curves show: "probability" of each class, "decision" values, or a "prediction"."""
    if model.likelihood is not None:
        return "probability"
    return "decision" if model.is_classifier or model.is_multilabel else "prediction"


def n_results(model: Model) -> int:
    """Return how many numbers a row has."""
    return max(2, model.n_outputs) if model.likelihood is not None else model.n_outputs


def results(model: Model, X: Any) -> np.ndarray:
    """Return the numbers of each row, of shape (n_rows, n_results)."""
    return model.predict_proba(X) if model.likelihood is not None else model.decision(X)


def _results_inside(model: Model, X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of each row, and which rows are within the bounds of the model."""
    inside = np.ones(X.shape[0], dtype=bool) if issparse(X) else ~model.outside(X)
    F = np.zeros((X.shape[0], n_results(model)))
    if inside.any():
        F[inside] = results(model, X if inside.all() else X[inside])
    return F, inside


# The values that a column is set to.


@dataclass(frozen=True)
class Grid:
    """The values of a curve, and what the columns of X are set to for each."""

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
    """Return the groups, and each column of X by its own name where a list of numbers became several."""
    names = () if model.steps is None else model.steps.names_out
    known = {group.name for group in groups}
    single = [
        ColumnGroup(names[position], (position,), None)
        for group in groups
        if isinstance(group.step, NumberStep) and group.step.width
        for position in group.positions
        if names[position] not in known
    ]
    return [*groups, *single]


def grids_of(group: ColumnGroup, donors: Donors, grid_size: int) -> list[Grid]:
    """Return the grids of a column: one, or for a time's parts one each."""
    step = group.step
    n_made = 1 if step is None else len(step.names_out)
    indicator = n_made - 1 if step is not None and step.indicates else None
    values = dense_rows(donors.X[:, list(group.positions)])
    s = np.ones(len(values)) if donors.sample_weight is None else donors.sample_weight
    flags = [j for j, made in enumerate(group.made) if made == indicator]
    if flags:
        present = values[:, flags[0]] == 0
        if not present.any():
            raise InputError(f"column {group.name!r} is missing in all of the sampled rows; leave it out")
        values, s = values[present], s[present]
    rest = [j for j in range(len(group.positions)) if j not in flags]
    if not rest:
        raise InputError(f"of column {group.name!r} the model knows only where it is missing; leave it out")
    if isinstance(step, OneHotEncoder | HashedStep):
        return [_category_grid(group, step, values, s, rest, grid_size)]
    if isinstance(step, CyclicTimeEncoder):
        return _circle_grids(group, rest, flags)
    if len(rest) > 1:
        raise InputError(
            f"column {group.name!r} became {len(rest)} columns, which have no one scale; name one of them, "
            f"such as {step.names_out[group.made[rest[0]]]!r}"  # type: ignore[union-attr]
        )
    numbers = _quantiles(values[:, rest[0]], s, grid_size)
    settings = np.zeros((len(numbers), len(group.positions)), values.dtype)
    settings[:, rest[0]] = numbers
    unit = None
    if isinstance(step, SecondsStep):
        unit = f"seconds since {np.datetime64(step.origin // step.ticks, 's')}"
    return [Grid(group.name, "number", tuple(numbers.tolist()), group.positions, settings, unit)]


def _quantiles(values: np.ndarray, s: np.ndarray, n: int) -> np.ndarray:
    """Return all values if they are few, else the n middles of equal shares of the weight, each once."""
    distinct = np.unique(values)
    if len(distinct) <= n:
        return distinct
    order = np.argsort(values, kind="stable")
    cumulated = np.cumsum(s[order])
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
    weight = s @ (values[:, rest] == 1)
    order = np.argsort(-weight, kind="stable")[:grid_size]
    settings = np.zeros((len(order), len(group.positions)), values.dtype)
    settings[np.arange(len(order)), np.asarray(rest)[order]] = 1
    prefix = len(step.name) + 1  # of names such as "carrier=UA"
    labels = tuple(step.names_out[group.made[rest[i]]][prefix:] for i in order)
    shares = tuple((weight[order] / s.sum()).tolist())
    return Grid(group.name, "category", labels, group.positions, settings, None, shares)


def _circle_grids(group: ColumnGroup, rest: Sequence[int], flags: Sequence[int]) -> list[Grid]:
    """Return a grid for each circle of which the model has both coordinates."""
    grids = []
    at = {group.made[j]: group.positions[j] for j in rest}
    flag_positions = [group.positions[j] for j in flags]
    for i, part in enumerate(PARTS):
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
