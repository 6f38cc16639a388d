"""How a solution ended."""

from __future__ import annotations

import enum


class Status(enum.Enum):
    """How a solution ended; each value is a sentence with the remedy."""

    CONVERGED = "converged: exact to rounding if solved directly, else to the tolerance asked for"
    NOT_CONVERGED = "not converged: the gap or the residual is above tol; allow more sweeps, or a larger tol"
    INTERRUPTED = "interrupted: the best machine so far is kept; fit again to complete it"
