"""The marginal likelihood: the value of the definition, and the gradient of the value."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from distrff.features.relevance import MarginalLikelihood
from distrff.kernels.stationary import Cauchy, Exponential, Gaussian, Laplacian, Matern

KERNELS = [
    Gaussian(), Laplacian(), Cauchy(), Exponential(), Matern(nu=0.3), Matern(nu=1.0), Matern(nu=1.3),
    Matern(nu=1.5), Matern(nu=2.5), Matern(nu=40.0),
]  # fmt: skip


def problem(rng, n=30, d=3, k=2):
    X = rng.standard_normal((n, d))
    Y = np.column_stack([np.sin((j + 1) * X[:, 0]) for j in range(k)]) + 0.3 * rng.standard_normal((n, k))
    return X, Y, rng.uniform(0.5, 2.0, n), rng.uniform(-0.7, 0.7, d + 1)


@pytest.mark.parametrize("kernel", [Gaussian(), Laplacian()], ids=repr)
def test_it_is_the_density_of_the_rows_at_the_best_amplitude(rng, kernel):
    X, Y, s, point = problem(rng)
    n, k = Y.shape
    C = kernel.set_params(length_scale=tuple(np.exp(point[:-1])))(X) + np.exp(point[-1]) * np.diag(1 / s)
    a = np.trace(Y.T @ np.linalg.solve(C, Y)) / (n * k)
    log_p = [
        sum(multivariate_normal(np.zeros(n), c * C).logpdf(column) for column in Y.T)
        for c in (a, 0.97 * a, 1.03 * a)
    ]
    assert log_p[0] == max(log_p)
    constant = 0.5 * (1 + np.log(2 * np.pi))
    value = MarginalLikelihood(kernel, X, Y, s).value(point)
    # The jitter of 1e-9 changes f by at most 1e-9·tr(C⁻¹)-like terms over C's least eigenvalue, about .25.
    np.testing.assert_allclose(value + constant, -log_p[0] / (n * k), rtol=0, atol=1e-7)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("duplicates", [False, True])
def test_the_gradient_is_that_of_the_value(rng, kernel, duplicates):
    X, Y, s, point = problem(rng)
    if duplicates:
        X[10:15] = X[:5]
    f = MarginalLikelihood(kernel, X, Y, s)
    value, gradient = f.value_and_gradient(point)
    assert value == f.value(point)
    h = 1e-4
    steps = h * np.eye(len(point))
    differences = [(f.value(point + step) - f.value(point - step)) / (2 * h) for step in steps]
    # Central differences are off by h²/6 = 2e-9 times the third derivative by a logarithm, which for
    # terms of the order of 1 is at most in the hundreds, and by 1e-15·cond(C)/h = 1e-9 of rounding.
    np.testing.assert_allclose(gradient, differences, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_the_derivative_by_a_width_of_any_function_of_the_kernel(rng, kernel):
    X, M = rng.standard_normal((12, 4)) + 1e3, rng.standard_normal((12, 12))
    M += M.T
    log_widths = rng.uniform(-0.5, 0.5, 4)

    def at(point):
        return kernel.set_params(length_scale=tuple(np.exp(point)))

    gradient = at(log_widths).width_gradient(X, at(log_widths)(X), M)
    h = 1e-4
    differences = [
        (np.vdot(M, at(log_widths + step)(X)) - np.vdot(M, at(log_widths - step)(X))) / (2 * h)
        for step in h * np.eye(4)
    ]
    # As above; Σ|M| is about 200.
    np.testing.assert_allclose(gradient, differences, rtol=0, atol=1e-5)
