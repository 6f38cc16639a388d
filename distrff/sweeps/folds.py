"""Which fold a row belongs to: a function of its number and a seed, never of chunks or order of reading."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FOLD_RULES = ("hash", "contiguous")


@dataclass(frozen=True)
class Folds:
    """Assignment of rows to `n_folds` folds.

    Parameters
    ----------
    n_folds : int
    seed : int
    by : {"hash", "contiguous"}
        The hash spreads raster or periodic orders evenly over the folds; contiguous
        folds are the ones to use when neighbouring rows must not be told apart.
    n_rows : int
        Of the whole dataset; contiguous folds need it.
    """

    n_folds: int
    seed: int
    by: str
    n_rows: int

    def of_rows(self, start: int, stop: int) -> np.ndarray:
        """Return the fold of each of the rows start … stop, int64."""
        rows = np.arange(start, stop, dtype=np.uint64)
        if self.by == "contiguous":
            return (rows * np.uint64(self.n_folds) // np.uint64(self.n_rows)).astype(np.int64)
        return (row_hash(rows, self.seed) % np.uint64(self.n_folds)).astype(np.int64)


def row_hash(rows: np.ndarray, seed: int) -> np.ndarray:
    """Return 64 well-mixed bits for each row number (SplitMix64's finaliser; Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = (rows + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed & (2**64 - 1))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
