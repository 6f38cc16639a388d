"""The bounds hold on drawn maps, agree with each other, and are never optimistic."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from distrff import (
    Cauchy,
    Exponential,
    FourierFeatures,
    Gaussian,
    Laplacian,
    Matern,
    RandomBinningFeatures,
    bounds,
    features_needed,
)
from distrff.errors import InputError

SEEDS = 200


def errors(rng, K, features, n_seeds=SEEDS):
    """The largest error and its spectral norm for so many maps, by the features of a seed."""
    found = []
    for seed in rng.integers(0, 2**62, n_seeds).tolist():
        E = features(seed) - K
        found.append((np.abs(E).max(), np.linalg.norm(E, 2)))
    return np.transpose(found)


def assert_promised(found, eps, delta):
    """At most the promised fraction; a true rate of delta fails this once in a million runs."""
    assert (np.array(found) > eps).sum() <= binom.isf(1e-6, len(found), delta)


LINE = np.linspace(-1, 1, 41)[:, None]
PAIR, ALL_PAIRS = {}, {"n_rows": 30}
SET = {"diameter": 2.0, "n_columns": 1}  # the supremum over an interval, as the largest error on a fine grid


@pytest.mark.parametrize(
    ("shape", "given", "kernel", "eps", "deltas", "form"),
    [
        *(((1, 3), PAIR, Gaussian(1.5), 0.4, [0.05, 0.4], form) for form in bounds.FORMS),
        ((1, 3), PAIR, Laplacian(2.0), 0.4, [0.05, 0.4], "cos_sin"),
        ((1, 3), PAIR, 3.0 * Matern(1.0), 1.2, [0.05, 0.4], "phase"),
        *(((30, 2), ALL_PAIRS, Gaussian(0.5), 0.4, [0.05, 0.4], form) for form in bounds.FORMS),
        (None, SET, Gaussian(0.4), 0.5, [0.2], "phase"),
        (None, SET, Cauchy(0.5), 0.5, [0.2], "cos_sin"),
    ],
)
def test_no_number_of_features_is_optimistic(rng, shape, given, kernel, eps, deltas, form):
    X, Y = (LINE, LINE) if shape is None else rng.standard_normal((2, *shape))
    Y = X if shape == (30, 2) else Y
    for delta in deltas:
        D = int(features_needed(eps, delta, kernel=kernel, form=form, **given))

        def products(seed, D=D):
            map_ = FourierFeatures(kernel, D, form=form, random_state=seed).fit(X)
            Z = map_.transform(X)
            return Z @ (Z if Y is X else map_.transform(Y)).T

        assert_promised(errors(rng, kernel(X, Y), products)[0], eps, delta)


def test_the_spectral_bound_is_never_optimistic(rng):
    X, kernel, D, delta = rng.standard_normal((40, 3)), Gaussian(1.0), 256, 0.3
    K = kernel(X)
    eps = bounds.spectral_norm_error(delta, D, 40, np.linalg.norm(K, 2))
    assert bounds.spectral_norm_bound(eps, D, 40, kernel_norm=np.linalg.norm(K, 2)) == pytest.approx(delta)
    assert bounds.spectral_norm_bound(eps, D, 40) >= delta

    def products(seed):
        Z = FourierFeatures(kernel, D, random_state=seed).fit_transform(X)
        return Z @ Z.T

    assert_promised(errors(rng, K, products)[1], eps, delta)


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


def test_bounds_by_hand():
    """Of binning, and of Fourier features as first published."""
    assert bounds.binning_pair_bound(0.2, 100) == pytest.approx(2 * math.exp(-8))
    assert bounds.binning_all_pairs_bound(0.2, 200, 10) == pytest.approx(100 * math.exp(-16))
    given = {"n_columns": 2, "diameter": 2.0, "mean_inverse_pitch": 0.5, "lipschitz": 0.5}
    P = 40_000
    by_hand = 36 * 2 * P * 0.5 * 2.0 * math.exp(-(P * 0.04 / 8 + math.log(0.2 / 0.5)) / 3)
    assert bounds.binning_uniform_bound(0.2, P, **given) == pytest.approx(by_hand)
    assert bounds.binning_uniform_bound(0.2, 10, **given) == 1.0
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
        *(({"eps": eps}, "eps must be positive") for eps in (0.0, math.nan, "small")),
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


def test_sketched_rows_are_never_optimistic(rng):
    """Rows of which half the squared distance is in two columns, to very few buckets."""
    X, kernel, D, n_buckets, delta = rng.standard_normal((15, 12)), Gaussian(2.0), 512, 16, 0.3
    X[:, 2:] *= 0.5
    K = kernel(X)

    def products(seed):
        S = np.zeros((12, n_buckets))
        S[np.arange(12), rng.integers(0, n_buckets, 12)] = rng.choice([-1.0, 1.0], 12)
        Z = FourierFeatures(kernel, D, random_state=seed).fit_transform(X @ S)
        return Z @ Z.T

    pairs, norms = errors(rng, K, products, 100)
    kappa = K[np.triu_indices(15, 1)]
    assert_promised(pairs, bounds.sketched_pairs_error(delta, D, kappa, n_buckets), delta)
    norm = np.linalg.norm(K, 2)
    eps = bounds.sketched_spectral_error(delta, D, K, norm, n_buckets)
    assert_promised(norms, eps, delta)
    without = bounds.sketched_spectral_error(delta, D, K, norm, 10**15)
    assert without == pytest.approx(bounds.spectral_norm_error(delta / 2, D, 15, norm), rel=1e-4)


@pytest.mark.parametrize("delta", [0.05, 0.4])
@pytest.mark.parametrize("n_bins", [100, 1000])
def test_hashed_bins_are_never_optimistic(rng, n_bins, delta):
    X, kernel = rng.standard_normal((15, 2)), Laplacian(1.0)
    K, maps = kernel(X), RandomBinningFeatures(kernel, 50, n_bins=n_bins)

    def products(seed):
        Z = maps.set_params(random_state=seed).fit_transform(X)
        return (Z @ Z.T).toarray()

    pairs, norms = errors(rng, K, products, 100)
    collision = maps.specification_.collision
    assert collision == pytest.approx(50 / n_bins)
    eps = bounds.hashed_bins_pairs_error(delta, 50, 15 * 14 // 2, collision)
    assert_promised(pairs, eps, delta)
    eps = bounds.hashed_bins_spectral_error(delta, 50, 15, np.linalg.norm(K, 2), collision)
    assert_promised(norms, eps, delta)
