"""Very large and very small numbers are used or named; True and False are no numbers."""

import inspect
import warnings

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

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
    weights = np.ones(N_ROWS)  # single weights may be of any size as well
    weights[:3] = [1e-320, 1e-200, 1e-100]
    assert estimator(alpha=1e-2).fit(X, y, weights).score(X, y) > 0.9


@pytest.mark.parametrize("kind", [drf.KernelRidge, drf.KernelSVC, drf.KernelLikelihoodClassifier])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weight", [1e-320, 1e-200, 1e-26, 2e-25, 5e24, 1e26, 1e200])
def test_weights_of_any_size_are_taken_or_told(rows, kind, dtype, weight):
    X, y = rows
    y = y if kind is drf.KernelRidge else y > 0
    weights = np.full(N_ROWS, weight)
    weights[:5] = 0.0
    C = min(max(1 / max(weight, 1e-300), 1e-50), 1e50)
    model = estimator(kind, dtype=dtype, **({"alpha": weight} if kind is drf.KernelRidge else {"C": C}))
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


# True and False are no numbers: every parameter that wants one refuses them


TRUTH = {"fit_intercept", "warm_start", "keep_features", "alpha_per_target"}  # what is one, or may be
OTHERS = {
    *("features", "kernel", "maps", "transformer"),
    *("fold_by", "scale", "dtype", "solver", "loss", "noise", "multi_class", "form", "sampling", "landmarks"),
}
LISTS = {"alphas", "Cs", "weights"}
MODELS = [
    drf.KernelRidge, drf.KernelRidgeClassifier, drf.KernelSVC, drf.KernelLikelihoodClassifier, drf.KernelPCA,
    drf.KernelRegressor, drf.KernelSVR,
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


def values(name: str) -> list:
    lists = [[True, 2.0], [2.0, np.False_], np.array([True, True])]
    if name == "class_weight":
        return [True, {0: True, 1: 1.0}, {0: 1.0, 1: np.True_}]
    return [True, False, np.True_, *(lists if name in LISTS | {"alpha", "length_scale"} else [])]


CASES = [
    (kind, name)
    for kind in (*MODELS, *MAPS, *KERNELS)
    for name in inspect.signature(kind).parameters
    if name not in TRUTH | OTHERS
]


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


@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["large", "negative"])
def test_integers_that_no_float_holds(value, rng):
    X = rng.standard_normal((40, 3))
    for kind, name in ((drf.KernelSVC, "C"), (drf.KernelRidge, "alpha"), (drf.KernelRidge, "tol")):
        with pytest.raises(InputError, match=name):
            kind(drf.FourierFeatures(n_components=4), **{name: value}).fit(X, X[:, 0] > 0)
