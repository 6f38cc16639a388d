"""The bounds hold on drawn maps, agree with each other, and are never optimistic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from distrff.diagnostics import bounds
from distrff.diagnostics.bounds import features_needed
from distrff.errors import InputError
from distrff.features.fourier import FourierFeatures
from distrff.kernels.stationary import Cauchy, Exponential, Gaussian, Laplacian, Matern

SEEDS = 200


def errors(kernel, D, form, X, Y, rng, n_seeds=SEEDS):
    """Largest error over the pairs of X and Y, for so many independent maps."""
    K = kernel(X, Y)
    found = []
    for seed in rng.integers(0, 2**62, n_seeds):
        map_ = FourierFeatures(kernel, D, form=form, random_state=int(seed)).fit(X)
        found.append(np.abs(map_.transform(X) @ map_.transform(Y).T - K).max())
    return np.array(found)


def assert_promised(found, eps, delta):
    """At most the promised fraction; a true rate of delta fails this once in a million runs."""
    assert (found > eps).sum() <= binom.isf(1e-6, len(found), delta)


@pytest.mark.parametrize("form", bounds.FORMS)
@pytest.mark.parametrize("kernel", [Gaussian(1.5), Laplacian(2.0), 3.0 * Matern(1.0)])
@pytest.mark.parametrize("delta", [0.05, 0.4])
def test_one_pair_is_never_optimistic(rng, form, kernel, delta):
    X, Y = rng.standard_normal((2, 1, 3))
    eps = 0.4 * kernel.at_zero
    D = int(features_needed(eps, delta, kernel=kernel, form=form))
    assert_promised(errors(kernel, D, form, X, Y, rng), eps, delta)


@pytest.mark.parametrize("form", bounds.FORMS)
@pytest.mark.parametrize("delta", [0.05, 0.4])
def test_all_pairs_are_never_optimistic(rng, form, delta):
    X, eps, kernel = rng.standard_normal((30, 2)), 0.4, Gaussian(0.5)
    D = int(features_needed(eps, delta, n_rows=30, form=form))
    assert_promised(errors(kernel, D, form, X, X, rng), eps, delta)


@pytest.mark.parametrize("form", bounds.FORMS)
@pytest.mark.parametrize("kernel", [Gaussian(0.4), Cauchy(0.5)])
def test_a_set_is_never_optimistic(rng, form, kernel):
    """The supremum over an interval, as the largest error on a fine grid of it."""
    X, eps, delta = np.linspace(-1, 1, 41)[:, None], 0.5, 0.2
    D = int(features_needed(eps, delta, diameter=2.0, kernel=kernel, n_columns=1, form=form))
    assert_promised(errors(kernel, D, form, X, X, rng), eps, delta)


def test_the_spectral_bound_is_never_optimistic(rng):
    X, kernel, D, delta = rng.standard_normal((40, 3)), Gaussian(1.0), 256, 0.3
    K = kernel(X)
    eps = bounds.spectral_norm_error(delta, D, 40, np.linalg.norm(K, 2))
    assert bounds.spectral_norm_bound(eps, D, 40, kernel_norm=np.linalg.norm(K, 2)) == pytest.approx(delta)
    assert bounds.spectral_norm_bound(eps, D, 40) >= delta
    found = []
    for seed in rng.integers(0, 2**62, SEEDS):
        Z = FourierFeatures(kernel, D, random_state=int(seed)).fit_transform(X)
        found.append(np.linalg.norm(Z @ Z.T - K, 2))
    assert_promised(np.array(found), eps, delta)


@pytest.mark.parametrize("form", bounds.FORMS)
def test_the_number_is_the_inverse_of_the_bound(form):
    eps, delta = 0.1, 0.03
    assert bounds.pair_bound(eps, int(features_needed(eps, delta, form=form))) <= delta
    D = int(features_needed(eps, delta, n_rows=1000, form=form))
    assert bounds.all_pairs_bound(eps, D, 1000) <= delta < bounds.all_pairs_bound(eps, D - 3, 1000)
    assert bounds.pairs_error(delta, D, 500_000) == pytest.approx(eps, rel=1e-3)
    D = int(features_needed(eps, delta, diameter=3.0, kernel=Gaussian(2.0), n_columns=4, form=form))
    same = {"n_columns": 4, "diameter": 3.0, "sigma": 2 * math.sqrt(4 / 4), "form": form}
    assert bounds.uniform_bound(eps, D, **same) <= delta < bounds.uniform_bound(eps, D - 3, **same)


@pytest.mark.parametrize("d", [1, 2, 5, 48, 1000])
def test_published_simpler_constants_are_above(d):
    """Sutherland and Schneider's 66 and 98 for eps ≤ σr, printed beside the exact factors."""
    same = {"n_columns": d, "diameter": 3.0, "sigma": 1.0}
    for form, constant, rate in (("cos_sin", 66, 8 * (d + 2)), ("phase", 98, 32 * (d + 1))):
        D = round(12 * rate / 0.25)
        simple = constant * (3.0 / 0.5) ** 2 * math.exp(-D * 0.25 / rate)
        assert bounds.uniform_bound(0.5, D, form=form, **same) <= simple * 1.001 < 1


def test_bounds_of_binning():
    assert bounds.binning_pair_bound(0.2, 100) == pytest.approx(2 * math.exp(-8))
    assert bounds.binning_all_pairs_bound(0.2, 200, 10) == pytest.approx(100 * math.exp(-16))
    given = {"n_columns": 2, "diameter": 2.0, "mean_inverse_pitch": 0.5, "lipschitz": 0.5}
    P = 40_000
    by_hand = 36 * 2 * P * 0.5 * 2.0 * math.exp(-(P * 0.04 / 8 + math.log(0.2 / 0.5)) / 3)
    assert bounds.binning_uniform_bound(0.2, P, **given) == pytest.approx(by_hand)
    assert bounds.binning_uniform_bound(0.2, 10, **given) == 1.0


def test_the_bound_as_first_published():
    by_hand = 256 * (2 * 3 / 0.5) ** 2 * math.exp(-2000 * 0.25 / 28)
    given = {"n_columns": 5, "diameter": 3.0, "sigma": 2.0}
    assert bounds.uniform_bound_as_published(0.5, 2000, **given) == pytest.approx(by_hand)
    assert bounds.uniform_bound_as_published(0.5, 20, **given) == 1.0


@pytest.mark.parametrize("kernel", [Laplacian(), Exponential(), Matern(nu=1.0), Gaussian() + Laplacian()])
def test_no_second_moment_no_uniform_bound(kernel):
    with pytest.warns(UserWarning, match="use the pairwise bounds"):
        assert features_needed(0.1, 0.1, diameter=1.0, kernel=kernel, n_columns=2) == math.inf
    assert math.isfinite(features_needed(0.1, 0.1, n_rows=100, kernel=kernel))


def test_even_for_pairs_and_never_none():
    assert features_needed(10.0, 0.9) == 2
    assert features_needed(10.0, 0.9, form="phase") == 1
    assert features_needed(10.0, 0.9, diameter=1e-9, kernel=Gaussian(), n_columns=1) == 2
    assert features_needed(0.1, 0.01) % 2 == 0
    assert features_needed(0.2, 0.1, kernel=2 * Gaussian()) == features_needed(0.1, 0.1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"eps": 0.0}, "eps must be positive"),
        ({"eps": math.nan}, "eps must be positive"),
        ({"eps": "small"}, "eps must be positive"),
        ({"delta": 1.0}, "delta must be a probability"),
        ({"form": "complex"}, "form must be one of"),
        ({"n_rows": 0}, "n_rows must be a positive integer"),
        ({"n_rows": 10, "diameter": 1.0}, "not both"),
        ({"diameter": 1.0}, "needs kernel"),
        ({"diameter": -1.0, "kernel": Gaussian(), "n_columns": 2}, "diameter must be positive"),
        ({"diameter": 1.0, "kernel": Gaussian(), "n_columns": 2.5}, "n_columns must be"),
    ],
)
def test_bad_requests(given, words):
    with pytest.raises(InputError, match=words):
        features_needed(**({"eps": 0.1, "delta": 0.1} | given))
