"""True and False are no numbers: every parameter that wants one refuses them."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

import distrff as drf
from distrff.errors import InputError

TRUTH = {"fit_intercept"}  # what is one
OTHERS = {
    *("features", "kernel", "maps", "transformer"),
    *("fold_by", "scale", "dtype", "solver", "loss", "noise", "multi_class", "form", "sampling", "landmarks"),
}
LISTS = {"alphas", "Cs", "weights"}
MODELS = [
    drf.KernelRidge, drf.KernelRidgeClassifier, drf.KernelSVC, drf.KernelLikelihoodClassifier, drf.KernelPCA,
]  # fmt: skip
MAPS = {
    drf.FourierFeatures: {}, drf.NystroemFeatures: {}, drf.RandomBinningFeatures: {},
    drf.TransformerFeatures: {"transformer": StandardScaler()},
    drf.ConcatenatedFeatures: {"maps": [drf.FourierFeatures(n_components=4)] * 2},
}  # fmt: skip
KERNELS = {
    drf.Gaussian: {}, drf.Laplacian: {}, drf.Cauchy: {}, drf.Exponential: {}, drf.Matern: {},
    drf.Polynomial: {"degree": 2},
}  # fmt: skip


def numeric(kind) -> list[str]:
    return [name for name in inspect.signature(kind).parameters if name not in TRUTH | OTHERS]


def values(name: str) -> list:
    lists = [[True, 2.0], [2.0, np.False_], np.array([True, True])]
    if name == "class_weight":
        return [True, {0: True, 1: 1.0}, {0: 1.0, 1: np.True_}]
    return [True, False, np.True_, *(lists if name in LISTS | {"alpha", "length_scale"} else [])]


CASES = [(kind, name) for kind in (*MODELS, *MAPS, *KERNELS) for name in numeric(kind)]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda v: getattr(v, "__name__", v))
@pytest.mark.filterwarnings("ignore")
def test_no_number_is_true(kind, name, rng):
    X = rng.standard_normal((40, 3))
    y = (X[:, 0] > 0).astype(int)
    for value in values(name):
        with pytest.raises(InputError, match=name):
            if kind in MODELS:
                # Folds count only where something is chosen by them.
                search = {"alpha": "cv"} if name == "cv" and hasattr(kind(), "alpha") else {}
                search = {"C": "cv"} if name in ("cv", "Cs") and hasattr(kind(), "C") else search
                kind(drf.FourierFeatures(n_components=4), **(search | {name: value})).fit(X, y)
            elif kind in MAPS:
                kind(**(MAPS[kind] | {name: value})).fit(X)
            else:
                kind(**(KERNELS[kind] | {name: value}))


def test_numbers_of_numpy_are_numbers(rng):
    X = rng.standard_normal((40, 3))
    features = drf.FourierFeatures(drf.Gaussian(np.float32(2)), np.int64(8), random_state=np.uint8(3))
    model = drf.KernelRidge(features, alpha=[np.float32(1)], cv=np.int32(3), tol=np.float64(0.1)).fit(
        X, X[:, 0]
    )
    assert model.features_.n_components == 8


@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["large", "negative"])
def test_integers_that_no_float_holds(value, rng):
    X = rng.standard_normal((40, 3))
    for kind, name in ((drf.KernelSVC, "C"), (drf.KernelRidge, "alpha"), (drf.KernelRidge, "tol")):
        with pytest.raises(InputError, match=name):
            kind(drf.FourierFeatures(n_components=4), **{name: value}).fit(X, X[:, 0] > 0)
