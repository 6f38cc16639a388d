"""The Matern correlation for every smoothness."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.polynomial import Polynomial
from scipy.special import kve

# From this ν on K_ν may overflow where the correlation is not yet 1 in float64, and the uniform
# expansion with this many terms is exact to rounding.
_LARGE_NU = 30.0
_N_TERMS = 11


def matern_correlation(R: np.ndarray, nu: float) -> np.ndarray:
    """Return 2^{1−ν}/Γ(ν)·s^ν·K_ν(s) for s = √(2ν)·r, at distances R ≥ 0 of width 1; R is overwritten.

    Rasmussen and Williams 2006, equations 4.14 and 4.17 (ν = ½, 1½, 2½).
    """
    # At 2000 widths the value is 0 in float64 for every ν ≥ 0.25; far beyond, powers of s overflow.
    np.minimum(R, 2000.0, out=R)
    if nu >= _LARGE_NU:
        return _uniform_expansion(R, nu)
    R *= math.sqrt(2.0 * nu)
    S, decay = R, np.exp(-R)
    if nu == 0.5:
        return decay
    if nu == 1.5:
        S += 1.0
    elif nu == 2.5:
        S *= 1.0 + S / 3.0
        S += 1.0
    else:
        return _by_bessel(S, nu, decay)
    S *= decay
    return S


def matern_slope(R: np.ndarray, nu: float) -> np.ndarray:
    """Return −k'(r)/r of the correlation k at distances R ≥ 0 of width 1, 0 at r = 0; R is overwritten.

    By d/ds[s^ν·K_ν(s)] = −s^ν·K_{ν−1}(s) (DLMF 10.29.4) it is 2ν·2^{1−ν}/Γ(ν)·s^{ν−1}·K_{ν−1}(s): for
    ν > 1 the correlation of ν − 1 at the same s, times ν/(ν − 1).
    """
    same = R == 0.0
    if nu > 1.0:
        ratio = nu / (nu - 1.0)
        R *= math.sqrt(ratio)
        slope = matern_correlation(R, nu - 1.0)
        slope *= ratio
    else:
        S = np.minimum(R, 2000.0) * math.sqrt(2.0 * nu)
        S[same] = 1.0
        slope = kve(1.0 - nu, S) * np.exp(-S) * S ** (nu - 1.0)
        slope *= 2.0 * nu * 2.0 ** (1.0 - nu) / math.gamma(nu)
    slope[same] = 0.0
    return slope


def _by_bessel(S: np.ndarray, nu: float, decay: np.ndarray) -> np.ndarray:
    K = kve(nu, S)
    # K_ν overflows only at such small s that the correlation is 1 in float64, s = 0 included.
    near = np.isinf(K)
    K[near] = 1.0
    K *= S**nu
    K *= decay
    K *= 2.0 ** (1.0 - nu) / math.gamma(nu)
    K[near] = 1.0
    return np.minimum(K, 1.0, out=K)


def _uniform_expansion(R: np.ndarray, nu: float) -> np.ndarray:
    """Return the correlation from the expansion of K_ν(νz) that is uniform in z = s/ν, DLMF 10.41.4.

    With w = √(1 + z²) and its leading terms, s^ν·K_ν(s) is proportional to
    exp(−ν(w − log(1 + w)))·P(1/w)/√w. Divided by its value at z = 0, where the correlation is 1, all
    large numbers cancel: with q = w − 1 the exponent is −ν(q − log(1 + q/2)).
    """
    Z = R * math.sqrt(2.0 / nu)
    W = np.hypot(1.0, Z)
    Q = Z * (Z / (1.0 + W))
    P = _debye_series(nu)
    return np.exp(-nu * (Q - np.log1p(0.5 * Q))) / np.sqrt(W) * (P(1.0 / W) / P(1.0))


@lru_cache(maxsize=16)
def _debye_series(nu: float) -> Polynomial:
    """Return Σ_k (−1)^k·U_k(p)/ν^k, the polynomials U_k by the recursion DLMF 10.41.9."""
    U = series = Polynomial([1.0])
    for k in range(1, _N_TERMS):
        U = 0.5 * Polynomial([0, 0, 1, 0, -1]) * U.deriv() + (Polynomial([1, 0, -5]) * U).integ() / 8.0
        series = series + U * (-1.0 / nu) ** k
    return series
