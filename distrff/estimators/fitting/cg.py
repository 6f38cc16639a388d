"""Ridge by conjugate gradients: light sweeps until the residual is small, each for all targets."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from distrff.engine.run import Run
from distrff.errors import InputError
from distrff.estimators.fitting.context import Preparation
from distrff.estimators.fitting.gram import AlphaSearch, RidgeFit, factor_gram, folds_of, problem_of
from distrff.estimators.fitting.options import RidgeOptions
from distrff.estimators.fitting.plan import (
    MOST_DIRECTIONS,
    ConjugatePlan,
    light_cuts,
    sample_shape,
    walk_stride,
)
from distrff.estimators.fitting.result import Convergence, end_of_grid
from distrff.io.dataset import Dataset
from distrff.reductions.ridge import (
    ComplementMomentsReduction,
    HeldOutErrorReduction,
    ProductReduction,
    RightSidesReduction,
)
from distrff.solvers.cg import Answer, ConjugateGradients, machine_of_sample, preconditioned, sampled_factor
from distrff.solvers.ridge import (
    GramProblem,
    RidgeEquations,
    RidgeMachine,
    RidgeMoments,
    choose_alpha,
    default_alphas,
)
from distrff.solvers.status import History, Status, in_lockstep


class _OutOfSweeps(Exception):
    pass


class _Solution:
    """The machines of all outputs so far, in coded units, and how good they are known to be."""

    def __init__(self, coef: np.ndarray, intercept: np.ndarray, alpha: np.ndarray, tol: float) -> None:
        self._alpha = alpha
        self._tol = tol
        self.start = (coef, intercept)
        self._equations: RidgeEquations | None = None
        self.systems: dict[int, ConjugateGradients] = {}
        self.history = History()

    def begin(self, equations: RidgeEquations) -> None:
        """Take the equations; start at zero instead where that is nearer."""
        self._equations = equations
        sizes = np.linalg.norm(equations.B, axis=0)
        coef = self.start[0]
        residual = equations.descent - self._alpha * coef
        near = np.linalg.norm(residual, axis=0) < sizes
        coef, residual = np.where(near, coef, 0.0), np.where(near, residual, equations.B)
        self.systems = {
            j: ConjugateGradients(coef[:, j], residual[:, j], bound=self._tol * size)
            for j, size in enumerate(sizes.tolist())
        }

    @property
    def is_converged(self) -> bool:
        return all(system.is_converged for system in self.systems.values())

    @property
    def relative_residual(self) -> float:
        """That of the output where it is largest; NaN before the first sweep."""
        if self._equations is None:
            return float("nan")
        sizes = np.linalg.norm(self._equations.B, axis=0)
        errors = np.array([system.error for system in self.systems.values()])
        return float(np.max(errors / np.where(sizes > 0, sizes, 1.0)))

    def mark(self, n_sweeps: int) -> None:
        """Take down the residual after that many sweeps."""
        self.history.note(n_sweeps, self.relative_residual)

    def machine(self) -> RidgeMachine:
        """Return the machines of all outputs."""
        if self._equations is None:
            unknown = np.full(len(self._alpha), np.nan)
            return RidgeMachine(*self.start, unknown, unknown)
        coef, residual = (
            np.stack([getattr(system, name) for system in self.systems.values()], axis=1)
            for name in ("x", "residual")
        )
        squared_error = self._equations.squared_error(coef, residual, self._alpha)
        return RidgeMachine(coef, self._equations.intercept(coef), squared_error, self._equations.yy)


def fit_by_conjugate_gradients(
    run: Run,
    dataset: Dataset,
    options: RidgeOptions,
    preparation: Preparation,
    plan: ConjugatePlan,
    notes: list[str],
) -> RidgeFit:
    """Return the fit for given penalties, or that of least held-out error, which sparse features allow.

    The Gram of a sample is all that is ever of size D².

    Raises
    ------
    InputError
        For values whose sums are not finite.
    """
    problem = problem_of(preparation, dataset, options)
    if options.alpha is None:
        run.begin_phase("choice of alpha")
    choice = (
        ConjugateSearch(run, dataset, preparation, plan, options, problem).choose()
        if options.alpha is None
        else ConjugateChoice(
            AlphaSearch(options.alpha, None, "none, as alpha was given"),
            np.zeros((problem.sizes[-1], problem.n_targets)),
            np.zeros(problem.n_targets),
        )
    )
    alpha = np.broadcast_to(choice.search.alpha, (problem.n_targets,))
    start, preconditioner = (choice.coef, choice.intercept), None
    if plan.one_in:
        run.begin_phase("preconditioner")
        preconditioner = sample_preconditioner(run, dataset, preparation, plan, options, alpha)
        start = preconditioner.machine()
    run.begin_phase("light sweeps")
    oracle = RidgeOracle(run, dataset, preparation, plan, problem)
    solution = _Solution(*start, alpha, options.tol)
    if choice.interruption is None:
        status, interruption = _solve(oracle, solution, preconditioner, alpha, options.max_sweeps)
    else:
        status, interruption = Status.INTERRUPTED, choice.interruption
        notes = [
            *notes,
            "interrupted in the search for alpha: the machine is the mean of some folds' machines",
        ]
    convergence = Convergence(
        status=status,
        solver="cg",
        measure="relative residual",
        error=solution.relative_residual,
        tol=options.tol,
        n_sweeps=oracle.n_sweeps,
        max_sweeps=options.max_sweeps,
        preconditioner=plan.preconditioner,
        history=solution.history,
        interruption=interruption,
    )
    return RidgeFit(
        run=run,
        plan=plan,
        problem=problem,
        dtype=plan.shape.dtype,
        grams=None,
        search=choice.search,
        machine=solution.machine(),
        targets=preparation.targets,
        notes=notes + choice.search.notes,
        convergence=convergence,
    )


def _solve(
    oracle: RidgeOracle,
    solution: _Solution,
    preconditioner: RidgePreconditioner | None,
    alpha: np.ndarray,
    max_sweeps: int,
) -> tuple[Status, KeyboardInterrupt | None]:
    """Advance the solution until it converges or may not go on."""
    try:
        equations = oracle.right_sides(*solution.start)
        solution.begin(equations)
        M = DiagonalPreconditioner(equations.G_diagonal, alpha) if preconditioner is None else preconditioner

        def answer(residuals: dict[int, np.ndarray]) -> dict[int, Answer]:
            solution.mark(oracle.n_sweeps)
            if oracle.n_sweeps >= max_sweeps:
                raise _OutOfSweeps
            solved = M.solve(residuals)
            products = oracle.products(solved, equations.z_mean)
            return {j: (v, products[j] + alpha[j] * v) for j, v in solved.items()}

        in_lockstep({j: system.solve() for j, system in solution.systems.items()}, answer)
        solution.mark(oracle.n_sweeps)
    except _OutOfSweeps:
        pass
    except KeyboardInterrupt as interruption:
        return Status.INTERRUPTED, interruption
    return Status.CONVERGED if solution.is_converged else Status.NOT_CONVERGED, None


# Alpha by cross-validation where no Gram is formed: conjugate gradients on some folds side by side.

_LEAST_TOL = 1e-2  # an error on held-out rows is not known better than that
_MOST_IN_VAIN = 2

# A machine: its fold and its target.
_Machine = tuple[int, int]


@dataclass(frozen=True, eq=False)
class ConjugateChoice:
    """What the search found.

    Parameters
    ----------
    search : AlphaSearch
    coef, intercept : ndarrays of shape (D, k) and (k,)
        Mean of the first folds' machines at the alpha that was best for these: a place to start.
    interruption : KeyboardInterrupt or None
        To be raised again when that mean is kept; its alpha is then that of `search`.
    """

    search: AlphaSearch
    coef: np.ndarray
    intercept: np.ndarray
    interruption: KeyboardInterrupt | None = None


class ConjugateSearch:
    """Walks over alphas while the held-out error falls (`promising_places`); each machine starts at its last.

    Where the machines of all folds side by side would take much memory, some folds walk after the others,
    over those alphas that the first ones tried.

    Parameters
    ----------
    run : Run
    dataset : Dataset
    preparation : Preparation
    plan : ConjugatePlan
    options : RidgeOptions
    problem : GramProblem
    """

    def __init__(
        self,
        run: Run,
        dataset: Dataset,
        preparation: Preparation,
        plan: ConjugatePlan,
        options: RidgeOptions,
        problem: GramProblem,
    ) -> None:
        self._run, self._dataset, self._preparation = run, dataset, preparation
        self._options, self._problem = options, problem
        self._cuts = light_cuts(plan.shape)
        folds = folds_of(options, dataset, options.n_folds)
        assert folds is not None
        self._groups = [
            range(first, min(first + plan.folds_per_task, folds.n_folds))
            for first in range(0, folds.n_folds, plan.folds_per_task)
        ]
        self._shared: dict[str, Any] = {
            "specification": preparation.specification,
            "scaling": preparation.scaling,
            "targets": preparation.targets,
            "offset": problem.offset,
            "dtype": plan.shape.dtype,
            "tile_rows": self._cuts.tile_rows,
            "folds": folds,
        }
        self._alphas = (
            default_alphas(preparation.weight, preparation.mean_square_norm, floor=0.0)[0]
            if options.alphas is None
            else options.alphas
        )
        self._tried: list[int] = []
        # Of each fold, for each alpha that was tried: Σ s·(y − f)² and Σ s of its rows, of shape (2, k).
        self._judged: dict[int, list[np.ndarray]] = {fold: [] for fold in range(folds.n_folds)}
        self._best: tuple[np.ndarray, np.ndarray] | None = None

    def choose(self) -> ConjugateChoice:
        """Return the alpha of least error among those tried.

        Raises
        ------
        InputError
            If one fold has all rows of positive weight.
        KeyboardInterrupt
            If it came before a machine was judged, so that there is none to keep. A later one is returned,
            with what the first folds say.
        """
        interruption, folds = None, range(len(self._judged))
        try:
            for group in self._groups:
                self._walk(group)
        except KeyboardInterrupt as caught:
            if self._best is None:
                raise KeyboardInterrupt(
                    "no machine is kept: none was judged yet in the search for alpha; fit again"
                ) from caught
            interruption, folds = caught, self._groups[0]
        assert self._best is not None
        search = self._choice(folds)
        if interruption is None:
            search = replace(
                search,
                notes=end_of_grid("alpha", search.alpha[0], self._alphas, search.results["mean_score"]),
            )
        return ConjugateChoice(search, *self._best, interruption)

    def _choice(self, folds: range) -> AlphaSearch:
        """Return the choice by the errors over these folds."""
        order = np.argsort(self._tried)
        judged = np.array([self._judged[fold] for fold in folds])[:, order]  # (n_folds, n_tried, 2, k)
        by_fold, weights = judged[:, :, 0], judged[:, 0, 1, 0]
        tried = self._alphas[np.sort(self._tried)]
        choice = choose_alpha(by_fold, weights, alphas=tried)
        with np.errstate(divide="ignore", invalid="ignore"):
            fold_scores = by_fold.mean(axis=2).T / weights
        return AlphaSearch(
            alpha=np.array([choice.alpha]),
            score=choice.score,
            criterion=f"mean squared error over {len(folds)} held-out folds",
            results={"alphas": tried, "mean_score": choice.scores, "fold_scores": fold_scores},
        )

    def _walk(self, folds: range) -> None:
        """Judge the machines of these folds: those of the first until it is in vain, others as far."""
        equations = self._equations(folds)
        kept: dict[_Machine, tuple[np.ndarray, np.ndarray, float]] = {
            (fold, j): (np.zeros(len(e.B)), e.B[:, j], 0.0)
            for fold, e in equations.items()
            for j in range(self._problem.n_targets)
        }

        def judge(place: int) -> float:
            judged = self._errors(float(self._alphas[place]), equations, kept)
            for fold, errors in judged.items():
                self._judged[fold].append(errors)
            return float(sum(errors[0].sum() for errors in judged.values()))

        if self._best is not None:
            for place in self._tried:
                judge(place)
            return
        places, totals = promising_places(len(self._alphas)), list[float]()
        while (promising := _next(places, totals)) is not None:
            totals.append(judge(promising))
            self._tried.append(promising)
            if totals[-1] == min(totals):
                self._best = self._mean_machine(equations, kept)

    def _equations(self, folds: range) -> dict[int, RidgeEquations]:
        """Return the equations of each fold's complement."""
        # No first machine, of which nothing would have to be summed.
        none = {"coef": np.zeros((self._preparation.specification.n_features, 0)), "intercept": np.zeros(0)}
        reduction = ComplementMomentsReduction(**self._shared, held_out=tuple(folds))
        moments: list[RidgeMoments | None] = self._sweep("right sides of folds", reduction, none)
        equations = {}
        for fold, sums in zip(folds, moments, strict=True):
            if sums is None or not sums.weight > 0:
                raise InputError(
                    f"fold {fold} has all rows of positive weight, so that none are left to fit; give more "
                    f"rows, or fold_by='contiguous'"
                )
            equations[fold] = RidgeEquations.of(sums, fit_intercept=self._problem.fit_intercept)
        return equations

    def _errors(
        self,
        alpha: float,
        equations: dict[int, RidgeEquations],
        kept: dict[_Machine, tuple[np.ndarray, np.ndarray, float]],
    ) -> dict[int, np.ndarray]:
        """Return Σ s·(y − f)² and Σ s over each fold, (2, k), and keep where the machines are now."""
        unit = np.square(self._preparation.targets.scale)
        judged = {fold: np.zeros((2, self._problem.n_targets)) for fold in equations}
        machines = list(kept)
        for first in range(0, len(machines), MOST_DIRECTIONS):
            some = machines[first : first + MOST_DIRECTIONS]
            systems = {m: _started(kept.pop(m), alpha, self._tol(equations, m)) for m in some}
            self._solve(alpha, systems, equations)
            kept |= {m: (system.x, system.residual, alpha) for m, system in systems.items()}
            held_out, outputs = zip(*some, strict=True)
            reduction = HeldOutErrorReduction(**self._shared, held_out=held_out, outputs=outputs)
            coef = np.stack([system.x for system in systems.values()]).T
            intercept = np.array([_intercept(equations, m, kept[m][0]) for m in some])
            point = {"coef": np.ascontiguousarray(coef), "intercept": intercept}
            found = self._sweep("held-out errors", reduction, point)
            for (fold, j), error, weight in zip(some, *found, strict=True):
                judged[fold][:, j] = error * unit[j], weight
        return judged

    def _mean_machine(
        self,
        equations: dict[int, RidgeEquations],
        kept: dict[_Machine, tuple[np.ndarray, np.ndarray, float]],
    ) -> tuple[np.ndarray, np.ndarray]:
        k = self._problem.n_targets
        coef, intercept = np.zeros((self._preparation.specification.n_features, k)), np.zeros(k)
        for (fold, j), (x, _, _) in kept.items():
            coef[:, j] += x / len(equations)
            intercept[j] += _intercept(equations, (fold, j), x) / len(equations)
        return coef, intercept

    def _solve(
        self, alpha: float, systems: dict[_Machine, ConjugateGradients], equations: dict[int, RidgeEquations]
    ) -> None:
        """Advance all systems until they converge or may not go on."""
        left = self._options.max_sweeps

        def answer(residuals: dict[_Machine, np.ndarray]) -> dict[_Machine, Answer]:
            nonlocal left
            left -= 1
            if left < 0:
                return {}
            V = np.stack([r / (equations[f].G_diagonal + alpha) for (f, _), r in residuals.items()])
            intercept = -np.array([equations[f].z_mean @ v for (f, _), v in zip(residuals, V, strict=True)])
            reduction = ProductReduction(**self._shared, held_out=tuple(f for f, _ in residuals))
            point = {"coef": np.ascontiguousarray(V.T), "intercept": intercept}
            sums = self._sweep("products of folds", reduction, point)
            GV = sums[:-1].T.copy(order="C")  # the sums of a vector together, as its solver takes them
            for i, (fold, _) in enumerate(residuals):
                GV[i] -= sums[-1, i] * equations[fold].z_mean
                GV[i] += alpha * V[i]
            return dict(zip(residuals, zip(V, GV, strict=True), strict=True))

        in_lockstep({m: system.solve() for m, system in systems.items()}, answer)

    def _tol(self, equations: dict[int, RidgeEquations], machine: _Machine) -> float:
        fold, output = machine
        return max(self._options.tol, _LEAST_TOL) * float(np.linalg.norm(equations[fold].B[:, output]))

    def _sweep(self, label: str, reduction: Any, point: dict[str, np.ndarray]) -> Any:
        return self._run.gather([self._run.sweep(label, self._dataset, reduction, self._cuts, point)])[0]


def promising_places(n: int) -> Generator[int, float, None]:
    """Yield places of an ascending grid of n, to be sent the error of each: from the largest down, then near.

    From 12 places on the way down is in strides of 2, from 24 on of 4 and so on, until the error rises; then
    the strides are halved on both sides of the best place. Shorter grids are walked one by one, and for two
    places in vain.
    """
    stride = walk_stride(n)
    errors: dict[int, float] = {}
    in_vain = 0
    for place in range(n - 1, -1, -stride):
        errors[place] = yield place
        in_vain = in_vain + 1 if errors[place] > min(errors.values()) else 0
        if in_vain >= (1 if stride > 1 else _MOST_IN_VAIN):
            break
    while stride > 1:
        stride //= 2
        best = min(errors, key=lambda place: errors[place])
        for place in (best - stride, best + stride):
            if 0 <= place < n and place not in errors:
                errors[place] = yield place


def _next(places: Generator[int, float, None], errors: list[float]) -> int | None:
    try:
        return places.send(errors[-1]) if errors else next(places)
    except StopIteration:
        return None


def _started(kept: tuple[np.ndarray, np.ndarray, float], alpha: float, bound: float) -> ConjugateGradients:
    """Return the system of another alpha, whose residual at the last x follows from the last one's."""
    x, residual, before = kept
    return ConjugateGradients(x, residual + (before - alpha) * x, bound=bound)


def _intercept(equations: dict[int, RidgeEquations], machine: _Machine, x: np.ndarray) -> float:
    fold, output = machine
    return float(equations[fold].y_mean[output] - equations[fold].z_mean @ x)


# What conjugate gradients ask for, each answer one light sweep over the rows.


class RidgeOracle:
    """Answers what the solver asks of the rows, each time by one light sweep.

    Parameters
    ----------
    run : Run
    dataset : Dataset
    preparation : Preparation
    plan : ConjugatePlan
    problem : GramProblem
    """

    def __init__(
        self,
        run: Run,
        dataset: Dataset,
        preparation: Preparation,
        plan: ConjugatePlan,
        problem: GramProblem,
    ) -> None:
        self._run = run
        self._dataset = dataset
        self._fit_intercept = problem.fit_intercept
        self._cuts = light_cuts(plan.shape)
        shared: dict[str, Any] = {
            "specification": preparation.specification,
            "scaling": preparation.scaling,
            "targets": preparation.targets,
            "offset": problem.offset,
            "dtype": plan.shape.dtype,
            "tile_rows": self._cuts.tile_rows,
        }
        self._right_sides = RightSidesReduction(**shared)
        self._products = ProductReduction(**shared, held_out=())
        self.n_sweeps = 0

    def right_sides(self, coef: np.ndarray, intercept: np.ndarray) -> RidgeEquations:
        """Return the equations, with what a first machine leaves of them."""
        point = {"coef": coef, "intercept": intercept}
        handle = self._run.sweep("right sides", self._dataset, self._right_sides, self._cuts, point)
        moments: RidgeMoments = self._run.gather([handle])[0]
        self.n_sweeps += 1
        equations = None
        if moments.is_finite:
            equations = RidgeEquations.of(moments, fit_intercept=self._fit_intercept)
        if equations is None or not np.isfinite(np.linalg.norm(equations.B)):
            raise InputError(
                "the sums over the rows are not finite: some values are too large for the features' dtype; "
                "use scale='standard' or dtype='float64'"
            )
        return equations

    def products(self, vectors: Mapping[int, np.ndarray], z_mean: np.ndarray) -> dict[int, np.ndarray]:
        """Return G·v for one v of each of some outputs."""
        V = np.stack(list(vectors.values()))
        point = {"coef": np.ascontiguousarray(V.T), "intercept": -(V @ z_mean)}
        reduction = replace(self._products, held_out=(None,) * len(V))
        sums = self._run.gather([self._run.sweep("products", self._dataset, reduction, self._cuts, point)])[0]
        self.n_sweeps += 1
        GV = sums[:-1].T.copy(order="C")  # the sums of a vector together, as its solver takes them
        for i, excess in enumerate(sums[-1]):
            GV[i] -= excess * z_mean
        return dict(zip(vectors, GV, strict=True))


# Preconditioners of ridge: factors of a sample's Gram, which stay on the cluster, or a diagonal.

MOST_FACTORS = 3

Vectors = Mapping[int, np.ndarray]


class RidgePreconditioner(Protocol):
    """M⁻¹ for each of the outputs."""

    def solve(self, residuals: Vectors) -> dict[int, np.ndarray]:
        """Return M⁻¹r by output."""


class DiagonalPreconditioner:
    """M = diag(G) + alpha·I.

    Parameters
    ----------
    G_diagonal : ndarray of shape (D,)
    alpha : ndarray of shape (k,)
    """

    def __init__(self, G_diagonal: np.ndarray, alpha: np.ndarray) -> None:
        self._G_diagonal = G_diagonal
        self._alpha = alpha

    def solve(self, residuals: Vectors) -> dict[int, np.ndarray]:
        return {j: r / (self._G_diagonal + self._alpha[j]) for j, r in residuals.items()}


class FactorPreconditioner:
    """M = G + alpha·I for the Gram of a sample, by its factor; outputs of one alpha are solved for together.

    Parameters
    ----------
    run : Run
    factors : list of handles
    factor_of : ndarray of shape (k,)
        Which of them an output takes.
    """

    def __init__(self, run: Run, factors: list[Any], factor_of: np.ndarray) -> None:
        self._run = run
        self._factors = factors
        self._factor_of = factor_of

    def solve(self, residuals: Vectors) -> dict[int, np.ndarray]:
        outputs = np.array(list(residuals))
        groups = [outputs[self._factor_of[outputs] == f] for f in range(len(self._factors))]
        asked = [(f, group) for f, group in enumerate(groups) if len(group)]
        calls = [(self._factors[f], np.stack([residuals[j] for j in group], axis=1)) for f, group in asked]
        solved = self._run.gather(self._run.submit_all(preconditioned, calls))
        return {
            int(j): V[:, i] for (_, group), V in zip(asked, solved, strict=True) for i, j in enumerate(group)
        }

    def machine(self) -> tuple[np.ndarray, np.ndarray]:
        """Return coef and intercept of the sample's own ridge machines."""
        found = self._run.gather(self._run.submit_all(machine_of_sample, [(f,) for f in self._factors]))
        chosen = list(enumerate(self._factor_of))
        coef = np.stack([found[f][0][:, j] for j, f in chosen], axis=1)
        return coef, np.array([found[f][1][j] for j, f in chosen])


def sample_preconditioner(
    run: Run,
    dataset: Dataset,
    preparation: Preparation,
    plan: ConjugatePlan,
    options: RidgeOptions,
    alpha: np.ndarray,
) -> FactorPreconditioner:
    """Return the preconditioner that one sweep over a sample of the rows gives."""
    shape = sample_shape(plan.shape, plan.one_in)
    gram_plan = replace(plan, shape=shape, tile_rows=shape.segmentation().tile_rows)
    grams = factor_gram(run, dataset, preparation, gram_plan, options)
    # That of a sum over fewer rows.
    floor = np.sqrt(plan.one_in) * grams.noise_floor(shape.n_features)
    levels = factor_levels(alpha)
    calls = [(grams.total, max(floor, level), grams.problem) for level in levels]
    nearest = np.abs(np.log(alpha[:, None] / levels)).argmin(axis=1)
    return FactorPreconditioner(run, run.submit_all(sampled_factor, calls), nearest)


def factor_levels(alpha: np.ndarray) -> np.ndarray:
    """Return the penalties that get a factor: each one, or three over their range where they are more.

    Where alpha is off by a factor a, the condition number that conjugate gradients see grows by at most a.
    """
    different = np.unique(alpha)
    if len(different) <= MOST_FACTORS:
        return different
    return np.geomspace(different[0], different[-1], MOST_FACTORS)
