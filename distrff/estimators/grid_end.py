"""What to say where the best value of a grid is one of its ends: the best of all may lie beyond."""

from __future__ import annotations

import numpy as np


def end_of_grid(
    name: str, chosen: float, grid: np.ndarray, scores: np.ndarray, *, below: str | None = None
) -> list[str]:
    """Return a sentence if the value chosen is the smallest or the largest of an ascending grid.

    Parameters
    ----------
    name : str
        Of the parameter; its grid is the parameter `name`s.
    chosen : float
    grid : ndarray of shape (m,)
    scores : ndarray
        Of the values that were judged. Nothing is said where all of several values score the same.
    below : str, optional
        What to say of the smallest instead.
    """
    judged = scores[np.isfinite(scores)]
    if len(judged) > 1 and np.ptp(judged) == 0:
        return []
    if chosen == grid[0] and below is not None:
        return [below]
    if len(grid) < 2 or chosen not in (grid[0], grid[-1]):
        return []
    which, other, how = (
        ("smallest", "smaller", "begin lower") if chosen == grid[0] else ("largest", "larger", "end higher")
    )
    return [
        f"{name}={chosen:g} is the {which} of its grid: a {other} one may be better; give {name}s that {how} "
        f"(--{name}s)"
    ]
