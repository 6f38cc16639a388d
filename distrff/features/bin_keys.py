"""Which bin of each of many random grids a row falls into, as one number of 64 bits a grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from distrff.compiled import compiled, in_own_thread
from distrff.kernels import Kernel, draw_pitches
from distrff.random_streams import stream

_TILE = 256  # rows, whose columns and sums stay in the first-level cache
_FARTHEST = float(2**30)


@dataclass(frozen=True, eq=False)
class Grids:
    """Random grids: row x falls in bin ⌊(x_j − shift_j)/pitch_j⌋ of column j, for each grid.

    Parameters
    ----------
    steps, offsets : ndarrays of shape (n_grids, n_columns), float64
        1/pitch, and −shift/pitch in (−1, 0].
    multipliers : ndarray of shape (2, n_grids, n_columns), int32
        Odd, of the multilinear hash of the columns' bins.
    """

    steps: np.ndarray
    offsets: np.ndarray
    multipliers: np.ndarray

    @classmethod
    def draw(cls, kernel: Kernel, n_grids: int, n_columns: int, seed: int) -> Grids:
        """Draw pitches from p·k″(p) and shifts uniform on [0, pitch]; the first grids are those of fewer."""
        shape = (n_grids, n_columns)
        pitches = draw_pitches(kernel, n_grids, n_columns, lambda name: stream(seed, "pitches", name))
        # A pitch that underflowed would be a bin for each number, as the smallest one is.
        steps = 1.0 / np.maximum(pitches, np.finfo(np.float32).tiny)
        offsets = -stream(seed, "shifts").random(shape)
        return cls(steps, offsets, _odd_numbers(seed, shape))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Grids:
        """Return the grids whose `arrays` these are."""
        return cls(arrays["steps"], arrays["offsets"], arrays["multipliers"])

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what is stored and sent."""
        return {"steps": self.steps, "offsets": self.offsets, "multipliers": self.multipliers}

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, some: slice) -> Grids:
        return Grids(self.steps[some], self.offsets[some], self.multipliers[:, some])

    def keys(self, X: np.ndarray) -> np.ndarray:
        """Return the keys of the bins of rows.

        Parameters
        ----------
        X : ndarray of shape (r, n_columns), float32 or float64
            Bins are found in its dtype; those beyond ±2³⁰ pitches are one.

        Returns
        -------
        ndarray of shape (n_grids, r), uint64
            Two multilinear hashes Σ a_j·bin_j mod 2³² side by side. Two bins whose numbers differ by
            multiples of 2^v in all columns, and of no more, have one key with probability 4^v·2⁻⁶² over the
            draw of the multipliers, or 0 if they differ in one column only.

        Notes
        -----
        r·n_grids·n_columns floors and two integer multiply-adds for each.
        """
        compile_keys()
        keys = np.empty((len(self), len(X)), np.uint64)
        steps, offsets = self.steps.astype(X.dtype), self.offsets.astype(X.dtype)
        first, second = self.multipliers
        _keys(X, steps, offsets, first, second, X.dtype.type(_FARTHEST), keys)
        return keys


def _odd_numbers(seed: int, shape: tuple[int, int]) -> np.ndarray:
    """Return two odd 32-bit numbers a grid and column, drawn grid by grid."""
    drawn = stream(seed, "multipliers").integers(-(2**30), 2**30, (shape[0], 2, shape[1]))
    return np.ascontiguousarray(np.moveaxis(2 * drawn + 1, 1, 0), np.int32)


@cache
def compile_keys() -> None:
    """Compile for both formats, or load from Numba's cache, before it is needed."""
    in_own_thread(_compile_keys)


def _compile_keys() -> None:
    for dtype in (np.float32, np.float64):
        one, odd = np.zeros((1, 1), dtype), np.ones((1, 1), np.int32)
        _keys(one, one, one, odd, odd, dtype(1), np.zeros((1, 1), np.uint64))


@compiled()
def _keys(X, steps, offsets, first, second, farthest, keys):
    """A tile of rows at a time, transposed, so that a grid's arithmetic on a column is that of vectors.

    Where a grid does not cut between the least and the greatest of a tile's numbers, one bin is that of all.
    """
    n_rows, n_columns = X.shape
    columns = np.empty((n_columns, _TILE), X.dtype)
    least, greatest = np.empty(n_columns, X.dtype), np.empty(n_columns, X.dtype)
    high, low = np.empty(_TILE, np.int32), np.empty(_TILE, np.int32)
    for start in range(0, n_rows, _TILE):
        n = min(_TILE, n_rows - start)
        for i in range(n):
            for j in range(n_columns):
                columns[j, i] = X[start + i, j]
        for j in range(n_columns):
            least[j], greatest[j] = columns[j, :n].min(), columns[j, :n].max()
        for g in range(len(steps)):
            high[:] = 0
            low[:] = 0
            for j in range(n_columns):
                step, offset, a, b, column = steps[g, j], offsets[g, j], first[g, j], second[g, j], columns[j]
                lowest = max(min(np.floor(least[j] * step + offset), farthest), -farthest)
                if lowest == max(min(np.floor(greatest[j] * step + offset), farthest), -farthest):
                    shared = np.int32(lowest)
                    for i in range(_TILE):
                        high[i] += a * shared
                        low[i] += b * shared
                    continue
                for i in range(_TILE):
                    place = np.floor(column[i] * step + offset)
                    place = max(min(place, farthest), -farthest)
                    bin_ = np.int32(place)
                    high[i] += a * bin_
                    low[i] += b * bin_
            for i in range(n):
                keys[g, start + i] = (np.uint64(np.uint32(high[i])) << np.uint64(32)) | np.uint64(
                    np.uint32(low[i])
                )
