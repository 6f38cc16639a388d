"""Losses against differences, their own conjugates by search, and extreme margins."""

import numpy as np
import pytest
from scipy.special import expit, log_expit, log_ndtr

from distrff.solvers.losses import (
    Gamma,
    Hinge,
    Laplace,
    Logistic,
    Poisson,
    Probit,
    Residual,
    SmoothedHinge,
    SquaredHinge,
)
from distrff.solvers.objective import Squared

SMOOTH = [
    Squared(), SquaredHinge(), SmoothedHinge(0.3), SmoothedHinge(1e-3), Logistic(), Logistic(0.2),
    Probit(), Probit(3.0), Laplace(), Laplace(0.5),
]  # fmt: skip
ALL = [Hinge(), *SMOOTH]
LIKELIHOODS = [loss for loss in SMOOTH if hasattr(loss, "probability")]
LABELS = [1.0, -1.0]
EPS = np.finfo(float).eps


@pytest.mark.parametrize("y", LABELS)
@pytest.mark.parametrize("loss", SMOOTH, ids=str)
def test_derivatives_by_differences(loss, y):
    f, h = np.linspace(-6, 6, 1201) + 1e-4, 1e-5
    value = loss.value(f, y)
    # h²/6 of the third derivative, or near a jump of ℓ″ h times the curvature; and rounding.
    error = h * loss.curvature + 4 * EPS * (1 + np.abs(value)) / h
    slope = (loss.value(f + h, y) - loss.value(f - h, y)) / (2 * h)
    assert (np.abs(loss.derivative(f, y) - slope) <= error).all()


@pytest.mark.parametrize("y", LABELS)
@pytest.mark.parametrize("loss", SMOOTH, ids=str)
def test_the_curvature_bound_holds_and_is_the_least(loss, y):
    f, h = np.append(np.linspace(-30, 30, 60_001), [0.9995, -0.9995]), 1e-5
    second = (loss.derivative(f + h, y) - loss.derivative(f - h, y)) / (2 * h)
    assert second.min() >= -1e-8
    assert second.max() <= loss.curvature * (1 + 1e-6)
    assert second.max() >= loss.curvature * 0.98
    near_hinge = np.abs(second - loss.second_derivative(f, y)) > 1e-3 * loss.curvature
    assert near_hinge.sum() <= 4
    assert (loss.second_derivative(np.array([-1e4, -1e3, 1e3, 1e4]), y) <= loss.curvature).all()


@pytest.mark.parametrize("y", LABELS)
@pytest.mark.parametrize("loss", ALL, ids=str)
def test_fenchel_and_young(loss, y):
    """ℓ(f) + ℓ*(−a) ≥ −a·f for all f and a, with equality at a = −ℓ′(f)."""
    f = np.concatenate([np.linspace(-30, 30, 601), [1e4, -1e4]])
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        a = -loss.derivative(f, y)
        value, conjugate = loss.value(f, y), loss.conjugate(a, y)
    assert np.isfinite([value, a, conjugate]).all()
    rounding = 8 * EPS * (1 + np.abs(value) + np.abs(a * f))
    np.testing.assert_array_less(np.abs(value + conjugate + a * f), rounding)
    everywhere = value[:, None] + conjugate[None, :] + f[:, None] * a[None, :]
    assert (everywhere >= -(rounding[:, None] + 8 * EPS * (1 + np.abs(f[:, None] * a[None, :])))).all()


@pytest.mark.parametrize("loss", [loss for loss in ALL if not isinstance(loss, Squared)], ids=str)
def test_conjugates_are_infinite_outside_their_domain_and_at_most_zero_at_zero(loss):
    assert loss.conjugate(np.array(-1e-3), 1.0) == np.inf
    assert loss.conjugate(np.array(1e-3), -1.0) == np.inf
    assert loss.conjugate(np.array(0.0), 1.0) == 0
    if isinstance(loss, (Hinge, SmoothedHinge, Logistic, Laplace)):
        most = 1 / getattr(loss, "sigma", 1.0)
        assert np.isfinite(loss.conjugate(np.array(most), 1.0))
        assert loss.conjugate(np.array(most * 1.001), 1.0) == np.inf


def test_tails_to_full_precision():
    t = np.array([-1e4, -40.0, -5.0, 0.0, 5.0, 30.0])
    np.testing.assert_allclose(Logistic().value(t, 1.0), -log_expit(t), rtol=1e-15)
    np.testing.assert_allclose(Probit().value(t, 1.0), -log_ndtr(t), rtol=1e-15)
    # Inverse Mills ratio far out: −t·(1 + 1/t² − 2/t⁴ + …)
    far = np.array([-1e4, -1e3])
    np.testing.assert_allclose(
        -Probit().derivative(far, 1.0), -far * (1 + far**-2.0 - 2 * far**-4.0), rtol=1e-14
    )
    np.testing.assert_allclose(
        Laplace().value(np.array([-1e4, 40.0]), 1.0), [1e4 + np.log(2), 0.5 * np.exp(-40.0)]
    )


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 1e-4])
def test_the_smoothed_hinge_is_near_the_hinge(epsilon):
    m = np.linspace(-3, 3, 4001)
    below = Hinge().value(m, 1.0) - SmoothedHinge(epsilon).value(m, 1.0)
    assert below.min() >= -2 * EPS
    assert below.max() <= epsilon / 2 * (1 + 1e-12) + 2 * EPS


@pytest.mark.parametrize("loss", LIKELIHOODS, ids=str)
def test_probabilities(loss):
    f = np.linspace(-20, 20, 401)
    p = loss.probability(f)
    assert (np.diff(p) >= 0).all()
    np.testing.assert_allclose(p + loss.probability(-f), 1, rtol=1e-14)
    np.testing.assert_allclose(Logistic(0.5).probability(f), expit(2 * f), rtol=1e-14)


@pytest.mark.parametrize("share", [1e-300, 1e-9, 0.02, 0.5, 0.7, 1 - 1e-9])
@pytest.mark.parametrize("loss", [loss for loss in ALL if hasattr(loss, "constant")], ids=str)
def test_no_constant_is_better_than_the_best(loss, share):
    best = loss.constant(share)

    def value(f):
        return share * loss.value(f, 1.0) + (1 - share) * loss.value(f, -1.0)

    others = best + np.concatenate([np.linspace(-3, 3, 1000), [-1e-3, 1e-3]])
    assert (value(np.array([best])) <= value(others) * (1 + 8 * EPS)).all()


KINKED = [Residual.quantile(0.2), Residual.insensitive(0.3), Residual.insensitive(0.0)]
NUMERIC = {
    **dict.fromkeys([*KINKED, Residual.huber(0.7), Residual.squared_insensitive(0.3)], (-2.0, 0.5, 3.0)),
    **dict.fromkeys([loss.rounded(0.1) for loss in KINKED], (-2.0, 3.0)),
    Poisson(): (0.0, 1.0, 70.0),
    Gamma(): (1e-3, 1.0, 50.0),
}
PAIRS = [(loss, y) for loss, targets in NUMERIC.items() for y in targets]


@pytest.mark.parametrize(("loss", "y"), PAIRS, ids=str)
def test_losses_of_numbers_by_differences_and_their_conjugates(loss, y):
    f, h = np.append(np.linspace(-6, 6, 1201) + 1e-4, [-1e4, -200.0, 200.0, 1e4]), 1e-5
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        value, slope, second = loss.value(f, y), loss.derivative(f, y), loss.second_derivative(f, y)
        a = -slope
        conjugate = loss.conjugate(a, y)
    assert np.isfinite([value, slope, second, conjugate]).all()
    assert (value >= -8 * EPS * (1 + abs(y) + np.abs(f * a))).all() and (second >= 0).all()
    near = slice(0, 1201)
    differences = (loss.value(f + h, y) - loss.value(f - h, y))[near] / (2 * h)
    most = np.diff(slope[near]).max() / 0.01  # the most curved, of steps of .01
    kinks = (
        np.abs(slope[near] - differences)
        > h * (1 + most + np.abs(slope[near])) + 4 * EPS * (1 + value[near]) / h
    )
    assert kinks.sum() <= (0 if loss.is_smooth else 2)
    rounding = 16 * EPS * (1 + np.abs(value) + np.abs(a * f) + np.abs(a * y) + np.abs(y))
    np.testing.assert_array_less(np.abs(value + conjugate + a * f), rounding)  # Fenchel and Young
    everywhere = value[near, None] + conjugate[None, near] + f[near, None] * a[None, near]
    assert everywhere.min() >= -2 * rounding[near].max()
    # Towards 0 a dual candidate costs no more than in proportion, which balancing an intercept relies on.
    assert loss.conjugate(np.zeros(1), np.full(1, y)) <= 0
    assert (loss.conjugate(0.5 * a, y) <= 0.5 * conjugate + rounding).all()


@pytest.mark.parametrize(("loss", "outside", "y"), [
    (Residual.quantile(0.2), (-0.81, 0.21), 1.0), (Residual.insensitive(0.3), (-1.01, 1.01), 1.0),
    (Residual.huber(0.7), (-0.71, 0.71), 1.0), (Poisson(), (3.01,), 3.0), (Gamma(), (-1.01,), 3.0),
])  # fmt: skip
def test_duals_of_numbers_are_boxes(loss, outside, y):
    assert (loss.conjugate(np.array(outside), np.full(len(outside), y)) == np.inf).all()


def test_several_quantiles_are_one_loss_side_by_side():
    tau, r = np.array([0.1, 0.5, 0.9]), np.linspace(-2, 2, 5)[:, None]
    loss = Residual.quantile(tau)
    np.testing.assert_allclose(loss.value(-r, 0.0 * r), np.maximum(tau * r, (tau - 1) * r))
    last = loss.of_outputs([2]).rounded(np.array([0.1]))
    np.testing.assert_allclose(last.derivative(-r, 0.0 * r), -np.clip(r / 0.1, -0.1, 0.9))
