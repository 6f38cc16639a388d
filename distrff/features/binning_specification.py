"""Random binning as a fitted map: grids, and the columns of Z that their bins have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from scipy.sparse import csr_matrix

from distrff.errors import InputError
from distrff.features.bin_keys import Grids
from distrff.features.bin_tables import BinIds
from distrff.features.kernel_map import KernelMapSpecification, canonical_json
from distrff.features.specification import BlockMap, CarryingSpecification
from distrff.objective.one_hot_tile import OneHotTile
from distrff.scratch import scratch

KEY_ROWS = 2**13  # whose keys are found together, and take some megabytes


@dataclass(frozen=True)
class _Binning(KernelMapSpecification):
    """What both kinds of bins share."""

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

    @property
    def _value(self) -> float:
        return float(np.sqrt(self.at_zero / self.n_grids))

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "n_columns": self.n_columns,
            "digest": self.digest,
            "kernel": json.loads(self.kernel_json),
            "n_grids": self.n_grids,
            "n_bins": self.n_bins,
            "seed": self.seed,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the specification that `to_dict` wrote."""
        fields = {name: data[name] for name in ("n_columns", "digest", "n_grids", "n_bins", "seed")}
        return cls(kernel_json=canonical_json(data["kernel"]), **fields)


@dataclass(frozen=True)
class HashedBinningSpecification(_Binning):
    """Bins hashed to a fixed number of columns, which follow from the seed."""

    kind: ClassVar[str] = "hashed binning"

    @property
    def collision(self) -> float:
        """Probability that two bins of a grid have one column, on average over the grids."""
        return float(np.mean(1.0 / np.diff(_edges(self.n_grids, self.n_bins))))

    def derive_arrays(self) -> dict[str, np.ndarray]:
        return Grids.draw(self.kernel, self.n_grids, self.n_columns, self.seed).arrays()

    def block_map(self, arrays: Mapping[str, np.ndarray]) -> HashedBinning:
        return HashedBinning(Grids.from_arrays(arrays), self.n_bins, self._value)


@dataclass(frozen=True)
class BinningSpecification(_Binning, CarryingSpecification):
    """The bins that rows were in, a column each; the grids are carried as well, so that no bin moves."""

    kind: ClassVar[str] = "binning"

    def block_map(self, arrays: Mapping[str, np.ndarray]) -> ExactBinning:
        return ExactBinning(Grids.from_arrays(arrays), arrays["keys"], arrays["ends"], self._value)


class BinningBlockMap(BlockMap):
    """z(x) has one entry a grid, in the column of the bin that x is in."""

    def __init__(self, grids: Grids, n_features: int, value: float) -> None:
        self.n_features = n_features
        self._grids = grids
        self._value = value

    def apply(self, X: np.ndarray, out: np.ndarray | None = None) -> Any:
        """Return z(X) as a scipy CSR matrix; there is no `out` for it."""
        if out is not None:
            raise InputError("features of random binning are sparse and cannot be written to an array")
        columns = self._bins(X).T.copy()
        known = columns >= 0
        if known.all():
            indptr = np.arange(len(X) + 1, dtype=np.int32) * len(self._grids)
            indices = columns.ravel()
        else:
            indptr = np.concatenate([[0], np.cumsum(known.sum(axis=1))]).astype(np.int32)
            indices = columns[known]
        data = np.full(len(indices), self._value, X.dtype)
        return csr_matrix((data, indices, indptr), shape=(len(X), self.n_features), copy=False)

    def tile(self, X: np.ndarray) -> OneHotTile:
        """Return z(X) as its columns alone; the entries are not rounded to the dtype of X."""
        return OneHotTile(self._bins(X), self._value, self.n_features)

    def _bins(self, X: np.ndarray) -> np.ndarray:
        """Return the columns of Z that rows are in, ascending, −1 for none: (r, n_columns) → (n_grids, r)."""
        columns = scratch("bins", len(self._grids), len(X), np.dtype(np.int32))
        for first in range(0, len(X), KEY_ROWS):
            strip = slice(first, first + KEY_ROWS)
            columns[:, strip] = self._columns(self._grids.keys(X[strip]))
        return columns

    def _columns(self, keys: np.ndarray) -> np.ndarray:
        """Return the columns of Z of bins' keys, −1 for none, of the same shape (n_grids, r)."""
        raise NotImplementedError


class HashedBinning(BinningBlockMap):
    """Each grid has a run of columns, and a bin the one of them that its key is hashed to."""

    def _columns(self, keys: np.ndarray) -> np.ndarray:
        edges = _edges(len(keys), self.n_features)
        widths = np.diff(edges).astype(np.uint64)[:, None]
        # The high half of mixed bits is spread over the run by a product, which needs no division.
        high = _mixed(keys) >> np.uint64(32)
        return ((high * widths) >> np.uint64(32)).astype(np.int32) + edges[:-1, None].astype(np.int32)


def _edges(n_grids: int, n_bins: int) -> np.ndarray:
    """Return where the run of columns of each grid begins, and the last one ends."""
    return np.arange(n_grids + 1) * n_bins // n_grids


def _mixed(keys: np.ndarray) -> np.ndarray:
    """Return 64 well-mixed bits for each key (SplitMix64's finaliser; Steele et al. 2014).

    The keys are linear in the bins' numbers: those of neighbours collide in step without it.
    """
    x = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class ExactBinning(BinningBlockMap):
    """Each occupied bin has its own column; a row in a bin that was empty has no entry there."""

    def __init__(self, grids: Grids, keys: np.ndarray, ends: np.ndarray, value: float) -> None:
        super().__init__(grids, len(keys), value)
        self._keys, self._ends = keys, ends

    def _columns(self, keys: np.ndarray) -> np.ndarray:
        return self._ids.find(keys)

    @cached_property
    def _ids(self) -> BinIds:
        """The table, made when rows first come: the process that only passes the map on needs none."""
        return BinIds(self._keys, self._ends)
