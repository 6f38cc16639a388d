"""Parquet files as Arrow batches, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from distrff.columns.raw_column import RawColumn
from distrff.columns.table_steps import TableSteps
from distrff.data.arrow_values import raw_columns
from distrff.data.parquet_columns import check_agreement
from distrff.data.parquet_rows import parquet_source
from distrff.data.parquet_table import parquet_table

_BATCH_ROWS = 2**16


class ParquetPiece(NamedTuple):
    """A batch of rows; `start` is the number of its first row, `position` of the one after its last."""

    start: int
    batch: pa.RecordBatch

    @property
    def position(self) -> int:
        return self.start + self.batch.num_rows


class ParquetBatches:
    """Parquet files of one schema: files, folders and globs, in sorted order.

    Parameters
    ----------
    paths : sequence of str or path
    storage_options : dict, optional

    Raises
    ------
    InputError
        If there are none, or one cannot be read.
    """

    unit = "rows"

    def __init__(self, paths: Sequence[Any], storage_options: dict[str, Any] | None) -> None:
        self._files = parquet_source(paths, storage_options)
        self._table = parquet_table(self._files)
        self.name, self.total = self._table.source, self._table.n_rows

    @property
    def kinds(self) -> dict[str, str | None]:
        """Kinds of the columns; those that label rows are none."""
        return {n: kind for n, kind in self._table.kinds.items() if n not in self._table.row_labels}

    def pieces(self, names: Sequence[str]) -> Iterator[ParquetPiece]:
        """Yield batches of some columns of all files, in order."""
        check_agreement(self._files.footers, names, all_features=False)
        start = 0
        for part in self._table.parts:
            for batch in part.batches(tuple(names), _BATCH_ROWS):
                yield ParquetPiece(start, batch)
                start += batch.num_rows

    def raw(self, piece: ParquetPiece, names: Sequence[str]) -> dict[str, RawColumn]:
        """Return some columns of a batch."""
        return raw_columns(piece.batch, names)

    def place(self, piece: ParquetPiece, row: int) -> str:
        """Say which of all rows a row of a batch is."""
        return f"{self.name}, row {piece.start + row}"

    def follow(self, steps: TableSteps) -> None:
        """Do nothing: the files say what their columns hold."""
