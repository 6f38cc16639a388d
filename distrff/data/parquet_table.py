"""Parquet files as a table whose rows go through steps: a part is a row group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from distrff.data.arrow_values import raw_kind
from distrff.data.parquet_columns import is_feature
from distrff.data.parquet_files import Footer, parquet_file
from distrff.data.parquet_rows import ParquetSource, RowGroup, check_unchanged, row_groups
from distrff.data.raw_table import RawTable
from distrff.data.row_group_batches import GroupColumns

_VALUE_BYTES = {"number": 8, "time": 8, "text": 32}  # about


@dataclass(frozen=True)
class ParquetPart:
    """A row group: a path and a number, no data."""

    fs: Any = field(repr=False)
    group: RowGroup = field(repr=False)  # its path may be a signed URL

    @property
    def start(self) -> int:
        return self.group.start

    @property
    def stop(self) -> int:
        return self.group.start + self.group.n_rows

    def batches(
        self, names: tuple[str, ...], n_rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns of the row group, `n_rows` rows at a time.

        Raises
        ------
        InputError
            If the file is gone, damaged, or not as its footer said.
        """
        with parquet_file(self.fs, self.group.path) as parquet:
            check_unchanged(self.fs, parquet.metadata, self.group)
            columns = GroupColumns(parquet, names)
            if last is None:
                yield from columns.stream(self.group.number, n_rows)
            else:
                yield from columns.batches(self.group.number, n_rows, first, last)


def parquet_table(parquet: ParquetSource) -> RawTable:
    """Return Parquet files as a table; nothing is read."""
    schema = parquet.footers[0].schema
    return RawTable(
        parts=tuple(ParquetPart(parquet.fs, group) for group in row_groups(parquet.footers)),
        kinds={field.name: raw_kind(field.type) for field in schema},
        source=parquet.name,
        row_bytes=sum(_row_bytes(field.type) for field in schema),
        row_labels=parquet.footers[0].row_labels,
        column_bytes={name: _column_bytes(parquet.footers, name) for name in schema.names},
    )


def _column_bytes(footers: Sequence[Footer], name: str) -> np.ndarray:
    """What decoding a column of each row group that holds rows may hold; nothing where a file has none."""
    sizes = []
    for footer in footers:
        position = footer.schema.get_field_index(name)
        holds = np.array(footer.group_rows, np.int64) > 0
        sizes.append(footer.column_bytes[holds, position] if position >= 0 else np.zeros(holds.sum(), int))
    return np.concatenate(sizes)


def holds_only_numbers(parquet: ParquetSource, names: Sequence[str]) -> bool:
    """Tell whether columns can be taken as they are: numbers, of which there are some."""
    schema = parquet.footers[0].schema
    empty = frozenset.intersection(*(footer.empty for footer in parquet.footers))
    return all(is_feature(schema.field(name).type) and name not in empty for name in names)


def numbers_of(parquet: ParquetSource) -> list[str]:
    """Return the columns that are taken when nothing is said about columns: those of numbers."""
    return [field.name for field in parquet.footers[0].schema if is_feature(field.type)]


def _row_bytes(column_type: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(column_type):
        return 8 * column_type.list_size
    return _VALUE_BYTES.get(raw_kind(column_type) or "", 1)
