"""How an iterative fit of ridge ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from distrff.errors import warn
from distrff.solvers.status import History, Status


@dataclass(frozen=True, eq=False)
class Convergence:
    """How conjugate gradients or SGD ended.

    Parameters
    ----------
    status : Status
    solver : {"cg", "sgd"}
    measure : {"relative residual", "duality gap"}
        ‖B − (G + alpha·I)·w‖/‖B‖, or (primal − dual)/max(|primal|, |dual|).
    error : float
        That of the target where it is largest; NaN where no pass told it.
    tol : float
    n_sweeps, max_sweeps : int
        Light passes.
    preconditioner : str
    history : History
        Of that error.
    interruption : KeyboardInterrupt or None
        To be raised again when the machine is kept.
    """

    status: Status
    solver: str
    measure: str
    error: float
    tol: float
    n_sweeps: int
    max_sweeps: int
    preconditioner: str
    history: History = field(default_factory=History)
    interruption: KeyboardInterrupt | None = None

    def values(self) -> dict[str, Any]:
        """Return the entries of the report."""
        return {
            "solver": self.solver,
            "preconditioner": self.preconditioner,
            "tol": self.tol,
            self.measure.replace(" ", "_"): self.error,
            "history": self.history.values(self.measure),
        }

    def tell(self) -> None:
        """Raise the interruption again, or warn of what did not converge."""
        if self.interruption is not None:
            raise self.interruption
        if self.status in (Status.CONVERGED, Status.CONVERGED_UNCERTIFIED):
            return
        # An epoch of SGD and its evaluation are two passes.
        ended = self.n_sweeps >= self.max_sweeps - (self.solver == "sgd")
        remedy = "allow more by max_sweeps, or" if ended else "rounding ends it; use"
        warn(
            f"the {self.measure} is {self.error:.2g} after light sweep {self.n_sweeps}, "
            f"above tol={self.tol:g}; {remedy} a larger tol",
            ConvergenceWarning,
        )


# What to say where the best value of a grid is one of its ends: the best of all may lie beyond.


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
        Of the values that were judged. Nothing is said where several have all the same score.
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
