"""The lines of the book: what is measured, what is asked, and how long it takes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tests.benchmarks.book.environments import HERE, Place

Result = dict[str, Any]


@dataclass(frozen=True)
class Bound:
    """What is asked of a number: at least `low`, at most `high`."""

    low: float = -math.inf
    high: float = math.inf

    def holds(self, reached: float) -> bool:
        """Whether a number is in the bounds."""
        return self.low <= reached <= self.high

    def text(self, unit: str) -> str:
        """Return the bounds in words, in a unit."""
        if math.isfinite(self.low) and math.isfinite(self.high):
            low = shown(self.low, unit if unit == "%" else "")
            return f"{low} to {shown(self.high, unit)}"
        return f"≥ {shown(self.low, unit)}" if math.isfinite(self.low) else f"≤ {shown(self.high, unit)}"


def shown(value: float, unit: str = "", n_digits: int = 3) -> str:
    """Return a number in a unit: in so many digits, from 1000 on without a fraction.

    Shares are in per cent, with a digit less after the point.
    """
    if unit == "%":
        return f"{100 * value:.{n_digits - 1}f} %"
    text = f"{value:.{n_digits}g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{text} {unit}".strip()


def shown_reached(found: Result) -> str:
    """Return what a result reached, in more digits where rounding would make it the bound that it misses."""
    text = shown(found["reached"], found["unit"])
    hides_miss = found.get("holds") is False and text.split()[0] in found["asked"].split()
    return shown(found["reached"], found["unit"], n_digits=5) if hides_miss else text


@dataclass(frozen=True)
class Setting:
    """What a run has: a share of the rows, a folder of files, and the environments that were made."""

    scale: float = 1.0
    data: str = ""
    places: Mapping[str, Place] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        """Whether sizes are those that the bounds are for."""
        return self.scale >= 1

    def rows(self, n: int) -> int:
        """Return that share of the rows, of 200 at least."""
        return max(200, int(n * self.scale))

    def components(self, n: int) -> int:
        """Return an even number of features: all of them from a tenth of the rows on."""
        return int(n * min(1.0, max(1 / 32, 10 * self.scale))) // 2 * 2

    def repeats(self, n: int) -> int:
        """Return how often pairs are run: `n` at full size, else fewer, and two for there to be a spread."""
        return n if self.is_full else max(2, round(n * min(1.0, 5 * self.scale)))

    def place(self, environment: str) -> Place:
        """Return the Python of an environment."""
        if environment == "here":
            return HERE
        return self.places.get(environment, Place(None, "its environment was not asked for"))


@dataclass(frozen=True)
class Line:
    """A measurement of one or several cases.

    `run` yields for each case a mapping with `case`, `reached`, perhaps `low` and `high`, the spread, and
    what else is known; or `case` and `skipped`, the reason. `title`, `asked` and `unit` there take the place
    of the line's. Other entries of results are kept beside, for pictures. `minutes` are of all cases at full
    size on two cores of 100 GF/s each.
    """

    name: str
    title: str
    run: Callable[[Setting], Iterator[Result]]
    minutes: float
    asked: Bound | None = None
    unit: str = "×"
    environments: Sequence[str] = ()

    def judged(self, setting: Setting, found: Result) -> Result:
        """Return a result that says all of itself, and whether it holds; null at other sizes than asked."""
        asked, unit = found.get("asked", self.asked), found.get("unit", self.unit)
        result = {"line": self.name, "title": self.title, "case": "", **found, "unit": unit}
        result["asked"] = "" if asked is None else asked.text(unit)
        if asked is not None and "reached" in found:
            result["holds"] = bool(asked.holds(found["reached"])) if setting.is_full else None
        return result


def spread(values: Sequence[float]) -> Result:
    """Return the median of repeated numbers as what is reached, and the least and the most of them."""
    return {"reached": median(values), "low": min(values), "high": max(values)}


def ratio(timed: Mapping[str, Any]) -> Result:
    """Return what `alternate` measured as a result."""
    low, high = timed["spread"]
    return {
        "reached": timed["ratio"],
        "low": low,
        "high": high,
        "seconds": timed["seconds"],
        "reference_seconds": timed["reference_seconds"],
    }
