"""Ridge from Grams and from moments, against the same quantities computed from the rows; the band path."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigh

from distrff.errors import InputError
from distrff.preprocessing.folds import HashFolds
from distrff.solvers.posterior import posterior_factor
from distrff.solvers.ridge import (
    BandRidge,
    FoldTerms,
    GramProblem,
    RidgeSystem,
    Rotation,
    TridiagonalRidge,
    above_noise,
    fold_errors,
    gcv_errors,
    held_out_error,
    noise_floor,
    ridge_moments,
    ridge_system,
    row_grams,
    solution_without,
    solve_ridge,
    total_gram,
)
from tests.support.solvers import gram

EPS = np.finfo(np.float64).eps


def regression_rows(seed, n, D, k):
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, D)) + rng.uniform(-0.5, 0.5, D)
    Y = Z @ rng.standard_normal((D, k)) + 0.5 * rng.standard_normal((n, k)) + 2
    return Z, Y, rng.uniform(0.1, 2, n)


def rows_of(fold, n_folds):
    return [np.flatnonzero(fold == number) for number in range(n_folds)]


def terms_of(n_folds):
    folds = HashFolds(n_folds)
    return [
        FoldTerms.of(train, test, folds.total) for train, test in zip(folds.train, folds.test, strict=True)
    ]


@pytest.mark.parametrize("rescaled", [True, False])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_few_rows_in_rotated_features_have_the_models_of_their_own(rng, fit_intercept, rescaled):
    n, D, k, alphas = 36, 64, 2, np.array([1e-2, 1.0, 1e2])
    Z, Y = (rng.standard_normal((n, D)) + 0.5) / np.sqrt(D), rng.standard_normal((n, k))
    Z[7] = Z[3]
    s, fold = rng.integers(0, 4, n).astype(float), rng.permutation(np.repeat(np.arange(3), (4, 16, 16)))
    offset = None if fit_intercept else rng.standard_normal(k)
    problem = GramProblem(n, k, fit_intercept, (8, 64), rescaled, offset)
    rotation = Rotation.of(Z)
    pairs = [([row_grams(columns, Y, s, rows_of(fold, 3))]) for columns in (Z, rotation.rotated)]
    given, rotated = ((total_gram(parts, np.ones(3), problem), parts) for parts in pairs)
    # A solution is off by about n·u times the condition number of G + alpha·I, of a matrix of trace Σs‖z‖².
    rtol = 10 * n * 1.1e-16 * (np.trace(given[0]) / alphas[0] + 1)
    for fold in terms_of(3):
        expected, found = (fold_errors(*one, fold, problem, 64, alphas) for one in (given, rotated))
        assert np.allclose(found.errors, expected.errors, rtol=rtol)
        for alpha in alphas:
            one, other = (
                solution_without(*one, fold, np.array([alpha]), problem) for one in (given, rotated)
            )
            coef = rotation.features(other.coef)
            assert np.linalg.norm(coef - one.coef) <= rtol * np.linalg.norm(one.coef)
            assert np.allclose(other.intercept, one.intercept, rtol=rtol, atol=rtol)


def test_rows_without_weight_or_finite_products_are_refused(rng):
    Z, Y, fold = rng.standard_normal((6, 8)), rng.standard_normal((6, 1)), np.repeat([0, 1], 3)
    problem, s = GramProblem(6, 1, True, (8,), False), np.array([1.0, 1, 1, 0, 0, 0])
    parts = [row_grams(Rotation.of(Z).rotated, Y, s, rows_of(fold, 2))]
    with pytest.raises(InputError, match="the total weight 0"):
        fold_errors(total_gram(parts, np.ones(2), problem), parts, terms_of(2)[0], problem, 8, np.ones(1))
    with np.errstate(invalid="ignore"), pytest.raises(InputError, match="is not finite"):
        total_gram([row_grams(Rotation.of(Z * np.inf).rotated, Y, s, rows_of(fold, 2))], np.ones(2), problem)


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


@pytest.mark.parametrize("solve", [solve_ridge, posterior_factor])
def test_alpha_below_rounding_is_explained(solve):
    G = np.diag([1.0, -1e-6])
    indefinite = RidgeSystem(G, np.ones((2, 1)), np.zeros(2), np.zeros(1), 5.0, np.ones(1), True)
    with pytest.raises(InputError, match=r"alpha=1e-09 is below the rounding noise.*float64"):
        solve(indefinite, 1e-9)


def test_what_no_system_is_made_of_is_refused():
    Z, Y, s = regression_rows(0, 9, 3, 1)
    for n_features in (0, 4):
        with pytest.raises(InputError, match="3 features"):
            ridge_system(gram(Z, Y, s), 1, fit_intercept=True, n_features=n_features)
    with pytest.raises(InputError, match="fewer folds"):
        ridge_system(np.zeros((4, 4)), 1, fit_intercept=True)
    with pytest.raises(InputError, match="weights sum to 1"):
        posterior_factor(ridge_system(gram(Z, Y, s / s.sum()), 1, fit_intercept=True), 1e-3)
    assert not ridge_moments(
        np.array([[1.0, np.inf]]), np.ones((1, 1)), np.ones((1, 1)), np.ones(1)
    ).is_finite


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(("n", "D"), [(40, 6), (40, 1), (15, 25)])
def test_gcv_equals_the_hat_matrix(n, D, fit_intercept):
    Z, Y, s = regression_rows(3, n, D, 2)
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


def test_gcv_of_an_interpolating_model_is_nan():
    Z, Y, s = regression_rows(4, 8, 20, 1)
    problem = GramProblem(8, 1, True, (20,), False)
    values, _ = gcv_errors(gram(Z, Y, s), 20, np.array([1e-9, 1.0]), problem)
    assert np.isnan(values[0, 0])
    assert np.isfinite(values[1, 0])


def test_noise_floor_and_what_is_below_it():
    size = dict(tile_rows=8192, n_features=2048, at_zero=1.0)
    single = noise_floor(1e6, 10**6, dtype=np.dtype("float32"), **size)
    # Design: 10·2⁻²⁴·√(n·T/D)·k(0).
    assert single == pytest.approx(10 * 2.0**-24 * np.sqrt(1e6 * 4))
    double = noise_floor(2e6, 10**6, dtype=np.dtype("float64"), **size)
    assert double == pytest.approx(2 * single * 2.0**-29)
    kept, dropped = above_noise(np.array([1.0, 1e-9, 0.5]), 0.5)
    np.testing.assert_array_equal(kept, [1.0, 0.5])
    assert dropped == 1
    with pytest.raises(InputError, match="float64"):
        above_noise(np.array([1e-9]), 0.5)


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


# The band path against eigendecompositions of the same matrix


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
    is_tridiagonal=st.booleans(),
)
def test_agrees_with_eigh(seed, D, n, k, ratios, is_tridiagonal):
    rng = np.random.default_rng(seed)
    Z, B = rng.standard_normal((n, D)), rng.standard_normal((D, k))
    G = Z.T @ Z
    largest = np.linalg.norm(G, 2)
    alphas = np.array(ratios) * largest
    got = (TridiagonalRidge if D >= 3 and is_tridiagonal else BandRidge)(G.copy()).solve(B, alphas)
    assert got.shape == (len(alphas), D, k)
    # Both are backward stable: each solves for a matrix off by some D·eps·largest (Golub and Van Loan, 5.1.5
    # for a product of D reflections), and ‖δw‖ ≤ ‖δG‖·‖w‖/alpha with ‖w‖ ≤ ‖B‖/alpha.
    expected = eigh_solutions(G, B, alphas)
    for i, alpha in enumerate(alphas):
        tolerance = 30 * max(D, 5) * EPS * (1 + largest / alpha)
        error = np.linalg.norm(got[i] - expected[i], axis=0)
        assert np.all(error <= tolerance * np.linalg.norm(B, axis=0) / alpha)


PATHS = pytest.mark.parametrize("reduced", [BandRidge, TridiagonalRidge])


@PATHS
def test_indefinite_shift_gives_nan_and_leaves_its_neighbours_alone(reduced):
    rng = np.random.default_rng(2)
    Q = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    G = (Q * np.array([-1e-3, 0.5, 1, 2, 3, 4])) @ Q.T
    B = rng.standard_normal((6, 2))
    alphas = np.array([1.0, 1e-6, 0.1])
    got = reduced(G.copy()).solve(B, alphas)
    assert np.all(np.isnan(got[1]))
    # Condition at most 5/0.099.
    np.testing.assert_allclose(got[[0, 2]], eigh_solutions(G, B, alphas[[0, 2]]), rtol=0, atol=1e-11)
