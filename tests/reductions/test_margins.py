"""The light sweeps of margin models against sums over all rows at once, however rows are cut."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from sklearn.base import clone

import distrff as drf
from distrff.io.arrays import as_dataset
from distrff.preprocessing.targets import ClassTargets
from distrff.reductions.base import Folds
from distrff.reductions.margins import MarginReduction, NearestRowsReduction, SoftmaxReduction
from distrff.solvers.losses import Hinge, Logistic
from distrff.solvers.objective import RowWeights, margin_sums, sided_weights, softmax_slopes, softmax_sums
from tests.support.sweeps import of_features, swept

N, D, K = 403, 12, 3
FOLDS = Folds(4, 1, "hash", N)


class Rows:
    """Rows of three classes in memory, with what a sweep of them is asked."""

    def __init__(self, rng, weighted, folded, features, n_outputs):
        self.X, self.y = rng.standard_normal((N, 3)), rng.integers(0, K, N)
        self.y[:K] = range(K)
        self.s = rng.uniform(0.2, 2, N) if weighted else None
        self.targets = ClassTargets(np.arange(K))
        self.outputs = tuple(int(j) for j in rng.integers(0, K, n_outputs))
        self.held_out = tuple(j % 4 if folded else None for j in range(n_outputs))
        self.map = clone(features).fit(self.X)
        self.Z = self.map.transform(self.X)
        self.Y = np.where(self.y[:, None] == np.array(self.outputs), 1.0, -1.0)
        out = FOLDS.of_rows(0, N)[:, None] == np.array(self.held_out) if folded else None
        self.weights = RowWeights.of(self.s, out, (N, n_outputs))
        self.folds = FOLDS if folded else None

    def swept(self, kind, tile_rows, point, **parameters):
        fields = of_features(self.map.specification_, self.targets, tile_rows=tile_rows)
        reduction = kind(**fields, folds=self.folds, held_out=self.held_out, **parameters)
        return swept(reduction, as_dataset(self.X, self.y, self.s), point, cuts=(150,))


FOURIER = drf.FourierFeatures(drf.Gaussian(2.0), D, random_state=0)
NYSTROEM = drf.NystroemFeatures(drf.Exponential(1.0), D, random_state=0)
DEFICIENT = drf.NystroemFeatures(
    drf.Polynomial(1), D, random_state=0
)  # of rank 4, with a basis of as many functions


@pytest.fixture(
    params=[
        (False, False, FOURIER),
        (True, False, FOURIER),
        (True, True, FOURIER),
        (True, True, NYSTROEM),
        (False, False, DEFICIENT),
    ],
    ids=["plain", "weighted", "folds", "landmarks", "deficient"],
)
def make(request, rng):
    return lambda n_outputs: Rows(rng, *request.param, n_outputs)


def point_of(rng, n_columns, **more):
    return {"coef": rng.standard_normal((D, n_columns)), "intercept": rng.standard_normal(n_columns)} | more


def assert_same(found, expected):
    # Sums of 403 numbers of size 10 in another order: 403·2⁻⁵³ of the sum of their sizes.
    for f in fields(expected):
        a, b = getattr(found, f.name), getattr(expected, f.name)
        if f.name == "sided":
            assert_same(a, b)
        elif f.name != "sides":
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("tile_rows", [1, 7, 16, 512])  # blocks of eight tiles, short ones at the ends
@pytest.mark.parametrize("n_outputs", [1, 2, 9])
@pytest.mark.parametrize("loss", [Logistic(), Hinge()])
def test_margins(make, rng, tile_rows, n_outputs, loss):
    rows, epsilon = make(n_outputs), np.linspace(0.1, 0.5, n_outputs)
    point = point_of(rng, n_outputs, epsilon=epsilon)
    found = rows.swept(MarginReduction, tile_rows, point, loss=loss, outputs=rows.outputs)
    F, proxy = rows.Z @ point["coef"] + point["intercept"], loss.rounded(epsilon)
    vector = sided_weights(proxy, F, rows.Y, rows.weights) @ rows.Z
    assert_same(found, margin_sums(loss, proxy, F, rows.Y, rows.weights, vector))


@pytest.mark.parametrize("tile_rows", [7, 512])
@pytest.mark.parametrize("n_outputs", [1, 4])
def test_softmax(make, rng, tile_rows, n_outputs):
    rows, point = make(n_outputs), point_of(rng, n_outputs * K)
    found = rows.swept(SoftmaxReduction, tile_rows, point, sigma=0.7)
    F = (rows.Z @ point["coef"] + point["intercept"]).reshape(N, n_outputs, K)
    slopes = softmax_slopes(F, rows.y, rows.weights, sigma=0.7)
    vector = np.einsum("rmk,rd->mkd", slopes, rows.Z)
    assert_same(found, softmax_sums(F, rows.y, rows.weights, vector, sigma=0.7))


@pytest.mark.parametrize("tile_rows", [7, 512])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_nearest_rows(make, rng, tile_rows, n_outputs):
    rows, point = make(n_outputs), point_of(rng, n_outputs)
    found = rows.swept(
        NearestRowsReduction, tile_rows, point, outputs=rows.outputs, n_kept=5, has_reference=False
    )
    short = 1 - rows.Y * (rows.Z @ point["coef"] + point["intercept"])
    s, losses = rows.weights.fitted, np.maximum(0, short)
    pulls = np.where(short > 0, s * rows.Y, 0)
    np.testing.assert_allclose(found.value, (s * losses).sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.held_out, rows.weights.held_out_sums(losses), rtol=1e-12, atol=1e-12)
    vector = np.column_stack([pulls.T @ rows.Z, pulls.sum(axis=0)])
    np.testing.assert_allclose(found.violating_vector, vector, rtol=1e-12, atol=1e-9)
    for j in range(n_outputs):
        for side, label in zip(found.sides[j], (1, -1), strict=True):
            mine = np.flatnonzero((rows.Y[:, j] == label) & (s[:, j] > 0))
            nearest = mine[np.argsort(np.abs(short[mine, j]), kind="stable")[:5]]
            assert side.number.tolist() == nearest.tolist()
            np.testing.assert_array_equal(side.X, rows.X[nearest])
