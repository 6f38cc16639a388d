"""LAPACK routines that let other threads run: SciPy's wrappers of these keep the interpreter's lock.

With the lock, the folds of a small fit take as long in several threads as in one. The routines are those of
SciPy's own library, by the addresses that it gives to Cython.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numba.extending import get_cython_function_address

_BLOCK = 64  # columns that the workspace of a reduction has room for


@cache
def _routine(name: str, n_arguments: int) -> Any:
    address = get_cython_function_address("scipy.linalg.cython_lapack", name)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)(address)


def _call(name: str, *arguments: Any) -> int:
    """Return `info` of a routine; arguments are arrays, integers and letters, without `info` itself."""
    held = [_held(argument) for argument in arguments]
    info = ctypes.c_int(0)
    pointers = [one.ctypes.data if isinstance(one, np.ndarray) else ctypes.addressof(one) for one in held]
    _routine(name, len(held) + 1)(*pointers, ctypes.addressof(info))
    return info.value


def _held(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return argument
    return ctypes.c_char(argument) if isinstance(argument, bytes) else ctypes.c_int(argument)


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


def factor(A: np.ndarray, *, overwrite: bool = False) -> np.ndarray:
    """Return the lower Cholesky factor of A, with zeros above its diagonal.

    Raises
    ------
    numpy.linalg.LinAlgError
        If A is not positive definite.
    """
    A = _columns(A, overwrite=overwrite)
    if _call("dpotrf", b"L", len(A), A, max(1, len(A))):
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    for column in range(1, len(A)):
        A[:column, column] = 0.0
    return A


def inverse_of_factor(L: np.ndarray) -> np.ndarray:
    """Return the lower triangle of (L Lᵀ)⁻¹; what is above its diagonal is that of L."""
    A = _columns(L, overwrite=False)
    _call("dpotri", b"L", len(A), A, max(1, len(A)))
    return A
