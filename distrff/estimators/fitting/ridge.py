"""A ridge fit from rows to machine: first sweep, choice of the solver by its plan, the solver's sweeps."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from distrff.engine.execution import Workers
from distrff.engine.run import begin_run
from distrff.errors import PlanRefused
from distrff.estimators.fitting.cg import factor_levels, fit_by_conjugate_gradients
from distrff.estimators.fitting.context import Preparation, prepare_fit
from distrff.estimators.fitting.gram import (
    RidgeFit,
    check_number_of_alphas,
    check_rows_of_search,
    features_dtype,
    fit_by_gram,
    plan_of,
    presumed_plan,
    product_dtype,
)
from distrff.estimators.fitting.options import RidgeOptions
from distrff.estimators.fitting.plan import ConjugatePlan, Plan, SGDPlan, count_conjugate, count_sgd
from distrff.estimators.fitting.sgd import fit_ridge_by_sgd
from distrff.estimators.fitting.timing import seconds_told
from distrff.io.dataset import Dataset


def fit_ridge(
    dataset: Dataset,
    options: RidgeOptions,
    *,
    target_kind: str,
    class_weight: Any = None,
    planned: Plan | None = None,
) -> tuple[RidgeFit, Preparation]:
    """Fit a ridge machine: one pass over the rows for their statistics, then those of the solver.

    `planned` is what was planned before, whose seconds the fit's plan takes over if it was for this fit.

    Raises
    ------
    PlanRefused
        Before the first task, if it cannot fit in the workers' memory.
    InputError
        For data that cannot be used.
    """
    run = begin_run()
    presumed = presumed_ridge_plan(run.execution, dataset, options, target_kind=target_kind)
    predicted = seconds_told(planned, presumed)
    dtype, notes = features_dtype(dataset, options.dtype), list[str]()

    def recount(n_outputs: int, n_features: int) -> Plan:
        plan = ridge_plan(
            run.execution, dataset, options, n_outputs=n_outputs, dtype=dtype, n_features=n_features
        )
        return plan.with_seconds(predicted)

    preparation = prepare_fit(
        run,
        dataset,
        options,
        target_kind=target_kind,
        dtype=dtype,
        class_weight=class_weight,
        recount=recount,
    )
    check_number_of_alphas(options, preparation.targets)
    if options.solver != "sgd" and not options.must_be_cg:
        dtype, notes = product_dtype(dataset, options, preparation)
    plan = recount(preparation.targets.n_outputs, preparation.specification.n_features)
    if isinstance(plan, SGDPlan):
        return fit_ridge_by_sgd(run, dataset, options, preparation, plan), preparation
    if not isinstance(plan, ConjugatePlan):
        return fit_by_gram(run, dataset, options, preparation, plan, notes), preparation
    notes = [] if options.must_be_cg else ["the Gram does not fit in memory: solver='cg' was used"]
    return fit_by_conjugate_gradients(run, dataset, options, preparation, plan, notes), preparation


def presumed_ridge_plan(
    workers: Workers, dataset: Dataset, options: RidgeOptions, *, target_kind: str
) -> Plan:
    """Return the plan as far as it can be counted before the first sweep.

    Raises
    ------
    InputError
        For too few rows, or a map that cannot take these columns, before a pass over them is lost.
    PlanRefused
        If it cannot fit in the workers' memory.
    """
    if options.search is not None:
        check_rows_of_search("alpha", options.search, max(2, options.n_folds), dataset)
    return presumed_plan(workers, dataset, options, target_kind=target_kind, counted=ridge_plan)


def ridge_plan(
    workers: Workers,
    dataset: Dataset,
    options: RidgeOptions,
    *,
    n_outputs: int,
    dtype: str,
    n_features: int | None = None,
) -> Plan:
    """Return the plan of the solver asked for; "auto" is the Gram, and where it is refused for memory
    and alpha is given, conjugate gradients, as it is for sparse features.

    Parameters
    ----------
    dtype : {"float32", "float64"}
        Of the Gram's products; conjugate gradients take that of the columns, for their products are float64.
    """
    if options.solver == "sgd":
        return plan_of(
            workers,
            dataset,
            options,
            n_outputs=n_outputs,
            dtype=dtype,
            counting=count_sgd,
            n_features=n_features,
        )
    if options.must_be_cg:
        return _conjugate_plan(workers, dataset, options, n_outputs, n_features)
    try:
        return plan_of(workers, dataset, options, n_outputs=n_outputs, dtype=dtype)
    except PlanRefused as refused:
        if options.solver != "auto" or options.search is not None:
            raise
        try:
            return _conjugate_plan(workers, dataset, options, n_outputs, n_features)
        except PlanRefused:
            raise refused from None


def _conjugate_plan(
    workers: Workers,
    dataset: Dataset,
    options: RidgeOptions,
    n_outputs: int,
    n_features: int | None,
) -> Plan:
    n_factors = 0 if options.alpha is None else len(factor_levels(np.asarray(options.alpha)))
    return plan_of(
        workers,
        dataset,
        options,
        n_outputs=n_outputs,
        dtype=features_dtype(dataset, options.dtype),
        counting=partial(count_conjugate, n_alphas=n_factors),
        n_features=n_features,
    )
