"""Rows that are sorted are told from shuffled ones."""

from __future__ import annotations

import numpy as np
import pytest

from distrff.preprocessing.scaling import drift_message, drift_shares, drifting


@pytest.mark.parametrize("m", [100, 1000, 16384])
def test_shuffled_rows_do_not_drift(rng, m):
    X = np.column_stack([
        rng.standard_normal((m, 20)), rng.standard_t(3, (m, 5)), rng.random((m, 5)) < 0.02, np.full(m, 0.1)
    ])  # fmt: skip
    shares = drift_shares(X, rng.uniform(0.5, 2, m))
    assert not drifting(shares, m).any()
    assert shares[-1] == 0
    assert drift_message(shares, drift_shares(X[:, :1]), m) is None


def test_sorted_rows_drift(rng):
    m = 2000
    X = rng.standard_normal((m, 4))
    X[:, 2] = np.sort(X[:, 2])
    X[:, 3] += np.linspace(0, 2, m)
    shares = drift_shares(X)
    assert drifting(shares, m).tolist() == [False, False, True, True]
    assert shares[2] > 0.9
    assert 0.1 < shares[3] < 0.5
    y = np.repeat([-1.0, 1.0], m // 2)[:, None]
    message = drift_message(shares, drift_shares(y), m)
    assert message is not None
    assert "needs shuffled" in message
    assert "y, column 2 of X, column 3 of X" in message
    assert "100% of the variance" in message


def test_many_columns_are_counted(rng):
    X = np.sort(rng.standard_normal((500, 10)), axis=0)
    message = drift_message(drift_shares(X), np.zeros(1), 500)
    assert message is not None
    assert "column 2 of X, 7 more columns" in message


def test_blocks_of_days_are_seen_and_few_rows_are_not(rng):
    days = np.repeat(rng.permutation(8), 200)[:, None].astype(float)
    assert drifting(drift_shares(days), 1600).all()
    assert not drift_shares(np.arange(20.0)[:, None]).any()


def test_rows_without_weight_do_not_count():
    X = np.zeros((640, 1))
    X[:40] = 5.0
    s = np.ones(640)
    s[:40] = 0.0
    assert not drift_shares(X, s).any()
