"""Results as Zarr: one array, or a group of arrays of the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from distrff.errors import InputError
from distrff.model_store.places import ROOT
from distrff.sweeps.location import Location
from distrff.sweeps.result_columns import ResultColumn


@dataclass(frozen=True)
class ZarrResults:
    """A Zarr array at `place` for a single column, a group with an array a column for several.

    `compressed` is False for features: cosines do not compress.
    """

    place: Location
    columns: tuple[ResultColumn, ...]
    compressed: bool = True

    def begin(self, n_rows: int, chunk_rows: int, header: dict[str, Any]) -> None:
        """Create the arrays, empty."""
        if len(self.columns) > 1:
            zarr.create_group(self.place.store(), attributes={ROOT: header})
        for column in self.columns:
            zarr.create_array(
                self._place_of(column).store(),
                shape=(n_rows, *column.shape),
                chunks=(chunk_rows, *column.shape),
                dtype=str if column.is_text else column.dtype,
                compressors="auto" if self.compressed else None,
                attributes={ROOT: header} if len(self.columns) == 1 else self._labels(column),
            )

    def write(self, start: int, blocks: Iterator[dict[str, np.ndarray]]) -> None:
        """Write consecutive blocks of rows, which begin at row `start`; they hold whole chunks."""
        for values in blocks:
            stop = start + len(next(iter(values.values())))
            for column in self.columns:
                # Opened each time: once it is taken away, it must not come back chunk by chunk.
                array = open_array(self._place_of(column), mode="r+")
                array[start:stop] = column.plain(values[column.name]).astype(array.dtype, copy=False)
            start = stop

    def finish(self, header: dict[str, Any]) -> Any:
        """Seal it with the last header, and return the array or group."""
        root = zarr.open(self.place.store(), mode="r+")
        root.update_attributes({ROOT: header})
        return root

    def _place_of(self, column: ResultColumn) -> Location:
        return self.place.within(column.name) if len(self.columns) > 1 else self.place

    @staticmethod
    def _labels(column: ResultColumn) -> dict[str, Any]:
        return {"columns": list(column.labels)} if column.labels else {}


def open_array(place: Location, *, mode: Any) -> zarr.Array:
    """Return the Zarr array at a place.

    Raises
    ------
    InputError
        If this process finds none there.
    """
    try:
        return zarr.open_array(place.store(), mode=mode)
    except FileNotFoundError:
        pass  # raised below: Zarr's own error, as a cause, could not travel from a worker
    raise InputError(
        f"there is no array at {place} as this process sees it; if workers "
        f"run on several machines, write to a folder that all of them share, or to an object store"
    )
