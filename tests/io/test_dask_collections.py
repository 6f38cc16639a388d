"""Dask arrays and DataFrames as rows: blocks that arrive in the task, and what is refused."""

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from distrff.errors import InputError, InputTypeError
from distrff.io.arrays import as_dataset

N = 83
X = np.arange(3.0 * N).reshape(N, 3)
Y = np.arange(N)
W = np.linspace(0, 1, N)


def assert_same(got, expected):
    for values, reference in zip(got, expected, strict=True):
        np.testing.assert_array_equal(values, reference)


def chunked():
    x = da.from_array(X, chunks=((10, 0, 43, 30), (1, 2)))
    y = da.from_array(Y, chunks=17)
    return x, y, da.from_array(W, chunks=((1, 82),))


@pytest.mark.parametrize("scheduler", ["sync", "threads", "distributed"])
def test_blocks_arrive_in_the_task(read_dataset, scheduler, request):
    if scheduler == "distributed":
        scheduler = request.getfixturevalue("client")
    x, y, w = chunked()
    data = as_dataset(x, y, w)
    assert (data.n_rows, data.n_columns, data.chunk_rows, data.source) == (N, 3, 43, "dask array")
    # The lazy arrays are the user's own, but for the columns in one block.
    assert data.X.chunks == ((10, 0, 43, 30), (3,))
    assert data.y.chunks == y.chunks
    assert data.sample_weight.dtype == np.float64
    for mixed in (data, as_dataset(x, Y, W.tolist()), as_dataset(X, y, W)):
        assert_same(read_dataset(mixed, 25, 7, scheduler=scheduler), (X, Y, W))


def test_what_x_and_y_share_is_computed_once():
    calls = []

    def block(block_info=None):
        calls.append(1)
        return np.zeros((10, 4))

    base = da.map_blocks(block, chunks=((10, 10), 4), dtype=float, meta=np.empty((0, 0)))
    rows = as_dataset(base[:, :3], base[:, 3]).rows(0, 20)
    dask.compute(dask.delayed(lambda r: list(r.tiles(5)))(rows), scheduler="sync")
    assert len(calls) == 2


def test_blocks_that_are_not_what_the_array_states(read_dataset):
    labels = np.array(["a", "bb", "a long label", "c"])
    y = da.concatenate([da.from_array(labels[:2].astype("U2")), da.from_array(labels[2:])])
    data = as_dataset(da.zeros((4, 1), chunks=3), y)
    assert data.y_dtype == np.dtype(object)
    assert read_dataset(data, 4, 3)[1].tolist() == labels.tolist()
    x = da.zeros((6, 2), chunks=3)
    with pytest.raises(InputError, match=r"the blocks of X for rows 0 to 5 hold 4 rows"):
        read_dataset(as_dataset(x.map_blocks(lambda b: b[:2], dtype=float, chunks=x.chunks)), 6, 6)
    with pytest.raises(InputTypeError, match=r"declares dense blocks but has sparse ones"):
        read_dataset(as_dataset(x.map_blocks(sparse.csr_matrix, dtype=float, meta=np.empty((0, 0)))), 6, 6)


# DataFrames ---------------------------------------------------------------------------------

RNG = np.random.default_rng(1)
FRAME = pd.DataFrame(
    {
        "a": RNG.normal(size=N).astype("f4"),
        "b": RNG.integers(0, 9, N).astype("i2"),
        "c": RNG.random(N) < 0.5,
        "label": RNG.choice(["u", "v"], N),
        "w": RNG.random(N),
    }
)


def test_dataframes_with_nulls_several_targets_and_empty_partitions(read_dataset):
    frame = FRAME.assign(n=pd.array([None, *range(N - 1)], dtype="Int64"))
    ddf = dd.from_pandas(frame, npartitions=6, sort=False)
    ddf = dd.concat([ddf.partitions[:2], ddf.partitions[2:4].query("a > 100"), ddf.partitions[4:]])
    expected = ddf.compute(scheduler="sync")
    with dask.config.set(scheduler="sync"):
        data = as_dataset(ddf[["a", "n"]], ddf[["b", "w"]])
    assert (data.n_rows, data.dtype, data.n_targets, data.y_is_1d) == (len(expected), np.float64, 2, False)
    X, y, _ = read_dataset(data, 10, 3)
    np.testing.assert_array_equal(X[:, 1], expected["n"].to_numpy(float, na_value=np.nan))
    np.testing.assert_array_equal(y, expected[["b", "w"]].to_numpy())


def test_projections_with_different_partitions(read_dataset, tmp_path):
    """Columns of one Parquet frame, of which dask fuses the narrow ones into fewer partitions."""
    rng = np.random.default_rng(2)
    for i in range(6):
        part = pd.DataFrame(rng.normal(size=(20 + i, 20)), columns=[f"c{j}" for j in range(20)])
        part.assign(y=rng.integers(0, 3, 20 + i)).to_parquet(tmp_path / f"{i}.parquet")
    ddf = dd.read_parquet(tmp_path)
    expected = ddf.compute(scheduler="sync")
    with dask.config.set(scheduler="sync"):
        data = as_dataset(ddf.drop(columns="y"), ddf["y"])
    X, y, _ = read_dataset(data, 50, 8)
    assert_same((X, y), (expected.drop(columns="y"), expected["y"]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: as_dataset(chunked()[0][da.from_array(Y > 3, chunks=10)]), r"compute_chunk_sizes\(\)"),
        (lambda _: as_dataset(da.from_array(X), Y[1:]), "X has 83 rows but y has 82"),
        (lambda _: as_dataset(da.zeros(3)), "Expected 2D array, got 1D array instead.*Reshape your data"),
        (lambda _: as_dataset(da.zeros((3, 1), dtype=complex)), "Complex data not supported"),
        (lambda _: as_dataset(da.from_array(X.astype(object), chunks=10)), r"astype\(float\)"),
        (lambda _: as_dataset(da.zeros((3, 0))), "0 feature"),
        (lambda _: as_dataset(da.zeros((3, 1)), None, da.zeros((3, 1))), "sample_weight must be 1-D"),
        (as_dataset, r"column 'label' of X has dtype .*convert it to numbers or drop it"),
        (lambda ddf: as_dataset(ddf[["a"]].query("a > 100")), r"0 sample\(s\)"),
        (lambda ddf: as_dataset(ddf["a"]), "Expected 2D array, got 1D array instead"),
        (lambda ddf: as_dataset(ddf[["a"]], np.zeros(5)), "X has 83 rows but y has 5"),
    ],
)
def test_unusable_arrays_and_dataframes(make, message):
    with dask.config.set(scheduler="sync"), pytest.raises(InputError, match=message):
        make(dd.from_pandas(FRAME, npartitions=2))
