"""The lower bound is one: for any model, any candidate, with and without weights and an intercept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime, minimize

from distrff.solvers.losses import (
    Hinge,
    Laplace,
    Logistic,
    Loss,
    Probit,
    SmoothedHinge,
    Squared,
    SquaredHinge,
)
from distrff.solvers.objective import (
    Certificate,
    DualBundle,
    DualCandidate,
    Evaluation,
    MarginSums,
    RowWeights,
    margin_sums,
    sided_weights,
)

SMOOTH = [Logistic(), Probit(), Laplace(0.7), SquaredHinge(), Squared()]
EPS = np.finfo(float).eps


class RowsInMemory:
    """One model on rows z with labels ±1 (or numbers) and weights, evaluated like a sweep does."""

    def __init__(
        self, seed: int, n: int = 60, D: int = 4, *, weighted: bool = False, offset: float = 0.4
    ) -> None:
        rng = np.random.default_rng(seed)
        self.Z = rng.standard_normal((n, D))
        f = self.Z @ rng.standard_normal(D) + offset + 0.5 * rng.standard_normal(n)
        self.y = np.where(f > 0, 1.0, -1.0)
        self.y[:2] = 1.0, -1.0
        self.s = rng.uniform(0, 3, n) if weighted else np.ones(n)
        self.s[:2] = 1.0

    def sums(self, loss: Loss, proxy: Loss, x: np.ndarray, fit_intercept: bool) -> MarginSums:
        f = self.Z @ x[:-1] + x[-1] if fit_intercept else self.Z @ x
        # In two tiles, so that their addition is used.
        halves = [slice(0, len(f) // 3), slice(len(f) // 3, None)]

        def sums(h: slice) -> MarginSums:
            F, Y = f[h, None], self.y[h, None]
            weights = RowWeights.of(self.s[h], None, F.shape)
            vector = sided_weights(proxy, F, Y, weights) @ self.Z[h]
            return margin_sums(loss, proxy, F, Y, weights, vector)

        first, second = map(sums, halves)
        return first + second

    def evaluate(
        self, C: float, loss: Loss, x: np.ndarray, *, proxy: Loss | None = None, fit_intercept: bool = True
    ) -> Evaluation:
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
    width=st.floats(1e-4, 3),
)
def test_no_candidate_of_one_machine_is_above_the_objective_of_another(
    seed, loss, size, log_C, weighted, fit_intercept, width
):
    rows, rng = RowsInMemory(seed, weighted=weighted), np.random.default_rng(seed + 1)
    C = 10.0**log_C
    proxy = loss.rounded(width)
    machines = [np.zeros(4 + fit_intercept), *(size * rng.standard_normal((3, 4 + fit_intercept)))]
    sums = [rows.sums(loss, proxy, x, fit_intercept) for x in machines]
    candidates = [DualCandidate.of(C, each, 0, fit_intercept=fit_intercept) for each in sums]
    bundle = DualBundle()
    together = [bundle.add(candidate) for candidate in candidates]
    duals = [candidate.bound for candidate in candidates]
    assert (np.array(together) >= np.maximum.accumulate(duals)).all()
    primals = [C * each.value[0] + 0.5 * x[:4] @ x[:4] for each, x in zip(sums, machines, strict=True)]
    # Of sums of 60 terms no larger than the greatest primal value.
    assert max(together) <= min(primals) + 1000 * EPS * max(primals)
    assert min(duals) >= 0 or isinstance(loss, Squared)


def test_candidates_of_very_different_sizes_bound_together(rng):
    """Those of C = 1e30 have tiny multiples that bound anything, and squares that overflow beside them."""
    vectors = rng.standard_normal((4, 3))
    sizes = np.array([1.0, 1e30, 1e100, 1e150])
    candidates = [
        DualCandidate(size * (1 + i), 1e3 * size * v)
        for i, (size, v) in enumerate(zip(sizes, vectors, strict=True))
    ]
    candidates += [DualCandidate(-1e200, np.zeros(3)), DualCandidate(1e-250, np.array([1e-50, 0.0, 0.0]))]
    for order in (candidates, candidates[::-1]):
        bundle = DualBundle()
        bounds = [bundle.add(candidate) for candidate in order]
        assert np.isfinite(bounds).all()
        assert bounds[-1] >= max(candidate.bound for candidate in candidates) > 0


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


def test_the_smoothed_hinge_tells_what_its_smoothing_costs():
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


def test_gaps():
    assert Certificate().gap == np.inf
    assert Certificate(2.0, 1.0).gap == 0.5
    assert Certificate(0.0, 0.0).gap == 0.0
    better = Certificate(2.0, 1.0).improved(3.0, 1.5)
    assert (better.primal, better.dual) == (2.0, 1.5)
