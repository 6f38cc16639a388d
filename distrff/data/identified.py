"""Rows that bring columns along which no machine reads: who they are, for what is written about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np

from distrff.data.dataset import Dataset, Reader
from distrff.data.rows import FIELDS, RowBlock, Rows
from distrff.errors import InputError


@dataclass(frozen=True)
class IdentifiedRows:
    """The rows of a dataset, and beside them the same rows of each id column.

    ids : list of Rows
        Each has its column as y.
    """

    rows: Rows
    ids: list[Rows]
    names: tuple[str, ...]

    @property
    def start(self) -> int:
        return self.rows.start

    @property
    def stop(self) -> int:
        return self.rows.stop

    def tiles(self, n_rows: int) -> Iterator[RowBlock]:
        """Yield the rows in blocks of `n_rows`, without their ids."""
        return self.rows.tiles(n_rows)

    def id_tiles(self, n_rows: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield the id columns of the same blocks, by name."""
        for blocks in zip(*(column.tiles(n_rows) for column in self.ids), strict=True):
            yield {name: block.y for name, block in zip(self.names, blocks, strict=True)}


class IdentifiedReader:
    """Reads a dataset's rows together with its id columns."""

    def __init__(self, reader: Reader, ids: Mapping[str, Reader]) -> None:
        self._reader = reader
        self._ids = dict(ids)

    def rows(self, start: int, stop: int, fields: tuple[str, ...] = FIELDS) -> IdentifiedRows:
        """Return the rows [start, stop)."""
        ids = [reader.rows(start, stop, ("y",)) for reader in self._ids.values()]
        return IdentifiedRows(self._reader.rows(start, stop, fields), ids, tuple(self._ids))

    def lazy(self, field: str) -> da.Array:
        """Return one field of the rows themselves as a lazy dask array."""
        return self._reader.lazy(field)


def with_ids(dataset: Dataset, columns: Mapping[str, Dataset]) -> Dataset:
    """Return the dataset with id columns, each given as a dataset that has it as y.

    Raises
    ------
    InputError
        If a column has another number of rows, or is not one column.
    """
    for name, column in columns.items():
        if column.n_rows != dataset.n_rows:
            raise InputError(
                f"the id column {name!r} has {column.n_rows} rows, but {dataset.source} has "
                f"{dataset.n_rows}; give one id a row"
            )
        if not column.y_is_1d:
            raise InputError(f"the id {name!r} has {column.n_targets} columns; name each of them as an id")
    readers = {name: column.reader for name, column in columns.items()}
    dtypes: dict[str, Any] = {name: column.y_dtype for name, column in columns.items()}
    return replace(dataset, reader=IdentifiedReader(dataset.reader, readers), id_dtypes=dtypes)
