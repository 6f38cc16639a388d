"""Pitches of random grids: what a kernel that is a mixture of hats is drawn from, in place of frequencies."""

from __future__ import annotations

import numpy as np

from distrff.errors import InputError
from distrff.kernels.base import Kernel, Product, Scaled, Streams
from distrff.kernels.stationary import Laplacian


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
