"""Solvers of one margin machine, as conversations: they yield points, and are sent what a sweep says."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from distrff.objective.evaluation import Evaluation, Point
from distrff.solvers.lbfgs import Precondition, lbfgs
from distrff.solvers.line_search import line_search

Finished = Callable[[Evaluation], bool]
Conversation = Generator[Point, Evaluation, Evaluation]
RestingConversation = Generator[Point | None, Evaluation, Evaluation]

_FIRST_WIDTH = 0.3
_SOLVED_TO = 2.0  # a stage ends when its gap is this many times what its width leaves at best
_AIM = 0.4  # the share of tol that the next width may leave
_LEAST_STEP, _MOST_STEP = 0.1, 0.3
_LEAST_WIDTH = 1e-9
_POINTS_A_HESSIAN, _MOST_HESSIANS = 9, 3
# Rows may bend four times as much as their mean, and M is made for a power of four below that.
_MOST_CURVATURE = 16.0


@dataclass
class Rests:
    """When a solver rests, so that something else may end what it began.

    Parameters
    ----------
    after : int
        Points at one width before the first rest; each is followed by twice as many.
    early : bool
        Whether to rest as well where the first stage ends.
    """

    after: int
    early: bool = False

    def within(self, talk: Conversation) -> RestingConversation:
        """Return a conversation at one width with its rests."""
        n_points, answer = 0, None
        while True:
            try:
                point = next(talk) if answer is None else talk.send(answer)
            except StopIteration as end:
                return end.value
            if n_points == self.after:
                yield None
                n_points, self.after = 0, 2 * self.after
            answer = yield point
            n_points += 1


class Hessian(NamedTuple):
    """The objective's Hessian H at a point, or what stands for it.

    solve : callable
        g ↦ H⁻¹g.
    is_light : bool
        Whether it is that of all rows, and took no more than some light sweeps.
    """

    solve: Precondition
    is_light: bool


def solve_smooth(
    x: np.ndarray,
    preconditioner: Callable[[float], Precondition],
    finished: Finished,
    hessian: Callable[[Evaluation], Hessian | None] | None = None,
) -> Conversation:
    """Minimise a smooth objective from x by L-BFGS.

    Where its preconditioner, for which all rows bend alike, has not been enough for ten points, or its first
    step promises what cannot be, the Hessian takes its place. A light one is made at each point
    for a step of Newton's, which ends at the optimum of the squared hinge once it is known which rows are
    short. Another one preconditions nine points, three times at most.

    Parameters
    ----------
    x : ndarray of shape (D + 1,) or (D,)
    preconditioner : callable
        From a curvature to g ↦ M⁻¹g.
    finished : callable
        Whether a point that was just answered is good enough.
    hessian : callable, optional
        From an evaluation to the Hessian at its point, or None where no row bends.

    References
    ----------
    Keerthi and DeCoste (2005), "A modified finite Newton method for fast solution of large scale linear
    SVMs", J. Mach. Learn. Res. 6, section 2.
    """
    at = yield Point(x)
    if hessian is not None:
        start = at

        def ended(answer: Evaluation) -> bool:
            return finished(answer) or _promises_too_much(start, answer)

        found = yield from _of_width(start, 0.0, lbfgs(start, preconditioner, ended), _POINTS_A_HESSIAN)
        at = yield from _by_hessians(min(start, found, key=lambda at: at.value), hessian, finished)
    return (yield from _of_width(at, 0.0, lbfgs(at, preconditioner, finished)))


def _by_hessians(
    at: Evaluation, hessian: Callable[[Evaluation], Hessian | None], finished: Finished
) -> Conversation:
    """Return a point that is finished, or the best where Hessians lead no further."""
    n_heavy = 0
    while not finished(at) and n_heavy < _MOST_HESSIANS:
        made = hessian(at)
        if made is None:
            return at
        if made.is_light:
            talk, most = _newton_step(at, made.solve, finished), None
        else:
            talk, most = lbfgs(at, partial(_always, made.solve), finished), _POINTS_A_HESSIAN
            n_heavy += 1
        del made  # the talk alone keeps it, and is gone before the next is made
        found = yield from _of_width(at, 0.0, talk, most)
        del talk
        if found is at:
            return at
        at = found
    return at


def _newton_step(
    at: Evaluation, precondition: Precondition, finished: Finished
) -> Generator[np.ndarray, Evaluation, Evaluation]:
    """Return where a step along −H⁻¹g ends; the point itself if rounding allows no descent."""
    found = yield from line_search(at, -precondition(at.gradient), finished)
    return at if found is None else found


def _promises_too_much(start: Evaluation, answer: Evaluation) -> bool:
    """Return whether a step δ = −M⁻¹g was to win more than the duality gap, by what M says, −δᵀg/2.

    Then M misses rows that bend along δ: a sample's Gram does where some rows are like no others.
    """
    slope = float(start.gradient @ (answer.x - start.x))
    return -0.5 * slope > _MOST_CURVATURE * (start.primal - start.dual)


def solve_smoothed(
    x: np.ndarray,
    preconditioner: Callable[[float], Precondition],
    finished: Finished,
    *,
    tol: float,
    least_bend: float,
    rests: Rests | None = None,
    looks_ahead: bool = False,
) -> RestingConversation:
    """Minimise the hinge's objective from x, through hinges rounded over smaller and smaller widths ε.

    Each stage is L-BFGS at one width. At its optimum the gap is at most the bias

        C·Σ s·(hinge − rounded) + (ε/2)·C·Σ s·g²,  g = clip((1 − m)/ε, 0, 1),

    so the stage ends when the gap at the current point is at most twice that. The next width is the one that
    should leave 0.4·tol, by what the last point says, or looking ahead the one before it; but between a tenth
    and three tenths of this one.

    Parameters
    ----------
    tol : float
        Relative duality gap that is aimed at.
    least_bend : float
        C times the share of rows that bend at a time, at least. What few rows lie in the kink at
        first says nothing of how many will: about one a feature.
    rests : Rests, optional
        When to yield None in place of a point, after which it goes on where it was.
    looks_ahead : bool
        Whether to ask for the next width with each point of a stage but its first, so that the next stage
        need not begin with a sweep of its own.
    """

    def ended(at: Evaluation) -> bool:
        return finished(at) or at.primal - at.dual <= _SOLVED_TO * at.smoothing

    def following(at: Evaluation) -> float:
        step = _AIM * tol * at.primal / at.smoothing if at.smoothing > 0 else _LEAST_STEP
        return width * float(np.clip(step, _LEAST_STEP, _MOST_STEP))

    width = _FIRST_WIDTH
    at = yield Point(x, width)
    while not finished(at):
        floored = partial(_at_least, least_bend / width, preconditioner)
        talk = _of_width(at, width, lbfgs(at, floored, ended), None, following if looks_ahead else None)
        at = yield from talk if rests is None else rests.within(talk)
        if finished(at) or not ended(at) or width <= _LEAST_WIDTH:
            break
        if rests is not None and rests.early and width == _FIRST_WIDTH:
            yield None
        if at.next is None:
            width = following(at)
            at = yield Point(at.x, width)
        else:
            width, at = at.next
    return at


def _at_least(
    least: float, preconditioner: Callable[[float], Precondition], curvature: float
) -> Precondition:
    return preconditioner(max(curvature, least))


def _always(precondition: Precondition, curvature: float) -> Precondition:
    return precondition


def _of_width(
    start: Evaluation,
    width: float,
    solver: Generator[np.ndarray, Evaluation, Evaluation],
    most: int | None = None,
    following: Callable[[Evaluation], float] | None = None,
) -> Conversation:
    """Let a solver ask for x alone; return its answer, or after so many questions the best point so far.

    With each x the width that is `following` the answer before is asked for as well.
    """
    best = answer = start
    try:
        x = next(solver)
        for _ in itertools.count() if most is None else range(most):
            answer = yield Point(x, width, None if following is None else following(answer))
            best = min(best, answer, key=lambda at: at.value)
            x = solver.send(answer)
    except StopIteration as end:
        return end.value
    return best
