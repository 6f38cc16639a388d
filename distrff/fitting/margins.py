"""Margin losses: a Gram for the preconditioner, then light passes until the duality gap is closed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import diags_array, hstack, issparse

from distrff.engine.reduction import Arrays, gram_stride, light_segmentation_of_features
from distrff.engine.tasks import Workers
from distrff.errors import InputError
from distrff.features.fitted import Trait
from distrff.fitting.cg import light_plan
from distrff.fitting.cost import PRESUMED_SWEEPS, LightPasses, Plan, Size
from distrff.fitting.gram import Grams, factor_gram, gram_peak_bytes, gram_plan, unwritten
from distrff.fitting.light import (
    MIN_GATHERED_ROWS,
    WIDENING,
    Constant,
    FeaturesOf,
    HingePoint,
    MarginOracle,
    MarginProblem,
    MarginSize,
    MarginSolution,
    NearestRows,
    NearestSums,
    SoftmaxOracle,
    Trace,
    begun,
    best_constants,
    can_model,
    margin_cuts,
    margin_peak_bytes,
    max_model_rows,
    model_peak_bytes,
)
from distrff.fitting.problem import (
    FitContext,
    Penalty,
    PreparedFit,
    Problem,
    curvature_at_mean,
    mean_targets,
)
from distrff.fitting.result import FitResult, coef_and_intercept, end_of_grid, in_units, rkhs_norm
from distrff.model.model import FoldModels
from distrff.preprocessing.coding import ClassTargets, Targets
from distrff.solvers.active_set import ActiveSetModel, ActiveSetSolution, ascend, first_multipliers, minimise
from distrff.solvers.hard_margin import NEGLIGIBLE, CriticalRows, HardMargin
from distrff.solvers.lbfgs import (
    HessianAt,
    RestingGenerator,
    Rests,
    SolverGenerator,
    solve_smooth,
    solve_smoothed,
)
from distrff.solvers.losses import NOISES, Residual
from distrff.solvers.objective import Evaluation, Point, Status, in_lockstep
from distrff.solvers.ridge import RidgeSolution, solution_of

_MIN_PENALTY = 1e-8  # of Σs·mean‖z‖², where C is infinite


class Margins:
    """One problem a class against the rest, or one for two classes; each pass serves all problems.

    A Gram for the preconditioner, then light passes until the duality gap is closed. Sparse features have
    light passes alone.
    """

    def refuses(self, problem: Problem) -> str | None:
        name, solver = problem.loss_name, problem.solver
        if problem.is_hard and problem.is_sparse:
            return (
                f"C={problem.C!r} needs dense features, and those of random binning are sparse; use a finite "
                f"C (solver='smoothed' for the hinge, 'lbfgs' for other losses, 'sgd' or 'auto' for any), or "
                f"FourierFeatures or NystroemFeatures"
            )
        if solver in ("auto", problem.smooth_solver):
            return unwritten(problem)
        needs = {
            "gram": "a squared loss, whose optimum follows from the Gram alone",
            "cg": "a squared loss, whose optimum solves linear equations",
            "lbfgs": "a loss with a continuous slope",
            "smoothed": "a loss whose slope jumps",
        }[solver]
        named = "noise" if name in NOISES else "loss"
        return (
            f"solver={solver!r} needs {needs}, which {named}={name!r} is not; use "
            f"solver={problem.smooth_solver!r} or 'auto'"
        )

    def size(self, fit: FitContext, size: Size) -> MarginSize:
        return margin_size(fit.problem, size)

    def cost(self, size: MarginSize, workers: Workers) -> Iterator[Plan]:
        if size.sparse_entries:
            yield light_plan(size, 0, workers, peak_of=_sparse_peak_bytes)
            return
        for one in _gram_sizes(size):
            yield gram_plan(one, 1, workers, _margin_peak_bytes(one, workers.threads_per_worker))

    def light_passes(self, plan: Plan) -> LightPasses:
        n_passes = plan.size.n_light_sweeps if plan.solver == "gram" else PRESUMED_SWEEPS
        return [] if MarginSize.of(plan).dual_rows else [margin_cuts(plan.size)], n_passes

    def solve(self, fit: PreparedFit, plan: Plan) -> FitResult:
        problem, run = fit.problem, fit.run
        grams = None
        if Trait.SPARSE not in fit.specification.traits and not MarginSize.of(plan).dual_rows:
            run.begin_phase("Gram of the preconditioner")
            grams = factor_gram(fit, plan)
        kind = SoftmaxOracle if problem.shares_loss(fit.targets) else MarginOracle
        oracle = kind(fit, plan, grams)
        if problem.penalty.search:
            run.begin_phase("choice of C")
            # From the smallest C to the largest: each begins where the one before it ended.
            curvature = curvature_at_mean(problem, fit.statistics)
            size = fit.weight * curvature * fit.mean_square_norm
            grid = 1 / (_DEFAULT_PENALTIES * size)
            grid = grid if problem.penalty.grid is None else problem.penalty.grid
            starts = _starts(fit, grams, float(grid[0]))
            search = search_penalty(
                oracle, grid, starts, max_decades=_MAX_DECADES if problem.penalty.grid is None else 0
            )
        else:
            search = PenaltySearch(problem.C)
        run.begin_phase("light sweeps")
        starts = search.starts if problem.penalty.search else _starts(fit, grams, search.C)
        problems = {MarginProblem(output, search.C): x for output, x in enumerate(starts)}
        if search.interruption is not None:
            # The kept model is the mean of the folds' points, which no pass has evaluated.
            solution = MarginSolution(
                begun(problems), Status.of_interruption(search.interruption), 0, search.interruption
            )
        elif problem.is_hard:
            solution = solve_hard_margins(oracle, problems)
        else:
            is_near = fit.start is not None and not problem.penalty.search
            constants = best_constants(fit, search.C)
            solution = solve_margins(oracle, problems, constants, tol=problem.tol, is_near=is_near)
        solver = (
            "working set"
            if problem.is_hard
            else "dual"
            if MarginSize.of(plan).dual_rows
            else problem.smooth_solver
        )
        return margin_result(fit, plan, solver, search, solution)


def _starts(fit: PreparedFit, grams: Grams | None, C: float) -> list[np.ndarray]:
    """A point for each problem: that of ridge; zeros for softmax, or without a Gram."""
    problem, k = fit.problem, fit.targets.n_outputs
    # In a search not from the earlier model, which saw all folds.
    points = None if problem.penalty.value is None else fit.starting_columns()
    if points is not None:
        return [points.ravel()] if problem.shares_loss(fit.targets) else list(points.T)
    n_numbers = fit.specification.n_features + problem.fit_intercept
    if problem.shares_loss(fit.targets):
        return [np.zeros(n_numbers * k)]
    if grams is None:
        return [np.zeros(n_numbers) for _ in range(k)]
    # C·Σ s·κ/2·(y − f)² + ½‖w‖² is ridge with alpha = 1/(C·κ); a hinge has no κ, and takes that of squares.
    if problem.margin_loss.units == "own":
        return constant_starts(fit)
    moments, scale = fit.statistics.targets, fit.targets.scale
    if moments is not None and (moments.standard_deviation() > _HEAVY * scale[: len(moments.mean)]).any():
        return [np.zeros(n_numbers) for _ in range(k)]  # squares would begin at models of the far targets
    curvature = problem.margin_loss.curvature if np.isfinite(problem.margin_loss.curvature) else 2.0
    min_alpha = _MIN_PENALTY * grams.weight * grams.mean_square_norm
    alpha = max(grams.noise_floor(), min_alpha if np.isinf(C) else 1 / (C * curvature))
    ridge: RidgeSolution = fit.run.compute(solution_of, grams.total, np.array([alpha]), grams.system)
    points = np.vstack([ridge.coef, ridge.intercept[None]]) if problem.fit_intercept else ridge.coef
    # Ridge aims at margins of 1.
    return list((problem.margin_loss.clear_margin * points).T)


def constant_starts(fit: PreparedFit) -> list[np.ndarray]:
    """The logarithms of the targets' means: from far below, the first steps of an exponential overshoot."""
    size, at_mean = fit.specification.n_features, np.log(mean_targets(fit.statistics))
    return [np.append(np.zeros(size), b if fit.problem.fit_intercept else ()) for b in at_mean]


_HEAVY = 5.0  # deviations of targets, in their spreads

# The problems of a fit solved together: each pass evaluates all that are not done.

_CURVED_ROWS_A_FEATURE = 0.1
# A model with a poor reference point wastes sweeps, and so do many small steps at one epsilon.
_POINTS_BEFORE_MODELS = 10
_MAX_ROUNDS = 50  # of the dual; a round takes less than a Newton step of a model
_DUAL_SHARE = 0.5  # of tol


def solve_margins(
    oracle: MarginOracle,
    starts: Mapping[MarginProblem, np.ndarray],
    constants: Sequence[Constant] = (),
    *,
    tol: float,
    stage: str = "",
    n_after: int = 0,
    is_near: bool = False,
) -> MarginSolution:
    """Solve each problem from its start to an error of `tol`, or until the passes are spent.

    A point that is worse than the best of `constants` is replaced by it. `stage` says in words which of
    several such problems it is, of which `n_after` follow. `is_near` says that the starts are models of an
    earlier fit, which may be near the optimum.
    """
    solving = _Solving(oracle, begun(starts, constants), tol)
    oracle.run.observer.begin_solver(oracle.problem.max_sweeps, stage=stage, n_after=n_after)

    def solve() -> Status:
        if is_near:
            solving.begin_near()
        solving.ascend()
        while not solving.is_spent and solving.advance():
            if solving.has_models:
                solving.finish()
        solved = all(trace.error <= tol for trace in solving.traces.values())
        return Status.CONVERGED if solved else Status.NOT_CONVERGED

    return solving.solution(solve)


@dataclass
class Passes:
    """Problems that are solved together: a trace of each, and the passes over the rows so far."""

    oracle: MarginOracle
    traces: dict[MarginProblem, Trace]
    tol: float
    ends_by_error: bool = True  # whether an error of tol ends the fit; callbacks are then told of it
    measure: str | None = None  # the name of the error, by default the traces' own
    n_sweeps: int = 0
    n_told: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether no further pass is allowed."""
        return self.n_sweeps >= self.oracle.problem.max_sweeps

    def take(self, responses: Mapping[MarginProblem, Evaluation]) -> None:
        """Improve the traces by the evaluations of a pass."""
        for problem, at in responses.items():
            self.traces[problem].update(at)
            self.traces[problem].record(self.n_sweeps)
        self.notify()

    def notify(self) -> None:
        """Tell callbacks of the last pass, once; the models of folds in a search are not told."""
        if self.n_told == self.n_sweeps:
            return
        self.n_told = self.n_sweeps
        run, worst = self.oracle.run, max(self.traces.values(), key=lambda trace: trace.error)
        measure, is_search = self.measure or worst.measure, any(p.held_out is not None for p in self.traces)
        parts, tol = None if is_search else self._parts, self.tol if self.ends_by_error else None
        run.observer.light_sweep(run.sweeps, self.n_sweeps, measure, worst.error, tol, parts)

    def _parts(self) -> tuple[np.ndarray, np.ndarray, Targets]:
        X = np.concatenate([self.oracle.columns(trace.x) for trace in self.traces.values()], axis=1)
        return *_in_units(self.oracle.targets, X, self.oracle.fit_intercept), self.oracle.targets

    def solution(self, solve: Callable[[], Status]) -> MarginSolution:
        """The best points after `solve`, which an interruption may end."""
        interruption = None
        try:
            status = solve()
        except KeyboardInterrupt as raised:
            status, interruption = Status.of_interruption(raised), raised
        return MarginSolution(self.traces, status, self.n_sweeps, interruption)


@dataclass
class _Solving(Passes):
    """The solvers of margin losses that have not ended, and the points at which some wait for a Hessian."""

    waiting: dict[MarginProblem, Evaluation] = field(default_factory=dict)
    solvers: dict[MarginProblem, SolverGenerator | RestingGenerator] = field(init=False)

    def __post_init__(self) -> None:
        self.solvers = {problem: self._solver(problem) for problem in self.traces}

    @property
    def has_models(self) -> bool:
        """Whether models of few rows may finish what the solvers begin."""
        return self.oracle.problem.margin_loss.is_hinge and self.oracle.can_model

    def begin_near(self) -> None:
        """Use starts that are near the optimum."""
        if self.has_models:
            # Wide roundings of the hinge would lead away from it first: a second fit to the same 20,000 rows
            # then took 18 light sweeps, where the first took 23.
            self.finish()
        elif self.oracle.problem.shares_loss(self.oracle.targets):
            # Without a bound, gradients are measured by that at zero, where other fits begin.
            self.evaluate({problem: Point(np.zeros_like(trace.x)) for problem, trace in self.traces.items()})

    def finish(self) -> None:
        """Let models of few rows finish the problems that are near their optimum."""
        finish_exactly(self.oracle, self.unfinished(), self.nearest_rows, self.improve, tol=self.tol)
        self.notify()

    def ascend(self) -> None:
        """Solve few rows by their dual; what it has not solved in many rounds is left to the solvers."""
        if self.oracle.ascent is None:
            return
        for _ in range(_MAX_ROUNDS):
            problems = self.unfinished()
            if self.is_spent or not problems:
                return
            self.n_sweeps += 1
            # Its steps end by gradients that they update; the certificate, which is computed anew, needs room
            # for their rounding.
            found = self.oracle.ascent.ascend(problems, _DUAL_SHARE * self.tol)
            for problem, at in found.items():
                self.improve(problem, at.x, at.primal, at.dual, at.held_out, at.near)
            self.notify()
        self.solvers = {problem: self._solver(problem) for problem in self.unfinished()}  # go on from there

    def respond(self, requests: Mapping[MarginProblem, Point | HessianAt]) -> dict[MarginProblem, Any]:
        """Respond to the solvers; an empty response, when all passes are spent, ends them."""
        if self.is_spent:
            return {}
        points = {p: request for p, request in requests.items() if isinstance(request, Point)}
        self.waiting |= {p: request.at for p, request in requests.items() if isinstance(request, HessianAt)}
        # A problem that needs a Hessian waits until all running ones do: one pass then serves all of them.
        return self.evaluate(points) if points else self.hessians()

    def hessians(self) -> dict[MarginProblem, Any]:
        """The Hessians that are waited for."""
        at, self.waiting = self.waiting, {}
        return self.oracle.hessians(at)

    def evaluate(self, points: Mapping[MarginProblem, Point]) -> dict[MarginProblem, Evaluation]:
        """The evaluations of points; one light sweep."""
        self.n_sweeps += 1
        responses = self.oracle.evaluate(points)
        self.take(responses)
        return responses

    def nearest_rows(self, points: Mapping[MarginProblem, HingePoint], n_kept: int) -> NearestSums | None:
        """Respond to models of few rows."""
        self.notify()  # of the pass before, which `improve` has taken since
        if self.is_spent:
            return None
        self.n_sweeps += 1
        return self.oracle.nearest_rows(points, n_kept)

    def improve(
        self,
        problem: MarginProblem,
        x: np.ndarray,
        primal: float,
        dual: float,
        held_out: np.ndarray,
        near: float = np.inf,
    ) -> bool:
        """Improve a trace by its model's minimum; return whether the problem is solved."""
        self.traces[problem].improve(x, primal, dual, held_out, near)
        self.traces[problem].record(self.n_sweeps)
        return self._finished(problem)

    def unfinished(self) -> dict[MarginProblem, np.ndarray]:
        """The best points found of the problems that are not solved."""
        return {p: trace.found for p, trace in self.traces.items() if not self._finished(p)}

    def advance(self) -> bool:
        """Run the solvers of all unsolved problems until they end or pause; return whether there were any."""
        solvers = {p: self.solvers[p] for p in self.unfinished() if p in self.solvers}
        results = in_lockstep(solvers, self.respond)
        while self.waiting and not self.is_spent:  # nobody is left who asks for points: all get Hessians now
            results |= in_lockstep(solvers, self.respond, self.hessians())
        self.solvers = {p: solver for p, solver in solvers.items() if p not in results}
        return bool(solvers)

    def _solver(self, problem: MarginProblem) -> SolverGenerator | RestingGenerator:
        """The generator that solves a problem from its start."""
        x, oracle = self.traces[problem].found, self.oracle
        finished = partial(self._finished, problem)
        if oracle.problem.smooth_solver != "smoothed":
            after = oracle.hessian_after(len(self.traces)) if problem.held_out is None else None
            return solve_smooth(x, partial(oracle.preconditioner, problem), finished, hessian_after=after)
        # A model of all rows needs no good start, nor does one of sparse rows, which closes the gap in fewer
        # sweeps than a smaller epsilon does (measured: 13 in place of 22).
        early = oracle.is_sparse or oracle.n_rows <= 2 * oracle.rows_a_label
        return solve_smoothed(
            x,
            partial(oracle.preconditioner, problem),
            finished,
            tol=self.tol,
            min_curvature=problem.C * min(1.0, _CURVED_ROWS_A_FEATURE * oracle.n_features / oracle.n_rows),
            rests=Rests(_POINTS_BEFORE_MODELS, early) if self.has_models else None,
            looks_ahead=looks_ahead(oracle.problem, len(self.traces)),
        )

    def _finished(self, problem: MarginProblem, at: Evaluation | None = None) -> bool:
        """Whether the gap of a problem is closed."""
        given, trace = self.oracle.problem, self.traces[problem]
        # With warm_start a smooth loss has to close it by its best point alone. The next fit begins there
        # without the bounds of earlier points; one pass then finds the gap closed, where it took up to three.
        # The fit itself takes up to 8 % more sweeps (900 rows, C = 100, tol = 1e-3).
        alone = given.is_begun_from and given.smooth_solver == "lbfgs"
        return (trace.error_alone if alone else trace.error) <= self.tol


# The choice of C by held-out loss: all folds' problems in the same passes, from one C to the next.

_FOLDS_TOL = 1e-2
# λ = 1/(C·Σs·mean‖z‖²) of the default grid.
_DEFAULT_PENALTIES = np.geomspace(1e-1, 1e-6, 6)
_MAX_DECADES = 3  # beyond either end of it


@dataclass(frozen=True, eq=False)
class PenaltySearch:
    """The C that was given, or what the search for it found."""

    C: float  # of least mean held-out loss; the smaller of equals
    grid: np.ndarray | None = None  # (m,), ascending: those that were tried; None for a given C
    # (m, n_folds): weighted mean loss of rows under models that did not see them, mean over outputs.
    fold_scores: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    mean_scores: np.ndarray = field(default_factory=lambda: np.empty(0))  # (m,), of all rows together
    # Starting points of the fit to all rows: for each output the mean of its folds' points.
    starts: list[np.ndarray] = field(default_factory=list)
    fold_models: FoldModels | None = None  # of the chosen C, solved to the search's tolerance
    interruption: KeyboardInterrupt | None = None

    @property
    def entries(self) -> dict[str, Any]:
        """The search's entries of the report."""
        if self.grid is None:
            return {}
        return {
            "criterion": "held-out loss",
            "cv_score": self.mean_scores.min(initial=np.inf),
            "Cs": self.grid,
            "mean_score": self.mean_scores,
            "fold_scores": self.fold_scores,
        }


def search_penalty(
    oracle: MarginOracle, grid: np.ndarray, starts: list[np.ndarray], *, max_decades: int = 0
) -> PenaltySearch:
    """The best C of a grid; `starts` are those of the smallest C, one per output.

    Where an end of the grid is the best, the search goes on beyond it by at most so many decades, one by one,
    until the held-out loss no longer falls, and ends half a decade beside the best. With 0 decades it keeps
    to the grid.
    """
    penalty, n_folds = oracle.problem.penalty, oracle.folds.n_folds
    # As in the search for alpha: an error on held-out rows is not known better than that.
    tol = max(oracle.problem.tol, _FOLDS_TOL)
    points = {
        MarginProblem(output, 0.0, fold): x for fold in range(n_folds) for output, x in enumerate(starts)
    }
    sums: dict[float, np.ndarray] = {}
    means: dict[float, list[np.ndarray]] = {}
    best_points: dict[MarginProblem, np.ndarray] = {}
    interruption, to_try, is_refined = None, grid.tolist(), False
    while to_try:
        C = to_try.pop(0)
        points = {problem._replace(C=C): x for problem, x in points.items()}
        at = len(sums) + 1
        # One more follows the search: the fit to all rows.
        words = f"C = {C:.3g}, {at} of {at + len(to_try)}"
        solution = solve_margins(oracle, points, tol=tol, stage=words, n_after=len(to_try) + 1)
        points = {problem: trace.x for problem, trace in solution.traces.items()}
        if solution.interruption is not None:
            interruption = solution.interruption
            break
        sums[C] = _held_out_sums(solution, n_folds)
        means[C] = _means(points, len(starts))
        best, scores = _choice(penalty, sums)
        if best == C:
            best_points = points
        if not to_try and max_decades and not is_refined:
            points, to_try = best_points, _beyond_the_ends(best, sums, grid, max_decades)
            if not to_try:
                to_try, is_refined = _between(best, sums, scores), True
    best, scores = _choice(penalty, sums) if sums else (float(grid[0]), np.empty(0))
    tried = sorted(sums)
    totals = np.array([sums[C] for C in tried]).reshape(-1, n_folds, 2)
    return PenaltySearch(
        C=best,
        grid=np.array(tried),
        fold_scores=totals[:, :, 1] / totals[:, :, 0],
        mean_scores=scores,
        starts=means[best] if means else _means(points, len(starts)),
        fold_models=None if interruption else _fold_models(oracle, best_points),
        interruption=interruption,
    )


def _choice(penalty: Penalty, sums: Mapping[float, np.ndarray]) -> tuple[float, np.ndarray]:
    """The C of least mean held-out loss, and the mean loss of each; the smaller of equals."""
    tried = np.array(sorted(sums))
    totals = np.array([sums[C] for C in tried])  # (m, n_folds, 2)
    errors, weights = totals[:, :, 1].T[:, :, None], totals[0, :, 0]
    # 1/C is the penalty, so that of equal losses the smaller C is taken.
    choice = penalty.choose(1 / tried, errors, weights)
    return float(tried[choice.index]), choice.scores


def _fold_models(oracle: MarginOracle, points: Mapping[MarginProblem, np.ndarray]) -> FoldModels:
    """The models at the points of all folds and outputs."""
    by_fold = [
        np.concatenate(
            [oracle.columns(x) for problem, x in points.items() if problem.held_out == fold], axis=1
        )
        for fold in range(oracle.folds.n_folds)
    ]
    parts = [_in_units(oracle.targets, X, oracle.fit_intercept) for X in by_fold]
    coef, intercept = (np.stack(arrays) for arrays in zip(*parts, strict=True))
    return FoldModels(oracle.folds, coef, intercept)


def _beyond_the_ends(
    best: float, tried: Collection[float], grid: np.ndarray, max_decades: int
) -> list[float]:
    """The next C beyond an end of those tried, if this end is the best of them, else none."""
    # A difference of some digits at most: powers of ten are rounded.
    if best == max(tried) and best < 0.9 * grid[-1] * 10.0**max_decades:
        return [10 * best]
    if best == min(tried) and best > 1.1 * grid[0] / 10.0**max_decades:
        return [best / 10]
    return []


def _between(best: float, tried: Collection[float], scores: np.ndarray) -> list[float]:
    """The C between the best and the better of its neighbours.

    Whole decades are coarse: the test log loss of `rings` is .270 with C = 11, the best of them, and .251
    with 25.
    """
    ascending = sorted(tried)
    at = ascending.index(best)
    beside = {scores[place]: ascending[place] for place in (at + 1, at - 1) if 0 <= place < len(ascending)}
    finite = [score for score in beside if np.isfinite(score)]
    return [float(np.sqrt(best * beside[min(finite)]))] if finite else []


def _means(points: Mapping[MarginProblem, np.ndarray], n_outputs: int) -> list[np.ndarray]:
    """The mean over the folds of each output's points."""
    return [
        np.mean([x for problem, x in points.items() if problem.output == output], axis=0)
        for output in range(n_outputs)
    ]


def _held_out_sums(solution: MarginSolution, n_folds: int) -> np.ndarray:
    """Σ s and Σ s·ℓ of each fold over all outputs, of shape (n_folds, 2)."""
    sums = np.zeros((n_folds, 2))
    for problem, trace in solution.traces.items():
        sums[problem.held_out] += trace.held_out
    if not (sums[:, 0] > 0).all():
        empty = int(np.argmin(sums[:, 0]))
        raise InputError(
            f"C='cv' needs rows in each of {n_folds} folds, of a weight above 0, but fold {empty} has none; "
            f"use more rows, a smaller cv, or a number for C"
        )
    return sums


# The result, with its entries of the report.

_ROUNDING = {"float32": 1e-6, "float64": 1e-12}  # rounding: more sweeps give no smaller error
_LARGEST_TOL = 0.1


def margin_result(
    fit: PreparedFit, plan: Plan, solver: str, search: PenaltySearch, solution: MarginSolution
) -> FitResult:
    """The result of a solver of margin losses."""
    problem, traces = fit.problem, list(solution.traces.values())
    n_columns = fit.targets.n_outputs if problem.shares_loss(fit.targets) else 1
    # A softmax has one point of k columns, other losses k points of one.
    X = np.concatenate([trace.x.reshape(-1, n_columns) for trace in traces], axis=1)
    coef, intercept = _in_units(fit.targets, X, problem.fit_intercept)
    worst = max(traces, key=lambda trace: trace.error)
    result = FitResult(
        run=fit.run,
        plan=plan,
        n_rows=fit.dataset.n_rows,
        dtype=plan.size.dtype,
        targets=fit.targets,
        coef=coef,
        intercept=intercept,
        n_iter=solution.n_sweeps,
        status=solution.status,
        search=search,
        fold_models=search.fold_models,
        entries={
            "rkhs_norm": rkhs_norm(coef),
            "C": "inf" if problem.is_hard else search.C,
            "loss": "softmax" if problem.shares_loss(fit.targets) else problem.loss_name,
            "solver": solver,
            "tol": problem.tol,
            "primal": worst.certificate.primal,
            "dual": worst.certificate.dual,
            "duality_gap": worst.certificate.gap,
            "relative_gradient": worst.relative_gradient,
            "history": worst.history.values(worst.measure),
            **(_margins(coef, traces) if problem.is_hard else {}),
            **_in_units_of_targets(problem, fit.targets, search.C),
            **search.entries,
        },
        interruption=solution.interruption,
    )
    shortfall = None
    if not solution.status.is_converged:
        size = fit.weight * fit.mean_square_norm
        shortfall = _shortfall(problem, result, worst, n_sweeps=solution.n_sweeps, size=size)
    gram_stride = 1 if solver == "sgd" else plan.size.gram_stride
    return replace(result, notes=_notes(problem, result, gram_stride), shortfall=shortfall)


def _in_units(targets: Targets, X: np.ndarray, fit_intercept: bool) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and intercepts in the targets' own units, of points in columns."""
    return in_units(targets, *coef_and_intercept(X, fit_intercept=fit_intercept), fit_intercept=fit_intercept)


def _in_units_of_targets(problem: Problem, targets: Targets, C: float) -> dict[str, Any]:
    """C, epsilon and delta for targets in their own units, where the loss has those of spreads."""
    loss = problem.loss
    if not isinstance(loss, Residual):
        return {}
    found = loss.in_units(C, targets.scale[: 1 if problem.n_quantiles > 1 else None]).items()
    return {"in_units_of_y": {name: A.tolist() if len(A) > 1 else float(A[0]) for name, A in found}}


def _margins(coef: np.ndarray, traces: list[Trace]) -> dict[str, Any]:
    margins = (1 / np.linalg.norm(coef, axis=0)).tolist()
    smallest = [trace.smallest_margin for trace in traces if trace.smallest_margin is not None]
    return {
        "margin": margins if len(margins) > 1 else margins[0],
        "smallest_margin": min(smallest, default=None),
    }


def _notes(problem: Problem, result: FitResult, gram_stride: int) -> list[str]:
    """Notes on the choices that were made, for the report."""
    solver, search, coef, notes = result.entries["solver"], result.search, result.coef, []
    if problem.solver == "auto" and not problem.is_hard:
        why = {
            "lbfgs": "the loss is smooth",
            "smoothed": "the loss is not smooth",
            "dual": "the loss is not smooth, and the rows are few",
            "sgd": "the Gram of a sample does not fit in the workers' memory",
        }[solver]
        notes.append(f"solver='auto' is {solver!r}: {why}")
    if gram_stride > 1:
        notes.append(f"the preconditioner is the Gram of one row in {gram_stride}")
    if search.grid is not None and len(search.grid):
        notes.append(f"C is the best of {len(search.grid)} by held-out loss, {search.mean_scores.min():.4g}")
        if search.interruption is None:
            notes += end_of_grid("C", search.C, search.grid, search.mean_scores)
    constant = np.flatnonzero(~coef.any(axis=0)).tolist()
    if constant and isinstance(result.targets, ClassTargets):
        classes = ", ".join(str(label) for label in result.targets.classes[constant])
        whose = "" if coef.shape[1] == 1 else f" of {'class' if len(constant) == 1 else 'classes'} {classes}"
        notes.append(f"the model{whose} is a constant: none better was found")
    if result.status is Status.CONVERGED_UNCERTIFIED:
        notes.append("the objective no longer falls, and the duality gap is all that bounds its error")
    return notes


def _shortfall(problem: Problem, result: FitResult, worst: Trace, *, n_sweeps: int, size: float) -> str:
    """The warning of a fit that stopped above its tolerance; `size` is Σs·mean‖z‖²."""
    if result.status is Status.NOT_DECIDED:
        return (
            f"after light sweep {n_sweeps} the rows are neither separated, with a margin known to "
            f"{problem.tol:g}, nor shown to be not separable; allow more by max_sweeps, or use a finite C"
        )
    if result.entries["solver"] == "sgd":
        return (
            f"the objective still fell by more than tol={problem.tol:g} in light sweep "
            f"{n_sweeps}; allow more by max_sweeps, or a larger tol"
        )
    ended = n_sweeps >= problem.max_sweeps
    advice = remedy(worst.error, result.search.C, size=size, dtype=result.dtype, ended=ended)
    reached = f"the {worst.measure} is {worst.error:.2g} after light sweep {n_sweeps}"
    return f"{reached}, above tol={problem.tol:g}; {advice}"


def remedy(error: float, C: float, *, size: float, dtype: str, ended: bool) -> str:
    """The remedy in words: other parameters, or more sweeps.

    `size` is Σs·mean‖z‖²: C times it is the size of the losses' part beside the penalty. `ended` says whether
    all sweeps were spent.
    """
    # Beyond it C·Σ s·‖z‖² is more than 1/ε times the penalty's 1, of which their sum then has no digit.
    max_C = {name: 1 / (float(np.finfo(name).eps) * size) for name in ("float32", "float64")}
    if max_C["float64"] < C:
        return f"beside C={C:g} the penalty is lost to rounding: use a C below {max_C['float64']:.1g}"
    min_C = float(np.finfo("float64").eps) / size
    if min_C > C:
        return f"beside the penalty C={C:g} is lost to rounding: use a C above {min_C:.1g}"
    rounded = not ended or max_C[dtype] < C or error < _ROUNDING[dtype]
    larger = ", or a larger tol" if error < _LARGEST_TOL else ""
    if not rounded:
        return f"allow more by max_sweeps{larger}"
    if dtype == "float32":
        return f"rounding ends it: use dtype='float64'{larger}"
    return "rounding ends it: use a larger tol" if larger else "rounding ends it: use a smaller C"


# What they cost.

_PRESUMED_GRID = 7
_MAX_LOOKING_AHEAD = 4
# On 4096 rows and 1024 features a search of C takes .4 of the time of light sweeps, one C .4 with five
# classes and .8 with two. Memory sets the limit: the Gram of the rows grows with their square.
_MAX_DUAL_ROWS = 2**12
# Of numbers more rows are between their bounds. With C="cv" three quantiles of 2,000 rows take 9 s in place
# of 16 and a tube 8.5 in place of 8; of 4,000 rows it is 21 in place of 18, and 20 in place of 9.
_MAX_DUAL_ROWS_OF_NUMBERS = 2**11


def margin_size(problem: Problem, size: Size) -> MarginSize:
    """The size with the numbers that a margin loss adds."""
    n_rows, D, k, entries = size.n_rows, size.n_features, size.n_outputs, size.sparse_entries
    grid, searched = problem.penalty.grid, problem.penalty.search is not None
    n_problems, n_grid = k * max(1, problem.folds.n_folds), _PRESUMED_GRID if grid is None else len(grid)
    is_smooth = problem.smooth_solver == "lbfgs"
    is_worth_it = can_model(D, entries) and not problem.is_hard
    has_models = problem.margin_loss.is_hinge and is_worth_it
    has_dual = not problem.margin_loss.is_smooth and is_worth_it and not entries
    most = _MAX_DUAL_ROWS if problem.margin_loss.is_hinge else _MAX_DUAL_ROWS_OF_NUMBERS
    is_dual = has_dual and problem.solver == "auto" and n_rows <= most and _is_one_segment(n_rows, D)
    has_hessians = is_smooth and not (entries or problem.is_hard or problem.softmax)
    return replace(
        MarginSize(**vars(size)),
        n_folds=1,  # of the Gram, which only preconditions
        gram_stride=gram_stride(n_rows, D),
        n_problems=n_problems,
        n_light_columns=n_problems * (2 if looks_ahead(problem, n_problems) else 1),
        n_light_sweeps=PRESUMED_SWEEPS * (1 + n_grid if searched else 1),
        model_rows=max_model_rows(D, entries) if has_models else 0,
        dual_rows=n_rows if is_dual else 0,
        n_hessians=k if has_hessians else 0,
    )


def _is_one_segment(n_rows: int, n_features: int) -> bool:
    """Whether light sweeps would be those of one task, so that no cluster solves them faster."""
    return light_segmentation_of_features(n_rows, n_features, 1).n_segments == 1


def looks_ahead(problem: Problem, n_problems: int) -> bool:
    """Whether each sweep evaluates every problem at two epsilons of its rounded hinge."""
    # For few problems, whose thin products are a small part of a sweep.
    return problem.smooth_solver == "smoothed" and n_problems <= _MAX_LOOKING_AHEAD


def _gram_sizes(size: MarginSize) -> list[MarginSize]:
    """The size as it is, and without the parts that a margin loss can spare: a dual, and Hessians."""
    if size.dual_rows:
        return [size, replace(size, dual_rows=0)]
    if size.n_hessians > 1:
        # Several problems have none where their sum takes longer than most fits by light sweeps do, or where
        # they are large: the memory is better filled with features then. Neither depends on the workers.
        without = replace(size, n_hessians=0)
        are_small = 8 * size.n_hessians * size.hessian_size**2 <= _MAX_HESSIAN_BYTES
        are_short = size.hessian_sweeps <= _MAX_HESSIAN_SWEEPS
        return [size, without] if are_small and are_short else [without]
    return [size]


def _margin_peak_bytes(size: MarginSize, threads: int) -> int:
    """The largest resident set above idle in the passes and models of margin losses."""
    if not size.n_problems:
        return 0
    # The Gram and three factors to precondition with; below, the factor of each Hessian.
    kept = 4 * 8 * size.gram_size**2 + _dual_bytes(size)
    several = size.n_hessians if size.n_hessians > 1 else 0  # the sweep of one counts with that of the Gram
    passes = margin_peak_bytes(size, size.n_light_columns, threads) + several * 8 * size.hessian_size**2
    hessians = 0
    if several:
        gathered = MIN_GATHERED_ROWS * several * size.hessian_size * size.itemsize
        alone = replace(size, n_outputs=0, n_light_sweeps=0)  # the Gram is counted beside it
        hessians = gram_peak_bytes(alone, several, threads) + threads * gathered
    return kept + max(passes, hessians, model_peak_bytes(size, threads))


def _sparse_peak_bytes(size: MarginSize, k: int, threads: int) -> int:
    return max(margin_peak_bytes(size, k, threads), model_peak_bytes(size, threads))


def _dual_bytes(size: MarginSize) -> int:
    """The bytes of all features as they are made and in float64, and of the Gram of the rows."""
    n = size.dual_rows
    # The Gram, and of multipliers inside their bounds its rows and their products with each other.
    return n * size.n_features * (2 * size.itemsize + 8) + 3 * 8 * n**2


_MAX_HESSIAN_SWEEPS, _MAX_HESSIAN_BYTES = 40, 2**27


# Hard-margin models solved together: each sweep finds the rows of smallest margin.


_MIN_KEPT, _MAX_KEPT = 64, 1024


def solve_hard_margins(oracle: MarginOracle, starts: Mapping[MarginProblem, np.ndarray]) -> MarginSolution:
    """The models of maximum margin, each from its start.

    Raises InputError if the features do not separate a class from the rest, with what shows it.
    """
    given, n_kept = oracle.problem, min(_MAX_KEPT, max(_MIN_KEPT, oracle.n_features))
    passes = Passes(oracle, begun(starts), given.tol, measure="duality gap")
    models = {
        problem: HardMargin(x, fit_intercept=given.fit_intercept, tol=given.tol)
        for problem, x in starts.items()
    }
    oracle.run.observer.begin_solver(given.max_sweeps)

    def record(problems: Iterable[MarginProblem]) -> None:
        for problem, model in models.items():
            trace = passes.traces[problem]
            trace.x, trace.certificate, trace.smallest_margin = (
                model.x,
                model.certificate,
                model.checked_margin,
            )
        for problem in problems if passes.n_sweeps else ():
            passes.traces[problem].record(passes.n_sweeps)

    def respond(points: Mapping[MarginProblem, np.ndarray]) -> dict[MarginProblem, CriticalRows]:
        if passes.is_spent:
            return {}
        record(points)
        passes.notify()
        passes.n_sweeps += 1
        return oracle.smallest_margins(points, n_kept)

    def solve() -> Status:
        in_lockstep({problem: model.steps() for problem, model in models.items()}, respond)
        for problem, model in models.items():
            if model.inseparable:
                assert isinstance(oracle.targets, ClassTargets)
                raise InputError(_refusal(oracle.targets, problem, model))
        if all(model.converged for model in models.values()):
            return Status.CONVERGED
        separated = all(np.isfinite(model.certificate.gap) for model in models.values())
        return Status.NOT_CONVERGED if separated else Status.NOT_DECIDED

    solution = passes.solution(solve)
    record(models)
    return solution


def _refusal(targets: ClassTargets, problem: MarginProblem, model: HardMargin) -> str:
    """The evidence that no model separates the rows, and the remedy."""
    last, named = model.last, "the classes are"
    assert last is not None
    if targets.n_outputs > 1:
        named = f"the class {targets.classes.tolist()[problem.output]!r} and the rest are"
    return (
        f"{named} not separable with these features: by a weighted mean of "
        f"{np.count_nonzero(model.working.a)} rows no margin is above {model.bound:.2g}, under "
        f"{NEGLIGIBLE:g} of the largest ‖z‖, {last.largest_norm:.2g}; of the model tried last "
        f"{last.n_violating} rows "
        f"violate y·f ≥ 1, the worst with y·f = {last.margin.min():.3g}"
        f"; use a finite C, more features, or a narrower kernel"
    )


# The hinge's last digits: models of few rows that grow where a pass over all rows shows them wrong.
#
# A model is exact for the rows that were near the hinge y·f = 1 at its reference point, or changed sides
# since (see `solvers.active_set`). Its minimum bounds the objective of all rows from below and rises with
# each row; where no row outside has changed sides, it is the objective's minimum. A model of all rows is
# the whole problem. The bound has to come from such a model: for the hinge w does not determine the dual
# point, and the best bound that follows from w alone leaves a gap of 1 to 11 % at the exact optimum. Models
# of dense features are solved by Newton steps of D³/3 flops, those of sparse ones, which have more features
# than rows, by steps in the rows' multipliers.


_MODEL_SHARE = 0.4  # of tol
_FIRST_EPSILON = 1.0
_FAR = 2.0**20  # for an intercept
# With a poor reference point, rows can be added round after round and the bound never rises enough.
# Models that do finish leave about a third of the distance at first, and those that came near all finished.
_NEAR, _FIRST_SHARE = 0.1, 0.3


@dataclass(eq=False)
class _Model:
    """One problem's model: rows, and the sums at its reference point over all rows."""

    reference: np.ndarray
    rows: NearestRows
    violating_weight: float
    violating_vector: np.ndarray
    x: np.ndarray
    alpha: np.ndarray | None = None
    distance: float = np.inf

    def is_on_course(self, distance: float, n_rounds: int) -> bool:
        """Whether the bound will be near the objective after that many rounds like the last.

        `distance` is the gap between the two, relative to the objective.
        """
        # The first round predicts nothing.
        share = distance / self.distance if np.isfinite(self.distance) else _FIRST_SHARE
        self.distance = distance
        return distance * min(1.0, share) ** n_rounds <= _NEAR

    @property
    def known(self) -> np.ndarray:
        return np.sort(self.rows.number)

    @property
    def excess(self) -> float:
        """The intercept's slope in the linear part beyond what the rows' multipliers can balance.

        Its sign is the label of the rows that cause it; 0 where the model has a minimum.
        """
        # The slope of q by b is −C·slope − Σ α_i·y_i with 0 ≤ α_i ≤ C·s_i: it can be 0 for slopes within
        # these sums alone, and without that q has no minimum.
        signed = self.rows.weight * self.rows.label
        slope = float(self.violating_vector[-1] - signed[self.rows.violating].sum())
        lowest, highest = -float(signed[signed > 0].sum()), -float(signed[signed < 0].sum())
        return max(0.0, slope - highest) + min(0.0, slope - lowest)

    def without_violations(self, label: float) -> np.ndarray:
        """The reference point with an intercept at which no row of the label is violating."""
        x = self.reference.copy()
        # All rows of the label move alike: the worst of them are then the nearest to the hinge.
        x[-1] += _FAR * max(1.0, abs(x[-1])) * label
        return x

    def add(self, rows: NearestRows, C: float) -> None:
        """Take more rows, each with the multiplier of its side at the reference point."""
        self.rows = self.rows.merge(rows, None)
        if self.alpha is not None:
            self.alpha = np.append(self.alpha, np.where(rows.violating, C * rows.weight, 0.0))


def finish_exactly(
    oracle: MarginOracle,
    points: Mapping[MarginProblem, np.ndarray],
    nearest_rows: Callable[[Mapping[MarginProblem, HingePoint], int], NearestSums | None],
    improve: Callable[[MarginProblem, np.ndarray, float, float, np.ndarray], bool],
    *,
    tol: float,
) -> None:
    """Improve each problem from its point until that is good enough, or its model cannot grow.

    `nearest_rows` is that of `MarginOracle`, and returns None once no more passes are allowed. `improve`
    takes a problem, a point, its objective, a lower bound, and the sums over held-out rows; it returns
    whether the point is good enough.
    """
    models: dict[MarginProblem, _Model] = {}
    if not points:
        return
    found = nearest_rows({problem: HingePoint(x) for problem, x in points.items()}, oracle.rows_a_label)
    if found is not None:
        for i, (problem, x) in enumerate(points.items()):
            rows, weight = found.rows(i), float(found.violating_weight[i])
            if len(rows.number):  # else no row has weight, as where a fold alone has any
                models[problem] = _Model(x, rows, weight, found.violating_vector[i], x)
        primal = {problem: _primal(problem, x, found, i) for i, (problem, x) in enumerate(points.items())}
        _widen(oracle, models, nearest_rows)
    while models:
        tols = {problem: _MODEL_SHARE * tol * primal[problem] for problem in models}
        bounds = _minimise_models(oracle, models, tols)
        found = nearest_rows(
            {p: HingePoint(m.x, m.reference, m.known) for p, m in models.items()}, oracle.rows_a_label
        )
        if found is None:
            return
        unfinished = {}
        for i, (problem, model) in enumerate(models.items()):
            value = _primal(problem, model.x, found, i)
            primal[problem] = min(primal[problem], value)
            is_good = improve(problem, model.x, value, bounds[problem], found.held_out[:, i])
            rows = found.rows(i)
            n_rows = len(rows.number)
            room = oracle.max_model_rows - len(model.rows.number)
            # Without new rows the model is exact, and another round changes nothing.
            if is_good or not 0 < n_rows <= room:
                continue
            distance = (primal[problem] - bounds[problem]) / primal[problem]
            has_room_for_all = oracle.n_rows <= oracle.max_model_rows
            if has_room_for_all or model.is_on_course(distance, room // n_rows):
                model.add(rows, problem.C)
                unfinished[problem] = model
        models = unfinished


def _widen(
    oracle: MarginOracle,
    models: dict[MarginProblem, _Model],
    nearest_rows: Callable[[Mapping[MarginProblem, HingePoint], int], NearestSums | None],
) -> None:
    """Add rows to each model without a minimum until it has one; drop those that would grow too large."""
    while oracle.fit_intercept and (lacking := {p: model for p, model in models.items() if model.excess}):
        labels = {problem: np.sign(model.excess) for problem, model in lacking.items()}
        points = {
            problem: HingePoint(
                model.without_violations(labels[problem]), model.reference, model.known, labels[problem]
            )
            for problem, model in lacking.items()
        }
        more = nearest_rows(points, WIDENING * oracle.rows_a_label)
        if more is None:
            models.clear()
            return
        for i, (problem, model) in enumerate(lacking.items()):
            rows = more.sides[i][0 if labels[problem] > 0 else 1]
            # As many rows as can balance the excess, and beside them as many as any other model begins with.
            n_needed = 1 + int(np.searchsorted(np.cumsum(rows.weight), abs(model.excess)))
            model.add(rows.first(n_needed + oracle.rows_a_label), problem.C)
            if len(model.rows.number) > oracle.max_model_rows or not len(rows.number):
                del models[problem]


def _minimise_models(
    oracle: MarginOracle, models: Mapping[MarginProblem, _Model], tols: Mapping[MarginProblem, float]
) -> dict[MarginProblem, float]:
    """Move each model to its minimum, side by side on the cluster; return their lower bounds."""
    shared = (oracle.features_of, oracle.sent_map, oracle.fit_intercept)
    calls = [(*shared, model, problem.C, tols[problem]) for problem, model in models.items()]
    solutions: list[ActiveSetSolution] = oracle.run.map(solve_model, calls)
    for model, solution in zip(models.values(), solutions, strict=True):
        model.x, model.alpha = solution.x, solution.alpha
    return {problem: solution.bound for problem, solution in zip(models, solutions, strict=True)}


def solve_model(
    features_of: FeaturesOf, sent: list[Arrays], fit_intercept: bool, at: _Model, C: float, tol: float
) -> ActiveSetSolution:
    """The minimum of the model that is exact for some rows and linear for all others."""
    rows, x = at.rows, at.x
    A = _signed(features_of(rows.X, sent), rows.label)
    # The sums at the reference point hold all violating rows: those of the model, which it has exactly, leave
    # them.
    linear_weight = at.violating_weight - rows.weight[rows.violating].sum()
    linear_vector = at.violating_vector - (rows.weight * rows.violating) @ A
    upper, size = C * rows.weight, len(x)
    # Without an intercept x has D entries, and the column of labels is left out.
    model = ActiveSetModel(A[:, :size], upper, -C * linear_vector[:size], C * linear_weight, fit_intercept)
    alpha = first_multipliers(model, x) if at.alpha is None else at.alpha
    if issparse(A):
        return ascend(model, x, alpha, tol=tol)
    return minimise(model, x, alpha, epsilon=_FIRST_EPSILON, tol=tol)


def _signed(Z: Any, label: np.ndarray) -> Any:
    """The rows y·[z | 1] in float64, in the format of Z."""
    if issparse(Z):
        return hstack([diags_array(label) @ Z.astype(np.float64), label[:, None]], format="csr")
    A = np.empty((len(Z), Z.shape[1] + 1))
    np.multiply(Z, label[:, None], out=A[:, :-1])
    A[:, -1] = label
    return A


def _primal(problem: MarginProblem, x: np.ndarray, found: NearestSums, i: int) -> float:
    w = x[: found.violating_vector.shape[1] - 1]
    return problem.C * float(found.value[i]) + 0.5 * float(w @ w)
