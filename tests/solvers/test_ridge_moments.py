"""What light sweeps sum, against the Gram's own normal equations."""

from __future__ import annotations

import numpy as np
import pytest

from distrff.solvers.ridge import RidgeEquations, ridge_moments, ridge_system


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_equations_are_those_of_the_gram(rng, fit_intercept, weighted):
    Z, Y = rng.standard_normal((200, 5)) + 2, rng.standard_normal((200, 3)) - 1
    s = rng.uniform(0.5, 2, 200) if weighted else None
    w, b = rng.standard_normal((5, 3)), rng.standard_normal(3) * fit_intercept
    E = Y - Z @ w - b
    parts = [
        ridge_moments(Z[i], Y[i], E[i], None if s is None else s[i]) for i in np.array_split(range(200), 3)
    ]
    moments = parts[0] + parts[1] + parts[2]
    assert moments.is_finite
    found = RidgeEquations.of(moments, fit_intercept=fit_intercept)
    T = np.column_stack([Z, np.ones(200), Y])
    system = ridge_system((T.T * (1 if s is None else s)) @ T, 3, fit_intercept=fit_intercept)
    for name in ("B", "z_mean", "y_mean", "yy"):
        np.testing.assert_allclose(getattr(found, name), getattr(system, name), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.G_diagonal, np.diag(system.G), rtol=1e-10)
    np.testing.assert_allclose(found.descent, system.B - system.G @ w, atol=1e-9)
    np.testing.assert_allclose(found.intercept(w), system.intercept(w), rtol=1e-10)
    alpha = np.array([0.1, 1.0, 10.0])
    residual = system.B - system.G @ w - alpha * w
    np.testing.assert_allclose(found.squared_error(w, residual, alpha), system.residual(w), rtol=1e-9)


def test_what_is_not_finite_shows():
    moments = ridge_moments(np.array([[1.0, np.inf]]), np.ones((1, 1)), np.ones((1, 1)), None)
    assert not moments.is_finite
