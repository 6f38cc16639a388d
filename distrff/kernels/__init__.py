"""Kernels as values: the exact kernel and its spectral measure side by side."""

from __future__ import annotations

from distrff.kernels.base import Kernel, Product, Scaled, Sum
from distrff.kernels.from_dict import KERNELS, kernel_from_dict
from distrff.kernels.measure import Streams, nested_streams
from distrff.kernels.pitches import draw_pitches, laplacian_factors
from distrff.kernels.polynomial import Polynomial
from distrff.kernels.quantiles import n_uniforms, quantile_frequencies
from distrff.kernels.shares import component_order
from distrff.kernels.stationary import Cauchy, Exponential, Gaussian, Laplacian, Matern, Stationary

__all__ = [
    "KERNELS",
    "Cauchy",
    "Exponential",
    "Gaussian",
    "Kernel",
    "Laplacian",
    "Matern",
    "Polynomial",
    "Product",
    "Scaled",
    "Stationary",
    "Streams",
    "Sum",
    "component_order",
    "draw_pitches",
    "kernel_from_dict",
    "laplacian_factors",
    "n_uniforms",
    "nested_streams",
    "quantile_frequencies",
]
