"""Models that left out a fold: their held-out errors are those that chose the penalty."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import distrff as drf
import distrff.fitting.gram
from distrff.preprocessing.folds import Keys

N = 600


def _features(seed: int = 1) -> drf.FourierFeatures:
    return drf.FourierFeatures(drf.Gaussian(1.5), 64, random_state=seed)


def _numbers(rng: np.random.Generator, n_targets: int = 1) -> tuple[np.ndarray, np.ndarray]:
    X = rng.normal(size=(N, 3))
    y = np.sin(X @ rng.normal(size=(3, n_targets))) + 0.1 * rng.normal(size=(N, n_targets)) + 5.0
    return X, y[:, 0] if n_targets == 1 else y


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_targets", [1, 2])
@pytest.mark.parametrize("fold_by", ["hash", "contiguous"])
def test_out_of_fold_error_is_that_of_cross_validation(
    rng: np.random.Generator, fit_intercept: bool, n_targets: int, fold_by: str
) -> None:
    X, y = _numbers(rng, n_targets)
    s = rng.uniform(0.5, 2.0, N)
    model = drf.KernelRidge(_features(), fit_intercept=fit_intercept, fold_by=fold_by, random_state=0)
    model.fit(X, y, s)
    folds = model._out_of_fold_models()
    assert folds is not None
    F = replace(model.model_, fold_models=folds).out_of_fold(Keys(np.arange(N), X=X), "decision")
    error = np.average(np.square(F - y.reshape(N, -1)), axis=0, weights=s).mean()
    # The search reads errors off the Grams: rounding alone differs.
    assert error == pytest.approx(model.cv_score_, rel=1e-6)


@pytest.mark.parametrize("n_rows", [N, 64, 60])  # and no more rows than features
def test_models_of_a_long_path_are_solved_anew(
    rng: np.random.Generator, n_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = _numbers(rng, 2)
    X, y = X[:n_rows], y[:n_rows]
    of_search, solved_anew = (
        drf.KernelRidge(_features(), alphas=[0.1, 1.0, 10.0], random_state=0) for _ in "ab"
    )
    of_search.fit(X, y)
    monkeypatch.setattr(distrff.fitting.gram, "MAX_PATH_BYTES", 0)
    solved_anew.fit(X, y)
    assert of_search.alpha_ == solved_anew.alpha_
    ours, theirs = (model._out_of_fold_models() for model in (of_search, solved_anew))
    assert ours is not None and theirs is not None
    # One comes from a reduction of its matrix, the other from a factor. Each is off by about D·eps times the
    # condition number, here at most n_rows/alpha + 1.
    rtol = 10 * 64 * 2.2e-16 * (n_rows / of_search.alpha_ + 1)
    for name in ("coef", "intercept"):
        found, expected = getattr(ours, name), getattr(theirs, name)
        assert np.linalg.norm(found - expected) <= rtol * np.linalg.norm(expected)
    assert not np.array_equal(ours.coef, theirs.coef)


@pytest.mark.parametrize(
    "features",
    [
        drf.RandomBinningFeatures(drf.Laplacian(2.0), 30, random_state=0),
        drf.EquispacedFourierFeatures(drf.Matern(1.0, nu=1.5), 300),
    ],
    ids=["binning", "equispaced"],
)
def test_models_without_a_gram(rng: np.random.Generator, features: Any) -> None:
    X = rng.uniform(-1, 1, size=(N, 1))
    y = np.sin(4 * X[:, 0]) + 0.1 * rng.normal(size=N)
    model = drf.KernelRidge(features, tol=1e-6, random_state=0).fit(X, y)
    folds = model._out_of_fold_models()
    assert folds is not None
    F = replace(model.model_, fold_models=folds).out_of_fold(Keys(np.arange(N), X=X), "decision")
    # Both are solved to the tolerances of their searches.
    assert np.square(F[:, 0] - y).mean() == pytest.approx(model.cv_score_, rel=0.02)


@pytest.mark.parametrize("multi_class", ["ovr", "softmax"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_likelihoods_by_the_search_for_C(rng: np.random.Generator, multi_class: str, n_classes: int) -> None:
    X = rng.normal(size=(N, 2))
    y = np.digitize(X[:, 0] + 0.3 * rng.normal(size=N), np.linspace(-0.5, 0.5, n_classes - 1))
    model = drf.KernelLikelihoodClassifier(
        _features(), C="cv", Cs=[0.1, 1.0], multi_class=multi_class, tol=1e-4, random_state=0
    ).fit(X, y)
    folds = model._out_of_fold_models()
    assert folds is not None
    F = replace(model.model_, fold_models=folds).out_of_fold(Keys(np.arange(N), X=X), "decision")
    if n_classes == 2:
        losses = np.logaddexp(0, -np.where(y == 1, 1, -1) * F[:, 0])
    elif multi_class == "softmax":
        losses = np.logaddexp.reduce(F, axis=1) - F[np.arange(N), y]
    else:
        losses = np.logaddexp(0, -np.where(y[:, None] == np.arange(n_classes), 1, -1) * F).mean(axis=1)
    assert losses.mean() == pytest.approx(model.cv_score_, rel=1e-9)


def test_fits_without_folds_have_none_and_pickles_drop_them(rng: np.random.Generator) -> None:
    X, y = _numbers(rng)
    assert drf.KernelRidge(_features(), alpha=1.0).fit(X, y)._out_of_fold_models() is None
    assert drf.KernelRidge(_features(), alpha="gcv").fit(X, y)._out_of_fold_models() is None
    assert drf.KernelSVC(_features()).fit(X, y > 5)._out_of_fold_models() is None
    model = drf.KernelRidge(_features()).fit(X, y)
    assert model._out_of_fold_models() is not None and model._fit_rows is not None
    restored = pickle.loads(pickle.dumps(model))
    assert restored._out_of_fold_models() is None and restored._fit_rows is None
    model.set_params(alpha=1.0).fit(X, y)
    assert model._out_of_fold_models() is None
