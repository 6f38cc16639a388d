"""Moments and held-out errors of Grams against the same quantities computed from the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrff.errors import InputError
from distrff.solvers.ridge import held_out_error, ridge_system
from distrff.solvers.status import Status

EPS = np.finfo(np.float64).eps


def gram(Z, Y, s):
    T = np.column_stack([Z, np.ones(len(Z)), Y]) * np.sqrt(s)[:, None]
    return T.T @ T


def rows(seed, n, D, k):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, D)), rng.standard_normal((n, k)) + 3, rng.uniform(0.1, 2, n)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(("n", "D", "k"), [(30, 5, 2), (30, 1, 1), (3, 2, 3), (4, 9, 1)])
def test_system_has_the_moments_of_the_rows(n, D, k, fit_intercept):
    Z, Y, s = rows(0, n, D, k)
    system = ridge_system(gram(Z, Y, s), k, fit_intercept=fit_intercept)
    if fit_intercept:
        z_mean, y_mean = np.average(Z, axis=0, weights=s), np.average(Y, axis=0, weights=s)
    else:
        z_mean, y_mean = np.zeros(D), np.zeros(k)
    Zc, Yc = Z - z_mean, Y - y_mean
    # Sums of n products of numbers below about 10, then one subtraction of terms of the same size.
    tolerance = dict(rtol=0, atol=n * EPS * 100 * n)
    np.testing.assert_allclose(system.G, (Zc * s[:, None]).T @ Zc, **tolerance)
    np.testing.assert_allclose(system.B, (Zc * s[:, None]).T @ Yc, **tolerance)
    np.testing.assert_allclose(system.yy, s @ Yc**2, **tolerance)
    np.testing.assert_allclose(system.z_mean, z_mean, **tolerance)
    np.testing.assert_allclose(system.y_mean, y_mean, **tolerance)
    np.testing.assert_array_equal(system.G, system.G.T)
    assert system.G.flags.f_contiguous
    assert system.weight == pytest.approx(s.sum(), rel=n * EPS)


def test_leading_block_is_the_system_of_the_scaled_leading_features():
    Z, Y, s = rows(1, 40, 6, 2)
    c = np.sqrt(6 / 4)
    nested = ridge_system(gram(Z, Y, s), 2, fit_intercept=True, n_features=4, feature_scale=c)
    alone = ridge_system(gram(c * Z[:, :4], Y, s), 2, fit_intercept=True)
    for name in ("G", "B", "z_mean", "y_mean", "yy"):
        np.testing.assert_allclose(getattr(nested, name), getattr(alone, name), rtol=0, atol=1e4 * 40 * EPS)


def test_gram_is_not_changed():
    Z, Y, s = rows(2, 10, 3, 1)
    A = gram(Z, Y, s)
    before = A.copy()
    ridge_system(A, 1, fit_intercept=True, feature_scale=2.0)
    held_out_error(A, np.ones((1, 3, 1)), np.ones((1, 1)), feature_scale=2.0)
    np.testing.assert_array_equal(A, before)


@pytest.mark.parametrize("n_features", [0, 4])
def test_impossible_sizes_are_refused(n_features):
    A = gram(*rows(0, 9, 3, 1))
    with pytest.raises(InputError, match="3 features"):
        ridge_system(A, 1, fit_intercept=True, n_features=n_features)


def test_rows_without_weight_are_refused():
    with pytest.raises(InputError, match="fewer folds"):
        ridge_system(np.zeros((4, 4)), 1, fit_intercept=True)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 20),
    D=st.integers(1, 8),
    k=st.integers(1, 3),
    m=st.integers(1, 4),
    scale=st.sampled_from([1.0, 1.5]),
)
def test_held_out_error_is_the_sum_over_rows(seed, n, D, k, m, scale):
    Z, Y, s = rows(seed, n, D, k)
    rng = np.random.default_rng(seed)
    size = 1 + seed % D
    coef, intercept = rng.standard_normal((m, size, k)), rng.standard_normal((m, k))
    A = gram(Z, Y, s)
    got = held_out_error(A, coef, intercept, feature_scale=scale)
    predicted = np.einsum("nd,mdk->mnk", scale * Z[:, :size], coef) + intercept[:, None]
    expected = np.einsum("n,mnk->mk", s, (Y - predicted) ** 2)
    # |v|ᵀ|A||v| bounds the terms that are added; n + 2p roundings of them.
    V = np.zeros((m, k, len(A)))
    V[:, :, :size] = scale * coef.transpose(0, 2, 1)
    V[:, :, D] = intercept
    V[:, np.arange(k), D + 1 + np.arange(k)] = 1
    T = np.abs(np.column_stack([Z, np.ones(n), Y]))
    bound = np.einsum("n,mkn->mk", s, (np.abs(V) @ T.T) ** 2)
    assert np.all(np.abs(got - expected) <= (n + 2 * len(A)) * 2 * EPS * bound)


def test_held_out_error_is_never_negative_and_keeps_nan():
    rng = np.random.default_rng(3)
    Z = rng.standard_normal((50, 4))
    w = rng.standard_normal((4, 1)) * 1e6
    A = gram(Z, Z @ w, np.ones(50))
    coef = np.repeat(w[None], 20, axis=0) * (1 + EPS * np.arange(20))[:, None, None]
    coef[7] = np.nan
    error = held_out_error(A, coef, np.zeros((20, 1)))
    assert np.isnan(error[7, 0])
    assert np.all(np.delete(error[:, 0], 7) >= 0)


def test_residual_is_the_held_out_error_of_the_same_rows():
    Z, Y, s = rows(4, 30, 5, 2)
    A = gram(Z, Y, s)
    system = ridge_system(A, 2, fit_intercept=True)
    coef = np.linalg.solve(system.G + np.eye(5), system.B)
    expected = held_out_error(A, coef[None], system.intercept(coef)[None])[0]
    np.testing.assert_allclose(system.residual(coef), expected, rtol=1e-12)


def test_status_values_are_sentences_with_a_remedy():
    assert all(len(status.value.split()) > 4 for status in Status)
