"""What a frozen model's predictions depend on: losses and predictions of rows whose columns are replaced.

Rows are drawn by their numbers, and the values that replace theirs come from other drawn rows. A permutation
within a tile would not do: rows that are near each other in a file are often alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse

from distrff.engine.reduction import Arrays, Reduction
from distrff.errors import InputError
from distrff.features.specification import MapSpecification
from distrff.io.dataset import RowBlock, Rows, check_block
from distrff.model.model import Model
from distrff.preprocessing.coding import ClassTargets
from distrff.preprocessing.moments import Moments
from distrff.preprocessing.table import ColumnStep
from distrff.utils.arrays import chosen_rows, dense_rows, joined_rows
from distrff.utils.random import child_seed, row_hash

_HASH_DIGITS = 53  # of a hash that become a number in [0, 1)


# Columns that are replaced together.


@dataclass(frozen=True)
class ColumnGroup:
    """The columns of X that one raw column became.

    Parameters
    ----------
    name : str
        Of the raw column; of the column of X itself where no steps made it.
    positions : tuple of int
        In X.
    step : ColumnStep or None
        What made them.
    made : tuple of int
        Which of the columns that the step makes each of them is.
    """

    name: str
    positions: tuple[int, ...]
    step: ColumnStep | None = None
    made: tuple[int, ...] = (0,)


def column_groups(model: Model, column_names: Sequence[str] | None) -> list[ColumnGroup]:
    """Return the groups of a model's columns, in the order of X.

    A model without steps has a group for each column, named by the model, else by `column_names`, else by its
    index.
    """
    if model.steps is None:
        names = model.column_names or column_names or range(model.n_columns)
        return [ColumnGroup(str(name), (i,)) for i, name in enumerate(names)]
    made = [(step, i) for step in model.steps.columns for i in range(len(step.names_out))]
    chosen = range(len(made)) if model.steps.chosen is None else model.steps.chosen
    groups: dict[str, ColumnGroup] = {}
    for position, (step, i) in enumerate(made[place] for place in chosen):
        known = groups.get(step.name, ColumnGroup(step.name, (), step, ()))
        groups[step.name] = replace(known, positions=(*known.positions, position), made=(*known.made, i))
    return list(groups.values())


def with_columns(X: Any, positions: Sequence[int], values: np.ndarray) -> Any:
    """Return a copy of the rows, dense or CSR, with other values in some columns.

    `values` has shape (n_rows, n_positions), or (1, n_positions) for the same in all rows.
    """
    values = np.broadcast_to(values, (X.shape[0], len(positions)))
    if not issparse(X):
        replaced = np.array(X)
        replaced[:, positions] = values
        return replaced
    kept = X.copy()
    kept.data[np.isin(kept.indices, positions)] = 0
    rows, columns = np.nonzero(values)
    entries = values[rows, columns].astype(X.dtype), (rows, np.asarray(positions)[columns])
    changed = csr_matrix(kept + csr_matrix(entries, shape=X.shape))
    changed.eliminate_zeros()
    return changed


# Rows that are drawn by their numbers.


@dataclass(frozen=True)
class RowDraw:
    """One row of each `stride` consecutive rows, at a place in the run that a hash of the run's number says.

    So every row has the same chance, rows are drawn evenly from all of the data, and no period of the rows
    is met again. A last run that is shorter may have none.
    """

    stride: int
    seed: int

    @classmethod
    def of(cls, n_rows: int, max_rows: int, seed: int, name: str) -> RowDraw:
        """Return the draw of at most `max_rows` of the rows, in the stream of that name."""
        return cls(-(-n_rows // max_rows), child_seed(seed, name))

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return the numbers of the drawn rows in [start, stop)."""
        runs = np.arange(start // self.stride, (stop - 1) // self.stride + 1)
        places = row_hash(runs.astype(np.uint64), self.seed) % np.uint64(self.stride)
        drawn = runs * self.stride + places.astype(np.int64)
        return drawn[(drawn >= start) & (drawn < stop)]

    def of_block(self, block: RowBlock) -> tuple[np.ndarray, RowBlock]:
        """Return the numbers of the drawn rows of a block, and these rows."""
        numbers = self.rows(block.start, block.start + block.X.shape[0])
        at = numbers - block.start
        y = None if block.y is None else block.y[at]
        s = None if block.sample_weight is None else block.sample_weight[at]
        return numbers, RowBlock(block.start, chosen_rows(block.X, at), y, s)

    def batches(self, rows: Rows, tile_rows: int, batch_rows: int) -> Iterator[tuple[np.ndarray, RowBlock]]:
        """Yield the drawn rows with their numbers, as many at once as the tiles with `batch_rows` hold."""
        waiting: list[tuple[np.ndarray, RowBlock]] = []
        n_waiting = 0
        for block in rows.tiles(tile_rows):
            drawn = self.of_block(block)
            if len(drawn[0]):
                waiting.append(drawn)
                n_waiting += len(drawn[0])
            if n_waiting >= batch_rows:
                yield _joined(waiting)
                waiting, n_waiting = [], 0
        if waiting:
            yield _joined(waiting)


def _joined(parts: Sequence[tuple[np.ndarray, RowBlock]]) -> tuple[np.ndarray, RowBlock]:
    numbers, blocks = zip(*parts, strict=True)
    y, s = ([getattr(b, name) for b in blocks] for name in ("y", "sample_weight"))
    X = joined_rows([block.X for block in blocks])
    return np.concatenate(numbers), RowBlock(
        blocks[0].start, X, *(None if v[0] is None else np.concatenate(v) for v in (y, s))
    )


@dataclass(frozen=True)
class Donors:
    """Drawn rows whose values replace those of others, and the moments of the targets of all rows.

    `X` has the rows in their order, of the kind that they are read as; None if none was drawn.
    """

    X: Any
    sample_weight: np.ndarray | None
    targets: Moments | None  # of numeric targets

    def usable(self, model: Model) -> Donors:
        """Return those of positive weight within the bounds of the model; raise InputError without any."""
        n = 0 if self.X is None else self.X.shape[0]
        usable = np.ones(n, dtype=bool)
        if n and not issparse(self.X):
            usable &= ~model.outside(self.X)
        if n and self.sample_weight is not None:
            usable &= self.sample_weight > 0
        at = np.flatnonzero(usable)
        if not len(at):
            raise InputError(
                f"none of {n} sampled rows has a positive weight and is within the bounds of the model; give "
                f"such rows"
            )
        s = None if self.sample_weight is None else self.sample_weight[at]
        return replace(self, X=chosen_rows(self.X, at), sample_weight=s)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays to send to the tasks."""
        parts = (
            {name: getattr(self.X, name) for name in _CSR} | {"width": np.array(self.X.shape[1])}
            if issparse(self.X)
            else {"dense": self.X}
        )
        weights = {} if self.sample_weight is None else {"cumulated": np.cumsum(self.sample_weight)}
        return {_DONORS + name: A for name, A in (parts | weights).items()}


_DONORS = "donors of values: "
_CSR = ("data", "indices", "indptr")


def sent_donors(arrays: Arrays) -> tuple[Any, np.ndarray | None]:
    """Return the donors' rows in a task, and their cumulated weights, None where all weigh the same."""
    sent = {name.removeprefix(_DONORS): A for name, A in arrays.items() if name.startswith(_DONORS)}
    if "dense" in sent:
        return sent["dense"], sent.get("cumulated")
    shape = len(sent["indptr"]) - 1, int(sent["width"])
    return csr_matrix(tuple(sent[name] for name in _CSR), shape=shape), sent.get("cumulated")


def donor_places(numbers: np.ndarray, seed: int, n_donors: int, cumulated: np.ndarray | None) -> np.ndarray:
    """Return which donor replaces the values of each row, by a hash of the row's number.

    Each donor is taken with a probability proportional to its weight.
    """
    bits = row_hash(numbers.astype(np.uint64), seed) >> np.uint64(64 - _HASH_DIGITS)
    share = bits * 2.0**-_HASH_DIGITS
    if cumulated is None:
        places = (share * n_donors).astype(np.int64)
    else:
        places = np.searchsorted(cumulated, share * cumulated[-1], side="right")
    return np.minimum(places, n_donors - 1)  # a product may round up to its end


@dataclass(frozen=True)
class DonorReduction(Reduction):
    """Reduction to `Donors`, which checks every number on the way."""

    draw: RowDraw
    target_kind: str  # "numeric", "classes" or "none"
    n_targets: int
    row_bytes: int
    tile_rows: int

    def size_bytes(self, n_rows: int) -> int:
        return self.row_bytes * -(-n_rows // self.draw.stride) + 8 * 6 * self.n_targets

    def zero(self) -> Donors:
        return Donors(None, None, Moments.empty(self.n_targets) if self.target_kind == "numeric" else None)

    def update(self, total: Donors, rows: Rows, arrays: Arrays) -> Donors:
        parts = [total]
        for block in rows.tiles(self.tile_rows):
            check_block(block, self.target_kind)
            parts.append(self._of_block(block))
        return self._joined(parts)

    def merge(self, first: Donors, second: Donors) -> Donors:
        return self._joined([first, second])

    def _of_block(self, block: RowBlock) -> Donors:
        numbers, drawn = self.draw.of_block(block)
        targets = None
        if self.target_kind == "numeric":
            Y = np.asarray(block.y, dtype=np.float64).reshape(block.X.shape[0], -1)
            targets = Moments.of(Y, block.sample_weight)
        return Donors(drawn.X if len(numbers) else None, drawn.sample_weight, targets)

    def _joined(self, parts: Sequence[Donors]) -> Donors:
        found = [part for part in parts if part.X is not None]
        targets = parts[0].targets
        for part in parts[1:]:
            targets = targets and part.targets and targets.merge(part.targets)
        if not found:
            return Donors(None, None, targets)
        s = [part.sample_weight for part in found if part.sample_weight is not None]
        return Donors(joined_rows([part.X for part in found]), np.concatenate(s) if s else None, targets)


# Losses of rows, and how they rise where values come from donors.


@dataclass(frozen=True)
class WeightedMoments:
    """Moments of some rows' numbers, with what their standard error needs."""

    moments: Moments
    squared_weight: float  # Σ s²
    n_left_out: int  # rows outside of the bounds of the model

    @classmethod
    def empty(cls, n_columns: int) -> WeightedMoments:
        """Return those of no rows."""
        return cls(Moments.empty(n_columns), 0.0, 0)

    @classmethod
    def of(cls, values: np.ndarray, s: np.ndarray, kept: np.ndarray) -> WeightedMoments:
        """Return those of the rows that are kept, a bool array."""
        n_left_out = len(kept) - int(np.count_nonzero(kept))
        if n_left_out:
            values, s = values[kept], s[kept]
        return cls(Moments.of(values, s), float(s @ s), n_left_out)

    def merge(self, other: WeightedMoments) -> WeightedMoments:
        """Return those of both."""
        return WeightedMoments(
            self.moments.merge(other.moments),
            self.squared_weight + other.squared_weight,
            self.n_left_out + other.n_left_out,
        )

    def mean(self) -> np.ndarray:
        """Return the weighted means; NaN where no row has a weight."""
        return self.moments.mean if self.moments.weight > 0 else np.full(self.moments.mean.shape, np.nan)

    def standard_deviation(self) -> np.ndarray:
        """Return the deviations over rows; NaN where no row has a weight."""
        found: np.ndarray = self.moments.standard_deviation()
        return found if self.moments.weight > 0 else np.full(found.shape, np.nan)

    def standard_error(self) -> np.ndarray:
        """Return the standard errors σ/√(n − 1) of the means, for the effective number n = (Σs)²/Σs² of rows.

        NaN for fewer than two rows.
        """
        n = self.moments.weight**2 / self.squared_weight if self.squared_weight > 0 else 0.0
        # A sum of equal weights may round to just above one row.
        return self.standard_deviation() / (np.sqrt(n - 1) if n > 1 + 1e-9 else np.nan)


@dataclass(frozen=True)
class ImportanceSums:
    """Losses of the judged rows, and by how much they rise with each group of columns replaced."""

    n_judged: int
    n_unseen: int  # of these, the rows whose label is not one of the model's classes
    losses: WeightedMoments
    rises: tuple[WeightedMoments, ...]


@dataclass(frozen=True)
class ImportanceReduction(Reduction):
    """Reduction to `ImportanceSums`.

    The losses are of shape (n, k + 1) for numbers: squared errors of each target, then their mean in units of
    `target_variance`; for classes (n, 1): 1 where the label is wrong.
    """

    model: Model
    groups: tuple[ColumnGroup, ...]
    seeds: tuple[int, ...]  # one for each group
    draw: RowDraw
    target_variance: np.ndarray  # (k,)
    tile_rows: int
    batch_rows: int

    def shared(self) -> MapSpecification:
        return self.model.specification

    def size_bytes(self, n_rows: int) -> int:
        return 8 * 6 * self._n_losses * (1 + len(self.groups))

    @property
    def _n_losses(self) -> int:
        return 1 if self.model.is_classifier else self.model.n_outputs + 1

    def zero(self) -> ImportanceSums:
        empty = WeightedMoments.empty(self._n_losses)
        return ImportanceSums(0, 0, empty, (empty,) * len(self.groups))

    def update(self, sums: ImportanceSums, rows: Rows, arrays: Arrays) -> ImportanceSums:
        model, (donors, cumulated) = self.model.restored(arrays), sent_donors(arrays)
        for drawn in self.draw.batches(rows, self.tile_rows, self.batch_rows):
            numbers, batch, n_outside = within_bounds(model, *drawn)
            s = np.ones(len(numbers)) if batch.sample_weight is None else batch.sample_weight
            before = self._losses(model, batch.X, batch.y)
            kept = np.ones(len(numbers), dtype=bool)
            losses = WeightedMoments.of(before, s, kept)
            rises = []
            for group, seed in zip(self.groups, self.seeds, strict=True):
                places = donor_places(numbers, seed, donors.shape[0], cumulated)
                after, kept = self._replaced(model, batch, before, group, donors, places)
                rises.append(WeightedMoments.of(after - before, s, kept))
            losses = replace(losses, n_left_out=n_outside)
            of_batch = ImportanceSums(len(numbers), _n_unseen(model, batch.y), losses, tuple(rises))
            sums = self.merge(sums, of_batch)
        return sums

    def merge(self, first: ImportanceSums, second: ImportanceSums) -> ImportanceSums:
        return ImportanceSums(
            first.n_judged + second.n_judged,
            first.n_unseen + second.n_unseen,
            first.losses.merge(second.losses),
            tuple(a.merge(b) for a, b in zip(first.rises, second.rises, strict=True)),
        )

    def _replaced(
        self,
        model: Model,
        batch: RowBlock,
        before: np.ndarray,
        group: ColumnGroup,
        donors: Any,
        places: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the losses with the donors' values in a group, and which rows stay within the bounds."""
        positions = list(group.positions)
        given, values = dense_rows(batch.X[:, positions]), dense_rows(donors[:, positions])[places]
        # Where nothing changes the rise is exactly zero; rare categories hardly ever change.
        changed = np.flatnonzero((given != values).any(axis=1))
        after, kept = before.copy(), np.ones(len(before), dtype=bool)
        if len(changed):
            X = with_columns(chosen_rows(batch.X, changed), positions, values[changed])
            y = batch.y[changed]
            if not issparse(X) and (outside := model.outside(X)).any():
                kept[changed[outside]] = False
                changed, X, y = changed[~outside], X[~outside], y[~outside]
            if len(changed):
                after[changed] = self._losses(model, X, y)
        return after, kept

    def _losses(self, model: Model, X: Any, y: np.ndarray) -> np.ndarray:
        if not X.shape[0]:
            return np.zeros((0, self._n_losses))
        if isinstance(model.targets, ClassTargets):
            return (model.predict(X) != y.reshape(-1)).astype(np.float64)[:, None]
        Y = np.asarray(y, dtype=np.float64).reshape(X.shape[0], -1)
        squares = np.square(model.predict(X).reshape(Y.shape) - Y)
        return np.column_stack([squares, (squares / self.target_variance).mean(axis=1)])


def _n_unseen(model: Model, y: np.ndarray) -> int:
    """Return how many labels are none of the model's classes."""
    if not isinstance(model.targets, ClassTargets):
        return 0
    known = set(model.targets.classes.tolist())
    return sum(label not in known for label in y.reshape(-1).tolist())


def within_bounds(model: Model, numbers: np.ndarray, batch: RowBlock) -> tuple[np.ndarray, RowBlock, int]:
    """Return the rows within the bounds of the model, and the number of the others."""
    if issparse(batch.X) or not (outside := model.outside(batch.X)).any():
        return numbers, batch, 0
    kept = ~outside
    y = None if batch.y is None else batch.y[kept]
    s = None if batch.sample_weight is None else batch.sample_weight[kept]
    inside = RowBlock(batch.start, batch.X[kept], y, s)
    return numbers[kept], inside, int(np.count_nonzero(outside))
