"""The marginal likelihood of rows under a kernel, and its gradient by the widths of the columns."""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import cho_solve, cholesky
from scipy.linalg.lapack import dpotri

from distrff.kernels import Stationary

# The eigenvalues of a few thousand rows' K, up to their number, are rounded by about 1e-12: with this C
# is positive definite in float64 however small the noise.
_JITTER = 1e-9


class MarginalLikelihood:
    """−log p(Y | X) of Gaussian processes of one kernel, as a function of the logarithms of its widths.

    Each of the k outputs is drawn from N(0, a·C), C = K + λ·diag(1/s): a is the amplitude, λ the noise
    in units of it. The amplitude is at its best value, a = tr(Yᵀ C⁻¹ Y)/(n·k), so that up to a constant

        f = ½·log a + log|C|/(2n)                                                  for one row and output,
        ∂f/∂K = (C⁻¹ − A Aᵀ/(a·k)) / 2n,  A = C⁻¹ Y

    (Rasmussen and Williams 2006, equations 5.8 and 5.9, at the maximum over a). The kernel is the exact
    one: nothing depends on drawn frequencies, and one objective serves every kernel.

    Parameters
    ----------
    kernel : Stationary
        Its widths do not matter.
    X : ndarray of shape (n, d), float64
    Y : ndarray of shape (n, k), float64
        Centred.
    s : ndarray of shape (n,)
        Positive weights.

    Notes
    -----
    A value with its gradient costs n³ + O(n²·(d + k)) flops and about six n × n matrices.
    """

    def __init__(self, kernel: Stationary, X: np.ndarray, Y: np.ndarray, s: np.ndarray) -> None:
        self._kernel = kernel
        self._X = X
        self._Y = Y
        self._inverse_weights = 1.0 / s

    def value(self, point: np.ndarray) -> float:
        """Return f at `point`, the logarithms of the d widths and of λ."""
        _, L, A = self._solved(point)
        return self._value(L, A)

    def value_and_gradient(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Return f and its gradient at `point`."""
        K, L, A = self._solved(point)
        n = len(self._Y)
        M = np.tril(dpotri(L, lower=1)[0])
        M += np.tril(M, -1).T
        M -= A @ A.T * (n / np.vdot(self._Y, A))
        M /= 2.0 * n
        by_noise = math.exp(point[-1]) * float(self._inverse_weights @ np.diagonal(M))
        return self._value(L, A), np.append(self._kernel_at(point).width_gradient(self._X, K, M), by_noise)

    def _kernel_at(self, point: np.ndarray) -> Stationary:
        return self._kernel.set_params(length_scale=tuple(np.exp(point[:-1]).tolist()))

    def _solved(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return K, the lower Cholesky factor of C, and C⁻¹ Y."""
        K = self._kernel_at(point)(self._X)
        C = np.array(K, order="F")
        C[np.diag_indices_from(C)] += math.exp(point[-1]) * self._inverse_weights + _JITTER
        L = cholesky(C, lower=True, overwrite_a=True, check_finite=False)
        return K, L, cho_solve((L, True), self._Y, check_finite=False)

    def _value(self, L: np.ndarray, A: np.ndarray) -> float:
        n, k = self._Y.shape
        return 0.5 * math.log(np.vdot(self._Y, A) / (n * k)) + float(np.log(np.diagonal(L)).sum()) / n
