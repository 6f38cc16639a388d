"""The hinge with a linear part, exactly: against a general convex solver, and its lower bound."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, minimize
from sklearn.svm import SVC

from distrff.solvers.active_set import ActiveSetModel, first_multipliers, minimise


def model_of(rng, n=60, D=5, C=2.0, *, fit_intercept=True, linear=True):
    Z = rng.standard_normal((n, D))
    y = np.where(Z[:, 0] + 0.4 * rng.standard_normal(n) > 0.2, 1.0, -1.0)
    y[:2] = 1.0, -1.0
    A = np.column_stack([Z, np.ones(n)]) * y[:, None]
    size = D + fit_intercept
    upper = C * rng.uniform(0, 2, n)
    slope = 0.3 * rng.standard_normal(size) if linear else np.zeros(size)
    if fit_intercept:  # within what the rows can balance
        slope[-1] = 0.5 * upper @ y if linear else 0.0
    return ActiveSetModel(A[:, :size], upper, slope, 3.0 if linear else 0.0, fit_intercept)


def exact(model):
    """The dual, a quadratic program, by SLSQP."""
    P, n = model.penalised, len(model.upper)

    def negative(alpha):
        v = P * (model.slope - model.A.T @ alpha)
        return -alpha.sum() + 0.5 * v @ v, -1 - model.A @ v

    constraints = []
    if model.fit_intercept:
        constraints = [LinearConstraint(model.A[:, -1], model.slope[-1], model.slope[-1])]
    found = minimize(
        negative,
        model.upper / 2,
        jac=True,
        bounds=[(0, u) for u in model.upper],
        constraints=constraints,
        method="SLSQP",
        options={"maxiter": 2000, "ftol": 1e-14},
    )
    assert len(found.x) == n
    return model.constant - found.fun


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("C", [1e-2, 1.0, 100.0])
def test_it_is_the_minimum(rng, C, fit_intercept, linear):
    model = model_of(rng, C=C, fit_intercept=fit_intercept, linear=linear)
    size = 5 + fit_intercept
    found = minimise(model, np.zeros(size), np.zeros(60), width=0.3, tol=1e-9 * C)
    assert found.value == model.value(found.x)
    # One ulp of sums of 60 terms aside, the value is within the gap of the minimum.
    scale = abs(found.value) + C
    assert -1e-12 * scale <= found.value - found.bound <= 1e-8 * scale
    assert found.value == pytest.approx(exact(model), abs=1e-6 * scale)


@pytest.mark.parametrize(("seed", "linear"), [(6, False), (89, True)])
def test_the_multiplier_of_a_row_of_little_weight_is_found(seed, linear):
    """It is all that is wrong after some rounds, and moves little in each."""
    model = model_of(np.random.default_rng([seed, 10_000, True, linear]), C=100.0, linear=linear)
    found = minimise(model, np.zeros(6), np.zeros(60), width=0.3, tol=1e-7)
    assert found.value - found.bound <= 1e-8 * (abs(found.value) + 100)


def test_it_is_the_support_vector_machine(rng):
    Z = rng.standard_normal((300, 40))
    y = np.where(Z[:, 0] ** 2 + Z[:, 1] > 0.7, 1.0, -1.0)
    A = np.column_stack([Z, np.ones(300)]) * y[:, None]
    model = ActiveSetModel(A, np.full(300, 3.0), np.zeros(41), 0.0, True)
    found = minimise(model, np.zeros(41), np.zeros(300), width=0.3, tol=1e-7)
    reference = SVC(C=3.0, kernel="linear", tol=1e-7).fit(Z, y)
    x = np.append(reference.coef_[0], reference.intercept_)
    # libsvm keeps its kernel in float32.
    assert found.value == pytest.approx(model.value(x), rel=5e-6)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_any_multipliers_bound_any_value(rng, fit_intercept):
    model = model_of(rng, fit_intercept=fit_intercept)
    points = rng.standard_normal((20, 5 + fit_intercept))
    least = min(model.value(x) for x in points)
    for _ in range(20):
        alpha = rng.uniform(0, 1, 60) * model.upper
        assert model.bound(alpha) <= least
    assert model.bound(model.upper * 0) <= least


def test_rows_that_cannot_balance_the_slope_bound_nothing():
    model = ActiveSetModel(np.ones((1, 2)), np.array([1.0]), np.array([0.0, 5.0]), 0.0, True)
    assert model.bound(np.zeros(1)) == -np.inf


def test_first_multipliers_bound_better_than_sides_alone(rng):
    model = model_of(rng)
    x = minimise(model, np.zeros(6), np.zeros(60), width=0.3, tol=1e-2).x
    alpha = first_multipliers(model, x)
    assert ((alpha >= 0) & (alpha <= model.upper)).all()
    by_side = np.where(model.A @ x < 1, model.upper, 0.0)
    assert model.bound(by_side) <= model.bound(alpha) + 1e-9 * abs(model.value(x))
    assert model.bound(alpha) <= model.value(x)


def test_a_large_C_takes_the_penalty_and_no_more(rng):
    """The Hessian of few rows, times C/width, has rounding of more than 1."""
    model = model_of(rng, n=12, D=30, C=1e30, linear=False)
    found = minimise(model, np.zeros(31), np.zeros(12), width=1.0, tol=1e27)
    assert np.isfinite(found.x).all()
    assert found.value <= model.value(np.zeros(31))
