"""Frequencies from points of the unit cube: each kernel's measure by its quantile functions."""

from __future__ import annotations

from functools import singledispatch

import numpy as np
from scipy.special import gammaincinv, ndtri

from distrff.errors import InputError
from distrff.kernels.base import Kernel, Product, Scaled
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
