"""Several solvers at once: each asks for a point, one sweep answers all of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, TypeVar

Key = TypeVar("Key")
Question = TypeVar("Question")
Answer = TypeVar("Answer")
Result = TypeVar("Result")


def in_lockstep(
    solvers: Mapping[Key, Generator[Any, Answer, Result]],
    answer: Callable[[dict[Key, Question]], Mapping[Key, Answer]],
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
    key: Key, step: Callable[[], Question | None], questions: dict[Key, Question], results: dict[Key, Result]
) -> None:
    try:
        question = step()
        if question is not None:
            questions[key] = question
    except StopIteration as end:
        results[key] = end.value
