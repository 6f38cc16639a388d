"""The model itself: what ridge, kernel ridge and the textbook's formulas say it must be."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge as ExactKernelRidge
from sklearn.linear_model import Ridge

import distrff as drf
from tests.support.fits import ridge


def relative_error(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


# The Gram and the factorisation are each off by a few units of roundoff u = 1.1e-16 relative to ‖G‖, so the
# weights are off by a few u·κ: about 1e-9 at κ = 1e6. The intercept moves by at most ‖z̄‖ ≤ √k(0) times that.
AGREEMENT = 1e-8


def alpha_at_condition(condition, weight, at_zero=1.0):
    """The alpha at which κ(G + alpha·I) is at most `condition`, as ‖G‖ ≤ Σs·k(0)."""
    return weight * at_zero / (condition - 1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_equals_ridge_on_its_features(problem, several, fit_intercept, weighted):
    y, s = problem.Y if several else problem.y, problem.s if weighted else None
    alpha = alpha_at_condition(1e6, problem.s.sum() if weighted else len(y))
    ours = ridge(alpha=alpha, fit_intercept=fit_intercept).fit(problem.X, y, s)
    Z = ours.features_.transform(problem.X)
    reference = Ridge(alpha=alpha, fit_intercept=fit_intercept, solver="svd").fit(Z, y, s)
    assert ours.coef_.shape == reference.coef_.shape
    assert np.shape(ours.intercept_) == np.shape(reference.intercept_) or not fit_intercept
    assert relative_error(ours.coef_, reference.coef_) < AGREEMENT
    scale = np.linalg.norm(reference.coef_)
    np.testing.assert_allclose(ours.intercept_, reference.intercept_, rtol=0, atol=AGREEMENT * scale)
    np.testing.assert_allclose(ours.predict(problem.X), reference.predict(Z), rtol=0, atol=AGREEMENT * scale)


def test_an_alpha_for_each_target(problem):
    alpha = alpha_at_condition(1e6, len(problem.X)) * np.array([1.0, 1e3, 10.0])
    ours = ridge(alpha=alpha).fit(problem.X, problem.Y)
    Z = ours.features_.transform(problem.X)
    reference = Ridge(alpha=alpha, solver="svd").fit(Z, problem.Y)
    for found, expected in zip(ours.coef_, reference.coef_, strict=True):
        assert relative_error(found, expected) < AGREEMENT
    np.testing.assert_array_equal(ours.alpha_, alpha)
    np.testing.assert_allclose(ours.rkhs_norm_, np.linalg.norm(reference.coef_, axis=1), rtol=AGREEMENT)


def test_linear_features_are_linear_ridge(problem):
    ours = drf.KernelRidge(drf.LinearFeatures(), alpha=0.5).fit(problem.X, problem.y, problem.s)
    reference = Ridge(alpha=0.5, solver="svd").fit(problem.X, problem.y, problem.s)
    assert relative_error(ours.coef_, reference.coef_) < AGREEMENT
    assert ours.intercept_ == pytest.approx(reference.intercept_, abs=AGREEMENT)


def test_one_column_of_targets_stays_a_column(problem):
    flat, column = (ridge().fit(problem.X, y) for y in (problem.y, problem.y[:, None]))
    assert flat.coef_.shape == (64,) and isinstance(flat.intercept_, float)
    assert column.coef_.shape == (1, 64) and column.intercept_.shape == (1,)
    np.testing.assert_array_equal(column.predict(problem.X)[:, 0], flat.predict(problem.X))


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_weights_are_the_dual_solutions_sum(problem, fit_intercept):
    """w = Σ αᵢ z(xᵢ), with α of the dual problem on the approximate kernel (weighted, centred)."""
    alpha = alpha_at_condition(1e6, problem.s.sum())
    ours = ridge(alpha=alpha, fit_intercept=fit_intercept)
    ours.fit(problem.X, problem.y, problem.s)
    Z, y = ours.features_.transform(problem.X), problem.y
    if fit_intercept:
        Z, y = Z - np.average(Z, axis=0, weights=problem.s), y - np.average(y, weights=problem.s)
    root = np.sqrt(problem.s)
    K = (root[:, None] * Z) @ (root[:, None] * Z).T
    dual = np.linalg.solve(K + alpha * np.eye(len(K)), root * y)
    assert relative_error(ours.coef_, (root * dual) @ Z) < AGREEMENT


def test_predictions_approach_exact_kernel_ridge(rng):
    """The distance to the exact model falls as 1/√D.

    With alpha as large as the kernel's eigenvalues the predictions are nearly linear in the kernel matrix, so
    their mean square distance is c/D·(1 + O(1/D)), here within a tenth. The distance of one draw, relative to
    the mean, has the same spread at every D, which the 64 draws of the smallest map measure; for targets of
    white noise it is about a fifth.
    """
    X, x, Y = (rng.standard_normal(shape) for shape in ((300, 3), (200, 3), (300, 32)))
    alpha = 30.0
    exact = ExactKernelRidge(alpha=alpha, kernel="rbf", gamma=0.5).fit(X, Y).predict(x)

    def distances(n_components, n_draws):
        for seed in rng.integers(0, 2**31, n_draws):
            features = drf.FourierFeatures(drf.Gaussian(1.0), n_components, random_state=int(seed))
            model = drf.KernelRidge(features, alpha=alpha, fit_intercept=False).fit(X, Y)
            yield np.mean((model.predict(x) - exact) ** 2)

    n_draws = {64: 64, 512: 16, 4096: 3}
    found = {D: np.fromiter(distances(D, n), float) for D, n in n_draws.items()}
    spread = found[64].std(ddof=1) / found[64].mean()
    for few, many in ((64, 512), (512, 4096), (64, 4096)):
        fall = np.log(found[few].mean() / found[many].mean())
        error = spread * np.sqrt(1 / n_draws[few] + 1 / n_draws[many])
        assert abs(fall - np.log(many / few)) < 5 * error + 0.1
