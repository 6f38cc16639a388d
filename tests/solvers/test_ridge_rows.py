"""Folds and alphas on the products of rows: the same models as from the Grams of their features."""

import numpy as np
import pytest

from distrff.errors import InputError
from distrff.preprocessing.folds import FoldSums
from distrff.solvers.ridge import FoldTerms, GramProblem, fold_errors, leading, posterior_of, solution_without
from distrff.solvers.ridge_rows import (
    gram_of_rows,
    ridge_rows,
    row_fold_errors,
    row_posterior,
    row_solution_without,
)
from tests.support.solvers import gram

N_FOLDS = 3
FOLDS = FoldSums(N_FOLDS)
TERMS = [FoldTerms.of(train, test, FOLDS.total) for train, test in zip(FOLDS.train, FOLDS.test, strict=True)]


def problem_of_rows(rng, fit_intercept, *, rescaled=True, n=36, D=64, k=2):
    """Return rows with some of no weight, their problem, and the Gram of each fold."""
    Z, Y = rng.standard_normal((n, D)) / np.sqrt(D) + 0.5 / np.sqrt(D), rng.standard_normal((n, k))
    s = rng.integers(0, 4, n).astype(np.float64)
    fold = rng.permutation(np.repeat(np.arange(N_FOLDS), (4, 16, n - 20)))
    is_judged = fold[:, None] == np.arange(N_FOLDS)
    offset = None if fit_intercept else rng.standard_normal(k)
    problem = GramProblem(n, k, fit_intercept, (8, 16, 32, 64), rescaled, offset)
    parts = [np.stack([gram(Z[fold == i], Y[fold == i], s[fold == i]) for i in range(N_FOLDS)])]
    return ridge_rows(Z, Y, s, ~is_judged, is_judged), problem, parts


@pytest.mark.parametrize("rescaled", [True, False])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_errors_and_models_are_those_of_the_grams(rng, fit_intercept, rescaled):
    rows, problem, parts = problem_of_rows(rng, fit_intercept, rescaled=rescaled)
    total = gram_of_rows(rows.Z, rows.Y, rows.s, rows.is_fitted, rows.is_judged, problem)
    summed = problem.with_offset(parts[0].sum(axis=0))
    small = leading(summed, 32, problem.n_targets)  # no more features than the 32 rows of the larger folds
    assert np.allclose(total, small, rtol=1e-13, atol=1e-13 * abs(summed).max())
    alphas = np.array([1e-2, 1.0, 1e2])
    grids = [alphas, alphas[:0], alphas, alphas]
    # A solution is off by about n·u times the condition number of G + alpha·I, of a matrix of trace Σs‖z‖².
    rtol = 10 * len(rows.Z) * 1.1e-16 * (np.trace(summed) / alphas[0] + 1)
    for fold, terms in enumerate(TERMS):
        by_rows = row_fold_errors(total, rows, fold, grids, problem, with_solutions=True)
        by_grams = fold_errors(summed, parts, terms, grids, problem, with_solutions=True)
        assert by_rows.weight == pytest.approx(by_grams.weight)
        for mine, others in zip(by_rows.errors, by_grams.errors, strict=True):
            assert mine.shape == others.shape
            assert np.allclose(mine, others, rtol=rtol)
        for alpha in alphas.tolist():
            expected = solution_without(summed, parts, terms, np.array([alpha]), problem)
            for coef, intercept in (by_rows.solutions[alpha], by_grams.solutions[alpha]):
                assert np.linalg.norm(coef - expected.coef) <= rtol * np.linalg.norm(expected.coef)
                assert np.allclose(intercept, expected.intercept, rtol=rtol, atol=rtol)
    for fold, terms in zip((None, *range(N_FOLDS)), (None, *TERMS), strict=True):
        mine = row_solution_without(total, rows, fold, np.array([0.1, 3.0]), problem)
        other = solution_without(summed, parts, terms, np.array([0.1, 3.0]), problem)
        for name in ("coef", "intercept", "residual", "total"):
            found, expected = getattr(mine, name), getattr(other, name)
            assert np.linalg.norm(found - expected) <= rtol * np.linalg.norm(expected), name
    mine, other = row_posterior(rows, 0.1, problem), posterior_of(summed, 0.1, problem)
    for name in ("L", "z_mean", "noise", "effective_dimension"):
        found, expected = getattr(mine, name), getattr(other, name)
        assert np.linalg.norm(found - expected) <= rtol * np.linalg.norm(expected), name


def test_rows_without_weight_or_finite_products_are_refused(rng):
    Z, Y = rng.standard_normal((6, 8)), rng.standard_normal((6, 1))
    is_judged = np.repeat(np.eye(2, dtype=bool), 3, axis=0)
    rows = ridge_rows(Z, Y, np.array([1.0, 1, 1, 0, 0, 0]), ~is_judged, is_judged)
    problem = GramProblem(6, 1, True, (8,), False)
    with pytest.raises(InputError, match="the total weight 0"):
        row_fold_errors(
            gram_of_rows(rows.Z, rows.Y, rows.s, rows.is_fitted, rows.is_judged, problem),
            rows,
            0,
            [np.ones(1)],
            problem,
        )
    with pytest.raises(InputError, match="is not finite"):
        ridge_rows(Z * np.inf, Y, np.ones(6), ~is_judged, is_judged)
