"""Tiles cut from spans, and work done ahead: in order, little of it in memory, errors in their place."""

import threading
import weakref
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from dask.system import CPU_COUNT
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from distrff.errors import InputError
from distrff.io.dataset import Rows, in_order, read_ahead


@dataclass(frozen=True)
class Given(Rows):
    """Rows of given runs of spans."""

    runs: tuple

    def spans(self):
        return self.runs


def tiles_of(n, tile_rows, *runs, start=0):
    return Given(start, start + n, runs).tiles(tile_rows)


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
    runs = [spans_of(X, data.draw(split(n)), "X"), spans_of(y, data.draw(split(n)), "y")]
    tiles = list(tiles_of(n, tile, *runs, start=start))
    assert [t.start for t in tiles] == list(range(start, start + n, tile))
    assert all(len(t.X) == tile for t in tiles[:-1])
    np.testing.assert_array_equal(np.concatenate([t.X for t in tiles]), X)
    np.testing.assert_array_equal(np.concatenate([t.y for t in tiles]), y)
    assert all(t.sample_weight is None for t in tiles)
    sparse_spans = [{"X": csr_matrix(part["X"])} for part in runs[0]]
    for dense, other in zip(tiles, tiles_of(n, tile, sparse_spans), strict=True):
        assert other.X.format == "csr"
        np.testing.assert_array_equal(other.X.toarray(), dense.X)
    assert all(np.shares_memory(t.X, X) for t in tiles_of(n, tile, [{"X": X}]))  # views of the span
    with pytest.raises(InputError, match="ended 1 rows early"):
        list(tiles_of(n + 1, tile, [{"X": X}]))


# Spans that are read ahead, and pieces that are decoded side by side.


def numbered(n_spans, read):
    for i in range(n_spans):
        read.append(i)
        yield {"X": np.full(3, i)}


@pytest.mark.parametrize("n_ahead", [1, 3, 20])
def test_the_order_is_kept_and_no_more_is_read_than_asked_for(n_ahead):
    (tile,) = tiles_of(24, 24, read_ahead(numbered(8, []), n_ahead))
    np.testing.assert_array_equal(tile.X, np.repeat(np.arange(8), 3))
    read: list[int] = []
    spans = read_ahead(numbered(100, read), n_ahead)
    first = weakref.ref(next(spans)["X"])
    for i in range(1, 6):
        assert next(spans)["X"][0] == i
        assert max(read) <= i + n_ahead
        assert first() is None  # a span is let go before the next
    del spans


def test_the_next_one_is_read_meanwhile_and_a_failure_comes_in_its_place_and_ends_the_work():
    """Reading waits for a gate that is opened only after the first span was handed out."""
    gate = threading.Event()

    def gated():
        yield {"X": np.zeros(1)}
        assert gate.wait(30)
        yield {"X": np.ones(1)}
        raise OSError("the store is gone")

    spans = read_ahead(gated(), 4)
    assert next(spans)["X"] == 0
    gate.set()
    assert next(spans)["X"] == 1
    with pytest.raises(OSError, match="is gone"):
        next(spans)
    begun = []

    def work(i: int) -> float:
        begun.append(i)
        return 1 / (3 - i)

    with pytest.raises(ZeroDivisionError):
        list(in_order(work, range(1000)))
    assert max(begun) <= 3 + CPU_COUNT + 2
