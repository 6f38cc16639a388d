"""Frequencies whose product with the rows is a few Hadamard transforms: SORF and Fastfood."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from distrff.compiled import compiled, in_own_thread
from distrff.errors import InputError
from distrff.features.hadamard import LANES, padded_size, scaled_transpose, signed_transform
from distrff.features.map_cost import MapCost
from distrff.features.projection import ByDtype, Projection
from distrff.features.trigonometry import flat_elements
from distrff.kernels import Kernel
from distrff.random_streams import PathStreams
from distrff.scratch import scratch

LEAST_SORF_COLUMNS = 16

# Rows of a tile: one line of the cache of float32. More were slower, as tiles leave the caches sooner.
_TILE_ROWS = LANES


def sorf_arrays(
    kernel: Kernel, n_frequencies: int, n_columns: int, rng_of: PathStreams
) -> dict[str, np.ndarray]:
    """Draw structured orthogonal frequencies (Yu et al. 2016, "Orthogonal random features").

    A block of d' = 2^k ≥ d directions is H D₁ H D₂ H D₃ / d'^(3/2) with random signs D: exactly
    orthogonal, and nearly uniform each. The radii are independent draws of the measure's own
    radius in d' dimensions, of which the rows fill the first d.

    Raises
    ------
    InputError
        Below 16 columns, where three signs are too few to be like a rotation.
    """
    if n_columns < LEAST_SORF_COLUMNS:
        raise InputError(
            f"sampling='sorf' needs at least {LEAST_SORF_COLUMNS} columns, where its bias is small, got "
            f"{n_columns}; use sampling='orthogonal', which has none and is as fast there"
        )
    size = padded_size(n_columns)
    signs = [rng_of("signs", b).integers(0, 2, (3, size)) for b in range(-(-n_frequencies // size))]
    return {
        "signs": (2 * np.reshape(signs, (-1, 3, size)) - 1).astype(np.int8),
        "radii": kernel.radii(n_frequencies, size, rng_of),
    }


def fastfood_arrays(
    kernel: Kernel, n_frequencies: int, n_columns: int, rng_of: PathStreams
) -> dict[str, np.ndarray]:
    """Draw Fastfood's frequencies (Le, Sarlós and Smola 2013, "Fastfood"): blocks S H G Π H B.

    B are random signs, Π is a permutation, G is normal and S gives every row a radius of the measure
    in d' dimensions. As H B is a rotation, and a row of H G a normal vector, each single frequency
    has exactly the measure's distribution; those of a block depend on each other.
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
    """Return the cost of one of the two, for each frequency; the last block is computed as a whole.

    A transform with its diagonal takes log₂ d' + 1 flops a number of the block, the scale one a frequency.
    """
    size = padded_size(n_columns)
    n_transforms = 3 if sampling == "sorf" else 2
    in_blocks = -(-n_frequencies // size) * size
    flops = in_blocks * n_transforms * (np.log2(size) + 1) + n_frequencies
    return MapCost(
        feature_flops=float(flops / n_frequencies),
        fixed_numbers=3.0 * size,  # of a last block that is not full
        feature_numbers=3.0 + 2.0,  # three diagonals, or two and a permutation; radii and scale
    )


def sorf(arrays: Mapping[str, np.ndarray], widths: np.ndarray) -> HadamardProducts:
    """Return the projection of `sorf_arrays`."""
    diagonals = arrays["signs"].astype(np.float64)
    size = diagonals.shape[2]
    diagonals[:, 0, : len(widths)] /= widths
    order = np.arange(size)
    return HadamardProducts(diagonals, order[None, :], arrays["radii"], arrays["radii"] / size**1.5, widths)


def fastfood(arrays: Mapping[str, np.ndarray], widths: np.ndarray) -> HadamardProducts:
    """Return the projection of `fastfood_arrays`."""
    diagonals = np.stack([arrays["signs"], arrays["normal"]], axis=1).astype(np.float64)
    size, radii = diagonals.shape[2], arrays["radii"]
    diagonals[:, 0, : len(widths)] /= widths
    norms = np.sqrt(size) * np.linalg.norm(arrays["normal"], axis=1)
    scale = radii / np.repeat(norms, size)[: len(radii)]
    return HadamardProducts(diagonals, arrays["order"].astype(np.intp), radii, scale, widths)


class HadamardProducts(Projection):
    """Blocks of d' phases: scale · H diag(…) Π H diag(…) x, tile by tile of rows.

    Parameters
    ----------
    diagonals : ndarray of shape (n_blocks, n_transforms, d')
        Applied first to last; the first one holds 1/widths.
    orders : ndarray of shape (n_blocks, d'), integer
        Permutation before the second transform, with two transforms; with three there is none.
    radii, scale : ndarray of shape (n_frequencies,)
        ‖diag(widths)·ω‖, and the factor of the unnormalised product that gives it.
    widths : ndarray of shape (n_columns,)
    """

    def __init__(
        self,
        diagonals: np.ndarray,
        orders: np.ndarray,
        radii: np.ndarray,
        scale: np.ndarray,
        widths: np.ndarray,
    ) -> None:
        _compile_loops()
        self.n_frequencies = len(scale)
        self._diagonals, self._scale = ByDtype(diagonals), ByDtype(scale)
        self._orders, self._radii, self._widths = orders, radii, widths

    def frequencies(self, dtype: Any = np.float64) -> np.ndarray:
        W = np.empty((len(self._widths), self.n_frequencies))
        self.project(np.eye(len(self._widths)), W)
        return W.astype(dtype, copy=False)

    def project(self, X: np.ndarray, theta: np.ndarray) -> None:
        if not theta.size:
            return
        diagonals, scale = self._diagonals[X.dtype], self._scale[X.dtype]
        tiles = scratch("hadamard tiles", 3, _TILE_ROWS * diagonals.shape[2], X.dtype)
        # What cannot be written is copied: a type of its own would be compiled for it.
        rows = np.require(X, requirements=["C", "W"]).reshape(-1)
        _phases(rows, *X.shape, diagonals, self._orders, scale, *flat_elements(theta), *tiles)

    def largest_phases(self, magnitude: np.ndarray) -> np.ndarray:
        return self._radii * np.linalg.norm(magnitude / self._widths)


@cache
def _compile_loops() -> None:
    in_own_thread(_try_loops)


def _try_loops() -> None:
    for dtype in (np.float32, np.float64):
        diagonals, one = np.ones((1, 2, 8), dtype), np.ones(1, dtype)
        tiles = np.zeros((3, 8 * _TILE_ROWS), dtype)
        _phases(one, 1, 1, diagonals, np.arange(8)[None, :], one, np.zeros(1, dtype), 1, *tiles)


@compiled()
def _phases(X, n_rows, n_columns, diagonals, orders, scale, theta, theta_step, tile, work, permuted):
    n_blocks, n_transforms, size = diagonals.shape
    ones, in_order = np.ones(_TILE_ROWS, X.dtype), np.arange(size)
    tile[n_columns * _TILE_ROWS :] = 0.0
    for start in range(0, n_rows, _TILE_ROWS):
        n = min(_TILE_ROWS, n_rows - start)
        scaled_transpose(X, start * n_columns, n_columns, n, n_columns, ones, tile, 0, _TILE_ROWS)
        for b in range(n_blocks):
            signed_transform(tile, work, in_order, diagonals[b, 0], _TILE_ROWS)
            if n_transforms == 2:
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
