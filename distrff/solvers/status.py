"""How a solution ended."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar


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
    INTERRUPTED = "interrupted: the best model so far is kept; fit again to complete it"

    @property
    def is_converged(self) -> bool:
        """Whether nothing more can be done."""
        return self in (Status.CONVERGED, Status.CONVERGED_UNCERTIFIED)


# How the error of an iterative model fell from sweep to sweep.

_MOST_ENTRIES = 200


@dataclass
class History:
    """What was known of a model after each light sweep, with the best of all sweeps so far.

    Parameters
    ----------
    entries : list of (light sweep, error, primal, dual)
        The error is what `tol` bounds; primal and dual are NaN where there are none.
    """

    entries: list[tuple[int, float, float, float]] = field(default_factory=list)

    def record(self, sweep: int, error: float, primal: float = math.nan, dual: float = math.nan) -> None:
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


# Several solvers at once: each asks for a point, one sweep answers all of them.

Key = TypeVar("Key")
Request = TypeVar("Request")
Response = TypeVar("Response")
Result = TypeVar("Result")


def in_lockstep(
    solvers: Mapping[Key, Generator[Any, Response, Result]],
    answer: Callable[[dict[Key, Request]], Mapping[Key, Response]],
) -> dict[Key, Result]:
    """Return what each solver returns in the end, of those that do not rest.

    Parameters
    ----------
    solvers : mapping of key to generator
        Each yields questions and is sent their answers. One that yields None rests, and is gone on with by
        the next call.
    answer : callable
        Takes the questions of all solvers that are not done, by their key.
    """
    results: dict[Key, Result] = {}
    questions: dict[Key, Request] = {}
    for key, solver in solvers.items():
        _advance(key, partial(next, solver), questions, results)
    while questions:
        answers = answer(questions)
        questions = {}
        for key, value in answers.items():
            _advance(key, partial(solvers[key].send, value), questions, results)
    return results


def _advance(
    key: Key, step: Callable[[], Request | None], questions: dict[Key, Request], results: dict[Key, Result]
) -> None:
    try:
        question = step()
        if question is not None:
            questions[key] = question
    except StopIteration as end:
        results[key] = end.value
