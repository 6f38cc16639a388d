"""Equal rows of opposite labels: found wherever they are, in the order of their numbers."""

from __future__ import annotations

import numpy as np
import pytest

from distrff.io.arrays import as_dataset
from distrff.preprocessing.targets import ClassTargets
from distrff.reductions.duplicates import TwinReduction, first_pair

N = 500
TWO, THREE = np.array([-1, 1]), np.array([0, 1, 2])


def twins(X, y, known, *, classes=TWO, output=0, s=None, cut=N // 3):
    """The first row of the opposite label that equals each of the known ones, from two segments."""
    targets = ClassTargets(classes)
    reduction = TwinReduction(targets, output, len(known), tile_rows=64)
    sent = {"X": X[known], "label": targets.encode(y[known])[:, output]}
    dataset = as_dataset(X, y, s)
    parts = [
        reduction.finish(reduction.update(reduction.zero(), dataset.rows(start, stop), sent))
        for start, stop in ((0, cut), (cut, len(X)))
    ]
    return reduction.merge(*parts)


def by_comparing(X, y, known, *, classes=TWO, output=0, s=None):
    Y = ClassTargets(classes).encode(y)[:, output]
    counts = np.ones(len(X), dtype=bool) if s is None else s > 0
    found = []
    for j in known:
        same = np.flatnonzero((X[j] == X).all(axis=1) & (-Y[j] == Y) & counts)
        found.append(same[0] if len(same) else np.iinfo(np.int64).max)
    return np.array(found)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_first_of_them(rng, dtype, weighted):
    X = rng.integers(-4, 4, (N, 3)).astype(dtype)  # 512 different rows
    if np.dtype(dtype).kind == "f":
        X[rng.random(X.shape) < 0.3] *= -0.0
    s = rng.random(N) * (rng.random(N) < 0.7) if weighted else None
    known = np.sort(rng.choice(N, 100, replace=False))
    for classes, output in ((TWO, 0), (THREE, 1)):
        y = rng.choice(classes, N)
        options = {"classes": classes, "output": output, "s": s}
        expected = by_comparing(X, y, known, **options)
        np.testing.assert_array_equal(twins(X, y, known, **options), expected)
        pair = first_pair(known, expected)
        assert pair is not None
        assert max(pair) == np.maximum(known, expected)[expected < N].min()
        assert (X[pair[0]] == X[pair[1]]).all()


def test_none(rng):
    X, y = rng.standard_normal((N, 3)), rng.choice(TWO, N)
    assert first_pair(np.arange(9), twins(X, y, np.arange(9))) is None
    assert first_pair(np.arange(0), twins(X, y, np.arange(0))) is None


def test_large_integers_differ_in_their_last_digit():
    X = np.array([[2**53, 1], [2**53 + 1, 1], [2**53 + 1, 1]])
    found = twins(X, np.array([1, -1, 1]), np.arange(3), cut=1)
    assert first_pair(np.arange(3), found) == (1, 2)
