"""The light sweeps of ridge against dense formulas, for every way to weigh, code and cut."""

from __future__ import annotations

import pickle
from dataclasses import fields

import numpy as np
import pytest
from sklearn.base import clone

import distrff as drf
from distrff.io.arrays import as_dataset
from distrff.preprocessing.scaling import Scaling
from distrff.preprocessing.targets import ClassTargets, NumericTargets
from distrff.reductions.ridge import ProductReduction, RightSidesReduction
from distrff.solvers.ridge import ridge_moments

N, D, TILE = 403, 12, 16


FOURIER = drf.FourierFeatures(drf.Gaussian(2.0), D, random_state=0)


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture(params=[True, False])
def s(request, rng):
    return rng.uniform(0.2, 2, N) if request.param else None


@pytest.fixture
def X(rng):
    return rng.standard_normal((N, 3))


def shared(X, targets, dtype, offset=None, map_=FOURIER):
    return {
        "specification": clone(map_).fit(X).specification_,
        "scaling": Scaling(),
        "targets": targets,
        "offset": offset,
        "dtype": dtype,
        "tile_rows": TILE,
    }


def features(reduction, X):
    return reduction.specification.build().apply(X.astype(reduction.dtype)).astype(np.float64)


def swept(reduction, dataset, point, cut):
    halves = [dataset.rows(0, cut), dataset.rows(cut, dataset.n_rows)]
    partials = [reduction.finish(reduction.update(reduction.zero(), rows, point)) for rows in halves]
    return reduction.merge(*partials)


# Features of float32 depend in the last bits on how many rows are multiplied at a time.
TOLERANCE = {"float32": 1e-5, "float64": 1e-11}


@pytest.mark.parametrize(
    "map_", [FOURIER, drf.NystroemFeatures(drf.Exponential(1.0), D, random_state=0)], ids=repr
)
def test_products(X, s, dtype, rng, map_):
    targets = NumericTargets(np.zeros(1), np.ones(1))
    reduction = ProductReduction(**shared(X, targets, dtype, map_=map_), held_out=(None, None))
    assert pickle.loads(pickle.dumps(reduction)).size_bytes(N) == 8 * (D + 1) * 2
    point = {"coef": rng.standard_normal((D, 2)), "intercept": rng.standard_normal(2)}
    found = swept(reduction, as_dataset(X, X[:, 0], s), point, 100)
    Z = features(reduction, X)
    F = Z @ point["coef"] + point["intercept"]
    expected = np.column_stack([Z, np.ones(N)]).T @ (F if s is None else s[:, None] * F)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype] * N)


@pytest.mark.parametrize("offset", [None, np.array([2.0, -1.0])])
def test_right_hand_sides(X, s, dtype, rng, offset):
    Y = rng.standard_normal((N, 2))
    targets = NumericTargets(np.array([0.5, 0.0]), np.array([2.0, 1.0]))
    reduction = RightSidesReduction(**shared(X, targets, dtype, offset))
    point = {"coef": rng.standard_normal((D, 2)), "intercept": rng.standard_normal(2)}
    found = swept(reduction, as_dataset(X, Y, s), point, 64)
    Z, coded = features(reduction, X), targets.encode(Y) + (0 if offset is None else offset)
    expected = ridge_moments(Z, coded, coded - Z @ point["coef"] - point["intercept"], s)
    for field in fields(expected):
        np.testing.assert_allclose(
            getattr(found, field.name), getattr(expected, field.name), rtol=0, atol=TOLERANCE[dtype] * N
        )


def test_classes_weigh_their_rows(X, rng):
    labels = rng.integers(0, 3, N)
    targets = ClassTargets(np.arange(3), np.array([1.0, 2.0, 0.5]))
    reduction = ProductReduction(**shared(X, targets, "float64"), held_out=(None,))
    point = {"coef": rng.standard_normal((D, 1)), "intercept": np.zeros(1)}
    found = swept(reduction, as_dataset(X, labels), point, 200)
    Z = features(reduction, X)
    weights = targets.class_weight[labels][:, None]
    np.testing.assert_allclose(found[:-1], Z.T @ (weights * (Z @ point["coef"])), atol=1e-9)
