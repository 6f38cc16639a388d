"""The sweep that looks for rows equal to known ones, with the opposite label."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.engine.reduction import Arrays, Reduction
from distrff.io.rows import RowBlock, Rows
from distrff.preprocessing.targets import ClassTargets
from distrff.utils.arrays import dense_rows

NONE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class TwinReduction(Reduction):
    """Reduction to the first row that equals each known row but has the opposite label of one machine.

    Parameters
    ----------
    targets : ClassTargets
    output : int
        Which of the targets the machine is for.
    n_known : int
    tile_rows : int

    Notes
    -----
    Shipped are `X` of shape (n_known, d), as the rows are read, and `label` of shape (n_known,), ±1.
    The result is an int64 array of row numbers, `NONE` where there is no such row; rows of weight 0
    do not count.
    """

    targets: ClassTargets
    output: int
    n_known: int
    tile_rows: int

    def size_bytes(self, n_rows: int) -> int:
        return 8 * self.n_known

    def zero(self) -> np.ndarray:
        return np.full(self.n_known, NONE)

    def merge(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.minimum(first, second)

    def update(self, found: np.ndarray, rows: Rows, arrays: Arrays) -> np.ndarray:
        known: dict[tuple[bytes, bool], list[int]] = {}
        X_known = dense_rows(arrays["X"])
        for j, (key, label) in enumerate(zip(_keys(X_known), arrays["label"], strict=True)):
            known.setdefault((key, bool(label < 0)), []).append(j)
        columns = [np.unique(column) for column in X_known.T]
        for block in rows.tiles(self.tile_rows):
            self._find(found, block, known, columns)
        return found

    def _find(
        self,
        found: np.ndarray,
        block: RowBlock,
        known: dict[tuple[bytes, bool], list[int]],
        columns: list[np.ndarray],
    ) -> None:
        """Note the twins among the rows of a tile."""
        s = self.targets.row_weights(block.y, block.sample_weight)
        X = dense_rows(block.X)
        rows = np.arange(len(X)) if s is None else np.flatnonzero(s > 0)
        for j, values in enumerate(columns):  # few rows are left to be compared whole
            rows = rows[np.isin(X[rows, j], values)]
        labels = self.targets.encode(block.y)[rows, self.output]
        for row, key, label in zip(rows, _keys(X[rows]), labels, strict=True):
            for j in known.get((key, bool(label > 0)), ()):
                found[j] = min(found[j], block.start + int(row))


def first_pair(number: np.ndarray, twin: np.ndarray) -> tuple[int, int] | None:
    """Return known rows' numbers and their twins' as the pair whose later row comes first, ascending.

    None if no row has a twin.
    """
    has_twin = np.flatnonzero(twin != NONE)
    if not len(has_twin):
        return None
    later = np.maximum(number, twin)[has_twin]
    j = has_twin[later.argmin()]
    return int(min(number[j], twin[j])), int(max(number[j], twin[j]))


def _keys(X: np.ndarray) -> list[bytes]:
    """Return one key a row, the same for equal numbers: −0 is 0."""
    return [row.tobytes() for row in np.ascontiguousarray(X) + X.dtype.type(0)]
