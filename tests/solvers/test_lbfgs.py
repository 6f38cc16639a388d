"""Preconditioned L-BFGS on rows in memory: certified gaps, the rounded hinge, Hessians."""

from dataclasses import replace

import numpy as np
import pytest

from distrff.solvers.lbfgs import Hessian, HessianAt, Preconditioner, lbfgs, solve_smooth, solve_smoothed
from distrff.solvers.losses import Hinge, Laplace, Logistic, Probit, SquaredHinge
from distrff.solvers.objective import Certificate, in_lockstep
from distrff.solvers.ridge import ridge_system
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
def test_the_gap_is_closed_in_few_sweeps(loss, C, fit_intercept):
    """What the preconditioner is for: a condition number of 10⁴ costs nothing."""
    assert Problem().solve(loss, C, fit_intercept, 1e-8)[1].gap <= 1e-6
    _, certificate, n_evaluations = Problem(2).solve(loss, 10 * C, fit_intercept, 1e-3)
    assert certificate.gap <= 1e-3
    assert n_evaluations <= 25


def test_it_ends_where_rounding_ends_it():
    at, certificate, n_evaluations = Problem(3).solve(Logistic(), 1.0, True, 0.0)
    assert n_evaluations < 200
    assert certificate.gap <= 1e-7
    assert np.linalg.norm(at.gradient) <= 1e-4


# The rounded hinge, stage by stage, and Hessians


class Stages:
    def __init__(self, n=4000, D=20, C=0.1, noise=0.5, curvature=0.5, loss=None):
        rng = np.random.default_rng(0)
        self.loss = Logistic() if loss is None else loss
        self.Z, self.C = rng.standard_normal((n, D)), C
        f = self.Z[:, 0] + curvature * np.square(self.Z[:, 1]) - 0.4
        self.y = np.where(f + noise * rng.standard_normal(n) > 0, 1.0, -1.0)
        self.system = ridge_system(gram(self.Z, self.y), 1, fit_intercept=True)
        self.best, self.epsilons, self.points_before_hessians = Certificate(), [], []

    def respond(self, points):
        if isinstance(points[0], HessianAt):
            return {0: self.hessian(points[0].at)}
        at = self.evaluate(points[0].x, points[0].epsilon)
        if points[0].next_epsilon is not None:
            at = replace(
                at, next=(points[0].next_epsilon, self.evaluate(points[0].x, points[0].next_epsilon))
            )
        self.epsilons.append(points[0].epsilon)
        return {0: at}

    def evaluate(self, x, epsilon):
        loss = Hinge() if epsilon else self.loss
        at = evaluation(self.C, self.Z, self.y, None, x, loss, loss.rounded(epsilon))
        self.best = self.best.improved(at.primal, at.dual)
        return at

    def hessian(self, at):
        self.points_before_hessians.append(len(self.epsilons))
        h = self.loss.second_derivative(self.Z @ at.x[:-1] + at.x[-1], self.y)
        system = ridge_system(gram(self.Z, self.y, h), 1, fit_intercept=True)
        return Hessian(Preconditioner.of(system, self.C).apply, self.is_light)

    def solve(self, solver, aim, **options):
        return in_lockstep({0: self.solver_of(solver, aim, **options)}, self.respond)[0]

    def solver_of(self, solver, aim, **options):
        def preconditioner(h):
            return Preconditioner.of(self.system, max(h, 1e-9)).apply

        self.is_light = options.pop("is_light", None)
        if self.is_light is not None:
            options["hessian_after"] = 9
        return solver(
            np.zeros(self.Z.shape[1] + 1), preconditioner, lambda at: self.best.gap <= aim, **options
        )


def test_epsilons_shrink_until_the_gap_is_closed():
    problem, ahead = Stages(), Stages()
    problem.solve(solve_smoothed, 1e-3, tol=1e-3, min_curvature=1e-4)
    assert problem.best.gap <= 1e-3
    assert len(problem.epsilons) <= 80
    steps = np.unique(problem.epsilons)[::-1]
    assert steps[0] == 0.3
    ratios = steps[1:] / steps[:-1]
    assert ((ratios >= 0.1 - 1e-12) & (ratios <= 0.3 + 1e-12)).all()
    # Looking ahead saves the first sweep of each epsilon, though epsilons depend on the responses before.
    ahead.solve(solve_smoothed, 1e-3, tol=1e-3, min_curvature=1e-4, looks_ahead=True)
    assert ahead.best.gap <= 1e-3
    assert len(ahead.epsilons) < len(problem.epsilons)


def test_the_hessian_ends_what_the_gram_makes_slow():
    """Where a line tells the labels apart but for a few, only the losses of rows next to it are curved."""
    gram_alone, with_hessian = (Stages(C=100.0, noise=0.02, curvature=0.0) for _ in range(2))
    gram_alone.solve(solve_smooth, 1e-9)
    with_hessian.solve(solve_smooth, 1e-9, is_light=False)
    assert with_hessian.best.gap <= 1e-9
    assert 1 <= len(with_hessian.points_before_hessians) <= 3  # though ten are allowed
    assert len(with_hessian.epsilons) < len(gram_alone.epsilons)
