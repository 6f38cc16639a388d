"""The bounds of biased maps hold on drawn maps, and fall to those of unbiased ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from distrff.diagnostics import bounds
from distrff.diagnostics import bounds as biased_bounds
from distrff.diagnostics.bounds import sketch_square
from distrff.features.binning import RandomBinningFeatures
from distrff.features.nystroem import NystroemFeatures
from distrff.kernels.stationary import Gaussian, Laplacian


def assert_promised(found, eps, delta):
    """At most the promised fraction; a true rate of delta fails this once in a million runs."""
    assert (np.array(found) > eps).sum() <= binom.isf(1e-6, len(found), delta)


def sketched_squares(delta, n_buckets, n_sketches, rng):
    """Return ‖Sδ‖² for so many sketches."""
    found = np.zeros((n_sketches, n_buckets))
    buckets = rng.integers(0, n_buckets, (n_sketches, len(delta)))
    signed = delta * rng.choice([-1.0, 1.0], buckets.shape)
    np.add.at(found, (np.arange(n_sketches)[:, None], buckets), signed)
    return np.square(found).sum(axis=1)


@pytest.mark.parametrize("n_buckets", [4, 64])
@pytest.mark.parametrize("norm", [0.3, 1.5, 5.0, 30.0])
@pytest.mark.parametrize("n_columns", [2, 40])
def test_the_square_of_a_sketch(rng, n_buckets, norm, n_columns):
    """Of two equal coordinates, the worst there are, and of many."""
    delta = np.full(n_columns, norm / np.sqrt(n_columns))
    kappa = np.exp(-(norm**2) / 2)
    squares = np.square(np.exp(-sketched_squares(delta, n_buckets, 4000, rng) / 2) - kappa)
    bound = sketch_square(np.array([kappa]), n_buckets)[0]
    assert squares.mean() - 6 * squares.std() / np.sqrt(4000) <= bound


def test_a_sketch_without_collisions_has_no_error():
    kappa = np.array([1.0, 0.5, 1e-3, 0.0])
    assert sketch_square(kappa, 10**12).max() < 1e-10
    assert sketch_square(kappa, 16)[0] == 0
    one = biased_bounds.sketched_pairs_error(0.1, 500, kappa, 10**12)
    assert one == pytest.approx(bounds.pairs_error(0.05, 500, 4), rel=1e-4)
    many = biased_bounds.sketched_pairs_error(0.1, 500, np.full(10**4, 0.5), 2048)
    assert many == 1 + bounds.pairs_error(0.05, 500, 10**4)  # a Gaussian is off by 1 at most


@pytest.mark.parametrize("delta", [0.05, 0.4])
@pytest.mark.parametrize("n_bins", [100, 1000])
def test_hashed_bins_are_never_optimistic(rng, n_bins, delta):
    X, kernel = rng.standard_normal((15, 2)), Laplacian(1.0)
    K, errors, norms = kernel(X), [], []
    for seed in rng.integers(0, 2**62, 100):
        map_ = RandomBinningFeatures(kernel, 50, n_bins=n_bins, random_state=int(seed)).fit(X)
        Z = map_.transform(X)
        E = (Z @ Z.T).toarray() - K
        errors.append(np.abs(E).max())
        norms.append(np.linalg.norm(E, 2))
    collision = map_.specification_.collision
    assert collision == pytest.approx(50 / n_bins)
    eps = biased_bounds.hashed_bins_pairs_error(delta, 50, 15 * 14 // 2, collision)
    assert_promised(errors, eps, delta)
    eps = biased_bounds.hashed_bins_spectral_error(delta, 50, 15, np.linalg.norm(K, 2), collision)
    assert_promised(norms, eps, delta)


def test_bins_that_never_collide_are_those_without_hashing():
    kappa = np.linspace(0, 1, 5)
    np.testing.assert_allclose(biased_bounds.hashed_bins_square(kappa, 7, 0.0), kappa * (1 - kappa) / 7)
    assert biased_bounds.hashed_bins_pairs_error(0.1, 7, 30, 0.0) == bounds.pairs_error(0.1, 56, 30)
    unbiased = bounds.spectral_norm_error(0.1, 14, 30, 4.0)
    assert biased_bounds.hashed_bins_spectral_error(0.1, 7, 30, 4.0, 0.0) == unbiased


@pytest.mark.parametrize("landmarks", ["uniform", "leverage"])
def test_the_trace_is_above_the_norm(rng, landmarks):
    X, kernel = rng.standard_normal((80, 3)), Gaussian(1.5)
    i, j = np.triu_indices(80, 1)
    for M in (1, 8, 30):
        map_ = NystroemFeatures(kernel, M, landmarks=landmarks, random_state=int(rng.integers(2**62))).fit(X)
        E = kernel(X) - map_.transform(X) @ map_.transform(X).T
        residuals = np.maximum(np.diagonal(E), 0)
        values = np.linalg.eigvalsh(E)
        assert values[0] > -1e-9  # a Schur complement
        assert values[-1] <= biased_bounds.nystroem_spectral_error(residuals)
        largest = biased_bounds.nystroem_pairs_error(residuals[i], residuals[j])
        assert np.abs(E[i, j]).max() <= largest + 1e-9
