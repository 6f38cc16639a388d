"""The one order in which partials are merged: chains of consecutive segments, then a tree of chains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Segments a chain: long enough that a fit of a few million rows is one chain and waits with
# one partial however many rows there are; short enough that a hundred threads, whose window
# spans several chains, are not held up by merges that follow one another.
CHAIN = 64


class OrderedMerge:
    """Merges partials as soon as their predecessors are there.

    The segments [64·i, 64·(i+1)) form chain i, added from left to right; finished chains
    are nodes of a binary tree. Which partials are added, and in which order, depends on
    the number of segments alone, so the sum has the same bits however they arrive.

    Parameters
    ----------
    n_segments : int
    merge : callable
        `merge(first, second)`, first the one with the lower segment numbers.
    """

    def __init__(self, n_segments: int, merge: Callable[[Any, Any], Any]) -> None:
        self._n_segments = n_segments
        self._merge = merge
        self._early: dict[int, Any] = {}  # partials whose predecessors are missing
        self._chains: dict[int, tuple[int, Any]] = {}  # chain: its next segment, its sum so far
        self._nodes: dict[tuple[int, int], Any] = {}  # (level, index): sum that waits for its neighbour
        self._level_sizes = [-(-n_segments // CHAIN)]
        while self._level_sizes[-1] > 1:
            self._level_sizes.append(-(-self._level_sizes[-1] // 2))

    def add(self, segment: int, partial: Any) -> None:
        """Take the partial of one segment, and merge whatever that makes possible."""
        chain = segment // CHAIN
        self._early[segment] = partial
        following, total = self._chains.pop(chain, (chain * CHAIN, None))
        while following in self._early:
            part = self._early.pop(following)
            total = part if total is None else self._merge(total, part)
            following += 1
        if following < min((chain + 1) * CHAIN, self._n_segments):
            self._chains[chain] = (following, total)
        else:
            self._add_node(chain, total)

    def _add_node(self, index: int, total: Any) -> None:
        for level, size in enumerate(self._level_sizes[:-1]):
            neighbour = index ^ 1
            if neighbour < size:
                if (level, neighbour) not in self._nodes:
                    self._nodes[level, index] = total
                    return
                other = self._nodes.pop((level, neighbour))
                total = self._merge(total, other) if index < neighbour else self._merge(other, total)
            index //= 2
        self._nodes[len(self._level_sizes) - 1, index] = total

    @property
    def n_waiting(self) -> int:
        """How many partials and sums wait."""
        chains = sum(total is not None for _, total in self._chains.values())
        return len(self._early) + chains + len(self._nodes)

    def result(self) -> Any:
        """Return the sum of all segments."""
        root = (len(self._level_sizes) - 1, 0)
        if self.n_waiting != 1 or root not in self._nodes:
            raise RuntimeError(f"{self.n_waiting} partials were not merged")
        return self._nodes[root]


def n_waiting_sums(n_segments: int) -> int:
    """Return how many sums wait at most when segments finish in order: a chain's, and one a tree level."""
    return 1 + (-(-n_segments // CHAIN) - 1).bit_length()
