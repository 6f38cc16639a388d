"""scikit-learn's transformers as maps."""

import json
import math
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import PolynomialCountSketch
from sklearn.preprocessing import (
    KBinsDiscretizer,
    PolynomialFeatures,
    QuantileTransformer,
    SplineTransformer,
    StandardScaler,
)

from distrff.errors import InputError
from distrff.features.fitted import map_from_dict
from distrff.features.transformer import TransformerFeatures

STORED = [
    PolynomialFeatures(2),
    PolynomialFeatures((1, 3), interaction_only=True, include_bias=False),
    PolynomialCountSketch(n_components=7, degree=3, coef0=1),
    SplineTransformer(n_knots=4, degree=2),
    SplineTransformer(n_knots=5, include_bias=False, extrapolation="linear"),
    SplineTransformer(n_knots=5, extrapolation="periodic", knots="quantile"),
    SplineTransformer(knots=np.linspace(-2, 2, 15).reshape(5, 3), extrapolation="continue"),
    SplineTransformer(sparse_output=True),
    StandardScaler(),
    StandardScaler(with_mean=False),
    StandardScaler(with_mean=False, with_std=False),
    PCA(2),
    PCA(2, whiten=True),
]


@pytest.mark.parametrize("transformer", STORED, ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_stored_transformers_come_back_with_the_same_bits(rng, transformer, dtype):
    X, new = rng.standard_normal((50, 3)), (2 * rng.standard_normal((20, 3))).astype(dtype)
    map_ = TransformerFeatures(transformer, random_state=3).fit(X)
    expected = map_.transformer_.transform(new.astype(np.float64))
    expected = expected.toarray() if hasattr(expected, "toarray") else expected
    Z = map_.transform(new)
    assert Z.dtype == dtype
    assert Z.shape == (20, map_.outline(3, 20).n_features)
    rounding = 1e-6 if dtype == np.float32 else 1e-13
    np.testing.assert_allclose(Z, expected, rtol=rounding, atol=rounding)
    spec = map_.specification_
    stored = map_from_dict(json.loads(json.dumps(spec.to_dict(), allow_nan=False)))
    assert stored == spec
    stored.check_storable()
    arrays = {name: A.copy() for name, A in spec.checked_arrays().items()}
    np.testing.assert_array_equal(stored.build(arrays).apply(new), Z)
    assert spec.without_arrays() == pickle.loads(pickle.dumps(spec.without_arrays())) == spec


def test_others_work_but_are_not_stored(rng):
    X = rng.standard_normal((60, 3))
    map_ = TransformerFeatures(QuantileTransformer(n_quantiles=10)).fit(X)
    np.testing.assert_array_equal(map_.transform(X), map_.transformer_.transform(X))
    spec = pickle.loads(pickle.dumps(map_.specification_.without_arrays()))
    np.testing.assert_array_equal(spec.build().apply(X), map_.transform(X))
    namesake = type("PCA", (StandardScaler,), {})  # a name that scikit-learn has too
    for one, name in (
        (spec, "QuantileTransformer"),
        (TransformerFeatures(namesake()).fit(X).specification_, "PCA"),
    ):
        with pytest.raises(InputError, match=rf"a {name} cannot be stored .* PCA, .*StandardScaler"):
            one.check_storable()


def test_targets_seeds_parameters_and_sparse_output(rng):
    X, seed = rng.standard_normal((80, 4)), int(rng.integers(2**62))
    best = TransformerFeatures(SelectKBest(k=1)).fit(X, (X[:, 2] > 0).astype(int))
    np.testing.assert_array_equal(best.transform(X), X[:, 2:3])
    sketch = PolynomialCountSketch(n_components=5)
    one, other = (TransformerFeatures(sketch, random_state=seed).fit(X) for _ in range(2))
    np.testing.assert_array_equal(one.transform(X), other.transform(X))
    assert one.specification_ == other.specification_
    own = TransformerFeatures(PolynomialCountSketch(n_components=5, random_state=4)).fit(X)
    np.testing.assert_array_equal(own.transform(X), own.transformer.fit(X).transform(X))
    spec = TransformerFeatures(PolynomialFeatures(2)).set_params(transformer__degree=1).fit(X).specification_
    assert spec.n_features == 5 and math.isnan(spec.at_zero)
    Z = TransformerFeatures(KBinsDiscretizer(3, encode="onehot", strategy="uniform")).fit_transform(X)
    assert isinstance(Z, np.ndarray)
    scaler, other = StandardScaler().fit(X), 5 + 3 * X  # a fitted one is used as it is, by clones too
    for frozen in (scaler, FrozenEstimator(scaler)):
        map_ = clone(clone(TransformerFeatures(frozen))).fit(other)
        np.testing.assert_array_equal(map_.transform(other), scaler.transform(other))
    np.testing.assert_array_equal(Z.sum(axis=1), 4.0)
