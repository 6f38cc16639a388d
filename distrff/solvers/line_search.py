"""A step along a direction, as a conversation: it yields points and is sent what a sweep says of them.

It brackets a step that meets the Wolfe conditions (Nocedal and Wright, Numerical Optimization, 2nd edition,
section 3.1), from 1 on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from distrff.objective.evaluation import Evaluation

_SUFFICIENT_DECREASE = 1e-4
_FLATTER = 0.9
_MOST_TRIALS = 12
_ROUNDING = 1e-10  # of the objective, below which values of float32 tiles cannot be compared


def line_search(
    at: Evaluation, direction: np.ndarray, finished: Callable[[Evaluation], bool]
) -> Generator[np.ndarray, Evaluation, Evaluation | None]:
    """Return a point of sufficient decrease and flatter slope, by bracketing; None if there is none."""
    slope = float(at.gradient @ direction)
    if not slope < 0:
        return None
    step, low, high = 1.0, 0.0, np.inf
    best: Evaluation | None = None
    for _ in range(_MOST_TRIALS):
        trial = yield at.x + step * direction
        if finished(trial):
            return trial
        slope_there = float(trial.gradient @ direction)
        allowed = at.value + _SUFFICIENT_DECREASE * step * slope + _ROUNDING * abs(at.value)
        if trial.value > allowed:
            high = step
        elif slope_there < _FLATTER * slope:
            low, best = step, trial
        else:
            return trial
        step = _next_step(step, low, high, slope, slope_there)
    return best


def _next_step(step: float, low: float, high: float, slope: float, slope_there: float) -> float:
    """Return where the slope would vanish were it linear, kept in the bracket's lower half."""
    secant = step * slope / (slope - slope_there) if slope_there > slope else 4 * step
    if np.isinf(high):
        return min(max(secant, 2 * step), 10 * step)
    return min(max(secant, low + 0.1 * (high - low)), low + 0.5 * (high - low))
