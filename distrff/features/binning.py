"""Random binning features: which bins of random grids a row falls into."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_matrix

from distrff.errors import InputError
from distrff.features.base import KernelFeatureMap, KernelMapSpecification
from distrff.features.bins import BinIds, Grids, laplacian_factors, min_passes, occupied_bins
from distrff.features.projected import ProjectedSpecification
from distrff.features.search.ridge import FEATURES, BinnedRidge, SmallRidge, binned_flops
from distrff.features.search.sample import SearchSample
from distrff.features.specification import (
    BlockMap,
    CarryingSpecification,
    RowsInMemory,
    Sample,
    canonical_json,
)
from distrff.kernels.base import Kernel
from distrff.kernels.stationary import Laplacian
from distrff.utils.jit import scratch
from distrff.utils.products import OneHotTile
from distrff.utils.random import mixed_bits
from distrff.utils.validation import check_count


class RandomBinningFeatures(KernelFeatureMap):
    r"""Random binning features of a Laplacian kernel; Z is sparse.

    Each of P grids cuts every column j into bins of pitch p_j, shifted at random: p_j has the density
    p·k_j″(p), Gamma(2, ℓ_j) for exp(−|δ_j|/ℓ_j), and the shift is uniform on [0, p_j]. z(x) is the
    indicator of the bin that x is in, grid by grid, times √(k(0)/P). Two rows share a bin with probability
    ∏ E max(0, 1 − |δ_j|/p_j) = k(δ)/k(0), so that E⟨z(x), z(x')⟩ = k(x − x'), with variance
    k(δ)·(k(0) − k(δ))/P (Rahimi and Recht 2007, "Random features for large-scale kernel machines",
    section 4).

    Only bins that hold rows of the fit have a column; a row in any other bin has no entry for that grid.
    Bins are identified by keys of 64 bits.

    Parameters
    ----------
    kernel : Kernel, optional
        A `Laplacian`, or products and multiples of Laplacians. None is `Laplacian("auto")`. A width "auto" is
        chosen in `fit` as for `FourierFeatures`, but judged by a few grids, which also shrink the widths
        that "ard" learns.
    n_grids : int, default=100
        P, the entries of a row of Z.
    n_bins : int, optional
        Hash the bins into that many columns, shared evenly by the grids, instead of finding the occupied
        ones: this takes no pass over the rows, and a known amount of memory. Two different bins of a grid of
        w columns then share a column with probability 1/w, and E⟨z(x), z(x')⟩ = k + (k(0) − k)/w.
    random_state : int or None
        Seed of the grids; None is fresh entropy, kept as `seed_`.

    Attributes
    ----------
    kernel_ : Kernel
        Every width a number.
    length_scale_search_ : dict or None
        How an automatic width was found.
    counts_ : ndarray of shape (n_features,) or None
        Number of rows in each bin; None for hashed bins.
    expected_collisions_ : float
        Expected pairs of occupied bins with a common column: Σ B(B − 1)/2⁶⁵ over grids of B bins, as keys may
        be equal; for w hashed columns a grid Σ B(B − 1)/2w, where B counts the bins of the rows given to
        `fit`, a sample of a large dataset.
    specification_ : BinningSpecification, HashedBinningSpecification or ProjectedSpecification
    seed_, n_features_in_ : int

    Notes
    -----
    Bins are computed in the dtype of the rows, float32 or float64: give `transform` the dtype of `fit`.
    Numbers beyond ±2³⁰ pitches share a bin. `fit` takes some passes over the rows, the first for one grid and
    each other one for as many grids as memory allows; 32 to 64 bytes a bin. `transform` costs n·d·P floors
    and a table look-up for each entry, and returns a scipy CSR matrix of n·P entries; a dask array gives a
    lazy dask array of such blocks. The columns of a kernel with a metric are those of the projected rows,
    which may then be scipy sparse matrices.
    """

    _default_kernel = Laplacian("auto")
    _shrinks_ard = True

    def __init__(
        self,
        kernel: Kernel | None = None,
        n_grids: int = 100,
        *,
        n_bins: int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.kernel = kernel
        self.n_grids = n_grids
        self.n_bins = n_bins
        self.random_state = random_state

    def check_parameters(self) -> None:
        super().check_parameters()
        laplacian_factors(self._chosen_kernel)
        check_count("n_grids", self.n_grids)
        check_count("n_bins", self.n_bins, or_none=True)
        if self.n_bins is not None and self.n_bins < self.n_grids:
            raise InputError(f"n_bins must be at least n_grids = {self.n_grids}, got {self.n_bins}")

    def n_features_for(self, n_columns: int, n_rows: int | None = None) -> int:
        """Return the columns of Z before fitting; for exact bins a lower bound, one for each grid."""
        return int(self.n_grids if self.n_bins is None else self.n_bins)

    @property
    def n_passes(self) -> int:
        return 0 if self.n_bins is not None else min_passes(int(self.n_grids))

    def _small_ridge(self, rows: SearchSample, kernel: Kernel) -> SmallRidge:
        return BinnedRidge(rows, kernel, int(self.n_grids))

    def _small_flops(self, n_rows: int, n_columns: int) -> float:
        return binned_flops(n_rows, n_columns, int(self.n_grids))

    def _metric_components(self) -> int:
        return FEATURES

    @property
    def sparse_entries(self) -> int:
        return int(self.n_grids)

    def _specify_kernel(
        self, kernel: Kernel, sample: Sample
    ) -> BinningSpecification | HashedBinningSpecification:
        common: dict[str, Any] = {
            "n_columns": sample.X.shape[1],
            "kernel_json": canonical_json(kernel.to_dict()),
            "n_grids": int(self.n_grids),
            "seed": sample.seed,
        }
        grids = Grids.draw(kernel, int(self.n_grids), sample.X.shape[1], sample.seed)
        if self.n_bins is not None:
            bins = occupied_bins(grids, RowsInMemory(sample.X, sample.sample_weight))
            self.expected_collisions_ = _pairs(bins["ends"]) * self.n_grids / self.n_bins
            return HashedBinningSpecification(**common, n_bins=int(self.n_bins))
        bins = occupied_bins(grids, sample.row_source)
        self.expected_collisions_ = _pairs(bins["ends"]) / 2.0**64
        return BinningSpecification(**common, n_bins=len(bins["keys"]), arrays=grids.arrays() | bins)

    @property
    def counts_(self) -> np.ndarray | None:
        specification = self.specification_
        bins = specification.inner if isinstance(specification, ProjectedSpecification) else specification
        return bins.derive_arrays().get("counts")


def _pairs(ends: np.ndarray) -> float:
    """Return the number of pairs of bins of the same grid."""
    bins = np.diff(ends, prepend=0).astype(np.float64)
    return float(np.sum(bins * (bins - 1)) / 2)


# The fitted map: grids, and the column of Z of each bin.

KEY_ROWS = 2**13  # at a time: their keys take some megabytes


@dataclass(frozen=True)
class _Binning(KernelMapSpecification):
    """The base of both kinds of bins."""

    is_sparse: ClassVar[bool] = True

    n_grids: int = 0
    n_bins: int = 0
    seed: int = 0

    @property
    def n_features(self) -> int:
        return self.n_bins

    @property
    def row_entries(self) -> int:
        return self.n_grids

    def block_map(self, arrays: Mapping[str, np.ndarray]) -> BinningBlockMap:
        value = float(np.sqrt(self.at_zero / self.n_grids))
        grids = Grids(arrays["steps"], arrays["offsets"], arrays["multipliers"])
        grids.check(self.n_grids, self.n_columns)
        return BinningBlockMap(grids, self._columns_of(arrays), self.n_bins, value)

    @abstractmethod
    def _columns_of(self, arrays: Mapping[str, np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function from the keys of bins to their columns of Z."""


@dataclass(frozen=True)
class HashedBinningSpecification(_Binning):
    """Bins hashed to a fixed number of columns, which follow from the seed."""

    kind: ClassVar[str] = "hashed binning"

    @property
    def collision(self) -> float:
        """Probability that two bins of a grid share a column, on average over the grids."""
        return float(np.mean(1.0 / np.diff(_edges(self.n_grids, self.n_bins))))

    def derive_arrays(self) -> dict[str, np.ndarray]:
        return Grids.draw(self.kernel, self.n_grids, self.n_columns, self.seed).arrays()

    def _columns_of(self, arrays: Mapping[str, np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
        return partial(_hashed_columns, n_bins=self.n_bins)


@dataclass(frozen=True)
class BinningSpecification(_Binning, CarryingSpecification):
    """The occupied bins, a column each; a row in any other bin of a grid has no entry for it.

    The grids are stored too: derived elsewhere, rounding could move rows to other bins.
    """

    kind: ClassVar[str] = "binning"

    def _columns_of(self, arrays: Mapping[str, np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
        bins = BinIds(arrays["keys"], arrays["ends"])
        bins.check(self.n_grids, self.n_bins)
        return bins.find


@dataclass(eq=False)
class BinningBlockMap(BlockMap):
    """z(x) has one entry for each grid, in the column of the bin of x.

    `columns_of` maps keys of bins to columns of Z, −1 for none, both of shape (n_grids, r).
    """

    grids: Grids
    columns_of: Callable[[np.ndarray], np.ndarray]
    n_features: int
    value: float

    def apply(self, X: np.ndarray, out: np.ndarray | None = None) -> Any:
        """Return z(X) as a scipy CSR matrix; `out` must be None."""
        if out is not None:
            raise InputError("features of random binning are sparse and cannot be written to an array")
        columns = self._bins(X).T.copy()
        known = columns >= 0
        if known.all():
            indptr = np.arange(len(X) + 1, dtype=np.int32) * len(self.grids)
            indices = columns.ravel()
        else:
            indptr = np.concatenate([[0], np.cumsum(known.sum(axis=1))]).astype(np.int32)
            indices = columns[known]
        data = np.full(len(indices), self.value, X.dtype)
        return csr_matrix((data, indices, indptr), shape=(len(X), self.n_features), copy=False)

    def tile(self, X: np.ndarray) -> OneHotTile:
        """Return z(X) as column numbers and one value, which is not rounded to the dtype of X."""
        return OneHotTile(self._bins(X), self.value, self.n_features)

    def _bins(self, X: np.ndarray) -> np.ndarray:
        """Return the columns of Z of rows, −1 for none, grid by grid: (r, n_columns) → (n_grids, r)."""
        columns = scratch("bins", len(self.grids), len(X), np.dtype(np.int32))
        for first in range(0, len(X), KEY_ROWS):
            strip = slice(first, first + KEY_ROWS)
            columns[:, strip] = self.columns_of(self.grids.keys(X[strip]))
        return columns


def _hashed_columns(keys: np.ndarray, n_bins: int) -> np.ndarray:
    """Return the columns that keys are hashed to, each in the run of columns of its grid."""
    edges = _edges(len(keys), n_bins)
    widths = np.diff(edges).astype(np.uint64)[:, None]
    # Keys are linear in the numbers of the bins, and without mixing whole runs of neighbours would collide.
    # The high half of the mixed bits is scaled to the width of the run by a product instead of a division.
    high = mixed_bits(keys) >> np.uint64(32)
    return ((high * widths) >> np.uint64(32)).astype(np.int32) + edges[:-1, None].astype(np.int32)


def _edges(n_grids: int, n_bins: int) -> np.ndarray:
    """Return the first column of each grid's run, and the end of the last run."""
    return np.arange(n_grids + 1) * n_bins // n_grids
