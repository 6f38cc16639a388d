"""How the error of an iterative machine fell from sweep to sweep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_MOST_ENTRIES = 200


@dataclass
class History:
    """What was known of a machine after each light sweep, with the best of all sweeps so far.

    Parameters
    ----------
    entries : list of (light sweep, error, primal, dual)
        The error is what `tol` bounds; primal and dual are NaN where there are none.
    """

    entries: list[tuple[int, float, float, float]] = field(default_factory=list)

    def note(self, sweep: int, error: float, primal: float = math.nan, dual: float = math.nan) -> None:
        """Take down where things stand; a sweep that is told of twice counts once, as it was told last."""
        if self.entries and self.entries[-1][0] == sweep:
            self.entries.pop()
        self.entries.append((sweep, error, primal, dual))

    def values(self, measure: str) -> dict[str, Any]:
        """Return lists for the report, of at most 200 sweeps: the first, the last and evenly between.

        `measure` is the name of the error. There are no `primal` and `dual` without a bound.
        """
        names = ("sweep", "error", "primal", "dual")
        lists = dict(zip(names, map(list, zip(*_thinned(self.entries), strict=True)), strict=False))
        bounded = any(map(math.isfinite, lists.get("dual", [])))
        return {"measure": measure} | {
            name: values for name, values in lists.items() if bounded or name in names[:2]
        }


def _thinned(entries: Sequence[tuple[int, float, float, float]]) -> list[tuple[int, float, float, float]]:
    n = len(entries)
    if n <= _MOST_ENTRIES:
        return list(entries)
    return [entries[round(i * (n - 1) / (_MOST_ENTRIES - 1))] for i in range(_MOST_ENTRIES)]
