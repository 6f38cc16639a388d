"""Ridge from Grams: a pass over the rows, then alpha, learning curve and solution from its sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from distrff.engine.reduction import Arrays
from distrff.engine.run import Run
from distrff.engine.tasks import LocalExecution, Workers
from distrff.errors import DataWarning, InputError, PenaltyTooSmall, PrecisionWarning, warn
from distrff.features.fitted import FittedMap, Trait
from distrff.fitting.cost import (
    _REDUCTION_SLOWNESS,
    MAX_DIRECTIONS,
    MAX_PATH_BYTES,
    SLACK_BYTES,
    LightPasses,
    Plan,
    Size,
    client_peak_bytes,
    planned,
    ready_bytes,
)
from distrff.fitting.problem import FitContext, Penalty, PreparedFit, Problem
from distrff.fitting.result import (
    AlphaSearch,
    FitResult,
    end_of_grid,
    ends_of_targets,
    ridge_fold_models,
    ridge_result,
)
from distrff.fitting.rows import MappedRows, RowReduction, by_sum
from distrff.io.dataset import RowBlock, Rows
from distrff.preprocessing.coding import NumericTargets, Targets
from distrff.preprocessing.folds import NO_FOLDS, Folds, HashFolds
from distrff.solvers.objective import Loss
from distrff.solvers.ridge import (
    N_DEFAULT_ALPHAS,
    FoldErrors,
    FoldTerms,
    GramProblem,
    RidgeSolution,
    Rotation,
    above_noise,
    default_alphas,
    extended,
    fold_errors,
    fold_weights,
    gcv_errors,
    gcv_may_overfit,
    noise_floor,
    pack,
    packed_length,
    principal_components,
    row_grams,
    solution_of,
    solution_without,
    total_gram,
)
from distrff.utils.linalg import add_lower_triangle, add_product, add_square, values_of
from distrff.utils.random import child_seed, stream

if TYPE_CHECKING:
    from distrff.fitting.sums import GramStatistics
    from distrff.solvers.posterior import PosteriorFactor


@dataclass(frozen=True, kw_only=True)
class GramReduction(RowReduction):
    """Reduction to the Grams of some sums of the folds.

    Partials are a packed lower triangle for each member, p = D + 1 + k; for the total see `empty_sums`. A row
    costs 2dD + p² flops and D cosines. Memory beside the total: one tile, its rows, and one p × p product of
    float32 rows, or at the end the packed copy of float64 sums.

    Without folds a product takes T = `tile_rows` consecutive rows. With K sums, K·T rows are read, ordered
    by sum, and each sum's rows, about T, are one product. Rows that enter several sums are mapped for each.
    Targets without an output give the Gram of [z | 1], whether the rows have a y or not. Wide partials are
    (D + 2, p) for each member, and a row costs 2·D·p flops.
    """

    folds: Folds = NO_FOLDS
    members: tuple[int, ...] = (0,)  # the sums that are made
    wide: bool = False  # without products of two targets

    @property
    def size(self) -> int:
        """p, the columns of t."""
        return self.specification.n_features + 1 + self.targets.n_outputs

    @property
    def n_sums(self) -> int:
        return len(self.members)

    def size_bytes(self, n_rows: int) -> int:
        wide = (self.specification.n_features + 2) * self.size
        return 8 * self.n_sums * (wide if self.wide else packed_length(self.size))

    def zero(self) -> np.ndarray:
        if self.wide:
            return np.zeros((self.n_sums, self.specification.n_features + 2, self.size))
        return empty_sums(self.n_sums, self.size, np.dtype(self.dtype))

    def finish(self, total: np.ndarray) -> np.ndarray:
        return total if self.wide or total.ndim == 2 else pack(total)

    def merge(self, first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray:
        if first is None or second is None or len(first) == 1:
            merged: np.ndarray = super().merge(first, second)
            return merged
        # A stretch of rows enters few of the sums of folds in the order of rows. The others stay the zeros
        # that nobody has touched: adding them took a tenth of a sweep with 16 sums of 2,048 features.
        D, total = self.specification.n_features, np.zeros(first.shape)
        weight = (D, D) if self.wide else packed_length(D + 1) - 1
        for merged, own, other in zip(total, first, second, strict=True):
            if own[weight] and other[weight]:
                np.add(own, other, out=merged)
            elif own[weight] or other[weight]:
                merged[:] = own if own[weight] else other
        return total

    def update(self, total: np.ndarray, rows: Rows, arrays: Arrays) -> np.ndarray:
        tile = _Tile(self, self.ready_map(arrays))
        # Ordering K tiles by sum costs at most 5 % more than no folds; cutting each tile into K small
        # products would cost 75 % more.
        for block in rows.tiles(self.folds.n_sums * self.tile_rows):
            for position, part in by_sum(self.folds, self.members, block, tile.capacity):
                tile.add_product(total[position], part)
        return total


class _Tile:
    """The buffer of one task: it is filled with rows t, and the product is added to a Gram."""

    def __init__(self, reduction: GramReduction, ready: FittedMap) -> None:
        self._reduction = reduction
        self._map = ready
        self._dtype = np.dtype(reduction.dtype)
        # Of K·T hashed rows a fold has T ± √T. With room for six standard deviations, folds are practically
        # never split.
        # The plan counts the same room, in `gram_peak_bytes`.
        spread = 6 * int(np.sqrt(reduction.tile_rows)) if reduction.folds.n_sums > 1 else 0
        self.capacity = reduction.tile_rows + spread
        self._rows = np.empty((self.capacity, reduction.size), self._dtype)

    def add_product(self, A: np.ndarray, rows: RowBlock) -> None:
        """Add Σ s·ttᵀ of at most `capacity` rows to A."""
        reduction, D = self._reduction, self._map.n_features
        # All columns are written anew, since the weights below multiply the buffer in place.
        t = self._rows[: rows.X.shape[0]]
        self._map.apply(reduction.scaled(rows.X), out=t[:, :D])
        t[:, D] = 1.0
        if reduction.targets.n_outputs:
            t[:, D + 1 :] = reduction.targets.encode(rows.y)
        s = reduction.targets.row_weights(rows.y, rows.sample_weight)
        if s is not None:
            # √s on both sides keeps tᵀt one symmetric product; tᵀ(s·t) would take twice its flops.
            t *= np.sqrt(s).astype(self._dtype)[:, None]
        if reduction.wide:
            add_wide(A, t, D)
        else:
            add_squares(A, t)


def add_wide(A: np.ndarray, t: np.ndarray, n_features: int) -> None:
    """Add the products of z and 1 with all columns of t = [z | 1 | y], and Σ y², to a wide Gram."""
    add_product(A[:-1], t[:, : n_features + 1], t)
    Y = t[:, n_features + 1 :]
    A[-1, n_features + 1 :] += np.einsum("ij,ij->j", Y, Y, dtype=np.float64)


def empty_sums(m: int, p: int, dtype: np.dtype) -> np.ndarray:
    """m float64 sums of products tᵀt of this dtype, of p columns, to be added to by `add_squares`.

    Sums of float64 products are square, (m, p, p), with lower triangles alone; others are packed triangles,
    (m, p(p + 1)/2).
    """
    # BLAS adds float64 products to a square itself. Others are packed from the start: squares that are packed
    # in the end touch three times as much fresh memory, .25 GB for five folds of 2050 columns. A gigabyte of
    # it takes .13 s, and 2.3 s where the machine has not given it out before: 1 to 3 % of a sweep over 62,500
    # rows.
    return np.zeros((m, p, p) if dtype == np.float64 else (m, packed_length(p)))


def add_squares(A: np.ndarray, t: np.ndarray) -> None:
    """Add tᵀt to one of `empty_sums`."""
    if A.ndim == 2:
        # NumPy's product takes fresh memory, fills its other triangle, and is then added: 3 % more for tiles
        # of 4096 × 2050, 10 % for 2048 × 2050.
        add_square(A, t)
    else:
        # float32 products have no buffer of their own: reusing one, or BLAS's rank-k update into it, saves a
        # hundredth at most, and it would stay in memory while the next chunk is decoded.
        add_lower_triangle(A, t.T @ t)


# The Gram of rows that are weighted by the curvature of their losses at a point: the objective's Hessian.


@dataclass(frozen=True, kw_only=True)
class CurvatureGramReduction(GramReduction):
    """The sums Σ s·ℓ″(f, y)·ttᵀ over rows t = [z | 1] for m binary problems, at a point each.

    Tasks are sent `coef` of shape (D, m) and `intercept` of shape (m,).

    A row costs 2dD + 2Dm flops and D cosines, and p² flops more for each problem in which its loss is curved.
    Rows with a curved loss are gathered for products of `tile_rows`.
    """

    loss: Loss
    outputs: tuple[int, ...]  # which of the targets each problem is for
    light_rows: int

    @property
    def size(self) -> int:
        return self.specification.n_features + 1

    @property
    def n_sums(self) -> int:
        return len(self.outputs)

    def update(self, total: np.ndarray, rows: Rows, arrays: Arrays) -> np.ndarray:
        ready = self.ready_map(arrays)
        coef = ready.basis_coef(arrays["coef"], np.dtype(self.dtype))
        # Rows are gathered within a segment, never across two: which of them share a product then follows
        # from row numbers alone, and the sums keep their bits on any workers.
        gathered = [_Gathered(A, np.empty((self.tile_rows, self.size), self.dtype)) for A in total]
        # Features are made once for all problems, of few enough rows at a time to stay in a cache.
        for block in rows.tiles(self.folds.n_sums * self.light_rows):
            for _, part in by_sum(self.folds, self.members, block, block.X.shape[0]):
                scaled = self.scaled(part.X)
                B = ready.basis_tile(scaled)
                F, Y = values_of(B, coef) + arrays["intercept"], self.targets.encode(part.y)
                weights = self.loss.second_derivative(F, Y[:, list(self.outputs)])
                row_weight = self.targets.row_weights(part.y, part.sample_weight)
                if row_weight is not None:
                    weights *= row_weight[:, None]
                curved = np.flatnonzero(weights.any(axis=1))
                # A basis has no triangular solve in it, of D² flops a row for landmarks; the solve is for
                # curved rows alone.
                Z = ready.apply(scaled[curved]) if ready.has_basis else B[curved]
                for of_problem, weight in zip(gathered, weights[curved].T, strict=True):
                    own = np.flatnonzero(weight)
                    of_problem.add(self._weighted(Z[own], weight[own]))
        for of_problem in gathered:
            of_problem.multiply()
        return total

    def _weighted(self, Z: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The rows √(s·ℓ″)·[z | 1]."""
        t = np.ones((len(Z), self.size), Z.dtype)
        t[:, :-1] = Z
        t *= np.sqrt(weight).astype(Z.dtype)[:, None]
        return t


class _Gathered:
    """Rows are gathered until they fill a tile; its product is then added to A."""

    def __init__(self, A: np.ndarray, tile: np.ndarray) -> None:
        self._A, self._tile, self._n_rows = A, tile, 0

    def add(self, t: np.ndarray) -> None:
        """Gather some rows."""
        while len(t):
            room = self._tile[self._n_rows :]
            taken = t[: len(room)]
            room[: len(taken)] = taken
            self._n_rows += len(taken)
            t = t[len(taken) :]
            if self._n_rows == len(self._tile):
                self.multiply()

    def multiply(self) -> None:
        """Add the product of the gathered rows."""
        add_squares(self._A, self._tile[: self._n_rows])
        self._n_rows = 0


# The solver.


class GramRidge:
    """Ridge from the Grams of all folds: one pass, then alpha, learning curve and model without the rows.

    Where the Grams of all folds would take too much memory, each has a pass of its own. Without a loss there
    are the Grams alone.
    """

    def refuses(self, problem: Problem) -> str | None:
        has_gram = problem.loss is not None  # else the map alone may be wanted
        return needs_gram(problem) if has_gram and problem.is_sparse else unwritten(problem)

    def size(self, fit: FitContext, size: Size) -> Size:
        size = replace(ridge_size(fit.problem, size), dtype=fit.gram_dtype)
        if not fit.problem.chooses_weights:
            return size
        from distrff.features.compose import MAX_WEIGHTINGS  # few fits have such a map

        return replace(size, n_weightings=MAX_WEIGHTINGS)

    def cost(self, size: Size, workers: Workers) -> Iterator[Plan]:
        # A pass for each sum reads all rows K times, but maps and multiplies none twice: it takes the rows of
        # its own sum alone. Only reading is dearer, so that there is no plan in between.
        yield gram_plan(size, size.n_sums, workers)
        if size.n_sums > 1:
            yield gram_plan(size, 1, workers)

    def light_passes(self, plan: Plan) -> LightPasses:
        return [], 0

    def solve(self, fit: PreparedFit, plan: Plan) -> FitResult:
        problem, dtype = fit.problem, plan.size.dtype
        notes = []
        if dtype != fit.features_dtype:
            noise = f"the rounding noise of float32 products ({fit.noise_floor('float32'):.3g})"
            notes = [f"alpha={problem.min_alpha:g} is below {noise}: float64 was used"]
            # Asked for by name, float32 is not replaced in silence; of dtype="auto" the note in the report is
            # enough.
            if problem.dtype == "float32":
                warn(notes[0], PrecisionWarning)
        fit.run.begin_phase("Gram")
        folds = folds_of(problem, plan.size)
        if problem.chooses_weights:
            return _solved_with_weights(sum_grams(fit, plan, folds), problem, plan, notes)
        # Folds repay the rotation: its 2n²D flops come once, and then each fold reduces n columns in place of
        # D.
        if problem.penalty.search == "cv" and not plan.size.wide and _has_few_rows(plan):
            grams = map_rows(fit, plan, folds)
        else:
            grams = sum_grams(fit, plan, folds)
        return _solved(grams, problem, plan=plan, notes=notes)


class PrincipalComponents(GramRidge):
    """The leading eigenvectors of the centred Gram, after one pass."""

    def refuses(self, problem: Problem) -> str | None:
        if problem.is_sparse:
            return (
                "features of random binning are too many for a Gram, from which components are found; "
                "use FourierFeatures or NystroemFeatures"
            )
        return unwritten(problem)

    def solve(self, fit: PreparedFit, plan: Plan) -> FitResult:
        run = fit.run
        run.begin_phase("Gram")
        (gram,) = gram_passes(fit, plan, NO_FOLDS)
        run.begin_phase("components")
        found = run.compute(principal_components, gram, fit.problem.n_components)
        k = len(found.components)
        return FitResult(
            run=run,
            plan=plan,
            n_rows=fit.dataset.n_rows,
            dtype=plan.size.dtype,
            # Coordinates are not coded targets: shift 0 and scale 1 leave them as they are.
            targets=NumericTargets(np.zeros(k), np.ones(k)),
            coef=found.components.T,
            # A score is Vᵀ(z − z̄) = Vᵀz − Vᵀz̄.
            intercept=-found.components @ found.mean,
            search=found,
            entries={
                "explained_variance": found.eigenvalues / fit.weight,
                "explained_variance_ratio": found.eigenvalues / (found.total if found.total > 0 else 1.0),
            },
        )


def fit_statistics(statistics: GramStatistics, problem: Problem) -> FitResult:
    """The fit of ridge to a Gram in the client's memory.

    Raises InputError if the Gram has no rows, the other kind of targets, no folds although ``alpha="cv"``
    needs them, or was summed in float32 and alpha is below its rounding noise.
    """
    statistics.check_for(problem.target_kind)
    problem.check_targets(statistics.targets)
    folds = statistics.by_folds
    if problem.penalty.search == "cv" and folds.n_sums < 2:
        raise InputError(
            "alpha='cv' needs a Gram with folds: make it with cv=5, or use alpha='gcv'; "
            "a difference of Grams has no folds, since those of the forgotten rows are not known"
        )
    specification, parts = statistics.specification, [statistics.A]
    intercept, n_rows = problem.fit_intercept, statistics.n_rows
    system = gram_system(specification, statistics.targets, n_rows=n_rows, fit_intercept=intercept)
    total, D = total_gram(parts, folds.total, system), specification.n_features
    # The mean of ‖z‖² for a map whose k(0) depends on the row: the trace of ZᵀSZ is Σ s‖z‖².
    of_rows = float(np.trace(total[:D, :D]) / statistics.weight)
    grams = Grams(
        # The sums are in this process: a cluster would receive them only to send a small model back.
        run=Run(LocalExecution("threads")),
        parts=parts,
        folds=folds,
        total=total,
        system=system,
        weight=statistics.weight,
        mean_square_norm=specification.at_zero if np.isfinite(specification.at_zero) else of_rows,
        tile_rows=statistics.tile_rows,
        dtype=statistics.dtype,
        targets=statistics.targets,
    )
    # A fit to rows would sum them in float64 instead; of sums the lost digits cannot be had again.
    floor = grams.noise_floor()
    if (
        problem.penalty.value is not None
        and statistics.dtype != "float64"
        and problem.penalty.value.min() < floor
    ):
        raise InputError(
            f"alpha={problem.penalty.value.min():g} is below the rounding noise of this float32 Gram "
            f"({floor:.3g}); use a larger alpha, or make the Gram with dtype='float64'"
        )
    return _solved(grams, problem, plan=None, notes=[])


def _solved(grams: Grams, problem: Problem, *, plan: Plan | None, notes: list[str]) -> FitResult:
    """The fit that follows from merged Grams; no row is touched. Without a plan these were there before."""
    run, system = grams.run, grams.system
    run.begin_phase(
        "alpha and learning curve" if problem.penalty.value is None else "model and learning curve"
    )
    of_folds: list[tuple[np.ndarray, np.ndarray]] = []
    if problem.penalty.value is not None:
        begun = grams.begin_solution(problem.penalty.value)  # on a cluster beside the learning curve
        search = _given(grams, problem.penalty.value)
        solution = run.get(begun)
    else:
        by_folds, n_folds = problem.penalty.search == "cv", grams.folds.n_folds
        # Models of folds predict the rows of a fit. A Gram that was there before has no rows.
        has_models = by_folds and plan is not None  # of the folds
        if by_folds:
            held_out = f"{n_folds} held-out fold{'s' * (n_folds > 1)}"
            search = _by_folds(grams, problem.penalty, n_folds, held_out, with_models=has_models)
        else:
            search = _by_gcv_or_fold(grams, problem.penalty)
        run.begin_phase("model")
        # The models of the folds while their Grams are there, where the search has not kept them.
        search, solution, of_folds = _with_solutions(grams, search, range(n_folds if has_models else 0))
    result = ridge_result(
        run,
        plan,
        grams.targets,
        search,
        solution,
        n_rows=system.n_rows,
        fit_intercept=system.fit_intercept,
        dtype=grams.dtype,
        notes=notes,
        entries={"solver": "gram", "noise_floor": grams.noise_floor()},
        grams=grams,
    )
    if not of_folds:
        return result
    models = ridge_fold_models(grams.folds, grams.targets, of_folds, fit_intercept=system.fit_intercept)
    return replace(result, fold_models=models)


def _solved_with_weights(grams: Grams, problem: Problem, plan: Plan, notes: list[str]) -> FitResult:
    """The fit with the weights of its map's parts that have the least held-out error."""
    from distrff.features.compose import search_weights  # as above

    assert grams.fit is not None
    features: Any = grams.fit.features
    parts = features.specification_.parts
    grams.run.begin_phase("weights of maps")
    grams.run.observer.between_passes("weights of maps by held-out error")
    # The means of ‖z‖² of the parts, where these are not known: k(0) of all follows for any weights.
    norms = np.array([part.at_zero for part in parts])
    if not np.isfinite(norms).all():
        diagonal = grams.run.compute(np.diagonal, grams.total)[: features.specification_.n_features]
        starts = np.cumsum([0, *(part.n_features for part in parts[:-1])])
        norms = np.add.reduceat(diagonal, starts) / grams.weight * len(parts)

    def weighted(weights: np.ndarray) -> Grams:
        # The Gram is that of equal weights.
        factors = np.repeat(np.sqrt(weights * len(parts)), [part.n_features for part in parts])
        system = replace(grams.system, factors=factors)
        return replace(grams, system=system, mean_square_norm=float(weights @ norms))

    def score(weights: np.ndarray) -> float:
        try:
            search = _by_folds(weighted(weights), problem.penalty, grams.folds.n_folds, "")
        except InputError:  # no alpha is usable with these weights, as one may be with others
            return np.inf
        assert search.score is not None
        return search.score

    found = search_weights(len(parts), score, stream(problem.seed, "weights of maps"))
    chosen = weighted(np.array(found["weights"]))
    told = ", ".join(f"{weight:.2g}" for weight in found["weights"])
    result = _solved(
        chosen, problem, plan=plan, notes=[*notes, f"weights of the maps, by held-out error: {told}"]
    )
    entries = {**result.entries, "weights_search": found}
    return replace(result, entries=entries, features=features.with_weights(found["weights"]))


def _with_solutions(
    grams: Grams, search: AlphaSearch, held_out: range
) -> tuple[AlphaSearch, RidgeSolution, list[tuple[np.ndarray, np.ndarray]]]:
    """The choice, the model of all rows, and the coefficients and intercepts without each fold."""
    # An alpha of the size of the Gram's rounding errors may leave every matrix of the search positive
    # definite, but not every one that is solved here. Then the best of the larger alphas is taken.
    # It ends: each round takes a larger alpha of the grid, or raises where none is left.
    while True:
        try:
            is_known = bool(search.fold_solutions)
            solution, *others = grams.solutions(range(0) if is_known else held_out, search.alpha)
            of_folds = search.fold_solutions or [(other.coef, other.intercept) for other in others]
            # All of them together: of few rows one product with Q serves every model.
            coefs = grams.in_features([solution.coef, *(coef for coef, _ in of_folds)])
            solution = replace(solution, coef=coefs[0])
            return search, solution, [(w, b) for w, (_, b) in zip(coefs[1:], of_folds, strict=True)]
        except PenaltyTooSmall:
            larger = _best_above(search)
            if larger is None:
                raise
            search = larger


def _best_above(search: AlphaSearch) -> AlphaSearch | None:
    """The choice among the alphas above the chosen one; None if there are none with a score."""
    if not search.results:
        return None
    alphas, scores = search.results["alphas"], search.results["mean_score"]
    # The smallest one: where targets have alphas of their own, it is the first to fail.
    before, by_target = search.alpha.min(), scores.reshape(len(alphas), -1)
    low = search.alpha == before
    above = np.where(np.isfinite(by_target) & (alphas > before)[:, None], by_target, np.inf)[:, low]
    if not np.isfinite(above).any(axis=0).all():
        return None
    chosen = search.alpha.copy()
    chosen[low] = alphas[np.argmin(above, axis=0)]
    own = by_target[np.searchsorted(alphas, chosen), np.arange(len(chosen))]
    alpha, score = float(np.median(chosen)), float(own.mean())
    # Notes on the end of the grid speak of the alpha that is given up, and the last point of the curve, of
    # all features, has its error.
    refuted = tuple(f"alpha={before:g} is the {which}" for which in ("smallest", "best"))
    whose, best = "", f"alpha={alpha:g} has the smallest error of the larger ones"
    notes = [one for one in search.notes if not one.startswith(refuted)]
    if scores.ndim > 1:
        whose, best = f" of {np.count_nonzero(low)} targets", "they have the best of the larger ones"
    notes.append(
        f"alpha={before:g} had the smallest error{whose}, but is below the rounding noise of the Gram: {best}"
    )
    if scores.ndim == 1:
        notes += end_of_grid("alpha", alpha, alphas[np.isfinite(scores)], scores)
    curve = [*search.learning_curve[:-1], [search.learning_curve[-1][0], score, alpha]]
    return replace(
        search,
        alpha=chosen,
        score=score,
        learning_curve=curve,
        notes=notes,
        # Those that the search kept are of the alpha given up.
        fold_solutions=[],
    )


# The Grams of a fit.


@dataclass(frozen=True, eq=False)
class Grams:
    """Merged Grams where they were summed."""

    run: Run
    parts: list[Any]  # handles: one on the Grams of all sums, or one a sum
    folds: Folds  # by these sums
    total: Any  # handle on that of all rows
    system: GramProblem
    weight: float
    mean_square_norm: float
    tile_rows: int
    dtype: str
    targets: Targets
    # Of few rows: the Grams above are of rotated features, and smaller sizes have their own total and parts.
    rows: Any = None  # handle on their `MappedRows`
    rotation: Any = None  # handle on the `Rotation` of all features
    fit: PreparedFit | None = None  # of the rows; None where only their Grams are known
    plan: Plan | None = None  # of that fit
    smaller: dict[int, tuple[Any, list[Any]]] = field(default_factory=dict)

    def terms(self, folds: Iterable[int]) -> list[FoldTerms]:
        """Some folds by their sums."""
        # Once for all of them: for a fold each of K groups these are K × K.
        train, test, total = self.folds.train, self.folds.test, self.folds.total
        return [FoldTerms.of(train[fold], test[fold], total) for fold in folds]

    def errors_of(self, calls: list[_Call]) -> list[FoldErrors]:
        """Errors of the folds under the models of some sizes, a task each."""
        # Of few rows a Gram has no more columns than there are rows.
        most = math.inf if self.rows is None else self.system.n_rows
        own = self.total, self.parts
        tasks = [
            (*self.smaller.get(one.size, own), terms, self.system, *one[1:])
            for one, terms in zip(calls, self.terms(one.fold for one in calls), strict=True)
        ]
        # A reduction takes about the cube of its columns: with those of the whole map first, threads end at
        # about the same time, even where their number does not divide that of the folds.
        return self.run.map(fold_errors, tasks, costs=[float(min(one.size, most)) ** 3 for one in calls])

    def keeps_paths(self, n_folds: int, n_alphas: int) -> bool:
        """Whether the models of all folds and alphas are worth the memory that they take here."""
        # They save a factor for each fold.
        D = self.system.sizes[-1] if self.rows is None else self.system.n_rows
        return 8 * n_folds * n_alphas * D * self.system.n_targets <= MAX_PATH_BYTES

    def begin_solution(self, alpha: np.ndarray) -> Any:
        """A handle on the model of all rows."""
        return self.run.submit(solution_of, self.total, alpha, self.system)

    def solutions(self, held_out: range, alpha: np.ndarray) -> list[RidgeSolution]:
        """The model of all rows, then for each held-out fold that of the other rows."""
        if not held_out:  # without the Grams of folds, which may be on other workers
            return [self.run.get(self.begin_solution(alpha))]
        folds = (None, *self.terms(held_out))
        # With costs, though all are equal: by its own rule Dask ran all folds where the Grams are, and two
        # workers took 3.4 s for five folds of D = 2048, in place of 2.5 s.
        calls: list[tuple] = [(self.total, self.parts, fold, alpha, self.system) for fold in folds]
        return self.run.map(solution_without, calls, group="solution of", costs=[1.0] * len(calls))

    def in_features(self, coefs: list[np.ndarray]) -> list[np.ndarray]:
        """Coefficients (D, k) of the features, from those of the Grams."""
        if self.rotation is None:
            return coefs
        found = self.run.compute(Rotation.features, self.rotation, np.hstack(coefs))
        return np.split(found, len(coefs), axis=1)

    @property
    def unit(self) -> np.ndarray:
        """The square of a coded target's 1, of shape (k,)."""
        return np.square(self.targets.scale)

    def noise_floor(self, size: int | None = None) -> float:
        """The alpha below which the solution of `size` features, or of all, is noise."""
        return noise_floor(
            self.weight,
            self.system.n_rows,
            tile_rows=self.tile_rows,
            n_features=self.system.sizes[-1] if size is None else size,
            at_zero=self.mean_square_norm,
            dtype=np.dtype(self.dtype),
        )

    def posterior(self, alpha: float) -> PosteriorFactor:
        """The posterior of the model at one alpha; it is computed where the Gram is."""
        from distrff.solvers.posterior import posterior_of_gram  # which fits do without

        total = self.total if self.rows is None else self._of_few_rows(NO_FOLDS)[0]
        found: PosteriorFactor = self.run.compute(posterior_of_gram, total, alpha, self.system)
        return replace(found, noise=found.noise * self.unit)

    def _of_few_rows(self, folds: Folds) -> tuple[Any, list[Any]]:
        """Handles on the Grams of all features of few rows, whose own are of rotated ones."""
        # A factor is of D × D.
        parts = [self.run.submit(_row_grams, self.rows, self.system.sizes[-1], folds)]
        return self.run.submit(total_gram, parts, folds.total, self.system), parts

    def fold_posteriors(self, alphas: list[float]) -> Iterator[list[PosteriorFactor]]:
        """Yield the posteriors without each fold at some alphas, for noise of variance 1, after another pass.

        One factor an alpha is in memory at a time: of all folds they would be more than their Grams.
        """
        from distrff.solvers.posterior import posterior_without  # as above

        if self.rows is not None:
            total, parts = self._of_few_rows(self.folds)
        else:
            assert self.fit is not None and self.plan is not None
            again = sum_grams(self.fit, self.plan, self.folds)
            total, parts = again.total, again.parts
        for fold in self.terms(range(self.folds.n_folds)):
            own = total, parts, fold
            yield [self.run.compute(posterior_without, *own, alpha, self.system) for alpha in alphas]

    def fold_models(self, alpha: np.ndarray) -> None:
        """None: the fit has kept these models, where it held folds out."""

    def kept(self) -> Grams:
        """The part that is kept after the fit: the sum, without the Grams of the folds, or the rows."""
        if self.rows is None:
            return replace(self, parts=[], total=self.run.settle(self.total))
        rows = self.run.settle(self.rows)
        return replace(self, parts=[], total=None, rows=rows, rotation=None, smaller={})


def gram_passes(
    fit: PreparedFit, plan: Plan, folds: Folds, members: list[tuple[int, ...]] | None = None
) -> list[Any]:
    """Handles on the merged Grams: one on all sums of the folds, or one a sum where memory is short.

    `members` names the sums of each pass instead.
    """
    if members is None:
        # As the plan counted: a task has all sums, or one of them.
        together = plan.folds_per_task == folds.n_sums
        members = [tuple(range(folds.n_sums))] if together else [(j,) for j in range(folds.n_sums)]
    return [
        fit.run.reduce(
            "Gram" if len(members) == 1 else f"Gram of fold {group[0]}",
            fit.dataset,
            fit.reduction(
                GramReduction,
                dtype=plan.size.dtype,
                tile_rows=plan.tile_rows,
                folds=folds,
                members=group,
                wide=plan.size.wide,
            ),
            plan.size.segmentation(),
        )
        for group in members
    ]


def sum_grams(fit: PreparedFit, plan: Plan, folds: Folds) -> Grams:
    """The Grams of the rows, one for each sum of the folds."""
    parts, system = gram_passes(fit, plan, folds), system_of(fit)
    # Summed once, for the tasks of all folds: the training rows of each are this total less a few sums.
    total = fit.run.submit(total_gram, parts, folds.total, system)
    return _grams_of(fit, plan, system, total, parts=parts, folds=folds)


def _grams_of(fit: PreparedFit, plan: Plan, system: GramProblem, total: Any, **handles: Any) -> Grams:
    return Grams(
        run=fit.run,
        total=total,
        system=system,
        weight=fit.weight,
        mean_square_norm=fit.mean_square_norm,
        tile_rows=plan.tile_rows,
        dtype=plan.size.dtype,
        targets=fit.targets,
        fit=fit,
        plan=plan,
        **handles,
    )


# Few rows: in as many rotated columns as there are rows their Grams are smaller.


def _has_few_rows(plan: Plan) -> bool:
    """Whether rows are no more than features, and all folds of a Gram would be summed together."""
    # The plan counts the Gram of the features, which takes more than the rows, their rotation and its Grams.
    size = plan.size
    # With two sums the plan counts so few Grams that, measured, rows and rotation came too near to them.
    are_few = size.n_rows <= size.n_features and size.n_sums > 2
    return are_few and plan.folds_per_task == size.n_sums


def map_rows(fit: PreparedFit, plan: Plan, folds: Folds) -> Grams:
    """The Grams of the folds of few rows, in rotated features where these are more than the rows."""
    run, mapped, system = fit.run, fit.mapped_rows(plan), system_of(fit)
    # A size of no more columns than rows gains nothing by a rotation.
    few = [size for size in system.sizes if size <= system.n_rows and size < system.sizes[-1]]
    many = system.sizes[len(few) :]
    # The Grams of all sizes up to the number of rows are parts of the largest of them.
    rotations = run.submit_all(_rotation, [(mapped, size) for size in many])
    parts = run.submit_all(_row_grams, [(mapped, columns, folds) for columns in (*rotations, *few[-1:])])
    totals = run.submit_all(total_gram, [([one], folds.total, system) for one in parts])
    sources = [(total, [part]) for total, part in zip(totals, parts, strict=True)]
    # Not strict: where there are few of them, the last source is theirs, and belongs to none of the many.
    of_size = dict(zip(many, sources, strict=False)) | dict.fromkeys(few, sources[-1])
    total, parts = of_size.pop(system.sizes[-1])
    handles = {"rows": mapped, "rotation": rotations[-1], "smaller": of_size}
    return _grams_of(fit, plan, system, total, parts=parts, folds=folds, **handles)


def _rotation(mapped: MappedRows, size: int) -> Rotation:
    """The rotation of the leading `size` features."""
    return Rotation.of(mapped.Z[:, :size])


def _row_grams(mapped: MappedRows, columns: Rotation | int, folds: Folds) -> np.ndarray:
    """The Grams that the folds take, of rotated features or of as many leading ones."""
    Z = (
        columns.rotated
        if isinstance(columns, Rotation)
        else mapped.Z[:, :columns].astype(np.float64, copy=False)
    )
    entered = folds.sums(mapped.keys)
    return row_grams(Z, mapped.Y, mapped.s, [entered.of(number) for number in range(folds.n_sums)])


def gram_system(
    specification: FittedMap, targets: Targets, *, n_rows: int, fit_intercept: bool
) -> GramProblem:
    """The ridge problem that Grams of this specification pose."""
    return GramProblem(
        n_rows=n_rows,
        n_targets=targets.n_outputs,
        fit_intercept=fit_intercept,
        sizes=specification.nested_sizes(),
        rescaled=Trait.RESCALED in specification.traits,
        offset=None if fit_intercept else targets.shift / targets.scale,
    )


def system_of(fit: PreparedFit) -> GramProblem:
    """The ridge problem of a fit to rows."""
    return gram_system(
        fit.specification, fit.targets, n_rows=fit.dataset.n_rows, fit_intercept=fit.problem.fit_intercept
    )


# The Gram for the preconditioner: of all rows, or of a sample where that is much cheaper.


def factor_gram(fit: PreparedFit, plan: Plan) -> Grams:
    """The Gram of one hashed row in `gram_stride`, scaled to the weight of all rows; or the Gram of all."""
    stride, run = plan.size.gram_stride, fit.run
    if stride > 1:
        # Of the `stride` hashed sums the first alone: rows of the others are read, but neither mapped nor
        # multiplied.
        parts, system = gram_passes(fit, plan, sample_of(fit, stride), members=[(0,)]), system_of(fit)
        total = run.submit(total_gram, parts, np.ones(1), system)
        # One number comes to the client; the Gram stays where it was summed.
        weight = run.compute(GramProblem.weight, system, total)
        # Where few rows have any weight, the sample may have almost none of it, or almost all; then all rows
        # are summed.
        if fit.weight / 2 < stride * weight < 2 * fit.weight:
            whole = run.submit(mul, total, fit.weight / weight)
            return _grams_of(fit, plan, system, whole, parts=parts, folds=NO_FOLDS)
    return sum_grams(fit, plan, NO_FOLDS)


def sample_of(fit: PreparedFit, stride: int) -> Folds:
    """Sums of which the first is of one hashed row in `stride`."""
    # A stream of its own: the same rows are sampled whatever else the fit draws.
    return NO_FOLDS if stride == 1 else HashFolds(stride, child_seed(fit.problem.seed, "gram sample"))


# Which alpha, and how error falls with the number of features: read off the Grams, on the cluster.

# The reduction of a matrix of D' columns costs about as much as the products of 16·D'³/D² rows; a learning
# curve beside a given alpha may take a sixteenth of the sweep.
_ROWS_PER_FEATURE = 16 * 16


def _by_gcv_or_fold(grams: Grams, penalty: Penalty) -> AlphaSearch:
    """The choice by generalised cross-validation, or by the first fold where that may overfit."""
    n_rows, D = grams.system.n_rows, grams.system.sizes[-1]
    # The effective dimension is at most D: with so few features it need not be known.
    if not gcv_may_overfit(D, n_rows):
        return _by_gcv(grams, penalty)[0]
    has_folds = grams.folds.n_sums > 1
    if has_folds and _stands_for_rows(grams):
        found = _by_folds(grams, penalty, 1, f"one held-out fold of {grams.folds.one_in}")
        why = (
            f"alpha was chosen on one held-out fold: generalised cross-validation may overfit by far, as the "
            f"{D} features are more than a twentieth of the {n_rows} rows"
        )
        return replace(found, notes=[why, *found.notes])
    found, dimension = _by_gcv(grams, penalty)
    if not gcv_may_overfit(dimension, n_rows):
        return found
    danger = (
        f"alpha={found.alpha[0]:g} is the best by generalised cross-validation, which may overfit by far "
        f"where the effective dimension, here {dimension:.0f}, is more than a twentieth of the {n_rows} rows"
    )
    if not has_folds:
        danger += "; a Gram with folds (cv=5) would show it: take alpha='cv' with that"
        warn(danger, DataWarning)
    return replace(found, notes=[danger, *found.notes])


def _stands_for_rows(grams: Grams) -> bool:
    """Whether the first fold has half to twice its share of the weight of all rows, and its model half."""
    # With few rows, or very unequal weights, it may hold almost nothing, or almost everything; of sums that
    # are like others its model may have no rows.
    (terms,), share = grams.terms([0]), grams.weight / grams.folds.one_in
    judged, used = grams.run.compute(fold_weights, grams.parts, terms, grams.system)
    fitted = grams.weight - used if terms.is_left_out else used
    return share / 2 < judged < 2 * share and share / 2 < fitted


class _Grid(NamedTuple):
    """The alphas for the leading features of a size, none below its noise floor."""

    size: int
    alphas: np.ndarray
    base: slice  # the part that is tried in any case; a default grid goes on beyond its ends
    n_dropped: int  # values of the grid that were below the floor
    ends_at_floor: bool  # whether more would follow below its end, were it not for the floor


class _Call(NamedTuple):
    """Some alphas of a size, to be tried on a fold; `base` as in `_Grid`, None for all of them."""

    fold: int
    size: int
    alphas: np.ndarray
    base: slice | None
    keeps_models: bool
    own: bool | np.ndarray = False  # as of `fold_errors`, like the dtype
    dtype: str = "float64"


def _grids(grams: Grams, given: np.ndarray | None) -> list[_Grid]:
    """The grid of each size; smaller maps whose floor is above all of a given one have none."""
    found = []
    for size in grams.system.sizes:
        floor = grams.noise_floor(size)
        if given is None:
            default, n_dropped = default_alphas(grams.weight, grams.mean_square_norm, floor=floor)
            alphas, base = extended(default, floor=floor)
            # Without the floor the same grid tells how far it would go.
            is_cut = len(alphas) < len(extended(default, floor=0.0)[0])
            found.append(_Grid(size, alphas, base, n_dropped, is_cut))
        # `above_noise` raises where nothing is left: right for the model itself, not for a point of its
        # curve.
        elif size == grams.system.sizes[-1] or given[-1] >= floor:
            alphas, n_dropped = above_noise(given, floor)
            found.append(_Grid(size, alphas, slice(0, len(alphas)), n_dropped, n_dropped > 0))
    return found


def _by_folds(
    grams: Grams, penalty: Penalty, n_folds: int, held_out: str, *, with_models: bool = False
) -> AlphaSearch:
    """The choice by the errors of the first folds, with their models if these are wanted and small."""
    grids, folds = _grids(grams, penalty.grid), range(n_folds)
    # Models by alpha are looked up by the grid's own floats, which no step computes anew.
    each = penalty.each_target
    with_models = with_models and not each and grams.keeps_paths(n_folds, len(grids[-1].alphas))
    calls = [
        _Call(fold, grid.size, grid.alphas, grid.base, with_models and grid is grids[-1], each, grams.dtype)
        for grid in reversed(grids)
        for fold in folds
    ]
    found = dict(zip([(one.size, one.fold) for one in calls], grams.errors_of(calls), strict=True))
    errors = {g.size: np.stack([found[g.size, fold].errors for fold in folds]) for g in grids}
    # Each fold goes on beyond an end of the grid by its own error, where its matrices are; an alpha counts
    # where all folds have an error. The others reduce their matrices again, which is rarely needed.
    late, places = [], []
    for one in calls:
        tried = np.isfinite(errors[one.size])  # (n_folds, m, k)
        tried = tried if each else tried.all(axis=2, keepdims=True)
        wanted = tried.any(axis=0) & ~tried[one.fold]
        lacking = wanted.any(axis=1)
        if lacking.any():
            own = wanted[lacking] if each else False
            late.append(one._replace(alphas=one.alphas[lacking], base=None, own=own))
            places.append(lacking)
    models = [dict(found[grids[-1].size, fold].solutions) for fold in folds]
    for one, lacking, more in zip(late, places, grams.errors_of(late), strict=True):
        before = errors[one.size][one.fold, lacking]
        errors[one.size][one.fold, lacking] = np.where(one.own, more.errors, before) if each else more.errors
        models[one.fold] |= more.solutions
    weights, unit = np.array([found[grids[-1].size, fold].weight for fold in folds]), grams.unit
    criterion = f"mean squared error over {held_out}"
    scaled = [errors[grid.size] * unit for grid in grids]
    search, _ = _best(grams, penalty, grids, criterion, scaled, weights)
    alpha = float(search.alpha[0])
    return replace(search, fold_solutions=[some[alpha] for some in models] if with_models else [])


def _by_gcv(grams: Grams, penalty: Penalty) -> tuple[AlphaSearch, float]:
    """The choice, and the effective dimension of its solution."""
    grids = _grids(grams, penalty.grid)
    values = _gcv_errors(grams, [(grid.size, grid.alphas, grid.base) for grid in grids])
    errors = [of_size[None] for of_size, _ in values]
    found, place = _best(grams, penalty, grids, "generalised cross-validation", errors, np.ones(1))
    return found, float(values[-1][1][place])


def _gcv_errors(
    grams: Grams, calls: list[tuple[int, np.ndarray, slice | None]]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Errors (m, k) in the targets' units and effective dimensions (m,) of sizes, each with some alphas."""
    tasks = [(grams.total, size, alphas, grams.system, base) for size, alphas, base in calls]
    found = grams.run.map(gcv_errors, tasks, costs=[float(size) ** 3 for size, *_ in calls])
    return [(errors * grams.unit, dimensions) for errors, dimensions in found]


def _best(
    grams: Grams,
    penalty: Penalty,
    grids: list[_Grid],
    criterion: str,
    errors: list[np.ndarray],
    weights: np.ndarray,
) -> tuple[AlphaSearch, int]:
    """The choice for all features, and its place in their grid; `errors` (n_folds, m, k) are of each grid."""
    choices = [penalty.choose(grid.alphas, one, weights) for grid, one in zip(grids, errors, strict=True)]
    best, whole = choices[-1], grids[-1]
    # What lies beyond an end of the base is shown where the end, or more, was chosen.
    is_judged = np.isfinite(best.scores).reshape(len(best.scores), -1).any(axis=1)
    judged, base = np.flatnonzero(is_judged), whole.base
    tried = slice(
        min(judged[0], base.start) if np.min(best.index) <= base.start else base.start,
        max(judged[-1] + 1, base.stop) if np.max(best.index) >= base.stop - 1 else base.stop,
    )
    alphas, scores = whole.alphas[tried], best.scores[tried]
    results = {"alphas": alphas, "mean_score": scores}
    if penalty.search == "cv":
        results["fold_scores"] = best.fold_scores[tried]
    noise = f"the rounding noise of {grams.dtype} products"
    remedy = ", and needs dtype='float64' (--dtype float64)" if grams.dtype == "float32" else ""
    notes = [f"alphas below {noise} were left out: {whole.n_dropped}"] if whole.n_dropped else []
    if penalty.each_target:
        notes += ends_of_targets(best.index - tried.start, scores)
    else:
        below = f"alpha={best.penalty:g} is the smallest above {noise}: a smaller one may be better{remedy}"
        usable = alphas[np.isfinite(scores)]
        is_cut = whole.ends_at_floor or len(usable) < len(alphas)
        notes += end_of_grid("alpha", best.penalty, usable, scores, below=below if is_cut else None)
    search = AlphaSearch(
        alpha=np.atleast_1d(best.penalty),
        score=best.score,
        criterion=criterion,
        results=results,
        learning_curve=[
            [grid.size, c.score, float(np.median(c.penalty))] for grid, c in zip(grids, choices, strict=True)
        ],
        notes=notes,
    )
    return search, best.index


def _given(grams: Grams, alpha: np.ndarray) -> AlphaSearch:
    problem = grams.system
    search = AlphaSearch(alpha, criterion="generalised cross-validation at the given alpha")
    sizes = [
        s
        for s in problem.sizes
        if _ROWS_PER_FEATURE * s**3 <= problem.n_rows * problem.sizes[-1] ** 2
        and grams.noise_floor(s) <= alpha.min()
    ]
    # A point of the curve has one alpha, which targets with penalties of their own do not share.
    if len(alpha) > 1 or not sizes:
        return search
    scores = [float(errors.mean()) for errors, _ in _gcv_errors(grams, [(s, alpha, None) for s in sizes])]
    curve = [[size, score, float(alpha[0])] for size, score in zip(sizes, scores, strict=True)]
    return replace(search, learning_curve=[point for point in curve if np.isfinite(point[1])])


# Why not, and what it costs.


def needs_gram(problem: Problem) -> str:
    """Why a fit with a Gram refuses sparse features."""
    solver, search = problem.solver, problem.penalty.search
    asked = f"solver={solver!r}" if solver == "gram" else f"alpha={search!r}"
    return (
        f"{asked} needs a Gram, and features of random binning are too many for one; use solver='auto' or "
        f"'cg' with a number for alpha or alpha='cv', or 'sgd' with a number, or FourierFeatures or "
        f"NystroemFeatures"
    )


def needs_number(problem: Problem) -> str:
    """Why a solver for a given alpha refuses a search."""
    other = "cg" if problem.is_sparse else "gram"
    return (
        f"solver={problem.solver!r} solves for a given alpha and needs a number, got "
        f"alpha={problem.penalty.search!r}; give one, or choose alpha by solver={other!r}"
    )


def unwritten(problem: Problem) -> str | None:
    """Why equispaced features in their default number are refused by models that write them out."""
    features: Any = problem.features
    if not problem.is_equispaced:
        return None
    if features.trend is not None:
        return "a trend beside equispaced features is for ridge with solver='auto'; leave it out for others"
    if features.n_components is not None and not features.chosen_kernel.has_undecided_smoothness:
        return None
    return (
        "EquispacedFourierFeatures are for ridge with solver='auto', which makes none of them; another "
        "model writes them out, for which n_components and the smoothness nu must be numbers; or use "
        "FourierFeatures"
    )


def folds_of(problem: Problem, size: Size) -> Folds:
    """The folds by which a Gram is summed: none for "gcv" where that is safe.

    Of rows that come in several calls nobody knows yet how many they will be.
    """
    # A fold that no rule will look at would be a second Gram in memory.
    is_safe = not gcv_may_overfit(size.n_features, size.n_rows) and not problem.grows
    return NO_FOLDS if problem.penalty.search == "gcv" and is_safe else problem.folds


def ridge_size(problem: Problem, size: Size) -> Size:
    """The size with the numbers that a choice of alpha by any solver adds."""
    penalty, k, folds = problem.penalty, size.n_outputs, folds_of(problem, size)
    # Sums that later rows are added to are full ones, as those of `gram`.
    size = replace(size, wide=penalty.each_target and k > size.n_features and not problem.grows)
    n_folds = max(1, folds.n_folds)
    size = replace(size, n_folds=n_folds, n_other_sums=folds.n_sums - n_folds, memberships=folds.memberships)
    if problem.loss is None:
        return replace(size, n_light_columns=k, n_eigensystems=int(problem.n_components is not None))
    n_grid = N_DEFAULT_ALPHAS if penalty.grid is None else len(penalty.grid)
    return replace(
        size,
        n_alphas=1 if penalty.search is None else n_grid,
        n_factors=0 if penalty.value is None else len(factor_levels(penalty.value)),
        # For conjugate gradients, whose passes serve all folds; the Gram's solver has no light passes.
        n_light_columns=min(MAX_DIRECTIONS, k * folds.n_folds) if penalty.search == "cv" else k,
    )


_MAX_FACTORS = 3


def factor_levels(alpha: np.ndarray) -> np.ndarray:
    """The penalties that get a factor: each one, or three over their range where they are more."""
    # Where alpha is off by a factor a, the condition number that conjugate gradients see grows by at most a.
    different = np.unique(alpha)
    if len(different) <= _MAX_FACTORS:
        return different
    return np.geomspace(different[0], different[-1], _MAX_FACTORS)


def gram_plan(size: Size, folds_per_task: int, workers: Workers, other_peak: int = 0) -> Plan:
    """The plan of a sweep for the Grams; `other_peak` is the peak of all else that the solver does."""
    s, n_turns = size, size.n_sums // folds_per_task
    return planned(
        "gram",
        s,
        workers,
        s.segmentation(),
        n_passes=n_turns + s.n_light_sweeps,
        n_turns=n_turns,
        folds_per_task=folds_per_task,
        flops=s.gram_flops + s.n_light_sweeps * s.light_flops + factorisation_flops(s) + s.map_factor_flops,
        cosines=float(s.n_rows) * s.n_features * (1 / s.gram_stride + s.n_light_sweeps),
        worker_peak_bytes=max(gram_peak_bytes(s, folds_per_task, workers.threads_per_worker), other_peak),
        client_peak_bytes=client_peak_bytes(s),
    )


def gram_peak_bytes(size: Size, folds_per_task: int, threads: int) -> int:
    """The largest resident set of a worker above idle, in bytes."""
    s, cuts = size, size.segmentation()
    # A packed triangle has half of the 8·p² bytes.
    partial = 4 * folds_per_task * s.gram_size**2
    # A thread's sums are square of float64 products, and the packed partial itself of float32 ones.
    sums = partial if s.itemsize < 8 else 2 * partial
    whole = 8 * s.gram_size**2
    if s.wide:
        whole = 8 * (s.n_features + 2) * s.gram_size
        sums = partial = folds_per_task * whole
    n_partials = s.n_partials(cuts.n_segments, threads)
    # A sample is one of `stride` hashed sums, so its tiles are picked as those of folds are, with the room of
    # `_Tile` for more than T rows.
    n_parts = max(s.n_sums, s.gram_stride)
    group = cuts.tile_rows + (6 * int(cuts.tile_rows**0.5) if n_parts > 1 else 0)
    # A tile and its product.
    tile = group * s.gram_size * s.itemsize + s.itemsize * whole // 8
    # Rows of a super-tile, and those of one sum that are picked from it.
    block_rows = min(cuts.segment_rows, n_parts * cuts.tile_rows)
    rows = (
        s.reading_bytes(cuts.segment_rows)
        + s.row_bytes * (block_rows + group)
        + 16 * group * s.column_entries
    )
    busy = s.busy_bytes(threads, tile + rows + sums, partial)
    sweep = busy + n_partials * partial + ready_bytes(threads, partial) + s.map_bytes
    if s.n_light_sweeps:  # a Hessian's sweep, beside the Gram
        sweep += 3 * partial
    # The packed Grams of all folds, their sum, and four matrices of its size a thread.
    solve = whole * (s.n_sums / 2 + 1 + 4 * threads)
    if s.wide:  # the folds' Grams are whole; a thread has those of training and test, C twice and B twice
        solve = whole * (s.n_sums + 1 + 6 * threads)
    return int(max(sweep, solve) + SLACK_BYTES)


def factorisation_flops(size: Size) -> float:
    """The flops of the alpha path with its learning curve, the final model and eigensystems."""
    D = float(size.n_features)
    reduction = 4 / 3 * D**3 * _REDUCTION_SLOWNESS
    paths = size.n_folds * (reduction + 4 * size.n_alphas * size.n_outputs * D**2)
    # The nested sizes are halvings: their cubes add up to 1 + 1/8 + 1/64 + … = 8/7 of the largest.
    searched = paths * 8 / 7 if size.n_alphas > 1 else 0.0
    return searched + size.n_weightings * paths + D**3 / 3 + size.n_eigensystems * reduction
