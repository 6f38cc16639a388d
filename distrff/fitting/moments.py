"""The first sweep: moments of columns and targets, classes, an even sample, and a check of every number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from scipy.sparse import issparse

from distrff.engine.reduction import Arrays, Reduction, SharedArrays
from distrff.features.base import MapReduction
from distrff.features.fitted import FittedMap
from distrff.io.dataset import RowBlock, Rows, check_block
from distrff.preprocessing.coding import LabelCounts, Scaling
from distrff.preprocessing.moments import CoMoments, Moments
from distrff.utils.arrays import chosen_rows, joined_rows
from distrff.utils.random import stream


@dataclass(frozen=True)
class Sample:
    """Rows drawn evenly over all segments, in row order; X in float64, the others as they were read."""

    rows: np.ndarray  # their numbers
    X: Any
    y: np.ndarray | None
    sample_weight: np.ndarray | None


@dataclass(frozen=True)
class ColumnStatistics:
    """The result of the first sweep."""

    n_rows: int
    columns: Moments  # of X
    magnitude: np.ndarray  # (n_columns,): largest |x| of each column
    targets: Moments | None  # of numeric targets, or of several labels
    labels: LabelCounts | None  # of class labels
    samples: tuple[Sample, ...]  # one for each segment
    together: CoMoments | None = None  # of X and numeric targets side by side, where there are few columns

    def sample(self) -> Sample:
        """The whole sample."""
        return _joined(self.samples)

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
            together=self.together and other.together and self.together.merge(other.together),
        )


def _joined(parts: Sequence[Sample]) -> Sample:
    """Consecutive samples as one."""
    y = [part.y for part in parts if part.y is not None]
    s = [part.sample_weight for part in parts if part.sample_weight is not None]
    return Sample(
        np.concatenate([part.rows for part in parts]),
        joined_rows([part.X for part in parts]),
        np.concatenate(y) if y else None,
        np.concatenate(s) if s else None,
    )


_NUMBERS = ("numeric", "multilabel")


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

    def size_bytes(self, n_rows: int) -> int:
        products = (self.n_columns + self.n_targets) ** 2 if self.with_products else 0
        return 8 * (self.n_columns * (7 + min(n_rows, self.rows_per_segment)) + products)

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
        chosen = self._chosen_rows(rows.start, rows.stop)
        drawn: list[Sample] = []
        for block in rows.tiles(self.tile_rows):
            check_block(block, self.target_kind)
            total = self.merge(total, self._of_block(block))
            drawn.append(_pick(block, chosen))
        return replace(total, samples=(*total.samples, _joined(drawn)))

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
            together=CoMoments.of(X, Y, s) if self.with_products and Y is not None else None,
        )

    def _chosen_rows(self, start: int, stop: int) -> np.ndarray:
        rng = stream(self.seed, "sample", start)
        size = min(self.rows_per_segment, stop - start)
        return start + np.sort(rng.choice(stop - start, size=size, replace=False, shuffle=False))


def _largest(X: Any) -> np.ndarray:
    if issparse(X):
        return abs(X.astype(np.float64)).max(axis=0).toarray().ravel()
    return np.maximum(X.max(axis=0), -X.min(axis=0).astype(np.float64)).astype(np.float64)


def _pick(block: RowBlock, chosen: np.ndarray) -> Sample:
    inside = chosen[(chosen >= block.start) & (chosen < block.start + block.X.shape[0])] - block.start
    return Sample(
        block.start + inside,
        chosen_rows(block.X, inside).astype(np.float64, copy=False),
        None if block.y is None else block.y[inside],
        None if block.sample_weight is None else block.sample_weight[inside],
    )


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
