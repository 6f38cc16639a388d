"""Ridge from Grams: plan, Gram sweep, alpha, solution; and what any fit of ridge found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distrff.columns.targets import Targets
from distrff.data.dataset import Dataset
from distrff.errors import InputError, PrecisionWarning, warn
from distrff.estimators.alpha_search import AlphaSearch, search_alpha
from distrff.estimators.convergence import Convergence
from distrff.estimators.gram_context import GramContext, context_of
from distrff.estimators.options import FitOptions, RidgeOptions
from distrff.estimators.preparation import Preparation
from distrff.features.base import nested_sizes
from distrff.features.map_cost import MapCost
from distrff.features.specification import MapSpecification
from distrff.random_streams import child_seed
from distrff.solvers.ridge_gram import GramProblem, RidgeMachine, final_machine
from distrff.solvers.ridge_path import noise_floor
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.execution import Workers
from distrff.sweeps.folds import HELD_OUT_ONE_IN, Folds
from distrff.sweeps.gram import GramReduction
from distrff.sweeps.plan import Plan, count
from distrff.sweeps.reading import check_reading
from distrff.sweeps.segments import gram_one_in, gram_tile_rows
from distrff.sweeps.shape import Shape

# Until the first sweep has counted the classes, the plan assumes a handful.
_PRESUMED_CLASSES = 8


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """Everything a ridge fit found.

    Parameters
    ----------
    run : SweepRun
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

    run: SweepRun
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
            f"n_samples = {dataset.n_rows}; give more rows{', fewer folds (cv)' if search == 'cv' else ''}, "
            f"or a number for {parameter}"
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

    `n_features` is None before the map is fitted; exact bins are then counted as few as they could be.
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
    run: SweepRun,
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
    run: SweepRun,
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
    run: SweepRun,
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
