"""The first sweep's sample: even over the segments, bounded, the same for any cuts."""

import numpy as np

from distrff.features.base import sample_rows
from distrff.fitting.rows import ColumnStatisticsReduction, rows_in_runs
from distrff.io.arrays import as_dataset
from tests.support.sweeps import swept


def reduction_for(kind="numeric", n_columns=3, n_targets=1, **options):
    defaults = dict(tile_rows=16, rows_per_segment=10, seed=5)
    return ColumnStatisticsReduction(n_columns, kind, n_targets, **(defaults | options))


def statistics_of(reduction, X, y=None, s=None, cuts=()):
    return swept(reduction, as_dataset(X, y, s), cuts=cuts)


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


def test_runs_of_neighbours_are_those_of_row_numbers_alone():
    for n_rows in (1, 500, 768, 769, 5000):
        X = np.arange(n_rows)[:, None]
        numbers = rows_in_runs(n_rows)
        assert np.all(np.diff(numbers) > 0) and numbers[0] == 0 and numbers[-1] == n_rows - 1
        assert len(numbers) == min(n_rows, 768)
        for cuts in ((), (n_rows // 3, n_rows // 2)):
            reduction = reduction_for(n_columns=1, n_rows=n_rows, tile_rows=37)
            runs = statistics_of(reduction, X, 2.0 * X[:, 0], cuts=[cut for cut in cuts if cut]).neighbours()
            np.testing.assert_array_equal(runs.rows, numbers)
            np.testing.assert_array_equal(runs.X[:, 0], numbers)
            np.testing.assert_array_equal(runs.y, 2 * numbers)
    far = rows_in_runs(10**10).reshape(12, 64)
    np.testing.assert_array_equal(far - far[:, :1], np.tile(np.arange(64), (12, 1)))
