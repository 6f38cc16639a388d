"""The sweeps of margin models against sums and sorts of all rows at once, however rows are cut."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from sklearn.base import clone

import distrff as drf
from distrff.errors import InputError
from distrff.fitting.light import MarginReduction, SmallestMarginsReduction, SoftmaxReduction
from distrff.io.arrays import as_dataset
from distrff.preprocessing.coding import ClassTargets, Scaling
from distrff.preprocessing.folds import HashFolds
from distrff.solvers.losses import Hinge, Logistic
from distrff.solvers.objective import RowWeights, margin_sums, sided_weights, softmax_slopes, softmax_sums
from tests.support.sweeps import of_features, swept

N, D, K = 403, 12, 3
FOLDS = HashFolds(4, 1)


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
        masks = FOLDS.masks(np.arange(N), self.held_out) if folded else None
        self.weights = RowWeights.of(self.s, (N, n_outputs), masks)
        self.folds = FOLDS if folded else None

    def swept(self, kind, tile_rows, point, **parameters):
        fields = of_features(self.map.specification_, self.targets, tile_rows=tile_rows)
        reduction = kind(**fields, folds=self.folds, held_out=self.held_out, **parameters)
        return swept(reduction, as_dataset(self.X, self.y, self.s), point, cuts=(150,))


FOURIER = drf.FourierFeatures(drf.Gaussian(2.0), D, random_state=0)
NYSTROEM = drf.NystroemFeatures(drf.Exponential(1.0), D, random_state=0)
DEFICIENT = drf.NystroemFeatures(drf.Polynomial(1), D, random_state=0)  # of rank 4: as many basis functions


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


# The rows of smallest margin, for any cuts, weights, ties and labels


TWO, THREE = np.array(["no", "yes"]), np.array([3, 5, 9])


def reduction_of(targets, *, n_kept=7, features=None, dtype="float64", outputs=None):
    features = FOURIER if features is None else features
    scaling = Scaling(np.full(3, 0.25), np.full(3, 2.0))
    fields = of_features(features.fit(np.zeros((1, 3))).specification_, targets, scaling=scaling, dtype=dtype)
    outputs = tuple(range(targets.n_outputs)) if outputs is None else outputs
    return SmallestMarginsReduction(**fields, outputs=outputs, n_kept=n_kept)


def rows_of(rng, classes, *, n=N, weighted=False):
    s = rng.exponential(size=n) * (rng.random(n) < 0.6) if weighted else None
    return rng.standard_normal((n, 3)), rng.choice(classes, n), s


def smallest(reduction, X, y, s, point, cuts=()):
    return swept(reduction, as_dataset(X, y, s), point, cuts)


def by_sorting(reduction, X, y, s, point):
    """(number, label, margin) of each model's rows, the numbers of violations, and the largest norm."""
    Z = reduction.specification.build().apply(reduction.scaling.apply(X, np.dtype(reduction.dtype)))
    F = Z @ point["coef"] + point["intercept"]
    Y = reduction.targets.encode(y)[:, list(reduction.outputs)]
    weights = reduction.targets.row_weights(y, s)
    counted = np.flatnonzero(np.ones(len(X)) if weights is None else weights)
    models = []
    for margin, label in zip((Y * F).T, Y.T, strict=True):
        sides = [counted[label[counted] == side] for side in (1, -1)]
        kept = np.concatenate(
            [sorted(rows, key=lambda i: (margin[i], i))[: reduction.n_kept] for rows in sides]
        )
        kept = kept.astype(int)
        models.append((kept, label[kept], margin[kept]))
    violating = ((Y * F)[counted] < 1).sum(axis=0)
    return models, violating, max(np.linalg.norm(Z[counted], axis=1), default=0.0)


@pytest.mark.parametrize("cuts", [(), (64,), (16, 32, 48, 64, 160)])
@pytest.mark.parametrize("n_kept", [1, 7, 1000])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "targets", [ClassTargets(TWO), ClassTargets(THREE), ClassTargets(THREE, np.array([0.5, 0.0, 2.0]))]
)
def test_they_are_the_first_of_all_rows_sorted(rng, targets, weighted, n_kept, cuts):
    reduction = reduction_of(targets, n_kept=n_kept)
    X, y, s = rows_of(rng, targets.classes, weighted=weighted)
    point = point_of(rng, len(reduction.outputs))
    found = smallest(reduction, X, y, s, point, cuts)
    models, violating, norm = by_sorting(reduction, X, y, s, point)
    # Margins are sums of D products of features of norm 1.
    near = dict(rtol=0, atol=8 * D * 2.0**-53 * (1 + abs(point["coef"]).sum()))
    for output, (number, label, margin) in enumerate(models):
        found_number, found_X, found_label, found_margin = found.rows(output)
        np.testing.assert_array_equal(found_number, number)
        np.testing.assert_array_equal(found_X, X[number])
        np.testing.assert_array_equal(found_label, label)
        np.testing.assert_allclose(found_margin, margin, **near)
    np.testing.assert_array_equal(found.n_violating, violating)
    assert found.largest_norm == pytest.approx(norm, rel=1e-14)


def test_values_beyond_the_dtype_are_refused(rng):
    reduction = reduction_of(ClassTargets(TWO), features=drf.LinearFeatures(), dtype="float32")
    X, y, _ = rows_of(rng, TWO)
    point = {"coef": np.full((3, 1), 1e30), "intercept": np.zeros(1)}
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(InputError, match="too large for float32"),
    ):
        smallest(reduction, 1e20 * abs(X) + 1, y, None, point)
