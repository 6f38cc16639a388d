"""Evaluations of binary and softmax problems: gradients, lower bounds and gaps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime, minimize
from threadpoolctl import threadpool_limits

from distrff.solvers.losses import Hinge, Laplace, Logistic, Probit, SmoothedHinge, SquaredHinge
from distrff.solvers.objective import (
    Certificate,
    DualBundle,
    DualCandidate,
    Evaluation,
    RowWeights,
    Squared,
    softmax_slopes,
    softmax_sums,
)
from tests.support.solvers import sums_at

SMOOTH = [Logistic(), Probit(), Laplace(0.7), SquaredHinge(), Squared()]
EPS = np.finfo(float).eps


class RowsInMemory:
    """One model on rows z with labels ±1 (or numbers) and weights, evaluated like a sweep does."""

    def __init__(self, seed, *, weighted=False):
        rng = np.random.default_rng(seed)
        self.Z = rng.standard_normal((60, 4))
        f = self.Z @ rng.standard_normal(4) + 0.4 + 0.5 * rng.standard_normal(60)
        self.y = np.where(f > 0, 1.0, -1.0)
        self.y[:2] = 1.0, -1.0
        self.s = rng.uniform(0, 3, 60) if weighted else np.ones(60)
        self.s[:2] = 1.0

    def sums(self, loss, proxy, x, fit_intercept):
        # In two tiles, so that their addition is used.
        first, second = (
            sums_at(self.Z[h], self.y[h], self.s[h], x, loss, proxy, fit_intercept=fit_intercept)
            for h in (slice(0, 20), slice(20, None))
        )
        return first + second

    def evaluate(self, C, loss, x, *, proxy=None, fit_intercept=True):
        sums = self.sums(loss, loss if proxy is None else proxy, x, fit_intercept)
        return Evaluation.of(C, sums, 0, x, fit_intercept=fit_intercept)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    loss=st.sampled_from([Hinge(), *SMOOTH]),
    size=st.floats(0, 30),
    log_C=st.floats(-6, 4),
    weighted=st.booleans(),
    fit_intercept=st.booleans(),
    epsilon=st.floats(1e-4, 3),
)
def test_no_candidate_of_one_model_is_above_the_objective_of_another(
    seed, loss, size, log_C, weighted, fit_intercept, epsilon
):
    rows, rng = RowsInMemory(seed, weighted=weighted), np.random.default_rng(seed + 1)
    C = 10.0**log_C
    proxy = loss.rounded(epsilon)
    models = [np.zeros(4 + fit_intercept), *(size * rng.standard_normal((3, 4 + fit_intercept)))]
    sums = [rows.sums(loss, proxy, x, fit_intercept) for x in models]
    candidates = [DualCandidate.of(C, each, 0, fit_intercept=fit_intercept) for each in sums]
    bundle = DualBundle()
    together = [bundle.add(candidate) for candidate in candidates]
    duals = [candidate.bound for candidate in candidates]
    assert (np.array(together) >= np.maximum.accumulate(duals)).all()
    primals = [C * each.value[0] + 0.5 * x[:4] @ x[:4] for each, x in zip(sums, models, strict=True)]
    # Of sums of 60 terms no larger than the greatest primal value.
    assert max(together) <= min(primals) + 1000 * EPS * max(primals)
    assert min(duals) >= 0 or isinstance(loss, Squared)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("loss", SMOOTH, ids=str)
@pytest.mark.parametrize("C", [1e-2, 10.0])
def test_the_gap_closes_at_the_optimum_and_bounds_the_error(loss, weighted, fit_intercept, C):
    rows = RowsInMemory(3, weighted=weighted)

    def value(x):
        at = rows.evaluate(C, loss, x, fit_intercept=fit_intercept)
        return at.value, at.gradient

    x0 = np.zeros(4 + fit_intercept)
    best = minimize(value, x0, jac=True, method="BFGS", options={"gtol": 1e-9}).x
    at = rows.evaluate(C, loss, best, fit_intercept=fit_intercept)
    assert at.primal == pytest.approx(at.value, rel=1e-12)
    assert at.smoothing == pytest.approx(0, abs=1e-9 * at.primal)
    # The gap is of first order in the gradient through the shrunk side, so its root accuracy counts.
    assert 0 <= Certificate(at.primal, at.dual).gap + 100 * EPS <= 1e-6
    for x in (x0, best + 0.1, 2 * best):
        other = rows.evaluate(C, loss, x, fit_intercept=fit_intercept)
        assert other.primal - at.primal <= other.primal - other.dual + 1e-6 * at.primal


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("loss", [*SMOOTH, SmoothedHinge(0.4)], ids=str)
def test_the_gradient_is_that_of_the_value(loss, fit_intercept):
    rows, C = RowsInMemory(5, weighted=True), 0.7
    x = np.linspace(-0.5, 0.6, 4 + fit_intercept)
    at = rows.evaluate(C, loss, x, fit_intercept=fit_intercept)
    slope = approx_fprime(x, lambda v: rows.evaluate(C, loss, v, fit_intercept=fit_intercept).value, 1e-6)
    # One-sided differences of step h err by h times half the curvature, below C·Σs·max‖z‖²·2.
    np.testing.assert_allclose(at.gradient, slope, atol=1e-6 * C * rows.s.sum() * 2 * 20)


def test_the_smoothing_of_the_hinge_is_bounded():
    rows, C = RowsInMemory(1), 2.0
    x = np.array([0.3, -0.2, 0.5, 0.1, 0.05])
    at = rows.evaluate(C, Hinge(), x, proxy=SmoothedHinge(0.5))
    m = rows.y * (rows.Z @ x[:4] + x[4])
    g = np.clip((1 - m) / 0.5, 0, 1)
    hinge = np.maximum(0, 1 - m)
    assert at.primal == pytest.approx(C * hinge.sum() + 0.5 * x[:4] @ x[:4])
    assert at.value == pytest.approx(C * (g * hinge - 0.25 * g**2).sum() + 0.5 * x[:4] @ x[:4])
    assert at.smoothing == pytest.approx(C * ((hinge - g * hinge + 0.25 * g**2) + 0.25 * g**2).sum())
    assert at.curvature == pytest.approx(C * np.mean((m < 1) & (m > 0.5)) / 0.5)


# Softmax


N, D, K, SIGMA = 50, 4, 3, 0.7


@pytest.fixture
def rows(rng):
    return rng.standard_normal((N, D)), rng.integers(0, K, N), rng.uniform(0, 2, N)


def softmax_at(rows, x, fit_intercept, C=0.8, held_out=None):
    Z, classes, s = rows
    X = x.reshape(-1, K)
    F = (Z @ X[:D] + (X[D] if fit_intercept else 0)).reshape(N, 1, K)
    parts = [slice(0, 20), slice(20, N)]

    def sums(p):
        masks = None if held_out is None else (~held_out[p, None], held_out[p, None])
        weights = RowWeights.of(s[p], (len(F[p]), 1), masks)
        slopes = softmax_slopes(F[p], classes[p], weights, sigma=SIGMA)
        vector = np.einsum("rmk,rd->mkd", slopes, Z[p])
        return softmax_sums(F[p], classes[p], weights, vector, sigma=SIGMA)

    first, second = map(sums, parts)
    return Evaluation.of_softmax(C, first + second, 0, x, fit_intercept=fit_intercept)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_the_softmax_gradient_is_that_of_the_value(rows, rng, fit_intercept):
    x = rng.standard_normal((D + fit_intercept) * K)
    slope = approx_fprime(x, lambda v: softmax_at(rows, v, fit_intercept).value, 1e-6)
    # One-sided differences of step h err by h times half the curvature, below C·Σs·max‖z‖²/σ².
    bound = 1e-6 * 0.8 * rows[2].sum() * (np.square(rows[0]).sum(axis=1).max() + 1) / SIGMA**2
    np.testing.assert_allclose(softmax_at(rows, x, fit_intercept).gradient, slope, atol=bound)


def test_rows_held_out_are_judged_and_not_fitted(rows, rng):
    Z, classes, s = rows
    x, out = rng.standard_normal((D + 1) * K), rng.random(N) < 0.4
    at = softmax_at(rows, x, True, held_out=out)
    fitted = softmax_at((Z, classes, np.where(out, 0, s)), x, True)
    judged = softmax_at((Z, classes, np.where(out, s, 0)), x, True)
    assert at.value == pytest.approx(fitted.value)
    np.testing.assert_allclose(at.gradient, fitted.gradient)
    assert at.held_out[0] == pytest.approx(s[out].sum())
    assert 0.8 * at.held_out[1] == pytest.approx(judged.value - 0.5 * np.square(x[: D * K]).sum())


# Products of few candidates hang on the threads, and scalar products of more than 10,000 numbers.
@pytest.mark.parametrize("shape", [(20, 10, 33), (10, 4, 20_000)])
def test_the_bound_of_several_candidates_has_the_bits_of_any_number_of_threads(rng, shape):
    W = rng.standard_normal(shape)
    slopes = np.square(W).sum(axis=-1) * rng.uniform(0.5, 1.5, shape[:2])

    def bounds(n_threads):
        with threadpool_limits(n_threads, user_api="blas"):
            bundles = [(DualBundle(), zip(*problem, strict=True)) for problem in zip(slopes, W, strict=True)]
            return [bundle.add(DualCandidate(*each)) for bundle, candidates in bundles for each in candidates]

    assert bounds(1) == bounds(2) == bounds(4)
