"""What a solver found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distrff.engine.run import Run
from distrff.estimators.fitting.plan import Plan
from distrff.preprocessing.targets import Targets
from distrff.solvers.status import Status


@dataclass(frozen=True, eq=False, kw_only=True)
class FitResult:
    """What a solver found.

    Parameters
    ----------
    plan : Plan or None
        None for a fit to Grams that were already there.
    dtype : str
        Of the features.
    coef : ndarray of shape (n_features, n_outputs)
        In the targets' own units.
    intercept : ndarray of shape (n_outputs,)
    search : AlphaSearch or PenaltySearch or None
        How the penalty was chosen.
    grams : Grams or None
        None where no Gram of all rows was formed.
    entries : mapping
        What the report says of the penalty and of the solver.
    notes : list of str
        What the report should say about choices that were made.
    shortfall : str or None
        What to warn of, where the tolerance was not reached.
    interruption : KeyboardInterrupt or None
        To be raised again when the model is kept.
    """

    run: Run
    plan: Plan | None
    n_rows: int
    dtype: str
    targets: Targets
    coef: np.ndarray
    intercept: np.ndarray
    status: Status = Status.CONVERGED
    search: Any = None
    grams: Any = None
    entries: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    shortfall: str | None = None
    interruption: KeyboardInterrupt | None = None


def rkhs_norm(coef: np.ndarray) -> Any:
    """Return ‖w‖₂ of one output as a number, of more as an array."""
    norms = np.linalg.norm(coef, axis=0)
    return norms[0] if len(norms) == 1 else norms


# What to say where the best value of a grid is one of its ends: the best of all may lie beyond.


def end_of_grid(
    name: str, chosen: float, grid: np.ndarray, scores: np.ndarray, *, below: str | None = None
) -> list[str]:
    """Return a sentence if the value chosen is the smallest or the largest of an ascending grid.

    Parameters
    ----------
    name : str
        Of the parameter; its grid is the parameter `name`s.
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
