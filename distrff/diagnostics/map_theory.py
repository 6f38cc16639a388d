"""What theory says of the error of a fitted map: its mean square over draws, and its bounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distrff.diagnostics.biased_bounds import (
    hashed_bins_pairs_error,
    hashed_bins_spectral_error,
    hashed_bins_square,
    nystroem_pairs_error,
    nystroem_spectral_error,
    sketch_square,
    sketched_pairs_error,
    sketched_spectral_error,
)
from distrff.diagnostics.bounds import FORMS, pairs_error, spectral_norm_error
from distrff.features.binning_specification import BinningSpecification, HashedBinningSpecification
from distrff.features.count_sketch import SKETCH_COLUMNS
from distrff.features.fourier import FourierSpecification
from distrff.features.nystroem import NystroemSpecification
from distrff.features.specification import MapSpecification
from distrff.kernels import Gaussian, Kernel
from distrff.kernels.base import Scaled


@dataclass(frozen=True, eq=False)
class PairFacts:
    """What is known of sampled pairs: k(δ), k(2δ), and k(x, x) − ‖z(x)‖² of both rows."""

    k: np.ndarray
    k_doubled: np.ndarray
    residuals: np.ndarray
    others: np.ndarray


@dataclass(frozen=True, eq=False)
class BlockFacts:
    """What is known of a block of rows: K, its spectral norm, and k(x, x) − ‖z(x)‖² of each row."""

    K: np.ndarray
    norm: float
    residuals: np.ndarray


class MapTheory(ABC):
    """Errors in the kernel's own units; probabilities are over draws of the map."""

    expected_is_bound: ClassVar[bool] = False
    """Whether `expected_square` is only known to be no less than the mean."""

    def expected_square(self, pairs: PairFacts) -> float | None:
        """Return the mean over pairs of E(ẑ − k)², or a bound of it; None where there is neither."""
        return None

    @abstractmethod
    def max_bound(self, pairs: PairFacts, delta: float) -> float:
        """Return what an error of the pairs, all together, exceeds with probability at most δ."""

    @abstractmethod
    def spectral_bound(self, block: BlockFacts, delta: float) -> float:
        """Return what ‖K̂ − K‖₂ exceeds with probability at most δ."""


def theory_of(spec: MapSpecification) -> MapTheory | None:
    """Return the theory of a map; None for draws that are neither independent nor bounded by themselves."""
    if isinstance(spec, FourierSpecification) and spec.form in FORMS:
        if spec.sampling == "iid":
            return _Independent(spec)
        if spec.sampling == "countsketch" and _is_gaussian(spec.kernel):
            return _Sketched(spec)
    if isinstance(spec, BinningSpecification):
        return _Bins(spec)
    if isinstance(spec, HashedBinningSpecification):
        return _HashedBins(spec)
    return _Landmarks() if isinstance(spec, NystroemSpecification) else None


def _is_gaussian(kernel: Kernel) -> bool:
    return _is_gaussian(kernel.k) if isinstance(kernel, Scaled) else isinstance(kernel, Gaussian)


def mean_spectral_bound(theory: MapTheory, blocks: Sequence[BlockFacts], delta: float) -> float:
    """Return what the mean of the blocks' ‖K̂ − K‖₂ exceeds with probability at most δ."""
    return float(np.mean([theory.spectral_bound(block, delta / len(blocks)) for block in blocks]))


@dataclass(frozen=True)
class _Independent(MapTheory):
    """Independent frequencies; with κ = k/k(0), of variance k(0)²/D·(1 + κ(2δ) − 2κ(δ)²) for "cos_sin" and
    k(0)²/D·(1 + κ(2δ)/2 − κ(δ)²) for "phase" (Sutherland and Schneider 2015)."""

    spec: FourierSpecification

    def expected_square(self, pairs: PairFacts) -> float:
        unit, share = self.spec.at_zero, 1.0 if self.spec.form == "cos_sin" else 0.5
        kappa, kappa_doubled = pairs.k / unit, pairs.k_doubled / unit
        spread = 1 + share * kappa_doubled - 2 * share * kappa**2
        return unit**2 / self.spec.n_features * float(np.maximum(spread, 0.0).mean())

    def max_bound(self, pairs: PairFacts, delta: float) -> float:
        return self.spec.at_zero * pairs_error(delta, self.spec.n_features, pairs.k.size)

    def spectral_bound(self, block: BlockFacts, delta: float) -> float:
        unit = self.spec.at_zero
        return unit * spectral_norm_error(delta, self.spec.n_features, len(block.K), block.norm / unit)


@dataclass(frozen=True)
class _Sketched(MapTheory):
    """Independent frequencies of a Gaussian kernel after one CountSketch for all: of variance at most
    k(0)²/D given the sketch, to which the square of its own error comes."""

    expected_is_bound: ClassVar[bool] = True

    spec: FourierSpecification

    def expected_square(self, pairs: PairFacts) -> float:
        unit = self.spec.at_zero
        of_sketch = float(sketch_square(pairs.k / unit, SKETCH_COLUMNS).mean())
        return unit**2 * (1 / self.spec.n_features + of_sketch)

    def max_bound(self, pairs: PairFacts, delta: float) -> float:
        unit = self.spec.at_zero
        return unit * sketched_pairs_error(delta, self.spec.n_features, pairs.k / unit, SKETCH_COLUMNS)

    def spectral_bound(self, block: BlockFacts, delta: float) -> float:
        unit = self.spec.at_zero
        return unit * sketched_spectral_error(
            delta, self.spec.n_features, block.K / unit, block.norm / unit, SKETCH_COLUMNS
        )


@dataclass(frozen=True)
class _Bins(MapTheory):
    """P independent indicators of a shared bin, of variance k(0)²/P·κ(1 − κ).

    A grid is one indicator, which bounds a pair as eight columns of frequencies do, and one positive matrix
    of norm at most n, as two columns are.
    """

    spec: BinningSpecification

    def expected_square(self, pairs: PairFacts) -> float:
        unit = self.spec.at_zero
        kappa = pairs.k / unit
        return unit**2 / self.spec.n_grids * float(np.maximum(kappa * (1 - kappa), 0.0).mean())

    def max_bound(self, pairs: PairFacts, delta: float) -> float:
        return self.spec.at_zero * pairs_error(delta, 8 * self.spec.n_grids, pairs.k.size)

    def spectral_bound(self, block: BlockFacts, delta: float) -> float:
        unit = self.spec.at_zero
        return unit * spectral_norm_error(delta, 2 * self.spec.n_grids, len(block.K), block.norm / unit)


@dataclass(frozen=True)
class _HashedBins(MapTheory):
    """The same with bins that are hashed to columns."""

    spec: HashedBinningSpecification

    def expected_square(self, pairs: PairFacts) -> float:
        unit = self.spec.at_zero
        squares = hashed_bins_square(pairs.k / unit, self.spec.n_grids, self.spec.collision)
        return unit**2 * float(squares.mean())

    def max_bound(self, pairs: PairFacts, delta: float) -> float:
        spec = self.spec
        return spec.at_zero * hashed_bins_pairs_error(delta, spec.n_grids, pairs.k.size, spec.collision)

    def spectral_bound(self, block: BlockFacts, delta: float) -> float:
        spec, unit = self.spec, self.spec.at_zero
        return unit * hashed_bins_spectral_error(
            delta, spec.n_grids, len(block.K), block.norm / unit, spec.collision
        )


class _Landmarks(MapTheory):
    """The projection on landmarks: bounds that hold for sure, and no mean over draws."""

    def max_bound(self, pairs: PairFacts, delta: float) -> float:
        return nystroem_pairs_error(pairs.residuals, pairs.others)

    def spectral_bound(self, block: BlockFacts, delta: float) -> float:
        return nystroem_spectral_error(block.residuals)
