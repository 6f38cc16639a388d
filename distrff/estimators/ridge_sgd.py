"""Ridge by distributed SGD: the squared loss as any other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distrff.columns.targets import NumericTargets
from distrff.data.dataset import Dataset
from distrff.estimators.alpha_search import AlphaSearch
from distrff.estimators.convergence import Convergence
from distrff.estimators.margin_options import margin_options_of_ridge
from distrff.estimators.options import RidgeOptions
from distrff.estimators.preparation import Preparation
from distrff.estimators.ridge_fit import RidgeFit, problem_of
from distrff.estimators.sgd_solve import solve_by_sgd
from distrff.solvers.ridge_gram import RidgeMachine
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.sgd_plan import SGDPlan


def fit_ridge_by_sgd(
    run: SweepRun, dataset: Dataset, options: RidgeOptions, preparation: Preparation, plan: SGDPlan
) -> RidgeFit:
    """Return the fit for one given penalty, to a small fall of the objective.

    Raises
    ------
    InputError
        If the sampled rows have no weight.
    """
    assert options.alpha is not None
    targets = preparation.targets
    if isinstance(targets, NumericTargets) and not options.fit_intercept:
        # Without an intercept nothing can stand in for what was subtracted.
        targets = replace(targets, shift=np.zeros_like(targets.shift))
    preparation = replace(preparation, targets=targets)
    solution = solve_by_sgd(run, dataset, preparation, plan, margin_options_of_ridge(options))
    points = np.stack([progress.x for progress in solution.progress.values()], axis=1)
    coef, intercept = (
        (points[:-1], points[-1]) if options.fit_intercept else (points, np.zeros(points.shape[1]))
    )
    worst = max(solution.progress.values(), key=lambda progress: progress.certificate.gap)
    unknown = np.full(points.shape[1], np.nan)
    return RidgeFit(
        run=run,
        plan=plan,
        problem=problem_of(preparation, dataset, options),
        dtype=plan.shape.dtype,
        grams=None,
        search=AlphaSearch(options.alpha, None, "none, as alpha was given"),
        machine=RidgeMachine(coef, intercept, unknown, unknown),
        targets=targets,
        notes=[],
        convergence=Convergence(
            status=solution.status,
            solver="sgd",
            measure="duality gap",
            error=worst.certificate.gap,
            tol=options.tol,
            n_sweeps=solution.n_sweeps,
            max_sweeps=options.max_sweeps,
            preconditioner="spectrum of a sample",
            history=worst.history,
            interruption=solution.interruption,
        ),
    )
