"""Values and sloped sums of a tile in one pass: those of the products one after the other."""

import numpy as np
import pytest

from distrff.solvers import margin_tiles
from distrff.solvers.losses import Laplace, Logistic, Probit, SmoothedHinge, SquaredHinge
from distrff.solvers.margin_tiles import MAX_PROBLEMS, add_sloped_rows
from distrff.solvers.objective import RowWeights, sided_weights
from distrff.utils.products import OneHotTile

LOSSES = [
    Logistic(),
    Logistic(0.3),
    Laplace(2.0),
    SquaredHinge(),
    SmoothedHinge(np.array([0.1, 0.5, 3.0])),
]


def tile_of(rng, r, D, k, dtype):
    Z = rng.standard_normal((r, D)).astype(dtype)
    coef, intercept = rng.standard_normal((D, k)) / np.sqrt(D), rng.standard_normal(k)
    Y = rng.choice([-1.0, 1.0], (r, k))
    s = rng.exponential(size=(r, k)) * (rng.random((r, k)) < 0.8)  # some rows have no weight
    return Z, coef, intercept, Y, s


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("r", [1, 7, 64, 501])
def test_one_pass_gives_what_two_give(rng, monkeypatch, loss, dtype, r):
    D, k = 60, 3
    monkeypatch.setattr(margin_tiles, "_STRIP_BYTES", 16 * D * np.dtype(dtype).itemsize)  # strips of 16 rows
    Z, coef, intercept, Y, s = tile_of(rng, r, D, k, dtype)
    F, sums = np.empty((r, k)), np.ones((2 * k, D))
    assert add_sloped_rows(sums, F, Z, coef, intercept, loss, Y, s)
    u, exact = float(np.finfo(dtype).eps), Z.astype(np.float64)
    bound = 2 * (D + 2) * u * (np.abs(exact) @ np.abs(coef) + np.abs(intercept))
    assert (np.abs(F - exact @ coef - intercept) <= bound).all()
    S = sided_weights(loss, F, Y, RowWeights(s)).reshape(2 * k, r)
    # Each of r products is rounded to u, and so is each of r sums: of the sizes of all of them.
    bound = 2 * (r + 2) * u * (np.abs(S) @ np.abs(exact)) + 4 * np.finfo(float).eps
    assert (np.abs(sums - 1 - S @ exact) <= bound).all()


def test_slopes_are_those_of_the_losses_far_from_the_boundary():
    for loss in [Logistic(), Laplace(), SquaredHinge(), SmoothedHinge(0.25)]:
        m = np.array([[-800.0], [-30.0], [0.0], [0.75], [1.0], [30.0], [800.0]])
        F, sums, Z = np.empty_like(m), np.zeros((2, len(m))), np.eye(len(m))
        one = np.ones_like(m)
        assert add_sloped_rows(sums, F, Z, m, np.zeros(1), loss, one, one)
        np.testing.assert_array_equal(F, m)
        np.testing.assert_allclose(sums[0], -loss.derivative(m, one)[:, 0], rtol=4 * np.finfo(float).eps)
        assert not sums[1].any()


@pytest.mark.parametrize("loss", [Logistic(), Laplace(), SquaredHinge(), SmoothedHinge(0.25)], ids=str)
def test_rows_without_weight_are_not_read_for_the_sums(rng, loss):
    Z, coef, intercept, Y, s = tile_of(rng, 40, 8, 1, np.float64)
    Z[s[:, 0] == 0] = np.nan
    sums = np.zeros((2, 8))
    assert add_sloped_rows(sums, np.empty((40, 1)), Z, coef, intercept, loss, Y, s)
    assert np.isfinite(sums).all()


def test_what_whole_tiles_do_as_well_is_left_to_them(rng):
    def tried(k=1, loss=None, order="C"):
        Z, coef, intercept, Y, s = tile_of(rng, 20, 8, k, np.float64)
        sums, F = np.zeros((2 * k, 8)), np.zeros((20, k))
        loss = Logistic() if loss is None else loss
        added = add_sloped_rows(sums, F, np.asarray(Z, order=order), coef, intercept, loss, Y, s)
        assert added or not (sums.any() or F.any())
        return added

    assert tried()
    assert tried(k=MAX_PROBLEMS)
    assert not tried(k=MAX_PROBLEMS + 1)
    assert not tried(loss=Probit())
    assert not tried(order="F")
    one_hot = OneHotTile(np.zeros((1, 20), np.int32), 1.0, 8)
    one = np.ones((20, 1))
    sums, coef = np.zeros((2, 8)), np.ones((8, 1))
    assert not add_sloped_rows(sums, one, one_hot, coef, np.zeros(1), Logistic(), one, one)
