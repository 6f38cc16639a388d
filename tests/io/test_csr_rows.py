"""Groups that hold a sparse matrix: what they say of themselves, and which are refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import zarr
from scipy.sparse import csr_matrix, issparse, random_array, vstack

from distrff.errors import InputError
from distrff.io import zarr_rows as csr_rows
from distrff.io.open import open_dataset

N, D = 60, 40


@pytest.fixture
def X(rng):
    return csr_matrix(random_array((N, D), density=0.1, rng=rng, dtype=np.float32))


@pytest.fixture
def group(tmp_path, X):
    group = zarr.open_group(tmp_path / "rows.zarr", mode="w")
    parts = group.create_group("X", attributes={"encoding-type": "csr_matrix", "shape": list(X.shape)})
    for name in ("data", "indices", "indptr"):
        values = getattr(X, name)
        parts.create_array(name, shape=values.shape, chunks=(7,), dtype=values.dtype)[...] = values
    group.create_array("y", shape=(N,), chunks=(11,), dtype=np.int64)[...] = np.arange(N)
    return group


def opened(group, **options):
    return open_dataset(str(group.store.root), **options)


@pytest.mark.parametrize("span", [1, 2**20])
@pytest.mark.parametrize("indptr_rows", [7, 2**16])
def test_tiles_are_the_rows(group, X, monkeypatch, span, indptr_rows, rng):
    monkeypatch.setattr(csr_rows, "SPAN_BYTES", span)
    monkeypatch.setattr(csr_rows, "_INDPTR_ROWS", indptr_rows)
    start, stop = np.sort(rng.choice(N + 1, 2, replace=False)).tolist()
    rows = pickle.loads(pickle.dumps(opened(group).rows(start, stop)))
    for n_rows in (1, 9, N):
        blocks = list(rows.tiles(n_rows))
        assert [b.start for b in blocks] == list(range(start, stop, n_rows))
        assert all(issparse(b.X) and b.X.format == "csr" for b in blocks)
        assert (vstack([b.X for b in blocks]) != X[start:stop]).nnz == 0
        assert np.concatenate([b.y for b in blocks]).tolist() == list(range(start, stop))


def test_description(group, X):
    data = opened(group)
    assert (data.n_rows, data.n_columns, data.dtype, data.n_targets) == (N, D, np.float32, 1)
    assert data.is_sparse
    blocks = [block.compute() for block in data.X.blocks.ravel()]
    assert (vstack(blocks) != X).nnz == 0
    assert data.y.compute().tolist() == list(range(N))


def test_columns(group, X):
    data = opened(group, columns=[3, -1])
    (block,) = data.rows(0, N).tiles(N)
    np.testing.assert_array_equal(block.X.toarray(), X.toarray()[:, [3, D - 1]])
    assert data.n_columns == 2


def damaged_indptr(group):
    group["X/indptr"][10:20] = group["X/indptr"][10:20][::-1] + np.arange(10, 0, -1)


def damaged_indices(group):
    group["X/indices"][5] = D


@pytest.mark.parametrize(
    ("damage", "message"),
    [(damaged_indptr, "indptr decreases"), (damaged_indices, f"indices beyond the {D} columns")],
)
def test_damage_is_named(group, damage, message):
    damage(group)
    with pytest.raises(InputError, match=rf"rows 0 to {N - 1}: {message}"):
        list(opened(group).rows(0, N).tiles(N))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"encoding-type": "csc_matrix"}, "encoding-type 'csc_matrix'"),
        ({"shape": None}, "shape None"),
        ({"shape": [N + 1, D]}, "do not fit its shape"),
    ],
)
def test_other_groups_are_refused(group, attributes, message):
    group["X"].update_attributes(attributes)
    with pytest.raises(InputError, match=message):
        opened(group)
