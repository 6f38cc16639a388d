"""How an iterative fit of ridge ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from distrff.errors import warn
from distrff.objective import Status
from distrff.objective.history import History


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
