"""The fit of margin machines: one Gram for the preconditioner, then light sweeps until the gap is closed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from distrff.columns.targets import ClassTargets
from distrff.data.dataset import Dataset
from distrff.errors import InputError
from distrff.estimators.gram_context import GramContext, context_of
from distrff.estimators.margin_oracle import MarginOracle
from distrff.estimators.options import MarginOptions
from distrff.estimators.preparation import Preparation, first_sweep, prepare
from distrff.estimators.ridge_fit import features_dtype, gram_sweep, plan_of, presumed_plan, problem_of
from distrff.estimators.run import begin_run
from distrff.objective.certificate import Certificate
from distrff.objective.evaluation import Evaluation
from distrff.objective.solution import Status
from distrff.solvers.lbfgs import lbfgs
from distrff.solvers.lockstep import in_lockstep
from distrff.solvers.ridge_gram import RidgeMachine, final_machine
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.plan import Plan

_PRESUMED_SWEEPS = 10


@dataclass(frozen=True, eq=False)
class MarginFit:
    """Everything that a fit of margin machines found.

    Attributes
    ----------
    coef : ndarray of shape (D, k)
    intercept : ndarray of shape (k,)
    certificates : list of Certificate
        One an output.
    status : Status
    interruption : KeyboardInterrupt or None
        To be raised again when the machine is kept.
    """

    run: SweepRun
    plan: Plan
    coef: np.ndarray
    intercept: np.ndarray
    certificates: list[Certificate]
    status: Status
    interruption: KeyboardInterrupt | None = None

    @property
    def n_light_sweeps(self) -> int:
        """Passes of the solver."""
        return sum(label == "margins" for label, _ in self.run.sweeps)

    @property
    def worst(self) -> Certificate:
        """The certificate of largest gap."""
        return max(self.certificates, key=lambda certificate: certificate.gap)


def light_sweeps_presumed(plan: Plan) -> Plan:
    """Return a Gram sweep's plan with ten light sweeps after it, in counts and in seconds.

    A cosine takes about as long as twenty flops of a product.
    """
    s = plan.shape
    flops = float(s.n_rows) * s.n_features * (2 * s.n_columns + 6 * s.n_outputs)
    cosines = float(s.n_rows) * s.n_features
    heavy = s.n_rows * (2 * s.n_columns * s.n_features + s.size**2) + 20 * cosines
    share = _PRESUMED_SWEEPS * (flops + 20 * cosines) / heavy
    return replace(
        plan,
        n_sweeps=plan.n_sweeps + _PRESUMED_SWEEPS,
        flops=plan.flops + _PRESUMED_SWEEPS * flops,
        cosines=plan.cosines + _PRESUMED_SWEEPS * cosines,
        bytes_read=plan.bytes_read + _PRESUMED_SWEEPS * float(s.n_rows) * s.row_bytes,
        seconds=None if plan.seconds is None else plan.seconds * (1 + share),
    )


class _OutOfSweeps(Exception):
    pass


@dataclass
class _Progress:
    """The best point of one output so far, and how good it is known to be."""

    certificate: Certificate = field(default_factory=Certificate)
    best: Evaluation | None = None

    def see(self, at: Evaluation) -> None:
        self.certificate = self.certificate.improved(at.primal, at.dual)
        if self.best is None or at.primal < self.best.primal:
            self.best = at


def fit_margins(
    dataset: Dataset, options: MarginOptions, *, class_weight: Any = None
) -> tuple[MarginFit, Preparation]:
    """Fit one machine a class against the rest, or one for two classes.

    Raises
    ------
    PlanRefused
        If it cannot fit in the workers' memory: before the first task, or once many classes are counted.
    InputError
        For data that cannot be used.
    """
    run = begin_run()
    presumed_plan(run, dataset, options, target_kind="classes")
    statistics = first_sweep(run, dataset, target_kind="classes", seed=options.seed)
    preparation = prepare(
        statistics, options.features, scale=options.scale, class_weight=class_weight, seed=options.seed
    )
    _check_class_weights(preparation)
    plan = plan_of(
        run,
        dataset,
        options,
        n_outputs=preparation.targets.n_outputs,
        dtype=features_dtype(dataset, options.dtype),
    )
    parts = gram_sweep(run, dataset, preparation, plan, folds=None)
    grams = context_of(run, parts, problem_of(preparation, dataset, options), preparation, plan)
    oracle = MarginOracle(run, dataset, preparation, plan, options, grams)
    points = _start(run, grams, options)
    starts = {output: points[:, output].copy() for output in range(points.shape[1])}
    progress, status, interruption = _solve(oracle, options, starts)
    best = np.stack([p.best.x if p.best is not None else starts[j] for j, p in progress.items()], axis=1)
    coef, intercept = (best[:-1], best[-1]) if options.fit_intercept else (best, np.zeros(best.shape[1]))
    certificates = [p.certificate for p in progress.values()]
    plan = light_sweeps_presumed(plan)
    return MarginFit(run, plan, coef, intercept, certificates, status, interruption), preparation


def _start(run: SweepRun, grams: GramContext, options: MarginOptions) -> np.ndarray:
    """Return a point for each output, of shape (D + 1, k) or (D, k): ridge of about the same penalty."""
    floor = grams.noise_floor(grams.problem.sizes[-1])
    alpha = max(floor, 1 / (options.C * options.loss.curvature))
    ridge: RidgeMachine = run.gather(
        [run.submit(final_machine, grams.total, np.array([alpha]), grams.problem)]
    )[0]
    points = np.vstack([ridge.coef, ridge.intercept[None]]) if options.fit_intercept else ridge.coef
    return options.loss.clear_margin * points  # ridge aims at margins of 1


def _check_class_weights(preparation: Preparation) -> None:
    """A machine against a class of no weight has no optimum: its intercept runs off."""
    targets = preparation.targets
    assert isinstance(targets, ClassTargets)
    if targets.class_weight is not None and not targets.class_weight.all():
        label = targets.classes[targets.class_weight == 0].tolist()[0]
        raise InputError(f"class_weight is 0 for the class {label!r}; leave its rows out instead")


def _solve(
    oracle: MarginOracle, options: MarginOptions, starts: Mapping[int, np.ndarray]
) -> tuple[dict[int, _Progress], Status, KeyboardInterrupt | None]:
    progress = {output: _Progress() for output in starts}
    n_sweeps = 0

    def evaluate(points: Mapping[int, np.ndarray]) -> dict[int, Evaluation]:
        nonlocal n_sweeps
        if n_sweeps >= options.max_sweeps:
            raise _OutOfSweeps
        n_sweeps += 1
        answers = oracle.evaluate(points)
        for output, at in answers.items():
            progress[output].see(at)
        return answers

    def finished(output: int) -> bool:
        return progress[output].certificate.gap <= options.tol

    try:
        at = evaluate(starts)
        solvers = {
            output: lbfgs(evaluation, oracle.preconditioner, partial(finished, output))
            for output, evaluation in at.items()
        }
        in_lockstep(solvers, evaluate)
    except _OutOfSweeps:
        pass
    except KeyboardInterrupt as interruption:
        return progress, Status.INTERRUPTED, interruption
    converged = all(finished(output) for output in progress)
    return progress, Status.CONVERGED if converged else Status.NOT_CONVERGED, None
