"""Random binning features: which bins of random grids a row falls into."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_matrix

from distrff.errors import InputError
from distrff.features.base import KernelFeatureMap, RowsInMemory, RowSource, Sample, search_module
from distrff.features.fitted import (
    KEY_ROWS,
    Arrays,
    KernelMap,
    MapFromRows,
    MapOutline,
    ProjectedMap,
    Trait,
    canonical_json,
    product_cost,
)
from distrff.kernels.base import Kernel, Product, Scaled, Streams
from distrff.kernels.stationary import Laplacian
from distrff.utils.jit import compiled, compiles_once, scratch
from distrff.utils.linalg import OneHotTile
from distrff.utils.random import mixed_bits, stream
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
    specification_ : BinningMap, HashedBinningMap or ProjectedMap
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

    traits = frozenset({Trait.SPARSE})
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
        laplacian_factors(self.chosen_kernel)
        check_count("n_grids", self.n_grids)
        check_count("n_bins", self.n_bins, or_none=True)
        # A grid without a column of its own would have no bin at all.
        if self.n_bins is not None and self.n_bins < self.n_grids:
            raise InputError(f"n_bins must be at least n_grids = {self.n_grids}, got {self.n_bins}")

    def _outline(self, kernel: Kernel, n_columns: int, n_rows: int) -> MapOutline:
        return MapOutline(
            int(self.n_grids if self.n_bins is None else self.n_bins),
            product_cost(n_columns),
            sparse_entries=int(self.n_grids),
            n_passes=min_passes(int(self.n_grids)) if self.n_bins is None else 0,
        )

    def _small_ridge(self, rows: Any, kernel: Kernel) -> Any:
        return search_module("ridge").BinnedRidge(rows, kernel, int(self.n_grids))

    def _small_flops(self, n_rows: int, n_columns: int) -> float:
        return float(search_module("ridge").binned_flops(n_rows, n_columns, int(self.n_grids)))

    def _metric_components(self) -> int:
        # A metric comes from gradients, which bins have not: cosines and sines of another kernel learn it.
        return int(search_module("ridge").FEATURES)

    def _frozen(self, kernel: Kernel, sample: Sample) -> BinningMap | HashedBinningMap:
        common: dict[str, Any] = {
            "n_columns": sample.X.shape[1],
            "kernel_json": canonical_json(kernel.to_dict()),
            "n_grids": int(self.n_grids),
            "seed": sample.seed,
        }
        grids = Grids.draw(kernel, int(self.n_grids), sample.X.shape[1], sample.seed)
        if self.n_bins is not None:
            # Of the sample alone, to say how many collide: the columns themselves follow from the seed.
            bins = occupied_bins(grids, RowsInMemory(sample.X, sample.sample_weight))
            self.expected_collisions_ = _pairs(bins["ends"]) * self.n_grids / self.n_bins
            return HashedBinningMap(**common, n_bins=int(self.n_bins))
        bins = occupied_bins(grids, sample.row_source)
        self.expected_collisions_ = _pairs(bins["ends"]) / 2.0**64
        return BinningMap(**common, n_bins=len(bins["keys"]), arrays=grids.arrays() | bins)

    @property
    def counts_(self) -> np.ndarray | None:
        specification = self.specification_
        bins = specification.inner if isinstance(specification, ProjectedMap) else specification
        return bins.derive().get("counts")


def _pairs(ends: np.ndarray) -> float:
    """The number of pairs of bins of the same grid."""
    bins = np.diff(ends, prepend=0).astype(np.float64)
    return float(np.sum(bins * (bins - 1)) / 2)


# The fitted map: grids, and the column of Z of each bin.


@dataclass(frozen=True)
class _AnyBinningMap(KernelMap):
    """Base of both: z(x) has one entry for each grid, in the column of the bin of x.

    A ready map has prepared the grids, and the function from keys of bins to columns of Z, −1 for none; keys
    and columns are of shape (n_grids, r).
    """

    n_grids: int = 0
    n_bins: int = 0
    seed: int = 0

    @property
    def n_features(self) -> int:
        return self.n_bins

    @property
    def row_entries(self) -> int:
        return self.n_grids

    def prepare(self, arrays: Arrays) -> tuple[Grids, Callable[[np.ndarray], np.ndarray]]:
        grids = Grids(arrays["steps"], arrays["offsets"], arrays["multipliers"])
        grids.check(self.n_grids, self.n_columns)
        return grids, self._columns_of(arrays)

    @abstractmethod
    def _columns_of(self, arrays: Arrays) -> Callable[[np.ndarray], np.ndarray]:
        """The function from the keys of bins to their columns of Z."""

    @property
    def _value(self) -> float:
        return float(np.sqrt(self.at_zero / self.n_grids))

    def apply(self, X: np.ndarray, out: np.ndarray | None = None) -> Any:
        if out is not None:
            raise InputError("features of random binning are sparse and cannot be written to an array")
        # By rows, as CSR has them: the bins come grid by grid.
        columns = self._bins(X).T.copy()
        known = columns >= 0
        if known.all():
            indptr = np.arange(len(X) + 1, dtype=np.int64) * self.n_grids
            indices = columns.ravel()
        else:
            indptr = np.concatenate([[0], np.cumsum(known.sum(axis=1))])
            indices = columns[known]
        data = np.full(len(indices), self._value, X.dtype)
        return csr_matrix((data, indices, indptr), shape=(len(X), self.n_features), copy=False)

    def tile(self, X: np.ndarray) -> OneHotTile:
        """z(X) as column numbers and one value, which is not rounded to the dtype of X."""
        # Column numbers alone: CSR would store and read the same value once for every entry.
        return OneHotTile(self._bins(X), self._value, self.n_features)

    def _bins(self, X: np.ndarray) -> np.ndarray:
        """The columns of Z of rows, −1 for none, grid by grid: (r, n_columns) → (n_grids, r)."""
        grids, columns_of = self.prepared
        columns = scratch("bins", self.n_grids, len(X), np.dtype(np.int32))
        for first in range(0, len(X), KEY_ROWS):
            strip = slice(first, first + KEY_ROWS)
            columns[:, strip] = columns_of(grids.keys(X[strip]))
        return columns


@dataclass(frozen=True)
class HashedBinningMap(_AnyBinningMap):
    """Bins hashed to a fixed number of columns, which follow from the seed."""

    kind: ClassVar[str] = "hashed binning"

    @property
    def traits(self) -> frozenset[Trait]:
        return frozenset({Trait.SPARSE})

    @property
    def collision(self) -> float:
        """Probability that two bins of a grid share a column, on average over the grids."""
        return float(np.mean(1.0 / np.diff(_edges(self.n_grids, self.n_bins))))

    def derive(self) -> dict[str, np.ndarray]:
        return Grids.draw(self.kernel, self.n_grids, self.n_columns, self.seed).arrays()

    def _columns_of(self, arrays: Arrays) -> Callable[[np.ndarray], np.ndarray]:
        return partial(_hashed_columns, n_bins=self.n_bins)


@dataclass(frozen=True)
class BinningMap(_AnyBinningMap, MapFromRows):
    """The occupied bins, a column each; a row in any other bin of a grid has no entry for it.

    The grids are stored too: derived elsewhere, rounding could move rows to other bins.
    """

    kind: ClassVar[str] = "binning"

    @property
    def traits(self) -> frozenset[Trait]:
        return frozenset({Trait.SPARSE, Trait.FROM_ROWS})

    def _columns_of(self, arrays: Arrays) -> Callable[[np.ndarray], np.ndarray]:
        # Stored tables may be damaged, and the compiled look-up checks no index.
        bins = BinIds(arrays["keys"], arrays["ends"])
        bins.check(self.n_grids, self.n_bins)
        return bins.find


def _hashed_columns(keys: np.ndarray, n_bins: int) -> np.ndarray:
    """The columns that keys are hashed to, each in the run of columns of its grid."""
    edges = _edges(len(keys), n_bins)
    widths = np.diff(edges).astype(np.uint64)[:, None]
    # Keys are linear in the numbers of the bins, and without mixing whole runs of neighbours would collide.
    # The high half of the mixed bits is scaled to the width of the run by a product instead of a division.
    high = mixed_bits(keys) >> np.uint64(32)
    return ((high * widths) >> np.uint64(32)).astype(np.int32) + edges[:-1, None].astype(np.int32)


def _edges(n_grids: int, n_bins: int) -> np.ndarray:
    """The first column of each grid's run, and the end of the last run."""
    # Runs differ by one column at most where the grids do not divide the columns.
    return np.arange(n_grids + 1) * n_bins // n_grids


# The bins of random grids: a key of 64 bits for each row and grid, and tables of the occupied bins.

_TILE = 256  # rows: their columns and sums stay in the first-level cache
_FARTHEST = float(2**30)


@dataclass(frozen=True, eq=False)
class Grids:
    """Random grids: row x falls in bin ⌊(x_j − shift_j)/pitch_j⌋ of column j, for each grid.

    `steps` are 1/pitch and `offsets` −shift/pitch in (−1, 0], of shape (n_grids, n_columns). `multipliers`
    of the multilinear hash of the columns' bins are odd: int32 of shape (2, n_grids, n_columns).
    """

    steps: np.ndarray
    offsets: np.ndarray
    multipliers: np.ndarray

    @classmethod
    def draw(cls, kernel: Kernel, n_grids: int, n_columns: int, seed: int) -> Grids:
        """Draw pitches from p·k″(p) and shifts uniform on [0, pitch]; grids are prefix-stable."""
        pitches = draw_pitches(kernel, n_grids, n_columns, lambda name: stream(seed, "pitches", name))
        # A pitch of 0 has no reciprocal; with the smallest pitch every number has its own bin, too.
        steps = 1.0 / np.maximum(pitches, np.finfo(np.float32).tiny)
        offsets = -stream(seed, "shifts").random((n_grids, n_columns))
        drawn = stream(seed, "multipliers").integers(-(2**30), 2**30, (n_grids, 2, n_columns))  # grid by grid
        return cls(steps, offsets, np.ascontiguousarray(np.moveaxis(2 * drawn + 1, 1, 0), np.int32))

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that are stored and sent."""
        return {"steps": self.steps, "offsets": self.offsets, "multipliers": self.multipliers}

    def check(self, n_grids: int, n_columns: int) -> None:
        """Raise InputError if stored arrays do not fit: compiled loops would read beyond their ends."""
        shape = n_grids, n_columns
        fit = self.steps.shape == self.offsets.shape == shape and self.multipliers.shape == (2, *shape)
        if not fit or self.multipliers.dtype != np.int32:
            raise InputError("the arrays of random grids do not fit together")

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, some: slice) -> Grids:
        return Grids(self.steps[some], self.offsets[some], self.multipliers[:, some])

    def keys(self, X: np.ndarray) -> np.ndarray:
        """The keys of the bins of rows, uint64 of shape (n_grids, r).

        Bins are computed in the dtype of X; numbers beyond ±2³⁰ pitches share a bin. A key is two multilinear
        hashes Σ a_j·bin_j mod 2³² side by side. If 2^v is the largest power of two that divides the
        differences of two bins in all columns, they have the same key with probability 4^v·2⁻⁶² over the
        draw of the multipliers, or 0 if they differ in one column only. r·n_grids·n_columns floors and two
        integer multiply-adds for each.
        """
        _compile_keys()
        keys = np.empty((len(self), len(X)), np.uint64)
        # Bins of a model are those of the dtype of its rows: a row of float32 near an edge may lie in the
        # next bin of float64. Hence grids are cast, and rows are not.
        steps, offsets = self.steps.astype(X.dtype), self.offsets.astype(X.dtype)
        first, second = self.multipliers
        _keys(X, steps, offsets, first, second, X.dtype.type(_FARTHEST), keys)
        return keys


def draw_pitches(kernel: Kernel, n_grids: int, n_columns: int, rng_of: Streams) -> np.ndarray:
    """Draw the pitches of random grids, (n_grids, n_columns); grids are prefix-stable.

    In one column k(δ)/k(0) = E max(0, 1 − |δ|/p) for a pitch p of the density p·k″(p)/k(0) (Rahimi and Recht
    2007, section 4). For exp(−|δ|/ℓ) that is Gamma(2, ℓ), and a product of Laplacians adds their 1/ℓ.
    """
    # ∏ exp(−|δ|/ℓ_i) = exp(−|δ|·Σ 1/ℓ_i).
    rates = sum(1.0 / factor.column_widths(n_columns) for factor in laplacian_factors(kernel))
    return rng_of("pitch").standard_gamma(2.0, (n_grids, n_columns)) / rates


def laplacian_factors(kernel: Kernel) -> list[Laplacian]:
    """Laplacians with the kernel as their product, up to the factor k(0), or raises InputError."""
    if isinstance(kernel, Laplacian):
        return [kernel]
    if isinstance(kernel, Product):
        return laplacian_factors(kernel.k1) + laplacian_factors(kernel.k2)
    if isinstance(kernel, Scaled):
        return laplacian_factors(kernel.k)
    raise InputError(
        f"random binning takes a Laplacian kernel, or products and multiples of Laplacians, got {kernel!r}; "
        f"use FourierFeatures or NystroemFeatures for it"
    )


@compiles_once
def _compile_keys() -> None:
    for dtype in (np.float32, np.float64):
        one, odd = np.zeros((1, 1), dtype), np.ones((1, 1), np.int32)
        _keys(one, one, one, odd, odd, dtype(1), np.zeros((1, 1), np.uint64))


@compiled()
def _keys(X, steps, offsets, first, second, farthest, keys):
    """Write the keys, tile by tile of rows; tiles are transposed, for arithmetic on whole vectors."""
    # Where a grid has no edge between the smallest and the largest number of a tile, all its rows share a
    # bin.
    n_rows, n_columns = X.shape
    columns = np.empty((n_columns, _TILE), X.dtype)
    lows, highs = np.empty(n_columns, X.dtype), np.empty(n_columns, X.dtype)
    high, low = np.empty(_TILE, np.int32), np.empty(_TILE, np.int32)
    for start in range(0, n_rows, _TILE):
        # Inner loops run over whole tiles, of a length that the compiler knows; keys of rows from n on are
        # those of stale numbers, and not written.
        n = min(_TILE, n_rows - start)
        for i in range(n):
            for j in range(n_columns):
                columns[j, i] = X[start + i, j]
        for j in range(n_columns):
            lows[j], highs[j] = columns[j, :n].min(), columns[j, :n].max()
        for g in range(len(steps)):
            high[:] = 0
            low[:] = 0
            for j in range(n_columns):
                step, offset, a, b, column = steps[g, j], offsets[g, j], first[g, j], second[g, j], columns[j]
                lowest = max(min(np.floor(lows[j] * step + offset), farthest), -farthest)
                if lowest == max(min(np.floor(highs[j] * step + offset), farthest), -farthest):
                    shared = np.int32(lowest)
                    for i in range(_TILE):
                        high[i] += a * shared
                        low[i] += b * shared
                    continue
                for i in range(_TILE):
                    place = np.floor(column[i] * step + offset)
                    # A conversion of larger numbers to an integer has no defined result.
                    place = max(min(place, farthest), -farthest)
                    bin_ = np.int32(place)
                    high[i] += a * bin_
                    low[i] += b * bin_
            for i in range(n):
                keys[g, start + i] = (np.uint64(np.uint32(high[i])) << np.uint64(32)) | np.uint64(
                    np.uint32(low[i])
                )


# Tables of occupied bins, by open addressing: the number of rows in each, and its column of Z.
#
# Counts of keys that are sorted in batches, thirty lines shorter, were rejected: on 200,000 to a million rows
# and 32 grids they took .7 times as long with 155,000 bins a grid and 1.2 times with 45,000, but 3.5 to 4.5
# times with some hundred, as wide kernels have them. Look-ups by the index of pandas took twice to six times
# as long with 100,000 to a million bins, a binary search ten times.

_MIN_SLOTS = 2**10
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ over the golden ratio, made odd


@dataclass(frozen=True, eq=False)
class BinCounts:
    """The number of rows in each occupied bin of some grids; a table of keys and counts for each grid.

    A slot with a count of 0 is empty. `used` counts the other slots, at most half of the table.
    """

    keys: list[np.ndarray]
    counts: list[np.ndarray]
    used: np.ndarray

    @classmethod
    def empty(cls, n_grids: int) -> BinCounts:
        """The counts of no rows."""
        slots = [np.zeros(_MIN_SLOTS, np.int64) for _ in range(n_grids)]
        return cls([empty.astype(np.uint64) for empty in slots], slots, np.zeros(n_grids, np.int64))

    def __reduce__(self) -> Any:
        """Pickle only the occupied slots: most are empty."""
        found = [(keys[n > 0], n[n > 0]) for keys, n in zip(self.keys, self.counts, strict=True)]
        return _tables_of, (found,)

    def with_rows(self, keys: np.ndarray) -> BinCounts:
        """Add rows, given by keys of shape (n_grids, r), and return these counts."""
        for g, mine in enumerate(keys):
            self._take(g, mine, np.broadcast_to(np.int64(1), mine.shape), mine.size)
        return self

    def merge(self, other: BinCounts) -> BinCounts:
        """The counts of both; neither is changed."""
        # Dask may give either part to a task that is run again, so neither may change.
        both = BinCounts.empty(len(self.used))
        for g, n in enumerate((self.used + other.used).tolist()):
            both._take(g, self.keys[g], self.counts[g], n)
            both._take(g, other.keys[g], other.counts[g], int(other.used[g]))
        return both

    def sorted(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Keys, ascending, and counts of each grid's occupied bins."""
        found = []
        for keys, counts in zip(self.keys, self.counts, strict=True):
            slots = np.flatnonzero(counts)
            # The order of slots depends on the order of rows; that of keys on the bins alone. So columns of Z
            # are the same for any chunks.
            slots = slots[np.argsort(keys[slots])]
            found.append((keys[slots], counts[slots]))
        return found

    def _take(self, g: int, keys: np.ndarray, counts: np.ndarray, n: int) -> None:
        """Add bins of one grid after making room for n new ones; a bin of 0 rows is skipped."""
        _compile_tables()
        n_bins = int(self.used[g]) + n
        # At most half full: linear probing then looks at 1.5 slots for a bin that is there, and at 2.5 for
        # one that is not, on average (Knuth, The Art of Computer Programming, volume 3, section 6.4).
        if 2 * n_bins > len(self.keys[g]):
            n_slots = _slots_of(2 * n_bins)
            larger = np.zeros(n_slots, np.uint64), np.zeros(n_slots, np.int64)
            _add(self.keys[g], self.counts[g], *larger)
            self.keys[g], self.counts[g] = larger
        self.used[g] += _add(keys, counts, self.keys[g], self.counts[g])


def _tables_of(found: list[tuple[np.ndarray, np.ndarray]]) -> BinCounts:
    """The counts of occupied bins, given grid by grid."""
    tables = BinCounts.empty(len(found))
    for g, (keys, counts) in enumerate(found):
        tables._take(g, keys, counts, len(keys))
    return tables


@dataclass(frozen=True, eq=False)
class BinIds:
    """The column of Z of each occupied bin, from `keys` of all grids in a row and the `ends` of the grids.

    24 to 48 bytes a bin; a look-up takes one or two fetches from memory.
    """

    keys: np.ndarray
    ends: np.ndarray

    def check(self, n_grids: int, n_bins: int) -> None:
        """Raise InputError if stored arrays are not so many bins of so many grids."""
        fit = self.keys.shape == (n_bins,) and self.ends.shape == (n_grids,)
        fit = fit and self.keys.dtype == np.uint64 and self.ends.dtype.kind in "iu"
        if not fit or (np.diff(self.ends, prepend=0) < 0).any() or self.ends[-1] != n_bins:
            raise InputError("the arrays of occupied bins do not fit together")

    @cached_property
    def _tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first slot of each grid, and the keys and ids of all slots."""
        # They are made when first needed: a process that only sends the map never needs them.
        _compile_tables()
        starts = np.concatenate([[0], self.ends[:-1]]).tolist()
        slots = [
            _slots_of(2 * (stop - start)) for start, stop in zip(starts, self.ends.tolist(), strict=True)
        ]
        firsts = np.concatenate([[0], np.cumsum(slots)]).astype(np.int64)
        keys, ids = np.zeros(firsts[-1], np.uint64), np.full(firsts[-1], -1, np.int32)
        for g, (start, stop) in enumerate(zip(starts, self.ends.tolist(), strict=True)):
            mine = slice(firsts[g], firsts[g + 1])
            _number(self.keys[start:stop], start, keys[mine], ids[mine])
        return firsts, keys, ids

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The columns of bins, −1 for one that is not occupied: int32 of the keys' (n_grids, r)."""
        ids = np.empty(keys.shape, np.int32)
        _find(keys, *self._tables, ids)
        return ids


def _slots_of(n: int) -> int:
    return max(_MIN_SLOTS, 1 << int(n - 1).bit_length())


@compiles_once
def _compile_tables() -> None:
    keys, counts, ids = np.zeros(2, np.uint64), np.zeros(2, np.int64), np.full(2, -1, np.int32)
    _add(keys[:1], np.broadcast_to(counts[:1], 1), keys, counts)
    _add(keys[:1], counts[:1], keys, counts)
    _number(keys[:1], 0, keys, ids)
    _find(keys[:1].reshape(1, 1), np.array([0, 2]), keys, ids, ids[:1].reshape(1, 1))


@compiled()
def _add(keys, counts, table, totals):
    """Add bins to the table, and return how many slots are newly taken."""
    mask, taken = table.size - 1, 0
    for i in range(keys.size):
        if counts[i] == 0:
            continue
        slot = np.int64((keys[i] * _GOLDEN) >> np.uint64(32)) & mask
        while totals[slot] != 0 and table[slot] != keys[i]:
            slot = (slot + 1) & mask
        if totals[slot] == 0:
            table[slot] = keys[i]
            taken += 1
        totals[slot] += counts[i]
    return taken


@compiled()
def _number(keys, first, table, ids):
    """Number the keys from `first` on."""
    mask = table.size - 1
    for i in range(keys.size):
        slot = np.int64((keys[i] * _GOLDEN) >> np.uint64(32)) & mask
        while ids[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = keys[i]
        ids[slot] = first + i


@compiled()
def _find(keys, firsts, tables, numbers, ids):
    """Look up all rows in one grid after another: the table of a grid may then stay in a cache."""
    for g in range(len(keys)):
        table, known = tables[firsts[g] : firsts[g + 1]], numbers[firsts[g] : firsts[g + 1]]
        mask = table.size - 1
        for i in range(keys.shape[1]):
            key = keys[g, i]
            slot = np.int64((key * _GOLDEN) >> np.uint64(32)) & mask
            while known[slot] >= 0 and table[slot] != key:
                slot = (slot + 1) & mask
            ids[g, i] = known[slot]


# The reduction of all rows to the occupied bins.

_MAX_BINS_PER_PASS = 2**21
_MAX_GRIDS_PER_PASS = 64
_MAX_BINS = 2**31 - 1  # the columns of Z are numbered by 32 bits
_SLOT_BYTES = 16


@dataclass(frozen=True, eq=False)
class BinReduction:
    """The reduction to the number of rows of positive weight in each bin of some grids."""

    grids: Grids
    label: str

    def zero(self) -> BinCounts:
        return BinCounts.empty(len(self.grids))

    def update(
        self, total: BinCounts, start: int, X: np.ndarray, sample_weight: np.ndarray | None
    ) -> BinCounts:
        # A bin of rows of weight 0 alone would be a column that is always zero.
        if sample_weight is not None:
            X = X[sample_weight > 0]
        for first in range(0, len(X), KEY_ROWS):
            total = total.with_rows(self.grids.keys(X[first : first + KEY_ROWS]))
        return total

    def merge(self, first: BinCounts, second: BinCounts) -> BinCounts:
        return first.merge(second)

    def size_bytes(self, n_rows: int) -> int:
        # A table of n bins has up to 4n slots: at most half are used, and sizes are powers of two. Room is
        # made for a strip of rows before it is known which of their bins are new.
        return _SLOT_BYTES * len(self.grids) * 4 * (n_rows + KEY_ROWS)


def min_passes(n_grids: int) -> int:
    """The minimum number of passes over the rows that `occupied_bins` takes."""
    return 1 + -(-(n_grids - 1) // _MAX_GRIDS_PER_PASS)


def occupied_bins(grids: Grids, row_source: RowSource) -> dict[str, np.ndarray]:
    """`keys` and `counts` of the occupied bins, grid by grid with ascending keys, and their `ends`.

    The first pass over the rows is for one grid; its number of bins says how many grids a later pass can
    hold. Before each pass the row source is given the number of bins so far, and may refuse it. Raises
    InputError if there are more bins than can be numbered.
    """
    found: list[tuple[np.ndarray, np.ndarray]] = []
    while len(found) < len(grids):
        first, n_bins = len(found), sum(len(keys) for keys, _ in found)
        # A grid's bins are counted by its pass alone; those of the first foretell the others', drawn alike.
        n = 1 if not found else max(1, min(_MAX_GRIDS_PER_PASS, _MAX_BINS_PER_PASS * first // max(1, n_bins)))
        last = min(len(grids), first + n)
        label = f"bins of grid {first + 1}" + (f" to {last}" if last > first + 1 else "")
        reduction = BinReduction(grids[first:last], label)
        found += row_source(reduction, min_features=n_bins + len(grids) - first).sorted()
        n_bins = sum(len(keys) for keys, _ in found)
        # By the average so far, and not at the end: each pass may take hours.
        if n_bins * len(grids) > _MAX_BINS * len(found):
            raise InputError(
                f"{len(found)} of {len(grids)} grids already have {n_bins:,} occupied bins, and at most "
                f"{_MAX_BINS:,} can be numbered in all; use n_bins=, fewer grids, or larger length scales"
            )
    keys, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return {"keys": keys, "counts": counts, "ends": np.cumsum([len(keys) for keys, _ in found])}
