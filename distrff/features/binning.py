"""Random binning features: which bins of random grids a row falls into."""

from __future__ import annotations

from typing import Any

import numpy as np

from distrff.errors import InputError, check_count
from distrff.features.bin_keys import Grids
from distrff.features.binning_pilot import BinningPilot, binning_pilot_flops
from distrff.features.binning_specification import BinningSpecification, HashedBinningSpecification
from distrff.features.kernel_map import KernelFeatureMap, canonical_json
from distrff.features.occupied_bins import fewest_passes, occupied_bins
from distrff.features.pilot import Pilot, PilotRows
from distrff.features.row_question import Ask, asked_of
from distrff.kernels import Kernel, Laplacian, laplacian_factors


class RandomBinningFeatures(KernelFeatureMap):
    r"""Random binning features of a Laplacian kernel; Z is sparse.

    Each of P grids cuts every column j into bins of pitch p_j, shifted at random: p_j has the density
    p·k_j″(p), Gamma(2, ℓ_j) for exp(−|δ_j|/ℓ_j), and the shift is uniform on [0, p_j]. z(x) is the
    indicator of the bin that x is in, grid by grid, times √(k(0)/P). Two rows share a bin with probability
    ∏ E max(0, 1 − |δ_j|/p_j) = k(δ)/k(0), so that E⟨z(x), z(x')⟩ = k(x − x'), with variance
    k(δ)·(k(0) − k(δ))/P (Rahimi and Recht 2007, "Random features for large-scale kernel machines",
    section 4).

    Only bins that rows of the fit are in have a column; a row that falls into another one has no entry
    there. Bins are told apart by keys of 64 bits.

    Parameters
    ----------
    kernel : Kernel, optional
        A `Laplacian`, or products and multiples of Laplacians. None is `Laplacian(1.0)`. A width "auto" is
        chosen in `fit` as that of `FourierFeatures`, but judged by a few grids; so is how far the
        widths that "ard" learns are taken at their word, and how short many rows allow them to be.
    n_grids : int, default=100
        P, the entries of a row of Z.
    n_bins : int, optional
        Hash the bins into that many columns, shared evenly by the grids, instead of looking for those that
        are occupied: no pass over the rows, and memory that is known. Two different bins of a grid of w
        columns are then one with probability 1/w, so that E⟨z(x), z(x')⟩ = k + (k(0) − k)/w.
    random_state : int or None
        Seed of the grids; None is fresh entropy, kept as `seed_`.

    Attributes
    ----------
    kernel_ : Kernel
        Every width a number.
    length_scale_search_ : dict or None
        How an automatic width was found.
    counts_ : ndarray of shape (n_features,) or None
        Rows in each bin; None for hashed ones.
    expected_collisions_ : float
        Pairs of occupied bins expected to share a column: Σ B(B − 1)/2⁶⁵ over the grids' B bins, whose keys
        may be the same; for w hashed columns a grid, Σ B(B − 1)/2w over the bins of the rows that `fit` was
        handed, a sample of a large dataset.
    specification_ : BinningSpecification or HashedBinningSpecification
    seed_, n_features_in_ : int

    Notes
    -----
    Rows are cut into bins in their own dtype, float32 or float64: give `transform` the one that `fit` had.
    Places beyond ±2³⁰ pitches are one bin. `fit` takes some passes over the rows, the first for one grid and
    then for as many grids as fit; 32 to 64 bytes a bin. `transform` costs n·d·P floors and a look-up in
    a table for each entry, and returns a scipy CSR matrix of n·P entries; a dask array gives a lazy dask
    array of such blocks.
    """

    _default_kernel = Laplacian()
    _tempers_ard = True

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
        """Raise InputError for parameters that no data could make right."""
        super().check_parameters()
        laplacian_factors(self._chosen_kernel)
        check_count("n_grids", self.n_grids)
        check_count("n_bins", self.n_bins, or_none=True)
        if self.n_bins is not None and self.n_bins < self.n_grids:
            raise InputError(f"n_bins must be at least n_grids = {self.n_grids}, got {self.n_bins}")

    def n_features_for(self, n_columns: int) -> int:
        """Return the columns of Z before fitting, for exact bins the fewest there can be: one a grid."""
        return int(self.n_grids if self.n_bins is None else self.n_bins)

    @property
    def n_passes(self) -> int:
        return 0 if self.n_bins is not None else fewest_passes(int(self.n_grids))

    def _pilot(self, rows: PilotRows) -> Pilot:
        return BinningPilot(rows, n_grids=int(self.n_grids))

    def _pilot_flops(self, n_rows: int, n_columns: int) -> float:
        return binning_pilot_flops(n_rows, n_columns, int(self.n_grids))

    @property
    def sparse_entries(self) -> int:
        return int(self.n_grids)

    def _specify(
        self, X: np.ndarray, y: Any, sample_weight: Any, seed: int, ask: Ask
    ) -> BinningSpecification | HashedBinningSpecification:
        self.check_parameters()
        kernel = self._decide_widths(X, y, sample_weight, seed, ask)
        common: dict[str, Any] = {
            "n_columns": X.shape[1],
            "kernel_json": canonical_json(kernel.to_dict()),
            "n_grids": int(self.n_grids),
            "seed": seed,
        }
        grids = Grids.draw(kernel, int(self.n_grids), X.shape[1], seed)
        if self.n_bins is not None:
            bins = occupied_bins(grids, asked_of(X, sample_weight))
            self.expected_collisions_ = _pairs(bins["ends"]) * self.n_grids / self.n_bins
            return HashedBinningSpecification(**common, n_bins=int(self.n_bins))
        bins = occupied_bins(grids, ask)
        self.expected_collisions_ = _pairs(bins["ends"]) / 2.0**64
        return BinningSpecification(**common, n_bins=len(bins["keys"]), arrays=grids.arrays() | bins)

    @property
    def counts_(self) -> np.ndarray | None:
        return self.specification_.derive_arrays().get("counts")


def _pairs(ends: np.ndarray) -> float:
    """Return the number of pairs of bins of the same grid."""
    bins = np.diff(ends, prepend=0).astype(np.float64)
    return float(np.sum(bins * (bins - 1)) / 2)
