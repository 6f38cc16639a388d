"""The first sweep: moments, classes and an even sample, the same for any cuts; bad numbers are named."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrff.features.base import sample_rows
from distrff.fitting.rows import ColumnStatisticsReduction
from distrff.io.arrays import as_dataset
from tests.support.sweeps import swept

UNIT = 2.0**-53


def reduction_for(kind="numeric", n_columns=3, n_targets=1, **options):
    defaults = dict(tile_rows=16, rows_per_segment=10, seed=5)
    return ColumnStatisticsReduction(n_columns, kind, n_targets, **(defaults | options))


def statistics_of(reduction, X, y=None, s=None, cuts=()):
    return swept(reduction, as_dataset(X, y, s), cuts=cuts)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 200),
    ends=st.lists(st.integers(0, 200), max_size=5).map(sorted),
    tile_rows=st.integers(1, 70),
    dtype=st.sampled_from([np.float64, np.float32, np.int16, np.uint8, np.bool_]),
    k=st.integers(0, 2),
    weighted=st.booleans(),
)
def test_moments_are_those_of_numpy_for_any_cuts(seed, n, ends, tile_rows, dtype, k, weighted):
    rng = np.random.default_rng(seed)
    X = (50 * rng.standard_normal((n, 3)) + 3).astype(dtype)
    Y = 1e3 + rng.standard_normal((n, max(k, 1)))
    s = rng.exponential(size=n) if weighted else None
    ends = [end for end in ends if end < n]
    reduction = reduction_for(n_targets=max(k, 1), tile_rows=tile_rows)
    found = statistics_of(reduction, X, Y if k else Y[:, 0], s, ends)
    assert found.n_rows == n
    values = X.astype(np.float64)
    np.testing.assert_array_equal(found.magnitude, np.abs(values).max(axis=0))
    for moments, data in ((found.columns, values), (found.targets, Y)):
        weights = np.ones(n) if s is None else s
        mean = np.average(data, axis=0, weights=weights)
        deviations = weights @ (data - mean) ** 2
        # n additions and ten roundings a merge, of at most n tiles and segments; see test_scaling.py.
        units = 20 * (n + 10) * UNIT
        size = np.abs(data).max()
        assert moments.weight == pytest.approx(weights.sum(), rel=units)
        np.testing.assert_allclose(moments.mean, mean, rtol=0, atol=units * size)
        np.testing.assert_allclose(
            moments.deviations, deviations, rtol=units, atol=units * n * weights.max() * size**2
        )


# The sample


def sampled(n, ends, per_segment, seed, tile_rows=16, dtype=np.int32):
    X = np.arange(n, dtype=dtype)[:, None]
    reduction = reduction_for(n_columns=1, rows_per_segment=per_segment, seed=seed, tile_rows=tile_rows)
    sample = statistics_of(reduction, X, 2.0 * X[:, 0], 1.0 + X[:, 0], ends).sample()
    drawn = sample.X[:, 0]
    assert sample.X.dtype == np.float64
    np.testing.assert_array_equal(sample.y, 2 * drawn)  # a row is kept together
    np.testing.assert_array_equal(sample.sample_weight, 1 + drawn)
    assert np.all(np.diff(drawn) > 0)  # in order, none twice
    return drawn.astype(int)


def test_every_segment_gives_the_same_bounded_number_of_rows(rng):
    drawn = sampled(1000, (250, 500, 750), 40, int(rng.integers(2**62)))
    np.testing.assert_array_equal(np.bincount(drawn // 250), [40] * 4)
    assert len(sampled(100, (97,), 40, 1)) == 43  # a short segment gives all it has
    assert sample_rows(1) == 16_384
    for n_columns in (10, 300, 5000, 10**6):
        rows = sample_rows(n_columns)
        assert 2048 <= rows <= 16_384
        assert rows == 2048 or rows * n_columns * 8 <= 2**25


def test_the_sample_depends_on_seed_and_segments_alone(rng):
    seed = int(rng.integers(2**62))
    drawn = sampled(500, (200,), 30, seed)
    for tile_rows in (1, 7, 300):
        np.testing.assert_array_equal(sampled(500, (200,), 30, seed, tile_rows), drawn)
    np.testing.assert_array_equal(sampled(500, (200,), 30, seed, dtype=np.float32), drawn)
    # Equal by chance with a probability below 1e-40.
    assert not np.array_equal(sampled(500, (200,), 30, seed + 1), drawn)
    first, second = drawn[:30], drawn[30:] - 200
    assert not np.array_equal(first, second)
