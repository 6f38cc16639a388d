"""Landmarks: the rows of the lowest keys, whatever the order and the grouping of rows."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from distrff.errors import InputError
from distrff.features.nystroem import LowestKeys, LowestLeverageKeys, chosen_landmarks, squared_norms
from distrff.features.specification import RowsInMemory
from distrff.kernels.polynomial import Polynomial
from distrff.kernels.stationary import Gaussian
from distrff.utils.random import row_hash


def uniform(n_landmarks=12):
    return LowestKeys(n_landmarks, 3, seed=5)


def by_leverage(pilot, n_landmarks=12, penalty=0.1):
    return LowestLeverageKeys(n_landmarks, 3, 5, Gaussian(), pilot, penalty)


def answer_in_parts(question, X, s, cuts, order):
    """Merge neighbours in a random order, each part answered by a pickled copy."""
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, len(X)], strict=True):
        own = pickle.loads(pickle.dumps(question))
        parts.append(own.update(own.zero(), start, X[start:stop], None if s is None else s[start:stop]))
    while len(parts) > 1:
        at = int(order.integers(len(parts) - 1))
        parts[at : at + 2] = [question.merge(parts[at], parts[at + 1])]
    return parts[0]


@pytest.mark.parametrize("weighted", [False, True])
def test_the_lowest_keys_win_in_any_order(rng, weighted):
    X = rng.standard_normal((200, 3))
    s = rng.integers(0, 3, 200).astype(float) if weighted else None
    keys = row_hash(np.arange(200, dtype=np.uint64), 5)
    allowed = np.arange(200) if s is None else np.flatnonzero(s)
    expected = allowed[np.argsort(keys[allowed])][:12]
    leverage = by_leverage(X[:20])
    whole = answer_in_parts(leverage, X, s, [], rng)
    assert len(np.unique(whole.rows)) == 12
    for n_cuts in (0, 1, 7, 60):
        cuts = np.sort(rng.integers(0, 201, n_cuts))
        answer = answer_in_parts(uniform(), X, s, cuts, rng)
        np.testing.assert_array_equal(answer.rows, expected)
        np.testing.assert_array_equal(answer.X, X[expected])
        np.testing.assert_array_equal(answer.keys, keys[expected])
        answer = answer_in_parts(leverage, X, s, cuts, rng)
        np.testing.assert_array_equal(answer.rows, whole.rows)
        np.testing.assert_array_equal(answer.X, whole.X)


def test_merging_changes_neither(rng):
    X = rng.standard_normal((40, 3))
    none = uniform().zero()
    first, second = (uniform().update(none, start, X[start : start + 20], None) for start in (0, 20))
    kept = pickle.dumps((first, second))
    uniform().merge(first, second)
    assert pickle.dumps((first, second)) == kept
    for merged in (uniform().merge(none, first), uniform().merge(first, none)):
        assert all(map(np.array_equal, merged, first))
    assert not len(uniform().merge(none, none).keys)
    assert uniform().update(none, 0, X[:0], None) is none
    assert uniform().update(first, 20, X[:3], np.zeros(3)) is first
    for n_rows in (5, 40):
        answer = uniform().update(none, 0, X[:n_rows], None)
        assert sum(array.nbytes for array in answer) == uniform().size_bytes(n_rows)


def test_uniform_landmarks_are_uniform(rng):
    counts = np.zeros(50)
    for _ in range(400):
        seed = int(rng.integers(2**62))
        question = LowestKeys(10, 1, seed)
        lowest = question.update(question.zero(), 1000, np.zeros((50, 1)), None)
        counts[lowest.rows - np.uint64(1000)] += 1
    # Each row is among 10 of 50 in a fifth of the draws; six standard errors, of the largest of 50 too.
    assert np.abs(counts / 400 - 0.2).max() < 6 * np.sqrt(0.2 * 0.8 / 400)


def test_scores_are_ridge_leverages_where_the_pilot_is_all_rows(rng):
    X, penalty = rng.standard_normal((30, 3)), 0.3
    K = Gaussian()(X)
    leverages = np.diag(K @ np.linalg.inv(K + penalty * np.eye(30)))
    scores = by_leverage(X, penalty=penalty).scores(X)
    np.testing.assert_allclose(scores / penalty, leverages, rtol=1e-9)


def test_keys_draw_in_proportion_to_scores(rng):
    pilot, X = np.zeros((1, 3)), np.array([[0.0, 0, 0], [0.7, 0, 0], [3.0, 0, 0]])
    scores = by_leverage(pilot).scores(X)
    first = np.zeros(3)
    n = 3000
    for _ in range(n):
        question = LowestLeverageKeys(1, 3, int(rng.integers(2**62)), Gaussian(), pilot, 0.1)
        first[int(question.update(question.zero(), 7, X, None).rows[0]) - 7] += 1
    p = scores / scores.sum()
    # Six standard errors of each share, and the discreteness of counts.
    assert (np.abs(first / n - p) < 6 * np.sqrt(p * (1 - p) / n) + 1 / n).all()


@pytest.mark.parametrize("kernel", [Gaussian(0.5), Polynomial(2), 2.0 * Gaussian() + Polynomial(1)])
def test_squared_norms_are_the_diagonal(rng, kernel):
    X = rng.standard_normal((7, 3))
    np.testing.assert_allclose(squared_norms(kernel, X), np.diag(kernel(X)), rtol=1e-13)


def chosen(X, weights, landmarks, n_landmarks, seed):
    options = dict(landmarks=landmarks, n_landmarks=n_landmarks, n_columns=3, seed=seed)
    return chosen_landmarks(RowsInMemory(X, weights), Gaussian(), **options)


def test_leverage_finds_rare_rows_more_often(rng):
    """Five rows of 500 lie apart from each other and from the rest, which is almost one point."""
    X = 0.01 * rng.standard_normal((500, 3))
    rare = np.arange(5) * 100
    X[rare] = 10.0 * np.arange(1, 6)[:, None]
    n_draws = 40
    found = {
        landmarks: sum(
            int((chosen(X, None, landmarks, 20, int(rng.integers(2**62)))[:, 0] > 5).sum())
            for _ in range(n_draws)
        )
        for landmarks in ("uniform", "leverage")
    }
    # Uniformly each rare row is one of 20 in 500: 0.2 a draw, 8 in all with a standard error of 2.8.
    assert found["uniform"] < 8 + 6 * 2.8
    # By leverage each weighs as much as all others together or more, unless the pilot held it.
    assert found["leverage"] > 3.0 * n_draws


@pytest.mark.parametrize("landmarks", ["uniform", "leverage"])
def test_more_landmarks_than_rows_are_refused(rng, landmarks):
    X, s = rng.standard_normal((9, 3)), np.r_[np.ones(6), np.zeros(3)]
    for n_landmarks, n_rows, weights in ((10, 9, None), (7, 6, s)):
        with pytest.raises(InputError, match=f"n_components={n_landmarks} .* only {n_rows} rows"):
            chosen(X, weights, landmarks, n_landmarks, 1)
