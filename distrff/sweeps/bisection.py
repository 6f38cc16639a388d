"""The largest number that still fits."""

from __future__ import annotations

from collections.abc import Callable


def largest(candidates: range, fits: Callable[[int], bool]) -> int:
    """Return the largest candidate that fits, by bisection; 0 if none does."""
    low, top = 0, len(candidates)
    while low < top:
        middle = (low + top) // 2
        low, top = (middle + 1, top) if fits(candidates[middle]) else (low, middle)
    return candidates[low - 1] if low else 0
