"""How far kernels can be off whose maps are hashed, sketched or projected: they are biased, and it shows.

Errors are in units of k(0) but for landmarks, whose kernels may have none; κ = k/k(0). As in
`distrff.diagnostics.bounds`, each bound is an ε that is exceeded with probability at most δ, over the draw.
"""

from __future__ import annotations

import math

import numpy as np

from distrff.diagnostics.bounds import pairs_error, spectral_norm_error


def hashed_bins_square(kappa: np.ndarray, n_grids: int, collision: float) -> np.ndarray:
    """Return E(ẑ − κ)² of pairs, for P independent grids of hashed bins.

    Two rows share a column of a grid with probability p = κ + (1 − κ)c: they share the bin, or their bins
    are hashed to one column, with probability c. Variance and squared bias make p(1 − p)/P + ((1 − κ)c)².
    """
    shared = kappa + (1 - kappa) * collision
    return shared * (1 - shared) / n_grids + np.square((1 - kappa) * collision)


def hashed_bins_pairs_error(delta: float, n_grids: int, n_pairs: int, collision: float) -> float:
    """Return ε such that one of n pairs is off by ε with probability at most δ: bias, and Hoeffding's term.

    The bias (1 − κ)c is at most c; the mean of P indicators deviates as that of bins without hashing does.
    """
    return collision + pairs_error(delta, 8 * n_grids, n_pairs)


def hashed_bins_spectral_error(
    delta: float, n_grids: int, n_rows: int, kernel_norm: float, collision: float
) -> float:
    """Return ε such that ‖K̂ − K‖₂ ≥ ε with probability at most δ, for the matrices of n rows.

    E K̂ = K + c(11ᵀ − K), whose second term has entries in [0, c] and a norm of at most cn; around E K̂ matrix
    Bernstein holds as for bins without hashing.
    """
    bias = collision * n_rows
    return bias + spectral_norm_error(delta, 2 * n_grids, n_rows, min(n_rows, kernel_norm + bias))


def sketch_square(kappa: np.ndarray, n_buckets: int) -> np.ndarray:
    """Bound E(κ_S − κ)² of pairs for the Gaussian kernel κ_S of rows under a CountSketch S to B buckets.

    With s = ‖δ‖² in widths and t = ‖Sδ‖², κ = exp(−s/2) and κ_S = exp(−t/2). E t = s and
    Var t = (2/B)·(s² − Σ δ_j⁴) ≤ 2s²/B (Weinberger, Dasgupta, Langford, Smola and Attenberg 2009, "Feature
    hashing for large scale multitask learning"; Pham and Pagh 2013, "Fast and scalable polynomial kernels via
    explicit feature maps", on the same sketch). As a function of t the kernel has a slope of at most ½, and
    of at most ½·exp(−s/4) where t ≥ s/2; t < s/2 has a probability of at most 8/(B + 8), by Cantelli's
    inequality. So it is at most s²/(2B), and at most s²·exp(−s/2)/(2B) + 8/(B + 8).
    """
    s = -2 * np.log(np.clip(kappa, np.finfo(np.float64).tiny, 1.0))
    by_slope = np.square(s) / (2 * n_buckets)
    return np.minimum(by_slope, by_slope * np.exp(-s / 2) + 8 / (n_buckets + 8))


def sketched_pairs_error(delta: float, n_components: int, kappa: np.ndarray, n_buckets: int) -> float:
    """Return ε such that one of the pairs of these κ is off by ε with probability at most δ.

    One half of δ is for the frequencies, given the sketch (`pairs_error`), one for the sketch: by Markov's
    inequality the largest (κ_S − κ)² is at most Σ E(κ_S − κ)²/(δ/2), and never more than 1.
    """
    of_sketch = math.sqrt(min(1.0, float(sketch_square(kappa, n_buckets).sum()) / (delta / 2)))
    return of_sketch + pairs_error(delta / 2, n_components, kappa.size)


def sketched_spectral_error(
    delta: float, n_components: int, kappa: np.ndarray, kernel_norm: float, n_buckets: int
) -> float:
    """Return ε such that ‖K̂ − K‖₂ ≥ ε with probability at most δ, for a kernel matrix κ of n rows.

    As `sketched_pairs_error`: ‖K_S − K‖₂² ≤ ‖K_S − K‖_F² ≤ Σ E(κ_S − κ)²/(δ/2), and given the sketch matrix
    Bernstein with ‖K_S‖ ≤ ‖K‖ + ‖K_S − K‖.
    """
    n_rows = len(kappa)
    of_sketch = min(float(n_rows), math.sqrt(float(sketch_square(kappa, n_buckets).sum()) / (delta / 2)))
    norm = min(float(n_rows), kernel_norm + of_sketch)
    return of_sketch + spectral_norm_error(delta / 2, n_components, n_rows, norm)


def nystroem_pairs_error(residuals: np.ndarray, others: np.ndarray) -> float:
    """Return what no error of these pairs exceeds: the largest √(r(x)·r(x')), r(x) = k(x, x) − ‖z(x)‖².

    K − K̂ is a Schur complement and so positive semidefinite, whatever the landmarks are: Cauchy and Schwarz.
    """
    return float(np.sqrt(residuals * others).max())


def nystroem_spectral_error(residuals: np.ndarray) -> float:
    """Return what ‖K̂ − K‖₂ does not exceed: the trace Σ r(x) of K − K̂, which is positive semidefinite.

    A bound of the landmarks at hand, as the trace is known once they are chosen. Those beforehand (Rudi,
    Camoriano and Rosasco 2015, "Less is more: Nyström computational regularization"; Musco and Musco 2017,
    "Recursive sampling for the Nyström method") ask for more landmarks than a constant times the effective
    dimension.
    """
    return float(residuals.sum())
