"""Made-up rows of a known function with known noise, so that the best possible score is known as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr

from distrff.kernels.stationary import Gaussian
from distrff.utils.random import stream

# Four factors behind the columns and phases of this variance: a straight line explains about a
# fifth of such a function's variance, and two thousand random features more than 99 % of it.
_N_FACTORS = 4
_PHASE_VARIANCE = 3.0
_N_COSINES = 128

_MAX_BLOCK_ROWS = 2**15
_BLOCK_BYTES = 2**24
_STRIP_ROWS = 2**12  # of phases: they stay in a core's cache


class KnownBlock(NamedTuple):
    """Consecutive rows: X (r, d) float32, the true function's values f (r,), and y = f + noise (r,)."""

    start: int
    X: np.ndarray
    f: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class KnownTruth:
    """A random function of a Gaussian kernel, seen through noise.

    x is n_columns mixtures of four hidden factors, x = Bᵀg with g ~ N(0, I) and B's columns
    of length 1, so each column is N(0, 1) and, as in most tables, they are far from
    independent. The function is f(x) ∝ Σ_j cos(ω_j·x + b_j) + c over 128 frequencies
    ω_j ~ N(0, ℓ⁻²I), the spectral measure of `Gaussian(ℓ)`, with ℓ² = n_columns/3; it is
    shifted and scaled to mean 0 and deviation 1 on rows of its own. Then
    y = f(x) + N(0, noise²), and the least possible expected squared error is noise².
    """

    n_columns: int
    noise: float = 0.3
    seed: int = 0

    @property
    def length_scale(self) -> float:
        """The width ℓ of the kernel that the function is drawn from."""
        return float(np.sqrt(self.n_columns / _PHASE_VARIANCE))

    @property
    def block_rows(self) -> int:
        """Rows that are drawn together, from one stream: a power of two, at most 16 MiB of float64."""
        fitting = _BLOCK_BYTES // (8 * self.n_columns)
        return min(_MAX_BLOCK_ROWS, 1 << max(0, fitting.bit_length() - 1))

    def blocks(self, name: str, n_rows: int) -> Iterator[KnownBlock]:
        """Yield the first `n_rows` rows of the sequence called `name`, independent of others."""
        for index, start in enumerate(range(0, n_rows, self.block_rows)):
            # A block has a stream of its own and is drawn in full, so that a row does not depend on `n_rows`.
            X = self._inputs(stream(self.seed, "rows", name, index), self.block_rows)
            f = self.function(X)
            noise = stream(self.seed, "noise", name, index).standard_normal(self.block_rows)
            y = f + self.noise * noise
            size = min(self.block_rows, n_rows - start)
            yield KnownBlock(start, X[:size], f[:size], y[:size])

    def function(self, X: np.ndarray) -> np.ndarray:
        """F, float64 of shape (n,), of rows X of shape (n, n_columns)."""
        shift, scale = self._mean_and_deviation
        return (self._sum_of_cosines(X) - shift) / scale

    def _inputs(self, rng: np.random.Generator, n_rows: int) -> np.ndarray:
        factors = rng.standard_normal((n_rows, len(self._mixture)))
        return (factors @ self._mixture).astype(np.float32)

    @cached_property
    def _mixture(self) -> np.ndarray:
        n_factors = min(_N_FACTORS, self.n_columns)
        B = stream(self.seed, "mixture").standard_normal((n_factors, self.n_columns))
        # Columns of length 1, so that each column of X has variance 1.
        return B / np.linalg.norm(B, axis=0)

    @cached_property
    def _waves(self) -> tuple[np.ndarray, np.ndarray]:
        """Frequencies of shape (n_columns, 128) and phases of shape (128,)."""
        W = Gaussian(self.length_scale).frequencies(
            _N_COSINES, self.n_columns, partial(stream, self.seed, "true frequencies")
        )
        return W, stream(self.seed, "true phases").uniform(0.0, 2 * np.pi, _N_COSINES)

    @cached_property
    def _mean_and_deviation(self) -> tuple[float, float]:
        # Rows of their own stream: the function must not depend on how many rows are asked for.
        values = self._sum_of_cosines(self._inputs(stream(self.seed, "reference rows"), self.block_rows))
        return float(values.mean()), float(values.std())

    def _sum_of_cosines(self, X: np.ndarray) -> np.ndarray:
        W, phases = self._waves
        values = np.empty(len(X))
        for start in range(0, len(X), _STRIP_ROWS):
            strip = slice(start, start + _STRIP_ROWS)
            # f is a function of X as it is stored, in float32, or a model could not reach it.
            values[strip] = np.cos(X[strip].astype(np.float64) @ W + phases).sum(axis=1)
        return values


# Rows of a known truth as a Zarr dataset, written chunk by chunk.


def write_known_rows(folder: Path, truth: KnownTruth, name: str, n_rows: int) -> float:
    """Write a Zarr group with X (float32), y and the true f (both float64); return the RMSE of f."""
    description = {"rows": name, "noise": truth.noise, "seed": truth.seed, "length_scale": truth.length_scale}
    group = zarr.create_group(folder, zarr_format=3, attributes={"known_truth": description})
    # A block is a chunk, so that memory does not grow with the rows.
    chunk = min(n_rows, truth.block_rows)
    kinds: dict[str, tuple[tuple[int, ...], Any]] = {
        "X": ((truth.n_columns,), np.float32),
        "f": ((), np.float64),
        "y": ((), np.float64),
    }
    # Random digits do not compress.
    arrays = {
        key: group.create_array(
            key, shape=(n_rows, *columns), chunks=(chunk, *columns), dtype=dtype, compressors=None
        )
        for key, (columns, dtype) in kinds.items()
    }
    squares = 0.0
    for block in truth.blocks(name, n_rows):
        rows = slice(block.start, block.start + len(block.X))
        for key, array in arrays.items():
            array[rows] = getattr(block, key)
        # The noise as drawn: on so many rows its RMSE differs a little from `noise`.
        squares += float(np.square(block.y - block.f).sum())
    return float(np.sqrt(squares / n_rows))
