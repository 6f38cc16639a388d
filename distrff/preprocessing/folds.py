"""The fold that each row belongs to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.utils.random import row_hash

FOLD_RULES = ("hash", "contiguous")
HELD_OUT_STRIDE = 5  # a single held-out fold has one row in five


@dataclass(frozen=True)
class Folds:
    """Assignment of rows to `n_folds` folds: a function of a row's number and a seed, never of chunks.

    "hash" spreads rasters and periodic orders evenly over the folds. "contiguous" is for rows that resemble
    their neighbours, as in a raster or a time series. "one held out" has two folds: the first of five by the
    hash, and all other rows.
    """

    n_folds: int
    seed: int
    by: str
    n_rows: int  # of the whole dataset; only for contiguous folds
    first_row: int = 0  # the number of the dataset's first row, where others came before it

    def of_rows(self, start: int, stop: int) -> np.ndarray:
        """Fold of each row from `start` to before `stop`, int64."""
        return self.of_numbers(np.arange(start, stop))

    def of_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Fold of each of the rows of these numbers, int64."""
        rows = rows.astype(np.uint64) + np.uint64(self.first_row)
        if self.by == "contiguous":
            return (rows * np.uint64(self.n_folds) // np.uint64(self.n_rows)).astype(np.int64)
        if self.by == "one held out":
            return (row_hash(rows, self.seed) % np.uint64(HELD_OUT_STRIDE) > 0).astype(np.int64)
        return (row_hash(rows, self.seed) % np.uint64(self.n_folds)).astype(np.int64)
