"""Weights of kernels at equispaced frequencies, kernels along some columns, and a smoothness to be chosen."""

import json
import math

import numpy as np
import pytest
from scipy.integrate import quad

from distrff import Cauchy, Exponential, Gaussian, Laplacian, Matern, Polynomial
from distrff.errors import InputError
from distrff.kernels.base import kernel_from_dict

OF_ONE = [
    Gaussian(0.7),
    Laplacian(0.7),
    Cauchy(0.7),
    Exponential(0.7),
    *(Matern(0.7, nu=nu) for nu in (0.25, 0.5, 0.8, 1.5, 2.5, 40.0)),
    2.5 * Matern(0.8, nu=2.5),
    Gaussian() + 2.0 * Laplacian(0.5),
    3.0 * (Exponential() + 0.5 * Gaussian(0.3)),
]
PRODUCTS = [
    Gaussian() * Gaussian(0.7),
    Gaussian(0.7) * Laplacian(0.5),
    Matern(0.7, nu=1.5) * (2.0 * Gaussian()),
    (Gaussian() + 3.0 * Matern(0.5, nu=2.5)) * Exponential(0.7),
]
WIDTHS = (0.5, 0.8, 0.3)


def transform_at(kernel, xi):
    """∫ k(δ)·exp(−2πiξδ) dδ of a kernel of one column, by adaptive quadrature."""

    def k(delta):
        return kernel([[delta]], [[0.0]])[0, 0]

    # Apart from 0, where rough kernels have a kink, up to a width; then waves with decreasing values.
    inner = quad(lambda t: k(t) * math.cos(2 * math.pi * xi * t), 0, 1, epsabs=1e-10, limit=400)[0]
    if xi == 0:
        return 2 * (inner + quad(k, 1, np.inf, epsabs=1e-10, limit=400)[0])
    outer = quad(
        lambda t: k(t + 1) * math.cos(2 * math.pi * xi), 0, np.inf, weight="cos", wvar=2 * math.pi * xi
    )
    sines = quad(
        lambda t: k(t + 1) * math.sin(2 * math.pi * xi), 0, np.inf, weight="sin", wvar=2 * math.pi * xi
    )
    return 2 * (inner + outer[0] - sines[0])


@pytest.mark.parametrize("kernel", OF_ONE, ids=repr)
@pytest.mark.parametrize("spacing", [0.1, 0.4])
def test_weights_are_the_fourier_transform(kernel, spacing):
    w = kernel.lattice_weights([spacing], [8])
    assert w.shape == (17,)
    np.testing.assert_array_equal(w, w[::-1])
    for j in (0, 1, 2, 5, 8):
        # Quadrature stops at absolute errors of about 1e-8, also at the kink of ν = ¼.
        assert w[8 + j] == pytest.approx(spacing * transform_at(kernel, spacing * j), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("kernel", PRODUCTS, ids=repr)
@pytest.mark.parametrize("spacing", [0.1, 0.4])
def test_weights_of_products_are_nearly_the_fourier_transform(kernel, spacing):
    m = 100
    w = kernel.lattice_weights([spacing], [m])
    # Values at 2(2m + 1) points confuse a mode with those that are as many apart, of which the nearest is
    # beyond 3m; the images that are not added are beyond one and a half periods.
    bound = 4 * w[0] + 4 * kernel([[1.5 / spacing]], [[0.0]])[0, 0] + 1e-7
    assert bound < 2e-3 * kernel.at_zero
    for j in (0, 1, 2, 5, 20):
        assert w[m + j] == pytest.approx(spacing * transform_at(kernel, spacing * j), rel=0, abs=bound)


def periodic(kernel, delta, periods, n):
    """Σ k(δ + i∘period) over |i| ≤ n in each column."""
    images = np.stack(np.meshgrid(*(np.arange(-n, n + 1) * p for p in periods), indexing="ij"), axis=-1)
    return np.array([kernel(images.reshape(-1, len(periods)), -x[None]).sum() for x in delta])


def trigonometric(w, delta, spacing):
    """Σ w_j·cos(2π⟨h·j, δ⟩)."""
    J = np.meshgrid(
        *(np.arange(-(n // 2), n // 2 + 1) * h for n, h in zip(w.shape, spacing, strict=True)), indexing="ij"
    )
    return np.cos(2 * np.pi * delta @ np.stack([j.ravel() for j in J])) @ w.ravel()


@pytest.mark.parametrize(
    ("kernel", "d", "m"),
    [
        *((Gaussian(WIDTHS[:d]), d, 15) for d in (1, 2, 3)),
        *((Matern(WIDTHS[:d], nu=2.5), d, m) for d, m in ((1, 200), (2, 100), (3, 30))),
        *((Matern(0.5, nu=1.5), d, m) for d, m in ((1, 1000), (2, 200), (3, 40))),
        *((Exponential(WIDTHS[:d]), d, m) for d, m in ((1, 5000), (2, 400))),
        *((Laplacian(WIDTHS[:d]), d, m) for d, m in ((1, 5000), (2, 400))),
        (Gaussian(WIDTHS[:2]) + 2.0 * Matern(0.5, nu=2.5), 2, 100),
        (3.0 * Gaussian(WIDTHS), 3, 15),
    ],
    ids=str,
)
def test_weights_are_those_of_the_sum_over_periods(rng, kernel, d, m):
    """Poisson's formula."""
    spacing = [0.3, 0.25, 0.35][:d]
    delta = rng.uniform(-1.5, 1.5, (4, d))
    delta[0] = 0.0
    found = trigonometric(kernel.lattice_weights(spacing, [m] * d), delta, spacing)
    # Farther images are 12 and more away, 15 widths and more.
    expected = periodic(kernel, delta, [1 / h for h in spacing], 4)
    # No cosine is above 1, so that the error is at most the sum of the weights that are left out. In a column
    # of its own those beyond m add up to at most twice m·w_m, since they fall as j⁻² at least.
    lines = [kernel.along([i]).lattice_weights([h], [m])[0] for i, h in enumerate(spacing)]
    left_out = 2.02 * m * sum(lines) + 1e-5 * kernel.at_zero
    assert np.abs(found - expected).max() <= left_out
    assert left_out < 0.02 * kernel.at_zero


@pytest.mark.parametrize("kernel", [*OF_ONE, *PRODUCTS], ids=repr)
@pytest.mark.parametrize("spacing", [1e-9, 1e-2, 3.0, 1e9])
def test_weights_of_every_spacing_are_finite_and_not_negative(kernel, spacing):
    w = kernel.lattice_weights([spacing] * 2, [7, 0])
    assert w.shape == (15, 1)
    assert np.isfinite(w).all() and w.min() >= 0
    for d in (1, 2, 3):  # Γ(ν) and (2ν)^ν alone would overflow; lgamma loses seven digits
        smooth, gaussian = (k.lattice_weights([0.3] * d, [3] * d) for k in (Matern(nu=1e6), Gaussian()))
        np.testing.assert_allclose(smooth, gaussian, rtol=0.01)


@pytest.mark.parametrize(
    ("kernel", "n", "message"),
    [
        (Polynomial(2), 2, "no Fourier transform that is known here; use FourierFeatures"),
        (Gaussian() + Polynomial(2), 2, "no Fourier transform"),
        (Laplacian(metric=np.eye(2)), 2, "a metric of Gaussian and Matern kernels alone"),
        (Gaussian(metric=np.ones((2, 2))), 2, "loses a direction"),
        (Gaussian(metric=np.ones((1, 2))), 2, "loses a direction"),
        (Gaussian("auto"), 2, "is undecided"),
        (2.0 * Matern("auto"), 2, "is undecided"),
        (Matern(nu="auto"), 2, "smoothness .* is undecided"),
        (Gaussian((1.0, 2.0)), 3, "has 2 widths, the data 3 columns"),
        (Gaussian((1.0, 2.0)) + Laplacian(), 1, "has 2 widths, the data 1 columns"),
        (Gaussian((1.0, 2.0)) * Laplacian(), 3, "has 2 widths, the data 3 columns"),
    ],
    ids=str,
)
def test_kernels_without_weights_are_refused(kernel, n, message):
    with pytest.raises(InputError, match=message):
        kernel.lattice_weights([0.3] * n, [2] * n)


# Some of the columns.


@pytest.mark.parametrize(
    "kernel",
    [
        *(kind(WIDTHS) for kind in (Gaussian, Laplacian, Cauchy, Exponential, Matern)),
        Gaussian(0.7),
        2.0 * Gaussian(WIDTHS) + Matern(0.5),
        Gaussian(WIDTHS) * Laplacian(WIDTHS[::-1]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("columns", [[0], [2], [0, 2], [1, 2], [0, 1, 2]], ids=str)
def test_a_kernel_along_columns_is_that_of_rows_that_differ_there_alone(rng, kernel, columns):
    X, Y = np.full((2, 5, 3), 4.0)
    X[:, columns], Y[:, columns] = rng.standard_normal((2, 5, len(columns)))
    found = kernel.along(columns)(X[:, columns], Y[:, columns])
    np.testing.assert_allclose(found, kernel(X, Y), rtol=1e-13)


# A smoothness that a fit is to choose.


def test_an_undecided_smoothness_is_a_value():
    kernel = Matern(0.5, nu="auto")
    assert kernel.is_auto and kernel.has_undecided_smoothness
    for use, message in (
        (lambda: kernel(np.zeros((2, 2))), "smoothness .* is undecided"),
        (lambda: kernel.second_moment(2), "smoothness .* is undecided"),
        (lambda: kernel + Gaussian(), "nu='auto' is for one kernel alone"),
        (lambda: 2.0 * kernel, "nu='auto' is for one kernel alone"),
        (lambda: kernel.set_params(nu="rough"), "nu must be a number"),
    ):
        with pytest.raises(InputError, match=message):
            use()
    assert kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel
    assert kernel.with_widths(3.0) == kernel
    assert kernel.set_params(nu=2.5) == Matern(0.5, nu=2.5)
    assert not kernel.set_params(nu=2.5).is_auto
    assert not Gaussian("auto").has_undecided_smoothness
    both = Matern("ard", nu="auto")
    assert both.is_ard and both.with_widths((1.0, 2.0)) == Matern((1.0, 2.0), nu="auto")


@pytest.mark.parametrize("kernel", [Gaussian, Matern, lambda metric: 0.5 * Matern(0.3, 2.0, metric=metric)])
def test_weights_of_a_metric_add_up_to_the_kernel(rng, kernel):
    P = rng.standard_normal((3, 2)) + np.array([[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    turned, spacing, modes = kernel(metric=P), (0.1, 0.12), (120, 110)
    w = turned.lattice_weights(spacing, modes)
    delta = rng.uniform(-0.5, 0.5, (5, 2))
    J = np.stack(np.meshgrid(*(np.arange(-m, m + 1) for m in modes), indexing="ij"), axis=-1)
    waves = np.cos(2 * np.pi * (J * spacing) @ delta.T)
    # What is left out is at most what the weights at 0 lack.
    left_out = abs(turned.at_zero - w.sum())
    found = np.einsum("ij,ijk->k", w, waves)
    np.testing.assert_allclose(found, turned(delta, np.zeros((1, 2)))[:, 0], rtol=0, atol=left_out + 1e-6)
    assert left_out < 0.1


@pytest.mark.parametrize("kernel", [Gaussian(metric=[[2.0, 1.0], [0.0, 3.0]]), Matern((1.0, 0.2)), Matern()])
def test_an_envelope_is_the_largest_value_at_a_difference_along_a_column(kernel):
    across = np.linspace(-3, 3, 2001)
    for column in (0, 1):
        for distance in (0.1, 0.4):
            delta = np.zeros((len(across), 2))
            delta[:, column], delta[:, 1 - column] = distance, across
            largest = kernel(delta, np.zeros((1, 2))).max()
            own = kernel.envelope(column, 2)(np.array([[distance]]), np.zeros((1, 1)))[0, 0]
            assert own == pytest.approx(largest, rel=1e-3) and own >= largest * (1 - 1e-12)
