"""Marginal likelihood: its value and gradient, and the walk that shrinks what it found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from distrff.features.bandwidth import PilotRows, search_rows
from distrff.features.relevance import MarginalLikelihood, shrunk_length_scales
from distrff.features.specification import Sample
from distrff.kernels.stationary import Cauchy, Exponential, Gaussian, Laplacian, Matern

KERNELS = [
    Gaussian(), Laplacian(), Cauchy(), Exponential(), Matern(nu=0.3), Matern(nu=1.0), Matern(nu=1.3),
    Matern(nu=1.5), Matern(nu=2.5), Matern(nu=40.0),
]  # fmt: skip


def problem(rng, n=30, d=3, k=2):
    X = rng.standard_normal((n, d))
    Y = np.column_stack([np.sin((j + 1) * X[:, 0]) for j in range(k)]) + 0.3 * rng.standard_normal((n, k))
    return X, Y, rng.uniform(0.5, 2.0, n), rng.uniform(-0.7, 0.7, d + 1)


@pytest.mark.parametrize("kernel", [Gaussian(), Laplacian()], ids=repr)
def test_it_is_the_density_of_the_rows_at_the_best_amplitude(rng, kernel):
    X, Y, s, point = problem(rng)
    n, k = Y.shape
    C = kernel.set_params(length_scale=tuple(np.exp(point[:-1])))(X) + np.exp(point[-1]) * np.diag(1 / s)
    a = np.trace(Y.T @ np.linalg.solve(C, Y)) / (n * k)
    log_p = [
        sum(multivariate_normal(np.zeros(n), c * C).logpdf(column) for column in Y.T)
        for c in (a, 0.97 * a, 1.03 * a)
    ]
    assert log_p[0] == max(log_p)
    constant = 0.5 * (1 + np.log(2 * np.pi))
    value = MarginalLikelihood(kernel, X, Y, s).value(point)
    # The jitter of 1e-9 changes f by at most 1e-9·tr(C⁻¹)-like terms over C's least eigenvalue, about .25.
    np.testing.assert_allclose(value + constant, -log_p[0] / (n * k), rtol=0, atol=1e-7)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("duplicates", [False, True])
def test_the_gradient_is_that_of_the_value(rng, kernel, duplicates):
    X, Y, s, point = problem(rng)
    if duplicates:  # and an offset, whose square would cost the digits of distances
        X[10:15] = X[:5]
        X += 1e3
    f = MarginalLikelihood(kernel, X, Y, s)
    value, gradient = f.value_and_gradient(point)
    assert value == f.value(point)
    h = 1e-4
    steps = h * np.eye(len(point))
    differences = [(f.value(point + step) - f.value(point - step)) / (2 * h) for step in steps]
    # Central differences are off by h²/6 = 2e-9 times the third derivative by a logarithm, which for
    # terms of the order of 1 is at most in the hundreds, and by 1e-15·cond(C)/h = 1e-9 of rounding.
    np.testing.assert_allclose(gradient, differences, rtol=0, atol=2e-6)


@dataclass
class Bowl:
    """An error that is least where the widths are `widths`·n^−power for n rows."""

    rows: PilotRows
    widths: np.ndarray
    power: float
    description = "a bowl"

    def held_out_error(self, kernel):
        best = self.widths * self.rows.n_training**-self.power
        return 1 + float(np.square(np.log2(np.divide(kernel.length_scale, best))).mean())


@dataclass
class AsManyRows:
    """The source of so many rows, which are never read."""

    n_rows: int


def shrunk(widths, power, n_rows, *, rng):
    """The widths from a likelihood that found 1 for all of as many columns, of 400 rows, and the report."""
    X, n = rng.standard_normal((400, len(widths))), len(widths)
    search = {"rule": "likelihood", "column_scale": [1.0] * n, "length_scale": [1.0] * n}
    sample = Sample(X, X[:, 0], None, int(rng.integers(2**62)), AsManyRows(n_rows))
    kernel, found = shrunk_length_scales(
        Laplacian("ard"), search, sample, lambda rows: Bowl(rows, np.array(widths), power)
    )
    return np.array(kernel.length_scale), found


@pytest.mark.parametrize("power", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("size", [1.0, 0.1, 77.0])
def test_widths_follow_the_rows(rng, power, size):
    """The error's logarithm is a parabola, so that nothing is lost but digits of the widths."""
    found, search = shrunk([size, size], power, 10**6, rng=rng)
    assert search["shrinking"] == pytest.approx(power, abs=1e-3)
    np.testing.assert_allclose(found, size * 1e6**-power, rtol=1e-2)


def test_more_rows_never_widen_and_shrink_no_faster_than_in_a_plane(rng):
    for power, expected in ((-0.4, 0.0), (0.9, 0.5)):
        few, search = shrunk([1.0, 1.0], power, 300, rng=rng)
        assert search["shrinking"] == expected
        np.testing.assert_allclose(few, 300.0**-power, rtol=1e-2)
        many, _ = shrunk([1.0, 1.0], power, 3 * 10**4, rng=rng)
        np.testing.assert_allclose(many, 300.0**-power * 100.0**-expected, rtol=1e-2)


def test_single_columns_go_as_far_as_they_should(rng):
    """Each within half an octave of its own, which steps of octaves cannot tell from the best."""
    widths = np.array([1.0, 1 / 16, 8.0, 0.5])
    found, search = shrunk(widths, 0.0, 300, rng=rng)
    assert (np.array(search["column_factors"]) != 1).any()
    assert np.abs(np.log2(found / widths)).max() <= 1


def test_a_pilot_is_thinned_to_the_same_rows_held_out(rng):
    X = rng.standard_normal((403, 2))
    rows = search_rows(Sample(X, X[:, 0], rng.uniform(1, 2, 403), 3, AsManyRows(403)))
    fewer = rows.thinned()
    assert (rows.n_held_out, rows.n_training) == (100, 303)
    assert (fewer.n_held_out, fewer.n_training) == (100, 75)
    for part, whole in ((fewer.X, rows.X), (fewer.Y, rows.Y), (fewer.s, rows.s)):
        np.testing.assert_array_equal(part, whole[:175])
