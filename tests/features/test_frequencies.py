"""Frequencies: prefixes, orthogonal blocks, and the distribution that each single frequency keeps."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi, ks_1samp, ks_2samp

from distrff.features.frequencies import SAMPLINGS, component_order, draw_frequencies
from distrff.kernels.stationary import Cauchy, Exponential, Gaussian, Laplacian, Matern
from tests.support.draws import seed_of

WIDTHS = (0.5, 1.0, 2.0, 4.0)
SPHERICAL = [
    Gaussian(2.0),
    Gaussian(WIDTHS),
    3.0 * Matern(WIDTHS, nu=1.5),
    Exponential(0.7),
    Gaussian(2.0) * Matern(0.5, nu=2.5),
]
SPHERICAL_SUMS = [
    Gaussian(WIDTHS) + Matern(2.0),
    0.25 * (Gaussian() + 2.0 * Exponential(3.0)) + Gaussian(5.0),
]
NOT_SPHERICAL = [Laplacian(), Cauchy(2.0), Gaussian() * Laplacian(), Gaussian() + Cauchy()]


@pytest.mark.parametrize(
    ("kernel", "sampling"),
    [(kernel, sampling) for sampling in SAMPLINGS for kernel in SPHERICAL + SPHERICAL_SUMS]
    + [(kernel, sampling) for sampling in ("iid", "qmc") for kernel in NOT_SPHERICAL],
    ids=repr,
)
def test_leading_frequencies_do_not_depend_on_their_number(rng, kernel, sampling):
    seed = seed_of(rng)
    W = draw_frequencies(kernel, 101, 4, sampling=sampling, seed=seed)
    assert W.shape == (4, 101)
    assert W.dtype == np.float64
    assert np.isfinite(W).all()
    for m in (1, 3, 4, 50):
        np.testing.assert_array_equal(draw_frequencies(kernel, m, 4, sampling=sampling, seed=seed), W[:, :m])
    assert not np.array_equal(draw_frequencies(kernel, 101, 4, sampling=sampling, seed=seed + 1), W)


def directions(W, widths):
    U = W * np.reshape(widths, (-1, 1))
    return U / np.linalg.norm(U, axis=0)


def assert_orthogonal_blocks(U):
    """Products of unit columns of a block of d, off by some d units of rounding each."""
    d = len(U)
    for start in range(0, U.shape[1], d):
        block = U[:, start : start + d]
        np.testing.assert_allclose(block.T @ block, np.eye(block.shape[1]), atol=50 * d * 2.0**-53)


@pytest.mark.parametrize(
    ("kernel", "n_columns"),
    [(kernel, 4) for kernel in SPHERICAL] + [(Gaussian(), 1), (Matern((3.0,)), 1), (Exponential(), 40)],
    ids=repr,
)
def test_directions_of_a_block_are_orthogonal(rng, kernel, n_columns):
    W = draw_frequencies(kernel, 4 * n_columns + 3, n_columns, sampling="orthogonal", seed=seed_of(rng))
    assert_orthogonal_blocks(directions(W, kernel.widths(n_columns)))


@pytest.mark.parametrize("kernel", SPHERICAL_SUMS, ids=repr)
def test_the_components_of_a_sum_are_orthogonal_each(rng, kernel):
    W = draw_frequencies(kernel, 200, 4, sampling="orthogonal", seed=seed_of(rng))
    components = kernel.components()
    order = component_order([share for share, _ in components], 200)
    for index, (share, component) in enumerate(components):
        mine = W[:, order == index]
        assert abs(mine.shape[1] - 200 * share) <= len(components)
        assert_orthogonal_blocks(directions(mine, component.widths(4)))


# The two-sided Kolmogorov-Smirnov tests below are at a level that some thirty cases pass in all but
# 1e-9 of the runs; the samples in each are independent, which is why only one frequency a block enters
# where directions are compared.
LEVEL = 1e-11


@pytest.mark.parametrize("kernel", SPHERICAL, ids=repr)
def test_orthogonal_radii_are_those_of_the_measure(rng, kernel):
    radii = {}
    for sampling in SAMPLINGS:
        W = draw_frequencies(kernel, 6000, 4, sampling=sampling, seed=seed_of(rng))
        radii[sampling] = np.linalg.norm(W * kernel.widths(4)[:, None], axis=0)
    assert ks_2samp(radii["iid"], radii["orthogonal"]).pvalue > LEVEL
    if isinstance(kernel, Gaussian):
        assert ks_1samp(radii["orthogonal"], chi(4).cdf).pvalue > LEVEL


@pytest.mark.parametrize("n_columns", [1, 2, 3])
def test_blocks_are_haar_distributed_rotations_and_reflections(rng, n_columns):
    n_blocks = 2000
    W = draw_frequencies(
        Gaussian(), n_blocks * n_columns, n_columns, sampling="orthogonal", seed=seed_of(rng)
    )
    blocks = directions(W, np.ones(n_columns)).T.reshape(n_blocks, n_columns, n_columns)
    # Half of O(d) are reflections: a binomial number within eight deviations of √n/2.
    assert abs((np.linalg.det(blocks) > 0).sum() - n_blocks / 2) <= 8 * np.sqrt(n_blocks) / 2
    # The trace of Haar matrices of size 1, 2, 3 has mean 0 and variance 1 (Diaconis and Shahshahani 1994);
    # the mean of n of them, each at most d, is within eight deviations.
    traces = np.trace(blocks, axis1=1, axis2=2)
    assert abs(traces.mean()) <= 8 / np.sqrt(n_blocks)
