"""The question of random binning to all rows: which bins are occupied, and by how many rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.errors import InputError
from distrff.features.bin_keys import Grids
from distrff.features.bin_tables import BinCounts
from distrff.features.row_question import Ask

_STRIP = 2**13  # rows
_MOST_BINS_A_PASS = 2**21
_MOST_GRIDS_A_PASS = 64
_MOST_BINS = 2**31 - 1  # the columns of Z are numbered by 32 bits
_SLOT_BYTES = 16


@dataclass(frozen=True, eq=False)
class BinQuestion:
    """How many rows of positive weight are in each bin of some grids.

    Parameters
    ----------
    grids : Grids
    label : str
    """

    grids: Grids
    label: str

    def zero(self) -> BinCounts:
        return BinCounts.empty(len(self.grids))

    def update(
        self, answer: BinCounts, start: int, X: np.ndarray, sample_weight: np.ndarray | None
    ) -> BinCounts:
        if sample_weight is not None:
            X = X[sample_weight > 0]
        for first in range(0, len(X), _STRIP):
            answer = answer.with_rows(self.grids.keys(X[first : first + _STRIP]))
        return answer

    def merge(self, first: BinCounts, second: BinCounts) -> BinCounts:
        return first.merge(second)

    def size_bytes(self, n_rows: int) -> int:
        return _SLOT_BYTES * len(self.grids) * 4 * (n_rows + _STRIP)


def fewest_passes(n_grids: int) -> int:
    """Return the passes over the rows that `occupied_bins` needs at least."""
    return 1 + -(-(n_grids - 1) // _MOST_GRIDS_A_PASS)


def occupied_bins(grids: Grids, ask: Ask) -> dict[str, np.ndarray]:
    """Return `keys` and `counts` of the occupied bins, grid by grid with ascending keys, and their `ends`.

    The first pass over the rows is for one grid; what it finds tells how many grids one later pass can hold.
    Whoever is asked hears before each pass how many bins there are already, and may refuse them.

    Raises
    ------
    InputError
        If there are more bins than can be numbered.
    """
    found: list[tuple[np.ndarray, np.ndarray]] = []
    while len(found) < len(grids):
        first, n_bins = len(found), sum(len(keys) for keys, _ in found)
        n = 1 if not found else max(1, min(_MOST_GRIDS_A_PASS, _MOST_BINS_A_PASS * first // max(1, n_bins)))
        last = min(len(grids), first + n)
        label = f"bins of grid {first + 1}" + (f" to {last}" if last > first + 1 else "")
        question = BinQuestion(grids[first:last], label)
        found += ask(question, least_features=n_bins + len(grids) - first).sorted()
        n_bins = sum(len(keys) for keys, _ in found)
        if n_bins * len(grids) > _MOST_BINS * len(found):
            raise InputError(
                f"{len(found)} of {len(grids)} grids have {n_bins:,} occupied bins already, and no more than "
                f"{_MOST_BINS:,} can be numbered; use n_bins=, fewer grids, or larger length scales"
            )
    keys, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return {"keys": keys, "counts": counts, "ends": np.cumsum([len(keys) for keys, _ in found])}
