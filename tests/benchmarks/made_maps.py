"""Made fields of known kernels on a square, with gaps in the shapes of clouds."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import fft

import distrff as drf
from distrff.kernels.base import Kernel

SIDE = 512  # nodes a unit of length
NOISE = 0.05  # variance, that of fields is 1
_TORUS = 4  # units: kernels and their images are then apart
_SMOOTHEST_GAPS = 0.06  # width of the field whose threshold is the gaps
_HIDDEN = 0.25  # of the area
_LEFT = 1e-4  # of the variance, what the embedding may lack


@dataclass(frozen=True)
class MadeMap:
    """Rows outside of the gaps, and places within them, with what is measured there and the field itself."""

    X: np.ndarray
    y: np.ndarray
    X_gaps: np.ndarray
    y_gaps: np.ndarray
    field_gaps: np.ndarray


@dataclass(frozen=True)
class Known:
    """A kernel, of the coordinates turned by an angle in degrees."""

    kernel: Kernel
    degrees: float = 0.0

    def turned(self, X: np.ndarray) -> np.ndarray:
        """The coordinates in which the kernel's widths are along the axes."""
        angle = np.deg2rad(self.degrees)
        return X @ np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


KERNELS = {
    "Matérn ½": Known(drf.Exponential(0.15)),
    "Matérn 3/2": Known(drf.Matern(0.08, nu=1.5)),
    "short and long": Known(0.3 * drf.Exponential(0.03) + 0.7 * drf.Exponential(0.3)),
    "turned by 30°": Known(drf.Matern((0.15, 0.05), nu=1.5), 30.0),
}


def field(correlation: Callable[[np.ndarray], np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """A Gaussian field on the nodes of the unit square, exact: its covariance is embedded in a circulant one.

    Dietrich and Newsam 1997, "Fast and exact simulation of stationary Gaussian processes through circulant
    embedding of the covariance matrix".
    """
    n = _TORUS * SIDE
    lag = np.minimum(np.arange(n), n - np.arange(n)) / SIDE
    lag[n // 2 + 1 :] *= -1  # kernels that are turned are not even in each coordinate
    C = np.empty((n, n))
    for i, a in enumerate(lag):
        C[i] = correlation(np.stack([np.full(n, a), lag], axis=1))
    spectrum = fft.rfft2(C, overwrite_x=True).real
    negative = -np.minimum(spectrum, 0).sum()
    if negative > _LEFT * np.maximum(spectrum, 0).sum():
        raise ValueError(f"the torus is too small for this kernel: {negative:.3g} of its spectrum is below 0")
    white = fft.rfft2(rng.standard_normal((n, n)), overwrite_x=True)
    return fft.irfft2(np.sqrt(np.maximum(spectrum, 0)) * white, s=(n, n))[:SIDE, :SIDE]


def of(known: Known, n_rows: int, seed: int) -> MadeMap:
    """A field, seen at about so many nodes outside of its gaps: anywhere, or for odd seeds on a grid."""
    rng = np.random.default_rng(seed)
    F = field(lambda lags: known.kernel(known.turned(lags), np.zeros((1, 2)))[:, 0], rng)
    clouds = field(lambda lags: np.exp(-np.square(lags).sum(axis=1) / (2 * _SMOOTHEST_GAPS**2)), rng)
    is_hidden = clouds > np.quantile(clouds, 1 - _HIDDEN)
    seen = np.flatnonzero(~is_hidden)
    if seed % 2:
        stride = max(1, round(np.sqrt(len(seen) / n_rows)))
        on_grid = np.zeros_like(is_hidden)
        on_grid[::stride, ::stride] = True
        seen = np.flatnonzero(on_grid & ~is_hidden)
    else:
        seen = rng.choice(seen, min(n_rows, len(seen)), replace=False)
    hidden = rng.choice(np.flatnonzero(is_hidden), n_rows // 4, replace=False)
    noisy = F.ravel() + np.sqrt(NOISE) * rng.standard_normal(F.size)
    return MadeMap(_places(seen), noisy[seen], _places(hidden), noisy[hidden], F.ravel()[hidden])


def _places(nodes: np.ndarray) -> np.ndarray:
    return np.stack(np.unravel_index(nodes, (SIDE, SIDE)), axis=1) / SIDE
