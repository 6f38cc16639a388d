"""The band path against eigendecompositions of the same matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigh

from distrff.solvers.band import BandRidge

EPS = np.finfo(np.float64).eps


def eigh_solutions(G, B, alphas):
    values, Q = eigh(G)
    return np.array([Q @ ((Q.T @ B) / (values + alpha)[:, None]) for alpha in alphas])


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    D=st.integers(1, 40),
    n=st.integers(1, 60),
    k=st.integers(1, 3),
    ratios=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=5),
)
def test_agrees_with_eigh(seed, D, n, k, ratios):
    rng = np.random.default_rng(seed)
    Z, B = rng.standard_normal((n, D)), rng.standard_normal((D, k))
    G = Z.T @ Z
    largest = np.linalg.norm(G, 2)
    alphas = np.array(ratios) * largest
    got = BandRidge(G).solve(B, alphas)
    assert got.shape == (len(alphas), D, k)
    # Both are backward stable: each solves for a matrix off by some D·eps·largest (Golub and Van Loan, 5.1.5
    # for a product of D reflections), and ‖δw‖ ≤ ‖δG‖·‖w‖/alpha with ‖w‖ ≤ ‖B‖/alpha.
    expected = eigh_solutions(G, B, alphas)
    for i, alpha in enumerate(alphas):
        tolerance = 30 * max(D, 5) * EPS * (1 + largest / alpha)
        error = np.linalg.norm(got[i] - expected[i], axis=0)
        assert np.all(error <= tolerance * np.linalg.norm(B, axis=0) / alpha)


def test_agrees_with_eigh_to_twelve_digits():
    rng = np.random.default_rng(0)
    Z, B = rng.standard_normal((600, 200)), rng.standard_normal((200, 2))
    G = Z.T @ Z
    alphas = np.geomspace(10, 1e3, 7)
    expected = eigh_solutions(G, B, alphas)
    # Condition at most 1.5e3 / 1e2 = 15 (the smallest eigenvalue of G is near 600·(1 − 1/√3)² = 107);
    # √D·eps·15 = 5e-14.
    assert np.linalg.norm(BandRidge(G).solve(B, alphas) - expected) <= 1e-12 * np.linalg.norm(expected)


@pytest.mark.parametrize("D", [64, 65, 66, 130, 600])
def test_panels_and_strips(D, rng):
    Z, B = rng.standard_normal((2 * D, D)), rng.standard_normal((D, 2))
    Z[:, : D // 2] = 0.0  # whose reflections do nothing
    G, alphas = Z.T @ Z, np.array([1.0, 100.0])
    path, expected = BandRidge(G), eigh_solutions(G, B, alphas)
    # As in the first test, with the largest eigenvalue below 2·D·(1 + 1/√2)² = 6·D and ‖w‖ ≤ ‖B‖/alpha.
    for w, reference, alpha in zip(path.solve(B, alphas), expected, alphas, strict=True):
        tolerance = 30 * D * EPS * (1 + 6 * D / alpha)
        assert np.linalg.norm(w - reference) <= tolerance * np.linalg.norm(B) / alpha
    np.testing.assert_allclose(path.eigenvalues(), np.linalg.eigvalsh(G), atol=D * EPS * 6 * D)


def test_spectrum_and_effective_dimension():
    rng = np.random.default_rng(1)
    Z = rng.standard_normal((10, 15))
    G = Z.T @ Z
    path = BandRidge(G)
    values = np.linalg.eigvalsh(G)
    np.testing.assert_allclose(path.eigenvalues(), values, atol=15 * EPS * values[-1])
    alphas = np.array([1e-3, 1.0, 100.0])
    expected = [np.trace(np.linalg.solve(G + a * np.eye(15), G)) for a in alphas]
    # An eigenvalue of rounding size, D·eps·largest, adds at most that over alpha: 15·15·eps·60/1e-3.
    np.testing.assert_allclose(path.effective_dimension(alphas), expected, atol=1e-9)


@pytest.mark.parametrize("order", ["C", "F"])
def test_input_is_kept_unless_given_away(order):
    G = np.array(np.diag([3.0, 2.0, 1.0]) + 0.1, order=order)
    before = G.copy()
    BandRidge(G)
    np.testing.assert_array_equal(G, before)
    G = np.asfortranarray(G)
    assert np.shares_memory(G, BandRidge(G, overwrite_G=True)._reduced)


def test_solving_twice_gives_the_same():
    G = np.array([[2.0, 1, 0.5], [1, 3, 0.2], [0.5, 0.2, 1]])
    path = BandRidge(G)
    B = np.array([[1.0], [2], [3]])
    first = path.solve(B, np.array([0.1]))
    np.testing.assert_array_equal(path.solve(B, np.array([0.1])), first)
    np.testing.assert_array_equal(B[:, 0], [1, 2, 3])


def test_indefinite_shift_gives_nan_and_leaves_its_neighbours_alone():
    rng = np.random.default_rng(2)
    Q = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    G = (Q * np.array([-1e-3, 0.5, 1, 2, 3, 4])) @ Q.T
    B = rng.standard_normal((6, 2))
    alphas = np.array([1.0, 1e-6, 0.1])
    got = BandRidge(G).solve(B, alphas)
    assert np.all(np.isnan(got[1]))
    # Condition at most 5/0.099.
    np.testing.assert_allclose(got[[0, 2]], eigh_solutions(G, B, alphas[[0, 2]]), rtol=0, atol=1e-11)
