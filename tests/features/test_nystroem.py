"""Nyström features: exact on the landmarks' span, nested by pivots, and told by their landmarks alone."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from distrff.errors import FrequencyMismatch, InputError
from distrff.features.nystroem import NystroemFeatures, pivoted
from distrff.kernels.polynomial import Polynomial
from distrff.kernels.stationary import Cauchy, Exponential, Gaussian, Laplacian, Matern

KERNELS = [
    Gaussian(2.0),
    Gaussian((1.0, 2.0, 4.0)),
    Laplacian(3.0),
    Cauchy(2.0),
    Exponential(2.0),
    Matern(2.0, nu=2.5),
    Polynomial(2),
    Polynomial(3, bias=0.0) + 0.5 * Gaussian(),
]


def seeded(rng, kernel, n_components, **options):
    return NystroemFeatures(kernel, n_components, random_state=int(rng.integers(2**62)), **options)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("landmarks", ["uniform", "leverage"])
def test_exact_where_the_landmarks_are_all_rows_of_weight(rng, kernel, landmarks):
    X, s = rng.standard_normal((90, 3)), np.r_[np.zeros(30), np.ones(60)]
    map_ = seeded(rng, kernel, 60, landmarks=landmarks).fit(X, sample_weight=s)
    assert {tuple(row) for row in map_.landmarks_} == {tuple(row) for row in X[30:]}
    Z, K = map_.transform(X[30:]), kernel(X[30:])
    # What is cut off at the rank is 2⁻⁴⁰ of the largest k(x, x) a row.
    np.testing.assert_allclose(Z @ Z.T, K, atol=60 * 2.0**-40 * np.diag(K).max())


def test_other_rows_meet_the_projection_of_the_kernel(rng):
    X, kernel = rng.standard_normal((80, 3)), Exponential(2.0)
    map_ = seeded(rng, kernel, 20).fit(X)
    L = map_.landmarks_
    expected = kernel(X, L) @ np.linalg.solve(kernel(L), kernel(L, X))
    Z = map_.transform(X)
    np.testing.assert_allclose(Z @ Z.T, expected, atol=1e-10)
    assert (np.square(Z).sum(axis=1) <= 1 + 1e-10).all()  # a projection shortens
    assert {tuple(row) for row in L} <= {tuple(row) for row in X}
    assert len(np.unique(L, axis=0)) == 20


@pytest.mark.parametrize("kernel", [Gaussian(), Exponential(), Polynomial(3)], ids=repr)
def test_duplicate_rows_cost_columns_but_no_digits(rng, kernel):
    X = np.repeat(rng.standard_normal((9, 4)), 5, axis=0)
    map_ = seeded(rng, kernel, 45).fit(X)
    assert map_.rank_ == map_.specification_.rank == 9
    Z = map_.transform(X)
    np.testing.assert_array_equal(Z[:, 9:], 0.0)
    np.testing.assert_allclose(Z @ Z.T, kernel(X), rtol=1e-9, atol=1e-9)


def test_the_rank_is_that_of_the_kernel(rng):
    map_ = seeded(rng, Polynomial(2), 40).fit(rng.standard_normal((50, 3)))
    assert map_.rank_ == 10  # 1, three linear and six quadratic monomials
    X = rng.standard_normal((30, 3))
    Z = map_.transform(X)
    np.testing.assert_allclose(Z @ Z.T, Polynomial(2)(X), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(Z[:, 10:], 0.0)
    unseen = NystroemFeatures(Polynomial(2, bias=0), 2).fit(np.zeros((3, 2)))
    assert unseen.rank_ == 0
    np.testing.assert_array_equal(unseen.transform(np.ones((4, 2))), np.zeros((4, 2)))


def test_leading_columns_are_the_map_of_the_leading_landmarks(rng):
    X, kernel = rng.standard_normal((100, 3)), Matern(1.5)
    map_ = seeded(rng, kernel, 64).fit(X)
    assert map_.nested_sizes() == (16, 32, 64)
    assert not map_.specification_.rescaled_when_nested
    Z = map_.transform(X)
    for size in map_.nested_sizes():
        smaller = NystroemFeatures(kernel, size).fit(map_.landmarks_[:size])
        leading = replace(map_.specification_, n_components=size, rank=size)
        block_map = leading.block_map(leading.derive_arrays())
        np.testing.assert_allclose(Z[:, :size], block_map.apply(X), atol=1e-12)
        W = smaller.transform(X)
        np.testing.assert_allclose(Z[:, :size] @ Z[:, :size].T, W @ W.T, atol=1e-9)


def test_pivots_take_what_is_explained_least(rng):
    X, kernel = rng.standard_normal((40, 3)), Exponential(2.0)
    L, rank = pivoted(kernel, X)
    assert rank == 40
    for size in (1, 5, 20):
        K_L = kernel(X, L[:size])
        left = 1.0 - np.einsum("ij,ji->i", K_L, np.linalg.solve(kernel(L[:size]), K_L.T))
        np.testing.assert_array_equal(L[size], X[np.argmax(left)])


def test_float32_rows_cost_no_more_than_their_cast(rng):
    X = rng.standard_normal((700, 3)).astype(np.float32)  # more than a strip
    map_ = seeded(rng, Gaussian(4.0), 60).fit(X)
    Z, exact = map_.transform(X), map_.transform(X.astype(np.float64))
    assert Z.dtype == np.float32
    np.testing.assert_array_equal(Z, exact.astype(np.float32))


def test_a_common_offset_costs_no_more_than_the_rows_digits(rng):
    X = rng.integers(-(2**20), 2**20, (60, 3)) / 2.0**20
    map_ = seeded(rng, Gaussian(), 20)
    near, far = map_.fit_transform(X), map_.fit_transform(X + 2.0**20)
    np.testing.assert_allclose(far @ far.T, near @ near.T, atol=1e-8)
    # Maps of landmarks that differ in the last bit are two maps.
    assert map_.fit(X).specification_ != map_.fit(np.nextafter(X, 9.0)).specification_


@pytest.mark.parametrize("kernel", [Exponential(2.0), Polynomial(2)], ids=repr)  # the second of rank ten
def test_products_by_the_basis_are_those_of_the_features(rng, kernel):
    X, C, S = rng.standard_normal((50, 3)), rng.standard_normal((20, 4)), rng.standard_normal((2, 50))
    map_ = seeded(rng, kernel, 20).fit(rng.standard_normal((80, 3)))
    block_map, Z = map_.specification_.build(), map_.transform(X)
    B = block_map.basis(X)
    assert B.shape == (50, map_.rank_)
    # Both solve against the same factor, whose condition is below 1e4 here, one the rows and one the vectors.
    np.testing.assert_allclose(B @ block_map.basis_coef(C, X.dtype), Z @ C, atol=1e-10 * np.abs(B).max())
    np.testing.assert_allclose(block_map.feature_sums(S @ B), S @ Z, atol=1e-10 * np.abs(B).max())


def test_automatic_widths_are_those_of_fourier_features(rng):
    X = rng.standard_normal((300, 3))
    y = np.sin(2 * X[:, 0])
    map_ = seeded(rng, Gaussian("auto"), 64).fit(X, y)
    assert isinstance(map_.kernel_.length_scale, float)
    assert map_.length_scale_search_["length_scale"] == map_.kernel_.length_scale
    assert map_.kernel == Gaussian("auto")
    with pytest.raises(InputError, match="needs a shift-invariant kernel"):
        NystroemFeatures(Gaussian("auto") + Polynomial(2), 4).fit(X)


def test_the_cost_counts_landmarks_and_factor_and_landmarks_must_be_sent(rng):
    spec = seeded(rng, Gaussian(), 256).fit(rng.standard_normal((300, 5))).specification_
    assert 8 * spec.cost.numbers(256) == spec.derive_arrays()["landmarks"].nbytes
    assert spec.cost == NystroemFeatures(n_components=256).cost_for(5)
    assert spec.cost.triangle_numbers(256) == 256**2
    assert len(pickle.dumps(spec.without_arrays())) < 1000 < len(pickle.dumps(spec))
    with pytest.raises(FrequencyMismatch, match="were not sent with it"):
        replace(spec.without_arrays(), digest="0").build()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "rbf"}, "kernel must be a distrff kernel"),
        ({"n_components": 0}, "n_components must be a positive integer"),
        ({"n_components": 2.0}, "n_components must be a positive integer"),
        ({"landmarks": "kmeans"}, "landmarks must be one of 'uniform', 'leverage'"),
        ({"landmarks": None}, "landmarks must be one of"),
        ({"n_components": 7}, "n_components=7 .* only 6 rows"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(InputError, match=message):
        NystroemFeatures(**options).fit(np.zeros((6, 2)))
