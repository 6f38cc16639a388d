"""The hinge with a linear part, exactly: of dense rows by Newton steps, of sparse ones by ascent."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from distrff.solvers.active_set import ActiveSetModel, ascend, minimise


def model_of(rng, Z, f, C, min_weight, *, fit_intercept=True, linear=True):
    """A model of rows whose labels follow f, with noise."""
    n, size = len(Z), Z.shape[1] + fit_intercept
    y = np.where(f + 0.4 * rng.standard_normal(n) > 0.2, 1.0, -1.0)
    y[:2] = 1.0, -1.0
    A = (np.column_stack([Z, np.ones(n)]) * y[:, None])[:, :size]
    upper = C * rng.uniform(min_weight, 2, n)
    slope = 0.3 * rng.standard_normal(size) if linear else np.zeros(size)
    if fit_intercept:  # within what the rows can balance
        slope[-1] = 0.5 * upper @ y if linear else 0.0
    return ActiveSetModel(A, upper, slope, 3.0 if linear else 0.0, fit_intercept)


def dense_model_of(rng, n=60, D=5, C=2.0, **options):
    Z = rng.standard_normal((n, D))
    return model_of(rng, Z, Z[:, 0], C, 0.0, **options)


def sparse_model_of(rng, C, **options):
    """Rows of few entries, in a model whose dense minimum is known to be found."""
    Z = rng.standard_normal((N, D)) * (rng.random((N, D)) < 0.2)
    return model_of(rng, Z, Z.sum(axis=1), C, 0.5, **options)


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("C", [1e-2, 1.0, 100.0])
def test_it_is_the_minimum(rng, C, fit_intercept, linear):
    model = dense_model_of(rng, C=C, fit_intercept=fit_intercept, linear=linear)
    size = 5 + fit_intercept
    found = minimise(model, np.zeros(size), np.zeros(60), epsilon=0.3, tol=1e-9 * C)
    assert found.value == model.value(found.x)
    # One ulp of sums of 60 terms aside, the value is within the gap of the minimum: see the test of bounds.
    scale = abs(found.value) + C
    assert -1e-12 * scale <= found.value - found.bound <= 1e-8 * scale


@pytest.mark.parametrize(("seed", "linear"), [(6, False), (89, True)])
def test_the_multiplier_of_a_row_of_little_weight_is_found(seed, linear):
    """It is all that is wrong after some rounds, and moves little in each."""
    model = dense_model_of(np.random.default_rng([seed, 10_000, True, linear]), C=100.0, linear=linear)
    found = minimise(model, np.zeros(6), np.zeros(60), epsilon=0.3, tol=1e-7)
    assert found.value - found.bound <= 1e-8 * (abs(found.value) + 100)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_any_multipliers_bound_any_value(rng, fit_intercept):
    model = dense_model_of(rng, fit_intercept=fit_intercept)
    points = rng.standard_normal((20, 5 + fit_intercept))
    least = min(model.value(x) for x in points)
    for _ in range(20):
        alpha = rng.uniform(0, 1, 60) * model.upper
        assert model.bound(alpha) <= least
    assert model.bound(model.upper * 0) <= least
    unbalanced = ActiveSetModel(np.ones((1, 2)), np.array([1.0]), np.array([0.0, 5.0]), 0.0, True)
    assert unbalanced.bound(np.zeros(1)) == -np.inf  # its row cannot balance the slope


def test_a_large_C_takes_the_penalty_and_no_more(rng):
    """The Hessian of few rows, times C/ε, has rounding of more than 1."""
    model = dense_model_of(rng, n=12, D=30, C=1e30, linear=False)
    found = minimise(model, np.zeros(31), np.zeros(12), epsilon=1.0, tol=1e27)
    assert np.isfinite(found.x).all()
    assert found.value <= model.value(np.zeros(31))


# Coordinate ascent on sparse rows, against the dense solver and libsvm


N, D = 80, 30


def sparse(model):
    return replace(model, A=csr_matrix(model.A))


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("C", [1e-2, 0.3])
def test_ascent_is_the_minimum(rng, C, fit_intercept, linear):
    model = sparse_model_of(rng, C, fit_intercept=fit_intercept, linear=linear)
    size = D + fit_intercept
    tol = 1e-4 * N * C
    found = ascend(sparse(model), np.zeros(size), np.zeros(N), tol=tol)
    exact = minimise(model, np.zeros(size), np.zeros(N), epsilon=0.3, tol=1e-9 * C)
    assert found.value == pytest.approx(model.value(found.x), rel=1e-12)
    assert found.bound == pytest.approx(model.bound(found.alpha), rel=1e-12)
    assert found.value - found.bound <= tol
    rounding = 1e-10 * (abs(exact.value) + C)
    assert exact.bound - rounding <= found.value <= exact.value + tol + rounding
    assert ((found.alpha >= 0) & (found.alpha <= model.upper)).all()


def test_rows_without_entries_violate_for_good(rng):
    model = sparse_model_of(rng, 0.1, fit_intercept=False, linear=False)
    model.A[:3] = 0
    found = ascend(sparse(model), np.zeros(D), np.zeros(N), tol=1e-3)
    np.testing.assert_array_equal(found.alpha[:3], model.upper[:3])
    assert found.value >= model.upper[:3].sum()
