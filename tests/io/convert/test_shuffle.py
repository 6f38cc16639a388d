"""The out-of-core shuffle: every row once, in an order that is uniform, whatever the blocks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix, issparse, vstack
from scipy.stats import chi2

from distrff.io.convert import writer
from distrff.io.convert.writer import SetApart, Shuffled, is_test_row, shuffle_keys


class Kept:
    """A sink that keeps all rows in memory."""

    def __init__(self) -> None:
        self.blocks: list[dict] = []

    def append(self, rows) -> None:
        self.blocks.append(rows)

    def finish(self) -> int:
        return sum(rows["X"].shape[0] for rows in self.blocks)

    def field(self, name):
        parts = [rows[name] for rows in self.blocks]
        return vstack(parts).toarray() if issparse(parts[0]) else np.concatenate(parts)


def send(sink, X, y, cuts) -> None:
    for part in np.split(np.arange(X.shape[0]), cuts):
        if len(part):
            sink.append({"X": X[part], "y": y[part]})


@pytest.fixture(params=[2**20, 2000], ids=["one level", "several levels"])
def bucket_bytes(request, monkeypatch):
    """Buckets that fit at once, and those that are cut again, four by four."""
    monkeypatch.setattr(writer, "_BUCKET_BYTES", request.param)
    monkeypatch.setattr(writer, "_PART_BYTES", request.param // 4)
    monkeypatch.setattr(writer, "_BUCKET_BITS", 2)


@pytest.mark.parametrize("kind", [np.asarray, csr_matrix])
def test_rows_stand_in_the_order_of_their_keys(tmp_path, bucket_bytes, kind, rng):
    n, seed = 800, int(rng.integers(2**31))
    X = kind(rng.standard_normal((n, 4)) * (rng.random((n, 4)) < 0.5))
    y = np.array([f"row {i}" for i in range(n)], dtype=object)
    kept = Kept()
    shuffled = Shuffled(kept, seed, tmp_path)
    send(shuffled, X, y, np.sort(rng.integers(0, n, 5)))
    assert shuffled.finish() == n
    order = np.argsort(shuffle_keys(np.arange(n), seed))
    np.testing.assert_array_equal(kept.field("X"), X[order].toarray() if issparse(X) else X[order])
    assert kept.field("y").tolist() == y[order].tolist()
    assert not list(tmp_path.iterdir())


def test_numbers_keep_their_types(tmp_path, rng):
    kept = Kept()
    shuffled = Shuffled(kept, 0, tmp_path)
    X, y, s = rng.random((50, 2), np.float32), np.arange(50, dtype=np.uint8), rng.random(50)
    shuffled.append({"X": X, "y": y, "sample_weight": s})
    shuffled.finish()
    X_found, y_found, s_found = map(kept.field, ("X", "y", "sample_weight"))
    assert (X_found.dtype, y_found.dtype, s_found.dtype) == (np.float32, np.uint8, np.float64)
    np.testing.assert_array_equal(X_found, X[y_found])
    np.testing.assert_array_equal(s_found, s[y_found])


def test_places_are_uniform(rng):
    """Where the rows of each twentieth went is as even as chance makes it; wrong once in a million."""
    n, parts = 100_000, 20
    order = np.argsort(shuffle_keys(np.arange(n), int(rng.integers(2**62))))
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    table = np.bincount(np.arange(n) * parts // n * parts + place * parts // n, minlength=parts**2)
    statistic = ((table - n / parts**2) ** 2).sum() / (n / parts**2)
    # Rows and columns of the table have fixed sums.
    assert chi2.sf(statistic, (parts - 1) ** 2) > 1e-6
    assert chi2.cdf(statistic, (parts - 1) ** 2) > 1e-6


def test_neighbours_do_not_stay_neighbours(rng):
    """The rank correlation of row and place is 0 but for chance: six of its standard deviations."""
    n = 50_000
    keys = shuffle_keys(np.arange(n), int(rng.integers(2**62)))
    place = np.argsort(np.argsort(keys))
    assert abs(np.corrcoef(np.arange(n), place)[0, 1]) < 6 / np.sqrt(n)
    assert abs(np.corrcoef(place[1:], place[:-1])[0, 1]) < 6 / np.sqrt(n)


def test_rows_are_set_apart_by_their_numbers_alone(rng):
    n, seed, fraction = 20_000, int(rng.integers(2**31)), 0.3
    training, test = Kept(), Kept()
    split = SetApart(training, test, fraction, seed)
    X = np.arange(n)[:, None]
    send(split, X, X[:, 0], np.sort(rng.integers(0, n, 7)))
    split.finish()
    assert split.n_written == (len(training.field("y")), len(test.field("y")))
    expected = is_test_row(np.arange(n), seed, fraction)
    np.testing.assert_array_equal(test.field("X")[:, 0], np.flatnonzero(expected))
    np.testing.assert_array_equal(training.field("X")[:, 0], np.flatnonzero(~expected))
    assert abs(expected.mean() - fraction) < 6 * np.sqrt(fraction * (1 - fraction) / n)
