"""Random binning: its kernel, its bins counted exactly, what a map promises, and its pilot."""

import pickle

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone

from distrff import Laplacian, RandomBinningFeatures
from distrff.errors import InputError, PlanRefused
from distrff.features.base import RowsInMemory
from distrff.features.binning import BinCounts, Grids, occupied_bins
from distrff.features.fitted import Trait
from tests.support.draws import seed_of


@pytest.mark.parametrize(
    "kernel",
    [Laplacian((0.5, 1.0, 3.0)), 2.5 * Laplacian(1.5), Laplacian(2.0) * (3.0 * Laplacian((1.0, 2.0, 4.0)))],
)
def test_products_of_rows_are_the_kernel_on_average(rng, kernel):
    """Each product is k(0)/P times a binomial number; all 300 pairs are within 6 standard errors of k."""
    X, P = rng.standard_normal((25, 3)), 4000
    Z = RandomBinningFeatures(kernel, P, random_state=seed_of(rng)).fit_transform(X)
    k, at_zero = kernel(X), kernel.at_zero
    errors = np.abs((Z @ Z.T).toarray() - k)
    # Small probabilities are Poisson-like, whose tail is longer: Bernstein's bound at 6 standard errors.
    assert (errors <= 6 * np.sqrt(k * (at_zero - k) / P) + 12 * at_zero / P + 1e-12).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_keys_are_equal_where_bins_are(rng, dtype):
    X = rng.standard_normal((700, 4)).astype(dtype)
    grids = Grids.draw(Laplacian(3.0), 9, 4, seed_of(rng))
    keys = grids.keys(X)
    exact = Grids(grids.steps.astype(dtype), grids.offsets.astype(dtype), grids.multipliers)
    for g, bins in enumerate(np.floor(X * exact.steps[:, None] + exact.offsets[:, None]).astype(np.int64)):
        _, by_bin = np.unique(bins, axis=0, return_inverse=True)
        _, by_key = np.unique(keys[g], return_inverse=True)
        assert len(np.unique(np.stack([by_bin.ravel(), by_key.ravel()], axis=1), axis=0)) == by_bin.max() + 1
        assert by_key.max() == by_bin.max()
    far = Grids.draw(Laplacian(), 5, 1, 0).keys(np.array([[1e30], [1e300], [-1e300]]))
    assert (far[:, 0] == far[:, 1]).all()  # one bin on either side
    assert (far[:, 0] != far[:, 2]).all()


def test_counts_do_not_depend_on_the_order_of_merges(rng):
    keys = rng.integers(0, 2**64, 90_000, dtype=np.uint64)[rng.integers(0, 90_000, (3, 200_000))]
    whole = BinCounts.empty(3)
    for part in np.array_split(keys, 50, axis=1):  # which wait until they are many
        whole = whole.with_rows(part)
    parts = [BinCounts.empty(3).with_rows(part) for part in np.array_split(keys, 4, axis=1)]
    merged = parts[3].merge(parts[1]).merge(parts[0].merge(parts[2]))
    for counts in (whole, merged, pickle.loads(pickle.dumps(merged))):
        for g, (found, n) in enumerate(counts.sorted()):
            expected, n_expected = np.unique(keys[g], return_counts=True)
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(n, n_expected)
    assert parts[0].sorted()[0][1].sum() == 50_000  # merging changes neither


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_have_one_entry_a_grid_and_bins_their_counts(rng, dtype):
    X = rng.standard_normal((300, 2)).astype(dtype)
    map_ = RandomBinningFeatures(4.0 * Laplacian(), 7, random_state=seed_of(rng)).fit(X)
    Z = map_.transform(X)
    assert isinstance(Z, csr_matrix) and Z.dtype == dtype and Z.has_canonical_format
    assert (np.diff(Z.indptr) == 7).all()
    np.testing.assert_allclose(Z.data, np.sqrt(4.0 / 7), rtol=1e-6)
    np.testing.assert_array_equal((Z > 0).sum(axis=0).A1, map_.counts_)
    ends = map_.specification_.arrays["ends"]
    expected = sum(B * (B - 1) / 2**65 for B in np.diff(ends, prepend=0).tolist())
    assert map_.expected_collisions_ == pytest.approx(expected)
    far = X + dtype(1e4)  # in bins that no row of the fit was in
    mixed = map_.transform(np.concatenate([X[:1], far[:1], X[1:2]]))
    assert np.diff(mixed.indptr).tolist() == [7, 0, 7]
    assert (mixed[[0, 2]] != Z[:2]).nnz == 0
    with pytest.raises(InputError, match="sparse"):
        map_.apply(X[:1], out=np.zeros((1, 2)))
    # Rows of weight zero have no bins.
    s = rng.integers(0, 2, 300).astype(float)
    s[:2] = 0, 1
    weighted = clone(map_).fit(X, sample_weight=s)
    assert weighted.specification_ == clone(map_).fit(X[s > 0]).specification_


def test_collisions_of_hashed_bins_are_as_many_as_expected(rng):
    """Each pair of a grid's bins shares one of w columns with probability 1/w, independently pair by pair."""
    P, w = 50, 64
    X = 1e4 * np.arange(40.0)[:, None] + rng.uniform(0, 1e3, (40, 1))  # a bin for each row
    map_ = RandomBinningFeatures(Laplacian(), n_grids=P, n_bins=P * w, random_state=seed_of(rng)).fit(X)
    Z = map_.transform(X)
    assert Z.has_canonical_format and Z.shape == (40, P * w)
    columns = Z.indices.reshape(40, P)
    found = sum((grid[:, None] == grid).sum() - 40 for grid in columns.T) / 2
    expected = map_.expected_collisions_
    assert expected == pytest.approx(P * 40 * 39 / 2 / w)
    assert abs(found - expected) <= 6 * np.sqrt(expected)
    # The seed is all that it needs.
    other = clone(map_).fit(X[:1])
    assert other.specification_ == map_.specification_ and Trait.FROM_ROWS not in map_.specification_.traits
    assert other.counts_ is None and other.expected_collisions_ == 0


def test_the_source_of_the_rows_gets_the_number_of_bins_and_may_refuse_it(rng):
    # Farther apart than a pitch ever is, Gamma(2, 1), and not so far that the last rows share a bin because
    # they are beyond 2³⁰ pitches: some grid's pitch is so small with probability 1e-8.
    X, counts = np.arange(200.0)[:, None] * 100, []
    grids = Grids.draw(Laplacian(), 100, 1, seed_of(rng))

    def row_source(reduction, *, min_features):
        counts.append(min_features)
        if min_features > 1000:
            raise PlanRefused("too many")
        return RowsInMemory(X, None)(reduction)

    with pytest.raises(PlanRefused):
        occupied_bins(grids, row_source)
    # Of all grids a bin at least; then the 200 of the first with one of each other; then those of 65.
    assert counts == [100, 200 + 99, 65 * 200 + 35]


def test_the_width_leaves_rows_of_different_kinds_in_different_bins(rng):
    """Any wide kernel tells these rows apart exactly, but one bin for all of them tells nothing."""
    X = np.concatenate([rng.uniform(0, 0.2, (150, 2)), rng.uniform(0.8, 1, (150, 2))])
    y = np.repeat(["low", "high"], 150)
    map_ = RandomBinningFeatures(Laplacian("auto"), 64, random_state=seed_of(rng)).fit(X, y)
    assert "bins of 64 grids" in map_.length_scale_search_["rule"]
    Z = map_.transform(X)
    # The nearest rows of the two are 1.2 apart: a grid of width 2 holds both in one bin with exp(-.6),
    # and all 64 with 1e-17.
    assert (Z[:150] @ Z[150:].T).max() < 1
