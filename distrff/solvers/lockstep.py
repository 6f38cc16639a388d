"""Several solvers at once: each asks for a point, one sweep answers all of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Result = TypeVar("Result")


def in_lockstep(
    solvers: Mapping[int, Generator[Question, Answer, Result]],
    answer: Callable[[dict[int, Question]], Mapping[int, Answer]],
) -> dict[int, Result]:
    """Return what each solver returns in the end.

    Parameters
    ----------
    solvers : mapping of int to generator
        Each yields questions and is sent their answers.
    answer : callable
        Takes the questions of all solvers that are not done, by their key.
    """
    results: dict[int, Result] = {}
    questions: dict[int, Question] = {}
    for key, solver in solvers.items():
        _advance(key, partial(next, solver), questions, results)
    while questions:
        answers = answer(questions)
        questions = {}
        for key, value in answers.items():
            _advance(key, partial(solvers[key].send, value), questions, results)
    return results


def _advance(
    key: int, step: Callable[[], Question], questions: dict[int, Question], results: dict[int, Result]
) -> None:
    try:
        questions[key] = step()
    except StopIteration as end:
        results[key] = end.value
