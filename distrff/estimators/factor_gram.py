"""The Gram whose Cholesky factor preconditions: of all rows, or of a sample where that is much cheaper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distrff.data.dataset import Dataset
from distrff.estimators.gram_context import GramContext, context_of
from distrff.estimators.options import FitOptions
from distrff.estimators.preparation import Preparation
from distrff.estimators.ridge_fit import gram_sweep, problem_of
from distrff.random_streams import child_seed
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.folds import Folds
from distrff.sweeps.plan import Plan


def factor_gram(
    run: SweepRun, dataset: Dataset, preparation: Preparation, plan: Plan, options: FitOptions
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
