"""Tables of occupied bins, by open addressing: how many rows are in each, and which column of Z is which."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from distrff.compiled import compiled, in_own_thread

_LEAST_SLOTS = 2**10
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ over the golden ratio, made odd


@dataclass(frozen=True, eq=False)
class BinCounts:
    """How many rows are in each occupied bin of some grids, a table each.

    Attributes
    ----------
    keys : list of ndarray of shape (n_slots,), uint64
    counts : list of ndarray of shape (n_slots,), int64
        0 where a slot is empty.
    used : ndarray of shape (n_grids,), int64
        Occupied slots, at most half of them.
    """

    keys: list[np.ndarray]
    counts: list[np.ndarray]
    used: np.ndarray

    @classmethod
    def empty(cls, n_grids: int) -> BinCounts:
        """Return the counts of no rows."""
        slots = [np.zeros(_LEAST_SLOTS, np.int64) for _ in range(n_grids)]
        return cls([empty.astype(np.uint64) for empty in slots], slots, np.zeros(n_grids, np.int64))

    def __reduce__(self) -> Any:
        """Travel as what is occupied: most slots are empty."""
        found = [(keys[n > 0], n[n > 0]) for keys, n in zip(self.keys, self.counts, strict=True)]
        return _tables_of, (found,)

    def with_rows(self, keys: np.ndarray) -> BinCounts:
        """Return these counts after adding rows whose keys are (n_grids, r)."""
        for g, mine in enumerate(keys):
            self._take(g, mine, np.broadcast_to(np.int64(1), mine.shape), mine.size)
        return self

    def merge(self, other: BinCounts) -> BinCounts:
        """Return the counts of both; neither is changed."""
        both = BinCounts.empty(len(self.used))
        for g, n in enumerate((self.used + other.used).tolist()):
            both._take(g, self.keys[g], self.counts[g], n)
            both._take(g, other.keys[g], other.counts[g], int(other.used[g]))
        return both

    def sorted(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return keys, ascending, and counts of each grid's occupied bins."""
        found = []
        for keys, counts in zip(self.keys, self.counts, strict=True):
            slots = np.flatnonzero(counts)
            slots = slots[np.argsort(keys[slots])]
            found.append((keys[slots], counts[slots]))
        return found

    def _take(self, g: int, keys: np.ndarray, counts: np.ndarray, n: int) -> None:
        """Add bins of one grid, 0 rows of one being none, after making room for n new ones."""
        compile_tables()
        most = int(self.used[g]) + n
        if 2 * most > len(self.keys[g]):
            n_slots = _slots_of(2 * most)
            larger = np.zeros(n_slots, np.uint64), np.zeros(n_slots, np.int64)
            _add(self.keys[g], self.counts[g], *larger)
            self.keys[g], self.counts[g] = larger
        self.used[g] += _add(keys, counts, self.keys[g], self.counts[g])


def _tables_of(found: list[tuple[np.ndarray, np.ndarray]]) -> BinCounts:
    """Return the counts of occupied bins, given grid by grid."""
    tables = BinCounts.empty(len(found))
    for g, (keys, counts) in enumerate(found):
        tables._take(g, keys, counts, len(keys))
    return tables


class BinIds:
    """The column of Z of each occupied bin.

    Parameters
    ----------
    keys : ndarray of shape (n_bins,), uint64
        Grid by grid.
    ends : ndarray of shape (n_grids,), int64
        Where each grid's keys end.

    Notes
    -----
    24 to 48 bytes a bin; a look-up takes one or two fetches from memory.
    """

    def __init__(self, keys: np.ndarray, ends: np.ndarray) -> None:
        compile_tables()
        starts = np.concatenate([[0], ends[:-1]])
        slots = np.array([_slots_of(2 * (stop - start)) for start, stop in zip(starts, ends, strict=True)])
        self._firsts = np.concatenate([[0], np.cumsum(slots)]).astype(np.int64)
        self._keys = np.zeros(self._firsts[-1], np.uint64)
        self._ids = np.full(self._firsts[-1], -1, np.int32)
        for g, (start, stop) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            mine = slice(self._firsts[g], self._firsts[g + 1])
            _number(keys[start:stop], start, self._keys[mine], self._ids[mine])

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the columns of bins, −1 for one that is not occupied: int32 of the keys' (n_grids, r)."""
        ids = np.empty(keys.shape, np.int32)
        _find(keys, self._firsts, self._keys, self._ids, ids)
        return ids


def _slots_of(n: int) -> int:
    return max(_LEAST_SLOTS, 1 << int(n - 1).bit_length())


@cache
def compile_tables() -> None:
    """Compile what goes through the tables, or load it from Numba's cache, before it is needed."""
    in_own_thread(_compile_tables)


def _compile_tables() -> None:
    keys, counts, ids = np.zeros(2, np.uint64), np.zeros(2, np.int64), np.full(2, -1, np.int32)
    _add(keys[:1], np.broadcast_to(counts[:1], 1), keys, counts)
    _add(keys[:1], counts[:1], keys, counts)
    _number(keys[:1], 0, keys, ids)
    _find(keys[:1].reshape(1, 1), np.array([0, 2]), keys, ids, ids[:1].reshape(1, 1))


@compiled()
def _add(keys, counts, table, totals):
    """Add bins to the table, and return how many slots are newly taken."""
    mask, taken = table.size - 1, 0
    for i in range(keys.size):
        if counts[i] == 0:
            continue
        slot = np.int64((keys[i] * _GOLDEN) >> np.uint64(32)) & mask
        while totals[slot] != 0 and table[slot] != keys[i]:
            slot = (slot + 1) & mask
        if totals[slot] == 0:
            table[slot] = keys[i]
            taken += 1
        totals[slot] += counts[i]
    return taken


@compiled()
def _number(keys, first, table, ids):
    """Give the keys the numbers from `first` on."""
    mask = table.size - 1
    for i in range(keys.size):
        slot = np.int64((keys[i] * _GOLDEN) >> np.uint64(32)) & mask
        while ids[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = keys[i]
        ids[slot] = first + i


@compiled()
def _find(keys, firsts, tables, numbers, ids):
    """Look all rows up in one grid after the other, whose table may stay in a cache."""
    for g in range(len(keys)):
        table, known = tables[firsts[g] : firsts[g + 1]], numbers[firsts[g] : firsts[g + 1]]
        mask = table.size - 1
        for i in range(keys.shape[1]):
            key = keys[g, i]
            slot = np.int64((key * _GOLDEN) >> np.uint64(32)) & mask
            while known[slot] >= 0 and table[slot] != key:
                slot = (slot + 1) & mask
            ids[g, i] = known[slot]
