"""Grams of tiles against the dense formula Σ s·ttᵀ, for every way to weigh, fold and cut."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

import distrff as drf
from distrff.fitting.gram import CurvatureGramReduction, GramReduction
from distrff.io.arrays import as_dataset
from distrff.preprocessing.coding import ClassTargets, Moments, NumericTargets, Scaling
from distrff.preprocessing.folds import Folds
from distrff.solvers.losses import Laplace, Logistic, Probit, SquaredHinge
from distrff.solvers.ridge import unpack
from tests.support.sweeps import of_features, partials, swept

UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}
N, TILE = 403, 16


def reduction_of(X, targets, *, dtype="float64", scaling=None, features=None, **options):
    features = drf.FourierFeatures(drf.Matern(2.0), 12) if features is None else features
    spec = features.fit(np.asarray(X, dtype=np.float64)).specification_
    return GramReduction(
        **of_features(spec, targets, scaling=scaling, dtype=dtype, tile_rows=TILE), **options
    )


def rows_t(reduction, X, y, s):
    """The rows t = [z | 1 | y] in float64, of features as they are in the reduction's dtype; and weights."""
    Z = reduction.specification.build().apply(reduction.scaling.apply(X, np.dtype(reduction.dtype)))
    weights = reduction.targets.row_weights(y, s)
    T = np.column_stack([Z, np.ones(len(X)), reduction.targets.encode(y)])
    return T, np.ones(len(X)) if weights is None else weights


def dense(reduction, X, y, s, folds=None):
    """The Gram of each member, and a bound of the error of a reduction in its dtype.

    A product of r rows, each rounded when it is cast and twice when it is weighed, is off by at most
    r + 6 units of |t|ᵀ|t|; the sums of products and the reference itself by n units of float64.
    """
    T, weights = rows_t(reduction, X, y, s)
    fold = np.zeros(len(X), int) if folds is None else folds
    grams = np.array([(T[fold == m].T * weights[fold == m]) @ T[fold == m] for m in reduction.members])
    sizes = np.array(
        [(abs(T[fold == m]).T * weights[fold == m]) @ abs(T[fold == m]) for m in reduction.members]
    )
    capacity = TILE + 6 * int(np.sqrt(TILE))
    units = (capacity + 6) * UNIT[reduction.dtype] + 2 * len(X) * UNIT["float64"]
    return grams, units * sizes


def updated(reduction, X, y, s=None):
    """The sums of one segment, as square matrices."""
    total = reduction.update(reduction.zero(), as_dataset(X, y, s).rows(0, len(X)), {})
    packed = reduction.finish(total)
    assert packed.dtype == np.float64 and packed.nbytes == reduction.size_bytes(len(X))
    if total.ndim == 3:  # above the diagonal is what the products left
        np.testing.assert_array_equal(np.tril([unpack(triangle) for triangle in packed]), np.tril(total))
    return np.array([unpack(triangle) for triangle in packed])


def targets_of(kind, X, rng):
    if kind == "numeric":
        y = 1e3 + X[:, 0] + rng.standard_normal(len(X))
        return y, NumericTargets.centred(np.array([y.mean()]), np.array([y.std()]))
    if kind == "two targets":
        Y = np.column_stack([X[:, 0], 100 * X[:, 1]])
        return Y, NumericTargets(np.array([0.5, -3.0]), np.array([1.0, 64.0]))
    if kind == "two classes":
        return np.array(["no", "yes"])[(X[:, 0] > 0).astype(int)], ClassTargets(np.array(["no", "yes"]))
    index = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
    return index * 10, ClassTargets(np.array([0, 10, 20]), np.array([0.5, 1.0, 4.0]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["numeric", "two targets", "two classes", "weighted classes"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("by", [None, "hash", "contiguous"])
def test_the_gram_is_the_dense_formula(rng, dtype, kind, weighted, by):
    """Folds are those of a row's own number, wherever a run of rows begins; the sum of runs is packed."""
    X = rng.standard_normal((N, 3)) * [1, 2, 0.1] + [0, 50, 0]
    y, targets = targets_of(kind, X, rng)
    s = rng.exponential(size=N) * (rng.random(N) < 0.8) if weighted else None
    folds = None if by is None else Folds(4, int(rng.integers(2**63)), by, N)
    options = {"folds": folds, "members": (0,) if folds is None else (0, 1, 2, 3)}
    scaling = Scaling.standard(Moments.of(X, s))
    reduction = reduction_of(X, targets, dtype=dtype, scaling=scaling, **options)
    A = updated(reduction, X, y, s)
    expected, bound = dense(reduction, X, y, s, None if folds is None else folds.of_rows(0, N))
    assert A.shape == expected.shape
    assert np.all(np.abs(A - expected) <= bound)
    merged = swept(reduction, as_dataset(X, y, s), cuts=(101, 290))
    assert np.all(np.abs([unpack(triangle) for triangle in merged] - expected) <= 2 * bound)


def test_sums_go_on_in_place_and_merges_change_neither_part(rng):
    X = rng.standard_normal((N, 2))
    y, targets = targets_of("numeric", X, rng)
    reduction, data = reduction_of(X, targets), as_dataset(X, y)
    A = reduction.update(reduction.zero(), data.rows(0, N), {})
    once = A.copy()
    assert reduction.update(A, data.rows(0, N), {}) is A
    # The same products added again: half of them are rounded once more.
    np.testing.assert_allclose(A, 2 * once, rtol=0, atol=dense(reduction, X, y, None)[1].max())
    parts = partials(reduction, data, cuts=(101,))
    before = pickle.dumps(parts)
    reduction.merge(*parts)
    assert pickle.dumps(parts) == before


def test_float32_products_are_added_in_float64():
    """The error does not grow with the number of tiles as a float32 sum's would."""
    X, y = np.zeros((2**16, 1)), np.full(2**16, 1 + 2.0**-12)  # whose square has 25 bits
    targets = NumericTargets(np.zeros(1), np.ones(1))
    A = updated(reduction_of(X, targets, dtype="float32", features=drf.LinearFeatures()), X, y)[0]
    # A tile's product is off by T units at most.
    np.testing.assert_allclose(A[2, 2], 2**16 * y[0] ** 2, rtol=(TILE + 2) * UNIT["float32"])
    assert A[1, 1] == 2**16


# Rows weighted by the curvature of their losses


D = 12
FOURIER = drf.FourierFeatures(drf.Gaussian(1.0), D, random_state=0)
LANDMARKS = drf.NystroemFeatures(drf.Exponential(1.0), D, random_state=0)


@pytest.mark.parametrize("loss", [Logistic(), Probit(0.5), Laplace(), SquaredHinge()])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("sent_map", [True, False])
@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("light_rows", [7, 50])  # fewer and more than a product takes
@pytest.mark.parametrize("features", [FOURIER, LANDMARKS], ids=["Fourier", "landmarks"])
def test_the_gram_of_curvatures(rng, loss, weighted, sent_map, sampled, light_rows, features):
    X, y = rng.standard_normal((N, 3)), rng.choice(3, N)
    s = rng.exponential(size=N) if weighted else None
    folds = Folds(2, 7, "hash", N) if sampled else None
    targets = ClassTargets(np.arange(3), np.array([1.0, 2.0, 0.5]) if weighted else None)
    fields = of_features(clone(features).fit(X).specification_, targets, tile_rows=TILE)
    outputs = (1, 0, 1)
    reduction = CurvatureGramReduction(
        **fields, light_rows=light_rows, folds=folds, loss=loss, outputs=outputs
    )
    point = {"coef": rng.standard_normal((D, 3)), "intercept": rng.standard_normal(3)}
    arrays = reduction.specification.arrays_to_send(derived=True) if sent_map else {}
    found = swept(reduction, as_dataset(X, y, s), point | arrays, cuts=(100,))
    T, weights = rows_t(reduction, X, y, s)
    if sampled:
        weights = weights * (folds.of_rows(0, N) == 0)
    F = T[:, :D] @ point["coef"] + point["intercept"]
    for j, output in enumerate(outputs):
        curved = weights * loss.second_derivative(F[:, j], reduction.targets.encode(y)[:, output])
        t = T[:, : D + 1]
        np.testing.assert_allclose(unpack(found[j]), t.T @ (curved[:, None] * t), atol=1e-11 * curved.sum())
    assert found.nbytes == reduction.size_bytes(N)
