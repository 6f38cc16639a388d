"""Ridge from Grams: plan, Gram sweep, alpha, solution; and what any fit of ridge found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from distrff.engine.execution import LocalExecution, Workers
from distrff.engine.run import Run, check_reading
from distrff.engine.segments import gram_one_in, gram_tile_rows
from distrff.errors import DataWarning, InputError, PrecisionWarning, warn
from distrff.estimators.fitting.context import Preparation
from distrff.estimators.fitting.options import FitOptions, RidgeOptions
from distrff.estimators.fitting.plan import Plan, Shape, count
from distrff.estimators.fitting.result import Convergence, end_of_grid
from distrff.features.base import nested_sizes
from distrff.features.specification import MapCost, MapSpecification
from distrff.io.dataset import Dataset
from distrff.preprocessing.targets import ClassTargets, Targets
from distrff.reductions.base import HELD_OUT_ONE_IN, Folds
from distrff.reductions.gram import GramReduction, GramStatistics
from distrff.solvers.ridge import (
    AlphaChoice,
    GramProblem,
    RidgeMachine,
    above_noise,
    choose_alpha,
    default_alphas,
    final_machine,
    fold_errors,
    fold_weight,
    gcv_errors,
    gcv_may_overfit,
    noise_floor,
    total_gram,
)
from distrff.utils.random import child_seed

# Until the first sweep has counted the classes, the plan assumes a handful.
_PRESUMED_CLASSES = 8


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """Everything a ridge fit found.

    Parameters
    ----------
    run : Run
    plan : Plan or None
        None for a fit to Grams that were already there.
    problem : GramProblem
    dtype : str
        Of the features.
    grams : GramContext or None
        None where the Gram was never formed.
    search : AlphaSearch
    machine : RidgeMachine
    targets : Targets
    notes : list of str
        What the report should say about choices that were made.
    convergence : Convergence or None
        None for a direct solution.
    """

    run: Run
    plan: Plan | None
    problem: GramProblem
    dtype: str
    grams: GramContext | None
    search: AlphaSearch
    machine: RidgeMachine
    targets: Targets
    notes: list[str]
    convergence: Convergence | None = None

    @property
    def coef(self) -> np.ndarray:
        """Coefficients of shape (n_features, n_outputs), in the targets' own units."""
        return self.machine.coef * self.targets.scale

    @property
    def intercept(self) -> np.ndarray:
        """Intercepts of shape (n_outputs,), in the targets' own units."""
        if not self.problem.fit_intercept:
            return np.zeros(self.machine.coef.shape[1])
        return self.machine.intercept * self.targets.scale + self.targets.shift


def features_dtype(dataset: Dataset, dtype: str) -> str:
    """Return the dtype asked for; for "auto" the one that loses nothing of the columns.

    That is float32 for float32 and integers of at most 16 bits.
    """
    if dtype != "auto":
        return dtype
    return "float32" if np.can_cast(dataset.dtype, np.float32, "safe") else "float64"


def make_plan(
    workers: Workers,
    dataset: Dataset,
    *,
    n_features: int,
    n_outputs: int,
    n_folds: int,
    n_alphas: int,
    dtype: str,
    map_cost: MapCost,
    counting: Callable[..., Plan] = count,
    **light: Any,
) -> Plan:
    """Return the counted plan, or refuse.

    `counting` is of another solver than the direct one; `light` are the fields of `Shape` that have defaults.

    Raises
    ------
    PlanRefused
        If it cannot fit in the workers' memory.
    """
    shape = Shape(
        n_rows=dataset.n_rows,
        n_columns=dataset.n_columns,
        n_features=n_features,
        n_outputs=n_outputs,
        n_folds=n_folds,
        n_alphas=n_alphas,
        dtype=dtype,
        row_bytes=dataset.row_bytes,
        chunk_rows=dataset.chunk_rows,
        map_cost=map_cost,
        column_share=dataset.column_share,
        held_bytes=dataset.held_bytes,
        whole_rows=dataset.whole_rows,
        **light,
    )
    return counting(
        shape,
        n_workers=workers.n_workers,
        threads_per_worker=workers.threads_per_worker,
        memory_limit=workers.memory_limit,
    )


def check_rows_of_search(parameter: str, search: str, least: int, dataset: Dataset) -> None:
    """Raise InputError for fewer rows than a search for a penalty takes."""
    if dataset.n_rows < least:
        raise InputError(
            f"{parameter}={search!r} needs at least {least} rows here, but there is only "
            f"n_samples = {dataset.n_rows}; give more rows, or a number for {parameter}"
        )


def presumed_plan(
    workers: Workers,
    dataset: Dataset,
    options: FitOptions,
    *,
    target_kind: str,
    counted: Callable[..., Plan] | None = None,
) -> Plan:
    """Return the plan as far as it can be counted before the first sweep; `counted` in place of `plan_of`.

    Raises
    ------
    InputError
        For a map that cannot take these columns, before a pass over them is lost.
    PlanRefused
        If it cannot fit in the workers' memory.
    """
    check_reading(workers, dataset)
    n_outputs = dataset.n_targets if target_kind == "numeric" else _PRESUMED_CLASSES
    dtype = features_dtype(dataset, options.dtype)
    plan = (counted or plan_of)(workers, dataset, options, n_outputs=max(1, n_outputs), dtype=dtype)
    # Only now, for it draws a small map of all columns.
    options.features.check_shape(dataset.n_rows, dataset.n_columns)
    return replace(plan, shape=replace(plan.shape, outputs_are_presumed=target_kind == "classes"))


def plan_of(
    workers: Workers,
    dataset: Dataset,
    options: FitOptions,
    *,
    n_outputs: int,
    dtype: str,
    counting: Callable[..., Plan] = count,
    n_features: int | None = None,
) -> Plan:
    """Return the counted plan of a fit whose outputs are known, or refuse.

    `n_features` is None before the map is fitted; one with exact bins is then counted as small as it
    could be.
    """
    if n_features is None:
        n_features = options.features.n_features_for(dataset.n_columns)
    holds_one_out = options.holds_one_out(dataset.n_rows, n_features)
    return make_plan(
        workers,
        dataset,
        n_features=n_features,
        n_outputs=n_outputs,
        n_folds=2 if holds_one_out else options.n_folds,
        n_alphas=options.n_alphas,
        n_paths=int(holds_one_out),
        dtype=dtype,
        map_cost=options.features.cost_for(dataset.n_columns),
        counting=counting,
        gram_one_in=gram_one_in(dataset.n_rows, n_features) if options.samples_gram else 1,
        model_rows=options.model_rows(n_features),
        n_light_sweeps=options.n_light_sweeps,
        n_light_columns=options.n_light_columns(n_outputs),
        sparse_entries=options.features.sparse_entries,
        n_map_passes=options.features.n_passes,
    )


def fit_by_gram(
    run: Run,
    dataset: Dataset,
    options: RidgeOptions,
    preparation: Preparation,
    plan: Plan,
    notes: list[str],
) -> RidgeFit:
    """Return the fit after one pass over the rows; one a fold where folds are summed apart."""
    if options.dtype == "float32" and plan.shape.dtype == "float64":
        warn(notes[0], PrecisionWarning)
    run.begin_phase("Gram")
    parts = gram_sweep(run, dataset, preparation, plan, folds=folds_of(options, dataset, plan.shape.n_folds))
    grams = context_of(run, parts, problem_of(preparation, dataset, options), preparation, plan)
    n_folds = HELD_OUT_ONE_IN if plan.shape.n_paths else plan.shape.n_folds
    return solve(run, grams, options, preparation.targets, n_folds=n_folds, plan=plan, notes=notes)


def solve(
    run: Run,
    grams: GramContext,
    options: RidgeOptions,
    targets: Targets,
    *,
    n_folds: int,
    plan: Plan | None,
    notes: list[str],
) -> RidgeFit:
    """Return the fit that follows from merged Grams; no row is touched."""
    run.begin_phase("alpha and learning curve" if options.alpha is None else "learning curve")
    search = search_alpha(run, grams, options, n_folds)
    run.begin_phase("machine")
    machine = run.gather([run.submit(final_machine, grams.total, search.alpha, grams.problem)])[0]
    return RidgeFit(
        run, plan, grams.problem, grams.dtype, grams, search, machine, targets, notes + search.notes
    )


def check_number_of_alphas(options: RidgeOptions, targets: Targets) -> None:
    """Raise InputError unless there is one alpha, or one a target."""
    if options.alpha is not None and len(options.alpha) not in (1, targets.n_outputs):
        raise InputError(
            f"alpha has {len(options.alpha)} values, but there are {targets.n_outputs} targets; "
            f"give one, or one each"
        )


def folds_of(options: RidgeOptions, dataset: Dataset, n_folds: int) -> Folds | None:
    """Return how rows are assigned to so many folds; None for one of all rows."""
    if n_folds == 1:
        return None
    by = options.fold_by if options.search == "cv" else "one held out"
    return Folds(n_folds, child_seed(options.seed, "folds"), by, dataset.n_rows)


def problem_of(preparation: Preparation, dataset: Dataset, options: FitOptions) -> GramProblem:
    """Return what is asked of the Grams of a fit to rows."""
    return gram_problem(
        preparation.specification,
        n_rows=dataset.n_rows,
        targets=preparation.targets,
        fit_intercept=options.fit_intercept,
    )


def gram_problem(
    specification: MapSpecification, *, n_rows: int, targets: Targets, fit_intercept: bool
) -> GramProblem:
    """Return what is asked of Grams of this specification."""
    return GramProblem(
        n_rows=n_rows,
        n_targets=targets.n_outputs,
        fit_intercept=fit_intercept,
        sizes=nested_sizes(specification),
        rescaled=specification.rescaled_when_nested,
        offset=None if fit_intercept else targets.shift / targets.scale,
    )


def gram_sweep(
    run: Run,
    dataset: Dataset,
    preparation: Preparation,
    plan: Plan,
    *,
    folds: Folds | None,
    members: list[tuple[int, ...]] | None = None,
) -> list[Any]:
    """Return handles on the merged Grams: one on all folds, or one a fold where memory asks for it.

    `members` names the folds of each pass instead.
    """
    n_folds = 1 if folds is None else folds.n_folds
    if members is None:
        together = plan.folds_per_task == n_folds
        members = [tuple(range(n_folds))] if together else [(fold,) for fold in range(n_folds)]
    return [
        run.sweep(
            "Gram" if len(members) == 1 else f"Gram of fold {group[0]}",
            dataset,
            GramReduction(
                specification=preparation.specification,
                scaling=preparation.scaling,
                targets=preparation.targets,
                dtype=plan.shape.dtype,
                tile_rows=plan.tile_rows,
                folds=folds,
                members=group,
            ),
            plan.shape.segmentation(),
        )
        for group in members
    ]


def product_dtype(dataset: Dataset, options: RidgeOptions, preparation: Preparation) -> tuple[str, list[str]]:
    """Return the dtype of tiles and products, float64 where alpha would drown in float32's noise."""
    dtype = features_dtype(dataset, options.dtype)
    largest = options.alpha.min() if options.alpha is not None else None
    if options.alphas is not None and options.search is not None:
        # A grid is cut at the floor; only a whole one below it changes the dtype.
        largest = options.alphas.max()
    if dtype == "float64" or largest is None:
        return dtype, []
    D = preparation.specification.n_features
    floor = noise_floor(
        preparation.weight,
        dataset.n_rows,
        tile_rows=gram_tile_rows(D, preparation.targets.n_outputs, np.dtype(dtype)),
        n_features=D,
        at_zero=preparation.mean_square_norm,
        dtype=np.dtype(dtype),
    )
    if largest >= floor:
        return dtype, []
    noise = f"the rounding noise of float32 products ({floor:.3g})"
    return "float64", [f"alpha={largest:g} is below {noise}: float64 was used"]


# A ridge fit to a Gram that is already there.


def fit_statistics(statistics: GramStatistics, options: RidgeOptions, *, target_kind: str) -> RidgeFit:
    """Return the fit of a ridge machine to a Gram in the client's memory.

    Raises
    ------
    InputError
        If the Gram has no rows, the other kind of targets, no folds although ``alpha="cv"`` needs
        them, or was summed in float32 and alpha is below its rounding noise.
    """
    has_classes = isinstance(statistics.targets, ClassTargets)
    if has_classes != (target_kind == "classes"):
        raise InputError(
            "this Gram has class labels as targets; use KernelRidgeClassifier"
            if has_classes
            else "this Gram has numbers as targets; use KernelRidge, or make it with targets='classes'"
        )
    check_number_of_alphas(options, statistics.targets)
    if statistics.n_rows < 1 or not statistics.weight > 0:
        raise InputError(
            f"this Gram has {statistics.n_rows} rows of weight {statistics.weight:g}; add rows before fitting"
        )
    if options.search == "cv" and statistics.n_folds < 2:
        raise InputError(
            "alpha='cv' needs a Gram with folds: make it with gram(..., cv=5), or use alpha='gcv'; "
            "a difference of Grams has no folds, since those of the forgotten rows are not known"
        )
    run = Run(LocalExecution("threads"))
    parts = [statistics.A]
    problem = gram_problem(
        statistics.specification,
        n_rows=statistics.n_rows,
        targets=statistics.targets,
        fit_intercept=options.fit_intercept,
    )
    total = total_gram(parts, problem)
    grams = GramContext(
        parts=parts,
        total=total,
        problem=problem,
        weight=statistics.weight,
        mean_square_norm=_mean_square_norm(statistics, total),
        tile_rows=statistics.tile_rows,
        dtype=statistics.dtype,
        target_scale=statistics.targets.scale,
    )
    _check_alpha(grams, options, statistics)
    return solve(run, grams, options, statistics.targets, n_folds=statistics.n_folds, plan=None, notes=[])


def _mean_square_norm(statistics: GramStatistics, total: np.ndarray) -> float:
    D, at_zero = statistics.specification.n_features, statistics.specification.at_zero
    if np.isfinite(at_zero):
        return at_zero
    return float(np.trace(total[:D, :D]) / statistics.weight)


def _check_alpha(grams: GramContext, options: RidgeOptions, statistics: GramStatistics) -> None:
    if options.alpha is None or statistics.dtype == "float64":
        return
    floor = grams.noise_floor(statistics.specification.n_features)
    if options.alpha.min() < floor:
        raise InputError(
            f"alpha={options.alpha.min():g} is below the rounding noise of this float32 Gram ({floor:.3g}); "
            f"use a larger alpha, or make the Gram with dtype='float64'"
        )


# Which alpha, and how error falls with the number of features: read off the Grams, on the cluster.

# The reduction of a matrix of D' columns costs about as much as the products of 16·D'³/D² rows; a curve
# that nobody asked for may take a sixteenth of the sweep.
_ROWS_PER_FEATURE = 16 * 16


@dataclass(frozen=True, eq=False)
class AlphaSearch:
    """The chosen alpha and what it was chosen from.

    Parameters
    ----------
    alpha : ndarray of shape (1,) or (k,)
    score : float or None
        Criterion at the chosen alpha, in squared units of the targets.
    criterion : str
    results : dict
        `alphas`, `mean_score` and, by several folds, `fold_scores` (n_alphas, n_folds).
    learning_curve : list of [size, score, alpha]
    notes : list of str
        What the report should say about the choice.
    """

    alpha: np.ndarray
    score: float | None
    criterion: str
    results: dict[str, np.ndarray] = field(default_factory=dict)
    learning_curve: list[list[float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def search_alpha(run: Run, grams: GramContext, options: RidgeOptions, n_folds: int) -> AlphaSearch:
    """Return the alpha that was given, or the best of the grid by the criterion asked for.

    Of `n_folds` folds one is held out alone where generalised cross-validation is asked for and may overfit.
    """
    if options.search == "cv":
        return _by_folds(run, grams, options, range(n_folds), f"{n_folds} held-out folds")
    if options.search == "gcv":
        return _by_gcv_or_fold(run, grams, options, n_folds)
    return _given(run, grams, options)


def _by_gcv_or_fold(run: Run, grams: GramContext, options: RidgeOptions, n_folds: int) -> AlphaSearch:
    n_rows, D = grams.problem.n_rows, grams.problem.sizes[-1]
    if not gcv_may_overfit(D, n_rows):
        return _by_gcv(run, grams, options)[0]
    if n_folds > 1 and _stands_for_rows(run, grams, n_folds):
        found = _by_folds(run, grams, options, range(1), f"one held-out fold of {n_folds}")
        why = (
            f"alpha was chosen on one held-out fold: generalised cross-validation may overfit by far, as the "
            f"{D} features are more than a twentieth of the {n_rows} rows"
        )
        return replace(found, notes=[why, *found.notes])
    found, dimension = _by_gcv(run, grams, options)
    if not gcv_may_overfit(dimension, n_rows):
        return found
    danger = (
        f"alpha={found.alpha[0]:g} is the best by generalised cross-validation, which may overfit by far "
        f"where the effective dimension, here {dimension:.0f}, is more than a twentieth of the {n_rows} rows"
    )
    if n_folds == 1:
        danger += "; a Gram with folds, made by gram(..., cv=5), would show it: take alpha='cv' with that"
        warn(danger, DataWarning)
    return replace(found, notes=[danger, *found.notes])


def _stands_for_rows(run: Run, grams: GramContext, n_folds: int) -> bool:
    """Return whether the first fold has between half and twice its share of the weight of all rows.

    Few rows, or weights of very unlike size, may leave next to nothing in it, or outside of it.
    """
    weight = run.gather([run.submit(fold_weight, grams.parts, 0, grams.problem)])[0]
    return grams.weight / 2 < n_folds * weight < 2 * grams.weight


def _with_grids(grams: GramContext, options: RidgeOptions) -> tuple[GramContext, list[np.ndarray], int]:
    """Return the grid of each size, cut at its noise floor, and how many values D's own lost.

    Smaller machines whose floor is above the whole grid are left out of the problem.
    """
    grids: dict[int, np.ndarray] = {}
    dropped = 0
    for size in grams.problem.sizes:
        floor, is_whole = grams.noise_floor(size), size == grams.problem.sizes[-1]
        if options.alphas is None:
            grids[size], dropped = default_alphas(grams.weight, grams.mean_square_norm, floor=floor)
        elif is_whole or options.alphas[-1] >= floor:
            grids[size], dropped = above_noise(options.alphas, floor)
    problem = replace(grams.problem, sizes=tuple(grids))
    return replace(grams, problem=problem), list(grids.values()), dropped


def _by_folds(
    run: Run, grams: GramContext, options: RidgeOptions, folds: range, held_out: str
) -> AlphaSearch:
    grams, grids, dropped = _with_grids(grams, options)
    calls = [(grams.total, grams.parts, fold, grids, grams.problem) for fold in folds]
    by_fold = run.gather(run.submit_all(fold_errors, calls))
    weights = np.array([weight for _, weight in by_fold])
    unit = np.square(grams.target_scale)
    choices = []
    for position, grid in enumerate(grids):
        errors = np.stack([errors[position] for errors, _ in by_fold]) * unit
        choices.append((errors, choose_alpha(errors, weights, alphas=grid)))
    found = _best(grams, grids, dropped, f"mean squared error over {held_out}", [c for _, c in choices])
    if len(folds) == 1:
        return found
    errors, _ = choices[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        fold_scores = errors.mean(axis=2).T / weights
    return replace(found, results=found.results | {"fold_scores": fold_scores})


def _by_gcv(run: Run, grams: GramContext, options: RidgeOptions) -> tuple[AlphaSearch, float]:
    """Return the choice, and the effective dimension of its machine."""
    grams, grids, dropped = _with_grids(grams, options)
    calls = [
        (grams.total, size, grid, grams.problem)
        for size, grid in zip(grams.problem.sizes, grids, strict=True)
    ]
    values = run.gather(run.submit_all(gcv_errors, calls))
    unit = np.square(grams.target_scale)
    choices = [
        choose_alpha((errors * unit)[None], np.ones(1), alphas=grid)
        for (errors, _), grid in zip(values, grids, strict=True)
    ]
    found = _best(grams, grids, dropped, "generalised cross-validation", choices)
    return found, float(values[-1][1][choices[-1].index])


def _best(
    grams: GramContext, grids: list[np.ndarray], dropped: int, criterion: str, choices: list[AlphaChoice]
) -> AlphaSearch:
    """Return the last choice, that of all features, with the curve that all of them are."""
    best, noise = choices[-1], f"the rounding noise of {grams.dtype} products"
    remedy = ", and needs dtype='float64' (--dtype float64)" if grams.dtype == "float32" else ""
    notes = [f"alphas below {noise} were left out: {dropped}"] if dropped else []
    below = f"alpha={best.alpha:g} is the smallest above {noise}: a smaller one may be better{remedy}"
    usable = grids[-1][np.isfinite(best.scores)]
    is_cut = dropped > 0 or len(usable) < len(grids[-1])
    return AlphaSearch(
        alpha=np.array([best.alpha]),
        score=best.score,
        criterion=criterion,
        results={"alphas": grids[-1], "mean_score": best.scores},
        learning_curve=[
            [size, choice.score, choice.alpha]
            for size, choice in zip(grams.problem.sizes, choices, strict=True)
        ],
        notes=notes + end_of_grid("alpha", best.alpha, usable, best.scores, below=below if is_cut else None),
    )


def _given(run: Run, grams: GramContext, options: RidgeOptions) -> AlphaSearch:
    alpha = options.alpha
    assert alpha is not None
    search = AlphaSearch(alpha, None, "generalised cross-validation at the given alpha")
    sizes = [
        s
        for s in grams.problem.sizes
        if _ROWS_PER_FEATURE * s**3 <= grams.problem.n_rows * grams.problem.sizes[-1] ** 2
        and grams.noise_floor(s) <= alpha.min()
    ]
    if len(alpha) > 1 or not sizes:
        return search
    values = run.gather(
        run.submit_all(gcv_errors, [(grams.total, size, alpha, grams.problem) for size in sizes])
    )
    scores = [float((errors * np.square(grams.target_scale)).mean()) for errors, _ in values]
    curve = [
        [size, score, float(alpha[0])]
        for size, score in zip(sizes, scores, strict=True)
        if np.isfinite(score)
    ]
    return replace(search, learning_curve=curve)


# The Gram whose Cholesky factor preconditions: of all rows, or of a sample where that is much cheaper.


def factor_gram(
    run: Run, dataset: Dataset, preparation: Preparation, plan: Plan, options: FitOptions
) -> GramContext:
    """Return the Gram of one hashed row in `plan.shape.gram_one_in`, scaled to the weight of all rows.

    A sample whose weight is not between half and twice its share does not stand for the rows,
    as when few of them have any weight; then all rows are summed.
    """
    one_in, problem = plan.shape.gram_one_in, problem_of(preparation, dataset, options)
    folds = sample_of(one_in, options, dataset.n_rows)
    if folds is not None:
        parts = gram_sweep(run, dataset, preparation, plan, folds=folds, members=[(0,)])
        grams = context_of(run, parts, problem, preparation, plan)
        weight = run.gather([run.submit(weight_of, grams.total, problem.n_targets)])[0]
        if preparation.weight / 2 < one_in * weight < 2 * preparation.weight:
            total = run.submit(scaled, grams.total, preparation.weight / weight)
            return replace(grams, total=total)
    parts = gram_sweep(run, dataset, preparation, plan, folds=None)
    return context_of(run, parts, problem, preparation, plan)


def sample_of(one_in: int, options: FitOptions, n_rows: int) -> Folds | None:
    """Return the folds whose first is one hashed row in so many; None for all rows."""
    if one_in == 1:
        return None
    return Folds(one_in, child_seed(options.seed, "gram sample"), "hash", n_rows)


def weight_of(A: np.ndarray, n_targets: int) -> float:
    """Return Σs of the rows of a Gram."""
    return float(A[-1 - n_targets, -1 - n_targets])


def scaled(A: np.ndarray, ratio: float) -> np.ndarray:
    """Return the Gram of rows whose weights are multiplied."""
    return ratio * A


# The merged Grams of a fit, and all that is known of them.


@dataclass(frozen=True, eq=False)
class GramContext:
    """The merged Grams and all that is known of them.

    Parameters
    ----------
    parts : list of handles
        One on the Grams of all folds, or one a fold.
    total : handle
        On their sum.
    problem : GramProblem
    weight : float
    mean_square_norm : float
    tile_rows : int
    dtype : str
    target_scale : ndarray of shape (k,)
        From coded units back to the targets' own.
    """

    parts: list[Any]
    total: Any
    problem: GramProblem
    weight: float
    mean_square_norm: float
    tile_rows: int
    dtype: str
    target_scale: np.ndarray

    def noise_floor(self, size: int) -> float:
        """Return the alpha below which the machine of `size` features is noise."""
        return noise_floor(
            self.weight,
            self.problem.n_rows,
            tile_rows=self.tile_rows,
            n_features=size,
            at_zero=self.mean_square_norm,
            dtype=np.dtype(self.dtype),
        )


def context_of(
    run: Run, parts: list[Any], problem: GramProblem, preparation: Preparation, plan: Plan
) -> GramContext:
    """Return what is known of Grams that were just swept."""
    return GramContext(
        parts=parts,
        total=run.submit(total_gram, parts, problem),
        problem=problem,
        weight=preparation.weight,
        mean_square_norm=preparation.mean_square_norm,
        tile_rows=plan.tile_rows,
        dtype=plan.shape.dtype,
        target_scale=preparation.targets.scale,
    )
