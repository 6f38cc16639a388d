"""Ridge from Grams: a pass over the rows, then alpha, learning curve and solution from its sums."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distrff.engine.run import LocalExecution, Run
from distrff.errors import DataWarning, InputError, PenaltyTooSmall, PrecisionWarning, warn
from distrff.features.base import MapSpecification, nested_sizes
from distrff.fitting.context import PreparedFit
from distrff.fitting.cost import MAX_PATH_BYTES, Plan
from distrff.fitting.gram_sums import GramReduction, GramStatistics
from distrff.fitting.options import RidgeOptions
from distrff.fitting.result import (
    AlphaSearch,
    FitResult,
    end_of_grid,
    ridge_fold_models,
    ridge_result,
)
from distrff.fitting.rows import MappedRows
from distrff.preprocessing.coding import Targets
from distrff.preprocessing.folds import HELD_OUT_STRIDE, Folds
from distrff.solvers.ridge import (
    FoldErrors,
    GramProblem,
    PosteriorFactor,
    RidgeSolution,
    above_noise,
    choose_alpha,
    default_alphas,
    extended,
    fold_errors,
    fold_weight,
    gcv_errors,
    gcv_may_overfit,
    noise_floor,
    posterior_of,
    solution_of,
    solution_without,
    total_gram,
)
from distrff.solvers.ridge_rows import (
    RidgeRows,
    gram_of_rows,
    ridge_rows,
    row_fold_errors,
    row_posterior,
    row_solution_without,
    without_products,
)


def fit_by_gram(fit: PreparedFit, plan: Plan) -> FitResult:
    """Return the fit after one pass over the rows; one a fold where folds are summed apart."""
    options, dtype = fit.options, plan.size.dtype
    assert isinstance(options, RidgeOptions)
    notes = []
    if dtype != fit.features_dtype:
        noise = f"the rounding noise of float32 products ({fit.noise_floor('float32'):.3g})"
        notes = [f"alpha={options.min_alpha:g} is below {noise}: float64 was used"]
        if options.dtype == "float32":
            warn(notes[0], PrecisionWarning)
    fit.run.begin_phase("Gram")
    by = options.fold_by if options.search == "cv" else "one held out"
    folds = fit.folds_apart(plan.size.n_folds, by)
    if folds is not None and options.search == "cv" and _has_few_rows(plan):
        grams = map_rows(fit, plan, folds)
    else:
        grams = sum_grams(fit, plan, folds)
    n_folds = HELD_OUT_STRIDE if plan.size.n_paths else plan.size.n_folds
    return _solved(grams, options, n_folds=n_folds, plan=plan, notes=notes, folds=folds)


def fit_statistics(
    statistics: GramStatistics, options: RidgeOptions, *, n_folds: int | None = None
) -> FitResult:
    """Return the fit of ridge to a Gram in the client's memory.

    The first of its folds is one of `n_folds`; by default of as many as there are.

    Raises InputError if the Gram has no rows, the other kind of targets, no folds although ``alpha="cv"``
    needs them, or was summed in float32 and alpha is below its rounding noise.
    """
    has_classes = statistics.targets.kind != "numeric"
    if has_classes != (options.target_kind == "classes"):
        raise InputError(
            "this Gram has class labels as targets; use KernelRidgeClassifier"
            if has_classes
            else "this Gram has numbers as targets; use KernelRidge, or make it with targets='classes'"
        )
    options.check_targets(statistics.targets)
    if statistics.n_rows < 1 or not statistics.weight > 0:
        raise InputError(
            f"this Gram has {statistics.n_rows} rows of weight {statistics.weight:g}; add rows before fitting"
        )
    if options.search == "cv" and statistics.n_folds < 2:
        raise InputError(
            "alpha='cv' needs a Gram with folds: make it with cv=5, or use alpha='gcv'; "
            "a difference of Grams has no folds, since those of the forgotten rows are not known"
        )
    specification, parts = statistics.specification, [statistics.A]
    intercept, n_rows = options.fit_intercept, statistics.n_rows
    problem = gram_problem(specification, statistics.targets, n_rows=n_rows, fit_intercept=intercept)
    total, D = total_gram(parts, problem), specification.n_features
    of_rows = float(np.trace(total[:D, :D]) / statistics.weight)
    grams = Grams(
        run=Run(LocalExecution("threads")),
        parts=parts,
        total=total,
        problem=problem,
        weight=statistics.weight,
        mean_square_norm=specification.at_zero if np.isfinite(specification.at_zero) else of_rows,
        tile_rows=statistics.tile_rows,
        dtype=statistics.dtype,
        targets=statistics.targets,
    )
    floor = grams.noise_floor()
    if options.alpha is not None and statistics.dtype != "float64" and options.alpha.min() < floor:
        raise InputError(
            f"alpha={options.alpha.min():g} is below the rounding noise of this float32 Gram ({floor:.3g}); "
            f"use a larger alpha, or make the Gram with dtype='float64'"
        )
    return _solved(grams, options, n_folds=n_folds or statistics.n_folds, plan=None, notes=[])


def _solved(
    grams: Grams,
    options: RidgeOptions,
    *,
    n_folds: int,
    plan: Plan | None,
    notes: list[str],
    folds: Folds | None = None,
) -> FitResult:
    """Return the fit that follows from merged Grams, with the models of `folds`; no row is touched."""
    run, problem = grams.run, grams.problem
    run.begin_phase("alpha and learning curve" if options.alpha is None else "model and learning curve")
    of_folds: list[tuple[np.ndarray, np.ndarray]] = []
    if options.alpha is not None:
        begun = grams.begin_solution(options.alpha)  # on a cluster beside the learning curve
        search = _given(grams, options.alpha)
        solution = run.value(begun)
    else:
        has_models = options.search == "cv" and folds is not None  # of the folds
        search = _searched(grams, options, n_folds, with_solutions=has_models)
        run.begin_phase("model")
        # The models of the folds while their Grams are there, where the search has not kept them.
        search, solution, of_folds = _with_solutions(grams, search, range(n_folds if has_models else 0))
    result = ridge_result(
        run,
        plan,
        grams.targets,
        search,
        solution,
        n_rows=problem.n_rows,
        fit_intercept=problem.fit_intercept,
        dtype=grams.dtype,
        notes=notes,
        entries={"solver": "gram", "noise_floor": grams.noise_floor()},
        grams=grams,
    )
    if folds is None or not of_folds:
        return result
    models = ridge_fold_models(folds, grams.targets, of_folds, fit_intercept=problem.fit_intercept)
    return replace(result, fold_models=models)


def _searched(grams: Grams, options: RidgeOptions, n_folds: int, *, with_solutions: bool) -> AlphaSearch:
    if options.search == "gcv":
        return _by_gcv_or_fold(grams, options, n_folds)
    held_out = f"{n_folds} held-out folds"
    return _by_folds(grams, options, range(n_folds), held_out, with_solutions=with_solutions)


def _with_solutions(
    grams: Grams, search: AlphaSearch, held_out: range
) -> tuple[AlphaSearch, RidgeSolution, list[tuple[np.ndarray, np.ndarray]]]:
    """Return the choice, the model of all rows, and the coefficients and intercepts without each fold.

    An alpha of the size of the Gram's rounding errors may leave every matrix of the search positive definite,
    but not every one that is solved here. Then the best of the larger alphas is taken.
    """
    while True:
        try:
            if search.fold_solutions:
                (solution,) = grams.solutions(range(0), search.alpha)
                return search, solution, search.fold_solutions
            solution, *others = grams.solutions(held_out, search.alpha)
            return search, solution, [(other.coef, other.intercept) for other in others]
        except PenaltyTooSmall:
            larger = _best_above(search)
            if larger is None:
                raise
            search = larger


def _best_above(search: AlphaSearch) -> AlphaSearch | None:
    """Return the choice among the alphas above the chosen one; None if there are none with a score."""
    if not search.results:
        return None
    before, alphas, scores = search.alpha.max(), search.results["alphas"], search.results["mean_score"]
    above = np.flatnonzero((alphas > before) & np.isfinite(scores))
    if not len(above):
        return None
    best = above[np.argmin(scores[above])]
    alpha, score = float(alphas[best]), float(scores[best])
    refuted = tuple(f"alpha={before:g} is the {which}" for which in ("smallest", "best"))
    note = (
        f"alpha={before:g} had the smallest error, but is below the rounding noise of the Gram: "
        f"alpha={alpha:g} has the smallest error of the larger ones"
    )
    notes = [one for one in search.notes if not one.startswith(refuted)]
    notes += [note, *end_of_grid("alpha", alpha, alphas[np.isfinite(scores)], scores)]
    curve = [*search.learning_curve[:-1], [search.learning_curve[-1][0], score, alpha]]
    return replace(
        search,
        alpha=np.array([alpha]),
        score=score,
        learning_curve=curve,
        notes=notes,
        fold_solutions=[],
    )


# The Grams of a fit.


@dataclass(frozen=True, eq=False)
class Grams:
    """Merged Grams where they were summed."""

    run: Run
    parts: list[Any]  # handles: one on the Grams of all folds, or one a fold
    total: Any  # handle on their sum; of rows the Gram that `row_fold_errors` takes
    problem: GramProblem
    weight: float
    mean_square_norm: float
    tile_rows: int
    dtype: str
    targets: Targets
    rows: Any = None  # handle on the rows, where their products take the place of the Grams of folds

    def errors_of(self, calls: list[tuple]) -> list[FoldErrors]:
        """Return `fold_errors` for the folds, grids and problems of some calls.

        The whole map is a task apart from the smaller ones: so threads end at about the same time, even where
        their number does not divide that of the folds.
        """
        function, source = (fold_errors, self.parts) if self.rows is None else (row_fold_errors, self.rows)
        whole, smaller = [], []
        for fold, grids, *others in calls:
            empty = [grid[:0] for grid in grids]
            whole.append((self.total, source, fold, [*empty[:-1], grids[-1]], *others))
            smaller.append((self.total, source, fold, [*grids[:-1], empty[-1]], *others))
        if len(self.problem.sizes) == 1:
            return self.run.compute_all(function, whole, costs=[1.0] * len(whole))
        # A reduction takes about the cube of its size, which by rows is at most their number.
        most = math.inf if self.rows is None else self.problem.n_rows
        *of_smaller, of_whole = (float(min(size, most)) ** 3 for size in self.problem.sizes)
        costs = [of_whole] * len(whole) + [sum(of_smaller)] * len(smaller)
        found = self.run.compute_all(function, whole + smaller, costs=costs)
        pairs = zip(found[: len(calls)], found[len(calls) :], strict=True)
        return [replace(one, errors=[*others.errors[:-1], one.errors[-1]]) for one, others in pairs]

    def keeps_paths(self, n_folds: int, n_alphas: int) -> bool:
        """Return whether the models of all folds and alphas are worth the memory that they take here.

        They save a factor for each fold. Those of rows are products with all features, which may cost more
        than the factors: 2·n·D·k flops for each alpha, in place of n³/3.
        """
        n, D, k = self.problem.n_rows, self.problem.sizes[-1], self.problem.n_targets
        is_small = 8 * n_folds * n_alphas * D * k <= MAX_PATH_BYTES
        return is_small and (self.rows is None or 6 * n_alphas * D * k <= n**2)

    def begin_solution(self, alpha: np.ndarray) -> Any:
        """Return a handle on the model of all rows."""
        return self.run.submit(solution_of, self.total, alpha, self.problem)

    def solutions(self, held_out: range, alpha: np.ndarray) -> list[RidgeSolution]:
        """Return the model of all rows, then for each held-out fold that of the other rows."""
        is_by_rows = self.rows is not None
        if not held_out and not is_by_rows:  # without the Grams of folds, which may be on other workers
            return [self.run.value(self.begin_solution(alpha))]
        solve, source = (row_solution_without, self.rows) if is_by_rows else (solution_without, self.parts)
        folds = (None, *held_out)
        calls: list[tuple] = [(self.total, source, fold, alpha, self.problem) for fold in folds]
        return self.run.compute_all(solve, calls, group="solution of", costs=[1.0] * len(calls))

    def noise_floor(self, size: int | None = None) -> float:
        """Return the alpha below which the solution of `size` features, or of all, is noise."""
        return noise_floor(
            self.weight,
            self.problem.n_rows,
            tile_rows=self.tile_rows,
            n_features=self.problem.sizes[-1] if size is None else size,
            at_zero=self.mean_square_norm,
            dtype=np.dtype(self.dtype),
        )

    def posterior(self, alpha: float) -> PosteriorFactor:
        """Return the posterior of the model at one alpha; it is computed where the Gram is."""
        of, source = (posterior_of, self.total) if self.rows is None else (row_posterior, self.rows)
        found: PosteriorFactor = self.run.compute(of, source, alpha, self.problem)
        return replace(found, noise=found.noise * np.square(self.targets.scale))

    def kept(self) -> Grams:
        """Return what is kept after the fit: the sum, without the Grams of the folds, or the rows."""
        if self.rows is None:
            return replace(self, parts=[], total=self.run.settle(self.total))
        return replace(self, total=None, rows=self.run.settle(self.run.submit(without_products, self.rows)))


def gram_passes(
    fit: PreparedFit, plan: Plan, folds: Folds | None, members: list[tuple[int, ...]] | None = None
) -> list[Any]:
    """Return handles on the merged Grams: one on all folds, or one a fold where memory is short.

    `members` names the folds of each pass instead.
    """
    n_folds = 1 if folds is None else folds.n_folds
    if members is None:
        together = plan.folds_per_task == n_folds
        members = [tuple(range(n_folds))] if together else [(fold,) for fold in range(n_folds)]
    return [
        fit.run.sweep(
            "Gram" if len(members) == 1 else f"Gram of fold {group[0]}",
            fit.dataset,
            fit.reduction(
                GramReduction, dtype=plan.size.dtype, tile_rows=plan.tile_rows, folds=folds, members=group
            ),
            plan.size.segmentation(),
        )
        for group in members
    ]


def sum_grams(
    fit: PreparedFit, plan: Plan, folds: Folds | None, members: list[tuple[int, ...]] | None = None
) -> Grams:
    """Return the Grams of the rows, or of the folds that `members` names."""
    parts, problem = gram_passes(fit, plan, folds, members), problem_of(fit)
    return _grams_of(fit, plan, problem, fit.run.submit(total_gram, parts, problem), parts=parts)


def _grams_of(fit: PreparedFit, plan: Plan, problem: GramProblem, total: Any, **handles: Any) -> Grams:
    return Grams(
        run=fit.run,
        total=total,
        problem=problem,
        weight=fit.weight,
        mean_square_norm=fit.mean_square_norm,
        tile_rows=plan.tile_rows,
        dtype=plan.size.dtype,
        targets=fit.targets,
        **handles,
    )


# Few rows: their own products are smaller than the Gram of their features.


def _has_few_rows(plan: Plan) -> bool:
    """Return whether rows are no more than features, and all folds of a Gram would be summed together.

    Those that are left when a fold is held out are fewer than the features. The plan counts the Gram, which
    takes more than the rows, their products and a fold's own: at 4096 rows, 4096 features and three folds .71
    of 1.03 GB. With two folds it would be .94 of .89 GB: smaller maps of a fold have products of their own.
    """
    size = plan.size
    are_few = size.n_rows <= size.n_features and size.n_folds > 2
    return are_few and plan.folds_per_task == size.n_folds and not size.n_paths


def map_rows(fit: PreparedFit, plan: Plan, folds: Folds) -> Grams:
    """Return the rows themselves in place of the Grams of folds, with the Gram of a map that is as small."""
    mapped, problem = fit.mapped_rows(plan), problem_of(fit)
    rows, total = fit.run.submit_all(_products_of, [(mapped, folds, None), (mapped, folds, problem)])
    return _grams_of(fit, plan, problem, total, parts=[], rows=rows)


def _products_of(mapped: MappedRows, folds: Folds, problem: GramProblem | None) -> RidgeRows | np.ndarray:
    """Return the rows with their products, or for a problem the Gram of a smaller map.

    One function for both, so that they are made side by side.
    """
    fold = folds.of_rows(0, len(mapped.s))
    if problem is not None:
        return gram_of_rows(mapped.Z, mapped.Y, mapped.s, fold, problem)
    return ridge_rows(mapped.Z, mapped.Y, mapped.s, fold)


def gram_problem(
    specification: MapSpecification, targets: Targets, *, n_rows: int, fit_intercept: bool
) -> GramProblem:
    """Return the ridge problem that Grams of this specification pose."""
    return GramProblem(
        n_rows=n_rows,
        n_targets=targets.n_outputs,
        fit_intercept=fit_intercept,
        sizes=nested_sizes(specification),
        rescaled=specification.rescaled_when_nested,
        offset=None if fit_intercept else targets.shift / targets.scale,
    )


def problem_of(fit: PreparedFit) -> GramProblem:
    """Return the ridge problem of a fit to rows."""
    return gram_problem(
        fit.specification, fit.targets, n_rows=fit.dataset.n_rows, fit_intercept=fit.options.fit_intercept
    )


# The Gram for the preconditioner: of all rows, or of a sample where that is much cheaper.


def factor_gram(fit: PreparedFit, plan: Plan) -> Grams:
    """Return the Gram of one hashed row in `plan.size.gram_stride`, scaled to the weight of all rows.

    Where the sample's weight is not between half and twice its share of the whole, as when few rows have any
    weight, all rows are summed instead.
    """
    stride, run = plan.size.gram_stride, fit.run
    folds = sample_of(fit, stride)
    if folds is not None:
        grams = sum_grams(fit, plan, folds, members=[(0,)])
        weight = run.compute(weight_of, grams.total, grams.problem.n_targets)
        if fit.weight / 2 < stride * weight < 2 * fit.weight:
            return replace(grams, total=run.submit(scaled, grams.total, fit.weight / weight))
    return sum_grams(fit, plan, None)


def sample_of(fit: PreparedFit, stride: int) -> Folds | None:
    """Return folds of which the first is one hashed row in `stride`; None for all rows."""
    return None if stride == 1 else fit.folds("gram sample", stride, "hash")


def scaled(A: np.ndarray, factor: float) -> np.ndarray:
    """Return a Gram times a factor."""
    return A * factor


def weight_of(A: np.ndarray, n_targets: int) -> float:
    """Return Σs of the rows of a Gram."""
    return float(A[-1 - n_targets, -1 - n_targets])


# Which alpha, and how error falls with the number of features: read off the Grams, on the cluster.

# The reduction of a matrix of D' columns costs about as much as the products of 16·D'³/D² rows; a learning
# curve beside a given alpha may take a sixteenth of the sweep.
_ROWS_PER_FEATURE = 16 * 16


def _by_gcv_or_fold(grams: Grams, options: RidgeOptions, n_folds: int) -> AlphaSearch:
    """Return the choice by generalised cross-validation, or by the first fold where that may overfit."""
    n_rows, D = grams.problem.n_rows, grams.problem.sizes[-1]
    if not gcv_may_overfit(D, n_rows):
        return _by_gcv(grams, options)[0]
    if n_folds > 1 and _stands_for_rows(grams, n_folds):
        found = _by_folds(grams, options, range(1), f"one held-out fold of {n_folds}")
        why = (
            f"alpha was chosen on one held-out fold: generalised cross-validation may overfit by far, as the "
            f"{D} features are more than a twentieth of the {n_rows} rows"
        )
        return replace(found, notes=[why, *found.notes])
    found, dimension = _by_gcv(grams, options)
    if not gcv_may_overfit(dimension, n_rows):
        return found
    danger = (
        f"alpha={found.alpha[0]:g} is the best by generalised cross-validation, which may overfit by far "
        f"where the effective dimension, here {dimension:.0f}, is more than a twentieth of the {n_rows} rows"
    )
    if n_folds == 1:
        danger += "; a Gram with folds (cv=5) would show it: take alpha='cv' with that"
        warn(danger, DataWarning)
    return replace(found, notes=[danger, *found.notes])


def _stands_for_rows(grams: Grams, n_folds: int) -> bool:
    """Return whether the first fold has between half and twice its share of the weight of all rows.

    With few rows, or very unequal weights, it may hold almost nothing, or almost everything.
    """
    weight = grams.run.compute(fold_weight, grams.parts, 0, grams.problem)
    return grams.weight / 2 < n_folds * weight < 2 * grams.weight


@dataclass(frozen=True, eq=False)
class _Grids:
    """The alphas of each size, none below its noise floor."""

    of_size: dict[int, np.ndarray]
    bases: dict[int, slice]  # the part that is tried in any case
    dropped: int  # values of D's own that were below its floor
    ends_at_floor: bool  # whether more would follow below D's own, were it not for the floor

    @property
    def whole(self) -> np.ndarray:
        """The grid of all features."""
        return list(self.of_size.values())[-1]

    @property
    def base(self) -> slice:
        """Its part that is tried in any case."""
        return list(self.bases.values())[-1]


def _with_grids(grams: Grams, options: RidgeOptions) -> tuple[Grams, _Grids]:
    """Return the grid of each size; a default one goes on beyond its ends.

    Smaller maps whose floor is above the whole grid are left out of the problem.
    """
    grids: dict[int, np.ndarray] = {}
    bases: dict[int, slice] = {}
    dropped, ends_at_floor = 0, False
    for size in grams.problem.sizes:
        floor, is_whole = grams.noise_floor(size), size == grams.problem.sizes[-1]
        if options.alphas is None:
            default, dropped = default_alphas(grams.weight, grams.mean_square_norm, floor=floor)
            grids[size], bases[size] = extended(default, floor=floor)
            ends_at_floor = len(grids[size]) < len(extended(default, floor=0.0)[0])
        elif is_whole or options.alphas[-1] >= floor:
            grids[size], dropped = above_noise(options.alphas, floor)
            bases[size], ends_at_floor = slice(0, len(grids[size])), dropped > 0
    grams = replace(grams, problem=replace(grams.problem, sizes=tuple(grids)))
    return grams, _Grids(grids, bases, dropped, ends_at_floor)


def _by_folds(
    grams: Grams, options: RidgeOptions, folds: range, held_out: str, *, with_solutions: bool = False
) -> AlphaSearch:
    """Return the choice by the errors of some folds, with their models if these are wanted and small."""
    grams, grids = _with_grids(grams, options)
    alphas, bases = list(grids.of_size.values()), list(grids.bases.values())
    are_kept = with_solutions and grams.keeps_paths(len(folds), len(grids.whole))
    by_fold = grams.errors_of([(fold, alphas, grams.problem, bases, are_kept) for fold in folds])
    weights, unit = np.array([one.weight for one in by_fold]), np.square(grams.targets.scale)
    errors = [np.stack(sizes) * unit for sizes in zip(*(one.errors for one in by_fold), strict=True)]
    solutions = [one.solutions for one in by_fold]
    _try_what_others_tried(grams, folds, alphas, errors, unit, solutions if are_kept else None)
    criterion = f"mean squared error over {held_out}"
    found, _, tried = _best(grams, grids, criterion, errors, weights)
    if len(folds) == 1:
        return found
    with np.errstate(divide="ignore", invalid="ignore"):
        fold_scores = errors[-1][:, tried].mean(axis=2).T / weights
    alpha = float(found.alpha[0])
    return replace(
        found,
        results=found.results | {"fold_scores": fold_scores},
        fold_solutions=[of_fold[alpha] for of_fold in solutions] if are_kept else [],
    )


def _try_what_others_tried(
    grams: Grams,
    folds: range,
    alphas: list[np.ndarray],
    errors: list[np.ndarray],
    unit: np.ndarray,
    solutions: list[dict[float, tuple[np.ndarray, np.ndarray]]] | None,
) -> None:
    """Fill in what some folds tried beyond an end of the grid and others did not.

    Each fold goes on by its own error, where its matrices are; an alpha counts where all folds have an error.
    The other folds reduce their matrices again, which is rarely needed.
    """
    tried = [np.isfinite(of_size).all(axis=2) for of_size in errors]  # (n_folds, m) of each size
    lacking = [of_size.any(axis=0) & ~of_size for of_size in tried]
    late = [i for i in range(len(folds)) if any(of_size[i].any() for of_size in lacking)]
    grids = [[grid[of_size[i]] for grid, of_size in zip(alphas, lacking, strict=True)] for i in late]
    wanted = None, solutions is not None
    calls = [(folds[i], some, grams.problem, *wanted) for i, some in zip(late, grids, strict=True)]
    for i, found in zip(late, grams.errors_of(calls), strict=True):
        if solutions is not None:
            solutions[i].update(found.solutions)
        for of_size, places, values in zip(errors, lacking, found.errors, strict=True):
            of_size[i, places[i]] = values * unit


def _by_gcv(grams: Grams, options: RidgeOptions) -> tuple[AlphaSearch, float]:
    """Return the choice, and the effective dimension of its solution."""
    grams, grids = _with_grids(grams, options)
    values = _gcv_errors(grams, grids.of_size, grids.bases)
    errors = [of_size[None] for of_size, _ in values]
    found, place, _ = _best(grams, grids, "generalised cross-validation", errors, np.ones(1))
    return found, float(values[-1][1][place])


def _gcv_errors(
    grams: Grams, grids: dict[int, np.ndarray], bases: dict[int, slice] | None = None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return errors (m, k) in the targets' units and effective dimensions (m,) for the grid of each size."""
    calls = [
        (grams.total, size, grid, grams.problem, None if bases is None else bases[size])
        for size, grid in grids.items()
    ]
    found = grams.run.compute_all(gcv_errors, calls, costs=[float(size) ** 3 for size in grids])
    return [(errors * np.square(grams.targets.scale), dimensions) for errors, dimensions in found]


def _best(
    grams: Grams, grids: _Grids, criterion: str, errors: list[np.ndarray], weights: np.ndarray
) -> tuple[AlphaSearch, int, slice]:
    """Return the choice for all features, its place in their grid, and the part of it that results show.

    `errors` are of shape (n_folds, m, k) for each size. What lies beyond an end of the base is shown where
    the end, or more, was chosen.
    """
    choices = [
        choose_alpha(e, weights, alphas=grid) for e, grid in zip(errors, grids.of_size.values(), strict=True)
    ]
    best, base = choices[-1], grids.base
    judged = np.flatnonzero(np.isfinite(best.scores))
    tried = slice(
        min(judged[0], base.start) if best.index <= base.start else base.start,
        max(judged[-1] + 1, base.stop) if best.index >= base.stop - 1 else base.stop,
    )
    grid, scores = grids.whole[tried], best.scores[tried]
    noise = f"the rounding noise of {grams.dtype} products"
    remedy = ", and needs dtype='float64' (--dtype float64)" if grams.dtype == "float32" else ""
    notes = [f"alphas below {noise} were left out: {grids.dropped}"] if grids.dropped else []
    below = f"alpha={best.alpha:g} is the smallest above {noise}: a smaller one may be better{remedy}"
    usable = grid[np.isfinite(scores)]
    is_cut = grids.ends_at_floor or len(usable) < len(grid)
    search = AlphaSearch(
        alpha=np.array([best.alpha]),
        score=best.score,
        criterion=criterion,
        results={"alphas": grid, "mean_score": scores},
        learning_curve=[[size, c.score, c.alpha] for size, c in zip(grids.of_size, choices, strict=True)],
        notes=notes + end_of_grid("alpha", best.alpha, usable, scores, below=below if is_cut else None),
    )
    return search, best.index, tried


def _given(grams: Grams, alpha: np.ndarray) -> AlphaSearch:
    problem = grams.problem
    search = AlphaSearch(alpha, criterion="generalised cross-validation at the given alpha")
    sizes = [
        s
        for s in problem.sizes
        if _ROWS_PER_FEATURE * s**3 <= problem.n_rows * problem.sizes[-1] ** 2
        and grams.noise_floor(s) <= alpha.min()
    ]
    if len(alpha) > 1 or not sizes:
        return search
    scores = [float(errors.mean()) for errors, _ in _gcv_errors(grams, dict.fromkeys(sizes, alpha))]
    curve = [[size, score, float(alpha[0])] for size, score in zip(sizes, scores, strict=True)]
    return replace(search, learning_curve=[point for point in curve if np.isfinite(point[1])])
