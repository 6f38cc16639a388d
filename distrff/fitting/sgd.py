"""Models solved by distributed SGD: a metric from a sample, then epochs and evaluations in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import issparse

from distrff.engine.reduction import Arrays, Segmentation, sparse_segmentation
from distrff.engine.tasks import Workers
from distrff.errors import DataWarning, warn
from distrff.features.fitted import Trait
from distrff.fitting.cost import (
    PRESUMED_EPOCHS,
    SLACK_BYTES,
    LightPasses,
    Plan,
    Size,
    client_peak_bytes,
    light_peak_bytes,
    planned,
    ready_bytes,
)
from distrff.fitting.gram import needs_gram, needs_number, ridge_size, unwritten
from distrff.fitting.light import (
    Constant,
    FeaturesOf,
    MarginOracle,
    MarginProblem,
    MarginSize,
    MarginSolution,
    begun,
    best_constants,
    margin_cuts,
    margin_peak_bytes,
)
from distrff.fitting.margins import (
    Passes,
    PenaltySearch,
    constant_starts,
    margin_result,
    margin_size,
)
from distrff.fitting.problem import FitContext, PreparedFit, Problem, curvature_at_mean
from distrff.fitting.result import AlphaSearch, FitResult, coef_and_intercept, iterative_result
from distrff.fitting.rows import RowReduction
from distrff.io.dataset import Rows
from distrff.preprocessing.coding import ClassTargets, NumericTargets, drift_message, drift_shares
from distrff.solvers.objective import Evaluation, Loss, Point, Status, in_lockstep
from distrff.solvers.ridge import RidgeSolution
from distrff.solvers.sgd import (
    EPSILON,
    SPARSE_EPSILON,
    Epoch,
    LocalStart,
    LocalSteps,
    Request,
    SGDProblem,
    SpectralMetric,
    batch_rows,
    max_directions,
    ridge_start,
    sgd,
)
from distrff.utils.arrays import Sums

_OF_POINTS = ("X", "gradient", "curvature", "damping", "dimension")


@dataclass(frozen=True, eq=False)
class EpochSums(Sums):
    """Weighted sums of the last points of segments."""

    weight: float  # Σs of the rows
    X: np.ndarray  # (D + 1, k), or (D, k) without an intercept: Σ of a segment's weight times its points

    def mean(self) -> np.ndarray:
        """The mean points, of the shape of `X`."""
        return self.X / self.weight


@dataclass(frozen=True, kw_only=True)
class EpochReduction(RowReduction):
    """Reduction to the `EpochSums` of points that start from `sent_start`.

    Rows are taken in stored order, which must be independent of their values. A row costs
    2dD + 8Dk flops and D cosines, a batch 4Dqk more for q directions of the metric. One batch of features
    and the metric are in memory. A batch has `tile_rows` rows, the last of a segment fewer. Points are
    float64.
    """

    loss: Loss  # of finite curvature
    outputs: tuple[int, ...]  # which of the targets the points are for
    fit_intercept: bool

    def size_bytes(self, n_rows: int) -> int:
        return 8 * len(self.outputs) * (self.specification.n_features + 1)

    def update(self, total: EpochSums | None, rows: Rows, arrays: Arrays) -> EpochSums | None:
        ready, outputs = self.ready_map(arrays), list(self.outputs)
        metric = SpectralMetric.from_arrays(arrays, fit_intercept=self.fit_intercept)
        of_points = {name: arrays[name] for name in _OF_POINTS}
        start = LocalStart(**of_points, penalty=float(arrays["penalty"]))
        steps = LocalSteps(self.loss, metric, start)
        for block in rows.tiles(self.tile_rows):
            Z = self.tile_of(ready, rows, block.start, block.X, of_basis=False)
            Y = self.targets.encode(block.y)[:, outputs]
            steps.step(Z, Y, self.targets.row_weights(block.y, block.sample_weight))
        return self.merge(total, EpochSums(steps.weight, steps.weight * steps.X))


def sent_start(metric: SpectralMetric, start: LocalStart) -> dict[str, np.ndarray]:
    """The arrays that the tasks of an `EpochReduction` are sent."""
    return metric.arrays() | {name: np.asarray(getattr(start, name)) for name in (*_OF_POINTS, "penalty")}


class StochasticGradients:
    """Any loss with a given penalty, by epochs over the rows: no array of D × D, unless it is small."""

    def refuses(self, problem: Problem) -> str | None:
        penalty = problem.penalty
        if problem.is_ridge:
            if penalty.search is not None:
                is_gram = penalty.search == "gcv" and problem.is_sparse
                return needs_gram(problem) if is_gram else needs_number(problem)
            if penalty.value is not None and len(penalty.value) > 1:
                return "solver='sgd' needs one alpha for all targets, got several; use solver='cg' or 'gram'"
        elif problem.softmax:
            return "solver='sgd' needs one loss a class, and multi_class='softmax' has one for all"
        elif penalty.value is None or problem.is_hard:
            got = penalty.search if penalty.value is None else penalty.number
            return f"solver='sgd' needs a finite number for C, got C={got!r}; give one, or use solver='auto'"
        return unwritten(problem)

    def size(self, fit: FitContext, size: Size) -> MarginSize:
        if fit.problem.is_ridge:
            return MarginSize(**vars(ridge_size(fit.problem, size)))
        return margin_size(fit.problem, size)

    def cost(self, size: MarginSize, workers: Workers) -> Iterator[Plan]:
        yield sgd_plan(size, workers)

    def light_passes(self, plan: Plan) -> LightPasses:
        return [margin_cuts(plan.size), epoch_cuts(plan.size)], PRESUMED_PASSES

    def solve(self, fit: PreparedFit, plan: Plan) -> FitResult:
        """The last points; raises InputError if the sampled rows have no weight."""
        problem, targets = fit.problem, fit.targets
        if not problem.is_ridge:
            solution = solve_by_sgd(fit, plan, best_constants(fit, problem.C))
            return margin_result(fit, plan, "sgd", PenaltySearch(problem.C), solution)
        if isinstance(targets, NumericTargets) and not problem.fit_intercept:
            # Without an intercept nothing would add the subtracted means back.
            fit = replace(fit, targets=replace(targets, shift=np.zeros_like(targets.shift)))
        solution = solve_by_sgd(fit, plan)
        points = np.stack([trace.x for trace in solution.traces.values()], axis=1)
        coef, intercept = coef_and_intercept(points, fit_intercept=problem.fit_intercept)
        worst = max(solution.traces.values(), key=lambda trace: trace.certificate.gap)
        # No pass sums the squares from which R² follows.
        unknown = np.full(points.shape[1], np.nan)
        assert problem.penalty.value is not None
        return iterative_result(
            fit,
            plan,
            AlphaSearch(problem.penalty.value),
            RidgeSolution(coef, intercept, unknown, unknown),
            solver="sgd",
            measure="duality gap",
            error=worst.certificate.gap,
            history=worst.history,
            status=solution.status,
            preconditioner="spectrum of a sample",
            n_sweeps=solution.n_sweeps,
            interruption=solution.interruption,
            notes=[],
        )


def solve_by_sgd(fit: PreparedFit, plan: Plan, constants: Sequence[Constant] = ()) -> MarginSolution:
    """Points at which another epoch lowers the objective by at most `tol`, relative.

    A point that is worse than the best of `constants` is replaced by it.
    """
    _warn_of_drift(fit)
    fit.run.begin_phase("metric of a sample")
    oracle = _SGDOracle(fit, plan)
    given = fit.problem
    fit.run.begin_phase("epochs and evaluations")
    passes = Passes(oracle.margins, begun(oracle.starts, constants), given.tol, ends_by_error=False)
    fit.run.observer.begin_solver(given.max_sweeps, presumed=PRESUMED_PASSES)

    def respond(requests: Mapping[MarginProblem, Request]) -> dict[MarginProblem, Any]:
        epochs = {problem: q for problem, q in requests.items() if isinstance(q, Epoch)}
        points = {problem: q for problem, q in requests.items() if not isinstance(q, Epoch)}
        # Problems ask for epochs and points in lockstep; where some do each, the step is two passes.
        n_passes = bool(epochs) + bool(points)
        if passes.n_sweeps + n_passes > given.max_sweeps:
            return {}
        passes.n_sweeps += n_passes
        evaluations = oracle.evaluate(points) if points else {}
        if evaluations:
            passes.take(evaluations)
        return evaluations | (oracle.epoch(epochs) if epochs else {})

    # The gap is no stopping rule: after ten epochs of a logistic fit the objective was 0.36 % above its
    # optimum, and the gap still 138 %. The fall of the objective ends it, or a gap that happens to be closed.
    def is_certified(problem: MarginProblem) -> bool:
        return passes.traces[problem].certificate.gap <= given.tol

    def solve() -> Status:
        solvers = {
            problem: sgd(at, oracle.problem, given.tol, partial(is_certified, problem))
            for problem, at in respond(oracle.starts).items()
        }
        if len(in_lockstep(solvers, respond)) < len(passes.traces):
            return Status.NOT_CONVERGED
        certified = all(is_certified(problem) for problem in passes.traces)
        return Status.CONVERGED if certified else Status.CONVERGED_UNCERTIFIED

    return passes.solution(solve)


class _SGDOracle:
    """Responds to points by margin passes and to epochs by epoch passes, in the metric of a sample."""

    def __init__(self, fit: PreparedFit, plan: Plan) -> None:
        self._fit = fit
        self.margins = MarginOracle(fit, plan)
        given = fit.problem
        self._epsilon = SPARSE_EPSILON if Trait.SPARSE in fit.specification.traits else EPSILON
        self._smooth = given.margin_loss.rounded(self._epsilon)
        metric, X0 = self._metric(plan, given.C)
        # The earlier model replaces ridge on the sample; the metric comes from the sample in any case.
        if (start := fit.starting_columns()) is not None:
            X0 = start
        bound = self._smooth.curvature
        if not np.isfinite(
            bound
        ):  # of an exponential: rows far above the mean are few, and steps look at them
            bound = _CURVATURE_OF_MEAN * curvature_at_mean(given, fit.statistics)
        self.problem = SGDProblem(metric, given.C, fit.weight, bound)
        self.starts = {MarginProblem(output, given.C): x for output, x in enumerate(X0.T)}
        self._plan, self._cuts = plan, epoch_cuts(plan.size)
        self._shared = {"dtype": plan.size.dtype, "fit_intercept": given.fit_intercept}

    def evaluate(self, points: Mapping[MarginProblem, np.ndarray]) -> dict[MarginProblem, Evaluation]:
        """Each problem's objective and gradient at its point, by a margin sweep."""
        return self.margins.evaluate({problem: Point(x, self._epsilon) for problem, x in points.items()})

    def epoch(self, epochs: Mapping[MarginProblem, Epoch]) -> dict[MarginProblem, np.ndarray]:
        """The mean of the points at which local steps over the segments end."""
        metric = self.problem.metric
        start = self.problem.local_start(list(epochs.values()))
        rows = batch_rows(metric, start, self._cuts.segment_rows)
        outputs = tuple(problem.output for problem in epochs)
        of_loss = {"loss": self._smooth.of_outputs(outputs), "outputs": outputs}
        reduction = self._fit.reduction(EpochReduction, **self._shared, **of_loss, tile_rows=rows)
        cuts = replace(self._cuts, tile_rows=rows)
        # A cache apart from that of evaluations, whose tiles are shorter and of a basis.
        kept = self._fit.kept("epochs", self._plan, cuts, of_basis=False)
        X = self._fit.sum("epoch", reduction, cuts, sent_start(metric, start), kept).mean()
        return {problem: X[:, j] for j, problem in enumerate(epochs)}

    def _metric(self, plan: Plan, C: float) -> tuple[SpectralMetric, np.ndarray]:
        """The metric of the first pass's sample, and ridge on it to start from."""
        sample, targets = self._fit.statistics.sample(), self._fit.targets
        n_rows = metric_rows(sample.X.shape[0], plan.size)
        # Evenly over the sample, which is in row order.
        rows = np.linspace(0, sample.X.shape[0] - 1, n_rows).astype(np.intp)
        assert sample.y is not None
        Y, s = targets.encode(sample.y), targets.row_weights(sample.y, sample.sample_weight)
        metric, X0 = self._fit.run.compute(
            metric_of_sample,
            self.margins.features_of,
            self.margins.sent_map,
            sample.X[rows],
            Y[rows],
            None if s is None else s[rows],
            # A rounded hinge has the bound 1/ε; ridge stands in for it with that of squares.
            min(self._smooth.curvature, 2.0),
            1 / (C * self._fit.weight),
            self._fit.problem.fit_intercept,
        )
        if self._smooth.units == "own":
            return metric, np.stack(constant_starts(self._fit), axis=1)
        return metric, self._fit.problem.margin_loss.clear_margin * X0


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
    """The metric of sampled rows, and their ridge models of shape (D + 1, k) or (D, k)."""
    Z = features_of(X, sent)
    n_directions = Z.shape[1] if issparse(Z) else max_directions(Z.shape[1], Z.dtype)
    metric = SpectralMetric.of_rows(Z, sample_weight, n_directions, fit_intercept=fit_intercept)
    s = np.ones(X.shape[0]) if sample_weight is None else sample_weight
    share = (s / s.sum())[:, None]
    y_mean = (share * Y).sum(axis=0) if fit_intercept else np.zeros(Y.shape[1])
    # Centring one of the two factors is enough.
    moment = (Z.T @ (share * (Y - y_mean)).astype(Z.dtype)).astype(np.float64)
    return metric, ridge_start(metric, moment, y_mean, penalty, curvature)


def _warn_of_drift(fit: PreparedFit) -> None:
    sample, targets = fit.statistics.sample(), fit.targets
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


# What they cost.

PRESUMED_PASSES = 2 * PRESUMED_EPOCHS + 1
_CURVATURE_OF_MEAN = 10.0
_BATCH_BYTES, _MAX_METRIC_BYTES = 80 * 2**20, 2**26
_MAX_ROWS = 2**14
_ROWS_OF_MANY_FEATURES, _MANY_FEATURES = 2**12, 2**12
_SPARSE_ROWS, _SPARSE_BYTES = 2**11, 12


def epoch_cuts(size: Size) -> Segmentation:
    """The cuts of an epoch: local steps over longer segments make more progress."""
    if size.sparse_entries:
        return sparse_segmentation(size.n_rows, size.sparse_entries)
    return size.segmentation()


def sgd_plan(size: MarginSize, workers: Workers) -> Plan:
    s = size
    evaluation = s.n_rows * (s.basis_flops + 6.0 * s.row_entries * s.n_outputs)
    epoch = s.n_rows * (s.map_flops + 10.0 * s.row_entries * s.n_outputs)
    sample = metric_rows(min(s.n_rows, _MAX_ROWS), s)
    small = min(sample, s.n_features)
    metric = 2.0 * sample * s.row_entries * small + 9.0 * small**3
    return planned(
        "sgd",
        s,
        workers,
        epoch_cuts(s),
        n_passes=PRESUMED_PASSES,
        folds_per_task=1,
        flops=(PRESUMED_EPOCHS + 1) * evaluation + PRESUMED_EPOCHS * epoch + metric + s.map_factor_flops,
        cosines=float(s.n_rows) * s.row_entries * PRESUMED_PASSES,
        worker_peak_bytes=_sgd_peak_bytes(s, workers.threads_per_worker),
        client_peak_bytes=client_peak_bytes(s) + _metric_bytes(s),
    )


def _sgd_peak_bytes(size: MarginSize, threads: int) -> int:
    """The largest resident set above idle: of an epoch, an evaluation, or the making of the metric.

    The metric is made of the sampled rows as they are sent and scaled, of their features as they are made,
    centred and weighted, and of the matrices of their eigenvectors. Then it is held as it is sent, and once
    more in another dtype.
    """
    s, segment_rows = size, epoch_cuts(size).segment_rows
    sample = metric_rows(min(s.n_rows, _MAX_ROWS), s)
    # A batch of features with its map's phases, the rows of a storage chunk, and the points.
    entry_bytes = _SPARSE_BYTES if s.sparse_entries else s.itemsize
    batch = min(_BATCH_BYTES, segment_rows * s.row_entries * entry_bytes)
    rows = s.reading_bytes(segment_rows) + s.row_bytes * s.chunk_rows
    points = (12 if s.sparse_entries else 8) * 8 * s.n_features * s.n_outputs
    epoch = s.busy_bytes(threads, 2 * batch + rows + points, points)
    epoch += ready_bytes(threads, points)
    of_sample = 3 * s.row_entries * entry_bytes + s.row_bytes + 16 * s.column_entries
    metric = sample * of_sample + 4 * 8 * min(sample, s.n_features) ** 2
    peak_bytes = margin_peak_bytes if s.n_problems else light_peak_bytes
    evaluation = peak_bytes(s, max(s.n_light_columns, s.n_outputs), threads)
    kept = 2 * _metric_bytes(s)
    return int(max(max(epoch, metric) + s.map_bytes + SLACK_BYTES, evaluation) + kept)


def _metric_bytes(size: Size) -> int:
    """The bytes of the metric's directions, all D at most; of sparse features those of its rows."""
    sample = metric_rows(min(size.n_rows, _MAX_ROWS), size)
    if size.sparse_entries:
        return sample * (_SPARSE_BYTES * size.row_entries + 8 * sample // 4)
    n_directions = min(sample, size.n_features)
    return min(_MAX_METRIC_BYTES, size.itemsize * size.n_features * n_directions)


def metric_rows(n_sampled: int, size: Size) -> int:
    """How many of the sampled rows the metric is made of."""
    if size.sparse_entries:  # every step multiplies by their matrix of products
        return min(n_sampled, _SPARSE_ROWS)
    # Beyond 4096 features the eigenvectors of all sampled rows would take minutes.
    max_rows = _MAX_ROWS if size.n_features <= _MANY_FEATURES else _ROWS_OF_MANY_FEATURES
    return min(n_sampled, max_rows)
