"""BLAS and LAPACK routines without the interpreter's lock: the same bits as by SciPy's wrappers."""

import sys
import threading
import time

import numpy as np
import pytest
from scipy.linalg import cholesky
from scipy.linalg.blas import dsyrk, dtrsm
from scipy.linalg.lapack import dpotri, dpstrf, dsytrd, dtrtri

from distrff.utils.linalg import (
    add_square,
    factor,
    inverse_of_factor,
    inverse_of_triangle,
    pivots_and_rank,
    reflect,
    solve_factor,
    tridiagonal,
)


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
