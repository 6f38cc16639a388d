"""Maps side by side: the weighted sum of their kernels."""

import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.preprocessing import PolynomialFeatures

from distrff.errors import InputError
from distrff.features import nystroem
from distrff.features.base import product_cost
from distrff.features.compose import ConcatenatedFeatures, LinearFeatures
from distrff.features.fourier import FourierFeatures
from distrff.features.nystroem import NystroemFeatures
from distrff.features.transformer import TransformerFeatures
from distrff.kernels.polynomial import Polynomial
from distrff.kernels.stationary import Gaussian, Laplacian


def mixed(**options):
    """Maps that derive their arrays, carry them, and have none."""
    maps = [
        FourierFeatures(Gaussian(2.0), 8, random_state=1),
        NystroemFeatures(Polynomial(2), 12, random_state=2),
        LinearFeatures(),
        TransformerFeatures(PolynomialFeatures(2)),
    ]
    return ConcatenatedFeatures(maps, **options)


@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0, 3.0]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_are_those_of_the_maps_times_root_weights(rng, weights, dtype):
    X = rng.standard_normal((40, 3)).astype(dtype)
    map_ = mixed(weights=weights).fit(X)
    Z = map_.transform(X)
    assert Z.dtype == dtype
    assert Z.shape == (40, 8 + 12 + 3 + 10) == (40, map_.n_features_for(3))
    w = [0.25] * 4 if weights is None else weights
    parts = [part.transform(X) * dtype(math.sqrt(a)) for a, part in zip(w, map_.maps_, strict=True)]
    np.testing.assert_array_equal(Z, np.concatenate(parts, axis=1))
    alone = clone(map_.maps[0]).fit(X).transform(X)
    np.testing.assert_array_equal(parts[0], alone * dtype(math.sqrt(w[0])))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_by_the_basis_are_those_of_the_features(rng, dtype):
    landmarks = NystroemFeatures(Polynomial(1), 8, random_state=1)  # of rank 4: its basis is smaller than z
    map_ = ConcatenatedFeatures([FourierFeatures(Gaussian(), 6, random_state=0), landmarks], weights=[1, 4])
    block_map = map_.fit(rng.standard_normal((80, 3))).specification_.build()
    X, C, S = rng.standard_normal((50, 3)).astype(dtype), rng.standard_normal((14, 2)), np.ones((1, 50))
    assert block_map.has_basis and block_map.n_basis == 10
    B, Z = block_map.basis(X), block_map.apply(X)
    atol = (1e-4 if dtype == "float32" else 1e-10) * np.abs(B).max()  # rounding of sums
    np.testing.assert_allclose(B @ block_map.basis_coef(C, X.dtype), Z @ C, atol=atol)
    np.testing.assert_allclose(block_map.feature_sums(S @ B), S @ Z, atol=50 * atol)


def test_equal_maps_differ_and_own_seeds_are_kept(rng):
    X = rng.standard_normal((40, 3))
    pair = ConcatenatedFeatures([FourierFeatures(n_components=4), FourierFeatures(n_components=4)])
    one, other = pair.fit(X).maps_
    assert one.seed_ != other.seed_
    assert (one.frequencies_ != other.frequencies_).all()
    assert not pair.specification_.carries_arrays  # unless a part does
    maps = [NystroemFeatures(Gaussian(), 30), NystroemFeatures(Laplacian(), 30)]
    assert ConcatenatedFeatures(maps, weights=[2.0, 0.5]).fit(X).specification_.at_zero == 2.5
    assert mixed().fit(X).specification_.carries_arrays
    assert math.isnan(mixed().fit(X).specification_.at_zero)
    pair.set_params(maps__1__random_state=5)
    assert pair.fit(X).maps_[1].seed_ == 5


def test_only_the_whole_is_built(rng, monkeypatch):
    X, built = rng.standard_normal((40, 3)), []
    factor = nystroem._cholesky_factor
    monkeypatch.setattr(nystroem, "_cholesky_factor", lambda *args: built.append(1) or factor(*args))
    seed = int(rng.integers(2**62))
    map_ = ConcatenatedFeatures([NystroemFeatures(n_components=5, random_state=seed)]).fit(X)
    Z = map_.transform(X)
    assert len(built) == 1
    np.testing.assert_array_equal(map_.maps_[0].transform(X), Z)
    assert len(built) == 2


def test_parameters_of_the_maps(rng):
    map_ = mixed()
    assert map_.get_params()["maps__0__n_components"] == 8
    assert map_.get_params()["maps__3__transformer__degree"] == 2
    assert set(map_.get_params(deep=False)) == {"maps", "weights"}
    copy = clone(map_).set_params(maps__0__n_components=6, maps__0__kernel__length_scale=3.0)
    assert (copy.maps[0].n_components, copy.maps[0].kernel) == (6, Gaussian(3.0))
    assert map_.maps[0].n_components == 8
    copy.set_params(maps__2=NystroemFeatures(n_components=5), maps__2__n_components=7, weights=[1] * 4)
    assert copy.maps[2].n_components == 7
    for name in ("maps__4", "maps__x__n_components"):
        with pytest.raises(InputError, match="numbered from 0 to 3"):
            copy.set_params(**{name: 1})


def test_the_reductions_of_all_maps_are_run(rng):
    X = rng.standard_normal((50, 3))
    maps = [NystroemFeatures(n_components=5), NystroemFeatures(n_components=5, landmarks="leverage")]
    map_ = ConcatenatedFeatures(maps)
    assert map_.n_passes == 3
    requested = []

    def row_source(reduction):
        requested.append(reduction.label)
        return reduction.update(reduction.zero(), 0, X, None)

    map_.fit_sample(X[:10], None, None, seed=1, row_source=row_source)
    assert requested == ["landmarks", "landmarks", "landmarks by leverage"]
    assert map_.cost_for(3) == map_.specification_.cost == product_cost(3, triangle_share=0.5)
