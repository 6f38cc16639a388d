"""Very large and very small numbers: the same model, or a line that says which of them are at fault."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import distrff as drf
from distrff.errors import DataWarning, InputError

N_ROWS = 600


def estimator(kind=drf.KernelRidge, **parameters):
    features = drf.FourierFeatures(drf.Gaussian(2.0), 32, random_state=0)
    return kind(features, **({"scale": "standard", "random_state": 0} | parameters))


@pytest.fixture
def rows(rng):
    X = rng.standard_normal((N_ROWS, 3))
    return X, X[:, 0] + 0.1 * rng.standard_normal(N_ROWS)


@pytest.mark.parametrize("offset", [1e15, -1e16])
def test_a_target_with_a_large_offset_is_not_constant(rows, offset):
    X, y = rows
    y = y + offset
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        model = estimator(alpha=1e-3).fit(X, y)
    assert len(np.unique(y)) > 1
    # What is left are the digits of y: eighths, or twos.
    assert np.sqrt(np.mean((model.predict(X) - y) ** 2)) < 1.5 * np.spacing(abs(offset))
    r2 = 1 - np.sum((model.predict(X) - y) ** 2) / np.sum((y - offset - (y - offset).mean()) ** 2)
    assert model.score(X, y) == pytest.approx(r2, abs=1e-6)


@pytest.mark.parametrize("power", [-1000, -600, -410, 400])
def test_a_column_of_any_size_has_its_effect(rows, power):
    X, y = rows
    expected = estimator(alpha=1e-2).fit(X, y).predict(X)
    of_size = np.ldexp(X, [power, 0, 0])
    found = estimator(alpha=1e-2).fit(of_size, y).predict(of_size)
    # Shift and deviation are off by a few units in the last place, of numbers of size 1.
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("kind", [drf.KernelRidge, drf.KernelSVC, drf.KernelLikelihoodClassifier])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weight", [1e-320, 1e-200, 1e-26, 2e-25, 5e24, 1e26, 1e200])
def test_weights_of_any_size_are_taken_or_told(rows, kind, dtype, weight):
    X, y = rows
    y = y if kind is drf.KernelRidge else y > 0
    weights = np.full(N_ROWS, weight)
    weights[:5] = 0.0
    penalty = (
        {"alpha": weight}
        if kind is drf.KernelRidge
        else {"C": min(max(1 / max(weight, 1e-300), 1e-50), 1e50)}
    )
    model = estimator(kind, dtype=dtype, **penalty)
    if 1e-26 < weight < 1e26:
        assert model.fit(X, y, weights).score(X, y) > 0.9
    else:
        with pytest.raises(InputError, match=r"sample_weight is .* on average, but .* 1e-25 to 1e\+25"):
            model.fit(X, y, weights)


@pytest.mark.parametrize("kind", [drf.KernelSVC, drf.KernelLikelihoodClassifier, drf.KernelRidgeClassifier])
@pytest.mark.parametrize("length_scale", [2.0, "auto"])
def test_class_weights_too_large_for_products_are_told(rows, kind, length_scale):
    """An automatic width is judged with these weights as well."""
    X, y = rows
    features = drf.FourierFeatures(drf.Gaussian(length_scale), 32, random_state=0)
    for weights in ({True: 1e300}, {True: 1e300, False: 1e-300}, {True: 1e-300, False: 1e-300}):
        model = kind(features, class_weight=weights, scale="standard", random_state=0)
        told = r"sample_weight times class_weight is .* on average, but .* 1e-25 to 1e\+25"
        with pytest.raises(InputError, match=told):
            model.fit(X, y > 0)


def test_single_weights_may_be_of_any_size(rows):
    weights = np.ones(N_ROWS)
    weights[:3] = [1e-320, 1e-200, 1e-100]
    assert estimator(alpha=1e-2).fit(*rows, weights).score(*rows) > 0.9
