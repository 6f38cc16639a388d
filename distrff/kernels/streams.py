"""Named random streams for the parts of an expression."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Streams = Callable[[str], np.random.Generator]


def nested_streams(rng_of: Streams, part: str) -> Streams:
    """Return the named streams of one part of an expression; no two parts share a stream."""

    def part_of(name: str) -> np.random.Generator:
        return rng_of(f"{part}/{name}")

    return part_of
