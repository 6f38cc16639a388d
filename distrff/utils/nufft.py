"""Non-uniform Fourier transforms on one thread: sums over points at equispaced modes, and back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial import Chebyshev
from scipy import fft

# A fine grid 1.5 times as fine as the modes instead of twice: 1.3 million points and 4 million modes of the
# plane then took .68 s instead of 1.34 s at the same accuracy, since the FFT is the larger part.
_UPSAMPLING = 1.5
MAX_DIMENSIONS = 3


class PointSums:
    """The sums F_k = Σ_i c_i·exp(−i⟨k, x_i⟩) of all modes k ∈ {−m … m}^d, a set of points after another.

    Points are spread onto a fine grid by a window ψ, whose FFT is divided by ψ̂ (section 3 of Barnett, Magland
    and af Klinteberg 2019, "A parallel nonuniform fast Fourier transform library based on an exponential of
    semicircle kernel"). finufft spreads. The FFT is SciPy's, a coordinate after another, of which only the
    modes asked for go on to the next: .16 s for 4 million modes of the plane, where finufft's took .40 s.

    Parameters
    ----------
    modes : sequence of length d
        m of each coordinate.
    eps : float
        Relative error of F in the norm, about.
    dtype : {"complex128", "complex64"}
    """

    def __init__(self, modes: Sequence[int], eps: float, dtype: str = "complex128") -> None:
        self._modes = tuple(modes)
        self._real = np.empty(0, dtype).real.dtype
        grid = [max(_MIN_GRID, fft.next_fast_len(math.ceil(_UPSAMPLING * (2 * m + 1)))) for m in modes]
        self._plan = _spreading(grid, eps, dtype)
        self._grid = np.empty(grid, dtype)  # for all transforms: to ask for memory takes as long as an FFT
        window = _window(eps, dtype, len(grid))
        # The grid begins at −π.
        self._factors = [
            ((-1.0) ** k / window(k / n)).astype(self._real)
            for k, n in zip((np.arange(-m, m + 1) for m in modes), grid, strict=True)
        ]

    def at(self, points: Sequence[np.ndarray], strengths: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield F for each row of strengths.

        Parameters
        ----------
        points : d arrays of shape (n,)
            In [−π, π).
        strengths : arrays of shape (n,) and of the dtype

        Yields
        ------
        ndarray of shape (2·m_1 + 1, …, 2·m_d + 1)
        """
        self._plan.setpts(*(x.astype(self._real, copy=False) for x in points))
        for c in strengths:
            yield self._transformed(self._plan.execute(c, out=self._grid))

    def _transformed(self, G: np.ndarray) -> np.ndarray:
        """The modes of the spread points; the grid is overwritten."""
        # In the order of the grid, the modes are 0 … m, others, −m … −1.
        halves: list[Any] = [
            (slice(0, m + 1), slice(n - m, n)) for m, n in zip(self._modes, G.shape, strict=True)
        ]
        places = [(slice(m, 2 * m + 1), slice(0, m)) for m in self._modes]
        for axis in reversed(range(G.ndim)):
            for part in itertools.product(*halves[axis + 1 :]):
                _transform_here(G[(..., *part)], axis)
        F = np.empty([2 * m + 1 for m in self._modes], G.dtype)
        for part, place in zip(itertools.product(*halves), itertools.product(*places), strict=True):
            F[place] = G[part]
        for axis, factors in enumerate(self._factors):
            F *= factors.reshape(-1, *[1] * (F.ndim - axis - 1))
        return F


def _transform_here(F: np.ndarray, axis: int) -> None:
    """Replace an array by its FFT along an axis."""
    found = fft.fft(F, axis=axis, overwrite_x=True)
    if not np.may_share_memory(found, F):  # SciPy may overwrite its argument, but need not
        F[...] = found


_MIN_GRID = 32  # twice the widest window


def _spreading(grid: Sequence[int], eps: float, dtype: str) -> Any:
    """finufft's plan for spreading alone, with the window for this ratio of grid and modes."""
    import finufft  # it takes .1 s to load, and most fits need none of it

    return finufft.Plan(
        1, tuple(grid), 1, eps, -1, dtype, nthreads=1, upsampfac=_UPSAMPLING, spreadinterponly=1
    )


_OFFSETS = 16  # between two places of the grid: ψ̂ is then as exact as the window is smooth
_DEGREE = 48  # of cosines of up to 8 places and a third of a wave a place: phases of 17


@lru_cache(maxsize=16)
def _window(eps: float, dtype: str, d: int) -> Chebyshev:
    """ψ̂(ξ) of one of d coordinates, for frequencies |ξ| ≤ ⅓ in waves per place of the grid."""
    # ψ is known by what finufft spreads of single points; it depends on d as well. Only the first coordinate
    # of the points is between two places, so that sums over the others are those of ψ over all places.
    plan, one = _spreading([_MIN_GRID] * d, eps, dtype), np.ones(1, dtype)
    zero = np.zeros(1, one.real.dtype)
    offsets, samples = np.arange(_OFFSETS) / _OFFSETS, []
    for offset in offsets:
        plan.setpts(zero + float(2 * math.pi * offset / _MIN_GRID), *[zero] * (d - 1))
        spread = plan.execute(one).real.astype(np.float64)
        samples.append(spread.reshape(_MIN_GRID, -1).sum(axis=1))
    of_all = samples[0].sum() ** (1 / d)  # Σψ, of the coordinates without an offset
    places = np.arange(_MIN_GRID) - _MIN_GRID / 2 - offsets[:, None]

    def transformed(xi: np.ndarray) -> np.ndarray:
        waves = np.cos(2 * math.pi * np.multiply.outer(xi, places.ravel()))
        return waves @ np.ravel(samples) / (_OFFSETS * of_all ** (d - 1))

    end = 1 / (2 * _UPSAMPLING)
    return Chebyshev.interpolate(transformed, _DEGREE, domain=[-end, end])


def values_at(points: Sequence[np.ndarray], C: np.ndarray, eps: float) -> np.ndarray:
    """f_i = Σ_k C_k·exp(i⟨k, x_i⟩) for modes k ∈ {−m … m}^d, complex, in the precision of C."""
    import finufft

    points = [x.astype(C.real.dtype, copy=False) for x in points]
    transform = (finufft.nufft1d2, finufft.nufft2d2, finufft.nufft3d2)[len(points) - 1]
    return np.asarray(transform(*points, C, eps=eps, isign=1, nthreads=1, upsampfac=_UPSAMPLING))


def values_on_grid(axes: Sequence[np.ndarray], C: np.ndarray) -> np.ndarray:
    """Σ_k C_k·exp(i⟨k, x⟩) for all x of a product grid, exactly, shape (len(axes[0]), …).

    C has C_{−k} = C̄_k, so that the sums are real. Coordinate by coordinate, a matrix product each; the first
    coordinate, which is the last to be summed, needs the modes k ≥ 0 alone, and real products.
    """
    C = sums_on_grid(waves_of(axes[1:], C.shape[1:], C.dtype), C)
    m = C.shape[-1] // 2
    phase = np.outer(np.arange(1, m + 1), axes[0])
    above = C[..., m + 1 :]
    F = C[..., m, None].real + 2.0 * (above.real @ np.cos(phase) - above.imag @ np.sin(phase))
    return np.ascontiguousarray(np.moveaxis(F, -1, 0))


def waves_of(axes: Sequence[np.ndarray], shape: Sequence[int], dtype: Any) -> list[np.ndarray]:
    """exp(i·k·x) of each coordinate of a grid, (2m + 1, len(x)), by which `sums_on_grid` multiplies."""
    # Phases of up to πm in float64, whatever the products are in.
    return [
        np.exp(1j * np.outer(np.arange(-(n // 2), n // 2 + 1), x)).astype(dtype)
        for x, n in zip(axes, shape, strict=True)
    ]


def sums_on_grid(waves: Sequence[np.ndarray], C: np.ndarray) -> np.ndarray:
    """Σ_k C_k·exp(i⟨k, x⟩) of the last coordinates, of which the waves are, for all x of their grid; complex.

    In the precision of C and the waves. Modes of coordinates before these stay, as the last axes.
    """
    for E in reversed(waves):
        # The last coordinate becomes the first, so that the one before it is the last.
        C = np.moveaxis(C @ E, -1, 0)
    return C


def values_of_few(points: Sequence[np.ndarray], C: np.ndarray) -> np.ndarray:
    """Σ_k C_k·exp(i⟨k, x_i⟩) of few points, exactly: 8 flops a point and mode, and no fine grid."""
    modes = [np.arange(-(n // 2), n // 2 + 1) for n in C.shape]
    waves = [np.exp(1j * np.outer(x, k)) for x, k in zip(points, modes, strict=True)]
    F = C @ waves[-1].T  # (…, n)
    for E in reversed(waves[:-1]):
        F = np.einsum("...jn,nj->...n", F, E)
    return np.asarray(F)


def fine_grid_bytes_of(n_modes: float, d: int) -> float:
    """About how many bytes a transform of d coordinates takes for its grid and its result."""
    fine = 1.05 * _UPSAMPLING  # the next length that an FFT is fast for
    return _FINE_BYTES * n_modes * (1.0 + fine**d)


_FINE_BYTES = 16  # of a complex number
