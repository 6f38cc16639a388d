"""How solvers run and end: status, history, and several solvers in lockstep."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from distrff.errors import FitStopped


class Status(enum.Enum):
    """How a solution ended; each value is a sentence with the remedy."""

    CONVERGED = "converged: exact to rounding if solved directly, else to the tolerance asked for"
    NOT_CONVERGED = "not converged: the gap or the residual is above tol; allow more sweeps, or a larger tol"
    NOT_DECIDED = (
        "not decided: the rows are neither separated nor shown not to be; allow more sweeps, or a finite C"
    )
    CONVERGED_UNCERTIFIED = (
        "converged: the objective no longer falls; how far it is from the optimum is not bounded"
    )
    INTERRUPTED = "interrupted: the best model so far is kept; fit again to complete it"
    STOPPED = "stopped: a callback ended the fit; the best model so far is kept"

    @property
    def is_converged(self) -> bool:
        """Whether the solver reached what it can show; more sweeps would not help."""
        return self in (Status.CONVERGED, Status.CONVERGED_UNCERTIFIED)

    @classmethod
    def of_interruption(cls, raised: KeyboardInterrupt) -> Status:
        """Return how a solution ended that was interrupted: by a callback, or from outside."""
        return cls.STOPPED if isinstance(raised, FitStopped) else cls.INTERRUPTED


_MAX_ENTRIES = 200


@dataclass
class History:
    """The error of an iterative solver after each light sweep, and the best primal and dual values so far.

    Entries are (light sweep, error, primal, dual). The error is what `tol` bounds; primal and dual are NaN
    if unknown.
    """

    entries: list[tuple[int, float, float, float]] = field(default_factory=list)

    def record(self, sweep: int, error: float, primal: float = math.nan, dual: float = math.nan) -> None:
        """Record one sweep; a second record of the same sweep replaces the first."""
        if self.entries and self.entries[-1][0] == sweep:
            self.entries.pop()
        self.entries.append((sweep, error, primal, dual))

    def values(self, measure: str) -> dict[str, Any]:
        """Return lists for the report, of at most 200 sweeps: the first, the last, and others spread evenly.

        `measure` is the name of the error. `primal` and `dual` are left out if no bound is known.
        """
        names, n = ("sweep", "error", "primal", "dual"), len(self.entries)
        n_kept = min(n, _MAX_ENTRIES)
        kept = (self.entries[round(i * (n - 1) / max(1, n_kept - 1))] for i in range(n_kept))
        lists = dict(zip(names, map(list, zip(*kept, strict=True)), strict=False))
        bounded = any(map(math.isfinite, lists.get("dual", [])))
        return {"measure": measure} | {
            name: values for name, values in lists.items() if bounded or name in names[:2]
        }


# Several solver generators at once: each yields a request, and one sweep responds to all of them.

Key = TypeVar("Key")
Request = TypeVar("Request")
Response = TypeVar("Response")
Result = TypeVar("Result")


def in_lockstep(
    solvers: Mapping[Key, Generator[Any, Any, Result]],
    respond: Callable[[dict[Key, Request]], Mapping[Key, Response]],
    responses: Mapping[Key, Response | None] | None = None,
) -> dict[Key, Result]:
    """Run solver generators together, and return the results of those that end, by key.

    Each yields requests and is sent responses. `respond` takes the requests of all running solvers and
    returns their responses, both by key. A solver that yields None rests until the next call. One that gets
    no response waits for a later one, or is stopped there if none comes. `responses` are those to begin with;
    by default None for each solver, which starts it or ends its rest.
    """
    results: dict[Key, Result] = {}
    responses = dict.fromkeys(solvers) if responses is None else responses
    while responses:
        requests: dict[Key, Request] = {}
        for key, response in responses.items():
            try:
                request = solvers[key].send(response)
            except StopIteration as end:
                results[key] = end.value
                continue
            if request is not None:
                requests[key] = request
        responses = respond(requests) if requests else {}
    return results
