"""What solvers of margin machines ask for, each answer one sweep or one small task on the cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from scipy.sparse import diags_array, hstack, issparse
from scipy.special import logsumexp

from distrff.engine.reduction import joined
from distrff.engine.run import SweepRun
from distrff.engine.segments import (
    gram_one_in,
    light_segmentation_of_features,
    margin_tile_rows,
    sparse_segmentation,
)
from distrff.errors import InputError
from distrff.estimators.fitting.context import Preparation
from distrff.estimators.fitting.gram import GramContext, sample_of
from distrff.estimators.fitting.options import MarginOptions
from distrff.estimators.fitting.plan import Plan
from distrff.features.specification import MapSpecification
from distrff.io.dataset import Dataset
from distrff.preprocessing.scaling import Scaling
from distrff.preprocessing.targets import ClassTargets
from distrff.reductions.base import Folds
from distrff.reductions.gram import CurvatureGramReduction
from distrff.reductions.margins import (
    KinkReduction,
    KinkRows,
    KinkSums,
    LightReduction,
    MarginReduction,
    SmallestMarginsReduction,
    SoftmaxReduction,
    can_model,
    kept_rows,
    most_model_rows,
)
from distrff.reductions.ridge import RightSidesReduction
from distrff.solvers.active_set import KinkModel, KinkSolution, ascend, first_multipliers, minimise
from distrff.solvers.hard_margin import CriticalRows
from distrff.solvers.lbfgs import (
    Conversation,
    DiagonalPreconditioner,
    Hessian,
    Preconditioner,
    RestingConversation,
    Rests,
    solve_smooth,
    solve_smoothed,
)
from distrff.solvers.losses import Loss, MarginLoss
from distrff.solvers.objective import Certificate, DualBundle, Evaluation, Point
from distrff.solvers.ridge import GramProblem, RidgeEquations, RidgeMoments, ridge_system, total_gram
from distrff.solvers.status import History, Status, in_lockstep

_MOST_FACTORS = 3
_LEAST_CURVATURE = 1e-100
_LIGHT_SWEEPS = 4.0  # that the products of a Hessian may take


class MarginProblem(NamedTuple):
    """One machine: which target it is for, its C, and the fold that is held out of it."""

    output: int
    C: float
    held_out: int | None = None


class KinkPoint(NamedTuple):
    """A point of a hinge machine, with its model's reference point and sorted row numbers."""

    x: np.ndarray
    reference: np.ndarray | None = None
    known: np.ndarray | None = None


@dataclass(frozen=True)
class FeaturesOf:
    """Rows as they were read ↦ their features, as sweeps make them."""

    specification: MapSpecification
    scaling: Scaling
    dtype: str

    def __call__(self, X: np.ndarray, shipped: list[Mapping[str, np.ndarray]]) -> np.ndarray:
        block_map = self.specification.build(joined(shipped))
        return block_map.apply(self.scaling.apply(X, np.dtype(self.dtype)))


class MarginOracle:
    """Evaluates machines by sweeps, and applies preconditioners where the Gram is.

    Parameters
    ----------
    run : SweepRun
    dataset : Dataset
    preparation : Preparation
    plan : Plan
    options : MarginOptions
    grams : GramContext or None
        None where no preconditioner is asked for, or a diagonal one of sparse features.
    folds : Folds or None
        Of the machines that are judged on some.
    """

    def __init__(
        self,
        run: SweepRun,
        dataset: Dataset,
        preparation: Preparation,
        plan: Plan,
        options: MarginOptions,
        grams: GramContext | None,
        folds: Folds | None,
    ) -> None:
        self.run = run
        self._dataset, self._preparation, self._plan = dataset, preparation, plan
        self.n_rows = dataset.n_rows
        self.n_features = preparation.specification.n_features
        self.fit_intercept = options.fit_intercept
        self._loss = options.loss
        self._grams = grams
        self._folds = folds
        self._options = options
        self._moments: RidgeMoments | None = None
        self._factors: WeakValueDictionary[float, _Factor] = WeakValueDictionary()
        dtype = np.dtype(plan.shape.dtype)
        entries = plan.shape.sparse_entries
        self.is_sparse = entries > 0
        self.can_model = can_model(self.n_features, entries)
        self.kept_rows = kept_rows(self.n_features, entries)
        self.most_model_rows = most_model_rows(self.n_features, entries)
        tile_rows = margin_tile_rows(self.n_features, dtype, plan.shape.map_cost.least_tile_rows)
        self._cuts = (
            sparse_segmentation(dataset.n_rows, entries)
            if self.is_sparse
            else light_segmentation_of_features(dataset.n_rows, self.n_features, tile_rows)
        )
        self._shared: dict[str, Any] = {
            "specification": preparation.specification,
            "scaling": preparation.scaling,
            "targets": preparation.targets,
            "dtype": dtype.name,
            "tile_rows": self._cuts.tile_rows,
        }

    def evaluate(self, points: Mapping[MarginProblem, Point]) -> dict[MarginProblem, Evaluation]:
        """Return what one sweep says of one point of each of some machines."""
        asked = [(p, point.x, width) for p, point in points.items() for width in point.widths]
        problems = tuple(problem for problem, _, _ in asked)
        held_out = tuple(problem.held_out for problem in problems)
        folds = self._folds if any(fold is not None for fold in held_out) else None
        reduction = self._reduction(problems, self._shared | {"folds": folds, "held_out": held_out})
        X = np.concatenate([self.columns(x) for _, x, _ in asked], axis=1)
        sent = self._point(X) | {"width": np.array([width for _, _, width in asked])}
        handle = self.run.sweep("margins", self._dataset, reduction, self._cuts, sent)
        sums = self.run.gather([handle])[0]
        answers: dict[MarginProblem, Evaluation] = {}
        for machine, (problem, x, width) in enumerate(asked):
            at = self._evaluation(problem.C, sums, machine, x)
            answers[problem] = replace(answers[problem], next=(width, at)) if problem in answers else at
        return answers

    def kinks(self, points: Mapping[MarginProblem, KinkPoint], n_kept: int) -> KinkSums:
        """Return what one sweep finds at each point, with `n_kept` rows a label for its model."""
        problems, columns = tuple(points), [point.x for point in points.values()]
        references = [point.reference for point in points.values() if point.reference is not None]
        X = np.stack([*columns, *references], axis=1)
        held_out = tuple(problem.held_out for problem in problems)
        reduction = KinkReduction(
            **self._shared,
            folds=self._folds if any(fold is not None for fold in held_out) else None,
            held_out=held_out,
            outputs=tuple(problem.output for problem in problems),
            n_kept=n_kept,
            has_reference=bool(references),
        )
        known = {f"known_{j}": p.known for j, p in enumerate(points.values()) if p.known is not None}
        handle = self.run.sweep("margins", self._dataset, reduction, self._cuts, self._point(X) | known)
        return self.run.gather([handle])[0]

    def smallest_margins(
        self, points: Mapping[MarginProblem, np.ndarray], n_kept: int
    ) -> dict[MarginProblem, CriticalRows]:
        """Return the rows of smallest margin at one point of each machine, `n_kept` of each label."""
        reduction = SmallestMarginsReduction(
            **self._shared, outputs=tuple(problem.output for problem in points), n_kept=n_kept
        )
        sent = self._point(np.stack(list(points.values()), axis=1))
        handle = self.run.sweep("margins", self._dataset, reduction, self._cuts, sent)
        found = self.run.gather([handle])[0]
        return {problem: reduction.critical_rows(found, j) for j, problem in enumerate(points)}

    def _point(self, X: np.ndarray) -> dict[str, np.ndarray]:
        coef, intercept = (X[:-1], X[-1]) if self.fit_intercept else (X, np.zeros(X.shape[1]))
        return {"coef": coef, "intercept": intercept}

    @property
    def targets(self) -> ClassTargets:
        """The classes."""
        return self._shared["targets"]

    @property
    def features_of(self) -> FeaturesOf:
        """What makes features of the rows that a sweep brought back."""
        specification = self._shared["specification"]
        return FeaturesOf(specification.without_arrays(), self._shared["scaling"], self._shared["dtype"])

    @property
    def shipped_map(self) -> list[Any]:
        """Handles on the map's arrays, as tasks take them."""
        return self.run.shipped_map(self._shared["specification"])

    def _reduction(self, problems: tuple[MarginProblem, ...], shared: dict[str, Any]) -> LightReduction:
        outputs = tuple(problem.output for problem in problems)
        return MarginReduction(**shared, loss=self._loss, outputs=outputs)

    def _evaluation(self, C: float, sums: Any, machine: int, x: np.ndarray) -> Evaluation:
        return Evaluation.of(C, sums, machine, x, fit_intercept=self.fit_intercept)

    def columns(self, x: np.ndarray) -> np.ndarray:
        """Return a point as columns, one an output of the machine."""
        return x[:, None]

    def preconditioner(self, curvature: float) -> Callable[[np.ndarray], np.ndarray]:
        """Return g ↦ (h · Gram + I)⁻¹g for a power of four h near the curvature.

        Beyond the curvature at which I would be lost to the Gram's rounding it is the inverse at that one,
        times the share of it. Machines of like curvature share a factor, which is freed when the last of
        them asks for another. There are few at a time: beyond these the nearest serves.
        """
        if self._grams is None:
            return self._diagonal(curvature).apply
        most = 1 / self._grams.noise_floor(self._grams.problem.sizes[-1])
        if curvature > most:
            at_most = self.preconditioner(most)
            return lambda gradient: at_most(gradient) * (most / curvature)
        h = max(_LEAST_CURVATURE, curvature)
        level = float(np.floor(np.log2(h) / 2))
        if level not in self._factors and len(self._factors) >= _MOST_FACTORS:
            level = min(self._factors, key=lambda other: abs(other - level))
        factor = self._factors.get(level)
        if factor is None:
            grams = self._grams
            handle = self.run.submit(preconditioner_of, grams.total, 4.0**level, grams.problem)
            factor = self._factors[level] = _Factor(self.run, handle)
        return factor.solve

    def _diagonal(self, curvature: float) -> DiagonalPreconditioner:
        """Return the same of the Gram's diagonal, which the first one takes a sweep for."""
        if self._moments is None:
            reduction = RightSidesReduction(**self._shared, offset=None)
            k = self.targets.n_outputs
            zero = {"coef": np.zeros((self.n_features, k)), "intercept": np.zeros(k)}
            handle = self.run.sweep("diagonal", self._dataset, reduction, self._cuts, zero)
            self._moments = self.run.gather([handle])[0]
        equations = RidgeEquations.of(self._moments, fit_intercept=self.fit_intercept)
        return DiagonalPreconditioner(
            max(_LEAST_CURVATURE, curvature),
            equations.z_mean,
            self._moments.weight,
            self.fit_intercept,
            equations.G_diagonal,
        )

    def hessian(self, problem: MarginProblem, at: Evaluation) -> Hessian | None:
        """Return the Hessian at a point, of one row in so many that enough of them bend there; one sweep.

        None where none bends.
        """
        if self._grams is None or not at.n_bending:
            return None
        shape, grams = self._plan.shape, self._grams
        few = int(_LIGHT_SWEEPS * shape.light_flops / shape.size**2)
        one_in = gram_one_in(at.n_bending, self.n_features, few)
        cuts = replace(shape, gram_one_in=one_in).segmentation()
        reduction = CurvatureGramReduction(
            specification=self._preparation.specification,
            scaling=self._preparation.scaling,
            targets=self._preparation.targets,
            dtype=shape.dtype,
            tile_rows=min(cuts.tile_rows, self._plan.tile_rows),
            light_rows=self._cuts.tile_rows,
            folds=sample_of(one_in, self._options, self.n_rows),
            loss=self._loss,
            output=problem.output,
        )
        handle = self.run.sweep("Hessian", self._dataset, reduction, cuts, self._point(at.x[:, None]))
        curvature = one_in * min(problem.C, 1 / grams.noise_floor(grams.problem.sizes[-1]))
        total = self.run.submit(total_gram, [handle], grams.problem)
        factor = _Factor(self.run, self.run.submit(preconditioner_of, total, curvature, grams.problem))
        return Hessian(factor.solve, is_light=at.n_bending <= few)


class SoftmaxOracle(MarginOracle):
    """The same for machines whose classes share one loss; a point is their (D + 1, k) or (D, k) numbers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._n_classes = len(self._shared["targets"].classes)

    def _reduction(self, problems: tuple[MarginProblem, ...], shared: dict[str, Any]) -> LightReduction:
        return SoftmaxReduction(**shared, sigma=self._loss.clear_margin)

    def _evaluation(self, C: float, sums: Any, machine: int, x: np.ndarray) -> Evaluation:
        return Evaluation.of_softmax(C, sums, machine, x, fit_intercept=self.fit_intercept)

    def columns(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, self._n_classes)

    def preconditioner(self, curvature: float) -> Callable[[np.ndarray], np.ndarray]:
        """Return the same map for each class."""
        solve = super().preconditioner(curvature)
        return lambda gradient: solve(self.columns(gradient)).ravel()


class _Factor:
    """A handle on a preconditioner where the Gram is."""

    def __init__(self, run: SweepRun, handle: Any) -> None:
        self.run = run
        self._handle = handle

    def solve(self, gradient: np.ndarray) -> np.ndarray:
        return self.run.gather([self.run.submit(preconditioned, self._handle, gradient)])[0]


def preconditioner_of(total: np.ndarray, curvature: float, problem: GramProblem) -> Preconditioner:
    """Return the preconditioner that a Gram gives: of rows alike, or weighted by their curvature."""
    system = ridge_system(total, problem.n_targets, fit_intercept=problem.fit_intercept)
    return Preconditioner.of(system, curvature)


def preconditioned(preconditioner: Preconditioner, gradient: np.ndarray) -> np.ndarray:
    """Return M⁻¹g."""
    return preconditioner.apply(gradient)


# Margin machines solved together: each sweep answers all that are not done.

_BENDING_A_FEATURE = 0.1
_ROUNDING = 1e-12  # of an objective that is summed in float64
# A model whose reference point is far off wastes sweeps, and so do many small steps at one width.
_POINTS_BEFORE_MODELS = 10


@dataclass
class Progress:
    """The best point of one machine so far, and how good it is known to be.

    Parameters
    ----------
    x : ndarray
        Where its solver starts.
    """

    x: np.ndarray
    found: np.ndarray = field(init=False)
    """The best point that the solver has found, which a constant may be better than."""
    certificate: Certificate = field(default_factory=Certificate)
    held_out: np.ndarray = field(default_factory=lambda: np.zeros(2))
    """Σ s and Σ s·ℓ over the rows that the machine is judged on."""
    relative_gradient: float = np.inf
    """‖∇‖ at the best point found, of that at the first one."""
    smallest_margin: float | None = None
    """Of all rows, of a hard-margin machine; None where it was not checked at its last point."""
    history: History = field(default_factory=History)
    _first_norm: float = 0.0
    _least_found: float = np.inf
    _least_constant: float = np.inf
    _bundle: DualBundle = field(default_factory=DualBundle)

    def __post_init__(self) -> None:
        self.found = self.x

    def allow(self, constant: Constant) -> None:
        """Take the best constant for what is to be beaten."""
        self.x, self._least_constant = constant.x, constant.primal
        self.certificate = self.certificate.improved(constant.primal, -np.inf)

    def see(self, at: Evaluation) -> None:
        """Take notice of an evaluation."""
        norm = float(np.linalg.norm(at.gradient))
        self._first_norm = self._first_norm or norm
        relative = norm / self._first_norm if norm else 0.0
        # Where there is no bound, of objectives that rounding makes equal the flattest point is the best.
        rounding = 0.0 if at.candidate is not None else _ROUNDING * abs(at.primal)
        flatter = rounding > 0 and relative < self.relative_gradient
        if at.primal < self._least_found + (rounding if flatter else -rounding):
            self.relative_gradient = relative
            self._keep(at.x, at.primal, at.held_out)
        for candidate in (at.candidate, None if at.next is None else at.next[1].candidate):
            dual = -np.inf if candidate is None else self._bundle.add(candidate)
            self.certificate = self.certificate.improved(at.primal, dual)

    def note(self, x: np.ndarray, primal: float, dual: float, held_out: np.ndarray) -> None:
        """Take notice of a point and a lower bound."""
        if primal < self._least_found:
            self._keep(x, primal, held_out)
        self.certificate = self.certificate.improved(primal, dual)

    def _keep(self, x: np.ndarray, primal: float, held_out: np.ndarray) -> None:
        self.found, self._least_found = x, primal
        if primal <= self._least_constant:
            self.x, self.held_out = x, held_out

    def mark(self, n_sweeps: int) -> None:
        """Take down what is known after that many sweeps."""
        self.history.note(n_sweeps, self.error, self.certificate.primal, self.certificate.dual)

    @property
    def measure(self) -> str:
        """What the error is called."""
        return "duality gap" if np.isfinite(self.certificate.dual) else "relative gradient"

    @property
    def error(self) -> float:
        """What `tol` bounds: the relative duality gap, or the relative gradient where there is no bound."""
        return self.certificate.gap if np.isfinite(self.certificate.dual) else self.relative_gradient


@dataclass(frozen=True, eq=False)
class MarginSolution:
    """Where the solvers of some machines ended.

    Attributes
    ----------
    progress : mapping of MarginProblem to Progress
    status : Status
    n_sweeps : int
    interruption : KeyboardInterrupt or None
    """

    progress: Mapping[MarginProblem, Progress]
    status: Status
    n_sweeps: int
    interruption: KeyboardInterrupt | None = None


class _OutOfSweeps(Exception):
    pass


def begun(
    starts: Mapping[MarginProblem, np.ndarray], constants: Sequence[Constant] = ()
) -> dict[MarginProblem, Progress]:
    """Return what is known before the first sweep of machines that shall be no worse than constants."""
    progress = {problem: Progress(x) for problem, x in starts.items()}
    for machine, constant in zip(progress.values(), constants, strict=bool(constants)):
        machine.allow(constant)
    return progress


def solve_margins(
    oracle: MarginOracle,
    options: MarginOptions,
    starts: Mapping[MarginProblem, np.ndarray],
    constants: Sequence[Constant] = (),
    *,
    tol: float,
) -> MarginSolution:
    """Solve each problem from its start to an error of `tol`, or as far as sweeps allow.

    `constants` are the best constants of the problems, if their machines shall be no worse.
    """
    solving = _Solving(oracle, options, begun(starts, constants), tol)
    interruption = None
    try:
        while solving.sweep():
            if solving.has_models:
                finish_exactly(oracle, solving.unfinished(), solving.kinks, solving.see, tol=tol)
    except _OutOfSweeps:
        pass
    except KeyboardInterrupt as raised:
        interruption = raised
    return MarginSolution(solving.progress, solving.status(interruption), solving.n_sweeps, interruption)


@dataclass
class _Solving:
    """The state of all solvers: what is known of each machine, and how many sweeps it took."""

    oracle: MarginOracle
    options: MarginOptions
    progress: dict[MarginProblem, Progress]
    tol: float
    n_sweeps: int = 0
    talks: dict[MarginProblem, Conversation | RestingConversation] = field(init=False)
    """The solvers that have not ended."""

    def __post_init__(self) -> None:
        self.talks = {problem: self._solver(problem) for problem in self.progress}

    @property
    def has_models(self) -> bool:
        """Whether models of few rows may end what the solvers begin."""
        return self.options.direct_solver == "smoothed" and self.oracle.can_model

    def evaluate(self, points: Mapping[MarginProblem, Point]) -> dict[MarginProblem, Evaluation]:
        """Answer the solvers."""
        self._count()
        answers = self.oracle.evaluate(points)
        for problem, at in answers.items():
            self.progress[problem].see(at)
            self.progress[problem].mark(self.n_sweeps)
        return answers

    def kinks(self, points: Mapping[MarginProblem, KinkPoint], n_kept: int) -> KinkSums:
        """Answer what models of few rows ask."""
        self._count()
        return self.oracle.kinks(points, n_kept)

    def see(
        self, problem: MarginProblem, x: np.ndarray, primal: float, dual: float, held_out: np.ndarray
    ) -> bool:
        """Take notice of a model's minimum; return whether the machine is good enough."""
        self.progress[problem].note(x, primal, dual, held_out)
        self.progress[problem].mark(self.n_sweeps)
        return self._finished(problem)

    def unfinished(self) -> dict[MarginProblem, np.ndarray]:
        """Return the best points found of the machines that are not good enough."""
        return {p: progress.found for p, progress in self.progress.items() if not self._finished(p)}

    def sweep(self) -> bool:
        """Let the solvers of all machines that are not good enough go on until they end or rest.

        Return whether there were any.
        """
        talks = {p: self.talks[p] for p in self.unfinished() if p in self.talks}
        results = in_lockstep(talks, self.evaluate)
        self.talks = {p: talk for p, talk in talks.items() if p not in results}
        return bool(talks)

    def _solver(self, problem: MarginProblem) -> Conversation | RestingConversation:
        """Return the conversation that solves a problem from its start."""
        x, oracle = self.progress[problem].found, self.oracle
        finished = partial(self._finished, problem)
        if self.options.direct_solver != "smoothed":
            alone = len(self.progress) == 1 and not self.options.softmax  # a D × D matrix for each
            hessian = partial(oracle.hessian, problem) if alone else None
            return solve_smooth(x, oracle.preconditioner, finished, hessian)
        # A model of all rows needs no good start, nor does one of sparse rows, which closes the gap in fewer
        # sweeps than smaller widths do (measured: 13 in place of 22).
        early = oracle.is_sparse or oracle.n_rows <= 2 * oracle.kept_rows
        return solve_smoothed(
            x,
            oracle.preconditioner,
            finished,
            tol=self.tol,
            least_bend=problem.C * min(1.0, _BENDING_A_FEATURE * oracle.n_features / oracle.n_rows),
            rests=Rests(_POINTS_BEFORE_MODELS, early) if self.has_models else None,
            looks_ahead=self.options.looks_ahead(len(self.progress)),
        )

    def status(self, interruption: KeyboardInterrupt | None) -> Status:
        """Return how it ended."""
        if interruption is not None:
            return Status.INTERRUPTED
        return Status.NOT_CONVERGED if self.unfinished() else Status.CONVERGED

    def _finished(self, problem: MarginProblem, at: Evaluation | None = None) -> bool:
        return self.progress[problem].error <= self.tol

    def _count(self) -> None:
        if self.n_sweeps >= self.options.max_sweeps:
            raise _OutOfSweeps
        self.n_sweeps += 1


# The choice of C by held-out loss: all folds' machines in the same sweeps, from one C to the next.

_FOLDS_TOL = 1e-2
# λ = 1/(C·Σs·mean‖z‖²) of the default grid.
_DEFAULT_PENALTIES = np.geomspace(1e-1, 1e-6, 6)


@dataclass(frozen=True, eq=False)
class PenaltySearch:
    """What the search for C found.

    Attributes
    ----------
    C : float
        Of least mean held-out loss; the smaller of equals.
    grid : ndarray of shape (m,), ascending
        As far as the search came.
    fold_scores : ndarray of shape (m, n_folds)
        Weighted mean loss of each fold's rows under the machines that did not see them, mean over outputs.
    mean_scores : ndarray of shape (m,)
        Of all rows together.
    starts : list of ndarray
        A point an output to start the machine of all rows from: the mean of its folds' points.
    interruption : KeyboardInterrupt or None
    """

    C: float
    grid: np.ndarray
    fold_scores: np.ndarray
    mean_scores: np.ndarray
    starts: list[np.ndarray]
    interruption: KeyboardInterrupt | None = None

    @property
    def results(self) -> dict[str, Any]:
        """The entries of the report."""
        return {
            "criterion": "held-out loss",
            "cv_score": self.mean_scores.min(initial=np.inf),
            "Cs": self.grid,
            "mean_score": self.mean_scores,
            "fold_scores": self.fold_scores,
        }


def penalty_grid(options: MarginOptions, *, weight: float, mean_square_norm: float) -> np.ndarray:
    """Return the values of C to look at, ascending."""
    if options.Cs is not None:
        return options.Cs
    return 1 / (_DEFAULT_PENALTIES * weight * mean_square_norm)


def search_penalty(
    oracle: MarginOracle, options: MarginOptions, grid: np.ndarray, starts: list[np.ndarray]
) -> PenaltySearch:
    """Return the best C of a grid, from a start an output for the smallest."""
    folds, outputs = range(options.n_cv_folds), range(len(starts))
    points = {(output, fold): starts[output] for fold in folds for output in outputs}
    sums: list[np.ndarray] = []
    means: list[list[np.ndarray]] = []
    interruption = None
    for C in grid:
        problems = {(output, fold): MarginProblem(output, float(C), fold) for output, fold in points}
        starts_of = {problem: points[key] for key, problem in problems.items()}
        solution = solve_margins(oracle, options, starts_of, tol=max(options.tol, _FOLDS_TOL))
        points = {key: solution.progress[problem].x for key, problem in problems.items()}
        if solution.interruption is not None:
            interruption = solution.interruption
            break
        sums.append(_held_out_sums(solution, options.n_cv_folds))
        means.append([np.mean([points[output, fold] for fold in folds], axis=0) for output in outputs])
    if not means:
        means.append([np.mean([points[output, fold] for fold in folds], axis=0) for output in outputs])
    totals = np.array(sums).reshape(-1, options.n_cv_folds, 2)
    mean_scores = totals[:, :, 1].sum(axis=1) / totals[:, :, 0].sum(axis=1)
    best = int(np.argmin(mean_scores)) if len(sums) else 0
    return PenaltySearch(
        C=float(grid[best]),
        grid=grid[: len(sums)],
        fold_scores=totals[:, :, 1] / totals[:, :, 0],
        mean_scores=mean_scores,
        starts=means[best],
        interruption=interruption,
    )


def _held_out_sums(solution: MarginSolution, n_folds: int) -> np.ndarray:
    """Return Σ s and Σ s·ℓ of each fold over all outputs, of shape (n_folds, 2)."""
    sums = np.zeros((n_folds, 2))
    for problem, progress in solution.progress.items():
        sums[problem.held_out] += progress.held_out
    if not (sums[:, 0] > 0).all():
        empty = int(np.argmin(sums[:, 0]))
        raise InputError(
            f"C='cv' needs rows of positive weight in each of {n_folds} folds, but fold {empty} has none; "
            f"use a smaller cv, or a number for C"
        )
    return sums


# The hinge's last digits: models of few rows that grow where a sweep shows them wrong.
#
# A model is exact for the rows that were near the kink at its reference point, or changed sides since (see
# `solvers.kink_model`). Its minimum bounds the objective of all rows from below and rises with each row;
# where no row outside has changed sides, it is the objective's. With as many rows as there are, the first
# model is already the whole problem. Models of dense features are solved by Newton steps of D³/3 flops,
# those of sparse ones, which have more features than rows, by steps in the rows' multipliers.

_MODEL_SHARE = 0.4  # of tol
_FIRST_WIDTH = 1.0
_FAR = 2.0**20  # for an intercept
_WIDENING = 4
# Rows of a model whose reference point is too far off raise its bound for long and to no end. Models that end
# at all leave about a third of the distance at first, and those that came near have all ended.
_NEAR, _FIRST_SHARE = 0.1, 0.3


@dataclass(eq=False)
class _Model:
    """One machine's model: rows, and the sums at its reference point over all rows."""

    reference: np.ndarray
    rows: KinkRows
    short_weight: float
    short_vector: np.ndarray
    x: np.ndarray
    alpha: np.ndarray | None = None
    distance: float = np.inf

    def is_on_course(self, distance: float, n_rounds: int) -> bool:
        """Say whether the bound will be near the objective after so many rounds like the last.

        `distance` is that of the two, of the objective; the first round says nothing of the next.
        """
        share = distance / self.distance if np.isfinite(self.distance) else _FIRST_SHARE
        self.distance = distance
        return distance * min(1.0, share) ** n_rounds <= _NEAR

    @property
    def known(self) -> np.ndarray:
        return np.sort(self.rows.number)

    @classmethod
    def at(cls, C: float, x: np.ndarray, found: KinkSums, machine: int) -> _Model:
        """Return the model whose reference point is x."""
        rows = found.rows(machine)
        weight, vector = float(found.short_weight[machine]), found.short_vector[machine]
        return cls(x, rows, weight, vector, x)

    @property
    def excess(self) -> float:
        """What the linear part pulls at the intercept beyond what the rows' multipliers can outweigh.

        Its sign is the label of the rows that pull; 0 where the model has a minimum.
        """
        signed = self.rows.weight * self.rows.label
        pull = float(self.short_vector[-1] - signed[self.rows.short].sum())
        least, most = -float(signed[signed > 0].sum()), -float(signed[signed < 0].sum())
        return max(0.0, pull - most) + min(0.0, pull - least)

    def without_shortfall(self, label: float) -> np.ndarray:
        """Return the reference point with an intercept at which no row of the label is short.

        All rows of the label move alike: those that were short by most are then the nearest to the kink.
        """
        x = self.reference.copy()
        x[-1] += _FAR * max(1.0, abs(x[-1])) * label
        return x

    def add(self, rows: KinkRows, C: float) -> None:
        """Take more rows, each with the multiplier that its side at the reference point had."""
        self.rows = self.rows.merge(rows, None)
        if self.alpha is not None:
            self.alpha = np.append(self.alpha, np.where(rows.short, C * rows.weight, 0.0))


def finish_exactly(
    oracle: MarginOracle,
    points: Mapping[MarginProblem, np.ndarray],
    kinks: Callable[[Mapping[MarginProblem, KinkPoint], int], KinkSums],
    see: Callable[[MarginProblem, np.ndarray, float, float, np.ndarray], bool],
    *,
    tol: float,
) -> None:
    """Improve each machine from its point until `see` is content, or its model can tell no more.

    Parameters
    ----------
    kinks : callable
        Sweeps, as `MarginOracle.kinks` does.
    see : callable
        Takes a problem, a point, its objective, a lower bound, and the sums over held-out rows; says whether
        the machine is good enough.
    """
    if not points:
        return
    found, models = _first_models(oracle, points, kinks)
    primal = {problem: _primal(problem, x, found, j) for j, (problem, x) in enumerate(points.items())}
    while models:
        bounds = _minimise_models(
            oracle, models, {problem: _MODEL_SHARE * tol * primal[problem] for problem in models}
        )
        asked = {p: KinkPoint(m.x, m.reference, m.known) for p, m in models.items()}
        found = kinks(asked, oracle.kept_rows)
        unfinished = {}
        for machine, (problem, model) in enumerate(models.items()):
            value = _primal(problem, model.x, found, machine)
            primal[problem] = min(primal[problem], value)
            content = see(problem, model.x, value, bounds[problem], found.held_out[:, machine])
            rows = found.rows(machine)
            n_rows = len(rows.number)
            room = oracle.most_model_rows - len(model.rows.number)
            if content or not 0 < n_rows <= room:
                continue
            distance = (primal[problem] - bounds[problem]) / primal[problem]
            has_room_for_all = oracle.n_rows <= oracle.most_model_rows
            if has_room_for_all or model.is_on_course(distance, room // n_rows):
                model.add(rows, problem.C)
                unfinished[problem] = model
        models = unfinished


def _first_models(
    oracle: MarginOracle,
    points: Mapping[MarginProblem, np.ndarray],
    kinks: Callable[[Mapping[MarginProblem, KinkPoint], int], KinkSums],
) -> tuple[KinkSums, dict[MarginProblem, _Model]]:
    """Return the models of the rows nearest to the kink, and of so many that each has a minimum.

    Without one are those for which there is no room.
    """
    found = kinks({problem: KinkPoint(x) for problem, x in points.items()}, oracle.kept_rows)
    models = {
        problem: _Model.at(problem.C, x, found, machine)
        for machine, (problem, x) in enumerate(points.items())
    }
    if not oracle.fit_intercept:
        return found, models
    while lacking := {problem: model for problem, model in models.items() if model.excess}:
        labels = {problem: np.sign(model.excess) for problem, model in lacking.items()}
        asked = {
            problem: KinkPoint(model.without_shortfall(labels[problem]), model.reference, model.known)
            for problem, model in lacking.items()
        }
        more = kinks(asked, _WIDENING * oracle.kept_rows)
        for machine, (problem, model) in enumerate(lacking.items()):
            rows = more.sides[machine][0 if labels[problem] > 0 else 1]
            n_needed = 1 + int(np.searchsorted(np.cumsum(rows.weight), abs(model.excess)))
            model.add(rows.first(n_needed + oracle.kept_rows), problem.C)
            if len(model.rows.number) > oracle.most_model_rows or not len(rows.number):
                del models[problem]
    return found, models


def _minimise_models(
    oracle: MarginOracle, models: Mapping[MarginProblem, _Model], tols: Mapping[MarginProblem, float]
) -> dict[MarginProblem, float]:
    """Move each model to its minimum, side by side on the cluster; return their lower bounds."""
    calls = [
        (oracle.features_of, oracle.shipped_map, model.rows, model.short_weight, model.short_vector,
         problem.C, model.x, model.alpha, oracle.fit_intercept, tols[problem])
        for problem, model in models.items()
    ]  # fmt: skip
    solutions: list[KinkSolution] = oracle.run.gather(oracle.run.submit_all(solve_model, calls))
    for model, solution in zip(models.values(), solutions, strict=True):
        model.x, model.alpha = solution.x, solution.alpha
    return {problem: solution.bound for problem, solution in zip(models, solutions, strict=True)}


def solve_model(
    features_of: FeaturesOf,
    shipped: list[Mapping[str, np.ndarray]],
    rows: KinkRows,
    short_weight: float,
    short_vector: np.ndarray,
    C: float,
    x: np.ndarray,
    alpha: np.ndarray | None,
    fit_intercept: bool,
    tol: float,
) -> KinkSolution:
    """Return the minimum of the model that is exact for some rows and linear for all others."""
    A = _signed(features_of(rows.X, shipped), rows.label)
    linear_weight = short_weight - rows.weight[rows.short].sum()
    linear_vector = short_vector - (rows.weight * rows.short) @ A
    upper, size = C * rows.weight, len(x)
    model = KinkModel(A[:, :size], upper, -C * linear_vector[:size], C * linear_weight, fit_intercept)
    alpha = first_multipliers(model, x) if alpha is None else alpha
    if issparse(A):
        return ascend(model, x, alpha, tol=tol)
    return minimise(model, x, alpha, width=_FIRST_WIDTH, tol=tol)


def _signed(Z: Any, label: np.ndarray) -> Any:
    """Return the rows y·[z | 1] in float64, in the format of Z."""
    if issparse(Z):
        return hstack([diags_array(label) @ Z.astype(np.float64), label[:, None]], format="csr")
    A = np.empty((len(Z), Z.shape[1] + 1))
    np.multiply(Z, label[:, None], out=A[:, :-1])
    A[:, -1] = label
    return A


def _primal(problem: MarginProblem, x: np.ndarray, found: KinkSums, machine: int) -> float:
    w = x[: found.short_vector.shape[1] - 1]
    return problem.C * float(found.value[machine]) + 0.5 * float(w @ w)


# The best machines without features: what every other machine of a fit has to beat.


class Constant(NamedTuple):
    """A machine with w = 0, as a point x, and its objective C·Σ s·ℓ."""

    x: np.ndarray
    primal: float


def best_constants(preparation: Preparation, options: MarginOptions, C: float) -> list[Constant]:
    """Return the constant of least objective of each output, or the one of all classes that share a loss.

    The summed weights of the classes, which the first sweep brought, are all that it takes.
    """
    targets, labels = preparation.targets, preparation.statistics.labels
    assert isinstance(targets, ClassTargets) and labels is not None
    weights = labels.weights if targets.class_weight is None else targets.class_weight * labels.weights
    D = preparation.specification.n_features
    if options.softmax and targets.n_outputs > 1:
        b, loss = _of_all_classes(weights, options)
        X = np.zeros((D + options.fit_intercept, len(b)))
        X[D:] = b
        return [Constant(X.ravel(), C * loss)]
    above = weights[-1:] if targets.n_outputs == 1 else weights
    return [_of_one_class(s, weights.sum() - s, D, options, C) for s in above]


def _of_one_class(above: float, below: float, D: int, options: MarginOptions, C: float) -> Constant:
    loss: Loss = options.loss
    assert isinstance(loss, MarginLoss)
    b = loss.constant(above / (above + below)) if options.fit_intercept else 0.0
    f, y = np.array([b, b]), np.array([1.0, -1.0])
    x = np.zeros(D + options.fit_intercept)
    x[D:] = b
    return Constant(x, C * float(np.array([above, below]) @ loss.value(f, y)))


def _of_all_classes(weights: np.ndarray, options: MarginOptions) -> tuple[np.ndarray, float]:
    """Return the intercepts of the classes and Σ s·ℓ."""
    sigma = options.loss.clear_margin
    b = sigma * np.log(weights / weights.sum()) if options.fit_intercept else np.zeros(len(weights))
    return b, float(weights @ (logsumexp(b / sigma) - b / sigma))
