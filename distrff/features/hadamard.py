"""The fast Walsh-Hadamard transform of many rows at once, rows last.

A tile holds d' = 2^k rows of numbers, one for each coordinate, and in each of them one number for every
row of data. So a butterfly is an addition and a subtraction of whole vectors, without a shuffle, whatever
its distance. A pass of radix 8 does three levels of the recursion H_2n = [[H_n, H_n], [H_n, −H_n]] for one
read and write of the tile. The vectors are written out for the compiler: it would not vectorise eight stores
into the array that eight loads come from. Every operation is an IEEE addition or multiplication, in an order
that depends on d' alone: a row's values are the same bits whatever rows are transformed with it.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numba.np.arrayobj import make_array

from distrff.compiled import compiled

RADIX = 8
LEAST_SIZE = RADIX

# Numbers of a vector: 512 bits, which the compiler splits where the processor's registers are shorter.
_LANES = {types.float32: 16, types.float64: 8}
LANES = 16


def padded_size(n_columns: int) -> int:
    """Return d' = 2^k, the least size of a transform that takes so many columns."""
    return max(LEAST_SIZE, 1 << (n_columns - 1).bit_length())


def walsh_hadamard(tile: np.ndarray) -> None:
    """Multiply by the Hadamard matrix in place: tile ← H·tile, unnormalised, HᵀH = d'·I.

    Parameters
    ----------
    tile : ndarray of shape (d', n_rows)
        float32 or float64, contiguous; d' a power of two, at least 8, and n_rows a multiple of 16.

    Notes
    -----
    H is that of Sylvester, H_ij = (−1)^(bits that i and j share). log2(d') additions a number.
    """
    size, n_rows = tile.shape
    signed_transform(tile.reshape(-1), tile.reshape(-1), np.arange(size), np.ones(size, tile.dtype), n_rows)


def _vectors(context, builder, array_type, array, offsets):
    """Return the vector pointers at these elements of an array."""
    data = make_array(array_type)(context, builder, array).data
    pointer = ir.VectorType(context.get_data_type(array_type.dtype), _LANES[array_type.dtype]).as_pointer()
    return [builder.bitcast(cgutils.gep_inbounds(builder, data, k), pointer) for k in offsets]


def _load(builder, pointers, align):
    loaded = [builder.load(pointer) for pointer in pointers]
    for load in loaded:
        load.align = align
    return loaded


def _store(builder, vectors, pointers, align):
    for vector, pointer in zip(vectors, pointers, strict=True):
        builder.store(vector, pointer).align = align


def _steps(builder, start, step, n):
    offsets = [start]
    for _ in range(n - 1):
        offsets.append(builder.add(offsets[-1], step))
    return offsets


def _splat(builder, value, lanes):
    vector_type = ir.VectorType(value.type, lanes)
    one = builder.insert_element(
        ir.Constant(vector_type, ir.Undefined), value, ir.Constant(ir.IntType(32), 0)
    )
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), lanes), None)
    return builder.shuffle_vector(one, ir.Constant(vector_type, ir.Undefined), zeros)


def _butterflies(builder, x):
    """Return H·x for a list of 2, 4 or 8 vectors."""
    half = 1
    while half < len(x):
        for i in range(len(x)):
            if not i & half:
                a, b = x[i], x[i + half]
                x[i], x[i + half] = builder.fadd(a, b), builder.fsub(a, b)
        half *= 2
    return x


def _pass_of(radix):
    def typed(typingcontext, tile, start, step):
        def emit(context, builder, signature, arguments):
            array, first, distance = arguments
            align = tile.dtype.bitwidth // 8
            pointers = _vectors(context, builder, tile, array, _steps(builder, first, distance, radix))
            _store(builder, _butterflies(builder, _load(builder, pointers, align)), pointers, align)
            return context.get_dummy_value()

        return types.void(tile, types.intp, types.intp), emit

    return intrinsic(typed)


_pass_2, _pass_4, _pass_8 = map(_pass_of, (2, 4, 8))


@intrinsic
def _first_pass_8(typingcontext, source, out, order, diagonal, j, n_rows, r):
    """out[j:j+8] ← H₈·(diagonal·source[order])[j:j+8], for one vector of rows from r on."""

    def emit(context, builder, signature, arguments):
        source_array, out_array, order_array, diagonal_array, first, width, row = arguments
        align = source.dtype.bitwidth // 8
        one = ir.Constant(first.type, 1)
        ks = _steps(builder, first, one, RADIX)
        order_data = make_array(order)(context, builder, order_array).data
        diagonal_data = make_array(diagonal)(context, builder, diagonal_array).data
        origins = [builder.load(cgutils.gep_inbounds(builder, order_data, k)) for k in ks]
        factors = [builder.load(cgutils.gep_inbounds(builder, diagonal_data, k)) for k in ks]

        def places(rows):
            return [builder.add(builder.mul(k, width), row) for k in rows]

        x = _load(builder, _vectors(context, builder, source, source_array, places(origins)), align)
        x = [
            builder.fmul(v, _splat(builder, f, _LANES[source.dtype])) for v, f in zip(x, factors, strict=True)
        ]
        pointers = _vectors(context, builder, out, out_array, places(ks))
        _store(builder, _butterflies(builder, x), pointers, align)
        return context.get_dummy_value()

    return types.void(source, out, order, diagonal, types.intp, types.intp, types.intp), emit


@intrinsic
def _transposed(typingcontext, source, start, step, out, out_start, out_step, factors, i):
    """Copy a square as long as a vector, transposed; row k of the source times factors[i + k]."""

    def emit(context, builder, signature, arguments):
        source_array, first, distance, out_array, out_first, out_distance, factor_array, row = arguments
        lanes, align = _LANES[source.dtype], source.dtype.bitwidth // 8
        offsets = _steps(builder, first, distance, lanes)
        x = _load(builder, _vectors(context, builder, source, source_array, offsets), align)
        data = make_array(factors)(context, builder, factor_array).data
        ones = _steps(builder, row, ir.Constant(row.type, 1), lanes)
        scalars = [builder.load(cgutils.gep_inbounds(builder, data, k)) for k in ones]
        x = [builder.fmul(v, _splat(builder, f, lanes)) for v, f in zip(x, scalars, strict=True)]
        # log2(lanes) rounds of interleaving the halves of the list rotate the bits of the index.
        masks = [
            ir.Constant(
                ir.VectorType(ir.IntType(32), lanes), [part + k // 2 + (k % 2) * lanes for k in range(lanes)]
            )
            for part in (0, lanes // 2)
        ]
        n = lanes
        while n > 1:
            pairs = zip(x[: lanes // 2], x[lanes // 2 :], strict=True)
            x = [builder.shuffle_vector(a, b, mask) for a, b in pairs for mask in masks]
            n //= 2
        offsets = _steps(builder, out_first, out_distance, lanes)
        _store(builder, x, _vectors(context, builder, out, out_array, offsets), align)
        return context.get_dummy_value()

    integers = (types.intp, types.intp)
    return types.void(source, *integers, out, *integers, factors, types.intp), emit


def _lanes_of(array):
    raise NotImplementedError("only in compiled code")


@overload(_lanes_of)
def _lanes_of_type(array):
    lanes = _LANES[array.dtype]
    return lambda array: lanes


@compiled()
def signed_transform(source, out, order, diagonal, n_rows):
    """out ← H·(diagonal·source[order]) for flat tiles of d' rows; in place if the order is 0, 1, 2, …"""
    size, lanes = diagonal.size, _lanes_of(source)
    for j in range(0, size, RADIX):
        for r in range(0, n_rows, lanes):
            _first_pass_8(source, out, order, diagonal, j, n_rows, r)
    half = RADIX
    while half < size:
        radix = min(RADIX, size // half)
        step = half * n_rows
        for start in range(0, size * n_rows, radix * step):
            if radix == 8:
                for i in range(start, start + step, lanes):
                    _pass_8(out, i, step)
            elif radix == 4:
                for i in range(start, start + step, lanes):
                    _pass_4(out, i, step)
            else:
                for i in range(start, start + step, lanes):
                    _pass_2(out, i, step)
        half *= radix


@compiled()
def scaled_transpose(source, start, step, n, m, factors, out, out_start, out_step):
    """out[j, i] ← factors[i]·source[i, j], i < n, j < m, of flat arrays by offset and distance of rows."""
    lanes = _lanes_of(source)
    m_whole = m - m % lanes
    for i in range(0, n - n % lanes, lanes):
        for j in range(0, m_whole, lanes):
            _transposed(
                source, start + i * step + j, step, out, out_start + j * out_step + i, out_step, factors, i
            )
        for j in range(m_whole, m):
            for k in range(i, i + lanes):
                out[out_start + j * out_step + k] = factors[k] * source[start + k * step + j]
    for i in range(n - n % lanes, n):
        for j in range(m):
            out[out_start + j * out_step + i] = factors[i] * source[start + i * step + j]
