"""Rows of Parquet files: row groups decoded in the task, in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
import pyarrow as pa

from distrff.data.arrow_values import is_number
from distrff.data.dataset import BLOCK_BYTES, Dataset, lazy_blocks
from distrff.data.matrices import check_shape
from distrff.data.parquet_columns import (
    Columns,
    array_from,
    check_agreement,
    columns_of,
    is_feature,
    lists_by_name,
)
from distrff.data.parquet_files import Footer, find_files, parquet_file, read_footers
from distrff.data.row_group_batches import GroupColumns, Held, held_by
from distrff.data.rows import FIELDS, Feed, RowBlock, cut_tiles
from distrff.data.selection import find_columns
from distrff.data.storage import SPAN_BYTES, file_name, public_name, reaching
from distrff.display.names import listed
from distrff.errors import InputError


class RowGroup(NamedTuple):
    """One row group and where its rows lie in the dataset."""

    path: str
    number: int  # in the file
    start: int
    n_rows: int


class Layout:
    """How a batch of the files becomes arrays; not a dataclass, so that dask does not walk it."""

    def __init__(self, fs: Any, columns: dict[str, Columns]) -> None:
        self.fs = fs
        self.columns = columns

    def restricted(self, fields: tuple[str, ...]) -> Layout:
        """Return the layout of some of the fields."""
        return Layout(self.fs, {f: c for f, c in self.columns.items() if f in fields})

    @property
    def names(self) -> list[str]:
        """The columns of the files that are read."""
        return list(dict.fromkeys(name for c in self.columns.values() for name in c.names))

    @property
    def batch_rows(self) -> int:
        """Rows to decode at once."""
        return max(1, SPAN_BYTES // sum(c.row_bytes for c in self.columns.values()))

    def span(self, batch: pa.RecordBatch) -> dict[str, np.ndarray]:
        """Return the arrays of a batch."""
        arrays = {f: array_from(batch, c) for f, c in self.columns.items()}
        if "sample_weight" in arrays:
            arrays["sample_weight"] = arrays["sample_weight"].astype(np.float64, copy=False)
        return arrays


@dataclass(frozen=True)
class ParquetRows:
    """Rows of Parquet files: paths and numbers of row groups, no data."""

    start: int
    stop: int
    groups: tuple[RowGroup, ...] = field(repr=False)  # their paths may be signed URLs
    layout: Layout = field(repr=False)

    def tiles(self, n_rows: int) -> Iterator[RowBlock]:
        """Yield the rows in blocks of `n_rows`.

        Raises
        ------
        InputError
            If a file is gone, damaged, or not as its footer said.
        OSError
            If the store fails otherwise; a retry may succeed.
        """
        return cut_tiles(self.start, self.stop, n_rows, [Feed(self._spans(), self.stop - self.start)])

    def _spans(self) -> Iterator[dict[str, np.ndarray]]:
        for path, groups in groupby(self.groups, key=attrgetter("path")):
            with parquet_file(self.layout.fs, path) as parquet:
                columns = GroupColumns(parquet, self.layout.names)
                for group in groups:
                    check_unchanged(self.layout.fs, parquet.metadata, group)
                    yield from self._group_spans(columns, group)

    def _group_spans(self, columns: GroupColumns, group: RowGroup) -> Iterator[dict[str, np.ndarray]]:
        first, last = max(self.start - group.start, 0), min(self.stop - group.start, group.n_rows)
        for batch in columns.batches(group.number, self.layout.batch_rows, first, last):
            yield self.layout.span(batch)
            del batch  # else it would live while the next one is decoded


def check_unchanged(fs: Any, metadata: Any, group: RowGroup) -> None:
    """Raise InputError if a row group is not as its footer said when it was opened."""
    if group.number >= metadata.num_row_groups or metadata.row_group(group.number).num_rows != group.n_rows:
        name = file_name(fs, group.path)
        raise InputError(f"{name} was changed after it was opened; open the dataset again")


class ParquetReader:
    """Hands out rows of Parquet files with the row groups they need."""

    def __init__(self, layout: Layout, groups: Sequence[RowGroup]) -> None:
        self._layout = layout
        self._groups = groups
        self._starts = np.array([group.start for group in groups])
        self._stop = groups[-1].start + groups[-1].n_rows

    def rows(self, start: int, stop: int, fields: tuple[str, ...] = FIELDS) -> ParquetRows:
        """Return the rows [start, stop)."""
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        last = int(np.searchsorted(self._starts, stop, side="left"))
        return ParquetRows(start, stop, tuple(self._groups[first:last]), self._layout.restricted(fields))

    def lazy(self, field: str) -> da.Array:
        """Return one field; the blocks of all fields are the same row groups, several if they are small."""
        columns = self._layout.columns[field]
        limit = max(1, BLOCK_BYTES // sum(c.row_bytes for c in self._layout.columns.values()))
        row_chunks: list[int] = []
        for group in self._groups:
            if row_chunks and row_chunks[-1] + group.n_rows <= limit:
                row_chunks[-1] += group.n_rows
            else:
                row_chunks.append(group.n_rows)
        dtype = np.dtype(np.float64) if field == "sample_weight" else columns.dtype
        return lazy_blocks(self, field, tuple(row_chunks), columns.shape, dtype)


class ParquetSource(NamedTuple):
    """Files that were found, and what their footers say."""

    fs: Any
    footers: list[Footer]
    name: str  # for messages

    def n_missing(self, names: Sequence[str]) -> dict[str, int]:
        """Return how many values some columns are known to lack, those that lack some."""
        found = {n: sum(int(f.n_missing[f.schema.get_field_index(n)]) for f in self.footers) for n in names}
        return {name: n for name, n in found.items() if n}

    def held(self, names: Sequence[str]) -> Held:
        """Return what reading some columns holds beside a batch."""
        sizes = [f.column_bytes[:, [f.schema.get_field_index(name) for name in names]] for f in self.footers]
        return held_by(np.concatenate(sizes), [n for f in self.footers for n in f.group_rows])


def parquet_source(paths: Sequence[Any], storage_options: dict[str, Any] | None) -> ParquetSource:
    """Return the files that paths stand for; reads the footers only.

    Raises
    ------
    InputError
        If there are none, or one cannot be read.
    """
    name = ", ".join(map(public_name, paths[:3])) + (", ..." if len(paths) > 3 else "")
    fs, files = find_files(paths, storage_options)
    with reaching(name):
        return ParquetSource(fs, read_footers(fs, files), name)


def open_parquet(
    parquet: ParquetSource, *, target: Any, columns: Any, sample_weight: int | str | None
) -> Dataset:
    """Return the dataset of Parquet files whose columns are taken as they are; see `open_dataset`."""
    fs, footers, source = parquet
    fields, skipped = _choose(footers, target, columns, sample_weight, source)
    groups = row_groups(footers)
    n_rows = sum(group.n_rows for group in groups)
    X, y = fields["X"], fields.get("y")
    check_shape((n_rows, len(X.labels)), source)
    layout = Layout(fs, fields)
    held = parquet.held(layout.names)
    return Dataset(
        reader=ParquetReader(layout, groups),
        n_rows=n_rows,
        n_columns=len(X.labels),
        dtype=X.dtype,
        source=source,
        row_bytes=sum(c.row_bytes for c in fields.values()),
        chunk_rows=min(layout.batch_rows, max(group.n_rows for group in groups)),
        column_names=X.labels,
        target_names=None if y is None else y.labels,
        y_dtype=None if y is None else y.dtype,
        n_targets=0 if y is None else len(y.labels),
        y_is_1d=y is None or y.is_1d,
        has_weights="sample_weight" in fields,
        skipped_columns=skipped,
        held_bytes=held.pack_bytes,
        whole_rows=held.whole_rows,
        known_missing={f: n for f, c in fields.items() if (n := parquet.n_missing(c.names))},
    )


def row_groups(footers: Sequence[Footer]) -> list[RowGroup]:
    """Return the row groups of all files that hold rows, in order."""
    found = [(f.path, i, n) for f in footers for i, n in enumerate(f.group_rows) if n]
    starts = accumulate((n for _, _, n in found), initial=0)
    return [RowGroup(path, i, start, n) for (path, i, n), start in zip(found, starts, strict=False)]


def _choose(
    footers: Sequence[Footer], target: Any, columns: Any, sample_weight: Any, source: str
) -> tuple[dict[str, Columns], tuple[str, ...]]:
    """The columns of X, y and sample_weight, and the names of those that are left out."""
    schema, nullable = footers[0].schema, frozenset().union(*(f.nullable for f in footers))
    names = schema.names
    plain = [n for n in names if n not in footers[0].row_labels]  # what indices count
    pick = _Picker(names, plain, source)
    y = [] if target is None else pick.several(target)
    w = [] if sample_weight is None else pick.several(sample_weight)
    rest = [n for n in plain if n not in y and n not in w]
    if isinstance(columns, (list, tuple)):
        columns = lists_by_name(schema, columns)
    chosen = (
        [n for n in rest if is_feature(schema.field(n).type)] if columns is None else pick.several(columns)
    )
    _check_choice(schema, chosen, y, w, source, listed(rest) or "none")
    check_agreement(footers, [*chosen, *y, *w], columns is None)
    fields = {"X": columns_of(schema, chosen, nullable)}
    if y:
        fields["y"] = columns_of(schema, y, nullable, is_1d=not isinstance(target, (list, tuple)))
    if w:
        fields["sample_weight"] = columns_of(schema, w, nullable, is_1d=True)
    skipped = [n for n in names if n not in y and n not in w and n not in chosen] if columns is None else []
    return fields, tuple(skipped)


class _Picker:
    """Finds columns by name among all of them, by index among those that are no row labels."""

    def __init__(self, names: Sequence[str], plain: Sequence[str], source: str) -> None:
        self._names, self._plain, self._source = names, plain, source

    def several(self, keys: Any) -> list[str]:
        if isinstance(keys, str) and keys in self._names:
            return [keys]
        return [self._plain[i] for i in find_columns(keys, self._plain, self._source)]


def _check_choice(
    schema: pa.Schema, chosen: Sequence[str], y: Sequence[str], w: Sequence[str], source: str, rest: str
) -> None:
    if not chosen:
        raise InputError(f"{source} has no numeric columns for X; besides target and weights it has: {rest}")
    for name in chosen:
        if name in y or name in w:
            raise InputError(
                f"column {name!r} is asked for as a column of X and as {'y' if name in y else 'weights'}"
            )
    for name in [*chosen, *w]:
        if not is_feature(schema.field(name).type) or (name in w and not is_number(schema.field(name).type)):
            raise InputError(
                f"column {name!r} of {source} has type {schema.field(name).type}, which is not a number; "
                "convert it to numbers or leave it out"
            )
    if len(w) > 1:
        raise InputError(f"sample_weight must name one column, got {listed(w)}")
