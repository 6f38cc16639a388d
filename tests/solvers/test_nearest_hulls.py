"""Nearest points of hulls: what proves them, other solvers, and rows that are hardly separable, or not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.svm import SVC

from distrff.solvers.hard_margin import nearest_points

UNIT = 2.0**-53


def separable(rng, r, D, least=0.1):
    """Rows on both sides of a plane through −0.3 times its normal; no margin is below `least`."""
    Z, normal = rng.standard_normal((r, D)), rng.standard_normal(D)
    normal /= np.linalg.norm(normal)
    f = Z @ normal - 0.3
    y = np.where(f > 0, 1.0, -1.0)
    y[:2] = [1.0, -1.0]
    return Z + np.outer(y * np.maximum(least, y * f) - f, normal), y


def with_constant(Z, fit_intercept):
    """Rows whose plane goes through 0 if there is no intercept."""
    return Z if fit_intercept else np.column_stack([Z, np.full(len(Z), -0.3)])


def assert_proves_itself(found, Z, y, fit_intercept, gap):
    """Feasible weights bound every margin, and the plane has a margin that is as large, but for the gap."""
    r, largest = len(y), np.linalg.norm(Z, axis=1).max()
    assert (found.a >= 0).all()
    assert abs(found.a.sum() - 1) <= r * UNIT
    if fit_intercept:
        assert abs(found.a @ y) <= r * UNIT
    else:
        assert found.b == 0
    # Both ways to add up r weighted rows are off by at most r units of the largest.
    np.testing.assert_allclose(found.w, Z.T @ (found.a * y), rtol=0, atol=2 * r * UNIT * largest)
    margins = y * (Z @ found.w + found.b)
    rounding = 4 * (Z.shape[1] + 2) * UNIT * largest * (found.bound + abs(found.b) / largest)
    assert abs(margins.min() - found.least) <= rounding
    assert found.least >= (1 - gap) * found.bound**2 - rounding


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(("r", "D"), [(5, 2), (40, 3), (100, 10), (30, 100), (300, 60), (200, 200)])
@pytest.mark.parametrize("seed", range(4))
def test_the_answer_proves_itself(seed, r, D, fit_intercept):
    Z, y = separable(np.random.default_rng([seed, r, D]), r, D)
    Z = with_constant(Z, fit_intercept)
    found = nearest_points(Z, y, fit_intercept=fit_intercept, tol=1e-9)
    assert_proves_itself(found, Z, y, fit_intercept, 1e-9)
    scaled = nearest_points(2.0**40 * Z, y, fit_intercept=fit_intercept, tol=1e-9)
    np.testing.assert_array_equal(scaled.a, found.a)
    assert scaled.b == 4.0**40 * found.b


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_as_good_as_a_general_solver(seed, fit_intercept):
    Z, y = separable(np.random.default_rng(seed), 25, 4)
    Z = with_constant(Z, fit_intercept)
    found = nearest_points(Z, y, fit_intercept=fit_intercept, tol=1e-10)
    G = y[:, None] * np.column_stack([Z, np.ones(25) if fit_intercept else np.zeros(25)])
    D = Z.shape[1]
    reference = minimize(
        lambda x: (0.5 * x[:D] @ x[:D], np.append(x[:D], 0.0)),
        np.append(found.w, found.b) / found.least + 0.1,
        jac=True,
        constraints={"type": "ineq", "fun": lambda x: G @ x - 1, "jac": lambda x: G},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    assert 0.5 / found.bound**2 == pytest.approx(reference.fun, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("r", "D"), [(60, 5), (200, 20), (40, 80)])
def test_the_machine_of_scikit_learn(seed, r, D):
    """Its dual is solved to a violation of tol in margins of 1, which moves w·w by 2·tol relatively.

    It keeps kernels in float32, which holds those of features in eighths exactly.
    """
    Z, y = separable(np.random.default_rng([seed, r]), r, D, least=0.5)
    Z = np.rint(8 * Z) / 8
    found = nearest_points(Z, y, fit_intercept=True, tol=1e-10)
    svc = SVC(C=1e10, kernel="linear", tol=1e-8).fit(Z, y)
    assert 1 / found.bound == pytest.approx(np.linalg.norm(svc.coef_), rel=1e-6)
    np.testing.assert_allclose(found.w / found.least, svc.coef_[0], atol=1e-5 / found.bound)
    assert found.b / found.least == pytest.approx(svc.intercept_[0], abs=1e-4 / found.bound)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("h", [1e-3, 1e-4, 1e-5])
@pytest.mark.parametrize(("r", "D"), [(40, 3), (300, 20), (400, 100)])
def test_separable_by_a_hair(r, D, h, fit_intercept):
    """Rows on two parallel planes at a distance of 2h; all of them, or nearly, have positive weight."""
    rng = np.random.default_rng(r)
    Z, normal = rng.standard_normal((r, D)), rng.standard_normal(D)
    normal /= np.linalg.norm(normal)
    y = np.resize([1.0, -1.0], r)
    Z += np.outer(h * y - Z @ normal, normal)
    found = nearest_points(Z, y, fit_intercept=fit_intercept, tol=1e-10)
    assert found.bound >= h * (1 - 1e-9)
    # w is a sum of rows of norm about √D that cancel down to h, and w·w is what the gap is relative to.
    assert found.gap <= 1e-10 + 64 * UNIT * D / h**2
    if r > 10 * D and fit_intercept:
        assert found.bound == pytest.approx(h, rel=1e-6)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(("r", "D"), [(40, 3), (100, 10), (400, 100), (2000, 50)])
@pytest.mark.parametrize("kind", ["random labels", "one wrong", "twins"])
def test_hulls_that_meet(kind, r, D, fit_intercept):
    rng = np.random.default_rng([r, D])
    Z, y = separable(rng, r, D)
    if kind == "random labels":
        y = rng.permutation(np.resize([1.0, -1.0], r))
        Z = rng.standard_normal((r, D))
    elif kind == "one wrong":
        centre = 0.5 * (Z[y > 0][:D].mean(axis=0) + Z[y > 0][D : 2 * D].mean(axis=0))
        Z, y = np.vstack([Z, centre]), np.append(y, -1.0)
    else:
        Z[1], y[1] = Z[0], -y[0]
    Z = with_constant(Z, fit_intercept)
    largest = np.linalg.norm(Z, axis=1).max()
    found = nearest_points(Z, y, fit_intercept=fit_intercept, tol=1e-6, negligible=1e-6 * largest)
    assert found.bound <= 1e-6 * largest
    assert (found.a >= 0).all()


def test_no_more_than_two_rows():
    Z = np.array([[3.0, 0.0], [0.0, 4.0]])
    found = nearest_points(Z, np.array([1.0, -1.0]), fit_intercept=True, tol=1e-12)
    assert found.bound == pytest.approx(2.5)
    np.testing.assert_allclose(found.a, 0.5)
    lone = nearest_points(Z[:1], np.array([-1.0]), fit_intercept=False, tol=1e-12)
    np.testing.assert_allclose(lone.w, -Z[0])
    assert lone.bound == pytest.approx(3)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_rows_that_repeat(fit_intercept):
    Z = np.repeat([[1.0, 2.0], [-1.0, -1.0]], 30, axis=0)
    y = np.repeat([1.0, -1.0], 30)
    found = nearest_points(Z, y, fit_intercept=fit_intercept, tol=1e-12)
    assert_proves_itself(found, Z, y, fit_intercept, 1e-12)
    few = nearest_points(Z[29:31], y[29:31], fit_intercept=fit_intercept, tol=1e-12)
    assert found.bound == pytest.approx(few.bound, rel=1e-12)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_features_of_zeros(fit_intercept):
    found = nearest_points(np.zeros((4, 3)), np.array([1.0, -1, 1, -1]), fit_intercept=fit_intercept, tol=0.1)
    assert found.bound == 0
    assert found.gap == 1


def test_any_start_ends_at_the_same_plane(rng):
    Z, y = separable(rng, 200, 10)
    cold = nearest_points(Z, y, fit_intercept=True, tol=1e-10)
    for start in (cold.a, np.eye(200)[3], 1e3 * rng.standard_normal(200)):
        warm = nearest_points(Z, y, start, fit_intercept=True, tol=1e-10)
        # ½w·w is 1-strongly convex, so its relative gap bounds the squared relative distance to the least w.
        assert np.linalg.norm(warm.w - cold.w) <= 2 * np.sqrt(2 * 1e-10) * cold.bound


def test_a_common_offset_costs_no_digits(rng):
    """Entries near 1024 are rounded by 2⁻⁴³, which moves each margin by at most √D times that."""
    Z, y = separable(rng, 200, 10)
    near, far = (nearest_points(rows, y, fit_intercept=True, tol=1e-10) for rows in (Z, Z + 1024))
    assert far.gap <= 1e-10
    assert far.bound == pytest.approx(near.bound, rel=1e-10, abs=np.sqrt(10) * 2.0**-42)


@pytest.mark.parametrize("seed", range(30))
def test_a_start_that_is_nearly_right(seed):
    """The answer for some of the rows, a hair from separable, is no place to be stuck at."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((200, 3)) + 10
    f = Z @ rng.standard_normal(3)
    y = np.where(f > np.median(f), 1.0, -1.0)
    largest = np.linalg.norm(Z, axis=1).max()
    options = dict(fit_intercept=True, tol=1e-6, negligible=1e-6 * largest)
    some = f.argsort()[70:130]
    start = np.zeros(200)
    start[some[::2]] = nearest_points(Z[some[::2]], y[some[::2]], **options).a
    found = nearest_points(Z, y, start, **options)
    assert found.gap <= 1e-6 or found.bound <= 1e-6 * largest
