"""Cosines and sines of a matrix of angles: vectorised, correctly reduced, the same bits everywhere.

NumPy's float64 cosine is scalar code, thirty times slower than this; at a few thousand
feature columns it would cost as much as the Gram matrix that it feeds.

Method: x = k·π/2 + r with k = rint(x·2/π), minimax polynomials for cos r and sin r, and
the quadrant k mod 4 to swap and negate them. π/2 is held as the sum P + p of two numbers
of the working format. With |x| ≤ 2**20 both formats give x − k·P exactly in one fused
multiply-add: it is a multiple of the last bit of 1/2 (as x is once k ≠ 0, and P), and below 1.
Hence r carries one rounding, ε/4 with ε the spacing of the format at 1, and the absolute
errors add up (rounding of r, of r², of the Horner steps, of the result) to

* float64: 1.5e-16 (ε = 2.2e-16),
* float32: 9e-8 (ε = 1.2e-7).

Every operation is written out as an IEEE operation, fused ones included; the compiler has
no choice. So an element's value does not depend on its position, on the rows that are
computed with it, or on the processor's vector width. Angles beyond 2**20 go to the C
library one by one, and their last bits depend on it.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types
from numba.extending import intrinsic, overload, register_jitable
from numpy.lib.stride_tricks import as_strided

from distrff.errors import InputError, InputTypeError
from distrff.utils.jit import compiled, compiles_once

f32 = np.float32

# The largest |x| that is reduced here; k stays below 2**20 as well.
REDUCED_LIMIT = 2.0**20

# Angles per chunk: their buffer of 2 or 4 KiB stays in the first-level cache together with
# their results, so looking for far angles first does not read memory twice.
CHUNK = 512


def paired_cos_sin(theta: np.ndarray, out: np.ndarray, scale: float) -> None:
    """Write cosine and sine of every angle as adjacent columns.

    ``out[:, 2j] = scale·cos(theta[:, j])``, ``out[:, 2j+1] = scale·sin(theta[:, j])``.

    Both are float32 or both float64, with contiguous rows, and share no memory. Columns of `out` from 2m on
    are not changed. NaN and infinity give NaN, without a warning. `scale` is rounded to the dtype, and the
    product rounds once more. Before that, absolute errors are below 1.5e-16 (float64) and 9e-8 (float32, its
    argument taken as exact) for |theta| ≤ 2**20, and those of the C library beyond. One pass over memory, one
    thread, without the global interpreter lock.
    """
    _check(theta, out, 2)
    if np.shares_memory(theta, out):
        raise InputError(
            "theta and out share memory, but a pair takes the place of two angles; pass another out"
        )
    if theta.size:
        # A scale in float64 would lift float32 products to float64: slower, and with other bits. An array
        # without elements has no strides that `flat_elements` could go by.
        _paired(*flat_elements(theta), *flat_elements(out), *theta.shape, theta.dtype.type(scale))


@compiles_once
def compile_loops() -> None:
    """Compile both loops in both formats, or load them from Numba's cache, before they are needed."""
    for dtype in (np.float32, np.float64):
        theta = np.zeros((1, 1), dtype)
        paired_cos_sin(theta, np.zeros((1, 2), dtype), 1.0)
        cosine(theta, np.zeros((1, 1), dtype), 1.0)


def cosine(theta: np.ndarray, out: np.ndarray, scale: float) -> None:
    """Write the cosine of every angle: ``out[:, j] = scale·cos(theta[:, j])``.

    Layouts, errors and cost are as for `paired_cos_sin`; up to 2**20 the values are its even columns, bit for
    bit. `out` has at least m columns. It may be `theta` itself, or a matrix with `theta` as its leading
    columns.
    """
    _check(theta, out, 1)
    if not _same_places(theta, out) and np.shares_memory(theta, out):
        raise InputError(
            "theta and out overlap without starting at the same element; pass theta itself or another out"
        )
    if theta.size:
        _cosine(*flat_elements(theta), *flat_elements(out), *theta.shape, theta.dtype.type(scale))


def _check(theta: np.ndarray, out: np.ndarray, per_angle: int) -> None:
    if theta.dtype not in (np.float32, np.float64) or out.dtype != theta.dtype:
        raise InputTypeError(
            f"theta and out must both be float32 or both float64, got {theta.dtype} and {out.dtype}; cast one"
        )
    for name, A in (("theta", theta), ("out", out)):
        if not _has_plain_rows(A):
            raise InputError(
                f"{name} must be a matrix with contiguous rows one after the other, "
                f"got shape {A.shape} and strides {A.strides}; pass np.ascontiguousarray({name})"
            )
    n_columns = per_angle * theta.shape[1]
    if len(out) != len(theta) or out.shape[1] < n_columns or not out.flags.writeable:
        raise InputError(
            f"out must be writeable with {len(theta)} rows and at least {n_columns} columns, "
            f"got shape {out.shape} (writeable: {out.flags.writeable}); allocate it with np.empty"
        )


def _has_plain_rows(A: np.ndarray) -> bool:
    if A.ndim != 2:
        return False
    (n_rows, width), (row_step, step) = A.shape, A.strides
    # NumPy leaves the stride of an axis of length one (or of an empty array) undefined.
    return A.size == 0 or (
        (width == 1 or step == A.itemsize)
        and (n_rows == 1 or (row_step >= width * A.itemsize and row_step % A.itemsize == 0))
    )


def _same_places(theta: np.ndarray, out: np.ndarray) -> bool:
    # With one start and one row step a chunk is copied to the buffer before anything is written over it.
    begin, begin_out = (A.__array_interface__["data"][0] for A in (theta, out))
    return begin == begin_out and (len(theta) == 1 or theta.strides[0] == out.strides[0])


def flat_elements(A: np.ndarray) -> tuple[np.ndarray, int]:
    """The memory from the first to the last element as a vector, and the distance of rows in it.

    The type of a vector says that it is contiguous, which the compiler needs; that of a strided matrix does
    not.
    """
    row_step = A.strides[0] // A.itemsize
    return as_strided(A, ((len(A) - 1) * row_step + A.shape[1],), (A.itemsize,)), row_step


@intrinsic
def _fma(context, a, b, c):
    """a·b + c with one rounding (in software, slow but equal, on processors without the instruction)."""

    def emit(context, builder, signature, arguments):
        return builder.fma(*arguments)

    return a(a, a, a), emit


def _quadrant_cos_sin(x):
    """k (its two lowest bits count), cos r and sin r of x = k·π/2 + r."""
    raise NotImplementedError("only in compiled code")


@overload(_quadrant_cos_sin)
def _choose_format(x):
    return _quadrant_cos_sin_32 if x == types.float32 else _quadrant_cos_sin_64


# In both: adding 1.5·2**(bits of the fraction) rounds to an integer and leaves it in the lowest bits of
# the sum. The coefficients are minimax in absolute error (Remez exchange in 60 digits, with 1, −1/2 for
# cos and 1 for sin fixed), then rounded. NaN passes through all of it.


def _quadrant_cos_sin_64(x):
    # 2/π, and 1.5·2⁵².
    shifted = _fma(x, 0.6366197723675814, 6755399441055744.0)
    k = shifted - 6755399441055744.0
    # The inner operation is exact, so r is rounded once, by the outer one: first P, then p.
    r = _fma(k, -6.123233995736766e-17, _fma(k, -1.5707963267948966, x))
    u = r * r
    # |r| ≤ π/4·(1 + 2**-20): errors 5e-20 and 1.6e-18
    c = _fma(u, -1.1359669679541224e-11, 2.0875723680948034e-09)
    c = _fma(u, c, -2.7557314355217373e-07)
    c = _fma(u, c, 2.4801587289491746e-05)
    c = _fma(u, c, -0.0013888888888874138)
    c = _fma(u, c, 0.0416666666666666)
    c = _fma(u, _fma(u, c, -0.5), 1.0)
    s = _fma(u, 1.5888585677577112e-10, -2.50506002340237e-08)
    s = _fma(u, s, 2.7557312544743954e-06)
    s = _fma(u, s, -0.00019841269825934026)
    s = _fma(u, s, 0.008333333333316482)
    s = _fma(u, s, -0.166666666666666)
    # sin r = r + r³·s(r²): the large term enters last, and unrounded.
    return np.float64(shifted).view(np.int64), c, _fma(u * r, s, r)


def _quadrant_cos_sin_32(x):
    # 2/π, and 1.5·2²³.
    shifted = _fma(x, f32(0.63661975), f32(12582912.0))
    k = shifted - f32(12582912.0)
    # π/2 rounds upwards to float32, hence the other sign of p.
    r = _fma(k, f32(4.371139e-08), _fma(k, f32(-1.5707964), x))
    u = r * r
    # |r| ≤ 0.83, as k may be 0.03 off the nearest (2/π has 24 bits): errors 1.7e-10 and 2.9e-9
    c = _fma(u, f32(2.4396371e-05), f32(-0.0013886994))
    c = _fma(u, c, f32(0.041666638))
    c = _fma(u, _fma(u, c, f32(-0.5)), f32(1.0))
    s = _fma(u, f32(-0.00019455634), f32(0.008331646))
    s = _fma(u, s, f32(-0.16666645))
    return np.float32(shifted).view(np.int32), c, _fma(u * r, s, r)


@register_jitable
def _near(x):
    """cos x and sin x for |x| ≤ REDUCED_LIMIT."""
    # For k = 0, 1, 2, 3 the cosine of k·π/2 + r is c, −s, −c, s, and the sine s, c, −s, −c. Selections, as a
    # branch would keep the loops from being vectorised.
    k, c, s = _quadrant_cos_sin(x)
    cos_x = s if k & 1 else c
    sin_x = c if k & 1 else s
    return (-cos_x if (k + 1) & 2 else cos_x), (-sin_x if k & 2 else sin_x)


@register_jitable
def _anywhere(x, real):
    if abs(x) > REDUCED_LIMIT:
        return real(math.cos(np.float64(x))), real(math.sin(np.float64(x)))
    return _near(x)


@register_jitable
def _load(angles, buffer):
    """Copy `angles` to `buffer`; return whether some are beyond the limit."""
    far = False
    for j in range(angles.size):
        buffer[j] = angles[j]
        # Neither a break nor a branch: the copy and the test are one vectorised loop.
        far |= abs(angles[j]) > REDUCED_LIMIT
    return far


# The loops over near angles have no branch and are vectorised. Angles are read from the buffer, as `out` may
# be their own memory.


@compiled()
def _paired(theta, theta_step, out, out_step, n_rows, m, scale):
    buffer = np.empty(CHUNK, theta.dtype)
    for i in range(n_rows):
        for start in range(0, m, CHUNK):
            n, first = min(CHUNK, m - start), i * theta_step + start
            far = _load(theta[first : first + n], buffer)
            first = i * out_step + 2 * start
            Z = out[first : first + 2 * n]
            if far:
                for j in range(n):
                    c, s = _anywhere(buffer[j], theta.dtype.type)
                    Z[2 * j], Z[2 * j + 1] = scale * c, scale * s
            else:
                for j in range(n):
                    c, s = _near(buffer[j])
                    Z[2 * j], Z[2 * j + 1] = scale * c, scale * s


@compiled()
def _cosine(theta, theta_step, out, out_step, n_rows, m, scale):
    buffer = np.empty(CHUNK, theta.dtype)
    for i in range(n_rows):
        for start in range(0, m, CHUNK):
            n, first = min(CHUNK, m - start), i * theta_step + start
            far = _load(theta[first : first + n], buffer)
            first = i * out_step + start
            Z = out[first : first + n]
            if far:
                for j in range(n):
                    Z[j] = scale * _anywhere(buffer[j], theta.dtype.type)[0]
            else:
                for j in range(n):
                    Z[j] = scale * _near(buffer[j])[0]
