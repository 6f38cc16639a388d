"""Two ways of doing the same thing, timed in alternation so that a drifting model hits both."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any


def seconds_of(work: Callable[[], Any]) -> float:
    """Return the wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def alternate(first: Callable[[], Any], second: Callable[[], Any], repeats: int = 3) -> dict[str, float]:
    """Return medians of both, and the median of the ratios first/second of neighbouring runs."""
    pairs = [(seconds_of(first), seconds_of(second)) for _ in range(repeats)]
    return {
        "ratio": median(a / b for a, b in pairs),
        "seconds": median(a for a, _ in pairs),
        "reference_seconds": median(b for _, b in pairs),
    }
