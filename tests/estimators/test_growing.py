"""Ridge models whose rows come in several calls: the same sums as those of one fit."""

import pickle

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import distrff as drf
from distrff.errors import DataWarning, InputError
from tests.support.fits import classes_of, refusal, ridge, ridge_classifier

CUTS = ((0, 250), (250, 251), (251, 900))


def tolerance(fitted, n_rows, alpha):
    """Entries of the Gram of n rows are off by a few u·n; at κ = Σs/alpha the weights are off by a few u·κ.

    Targets are coded by the mean of the first rows instead of that of all: as many roundings again.
    """
    return 256 * np.finfo(float).eps * n_rows / alpha * np.linalg.norm(fitted.coef_)


def grown(estimator, X, y, s=None, cuts=CUTS, **options):
    for a, b in cuts:
        estimator.partial_fit(X[a:b], y[a:b], None if s is None else s[a:b], **options)
        options = {}
    return estimator


@pytest.mark.parametrize("alpha", [1e-2, "cv", "gcv"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_the_sum_of_all_calls_is_one_fit(problem, alpha, fit_intercept):
    options = {"alphas": [1e-2, 1.0, 1e2], "fit_intercept": fit_intercept, "random_state": 3}
    X, Y, s = problem.X, problem.Y, problem.s
    whole = ridge(alpha, **options).fit(X, Y, s)
    found = grown(ridge(alpha, **options), X, Y, s)
    atol = tolerance(whole, len(X), 1e-2)
    assert found.alpha_ == whole.alpha_
    np.testing.assert_allclose(found.coef_, whole.coef_, rtol=0, atol=atol)
    np.testing.assert_allclose(found.intercept_, whole.intercept_, rtol=0, atol=atol)
    if alpha == "cv":
        # Each fold has the same rows: another assignment would change these by a few percent.
        for name, scores in whole.cv_results_.items():
            np.testing.assert_allclose(found.cv_results_[name], scores, rtol=1e-8)
    report, expected = found.report_, whole.report_
    assert (report["n_samples"], report["n_sweeps"]) == (len(X), 2 * len(CUTS))
    for name in ("rmse", "linear_rmse"):
        assert report["quality"][name] == pytest.approx(expected["quality"][name], rel=1e-8)
    assert report["criterion"] == expected["criterion"]
    assert sum(report["sweep_seconds"]) < report["seconds"]
    assert found.report_.to_html()


def test_each_call_leaves_a_model_of_all_rows_so_far(problem):
    model = ridge(1.0)
    with pytest.raises(NotFittedError):
        model.predict(problem.X)
    grown(model, problem.X, problem.y)
    assert not hasattr(clone(model), "coef_")
    first = model.predict(problem.X)
    model.partial_fit(problem.X[:300], problem.y[:300])
    assert model.report_["n_samples"] == 1200
    assert not np.array_equal(model.predict(problem.X), first)


def test_map_scaling_and_widths_stay_those_of_the_first_call(problem):
    X, y = problem.X * [1.0, 10.0, 0.1, 1.0], problem.y
    automatic = drf.KernelRidge(drf.FourierFeatures(n_components=32), 1.0, random_state=0)
    first = clone(automatic).fit(X[:400], y[:400])
    found = grown(automatic, X, y, cuts=((0, 400), (400, 900)))
    assert found.features_.kernel_ == first.features_.kernel_
    scaling = first.model_.scaling
    assert found.model_.scaling.equals(scaling)
    features = drf.FourierFeatures(first.features_.kernel_, 32, random_state=first.features_.seed_)
    again = drf.KernelRidge(features, 1.0, scale="none")
    again.fit(scaling.apply(X, np.dtype(float)), y)
    np.testing.assert_allclose(found.coef_, again.coef_, rtol=0, atol=tolerance(again, len(X), 1.0))


@pytest.mark.parametrize(
    "features",
    [
        drf.NystroemFeatures(drf.Gaussian(2.0), 16),
        drf.AutoFeatures(64),  # 16 of a narrow kernel may find nothing
        drf.EquispacedFourierFeatures(drf.Gaussian(1.0), bounds={0: (-6.0, 6.0)}),
    ],
    ids=["nystroem", "auto", "equispaced"],
)
def test_maps_with_sums(problem, features):
    X, y = problem.X[:, :1], problem.y
    model = drf.KernelRidge(features, "cv", scale="none", random_state=0)
    found = grown(clone(model), X, y, cuts=((0, 600), (600, 900)))
    assert found.report_["n_samples"] == 900 and found.report_["kernel"]
    # Landmarks and pilots see the first rows alone; the models are alike, and better than a constant.
    assert found.score(X, y) == pytest.approx(clone(model).fit(X, y).score(X, y), abs=0.1)
    assert found.score(X, y) > 0.2


def test_rows_outside_the_bounds_are_refused(problem):
    X, y = np.clip(problem.X[:, :1], -1, 1), problem.y
    model = drf.KernelRidge(drf.EquispacedFourierFeatures(drf.Gaussian(1.0), bounds={0: (-2.0, 2.0)}), 1.0)
    model.partial_fit(X, y)
    assert "outside the bounds" in refusal(model.partial_fit, X * 3, y)
    assert model.report_["n_samples"] == 900


def test_classes_that_come_later(problem):
    X, y = problem.X, np.array(["a", "b", "c"])[np.sort(classes_of(problem.y, 3))]
    options = {"class_weight": {"a": 2.0}, "random_state": 0}
    whole = ridge_classifier(1.0, **options).fit(X, y, problem.s)
    found = grown(ridge_classifier(1.0, **options), X, y, problem.s, classes=["c", "b", "a"])
    assert found.classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(found.coef_, whole.coef_, rtol=0, atol=tolerance(whole, len(X), 1.0))
    np.testing.assert_array_equal(found.predict(X), whole.predict(X))
    few = ridge_classifier(1.0).partial_fit(X[:10], y[:10], classes=["a", "b", "c"])
    assert "all rows so far are of the class 'a'" in refusal(few.predict, X)
    assert few.partial_fit(X, y).predict(X).shape == y.shape


def test_a_pickled_estimator_goes_on(problem):
    X, y = problem.X, problem.y
    model = ridge("cv").partial_fit(X[:500], y[:500])
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict(X, return_std=True)[1], model.predict(X, return_std=True)[1])
    for each in (model, copy):
        each.partial_fit(X[500:], y[500:])
    np.testing.assert_array_equal(copy.coef_, model.coef_)


def test_rows_of_any_storage_with_their_names(problem, tmp_path):
    names = ["p", "q", "r", "t"]
    frame = pd.DataFrame(problem.X, columns=names).assign(y=problem.y)
    frame[300:].to_parquet(tmp_path / "later.parquet")
    whole = ridge(1.0, random_state=0).fit(frame[names], problem.y)
    found = ridge(1.0, random_state=0).partial_fit(frame[names][:100], problem.y[:100])
    lazy = (da.from_array(A[100:300], chunks=(64, *A.shape[1:])) for A in (problem.X, problem.y))
    found.partial_fit(*lazy)
    found.partial_fit(drf.open_dataset(str(tmp_path / "later.parquet"), target="y"))
    np.testing.assert_allclose(found.coef_, whole.coef_, rtol=0, atol=tolerance(whole, 900, 1.0))
    assert found.feature_names_in_.tolist() == names and found.model_.column_names == tuple(names)
    found.save(str(tmp_path / "model.zarr"))
    stored = drf.load_model(str(tmp_path / "model.zarr"))
    np.testing.assert_array_equal(stored.predict(problem.X), found.predict(frame[names]))


def test_a_call_that_fails_changes_nothing(problem):
    X, Y = problem.X, problem.Y
    model = ridge(1.0).partial_fit(pd.DataFrame(X, columns=list("abcd")), Y)
    before = model.coef_
    bad = np.where(np.arange(len(X))[:, None] == 7, np.nan, X)
    for rows, targets, message in (
        (pd.DataFrame(bad, columns=list("abcd")), Y, "NaN"),
        (pd.DataFrame(X[:, :3], columns=list("abc")), Y, "feature names should match"),
        (da.from_array(X[:, :3]), Y, "X has 3 columns, but the rows that were summed before have 4"),
        (pd.DataFrame(X, columns=list("abdc")), Y, "feature names should match"),
        (pd.DataFrame(X, columns=list("abcd")), Y[:, :2], r"y has 2 column\(s\), but .* before have 3"),
    ):
        with pytest.raises(InputError, match=message):
            model.partial_fit(rows, targets)
    assert model.coef_ is before and model.report_["n_samples"] == 900
    unfitted = ridge(1.0)
    refusal(unfitted.partial_fit, bad, Y)
    assert not hasattr(unfitted, "coef_") and not hasattr(unfitted, "n_features_in_")


def test_what_cannot_grow_is_refused(problem):
    X, y, labels = problem.X, problem.y, classes_of(problem.y)
    binning = drf.RandomBinningFeatures(drf.Laplacian(2.0), 8)
    for model, message in (
        (drf.KernelRidge(binning, 1.0), "random binning"),
        (ridge(1.0, solver="cg"), "solver='cg'"),
        (ridge(1.0, solver="sgd"), "solver='sgd'"),
        (ridge("cv", fold_by="contiguous"), "fold_by='contiguous'"),
    ):
        assert message in refusal(model.partial_fit, X, y)
    assert "class_weight='balanced'" in refusal(
        ridge_classifier(1.0, class_weight="balanced").partial_fit, X, labels
    )
    classifier = ridge_classifier(1.0).partial_fit(X, labels)
    assert "2, which is not one of the 2 classes" in refusal(classifier.partial_fit, X, labels + 1)
    assert "cannot change" in refusal(classifier.partial_fit, X, labels, None, [0, 1, 2])
    late = ridge(1.0).partial_fit(X, y).set_params(alpha="cv").partial_fit(X, y)
    assert "alpha was another then" in refusal(late.predict, X)
    few = ridge("cv").partial_fit(X[:3], y[:3])
    assert "needs at least 5 rows" in refusal(few.predict, X)
    few.partial_fit(X, y)
    assert few.predict(X).shape == y.shape


def test_fit_starts_anew_and_rows_are_not_judged_as_those_of_one_fit(problem):
    X, y = problem.X, problem.y
    model = grown(ridge("cv", random_state=0), X, y)
    assert "keeps no rows" in refusal(drf.evaluate, model)
    assert drf.evaluate(model, X, y)["rows"] == "rows that partial_fit may have seen"
    assert "keeps none of them" in refusal(model.predict_interval, X)
    assert model.calibrate(X, y).predict_interval(X)[0].shape == y.shape
    model.fit(X[:300], y[:300])
    np.testing.assert_array_equal(model.coef_, ridge("cv", random_state=0).fit(X[:300], y[:300]).coef_)
    assert drf.evaluate(model)["rows"] == "out of fold"
    with pytest.warns(DataWarning, match="begins anew"):
        model.partial_fit(X, y)
    assert model.report_["n_samples"] == len(X)


def test_what_was_summed_outlives_a_fit_that_fails(rng):
    X = rng.normal(size=(60, 2))
    grown = drf.KernelRidge(drf.FourierFeatures(drf.Gaussian(1.0), 16, random_state=0), alpha=1.0)
    grown.partial_fit(X, X[:, 0])
    expected = grown.predict(X)
    for fit in (
        lambda: grown.fit(X * np.nan, X[:, 0]),
        lambda: grown.fit(X, X[:, 0], checkpoint_every=3),
        lambda: clone(grown).set_params(alpha="cv").fit_gram(drf.gram(X, grown.features_, X[:, 0])),
    ):
        with pytest.raises(InputError):
            fit()
        np.testing.assert_array_equal(grown.predict(X), expected)
    assert grown.partial_fit(X, X[:, 0]).report_["n_samples"] == 120
