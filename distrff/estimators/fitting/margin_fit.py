"""The fit of margin machines: one Gram for the preconditioner, then light sweeps until the gap is closed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from distrff.engine.execution import Workers
from distrff.engine.run import Run, begin_run
from distrff.errors import InputError, PlanRefused
from distrff.estimators.fitting.context import Preparation, prepare_fit
from distrff.estimators.fitting.gram import (
    GramContext,
    check_rows_of_search,
    factor_gram,
    features_dtype,
    plan_of,
    presumed_plan,
)
from distrff.estimators.fitting.hard_margin import solve_hard_margins
from distrff.estimators.fitting.margins import (
    MarginOracle,
    MarginProblem,
    MarginSolution,
    PenaltySearch,
    Progress,
    SoftmaxOracle,
    best_constants,
    penalty_grid,
    search_penalty,
    solve_margins,
)
from distrff.estimators.fitting.options import MarginOptions
from distrff.estimators.fitting.plan import Plan, SGDPlan, count_conjugate, count_sgd
from distrff.estimators.fitting.sgd import solve_by_sgd
from distrff.estimators.fitting.timing import seconds_told
from distrff.io.dataset import Dataset
from distrff.preprocessing.targets import ClassTargets
from distrff.reductions.base import Folds
from distrff.solvers.ridge import RidgeMachine, final_machine
from distrff.solvers.status import Status
from distrff.utils.random import child_seed

_LEAST_PENALTY = 1e-8  # of Σs·mean‖z‖², where C is infinite


@dataclass(frozen=True, eq=False)
class MarginFit:
    """Everything that a fit of margin machines found.

    Attributes
    ----------
    solver : str
    C : float
    coef : ndarray of shape (D, k)
    intercept : ndarray of shape (k,)
    progress : list of Progress
        Of each machine.
    status : Status
    n_light_sweeps : int
        Of the final machines.
    search : PenaltySearch or None
    size : float
        Σs·mean‖z‖², which C times is that of the losses' part beside the penalty.
    interruption : KeyboardInterrupt or None
        To be raised again when the machine is kept.
    """

    run: Run
    plan: Plan
    solver: str
    C: float
    coef: np.ndarray
    intercept: np.ndarray
    progress: list[Progress]
    status: Status
    n_light_sweeps: int
    search: PenaltySearch | None
    size: float
    interruption: KeyboardInterrupt | None

    @property
    def is_hard(self) -> bool:
        """Whether no row may be on the wrong side of its margin."""
        return bool(np.isinf(self.C))

    @property
    def worst(self) -> Progress:
        """The machine of largest error."""
        return max(self.progress, key=lambda progress: progress.error)


def fit_margins(
    dataset: Dataset, options: MarginOptions, *, class_weight: Any = None, planned: Plan | None = None
) -> tuple[MarginFit, Preparation]:
    """Fit one machine a class against the rest, or one for two classes.

    `planned` is what was planned before, whose seconds the fit's plan takes over if it was for this fit.

    Raises
    ------
    PlanRefused
        If it cannot fit in the workers' memory: before the first task, or once many classes are counted.
    InputError
        For data that cannot be used.
    """
    run = begin_run()
    predicted = seconds_told(planned, presumed_margin_plan(run.execution, dataset, options))
    dtype = features_dtype(dataset, options.dtype_asked)

    def recount(n_outputs: int, n_features: int) -> Plan:
        plan = margin_plan(
            run.execution, dataset, options, n_outputs=n_outputs, dtype=dtype, n_features=n_features
        )
        return plan.with_seconds(predicted)

    preparation = prepare_fit(
        run,
        dataset,
        options,
        target_kind="classes",
        dtype=dtype,
        class_weight=class_weight,
        recount=recount,
    )
    _check_class_weights(preparation)
    plan = recount(preparation.targets.n_outputs, preparation.specification.n_features)
    if isinstance(plan, SGDPlan):
        assert options.C is not None
        constants = best_constants(preparation, options, options.C)
        solution = solve_by_sgd(run, dataset, preparation, plan, options, constants)
        C, search = options.C, None
    else:
        solution, C, search = _solve_by_factor(run, dataset, preparation, plan, options)
    points = [solution.progress[problem].x for problem in solution.progress]
    coef, intercept = _unpacked(points, options, preparation)
    fit = MarginFit(
        run=run,
        plan=plan,
        solver=_name_of(plan, options),
        C=C,
        coef=coef,
        intercept=intercept,
        progress=list(solution.progress.values()),
        status=solution.status,
        n_light_sweeps=solution.n_sweeps,
        search=search,
        size=preparation.weight * preparation.mean_square_norm,
        interruption=solution.interruption,
    )
    return fit, preparation


def presumed_margin_plan(workers: Workers, dataset: Dataset, options: MarginOptions) -> Plan:
    """Return the plan as far as it can be counted before the first sweep.

    Raises
    ------
    InputError
        For too few rows, or a map that cannot take these columns, before a pass over them is lost.
    PlanRefused
        If it cannot fit in the workers' memory.
    """
    if options.C is None:
        check_rows_of_search("C", "cv", options.n_cv_folds, dataset)
    return presumed_plan(workers, dataset, options, target_kind="classes", counted=margin_plan)


def margin_plan(
    workers: Workers,
    dataset: Dataset,
    options: MarginOptions,
    *,
    n_outputs: int,
    dtype: str,
    n_features: int | None = None,
) -> Plan:
    """Return the plan of the solver asked for; "auto" has the Gram of a sample, and where that is refused for
    memory, SGD. Sparse features have light sweeps only."""
    counted = partial(
        plan_of, workers, dataset, options, n_outputs=n_outputs, dtype=dtype, n_features=n_features
    )
    if options.solver == "sgd":
        return counted(counting=count_sgd)
    if options.features.sparse_entries:
        return counted(counting=partial(count_conjugate, n_alphas=0))
    try:
        return counted()
    except PlanRefused as refused:
        if options.solver != "auto" or options.C is None or options.is_hard or options.softmax:
            raise
        try:
            return counted(counting=count_sgd)
        except PlanRefused:
            raise refused from None


def _name_of(plan: Plan, options: MarginOptions) -> str:
    if options.is_hard:
        return "working set"
    return "sgd" if isinstance(plan, SGDPlan) else options.direct_solver


def _unpacked(
    points: list[np.ndarray], options: MarginOptions, preparation: Preparation
) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients of shape (D, k) and intercepts from one point a machine, or one of all classes."""
    n_columns = preparation.targets.n_outputs if _is_softmax(options, preparation) else 1
    X = np.concatenate([x.reshape(-1, n_columns) for x in points], axis=1)
    return (X[:-1], X[-1]) if options.fit_intercept else (X, np.zeros(X.shape[1]))


def _solve_by_factor(
    run: Run, dataset: Dataset, preparation: Preparation, plan: Plan, options: MarginOptions
) -> tuple[MarginSolution, float, PenaltySearch | None]:
    """Return what the solvers find that have the Gram of the rows, or of a sample of them."""
    is_sparse = preparation.specification.is_sparse
    if not is_sparse:
        run.begin_phase("Gram of the preconditioner")
    grams = None if is_sparse else factor_gram(run, dataset, preparation, plan, options)
    folds = _folds_of(options, dataset)
    kind = SoftmaxOracle if _is_softmax(options, preparation) else MarginOracle
    oracle = kind(run, dataset, preparation, plan, options, grams, folds)
    return _solve(oracle, options, run, grams, preparation)


def _solve(
    oracle: MarginOracle,
    options: MarginOptions,
    run: Run,
    grams: GramContext | None,
    preparation: Preparation,
) -> tuple[MarginSolution, float, PenaltySearch | None]:
    """Return the machines of all rows, their C, and how it was chosen."""
    run.begin_phase("light sweeps" if options.C is not None else "choice of C")
    if options.is_hard:
        assert options.C is not None
        starts = _starts(run, grams, options, preparation, options.C)
        hard = {MarginProblem(output, options.C): x for output, x in enumerate(starts)}
        return solve_hard_margins(oracle, options, hard), options.C, None
    if options.C is not None:
        starts = _starts(run, grams, options, preparation, options.C)
        problems = {MarginProblem(output, options.C): x for output, x in enumerate(starts)}
        constants = best_constants(preparation, options, options.C)
        return solve_margins(oracle, options, problems, constants, tol=options.tol), options.C, None
    grid = penalty_grid(options, weight=preparation.weight, mean_square_norm=preparation.mean_square_norm)
    starts = _starts(run, grams, options, preparation, float(grid[0]))
    search = search_penalty(oracle, options, grid, starts)
    run.begin_phase("light sweeps")
    problems = {MarginProblem(output, search.C): x for output, x in enumerate(search.starts)}
    if search.interruption is None:
        constants = best_constants(preparation, options, search.C)
        solution = solve_margins(oracle, options, problems, constants, tol=options.tol)
    else:
        # No sweep has seen the mean of the folds' machines, which is what is kept.
        solution = solve_margins(oracle, replace(options, max_sweeps=0), problems, tol=options.tol)
        solution = replace(solution, status=Status.INTERRUPTED, interruption=search.interruption)
    return solution, search.C, search


def _folds_of(options: MarginOptions, dataset: Dataset) -> Folds | None:
    if options.C is not None:
        return None
    return Folds(options.n_cv_folds, child_seed(options.seed, "folds"), options.fold_by, dataset.n_rows)


def _is_softmax(options: MarginOptions, preparation: Preparation) -> bool:
    """Two classes share a loss in any case."""
    return options.softmax and preparation.targets.n_outputs > 1


def _starts(
    run: Run, grams: GramContext | None, options: MarginOptions, preparation: Preparation, C: float
) -> list[np.ndarray]:
    """Return a point for each machine: that of ridge; zeros for softmax, or without a Gram."""
    n_numbers = preparation.specification.n_features + options.fit_intercept
    if _is_softmax(options, preparation):
        return [np.zeros(n_numbers * preparation.targets.n_outputs)]
    if grams is None:
        return [np.zeros(n_numbers) for _ in range(preparation.targets.n_outputs)]
    floor = grams.noise_floor(grams.problem.sizes[-1])
    curvature = options.loss.curvature if np.isfinite(options.loss.curvature) else 2.0
    least = _LEAST_PENALTY * grams.weight * grams.mean_square_norm
    alpha = max(floor, least if np.isinf(C) else 1 / (C * curvature))
    ridge: RidgeMachine = run.gather(
        [run.submit(final_machine, grams.total, np.array([alpha]), grams.problem)]
    )[0]
    points = np.vstack([ridge.coef, ridge.intercept[None]]) if options.fit_intercept else ridge.coef
    # Ridge aims at margins of 1.
    return list((options.loss.clear_margin * points).T)


def _check_class_weights(preparation: Preparation) -> None:
    """A machine against a class of no weight has no optimum: its intercept runs off."""
    targets = preparation.targets
    assert isinstance(targets, ClassTargets)
    if targets.class_weight is not None and not targets.class_weight.all():
        label = targets.classes[targets.class_weight == 0].tolist()[0]
        raise InputError(f"class_weight is 0 for the class {label!r}; leave its rows out instead")
