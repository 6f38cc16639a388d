"""Passes over rows: the first one, over their columns, then those over their features, made anew or kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from scipy.sparse import issparse

from distrff.engine.reduction import Arrays, Reduction, SharedArrays
from distrff.engine.tasks import CacheForm
from distrff.features.base import MapReduction
from distrff.features.fitted import FittedMap
from distrff.io.dataset import RowBlock, Rows, check_block
from distrff.preprocessing.coding import ClassTargets, CoMoments, LabelCounts, Moments, Scaling, Targets
from distrff.preprocessing.folds import NO_FOLDS, Folds, Keys
from distrff.utils.arrays import Sums, chosen_rows, joined_rows
from distrff.utils.linalg import OneHotTile
from distrff.utils.process import check_cancelled
from distrff.utils.random import stream

# The first sweep: moments of columns and targets, classes, an even sample, and a check of every number.


@dataclass(frozen=True)
class Sample:
    """Rows drawn evenly over all segments, in row order; X in float64, the others as they were read."""

    rows: np.ndarray  # their numbers
    X: Any
    y: np.ndarray | None
    sample_weight: np.ndarray | None
    ids: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def keys(self) -> Keys:
        """What folds know of the rows."""
        return Keys(self.rows, self.ids, self.X)


@dataclass(frozen=True)
class ColumnStatistics:
    """The result of the first sweep."""

    n_rows: int
    columns: Moments  # of X
    magnitude: np.ndarray  # (n_columns,): largest |x| of each column
    targets: Moments | None  # of numeric targets, or of several labels
    labels: LabelCounts | None  # of class labels
    samples: tuple[Sample, ...]  # one for each segment
    runs: tuple[Sample, ...] = ()  # neighbouring rows, likewise
    together: CoMoments | None = None  # of X and numeric targets side by side, where there are few columns
    survey: Any = None  # by which the folds are decided, where they follow from columns

    def sample(self) -> Sample:
        """The whole sample."""
        return _joined(self.samples)

    def neighbours(self) -> Sample:
        """The rows of all runs."""
        return _joined(self.runs)

    def without_rows(self) -> ColumnStatistics:
        """The statistics alone."""
        return replace(self, samples=(), runs=())

    def merge(self, other: ColumnStatistics) -> ColumnStatistics:
        """The statistics of both sets of rows."""
        return ColumnStatistics(
            n_rows=self.n_rows + other.n_rows,
            columns=self.columns.merge(other.columns),
            # Without weights the extremes are those of all rows.
            magnitude=np.maximum(self.magnitude, other.magnitude),
            # Both hold the same kind of targets; the other kind is None in both.
            targets=self.targets and other.targets and self.targets.merge(other.targets),
            labels=self.labels and other.labels and self.labels.merge(other.labels),
            samples=self.samples + other.samples,
            runs=self.runs + other.runs,
            together=self.together and other.together and self.together.merge(other.together),
            survey=merged(self.survey, other.survey),
        )


def merged(first: Any, second: Any) -> Any:
    """What both parts of the rows have together; None is of no rows."""
    return second if first is None else first if second is None else first.merge(second)


def _joined(parts: Sequence[Sample]) -> Sample:
    """Consecutive samples as one."""
    y = [part.y for part in parts if part.y is not None]
    s = [part.sample_weight for part in parts if part.sample_weight is not None]
    return Sample(
        np.concatenate([part.rows for part in parts]),
        joined_rows([part.X for part in parts]),
        np.concatenate(y) if y else None,
        np.concatenate(s) if s else None,
        {name: np.concatenate([part.ids[name] for part in parts]) for name in parts[0].ids},
    )


_NUMBERS = ("numeric", "multilabel")
_RUNS, _RUN_ROWS = 12, 64


def rows_in_runs(n_rows: int) -> np.ndarray:
    """Numbers of the rows of 12 runs of 64, evenly spread from the first row to the last; of few rows all."""
    if n_rows <= _RUNS * _RUN_ROWS:
        return np.arange(n_rows)
    starts = np.arange(_RUNS) * (n_rows - _RUN_ROWS) // (_RUNS - 1)
    return (starts[:, None] + np.arange(_RUN_ROWS)).ravel()


@dataclass(frozen=True)
class ColumnStatisticsReduction(Reduction):
    """Reduction to `ColumnStatistics`."""

    n_columns: int
    target_kind: str  # "numeric", "classes", "multilabel" or "none"
    n_targets: int  # columns of y; 0 without
    tile_rows: int
    rows_per_segment: int  # to sample in each segment
    seed: int
    with_products: bool = False
    folds: Folds = NO_FOLDS
    n_rows: int = 0  # of all segments, along which runs of neighbours are taken; 0 for none
    least_target: float = -np.inf  # of numbers

    def size_bytes(self, n_rows: int) -> int:
        products = (self.n_columns + self.n_targets) ** 2 if self.with_products else 0
        n_runs = min(n_rows, self.n_rows, _RUNS * _RUN_ROWS)
        return 8 * (self.n_columns * (7 + min(n_rows, self.rows_per_segment) + n_runs) + products)

    def zero(self) -> ColumnStatistics:
        return ColumnStatistics(
            n_rows=0,
            columns=Moments.empty(self.n_columns),
            magnitude=np.zeros(self.n_columns),
            targets=Moments.empty(self.n_targets) if self.target_kind in _NUMBERS else None,
            labels=LabelCounts.empty() if self.target_kind == "classes" else None,
            samples=(),
            together=CoMoments.empty(self.n_columns + self.n_targets) if self.with_products else None,
        )

    def update(self, total: ColumnStatistics, rows: Rows, arrays: Arrays) -> ColumnStatistics:
        chosen, in_runs = self._chosen_rows(rows.start, rows.stop), rows_in_runs(self.n_rows)
        drawn: list[Sample] = []
        neighbours: list[Sample] = []
        for block in rows.tiles(self.tile_rows):
            check_block(block, self.target_kind, self.least_target)
            total = self.merge(total, self._of_block(block))
            drawn.append(_pick(block, chosen))
            neighbours.append(_pick(block, in_runs))
        samples, runs = (*total.samples, _joined(drawn)), (*total.runs, _joined(neighbours))
        return replace(total, samples=samples, runs=runs)

    def merge(self, first: ColumnStatistics, second: ColumnStatistics) -> ColumnStatistics:
        return first.merge(second)

    def _of_block(self, block: RowBlock) -> ColumnStatistics:
        X, y, s = block.X, block.y, block.sample_weight
        Y = None
        if self.target_kind in _NUMBERS and y is not None:
            Y = np.reshape(y, (X.shape[0], -1)).astype(np.float64, copy=False)
        columns = Moments.of(X, s)
        return ColumnStatistics(
            n_rows=X.shape[0],
            columns=columns,
            # Without weights the extremes are those of all rows.
            magnitude=np.maximum(columns.max, -columns.min) if s is None else _largest(X),
            targets=None if Y is None else Moments.of(Y, s),
            labels=LabelCounts.of(y, s) if self.target_kind == "classes" and y is not None else None,
            samples=(),
            survey=self.folds.survey(block.keys),
            # For the linear model that the report puts beside the fit.
            together=CoMoments.of(X, Y, s) if self.with_products and Y is not None else None,
        )

    def _chosen_rows(self, start: int, stop: int) -> np.ndarray:
        # A stream for each segment, by its first row: the sample follows from row numbers, not from workers.
        rng = stream(self.seed, "sample", start)
        size = min(self.rows_per_segment, stop - start)
        return start + np.sort(rng.choice(stop - start, size=size, replace=False, shuffle=False))


def _largest(X: Any) -> np.ndarray:
    if issparse(X):
        return abs(X.astype(np.float64)).max(axis=0).toarray().ravel()
    # In float64 before the sign: −(−128) does not fit into an int8.
    return np.maximum(X.max(axis=0), -X.min(axis=0).astype(np.float64)).astype(np.float64)


def _pick(block: RowBlock, chosen: np.ndarray) -> Sample:
    inside = chosen[(chosen >= block.start) & (chosen < block.start + block.X.shape[0])] - block.start
    return Sample(
        block.start + inside,
        chosen_rows(block.X, inside).astype(np.float64, copy=False),
        None if block.y is None else block.y[inside],
        None if block.sample_weight is None else block.sample_weight[inside],
        {name: values[inside] for name, values in block.ids.items()},
    )


# The pass that counts what the sums of folds hold.


@dataclass(frozen=True, eq=False)
class FoldCensus(Sums):
    """What the sums of folds hold, and which rows of positive weight the folds judge."""

    counts: np.ndarray  # (n_sums, n_classes): rows of positive weight; one class of numbers
    n_never_held_out: int
    n_repeated: int  # rows that several folds judge
    judged: Moments | None  # of numeric targets; a row counts once for each fold that judges it


@dataclass(frozen=True)
class FoldCensusReduction(Reduction):
    """Reduction to a `FoldCensus`."""

    folds: Folds
    targets: Targets
    tile_rows: int

    def size_bytes(self, n_rows: int) -> int:
        return 8 * (self.folds.n_sums + 6) * (1 + self.targets.n_outputs)

    def zero(self) -> FoldCensus:
        n_classes = len(self.targets.classes) if isinstance(self.targets, ClassTargets) else 1
        judged = Moments.empty(self.targets.n_outputs) if self.targets.kind == "numeric" else None
        return FoldCensus(np.zeros((self.folds.n_sums, n_classes)), 0, 0, judged)

    def update(self, total: FoldCensus, rows: Rows, arrays: Arrays) -> FoldCensus:
        for block in rows.tiles(self.tile_rows):
            total = total + self._of_block(block)
        return total

    def _of_block(self, block: RowBlock) -> FoldCensus:
        keys, s, found = block.keys, block.sample_weight, self.zero()
        s = np.ones(len(keys)) if s is None else s
        entered, judges = self.folds.sums(keys), self.folds.held_out(keys)
        sums_rows, judged_rows = (slice(None) if of.rows is None else of.rows for of in (entered, judges))
        classes = np.zeros(len(keys), np.intp)
        if isinstance(self.targets, ClassTargets):
            classes = self.targets.indices(block.y)
        # Not their weights, of which a difference of equal sums may not be 0.
        np.add.at(found.counts, (entered.numbers, classes[sums_rows]), s[sums_rows] > 0)
        counts, judged = judges.counts()[s > 0], found.judged
        if judged is not None:
            Y = np.reshape(block.y, (len(keys), -1)).astype(np.float64, copy=False)
            judged = Moments.of(Y[judged_rows], s[judged_rows])
        never, repeated = (int(np.count_nonzero(some)) for some in (counts == 0, counts > 1))
        return FoldCensus(found.counts, never, repeated, judged)


# The pass for the sums over all rows that the fit of a feature map takes.


@dataclass(frozen=True)
class MapSumsReduction(Reduction):
    """A `MapReduction` as a reduction that the engine runs, of rows that go through a map `before` it."""

    map_reduction: MapReduction
    scaling: Scaling
    dtype: str
    tile_rows: int
    before: FittedMap | None = None

    def shared(self) -> SharedArrays | None:
        return self.before

    def light(self) -> Self:
        return self if self.before is None else replace(self, before=self.before.without_arrays())

    def size_bytes(self, n_rows: int) -> int:
        return self.map_reduction.size_bytes(n_rows)

    def zero(self) -> Any:
        return self.map_reduction.zero()

    def update(self, total: Any, rows: Rows, arrays: Arrays) -> Any:
        step = None if self.before is None else self.before.build_sent(arrays)
        for block in rows.tiles(self.tile_rows):
            X = self.scaling.apply(block.X, np.dtype(self.dtype))
            X = X if step is None else step.apply(X)
            total = self.map_reduction.update(total, block.start, X, block.sample_weight)
        return total

    def merge(self, first: Any, second: Any) -> Any:
        return self.map_reduction.merge(first, second)


# Later passes, over the features of rows.


def by_sum(
    folds: Folds, members: Sequence[int], block: RowBlock, max_rows: int
) -> Iterator[tuple[int, RowBlock]]:
    """Yield the rows of a block that each member, a sum, has, with its position; `max_rows` at most at once.

    A single sum has the whole block, of at most `max_rows` rows, which is not copied.
    """
    if folds.n_sums == 1:
        yield 0, block
        return
    # By keys of the rows: which sums a row enters depends on neither chunks nor workers.
    entered = folds.sums(block.keys)
    for position, member in enumerate(members):
        rows = entered.of(member)
        # Of contiguous folds one may have all rows of the block.
        for start in range(0, len(rows), max_rows):
            yield position, block.chosen(rows[start : start + max_rows])


@dataclass(frozen=True, kw_only=True)
class _OfMap:
    """What takes rows to their features, a tile of rows at a time."""

    specification: FittedMap  # its arrays are sent once for all passes of a run, not with each task
    scaling: Scaling
    dtype: str  # of the features; sums of their products are float64
    tile_rows: int  # rows with features in memory at once

    def shared(self) -> SharedArrays:
        return self.specification

    def light(self) -> Self:
        return replace(self, specification=self.specification.without_arrays())

    def ready_map(self, arrays: Arrays) -> FittedMap:
        """The map, made from the arrays sent for it or derived here."""
        return self.specification.build_sent(arrays)

    def scaled(self, X: Any) -> Any:
        """Scaled rows in the dtype of the map."""
        return self.scaling.apply(X, np.dtype(self.dtype))


@dataclass(frozen=True, kw_only=True)
class RowReduction(_OfMap, Reduction):
    """A reduction over the features of rows and their coded targets."""

    targets: Targets

    def tile_of(self, ready: FittedMap, rows: Any, start: int, X: Any, *, of_basis: bool) -> Any:
        """The features of the tile X of some rows, which begins at row `start`, not to be written to.

        They are those that stayed from an earlier pass, or made here; with `of_basis` the values of the map's
        basis.
        """
        of_basis = of_basis or not ready.has_basis
        kept = _kept_tile(rows, start, X.shape[0], of_basis=of_basis)
        return (ready.basis_tile if of_basis else ready.tile)(self.scaled(X)) if kept is None else kept

    def light_tile(
        self,
        ready: FittedMap,
        rows: Any,
        start: int,
        X: Any,
        coef: np.ndarray,
        slopes: Callable[[np.ndarray], np.ndarray],
        sums: np.ndarray | None,
    ) -> np.ndarray:
        """`FittedMap.light` of a tile, from the values of the basis that stayed or from its rows."""
        kept = _kept_tile(rows, start, X.shape[0], of_basis=True)
        return ready.light(self.scaled(X) if kept is None else None, coef, slopes, sums, kept)


# Rows that stay in a worker's memory from pass to pass, with their features or without them.


def _kept_tile(rows: Any, start: int, n_rows: int, *, of_basis: bool) -> Any:
    return rows.features_at(start, n_rows, of_basis=of_basis) if isinstance(rows, CachedRows) else None


class CachedRows:
    """The rows [start, stop) as they were read; `features` holds those of each of their tiles, in order.

    It is no dataclass: Dask would look for tasks in all fields of one, tile by tile.
    """

    def __init__(self, block: RowBlock, tile_rows: int, *, of_basis: bool, features: list[Any]) -> None:
        self.start, self.stop = block.start, block.start + block.X.shape[0]
        self._block, self._tile_rows = block, tile_rows
        self._of_basis, self._features = of_basis, features

    def tiles(self, n_rows: int) -> Iterator[RowBlock]:
        """Yield blocks cut at start, start + n_rows, ...; the last may be shorter. Dense ones are views."""
        for first in range(0, self.stop - self.start, n_rows):
            check_cancelled()
            part = slice(first, first + n_rows)
            given = self._block.X, self._block.y, self._block.sample_weight
            X, y, s = (None if A is None else A[part] for A in given)
            ids = {name: values[part] for name, values in self._block.ids.items()}
            yield RowBlock(self.start + first, X, y, s, ids)

    def features_at(self, start: int, n_rows: int, *, of_basis: bool) -> Any:
        """Kept features of a tile; None unless these are the ones.

        They are those of the same tiles: a product of more rows or fewer may round otherwise.
        """
        tile, beyond = divmod(start - self.start, self._tile_rows)
        if beyond or of_basis != self._of_basis or tile >= len(self._features):
            return None
        # A block may be cut elsewhere than the tiles were, as at the end of a segment.
        found = self._features[tile]
        return found if len(found) == n_rows else None

    def __sizeof__(self) -> int:
        """The bytes of the arrays, by which Dask judges where a task should run."""
        return sum(map(_bytes_of, [*self._block[1:4], *self._features]))


def _bytes_of(values: Any) -> int:
    if isinstance(values, OneHotTile):
        return values.columns.nbytes
    arrays = (getattr(values, name, None) for name in ("data", "indices", "indptr"))
    parts = [values] if isinstance(values, np.ndarray) else list(arrays)
    return sum(A.nbytes for A in parts if isinstance(A, np.ndarray))


@dataclass(frozen=True, kw_only=True)
class RowKeeping(_OfMap, CacheForm):
    """Keeps decoded rows, and with `with_features` the features of their tiles, in the map's own dtype.

    `of_basis` are the values of the map's basis in their place, as light passes multiply them.
    """

    of_basis: bool
    with_features: bool = True

    def keep(self, rows: Rows, arrays: Arrays) -> CachedRows:
        (block,) = rows.tiles(rows.stop - rows.start)
        # The plan counts these rows; a view would hold the whole chunk that they were decoded in.
        block = block._replace(
            **{name: _apart(getattr(block, name)) for name in ("X", "y", "sample_weight")},
            ids={name: _apart(values) for name, values in block.ids.items()},
        )
        if not self.with_features:
            return CachedRows(block, self.tile_rows, of_basis=self.of_basis, features=[])
        ready, features = self.ready_map(arrays), []
        of_basis = self.of_basis or not ready.has_basis
        tile_of = ready.basis_tile if of_basis else ready.tile
        for first in range(0, block.X.shape[0], self.tile_rows):
            check_cancelled()
            tile = self.scaled(block.X[first : first + self.tile_rows])
            features.append(_copied(tile_of(tile)))  # a map may write its next tile where it wrote this one
        return CachedRows(block, self.tile_rows, of_basis=of_basis, features=features)


def _apart(A: Any) -> Any:
    """A copy of a part of a larger array, which would stay as a whole."""
    base = A.base if isinstance(A, np.ndarray) else None
    return A.copy(order="K") if isinstance(base, np.ndarray) and base.nbytes > A.nbytes else A


def _copied(tile: Any) -> Any:
    if isinstance(tile, OneHotTile):
        return replace(tile, columns=tile.columns.copy())
    return tile.copy()


# The pass of few rows that returns their features, for what is solved on the Gram of the rows.


@dataclass(frozen=True, eq=False)
class MappedRows:
    """Features, coded targets and weights of rows, in their order."""

    Z: np.ndarray  # (n, D), in the dtype of the map
    Y: np.ndarray  # (n, k)
    s: np.ndarray  # (n,)
    keys: Keys

    def __add__(self, other: Self) -> Self:
        # The engine merges neighbours, the earlier one first, so that rows stay in their order.
        Z, Y, s = (np.concatenate([getattr(self, name), getattr(other, name)]) for name in ("Z", "Y", "s"))
        return type(self)(Z, Y, s, self.keys + other.keys)


@dataclass(frozen=True, kw_only=True)
class MappedRowsReduction(RowReduction):
    """Reduction to the `MappedRows`: not a sum that is smaller than its rows, so for few of them alone."""

    def size_bytes(self, n_rows: int) -> int:
        return 8 * n_rows * (self.specification.n_features + self.targets.n_outputs + 1)

    def update(self, total: MappedRows | None, rows: Rows, arrays: Arrays) -> MappedRows | None:
        ready = self.ready_map(arrays)
        for block in rows.tiles(self.tile_rows):
            s = self.targets.row_weights(block.y, block.sample_weight)
            mapped = MappedRows(
                Z=ready.apply(self.scaled(block.X)),
                Y=self.targets.encode(block.y),
                s=np.ones(block.X.shape[0]) if s is None else s,
                keys=block.keys,
            )
            total = self.merge(total, mapped)
        return total
