"""Several solvers at once: each asks for a point, one sweep answers all of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import TypeVar

Key = TypeVar("Key")
Question = TypeVar("Question")
Answer = TypeVar("Answer")
Result = TypeVar("Result")


def in_lockstep(
    solvers: Mapping[Key, Generator[Question, Answer, Result]],
    answer: Callable[[dict[Key, Question]], Mapping[Key, Answer]],
) -> dict[Key, Result]:
    """Return what each solver returns in the end.

    Parameters
    ----------
    solvers : mapping of key to generator
        Each yields questions and is sent their answers.
    answer : callable
        Takes the questions of all solvers that are not done, by their key.
    """
    results: dict[Key, Result] = {}
    questions: dict[Key, Question] = {}
    for key, solver in solvers.items():
        _advance(key, partial(next, solver), questions, results)
    while questions:
        answers = answer(questions)
        questions = {}
        for key, value in answers.items():
            _advance(key, partial(solvers[key].send, value), questions, results)
    return results


def _advance(
    key: Key, step: Callable[[], Question], questions: dict[Key, Question], results: dict[Key, Result]
) -> None:
    try:
        questions[key] = step()
    except StopIteration as end:
        results[key] = end.value
