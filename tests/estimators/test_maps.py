"""Models on landmarks, of kernels with a metric, and maps that cannot be stored."""

import numpy as np
import pytest
import zarr
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge as ExactKernelRidge
from sklearn.preprocessing import QuantileTransformer

import distrff as drf
from distrff.errors import DataWarning, InputError
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


# Models on maps side by side and on scikit-learn's transformers


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


# Kernels with a metric


P = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.75, 0.75, 0.0]])


def test_phases_too_large_for_float32_are_counted(problem):
    """A phase beyond 2^14 is off by more than 2^-10 in float32; its frequency is counted."""
    X = (problem.X * 2.0**14).astype(np.float32)
    plain = drf.KernelRidge(drf.FourierFeatures(drf.Gaussian(2.0), 64), alpha=1.0, scale="none").fit(
        X, X[:, 0]
    )
    (note,) = plain.report_["notes"]
    n_far = np.sum(np.abs(X).max(axis=0) @ np.abs(plain.features_.frequencies_) > 2.0**14)
    assert n_far > 0 and note.startswith(f"{n_far} frequencies have phases too large for float32")
    assert "use dtype='float64'" in note
    for safe in ({"dtype": "float64"}, {"scale": "standard"}):
        assert not plain.set_params(**safe).fit(X, X[:, 0]).report_["notes"]
    X = problem.X.astype(np.float32)
    for width, are_large in ((1.0, True), (1e5, False)):
        map_ = drf.FourierFeatures(drf.Gaussian(width, metric=1e5 * P), 16, random_state=0)
        report = drf.KernelRidge(map_, alpha=1.0, scale="none").fit(X, X[:, 0]).report_
        assert any("phases too large for float32" in note for note in report["notes"]) == are_large
        assert report["kernel"].endswith("metric=ndarray[2, 4])")


@pytest.mark.parametrize("kind", [drf.FourierFeatures, drf.NystroemFeatures, drf.RandomBinningFeatures])
def test_the_error_of_a_kernel_with_a_metric_is_within_its_bound(problem, kind):
    kernel = (drf.Laplacian if kind is drf.RandomBinningFeatures else drf.Gaussian)(3.0, metric=P)
    map_ = kind(kernel, 64, random_state=0).fit(problem.X)
    error = drf.kernel_error(map_, problem.X, random_state=0, confidence=1 - 1e-9)
    assert 0 < error.max_error <= error.max_bound
