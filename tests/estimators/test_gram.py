"""Grams as values: fits without rows, sites that are added, rows that are forgotten, files."""

from dataclasses import replace

import numpy as np
import pytest

import distrff as drf
from distrff.errors import InputError, ModelFileError
from distrff.io.storage import read_group, write_group
from tests.support.fits import fourier, ridge

# Of the Gram of n rows each entry is off by a few u·n; at κ = Σs/alpha the weights are off by a few u·κ.
ALPHA = 1e-2


def tolerance(model, n_rows):
    return 64 * np.finfo(float).eps * n_rows / ALPHA * np.linalg.norm(model.coef_)


def classes_of(problem):
    return np.array(["a", "b", "c"])[np.digitize(problem.y, [-0.5, 0.5])]


@pytest.mark.parametrize("alpha", [ALPHA, "cv", "gcv"])
@pytest.mark.parametrize("scale", ["none", "standard"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_fit_to_the_gram_is_the_fit_to_the_rows(problem, alpha, scale, fit_intercept):
    grid = {"alphas": [1e-2, 1.0, 1e2], "fit_intercept": fit_intercept}
    # Of more features than a twentieth of the rows "gcv" keeps the Gram of a fold, which this one lacks.
    features = fourier(32) if alpha == "gcv" else fourier()
    model = drf.KernelRidge(features, alpha, scale=scale, random_state=4, **grid)
    model.fit(problem.X, problem.Y, problem.s)
    cv = 5 if alpha == "cv" else None
    options = {"cv": cv, "scale": scale, "random_state": 4}
    statistics = drf.gram(problem.X, model.features_, problem.Y, problem.s, **options)
    assert (statistics.n_rows, statistics.n_folds) == (len(problem.X), cv or 1)
    assert statistics.weight == pytest.approx(problem.s.sum(), rel=1e-12)
    late = drf.KernelRidge(alpha=alpha, **grid).fit_gram(statistics)
    np.testing.assert_array_equal(late.coef_, model.coef_)
    np.testing.assert_array_equal(late.intercept_, model.intercept_)
    np.testing.assert_array_equal(late.predict(problem.X), model.predict(problem.X))
    assert (late.alpha_, late.cv_score_) == (model.alpha_, model.cv_score_)
    np.testing.assert_array_equal(*(each.predict(problem.X, return_std=True)[1] for each in (late, model)))
    assert late.report_["n_sweeps"] == 0


def test_an_unfitted_map_is_fitted_as_an_estimator_does(problem):
    features = fourier(length_scale="auto", random_state=None)
    statistics = drf.gram(problem.X, features, problem.y, random_state=9, scale="none")
    model = drf.KernelRidge(features, random_state=9, alpha=1.0, scale="none").fit(problem.X, problem.y)
    assert statistics.specification == model.features_.specification_
    np.testing.assert_array_equal(
        drf.KernelRidge(alpha=1.0, scale="none").fit_gram(statistics).coef_, model.coef_
    )
    model.fit_gram(
        drf.gram(problem.X[:, :2], fourier(32), problem.y, scale="none")
    )  # leaves nothing of an earlier fit
    assert not hasattr(model, "features_") and model.n_features_in_ == 2
    assert model.predict(problem.X[:, :2]).shape == problem.y.shape


@pytest.mark.parametrize("scale", ["none", "standard"])
def test_two_sites_are_all_rows(problem, scale):
    """Each site centres its targets differently; the sum takes that into account."""
    X, Y, s = problem.X, problem.Y + np.arange(len(problem.X))[:, None], problem.s
    first = drf.gram(X[:500], fourier(), Y[:500], s[:500], scale=scale)
    second = drf.gram(X[500:], y=Y[500:], sample_weight=s[500:], like=first)
    both = first + second
    assert both.n_rows == len(X) and both.weight == pytest.approx(s.sum(), rel=1e-12)
    model = drf.KernelRidge(alpha=ALPHA, scale="none").fit_gram(both)
    scaling = first.scaling
    whole = ridge(ALPHA).fit(scaling.apply(X, np.dtype(float)), Y, s)
    # Moving the targets by hundreds of their deviations costs as many digits.
    atol = 1e3 * tolerance(whole, len(X))
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=0, atol=atol)
    np.testing.assert_allclose(model.intercept_, whole.intercept_, rtol=0, atol=atol)
    assert model.predict(X).shape == Y.shape
    other = drf.KernelRidge(alpha=ALPHA, scale="none").fit_gram(second + first)
    np.testing.assert_allclose(other.coef_, model.coef_, rtol=0, atol=atol)
    np.testing.assert_array_equal(sum([first, second]).A, both.A)
    assert repr(first) == "<GramStatistics of 500 rows: 64 features, 3 output(s), 1 fold(s), float64>"


@pytest.mark.parametrize("labels", [False, True])
def test_rows_are_forgotten(problem, labels):
    X, y = problem.X, classes_of(problem) if labels else problem.y
    model = (
        drf.KernelRidgeClassifier(alpha=ALPHA, scale="none")
        if labels
        else drf.KernelRidge(alpha=ALPHA, scale="none")
    )
    everything = drf.gram(X, fourier(), y, scale="none")
    rest = everything - drf.gram(X[:400], y=y[:400], like=everything)
    assert (rest.n_rows, rest.n_folds) == (500, 1)
    kept = drf.gram(X[400:], y=y[400:], like=everything)
    expected = model.fit_gram(kept).coef_
    np.testing.assert_allclose(model.fit_gram(rest).coef_, expected, rtol=0, atol=tolerance(model, len(X)))


def test_models_that_do_not_fit_the_gram(problem):
    numbers = drf.gram(problem.X, fourier(), problem.y, scale="none")
    labelled = drf.gram(problem.X, fourier(), classes_of(problem), scale="none")
    single = drf.gram(problem.X.astype(np.float32), fourier(), problem.y, scale="none")
    assert single.dtype == "float32"
    folds = drf.gram(problem.X, fourier(), problem.y, cv=5, scale="none")
    below = r"below the rounding noise of this float32 Gram .* dtype='float64'"
    regressor, classifier = drf.KernelRidge, drf.KernelRidgeClassifier
    for kind, gram, options, message in (
        (classifier, numbers, {}, "has numbers as targets; use KernelRidge"),
        (regressor, labelled, {}, "has class labels as targets; use KernelRidgeClassifier"),
        (regressor, numbers, {"alpha": "cv"}, "needs a Gram with folds: make it with cv=5"),
        (regressor, single, {"alpha": 1e-6}, below),
        (regressor, numbers - numbers, {}, "this Gram has 0 rows"),
        (regressor, folds + folds - folds, {"alpha": "cv"}, "a difference of Grams has no folds"),
        (regressor, numbers, {"alpha": [1.0, 2.0]}, "alpha has 2 values, but there are 1 targets"),
        (classifier, labelled, {"class_weight": "balanced"}, "class_weight"),
    ):
        model = kind(**{"alpha": 1.0, "scale": "none"} | options)
        with pytest.raises(InputError, match=message):
            model.fit_gram(gram)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": None}, "features is None; give a feature map, or `like` an earlier Gram"),
        ({"features": "fourier"}, "features must be a distrff feature map"),
        ({"features": drf.FourierFeatures(form="complex")}, "form='complex' is for transform only"),
        ({"features": np.zeros(900)}, "features must be a distrff feature map"),
        ({"features": drf.RandomBinningFeatures()}, "FourierFeatures or NystroemFeatures"),
        ({"y": None}, "the Gram needs y"),
        ({"cv": 1}, "cv must be an integer of at least 2"),
        ({"targets": "labels"}, "targets must be one of 'auto', 'numeric', 'classes', got 'labels'"),
        ({"scale": "minmax"}, "scale must be one of"),
        ({"dtype": "float16"}, "dtype must be one of"),
        ({"fold_by": "random"}, "fold_by must be one of"),
        ({"random_state": -1}, "random_state must be a non-negative integer or None, got -1"),
        ({"features": drf.FourierFeatures(random_state=-1)}, "random_state must be a non-negative integer"),
        ({"y": np.array(["a", "b"] * 450), "targets": "numeric"}, "y must hold numbers"),
    ],
)
def test_arguments_that_cannot_be_used(problem, arguments, message):
    given = {"features": fourier(), "y": problem.y} | arguments
    with pytest.raises(InputError, match=message):
        drf.gram(problem.X, **given)


def test_a_gram_like_another_needs_like_rows_and_folds(problem):
    X, y, z = problem.X, problem.y, np.full(len(problem.X), "z")
    first, labelled = (
        drf.gram(X, fourier(), y, cv=5, scale="none"),
        drf.gram(X, fourier(), classes_of(problem), scale="none"),
    )
    assert drf.gram(X, y=y, like=first, cv=5).n_folds == 5
    for rows, given, message in (
        (X, {"y": y, "like": first, "cv": 3}, r"cv=3, but the Gram to be like has 5 fold\(s\) of its own"),
        (X, {"y": y, "like": first, "cv": first.folds}, r"cv=HashFolds.* has 5 fold\(s\) .*; leave cv out"),
        (X[:, :3], {"y": y, "like": first}, "X has 3 columns, but the rows that were summed before have 4"),
        (
            X,
            {"y": problem.Y, "like": first},
            r"y has 3 column\(s\), but the rows that were summed before have 1",
        ),
        (X[:, :3], {"y": y, "features": fourier().fit(X)}, "the feature map was fitted to 4"),
        (X, {"y": z, "like": labelled}, "y has the label 'z', which is not one of the 3 classes"),
    ):
        with pytest.raises(InputError, match=message):
            drf.gram(rows, **given)


def test_fit_features(problem):
    assert (
        drf.fit_features(
            fourier(length_scale="auto"), problem.X, problem.y, scale="none"
        ).kernel_.length_scale
        > 0
    )
    without = drf.fit_features(fourier(length_scale="auto"), problem.X, scale="none")
    assert without.length_scale_search_["rule"].startswith("median distance")
    again = drf.fit_features(without, problem.X * 100, scale="none")
    assert again is not without
    assert again.kernel_.length_scale == pytest.approx(100 * without.kernel_.length_scale, rel=0.2)


# Sums and differences, what they refuse, and files


MAP = drf.FourierFeatures(drf.Gaussian(2.0), 16, random_state=3)


def few_rows(rng, n, offset=0.0):
    X = rng.standard_normal((n, 2))
    return X, offset + np.sin(X[:, 0]) + 0.1 * rng.standard_normal(n), rng.uniform(0.5, 2, n)


def gram_of(X, y, s=None, features=MAP, **options):
    return drf.gram(X, features, y, s, **{"cv": 3, "scale": "none", "random_state": 0} | options)


def test_sums_of_earlier_versions_know_neither_names_nor_steps(rng, tmp_path):
    gram, path = gram_of(*few_rows(rng, 60)), str(tmp_path / "gram.zarr")
    replace(gram, column_names=("a", "b")).save(path)
    arrays, metadata = read_group(path, kind="gram")
    assert drf.GramStatistics.load(path).column_names == ("a", "b")
    earlier = {
        name: value for name, value in metadata.items() if name not in ("column_names", "steps", "folds")
    }
    write_group(path, arrays, earlier, kind="gram", overwrite=True)
    found = drf.GramStatistics.load(path)
    assert (found.column_names, found.steps, found.folds, found.n_folds) == (None, None, None, 3)
    assert (found + replace(gram, column_names=("a", "b"))).n_rows == 120
    write_group(path, arrays, metadata | {"column_names": ["a"]}, kind="gram", overwrite=True)
    with pytest.raises(ModelFileError, match="its column names do not fit its columns"):
        drf.GramStatistics.load(path)


def test_grams_that_do_not_fit_are_refused(rng):
    X, y, s = few_rows(rng, 60)
    gram, by_class = gram_of(X, y, s), gram_of(X, y > 0, s, targets="classes")
    other_map = drf.FourierFeatures(drf.Gaussian(2.0), 16, random_state=4)
    remedy = r"make the second one like the first"
    cases = [
        (gram_of(X, y, s, other_map), f"of different maps .*{remedy}"),
        (gram_of(X, y, s, scale="standard"), f"scale their columns differently.*; {remedy}"),
        (gram_of(X, y, s, cv=2), r"3 fold\(s\) of rows at random, and 2 fold\(s\) of"),
        (gram_of(X, np.column_stack([y, y]), s), "these Grams have 1 and 2 targets"),
        (by_class, f"code their targets differently .*{remedy}"),
    ]
    for other, message in cases:
        for combine in (gram.__add__, gram.__sub__):
            with pytest.raises(InputError, match=message):
                combine(other)
    with pytest.raises(InputError, match="these Grams"):
        by_class + gram_of(X, np.arange(60) % 3, s, targets="classes")
    for other in (3, None, "gram", np.zeros((18, 18))):
        for combine in (lambda other=other: gram + other, lambda other=other: gram - other):
            with pytest.raises(TypeError):
                combine()
    few, many = gram_of(*few_rows(rng, 50)), gram_of(*few_rows(rng, 90))
    with pytest.raises(InputError, match=r"cannot subtract 90 rows of weight .* from 50 rows"):
        few - many
    with pytest.raises(InputError, match="that the first Gram holds"):
        few - gram_of(X[:40], y[:40], np.full(40, 1e3))


def test_a_gram_comes_back_from_its_file(rng, tmp_path):
    X, y, s = few_rows(rng, 60, 1e6)
    gram, url = gram_of(X.astype(np.float32), y, s, scale="standard"), str(tmp_path / "gram.zarr")
    assert gram.dtype == "float32"
    gram.save(url)
    back = drf.GramStatistics.load(url)
    np.testing.assert_array_equal(back.A, gram.A)
    assert back.specification == gram.specification
    assert back.scaling.equals(gram.scaling)
    for name in ("n_rows", "dtype", "tile_rows", "y_is_1d"):
        assert getattr(back, name) == getattr(gram, name)
    np.testing.assert_array_equal(back.targets.shift, gram.targets.shift)
    np.testing.assert_array_equal((gram + back).A, 2 * gram.A)
    with pytest.raises(InputError, match="gram"):
        drf.load_model(url)
    labelled = gram_of(X, np.array(["a", "b", "c"], object)[np.digitize(y - 1e6, [-0.3, 0.3])])
    with pytest.raises(InputError, match="overwrite"):
        labelled.save(url)
    assert not drf.GramStatistics.load(url).targets.same_kind(labelled.targets)
    labelled.save(url, overwrite=True)
    back = drf.GramStatistics.load(url)
    assert back.targets.same_kind(labelled.targets)
    assert back.y_is_1d
    np.testing.assert_array_equal((labelled - back).A, 0.0)
    np.testing.assert_array_equal((labelled + back).A, 2 * labelled.A)
