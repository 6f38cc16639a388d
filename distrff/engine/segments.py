"""Where rows are cut: segments (a task each) and tiles (a product each), by row number alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

_TILE_BYTES = 80 * 2**20
_LIGHT_TILE_BYTES = 2**22
_CACHED_TILE_BYTES = 2**22
_MAX_TILE_ROWS = 8192

# Starting a segment, packing its Gram and merging it cost about as much as the products of some
# hundred rows, whatever D is; with many times as many a segment's overhead stays small.
_LEAST_SEGMENT_ROWS = 15_000
# Longer segments would save little, and cost more when their worker is lost.
_MOST_SEGMENT_ROWS = 2**17
_SEGMENT_PRODUCTS = 2.0**39  # rows times squared columns of t: some seconds of one core
_USUAL_SEGMENTS = 16
_SAMPLE_ROWS_A_FEATURE = 16
_LEAST_SAMPLE_ROWS = 2**14
_MAX_PICKED_ROWS = 2**15
_LIGHT_SEGMENTS, _MIN_LIGHT_ROWS, _LIGHT_PRODUCTS = 8, 2**12, 2**26
_LIGHT_SEGMENT_BYTES = 2**26
_LIGHT_SEGMENT_ROWS = 2**18
_ENTRY_COLUMNS = 16
_SPARSE_TILE_ROWS, _SPARSE_TILE_ENTRIES = 2**12, 2**23


@dataclass(frozen=True)
class Segmentation:
    """Equal cuts of the rows 0 … n_rows; the last segment, and the last tile of each, may be shorter."""

    n_rows: int
    segment_rows: int
    tile_rows: int

    @property
    def n_segments(self) -> int:
        return -(-self.n_rows // self.segment_rows)

    def bounds(self) -> list[tuple[int, int]]:
        """Return (start, stop) of each segment."""
        starts = range(0, self.n_rows, self.segment_rows)
        return [(start, min(start + self.segment_rows, self.n_rows)) for start in starts]


def gram_tile_rows(n_features: int, n_outputs: int, dtype: np.dtype) -> int:
    """Return T, the rows of one product of the Gram sweep: a power of two from 512 to 8192."""
    row_bytes = (n_features + 1 + n_outputs) * np.dtype(dtype).itemsize
    return _power_of_two_at_most(_TILE_BYTES // row_bytes, 512, _MAX_TILE_ROWS)


def gram_stride(n_rows: int, n_features: int, least_rows: int = 0) -> int:
    """Return q such that one row in q preconditions as well as all: 16 rows per feature, at least 2¹⁴.

    The sample has at least `least_rows` rows.
    """
    return max(1, n_rows // max(_SAMPLE_ROWS_A_FEATURE * n_features, _LEAST_SAMPLE_ROWS, least_rows))


def gram_segmentation(n_rows: int, n_features: int, n_outputs: int, dtype: np.dtype) -> Segmentation:
    """Return the cuts of the Gram sweep.

    Sixteen segments from a quarter of a million rows, and a smaller power of two for fewer, while none
    has more than 2¹⁷ rows (fewer where D is large); then multiples of sixteen. So 2, 4, 8 or 16
    workers finish together.
    """
    tile_rows = gram_tile_rows(n_features, n_outputs, dtype)
    max_rows = _SEGMENT_PRODUCTS / (n_features + 1 + n_outputs) ** 2
    max_rows = min(_MOST_SEGMENT_ROWS, max(_LEAST_SEGMENT_ROWS, max_rows))
    fewest, most = -(-n_rows // int(max_rows)), n_rows // _LEAST_SEGMENT_ROWS
    if fewest > _USUAL_SEGMENTS:
        n_segments = _ceil_to(fewest, _USUAL_SEGMENTS)
    else:
        n_segments = _power_of_two_at_most(max(2 * fewest - 1, most), 1, _USUAL_SEGMENTS)
    return Segmentation(n_rows, _ceil_to(-(-n_rows // n_segments), 512), tile_rows)


def sampled_tile_rows(tile_rows: int, stride: int) -> int:
    """Return T for a Gram of one row in q, whose tiles are picked from q·T rows in memory."""
    return min(tile_rows, _power_of_two_at_most(_MAX_PICKED_ROWS // stride, 64, _MAX_TILE_ROWS))


def light_segmentation_of_features(n_rows: int, n_features: int, tile_rows: int) -> Segmentation:
    """Return the cuts of a light sweep over features, which 2, 4 or 8 workers end together.

    To start a task and to merge its partial takes the client, the scheduler and a worker some milliseconds.
    Segments are so long that this is a small share of their work, or half as long where one would hold all
    rows.
    """
    min_rows = max(_MIN_LIGHT_ROWS, _LIGHT_PRODUCTS // n_features)
    max_rows = min(_MOST_SEGMENT_ROWS, 2 * min_rows)
    fewest = 2 if 2 * n_rows * n_features >= _LIGHT_PRODUCTS else 1
    n_segments = _power_of_two_at_most(n_rows // min_rows, fewest, _LIGHT_SEGMENTS)
    if n_rows > n_segments * max_rows:
        n_segments = _ceil_to(-(-n_rows // max_rows), _LIGHT_SEGMENTS)
    return Segmentation(n_rows, _ceil_to(-(-n_rows // n_segments), tile_rows), tile_rows)


def sparse_segmentation(n_rows: int, n_entries: int) -> Segmentation:
    """Return the cuts of a light sweep over sparse features, whose rows have so many entries.

    An entry takes as long as some columns of dense features: its bin, a look-up, and sums out of order.
    Tiles are large, so that the sums of a bin are updated several times while they are in a cache.
    """
    cuts = light_segmentation_of_features(n_rows, _ENTRY_COLUMNS * n_entries, _SPARSE_TILE_ROWS)
    tile_rows = max(_SPARSE_TILE_ROWS, min(cuts.segment_rows, _SPARSE_TILE_ENTRIES // n_entries))
    return replace(cuts, tile_rows=tile_rows)


def margin_tile_rows(n_features: int, dtype: np.dtype, least: int = 128) -> int:
    """Return the rows of a tile whose features stay in a cache: a power of two from 128 or more to 1024."""
    return _power_of_two_at_most(_CACHED_TILE_BYTES // (n_features * np.dtype(dtype).itemsize), least, 1024)


def light_segmentation(n_rows: int, n_columns: int) -> Segmentation:
    """Return the cuts of a sweep whose result is small beside its rows."""
    row_bytes = 8 * n_columns
    segment_rows = min(_LIGHT_SEGMENT_ROWS, max(1024, _LIGHT_SEGMENT_BYTES // row_bytes))
    tile_rows = min(segment_rows, max(256, _LIGHT_TILE_BYTES // row_bytes))
    return Segmentation(n_rows, segment_rows, tile_rows)


def _power_of_two_at_most(value: int, low: int, high: int) -> int:
    return max(low, min(high, 1 << max(0, int(value).bit_length() - 1)))


def _ceil_to(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
