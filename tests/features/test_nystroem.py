"""Nyström features, exact on the landmarks' span; landmarks are the rows of the lowest keys in any order."""

import pickle
from dataclasses import replace
from functools import reduce
from itertools import pairwise

import numpy as np
import pytest

from distrff import Cauchy, Exponential, Gaussian, Laplacian, Matern, NystroemFeatures, Polynomial
from distrff.errors import DataWarning, FrequencyMismatch
from distrff.features.base import RowsInMemory
from distrff.features.fitted import Trait
from distrff.features.nystroem import LowestKeys, LowestLeverageKeys, chosen_landmarks, pivoted
from distrff.utils.random import row_hash
from tests.support.draws import seed_of

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
    return NystroemFeatures(kernel, n_components, random_state=seed_of(rng), **options)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("landmarks", ["uniform", "leverage"])
def test_exact_where_the_landmarks_are_all_rows_of_weight(rng, kernel, landmarks):
    X, s = rng.standard_normal((90, 3)), np.r_[np.zeros(30), np.ones(60)]
    map_ = seeded(rng, kernel, 60, landmarks=landmarks).fit(X, sample_weight=s)
    assert {tuple(row) for row in map_.landmarks_} == {tuple(row) for row in X[30:]}
    Z, K = map_.transform(X[30:]), kernel(X[30:])
    # What is cut off at the rank is 2⁻⁴⁰ of the largest k(x, x) a row.
    np.testing.assert_allclose(Z @ Z.T, K, atol=60 * 2.0**-40 * np.diag(K).max())
    few = seeded(rng, kernel, 5, landmarks=landmarks).fit(X)  # other rows meet the projection of the kernel
    L, Z = few.landmarks_, few.transform(X)
    expected = kernel(X, L) @ np.linalg.solve(kernel(L), kernel(L, X))
    np.testing.assert_allclose(Z @ Z.T, expected, atol=1e-8 * np.diag(K).max())
    assert len(np.unique(L, axis=0)) == 5
    with pytest.raises(FrequencyMismatch, match="were not sent with it"):
        replace(few.specification_.without_arrays(), digest="0").build()


@pytest.mark.parametrize(
    ("kernel", "n_rows", "rank", "tolerance"),
    [
        *((kernel, 9, 9, 1e-9) for kernel in (Gaussian(), Exponential(), Polynomial(3))),
        (Polynomial(2), 50, 15, 1e-6),  # 1, four linear and ten quadratic monomials
    ],
    ids=repr,
)
def test_duplicate_rows_and_a_kernel_of_low_rank_cost_columns_but_no_digits(
    rng, kernel, n_rows, rank, tolerance
):
    X = np.repeat(rng.standard_normal((n_rows, 4)), 5, axis=0)
    map_ = seeded(rng, kernel, 45).fit(X)
    assert map_.rank_ == map_.specification_.rank == rank
    Z = map_.transform(X)
    np.testing.assert_array_equal(Z[:, rank:], 0.0)
    np.testing.assert_allclose(Z @ Z.T, kernel(X), rtol=tolerance, atol=tolerance)
    unseen = NystroemFeatures(Polynomial(2, bias=0), 2).fit(np.zeros((3, 2)))
    assert unseen.rank_ == 0
    np.testing.assert_array_equal(unseen.transform(np.ones((4, 2))), np.zeros((4, 2)))


def test_leading_columns_are_the_map_of_the_leading_landmarks(rng):
    X, kernel = rng.standard_normal((100, 3)), Matern(1.5)
    map_ = seeded(rng, kernel, 64).fit(X)
    assert map_.nested_sizes() == (16, 32, 64)
    assert Trait.RESCALED not in map_.specification_.traits
    Z = map_.transform(X)
    for size in map_.nested_sizes():
        smaller = NystroemFeatures(kernel, size).fit(map_.landmarks_[:size])
        leading = replace(map_.specification_, n_components=size, rank=size)
        ready = leading.ready(leading.derive())
        np.testing.assert_allclose(Z[:, :size], ready.apply(X), atol=1e-12)
        W = smaller.transform(X)
        np.testing.assert_allclose(Z[:, :size] @ Z[:, :size].T, W @ W.T, atol=1e-9)


# Landmarks


def test_landmarks_do_not_depend_on_order_or_cuts_of_the_rows(rng):
    X, s, kernel = rng.standard_normal((200, 3)), rng.integers(0, 3, 200).astype(float), Exponential(2.0)
    leverage = LowestLeverageKeys(12, 3, 5, Gaussian(), X[:20], 0.1)
    for reduction in (LowestKeys(12, 3, seed=5), leverage):
        for weights in (None, s):
            whole = reduction.update(reduction.zero(), 0, X, weights)
            for n_cuts in (1, 7, 60):
                ends = [0, *np.sort(rng.integers(0, 201, n_cuts)).tolist(), 200]
                parts = [
                    reduction.update(reduction.zero(), a, X[a:b], None if weights is None else weights[a:b])
                    for a, b in pairwise(ends)
                ]
                kept = pickle.dumps(parts)
                merged = reduce(reduction.merge, parts)
                assert pickle.dumps(parts) == kept  # merging changes neither
                # Keys by leverage have the rounding of the kernel values of a block.
                np.testing.assert_array_equal(merged.rows, whole.rows)
                np.testing.assert_array_equal(merged.X, whole.X)
            assert sum(array.nbytes for array in whole) == reduction.size_bytes(200)
    keys = row_hash(np.arange(200, dtype=np.uint64), 5)
    lowest = np.flatnonzero(s)[np.argsort(keys[s > 0])][:12]
    uniform = LowestKeys(12, 3, seed=5)
    np.testing.assert_array_equal(uniform.update(uniform.zero(), 0, X, s).rows, lowest)
    K = Gaussian()(X[:20])  # scores are ridge leverages where the pilot is all rows
    leverages = np.diag(K @ np.linalg.inv(K + 0.1 * np.eye(20)))
    np.testing.assert_allclose(leverage.scores(X[:20]) / 0.1, leverages, rtol=1e-9)
    L, rank = pivoted(kernel, X[:40])  # the next is always the one that is explained least
    assert rank == 40
    for size in (1, 5, 20):
        K_L = kernel(X[:40], L[:size])
        left = 1.0 - np.einsum("ij,ji->i", K_L, np.linalg.solve(kernel(L[:size]), K_L.T))
        np.testing.assert_array_equal(L[size], X[np.argmax(left)])


def test_leverage_finds_rare_rows_more_often(rng):
    """Five rows of 500 lie apart from each other and from the rest, which is almost one point."""
    X = 0.01 * rng.standard_normal((500, 3))
    rare = np.arange(5) * 100
    X[rare] = 10.0 * np.arange(1, 6)[:, None]
    n_draws, found = 40, {"uniform": 0, "leverage": 0}
    for landmarks in found:
        for seed in rng.integers(0, 2**62, n_draws).tolist():
            options = dict(landmarks=landmarks, n_landmarks=20, n_columns=3, seed=seed)
            L = chosen_landmarks(RowsInMemory(X, None), Gaussian(), **options)
            found[landmarks] += int((L[:, 0] > 5).sum())
    # Uniformly each rare row is one of 20 in 500: 0.2 a draw, 8 in all with a standard error of 2.8.
    assert found["uniform"] < 8 + 6 * 2.8
    # By leverage each weighs as much as all others together or more, unless the pilot held it.
    assert found["leverage"] > 3.0 * n_draws


@pytest.mark.parametrize("landmarks", ["uniform", "leverage"])
def test_fewer_rows_than_landmarks_are_all_landmarks(rng, landmarks):
    X, s = rng.standard_normal((9, 3)), np.r_[np.zeros(2), np.ones(7)]
    map_ = seeded(rng, Gaussian(2.0), 20, landmarks=landmarks)
    with pytest.warns(DataWarning, match="only 7 have a positive weight; the map has 7 features"):
        map_.fit(X, sample_weight=s)
    assert map_.n_components == 20 and map_.transform(X).shape == (9, 7)
    assert {tuple(row) for row in map_.landmarks_} == {tuple(row) for row in X[2:]}
    assert map_.outline(3, 9).n_features == 9 and map_.outline(3, 99).n_features == 20
