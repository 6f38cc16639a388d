"""Compiled loops: products of tiles with few vectors are those of BLAS, for dense and one-hot tiles."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrff.solvers.ridge import ridge_moments
from distrff.utils.jit import compiled, scratch
from distrff.utils.linalg import OneHotTile, compile_products, squared, transposed_product, values_of

DTYPES = st.sampled_from([np.float32, np.float64])


@pytest.fixture(autouse=True, scope="module")
def compiled_products():
    compile_products()


def bound(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Both products err by at most n·ε·|A||B| (Higham 2002, section 3.5); the factors were rounded first."""
    n, eps = A.shape[1] + 2, np.finfo(A.dtype).eps
    return 2 * n * eps * (np.abs(A).astype(float) @ np.abs(B).astype(float)) + np.finfo(A.dtype).tiny


def assert_products(rng, r, D, k, dtype):
    Z, coef, S = (rng.standard_normal(shape).astype(dtype) for shape in ((r, D), (D, k), (k, r)))
    S *= rng.random((k, r)) < rng.random()
    F, sums = values_of(Z, coef), transposed_product(S, Z)
    assert F.dtype == sums.dtype == np.float64
    assert (np.abs(F - Z.astype(float) @ coef.astype(float)) <= bound(Z, coef)).all()
    assert (np.abs(sums - S.astype(float) @ Z.astype(float)) <= bound(S, Z)).all()


@given(
    r=st.integers(1, 40), D=st.integers(1, 30), k=st.integers(0, 20), dtype=DTYPES, seed=st.integers(0, 99)
)
def test_values_and_weighted_sums_of_rows(r, D, k, dtype, seed):
    assert_products(np.random.default_rng(seed), r, D, k, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_more_columns_than_a_strip(dtype, rng):
    assert_products(rng, 19, 2500, 3, dtype)


@pytest.mark.parametrize("Z", [np.ones((6, 4))[:, ::2], np.ones((3, 8, 2))[:, :, 0], np.ones((4, 6)).T])
def test_any_layout(Z):
    np.testing.assert_array_equal(values_of(Z, np.ones((Z.shape[1], 1))), np.full((len(Z), 1), Z.shape[1]))
    np.testing.assert_array_equal(
        transposed_product(np.ones((1, len(Z))), Z), np.full((1, Z.shape[1]), len(Z))
    )


def test_values_that_are_not_numbers_show(rng):
    Z = rng.standard_normal((5, 3))
    Z[2, 1] = np.nan
    assert np.isnan(values_of(Z, np.ones((3, 1)))[:, 0]).tolist() == [False, False, True, False, False]
    assert np.isnan(transposed_product(np.ones((1, 5)), Z)).tolist() == [[False, True, False]]


# One-hot tiles


N_ROWS, N_FEATURES = 30, 12


@pytest.fixture
def tile(rng):
    """Three blocks of four columns, in each of which some rows have no entry."""
    within = rng.integers(-1, 4, (3, N_ROWS))
    columns = np.where(within < 0, -1, within + 4 * np.arange(3)[:, None]).astype(np.int32)
    return OneHotTile(columns, 0.3, N_FEATURES)


def dense(tile):
    Z = np.zeros(tile.shape)
    for columns in tile.columns:
        rows = np.flatnonzero(columns >= 0)
        Z[rows, columns[rows]] = tile.value
    return Z


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_one_hot_values(tile, rng, dtype, k):
    coef = rng.standard_normal((N_FEATURES, k)).astype(dtype)
    found = values_of(tile, coef)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, dense(tile) @ coef, atol=1e-14)


@pytest.mark.parametrize("m", [0, 1, 3])
def test_weighted_sums_of_rows_in_any_layout(tile, rng, m):
    S = rng.standard_normal((m, N_ROWS))
    expected = S @ dense(tile)
    np.testing.assert_allclose(transposed_product(S, tile), expected, atol=1e-14)
    for sums in (
        np.ones((m, N_FEATURES)),
        np.ones((N_FEATURES, m)).T,
        np.ones((m + 2, 2 * N_FEATURES))[1:-1, ::2],
    ):
        tile.add_transposed_product(sums, S)
        np.testing.assert_allclose(sums, 1 + expected, atol=1e-14)


def test_squares_and_some_of_the_rows(tile, rng):
    np.testing.assert_allclose(dense(squared(tile)), dense(tile) ** 2)
    some = np.flatnonzero(rng.random(N_ROWS) < 0.5)
    np.testing.assert_array_equal(dense(tile[some]), dense(tile)[some])
    assert len(tile[some]) == len(some)


def test_moments_are_those_of_the_dense_rows(tile, rng):
    Y, E, s = rng.standard_normal((N_ROWS, 2)), rng.standard_normal((N_ROWS, 2)), rng.uniform(0.5, 2, N_ROWS)
    found, expected = ridge_moments(tile, Y, E, s), ridge_moments(dense(tile), Y, E, s)
    for name in ("weight", "z", "zz", "y", "yy", "zy", "e", "ze"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-12)


# Compiled loops, and arrays that a thread keeps


def test_functions_without_a_place_to_cache_compile_all_the_same():
    # code that comes from no file has no folder beside it: as for a read-only install without a home
    namespace = {}
    exec("def double(x):\n    return 2 * x", namespace)
    assert compiled()(namespace["double"])(4) == 8


def test_it_is_kept_and_grows():
    first = scratch("a test", 4, 5, np.dtype(np.float32))
    assert first.shape == (4, 5)
    assert first.dtype == np.float32
    assert first.flags.c_contiguous and first.flags.aligned and first.flags.writeable
    assert np.shares_memory(first, scratch("a test", 2, 3, np.dtype(np.float64)))
    assert scratch("a test", 40, 50, np.dtype(np.float64)).shape == (40, 50)
    assert not np.shares_memory(
        scratch("a test", 4, 5, np.dtype(np.float32)), scratch("another test", 4, 5, np.dtype(np.float32))
    )
    first, second = (scratch("a test", 2**12, 2**11, np.dtype(np.float64)) for _ in range(2))
    assert not np.shares_memory(first, second)  # large ones are fresh


def test_each_thread_has_its_own():
    together = Barrier(2)

    def ask(_):
        array = scratch("a test", 8, 8, np.dtype(np.float64))
        together.wait()
        return array

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(ask, range(2))
    assert not np.shares_memory(first, second)
