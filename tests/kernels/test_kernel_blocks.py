"""Kernel blocks by matrix products, and the polynomial kernel, which has nothing but its values."""

from __future__ import annotations

import json
import math
import pickle

import numpy as np
import pytest
from sklearn.metrics.pairwise import polynomial_kernel

from distrff.errors import InputError, InputTypeError
from distrff.features.fourier import FourierFeatures
from distrff.kernels.base import Sum
from distrff.kernels.polynomial import Polynomial
from distrff.kernels.registry import kernel_from_dict
from distrff.kernels.stationary import Cauchy, Exponential, Gaussian, Laplacian, Matern

KERNELS = [
    Gaussian((0.5, 1.0, 2.0)),
    Matern(2.0, nu=1.5),
    Matern(0.7, nu=3.2),
    Matern(0.7, nu=0.8),
    Exponential(1.3),
    Laplacian(0.7),
    Cauchy(),
    Polynomial(3, bias=0.5),
    Polynomial(2) + 2.0 * Gaussian(),
    Polynomial(2) * Matern(nu=2.5),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("offset", [0.0, 30.0, 1e7])
def test_a_block_is_what_a_call_gives(rng, kernel, offset):
    X, Y = rng.standard_normal((40, 3)) + offset, rng.standard_normal((30, 3)) + offset
    X[:5], X[5] = Y[:5], 1e9
    exact = kernel(X, Y)
    # Distances within 45 widths of the mean are off by at most 2⁻⁴⁰, and no derivative exceeds 2.
    np.testing.assert_allclose(kernel.block(X, Y), exact, rtol=1e-13, atol=2.0**-39)


@pytest.mark.parametrize("kernel", [Gaussian(1e-6), Matern(1e-6, nu=2.5)], ids=repr)
def test_rows_many_widths_apart_lose_no_digits(rng, kernel):
    Y = rng.standard_normal((30, 3)) * 1e3
    X = Y[:10] + 1e-6 * rng.standard_normal((10, 3))
    np.testing.assert_array_equal(kernel.block(X, Y), kernel(X, Y))


def test_rows_of_any_size_are_taken():
    X = np.array([[1e300, -1e300], [0.0, 1.0]])
    np.testing.assert_array_equal(Gaussian().block(X, X), np.eye(2))
    np.testing.assert_array_equal(Gaussian().block(X, X[1:]), [[0.0], [1.0]])


def test_polynomials_are_those_of_scikit_learn(rng):
    X, Y = rng.standard_normal((6, 4)), rng.standard_normal((5, 4))
    expected = polynomial_kernel(X, Y, degree=3, gamma=1.0, coef0=0.5)
    np.testing.assert_allclose(Polynomial(3, bias=0.5)(X, Y), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(Polynomial(1, bias=0)(X), X @ X.T, rtol=1e-12, atol=1e-12)


def test_polynomials_are_values():
    kernel = Polynomial(3, bias=2)
    assert kernel == eval(repr(kernel)) == pickle.loads(pickle.dumps(kernel))
    assert hash(kernel) == hash(Polynomial(3, 2.0))
    assert kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel
    assert kernel.set_params(degree=2) == Polynomial(2, 2)
    mixed = 2.0 * kernel + Gaussian("auto")
    assert kernel_from_dict(mixed.to_dict()) == mixed == eval(repr(mixed))
    assert mixed.set_params(k1__k__bias=0) == 2.0 * Polynomial(3, 0) + Gaussian("auto")
    assert mixed.with_widths(3.0) == 2.0 * kernel + Gaussian(3.0)
    assert mixed.is_auto
    assert not kernel.is_auto
    assert math.isnan(mixed.at_zero)


def test_what_depends_on_a_measure_is_refused():
    for kernel in (Polynomial(2), Sum(Gaussian(), Polynomial(2)), Gaussian() * Polynomial(2)):
        assert not kernel.is_shift_invariant
        assert not kernel.is_spherical
        for sampling in ("iid", "orthogonal"):
            with pytest.raises(InputError, match=r"not shift-invariant.*NystroemFeatures"):
                FourierFeatures(kernel, 8, sampling=sampling).fit(np.zeros((1, 2)))
    for question in (
        lambda: Polynomial(2).frequencies(3, 2, np.random.default_rng),
        lambda: Polynomial(2).second_moment(2),
    ):
        with pytest.raises(InputError, match="not shift-invariant"):
            question()


@pytest.mark.parametrize("degree", [0, -1])
def test_degrees_below_one_are_refused(degree):
    with pytest.raises(InputError, match="degree must be at least 1"):
        Polynomial(degree)


def test_other_parameters_are_refused():
    for degree in (2.0, "2", True, None):
        with pytest.raises(InputTypeError, match="degree must be an integer"):
            Polynomial(degree)
    for bias in (-1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="bias must be"):
            Polynomial(2, bias)
