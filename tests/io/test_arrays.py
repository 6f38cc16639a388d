from __future__ import annotations

import pickle

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrff.errors import InputError, InputTypeError
from distrff.io.arrays import as_dataset


@pytest.fixture
def Xyw():
    rng = np.random.default_rng(0)
    return rng.normal(size=(101, 3)).astype("f4"), rng.integers(0, 5, 101), rng.random(101)


def test_description(Xyw):
    data = as_dataset(*Xyw)
    assert (data.n_rows, data.n_columns, data.dtype, data.y_dtype) == (101, 3, np.float32, np.int64)
    assert (data.n_targets, data.y_is_1d, data.has_weights) == (1, True, True)
    assert (data.column_names, data.target_names, data.skipped_columns) == (None, None, ())
    assert data.row_bytes == 3 * 4 + 8 + 8
    assert data.source == "NumPy array"
    assert "101 rows x 3 columns of float32" in repr(data)
    assert as_dataset(data) is data


@given(segment=st.integers(1, 120), tile=st.integers(1, 120))
def test_any_segments_and_tiles_give_the_same_rows(read_dataset, segment, tile):
    X, y, w = np.arange(202.0).reshape(101, 2), np.arange(202).reshape(101, 2), np.arange(101)
    got = read_dataset(as_dataset(X, y, w), segment, tile)
    for values, expected in zip(got, (X, y, w), strict=True):
        np.testing.assert_array_equal(values, expected)
    assert got[2].dtype == np.float64


def test_rows_ship_only_themselves_and_share_memory_here():
    X = np.zeros((100_000, 10))
    rows = as_dataset(X).rows(5000, 5100)
    assert len(pickle.dumps(rows)) < 100 * 10 * 8 + 2000
    assert np.shares_memory(next(rows.tiles(100)).X, X)


def test_absent_targets_and_weights(Xyw):
    data = as_dataset(Xyw[0])
    assert (data.n_targets, data.y_dtype, data.y, data.sample_weight) == (0, None, None, None)
    assert next(data.rows(0, 5).tiles(5))[2:] == (None, None)


def test_lazy_arrays(Xyw):
    data = as_dataset(*Xyw)
    for lazy, expected in zip((data.X, data.y, data.sample_weight), Xyw, strict=True):
        assert isinstance(lazy, da.Array)
        np.testing.assert_array_equal(lazy.compute(scheduler="sync"), expected)


def test_frames(read_dataset):
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3, 4]}, index=[7, 3])
    data = as_dataset(frame, pd.Series(["u", "v"], name="kind", index=[1, 0]))
    assert (data.column_names, data.target_names, data.source) == (("a", "b"), ("kind",), "pandas DataFrame")
    X, y, _ = read_dataset(data, 1, 1)
    np.testing.assert_array_equal(X, [[1, 3], [2, 4]])
    assert y.tolist() == ["u", "v"]  # by position, as scikit-learn takes them


def test_lengths_must_agree(Xyw):
    X, y, w = Xyw
    with pytest.raises(InputError, match="X has 101 rows but y has 100"):
        as_dataset(X, y[1:])
    with pytest.raises(InputError, match="X has 101 rows but sample_weight has 99"):
        as_dataset(X, y, w[2:])


@pytest.mark.parametrize("bounds", [(-1, 3), (3, 3), (0, 102)])
def test_rows_outside_of_the_data(Xyw, bounds):
    with pytest.raises(InputError, match="outside of"):
        as_dataset(Xyw[0]).rows(*bounds)


def test_a_dataset_carries_its_own_targets(Xyw):
    with pytest.raises(InputError, match="its own y"):
        as_dataset(as_dataset(Xyw[0]), Xyw[1])


def test_other_dask_collections_are_refused():
    bag = pytest.importorskip("dask.bag").from_sequence([[1.0]])
    with pytest.raises(InputTypeError, match="dask Bag"):
        as_dataset(bag)
