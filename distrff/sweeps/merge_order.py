"""The one order in which partials are merged: a binary tree over segment numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class OrderedMerge:
    """Merges neighbours as soon as both are there.

    Node i of level l covers the segments [i·2ˡ, (i+1)·2ˡ). Which partials are added, and
    in which order, depends on their number alone, so the total has the same bits however
    they arrive. If they arrive in order, at most one a level waits; if one is late, those
    behind it are merged among themselves, and at most two a level wait.

    Parameters
    ----------
    n_segments : int
    merge : callable
        `merge(first, second)`, first the one with the lower numbers.
    """

    def __init__(self, n_segments: int, merge: Callable[[Any, Any], Any]) -> None:
        self._level_sizes = [n_segments]
        while self._level_sizes[-1] > 1:
            self._level_sizes.append(-(-self._level_sizes[-1] // 2))
        self._merge = merge
        self._waiting: dict[tuple[int, int], Any] = {}

    def add(self, segment: int, partial: Any) -> None:
        """Take the partial of one segment, and merge whatever that makes possible."""
        index, total = segment, partial
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
