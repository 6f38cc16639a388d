"""The metric of SGD's leading eigenvectors against whole matrices."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from distrff.solvers.lbfgs import Preconditioner
from distrff.solvers.ridge import ridge_system
from distrff.solvers.sgd import SpectralMetric
from tests.support.solvers import gram

P, M = 12, 200
CURVATURE, PENALTY = np.array([0.3, 2.0]), np.array([1e-2, 1e-4])


@pytest.fixture
def Z(rng):
    return rng.standard_normal((M, P)) @ np.diag(np.logspace(0, -2, P)) + 0.5


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_all_directions_are_the_preconditioner_of_the_gram(rng, Z, fit_intercept):
    s = rng.uniform(0.5, 2, M)
    system = ridge_system(gram(Z, np.zeros(M), s), 1, fit_intercept=fit_intercept)
    metric = SpectralMetric.of_rows(Z, s, P, fit_intercept=fit_intercept)
    g = rng.standard_normal((P + fit_intercept, 2))
    found = metric.solve(g, CURVATURE, PENALTY)
    for j in range(2):
        # Its objective is the sum: C·Σs = 1/λ times the mean.
        h = CURVATURE[j] / (PENALTY[j] * system.weight)
        expected = Preconditioner.of(system, h).apply(g[:, j] / PENALTY[j])
        np.testing.assert_allclose(found[:, j], expected, rtol=1e-7)
        S = CURVATURE[j] * system.G / system.weight  # the mean leverage is the dimension
        leverage = np.trace(S @ np.linalg.inv(S + PENALTY[j] * np.eye(P))) + fit_intercept
        assert metric.dimension(CURVATURE, PENALTY)[j] == pytest.approx(leverage, rel=1e-8)
    assert metric.spread == 0


@pytest.mark.parametrize("n_rows", [M, 11])
def test_few_directions_leave_one_eigenvalue_for_the_rest(rng, Z, n_rows):
    """From the P × P or from the m × m products, whichever is smaller."""
    metric = SpectralMetric.of_rows(Z[:n_rows], None, 2, fit_intercept=False)
    S = Z[:n_rows].T @ Z[:n_rows] / n_rows
    e, V = np.linalg.eigh(S)
    e, V = e[::-1], V[:, ::-1]
    np.testing.assert_allclose(metric.eigenvalues, e[:2], rtol=1e-8)
    np.testing.assert_allclose([metric.rest, metric.spread], [e[2], e[2:].sum()], rtol=1e-6)
    shown = np.append(e[:2], np.full(P - 2, e[2]))
    g = rng.standard_normal((P, 2))
    for j in range(2):
        expected = V @ ((V.T @ g[:, j]) / (CURVATURE[j] * shown + PENALTY[j]))
        np.testing.assert_allclose(metric.solve(g, CURVATURE, PENALTY)[:, j], expected, rtol=1e-6)


def _one_byte_further(A):
    raw = np.empty(A.nbytes + 1, np.uint8)
    moved = raw[1:].view(A.dtype).reshape(A.shape)
    moved[...] = A
    return moved


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_rows", [60, 11])
def test_sparse_rows_have_the_metric_of_dense_ones(rng, n_rows, fit_intercept):
    """Of more rows than features, and of fewer, whose directions are combinations of rows."""
    Z = rng.standard_normal((n_rows, 40)) * (rng.random((n_rows, 40)) < 0.3)
    s = rng.uniform(0.5, 2, n_rows)
    dense = SpectralMetric.of_rows(Z, s, 2, fit_intercept=fit_intercept)
    sparse = SpectralMetric.of_rows(csr_matrix(Z), s, 2, fit_intercept=fit_intercept)
    for name in ("eigenvalues", "rest", "spread", "unseen", "z_mean"):
        np.testing.assert_allclose(getattr(sparse, name), getattr(dense, name), rtol=1e-9)
    g = rng.standard_normal((40 + fit_intercept, 2))
    expected = dense.solve(g, CURVATURE, PENALTY)
    size = np.abs(expected).max()
    np.testing.assert_allclose(sparse.solve(g, CURVATURE, PENALTY), expected, rtol=1e-7, atol=1e-9 * size)
    there = {name: _one_byte_further(A) for name, A in sparse.arrays().items()}
    received = SpectralMetric.from_arrays(there, fit_intercept=fit_intercept)
    np.testing.assert_array_equal(received.solve(g, CURVATURE, PENALTY), sparse.solve(g, CURVATURE, PENALTY))
