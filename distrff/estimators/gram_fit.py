"""A ridge fit to a Gram that is already there."""

from __future__ import annotations

import numpy as np

from distrff.columns.targets import ClassTargets
from distrff.errors import InputError
from distrff.estimators.gram_context import GramContext
from distrff.estimators.options import RidgeOptions
from distrff.estimators.ridge_fit import RidgeFit, check_number_of_alphas, gram_problem, solve
from distrff.solvers.ridge_gram import total_gram
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.execution import LocalExecution
from distrff.sweeps.gram_statistics import GramStatistics


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
    run = SweepRun(LocalExecution("threads"))
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
