"""Ridge by conjugate gradients: light passes until the residual is small, each for all targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from distrff.engine.reduction import Arrays, gram_stride
from distrff.engine.run import Run
from distrff.engine.tasks import Workers
from distrff.errors import InputError
from distrff.fitting.cost import (
    MAX_DIRECTIONS,
    PRESUMED_SWEEPS,
    LightPasses,
    Plan,
    Size,
    client_peak_bytes,
    light_cuts,
    light_peak_bytes,
    planned,
)
from distrff.fitting.gram import (
    factor_gram,
    factor_levels,
    gram_peak_bytes,
    needs_gram,
    needs_number,
    ridge_size,
    system_of,
    unwritten,
)
from distrff.fitting.problem import FitContext, PreparedFit, Problem
from distrff.fitting.result import (
    AlphaSearch,
    FitResult,
    end_of_alphas,
    in_units,
    iterative_result,
    ridge_fold_models,
)
from distrff.fitting.rows import RowReduction
from distrff.io.dataset import Rows
from distrff.preprocessing.folds import NO_FOLDS, Folds, Keys
from distrff.solvers.cg import (
    ConjugateGradients,
    Response,
    preconditioned,
    sampled_factor,
    solution_of_sample,
)
from distrff.solvers.objective import History, Status, in_lockstep
from distrff.solvers.ridge import (
    RidgeEquations,
    RidgeMoments,
    RidgeSolution,
    default_alphas,
    extended,
    ridge_moments,
)
from distrff.utils.linalg import add_transposed_product, in_float64, values_of


class _Tile(NamedTuple):
    """Rows, their features and their values."""

    B: Any
    """Z, or the values of the map's basis; overwritten by the next tile."""
    F: np.ndarray
    """Z·coef + intercept."""
    y: np.ndarray
    """Targets as they were read."""
    s: np.ndarray
    keys: Keys


@dataclass(frozen=True, kw_only=True)
class RidgePass(RowReduction):
    """The base of these passes. Tasks are sent `coef` of shape (D, k) and `intercept` of shape (k,)."""

    offset: np.ndarray | None  # (k,), added to the coded targets
    folds: Folds = NO_FOLDS

    def _tiles(self, rows: Rows, arrays: Arrays, *, of_basis: bool = False) -> Iterator[_Tile]:
        """Yield tiles with Z itself, or with the values of the map's basis in its place."""
        ready, coef = self.ready_map(arrays), arrays["coef"]
        if of_basis:
            # Values and sums of a map with a triangular factor take its basis: one solve a vector, not one a
            # row.
            coef = ready.basis_coef(coef, np.dtype(np.float64))
        for block in rows.tiles(self.tile_rows):
            n = block.X.shape[0]
            # In float64 whatever the features are in: thin products are cheap beside the cosines, and the
            # accuracy of a solution is then that of the features. Tiles are small enough for a cache.
            B = in_float64(self.tile_of(ready, rows, block.start, block.X, of_basis=of_basis))
            s = self.targets.row_weights(block.y, block.sample_weight)
            yield _Tile(
                B=B,
                F=values_of(B, coef) + arrays["intercept"],
                y=block.y,
                s=np.ones(n) if s is None else s,
                keys=block.keys,
            )

    def _coded(self, tile: _Tile) -> np.ndarray:
        """The coded targets of a tile."""
        Y = self.targets.encode(tile.y)
        return Y if self.offset is None else Y + self.offset


@dataclass(frozen=True, kw_only=True)
class MomentsReduction(RidgePass):
    """Reduction to the `RidgeMoments` of each fold's training rows and a first model; None for no rows.

    Without a first model `coef` has the shape (D, 0), and `intercept` (0,). A row costs 2dD flops and D
    cosines, and 2Dk more for each of the folds, or with a first model 4Dk.
    """

    held_out: tuple[int | None, ...]  # the folds; None stands for all rows

    def size_bytes(self, n_rows: int) -> int:
        return 8 * len(self.held_out) * self.specification.n_features * (2 + 2 * self.targets.n_outputs)

    def zero(self) -> list[RidgeMoments | None]:
        return [None] * len(self.held_out)

    def update(
        self, total: list[RidgeMoments | None], rows: Rows, arrays: Arrays
    ) -> list[RidgeMoments | None]:
        for tile in self._tiles(rows, arrays):
            Y, (is_fitted, _) = self._coded(tile), self.folds.masks(tile.keys, self.held_out)
            E, moments = Y - tile.F if tile.F.shape[1] else tile.F, []
            for fold, mask in zip(self.held_out, is_fitted.T, strict=True):
                i: Any = slice(None) if fold is None else np.flatnonzero(mask)  # no copy of all rows
                some = ridge_moments(tile.B[i], Y[i], E[i], tile.s[i]) if mask.any() else None
                moments.append(some)
            total = self.merge(total, moments)
        return total

    def merge(
        self, first: list[RidgeMoments | None], second: list[RidgeMoments | None]
    ) -> list[RidgeMoments | None]:
        merge = super().merge
        return [merge(a, b) for a, b in zip(first, second, strict=True)]


@dataclass(frozen=True, kw_only=True)
class ProductReduction(RidgePass):
    """Reduction to Σ s·[z | 1]·fᵀ of shape (D + 1, m), of values f = coefᵀz + intercept.

    With coef = V and intercept = −z̄ᵀV the first D rows are ZᵀS(Z − z̄)·V, which is the product of the centred
    Gram with V up to rounding; the last row serves to correct that.

    A row costs 2dD + 4Dm flops and D cosines.
    """

    held_out: tuple[int | None, ...]  # the fold whose training rows the product with each direction sums

    def size_bytes(self, n_rows: int) -> int:
        return 8 * (self.specification.n_features + 1) * len(self.held_out)

    def zero(self) -> np.ndarray:
        return np.zeros((self.specification.n_features + 1, len(self.held_out)))

    def update(self, total: np.ndarray, rows: Rows, arrays: Arrays) -> np.ndarray:
        ready, of_basis = self.ready_map(arrays), None
        for tile in self._tiles(rows, arrays, of_basis=True):
            F = tile.s[:, None] * tile.F
            if self.folds.n_folds:
                is_fitted, _ = self.folds.masks(tile.keys, self.held_out)
                F = np.where(is_fitted, F, 0.0)
            if of_basis is None:
                # Stored with the m sums of a column side by side, in which a one-hot tile is added fastest.
                of_basis = np.zeros((tile.B.shape[1], F.shape[1])) if ready.has_basis else total[:-1]
            add_transposed_product(of_basis.T, F.T, tile.B)
            total[-1] += F.sum(axis=0)
        if of_basis is not None and ready.has_basis:
            total[:-1] += ready.feature_sums(of_basis.T).T
        return total


@dataclass(frozen=True, kw_only=True)
class HeldOutErrorReduction(RidgePass):
    """Reduction to Σ s·(y − f)² and Σ s, of shape (2, m), of each model over its held-out fold.

    Tasks are sent `coef` of shape (D, m) and `intercept` of shape (m,).
    """

    held_out: tuple[int, ...]  # the fold of each of m models
    outputs: tuple[int, ...]  # the target of each model

    def size_bytes(self, n_rows: int) -> int:
        return 8 * 2 * len(self.held_out)

    def zero(self) -> np.ndarray:
        return np.zeros((2, len(self.held_out)))

    def update(self, total: np.ndarray, rows: Rows, arrays: Arrays) -> np.ndarray:
        for tile in self._tiles(rows, arrays, of_basis=True):
            _, is_judged = self.folds.masks(tile.keys, self.held_out)
            squares = np.square(self._coded(tile)[:, list(self.outputs)] - tile.F)
            total[0] += tile.s @ np.where(is_judged, squares, 0.0)
            total[1] += tile.s @ is_judged
        return total


class ConjugateGradientRidge:
    """Ridge by conjugate gradients, without a Gram of all rows: for given penalties, or on sparse features.

    Only the Gram of a sample, whose factors are the preconditioner, has size D².
    """

    def refuses(self, problem: Problem) -> str | None:
        search = problem.penalty.search
        if search == "gcv" and problem.is_sparse:
            return needs_gram(problem)
        return unwritten(problem) if search is None or problem.is_sparse else needs_number(problem)

    def size(self, fit: FitContext, size: Size) -> Size:
        return ridge_size(fit.problem, size)

    def cost(self, size: Size, workers: Workers) -> Iterator[Plan]:
        """Preconditioned by factors or by a diagonal; the folds of a search side by side, or in turn."""
        if size.n_factors and not size.sparse_entries:
            yield light_plan(size, size.n_factors, workers)
        yield light_plan(size, 0, workers)
        # One fold after another needs the directions and solutions of one alone, and the passes of each.
        yield light_plan(size, 0, workers, max_folds=1)

    def light_passes(self, plan: Plan) -> LightPasses:
        return [light_cuts(plan.size)], PRESUMED_SWEEPS + plan.n_search_sweeps

    def solve(self, fit: PreparedFit, plan: Plan) -> FitResult:
        problem, k = fit.problem, fit.targets.n_outputs
        notes = (
            []
            if problem.solver == "cg" or problem.is_sparse
            else ["the Gram does not fit in memory: solver='cg' was used"]
        )
        if problem.penalty.value is None:
            fit.run.begin_phase("choice of alpha")
            search = search_alpha(fit, plan)
        else:
            search = AlphaSearch(problem.penalty.value)
        alpha = np.broadcast_to(search.alpha, (k,))
        start, preconditioner = search.start, None
        if plan.stride:
            fit.run.begin_phase("preconditioner")
            preconditioner = sample_preconditioner(fit, plan, alpha)
            start = preconditioner.solution()
        if problem.penalty.search is None and fit.start is not None:  # which saw the folds of a search
            start = fit.starting_point()
        if start is None:
            start = np.zeros((fit.specification.n_features, k)), np.zeros(k)
        fit.run.begin_phase("light sweeps")
        passes = RidgePasses(fit, plan)
        systems = _Systems(start, alpha, problem.tol)
        if search.interruption is None:
            status, interruption = systems.solve(passes, preconditioner, problem.max_sweeps)
        else:
            status, interruption = Status.of_interruption(search.interruption), search.interruption
            how = "stopped" if status is Status.STOPPED else "interrupted"
            notes.append(f"{how} in the search for alpha: the model is the mean of some folds' models")
        result = iterative_result(
            fit,
            plan,
            search,
            systems.solution(),
            solver="cg",
            measure="relative residual",
            error=systems.relative_residual,
            history=systems.history,
            status=status,
            preconditioner=plan.preconditioner,
            n_sweeps=passes.n_sweeps,
            interruption=interruption,
            notes=notes,
        )
        if not search.fold_solutions:
            return result
        models = ridge_fold_models(
            problem.folds, fit.targets, search.fold_solutions, fit_intercept=problem.fit_intercept
        )
        return replace(result, fold_models=models)


class _Systems:
    """The systems of all outputs, in coded units, and bounds on their distance to the solutions."""

    def __init__(self, start: tuple[np.ndarray, np.ndarray], alpha: np.ndarray, tol: float) -> None:
        self._start = start
        self._alpha, self._tol = alpha, tol
        self._equations: RidgeEquations | None = None
        self._systems: dict[int, ConjugateGradients] = {}
        self.history = History()

    def solve(
        self, passes: RidgePasses, preconditioner: FactorPreconditioner | None, max_sweeps: int
    ) -> tuple[Status, KeyboardInterrupt | None]:
        """Advance the systems until they converge or stop; without a factor, M = diag(G) + alpha·I."""
        alpha = self._alpha
        passes.run.observer.begin_solver(max_sweeps)

        def respond(residuals: dict[int, np.ndarray]) -> dict[int, Response]:
            self.history.record(passes.n_sweeps, self.relative_residual)
            passes.notify(self.relative_residual, self._tol, self.solution)
            if passes.n_sweeps >= max_sweeps:
                return {}
            if preconditioner is None:
                solved = {j: r / (equations.G_diagonal + alpha[j]) for j, r in residuals.items()}
            else:
                solved = preconditioner.solve(residuals)
            # The pass evaluates f = vᵀ(z − z̄), a model of coefficients v and intercept −z̄ᵀv.
            V, z_mean = np.stack(list(solved.values())), equations.z_mean
            GV = passes.products("products", V, -(V @ z_mean), [z_mean] * len(V), (None,) * len(V))
            return {j: (v, Gv + alpha[j] * v) for (j, v), Gv in zip(solved.items(), GV, strict=True)}

        try:
            # One pass gives the right sides and, by the residuals of the first model, B − G·w at the start.
            equations = passes.right_sides(*self._start)
            self._begin(equations)
            in_lockstep({j: system.solve() for j, system in self._systems.items()}, respond)
            self.history.record(passes.n_sweeps, self.relative_residual)
            passes.notify(self.relative_residual, self._tol, self.solution)
        except KeyboardInterrupt as interruption:
            return Status.of_interruption(interruption), interruption
        is_converged = all(system.is_converged for system in self._systems.values())
        return Status.CONVERGED if is_converged else Status.NOT_CONVERGED, None

    def _begin(self, equations: RidgeEquations) -> None:
        """Take the equations; start at zero where its residual is smaller."""
        self._equations = equations
        sizes = np.linalg.norm(equations.B, axis=0)
        coef = self._start[0]
        residual = equations.descent - self._alpha * coef
        # At zero the residual is B.
        near = np.linalg.norm(residual, axis=0) < sizes
        coef, residual = np.where(near, coef, 0.0), np.where(near, residual, equations.B)
        self._systems = {
            j: ConjugateGradients(coef[:, j], residual[:, j], bound=self._tol * size)
            for j, size in enumerate(sizes.tolist())
        }

    @property
    def relative_residual(self) -> float:
        """The largest over the outputs; NaN before the first pass."""
        if self._equations is None:
            return float("nan")
        sizes = np.linalg.norm(self._equations.B, axis=0)
        errors = np.array([system.error for system in self._systems.values()])
        return float(np.max(errors / np.where(sizes > 0, sizes, 1.0)))

    def solution(self) -> RidgeSolution:
        """The last iterates of all outputs."""
        if self._equations is None:
            unknown = np.full(len(self._alpha), np.nan)
            return RidgeSolution(*self._start, unknown, unknown)
        coef = np.stack([system.x for system in self._systems.values()], axis=1)
        residual = np.stack([system.residual for system in self._systems.values()], axis=1)
        squared_error = self._equations.squared_error(coef, residual, self._alpha)
        return RidgeSolution(coef, self._equations.intercept(coef), squared_error, self._equations.yy)


# What conjugate gradients need, each time one light pass over the rows.


class RidgePasses:
    """Sums over all rows, or over the training rows of folds."""

    def __init__(self, fit: PreparedFit, plan: Plan, folds: Folds | None = None) -> None:
        self._fit, self.run = fit, fit.run
        self._cuts = light_cuts(plan.size)
        self._kept = fit.kept("light", plan, self._cuts)
        self._shared: dict[str, Any] = {
            "offset": system_of(fit).offset,
            "dtype": plan.size.dtype,
            "tile_rows": self._cuts.tile_rows,
            "folds": NO_FOLDS if folds is None else folds,
        }
        self.n_sweeps = self._n_told = 0

    def sum(
        self,
        label: str,
        kind: type,
        coef: np.ndarray,
        intercept: np.ndarray,
        held_out: tuple[int | None, ...],
        **own: Any,
    ) -> Any:
        """The sum of a reduction, of models and the fold of each."""
        reduction = self._fit.reduction(kind, **self._shared, held_out=held_out, **own)
        sent = {"coef": coef, "intercept": intercept}
        sums = self._fit.sum(label, reduction, self._cuts, sent, self._kept)
        self.n_sweeps += 1
        return sums

    def notify(self, error: float, tol: float, solution: Callable[[], RidgeSolution]) -> None:
        """Tell callbacks of the last pass, once, after which the error is known."""

        def parts() -> tuple[Any, ...]:
            at, targets, fit_intercept = solution(), self._fit.targets, self._fit.problem.fit_intercept
            return *in_units(targets, at.coef, at.intercept, fit_intercept=fit_intercept), targets

        if self._n_told < self.n_sweeps:
            self._n_told = self.n_sweeps
            self.run.observer.light_sweep(
                self.run.sweeps, self.n_sweeps, "relative residual", error, tol, parts
            )

    def right_sides(self, coef: np.ndarray, intercept: np.ndarray) -> RidgeEquations:
        """The equations, with the residual of the first coefficients."""
        (moments,) = self.sum("right sides", MomentsReduction, coef, intercept, (None,))
        equations = None
        if moments.is_finite:
            equations = RidgeEquations.of(moments, fit_intercept=self._fit.problem.fit_intercept)
        if equations is None or not np.isfinite(np.linalg.norm(equations.B)):
            raise InputError(
                "the sums over the rows are not finite: some values are too large for the features' dtype; "
                "use scale='standard' or dtype='float64'"
            )
        return equations

    def products(
        self,
        label: str,
        V: np.ndarray,
        intercept: np.ndarray,
        z_means: list[np.ndarray],
        held_out: tuple[int | None, ...],
    ) -> np.ndarray:
        """G·v for each row v of V, with G summed over the training rows of a fold, or over all rows.

        `intercept` holds −z̄ᵀv, and `z_means` the z̄ of the same rows.
        """
        sums = self.sum(label, ProductReduction, np.ascontiguousarray(V.T), intercept, held_out)
        GV = sums[:-1].T.copy(order="C")
        for i, z_mean in enumerate(z_means):
            # (Z − z̄)ᵀS·f = ZᵀS·f − z̄·Σ s·f, where the last sum is 0 but for rounding: without it the
            # product is not quite symmetric, which conjugate gradients presume.
            GV[i] -= sums[-1, i] * z_mean
        return GV

    def without_folds(self, folds: range) -> dict[int, RidgeEquations]:
        """The equations of each fold's training rows."""
        # No first coefficients: their products need not be summed.
        none = np.zeros((self._fit.specification.n_features, 0))
        moments: list[RidgeMoments | None] = self.sum(
            "right sides of folds", MomentsReduction, none, np.zeros(0), tuple(folds)
        )
        equations = {}
        for fold, sums in zip(folds, moments, strict=True):
            if sums is None or not sums.weight > 0:
                raise InputError(
                    f"fold {fold} has all rows of positive weight, so that none are left to fit; give more "
                    f"rows, or fold_by='contiguous'"
                )
            equations[fold] = RidgeEquations.of(sums, fit_intercept=self._fit.problem.fit_intercept)
        return equations


# Alpha by cross-validation without a Gram: conjugate gradients on several folds side by side.

_MIN_TOL = 1e-2  # an error on held-out rows is not known better than that
_MAX_RISES = 2

# A fold and a target.
_Member = tuple[int, int]


@dataclass(frozen=True, eq=False)
class _Place:
    """The solution of a fold and target so far: x, its residual, and the alpha of both."""

    x: np.ndarray
    residual: np.ndarray
    alpha: float

    def system(self, alpha: float, bound: float) -> ConjugateGradients:
        """The system of another alpha, whose residual at x follows from this one."""
        # B − (G + α′)·x = B − (G + α)·x + (α − α′)·x, so that another alpha needs no pass.
        return ConjugateGradients(self.x, self.residual + (self.alpha - alpha) * self.x, bound=bound)


def search_alpha(fit: PreparedFit, plan: Plan) -> AlphaSearch:
    """The alpha of least held-out error, or that of each target, from the largest down (`walk_grid`).

    Raises InputError if one fold has all rows of positive weight. A KeyboardInterrupt before the first judged
    solution is raised again, since there is nothing to keep; a later one is returned, with the choice so far.
    """
    problem, n, each = fit.problem, fit.problem.folds.n_folds, fit.problem.penalty.each_target
    passes = RidgePasses(fit, plan, problem.folds)
    # In groups where the solutions of all folds would take too much memory.
    groups = [range(i, min(i + plan.folds_per_task, n)) for i in range(0, n, plan.folds_per_task)]
    if problem.penalty.grid is None:
        default, _ = default_alphas(fit.weight, fit.mean_square_norm, floor=0.0)
        # Products are in float64 here, and no Gram is summed that could drown a small alpha.
        alphas, base = extended(default, floor=0.0)
    else:
        alphas, base = problem.penalty.grid, slice(0, len(problem.penalty.grid))
    tried: list[int] = []
    # By fold and tried alpha: Σ s·(y − f)² and Σ s over the fold, of shape (2, k).
    judged: dict[int, list[np.ndarray]] = {fold: [] for fold in range(n)}
    best: tuple[np.ndarray, np.ndarray] | None = None
    best_models: list[tuple[np.ndarray, np.ndarray]] = []  # those of the folds whose mean it is

    def walk(folds: range) -> None:
        """Judge the models of some folds: the first group walks the grid, later ones try the same alphas."""
        # Later groups cannot walk by their own errors: all folds have to judge the same alphas.
        models, totals, is_first = _FoldModels(fit, passes, folds), [], best is None

        def errors_at(place: int) -> np.ndarray:
            nonlocal best, best_models
            found = models.judged_at(float(alphas[place]))
            for fold, errors in found.items():
                judged[fold].append(errors)
            totals.append(
                sum(errors[0] if each else errors[0].sum(keepdims=True) for errors in found.values())
            )
            if is_first:
                tried.append(place)
                is_best = totals[-1] == np.min(totals, axis=0)  # by target, or of all together
                if is_best.any():
                    now = [models.mean(), *models.of_folds()]
                    before = now if best is None else [best, *best_models]
                    best, *best_models = (
                        (np.where(is_best, new, old), np.where(is_best, b, b_old))
                        for (new, b), (old, b_old) in zip(now, before, strict=True)
                    )
            # Only after a judged model: an interrupted search then has one to keep.
            fit.run.observer.stop_if_asked()
            return totals[-1]

        if is_first:
            walk_grid(len(alphas), errors_at, base)
        else:
            for place in tried:
                errors_at(place)

    interruption, folds = None, range(n)
    try:
        for group in groups:
            walk(group)
    except KeyboardInterrupt as caught:
        if best is None:
            raise KeyboardInterrupt(
                "no model is kept: none was judged yet in the search for alpha; fit again"
            ) from caught
        interruption, folds = caught, groups[0]
    order = np.argsort(tried)
    sums = np.array([judged[fold] for fold in folds])[:, order]  # (n_folds, n_tried, 2, k)
    by_fold, weights = sums[:, :, 0], sums[:, 0, 1, 0]
    grid = alphas[np.sort(tried)]
    choice = problem.penalty.choose(grid, by_fold, weights)
    return AlphaSearch(
        alpha=np.atleast_1d(choice.penalty),
        score=choice.score,
        criterion=f"mean squared error over {len(folds)} held-out folds",
        results={"alphas": grid, "mean_score": choice.scores, "fold_scores": choice.fold_scores},
        notes=[] if interruption else end_of_alphas(choice, alphas),
        start=best,
        # Folds that are judged in groups may agree on another alpha than the first group.
        fold_solutions=best_models if len(groups) == 1 and not interruption else [],
        interruption=interruption,
    )


class _FoldModels:
    """The models that leave out one of some folds each, solved for one alpha after another."""

    def __init__(self, fit: PreparedFit, passes: RidgePasses, folds: range) -> None:
        self._passes, self._problem, self._unit = passes, fit.problem, np.square(fit.targets.scale)
        self._equations = passes.without_folds(folds)
        self._places: dict[_Member, _Place] = {
            # At zero the residual is B for every alpha.
            (fold, j): _Place(np.zeros(len(e.B)), e.B[:, j], 0.0)
            for fold, e in self._equations.items()
            for j in range(fit.targets.n_outputs)
        }

    def judged_at(self, alpha: float) -> dict[int, np.ndarray]:
        """Σ s·(y − f)² and Σ s over each fold, (2, k), of the solutions for an alpha."""
        places, judged = self._places, {fold: np.zeros((2, len(self._unit))) for fold in self._equations}
        members = list(places)
        for first in range(0, len(members), MAX_DIRECTIONS):
            some = members[first : first + MAX_DIRECTIONS]
            # Taken out, as the system copies both vectors, and these are the large part of the client's
            # memory.
            systems = {m: places.pop(m).system(alpha, self._bound(m)) for m in some}
            self._solve(alpha, systems)
            places |= {m: _Place(system.x, system.residual, alpha) for m, system in systems.items()}
            held_out, outputs = zip(*some, strict=True)
            coef = np.stack([system.x for system in systems.values()], axis=1)
            intercept = np.array([self._intercept(m) for m in some])
            found = self._passes.sum(
                "held-out errors", HeldOutErrorReduction, coef, intercept, held_out, outputs=outputs
            )
            for (fold, j), error, weight in zip(some, *found, strict=True):
                judged[fold][:, j] = error * self._unit[j], weight
        return judged

    def mean(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean coefficients and intercepts of the folds."""
        n, k = len(self._equations), len(self._unit)
        coef, intercept = np.zeros((len(next(iter(self._places.values())).x), k)), np.zeros(k)
        for (fold, j), place in self._places.items():
            coef[:, j] += place.x / n
            intercept[j] += self._intercept((fold, j)) / n
        return coef, intercept

    def of_folds(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Coef (D, k) and intercept (k,) of each fold."""
        outputs = range(len(self._unit))
        return [
            (
                np.stack([self._places[fold, j].x for j in outputs], axis=1),
                np.array([self._intercept((fold, j)) for j in outputs]),
            )
            for fold in self._equations
        ]

    def _solve(self, alpha: float, systems: dict[_Member, ConjugateGradients]) -> None:
        """Advance all systems until they converge or their sweeps are spent."""
        left, equations = self._problem.max_sweeps, self._equations

        def respond(residuals: dict[_Member, np.ndarray]) -> dict[_Member, Response]:
            nonlocal left
            left -= 1
            if left < 0:
                return {}
            V = np.stack([r / (equations[f].G_diagonal + alpha) for (f, _), r in residuals.items()])
            folds = tuple(fold for fold, _ in residuals)
            z_means = [equations[fold].z_mean for fold in folds]
            intercept = -np.array([z_mean @ v for z_mean, v in zip(z_means, V, strict=True)])
            GV = self._passes.products("products of folds", V, intercept, z_means, folds)
            GV += alpha * V
            return dict(zip(residuals, zip(V, GV, strict=True), strict=True))

        in_lockstep({m: system.solve() for m, system in systems.items()}, respond)

    def _bound(self, member: _Member) -> float:
        fold, output = member
        return max(self._problem.tol, _MIN_TOL) * float(np.linalg.norm(self._equations[fold].B[:, output]))

    def _intercept(self, member: _Member) -> float:
        fold, output = member
        equations = self._equations[fold]
        return float(equations.y_mean[output] - equations.z_mean @ self._places[member].x)


def walk_grid(n: int, errors_at: Callable[[int], np.ndarray], base: slice | None = None) -> None:
    """Evaluate the errors at places of an ascending grid of n: from the largest down, then near the best.

    A grid of 12 places or more is walked in strides of 2, of 24 or more in strides of 4 and so on, until the
    error rises; then the strides are halved on both sides of the best place. A shorter grid is walked one by
    one, until the error has risen twice. With a `base`, the walk begins at its end and goes on below it like
    above it, and upwards only where the first place is the best. Of several errors it ends with the last.
    """
    top = n - 1 if base is None else base.stop - 1
    stride = walk_stride(n if base is None else base.stop - base.start)
    errors: dict[int, np.ndarray] = {}
    n_rises: Any = 0
    for place in range(top, -1, -stride):
        errors[place] = errors_at(place)
        n_rises = np.where(errors[place] > np.min(list(errors.values()), axis=0), n_rises + 1, 0)
        # One of several whose errors are all the same never rises.
        if (n_rises >= (1 if stride > 1 else _MAX_RISES))[_differ(errors)].all():
            break
    while top + stride < n and (errors[top] == np.min(list(errors.values()), axis=0))[_differ(errors)].any():
        top += stride
        errors[top] = errors_at(top)
    while stride > 1:
        stride //= 2
        places = list(errors)
        least = np.argmin(list(errors.values()), axis=0)[_differ(errors)]
        best = [places[i] for i in np.unique(least)]
        for place in (one + step for one in best for step in (-stride, stride)):
            if 0 <= place < n and place not in errors:
                errors[place] = errors_at(place)


def _differ(errors: Mapping[int, np.ndarray]) -> np.ndarray:
    found = np.ptp(list(errors.values()), axis=0) > 0
    return found if found.any() else np.ones_like(found)


# Preconditioners of ridge: factors of a sample's Gram, which stay on the cluster.


@dataclass(frozen=True, eq=False)
class FactorPreconditioner:
    """M = G + alpha·I, factored, for the Gram of a sample; outputs of equal alpha are solved together."""

    run: Run
    factors: list[Any]  # handles
    factor_of: np.ndarray  # (k,), the factor of each output

    def solve(self, residuals: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """M⁻¹r by output."""
        outputs = np.array(list(residuals))
        groups = [outputs[self.factor_of[outputs] == f] for f in range(len(self.factors))]
        used = [(f, group) for f, group in enumerate(groups) if len(group)]
        calls = [(self.factors[f], np.stack([residuals[j] for j in group], axis=1)) for f, group in used]
        solved = self.run.map(preconditioned, calls)
        return {
            int(j): V[:, i] for (_, group), V in zip(used, solved, strict=True) for i, j in enumerate(group)
        }

    def solution(self) -> tuple[np.ndarray, np.ndarray]:
        """Coef and intercept of ridge on the sample itself."""
        found = self.run.map(solution_of_sample, [(f,) for f in self.factors])
        chosen = list(enumerate(self.factor_of))
        coef = np.stack([found[f][0][:, j] for j, f in chosen], axis=1)
        return coef, np.array([found[f][1][j] for j, f in chosen])


def sample_preconditioner(fit: PreparedFit, plan: Plan, alpha: np.ndarray) -> FactorPreconditioner:
    """The preconditioner from one pass over a sample of the rows."""
    # With four to eight rows a feature, conjugate gradients on all rows took 3 to 11 passes.
    size = sample_size(plan.size, plan.stride)
    grams = factor_gram(fit, replace(plan, size=size, tile_rows=size.segmentation().tile_rows))
    # That of a sum over fewer rows: it falls as 1/√n, and `grams` knows the number of all rows.
    floor = np.sqrt(plan.stride) * grams.noise_floor(size.n_features)
    levels = factor_levels(alpha)
    calls = [(grams.total, max(floor, level), grams.system) for level in levels]
    # By ratio, as in `factor_levels`.
    nearest = np.abs(np.log(alpha[:, None] / levels)).argmin(axis=1)
    return FactorPreconditioner(fit.run, fit.run.submit_all(sampled_factor, calls), nearest)


# What they cost.

PRESUMED_SWEEPS_AN_ALPHA = 3  # that a search has for each: two products, and the held-out error
# In all of them together: half a gigabyte, of which the client holds some at a time.
_MAX_DIRECTION_NUMBERS = 2**26


def light_plan(
    size: Size,
    n_factors: int,
    workers: Workers,
    max_folds: int = MAX_DIRECTIONS,
    peak_of: Callable[[Any, int, int], int] = light_peak_bytes,
) -> Plan:
    """The plan of light passes; `peak_of` is that of one for some vectors."""
    s, threads = size, workers.threads_per_worker
    stride = gram_stride(s.n_rows, s.n_features) if n_factors else 0
    sample_rows = s.n_rows / stride if stride else 0.0
    folds_at_once = min(max_folds, _folds_at_once(s))
    in_search = min(MAX_DIRECTIONS, s.n_outputs * folds_at_once)
    after_it = s.n_outputs if s.n_sums > 1 else max(s.n_outputs, s.n_light_columns)
    max_columns = max(in_search, after_it)
    n_search = _search_sweeps(s, folds_at_once)
    light = s.n_rows * (
        (PRESUMED_SWEEPS + n_search) * s.basis_flops
        + 4.0 * s.row_entries * (PRESUMED_SWEEPS * after_it + n_search * in_search)
    )
    factor = sample_rows * (s.map_flops + s.gram_size**2) + n_factors * float(s.n_features) ** 3 / 3
    # The factors stay where they were made, beside the light passes.
    factor_bytes = 8 * n_factors * s.gram_size**2 if stride else 0
    light_bytes = peak_of(s, max_columns, threads) + factor_bytes
    peak_bytes = max(light_bytes, _factor_peak_bytes(s, stride, n_factors, threads))
    return planned(
        "cg",
        s,
        workers,
        light_cuts(s),
        n_passes=bool(stride) + PRESUMED_SWEEPS + n_search,
        folds_per_task=folds_at_once,
        flops=light + factor + s.map_factor_flops,
        cosines=((PRESUMED_SWEEPS + n_search) * s.n_rows + sample_rows) * s.row_entries,
        worker_peak_bytes=peak_bytes,
        client_peak_bytes=client_peak_bytes(replace(s, n_outputs=max_columns)),
        stride=stride,
        n_factors=n_factors,
        n_search_sweeps=n_search,
    )


def _folds_at_once(size: Size) -> int:
    """How many folds a search solves together: a function of n, D, k and the number of folds alone."""
    numbers = max(1, size.n_features * size.n_outputs)
    max_folds = min(MAX_DIRECTIONS // max(1, size.n_outputs), _MAX_DIRECTION_NUMBERS // numbers)
    return max(1, min(size.n_folds, max_folds))


def walk_stride(n_alphas: int) -> int:
    """The stride in which a search walks down a grid of alphas before it looks in between."""
    return 1 << max(0, (n_alphas // 6).bit_length() - 1)


def _search_sweeps(size: Size, folds_at_once: int) -> int:
    """The sweeps presumed for a search by folds, as if its first walk went to the end of the grid."""
    if size.n_sums == 1:
        return 0
    stride = walk_stride(size.n_alphas)
    # The walk in strides, then two places at each halving of the stride.
    n_alphas = -(-size.n_alphas // stride) + 2 * (stride.bit_length() - 1)
    turns = -(-size.n_outputs * folds_at_once // MAX_DIRECTIONS)
    # Each group of folds has one pass for its right sides.
    return -(-size.n_folds // folds_at_once) * (1 + n_alphas * turns * PRESUMED_SWEEPS_AN_ALPHA)


def _factor_peak_bytes(size: Size, stride: int, n_factors: int, threads: int) -> int:
    """The largest resident set above idle of the sample's Gram sweep, and the factors."""
    if not stride:
        return 0
    return gram_peak_bytes(sample_size(size, stride), 1, threads) + 8 * n_factors * size.gram_size**2


def sample_size(size: Size, stride: int) -> Size:
    """The size of a sample's Gram."""
    # In float64: the rows are few, and float32 rounding would cost light sweeps where alpha is small.
    return replace(size, dtype="float64", n_folds=1, n_other_sums=0, memberships=1.0, gram_stride=stride)
