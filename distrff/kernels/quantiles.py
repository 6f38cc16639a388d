"""Frequencies from points of the unit cube: each kernel's measure by its quantile functions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

import numpy as np
from scipy.special import gammaincinv, ndtri

from distrff.errors import InputError
from distrff.kernels.base import Kernel, Product, Scaled, Streams
from distrff.kernels.stationary import Cauchy, Exponential, Gaussian, Laplacian, Matern


@singledispatch
def n_uniforms(kernel: Kernel, n_columns: int) -> int:
    """Return how many coordinates of a point one frequency of this kernel takes.

    Raises
    ------
    InputError
        For a sum: take its `components`.
    """
    raise InputError(f"no quantiles: {kernel!r} is a sum, take its components")


@singledispatch
def quantile_frequencies(kernel: Kernel, U: np.ndarray, n_columns: int) -> np.ndarray:
    """Return the frequencies at points of the open unit cube.

    Parameters
    ----------
    kernel : Kernel
        No sum, every width a number.
    U : ndarray of shape (n_frequencies, n_uniforms(kernel, n_columns))
        Uniformly distributed rows give the kernel's measure.
    n_columns : int

    Returns
    -------
    ndarray of shape (n_columns, n_frequencies), float64

    Raises
    ------
    InputError
        For a sum, or widths that do not fit the columns.
    """
    raise InputError(f"no quantiles: {kernel!r} is a sum, take its components")


@n_uniforms.register(Gaussian)
@n_uniforms.register(Laplacian)
@n_uniforms.register(Cauchy)
def _one_each(kernel: Kernel, n_columns: int) -> int:
    return n_columns


@n_uniforms.register(Exponential)
@n_uniforms.register(Matern)
def _one_more(kernel: Kernel, n_columns: int) -> int:
    return n_columns + 1


@n_uniforms.register
def _of_both(kernel: Product, n_columns: int) -> int:
    return n_uniforms(kernel.k1, n_columns) + n_uniforms(kernel.k2, n_columns)


@n_uniforms.register
def _of_the_operand(kernel: Scaled, n_columns: int) -> int:
    return n_uniforms(kernel.k, n_columns)


@quantile_frequencies.register
def _gaussian(kernel: Gaussian, U: np.ndarray, n_columns: int) -> np.ndarray:
    return ndtri(U).T / kernel.column_widths(n_columns)[:, None]


@quantile_frequencies.register
def _laplacian(kernel: Laplacian, U: np.ndarray, n_columns: int) -> np.ndarray:
    return np.tan(np.pi * (U - 0.5)).T / kernel.column_widths(n_columns)[:, None]


@quantile_frequencies.register
def _cauchy(kernel: Cauchy, U: np.ndarray, n_columns: int) -> np.ndarray:
    V = np.where(U < 0.5, np.log(2.0 * U), -np.log(2.0 * (1.0 - U)))
    return V.T / kernel.column_widths(n_columns)[:, None]


@quantile_frequencies.register(Exponential)
@quantile_frequencies.register(Matern)
def _student_t(kernel: Exponential | Matern, U: np.ndarray, n_columns: int) -> np.ndarray:
    # The radius' factor, which matters most, takes the first coordinate: the most even one.
    nu = 0.5 if isinstance(kernel, Exponential) else kernel.nu
    half_u = np.maximum(gammaincinv(nu, U[:, 0]), np.finfo(float).tiny)
    return ndtri(U[:, 1:]).T * np.sqrt(nu / half_u) / kernel.column_widths(n_columns)[:, None]


@quantile_frequencies.register
def _product(kernel: Product, U: np.ndarray, n_columns: int) -> np.ndarray:
    n_first = n_uniforms(kernel.k1, n_columns)
    W = quantile_frequencies(kernel.k1, U[:, :n_first], n_columns)
    return W + quantile_frequencies(kernel.k2, U[:, n_first:], n_columns)


@quantile_frequencies.register
def _scaled(kernel: Scaled, U: np.ndarray, n_columns: int) -> np.ndarray:
    return quantile_frequencies(kernel.k, U, n_columns)


# Fixed shares of frequencies for the components of a sum.


def component_order(shares: Sequence[float], n: int) -> np.ndarray:
    """Return which component each of n frequencies belongs to, in proportion to the shares on every prefix.

    The t-th frequency goes to the component that is furthest behind, the largest share·t − count, so
    that the first frequencies do not depend on n. Of c components none is ever ahead of its share by
    more than 1 − 1/c: the numbers they are behind by add to 1 before each choice, so the largest is
    at least 1/c. Together the others are then ahead by at most (c − 1)(1 − 1/c), which bounds how far
    one can be behind.

    Parameters
    ----------
    shares : sequence of c floats
        Positive numbers that add to 1.
    n : int

    Returns
    -------
    ndarray of shape (n,), integer
    """
    behind = np.zeros(len(shares))
    order = np.empty(n, dtype=np.intp)
    for t in range(n):
        behind += shares
        order[t] = behind.argmax()
        behind[order[t]] -= 1.0
    return order


# Pitches of random grids: what a kernel that is a mixture of hats is drawn from, in place of frequencies.


def draw_pitches(kernel: Kernel, n: int, n_columns: int, rng_of: Streams) -> np.ndarray:
    """Draw the pitches of n random grids; the first grids are those of fewer.

    In one column k(δ)/k(0) = E max(0, 1 − |δ|/p) for a pitch p of the density p·k″(p)/k(0) (Rahimi and Recht
    2007, section 4). For exp(−|δ|/ℓ) that is Gamma(2, ℓ).

    Parameters
    ----------
    kernel : Kernel
        Every width a number.
    n, n_columns : int
    rng_of : callable
        Gives the named random streams.

    Returns
    -------
    ndarray of shape (n, n_columns), float64

    Raises
    ------
    InputError
        If the kernel is no Laplacian, nor made of Laplacians by products and multiples.
    """
    rates = sum(factor.rates(n_columns) for factor in laplacian_factors(kernel))
    return rng_of("pitch").standard_gamma(2.0, (n, n_columns)) / rates


def laplacian_factors(kernel: Kernel) -> list[Laplacian]:
    """Return the Laplacians whose product the kernel is but for k(0), or raise InputError."""
    if isinstance(kernel, Laplacian):
        return [kernel]
    if isinstance(kernel, Product):
        return laplacian_factors(kernel.k1) + laplacian_factors(kernel.k2)
    if isinstance(kernel, Scaled):
        return laplacian_factors(kernel.k)
    raise InputError(
        f"random binning draws its grids for a Laplacian, or products and multiples of Laplacians, and "
        f"{kernel!r} is none; use FourierFeatures or NystroemFeatures for it"
    )
