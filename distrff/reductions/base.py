"""Which fold a row belongs to: a function of its number and a seed, never of chunks or order of reading."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.utils.random import row_hash

FOLD_RULES = ("hash", "contiguous")
# The share of the rows that one fold alone holds out is that of one in five.
HELD_OUT_ONE_IN = 5


@dataclass(frozen=True)
class Folds:
    """Assignment of rows to `n_folds` folds.

    Parameters
    ----------
    n_folds : int
    seed : int
    by : {"hash", "contiguous", "one held out"}
        The hash spreads raster or periodic orders evenly over the folds; contiguous
        folds are the ones to use when neighbouring rows must not be told apart.
        "one held out" has two folds: the first of five by the hash, and all other rows.
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
        if self.by == "one held out":
            return (row_hash(rows, self.seed) % np.uint64(HELD_OUT_ONE_IN) > 0).astype(np.int64)
        return (row_hash(rows, self.seed) % np.uint64(self.n_folds)).astype(np.int64)
