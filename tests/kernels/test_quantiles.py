"""Quantiles: uniform points give the frequencies of the kernel's measure."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ks_2samp

from distrff.errors import InputError
from distrff.kernels.stationary import Cauchy, Exponential, Gaussian, Laplacian, Matern

KERNELS = [
    Gaussian((0.5, 2.0)),
    Laplacian((0.5, 2.0)),
    Cauchy((0.5, 2.0)),
    Exponential(2.0),
    Matern((0.5, 2.0), nu=2.5),
    Gaussian() * (3.0 * Laplacian(0.5)),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_uniform_points_give_the_measure_of_the_kernel(rng, kernel):
    W = kernel.quantile_frequencies(rng.random((4000, kernel.n_uniforms(2))), 2)
    drawn = kernel.frequencies(4000, 2, lambda name: rng)
    assert W.shape == (2, 4000)
    # Three projections of six kernels, each by Kolmogorov-Smirnov: one false alarm in 10⁹ runs.
    for direction in ([1.0, 0.0], [0.0, 1.0], [1.0, -1.0]):
        assert ks_2samp(direction @ W, direction @ drawn).pvalue > 1e-10 / 2


def test_the_centre_of_the_cube_is_frequency_zero():
    for kernel in KERNELS:
        U = np.full((1, kernel.n_uniforms(2)), 0.5)
        np.testing.assert_allclose(kernel.quantile_frequencies(U, 2), 0.0, atol=1e-15)


def test_sums_are_refused_and_widths_checked():
    with pytest.raises(InputError, match="take its components"):
        (Gaussian() + Cauchy()).n_uniforms(2)
    with pytest.raises(InputError, match="take its components"):
        (Gaussian() + Cauchy()).quantile_frequencies(np.full((1, 2), 0.5), 2)
    for kernel in KERNELS[:3]:
        with pytest.raises(InputError, match="2 widths, the data 3 columns"):
            kernel.quantile_frequencies(np.full((1, 3), 0.5), 3)
