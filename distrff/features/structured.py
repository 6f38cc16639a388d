"""Structured frequencies: products with rows are Hadamard transforms, or a sketch and a small product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numba.np.arrayobj import make_array
from scipy.sparse import csr_matrix, issparse

from distrff.errors import InputError
from distrff.features.fitted import MapCost
from distrff.features.trigonometry import flat_elements
from distrff.kernels.base import Kernel
from distrff.utils.jit import ByDtype, compiled, compiles_once, scratch
from distrff.utils.random import PathStreams, stream


class Interleaved:
    """Several projections, as `FourierMap` takes them; `order` holds the one of each frequency."""

    def __init__(self, parts: Sequence[Any], order: np.ndarray) -> None:
        self.n_frequencies = len(order)
        self._parts = [(part, np.flatnonzero(order == i)) for i, part in enumerate(parts)]

    def frequencies(self, dtype: Any = np.float64) -> np.ndarray:
        drawn = [(part.frequencies(dtype), members) for part, members in self._parts]
        W = np.empty((len(drawn[0][0]), self.n_frequencies), dtype)
        for W_part, members in drawn:
            W[:, members] = W_part
        return W

    def project(self, X: Any, theta: np.ndarray) -> None:
        for part, members in self._parts:
            # Under another name than the caller's "phases", which theta itself is.
            phases = scratch("phases of a part", len(theta), len(members), theta.dtype)
            part.project(X, phases)
            theta[:, members] = phases

    def largest_phases(self, magnitude: np.ndarray) -> np.ndarray:
        bound = np.empty(self.n_frequencies)
        for part, members in self._parts:
            bound[members] = part.largest_phases(magnitude)
        return bound


# The fast Walsh-Hadamard transform of many rows at once, rows last.
#
# A tile has a row for each of d' = 2^k coordinates and a column for each row of data. So a butterfly is an
# addition and a subtraction of whole vectors, without a shuffle, whatever its distance. A pass of radix 8
# does three levels of the recursion H_2n = [[H_n, H_n], [H_n, −H_n]] for one read and write of the tile. The
# vectors are written out for the compiler: it would not vectorise eight loads and eight stores of the same
# array. Every operation is an IEEE addition or multiplication, in an order that depends on d' alone: the
# values of a row of data have the same bits whatever rows are transformed with it.
#
# In plain Numba, four slices at a time, features had the same bits at .5 to .65 of this speed in float32 and
# .6 to .79 in float64 (d = 64 to 1024): the compiler takes half of a 512-bit vector, and checks for aliases.

RADIX = 8

# Numbers in a vector of 512 bits, which the compiler splits where the processor's registers are shorter.
_LANES = {types.float32: 16, types.float64: 8}
LANES = 16


def padded_size(n_columns: int) -> int:
    """d' = 2^k, the smallest size of a transform that takes so many columns."""
    return max(RADIX, 1 << (n_columns - 1).bit_length())


def _vectors(context, builder, array_type, array, offsets):
    """The vector pointers at these elements of an array."""
    data = make_array(array_type)(context, builder, array).data
    pointer = ir.VectorType(context.get_data_type(array_type.dtype), _LANES[array_type.dtype]).as_pointer()
    return [builder.bitcast(cgutils.gep_inbounds(builder, data, k), pointer) for k in offsets]


def _load(builder, pointers, align):
    loaded = [builder.load(pointer) for pointer in pointers]
    for load in loaded:
        # Tiles are aligned to their elements. Without a word LLVM presumes the 64 bytes of a vector, and the
        # load faults.
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
    # LLVM's idiom for a broadcast, which its backends recognise as one instruction.
    one = builder.insert_element(
        ir.Constant(vector_type, ir.Undefined), value, ir.Constant(ir.IntType(32), 0)
    )
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), lanes), None)
    return builder.shuffle_vector(one, ir.Constant(vector_type, ir.Undefined), zeros)


def _butterflies(builder, x):
    """H·x for a list of 2, 4 or 8 vectors."""
    half = 1
    while half < len(x):
        for i in range(len(x)):
            if not i & half:
                a, b = x[i], x[i + half]
                # Without fast-math flags: the compiler may neither reorder nor contract them, and bits stay.
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
    """out[j:j+8] ← H₈·(diagonal·source[order])[j:j+8], for one vector of data rows from r on."""

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

        # All eight are loaded before any is stored, so with the order 0, 1, 2, … it works in place.
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
    """Transpose a square of the size of a vector, with row k of the source times factors[i + k]."""

    def emit(context, builder, signature, arguments):
        source_array, first, distance, out_array, out_first, out_distance, factor_array, row = arguments
        lanes, align = _LANES[source.dtype], source.dtype.bitwidth // 8
        offsets = _steps(builder, first, distance, lanes)
        x = _load(builder, _vectors(context, builder, source, source_array, offsets), align)
        data = make_array(factors)(context, builder, factor_array).data
        ones = _steps(builder, row, ir.Constant(row.type, 1), lanes)
        scalars = [builder.load(cgutils.gep_inbounds(builder, data, k)) for k in ones]
        x = [builder.fmul(v, _splat(builder, f, lanes)) for v, f in zip(x, scalars, strict=True)]
        # Each of log2(lanes) rounds interleaves the halves of the list and rotates the bits of the index.
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
    """out ← H·(diagonal·source[order]) for flat tiles of d' rows; in place if the order is 0, 1, 2, …

    H is Sylvester's, H_ij = (−1)^(bits that i and j share), unnormalised: HᵀH = d'·I. `n_rows` is a multiple
    of 16, d' a power of two from 8 on.
    """
    size, lanes = diagonal.size, _lanes_of(source)
    for j in range(0, size, RADIX):
        # The permutation, the diagonal and the first three levels take one read and one write of the tile
        # together.
        for r in range(0, n_rows, lanes):
            _first_pass_8(source, out, order, diagonal, j, n_rows, r)
    half = RADIX
    while half < size:
        # A size that is no power of 8 has a last pass of radix 2 or 4.
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
            # What does not fill a square goes entry by entry, by the same product, and so to the same bits.
            for k in range(i, i + lanes):
                out[out_start + j * out_step + k] = factors[k] * source[start + k * step + j]
    for i in range(n - n % lanes, n):
        for j in range(m):
            out[out_start + j * out_step + i] = factors[i] * source[start + i * step + j]


# SORF and Fastfood: frequencies for which the product with the rows is a few Hadamard transforms.

MIN_SORF_COLUMNS = 16

# Data rows of a tile: one cache line of float32. With more, tiles outgrow the caches and were slower.
_TILE_ROWS = LANES


def sorf_arrays(
    kernel: Kernel, n_frequencies: int, n_columns: int, rng_of: PathStreams
) -> dict[str, np.ndarray]:
    """Draw structured orthogonal frequencies (Yu et al. 2016, "Orthogonal random features").

    A block of d' = 2^k ≥ d directions is H D₁ H D₂ H D₃ / d'^(3/2) with random signs D: the directions are
    exactly orthogonal, and each is nearly uniform. The radii are independent draws of the measure's own
    radius in d' dimensions; rows are padded with zeros. Raises InputError below 16 columns, where three
    diagonals of signs are far from a random rotation.
    """
    if n_columns < MIN_SORF_COLUMNS:
        raise InputError(
            f"sampling='sorf' needs at least {MIN_SORF_COLUMNS} columns for a small bias, got {n_columns}; "
            f"use sampling='orthogonal', which has none and is as fast here"
        )
    size = padded_size(n_columns)
    # A stream for each block, so that leading frequencies do not depend on how many there are.
    signs = [rng_of("signs", b).integers(0, 2, (3, size)) for b in range(-(-n_frequencies // size))]
    return {
        "signs": (2 * np.reshape(signs, (-1, 3, size)) - 1).astype(np.int8),
        "radii": kernel.radii(n_frequencies, size, rng_of),
    }


def fastfood_arrays(
    kernel: Kernel, n_frequencies: int, n_columns: int, rng_of: PathStreams
) -> dict[str, np.ndarray]:
    """Draw Fastfood's frequencies (Le, Sarlós and Smola 2013, "Fastfood"): blocks S H G Π H B.

    B holds random signs, Π is a permutation, G holds normal numbers and S gives every row a radius of the
    measure in d' dimensions. H B is a rotation up to scale, and a row of H G a normal vector, so each single
    frequency has exactly the measure's distribution; the frequencies of a block depend on each other.
    """
    size = padded_size(n_columns)
    n_blocks = -(-n_frequencies // size)
    signs = [rng_of("signs", b).integers(0, 2, size) for b in range(n_blocks)]
    normal = [rng_of("normal", b).standard_normal(size) for b in range(n_blocks)]
    order = [rng_of("permutation", b).permutation(size) for b in range(n_blocks)]
    return {
        "signs": (2 * np.reshape(signs, (-1, size)) - 1).astype(np.int8),
        "normal": np.reshape(normal, (-1, size)),
        "order": np.reshape(order, (-1, size)).astype(np.int32),
        "radii": kernel.radii(n_frequencies, size, rng_of),
    }


def hadamard_cost(sampling: str, n_frequencies: int, n_columns: int) -> MapCost:
    """The cost of SORF or Fastfood; the last block is always computed as a whole.

    A transform with its diagonal takes log₂ d' + 1 flops for each number of a block, the scale one flop for
    each frequency.
    """
    size = padded_size(n_columns)
    n_transforms = 3 if sampling == "sorf" else 2
    in_blocks = -(-n_frequencies // size) * size
    flops = in_blocks * n_transforms * (np.log2(size) + 1) + n_frequencies
    return MapCost(
        feature_flops=float(flops / n_frequencies),
        fixed_numbers=3.0 * size,  # a last block that is not full
        feature_numbers=3.0 + 2.0,  # three diagonals, or two and a permutation; radii and scale
    )


def sorf(arrays: Mapping[str, np.ndarray], widths: np.ndarray) -> HadamardProducts:
    """The projection of `sorf_arrays`."""
    diagonals = arrays["signs"].astype(np.float64)
    size = diagonals.shape[2]
    diagonals[:, 0, : len(widths)] /= widths
    # Three transforms take no permutation, but the loop's argument needs one.
    order = np.arange(size)
    # A row of each of the three unnormalised H has the norm √d'.
    return HadamardProducts(diagonals, order[None, :], arrays["radii"], arrays["radii"] / size**1.5, widths)


def fastfood(arrays: Mapping[str, np.ndarray], widths: np.ndarray) -> HadamardProducts:
    """The projection of `fastfood_arrays`."""
    diagonals = np.stack([arrays["signs"], arrays["normal"]], axis=1).astype(np.float64)
    size, radii = diagonals.shape[2], arrays["radii"]
    diagonals[:, 0, : len(widths)] /= widths
    # Π·H·B is √d' times an orthogonal matrix, and a row of H·G has the norm ‖g‖.
    norms = np.sqrt(size) * np.linalg.norm(arrays["normal"], axis=1)
    scale = radii / np.repeat(norms, size)[: len(radii)]
    return HadamardProducts(diagonals, arrays["order"].astype(np.intp), radii, scale, widths)


class HadamardProducts:
    """Blocks of d' phases: scale · H diag(…) Π H diag(…) x, tile by tile of rows.

    The `diagonals` of each block, (n_blocks, n_transforms, d'), are applied first to last; the first one
    includes 1/widths. `orders` holds the permutation of each block before the second of two transforms, and
    is not used for three. `radii` are ‖diag(widths)·ω‖; `scale` makes them of the unnormalised product.
    """

    def __init__(
        self,
        diagonals: np.ndarray,
        orders: np.ndarray,
        radii: np.ndarray,
        scale: np.ndarray,
        widths: np.ndarray,
    ) -> None:
        _check_blocks(diagonals, orders, scale, widths)
        _compile_loops()
        self.n_frequencies = len(scale)
        self._diagonals, self._scale = ByDtype(diagonals), ByDtype(scale)
        self._orders, self._radii, self._widths = orders, radii, widths

    def frequencies(self, dtype: Any = np.float64) -> np.ndarray:
        W = np.empty((len(self._widths), self.n_frequencies))
        # The phases of unit vectors are the frequencies; there is no matrix to read them from.
        self.project(np.eye(len(self._widths)), W)
        return W.astype(dtype, copy=False)

    def project(self, X: np.ndarray, theta: np.ndarray) -> None:
        if not theta.size:
            return
        diagonals, scale = self._diagonals[X.dtype], self._scale[X.dtype]
        # Three: the rows, which every block reads anew, its work, and the permuted work.
        tiles = scratch("hadamard tiles", 3, _TILE_ROWS * diagonals.shape[2], X.dtype)
        # Read-only rows are copied: Numba would compile the loop once more for their type.
        rows = np.require(X, requirements=["C", "W"]).reshape(-1)
        _phases(rows, *X.shape, diagonals, self._orders, scale, *flat_elements(theta), *tiles)

    def largest_phases(self, magnitude: np.ndarray) -> np.ndarray:
        # Cauchy and Schwarz in columns divided by their widths. Zeros that pad a row add nothing to its norm.
        return self._radii * np.linalg.norm(magnitude / self._widths)


def _check_blocks(diagonals: np.ndarray, orders: np.ndarray, scale: np.ndarray, widths: np.ndarray) -> None:
    """Raise InputError for arrays, of a forged model, beyond whose ends the compiled loops would read."""
    n_blocks, n_transforms, size = diagonals.shape
    n_orders = n_blocks if n_transforms == 2 else 1
    fit = (
        n_transforms in (2, 3)
        and size == padded_size(len(widths))
        and (n_blocks - 1) * size < len(scale) <= n_blocks * size
        and orders.shape == (n_orders, size)
    )
    if not fit or (np.sort(orders, axis=1) != np.arange(size)).any():
        raise InputError("the arrays of structured frequencies do not fit together")


@compiles_once
def _compile_loops() -> None:
    for dtype in (np.float32, np.float64):
        diagonals, one = np.ones((1, 2, 8), dtype), np.ones(1, dtype)
        tiles = np.zeros((3, 8 * _TILE_ROWS), dtype)
        _phases(one, 1, 1, diagonals, np.arange(8)[None, :], one, np.zeros(1, dtype), 1, *tiles)


@compiled()
def _phases(X, n_rows, n_columns, diagonals, orders, scale, theta, theta_step, tile, work, permuted):
    n_blocks, n_transforms, size = diagonals.shape
    ones, in_order = np.ones(_TILE_ROWS, X.dtype), np.arange(size)
    # The coordinates that pad a row are zeroed once: each tile of rows writes the others alone. In a last
    # tile that is not full, rows of the one before are transformed along, and not written out.
    tile[n_columns * _TILE_ROWS :] = 0.0
    for start in range(0, n_rows, _TILE_ROWS):
        n = min(_TILE_ROWS, n_rows - start)
        scaled_transpose(X, start * n_columns, n_columns, n, n_columns, ones, tile, 0, _TILE_ROWS)
        for b in range(n_blocks):
            signed_transform(tile, work, in_order, diagonals[b, 0], _TILE_ROWS)
            if n_transforms == 2:
                # Not in place: a permutation would read what was overwritten.
                signed_transform(work, permuted, orders[b], diagonals[b, 1], _TILE_ROWS)
            else:
                signed_transform(work, work, in_order, diagonals[b, 1], _TILE_ROWS)
                signed_transform(work, work, in_order, diagonals[b, 2], _TILE_ROWS)
            first = b * size
            m, factors = min(size, scale.size - first), scale[first : first + size]
            result = permuted if n_transforms == 2 else work
            scaled_transpose(
                result, 0, _TILE_ROWS, m, n, factors, theta, start * theta_step + first, theta_step
            )


# Frequencies for very wide sparse rows: a CountSketch to few columns, then dense frequencies there.

SKETCH_COLUMNS = 2048
"""B: a constant, as leading frequencies must be those of the smaller map."""

_SKETCH_BYTES = 2**22


def sketch_arrays(
    kernel: Kernel, n_frequencies: int, n_columns: int, rng_of: PathStreams
) -> dict[str, np.ndarray]:
    """Draw ω = diag(widths)⁻¹ Sᵀg: S the CountSketch to B columns, g of the measure in B dimensions.

    Every column goes to one of B buckets with a random sign (Kapralov, Potluru and Woodruff 2016, "How
    to fake multiply by a Gaussian matrix").
    """
    directions = rng_of("directions").standard_normal((n_frequencies, SKETCH_COLUMNS))
    radii = kernel.radii(n_frequencies, SKETCH_COLUMNS, rng_of)
    # A normal vector has a uniform direction; its length is replaced by a radius of the measure.
    directions *= (radii / np.linalg.norm(directions, axis=1))[:, None]
    return {
        "buckets": rng_of("buckets").integers(0, SKETCH_COLUMNS, n_columns, dtype=np.int32),
        "signs": (2 * rng_of("signs").integers(0, 2, n_columns) - 1).astype(np.int8),
        "sketched": np.ascontiguousarray(directions.T),
    }


def sketch_cost(n_columns: int) -> MapCost:
    """The cost of a sketch and a product with its columns, for each frequency."""
    return MapCost(
        row_flops=2.0 * n_columns,
        feature_flops=2.0 * SKETCH_COLUMNS,
        fixed_numbers=2.0 * n_columns,  # buckets, and signs by widths
        feature_numbers=2.0 * SKETCH_COLUMNS,  # as drawn and as used
    )


def gaussian_sketch_error(squared_distance: Any) -> Any:
    """A bound of |E⟨z(x), z(x')⟩ − k(x − x')| for the Gaussian kernel under a CountSketch.

    `squared_distance` is ‖δ‖², of coordinates divided by their widths, as a number or an array.
    For given S the mean over g is exp(−t/2) with t = ‖Sδ‖². S preserves squared norms on average,
    E t = ‖δ‖², and Var t ≤ 2‖δ‖⁴/B. Taylor's remainder with a second derivative of at most ¼ gives

        |bias| ≤ ¼·½·Var t ≤ ‖δ‖⁴/(4B).

    One S serves all frequencies: the standard deviation due to S, at most ½·√(2/B)·‖δ‖², does not fall
    with their number, and E(k̂ − k)² ≤ 1/(2m) + ‖δ‖⁴/(2B) for m frequencies of form cos_sin.
    """
    return np.square(squared_distance) / (4 * SKETCH_COLUMNS)


def sketched_rows(X: Any, seed: int) -> Any:
    """X Sᵀ, in CSR, for a CountSketch S to B columns: distances between rows stay nearly the same."""
    rng, d = stream(seed, "sketched rows"), X.shape[1]
    buckets, signs = rng.integers(0, SKETCH_COLUMNS, d), 2.0 * rng.integers(0, 2, d) - 1.0
    return csr_matrix(X) @ csr_matrix((signs, (np.arange(d), buckets)), shape=(d, SKETCH_COLUMNS))


class CountSketch:
    """X ↦ (X diag(widths)⁻¹ Sᵀ) G from `sketch_arrays`: O(nonzeros + B·m) a row, CSR or dense."""

    def __init__(self, arrays: Mapping[str, np.ndarray], widths: np.ndarray) -> None:
        buckets = arrays["buckets"]
        inside = buckets.shape == arrays["signs"].shape == widths.shape
        if not inside or (buckets < 0).any() or (buckets >= SKETCH_COLUMNS).any():
            # Those of a forged model: the compiled loops would read and write elsewhere.
            raise InputError("the buckets of a count sketch do not fit its columns")
        _compile_sketches()
        self._buckets = np.require(arrays["buckets"], requirements="W")
        self._factors, self._G = ByDtype(arrays["signs"] / widths), ByDtype(arrays["sketched"])
        self.n_frequencies = arrays["sketched"].shape[1]

    def frequencies(self, dtype: Any = np.float64) -> np.ndarray:
        W = self._G[np.float64][self._buckets]
        W *= self._factors[np.float64][:, None]
        return W.astype(dtype, copy=False)

    def project(self, X: Any, theta: np.ndarray) -> None:
        # A strip of few frequencies has many rows, whose sketches would take more than all else of a tile.
        n_rows = _SKETCH_BYTES // (SKETCH_COLUMNS * X.dtype.itemsize)
        for start in range(0, X.shape[0], n_rows):
            strip = slice(start, start + n_rows)
            self._project(X[strip], theta[strip])

    def _project(self, X: Any, theta: np.ndarray) -> None:
        sketch = scratch("sketch", X.shape[0], SKETCH_COLUMNS, X.dtype)
        # Scratch holds the rows of an earlier strip.
        sketch[...] = 0.0
        if issparse(X):
            _add_sparse(X.data, X.indices, X.indptr, self._buckets, self._factors[X.dtype], sketch)
        else:
            _add_dense(np.ascontiguousarray(X), self._buckets, self._factors[X.dtype], sketch)
        np.matmul(sketch, self._G[X.dtype], out=theta)

    def largest_phases(self, magnitude: np.ndarray) -> np.ndarray:
        largest = np.abs(self._factors[np.float64]) * magnitude
        # |ωᵀx| ≤ Σ_b |g_b|·Σ_{j in b} |x_j|/ℓ_j: columns of a bucket may all add up.
        in_buckets = np.bincount(self._buckets, weights=largest, minlength=SKETCH_COLUMNS)
        return in_buckets @ np.abs(self._G[np.float64])


@compiles_once
def _compile_sketches() -> None:
    for dtype in (np.float32, np.float64):
        zeros, bucket, starts = np.zeros((1, 1), dtype), np.zeros(1, np.int32), np.array([0, 1], np.int32)
        _add_dense(zeros, bucket, zeros[0], zeros.copy())
        _add_sparse(zeros[0], bucket, starts, bucket, zeros[0], zeros.copy())


@compiled()
def _add_dense(X, buckets, factors, sketch):
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            sketch[i, buckets[j]] += factors[j] * X[i, j]


@compiled()
def _add_sparse(data, indices, starts, buckets, factors, sketch):
    for i in range(sketch.shape[0]):
        for p in range(starts[i], starts[i + 1]):
            j = indices[p]
            sketch[i, buckets[j]] += factors[j] * data[p]


# What Fourier features need of each sampling.

DRAWS = {"sorf": sorf_arrays, "fastfood": fastfood_arrays, "countsketch": sketch_arrays}
PROJECTIONS: dict[str, Any] = {"sorf": sorf, "fastfood": fastfood, "countsketch": CountSketch}


def structured_cost(sampling: str, n_frequencies: int, n_columns: int) -> MapCost:
    """The cost of the phases of one component of a kernel."""
    if sampling == "countsketch":
        return sketch_cost(n_columns)
    return hadamard_cost(sampling, n_frequencies, n_columns)
