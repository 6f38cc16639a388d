"""The learned metric: gradients from the Gram, and the directions that they show."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import subspace_angles

import distrff as drf
from distrff.errors import InputError
from distrff.features.search.metric import gradient_outer, metric_of
from distrff.utils.random import stream


def rows(n: int, d: int, seed: int) -> np.ndarray:
    return stream(seed, "rows").standard_normal((n, d))


# The average gradient outer product.


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("metric", [None, np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]])])
def test_gradients_from_the_gram_are_those_of_finite_differences(classes: int, metric: Any) -> None:
    X = rows(300, 3, 0)
    f = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
    s = stream(0, "weights").uniform(0.5, 2.0, len(X))
    kernel = drf.Gaussian(2.0, metric=metric)
    features = drf.FourierFeatures(kernel, 64, random_state=0)
    if classes:
        y: Any = np.digitize(f, [-0.5, 0.5])
        model: Any = drf.KernelRidgeClassifier(features, 0.1, random_state=0).fit(X, y, s)
        targets = np.where(y[:, None] == np.arange(classes), 1.0, -1.0)
        value = model.decision_function
    else:
        y = np.column_stack([f, 100 * X[:, 2]])
        model = drf.KernelRidge(features, 0.1, random_state=0).fit(X, y, s)
        targets, value = y, model.predict
    gram = drf.gram(X, model.features_, y, s, targets="classes" if classes else "numeric", cv=2, scale="auto")
    found = drf.gradient_outer_product(model, gram)

    # Central differences along the scaled columns; their error is h²·f‴/6, some 1e-8 of the gradient.
    deviation = np.sqrt(np.average(np.square(X - np.average(X, axis=0, weights=s)), axis=0, weights=s))
    h = 1e-4
    G = np.stack(
        [(value(X + h * step) - value(X - h * step)) / (2 * h) for step in np.diag(deviation)], axis=1
    )
    mean = np.average(targets, axis=0, weights=s)
    variance = np.average(np.square(targets - mean), axis=0, weights=s)
    expected = np.einsum("n,nik,njk,k->ij", s, G, G, 1 / variance) / s.sum()
    assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    assert_allclose(drf.gradient_outer_product(model.model_, gram), found)


def test_a_gram_of_another_map_or_features_without_gradients_are_refused() -> None:
    X = rows(60, 2, 0)
    y = X[:, 0]
    of = {
        form: drf.FourierFeatures(drf.Gaussian(1.0), 16, form=form, random_state=0)
        for form in ("cos_sin", "phase")
    }
    models = {form: drf.KernelRidge(one, 1.0, scale="none").fit(X, y) for form, one in of.items()}
    grams = {form: drf.gram(X, one.features_, y, scale="none") for form, one in models.items()}
    with pytest.raises(InputError, match="of another map"):
        drf.gradient_outer_product(models["cos_sin"], grams["phase"])
    with pytest.raises(InputError, match="cosines and sines"):
        drf.gradient_outer_product(models["phase"], grams["phase"])
    with pytest.raises(InputError, match="outputs"):
        drf.gradient_outer_product(
            models["cos_sin"], drf.gram(X, models["cos_sin"].features_, X, scale="none")
        )
    with pytest.raises(InputError, match="got GramStatistics and KernelRidge"):
        drf.gradient_outer_product(grams["cos_sin"], models["cos_sin"])


@pytest.mark.parametrize("d", [3, 40])  # 40 columns are more than the 16 features: M comes from a factor
def test_the_metric_is_the_root_of_the_gradients_product(d: int) -> None:
    W, coef = rows(d, 8, 1), rows(16, 2, 2)
    Z = rows(50, 16, 3)
    A = Z.T @ Z
    M, P = gradient_outer(W, coef, A, 50.0), metric_of(W, coef, A)
    assert P is not None
    assert len(P) <= min(d, 16)
    assert_allclose(np.trace(P.T @ P), d)
    assert_allclose(P.T @ P, M * d / np.trace(M), atol=1e-5 * d)
    assert metric_of(W, 0 * coef, A) is None


# Directions in made data.


def hidden_directions(seed: int, n: int = 4000, d: int = 20) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return X, y and V: y = sin(2v₁ᵀx) + v₂ᵀx·v₃ᵀx/2 + tanh(v₂ᵀx) + noise of deviation 0.1, V
    orthonormal."""
    rng = stream(seed, "directions")
    V = np.linalg.qr(rng.standard_normal((d, 3)))[0]
    X = rng.standard_normal((n, d))
    U = X @ V
    y = np.sin(2 * U[:, 0]) + 0.5 * U[:, 1] * U[:, 2] + np.tanh(U[:, 1]) + 0.1 * rng.standard_normal(n)
    return X, y, V


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_three_hidden_directions_are_found(seed: int) -> None:
    X, y, V = hidden_directions(seed)
    features = drf.FourierFeatures(drf.Gaussian("auto", metric="learned"), 512, random_state=seed)
    P = np.asarray(features.fit(X, y).kernel_.get_params()["metric"])
    assert_allclose(np.square(P).sum(), X.shape[1])
    _, _, directions = np.linalg.svd(P)
    angles = subspace_angles(V, directions[:3].T)
    assert angles.max() <= 0.1, angles


# Bins take the metric rotated, or by its diagonal.


@pytest.mark.parametrize("rotated", [True, False])
def test_bins_take_the_metric_rotated_or_by_its_diagonal(rotated: bool) -> None:
    rng = stream(3, "steps")
    X = rng.uniform(-1, 1, size=(2000, 3))
    u = (X[:, 0] + X[:, 1]) / np.sqrt(2) if rotated else X[:, 0]
    v = (X[:, 0] - X[:, 1]) / np.sqrt(2) if rotated else X[:, 1]
    y = np.floor(3 * u) % 2 + 0.5 * (np.floor(2 * v) % 2) + 0.05 * rng.standard_normal(len(X))
    kernel = (
        drf.RandomBinningFeatures(drf.Laplacian("auto", metric="learned"), 32, random_state=0)
        .fit(X, y)
        .kernel_
    )
    found = kernel.get_params()
    if rotated:
        P = np.asarray(found["metric"])
        assert_allclose(np.abs(P[:2, 2]), 0, atol=0.3 * np.abs(P).max())  # the third column does not matter
    else:
        assert found["metric"] is None
        assert np.argmax(found["length_scale"]) == 2
