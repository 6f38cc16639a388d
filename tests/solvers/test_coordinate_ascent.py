"""Models of sparse rows against the solver of dense ones and libsvm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.svm import SVC

from distrff.solvers.active_set import ActiveSetModel, ascend, minimise

N, D = 80, 30


def model_of(rng, C, *, fit_intercept, linear=True):
    """Rows of few entries, in a model whose dense minimum is known to be found."""
    Z = rng.standard_normal((N, D)) * (rng.random((N, D)) < 0.2)
    y = np.where(Z.sum(axis=1) + 0.4 * rng.standard_normal(N) > 0.2, 1.0, -1.0)
    y[:2] = 1.0, -1.0
    A = (np.column_stack([Z, np.ones(N)]) * y[:, None])[:, : D + fit_intercept]
    upper = C * rng.uniform(0.5, 2, N)
    slope = 0.3 * rng.standard_normal(D + fit_intercept) if linear else np.zeros(D + fit_intercept)
    if fit_intercept:
        slope[-1] = 0.5 * upper @ y if linear else 0.0
    return ActiveSetModel(A, upper, slope, 3.0 if linear else 0.0, fit_intercept)


def sparse(model):
    return replace(model, A=csr_matrix(model.A))


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("C", [1e-2, 0.3])
def test_it_is_the_minimum(rng, C, fit_intercept, linear):
    model = model_of(rng, C, fit_intercept=fit_intercept, linear=linear)
    size = D + fit_intercept
    tol = 1e-4 * N * C
    found = ascend(sparse(model), np.zeros(size), np.zeros(N), tol=tol)
    exact = minimise(model, np.zeros(size), np.zeros(N), width=0.3, tol=1e-9 * C)
    assert found.value == pytest.approx(model.value(found.x), rel=1e-12)
    assert found.bound == pytest.approx(model.bound(found.alpha), rel=1e-12)
    assert found.value - found.bound <= tol
    rounding = 1e-10 * (abs(exact.value) + C)
    assert exact.bound - rounding <= found.value <= exact.value + tol + rounding
    assert ((found.alpha >= 0) & (found.alpha <= model.upper)).all()


def test_it_is_the_support_vector_machine(rng):
    model = model_of(rng, 0.5, fit_intercept=True, linear=False)
    y = model.label
    reference = SVC(C=0.5, kernel="linear", tol=1e-7)
    reference.fit(model.A[:, :-1] * y[:, None], y, sample_weight=model.upper / 0.5)
    expected = model.value(np.append(reference.coef_[0], reference.intercept_))
    found = ascend(sparse(model), np.zeros(D + 1), np.zeros(N), tol=1e-4 * expected)
    # libsvm keeps its kernel in float32.
    assert expected * (1 - 1e-5) <= found.value <= expected * (1 + 1.1e-4)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_it_goes_on_from_multipliers(rng, fit_intercept):
    """What was found already is kept, and the start is not touched."""
    model = sparse(model_of(rng, 0.1, fit_intercept=fit_intercept))
    size = D + fit_intercept
    first = ascend(model, np.zeros(size), np.zeros(N), tol=1e-3 * N)
    before = first.x.copy(), first.alpha.copy()
    again = ascend(model, first.x, first.alpha, tol=1e-5 * N)
    assert again.value <= first.value
    assert again.bound >= first.bound
    np.testing.assert_array_equal(first.x, before[0])
    np.testing.assert_array_equal(first.alpha, before[1])


def test_rows_without_entries_are_short_for_good(rng):
    model = model_of(rng, 0.1, fit_intercept=False, linear=False)
    model.A[:3] = 0
    found = ascend(sparse(model), np.zeros(D), np.zeros(N), tol=1e-3)
    np.testing.assert_array_equal(found.alpha[:3], model.upper[:3])
    assert found.value >= model.upper[:3].sum()


def test_the_same_rows_give_the_same_bits(rng):
    model = sparse(model_of(rng, 0.1, fit_intercept=True))
    found = [ascend(model, np.zeros(D + 1), np.zeros(N), tol=1e-6) for _ in range(2)]
    np.testing.assert_array_equal(found[0].x, found[1].x)
