"""Models on landmarks, on maps side by side and on scikit-learn's transformers, on rows of any storage."""

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge as ExactKernelRidge
from sklearn.preprocessing import (
    PolynomialFeatures,
    QuantileTransformer,
    SplineTransformer,
)

import distrff as drf
from distrff.errors import DataWarning, InputError
from distrff.fitting.fit import choose
from tests.support.fits import stored


def nystroem(kernel=None, n_components=48, **options):
    return drf.NystroemFeatures(kernel or drf.Gaussian(2.0), n_components, random_state=7, **options)


@pytest.mark.parametrize("kernel", [drf.Gaussian(2.0), drf.Polynomial(2)])
def test_all_rows_as_landmarks_give_the_exact_model(problem, kernel):
    X, y = problem.X[:150], problem.y[:150]
    model = drf.KernelRidge(nystroem(kernel, 150), alpha=0.1, fit_intercept=False, scale="none").fit(X, y)
    exact = ExactKernelRidge(alpha=0.1, kernel="precomputed").fit(kernel(X, X), y)
    # Directions below 2⁻⁴⁰ of the kernel are left out of a problem of condition 1e4.
    np.testing.assert_allclose(model.predict(problem.X), exact.predict(kernel(problem.X, X)), atol=1e-6)


@pytest.mark.parametrize("landmarks", ["uniform", "leverage"])
def test_a_cluster_gives_the_bits_of_one_process(problem, tmp_path, request, landmarks):
    group = zarr.open_group(str(tmp_path / "rows.zarr"), mode="w")
    for name, array in {"X": problem.X, "y": problem.y, "sample_weight": problem.s}.items():
        group.create_array(name, data=array, chunks=(130, *array.shape[1:]))
    data = drf.open_dataset(str(tmp_path / "rows.zarr"), target="y", sample_weight="sample_weight")
    model = drf.KernelRidge(nystroem(landmarks=landmarks), alpha="gcv", scale="standard", random_state=1)
    other = clone(model).fit(problem.X, problem.y, problem.s)
    request.getfixturevalue("client")
    one = model.fit(data)
    passes = 2 if landmarks == "leverage" else 1
    assert model.plan(data).n_sweeps == 2 + passes == one.report_.to_dict()["n_sweeps"]
    np.testing.assert_array_equal(one.features_.landmarks_, other.features_.landmarks_)
    np.testing.assert_array_equal(one.model_.coef, other.model_.coef)
    np.testing.assert_allclose(one.predict(data.X).compute(), other.predict(problem.X), rtol=1e-9, atol=1e-9)


def test_rows_of_weight_zero_are_no_landmarks(problem):
    s = (problem.X[:, 0] > 0).astype(float)
    model = drf.KernelRidge(nystroem(), alpha=1.0, scale="none").fit(problem.X, problem.y, s)
    assert (model.features_.landmarks_[:, 0] > 0).all()
    with pytest.warns(DataWarning, match=r"40"):
        model.fit(problem.X, problem.y, (np.arange(900) < 40).astype(float))
    assert model.features_.landmarks_.shape == (40, problem.X.shape[1])


BESIDE_A_LINE = drf.ConcatenatedFeatures([nystroem(), drf.LinearFeatures()])


@pytest.mark.parametrize(
    "estimator",
    [
        drf.KernelRidge(nystroem(), alpha="cv", random_state=0, scale="none"),
        drf.KernelRidge(nystroem(), solver="cg", random_state=0, alpha=1.0, scale="none"),
        drf.KernelRidge(nystroem(drf.Polynomial(3)), alpha="gcv", random_state=0, scale="none"),
        drf.KernelRidge(nystroem(drf.Gaussian("auto")), alpha="gcv", random_state=0, scale="none"),
        drf.KernelSVC(nystroem(), random_state=0, scale="none"),
        drf.KernelSVC(nystroem(), loss="squared_hinge", random_state=0, scale="none"),
        drf.KernelSVC(nystroem(drf.Polynomial(2)), C=0.1, random_state=0, scale="none"),
        drf.KernelSVC(BESIDE_A_LINE, random_state=0, scale="none"),
        drf.KernelLikelihoodClassifier(nystroem(landmarks="leverage"), random_state=0, scale="none"),
        drf.KernelLikelihoodClassifier(BESIDE_A_LINE, random_state=0, scale="none"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_estimators_fit_and_are_stored(problem, tmp_path, estimator, dtype):
    X, y = problem.X.astype(dtype), problem.y
    if not isinstance(estimator, drf.KernelRidge):
        y = np.where(X[:, 1] * X[:, 2] > 0, "same", "other")
    fitted = clone(estimator).fit(X, y)
    assert fitted.score(X, y) > 0.75
    np.testing.assert_array_equal(stored(fitted, tmp_path).predict(X), fitted.predict(X))
    if y is problem.y:
        lazily = fitted.predict(da.from_array(X, chunks=(100, -1))).compute(scheduler="sync")
        np.testing.assert_allclose(lazily, fitted.predict(X), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("features", [nystroem(), BESIDE_A_LINE])
def test_a_gram_carries_its_landmarks_to_its_file_and_back(problem, tmp_path, features):
    map_ = drf.fit_features(features, problem.X, scale="none")
    whole = drf.gram(problem.X, map_, problem.y, scale="none")
    parts = drf.gram(problem.X[:400], map_, problem.y[:400], scale="none")
    parts += drf.gram(problem.X[400:], y=problem.y[400:], like=parts)
    np.testing.assert_allclose(parts.A, whole.with_targets(parts.targets).A, rtol=1e-9, atol=1e-7)
    whole.save(str(tmp_path / "gram.zarr"))
    loaded = drf.GramStatistics.load(str(tmp_path / "gram.zarr"))
    one, other = (drf.KernelRidge(alpha=0.1, scale="none").fit_gram(stats) for stats in (whole, loaded))
    np.testing.assert_array_equal(other.predict(problem.X), one.predict(problem.X))
    np.testing.assert_array_equal(stored(other, tmp_path).predict(problem.X), one.predict(problem.X))
    assert (loaded + whole).n_rows == 1800


@pytest.mark.parametrize(
    "act",
    [
        lambda map_, p: drf.KernelRidge(map_, alpha=1.0, scale="none").fit(p.X, p.y),
        lambda map_, p: drf.KernelRidge(
            drf.ConcatenatedFeatures([drf.LinearFeatures(), map_]), alpha=1.0, scale="none"
        ).fit(p.X, p.y),
        lambda map_, p: drf.KernelSVC(map_, scale="none").fit(p.X, p.y > 0),
        lambda map_, p: drf.KernelPCA(map_, scale="none").fit(p.X),
        lambda map_, p: drf.gram(p.X, map_, p.y, scale="none"),
        lambda map_, p: drf.fit_features(map_, p.X, scale="none"),
    ],
    ids=["fit", "concatenated", "svc", "pca", "gram", "fit_features"],
)
def test_more_landmarks_than_rows_are_as_many_as_rows(problem, act):
    with pytest.warns(DataWarning, match=r"n_components=901 .* 900"):
        act(nystroem(n_components=901), problem)
    plan = drf.KernelRidge(nystroem(n_components=901), alpha=1.0, scale="none").plan(problem.X, problem.y)
    assert plan.size.n_features == 900


def test_a_gram_that_is_to_be_like_another_counts_the_factor(problem, monkeypatch):
    plans = []

    def kept(*args, **kwargs):
        found = choose(*args, **kwargs)
        plans.append(found[1])
        return found

    monkeypatch.setattr("distrff.fitting.running.choose", kept)
    first = drf.gram(problem.X, nystroem(), problem.y, scale="none")
    drf.gram(problem.X, y=problem.y, like=first)
    assert plans[0].size.triangle_numbers == 48**2
    assert plans[1].worker_peak_bytes == plans[0].worker_peak_bytes


# Models on maps side by side and on scikit-learn's transformers


def mixed(width=2.0):
    return drf.ConcatenatedFeatures(
        [
            drf.FourierFeatures(drf.Gaussian(width), 32),
            drf.NystroemFeatures(drf.Gaussian(width), 24, landmarks="leverage"),
            drf.TransformerFeatures(PolynomialFeatures(2, include_bias=False)),
            drf.TransformerFeatures(SplineTransformer()),
            drf.LinearFeatures(),
        ]
    )


DERIVED = drf.ConcatenatedFeatures(
    [drf.FourierFeatures(drf.Gaussian(2.0), 32), drf.LinearFeatures()], weights=[2, 0.1]
)


@pytest.mark.parametrize(
    "model",
    [
        drf.KernelRidge(mixed(), alpha="cv", random_state=0, scale="none"),
        drf.KernelRidge(mixed("auto"), alpha="gcv", random_state=0, scale="none"),
        drf.KernelRidge(DERIVED, solver="cg", random_state=0, alpha=1.0, scale="none"),
        drf.KernelRidge(
            drf.TransformerFeatures(SplineTransformer()), alpha="cv", scale="standard", random_state=0
        ),
    ],
    ids=["mixed", "automatic", "derived", "splines"],
)
def test_ridge_fits_on_a_cluster_as_in_memory(problem, tmp_path, model, request):
    in_memory = clone(model).fit(problem.X, problem.y)
    request.getfixturevalue("client")
    X, y = da.from_array(problem.X, chunks=(130, -1)), da.from_array(problem.y, chunks=170)
    fitted = clone(model).fit(X, y)
    np.testing.assert_array_equal(fitted.model_.coef, in_memory.model_.coef)
    np.testing.assert_allclose(fitted.predict(X).compute(), in_memory.predict(problem.X), atol=1e-8)
    assert fitted.plan(X, y).seconds is not None
    np.testing.assert_array_equal(stored(fitted, tmp_path).predict(problem.X), fitted.predict(problem.X))


def test_what_cannot_be_stored_is_refused_by_name(problem, tmp_path):
    map_ = drf.TransformerFeatures(QuantileTransformer(n_quantiles=20))
    for features in (map_, drf.ConcatenatedFeatures([drf.LinearFeatures(), map_])):
        model = drf.KernelRidge(features, alpha=1.0, scale="none").fit(problem.X, problem.y)
        assert model.score(problem.X, problem.y) > 0.1
        gram = drf.gram(
            problem.X, drf.fit_features(features, problem.X, scale="none"), problem.y, scale="none"
        )
        for value in (model, gram):
            with pytest.raises(InputError, match="QuantileTransformer cannot be stored"):
                value.save(str(tmp_path / "some.zarr"))
    assert not list(tmp_path.iterdir())
