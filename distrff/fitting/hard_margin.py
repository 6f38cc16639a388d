"""Hard-margin models solved together: each sweep finds the rows of smallest margin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from distrff.errors import InputError
from distrff.fitting.light import MarginOracle
from distrff.fitting.result import MarginProblem, MarginSolution, Trace, coef_and_intercept
from distrff.preprocessing.coding import ClassTargets
from distrff.solvers.hard_margin import NEGLIGIBLE, CriticalRows, HardMargin
from distrff.solvers.objective import History, Status, in_lockstep

_MIN_KEPT, _MAX_KEPT = 64, 1024


def solve_hard_margins(oracle: MarginOracle, starts: Mapping[MarginProblem, np.ndarray]) -> MarginSolution:
    """The models of maximum margin, each from its start.

    Raises InputError if the features do not separate a class from the rest, with what shows it.
    """
    given = oracle.problem
    models = {
        problem: HardMargin(x, fit_intercept=given.fit_intercept, tol=given.tol)
        for problem, x in starts.items()
    }
    histories = {problem: History() for problem in models}
    n_kept = min(_MAX_KEPT, max(_MIN_KEPT, oracle.n_features))
    n_sweeps, interruption, run = 0, None, oracle.run
    run.observer.begin_solver(given.max_sweeps)

    def record(problems: Iterable[MarginProblem]) -> None:
        for problem in problems if n_sweeps else ():
            at = models[problem].certificate
            histories[problem].record(n_sweeps, at.gap, at.primal, at.dual)

    def notify() -> None:
        if n_sweeps:
            gap = max(model.certificate.gap for model in models.values())
            run.observer.light_sweep(run.sweeps, n_sweeps, "duality gap", gap, given.tol, parts)

    def parts() -> tuple[Any, ...]:
        X = np.stack([model.x for model in models.values()], axis=1)
        return *coef_and_intercept(X, fit_intercept=given.fit_intercept), oracle.targets

    def respond(points: Mapping[MarginProblem, np.ndarray]) -> dict[MarginProblem, CriticalRows]:
        nonlocal n_sweeps
        if n_sweeps >= given.max_sweeps:
            return {}
        record(points)
        notify()
        n_sweeps += 1
        return oracle.smallest_margins(points, n_kept)

    try:
        in_lockstep({problem: model.steps() for problem, model in models.items()}, respond)
    except KeyboardInterrupt as raised:
        interruption = raised
    record(models)
    for problem, model in models.items():
        if model.inseparable and interruption is None:
            raise InputError(_refusal(oracle.targets, problem, model))
    traces = {
        p: Trace(model.x, model.certificate, smallest_margin=model.checked_margin, history=histories[p])
        for p, model in models.items()
    }
    if interruption is not None:
        status = Status.of_interruption(interruption)
    elif all(model.converged for model in models.values()):
        status = Status.CONVERGED
    else:
        separated = all(np.isfinite(model.certificate.gap) for model in models.values())
        status = Status.NOT_CONVERGED if separated else Status.NOT_DECIDED
    return MarginSolution(traces, status, n_sweeps, interruption)


def _refusal(targets: ClassTargets, problem: MarginProblem, model: HardMargin) -> str:
    """The evidence that no model separates the rows, and the remedy."""
    evidence, named = model.inseparability, "the classes are"
    if targets.n_outputs > 1:
        named = f"the class {targets.classes.tolist()[problem.output]!r} and the rest are"
    return (
        f"{named} not separable with these features: by a weighted mean of "
        f"{evidence.n_weighted} rows no margin is above {evidence.bound:.2g}, under {NEGLIGIBLE:g} of the "
        f"largest ‖z‖, {evidence.largest_norm:.2g}; of the model tried last {evidence.n_violating} rows "
        f"violate y·f ≥ 1, the worst with y·f = {evidence.min_margin:.3g}"
        f"; use a finite C, more features, or a narrower kernel"
    )
