"""Reductions over rows, as data: the engine runs anything that implements `Reduction`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

Arrays = Mapping[str, np.ndarray]


class Rows(Protocol):
    """The rows [start, stop), as a small picklable dataclass from which a reduction reads them."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...


class SharedArrays(Protocol):
    """Arrays that all tasks of a run need beside the rows; hashable, and equal only if the arrays are."""

    def arrays_to_send(self, *, derived: bool) -> dict[str, np.ndarray]:
        """The arrays that tasks cannot derive; with `derived` also those that they could."""


class Reduction(ABC):
    """A monoid over runs of rows, as a frozen dataclass; its result does not depend on the worker."""

    def zero(self) -> Any:
        """The sum of no rows, a new one for each task."""
        return None

    @abstractmethod
    def update(self, total: Any, rows: Any, arrays: Arrays) -> Any:
        """Add rows to a total, which may be changed in place.

        `arrays` are those that were sent apart from the task.
        """

    def merge(self, first: Any, second: Any) -> Any:
        """Sum two partials, neither of which is changed; None is the sum of no rows."""
        if first is None or second is None:
            return second if first is None else first
        # Not `first += second`: Dask hands the same object to a retry, and a checkpoint may be writing it.
        return first + second

    def finish(self, total: Any) -> Any:
        """The partial of a total: the form in which it is kept and sent."""
        return total

    @abstractmethod
    def size_bytes(self, n_rows: int) -> int:
        """The bytes of a partial of `n_rows` rows."""

    def shared(self) -> SharedArrays | None:
        """The arrays that its tasks share with those of other passes; None if there are none."""
        return None

    def light(self) -> Self:
        """The same reduction without the arrays that are sent apart."""
        return self


def joined(sent: list[Arrays]) -> Arrays:
    """All arrays that were sent."""
    return {name: A for part in sent for name, A in part.items()}


# The fixed order in which partials are merged: a binary tree over segment numbers.

Neighbour = tuple[Any, bool]


class OrderedMerge:
    """Merges neighbours as soon as both have arrived.

    Node i of level l covers the segments [i·2ˡ, (i+1)·2ˡ). Which partials are added, and in which order,
    depends only on the number of segments, so the total has the same bits in whatever order they arrive. If
    they arrive in order, at most one per level waits; if one is late, those behind it are merged among
    themselves, and at most two per level wait. With several workers that each take neighbours in order, at
    most two per level wait on each worker.

    `merge(partial, neighbours, node)` is the sum of a partial with its neighbours, one after another, and the
    node that it fills; each neighbour is a pair of its partial and whether it lies before. All merges that
    one arrival makes possible are one call, so that they are one task.
    """

    def __init__(
        self, n_segments: int, merge: Callable[[Any, list[Neighbour], tuple[int, int]], Any]
    ) -> None:
        self._level_sizes = [n_segments]
        while self._level_sizes[-1] > 1:
            self._level_sizes.append(-(-self._level_sizes[-1] // 2))
        self._merge = merge
        self._waiting: dict[tuple[int, int], Any] = {}

    def add(self, index: int, partial: Any, level: int = 0) -> None:
        """Take the partial of a segment, or of a node above, and do all merges that it makes possible."""
        neighbours = []
        while self._level_sizes[level] > 1:
            # The other child of the same node. The last node of a level of odd size has none: it rises as it
            # is, without a merge.
            neighbour = index ^ 1
            if neighbour < self._level_sizes[level]:
                if (level, neighbour) not in self._waiting:
                    break
                # Sums do not mind which comes first, but drawn rows and lists of unseen words are joined in
                # the order of the rows.
                neighbours.append((self._waiting.pop((level, neighbour)), neighbour < index))
            level, index = level + 1, index // 2
        self._waiting[level, index] = (
            self._merge(partial, neighbours, (level, index)) if neighbours else partial
        )

    @property
    def n_waiting(self) -> int:
        """The number of partials that wait for their neighbour."""
        return len(self._waiting)

    def result(self) -> Any:
        """The total."""
        root = (len(self._level_sizes) - 1, 0)
        if set(self._waiting) != {root}:
            raise RuntimeError(f"{len(self._waiting)} partials were not merged")
        return self._waiting[root]


def n_levels(n_segments: int) -> int:
    """The levels of the tree above its leaves: the most partials that wait if all arrive in order."""
    return (n_segments - 1).bit_length()


# Where rows are cut: segments (one task each) and tiles (one product each), by row number only.

LARGE_PARTIAL = 2**25
"""Bytes; with larger partials, as plans count them, a thread has no second segment ready."""
# 8,192 rows of D = 2048 in float32, with which the Gram's loop has the 91 GF/s of bare products; 1,024 rows
# gave 76. Larger D have fewer rows, so that a thread's tile stays below 80 MB.
_TILE_BYTES = 80 * 2**20
_LIGHT_TILE_BYTES = 2**22
# Z of a light sweep is read again at once, so it has to stay in a cache: 512 rows of D = 2048 in float32. A
# sweep of 200,000 rows of 20 columns took .44 s with 256 to 1,024 rows a tile, .87 s with 8,192.
_CACHED_TILE_BYTES = 2**22
_MAX_TILE_ROWS = 8192

# Starting a segment, packing its Gram and merging it cost about as much as the products of a few hundred
# rows, whatever D is, and with five folds of some thousand; with many times as many rows it is small.
_MIN_SEGMENT_ROWS = 15_000
# Two cores share fewer rows: 15,000 of D = 4096 with five folds took 11.4 s in one segment, 6.6 s in two, and
# 9.1 s in four.
_MIN_HALF_ROWS = 2_500
# Longer segments would save little, and cost more when their worker is lost.
_MAX_SEGMENT_ROWS = 2**17
# Segments are rounded up to this many rows. With 512 the last of 16 was a quarter shorter for 500,000 rows.
_ALIGNED_ROWS = 64
_SEGMENT_PRODUCTS = 2.0**39  # rows times squared columns of t: some seconds of one core
_USUAL_SEGMENTS = 16
# The sample of rows that preconditions: per feature, in all, and as a sum that costs about a light sweep.
_LEAST_SAMPLE_PER_FEATURE, _MOST_SAMPLE_PER_FEATURE = 4, 16
_MIN_SAMPLE_ROWS = 2**14
_LIGHT_COLUMNS = 32  # a row's part of a light sweep, in products with one column
_MAX_PICKED_ROWS = 2**15
# Light sweeps over features: segments, and of each the minimum of rows and of products (rows times features).
_LIGHT_SEGMENTS, _MIN_LIGHT_ROWS, _LIGHT_PRODUCTS = 8, 2**12, 2**26
# More segments than this become longer ones instead: a task costs client and scheduler milliseconds, and a
# hundred workers still take twenty segments each.
_MANY_LIGHT_SEGMENTS = 2**11
_LIGHT_SEGMENT_BYTES = 2**26
_LIGHT_SEGMENT_ROWS = 2**18
_ENTRY_COLUMNS = 16  # dense columns that take as long as one sparse entry
_SPARSE_TILE_ROWS, _SPARSE_TILE_ENTRIES = 2**12, 2**23


@dataclass(frozen=True)
class Segmentation:
    """Equal cuts of the rows [0, n_rows); the last segment, and the last tile of each, may be shorter."""

    n_rows: int
    segment_rows: int
    tile_rows: int

    @property
    def n_segments(self) -> int:
        return -(-self.n_rows // self.segment_rows)

    def bounds(self) -> list[tuple[int, int]]:
        """(start, stop) of each segment."""
        starts = range(0, self.n_rows, self.segment_rows)
        return [(start, min(start + self.segment_rows, self.n_rows)) for start in starts]


def gram_tile_rows(n_features: int, n_outputs: int, dtype: np.dtype) -> int:
    """T, the rows of one product of the Gram sweep: a power of two from 512 to 8192."""
    # A tile is [Z | 1 | Y].
    row_bytes = (n_features + 1 + n_outputs) * np.dtype(dtype).itemsize
    return _power_of_two_at_most(_TILE_BYTES // row_bytes, 512, _MAX_TILE_ROWS)


def gram_stride(n_rows: int, n_features: int, min_rows: int = 0) -> int:
    """q such that one row in q preconditions about as well as all.

    The sample's Gram costs r·D² and a light sweep n·D·c flops: r is n·c/D, so that neither is long beside the
    other, but about 4·D to 16·D, and at least 2¹⁴ and `min_rows`. More rows save few sweeps: a squared hinge
    of MNIST on 4096 Nyström features took 22 with 15 rows a feature, 24 with 5 and 28 with 2.
    """
    rows = min(_LIGHT_COLUMNS * n_rows / n_features, _MOST_SAMPLE_PER_FEATURE * n_features)
    # This minimum comes after the maximum: with fewer rows a feature the factor is a poor one, however dear
    # the sample is.
    rows = max(rows, _LEAST_SAMPLE_PER_FEATURE * n_features)
    return max(1, min(round(n_rows / rows), n_rows // max(_MIN_SAMPLE_ROWS, min_rows)))


def gram_segmentation(n_rows: int, n_features: int, n_outputs: int, dtype: np.dtype) -> Segmentation:
    """The cuts of the Gram sweep.

    Sixteen segments from a quarter of a million rows on, a smaller power of two for fewer rows, two from
    5,000 on, and multiples of sixteen where a segment would have more than 2¹⁷ rows (fewer if D is large). So
    2, 4, 8 or 16 workers finish together.
    """
    tile_rows = gram_tile_rows(n_features, n_outputs, dtype)
    # By flops, so that a lost worker of a large D loses seconds, not minutes.
    max_rows = _SEGMENT_PRODUCTS / (n_features + 1 + n_outputs) ** 2
    max_rows = min(_MAX_SEGMENT_ROWS, max(_MIN_SEGMENT_ROWS, max_rows))
    min_segments, max_segments = -(-n_rows // int(max_rows)), n_rows // _MIN_SEGMENT_ROWS
    if min_segments > _USUAL_SEGMENTS:
        n_segments = _ceil_to(min_segments, _USUAL_SEGMENTS)
    else:
        # The largest power of two below 2·m is the smallest that is at least m.
        least = 2 if n_rows >= 2 * _MIN_HALF_ROWS else 1
        n_segments = _power_of_two_at_most(max(2 * min_segments - 1, max_segments), least, _USUAL_SEGMENTS)
    # Not rounded up to whole tiles of up to 8,192 rows: the last segment would be much shorter than the
    # others, and its worker would rest.
    return Segmentation(n_rows, _ceil_to(-(-n_rows // n_segments), _ALIGNED_ROWS), tile_rows)


def sampled_tile_rows(tile_rows: int, stride: int) -> int:
    """T for a Gram of one row in q; each tile is picked from q·T rows in memory."""
    return min(tile_rows, _power_of_two_at_most(_MAX_PICKED_ROWS // stride, 64, _MAX_TILE_ROWS))


def light_segmentation_of_features(n_rows: int, n_features: int, tile_rows: int) -> Segmentation:
    """The cuts of a light sweep over features, which 2, 4 or 8 workers finish together.

    Starting a task and merging its partial takes client, scheduler and worker some milliseconds. Segments are
    long enough to make this a small share of their work; rows that would fit in one segment are still halved
    if that pays.
    """
    min_rows = max(_MIN_LIGHT_ROWS, _LIGHT_PRODUCTS // n_features)
    max_rows = max(min(_MAX_SEGMENT_ROWS, 2 * min_rows), -(-n_rows // _MANY_LIGHT_SEGMENTS))
    # Each half has 2²⁴ products, some 18 ms (a million rows of D = 2048 take 2.2 s); a task costs 5 to 9 ms.
    min_segments = 2 if 2 * n_rows * n_features >= _LIGHT_PRODUCTS else 1
    n_segments = _power_of_two_at_most(n_rows // min_rows, min_segments, _LIGHT_SEGMENTS)
    if n_rows > n_segments * max_rows:
        n_segments = _ceil_to(-(-n_rows // max_rows), _LIGHT_SEGMENTS)
    return Segmentation(n_rows, _ceil_to(-(-n_rows // n_segments), tile_rows), tile_rows)


def sparse_segmentation(n_rows: int, n_entries: int) -> Segmentation:
    """The cuts of a light sweep over sparse features, with `n_entries` entries per row.

    An entry takes as long as several columns of dense features: its bin, a look-up, and sums out of order.
    Tiles are large, so that the sums of a bin are updated several times while they are in a cache.
    """
    # Segments as for dense features that take as long, in multiples of the smallest tile; tiles are then
    # made larger.
    cuts = light_segmentation_of_features(n_rows, _ENTRY_COLUMNS * n_entries, _SPARSE_TILE_ROWS)
    tile_rows = max(_SPARSE_TILE_ROWS, min(cuts.segment_rows, _SPARSE_TILE_ENTRIES // n_entries))
    return replace(cuts, tile_rows=tile_rows)


def margin_tile_rows(n_features: int, dtype: np.dtype, min_rows: int = 128) -> int:
    """The rows of a tile whose features fit in a cache: a power of two from `min_rows` to 1024."""
    return _power_of_two_at_most(
        _CACHED_TILE_BYTES // (n_features * np.dtype(dtype).itemsize), min_rows, 1024
    )


def light_segmentation(n_rows: int, n_columns: int) -> Segmentation:
    """The cuts of a sweep with a result that is small beside the rows."""
    # As float64 whatever the rows are stored as: the cuts, and so the bits, are those of the rows, not of
    # their file.
    row_bytes = 8 * n_columns
    segment_rows = min(_LIGHT_SEGMENT_ROWS, max(1024, _LIGHT_SEGMENT_BYTES // row_bytes))
    tile_rows = min(segment_rows, max(256, _LIGHT_TILE_BYTES // row_bytes))
    return Segmentation(n_rows, segment_rows, tile_rows)


def _power_of_two_at_most(value: int, low: int, high: int) -> int:
    return max(low, min(high, 1 << max(0, int(value).bit_length() - 1)))


def _ceil_to(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
