"""The frozen model on NumPy blocks."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pandas as pd
import pytest

import distrff as drf
from distrff.errors import InputError
from distrff.features.fourier import FourierFeatures
from distrff.kernels.stationary import Gaussian
from distrff.preprocessing.scaling import Scaling
from tests.support.models import frozen_model


@pytest.fixture
def X(rng):
    return rng.standard_normal((300, 3))


def model_of(rng, dtype="float64", n_outputs=2, y_is_1d=True):
    features = FourierFeatures(Gaussian(2.0), 64, random_state=0)
    scaling = Scaling(np.full(3, 0.5), np.full(3, 2.0))
    fields = dict(scaling=scaling, dtype=dtype, y_is_1d=y_is_1d)
    return frozen_model(features, rng, n_columns=3, n_outputs=n_outputs, **fields), features


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_predicts_the_formula(rng, X, dtype):
    model, features = model_of(rng, dtype, y_is_1d=False)
    Z = features.transform(((X - 0.5) / 2).astype(dtype))
    np.testing.assert_array_equal(model.transform(X), Z)
    # A sum of 64 products in `dtype`, each at most max|w|·√(1/32).
    bound = 64 * np.finfo(dtype).eps * np.abs(model.coef).sum(0).max()
    np.testing.assert_allclose(model.predict(X), Z @ model.coef + model.intercept, rtol=0, atol=bound)


def test_rows_of_any_container(rng, X):
    model, _ = model_of(rng)
    expected = model.predict(X)
    for same in (X.tolist(), pd.DataFrame(X), da.from_array(X, chunks=100)):
        np.testing.assert_array_equal(model.predict(same), expected)
    with pytest.raises(InputError, match="X must hold numbers, got dtype object"):
        model.predict(pd.DataFrame(X).assign(name="a"))
    assert repr(model) == "<Model KernelRidge: 3 columns → 64 features → 2 output(s)>"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_strips_of_any_height_predict_alike(rng, X, dtype, monkeypatch):
    """Memory is bounded by cutting rows into strips, which show only in the last digits."""
    model, _ = model_of(rng, dtype, y_is_1d=False)
    whole, Z = model.predict(X), model.transform(X)
    monkeypatch.setattr("distrff.model.model._STRIP_BYTES", 1)  # the least, sixteen rows
    bound = 64 * np.finfo(dtype).eps * np.abs(model.coef).sum(0).max()
    np.testing.assert_allclose(model.predict(X), whole, rtol=0, atol=bound)
    # Phases of a few units, in products of other heights.
    np.testing.assert_allclose(model.transform(X), Z, rtol=0, atol=64 * np.finfo(dtype).eps)


@pytest.mark.parametrize("X_dtype", [np.float32, np.int16, bool])
def test_rows_of_any_real_type(rng, X, X_dtype):
    model, _ = model_of(rng)
    rows = X.astype(X_dtype)
    np.testing.assert_array_equal(model.predict(rows), model.predict(rows.astype(np.float64)))


def test_shapes(rng, X):
    one, _ = model_of(rng, n_outputs=1)
    column, _ = model_of(rng, n_outputs=1, y_is_1d=False)
    assert one.predict(X).shape == (300,) and column.predict(X).shape == (300, 1)
    assert one.decision(X).shape == (300, 1) and (one.n_columns, one.n_outputs) == (3, 1)
    assert one.predict(X[:0]).shape == (0,)


@pytest.mark.parametrize("wrong", [(5, 2), (5,), (5, 3, 1)])
@pytest.mark.parametrize("method", ["predict", "decision", "transform"])
def test_rows_of_another_shape(rng, wrong, method):
    model, _ = model_of(rng)
    with pytest.raises(InputError, match=r"X must have shape \(n_samples, 3\), got"):
        getattr(model, method)(np.zeros(wrong))


def test_no_spread_without_a_posterior(rng, X):
    model, _ = model_of(rng)
    with pytest.raises(InputError, match="include_std=True"):
        model.std(X)


def test_rows_that_are_not_finite_are_named(rng):
    X = rng.standard_normal((50, 3))
    model = drf.KernelRidge(drf.FourierFeatures(drf.Gaussian(1.0), 16)).fit(X, X[:, 0]).model_
    X[7, 2] = np.nan
    for method in (model.predict, model.decision, model.transform):
        with pytest.raises(InputError, match="NaN or infinity in row 7, column 2"):
            method(X)
