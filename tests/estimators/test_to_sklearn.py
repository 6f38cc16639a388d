"""Models as pipelines of scikit-learn's own parts: the same predictions."""

import pickle
import re

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn import config_context
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import PolynomialCountSketch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import QuantileTransformer, SplineTransformer, StandardScaler

import distrff as drf
from distrff.errors import DataWarning, InputError

N, D = 120, 3
# Features of both sides are good to about 1e-15, and kernels of landmarks are solved against a factor whose
# condition is at most 2²⁰: weights of size 1e2 leave 1e-6 of what is asked for.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}

KERNELS = {
    "gaussian": drf.Gaussian(2.0),
    "widths": drf.Gaussian((1.0, 2.0, 3.0)),
    "matern": drf.Matern((2.0, 2.0, 4.0), 2.5),
    "sum": 0.5 * drf.Gaussian(2.0) + drf.Exponential(3.0),
    "product": 3.0 * (drf.Gaussian(2.0) * drf.Matern(3.0)),
    "metric": drf.Matern(2.0, 2.5, metric=[[1.0, 0.5, -0.5], [0.0, 2.0, 1.0]]),
}
MAPS = {
    **{f"fourier {name}": drf.FourierFeatures(k, 32, random_state=1) for name, k in KERNELS.items()},
    "fourier laplacian": drf.FourierFeatures(drf.Laplacian(2.0), 32, random_state=1),
    "fourier phase": drf.FourierFeatures(2 * drf.Cauchy(2.0), 31, form="phase", random_state=1),
    **{
        f"fourier {s}": drf.FourierFeatures(drf.Gaussian(2.0), 32, sampling=s, random_state=1)
        for s in ("orthogonal", "qmc", "fastfood", "countsketch")
    },
    **{f"nystroem {name}": drf.NystroemFeatures(k, 20, random_state=1) for name, k in KERNELS.items()},
    "nystroem laplacian": drf.NystroemFeatures(drf.Laplacian(2.0), 20, random_state=1),
    "nystroem scaled laplacian": drf.NystroemFeatures(3 * drf.Laplacian((2.0,) * D), 20, random_state=1),
    "nystroem polynomial": drf.NystroemFeatures(drf.Polynomial(2, 0.5), 20, random_state=1),  # rank 10
    "linear": drf.LinearFeatures(),
    "splines": drf.TransformerFeatures(SplineTransformer(4)),
    "components": drf.TransformerFeatures(PCA(2)),
    "sketch": drf.TransformerFeatures(PolynomialCountSketch(degree=2, n_components=16, random_state=0)),
    "quantiles": drf.TransformerFeatures(QuantileTransformer(n_quantiles=20)),
    "concatenated": drf.ConcatenatedFeatures(
        [drf.LinearFeatures(), drf.FourierFeatures(2 * drf.Gaussian(2.0), 16, random_state=1)],
        weights=[0.5, 2.0],
    ),
    "concatenated metric": drf.ConcatenatedFeatures(
        [drf.NystroemFeatures(drf.Gaussian(2.0, metric=[[1.0, 2.0, 0.0]]), 20), drf.LinearFeatures()]
    ),
}


@pytest.fixture
def rows(rng):
    return rng.standard_normal((N, D)) * [1.0, 1.0, 2.0] + [0.0, 1.0, -1.0]


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.filterwarnings("ignore:X has feature names:UserWarning")  # it was fitted without a container
def test_every_map_that_has_one_and_its_features_have_names_in_every_container(rows, name):
    y = np.sin(rows).sum(axis=1)
    plain = drf.KernelRidge(MAPS[name], alpha=1e-2, scale="none").fit(rows[:80], y[:80])
    np.testing.assert_allclose(plain.to_sklearn().predict(rows), plain.predict(rows), **CLOSE)
    model = drf.KernelRidge(MAPS[name], alpha=1e-2, scale="standard").fit(rows, rows[:, 0])
    pipeline = model.to_sklearn()
    assert all(type(part).__module__.startswith("sklearn.") for _, part in pipeline.steps)
    names = pipeline[:-1].get_feature_names_out().tolist()
    assert len(set(names)) == len(names) == model.model_.specification.n_features
    for container in ("pandas", "polars"):
        with config_context(transform_output=container):
            assert list(pipeline[:-1].transform(rows).columns) == names
            np.testing.assert_allclose(pipeline.predict(rows), model.predict(rows), **CLOSE)
        pipeline.set_output(transform=container)
        assert list(pipeline[:-1].transform(rows).columns) == names


@pytest.mark.parametrize("name", MAPS)
def test_a_clone_has_the_same_kernel_and_size(rows, name):
    """The Gram of features drawn anew is that of the kernel, within the error of so many features."""
    model = drf.KernelRidge(MAPS[name], alpha=1e-2, scale="standard").fit(rows, rows[:, 0])
    pipeline = model.to_sklearn()
    Z, again = (p[:-1].transform(rows) for p in (pipeline, clone(pipeline).fit(rows, rows[:, 0])))
    assert Z.shape == again.shape
    # Gaussian kernels of one width, and landmarks, are drawn anew; 32 features err by about .2 in the mean.
    off = np.abs(Z @ Z.T - again @ again.T).mean() / np.abs(np.diag(Z @ Z.T)).mean()
    is_drawn = name in _DRAWN or "nystroem" in name or "concatenated" in name
    assert off < (0.4 if is_drawn else 1e-12)


_DRAWN = ("fourier gaussian", "fourier orthogonal", "fourier qmc", "fourier fastfood", "fourier countsketch")


@pytest.mark.parametrize(("kernel", "gamma"), [(drf.Gaussian(2.0), 0.125), (drf.Gaussian((2.0,) * D), 0.125)])
def test_parts_show_their_parameters(rows, kernel, gamma):
    features = drf.FourierFeatures(kernel, 32, random_state=0)
    pipeline = drf.KernelRidge(features, alpha=1e-2, scale="standard").fit(rows, rows[:, 0]).to_sklearn()
    sampler, ridge = pipeline["features"], pipeline["machine"]
    assert (sampler.gamma, sampler.n_components, ridge.alpha) == (gamma, 32, 1e-2)
    features = drf.NystroemFeatures(3 * drf.Laplacian(2.0), 20, random_state=0)
    pipeline = drf.KernelRidge(features, alpha="cv", scale="none").fit(rows, rows).to_sklearn()
    ((_, part),), (factor,) = (
        pipeline["features"].transformer_list,
        pipeline["features"].transformer_weights.values(),
    )
    assert (part.kernel, part.gamma, part.n_components, factor) == ("laplacian", 0.5, 20, np.sqrt(3))


FROZEN = drf.FourierFeatures(3 * drf.Matern(2.0, 2.5), 32, random_state=0)
EXACT = {"scale": "none", "dtype": "float64"}


@pytest.mark.parametrize(
    "model",
    [
        drf.KernelRidge(FROZEN, alpha="cv", scale="standard", random_state=0),
        drf.KernelRidge(FROZEN, alpha=0.3, fit_intercept=False, **EXACT),
        drf.KernelRidgeClassifier(FROZEN, alpha=0.3, class_weight="balanced", **EXACT),
        drf.KernelSVC(FROZEN, C=0.3, loss="squared_hinge", fit_intercept=False, tol=1e-9, **EXACT),
        drf.KernelSVC(FROZEN, C=0.3, fit_intercept=False, tol=1e-6, **EXACT),
        drf.KernelLikelihoodClassifier(
            FROZEN,
            C=0.3,
            sigma=0.7,
            tol=1e-9,
            class_weight={0: 1.0, 1: 2.0, 2: 1.0},
            multi_class="softmax",
            **EXACT,
        ),
        drf.KernelLikelihoodClassifier(FROZEN, C=0.3, sigma=0.7, tol=1e-9, **EXACT),
        drf.KernelPCA(FROZEN, n_components=2, scale="none"),
    ],
)
def test_a_clone_that_is_fitted_anew_is_the_same_model_on_the_same_features(rows, model):
    """So each parameter means there what it means here."""
    y = rows[:, 0] if isinstance(model, drf.KernelRidge) else (rows[:, 0] > 0) + (rows[:, 1] > 2).astype(int)
    pipeline = model.fit(rows, y).to_sklearn()
    again = clone(pipeline)
    tolerances = [name for name in again.get_params() if re.fullmatch("machine__.*tol", name)]
    again.set_params(**dict.fromkeys(tolerances, 1e-8)).fit(rows, y)
    name = next(name for name in ("decision_function", "transform", "predict") if hasattr(pipeline, name))
    # Without their signs, since those of components are arbitrary.
    found, expected = (np.abs(getattr(one, name)(rows)) for one in (again, pipeline))
    np.testing.assert_allclose(found, expected, atol=1e-2 * expected.max())


def test_class_weights_that_a_clone_has_not_are_said(rows):
    y = np.digitize(rows[:, 0], [-0.5, 0.5])
    model = drf.KernelLikelihoodClassifier(MAP, class_weight="balanced", scale="none").fit(rows, y)
    with pytest.warns(DataWarning, match="has no class_weight"):
        pipeline = model.to_sklearn()
    np.testing.assert_allclose(pipeline.predict_proba(rows), model.predict_proba(rows), **CLOSE)


def test_rows_scaled_without_a_shift_are_so_in_a_clone(rows):
    X = csr_matrix(rows)
    model = drf.KernelRidge(FROZEN, alpha=1e-2).fit(X, rows[:, 0])
    again = clone(model.to_sklearn()).fit(X, rows[:, 0])
    assert isinstance(again["scale"], FrozenEstimator)
    np.testing.assert_allclose(again.predict(X), model.predict(X), **CLOSE)


MAP = drf.FourierFeatures(drf.Gaussian(2.0), 32, random_state=0)
CLASSIFIERS = {
    "ridge": drf.KernelRidgeClassifier(MAP, alpha=1.0, scale="none"),
    "svc": drf.KernelSVC(MAP, scale="none"),
    "logistic": drf.KernelLikelihoodClassifier(MAP, sigma=0.7, scale="none"),
    "softmax": drf.KernelLikelihoodClassifier(MAP, sigma=0.7, multi_class="softmax", scale="none"),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("labels", [["no", "yes"], [3, 5, 9]], ids=["two", "three"])
def test_classifiers(rows, name, labels):
    edges = np.quantile(rows[:, 0], np.linspace(0, 1, len(labels) + 1)[1:-1])
    y = np.asarray(labels)[np.searchsorted(edges, rows[:, 0])]
    model = CLASSIFIERS[name].fit(rows, y)
    pipeline = model.to_sklearn()
    np.testing.assert_array_equal(pipeline.classes_, model.classes_)
    F, G = model.decision_function(rows), pipeline.decision_function(rows)
    np.testing.assert_allclose(G, F / getattr(model, "sigma", 1.0), **CLOSE)
    clear = np.abs(F) > 1e-4 if F.ndim == 1 else np.ptp(np.partition(F, -2)[:, -2:], axis=1) > 1e-4
    np.testing.assert_array_equal(pipeline.predict(rows)[clear], model.predict(rows)[clear])
    if hasattr(model, "predict_proba"):
        np.testing.assert_allclose(pipeline.predict_proba(rows), model.predict_proba(rows), **CLOSE)


@pytest.mark.parametrize("features", [MAP, drf.LinearFeatures(), MAPS["concatenated"]])
def test_names_of_columns_are_checked_as_ever(rows, features):
    frame = pd.DataFrame(rows, columns=["a", "b", "c"])
    pipeline = drf.KernelRidge(features, alpha=1.0, scale="none").fit(frame, rows[:, 0]).to_sklearn()
    assert pipeline.feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names"):
        pipeline.predict(frame[["b", "a", "c"]])


MAPS_WITH_ONE = "FourierFeatures, NystroemFeatures"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (drf.KernelRidge(drf.RandomBinningFeatures(n_grids=8), alpha=1.0, scale="none"), MAPS_WITH_ONE),
        (drf.KernelRidge(drf.NystroemFeatures(drf.Cauchy(2.0), 8), alpha=1.0, scale="none"), MAPS_WITH_ONE),
        (
            drf.KernelRidge(drf.NystroemFeatures(drf.Laplacian((1.0, 2.0, 3.0)), 8), alpha=1.0, scale="none"),
            MAPS_WITH_ONE,
        ),
        (drf.KernelLikelihoodClassifier(MAP, noise="probit", scale="none"), "noise='logistic' has one"),
    ],
    ids=["binning", "cauchy landmarks", "laplacian widths", "probit"],
)
def test_what_has_none_is_refused(rows, model, message):
    model.fit(rows, rows[:, 0] > 0)
    with pytest.raises(InputError, match=message):
        model.to_sklearn()


def test_it_is_pickled_without_distrff_and_taken_apart(rows):
    pipeline = drf.KernelRidge(MAP, scale="standard", alpha=1.0).fit(rows, rows[:, 0]).to_sklearn()
    text = pickle.dumps(pipeline)
    assert b"distrff" not in text
    np.testing.assert_array_equal(pickle.loads(text).predict(rows), pipeline.predict(rows))
    model = drf.KernelLikelihoodClassifier(MAP, scale="none").fit(rows, rows[:, 0] > 0)
    pipeline = model.to_sklearn()
    assert isinstance(pipeline[-1], LogisticRegression)
    Z = pipeline[:-1].transform(rows)
    np.testing.assert_allclose(Z, model.features_.transform(rows), atol=1e-12)
    assert not isinstance(pipeline[0], StandardScaler)
