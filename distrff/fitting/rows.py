"""The base of reductions over the features of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

from distrff.engine.reduction import Arrays, Reduction, SharedArrays
from distrff.errors import InputError, ModelFileError
from distrff.features.specification import BlockMap, MapSpecification
from distrff.fitting.kept import KeptRows
from distrff.preprocessing.coding import Scaling, Targets
from distrff.preprocessing.table import TableSteps, names_fit, steps_fit
from distrff.utils.text import listed
from distrff.utils.validation import check_count

LIKE_THE_FIRST = "make the second one like the first (`like` of gram, --like of distrff gram)"
"""The remedy for sums that cannot be added."""


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
