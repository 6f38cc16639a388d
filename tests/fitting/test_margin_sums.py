"""The sweeps of margin models against sums and sorts of all rows at once, however rows are cut."""

from dataclasses import fields

import numpy as np
import pytest
from sklearn.base import clone

import distrff as drf
from distrff.errors import InputError
from distrff.fitting.light import MarginReduction, SmallestMarginsReduction, SoftmaxReduction
from distrff.io.arrays import as_dataset
from distrff.preprocessing.coding import ClassTargets
from distrff.preprocessing.folds import HashFolds, Keys
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
        masks = FOLDS.masks(Keys(np.arange(N)), self.held_out) if folded else None
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


# The rows of smallest margin, for any cuts and weights


def smallest(features, X, y, s, point, *, n_kept=7, class_weight=None, dtype="float64", cuts=()):
    targets = ClassTargets(np.unique(y), class_weight)
    fields = of_features(features.fit(X).specification_, targets, dtype=dtype)
    reduction = SmallestMarginsReduction(**fields, outputs=tuple(range(targets.n_outputs)), n_kept=n_kept)
    return swept(reduction, as_dataset(X, y, s), point, cuts)


@pytest.mark.parametrize("cuts", [(), (64,), (16, 32, 48, 64, 160)])
@pytest.mark.parametrize("n_kept", [1, 7, 1000])
@pytest.mark.parametrize("class_weight", [None, np.array([0.5, 0.0, 2.0])])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_they_are_the_first_of_all_rows_sorted(rng, n_classes, class_weight, n_kept, cuts):
    X, y = rng.standard_normal((N, 3)), rng.integers(0, n_classes, N)
    s, point = (
        rng.exponential(size=N) * (rng.random(N) < 0.6),
        point_of(rng, n_classes if n_classes > 2 else 1),
    )
    class_weight = None if n_classes == 2 else class_weight
    found = smallest(FOURIER, X, y, s, point, n_kept=n_kept, class_weight=class_weight, cuts=cuts)
    Z = FOURIER.fit(X).transform(X)
    counted = (s > 0) & (True if class_weight is None else class_weight[y] > 0)
    for output, label in enumerate(range(n_classes) if n_classes > 2 else [1]):
        Y = np.where(y == label, 1.0, -1.0)
        margin = Y * (Z @ point["coef"][:, output] + point["intercept"][output])
        sides = [np.flatnonzero(counted & (side == Y)) for side in (1, -1)]
        number = np.concatenate([rows[np.lexsort((rows, margin[rows]))[:n_kept]] for rows in sides])
        found_number, found_X, found_label, found_margin = found.rows(output)
        np.testing.assert_array_equal(found_number, number)
        np.testing.assert_array_equal(found_X, X[number])
        np.testing.assert_array_equal(found_label, Y[number])
        # Margins are sums of D products of features of norm 1.
        most = 8 * D * 2.0**-53 * (1 + abs(point["coef"]).sum())
        np.testing.assert_allclose(found_margin, margin[number], rtol=0, atol=most)
        assert found.n_violating[output] == (margin[counted] < 1).sum()
    assert found.largest_norm == pytest.approx(np.linalg.norm(Z[counted], axis=1).max(), rel=1e-14)


def test_values_beyond_the_dtype_are_refused(rng):
    X, y = 1e20 * abs(rng.standard_normal((N, 3))) + 1, rng.integers(0, 2, N)
    point = {"coef": np.full((3, 1), 1e30), "intercept": np.zeros(1)}
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(InputError, match="too large for float32"),
    ):
        smallest(drf.LinearFeatures(), X, y, None, point, dtype="float32")
