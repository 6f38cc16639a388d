"""What all readers of rows promise, whatever holds the rows and however they are cut."""

import pickle
import weakref
from itertools import pairwise

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from distrff.io import parquet_rows, tables, zarr_rows
from distrff.io.arrays import as_dataset
from distrff.io.open import open_dataset

N = 30
X = (np.arange(4.0 * N, dtype="f4") % 7 - 3).reshape(N, 4)
Y = np.arange(N)
W = np.linspace(0, 1, N)
FRAME = pd.DataFrame(X, columns=list("abcd")).assign(y=Y, w=W)


def zarr_group(folder, chunk, other, per_shard):
    group = zarr.open_group(folder / "rows.zarr", mode="w")
    options = {"shards": (chunk * per_shard, per_shard + 1)} if per_shard else {}
    stored = group.create_array("X", shape=X.shape, dtype=X.dtype, chunks=(chunk, per_shard + 1), **options)
    stored[:] = X  # `data=` loses chunks of shards in zarr 3.1.0
    group.create_array("y", data=Y, chunks=(other,))
    group.create_array("sample_weight", data=W, chunks=(chunk,))
    return open_dataset(folder / "rows.zarr")


def csr_group(folder, chunk, other, per_shard):
    A = csr_matrix(X)
    group = zarr.open_group(folder / "rows.zarr", mode="w")
    parts = group.create_group("X", attributes={"encoding-type": "csr_matrix", "shape": list(X.shape)})
    parts.create_array("data", data=A.data, chunks=(chunk,))
    parts.create_array("indices", data=A.indices, chunks=(other,))
    parts.create_array("indptr", data=A.indptr, chunks=(chunk,))
    group.create_array("y", data=Y, chunks=(other,))
    group.create_array("sample_weight", data=W, chunks=(chunk,))
    return open_dataset(folder / "rows.zarr")


def parquet_files(folder, chunk, other, per_shard):
    ends = [0, min(per_shard, N), min(other, N), N]  # of the files, some of them empty
    for i, (start, stop) in enumerate(pairwise(sorted(ends))):
        part = FRAME[start:stop].reset_index(drop=True)
        part.to_parquet(folder / f"part-{i}.parquet", row_group_size=chunk)
    return open_dataset(folder, target="y", sample_weight="w")


def numpy_arrays(folder, chunk, other, per_shard):
    return as_dataset(X, Y, W)


def dask_arrays(folder, chunk, other, per_shard):
    columns = per_shard + 1
    return as_dataset(*(da.from_array(A, c) for A, c in ((X, (chunk, columns)), (Y, other), (W, chunk))))


def dask_frame(folder, chunk, other, per_shard):
    frame = dd.from_pandas(FRAME, chunksize=min(chunk, N))
    with dask.config.set(scheduler="sync"):
        return as_dataset(frame[list("abcd")], frame["y"], frame["w"])


STORED = [zarr_group, csr_group, parquet_files]
ALL = [*STORED, numpy_arrays, dask_arrays, dask_frame]


@pytest.mark.parametrize("written", ALL)
@settings(max_examples=15)
@given(
    cuts=st.tuples(st.integers(1, N + 10), st.integers(1, N + 10), st.integers(0, 3)),
    segment=st.integers(8, N + 5),  # a computation of many graphs of one row each is only slow
    tile=st.integers(1, N + 5),
    limits=st.tuples(
        st.sampled_from([1, 300, 2**24]), st.sampled_from([1, 700, 2**26]), st.sampled_from([7, 2**16])
    ),
)
def test_any_cuts_give_the_same_rows(tmp_path_factory, read_dataset, written, cuts, segment, tile, limits):
    with pytest.MonkeyPatch.context() as patch:
        for room in (zarr_rows, tables):
            patch.setattr(room, "SPAN_BYTES", limits[0])
        patch.setattr(parquet_rows, "PACK_BYTES", limits[1])
        patch.setattr(zarr_rows, "_INDPTR_ROWS", limits[2])
        data = written(tmp_path_factory.mktemp("rows"), *cuts)
        found = read_dataset(data, segment, tile)
    for values, expected in zip(found, (X, Y, W), strict=True):
        np.testing.assert_array_equal(values, expected)
    # Integers of an empty Parquet file may be floats: its statistics do not rule out nulls.
    assert [values.dtype for values in found] == [data.dtype, data.y_dtype, np.float64]


@pytest.mark.parametrize("written", ALL)
def test_description_and_lazy_arrays(tmp_path, written):
    data = written(tmp_path, 7, 20, 2)
    assert (data.n_rows, data.n_columns, data.dtype, data.y_dtype) == (N, 4, np.float32, np.int64)
    assert (data.n_targets, data.y_is_1d, data.has_weights) == (1, True, True)
    assert data.is_sparse == (written is csr_group)
    blocks = [block.compute(scheduler="sync") for block in data.X.blocks.ravel()]
    found = np.concatenate([block.toarray() if data.is_sparse else block for block in blocks])
    np.testing.assert_array_equal(found, X)
    for lazy, expected in ((data.y, Y), (data.sample_weight, W)):
        np.testing.assert_array_equal(lazy.compute(scheduler="sync"), expected)
        assert lazy.dtype == expected.dtype
    assert data.X.dtype == np.float32


@pytest.mark.parametrize("tile_rows", [3, 5, 7, 10, 17, 23])
@pytest.mark.parametrize("written", [zarr_group, parquet_files])
def test_one_span_and_one_tile_are_alive(tmp_path, monkeypatch, written, tile_rows):
    """When the next span is decoded, all earlier ones are gone, although the last tile is held."""
    alive = []

    def watched(decode):
        def decoding(*args):
            assert all(ref() is None for ref in alive)
            span = decode(*args)
            alive.append(weakref.ref(span["X"] if isinstance(span, dict) else span))
            return span

        return decoding

    monkeypatch.setattr(zarr_rows, "SPAN_BYTES", 1)  # one chunk
    monkeypatch.setattr(tables, "SPAN_BYTES", 10 * (4 * 4 + 8 + 8))
    monkeypatch.setattr(parquet_rows.PlainEncoding, "span", watched(parquet_rows.PlainEncoding.span))
    data = written(tmp_path, 10 if written is zarr_group else 25, N, 0)
    if written is zarr_group:
        data = open_dataset(tmp_path / "rows.zarr", columns=[0, 2])
        data.reader.fields = ("X",)
        monkeypatch.setattr(data.reader, "_read", watched(data.reader._read))
    assert data.chunk_rows == 10
    held = None
    for tile in data.rows(0, N).tiles(tile_rows):
        held = tile.X if tile_rows < 10 else None  # a tile of a whole span is that span
        del tile
    assert len(alive) == (3 if written is zarr_group else 4)  # of Parquet 10, 10 and 5 of a row group
    del held


@pytest.mark.parametrize("written", STORED)
def test_stored_rows_are_small_handles(tmp_path, read_rows, written):
    rows = pickle.dumps(written(tmp_path, 25, 60, 0).rows(3, N))
    assert len(rows) < 6000
    np.testing.assert_array_equal(read_rows(pickle.loads(rows), 7)[0], X[3:])
