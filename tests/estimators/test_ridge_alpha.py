"""How alpha is chosen, what the choice reports, and where float32 ends."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import distrff as drf
from distrff.errors import PrecisionWarning
from distrff.reductions.base import Folds
from distrff.utils.random import child_seed
from tests.support.fits import fourier, ridge

# At κ ≤ 1e6 the weights are known to about 1e-9 (see test_ridge), and held-out errors likewise.
AGREEMENT = 1e-8
CONDITION = np.logspace(6, 1, 4)


def explicit_errors(Z, Y, s, fold, alphas, fit_intercept):
    """Held-out weighted sums of squares, averaged over targets: (n_alphas, n_folds), and fold weights."""
    errors = np.empty((len(alphas), fold.max() + 1))
    for k in range(errors.shape[1]):
        train, test = fold != k, fold == k
        for i, alpha in enumerate(alphas):
            model = Ridge(alpha=alpha, fit_intercept=fit_intercept, solver="svd")
            model.fit(Z[train], Y[train], s[train])
            errors[i, k] = (s[test] @ (model.predict(Z[test]) - Y[test]) ** 2).mean()
    return errors, np.bincount(fold, s)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("fold_by", ["hash", "contiguous"])
def test_cross_validation_is_explicit_cross_validation(problem, fold_by, fit_intercept):
    X, Y, s = problem.X, problem.Y[:, :2], problem.s
    alphas = s.sum() / CONDITION
    ours = drf.KernelRidge(
        fourier(), "cv", alphas=alphas, cv=4, fold_by=fold_by, fit_intercept=fit_intercept, random_state=3
    ).fit(X, Y, s)
    fold = Folds(4, child_seed(3, "folds"), fold_by, len(X)).of_rows(0, len(X))
    errors, weights = explicit_errors(ours.features_.transform(X), Y, s, fold, alphas, fit_intercept)
    results = ours.cv_results_
    np.testing.assert_array_equal(results["alphas"], alphas)
    np.testing.assert_allclose(results["fold_scores"], errors / weights, rtol=AGREEMENT)
    np.testing.assert_allclose(results["mean_score"], errors.sum(1) / s.sum(), rtol=AGREEMENT)
    best = results["mean_score"].argmin()
    assert ours.alpha_ == alphas[best]
    assert ours.cv_score_ == results["mean_score"][best] == ours.report_["cv_score"]


@pytest.mark.parametrize("alpha", ["cv", "gcv"])
def test_the_model_is_the_one_at_the_chosen_alpha(problem, alpha):
    chosen = ridge(alpha, random_state=0).fit(problem.X, problem.y)
    given = ridge(chosen.alpha_, random_state=0).fit(problem.X, problem.y)
    # The Gram is summed by folds or not: rounding apart, at κ = Σs/alpha.
    tolerance = 10 * np.finfo(float).eps * len(problem.X) / chosen.alpha_ * np.linalg.norm(given.coef_)
    np.testing.assert_allclose(chosen.coef_, given.coef_, rtol=0, atol=tolerance)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_generalised_cross_validation(problem, fit_intercept):
    X, y, s = problem.X, problem.y + 2, problem.s
    alphas = s.sum() / CONDITION
    # So many features are at most a twentieth of the rows.
    ours = drf.KernelRidge(fourier(len(X) // 40 * 2), "gcv", alphas=alphas, fit_intercept=fit_intercept).fit(
        X, y, s
    )
    Z = ours.features_.transform(X)
    if fit_intercept:
        Z, y = Z - np.average(Z, axis=0, weights=s), y - np.average(y, weights=s)
    G = (Z.T * s) @ Z
    expected = []
    for alpha in alphas:
        inverse = np.linalg.inv(G + alpha * np.eye(len(G)))
        residual = y - Z @ (inverse @ (Z.T @ (s * y)))
        freedom = 1 - (np.trace(G @ inverse) + fit_intercept) / len(y)
        expected.append(s @ residual**2 / s.sum() / freedom**2)
    np.testing.assert_allclose(ours.cv_results_["mean_score"], expected, rtol=AGREEMENT)
    assert ours.alpha_ == alphas[np.argmin(expected)]


@pytest.mark.parametrize("sampling", ["iid", "orthogonal", "qmc", "fastfood"])
@pytest.mark.parametrize("alpha", ["cv", "gcv"])
def test_learning_curve_is_that_of_smaller_models(problem, alpha, sampling):
    # 128 features are less than a twentieth of the rows, so that alpha="gcv" has one criterion for all.
    X, y = np.tile(problem.X, (3, 1)), np.tile(problem.y, 3)
    alphas = len(X) / CONDITION

    def fit(n_components):
        features = fourier(n_components, sampling=sampling)
        return drf.KernelRidge(features, alpha, alphas=alphas, random_state=1).fit(X, y)

    curve = fit(128).report_["learning_curve"]
    assert [size for size, _, _ in curve] == [16, 32, 64, 128]
    for size, score, chosen in curve:
        model = fit(size)
        assert score == pytest.approx(model.cv_score_, rel=AGREEMENT)
        assert chosen == model.alpha_


def test_learning_curve_at_a_given_alpha(problem):
    curve = drf.KernelRidge(fourier(256), 1.0).fit(problem.X, problem.y).report_["learning_curve"]
    assert curve and curve[0][0] == 16
    for size, score, alpha in curve:
        smaller = drf.KernelRidge(fourier(size), "gcv", alphas=[1.0]).fit(problem.X, problem.y)
        assert (score, alpha) == (pytest.approx(smaller.cv_score_, rel=AGREEMENT), 1.0)


def test_the_default_grid(problem):
    model = ridge("gcv").fit(problem.X, problem.y, problem.s)
    expected = problem.s.sum() * np.geomspace(1e-9, 1, 25)
    np.testing.assert_allclose(model.cv_results_["alphas"], expected)


# float32 ------------------------------------------------------------------------------------


def test_grid_is_cut_at_the_noise_floor(problem):
    X = problem.X.astype(np.float32)
    model = ridge("cv", random_state=0).fit(X, problem.y)
    report, alphas = model.report_, model.cv_results_["alphas"]
    assert report["dtype"] == "float32"
    assert alphas.min() >= report["noise_floor"] > alphas.min() / 10
    assert (
        f"alphas below the rounding noise of float32 products were left out: {25 - len(alphas)}"
        in report["notes"]
    )
    below = ridge("cv", alphas=[1e-7, 1e-6], random_state=0).fit(X, problem.y)
    assert below.report_["dtype"] == "float64"
    assert list(below.cv_results_["alphas"]) == [1e-7, 1e-6]


def test_nested_sizes_below_their_noise_floor_are_left_out_of_the_curve(problem):
    X = problem.X.astype(np.float32)
    whole = ridge("cv", random_state=0).fit(X, problem.y)
    just_above = 1.01 * whole.report_["noise_floor"]
    model = ridge("cv", alphas=[just_above], random_state=0).fit(X, problem.y)
    assert model.report_["dtype"] == "float32"
    assert [size for size, *_ in model.report_["learning_curve"]] == [model.report_["n_components"]]


def test_an_alpha_in_the_noise_is_solved_in_float64(problem):
    X = problem.X.astype(np.float32)
    small = ridge(alpha=1e-5).fit(X, problem.y)
    assert small.report_["dtype"] == "float64"
    assert any("float64 was used" in note for note in small.report_["notes"])
    asked = ridge(alpha=1e-5, dtype="float64").fit(X, problem.y)
    np.testing.assert_array_equal(small.coef_, asked.coef_)
    large = ridge(alpha=1.0).fit(X, problem.y)
    assert large.report_["dtype"] == "float32" and not large.report_["notes"]
    with pytest.warns(PrecisionWarning, match="float64 was used") as caught:
        ridge(alpha=1e-5, dtype="float32").fit(X, problem.y)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("f4", "float32"),
        ("i1", "float32"),
        ("i2", "float32"),
        ("?", "float32"),
        ("i4", "float64"),
        ("f8", "float64"),
    ],
)
def test_automatic_dtype(problem, dtype, expected):
    model = ridge().fit((problem.X * 10).astype(dtype), problem.y)
    assert model.report_["dtype"] == expected


def test_a_large_offset_of_the_target_costs_nothing_in_float32(problem):
    """y + 1e6 gives the weights of y, in float32.

    The shifted targets agree to 1e6·u64, so at worst they round to neighbouring float32 numbers: the vector
    ZᵀY moves by a few u32·√(n·ΣY²·k(0)) at most, and the weights by that over alpha. Without the shift the
    targets themselves would be off by 1e6·u32 = 0.06.
    """
    X, y = problem.X.astype(np.float32), problem.y
    alpha = 1e-2 * len(y)
    plain, lifted = (ridge(alpha=alpha).fit(X, y + c) for c in (0.0, 1e6))
    assert plain.report_["dtype"] == lifted.report_["dtype"] == "float32"
    u32 = np.finfo(np.float32).eps / 2
    bound = 8 * u32 * np.sqrt(len(y) * np.sum((y - y.mean()) ** 2)) / alpha
    assert np.linalg.norm(lifted.coef_ - plain.coef_) < bound < 1e-4
    # Predictions add a product of 64 features in float32, of size ‖w‖.
    distance = lifted.predict(X) - 1e6 - plain.predict(X)
    assert np.abs(distance).max() < bound + 64 * u32 * np.linalg.norm(plain.coef_) + 1e6 * np.finfo(float).eps


def test_without_an_intercept_the_offset_is_fitted_as_it_is(problem):
    """The shift of the targets is taken back in the Gram, where it is exact."""
    X, y = problem.X.astype(np.float32), problem.y + 1e3
    alpha = 1e-2 * len(y)
    single, double = (
        ridge(alpha=alpha, fit_intercept=False, dtype=dtype).fit(X, y) for dtype in ("float32", "float64")
    )
    assert single.intercept_ == 0
    # G and ZᵀY are off by a few u32·n relative to n·k(0): the weights by that over alpha.
    u32 = np.finfo(np.float32).eps / 2
    assert np.linalg.norm(single.coef_ - double.coef_) < 16 * u32 * len(y) / alpha * np.linalg.norm(
        double.coef_
    )


def test_phases_too_large_for_float32_are_counted(problem):
    """A phase beyond 2^14 is off by more than 2^-10 in float32; its frequency is counted."""
    X = (problem.X * 2.0**14).astype(np.float32)
    model = ridge(scale="none").fit(X, problem.y)
    (note,) = model.report_["notes"]
    bounds = np.abs(X).max(axis=0) @ np.abs(model.features_.frequencies_)
    n_far = np.sum(bounds > 2.0**14)
    assert n_far > 0 and note.startswith(f"{n_far} frequencies have phases too large for float32")
    assert "use dtype='float64'" in note
    assert not ridge(dtype="float64").fit(X, problem.y).report_["notes"]
    assert not ridge(scale="standard").fit(X, problem.y).report_["notes"]
