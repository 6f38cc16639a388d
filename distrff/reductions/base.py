"""The base of reductions over the features of rows, and the fold that each row belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

from distrff.engine.reduction import Arrays, Reduction, SharedArrays
from distrff.errors import InputError, ModelFileError
from distrff.features.base import FEW_COLUMNS, BlockMap, MapSpecification
from distrff.preprocessing.coding import Scaling, Targets
from distrff.preprocessing.table import TableSteps
from distrff.reductions.kept import KeptRows
from distrff.utils.random import row_hash
from distrff.utils.text import listed
from distrff.utils.validation import check_count

FOLD_RULES = ("hash", "contiguous")
LIKE_THE_FIRST = "make the second one like the first (`like` of gram, --like of distrff gram)"
"""The remedy for sums that cannot be added."""
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
    first_row: int = 0  # the number of the dataset's first row, where others came before it

    def of_rows(self, start: int, stop: int) -> np.ndarray:
        """Return the fold of each row from `start` to before `stop`, int64."""
        return self.of_numbers(np.arange(start, stop))

    def of_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the fold of each of the rows of these numbers, int64."""
        rows = rows.astype(np.uint64) + np.uint64(self.first_row)
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

    def tile_of(self, block_map: BlockMap, rows: Any, start: int, X: Any, *, of_basis: bool) -> Any:
        """Return the features of the tile X of some rows, which begins at row `start`, not to be written to.

        They are those that stayed from an earlier pass, or made here; with `of_basis` the values of the map's
        basis.
        """
        of_basis = of_basis or not block_map.has_basis
        if isinstance(rows, KeptRows):
            found = rows.features_at(start, X.shape[0], of_basis=of_basis)
            if found is not None:
                return found
        return (block_map.basis_tile if of_basis else block_map.tile)(self.scaled(X))


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


def table_metadata(names: tuple[str, ...] | None, steps: TableSteps | None) -> dict[str, Any]:
    """Return what `table_parts` reads, as strict JSON."""
    return {
        "column_names": None if names is None else list(names),
        "steps": None if steps is None else steps.to_dict(),
    }


def table_parts(metadata: Mapping[str, Any], n_columns: int) -> dict[str, Any]:
    """Return the column names and table steps of stored sums; those of earlier versions have neither.

    Raises ModelFileError unless they fit the number of columns.
    """
    names, steps = metadata.get("column_names"), metadata.get("steps")
    if not names_fit(names, n_columns):
        raise ModelFileError("its column names do not fit its columns")
    found = None if steps is None else TableSteps.from_dict(steps)
    if not steps_fit(found, n_columns):
        raise ModelFileError("its steps do not make its columns")
    return {"column_names": None if names is None else tuple(names), "steps": found}


def names_fit(names: Any, n_columns: int) -> bool:
    """Return whether column names of a file, if it has any, are one text for each column."""
    return names is None or (len(names) == n_columns and all(isinstance(name, str) for name in names))


def steps_fit(steps: TableSteps | None, n_columns: int) -> bool:
    """Return whether table steps of a file, if it has any, make so many columns."""
    return steps is None or (
        steps.sizes_within(max(FEW_COLUMNS, n_columns)) and len(steps.names_out) == n_columns
    )


class OfTable(Protocol):
    """Sums that know the columns of their rows."""

    @property
    def column_names(self) -> tuple[str, ...] | None: ...

    @property
    def steps(self) -> TableSteps | None: ...


def check_same_table(first: OfTable, second: OfTable) -> None:
    """Raise InputError where both know their columns, or the steps that made them, and these differ."""
    names, others = first.column_names, second.column_names
    if names is not None and others is not None and names != others:
        raise InputError(
            f"The feature names should match those of the first rows: got the columns {listed(others)}, "
            f"expected {listed(names)} in this order"
        )
    if first.steps is None or second.steps is None:
        return
    if first.steps.for_prediction() != second.steps.for_prediction():
        raise InputError(
            "the columns were made of the table by other steps (categories, fills) than those of the first "
            "rows; open the table with the steps of the first dataset"
        )
