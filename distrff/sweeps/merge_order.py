"""The one order in which partials are merged: a binary tree over segment numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Neighbour = tuple[Any, bool]


class OrderedMerge:
    """Merges neighbours as soon as both are there.

    Node i of level l covers the segments [i·2ˡ, (i+1)·2ˡ). Which partials are added, and
    in which order, depends on their number alone, so the total has the same bits however
    they arrive. If they arrive in order, at most one a level waits; if one is late, those
    behind it are merged among themselves, and at most two a level wait. Of several workers
    that each take neighbours in order, at most two a level wait on each.

    Parameters
    ----------
    n_segments : int
    merge : callable
        `merge(total, neighbours)`: the sum of a partial with one neighbour after the other,
        each a pair of its partial and whether it lies before. What one arrival makes
        possible is one call, so that a thread does it in one go.
    """

    def __init__(self, n_segments: int, merge: Callable[[Any, list[Neighbour]], Any]) -> None:
        self._level_sizes = [n_segments]
        while self._level_sizes[-1] > 1:
            self._level_sizes.append(-(-self._level_sizes[-1] // 2))
        self._merge = merge
        self._waiting: dict[tuple[int, int], Any] = {}

    def add(self, segment: int, partial: Any) -> None:
        """Take the partial of one segment, and merge whatever that makes possible."""
        level, index, neighbours = 0, segment, []
        while self._level_sizes[level] > 1:
            neighbour = index ^ 1
            if neighbour < self._level_sizes[level]:
                if (level, neighbour) not in self._waiting:
                    break
                neighbours.append((self._waiting.pop((level, neighbour)), neighbour < index))
            level, index = level + 1, index // 2
        self._waiting[level, index] = self._merge(partial, neighbours) if neighbours else partial

    @property
    def n_waiting(self) -> int:
        """How many partials wait for their neighbour."""
        return len(self._waiting)

    def result(self) -> Any:
        """Return the total."""
        root = (len(self._level_sizes) - 1, 0)
        if set(self._waiting) != {root}:
            raise RuntimeError(f"{len(self._waiting)} partials were not merged")
        return self._waiting[root]


def n_levels(n_segments: int) -> int:
    """Return the levels of the tree above its leaves: how many partials wait at most, arriving in order."""
    return (n_segments - 1).bit_length()
