"""BLAS and LAPACK routines without the interpreter's lock: the same bits as by SciPy's wrappers."""

import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import cholesky
from scipy.linalg.blas import dsyrk, dtrsm
from scipy.linalg.lapack import dpotri, dpstrf, dsytrd, dtrtri

from distrff.utils.jit import compiled
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
    """A positive definite matrix."""
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
    reflections, diagonal, beside, tau = tridiagonal(A)
    C = np.array(rng.standard_normal((n, 3)), order="F")
    found = C.copy("F")
    reflect(reflections, tau, found, transposed=True)
    T = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
    found = np.asfortranarray(T @ found)
    reflect(reflections, tau, found, transposed=False)
    assert np.linalg.norm(found - A @ C) <= 10 * n * 1.1e-16 * np.linalg.norm(A) * np.linalg.norm(C)
    L = factor(A if not overwrite else A.copy(order), overwrite=overwrite)
    assert np.array_equal(L, cholesky(A, lower=True))
    assert np.array_equal(inverse_of_factor(L), dpotri(L, lower=1)[0])
    assert np.array_equal(inverse_of_triangle(L), dtrtri(L, lower=1)[0])
    assert np.array_equal(A, kept)


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(1, 1), (30, 0), (0, 3), (40, 7), (100, 130)])
def test_solutions_squares_and_pivots_are_those_of_scipy(rng, shape, order, transposed):
    n, m = shape
    L = np.array(positive(rng, n), order=order)  # what is above the diagonal is not read
    B = rng.standard_normal(shape)
    kept, in_place = B.copy(), np.asfortranarray(B.copy())
    found = solve_factor(L, in_place, transposed=transposed, overwrite=True)
    assert np.shares_memory(found, in_place) or not found.size
    triangle = np.tril(L).T if transposed else np.tril(L)
    assert np.abs(triangle @ found - B).max(initial=0) <= 1e-12 * np.abs(L).max(initial=1) * max(1, n)
    A = rng.standard_normal((m, m))
    squares, above = A.copy(), np.triu_indices(m, 1)
    add_square(squares, B)
    assert np.array_equal(squares[above], A[above])
    if n and m:
        if order == "F":
            expected = dtrsm(1.0, L, B, lower=1, trans_a=int(transposed))
            assert np.array_equal(solve_factor(L, B, transposed=transposed), expected)
        expected = dsyrk(1.0, B.T, beta=1.0, c=A.T.copy("F"), lower=0).T
        assert np.array_equal(np.tril(squares), np.tril(expected))
        G = np.asfortranarray(B @ B.T)  # of low rank, where m < n
        tolerance = 1e-10 * G.diagonal().max()
        _, its, rank, _ = dpstrf(G, tol=tolerance, lower=1)
        pivots, mine = pivots_and_rank(G.copy("F"), tolerance, overwrite=transposed)
        assert np.array_equal(pivots, its - 1) and mine == rank == min(n, m)
    assert np.array_equal(B, kept)
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        factor(np.diag([1.0, -1.0]))


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


# Compiled loops: products of tiles with few vectors are those of BLAS, for dense and one-hot tiles.

DTYPES = st.sampled_from([np.float32, np.float64])


@pytest.fixture(autouse=True, scope="module")
def compiled_products():
    compile_products()


def bound(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Both products err by at most n·ε·|A||B| (Higham 2002, section 3.5); the factors were rounded first."""
    n, eps = A.shape[1] + 2, np.finfo(A.dtype).eps
    return 2 * n * eps * (np.abs(A).astype(float) @ np.abs(B).astype(float)) + np.finfo(A.dtype).tiny


@given(
    r=st.integers(1, 40),
    D=st.integers(1, 30) | st.just(2500),  # more than a strip
    k=st.integers(0, 20),
    dtype=DTYPES,
    seed=st.integers(0, 99),
    layout=st.sampled_from([np.ascontiguousarray, np.asfortranarray, lambda Z: np.repeat(Z, 2, 1)[:, ::2]]),
)
def test_values_and_weighted_sums_of_rows(r, D, k, dtype, seed, layout):
    rng = np.random.default_rng(seed)
    Z, coef, S = (rng.standard_normal(shape).astype(dtype) for shape in ((r, D), (D, k), (k, r)))
    S *= rng.random((k, r)) < rng.random()
    F, sums = values_of(layout(Z), coef), transposed_product(S, layout(Z))
    assert F.dtype == sums.dtype == np.float64
    assert (np.abs(F - Z.astype(float) @ coef.astype(float)) <= bound(Z, coef)).all()
    assert (np.abs(sums - S.astype(float) @ Z.astype(float)) <= bound(S, Z)).all()
    Z[r // 2, D // 2] = np.nan
    shows = np.isnan(values_of(Z, np.ones((D, 1), dtype)))[:, 0]
    assert shows.tolist() == [i == r // 2 for i in range(r)]


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
def test_products_of_one_hot_tiles(tile, rng, dtype, k):
    coef, S = rng.standard_normal((N_FEATURES, k)).astype(dtype), rng.standard_normal((k, N_ROWS))
    found = values_of(tile, coef)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, dense(tile) @ coef, atol=1e-14)
    for sums in (np.ones((k, N_FEATURES)), np.ones((N_FEATURES, k)).T, np.ones((k + 2, 24))[1:-1, ::2]):
        tile.add_transposed_product(sums, S)
        np.testing.assert_allclose(sums, 1 + S @ dense(tile), atol=1e-14)
    np.testing.assert_allclose(dense(squared(tile)), dense(tile) ** 2)
    some = np.flatnonzero(rng.random(N_ROWS) < 0.5)
    np.testing.assert_array_equal(dense(tile[some]), dense(tile)[some])


def test_functions_without_a_place_to_cache_compile_all_the_same():
    # code that comes from no file has no folder beside it: as for a read-only install without a home
    namespace = {}
    exec("def double(x):\n    return 2 * x", namespace)
    assert compiled()(namespace["double"])(4) == 8
