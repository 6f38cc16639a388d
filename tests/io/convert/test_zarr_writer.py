"""Groups written shard by shard: the same rows for any cuts, whole or not at all."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from scipy.sparse import csr_matrix, random_array, vstack

from distrff.errors import InputError
from distrff.io.convert import writer as zarr_writer
from distrff.io.convert.writer import DenseWriter, SparseWriter, mark_complete, new_group
from distrff.io.open import open_dataset
from distrff.io.storage import Location


def write(path, writer, X, y, cuts, **options):
    with new_group(Location.of(path)) as group:
        rows = writer(group, **options)
        for part in np.split(np.arange(X.shape[0]), cuts):
            rows.append({"X": X[part], "y": y[part], "sample_weight": np.ones(len(part))})
        assert rows.finish() == X.shape[0]
        mark_complete(group)


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("chunk_rows", [None, 3, 10, 100])
def test_any_cuts_give_the_same_rows(tmp_path, chunk_rows, labels, rng):
    X = rng.standard_normal((133, 3)).astype(np.float32)
    y = np.array([f"ä{i}" for i in range(133)], dtype=object) if labels else np.arange(133)
    write(tmp_path / "a.zarr", DenseWriter, X, y, np.sort(rng.integers(0, 133, 4)), chunk_rows=chunk_rows)
    data = open_dataset(tmp_path / "a.zarr")
    np.testing.assert_array_equal(data.X.compute(), X)
    assert data.y.compute().tolist() == y.tolist()
    assert data.sample_weight.compute().tolist() == [1.0] * 133
    chunk = min(133, chunk_rows or 133)
    assert zarr.open_group(tmp_path / "a.zarr")["X"].chunks == (chunk, 3)


def test_shards_hold_eight_chunks(tmp_path, rng):
    X = rng.standard_normal((100, 2))
    write(tmp_path / "a.zarr", DenseWriter, X, X[:, 0], [40], chunk_rows=5)
    group = zarr.open_group(tmp_path / "a.zarr")
    assert (group["X"].chunks, group["X"].shards, group["y"].chunks) == ((5, 2), (40, 2), (40,))


@pytest.mark.parametrize("chunk_rows", [None, 7])
def test_sparse_rows_are_read_as_they_were(tmp_path, monkeypatch, chunk_rows, rng):
    monkeypatch.setattr(zarr_writer, "_SPARSE_CHUNK", 50)
    X = csr_matrix(random_array((200, 3000), density=0.002, rng=rng))
    write(tmp_path / "a.zarr", SparseWriter, X, np.arange(200), [1, 50, 51], chunk_rows=chunk_rows)
    rows = open_dataset(tmp_path / "a.zarr").rows(13, 190)
    for n in (1, 60, 1000):
        blocks = list(rows.tiles(n))
        assert (vstack([b.X for b in blocks]) != X[13:190]).nnz == 0
        assert np.concatenate([b.y for b in blocks]).tolist() == list(range(13, 190))


def test_dense_rows_can_be_stored_as_sparse_ones(tmp_path, rng):
    X = rng.standard_normal((20, 5)) * (rng.random((20, 5)) < 0.3)
    write(tmp_path / "a.zarr", SparseWriter, X, np.arange(20), [7])
    (block,) = open_dataset(tmp_path / "a.zarr").rows(0, 20).tiles(20)
    np.testing.assert_array_equal(block.X.toarray(), X)


def test_a_failure_leaves_nothing(tmp_path):
    with (
        pytest.raises(KeyboardInterrupt),
        new_group(Location.of(tmp_path / "a.zarr")) as group,
    ):
        DenseWriter(group).append({"X": np.zeros((3, 1))})
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_an_unfinished_group_is_refused(tmp_path):
    with new_group(Location.of(tmp_path / "a.zarr")) as group:
        writer = DenseWriter(group)
        writer.append({"X": np.zeros((3, 1))})
        writer.finish()
    with pytest.raises(InputError, match="incomplete, its writing was interrupted"):
        open_dataset(tmp_path / "a.zarr")


def test_an_object_store_gets_the_marker_last(rng):
    url = f"memory://{rng.integers(2**40)}.zarr"
    X = rng.standard_normal((10, 2))
    with new_group(Location.of(url)) as group:
        writer = DenseWriter(group)
        writer.append({"X": X})
        writer.finish()
        with pytest.raises(InputError, match="incomplete"):
            open_dataset(url)
        mark_complete(group)
    np.testing.assert_array_equal(open_dataset(url).X.compute(), X)
    with (
        pytest.raises(InputError, match="exists; pass overwrite"),
        new_group(Location.of(url)),
    ):
        pass
