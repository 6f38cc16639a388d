"""Preconditioned L-BFGS against other solvers, on rows in memory."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from distrff.solvers.lbfgs import Preconditioner, lbfgs
from distrff.solvers.losses import Laplace, Logistic, Probit, SquaredHinge
from distrff.solvers.objective import Certificate
from distrff.solvers.ridge import ridge_system
from distrff.solvers.status import in_lockstep
from tests.support.solvers import evaluation, gram

LOSSES = [Logistic(), Probit(), Laplace(), SquaredHinge()]


class Problem:
    """Two classes that overlap, far from the origin of a badly scaled space."""

    def __init__(self, seed=0, n=400, D=12):
        rng = np.random.default_rng(seed)
        self.Z = rng.standard_normal((n, D)) * np.logspace(0, -2, D) + 0.3
        f = (self.Z - 0.3) @ (rng.standard_normal(D) / np.logspace(0, -2, D)) / 3 + 0.4
        self.y = np.where(f + 0.5 * rng.standard_normal(n) > 0, 1.0, -1.0)
        self.s = rng.uniform(0.5, 2, n)
        self.A = gram(self.Z, self.y, self.s)

    def evaluate(self, loss, C, x, fit_intercept):
        return evaluation(C, self.Z, self.y, self.s, x, loss, fit_intercept=fit_intercept)

    def solve(self, loss, C, fit_intercept, tol):
        """Return the last evaluation, its certificate and the number of evaluations."""
        system = ridge_system(self.A, 1, fit_intercept=fit_intercept)
        best, n_evaluations = Certificate(), 0

        def evaluate(x):
            nonlocal best, n_evaluations
            n_evaluations += 1
            assert n_evaluations < 200
            at = self.evaluate(loss, C, x, fit_intercept)
            best = best.improved(at.primal, at.dual)
            return at

        start = evaluate(np.zeros(self.Z.shape[1] + fit_intercept))
        solver = lbfgs(start, lambda h: Preconditioner.of(system, h).apply, lambda at: best.gap <= tol)
        at = in_lockstep({0: solver}, lambda points: {0: evaluate(points[0])})[0]
        return at, best, n_evaluations


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("C", [1e-4, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_as_good_as_a_general_solver(loss, C, fit_intercept):
    problem = Problem()
    at, certificate, _ = problem.solve(loss, C, fit_intercept, 1e-8)

    def value(x):
        there = problem.evaluate(loss, C, x, fit_intercept)
        return there.value, there.gradient

    reference = minimize(value, at.x, jac=True, method="BFGS", options={"gtol": 1e-10}).fun
    assert at.primal - reference <= 1e-6 * reference
    assert certificate.dual <= reference * (1 + 1e-12)


@pytest.mark.parametrize("C", [1e-2, 1.0])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_as_good_as_scikit_learn(C, fit_intercept):
    problem = Problem(1)
    options = dict(C=C, fit_intercept=fit_intercept, tol=1e-10, max_iter=100_000)
    logistic = LogisticRegression(**options).fit(problem.Z, problem.y, problem.s)
    at, _, _ = problem.solve(Logistic(), C, fit_intercept, 1e-9)
    np.testing.assert_allclose(
        at.primal, problem.evaluate(Logistic(), C, parts(logistic), fit_intercept).primal, rtol=1e-6
    )
    if not fit_intercept:  # its intercept is penalised
        svm = LinearSVC(loss="squared_hinge", dual=False, **options).fit(problem.Z, problem.y, problem.s)
        at, _, _ = problem.solve(SquaredHinge(), C, False, 1e-9)
        np.testing.assert_allclose(
            at.primal, problem.evaluate(SquaredHinge(), C, parts(svm), False).primal, rtol=1e-6
        )


def parts(estimator):
    return (
        np.append(estimator.coef_[0], estimator.intercept_) if estimator.fit_intercept else estimator.coef_[0]
    )


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_few_sweeps(loss):
    """What the preconditioner is for: a condition number of 10⁴ costs nothing."""
    for C in (1e-3, 1.0, 1e3):
        _, certificate, n_evaluations = Problem(2).solve(loss, C, True, 1e-3)
        assert certificate.gap <= 1e-3
        assert n_evaluations <= 25


def test_it_ends_where_rounding_ends_it():
    at, certificate, n_evaluations = Problem(3).solve(Logistic(), 1.0, True, 0.0)
    assert n_evaluations < 200
    assert certificate.gap <= 1e-7
    assert np.linalg.norm(at.gradient) <= 1e-4
