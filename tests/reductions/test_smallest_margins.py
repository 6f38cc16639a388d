"""The rows of smallest margin against sorting all rows, for any cuts, weights, ties and labels."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

import distrff as drf
from distrff.errors import InputError
from distrff.io.arrays import as_dataset
from distrff.preprocessing.scaling import Scaling
from distrff.preprocessing.targets import ClassTargets
from distrff.reductions.margins import SmallestMargins, SmallestMarginsReduction
from tests.support.sweeps import of_features, partials, swept

N, d, D = 211, 3, 8
TWO, THREE = np.array(["no", "yes"]), np.array([3, 5, 9])


def reduction_of(targets, *, n_kept=7, features=None, dtype="float64", outputs=None):
    features = drf.FourierFeatures(drf.Gaussian(2.0), D, random_state=3) if features is None else features
    scaling = Scaling(np.full(d, 0.25), np.full(d, 2.0))
    fields = of_features(features.fit(np.zeros((1, d))).specification_, targets, scaling=scaling, dtype=dtype)
    outputs = tuple(range(targets.n_outputs)) if outputs is None else outputs
    return SmallestMarginsReduction(**fields, outputs=outputs, n_kept=n_kept)


def point_of(rng, reduction):
    k = len(reduction.outputs)
    coef = rng.standard_normal((reduction.specification.n_features, k))
    return {"coef": coef, "intercept": rng.standard_normal(k)}


def rows_of(rng, classes, *, n=N, weighted=False):
    s = rng.exponential(size=n) * (rng.random(n) < 0.6) if weighted else None
    return rng.standard_normal((n, d)), rng.choice(classes, n), s


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


def assert_same(found: SmallestMargins, other: SmallestMargins):
    for output in range(len(found.sides)):
        for mine, theirs in zip(found.rows(output), other.rows(output), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(found.n_violating, other.n_violating)
    assert found.largest_norm == other.largest_norm


@pytest.mark.parametrize("cuts", [(), (64,), (16, 32, 48, 64, 160)])
@pytest.mark.parametrize("n_kept", [1, 7, 1000])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "targets", [ClassTargets(TWO), ClassTargets(THREE), ClassTargets(THREE, np.array([0.5, 0.0, 2.0]))]
)
def test_they_are_the_first_of_all_rows_sorted(rng, targets, weighted, n_kept, cuts):
    reduction = reduction_of(targets, n_kept=n_kept)
    X, y, s = rows_of(rng, targets.classes, weighted=weighted)
    point = point_of(rng, reduction)
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_cuts_give_the_same_bits(rng, dtype):
    """Between multiples of the tile, whose products the bits of margins depend on."""
    reduction = reduction_of(ClassTargets(THREE), dtype=dtype)
    X, y, s = rows_of(rng, THREE, weighted=True)
    point = point_of(rng, reduction)
    whole = smallest(reduction, X, y, s, point)
    for _ in range(5):
        cuts = np.unique(16 * rng.integers(1, N // 16, rng.integers(1, 9)))
        assert_same(smallest(reduction, X, y, s, point, cuts), whole)


def test_equal_margins_go_by_row_number(rng):
    reduction = reduction_of(ClassTargets(TWO), n_kept=5)
    X, y, _ = rows_of(rng, TWO)
    point = {"coef": np.zeros((D, 1)), "intercept": np.zeros(1)}
    for cuts in ((), (3, 7, 90, 91)):
        number, _, label, margin = smallest(reduction, X, y, None, point, cuts).rows(0)
        first = [*np.flatnonzero(y == "yes")[:5], *np.flatnonzero(y == "no")[:5]]
        np.testing.assert_array_equal(number, first)
        np.testing.assert_array_equal(label, [1.0] * 5 + [-1.0] * 5)
        assert not margin.any()


def test_merging_is_associative_and_changes_nothing(rng):
    reduction = reduction_of(ClassTargets(THREE), n_kept=4)
    X, y, s = rows_of(rng, THREE, weighted=True)
    X = np.rint(X)  # many ties
    point = point_of(rng, reduction)
    a, b, c = partials(reduction, as_dataset(X, y, s), point, cuts=(48, 112))
    before = pickle.dumps((a, b, c))
    left = reduction.merge(reduction.merge(a, b), c)
    assert_same(left, reduction.merge(a, reduction.merge(b, c)))
    assert_same(left, reduction.merge(reduction.merge(reduction.zero(), c), reduction.merge(b, a)))
    assert_same(pickle.loads(before)[0], a)
    assert pickle.dumps((a, b, c)) == before


def test_rows_without_weight_do_not_count(rng):
    reduction = reduction_of(ClassTargets(TWO))
    X, y, _ = rows_of(rng, TWO)
    point = point_of(rng, reduction)
    s = (np.arange(N) % 3 > 0).astype(float)
    found = smallest(reduction, X, y, s, point, (16,))
    assert all((number % 3 > 0).all() for number, *_ in [found.rows(0)])
    heavier = smallest(reduction, X, y, 1e3 * s, point, (16,))
    assert_same(found, heavier)
    none = smallest(reduction, X, y, np.zeros(N), point, (16,))
    number, none_X, label, margin = none.rows(0)
    assert number.shape == label.shape == margin.shape == (0,)
    assert none_X.shape == (0, d)
    assert none.n_violating.tolist() == [0]
    assert none.largest_norm == 0


def test_some_outputs_are_those_of_all(rng):
    every = reduction_of(ClassTargets(THREE))
    X, y, _ = rows_of(rng, THREE)
    point = point_of(rng, every)
    whole = smallest(every, X, y, None, point)
    some = replace(every, outputs=(2, 0))
    part = smallest(some, X, y, None, {name: A[..., [2, 0]] for name, A in point.items()})
    for position, output in enumerate((2, 0)):
        np.testing.assert_array_equal(part.rows(position)[0], whole.rows(output)[0])


@pytest.mark.parametrize("n", [1, 5, N])
@pytest.mark.parametrize("targets", [ClassTargets(TWO), ClassTargets(THREE)])
def test_a_reduction_travels_and_says_what_it_takes(rng, targets, n):
    reduction = reduction_of(targets)
    assert pickle.loads(pickle.dumps(reduction)) is not reduction
    X, y, _ = rows_of(rng, targets.classes, n=n)
    found = smallest(reduction, X, y, None, point_of(rng, reduction))
    arrays = [A for sides in found.sides for side in sides for A in (side.number, side.X, side.score)]
    n_bytes = sum(A.nbytes for A in arrays) + found.n_violating.nbytes + 8
    assert n_bytes <= reduction.size_bytes(n)
    assert reduction.size_bytes(10**9) == reduction.size_bytes(10**6)
    assert all(A.base is None or A.base.nbytes <= 4 * A.nbytes for A in arrays if A.nbytes)


def test_values_beyond_the_dtype_are_refused(rng):
    reduction = reduction_of(ClassTargets(TWO), features=drf.LinearFeatures(), dtype="float32")
    X, y, _ = rows_of(rng, TWO)
    point = {"coef": np.full((d, 1), 1e30), "intercept": np.zeros(1)}
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(InputError, match="too large for float32"),
    ):
        smallest(reduction, 1e20 * abs(X) + 1, y, None, point)
