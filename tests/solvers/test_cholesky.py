"""The final model against scikit-learn's Ridge, and its spread against dense formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from distrff.errors import InputError
from distrff.solvers.ridge import RidgeSystem, posterior_factor, ridge_system, solve_ridge


def gram(Z, Y, s):
    T = np.column_stack([Z, np.ones(len(Z)), Y]) * np.sqrt(s)[:, None]
    return T.T @ T


def rows(seed, n, D, k):
    """Rows whose Gram has singular values spread over three decades: condition about 1e6 before alpha."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, D)) * np.geomspace(1, 1e-3, D) + rng.uniform(-0.5, 0.5, D)
    Y = Z @ rng.standard_normal((D, k)) + 0.1 * rng.standard_normal((n, k)) + 5
    return Z, Y, rng.uniform(0.1, 2, n)


def alpha_at_condition(G, condition):
    return float(np.linalg.norm(G, 2)) / condition


# Normal equations at condition 1e6: errors of a few √D·eps·1e6 ≈ 1e-9 relative.
PARITY = 1e-8


def close(got, expected):
    return np.linalg.norm(got - expected) <= PARITY * np.linalg.norm(expected)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(2, 80),
    D=st.integers(1, 15),
    k=st.integers(1, 3),
    fit_intercept=st.booleans(),
)
def test_equals_sklearn(seed, n, D, k, fit_intercept):
    Z, Y, s = rows(seed, n, D, k)
    system = ridge_system(gram(Z, Y, s), k, fit_intercept=fit_intercept)
    alphas = alpha_at_condition(system.G, 1e6) * np.array([1.0, 30.0, 1.0])[:k]
    coef, intercept = solve_ridge(system, alphas)
    reference = Ridge(alpha=alphas, fit_intercept=fit_intercept, solver="svd").fit(Z, Y, sample_weight=s)
    predicted = reference.predict(Z).reshape(n, k)
    assert coef.shape == (D, k)
    assert intercept.shape == (k,)
    assert close(Z @ coef + intercept, predicted)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_coefficients_equal_sklearn(fit_intercept):
    Z, Y, s = rows(0, 200, 12, 3)
    system = ridge_system(gram(Z, Y, s), 3, fit_intercept=fit_intercept)
    alpha = alpha_at_condition(system.G, 1e6)
    coef, intercept = solve_ridge(system, alpha)
    reference = Ridge(alpha=alpha, fit_intercept=fit_intercept).fit(Z, Y, sample_weight=s)
    assert close(coef, reference.coef_.T)
    assert close(intercept, np.broadcast_to(reference.intercept_, 3))


def test_leading_block_equals_a_fit_on_the_scaled_leading_features():
    Z, Y, s = rows(1, 100, 10, 2)
    c = np.sqrt(10 / 4)
    system = ridge_system(gram(Z, Y, s), 2, fit_intercept=True, n_features=4, feature_scale=c)
    coef, intercept = solve_ridge(system, 0.1)
    reference = Ridge(alpha=0.1).fit(Z[:, :4] * c, Y, sample_weight=s)
    assert close(coef, reference.coef_.T)
    assert close(intercept, reference.intercept_)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), counts=st.lists(st.integers(0, 3), min_size=2, max_size=30))
def test_weights_equal_replication_of_rows(seed, counts):
    if not any(counts):
        counts = [1, *counts[1:]]
    Z, Y, _ = rows(seed, len(counts), 5, 2)
    s = np.array(counts, dtype=float)
    weighted = ridge_system(gram(Z, Y, s), 2, fit_intercept=True)
    Z_rep, Y_rep = np.repeat(Z, counts, axis=0), np.repeat(Y, counts, axis=0)
    replicated = ridge_system(gram(Z_rep, Y_rep, np.ones(len(Z_rep))), 2, fit_intercept=True)
    # alpha is 1e-2 of the uncentred norm, so centring's rounding is amplified a hundredfold at most.
    alpha = 1e-2 * float(np.linalg.norm(Z_rep, 2)) ** 2
    for a, b in zip(solve_ridge(weighted, alpha), solve_ridge(replicated, alpha), strict=True):
        assert np.linalg.norm(a - b) <= PARITY * (1 + np.linalg.norm(b))


def test_constant_targets_give_the_constant():
    Z, Y, s = rows(2, 50, 6, 2)
    Y[:] = [7.0, -3.0]
    coef, intercept = solve_ridge(ridge_system(gram(Z, Y, s), 2, fit_intercept=True), 1.0)
    # B is rounding of sums of 50 products below 30.
    np.testing.assert_allclose(coef, 0, atol=1e-10)
    np.testing.assert_allclose(intercept, [7, -3], rtol=1e-10)


def indefinite_system():
    G = np.diag([1.0, -1e-6])
    return RidgeSystem(G, np.ones((2, 1)), np.zeros(2), np.zeros(1), 5.0, np.ones(1), True)


@pytest.mark.parametrize("solve", [solve_ridge, posterior_factor])
def test_alpha_below_rounding_is_explained(solve):
    with pytest.raises(InputError, match=r"alpha=1e-09 is below the rounding noise.*float64"):
        solve(indefinite_system(), 1e-9)


def test_system_is_not_changed():
    system = ridge_system(gram(*rows(3, 30, 4, 1)), 1, fit_intercept=True)
    before = system.G.copy()
    solve_ridge(system, 1.0)
    posterior_factor(system, 1.0)
    np.testing.assert_array_equal(system.G, before)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(("n", "D"), [(60, 8), (60, 1), (60, 2), (12, 20)])
def test_posterior_equals_the_dense_formula(n, D, fit_intercept):
    Z, Y, s = rows(4, n, D, 2)
    system = ridge_system(gram(Z, Y, s), 2, fit_intercept=fit_intercept)
    alpha = 0.3
    factor = posterior_factor(system, alpha)
    Zc = Z - np.average(Z, axis=0, weights=s) * fit_intercept
    inverse = np.linalg.inv((Zc * s[:, None]).T @ Zc + alpha * np.eye(D))
    hat_trace = np.trace((Zc * s[:, None]).T @ Zc @ inverse) + fit_intercept
    fit = Ridge(alpha=alpha, fit_intercept=fit_intercept).fit(Z, Y, sample_weight=s)
    noise = s @ (Y - fit.predict(Z).reshape(n, 2)) ** 2 / (s.sum() - hat_trace)
    new = np.random.default_rng(5).standard_normal((7, D))
    new_c = new - np.average(Z, axis=0, weights=s) * fit_intercept
    spread = np.einsum("ij,jk,ik->i", new_c, inverse, new_c) + fit_intercept / s.sum()
    assert factor.effective_dimension == pytest.approx(hat_trace, rel=1e-10)
    np.testing.assert_allclose(factor.noise, noise, rtol=1e-8)
    np.testing.assert_allclose(factor.std(new), np.sqrt(np.outer(spread, noise)), rtol=1e-8)


def test_posterior_without_freedom_is_refused():
    Z, Y, s = rows(6, 30, 5, 1)
    system = ridge_system(gram(Z, Y, s / s.sum()), 1, fit_intercept=True)
    with pytest.raises(InputError, match="weights sum to 1"):
        posterior_factor(system, 1e-3)
