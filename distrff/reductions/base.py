"""The base of reductions over the features of rows, and the fold that each row belongs to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from distrff.engine.reduction import Arrays, Reduction, SharedArrays
from distrff.errors import ModelFileError
from distrff.features.specification import BlockMap, MapSpecification
from distrff.preprocessing.scaling import Scaling
from distrff.preprocessing.targets import Targets
from distrff.utils.random import row_hash
from distrff.utils.validation import check_count

FOLD_RULES = ("hash", "contiguous")
HELD_OUT_STRIDE = 5  # a single held-out fold has one row in five


@dataclass(frozen=True)
class Folds:
    """Assignment of rows to `n_folds` folds: a function of a row's number and a seed, never of chunks.

    "hash" spreads rasters and periodic orders evenly over the folds. "contiguous" is for rows that resemble
    their neighbours, as in a raster or a time series. "one held out" has two folds: the first of five by the
    hash, and all other rows.
    """

    n_folds: int
    seed: int
    by: str
    n_rows: int  # of the whole dataset; only for contiguous folds

    def of_rows(self, start: int, stop: int) -> np.ndarray:
        """Return the fold of each row from `start` to before `stop`, int64."""
        return self.of_numbers(np.arange(start, stop))

    def of_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the fold of each of the rows of these numbers, int64."""
        rows = rows.astype(np.uint64)
        if self.by == "contiguous":
            return (rows * np.uint64(self.n_folds) // np.uint64(self.n_rows)).astype(np.int64)
        if self.by == "one held out":
            return (row_hash(rows, self.seed) % np.uint64(HELD_OUT_STRIDE) > 0).astype(np.int64)
        return (row_hash(rows, self.seed) % np.uint64(self.n_folds)).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class RowReduction(Reduction):
    """A reduction over the features of rows and their coded targets, a tile of rows at a time."""

    specification: MapSpecification  # its arrays are sent once for all passes of a run, not with each task
    scaling: Scaling
    targets: Targets
    dtype: str  # of the features; sums of their products are float64
    tile_rows: int  # rows with features in memory at once

    def shared(self) -> SharedArrays:
        return self.specification

    def light(self) -> Self:
        return replace(self, specification=self.specification.without_arrays())

    def block_map(self, arrays: Arrays) -> BlockMap:
        """Return the map, made from the arrays sent for it or derived here."""
        return self.specification.build_sent(arrays)

    def scaled(self, X: Any) -> Any:
        """Return scaled rows in the dtype of the map."""
        return self.scaling.apply(X, np.dtype(self.dtype))


# Sums from files.


def check_parts(
    specification: MapSpecification, scaling: Scaling, targets: Targets, *, n_stored: int, y_is_1d: Any
) -> None:
    """Raise ModelFileError unless what sums of any kind hold beside them fits together.

    The number of features is one that the sums have.
    """
    if not specification.has_columns_within(n_stored):
        raise ModelFileError(
            "its number of columns is not a positive integer, or too large for what is stored"
        )
    check_count("the number of features", specification.n_features)
    if not scaling.fits(specification.n_columns):
        raise ModelFileError("its scaling does not fit its columns")
    if not targets.fits(targets.n_outputs):
        raise ModelFileError("its targets do not fit together")
    if not isinstance(y_is_1d, bool):
        raise ModelFileError("it does not tell whether targets have one dimension")
    # These use the kernel and all sizes, as a fit would.
    _ = hash(specification), specification.cost, specification.at_zero
