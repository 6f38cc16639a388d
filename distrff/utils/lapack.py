"""BLAS and LAPACK routines that let other threads run: SciPy's wrappers of them keep the interpreter's lock.

With the lock, the tiles of a pass, or the folds of a small fit, take as long in several threads as in one,
and a Dask worker does not answer until a routine ends. The routines are those of SciPy's own library, by the
addresses that it gives to Cython. Solves with a band, and its eigenvalues, stay with SciPy's wrappers: they
take O(D²·b) flops for b diagonals, where a reduction takes O(D³).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numba.extending import get_cython_function_address

_BLOCK = 64  # columns that the workspace of a reduction has room for


@cache
def _routine(library: str, name: str, n_arguments: int) -> Any:
    address = get_cython_function_address(f"scipy.linalg.cython_{library}", name)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)(address)


def _call(name: str, *arguments: Any) -> int:
    """Return `info` of a LAPACK routine; arguments are arrays, numbers and letters, without `info` itself."""
    info = ctypes.c_int(0)
    _run("lapack", name, *arguments, info)
    return info.value


def _run(library: str, name: str, *arguments: Any) -> None:
    held = [_held(argument) for argument in arguments]
    pointers = [one.ctypes.data if isinstance(one, np.ndarray) else ctypes.addressof(one) for one in held]
    _routine(library, name, len(held))(*pointers)


def _held(argument: Any) -> Any:
    if isinstance(argument, bytes):
        return ctypes.c_char(argument)
    if isinstance(argument, float):
        return ctypes.c_double(argument)
    return ctypes.c_int(argument) if isinstance(argument, int) else argument


def _columns(A: np.ndarray, *, overwrite: bool) -> np.ndarray:
    """Return A in Fortran order and float64, for a routine to write to; a copy unless that may be A."""
    if overwrite:
        return np.require(A, np.float64, ["F_CONTIGUOUS", "ALIGNED", "WRITEABLE"])
    return np.array(A, dtype=np.float64, order="F")


def tridiagonal(
    A: np.ndarray, *, overwrite: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return dsytrd of the lower triangle of A: the reflections, the two diagonals of T, and their τ."""
    A, n = _columns(A, overwrite=overwrite), len(A)
    diagonal, beside, tau = np.empty(n), np.empty(max(1, n - 1)), np.empty(max(1, n - 1))
    work = np.empty(max(1, _BLOCK * n))
    _call("dsytrd", b"L", n, A, max(1, n), diagonal, beside, tau, work, len(work))
    return A, diagonal, beside[: n - 1], tau[: n - 1]


def reflect(reflections: np.ndarray, tau: np.ndarray, C: np.ndarray, *, transposed: bool) -> None:
    """Turn C, float64 in Fortran order, into Q C or QᵀC for the reflections of `tridiagonal`, by dormqr."""
    assert C.dtype == np.float64 and C.flags.f_contiguous
    n, m = C.shape
    if n < 2 or not m:
        return
    # They leave the first row as it is; their vectors begin below the diagonal.
    sizes, work = (n - 1, m, n - 1), np.empty(_BLOCK * max(m, _BLOCK) + _BLOCK * (_BLOCK + 1))
    side = b"T" if transposed else b"N"
    _call("dormqr", b"L", side, *sizes, reflections[1:], n, tau, C[1:], n, work, len(work))


def factor(A: np.ndarray, *, overwrite: bool = False, clean: bool = True) -> np.ndarray:
    """Return the lower Cholesky factor of A; `clean` sets what is above its diagonal to zero.

    Raises
    ------
    numpy.linalg.LinAlgError
        If A is not positive definite.
    """
    A = _columns(A, overwrite=overwrite)
    if _call("dpotrf", b"L", len(A), A, max(1, len(A))):
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    for column in range(1, len(A) if clean else 0):
        A[:column, column] = 0.0
    return A


def pivots_and_rank(A: np.ndarray, tolerance: float, *, overwrite: bool = False) -> tuple[np.ndarray, int]:
    """Return the order of the pivots of dpstrf, from 0, and how many are above the tolerance."""
    A, n = _columns(A, overwrite=overwrite), len(A)
    pivots, rank = np.empty(n, np.intc), ctypes.c_int(0)
    _call("dpstrf", b"L", n, A, max(1, n), pivots, rank, float(tolerance), np.empty(2 * max(1, n)))
    return pivots.astype(np.intp) - 1, rank.value


def solve_factor(
    L: np.ndarray, B: np.ndarray, *, transposed: bool = False, overwrite: bool = False
) -> np.ndarray:
    """Return L⁻¹B or L⁻ᵀB, in Fortran order, for a lower triangle L in either order, by dtrsm.

    What is above the diagonal of L is not read.
    """
    assert L.dtype == np.float64 and (L.flags.f_contiguous or L.flags.c_contiguous) and len(L) == len(B)
    B, (n, m) = _columns(B, overwrite=overwrite), B.shape
    # BLAS reads column by column: rows of a lower triangle are the columns of an upper one, its transpose.
    triangle = b"L" if L.flags.f_contiguous else b"U"
    turned = b"T" if transposed == L.flags.f_contiguous else b"N"
    if n and m:
        _run("blas", "dtrsm", b"L", triangle, turned, b"N", n, m, 1.0, L, n, B, n)
    return B


def add_square(A: np.ndarray, T: np.ndarray) -> None:
    """Add TᵀT to the lower triangle of A, both float64 in C order, by dsyrk."""
    assert A.dtype == T.dtype == np.float64 and A.flags.c_contiguous and T.flags.c_contiguous
    n, p = T.shape
    # BLAS reads both column by column: T as Tᵀ, and A as its transpose.
    if n and p:
        _run("blas", "dsyrk", b"U", b"N", p, n, 1.0, T, p, 1.0, A, p)


def factor_columns(A: np.ndarray) -> np.ndarray:
    """Turn A into R, and the Householder vectors below it, by dgeqrf; return their τ."""
    n, k = A.shape
    tau, work = np.empty(min(n, k)), np.empty(_BLOCK * max(1, k))
    _call("dgeqrf", n, k, *_in_columns(A), tau, work, len(work))
    return tau


def triangle_of_reflections(V: np.ndarray, tau: np.ndarray) -> np.ndarray:
    """Return the upper triangle U for which I − V U Vᵀ is the product of the I − τ_i v_i v_iᵀ, by dlarft."""
    (n, k), U = V.shape, np.zeros((len(tau), len(tau)), order="F")
    _run("lapack", "dlarft", b"F", b"C", n, k, *_in_columns(V), tau, U, max(1, k))
    return U


def symmetric_product(A: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Return AX, by dsymm; of A the lower triangle is read."""
    (n, k), Y = X.shape, np.empty_like(X, order="F")
    if n and k:
        _run("blas", "dsymm", b"L", b"L", n, k, 1.0, *_in_columns(A), *_in_columns(X), 0.0, Y, n)
    return Y


def subtract_symmetric(A: np.ndarray, V: np.ndarray, W: np.ndarray) -> None:
    """Subtract VWᵀ + WVᵀ from the lower triangle of A, which alone is read and written, by dsyr2k."""
    n, k = V.shape
    if n and k:
        columns = *_in_columns(V), *_in_columns(W)
        _run("blas", "dsyr2k", b"L", b"N", n, k, -1.0, *columns, 1.0, *_in_columns(A))


def _in_columns(A: np.ndarray) -> tuple[np.ndarray, int]:
    """Return a matrix of contiguous columns, and how far apart they are: parts of longer ones will do."""
    assert A.dtype == np.float64 and A.strides[0] == A.itemsize
    return A, max(1, len(A), A.strides[1] // A.itemsize)


def inverse_of_factor(L: np.ndarray) -> np.ndarray:
    """Return the lower triangle of (L Lᵀ)⁻¹; what is above its diagonal is that of L."""
    A = _columns(L, overwrite=False)
    _call("dpotri", b"L", len(A), A, max(1, len(A)))
    return A


def inverse_of_triangle(L: np.ndarray) -> np.ndarray:
    """Return L⁻¹ for a lower triangle L; what is above its diagonal is that of L."""
    A = _columns(L, overwrite=False)
    _call("dtrtri", b"L", b"N", len(A), A, max(1, len(A)))
    return A
