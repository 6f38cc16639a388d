"""The one dataset that everything above sees: numbered rows, read in runs or as lazy dask arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import dask
import dask.array as da
import numpy as np

from distrff.columns.table_steps import TableSteps
from distrff.data.dataset_card import dataset_card
from distrff.data.rows import FIELDS, Rows
from distrff.errors import InputError

BLOCK_BYTES = 64 * 2**20  # about, in a block of a lazy array where the storage leaves a choice


class Reader(Protocol):
    """What a kind of source implements."""

    def rows(self, start: int, stop: int, fields: tuple[str, ...] = FIELDS) -> Rows:
        """Return the rows [start, stop) with those of `fields` that the source has."""
        ...

    def lazy(self, field: str) -> da.Array:
        """Return one field as a lazy dask array with known chunks."""
        ...


@dataclass(frozen=True, repr=False)
class Dataset:
    """Rows X, with targets y and weights where there are any, wherever they are stored.

    Made by `open_dataset` and `as_dataset`. Nothing is read until a task asks for its rows;
    values (finite or not, negative weights) are therefore not checked here.

    Attributes
    ----------
    n_rows, n_columns : int
    dtype : dtype
        Of X: the common type of its columns.
    source : str
        Where the rows come from, for reports; without credentials.
    row_bytes : int
        Decoded bytes that reading one row takes.
    chunk_rows : int
        Rows that are typically decoded at once.
    column_names, target_names : tuple of str, or None
    y_dtype : dtype, or None without y
    n_targets : int
        0 without y, 1 for a 1-D y.
    y_is_1d : bool
    has_weights : bool
    skipped_columns : tuple of str
        Columns of the source that were left out because they are not numbers.
    steps : TableSteps or None
        What made X, y and weights of the raw columns of a table; None where they are stored as they are.
    table_report : dict or None
        What was done to the table: rows read and dropped, columns made, columns dropped and why.
    id_dtypes : mapping of str to dtype
        Of the columns that tell who the rows are, by name; see `ids` of `open_dataset`.
    column_share : float
        Of the columns, that a row has entries in: below 1 where rows are read as scipy CSR matrices.
    held_bytes : int
        What a task that reads holds beside decoded rows: stored bytes, pages, and chunks of which it needs a
        part.
    known_missing : mapping of str to mapping of str to int
        By field, columns that lack values, and how many: what is known before a row is read, perhaps not all.
    whole_rows : int
        Rows of the largest row group of which all that a task needs are decoded before the first is handed
        out; 0 where there is none.
    """

    reader: Reader
    n_rows: int
    n_columns: int
    dtype: np.dtype
    source: str
    row_bytes: int
    chunk_rows: int
    column_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    y_dtype: np.dtype | None = None
    n_targets: int = 0
    y_is_1d: bool = True
    has_weights: bool = False
    skipped_columns: tuple[str, ...] = ()
    steps: TableSteps | None = None
    table_report: dict[str, Any] | None = None
    id_dtypes: Mapping[str, np.dtype] = dataclasses.field(default_factory=dict)
    column_share: float = 1.0
    held_bytes: int = 0
    whole_rows: int = 0
    known_missing: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)

    @property
    def is_sparse(self) -> bool:
        """Whether rows are read as scipy CSR matrices."""
        return self.column_share < 1.0

    def rows(self, start: int, stop: int) -> Rows:
        """Return the rows `start` to `stop`, to be read in a task.

        Raises
        ------
        InputError
            If not 0 <= start < stop <= n_rows.
        """
        if not 0 <= start < stop <= self.n_rows:
            raise InputError(
                f"rows {start} to {stop} are outside of {self.source}, which has {self.n_rows} rows"
            )
        return self.reader.rows(start, stop)

    @property
    def X(self) -> da.Array:
        """Lazy dask array of shape (n_rows, n_columns)."""
        return self.reader.lazy("X")

    @property
    def y(self) -> da.Array | None:
        """Lazy dask array of shape (n_rows,) or (n_rows, n_targets), or None."""
        return self.reader.lazy("y") if self.n_targets else None

    @property
    def sample_weight(self) -> da.Array | None:
        """Lazy float64 dask array of shape (n_rows,), or None."""
        return self.reader.lazy("sample_weight") if self.has_weights else None

    def _repr_html_(self) -> str:
        return dataset_card(self)

    def __repr__(self) -> str:
        shape = f"{self.n_rows} rows x {self.n_columns} columns of {self.dtype}"
        y = f", {self.n_targets} target(s) of {self.y_dtype}" if self.n_targets else ", no target"
        return f"<Dataset {self.source}: {shape}{y}{', weighted' if self.has_weights else ''}>"


def check_lengths(lengths: dict[str, int]) -> None:
    """Refuse y or sample_weight of another length than X; `lengths` is keyed by field."""
    for field, length in lengths.items():
        if length != lengths["X"]:
            raise InputError(
                f"X has {lengths['X']} rows but {field} has {length}; they must be of the same length"
            )


def sparse_share(row_entries: float, n_columns: int) -> float:
    """Return the `column_share` of sparse rows of so many entries: below 1 even if no column is left out."""
    return min(row_entries / n_columns, 1.0 - 2.0**-20)


def lazy_blocks(
    reader: Reader, field: str, row_chunks: tuple[int, ...], columns: tuple[int, ...], dtype: np.dtype
) -> da.Array:
    """Return `field` as a dask array whose blocks are read by `Rows` of `row_chunks` rows each.

    `columns` is the shape after the rows: (d,) or (). The graph holds one handle a block.
    """
    handles = np.empty(len(row_chunks), dtype=object)
    start = 0
    for i, n in enumerate(row_chunks):
        handles[i] = reader.rows(start, start + n, (field,))
        start += n
    return da.from_array(handles, chunks=1, name=False).map_blocks(
        _read_block,
        field=field,
        dtype=dtype,
        chunks=(row_chunks, *((c,) for c in columns)),
        new_axis=list(range(1, 1 + len(columns))) or None,
        meta=np.empty((0,) * (1 + len(columns)), dtype),
    )


def _read_block(handle: np.ndarray, field: str) -> Any:
    return _read_field(handle[0], field)


def _read_field(rows: Rows, field: str) -> Any:
    return getattr(next(iter(rows.tiles(rows.stop - rows.start))), field)


def delayed_blocks(
    reader: Reader, field: str, row_chunks: tuple[int, ...], columns: tuple[int, ...], dtype: np.dtype
) -> da.Array:
    """Return the same of a reader whose `Rows` hold Delayed objects, found only in tasks' arguments."""
    read, start, blocks = dask.delayed(_read_field), 0, []
    meta = np.empty((0,) * (1 + len(columns)), dtype)
    for n in row_chunks:
        block = read(reader.rows(start, start + n, (field,)), field)
        blocks.append(da.from_delayed(block, (n, *columns), meta=meta))
        start += n
    return da.concatenate(blocks)
