"""Promises of every map: dtypes, layouts, dask arrays, storage, seeds, and rows that it refuses."""

import json
import math
import pickle

import dask.array as da
import numpy as np
import pytest
from scipy.sparse import csr_matrix, issparse
from sklearn.base import clone
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, StandardScaler

from distrff import (
    Cauchy,
    ConcatenatedFeatures,
    Gaussian,
    Laplacian,
    LinearFeatures,
    Matern,
    NystroemFeatures,
    Polynomial,
    RandomBinningFeatures,
    TransformerFeatures,
)
from distrff.errors import InputError, InputTypeError
from distrff.features.base import Sample
from distrff.features.fitted import Trait, map_from_dict, product_cost
from distrff.features.fourier import FORMS, SAMPLING_CHOICES, FourierFeatures
from tests.support.draws import seed_of

D_COLUMNS = 20
METRIC = np.random.default_rng(0).standard_normal((17, D_COLUMNS)) / 4
SUM = 2.0 * Gaussian(4.0) + Matern((3.0,) * D_COLUMNS, nu=2.5)
MIXED = [
    FourierFeatures(Gaussian(4.0), 8),
    NystroemFeatures(Polynomial(2), 12),
    LinearFeatures(),
    TransformerFeatures(PolynomialFeatures(2)),
]
MAPS = {
    **{f"fourier-{form}": FourierFeatures(Gaussian(4.0), 90, form=form) for form in FORMS},
    **{f"fourier-{s}": FourierFeatures(SUM, 90, sampling=s) for s in SAMPLING_CHOICES if s != "auto"},
    "nystroem": NystroemFeatures(Laplacian(8.0), 30),
    "linear": LinearFeatures(),
    "transformer": TransformerFeatures(PolynomialFeatures(2)),
    "concatenated": ConcatenatedFeatures(MIXED, weights=[0.5, 2.0, 1.0, 3.0]),
    "binning": RandomBinningFeatures(Laplacian(8.0), 8),
    "hashed": RandomBinningFeatures(Laplacian(8.0), 8, n_bins=64),
    "metric-fourier": FourierFeatures(Gaussian(4.0, metric=METRIC), 90),
    "metric-sorf": FourierFeatures(Matern(4.0, metric=METRIC), 90, sampling="sorf"),
    "metric-nystroem": NystroemFeatures(Laplacian(8.0, metric=METRIC), 30),
    "metric-binning": RandomBinningFeatures(Laplacian(8.0, metric=METRIC), 8),
    "metric-hashed": RandomBinningFeatures(Laplacian(8.0, metric=METRIC), 8, n_bins=64),
}
# Of dense products and solves of other numbers of rows; the others are the same bits.
TOLERANCE = {
    "nystroem": 1e-9,
    "metric-nystroem": 1e-9,
    "concatenated": 1e-9,
    "linear": 0.0,
    "transformer": 0.0,
}
DRAWN = [name for name in MAPS if name not in ("linear", "transformer")]
DENSE = [name for name in MAPS if not name.endswith(("binning", "hashed"))]


def fitted(name, X, rng):
    map_ = clone(MAPS[name])
    for part in getattr(map_, "maps", [map_]):
        if hasattr(part, "random_state"):
            part.random_state = seed_of(rng)
    return map_.fit(X)


def dense(Z):
    return Z.toarray() if issparse(Z) else Z


def assert_close(name, Z, expected, dtype=np.float64):
    assert Z.dtype == expected.dtype
    tolerance = {np.float32: 1e-5, np.int32: max(1e-12, TOLERANCE.get(name, 0))}
    atol = tolerance.get(dtype, TOLERANCE.get(name, 1e-13))
    np.testing.assert_allclose(dense(Z), dense(expected), rtol=atol, atol=atol)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_dask_arrays_give_lazy_ones_of_the_same_values(rng, name, dtype):
    X = (3 * rng.standard_normal((50, D_COLUMNS))).astype(dtype)
    map_ = fitted(name, X, rng)
    expected = map_.transform(X)
    real = np.float32 if dtype == np.float32 else np.float64
    assert expected.dtype == (np.result_type(real, np.complex64) if name == "fourier-complex" else real)
    assert expected.shape == (50, map_.specification_.n_features)
    if not name.endswith("binning"):
        assert expected.shape[1] == map_.outline(D_COLUMNS, 100).n_features
    for chunks in ((17, 7), ((1, 47, 2), (13, 7)), (50, 20)):
        lazy = da.from_array(X, chunks=chunks)
        Z = map_.transform(lazy)
        assert Z.chunks == (lazy.chunks[0], (expected.shape[1],))
        assert Z.dtype == Z._meta.dtype == expected.dtype
        assert isinstance(Z._meta, csr_matrix if issparse(expected) else np.ndarray) and Z._meta.ndim == 2
        assert_close(name, Z.compute(scheduler="sync"), expected, dtype)
    some = map_.transform(lazy[lazy[:, 0] > 0])
    assert np.isnan(some.shape[0]) and some.shape[1] == expected.shape[1]
    assert_close(name, some.compute(scheduler="sync"), map_.transform(X[X[:, 0] > 0]), dtype)


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_any_layout_are_written_into_strided_rows(rng, name, dtype):
    X = rng.standard_normal((700, D_COLUMNS)).astype(dtype)  # several strips and tiles, the last not full
    map_ = fitted(name, X, rng)
    Z = map_.transform(X)
    n_features = Z.shape[1]
    wide = np.full((700, n_features + 7), 7, Z.dtype)
    assert np.shares_memory(map_.apply(X, out=wide[:, 3:-4]), wide)
    np.testing.assert_array_equal(wide[:, 3:-4], Z)
    np.testing.assert_array_equal(wide[:, [0, 1, 2, -4, -3, -2, -1]], 7)
    locked = X.copy()
    locked.flags.writeable = False
    np.testing.assert_array_equal(map_.apply(locked), Z)
    assert not np.shares_memory(map_.apply(X), X)
    assert_close(name, map_.apply(np.asfortranarray(X)), Z, dtype)
    for n in (0, 1, 17):
        assert_close(name, map_.apply(X[:n]), Z[:n], dtype)
    assert_close(name, map_.apply(X[400:]), Z[400:], dtype)  # cut into other strips
    if name.startswith("fourier"):
        with pytest.raises((InputError, InputTypeError, ValueError)):
            map_.apply(X, out=np.empty((700, n_features), np.float16))


@pytest.mark.parametrize("name", MAPS)
def test_a_map_comes_back_from_json_arrays_and_pickle_with_the_same_bits(rng, name):
    X = rng.standard_normal((40, D_COLUMNS))
    map_ = fitted(name, X, rng)
    spec, Z = map_.specification_, dense(map_.transform(X))
    stored = map_from_dict(json.loads(json.dumps(spec.to_dict(), allow_nan=False)))
    assert isinstance(stored, type(spec))
    assert stored == spec and hash(stored) == hash(spec)
    arrays = {key: A.copy() for key, A in spec.checked_arrays().items()}
    np.testing.assert_array_equal(dense(stored.with_arrays(arrays).build().apply(X)), Z)
    light = spec.without_arrays()
    assert light == pickle.loads(pickle.dumps(light)) == spec and hash(light) == hash(spec)
    assert len(pickle.dumps(light)) < 4000
    np.testing.assert_array_equal(dense(light.build(arrays).apply(X)), Z)
    np.testing.assert_array_equal(dense(pickle.loads(pickle.dumps(map_)).transform(X)), Z)
    assert (Trait.FROM_ROWS in spec.traits) == spec.arrays_at_hand or name == "transformer"
    assert not light.arrays_at_hand
    again, other = clone(map_).fit(X), fitted(name, X, rng)
    assert again.specification_ == spec
    np.testing.assert_array_equal(dense(again.transform(X)), Z)
    assert (other.specification_ != spec) == (name in DRAWN)
    if Trait.FROM_ROWS not in spec.traits:
        np.testing.assert_array_equal(dense(stored.build().apply(X)), Z)
        assert len(pickle.dumps(map_)) < 4000


@pytest.mark.parametrize("name", MAPS)
def test_columns_are_numbered_after_the_class_and_other_numbers_of_them_refused(rng, name):
    X = rng.standard_normal((40, D_COLUMNS))
    map_ = fitted(name, X, rng)
    n_features = map_.specification_.n_features
    names = map_.get_feature_names_out().tolist()
    assert names == [f"{type(map_).__name__.lower()}{j}" for j in range(n_features)]
    if name in DENSE:
        assert map_.set_output(transform="pandas").transform(X).columns.tolist() == names
    if name in ("linear", "transformer", "concatenated", "binning", "hashed"):  # no smaller maps within
        assert map_.nested_sizes() == (n_features,)
        assert Trait.RESCALED not in map_.specification_.traits
    map_.set_output(transform="default")
    with pytest.raises(InputError, match=r"shape \(n_samples, 20\), got a dask array of shape \(4, 2\)"):
        map_.transform(da.zeros((4, 2)))
    with pytest.raises(InputError, match=r"shape \(n_samples, 20\)"):
        map_.transform(da.zeros(20))
    with pytest.raises(ValueError, match="20 features"):
        map_.transform(np.zeros((4, 2)))


OF_THREE, A_GENERATOR = (1.0, 2.0, 3.0), np.random.default_rng(0)
POSITIVE = "n_components must be a positive integer"


@pytest.mark.parametrize(
    ("map_", "message"),
    [
        (FourierFeatures("gaussian", 8), "kernel must be a distrff kernel or None, got 'gaussian'"),
        *((FourierFeatures(None, n), f"{POSITIVE}, got {n}") for n in (0, -2, 8.0, True)),
        (FourierFeatures(form="sin"), "form must be one of 'cos_sin', 'phase', 'complex', got 'sin'"),
        (FourierFeatures(sampling="sobol"), "sampling must be one of 'iid', 'ortho.*', .*, got 'sobol'"),
        *((FourierFeatures(random_state=s), "random_state must be a non-neg") for s in (-1, A_GENERATOR)),
        (FourierFeatures(Gaussian(OF_THREE), 8), "3 widths, the data 2 columns"),
        (FourierFeatures(Laplacian(), 8, sampling="orthogonal"), "rotation invariant"),
        (NystroemFeatures("rbf"), "kernel must be a distrff kernel"),
        *((NystroemFeatures(n_components=n), POSITIVE) for n in (0, 2.0)),
        *((NystroemFeatures(landmarks=v), "landmarks must be one of 'uniform',") for v in ("kmeans", None)),
        (NystroemFeatures(Gaussian("auto") + Polynomial(2), 2), "needs a shift-invariant kernel"),
        (RandomBinningFeatures(n_grids=0), "n_grids must be a positive integer, got 0"),
        (RandomBinningFeatures(n_grids=2.5), "n_grids must be a positive integer, got 2.5"),
        (RandomBinningFeatures(n_grids=10, n_bins=9), "at least n_grids = 10, got 9"),
        (RandomBinningFeatures(n_bins=True), "n_bins"),
        (RandomBinningFeatures("laplacian"), "kernel must be a distrff kernel"),
        (RandomBinningFeatures(Laplacian(OF_THREE)), "3 widths, the data 2 columns"),
        *(
            (RandomBinningFeatures(kernel), "FourierFeatures or NystroemFeatures")
            for kernel in (
                *(Gaussian(), Cauchy(), Matern()),
                *(Laplacian() * Gaussian(), Laplacian() + Laplacian()),
            )
        ),
        *((ConcatenatedFeatures(maps), "at least one feature map") for maps in ([], LinearFeatures())),
        (ConcatenatedFeatures([LinearFeatures(), 3]), r"maps\[1\] must be a distrff feature map"),
        (ConcatenatedFeatures([FourierFeatures(form="complex")]), r"maps\[0\] is of form='complex'"),
        (FourierFeatures(), r"no two different rows in its sample \(n_samples=3"),
        (ConcatenatedFeatures([RandomBinningFeatures()]), r"maps\[0\] has sparse features"),
        *(
            (ConcatenatedFeatures([LinearFeatures()], weights=weights), "positive numbers, one for each map")
            for weights in ([0.0], [1.0, 2.0], [math.nan])
        ),
        (ConcatenatedFeatures([LinearFeatures()], weights=["much"]), "weights must be numbers"),
        *((TransformerFeatures(t), "must be a scikit-learn transformer") for t in (None, StandardScaler, 3)),
        (TransformerFeatures(FunctionTransformer(lambda X: X.astype(str))), "needs a matrix of numbers"),
    ],
)
def test_parameters_that_cannot_be_used_are_refused_at_fit(map_, message):
    with pytest.raises(InputError, match=message):
        map_.fit(np.zeros((3, 2)))
    assert not hasattr(map_, "specification_")


# Maps side by side: the weighted sum of their kernels.


def mixed(**options):
    """Maps that derive their arrays, carry them, and have none."""
    maps = [clone(map_).set_params(random_state=i) if i < 2 else map_ for i, map_ in enumerate(MIXED)]
    return ConcatenatedFeatures(maps, **options)


@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0, 3.0]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_and_products_are_those_of_the_maps_times_root_weights(rng, weights, dtype):
    X = rng.standard_normal((40, 3)).astype(dtype)
    map_ = mixed(weights=weights).fit(X)
    Z, ready = map_.transform(X), map_.specification_.build()
    assert Z.dtype == dtype and Z.shape == (40, 8 + 12 + 3 + 10) == (40, map_.outline(3, 80).n_features)
    w = [0.25] * 4 if weights is None else weights
    parts = [part.transform(X) * dtype(math.sqrt(a)) for a, part in zip(w, map_.maps_, strict=True)]
    np.testing.assert_array_equal(Z, np.concatenate(parts, axis=1))
    alone = clone(map_.maps[0]).fit(X).transform(X)
    np.testing.assert_array_equal(parts[0], alone * dtype(math.sqrt(w[0])))
    np.testing.assert_array_equal(LinearFeatures().fit_transform(X), X)
    # By the basis, of which landmarks of rank 10 have fewer functions than features.
    assert ready.has_basis and ready.n_basis == 8 + 10 + 3 + 10
    B, C, S = ready.basis(X), rng.standard_normal((33, 2)), np.ones((1, 40))
    atol = (1e-4 if dtype == np.float32 else 1e-9) * np.abs(B).max() * np.abs(Z).max()  # rounding of sums
    np.testing.assert_allclose(B @ ready.basis_coef(C, X.dtype), Z @ C, atol=atol)
    np.testing.assert_allclose(ready.feature_sums(S @ B), S @ Z, atol=50 * atol)


def test_parameters_seeds_and_passes_of_the_maps(rng):
    map_, X, requested = mixed(), rng.standard_normal((40, 3)), []

    def row_source(reduction):
        requested.append(reduction.label)
        return reduction.update(reduction.zero(), 0, X, None)

    both = [NystroemFeatures(n_components=5), NystroemFeatures(n_components=5, landmarks="leverage")]
    both = ConcatenatedFeatures(both).fit_sample(Sample(X[:10], None, None, 1, row_source))
    assert requested == ["landmarks", "landmarks", "landmarks by leverage"]
    assert both.outline(3, 80).n_passes == 3
    assert both.outline(3, 80).cost == both.specification_.cost == product_cost(3, triangle_share=0.5)
    assert map_.get_params()["maps__0__n_components"] == 8
    assert map_.get_params()["maps__3__transformer__degree"] == 2
    copy = clone(map_).set_params(maps__0__n_components=6, maps__0__kernel__length_scale=3.0)
    assert (copy.maps[0].n_components, copy.maps[0].kernel) == (6, Gaussian(3.0))
    assert map_.maps[0].n_components == 8
    copy.set_params(maps__2=NystroemFeatures(n_components=5), maps__2__n_components=7, weights=[1] * 4)
    assert copy.maps[2].n_components == 7
    for name in ("maps__4", "maps__x__n_components"):
        with pytest.raises(InputError, match="numbered from 0 to 3"):
            copy.set_params(**{name: 1})
    pair = ConcatenatedFeatures([FourierFeatures(n_components=4), FourierFeatures(n_components=4)]).fit(X)
    one, other = pair.maps_
    assert one.seed_ != other.seed_ and (one.frequencies_ != other.frequencies_).all()
    assert pair.set_params(maps__1__random_state=5).fit(X).maps_[1].seed_ == 5
    traits = [fitted_.fit(X).specification_.traits for fitted_ in (pair, map_)]
    assert [Trait.FROM_ROWS in of for of in traits] == [False, True]
