"""The one order in which segments are summed: chains of consecutive ones, then a tree of chains."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

_LEAST_CHAINS = 16
_CHAIN_SEGMENTS = 8


def chains(n_segments: int) -> list[range]:
    """Return the segments of each chain.

    A chain is one running sum: its next segment begins with the sum so far, so that it
    never waits with partials to be merged. There are at least sixteen chains (or one a
    segment), to keep that many threads busy, and no chain is longer than eight segments,
    which is what a lost worker costs at most. A function of the number of segments alone.
    """
    n_chains = max(min(n_segments, _LEAST_CHAINS), -(-n_segments // _CHAIN_SEGMENTS))
    cuts = [n_segments * i // n_chains for i in range(n_chains + 1)]
    return [range(start, stop) for start, stop in pairwise(cuts)]


def n_waiting_sums(n_segments: int) -> int:
    """Return how many sums of chains wait at most when chains finish in order: one a level of the tree."""
    return (len(chains(n_segments)) - 1).bit_length()


class OrderedMerge:
    """Adds up the sums of chains in a binary tree, neighbours as soon as both are there.

    Node i of level l covers the chains [i·2ˡ, (i+1)·2ˡ). Which sums are added, and in
    which order, depends on their number alone, so the total has the same bits however
    they arrive.

    Parameters
    ----------
    n_sums : int
    merge : callable
        `merge(first, second)`, first the one with the lower numbers.
    """

    def __init__(self, n_sums: int, merge: Callable[[Any, Any], Any]) -> None:
        self._level_sizes = [n_sums]
        while self._level_sizes[-1] > 1:
            self._level_sizes.append(-(-self._level_sizes[-1] // 2))
        self._merge = merge
        self._waiting: dict[tuple[int, int], Any] = {}

    def add(self, index: int, total: Any) -> None:
        """Take one sum, and merge whatever that makes possible."""
        for level, size in enumerate(self._level_sizes[:-1]):
            neighbour = index ^ 1
            if neighbour < size:
                if (level, neighbour) not in self._waiting:
                    self._waiting[level, index] = total
                    return
                other = self._waiting.pop((level, neighbour))
                total = self._merge(total, other) if index < neighbour else self._merge(other, total)
            index //= 2
        self._waiting[len(self._level_sizes) - 1, index] = total

    @property
    def n_waiting(self) -> int:
        """How many sums wait for their neighbour."""
        return len(self._waiting)

    def result(self) -> Any:
        """Return the total."""
        root = (len(self._level_sizes) - 1, 0)
        if set(self._waiting) != {root}:
            raise RuntimeError(f"{len(self._waiting)} sums were not merged")
        return self._waiting[root]
