"""Models on maps side by side and on scikit-learn's transformers."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    SplineTransformer,
)

from distrff.errors import InputError
from distrff.estimators.gram import fit_features, gram
from distrff.estimators.ridge import KernelRidge
from distrff.estimators.svm import KernelSVC
from distrff.features.compose import ConcatenatedFeatures, LinearFeatures
from distrff.features.fourier import FourierFeatures
from distrff.features.nystroem import NystroemFeatures
from distrff.features.transformer import TransformerFeatures
from distrff.kernels.stationary import Gaussian
from tests.support.fits import stored


def mixed(width=2.0):
    return ConcatenatedFeatures(
        [
            FourierFeatures(Gaussian(width), 32),
            NystroemFeatures(Gaussian(width), 24, landmarks="leverage"),
            TransformerFeatures(PolynomialFeatures(2, include_bias=False)),
            TransformerFeatures(SplineTransformer()),
            LinearFeatures(),
        ]
    )


DERIVED = ConcatenatedFeatures([FourierFeatures(Gaussian(2.0), 32), LinearFeatures()], weights=[2, 0.1])


def test_a_quadratic_basis_is_the_quadratic_model(problem):
    X, y = problem.X, problem.y
    model = KernelRidge(TransformerFeatures(PolynomialFeatures(2, include_bias=False)), alpha=0.5).fit(X, y)
    expected = make_pipeline(PolynomialFeatures(2, include_bias=False), Ridge(alpha=0.5)).fit(X, y)
    np.testing.assert_allclose(model.predict(X), expected.predict(X), atol=1e-8)


@pytest.mark.parametrize(
    "model",
    [
        KernelRidge(mixed(), alpha="cv", random_state=0),
        KernelRidge(mixed("auto"), alpha="gcv", random_state=0),
        KernelRidge(DERIVED, solver="cg", random_state=0),
        KernelRidge(TransformerFeatures(SplineTransformer()), alpha="cv", scale="standard", random_state=0),
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


@pytest.mark.parametrize(
    "transformer",
    [
        PCA(0.7),  # as many columns as the data says
        QuantileTransformer(n_quantiles=20),
        FunctionTransformer(np.log, check_inverse=False),
        PowerTransformer(method="box-cox"),
    ],
    ids=lambda transformer: type(transformer).__name__,
)
def test_any_transformer_fits_on_a_cluster_as_in_memory(problem, client, transformer):
    positive = np.exp(problem.X @ np.diag([1.5, 1.0, 0.5, 0.5]))
    model = KernelRidge(TransformerFeatures(transformer), alpha="cv", random_state=0)
    fitted = clone(model).fit(da.from_array(positive, chunks=(130, -1)), da.from_array(problem.y, chunks=90))
    basis = fitted.features_.transform(positive)
    by_itself = fitted.features_.transformer_.transform(positive)
    np.testing.assert_allclose(basis, by_itself, rtol=1e-9, atol=1e-9)
    expected = Ridge(alpha=fitted.alpha_).fit(basis, problem.y).predict(basis)
    np.testing.assert_allclose(fitted.predict(positive), expected, rtol=1e-6, atol=1e-6)
    labels = problem.y > 0
    assert KernelSVC(TransformerFeatures(transformer)).fit(positive, labels).score(positive, labels) > 0.5


def test_what_cannot_be_stored_is_refused_by_name(problem, tmp_path):
    map_ = TransformerFeatures(QuantileTransformer(n_quantiles=20))
    for features in (map_, ConcatenatedFeatures([LinearFeatures(), map_])):
        model = KernelRidge(features).fit(problem.X, problem.y)
        assert model.score(problem.X, problem.y) > 0.1
        with pytest.raises(InputError, match="QuantileTransformer cannot be stored"):
            model.save(str(tmp_path / "model.zarr"))
        with pytest.raises(InputError, match="QuantileTransformer cannot be stored"):
            gram(problem.X, fit_features(features, problem.X), problem.y).save(str(tmp_path / "gram.zarr"))
    assert not list(tmp_path.iterdir())
