"""How a solution ended."""

from __future__ import annotations

import enum


class Status(enum.Enum):
    """How a solution ended; each value is a sentence with the remedy."""

    CONVERGED = "converged: exact to rounding if solved directly, else to the tolerance asked for"
    NOT_CONVERGED = "not converged: the gap or the residual is above tol; allow more sweeps, or a larger tol"
    NOT_DECIDED = (
        "not decided: the rows are neither separated nor shown not to be; allow more sweeps, or use C"
    )
    CONVERGED_UNCERTIFIED = (
        "converged: the objective no longer falls; how far it is from the optimum is not bounded"
    )
    INTERRUPTED = "interrupted: the best machine so far is kept; fit again to complete it"
