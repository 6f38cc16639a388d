"""Machines solved by distributed SGD: a metric from a sample, then epochs and evaluations in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import issparse

from distrff.engine.reduction import Arrays
from distrff.engine.run import Run
from distrff.errors import DataWarning, warn
from distrff.estimators.fitting.context import Preparation
from distrff.estimators.fitting.gram import AlphaSearch, RidgeFit, problem_of
from distrff.estimators.fitting.margins import (
    Constant,
    FeaturesOf,
    MarginOracle,
    MarginProblem,
    MarginSolution,
    begun,
)
from distrff.estimators.fitting.options import MarginOptions, RidgeOptions, margin_options_of_ridge
from distrff.estimators.fitting.plan import Plan, SGDPlan, epoch_cuts, metric_rows
from distrff.estimators.fitting.result import Convergence
from distrff.io.dataset import Dataset
from distrff.preprocessing.scaling import drift_message, drift_shares
from distrff.preprocessing.targets import ClassTargets, NumericTargets
from distrff.reductions.epoch import EpochReduction, sent_start
from distrff.solvers.losses import SmoothedHinge
from distrff.solvers.objective import Evaluation, Point
from distrff.solvers.ridge import RidgeMachine
from distrff.solvers.sgd import Epoch, Question, SGDProblem, batch_rows, ridge_start, sgd, smooth_loss
from distrff.solvers.spectral_metric import SpectralMetric, most_directions
from distrff.solvers.status import Status, in_lockstep


class _OutOfSweeps(Exception):
    pass


def solve_by_sgd(
    run: Run,
    dataset: Dataset,
    preparation: Preparation,
    plan: Plan,
    options: MarginOptions,
    constants: Sequence[Constant] = (),
) -> MarginSolution:
    """Return machines whose objective no longer falls by more than `tol`, relative, with an epoch.

    `constants` are the best constants of the outputs, if their machines shall be no worse.
    """
    _warn_of_drift(preparation)
    run.begin_phase("metric of a sample")
    oracle = _SGDOracle(run, dataset, preparation, plan, options)
    run.begin_phase("epochs and evaluations")
    progress = begun(oracle.starts, constants)
    n_sweeps, interruption, status = 0, None, Status.NOT_CONVERGED

    def answer(questions: Mapping[MarginProblem, Question]) -> dict[MarginProblem, Any]:
        nonlocal n_sweeps
        epochs = {problem: q for problem, q in questions.items() if isinstance(q, Epoch)}
        points = {problem: q for problem, q in questions.items() if not isinstance(q, Epoch)}
        if n_sweeps + bool(epochs) + bool(points) > options.max_sweeps:
            raise _OutOfSweeps
        n_sweeps += bool(epochs) + bool(points)
        evaluations = oracle.evaluate(points) if points else {}
        for problem, at in evaluations.items():
            progress[problem].see(at)
            progress[problem].mark(n_sweeps)
        return evaluations | (oracle.epoch(epochs) if epochs else {})

    def is_certified(problem: MarginProblem) -> bool:
        return progress[problem].certificate.gap <= options.tol

    try:
        start = answer(oracle.starts)
        talks = {
            problem: sgd(at, oracle.problem, options.tol, partial(is_certified, problem))
            for problem, at in start.items()
        }
        in_lockstep(talks, answer)
        certified = all(is_certified(problem) for problem in progress)
        status = Status.CONVERGED if certified else Status.CONVERGED_UNCERTIFIED
    except _OutOfSweeps:
        pass
    except KeyboardInterrupt as raised:
        status, interruption = Status.INTERRUPTED, raised
    return MarginSolution(progress, status, n_sweeps, interruption)


class _SGDOracle:
    """Answers points by margin sweeps and epochs by epoch sweeps, in the metric of a sample."""

    def __init__(
        self,
        run: Run,
        dataset: Dataset,
        preparation: Preparation,
        plan: Plan,
        options: MarginOptions,
    ) -> None:
        assert options.C is not None
        self._run, self._dataset = run, dataset
        self._margins = MarginOracle(run, dataset, preparation, plan, options, None, None)
        self._smooth = smooth_loss(options.loss, is_sparse=preparation.specification.is_sparse)
        self._width = self._smooth.width if isinstance(self._smooth, SmoothedHinge) else 0.0
        metric, X0 = self._metric(preparation, plan, options)
        self.problem = SGDProblem(metric, options.C, preparation.weight, self._smooth.curvature)
        self.starts = {MarginProblem(output, options.C): x for output, x in enumerate(X0.T)}
        self._cuts = epoch_cuts(plan.shape)
        self._reduction = EpochReduction(
            specification=preparation.specification,
            scaling=preparation.scaling,
            targets=preparation.targets,
            dtype=plan.shape.dtype,
            tile_rows=0,
            loss=self._smooth,
            outputs=(),
            fit_intercept=options.fit_intercept,
        )

    def evaluate(self, points: Mapping[MarginProblem, np.ndarray]) -> dict[MarginProblem, Evaluation]:
        """Return what a margin sweep says."""
        return self._margins.evaluate({problem: Point(x, self._width) for problem, x in points.items()})

    def epoch(self, epochs: Mapping[MarginProblem, Epoch]) -> dict[MarginProblem, np.ndarray]:
        """Return where local steps over all segments led, in the mean."""
        metric = self.problem.metric
        start = self.problem.local_start(list(epochs.values()))
        rows = batch_rows(metric, start, self._cuts.segment_rows)
        reduction = replace(
            self._reduction, tile_rows=rows, outputs=tuple(problem.output for problem in epochs)
        )
        cuts = replace(self._cuts, tile_rows=rows)
        handle = self._run.sweep("epoch", self._dataset, reduction, cuts, sent_start(metric, start))
        X = self._run.gather([handle])[0].mean()
        return {problem: X[:, j] for j, problem in enumerate(epochs)}

    def _metric(
        self, preparation: Preparation, plan: Plan, options: MarginOptions
    ) -> tuple[SpectralMetric, np.ndarray]:
        """Return the metric of the first sweep's sample, and its ridge machines to start from."""
        sample, targets = preparation.statistics.sample(), preparation.targets
        n_rows = metric_rows(sample.X.shape[0], plan.shape)
        rows = np.linspace(0, sample.X.shape[0] - 1, n_rows).astype(np.intp)
        assert sample.y is not None
        Y, s = targets.encode(sample.y), targets.row_weights(sample.y, sample.sample_weight)
        penalty = 1 / (options.C * preparation.weight)  # type: ignore[operator]
        call = (
            self._margins.features_of,
            self._margins.sent_map,
            sample.X[rows],
            Y[rows],
            None if s is None else s[rows],
            min(self._smooth.curvature, 2.0),
            penalty,
            options.fit_intercept,
        )
        metric, X0 = self._run.gather([self._run.submit(metric_of_sample, *call)])[0]
        return metric, options.loss.clear_margin * X0


def metric_of_sample(
    features_of: FeaturesOf,
    sent: list[Arrays],
    X: np.ndarray,
    Y: np.ndarray,
    sample_weight: np.ndarray | None,
    curvature: float,
    penalty: float,
    fit_intercept: bool,
) -> tuple[SpectralMetric, np.ndarray]:
    """Return the metric of sampled rows, and their ridge machines of shape (D + 1, k) or (D, k)."""
    Z = features_of(X, sent)
    n_directions = Z.shape[1] if issparse(Z) else most_directions(Z.shape[1], Z.dtype)
    metric = SpectralMetric.of_rows(Z, sample_weight, n_directions, fit_intercept=fit_intercept)
    s = np.ones(X.shape[0]) if sample_weight is None else sample_weight
    share = (s / s.sum())[:, None]
    y_mean = (share * Y).sum(axis=0) if fit_intercept else np.zeros(Y.shape[1])
    # Centring one of the two factors is enough.
    moment = (Z.T @ (share * (Y - y_mean)).astype(Z.dtype)).astype(np.float64)
    return metric, ridge_start(metric, moment, y_mean, penalty, curvature)


def _warn_of_drift(preparation: Preparation) -> None:
    sample, targets = preparation.statistics.sample(), preparation.targets
    assert sample.y is not None
    if isinstance(targets, ClassTargets):
        Y = (targets.indices(sample.y)[:, None] == np.arange(len(targets.classes))).astype(np.float64)
    else:
        Y = targets.encode(sample.y)
    message = drift_message(
        drift_shares(sample.X, sample.sample_weight), drift_shares(Y, sample.sample_weight), sample.X.shape[0]
    )
    if message is not None:
        warn(message, DataWarning)


# Ridge by distributed SGD: the squared loss as any other.


def fit_ridge_by_sgd(
    run: Run, dataset: Dataset, options: RidgeOptions, preparation: Preparation, plan: SGDPlan
) -> RidgeFit:
    """Return the fit for one given penalty, to a small fall of the objective.

    Raises
    ------
    InputError
        If the sampled rows have no weight.
    """
    assert options.alpha is not None
    targets = preparation.targets
    if isinstance(targets, NumericTargets) and not options.fit_intercept:
        # Without an intercept nothing can stand in for what was subtracted.
        targets = replace(targets, shift=np.zeros_like(targets.shift))
    preparation = replace(preparation, targets=targets)
    solution = solve_by_sgd(run, dataset, preparation, plan, margin_options_of_ridge(options))
    points = np.stack([progress.x for progress in solution.progress.values()], axis=1)
    coef, intercept = (
        (points[:-1], points[-1]) if options.fit_intercept else (points, np.zeros(points.shape[1]))
    )
    worst = max(solution.progress.values(), key=lambda progress: progress.certificate.gap)
    unknown = np.full(points.shape[1], np.nan)
    return RidgeFit(
        run=run,
        plan=plan,
        problem=problem_of(preparation, dataset, options),
        dtype=plan.shape.dtype,
        grams=None,
        search=AlphaSearch(options.alpha, None, "none, as alpha was given"),
        machine=RidgeMachine(coef, intercept, unknown, unknown),
        targets=targets,
        notes=[],
        convergence=Convergence(
            status=solution.status,
            solver="sgd",
            measure="duality gap",
            error=worst.certificate.gap,
            tol=options.tol,
            n_sweeps=solution.n_sweeps,
            max_sweeps=options.max_sweeps,
            preconditioner="spectrum of a sample",
            history=worst.history,
            interruption=solution.interruption,
        ),
    )
