"""Groups that hold a sparse matrix: their columns, and which are refused."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from scipy.sparse import csr_matrix, random_array

from distrff.errors import InputError
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
