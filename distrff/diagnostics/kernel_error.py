"""The error of a fitted map's kernel, measured on sampled pairs and blocks of rows, and its theory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import issparse
from scipy.special import ndtri
from scipy.stats import t as student

from distrff.diagnostics.bounds import (
    FORMS,
    hashed_bins_pairs_error,
    hashed_bins_spectral_error,
    hashed_bins_square,
    nystroem_pairs_error,
    nystroem_spectral_error,
    pairs_error,
    sketch_square,
    sketched_pairs_error,
    sketched_spectral_error,
    spectral_norm_error,
)
from distrff.errors import InputError, NonFiniteError
from distrff.features.base import FeatureMap
from distrff.features.binning import BinningMap, HashedBinningMap
from distrff.features.fitted import FittedMap, ProjectedMap
from distrff.features.fourier import FourierMap
from distrff.features.nystroem import NystroemMap
from distrff.features.structured import SKETCH_COLUMNS
from distrff.io.arrays import as_dataset
from distrff.kernels.base import Kernel, Scaled
from distrff.kernels.stationary import Gaussian
from distrff.utils.random import resolve_seed, stream
from distrff.utils.validation import check_count, positive

# Kernels evaluate matrices, but pairs need only their diagonals, so small matrices waste least.
_EXACT_SIDE = 32

Interval = tuple[float, float] | None
ExactKernel = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class KernelError:
    """The measured error of a map's kernel, in the units of the kernel; see `kernel_error`.

    Parameters
    ----------
    kernel : str
    n_components : int
        Columns D of Z.
    n_samples : int
        Rows that were sampled from.
    confidence : float
        Of the intervals, of the share and of the bounds.
    n_pairs : int
        Sampled pairs of distinct rows.
    max_error : float
        Largest |⟨z, z'⟩ − k| among them.
    max_exceeded_share : float
        At most this share of all pairs has a larger error than `max_error`.
    max_bound : float or None
        Theoretical bound of `max_error`; None for draws without one: orthogonal, quasi-random, Hadamard
        products, and concatenations.
    rms_error : float
        Root of the mean squared error of the pairs.
    rms_interval : (float, float)
        Confidence interval of the root mean square over all pairs.
    rms_expected : float or None
        Expected RMS over draws of the map, by theory. None as above, and for landmarks.
    rms_bound : float or None
        Upper bound of this expectation, if no more is known: for a CountSketch.
    n_blocks, block_rows : int
        Disjoint blocks of rows, and their size.
    spectral_error : float
        Mean of ‖K̂ − K‖₂ over the blocks.
    spectral_interval : (float, float) or None
        Confidence interval of the mean over all blocks; None with a single block.
    spectral_bound : float or None
        Theoretical bound of `spectral_error`; None as above.
    kernel_norm : float
        Mean of ‖K‖₂.
    alpha : float
    effective_dimension : float
        Mean of tr K(K + alpha·I)⁻¹ over the blocks.
    effective_dimension_interval : (float, float) or None
    seed : int
        Seed of the sample.
    """

    kernel: str
    n_components: int
    n_samples: int
    confidence: float
    n_pairs: int
    max_error: float
    max_exceeded_share: float
    max_bound: float | None
    rms_error: float
    rms_interval: Interval
    rms_expected: float | None
    rms_bound: float | None
    n_blocks: int
    block_rows: int
    spectral_error: float
    spectral_interval: Interval
    spectral_bound: float | None
    kernel_norm: float
    alpha: float
    effective_dimension: float
    effective_dimension_interval: Interval
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """The measurement as plain data."""
        return asdict(self)


def kernel_error(
    features: FeatureMap,
    X: Any,
    *,
    n_pairs: int = 4096,
    n_blocks: int = 8,
    block_rows: int = 256,
    alpha: float = 1.0,
    confidence: float = 0.95,
    random_state: int | None = None,
) -> KernelError:
    """Measure the error of a fitted map's kernel on pairs and blocks of the rows.

    Parameters
    ----------
    features : FeatureMap
        Fitted, with an exact kernel `kernel_`.
    X : array-like, DataFrame, dask array or Dataset of shape (n_samples, n_columns)
        Rows as the map takes them, scaled if the map was fitted to scaled ones.
    n_pairs : int
        Pairs of distinct rows, drawn independently.
    n_blocks, block_rows : int
        Disjoint blocks of rows; fewer or smaller ones if there are not enough rows.
    alpha : float
        For the effective dimension of a block, tr K(K + alpha·I)⁻¹ of the exact kernel.
    confidence : float
        Of the intervals, of the share and of the bounds.
    random_state : int or None
        Seed of the sample.

    Raises
    ------
    InputError
        If the map has no exact kernel, or the rows or numbers cannot be used.

    Notes
    -----
    Intervals account for the sample of rows, for this one map: normal for the mean of the pairs' squared
    errors, Student's t over the blocks. Since N independent pairs have no larger error than their maximum,
    the share of larger errors is at most 1 − (1 − c)^{1/N} with confidence c. Bounds and the expected RMS
    account for the draw of the map (see `bounds`): `max_bound` for all sampled pairs together,
    `spectral_bound` for all blocks together with the measured ‖K‖. Those of landmarks hold for the given
    rows and any draw, up to rounding.

    One pass over the rows for the sample; for a block of r rows O(r²(d + D) + r³).
    """
    exact = _exact_kernel(features)
    check_count("n_pairs", n_pairs, minimum=2)
    check_count("n_blocks", n_blocks)
    check_count("block_rows", block_rows, minimum=2)
    positive("alpha", alpha)
    if not isinstance(confidence, Real) or not 0 < float(confidence) < 1:
        raise InputError(f"confidence must be between 0 and 1, got {confidence!r}")
    seed = resolve_seed(random_state)
    sample = _sample(features, X, n_pairs, n_blocks, block_rows, seed)
    spec = features.specification_
    z, delta = spec.build().apply, 1 - float(confidence)
    squares, pairs = _measure_pairs(sample, z, exact)
    errors, dimensions, blocks = _measure_blocks(sample, z, exact, float(alpha))
    theory = theory_of(spec, pairs, delta)
    rms = spectral_bound = None
    if theory is not None:
        rms = None if theory.expected_square is None else math.sqrt(theory.expected_square)
        # Errors of blocks are averaged, so their bounds are too.
        # All blocks together: δ is shared among them.
        bounds = [theory.spectral_bound(block, delta / len(blocks)) for block in blocks]
        spectral_bound = float(np.mean(bounds))
    is_bound = theory is not None and theory.expected_is_bound
    return KernelError(
        kernel=repr(features.kernel_),
        n_components=spec.n_features,
        n_samples=sample.n_rows,
        confidence=float(confidence),
        n_pairs=int(n_pairs),
        max_error=float(np.sqrt(squares.max())),
        # N independent pairs all stay below the quantile of a share p with probability (1 − p)^N = δ.
        max_exceeded_share=1 - delta ** (1 / n_pairs),
        max_bound=None if theory is None else theory.max_bound,
        rms_error=float(np.sqrt(squares.mean())),
        rms_interval=_rms_interval(squares, confidence),
        rms_expected=None if is_bound else rms,
        rms_bound=rms if is_bound else None,
        n_blocks=len(errors),
        block_rows=sample.blocks.shape[1],
        spectral_error=float(errors.mean()),
        spectral_interval=_interval(errors, confidence),
        spectral_bound=spectral_bound,
        kernel_norm=float(np.mean([block.norm for block in blocks])),
        alpha=float(alpha),
        effective_dimension=float(dimensions.mean()),
        effective_dimension_interval=_interval(dimensions, confidence),
        seed=seed,
    )


class _Sample(NamedTuple):
    """Sampled rows X, and the indices in X of the rows of pairs and blocks."""

    n_rows: int  # from which X was sampled
    X: np.ndarray
    first: np.ndarray  # of shape (n_pairs,)
    second: np.ndarray
    blocks: np.ndarray  # of shape (n_blocks, block_rows)


def _sample(features: FeatureMap, X: Any, n_pairs: int, n_blocks: int, block_rows: int, seed: int) -> _Sample:
    dataset = as_dataset(X)
    n = dataset.n_rows
    if dataset.n_columns != features.n_features_in_:
        raise InputError(
            f"X has {dataset.n_columns} columns, but the feature map was fitted to {features.n_features_in_}"
        )
    if n < 2:
        raise InputError(f"the error of a kernel is measured on pairs of rows, and X has {n} row(s)")
    rows = min(block_rows, n)
    blocks = min(n_blocks, n // rows)
    rng = stream(seed, "kernel error")
    first = rng.integers(n, size=n_pairs)
    # A shift of at least one row: all pairs of distinct rows have the same chance.
    second = (first + rng.integers(1, n, size=n_pairs)) % n
    # Disjoint blocks: their errors are nearly independent, as Student's interval takes them.
    chosen = rng.choice(n, size=blocks * rows, replace=False)
    # The bins of rows depend on the rows' dtype, which must not change.
    dtype = np.float32 if dataset.dtype == np.float32 else np.float64
    # Each row is read once, in ascending order, as stored chunks are.
    wanted, place = np.unique(np.concatenate([first, second, chosen]), return_inverse=True)
    values = np.ascontiguousarray(dataset.X[wanted].compute(), dtype=dtype)
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise NonFiniteError(
            f"X contains NaN or infinity in row {wanted[row]}, column {column}; drop or fill such rows"
        )
    first, second, chosen = np.split(place, [n_pairs, 2 * n_pairs])
    return _Sample(n, values, first, second, chosen.reshape(blocks, rows))


def _exact_kernel(features: Any) -> ExactKernel:
    if not isinstance(features, FeatureMap):
        raise InputError(f"features must be a fitted distrff feature map, got {features!r}")
    if not hasattr(features, "specification_"):
        raise InputError(
            "the feature map is not fitted; call its fit, or fit_features for rows of any storage"
        )
    if not hasattr(features, "kernel_"):
        raise InputError(f"{type(features).__name__} approximates no kernel, so there is no error to measure")
    return features.kernel_


def _measure_pairs(sample: _Sample, z: Any, exact: ExactKernel) -> tuple[np.ndarray, PairFacts]:
    """Squared error of each pair, and the facts about the pairs that theory takes."""
    strips = []
    for start in range(0, len(sample.first), _EXACT_SIDE):
        part = slice(start, start + _EXACT_SIDE)
        X, Y = sample.X[sample.first[part]], sample.X[sample.second[part]]
        ZX, ZY = z(X), z(Y)
        # k(2δ) is in the variance of a pair, and k(x, x) in that of landmarks; 2x − 2x' = 2δ.
        k, k_doubled, of_X, of_Y = (
            np.diagonal(exact(A, B)) for A, B in ((X, Y), (2.0 * X, 2.0 * Y), (X, X), (Y, Y))
        )
        residuals = _residuals(ZX, of_X), _residuals(ZY, of_Y)
        strips.append((_row_products(ZX, ZY) - k, k, k_doubled, *residuals))
    errors, *facts = map(np.concatenate, zip(*strips, strict=True))
    # The product of complex features is complex; its distance from k counts.
    return np.square(np.abs(errors)), PairFacts(*facts)


def _measure_blocks(
    sample: _Sample, z: Any, exact: ExactKernel, alpha: float
) -> tuple[np.ndarray, np.ndarray, list[BlockFacts]]:
    """Spectral error and effective dimension of each block, and the facts about it that theory takes."""
    errors, dimensions, facts = [], [], []
    for rows in sample.blocks:
        X = sample.X[rows]
        K, Z = exact(X, X), z(X)
        products = (Z @ Z.T).toarray() if issparse(Z) else Z @ Z.conj().T
        # The spectral norm of a symmetric matrix is its largest |eigenvalue|: no singular values are needed.
        errors.append(np.abs(np.linalg.eigvalsh(products - K)).max())
        # K is positive semidefinite. Rounding makes its least eigenvalues negative, where λ/(λ + alpha) has a
        # pole.
        values = np.maximum(np.linalg.eigvalsh(K), 0.0)
        dimensions.append((values / (values + alpha)).sum())
        facts.append(BlockFacts(K, float(values[-1]), _residuals(Z, np.diagonal(K))))
    return np.array(errors), np.array(dimensions), facts


def _row_products(Z: Any, Y: Any) -> np.ndarray:
    if issparse(Z):
        return np.asarray(Z.multiply(Y).sum(axis=1)).ravel()
    return np.einsum("ij,ij->i", Z, Y.conj())


def _residuals(Z: Any, squared_norms: np.ndarray) -> np.ndarray:
    """The residual k(x, x) − ‖z(x)‖² of rows, at least as large as its rounding errors."""
    # The triangular solve of landmarks magnifies the rounding of float64 by up to 2²⁰, and more with their
    # number; Z in float32 is rounded again.
    rounding = max(2.0**-26, 16 * float(np.finfo(Z.dtype).eps)) * squared_norms
    return np.maximum(squared_norms - np.real(_row_products(Z, Z)), rounding)


def _rms_interval(squares: np.ndarray, confidence: float) -> Interval:
    # The normal interval is that of the mean square, which is a mean; its ends then have their roots.
    half = ndtri((1 + confidence) / 2) * squares.std(ddof=1) / math.sqrt(len(squares))
    mean = squares.mean()
    return math.sqrt(max(0.0, mean - half)), math.sqrt(mean + half)


def _interval(values: np.ndarray, confidence: float) -> Interval:
    n = len(values)
    if n < 2:
        return None
    half = student.ppf((1 + confidence) / 2, n - 1) * values.std(ddof=1) / math.sqrt(n)
    return max(0.0, float(values.mean() - half)), float(values.mean() + half)


# Theory of the error of a fitted map: its mean square over draws, and its bounds.


class PairFacts(NamedTuple):
    """Facts about sampled pairs: k(δ), k(2δ), and k(x, x) − ‖z(x)‖² of both rows."""

    k: np.ndarray
    k_doubled: np.ndarray
    residuals: np.ndarray
    others: np.ndarray


class BlockFacts(NamedTuple):
    """Facts about a block of rows: K, its spectral norm, and k(x, x) − ‖z(x)‖² of each row."""

    K: np.ndarray
    norm: float
    residuals: np.ndarray


class MapTheory(NamedTuple):
    """Theory of the errors, in units of the kernel.

    Over draws of the map bounds are exceeded with probability at most δ.
    """

    max_bound: float  # of the largest error of the pairs
    spectral_bound: Callable[[BlockFacts, float], float]  # of ‖K̂ − K‖₂, for a block and δ
    expected_square: float | None = None  # the mean over the pairs of E(ẑ − k)², or a bound of it
    expected_is_bound: bool = False


def theory_of(spec: FittedMap, pairs: PairFacts, delta: float) -> MapTheory | None:
    """The theory of a map; None if no theorem bounds the errors of its draws."""
    if isinstance(spec, ProjectedMap):
        return theory_of(spec.inner, pairs, delta)
    # Orthogonal and Sobol frequencies err less than independent ones: by factors of 0.56 and 0.65 with 256
    # columns for a Gaussian kernel of 16. But these are measurements; no theorem here bounds such draws.
    if isinstance(spec, FourierMap) and spec.form in FORMS:
        if spec.sampling == "iid":
            return _independent(spec, pairs, delta)
        if spec.sampling == "countsketch" and _is_gaussian(spec.kernel):
            return _sketched(spec, pairs, delta)
    if isinstance(spec, BinningMap | HashedBinningMap):
        return _bins(spec, pairs, delta)
    if isinstance(spec, NystroemMap):
        # The projection on landmarks: bounds that hold with certainty, and no mean over draws.
        bound = nystroem_pairs_error(pairs.residuals, pairs.others)
        return MapTheory(bound, lambda block, _: nystroem_spectral_error(block.residuals))
    return None


def _is_gaussian(kernel: Kernel) -> bool:
    return _is_gaussian(kernel.k) if isinstance(kernel, Scaled) else isinstance(kernel, Gaussian)


def _independent(spec: FourierMap, pairs: PairFacts, delta: float) -> MapTheory:
    """The theory of independent frequencies."""
    # With κ = k/k(0) the variance of a pair is k(0)²/D·(1 + κ(2δ) − 2κ(δ)²) for "cos_sin" and
    # k(0)²/D·(1 + κ(2δ)/2 − κ(δ)²) for "phase" (Sutherland and Schneider 2015).
    D, unit = spec.n_features, spec.at_zero
    share = 1.0 if spec.form == "cos_sin" else 0.5
    spread = 1 + share * (pairs.k_doubled / unit) - 2 * share * (pairs.k / unit) ** 2

    def spectral_bound(block: BlockFacts, delta: float) -> float:
        return unit * spectral_norm_error(delta, D, len(block.K), block.norm / unit)

    square = unit**2 / D * float(np.maximum(spread, 0.0).mean())
    return MapTheory(unit * pairs_error(delta, D, pairs.k.size), spectral_bound, square)


def _sketched(spec: FourierMap, pairs: PairFacts, delta: float) -> MapTheory:
    """The theory of independent frequencies of a Gaussian kernel after a common CountSketch."""
    # Given the sketch the variance is at most k(0)²/D; the squared error of the sketch is added to it.
    D, unit, B = spec.n_features, spec.at_zero, SKETCH_COLUMNS
    kappa = pairs.k / unit

    def spectral_bound(block: BlockFacts, delta: float) -> float:
        return unit * sketched_spectral_error(delta, D, block.K / unit, block.norm / unit, B)

    square = unit**2 * (1 / D + float(sketch_square(kappa, B).mean()))
    bound = unit * sketched_pairs_error(delta, D, kappa, B)
    return MapTheory(bound, spectral_bound, square, expected_is_bound=True)


def _bins(spec: BinningMap | HashedBinningMap, pairs: PairFacts, delta: float) -> MapTheory:
    """The theory of P independent indicators of a shared bin, or of a shared column for hashed bins."""
    # Without hashing the variance is k(0)²/P·κ(1 − κ): that of hashed bins, of which no two collide, c = 0.
    P, unit, c = spec.n_grids, spec.at_zero, getattr(spec, "collision", 0.0)

    def spectral_bound(block: BlockFacts, delta: float) -> float:
        return unit * hashed_bins_spectral_error(delta, P, len(block.K), block.norm / unit, c)

    squares = hashed_bins_square(pairs.k / unit, P, c)
    bound = unit * hashed_bins_pairs_error(delta, P, pairs.k.size, c)
    return MapTheory(bound, spectral_bound, unit**2 * float(np.maximum(squares, 0.0).mean()))
