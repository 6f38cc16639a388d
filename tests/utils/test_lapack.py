"""LAPACK routines without the interpreter's lock: the same bits as by SciPy's wrappers."""

import numpy as np
import pytest
from scipy.linalg import cholesky
from scipy.linalg.lapack import dpotri, dsytrd

from distrff.utils.lapack import factor, inverse_of_factor, reflect, tridiagonal


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
    assert np.array_equal(A, kept)


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
