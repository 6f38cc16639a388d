"""The best alpha of each target: that of a fit to it alone, though all targets share their folds' Grams."""

from dataclasses import replace

import numpy as np
import pytest

import distrff as drf
from distrff.errors import InputError, ModelFileError, PenaltyTooSmall
from distrff.fitting import gram
from distrff.fitting.problem import Penalty
from distrff.model.persistence import save_model
from tests.support.fits import fourier, stored

N_TARGETS, N_ROWS = 52, 400


@pytest.fixture(scope="module")
def rows():
    """X, Y with signal-to-noise ratios from .01 to 10, weights; the last two have no signal, and no noise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, 3))
    signal = np.sin(X @ rng.standard_normal((3, N_TARGETS)))
    Y = signal / signal.std(axis=0) * np.sqrt(np.geomspace(0.01, 10, N_TARGETS))
    Y += rng.standard_normal(Y.shape)
    Y[:, -2], Y[:, -1] = 100 * rng.standard_normal(N_ROWS), signal[:, -1]
    return X, Y, rng.uniform(0.5, 2, N_ROWS)


def model(n_components=40, **options):
    options = {"alpha_per_target": True, "cv": 4, "random_state": 0} | options
    return drf.KernelRidge(fourier(n_components, 1.5), **options)


def assert_same_models(ours, others, rtol=1e-6):
    """Coefficients to rounding, which small alphas enlarge."""
    scale = np.abs(others).max(axis=-1, keepdims=True)
    np.testing.assert_allclose(ours / scale, others / scale, rtol=0, atol=rtol)


# More features than targets have full Grams, and of more features than rows these are those of rotated rows.
@pytest.mark.parametrize(
    ("n_components", "options"),
    [
        (40, {}),
        (40, {"fit_intercept": False, "alphas": np.geomspace(1e-3, 1e3, 9)}),
        (40, {"dtype": "float32"}),
        (80, {}),
        (500, {"alphas": np.geomspace(1e-3, 1e3, 9)}),
    ],
    ids=["wide", "no intercept", "float32", "full", "few rows"],
)
def test_each_alpha_is_that_of_a_fit_to_this_target_alone(rows, n_components, options):
    X, Y, s = rows
    Y = Y + 3.0
    ours = model(n_components, **options).fit(X, Y, s)
    assert ours.alpha_.shape == (N_TARGETS,)
    results, scores = ours.cv_results_, []
    m = len(results["alphas"])
    assert results["mean_score"].shape == (m, N_TARGETS)
    assert results["fold_scores"].shape == (m, 4, N_TARGETS)
    is_exact = options.get("dtype") != "float32"
    # Fits of many targets one by one take seconds.
    for j in range(0, N_TARGETS, 1 if n_components == 40 and not options else 5):
        y = Y[:, j]
        alone = model(n_components, **options, alpha_per_target=False).fit(X, y, s)
        if is_exact:
            assert ours.alpha_[j] == alone.alpha_
        # Tiles of one target are longer: float32 products differ by their rounding, as may the choice.
        assert abs(np.log(ours.alpha_[j] / alone.alpha_)) < (1e-12 if is_exact else 3)
        own = {*alone.cv_results_["alphas"]} & {*results["alphas"]}
        at, there = (np.isin(r["alphas"], [*own]) for r in (results, alone.cv_results_))
        rtol = 1e-6 if is_exact else 1e-2
        expected = alone.cv_results_["mean_score"][there]
        tried = np.isfinite(expected)
        np.testing.assert_allclose(results["mean_score"][at, j][tried], expected[tried], rtol=rtol)
        scores.append(alone.cv_score_)
        if is_exact and alone.alpha_ > 1e-6:
            assert_same_models(ours.coef_[j], alone.coef_)
    if len(scores) == N_TARGETS:
        np.testing.assert_allclose(ours.cv_score_, np.mean(scores), rtol=1e-6)


def test_only_targets_whose_best_is_an_end_go_on_beyond_it(rows):
    X, Y = rows[0], rows[1].copy()
    Y[:, -1] = model(alpha=1.0, alpha_per_target=False).fit(X, Y[:, -1]).predict(X)  # exactly in the span
    found = model().fit(X, Y)
    alphas, scores = found.cv_results_["alphas"], found.cv_results_["mean_score"]
    default = N_ROWS * np.geomspace(1e-9, 1, 25)
    below, above = alphas < 0.9 * default[0], alphas > 1.1 * default[-1]
    assert below.any() and above.any()
    tried = np.isfinite(scores)
    assert tried[~below & ~above].all()
    goes_down, goes_up = tried[below].any(axis=0), tried[above].any(axis=0)
    assert goes_down[-1] and np.count_nonzero(goes_down) < N_TARGETS / 2
    assert goes_up[-2] and np.count_nonzero(goes_up) < N_TARGETS / 2
    assert found.alpha_[-1] < default[1] and found.alpha_[-2] >= default[-2]
    # The report and its page have the means over targets, where all have tried an alpha.
    path = np.array(found.report_["mean_score"], dtype=float)
    np.testing.assert_array_equal(np.isnan(path), ~tried.all(axis=1))
    assert "of 52 targets from" in repr(found.report_)
    assert "alpha" in found.report_.to_html()


def test_wide_sums_give_the_models_of_full_ones(rows, monkeypatch):
    X, Y, s = rows
    wide = model().fit(X, Y, s)
    sizes = gram.ridge_size
    monkeypatch.setattr(gram, "ridge_size", lambda *given: replace(sizes(*given), wide=False))
    full = model().fit(X, Y, s)
    np.testing.assert_array_equal(wide.alpha_, full.alpha_)
    assert_same_models(wide.coef_[:-1], full.coef_[:-1], 1e-9)
    np.testing.assert_allclose(wide.cv_results_["mean_score"], full.cv_results_["mean_score"], rtol=1e-7)
    np.testing.assert_allclose(wide.report_["training_r2"], full.report_["training_r2"], atol=1e-9)
    np.testing.assert_allclose(wide.intercept_[:-1], full.intercept_[:-1], rtol=1e-6, atol=1e-9)


def test_models_of_folds_and_deviations_have_the_alphas_of_all_targets(rows, tmp_path):
    X, Y, s = rows
    found = model(cv=3).fit(X, Y, s)
    predicted = drf.cross_val_predict(found, X, Y, sample_weight=s)
    for j in (0, 20, N_TARGETS - 2):
        given = model(cv=3, alpha=found.alpha_[j], alpha_per_target=False)
        alone = drf.cross_val_predict(given, X, Y[:, j], sample_weight=s)
        np.testing.assert_allclose(predicted[:, j], alone, atol=1e-6 * np.abs(alone).max())
    error = s @ np.square(predicted - Y) / s.sum()
    np.testing.assert_allclose(error.mean(), found.cv_score_, rtol=1e-6)
    np.testing.assert_allclose(drf.evaluate(found)["rmse"], np.sqrt(found.cv_score_), rtol=1e-6)
    low, high = found.predict_interval(X)
    inside = ((low <= Y) & (high >= Y)).mean(axis=0)
    assert low.shape == Y.shape and inside.min() > 0.85
    mean, S = found.predict(X, return_std=True)
    again = stored(found, tmp_path, include_std=True)
    np.testing.assert_array_equal(again.predict(X, return_std=True)[1], S)
    n_draws = 200
    draws = again.sample(X[:3], n_draws)
    assert draws.shape == (3, N_TARGETS, n_draws)
    np.testing.assert_allclose(again.sample(X[:3], 2), draws[:, :, :2], rtol=1e-9)
    # A mean of 3 × N_TARGETS means and deviations, whose errors are 1/√n and 1/√2n of a deviation.
    z = (draws.mean(axis=2) - mean[:3]) / S[:3] * np.sqrt(n_draws)
    assert np.abs(z).max() < 6 and np.abs(draws.std(axis=2) / S[:3] - 1).max() < 6 / np.sqrt(2 * n_draws)
    low, high = found.predict_interval(X, 0.9, "deviation")
    assert (((low <= Y) & (high >= Y)).mean(axis=0)).min() > 0.8


def test_sums_of_several_calls_and_grams_are_solved_too(rows):
    X, Y, s = rows
    found = model(scale="none").fit(X, Y, s)
    grown = model(scale="none").partial_fit(X[:300], Y[:300], s[:300]).partial_fit(X[300:], Y[300:], s[300:])
    np.testing.assert_allclose(grown.alpha_, found.alpha_, rtol=1e-12)
    sums = drf.gram(X, fourier(40, 1.5), Y, s, scale="none", cv=4, random_state=0)
    np.testing.assert_allclose(model().fit_gram(sums).alpha_, found.alpha_, rtol=1e-12)


def test_one_target_has_the_alpha_of_all():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((200, 2))
    y = X[:, 0] + rng.standard_normal(200)
    one, shared = (model(alpha_per_target=own).fit(X, y) for own in (True, False))
    assert one.alpha_ == shared.alpha_
    np.testing.assert_array_equal(one.coef_, shared.coef_)
    assert one.cv_results_["mean_score"].shape[1:] == (1,)
    np.testing.assert_allclose(one.predict(X, return_std=True)[1], shared.predict(X, return_std=True)[1])


def test_nan_never_wins_and_of_equal_scores_the_largest_alpha_does():
    errors = np.array([[[2.0, 1, np.nan], [1, 1, 5], [1, np.nan, np.nan]]])
    choice = Penalty(None, search="cv", each_target=True).choose(np.array([1.0, 2, 4]), errors, np.ones(1))
    assert choice.penalty.tolist() == [4.0, 2.0, 2.0]
    assert choice.score == pytest.approx(7 / 3)
    with pytest.raises(InputError, match="gives a usable model"):
        Penalty(None, each_target=True).choose(np.array([1.0]), np.array([[[1.0, np.nan]]]), np.ones(1))


def test_targets_whose_alpha_has_no_factor_take_the_best_of_the_larger_ones(rows, monkeypatch):
    X, Y, _ = rows
    before = model().fit(X, Y)
    least, solutions = before.alpha_.min(), gram.Grams.solutions

    def failing(self, held_out, alpha):
        if alpha.min() == least:
            raise PenaltyTooSmall("not definite")
        return solutions(self, held_out, alpha)

    monkeypatch.setattr(gram.Grams, "solutions", failing)
    after = model().fit(X, Y)
    is_least = before.alpha_ == least
    np.testing.assert_array_equal(after.alpha_[~is_least], before.alpha_[~is_least])
    assert (after.alpha_[is_least] > least).all() and after.cv_score_ > before.cv_score_
    assert any("below the rounding noise" in note for note in after.report_["notes"])


@pytest.mark.parametrize(
    ("features", "solver"),
    [
        (drf.RandomBinningFeatures(drf.Laplacian(1.0), n_grids=20), "cg"),
        (drf.EquispacedFourierFeatures(drf.Gaussian(0.7)), "toeplitz"),
    ],
    ids=["binning", "equispaced"],
)
def test_without_a_gram_each_alpha_is_that_of_a_fit_alone_or_no_worse(rng, features, solver):
    X = rng.uniform(-2, 2, (800, 2))
    Y = np.sin(2 * X @ rng.standard_normal((2, 3))) + np.geomspace(0.1, 5, 3) * rng.standard_normal((800, 3))
    ours = model().set_params(features=features).fit(X, Y)
    assert ours.report_["solver"] == solver and ours.alpha_.shape == (3,)
    scores = ours.cv_results_["mean_score"]
    assert ours.cv_results_["fold_scores"].shape == (len(scores), 4, 3)
    assert ours.cv_score_ == pytest.approx(scores.min(axis=0).mean())
    folds = drf.cross_val_predict(ours, X, Y)
    # Both are of conjugate gradients that end at 1e-2 of their right sides, or 2e-3 of the objective.
    np.testing.assert_allclose(np.square(folds - Y).mean(axis=0), scores.min(axis=0), rtol=0.02)
    for j in range(3):
        alone = model(alpha_per_target=False).set_params(features=features).fit(X, Y[:, j])
        assert scores[:, j].min() <= alone.cv_score_ * 1.02
        if alone.alpha_ == ours.alpha_[j]:
            np.testing.assert_allclose(ours.predict(X)[:, j], alone.predict(X), atol=0.02)


def test_a_target_that_nothing_explains_does_not_walk_the_whole_grid(rng):
    X = rng.uniform(-2, 2, (300, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(300)
    features = drf.RandomBinningFeatures(drf.Laplacian(1.0), n_grids=10)
    alone, beside = (
        model().set_params(features=features).fit(X, Y) for Y in (y[:, None], np.stack([y, 0 * y], axis=1))
    )
    np.testing.assert_array_equal(beside.cv_results_["alphas"], alone.cv_results_["alphas"])
    assert beside.alpha_[0] == np.ravel(alone.alpha_)[0]


def test_posteriors_that_do_not_fit_are_refused(rows, tmp_path):
    X, Y, _ = rows
    found = drf.KernelRidge(fourier(8, 1.5), alpha=[0.1, 1.0]).fit(X, Y[:, :2])
    found.predict(X, return_std=True)
    url = str(tmp_path / "model.zarr")
    for wrong in ([0, 7], [0, 5], [-1, 1], [0], [0, 0], [0, 1, 1], [10**9, 0], [0.5, 1]):
        posterior = replace(found.model_.posterior, part_of=np.array(wrong))
        save_model(replace(found.model_, posterior=posterior), url, overwrite=True)
        with pytest.raises(ModelFileError):
            drf.load_model(url)


def test_the_plan_counts_sums_without_products_of_targets():
    X, Y = np.zeros((2000, 3)), np.zeros((2000, 3000))
    plans = [model(64, alpha_per_target=own).plan(X, Y) for own in (True, False)]
    assert plans[0].worker_peak_bytes < plans[1].worker_peak_bytes / 2
    assert plans[0].flops < plans[1].flops / 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha": 1.0}, "use alpha='cv'"),
        ({"alpha": "gcv"}, "use alpha='cv'"),
        ({"alpha_per_target": 1}, "must be True or False"),
        ({"solver": "cg"}, "needs a number"),
    ],
    ids=["a number", "gcv", "not a bool", "cg"],
)
def test_refusals_say_what_to_do(options, words):
    with pytest.raises(InputError, match=words):
        model().set_params(**options).fit(np.zeros((20, 2)), np.zeros((20, 3)))
