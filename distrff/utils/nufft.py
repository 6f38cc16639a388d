"""Non-uniform Fourier transforms on one thread: sums over points at equispaced modes, and back."""

from __future__ import annotations

from collections.abc import Sequence

import finufft
import numpy as np

# A fine grid 1.5 times as fine as the modes instead of twice: 1.3 million points and 4 million modes of the
# plane then took .68 s instead of 1.34 s at the same accuracy, since the FFT is the larger part.
_UPSAMPLING = 1.5
MAX_DIMENSIONS = 3
_FINE_BYTES = 16  # of a complex number


class PointSums:
    """The sums F_k = Σ_i c_i·exp(−i⟨k, x_i⟩) of all modes k ∈ {−m … m}^d, a set of points after another.

    Parameters
    ----------
    modes : sequence of length d
        m of each coordinate.
    eps : float
        Relative error of F in the norm, about.
    dtype : {"complex128", "complex64"}
    """

    def __init__(self, modes: Sequence[int], eps: float, dtype: str = "complex128") -> None:
        shape = tuple(2 * m + 1 for m in modes)
        self._real = np.empty(0, dtype).real.dtype
        # One plan for several sets of points: making its grid anew took as long as a transform.
        self._plan = finufft.Plan(1, shape, 1, eps, -1, dtype, nthreads=1, upsampfac=_UPSAMPLING)

    def at(self, points: Sequence[np.ndarray], strengths: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return F for each row of strengths.

        Parameters
        ----------
        points : d arrays of shape (n,)
            In [−π, π).
        strengths : arrays of shape (n,) and of the dtype

        Returns
        -------
        list of ndarrays of shape (2·m_1 + 1, …, 2·m_d + 1)
        """
        self._plan.setpts(*(x.astype(self._real, copy=False) for x in points))
        return [self._plan.execute(c) for c in strengths]


def values_at(points: Sequence[np.ndarray], C: np.ndarray, eps: float) -> np.ndarray:
    """Return f_i = Σ_k C_k·exp(i⟨k, x_i⟩) for modes k ∈ {−m … m}^d, complex, in the precision of C."""
    points = [x.astype(C.real.dtype, copy=False) for x in points]
    transform = (finufft.nufft1d2, finufft.nufft2d2, finufft.nufft3d2)[len(points) - 1]
    return np.asarray(transform(*points, C, eps=eps, isign=1, nthreads=1, upsampfac=_UPSAMPLING))


def values_on_grid(axes: Sequence[np.ndarray], C: np.ndarray) -> np.ndarray:
    """Return Σ_k C_k·exp(i⟨k, x⟩) for all x of a product grid, exactly, shape (len(axes[0]), …).

    C has C_{−k} = C̄_k, so that the sums are real. Coordinate by coordinate, a matrix product each; the first
    coordinate, which is the last to be summed, needs the modes k ≥ 0 alone, and real products.
    """
    for x in reversed(axes[1:]):
        m = C.shape[-1] // 2
        # The last coordinate becomes the first, so that the one before it is the last.
        C = np.moveaxis(C @ np.exp(1j * np.outer(np.arange(-m, m + 1), x)), -1, 0)
    m = C.shape[-1] // 2
    phase = np.outer(np.arange(1, m + 1), axes[0])
    above = C[..., m + 1 :]
    F = C[..., m, None].real + 2.0 * (above.real @ np.cos(phase) - above.imag @ np.sin(phase))
    return np.ascontiguousarray(np.moveaxis(F, -1, 0))


def values_of_few(points: Sequence[np.ndarray], C: np.ndarray) -> np.ndarray:
    """Return Re Σ_k C_k·exp(i⟨k, x_i⟩) of few points, exactly: 8 flops a point and mode, and no fine grid."""
    modes = [np.arange(-(n // 2), n // 2 + 1) for n in C.shape]
    waves = [np.exp(1j * np.outer(x, k)) for x, k in zip(points, modes, strict=True)]
    F = C @ waves[-1].T  # (…, n)
    for E in reversed(waves[:-1]):
        F = np.einsum("...jn,nj->...n", F, E)
    return np.asarray(F.real)


def fine_grid_bytes_of(n_modes: float, d: int) -> float:
    """Return about how many bytes a transform of d coordinates takes for its result and its grid."""
    return _FINE_BYTES * n_modes * (1.0 + (1.1 * _UPSAMPLING) ** d)
