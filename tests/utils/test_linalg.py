"""BLAS and LAPACK routines without the interpreter's lock: the same bits as by SciPy's wrappers."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import cholesky
from scipy.linalg.blas import dsyrk, dtrsm
from scipy.linalg.lapack import dpotri, dpstrf, dsytrd, dtrtri

from distrff.solvers.ridge import ridge_moments
from distrff.utils.jit import compiled, scratch
from distrff.utils.linalg import (
    OneHotTile,
    add_square,
    compile_products,
    factor,
    inverse_of_factor,
    inverse_of_triangle,
    pivots_and_rank,
    reflect,
    solve_factor,
    squared,
    transposed_product,
    tridiagonal,
    values_of,
)

# BLAS and LAPACK routines without the interpreter's lock: the same bits as by SciPy's wrappers.


def positive(rng, n):
    """Return a positive definite matrix."""
    A = rng.standard_normal((n, n + 2))
    return A @ A.T + n * np.eye(n)


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", [1, 2, 3, 40, 100])
def test_the_bits_are_those_of_scipy(rng, n, order, overwrite):
    A = np.array(positive(rng, n), order=order)
    kept = A.copy()
    for mine, its in zip(
        tridiagonal(A.copy(order), overwrite=overwrite), dsytrd(A, lower=1, lwork=64 * n), strict=False
    ):
        lower = np.tril(mine) if mine.ndim == 2 else mine
        assert np.array_equal(lower, np.tril(its) if its.ndim == 2 else its)
    L = factor(A if not overwrite else A.copy(order), overwrite=overwrite)
    assert np.array_equal(L, cholesky(A, lower=True))
    assert np.array_equal(inverse_of_factor(L), dpotri(L, lower=1)[0])
    assert np.array_equal(inverse_of_triangle(L), dtrtri(L, lower=1)[0])
    assert np.array_equal(A, kept)


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("n", [1, 2, 40, 100])
def test_pivots_are_those_of_scipy(rng, n, overwrite):
    Z = rng.standard_normal((n, max(1, n // 2)))
    A = np.asfortranarray(Z @ Z.T)
    tolerance = 1e-10 * A.diagonal().max()
    _, its, rank, _ = dpstrf(A, tol=tolerance, lower=1)
    pivots, mine = pivots_and_rank(A.copy("F"), tolerance, overwrite=overwrite)
    assert np.array_equal(pivots, its - 1) and mine == rank == max(1, n // 2)


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(1, 1), (30, 0), (0, 3), (40, 7), (100, 130)])
def test_solutions_with_a_factor_are_those_of_scipy(rng, shape, order, transposed):
    n, m = shape
    L = np.array(positive(rng, n), order=order)  # what is above the diagonal is not read
    B = rng.standard_normal(shape)
    kept = B.copy()
    if n and m and order == "F":
        expected = dtrsm(1.0, L, B, lower=1, trans_a=int(transposed))
        assert np.array_equal(solve_factor(L, B, transposed=transposed), expected)
    in_place = np.asfortranarray(B.copy())
    found = solve_factor(L, in_place, transposed=transposed, overwrite=True)
    assert np.shares_memory(found, in_place) or not found.size
    triangle = np.tril(L).T if transposed else np.tril(L)
    assert np.abs(triangle @ found - B).max(initial=0) <= 1e-12 * np.abs(L).max(initial=1) * max(1, n)
    assert np.array_equal(B, kept)


@pytest.mark.parametrize("shape", [(1, 1), (0, 3), (3, 0), (50, 7), (130, 100)])
def test_squares_are_added_as_by_scipy(rng, shape):
    T, A = rng.standard_normal(shape), rng.standard_normal((shape[1],) * 2)
    found, above = A.copy(), np.triu_indices(shape[1], 1)
    add_square(found, T)
    expected = A.copy()
    if T.size:
        expected = dsyrk(1.0, T.T, beta=1.0, c=A.T.copy("F"), lower=0).T
    assert np.array_equal(np.tril(found), np.tril(expected))
    assert np.array_equal(found[above], A[above])


@pytest.mark.parametrize("name", ["factor", "solve_factor", "add_square", "pivots_and_rank"])
def test_other_threads_run_meanwhile(rng, name):
    A, turns, begun, ended = np.asfortranarray(positive(rng, 1200)), [], threading.Event(), []
    calls = {
        "factor": lambda: factor(A),
        "solve_factor": lambda: solve_factor(A, A),
        "add_square": lambda: add_square(A.T, A.T),
        "pivots_and_rank": lambda: pivots_and_rank(A, 0.0),
    }

    def other() -> None:
        begun.set()
        while not ended:
            turns.append(time.perf_counter())
            time.sleep(0)

    def is_shared() -> bool:
        """Whether the other thread had a turn in the middle half of a call, where the routine runs."""
        started = time.perf_counter()
        calls[name]()
        quarter = (time.perf_counter() - started) / 4
        return any(started + quarter < turn < started + 3 * quarter for turn in turns)

    thread, interval = threading.Thread(target=other), sys.getswitchinterval()
    sys.setswitchinterval(100.0)  # only who gives the lock away loses it
    try:
        thread.start()
        begun.wait()
        # The system may give the processor to other programs meanwhile, but not each time.
        assert sum(is_shared() for _ in range(10)) >= 4
    finally:
        ended.append(True)
        sys.setswitchinterval(interval)
        thread.join()


@pytest.mark.parametrize("n", [1, 2, 30, 200])
@pytest.mark.parametrize("m", [1, 90])
def test_reflections_turn_a_matrix_into_its_tridiagonal_form(rng, n, m):
    A, C = positive(rng, n), np.array(rng.standard_normal((n, m)), order="F")
    reflections, diagonal, beside, tau = tridiagonal(A)
    T = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
    found = C.copy("F")
    reflect(reflections, tau, found, transposed=True)
    found = np.asfortranarray(T @ found)
    reflect(reflections, tau, found, transposed=False)
    assert np.linalg.norm(found - A @ C) <= 10 * n * 1.1e-16 * np.linalg.norm(A) * np.linalg.norm(C)


def test_indefinite_matrices_have_no_factor():
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        factor(np.diag([1.0, -1.0]))


# Compiled loops: products of tiles with few vectors are those of BLAS, for dense and one-hot tiles.

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
