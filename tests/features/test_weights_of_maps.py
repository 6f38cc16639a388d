"""Weights of concatenated maps that are chosen by held-out error, from the sums for equal ones."""

import numpy as np
import pytest
from sklearn.base import clone

import distrff as drf
from distrff.errors import InputError
from distrff.features.compose import MAX_WEIGHTINGS, search_weights
from tests.support.fits import fourier

N = 600
# The weights differ by rounding alone, and the solutions by that times the condition number.
AGREEMENT = 1e-6


def groups(n_components=200, **options):
    """A map of the columns 0 to 2, and one of the columns 3 to 5."""
    metrics = np.eye(6)[:3], np.eye(6)[3:]
    maps = [drf.FourierFeatures(drf.Gaussian(1.5, metric=P), n_components) for P in metrics]
    return drf.ConcatenatedFeatures(maps, **({"weights": "cv"} | options))


def of_one_group(rng, n=N, strength=0.0):
    """Rows whose target follows the first group of columns, and the other one by a strength."""
    X = rng.uniform(-2, 2, (n, 6))
    f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + strength * np.sin(2 * X[:, 3]) * X[:, 4]
    return X, f + 0.3 * rng.standard_normal(n)


def ridge(features, alpha="cv", **options):
    return drf.KernelRidge(features, alpha, **({"random_state": 0} | options))


@pytest.fixture(autouse=True)
def _in_this_thread(in_this_thread):
    """Fits are small here."""


def test_a_group_of_noise_gets_a_small_weight_and_others_gain(rng):
    X, y = of_one_group(rng)
    new, truth = of_one_group(rng, 4000)
    equal, model = (ridge(groups(weights=weights)).fit(X, y) for weights in (None, "cv"))
    weights = model.features_.weights_
    assert weights[1] < 0.01 and sum(weights) == pytest.approx(1)
    assert model.model_.specification.weights == weights
    assert model.cv_score_ < 0.97 * equal.cv_score_
    assert model.score(new, truth) > equal.score(new, truth)
    found = model.report_["weights_search"]
    assert found["weights"] == list(weights) and found["n_trials"] <= MAX_WEIGHTINGS
    assert found["score"] == pytest.approx(model.cv_score_)
    assert found["equal_score"] == pytest.approx(equal.cv_score_)
    told = ", ".join(f"{weight:.2g}" for weight in weights)
    assert f"weights of the maps, by held-out error: {told}" in model.report_["notes"]
    assert [name for name, _ in model.report_["phases"]].count("weights of maps") == 1
    assert len(model.report_["sweep_labels"]) == len(equal.report_["sweep_labels"])  # no further pass


def test_one_width_a_column_says_as_well_which_columns_a_map_sees(rng):
    X, y = of_one_group(rng)
    far = 1e6
    kernels = drf.Gaussian([1.5] * 3 + [far] * 3), drf.Gaussian([far] * 3 + [1.5] * 3)
    maps = [drf.FourierFeatures(kernel, 200) for kernel in kernels]
    assert ridge(drf.ConcatenatedFeatures(maps, weights="cv")).fit(X, y).features_.weights_[1] < 0.01


def test_classes_are_told_apart_by_the_group_that_tells_them(rng):
    X, y = of_one_group(rng)
    labels = np.array(["low", "middle", "high"])[np.digitize(y, [-0.7, 0.7])]
    model = drf.KernelRidgeClassifier(groups(), random_state=0).fit(X, labels)
    assert model.features_.weights_[1] < 0.02
    given = clone(model).set_params(features__weights=list(model.features_.weights_)).fit(X, labels)
    assert given.alpha_ == model.alpha_
    np.testing.assert_allclose(given.decision_function(X), model.decision_function(X), atol=AGREEMENT)


CASES = {
    "plain": {},
    "without an intercept": {"fit_intercept": False},
    "groups of rows": {"cv": drf.GroupFolds(n_folds=4)},
    "spans of rows": {"cv": drf.ForwardFolds(n_folds=4)},
    "few rows": {"features": groups(n_components=256)},
    "a line beside": {
        "features": drf.ConcatenatedFeatures(
            [drf.LinearFeatures(), *groups().maps, drf.NystroemFeatures(n_components=20)], weights="cv"
        )
    },
}


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_that_of_the_weights_given_as_found(rng, case):
    X, y = of_one_group(rng, 400, strength=0.5)
    options = {"features": groups(64), "alphas": np.geomspace(1e-3, 1e2, 6)} | CASES[case]
    rows = X, np.column_stack([y, y**2]), rng.uniform(0.5, 2, len(y))
    own = {"groups": rng.integers(0, 12, len(y))} if case == "groups of rows" else {}
    model = ridge(**options).fit(*rows, **own)
    given = clone(model).set_params(features__weights=list(model.features_.weights_)).fit(*rows, **own)
    assert given.alpha_ == model.alpha_
    assert given.features_.weights_ == model.features_.weights_
    np.testing.assert_allclose(given.cv_results_["fold_scores"], model.cv_results_["fold_scores"], rtol=1e-6)
    np.testing.assert_array_equal(given.features_.transform(X), model.features_.transform(X))
    np.testing.assert_allclose(given.predict(X), model.predict(X), atol=AGREEMENT)
    np.testing.assert_allclose(
        given.predict(X, return_std=True)[1], model.predict(X, return_std=True)[1], rtol=AGREEMENT
    )
    for ours, theirs in zip(model.predict_interval(X), given.predict_interval(X), strict=True):
        # What is nearly 0 is a difference of numbers of this size, known to their rounding.
        rounding = 1e-11 * abs(np.asarray(theirs)).max()
        np.testing.assert_allclose(ours, theirs, rtol=AGREEMENT, atol=rounding)
    alone = clone(given).set_params(alpha=model.alpha_).fit(*rows, **own)
    np.testing.assert_allclose(alone.predict(X), model.predict(X), atol=AGREEMENT)


def test_weights_with_an_alpha_for_each_of_many_targets(rng):
    """Of more targets than features only the squares are summed."""
    X, y = of_one_group(rng, 300, strength=0.5)
    Y = y[:, None] * rng.uniform(0.1, 2, 40) + rng.standard_normal((300, 40))
    features = drf.ConcatenatedFeatures([fourier(16, 2.0), drf.LinearFeatures()], weights="cv")
    few, many = (
        drf.KernelRidge(features, alpha_per_target=True, random_state=0, cv=3).fit(X, Y[:, :k])
        for k in (2, 40)
    )
    for fitted, k in ((few, 2), (many, 40)):
        weights = list(fitted.features_.weights_)
        given = drf.KernelRidge(
            clone(features).set_params(weights=weights), alpha_per_target=True, random_state=0, cv=3
        ).fit(X, Y[:, :k])
        np.testing.assert_allclose(given.predict(X), fitted.predict(X), atol=1e-6)
        np.testing.assert_allclose(given.alpha_, fitted.alpha_)  # of grids that round otherwise


@pytest.mark.parametrize("strength", [0.0, 0.3, 1.0])
def test_no_weights_of_a_coarse_grid_are_better(rng, strength):
    X, y = of_one_group(rng, 1500, strength)
    model = ridge(groups(64)).fit(X, y)
    grid = [(share, 1 - share) for share in (0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999)]
    errors = [ridge(groups(64, weights=weights)).fit(X, y).cv_score_ for weights in grid]
    assert model.cv_score_ <= 1.01 * min(errors)


def test_kernels_of_the_same_columns_are_weighted_as_well(rng):
    """Where alphas beyond the grid are best, they count in each trial as in the choice itself."""
    X = rng.uniform(-2, 2, (N, 2))
    y = np.sin(4 * X[:, 0]) + 0.2 * rng.standard_normal(N)
    maps = [drf.FourierFeatures(drf.Gaussian(width), 64) for width in (0.01, 0.5, 50.0)]
    model = ridge(drf.ConcatenatedFeatures(maps, weights="cv")).fit(X, y)
    few = [(a, b, c) for a in (0.01, 1) for b in (0.01, 1) for c in (0.01, 1)]
    errors = [ridge(drf.ConcatenatedFeatures(maps, weights=w)).fit(X, y).cv_score_ for w in few]
    assert model.cv_score_ <= 1.01 * min(errors)


def test_the_same_bits_again_and_from_a_file(rng, tmp_path):
    X, y = of_one_group(rng, 400)
    model, again = (ridge(groups()).fit(X.astype(np.float32), y) for _ in range(2))
    assert model.features_.weights_ == again.features_.weights_
    np.testing.assert_array_equal(model.coef_, again.coef_)
    model.save(tmp_path / "model")
    stored = drf.load_model(tmp_path / "model")
    assert stored.specification.weights == model.features_.weights_
    np.testing.assert_array_equal(stored.predict(X), model.predict(X))


@pytest.mark.parametrize("solver", ["auto", "gram"])
def test_the_plan_counts_the_settings(rng, solver):
    X, y = of_one_group(rng, 400)
    plans = [ridge(groups(weights=weights), solver=solver).plan(X, y) for weights in (None, "cv")]
    more = plans[1].flops - plans[0].flops
    paths = plans[0].flops - plans[0].size.gram_flops
    assert 0.8 * MAX_WEIGHTINGS * paths < more < MAX_WEIGHTINGS * paths
    assert "weights of maps: up to 40 settings" in repr(plans[1]) and "settings" not in repr(plans[0])


NEEDS = r"weights='cv' needs alpha='cv' and the Gram of KernelRidge or KernelRidgeClassifier"


@pytest.mark.parametrize(
    "estimator",
    [
        ridge(groups(), 1.0),
        ridge(groups(), "gcv"),
        ridge(groups(), 1.0, solver="cg"),
        ridge(groups(), 1.0, solver="sgd"),
        ridge(groups(), "cv", solver="cg"),
        drf.KernelRidgeClassifier(groups(), 1.0),
        drf.KernelSVC(groups(), C="cv"),
        drf.KernelLikelihoodClassifier(groups()),
        drf.KernelSVR(groups()),
        drf.KernelPCA(groups()),
    ],
    ids=repr,
)
def test_models_that_cannot_choose_say_which_can(rng, estimator):
    X, y = of_one_group(rng, 40)
    with pytest.raises(InputError, match=NEEDS):
        estimator.fit(X, y > 0 if hasattr(estimator, "decision_function") else y)


def test_other_uses_of_undecided_weights_are_refused(rng):
    X, y = of_one_group(rng, 40)
    for refused in (
        lambda: groups().fit(X, y),
        lambda: groups().fit_transform(X),
        lambda: ridge(groups()).partial_fit(X, y),
        lambda: drf.gram(X, groups(), y, cv=3),
        lambda: drf.fit_features(groups(), X, y),
    ):
        with pytest.raises(InputError, match=NEEDS):
            refused()
    inside = drf.ConcatenatedFeatures([groups(), drf.LinearFeatures()])
    with pytest.raises(InputError, match=r"maps\[0\] has weights='cv'"):
        ridge(inside).fit(X, y)
    with pytest.raises(InputError, match="'cv' or None, got 'gcv'"):
        ridge(groups(weights="gcv")).fit(X, y)


# The search itself.


@pytest.mark.parametrize("n", [1, 2, 3, 8, 60])
def test_where_all_are_as_good_weights_are_equal_and_trials_are_few(rng, n):
    seen = []

    def score(weights):
        seen.append(weights)
        return 3 * (1 + 1e-8 * weights[0])

    found = search_weights(n, score, rng)
    np.testing.assert_allclose(found["weights"], np.full(n, 1 / n))
    assert found["n_trials"] == len(seen) <= MAX_WEIGHTINGS
    assert len(np.unique(np.round(seen, 8), axis=0)) == len(seen)  # none twice
    weights = np.array(seen)
    assert (weights >= 0.999e-4 * weights.max(axis=1, keepdims=True)).all()


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_valley_is_found(rng, n):
    """The score of a trial is a parabola in the logarithms of the weights."""
    bottom = rng.dirichlet(np.ones(n))
    bottom = np.maximum(bottom, 1e-3) / np.maximum(bottom, 1e-3).sum()
    found = search_weights(n, lambda weights: _far(weights, bottom), rng)
    assert found["score"] < 1 + (0.05, 0.5, 3)[(2, 3, 5).index(n)]


def _far(weights, bottom):
    log = np.log(weights / bottom)
    return 1 + float(np.square(log - log.mean()).sum())


def test_what_only_harms_gets_the_least_weight(rng):
    found = search_weights(3, lambda weights: 1 + weights[2], rng)
    assert found["weights"][2] < 3e-4
