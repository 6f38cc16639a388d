"""How an iterative fit of ridge ended."""

from __future__ import annotations

from dataclasses import dataclass

from sklearn.exceptions import ConvergenceWarning

from distrff.errors import warn
from distrff.objective import Status


@dataclass(frozen=True, eq=False)
class Convergence:
    """How conjugate gradients ended.

    Parameters
    ----------
    status : Status
    relative_residual : float
        ‖B − (G + alpha·I)·w‖/‖B‖ of the target where it is largest; NaN where no pass told it.
    tol : float
    n_sweeps, max_sweeps : int
        Light passes.
    preconditioner : str
    interruption : KeyboardInterrupt or None
        To be raised again when the machine is kept.
    """

    status: Status
    relative_residual: float
    tol: float
    n_sweeps: int
    max_sweeps: int
    preconditioner: str
    interruption: KeyboardInterrupt | None = None

    def tell(self) -> None:
        """Raise the interruption again, or warn of what did not converge."""
        if self.interruption is not None:
            raise self.interruption
        if self.status is Status.CONVERGED:
            return
        ended = self.n_sweeps >= self.max_sweeps
        remedy = "allow more by max_sweeps, or" if ended else "rounding ends it; use"
        warn(
            f"the relative residual is {self.relative_residual:.2g} after {self.n_sweeps} light sweeps, "
            f"above tol={self.tol:g}; {remedy} a larger tol",
            ConvergenceWarning,
        )
