"""Bounds of the literature on the error of approximate kernels, and the number of features they require.

Bounds are probabilities, at most 1; errors are an ε that is exceeded with probability at most δ over the
draw of the map. `eps` is in units of k(0), except for `features_needed`, which takes the kernel. The forms
"cos_sin" and "phase" count D real columns.

They hold for independent draws only (``sampling="iid"``, grids of random binning). Orthogonal,
quasi-random and structured draws have less error in practice, but not by these theorems. Hashed bins and
sketched rows make the kernel biased: their bounds include bias and deviation. Bounds for landmarks are in
units of the kernel and hold for any landmarks.

References
----------
RR: A. Rahimi and B. Recht 2007, "Random features for large-scale kernel machines".
SS: D. Sutherland and J. Schneider 2015, "On the error of random Fourier features".
T: J. Tropp 2015, "An introduction to matrix concentration inequalities".
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np

from distrff.errors import DataWarning, InputError, warn
from distrff.kernels.base import Kernel
from distrff.utils.validation import check_count, one_of, positive

__all__ = [
    "all_pairs_bound",
    "binning_all_pairs_bound",
    "binning_pair_bound",
    "binning_uniform_bound",
    "features_needed",
    "hashed_bins_pairs_error",
    "hashed_bins_spectral_error",
    "hashed_bins_square",
    "nystroem_pairs_error",
    "nystroem_spectral_error",
    "pair_bound",
    "pairs_error",
    "sketch_square",
    "sketched_pairs_error",
    "sketched_spectral_error",
    "spectral_norm_bound",
    "spectral_norm_error",
    "uniform_bound",
    "uniform_bound_as_published",
]

FORMS = ("cos_sin", "phase")


def pair_bound(eps: float, n_components: int) -> float:
    """Bound P(|⟨z(x), z(x')⟩ − k(x, x')| ≥ ε·k(0)) for one pair of rows: 2·exp(−Dε²/4).

    Parameters
    ----------
    eps : float
    n_components : int
        D.

    Notes
    -----
    "cos_sin" by Hoeffding's inequality for D/2 cosines in [−1, 1] (SS). "phase": a column
    gives cos ωδ + cos(ω(x + x') + 2b), two independent cosines as b is uniform, so that their sum is
    sub-Gaussian with twice the proxy 1 of each; the same number results.
    """
    return min(1.0, 2 * math.exp(-n_components * eps**2 / 4))


def all_pairs_bound(eps: float, n_components: int, n_rows: int) -> float:
    """Bound the probability that one of all pairs of n rows is off by ε·k(0): n²·exp(−Dε²/4).

    Parameters
    ----------
    eps : float
    n_components : int
        D.
    n_rows : int

    Notes
    -----
    The union of `pair_bound` over the at most n²/2 distinct pairs.
    """
    return min(1.0, n_rows**2 * math.exp(-n_components * eps**2 / 4))


def uniform_bound_as_published(
    eps: float, n_pairs: int, *, n_columns: int, diameter: float, sigma: float
) -> float:
    """Bound P(sup |ẑ − k| ≥ ε·k(0)) as RR printed it: 2⁸(σr/ε)²·exp(−mε²/(4(d + 2))).

    Parameters
    ----------
    eps : float
    n_pairs : int
        m, the frequencies of the cos_sin form.
    n_columns : int
    diameter : float
        r, of the set that holds all rows.
    sigma : float
        √E‖ω‖².

    Notes
    -----
    RR, Claim 1, for reference; `uniform_bound` is the corrected bound for each form.
    """
    # In logarithms: with few features the factor before the exponential overflows, though the bound is just
    # 1.
    log = 8 * math.log(2) + 2 * _log(sigma * diameter / eps) - n_pairs * eps**2 / (4 * (n_columns + 2))
    return _probability(log)


def uniform_bound(
    eps: float, n_components: int, *, n_columns: int, diameter: float, sigma: float, form: str = "cos_sin"
) -> float:
    """Bound P(sup |ẑ − k| ≥ ε·k(0)) over all pairs in a set of a given diameter.

    Parameters
    ----------
    eps : float
    n_components : int
        D.
    n_columns : int
        d.
    diameter : float
        r, of the set that holds all rows.
    sigma : float
        √E‖ω‖²; infinite gives 1.
    form : {"cos_sin", "phase"}

    Notes
    -----
    SS, Propositions 1 and 2, with their α = 1. "cos_sin" is
    β·(σr/ε)^{2d/(d+2)}·exp(−Dε²/(8(d+2))),
    β = ((d/2)^{−d/(d+2)} + (d/2)^{2/(d+2)})·2^{(6d+2)/(d+2)}; "phase" is
    β'·(σr/ε)^{2d/(d+1)}·exp(−Dε²/(32(d+1))),
    β' = (d^{−d/(d+1)} + d^{1/(d+1)})·2^{(5d+1)/(d+1)}·3^{d/(d+1)}.
    """
    log_factor, rate = _uniform_terms(eps, n_columns=n_columns, diameter=diameter, sigma=sigma, form=form)
    return _probability(log_factor - n_components * rate)


def spectral_norm_bound(
    eps: float, n_components: int, n_rows: int, *, kernel_norm: float | None = None
) -> float:
    """Bound P(‖K̂ − K‖₂ ≥ ε·k(0)) for the Gram matrices of n rows.

    Parameters
    ----------
    eps : float
    n_components : int
        D, of the forms "cos_sin" and "phase".
    n_rows : int
    kernel_norm : float, optional
        ‖K‖₂/k(0); at most n, which is taken when it is not known.

    Notes
    -----
    2n·exp(−(ε²/2)/(v + Lε/3)), the matrix Bernstein inequality (T, section 6.1), for
    K̂ as the mean of D/2 independent positive matrices of norm at most n: v = 2n‖K‖/D, L = 2n/D; the D
    matrices of rank 1 and norm at most 2n of the phase form give the same. Features in the order of
    √n·log n make the error √n only where ‖K‖ itself is of that order.
    """
    # ‖K‖ ≤ tr K = n·k(0).
    norm = n_rows if kernel_norm is None else kernel_norm
    v, L = 2 * n_rows * norm / n_components, 2 * n_rows / n_components
    return _probability(math.log(2 * n_rows) - eps**2 / 2 / (v + L * eps / 3))


def binning_pair_bound(eps: float, n_grids: int) -> float:
    """Bound P(|ẑ − k| ≥ ε·k(0)) for one pair and P grids of random binning: 2·exp(−2Pε²).

    Parameters
    ----------
    eps : float
    n_grids : int
        P.

    Notes
    -----
    Hoeffding's inequality for P indicators of a shared bin (RR, section 4); bins without hashing.
    """
    return min(1.0, 2 * math.exp(-2 * n_grids * eps**2))


def binning_all_pairs_bound(eps: float, n_grids: int, n_rows: int) -> float:
    """Bound the probability that one of all pairs of n rows is off by ε·k(0): n²·exp(−2Pε²).

    Parameters
    ----------
    eps : float
    n_grids : int
        P, of random binning.
    n_rows : int

    Notes
    -----
    The union of `binning_pair_bound` over the at most n²/2 distinct pairs.
    """
    return min(1.0, n_rows**2 * math.exp(-2 * n_grids * eps**2))


def binning_uniform_bound(
    eps: float, n_grids: int, *, n_columns: int, diameter: float, mean_inverse_pitch: float, lipschitz: float
) -> float:
    """Bound P(sup |ẑ − k| ≥ ε·k(0)) for random binning over a set.

    Parameters
    ----------
    eps : float
    n_grids : int
        P.
    n_columns : int
    diameter : float
        r, of the set that holds all rows.
    mean_inverse_pitch : float
        a = E[1/pitch]; of the Laplacian 1/ℓ.
    lipschitz : float
        Lipschitz constant of k/k(0) in the L1 norm; of the Laplacian 1/ℓ.

    Notes
    -----
    36·d·P·a·r·exp(−(Pε²/8 + ln(ε/L))/(d + 1)): RR, Claim 2.
    """
    log_front = _log(36 * n_columns * n_grids * mean_inverse_pitch * diameter)
    return _probability(log_front - (n_grids * eps**2 / 8 + math.log(eps / lipschitz)) / (n_columns + 1))


def pairs_error(delta: float, n_components: int, n_pairs: int) -> float:
    """ε such that one of n pairs is off by ε·k(0) with probability at most δ.

    Parameters
    ----------
    delta : float
        δ.
    n_components : int
        D.
    n_pairs : int

    Notes
    -----
    The inverse of 2n·exp(−Dε²/4), the union of `pair_bound`.
    """
    # From 2n·exp(−Dε²/4) = δ.
    return math.sqrt(4 * math.log(2 * n_pairs / delta) / n_components)


def spectral_norm_error(delta: float, n_components: int, n_rows: int, kernel_norm: float) -> float:
    """ε such that ‖K̂ − K‖₂ ≥ ε·k(0) with probability at most δ.

    Parameters
    ----------
    delta : float
        δ.
    n_components : int
        D.
    n_rows : int
    kernel_norm : float
        ‖K‖₂/k(0).

    Notes
    -----
    The inverse of `spectral_norm_bound`: the positive root of ε²/2 = ln(2n/δ)·(v + Lε/3).
    """
    v, L = 2 * n_rows * kernel_norm / n_components, 2 * n_rows / n_components
    # With u = ln(2n/δ) the bound is δ where ε² − (2uL/3)·ε − 2uv = 0.
    u = math.log(2 * n_rows / delta)
    return u * L / 3 + math.sqrt((u * L / 3) ** 2 + 2 * u * v)


def features_needed(
    eps: float,
    delta: float,
    *,
    n_rows: int | None = None,
    diameter: float | None = None,
    kernel: Kernel | None = None,
    n_columns: int | None = None,
    form: str = "cos_sin",
) -> float:
    """Number of columns of Fourier features that keeps the error below ε with probability 1 − δ.

    For one pair of rows; with `n_rows` for all pairs of `n_rows` rows at once; with `diameter` for all pairs
    of points in a set, whether or not they are rows. For iid draws only.

    Parameters
    ----------
    eps : float
        Largest |⟨z(x), z(x')⟩ − k(x, x')|.
    delta : float
        Probability, over the draw of the frequencies, that this error is exceeded.
    n_rows : int, optional
    diameter : float, optional
        Euclidean, of the set that holds the rows; needs `kernel` and `n_columns`.
    kernel : Kernel, optional
        Its k(0) is the unit of `eps`; 1 without one.
    n_columns : int, optional
    form : {"cos_sin", "phase"}

    Returns
    -------
    int, or inf
        D; even for "cos_sin". `inf`, with a warning that names the pairwise bounds, where the kernel's
        frequencies have no second moment (Laplacian, Exponential, Matern with nu ≤ 1).

    Raises
    ------
    InputError
        For arguments out of range, or that exclude each other.

    Notes
    -----
    One pair 4·ln(2/δ)/ε², n rows 4·ln(n²/δ)/ε². Over a set it inverts `uniform_bound` with 2σ instead of σ:
    the published proofs take the mean of the squared slope at the point where it is largest as if that point
    did not depend on the frequencies. At any point the slope of ẑ − k is at most mean ‖ω‖ + E‖ω‖
    (phase: 2·mean ‖ω‖ + √2·E‖ω‖). Its mean square is below 4σ² (12σ²): four times what the proofs take.
    """
    positive("eps", eps, "positive and finite")
    if not isinstance(delta, Real) or not 0 < float(delta) < 1:
        raise InputError(f"delta must be a probability between 0 and 1, got {delta!r}")
    one_of("form", form, FORMS)
    unit = 1.0 if kernel is None else kernel.at_zero
    relative = float(eps) / unit
    if n_rows is not None and diameter is not None:
        raise InputError("give n_rows, for that many rows, or diameter, for all points of a set, not both")
    if diameter is not None:
        n = _features_for_set(relative, delta, diameter, kernel, n_columns, form)
    else:
        check_count("n_rows", n_rows, or_none=True)
        # n rows have n(n − 1)/2 pairs, each with the factor 2 of `pair_bound`: less than n² together.
        pairs = 2.0 if n_rows is None else int(n_rows) ** 2
        n = 4 * math.log(max(pairs, 2.0) / delta) / relative**2
    if math.isinf(n):
        return math.inf
    # A frequency is two columns of "cos_sin", so their number is even.
    return 2 * max(1, math.ceil(n / 2)) if form == "cos_sin" else max(1, math.ceil(n))


def _features_for_set(
    eps: float, delta: float, diameter: Any, kernel: Kernel | None, n_columns: int | None, form: str
) -> float:
    if kernel is None or n_columns is None:
        raise InputError("a bound for a set of a given diameter needs kernel=… and n_columns=…")
    positive("diameter", diameter, "positive and finite")
    check_count("n_columns", n_columns)
    sigma = math.sqrt(kernel.second_moment(int(n_columns)))
    if math.isinf(sigma):
        warn(
            f"the frequencies of {kernel!r} have no second moment, so no number of features bounds the error "
            f"over a set; use the pairwise bounds: features_needed(eps, delta) for one pair, or with "
            f"n_rows=… for all pairs of n_rows rows",
            DataWarning,
        )
        return math.inf
    # 2σ, since the published proofs bound the slope at one point, not where it is largest; see the notes
    # above.
    log_factor, rate = _uniform_terms(
        eps, n_columns=n_columns, diameter=float(diameter), sigma=2 * sigma, form=form
    )
    # δ = exp(log_factor − D·rate), solved for D.
    return max(0.0, (log_factor - math.log(delta)) / rate)


def _uniform_terms(
    eps: float, *, n_columns: int, diameter: float, sigma: float, form: str
) -> tuple[float, float]:
    """The logarithm of the factor before the exponential, and the exponent per column."""
    # In logarithms: a bound of 1e-400 is no zero for whoever solves it for the number of columns.
    d, reach = n_columns, _log(sigma * diameter / eps)
    if form == "cos_sin":
        h = d / 2
        beta = (h ** (-d / (d + 2)) + h ** (2 / (d + 2))) * 2 ** ((6 * d + 2) / (d + 2))
        return math.log(beta) + 2 * d / (d + 2) * reach, eps**2 / (8 * (d + 2))
    beta = (d ** (-d / (d + 1)) + d ** (1 / (d + 1))) * 2 ** ((5 * d + 1) / (d + 1)) * 3 ** (d / (d + 1))
    return math.log(beta) + 2 * d / (d + 1) * reach, eps**2 / (32 * (d + 1))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _probability(log: float) -> float:
    return math.exp(min(0.0, log))


# Hashed, sketched and projected maps, whose kernels are biased; κ = k/k(0).


def hashed_bins_square(kappa: np.ndarray, n_grids: int, collision: float) -> np.ndarray:
    """E(ẑ − κ)² of pairs, for independent grids of hashed bins.

    Parameters
    ----------
    kappa : ndarray of shape (n_pairs,)
        κ of each pair.
    n_grids : int
        P.
    collision : float
        c, the probability that two bins of a grid share a column.

    Returns
    -------
    ndarray of shape (n_pairs,)

    Notes
    -----
    Two rows share a column of a grid with probability p = κ + (1 − κ)c: they share the bin, or their bins
    are hashed to one column, with probability c. Variance and squared bias add up to
    p(1 − p)/P + ((1 − κ)c)².
    """
    shared = kappa + (1 - kappa) * collision
    return shared * (1 - shared) / n_grids + np.square((1 - kappa) * collision)


def hashed_bins_pairs_error(delta: float, n_grids: int, n_pairs: int, collision: float) -> float:
    """ε such that one of n pairs is off by ε·k(0) with probability at most δ, for hashed bins.

    Parameters
    ----------
    delta : float
        δ.
    n_grids : int
    n_pairs : int
    collision : float
        c, the probability that two bins of a grid share a column.

    Notes
    -----
    The bias (1 − κ)c is at most c. The mean of P indicators deviates as without hashing: Hoeffding's
    inequality, as in `binning_pair_bound`.
    """
    # A grid counts as eight columns of frequencies: 2·exp(−2Pε²) = 2·exp(−8P·ε²/4).
    return collision + pairs_error(delta, 8 * n_grids, n_pairs)


def hashed_bins_spectral_error(
    delta: float, n_grids: int, n_rows: int, kernel_norm: float, collision: float
) -> float:
    """ε such that ‖K̂ − K‖₂ ≥ ε·k(0) with probability at most δ, for hashed bins.

    Parameters
    ----------
    delta : float
        δ.
    n_grids : int
    n_rows : int
    kernel_norm : float
        ‖K‖₂/k(0).
    collision : float
        c, the probability that two bins of a grid share a column.

    Notes
    -----
    E K̂ = K + c(11ᵀ − K), where the second term has entries in [0, c] and a norm of at most cn. Around E K̂
    the matrix Bernstein inequality (T, section 6.1) holds as for bins without hashing.
    """
    # A grid is one positive matrix of norm at most n, as a pair of columns is, so D = 2P. The variance is
    # that around E K̂, whose norm the bias raises.
    bias = collision * n_rows
    return bias + spectral_norm_error(delta, 2 * n_grids, n_rows, min(n_rows, kernel_norm + bias))


def sketch_square(kappa: np.ndarray, n_buckets: int) -> np.ndarray:
    """Bound E(κ_S − κ)² of pairs for the Gaussian kernel κ_S of rows under a CountSketch S.

    Parameters
    ----------
    kappa : ndarray
        κ of each pair.
    n_buckets : int
        B, the columns of the sketch.

    Returns
    -------
    ndarray
        Of the shape of `kappa`.

    Notes
    -----
    With s = ‖δ‖² in length scales and t = ‖Sδ‖², κ = exp(−s/2) and κ_S = exp(−t/2). E t = s and
    Var t = (2/B)·(s² − Σ δ_j⁴) ≤ 2s²/B (Weinberger, Dasgupta, Langford, Smola and Attenberg 2009, "Feature
    hashing for large scale multitask learning", Lemma 2; Pham and Pagh 2013, "Fast and scalable polynomial
    kernels via explicit feature maps", on the same sketch). As a function of t the kernel has a slope of at
    most ½, and of at most ½·exp(−s/4) where t ≥ s/2; t < s/2 has a probability of at most 8/(B + 8), by
    Cantelli's inequality. So E(κ_S − κ)² is at most s²/(2B), and at most s²·exp(−s/2)/(2B) + 8/(B + 8).
    """
    # κ of far pairs underflows to 0; without the clip the second bound would be ∞·0.
    s = -2 * np.log(np.clip(kappa, np.finfo(np.float64).tiny, 1.0))
    by_slope = np.square(s) / (2 * n_buckets)
    # Near pairs are bounded by the slope of the kernel, far ones by its decay: neither bound is always the
    # less.
    return np.minimum(by_slope, by_slope * np.exp(-s / 2) + 8 / (n_buckets + 8))


def sketched_pairs_error(delta: float, n_components: int, kappa: np.ndarray, n_buckets: int) -> float:
    """ε such that one of some pairs is off by ε·k(0) with probability at most δ, for sketched rows.

    Parameters
    ----------
    delta : float
        δ.
    n_components : int
        D.
    kappa : ndarray of shape (n_pairs,)
        κ of each pair, of the Gaussian kernel.
    n_buckets : int
        B, the columns of the sketch.

    Notes
    -----
    One half of δ is for the frequencies, given the sketch (`pairs_error`), the other for the sketch: by
    Markov's inequality the largest (κ_S − κ)² is at most Σ E(κ_S − κ)²/(δ/2) (`sketch_square`), and never
    more than 1.
    """
    of_sketch = math.sqrt(min(1.0, float(sketch_square(kappa, n_buckets).sum()) / (delta / 2)))
    return of_sketch + pairs_error(delta / 2, n_components, kappa.size)


def sketched_spectral_error(
    delta: float, n_components: int, kappa: np.ndarray, kernel_norm: float, n_buckets: int
) -> float:
    """ε such that ‖K̂ − K‖₂ ≥ ε·k(0) with probability at most δ, for sketched rows.

    Parameters
    ----------
    delta : float
        δ.
    n_components : int
        D.
    kappa : ndarray of shape (n_rows, n_rows)
        κ of all pairs of rows, of the Gaussian kernel.
    kernel_norm : float
        ‖κ‖₂.
    n_buckets : int
        B, the columns of the sketch.

    Notes
    -----
    As `sketched_pairs_error`: ‖K_S − K‖₂² ≤ ‖K_S − K‖_F² ≤ Σ E(κ_S − κ)²/(δ/2), and given the sketch the
    matrix Bernstein inequality (T, section 6.1) with ‖K_S‖ ≤ ‖K‖ + ‖K_S − K‖.
    """
    n_rows = len(kappa)
    of_sketch = min(float(n_rows), math.sqrt(float(sketch_square(kappa, n_buckets).sum()) / (delta / 2)))
    norm = min(float(n_rows), kernel_norm + of_sketch)
    return of_sketch + spectral_norm_error(delta / 2, n_components, n_rows, norm)


def nystroem_pairs_error(residuals: np.ndarray, others: np.ndarray) -> float:
    """A bound of the errors of some pairs, for landmarks: the largest √(r(x)·r(x')).

    Parameters
    ----------
    residuals, others : ndarrays of shape (n_pairs,)
        r(x) = k(x, x) − ‖z(x)‖² of the two rows of each pair.

    Notes
    -----
    The Cauchy-Schwarz inequality, as K − K̂ is a Schur complement and so positive semidefinite.
    """
    return float(np.sqrt(residuals * others).max())


def nystroem_spectral_error(residuals: np.ndarray) -> float:
    """A bound of ‖K̂ − K‖₂, for landmarks: the trace Σ r(x) of K − K̂.

    Parameters
    ----------
    residuals : ndarray of shape (n_rows,)
        r(x) = k(x, x) − ‖z(x)‖² of the rows.

    Notes
    -----
    K − K̂ is positive semidefinite. This bound holds for the given landmarks, as the trace is known once they
    are chosen. Bounds beforehand (Rudi, Camoriano and Rosasco 2015, "Less is more: Nyström computational
    regularization"; Musco and Musco 2017, "Recursive sampling for the Nyström method") require more landmarks
    than a constant times the effective dimension.
    """
    return float(residuals.sum())
