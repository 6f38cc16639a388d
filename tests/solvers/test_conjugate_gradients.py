"""Conjugate gradients and their preconditioners against numpy.linalg.solve, on matrices in memory."""

import numpy as np
import pytest
from scipy.linalg import cho_solve

from distrff.solvers.cg import ConjugateGradients, preconditioned, sampled_factor, solution_of_sample
from distrff.solvers.ridge import GramProblem, ridge_system

SIZE = 40


def random_matrix(rng, condition, size=SIZE):
    """A = QΛQᵀ of this condition number and norm 1, its eigenvalues spread evenly over the decades."""
    Q, _ = np.linalg.qr(rng.standard_normal((size, size)))
    return (Q * np.geomspace(1 / condition, 1, size)) @ Q.T


def solve(A, b, M_inverse, tol, x=None, max_products=1000):
    """Return the solver as it ended and the number of products it took."""
    x = np.zeros(len(b)) if x is None else x
    system, n_products = ConjugateGradients(x, b - A @ x, bound=tol * np.linalg.norm(b)), 0
    solver, response = system.solve(), None
    while n_products < max_products:
        try:
            residual = solver.send(response)
        except StopIteration:
            return system, n_products
        v = M_inverse(residual)
        response, n_products = (v, A @ v), n_products + 1
    return system, n_products


def relative_residual(A, x, b):
    return np.linalg.norm(b - A @ x) / np.linalg.norm(b)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["none", "diagonal", "factor"])
@pytest.mark.parametrize("tol", [1e-3, 1e-10])
def test_equals_a_direct_solution(seed, kind, tol):
    rng = np.random.default_rng(seed)
    A, b = random_matrix(rng, 1e3), rng.standard_normal(SIZE)
    if kind == "diagonal":
        scale = np.geomspace(1, 1e3, SIZE)
        A = A * scale * scale[:, None]
    near = A + 0.1 * np.linalg.eigvalsh(A)[0] * random_matrix(rng, 10.0)
    M_inverse = {
        "none": lambda r: r,
        "diagonal": lambda r: r / np.diag(A),
        "factor": lambda r: cho_solve((np.linalg.cholesky(near), True), r),
    }[kind]
    system, _ = solve(A, b, M_inverse, tol)
    assert system.is_converged
    assert relative_residual(A, system.x, b) <= tol
    smallest = np.linalg.eigvalsh(A)[0]
    error = np.linalg.norm(system.x - np.linalg.solve(A, b))
    # The bound of the docstring, and what numpy.linalg.solve itself is off by.
    rounding = SIZE * 2.0**-52 * np.linalg.cond(A) * np.linalg.norm(system.x)
    assert error <= tol * np.linalg.norm(b) / smallest + rounding


@pytest.mark.parametrize("condition", [1e2, 1e6, 1e12])
def test_it_never_claims_what_rounding_hides(condition):
    """The residual that is updated goes on falling where the true one does not; `error` is above both."""
    rng = np.random.default_rng(0)
    A, b = random_matrix(rng, condition), rng.standard_normal(SIZE)
    b = A @ b  # so that the solution is of moderate size
    system, n_products = solve(A, b, lambda r: r / np.diag(A), 1e-16, max_products=2000)
    assert n_products < 2000
    assert not system.is_converged
    assert np.linalg.norm(b - A @ system.x) <= 3 * system.error
    assert system.error <= 1e-13 * np.linalg.norm(b)


@pytest.mark.parametrize("response", [np.nan, np.inf, -1.0, 0.0])
def test_a_product_that_is_none_ends_it(response):
    """Not positive definite, or not finite: no step is taken."""
    b = np.ones(3)
    system = ConjugateGradients(np.zeros(3), b, bound=1e-3)
    solver = system.solve()
    next(solver)
    with pytest.raises(StopIteration):
        solver.send((b, np.full(3, response)))
    assert not system.is_converged
    np.testing.assert_array_equal(system.x, np.zeros(3))


# The factor of a sample


@pytest.fixture(params=[True, False])
def problem(request):
    return GramProblem(900, 2, request.param, (12,), False)


def gram_of(T, s):
    return (T.T * s) @ T


@pytest.fixture
def rows(rng):
    Z = rng.standard_normal((900, 12)) * np.logspace(0, -3, 12) + 0.3
    Y = Z @ rng.standard_normal((12, 2)) + 0.1 * rng.standard_normal((900, 2))
    return np.column_stack([Z, np.ones(900), Y]), rng.uniform(0.2, 2, 900)


def test_the_factor_of_all_rows_is_the_solution(rows, problem):
    T, s = rows
    system = ridge_system(gram_of(T, s), 2, fit_intercept=problem.fit_intercept)
    factor = sampled_factor(gram_of(T, s), 0.5, problem)
    expected = np.linalg.solve(system.G + 0.5 * np.eye(12), system.B)
    coef, intercept = solution_of_sample(factor)
    np.testing.assert_allclose(coef, expected, rtol=1e-9)
    np.testing.assert_allclose(intercept, system.intercept(expected), rtol=1e-9)
    np.testing.assert_allclose(preconditioned(factor, system.B), expected, rtol=1e-9)


def test_the_factor_of_a_sample_stands_for_all_rows(rows, problem):
    """Its condition number is that of a sample of 25 rows a feature, whatever the features' scales."""
    T, s = rows
    A, sample = (ridge_system(gram_of(T[i], s[i]), 2, fit_intercept=problem.fit_intercept).G
                 for i in (slice(None), slice(300)))  # fmt: skip
    ratio = s.sum() / s[:300].sum()
    factor = sampled_factor(ratio * gram_of(T[:300], s[:300]), 1e-6, problem)
    M = factor.L @ factor.L.T
    np.testing.assert_allclose(M, ratio * sample + 1e-6 * np.eye(12), rtol=0, atol=1e-10)
    eigenvalues = np.linalg.eigvals(np.linalg.solve(M, A + 1e-6 * np.eye(12))).real
    # 1 ± 2√(D/n) for a sample of n = 300 rows of 12 features.
    assert 0.4 < eigenvalues.min() < 1 < eigenvalues.max() < 2.5
