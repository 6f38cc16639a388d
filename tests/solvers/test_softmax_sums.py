"""Sums of the softmax loss: their gradient, their tiles, their folds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from distrff.solvers.objective import Evaluation, RowWeights, softmax_slopes, softmax_sums

N, D, K, SIGMA = 50, 4, 3, 0.7


@pytest.fixture
def rows(rng):
    return rng.standard_normal((N, D)), rng.integers(0, K, N), rng.uniform(0, 2, N)


def evaluate(rows, x, fit_intercept, C=0.8, held_out=None):
    Z, classes, s = rows
    X = x.reshape(-1, K)
    F = (Z @ X[:D] + (X[D] if fit_intercept else 0)).reshape(N, 1, K)
    parts = [slice(0, 20), slice(20, N)]

    def sums(p):
        weights = RowWeights.of(s[p], None if held_out is None else held_out[p, None], (len(F[p]), 1))
        slopes = softmax_slopes(F[p], classes[p], weights, sigma=SIGMA)
        vector = np.einsum("rmk,rd->mkd", slopes, Z[p])
        return softmax_sums(F[p], classes[p], weights, vector, sigma=SIGMA)

    first, second = map(sums, parts)
    return Evaluation.of_softmax(C, first + second, 0, x, fit_intercept=fit_intercept)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_the_gradient_is_that_of_the_value(rows, rng, fit_intercept):
    x = rng.standard_normal((D + fit_intercept) * K)
    slope = approx_fprime(x, lambda v: evaluate(rows, v, fit_intercept).value, 1e-6)
    # One-sided differences of step h err by h times half the curvature, below C·Σs·max‖z‖²/σ².
    bound = 1e-6 * 0.8 * rows[2].sum() * (np.square(rows[0]).sum(axis=1).max() + 1) / SIGMA**2
    np.testing.assert_allclose(evaluate(rows, x, fit_intercept).gradient, slope, atol=bound)


def test_the_value_and_the_curvature(rows, rng):
    Z, classes, s = rows
    x = rng.standard_normal((D + 1) * K)
    at, X = evaluate(rows, x, True), x.reshape(-1, K)
    E = np.exp((Z @ X[:D] + X[D]) / SIGMA)
    P = E / E.sum(axis=1, keepdims=True)
    loss = -(s * np.log(P[np.arange(N), classes])).sum()
    assert at.primal == at.value == pytest.approx(0.8 * loss + 0.5 * np.square(X[:D]).sum())
    assert at.dual == -np.inf
    assert at.curvature == pytest.approx(0.8 * np.average((P * (1 - P)).mean(axis=1), weights=s) / SIGMA**2)


def test_rows_held_out_are_judged_and_not_fitted(rows, rng):
    Z, classes, s = rows
    x, out = rng.standard_normal((D + 1) * K), rng.random(N) < 0.4
    at = evaluate(rows, x, True, held_out=out)
    fitted = evaluate((Z, classes, np.where(out, 0, s)), x, True)
    judged = evaluate((Z, classes, np.where(out, s, 0)), x, True)
    assert at.value == pytest.approx(fitted.value)
    np.testing.assert_allclose(at.gradient, fitted.gradient)
    assert at.held_out[0] == pytest.approx(s[out].sum())
    assert 0.8 * at.held_out[1] == pytest.approx(judged.value - 0.5 * np.square(x[: D * K]).sum())


def test_large_values_do_not_overflow(rows):
    assert np.isfinite(evaluate(rows, np.full((D + 1) * K, 1e4) * np.arange((D + 1) * K), True).value)
