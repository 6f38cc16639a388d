"""The two ways in which every search goes: down a line, and by halving a field of candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

FARTHEST = 28
"""Places from the first that a line goes on: widths in half octaves cover eight decades."""


@dataclass(frozen=True)
class Line:
    """Errors at whole numbers, and the place of the smallest one found."""

    best: int
    errors: dict[int, float]

    @property
    def error(self) -> float:
        return self.errors[self.best]

    @property
    def minimum(self) -> float:
        """Where the parabola through the best place and its neighbours is smallest; the best without both."""
        sides = [self.errors.get(self.best + side, math.inf) - self.error for side in (-1, 1)]
        below, above = sides
        # The best place is no larger than its neighbours, so the minimum is at most half a place away.
        if not 0 < below + above < math.inf or min(sides) < 0:
            return float(self.best)
        # The parabola through (−1, below), (0, 0) and (1, above).
        return self.best + 0.5 * (below - above) / (below + above)


def descend(
    error: Callable[[int], float],
    start: Iterable[int],
    steps: Iterable[int],
    *,
    farthest: int = FARTHEST,
    least_gain: float = 0.0,
) -> Line:
    """Walk downhill from the best of the `start` places, by each of the steps in turn while the error falls.

    Steps that halve, as in (2, -2, 1, -1), end at a place whose neighbours are known, for the parabola. A
    share `least_gain` of the error must be gained by each step. No place is evaluated twice.
    """
    errors: dict[int, float] = {}

    def at(place: int) -> float:
        if place not in errors:
            errors[place] = error(place)
        return errors[place]

    best = min(start, key=at)
    for step in steps:
        # By the same step as long as it gains: a start far from the valley takes few more errors than a near
        # one.
        while abs(best + step) <= farthest and at(best + step) < (1.0 - least_gain) * at(best):
            best += step
    return Line(best, errors)


def halving(
    candidates: Sequence[T],
    judge: Callable[[Sequence[T], int], Sequence[float]],
    n_stages: int,
    keep: Callable[[list[T]], Iterable[T]] = lambda ranked: (),
) -> list[T]:
    """Successive halving: judge candidates in stages, each on more rows; the better half goes on.

    To the last stage an eighth goes on: with fourfold rows and features it costs some sixteen times the one
    before, and would take nearly all the time (Jamieson and Talwalkar 2016, "Non-stochastic best arm
    identification and hyperparameter optimization").

    `judge(candidates, stage)` gives their errors; infinite ones are out. `keep(ranked)` names candidates that
    go on in any case, and count in the share. Returns the finalists, the best first.
    """
    field = list(candidates)
    for left in reversed(range(n_stages)):
        errors = dict(zip(field, judge(field, n_stages - 1 - left), strict=True))
        # Python's sort is stable: of equal candidates the one named first stays first, on every machine.
        field = sorted((one for one in field if errors[one] < math.inf), key=errors.__getitem__)
        if field and left:
            kept = list(dict.fromkeys(keep(field)))
            others = [one for one in field if one not in kept]
            n = math.ceil(len(field) / (2 if left > 1 else 8))
            field = kept + others[: max(0, n - len(kept))]
    return field
