"""Cross-validation, GCV and the choice of alpha against explicit fits on rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from distrff.errors import InputError
from distrff.solvers.ridge import (
    GramProblem,
    above_noise,
    choose_alpha,
    default_alphas,
    fold_errors,
    gcv_errors,
    noise_floor,
)


def gram(Z, Y, s):
    T = np.column_stack([Z, np.ones(len(Z)), Y]) * np.sqrt(s)[:, None]
    return T.T @ T


def rows(seed, n, D, k):
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, D)) + rng.uniform(-0.5, 0.5, D)
    Y = Z @ rng.standard_normal((D, k)) + 0.5 * rng.standard_normal((n, k)) + 2
    return Z, Y, rng.uniform(0.1, 2, n)


def cv_errors(A_total, A_fold, alphas, problem):
    """Return the errors of the first size, and the fold's weight."""
    errors, weight = fold_errors(A_total, [A_fold[None]], 0, [alphas] * len(problem.sizes), problem)
    return errors[0], weight


def explicit_cv(Z, Y, s, fold, alphas, fit_intercept):
    k = Y.shape[1]
    errors = np.zeros((fold.max() + 1, len(alphas), k))
    for f in range(fold.max() + 1):
        out = fold == f
        for i, alpha in enumerate(alphas):
            model = Ridge(alpha=alpha, fit_intercept=fit_intercept, solver="svd")
            model.fit(Z[~out], Y[~out], sample_weight=s[~out])
            errors[f, i] = s[out] @ (Y[out] - model.predict(Z[out]).reshape(-1, k)) ** 2
    return errors


@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(12, 60),
    D=st.integers(1, 12),
    k=st.integers(1, 2),
    fit_intercept=st.booleans(),
)
def test_cv_equals_explicit_folds(seed, n, D, k, fit_intercept):
    Z, Y, s = rows(seed, n, D, k)
    fold = np.arange(n) % 4
    A_total = gram(Z, Y, s)
    # Condition of every complement at most 1e3 + 1: the norm of A bounds that of its parts.
    alphas = np.array([1.0, 1e-1, 1e-3]) * np.linalg.norm(Z * np.sqrt(s)[:, None], 2) ** 2
    expected = explicit_cv(Z, Y, s, fold, alphas, fit_intercept)
    size = np.array([s[fold == f] @ Y[fold == f] ** 2 for f in range(4)])[:, None, :]
    for f in range(4):
        A_fold = gram(Z[fold == f], Y[fold == f], s[fold == f])
        errors, weight = cv_errors(A_total, A_fold, alphas, GramProblem(n, k, fit_intercept, (D,), False))
        assert errors.shape == (3, k)
        assert weight == pytest.approx(s[fold == f].sum())
        # The quadratic form cancels against the targets' squares, which therefore scale the tolerance.
        assert np.all(np.abs(errors - expected[f]) <= 1e-8 * (expected[f] + size[f]))


@pytest.mark.parametrize("size", [1, 3, 8])
def test_nested_cv_equals_explicit_folds_on_scaled_leading_features(size):
    n, D, k = 50, 8, 2
    Z, Y, s = rows(0, n, D, k)
    c = np.sqrt(D / size)
    fold = np.arange(n) % 3
    alphas = np.array([0.1, 10.0])
    expected = explicit_cv(Z[:, :size] * c, Y, s, fold, alphas, True)
    for f in range(3):
        part = gram(Z[fold == f], Y[fold == f], s[fold == f])
        errors, _ = cv_errors(gram(Z, Y, s), part, alphas, GramProblem(n, k, True, (size, D), True))
        np.testing.assert_allclose(errors, expected[f], rtol=1e-8)


def test_cv_of_an_empty_fold_weighs_nothing_and_of_all_rows_is_refused():
    A = gram(*rows(1, 20, 3, 1))
    problem = GramProblem(20, 1, True, (3,), False)
    errors, weight = cv_errors(A, np.zeros_like(A), np.ones(1), problem)
    assert weight == 0
    assert errors == 0
    with pytest.raises(InputError, match="fewer folds"):
        cv_errors(A, A, np.ones(1), problem)


def test_grams_are_not_changed():
    Z, Y, s = rows(2, 20, 4, 1)
    A, A_fold = gram(Z, Y, s), gram(Z[:5], Y[:5], s[:5])
    copies = A.copy(), A_fold.copy()
    problem = GramProblem(20, 1, True, (2, 4), True, np.ones(1))
    fold_errors(A, [A_fold[None]], 0, [np.ones(1)] * 2, problem)
    gcv_errors(A, 2, np.ones(1), problem)
    np.testing.assert_array_equal(A, copies[0])
    np.testing.assert_array_equal(A_fold, copies[1])


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(("n", "D"), [(40, 6), (40, 1), (15, 25)])
def test_gcv_equals_the_hat_matrix(n, D, fit_intercept):
    Z, Y, s = rows(3, n, D, 2)
    alphas = np.array([0.5, 5.0, 500.0])
    problem = GramProblem(n, 2, fit_intercept, (D,), False)
    got, dimensions = gcv_errors(gram(Z, Y, s), D, alphas, problem)
    for i, alpha in enumerate(alphas):
        # Row r of H: what each target value adds to prediction r. The last column of M is the intercept.
        M = np.column_stack([Z, np.ones(n)]) if fit_intercept else Z
        penalty = np.diag([alpha] * D + [0.0] * fit_intercept)
        H = M @ np.linalg.solve((M * s[:, None]).T @ M + penalty, (M * s[:, None]).T)
        expected = (s @ (Y - H @ Y) ** 2 / s.sum()) / (1 - np.trace(H) / n) ** 2
        np.testing.assert_allclose(got[i], expected, rtol=1e-8)
        assert dimensions[i] == pytest.approx(np.trace(H), rel=1e-8)


def test_gcv_of_an_interpolating_machine_is_nan():
    Z, Y, s = rows(4, 8, 20, 1)
    problem = GramProblem(8, 1, True, (20,), False)
    values, _ = gcv_errors(gram(Z, Y, s), 20, np.array([1e-9, 1.0]), problem)
    assert np.isnan(values[0, 0])
    assert np.isfinite(values[1, 0])


def test_choice_pools_folds_by_weight_and_averages_targets():
    errors = np.array([[[3.0, 1.0], [2.0, 2.0]], [[10.0, 10.0], [0.0, 4.0]]])
    choice = choose_alpha(errors, np.array([1.0, 3.0]), alphas=np.array([0.1, 1.0]))
    np.testing.assert_allclose(choice.scores, [24 / 2 / 4, 8 / 2 / 4])
    assert (choice.index, choice.alpha, choice.score) == (1, 1.0, 1.0)


@pytest.mark.parametrize("alphas", [[0.1, 1.0, 10.0, 5.0], [10.0, 5.0, 1.0, 0.1]])
def test_equal_scores_go_to_the_largest_alpha(alphas):
    alphas = np.array(alphas)
    errors = np.where(alphas > 8, 2.0, 1.0)[None, :, None]
    assert choose_alpha(errors, np.ones(1), alphas=alphas).alpha == 5.0


def test_nan_in_one_fold_excludes_an_alpha():
    errors = np.array([[[np.nan], [2.0], [3.0]], [[0.0], [2.0], [3.0]]])
    choice = choose_alpha(errors, np.ones(2), alphas=np.array([0.1, 1.0, 10.0]))
    assert choice.alpha == 1.0
    assert np.isnan(choice.scores[0])
    with pytest.raises(InputError, match="larger alphas"):
        choose_alpha(errors[:, :1], np.ones(2), alphas=np.array([0.1]))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_choice_depends_on_the_grid_not_on_its_order(seed):
    rng = np.random.default_rng(seed)
    alphas, errors = np.geomspace(1e-3, 1, 6), rng.integers(0, 3, (2, 6, 2)).astype(float)
    order = rng.permutation(6)
    first = choose_alpha(errors, np.ones(2), alphas=alphas)
    assert choose_alpha(errors[:, order], np.ones(2), alphas=alphas[order]).alpha == first.alpha


def test_default_grid():
    alphas, dropped = default_alphas(1e6, 2.0, floor=0.0)
    assert len(alphas) == 25
    assert dropped == 0
    np.testing.assert_allclose(alphas[[0, -1]], [2e-3, 2e6])
    np.testing.assert_allclose(np.diff(np.log(alphas)), np.log(1e9) / 24)
    cut, dropped = default_alphas(1e6, 2.0, floor=1.0)
    np.testing.assert_array_equal(cut, alphas[dropped:])
    assert cut[0] >= 1.0 > alphas[dropped - 1]


def test_noise_floor():
    size = dict(tile_rows=8192, n_features=2048, at_zero=1.0)
    single = noise_floor(1e6, 10**6, dtype=np.dtype("float32"), **size)
    # Design: 10·2⁻²⁴·√(n·T/D)·k(0).
    assert single == pytest.approx(10 * 2.0**-24 * np.sqrt(1e6 * 4))
    double = noise_floor(2e6, 10**6, dtype=np.dtype("float64"), **size)
    assert double == pytest.approx(2 * single * 2.0**-29)


def test_noise_floor_covers_the_error_of_float32_tiles():
    rng = np.random.default_rng(5)
    n, D, T = 4096, 128, 1024
    X = rng.standard_normal((n, 4))
    phase = X @ rng.standard_normal((4, D // 2)) / 2
    Z = np.concatenate([np.cos(phase), np.sin(phase)], axis=1) / np.sqrt(D // 2)
    Z32 = Z.astype(np.float32)
    A32 = sum((Z32[i : i + T].T @ Z32[i : i + T]).astype(np.float64) for i in range(0, n, T))
    error = np.linalg.norm(A32 - Z32.astype(np.float64).T @ Z32.astype(np.float64), 2)
    floor = noise_floor(n, n, tile_rows=T, n_features=D, at_zero=1.0, dtype=np.dtype("float32"))
    assert error <= floor


def test_grid_below_the_floor_is_refused():
    kept, dropped = above_noise(np.array([1.0, 1e-9, 0.5]), 0.5)
    np.testing.assert_array_equal(kept, [1.0, 0.5])
    assert dropped == 1
    with pytest.raises(InputError, match="float64"):
        above_noise(np.array([1e-9]), 0.5)
