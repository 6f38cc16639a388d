"""How a solution ended."""

from __future__ import annotations

import enum


class Status(enum.Enum):
    """How a solution ended; each value is a sentence with the remedy."""

    CONVERGED = "converged: a direct solution, exact to rounding"
    INTERRUPTED = "interrupted: the best machine so far is kept; fit again to complete it"
