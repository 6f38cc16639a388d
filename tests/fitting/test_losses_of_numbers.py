"""Losses of numbers that no estimator has: all that sweeps and solvers need of one is a class of `losses`."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.optimize import minimize

import distrff as drf
from distrff.fitting.fit import begin, choose, prepare
from distrff.fitting.problem import Penalty, Problem
from distrff.io.arrays import as_dataset
from distrff.solvers.losses import Loss

EPS = np.finfo(float).eps


@dataclass(frozen=True)
class Huber(Loss):
    """r²/2 for |r| ≤ δ, else δ·(|r| − δ/2), of r = y − f."""

    delta: float = 0.5
    curvature: ClassVar[float] = 1.0

    def value(self, f, y):
        a = -self.derivative(f, y)
        return a * (y - f) - a**2 / 2

    def derivative(self, f, y):
        return np.clip(f - y, -self.delta, self.delta)

    def second_derivative(self, f, y):
        return np.where(np.abs(y - f) < self.delta, 1.0, 0.0)

    def conjugate(self, a, y):
        return np.where(np.abs(a) <= self.delta, a**2 / 2 - a * y, np.inf)


@dataclass(frozen=True)
class Quantile(Loss):
    """max(τ·r, (τ − 1)·r), and with ε > 0 the largest a·r − ε·a²/2 over τ − 1 ≤ a ≤ τ."""

    tau: float = 0.8
    epsilon: Any = 0.0

    @property
    def curvature(self):
        return np.inf if np.ndim(self.epsilon) == 0 and self.epsilon == 0 else 1 / self.epsilon

    def rounded(self, epsilon):
        return Quantile(self.tau, epsilon)

    def value(self, f, y):
        a = -self.derivative(f, y)
        return a * (y - f) - self.epsilon * a**2 / 2

    def derivative(self, f, y):
        return -np.clip((y - f) / np.maximum(self.epsilon, 1e-300), self.tau - 1, self.tau)

    def second_derivative(self, f, y):
        a = -self.derivative(f, y)
        return np.where((a > self.tau - 1) & (a < self.tau), 1 / np.maximum(self.epsilon, 1e-300), 0.0)

    def conjugate(self, a, y):
        inside = (a >= self.tau - 1 - EPS) & (a <= self.tau + EPS)
        return np.where(inside, self.epsilon * a**2 / 2 - a * y, np.inf)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (150, 2))
    y = 7 + 3 * np.sin(2 * X[:, 0]) + X[:, 1] + rng.standard_t(2, 150)
    return X, y, rng.integers(0, 4, 150).astype(float)


def solved(rows, loss, *, solver="auto", tol=1e-3, fit_intercept=True, C=2.0):
    """The result of a fit, its features, and the coded targets that losses are of."""
    X, y, s = rows
    problem = Problem(
        features=drf.FourierFeatures(drf.Gaussian(1.5), n_components=16, random_state=0),
        target_kind="numeric",
        seed=0,
        loss=loss,
        penalty=Penalty(np.array([C])),
        fit_intercept=fit_intercept,
        solver=solver,
        tol=tol,
        dtype="float64",
    )
    fit = prepare(begin(as_dataset(X, y, s), problem))
    one, plan = choose(fit, 1, 16)
    result = one.solve(fit, plan)
    return result, fit.features.transform(X), fit.targets.encode(y[:, None])[:, 0]


def objective(result, loss, Z, y, s, C=2.0):
    """Of the model that was found, in coded units; and of any x = [w | b]."""
    w, b = (
        result.coef[:, 0] / result.targets.scale,
        (result.intercept - result.targets.shift) / result.targets.scale,
    )
    if not result.intercept.any():
        b = 0.0

    def at(x):
        f = Z @ x[:16] + x[16:].sum()
        return 0.5 * x[:16] @ x[:16] + C * s @ loss.value(f, y)

    return at(np.append(w, b)), at


def test_a_smooth_loss_of_numbers_ends_at_its_optimum(rows):
    result, Z, y = solved(rows, Huber())
    found, at = objective(result, Huber(), Z, y, rows[2])
    best = minimize(at, np.zeros(17), method="BFGS", options={"gtol": 1e-7}).fun
    assert result.status.is_converged and result.entries["solver"] == "lbfgs"
    assert best * (1 - 1e-9) <= found <= best * (1 + 2e-3)
    assert result.entries["dual"] <= best * (1 + 1e-9)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("tau", [0.5, 0.9])
def test_a_loss_whose_slope_jumps_ends_at_its_optimum(rows, tau, fit_intercept):
    """The reference is its dual: min ½aᵀKa − yᵀa, C·s·(τ − 1) ≤ a ≤ C·s·τ, Σa = 0 with an intercept."""
    loss, s = Quantile(tau), rows[2]
    result, Z, y = solved(rows, loss, fit_intercept=fit_intercept)
    found, _ = objective(result, loss, Z, y, s)
    K, u = Z @ Z.T, 2.0 * s
    balanced = {"type": "eq", "fun": lambda a: a.sum(), "jac": lambda a: np.ones(len(a))}
    reference = minimize(
        lambda a: (0.5 * a @ K @ a - a @ y, K @ a - y),
        np.zeros(len(y)),
        jac=True,
        method="SLSQP",
        bounds=list(zip((tau - 1) * u, tau * u, strict=True)),
        constraints=[balanced] if fit_intercept else [],
        options={"maxiter": 500, "ftol": 1e-10},
    )
    assert result.status.is_converged and result.entries["solver"] == "smoothed"
    assert -reference.fun * (1 - 1e-6) <= found <= -reference.fun * (1 + 2e-3)
    assert result.entries["dual"] <= found


def test_sgd_takes_a_loss_of_numbers(rows):
    result, Z, y = solved(rows, Quantile(0.9), solver="sgd")
    found, _ = objective(result, Quantile(0.9), Z, y, rows[2])
    assert found <= 1.05 * solved(rows, Quantile(0.9))[0].entries["primal"]
