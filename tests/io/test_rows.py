from __future__ import annotations

import weakref
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distrff.errors import InputError
from distrff.io.rows import RowBlock, TileReader, cut_tiles, cuts


def spans_of(values, sizes, field):
    ends = np.cumsum([0, *sizes])
    return [{field: values[a:b]} for a, b in pairwise(ends)]


@st.composite
def split(draw, n):
    """Sizes of consecutive spans, some of them empty, that add to n."""
    ends = sorted(draw(st.lists(st.integers(0, n), max_size=8)))
    return np.diff([0, *ends, n]).tolist()


@given(data=st.data(), n=st.integers(1, 60), tile=st.integers(1, 70), start=st.integers(0, 5))
def test_any_spans_and_tiles_give_the_same_rows(data, n, tile, start):
    X, y = np.arange(2.0 * n).reshape(n, 2), np.array([f"label {i}" for i in range(n)], dtype=object)
    feeds = [
        TileReader(spans_of(X, data.draw(split(n)), "X"), n),
        TileReader(spans_of(y, data.draw(split(n)), "y"), n),
    ]
    tiles = list(cut_tiles(start, start + n, tile, feeds))
    assert [t.start for t in tiles] == list(range(start, start + n, tile))
    assert all(len(t.X) == tile for t in tiles[:-1])
    np.testing.assert_array_equal(np.concatenate([t.X for t in tiles]), X)
    np.testing.assert_array_equal(np.concatenate([t.y for t in tiles]), y)
    assert all(t.sample_weight is None for t in tiles)


def test_a_tile_within_a_span_is_a_view():
    X = np.arange(20.0).reshape(10, 2)
    tiles = list(cut_tiles(0, 10, 4, [TileReader([{"X": X}], 10)]))
    assert all(np.shares_memory(tile.X, X) for tile in tiles)


@pytest.mark.parametrize("tile_rows", [3, 4, 5, 7, 12, 25])
def test_one_span_and_one_tile_are_alive(tile_rows):
    """When the next span is decoded, all earlier ones are gone, although the last tile is held."""
    alive = []

    def decode():
        for start in range(0, 60, 12):
            assert all(ref() is None for ref in alive)
            span = np.arange(start, start + 12.0)[:, None] + np.zeros(2)
            alive.append(weakref.ref(span))
            yield {"X": span}
            del span

    held = None
    for tile in cut_tiles(0, 60, tile_rows, [TileReader(decode(), 60)]):
        held = tile.X if tile_rows < 12 else None
        del tile
    assert held is None or held[-1, 0] == 59


def test_too_few_rows_are_an_error():
    with pytest.raises(InputError, match="ended 3 rows early"):
        list(cut_tiles(0, 10, 4, [TileReader([{"X": np.zeros((7, 1))}], 10)]))


@given(start=st.integers(0, 50), n=st.integers(1, 50), step=st.integers(1, 20))
def test_cuts_cover_the_rows_at_multiples_of_the_step(start, n, step):
    parts = list(cuts(start, start + n, step))
    assert [a for a, _ in parts[1:]] == [b for _, b in parts[:-1]]
    assert (parts[0][0], parts[-1][1]) == (start, start + n)
    assert all(a % step == 0 for a, _ in parts[1:])


def test_row_block_without_targets():
    assert RowBlock(3, np.zeros((1, 2)))[2:] == (None, None)


def test_a_feed_of_sparse_rows_is_cut_as_one_of_dense_ones(rng):
    X = np.where(rng.random((40, 5)) < 0.3, rng.standard_normal((40, 5)), 0.0)
    spans = ({"X": sparse.csr_matrix(part)} for part in np.array_split(X, [3, 4, 20, 31]))
    tiles = list(cut_tiles(0, 40, 7, [TileReader(spans, 40)]))
    assert [tile.X.shape[0] for tile in tiles] == [7, 7, 7, 7, 7, 5]
    assert all(tile.X.format == "csr" for tile in tiles)
    np.testing.assert_array_equal(np.concatenate([tile.X.toarray() for tile in tiles]), X)
