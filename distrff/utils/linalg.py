"""BLAS and LAPACK routines that let other threads run, and products of tiles with few vectors.

SciPy's wrappers keep the interpreter's lock. With it, the tiles of a pass, or the folds of a small fit, take
as long in several threads as in one, and a Dask worker does not answer until a routine ends. The routines are
those of SciPy's own library, by the addresses that it gives to Cython. Solves with a wider band, and its
eigenvalues, stay with SciPy's wrappers: they take O(D²·b) flops for b diagonals, where a reduction takes
O(D³).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numba.extending import get_cython_function_address

from distrff.utils.jit import compiled, compiles_once, scratch

_BLOCK = 64  # columns that the workspace of a reduction has room for


_C_TYPES: dict[type, Any] = {bytes: ctypes.c_char, float: ctypes.c_double, int: ctypes.c_int}


@cache
def _routine(library: str, name: str, n_arguments: int) -> Any:
    address = get_cython_function_address(f"scipy.linalg.cython_{library}", name)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)(address)


def _call(name: str, *arguments: Any) -> int:
    """Call a LAPACK routine with arrays, numbers and letters, and return its `info`, which goes last."""
    info = ctypes.c_int(0)
    _run("lapack", name, *arguments, info)
    return info.value


def _run(library: str, name: str, *arguments: Any) -> None:
    # A list that lives as long as the call: an address does not keep its object alive.
    held = [_C_TYPES[type(one)](one) if type(one) in _C_TYPES else one for one in arguments]
    pointers = [one.ctypes.data if isinstance(one, np.ndarray) else ctypes.addressof(one) for one in held]
    _routine(library, name, len(held))(*pointers)


def _columns(A: np.ndarray, *, overwrite: bool) -> np.ndarray:
    """A in Fortran order and float64, for a routine to write to; a copy unless that may be A."""
    if overwrite:
        return np.require(A, np.float64, ["F_CONTIGUOUS", "ALIGNED", "WRITEABLE"])
    return np.array(A, dtype=np.float64, order="F")


def tridiagonal(
    A: np.ndarray, *, overwrite: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """LAPACK's dsytrd of the lower triangle of A: the reflections, the two diagonals of T, and their τ."""
    A, n = _columns(A, overwrite=overwrite), len(A)
    diagonal, beside, tau = np.empty(n), np.empty(max(1, n - 1)), np.empty(max(1, n - 1))
    work = np.empty(max(1, _BLOCK * n))
    # LAPACK refuses a leading dimension of 0, which no rows would give.
    _call("dsytrd", b"L", n, A, max(1, n), diagonal, beside, tau, work, len(work))
    return A, diagonal, beside[: n - 1], tau[: n - 1]


def solve_tridiagonal(diagonal: np.ndarray, beside: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, bool]:
    """T⁻¹B for a symmetric T of these diagonals by dptsv, and whether T is not positive definite."""
    X, n = np.array(B, dtype=np.float64, order="F"), len(diagonal)
    # Both diagonals are overwritten.
    return X, _call("dptsv", n, X.shape[1], diagonal.copy(), beside.copy(), X, max(1, n)) > 0


def reflect(reflections: np.ndarray, tau: np.ndarray, C: np.ndarray, *, transposed: bool) -> None:
    """Turn C, float64 in Fortran order, into Q C or QᵀC for the reflections of `tridiagonal`, by dormqr."""
    # They leave the first row as it is; their vectors begin below the diagonal.
    apply_reflections(reflections[1:, : len(tau)], tau, C[1:], transposed=transposed)


def apply_reflections(V: np.ndarray, tau: np.ndarray, C: np.ndarray, *, transposed: bool = False) -> None:
    """Turn C, float64 of contiguous columns, into Q C or QᵀC for reflections below the diagonal of V."""
    (n, m), side = C.shape, b"T" if transposed else b"N"
    if len(tau) and m:
        work = np.empty(_BLOCK * max(m, _BLOCK) + _BLOCK * (_BLOCK + 1))
        columns = *_in_columns(V), tau, *_in_columns(C)
        _call("dormqr", b"L", side, n, m, len(tau), *columns, work, len(work))


def factor(A: np.ndarray, *, overwrite: bool = False, clean: bool = True) -> np.ndarray:
    """The lower Cholesky factor of A; `clean` sets what is above its diagonal to zero.

    Raises
    ------
    numpy.linalg.LinAlgError
        If A is not positive definite.
    """
    A = _columns(A, overwrite=overwrite)
    if _call("dpotrf", b"L", len(A), A, max(1, len(A))):
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    # dpotrf leaves there what A had.
    for column in range(1, len(A) if clean else 0):
        A[:column, column] = 0.0
    return A


def pivots_and_rank(A: np.ndarray, tolerance: float, *, overwrite: bool = False) -> tuple[np.ndarray, int]:
    """The order of the pivots of dpstrf, from 0, and how many are above the tolerance."""
    A, n = _columns(A, overwrite=overwrite), len(A)
    pivots, rank = np.empty(n, np.intc), ctypes.c_int(0)
    _call("dpstrf", b"L", n, A, max(1, n), pivots, rank, float(tolerance), np.empty(2 * max(1, n)))
    return pivots.astype(np.intp) - 1, rank.value


def solve_factor(
    L: np.ndarray, B: np.ndarray, *, transposed: bool = False, overwrite: bool = False
) -> np.ndarray:
    """L⁻¹B or L⁻ᵀB, in Fortran order, for a lower triangle L in either order, by dtrsm.

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


def triangular_product(U: np.ndarray, X: np.ndarray) -> np.ndarray:
    """U X in the dtype of an upper triangle U in Fortran order: half the flops of a whole matrix."""
    X, n = np.array(X, dtype=U.dtype, order="F"), len(U)
    routine, one = "strmm" if U.dtype == np.float32 else "dtrmm", np.ones(1, U.dtype)
    _run("blas", routine, b"L", b"U", b"N", b"N", n, X.shape[1], one, U, n, X, n)
    return X


def add_product(A: np.ndarray, S: np.ndarray, T: np.ndarray) -> None:
    """Add SᵀT to A, float64 in C order; S is of leading columns of T, which is in C order."""
    assert A.flags.c_contiguous and T.flags.c_contiguous and S.strides == T.strides
    (n, p), m = T.shape, S.shape[1]
    if T.dtype != np.float64:
        A += S.T @ T
    # Column by column this is TᵀS, added to Aᵀ.
    elif n and m:
        _run("blas", "dgemm", b"N", b"T", p, m, n, 1.0, T, p, S, p, 1.0, A, p)


def factor_columns(A: np.ndarray) -> np.ndarray:
    """Turn A into R, and the Householder vectors below it, by dgeqrf; return their τ."""
    n, k = A.shape
    tau, work = np.empty(min(n, k)), np.empty(_BLOCK * max(1, k))
    _call("dgeqrf", n, k, *_in_columns(A), tau, work, len(work))
    return tau


def triangle_of_reflections(V: np.ndarray, tau: np.ndarray) -> np.ndarray:
    """The upper triangle U for which I − V U Vᵀ is the product of the I − τ_i v_i v_iᵀ, by dlarft."""
    (n, k), U = V.shape, np.zeros((len(tau), len(tau)), order="F")
    _run("lapack", "dlarft", b"F", b"C", n, k, *_in_columns(V), tau, U, max(1, k))
    return U


def symmetric_product(A: np.ndarray, X: np.ndarray) -> np.ndarray:
    """AX, by dsymm; of A the lower triangle is read."""
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
    """A matrix of contiguous columns, and how far apart they are: parts of longer ones will do."""
    assert A.dtype == np.float64 and A.strides[0] == A.itemsize
    return A, max(1, len(A), A.strides[1] // A.itemsize)


def inverse_of_factor(L: np.ndarray, *, overwrite: bool = False) -> np.ndarray:
    """The lower triangle of (L Lᵀ)⁻¹; what is above its diagonal is that of L."""
    A = _columns(L, overwrite=overwrite)
    _call("dpotri", b"L", len(A), A, max(1, len(A)))
    return A


def inverse_of_triangle(L: np.ndarray) -> np.ndarray:
    """L⁻¹ for a lower triangle L; what is above its diagonal is that of L."""
    A = _columns(L, overwrite=False)
    _call("dtrtri", b"L", b"N", len(A), A, max(1, len(A)))
    return A


def inner(x: np.ndarray, y: np.ndarray) -> float:
    """Re x*y in float64 without BLAS, whose threads would wait for each other on busy cores."""
    x, y = x.reshape(-1).view(x.real.dtype), y.reshape(-1).view(y.real.dtype)
    return float(np.einsum("i,i->", x, y, dtype=np.float64))


def norm(x: np.ndarray) -> float:
    """‖x‖, likewise."""
    return float(np.sqrt(inner(x, x)))


# Products of a tile of features with few vectors.
#
# BLAS takes several times as long for a few vectors as for one: for a float32 tile of 512 × 2048 OpenBLAS
# needs 46 µs with one vector and 200 µs with two; the loops here need 50 and 57. Sums are in the dtype of the
# tile. A tile may be a `OneHotTile`, whose products are float64 sums over its entries.

_MAX_THIN = 12  # vectors, beyond which BLAS is as fast
_MAX_WEIGHTS = 6  # nonzero weights per row, likewise
_MAX_STREAMED_BYTES = 2**23  # of a tile that is read once for every few of them
_STRIP = 1024  # columns whose sums stay in the first-level cache


def values_of(Z: Any, coef: np.ndarray) -> np.ndarray:
    """Z·coef in float64, multiplied in the dtype of Z: (r, D) × (D, k) → (r, k)."""
    if isinstance(Z, OneHotTile):
        return Z.values(coef)
    if coef.shape[1] > _MAX_THIN or not _is_plain(Z):
        return (Z @ coef.astype(Z.dtype, copy=False)).astype(np.float64, copy=False)
    compile_products()
    F = np.empty((len(Z), coef.shape[1]))
    _values(Z, np.ascontiguousarray(coef.T, Z.dtype), F)
    return F


def transposed_product(S: np.ndarray, Z: Any) -> np.ndarray:
    """SZ in float64, multiplied in the dtype of Z: (m, r) × (r, D) → (m, D)."""
    sums = zero_sums(len(S), Z)
    add_transposed_product(sums, S, Z)
    return sums


def zero_sums(m: int, Z: Any) -> np.ndarray:
    """Zeros of shape (m, D), in the layout that is fastest for `add_transposed_product`."""
    D = Z.shape[1]
    return np.zeros((D, m)).T if isinstance(Z, OneHotTile) else np.zeros((m, D))


def add_transposed_product(sums: np.ndarray, S: np.ndarray, Z: Any) -> None:
    """Add SZ, multiplied in the dtype of Z, to the float64 `sums`."""
    if isinstance(Z, OneHotTile):
        Z.add_transposed_product(sums, S)
        return
    is_thin = np.count_nonzero(S) <= _MAX_WEIGHTS * S.shape[1] and Z.nbytes <= _MAX_STREAMED_BYTES
    if not is_thin or not _is_plain(Z):
        sums += S.astype(Z.dtype, copy=False) @ Z
        return
    compile_products()
    product = scratch("product", len(sums), Z.shape[1], Z.dtype)
    product[...] = 0
    _add_weighted_rows(np.ascontiguousarray(S, Z.dtype), Z, product)
    sums += product


def add_lower_triangle(packed: np.ndarray, P: np.ndarray) -> None:
    """Add the lower triangle of P, (p, p) in C order, to a float64 one that is packed row by row."""
    compile_products()
    _add_lower(P, packed)


def in_float64(Z: Any) -> Any:
    """Z if it is float64, else a copy that is valid until this thread's next call."""
    if isinstance(Z, OneHotTile) or Z.dtype == np.float64:
        return Z
    exact = scratch("exact tile", len(Z), Z.shape[1], np.dtype(np.float64))
    exact[...] = Z
    return exact


def squared(Z: Any) -> Any:
    """The squares of the entries."""
    return Z.squared() if isinstance(Z, OneHotTile) else np.square(Z)


@compiles_once
def compile_products() -> None:
    """Compile the dense products for both dtypes, or load them from Numba's cache, before they are needed."""
    for dtype in (np.float32, np.float64):
        Z = np.zeros((1, 1), dtype)
        _values(Z, Z, np.zeros((1, 1)))
        _add_weighted_rows(Z, Z, np.zeros((1, 1), dtype))
        _add_lower(Z, np.zeros(1))


def _is_plain(Z: np.ndarray) -> bool:
    return Z.dtype in (np.float32, np.float64) and Z.flags.c_contiguous


@compiled(fastmath=("reassoc", "contract"))
def _values(Z, C, F):
    """F = Z·Cᵀ: two rows of either at a time, so that four products share four loads."""
    # The compiler may add in any order, which depends on the width of the machine's vectors.
    n_rows, n_vectors = F.shape
    zero = Z.dtype.type(0)
    for i in range(0, n_rows - 1, 2):
        x, z = Z[i], Z[i + 1]
        for q in range(0, n_vectors - 1, 2):
            b, c = C[q], C[q + 1]
            xb, xc, zb, zc = zero, zero, zero, zero
            for j in range(x.size):
                xb += x[j] * b[j]
                xc += x[j] * c[j]
                zb += z[j] * b[j]
                zc += z[j] * c[j]
            F[i, q], F[i, q + 1], F[i + 1, q], F[i + 1, q + 1] = xb, xc, zb, zc
        if n_vectors % 2:
            b = C[n_vectors - 1]
            xb, zb = zero, zero
            for j in range(x.size):
                xb += x[j] * b[j]
                zb += z[j] * b[j]
            F[i, n_vectors - 1], F[i + 1, n_vectors - 1] = xb, zb
    if n_rows % 2:
        x = Z[n_rows - 1]
        for q in range(n_vectors):
            b = C[q]
            xb = zero
            for j in range(x.size):
                xb += x[j] * b[j]
            F[n_rows - 1, q] = xb


@compiled()
def _add_lower(P, packed):
    start = 0
    for i in range(len(P)):
        for j in range(i + 1):
            packed[start + j] += P[i, j]
        start += i + 1


@compiled()
def _add_weighted_rows(S, Z, sums):
    """sums += S·Z, from the rows of nonzero weight, eight at a time."""
    n_rows, n_columns = Z.shape
    # Most rows of a hinge have no slope: only the others are read.
    rows = np.empty(n_rows, np.int64)
    for q in range(len(S)):
        n = 0
        for i in range(n_rows):
            if S[q, i] != 0:
                rows[n] = i
                n += 1
        for first in range(0, n_columns, _STRIP):
            strip = slice(first, min(first + _STRIP, n_columns))
            sum_ = sums[q, strip]
            at = 0
            while at + 8 <= n:
                i0, i1, i2, i3 = rows[at], rows[at + 1], rows[at + 2], rows[at + 3]
                i4, i5, i6, i7 = rows[at + 4], rows[at + 5], rows[at + 6], rows[at + 7]
                z0, z1, z2, z3 = Z[i0, strip], Z[i1, strip], Z[i2, strip], Z[i3, strip]
                z4, z5, z6, z7 = Z[i4, strip], Z[i5, strip], Z[i6, strip], Z[i7, strip]
                a0, a1, a2, a3 = S[q, i0], S[q, i1], S[q, i2], S[q, i3]
                a4, a5, a6, a7 = S[q, i4], S[q, i5], S[q, i6], S[q, i7]
                for j in range(sum_.size):
                    half = (a0 * z0[j] + a1 * z1[j]) + (a2 * z2[j] + a3 * z3[j])
                    sum_[j] += half + ((a4 * z4[j] + a5 * z5[j]) + (a6 * z6[j] + a7 * z7[j]))
                at += 8
            while at < n:
                a, z = S[q, rows[at]], Z[rows[at], strip]
                for j in range(sum_.size):
                    sum_[j] += a * z[j]
                at += 1


@dataclass(frozen=True, eq=False)
class OneHotTile:
    """Features Z of r rows with at most one entry in each block of columns, all of the same value.

    `columns`, int32 of shape (n_blocks, r), are those in which a row has its entries; −1 for none.
    """

    columns: np.ndarray
    value: float
    n_features: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.columns.shape[1], self.n_features

    def __len__(self) -> int:
        return self.columns.shape[1]

    def __getitem__(self, rows: np.ndarray) -> OneHotTile:
        return replace(self, columns=self.columns[:, rows])

    def squared(self) -> OneHotTile:
        """The squares of all entries."""
        return replace(self, value=self.value**2)

    def values(self, coef: np.ndarray) -> np.ndarray:
        """Z·coef, summed in float64: (D, k) → (r, k)."""
        _compile_one_hot()
        F = np.zeros((len(self), coef.shape[1]))
        _gather(self.columns, np.ascontiguousarray(coef), F)
        # Once at the end, as all entries have the same value.
        F *= self.value
        return F

    def add_transposed_product(self, sums: np.ndarray, S: np.ndarray) -> None:
        """Add S·Z to the float64 `sums`, of shape (m, D), for S of shape (m, r).

        Fastest where the m sums of a column are neighbours in memory.
        """
        _compile_one_hot()
        _scatter(self.columns, np.multiply(S.T, self.value, order="C"), sums.T)


@compiles_once
def _compile_one_hot() -> None:
    columns = np.zeros((1, 1), np.int32)
    for dtype in (np.float32, np.float64):
        _gather(columns, np.zeros((1, 1), dtype), np.zeros((1, 1)))
    # Numba compiles an array of either order for itself.
    for sums in (np.zeros((2, 2)), np.zeros((2, 2)).T):
        _scatter(columns, np.zeros((1, 2)), sums)


@compiled()
def _gather(columns, coef, F):
    """F += Z·coef for value 1: block by block, whose coefficients stay in a cache."""
    for b in range(len(columns)):
        for i in range(columns.shape[1]):
            j = columns[b, i]
            if j >= 0:
                for q in range(F.shape[1]):
                    F[i, q] += coef[j, q]


@compiled()
def _scatter(columns, S, sums):
    """sums += Zᵀ·S for value 1."""
    for b in range(len(columns)):
        for i in range(columns.shape[1]):
            j = columns[b, i]
            if j >= 0:
                for q in range(S.shape[1]):
                    sums[j, q] += S[i, q]
