"""Rows of Parquet files: row groups decoded in the task, in batches."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from distrff.errors import InputError
from distrff.io.arrays import (
    OBJECT,
    common_type,
    in_type,
    is_feature,
    is_number,
    is_number_list,
    list_width,
    numpy_type,
    raw_kind,
)
from distrff.io.dataset import Dataset, check_shape
from distrff.io.storage import (
    GLOB_CHARACTERS,
    PARQUET_SUFFIXES,
    SEEN_BY_ALL,
    Location,
    Options,
    file_name,
    in_natural_order,
    one_line,
    patiently,
    retryable,
    storage_errors,
)
from distrff.io.tables import (
    Columns,
    PlainEncoding,
    Table,
    TablePart,
    TableReader,
    choose_columns,
    single_values,
    table_dataset,
    with_beside,
)
from distrff.preprocessing.profile import LEFT_OUT_EMPTY, TableOptions
from distrff.preprocessing.words import Vocabulary, word_of
from distrff.utils.text import first_repeated, public_name


class RowGroup(NamedTuple):
    """One row group and where its rows lie in the table."""

    path: str
    number: int  # in the file
    start: int
    n_rows: int


@dataclass(frozen=True)
class ParquetPart(TablePart):
    """Consecutive row groups of a file: a path and their numbers, no data.

    `keys` are the columns that the path holds, `types` those that the file holds in another type than the
    table.
    """

    fs: Any = field(repr=False)
    groups: tuple[RowGroup, ...] = field(repr=False)  # their path may be a signed URL
    keys: Mapping[str, pa.Scalar] = field(repr=False, default_factory=dict)
    types: Mapping[str, pa.DataType] = field(repr=False, default_factory=dict)

    def batches(
        self, names: tuple[str, ...], n_rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        stored = [name for name in names if name not in self.keys]
        with parquet_file(self.fs, self.groups[0].path) as parquet:
            metadata = parquet.metadata
            for group in self.groups:
                # A file that was rewritten would give other rows without a word.
                is_there = group.number < metadata.num_row_groups
                if not is_there or metadata.row_group(group.number).num_rows != group.n_rows:
                    name = file_name(self.fs, group.path)
                    raise InputError(f"{name} was changed after it was opened; open the dataset again")
                # Rows are counted from the part's own start, groups from that of the table.
                begin = max(self.start + first - group.start, 0)
                end = None if last is None else min(self.start + last - group.start, group.n_rows)
                if end is None or begin < end:
                    row = group.start + begin
                    for batch in _group_batches(parquet, stored, group.number, n_rows, begin, end):
                        n = batch.num_rows
                        yield self._completed(batch, names, row)
                        row += n
                        del batch

    def _completed(self, batch: pa.RecordBatch, names: Sequence[str], row: int) -> pa.RecordBatch:
        """The columns `names` of some rows of the file, from row `row` of the table on."""
        columns = []
        for name in names:
            if name in self.keys:
                columns.append(pa.repeat(self.keys[name], batch.num_rows))
                continue
            column = batch.column(name)
            if name in self.types:
                source = f"{file_name(self.fs, self.groups[0].path)}: column {name!r}"
                column = in_type(column, self.types[name], source, row)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, names=list(names))


@dataclass(frozen=True, eq=False)
class ParquetTable(Table):
    """Parquet files as a table: a part is a row group."""

    is_stored = True
    fs: Any = None
    schema: Any = None
    footers: tuple[Footer, ...] = ()
    nullable: frozenset[str] = frozenset()  # columns that hold nulls, or may do

    def check(self, names: Sequence[str], *, all_features: bool = False) -> None:
        """Refuse files that lack some columns, or whose types of them have none in common.

        With `all_features`, further numeric columns are refused as well.
        """
        for name in names:
            found: dict[pa.DataType, Footer] = {}
            for footer in self.footers:
                for one in footer.types_of(name):
                    found.setdefault(one, footer)
                if name not in footer.types:
                    raise InputError(
                        f"{footer.name}: column {name!r} is missing, but {self.footers[0].name} has it; "
                        f"write the files with one schema"
                    )
            # Of types and not of files, as a thousand files have few.
            for one, other in combinations(found, 2):
                if common_type({one, other}) is None:
                    raise InputError(
                        f"{found[other].name}: column {name!r} has type {other}, but it is {one} in "
                        f"{found[one].name}; write the files with one schema"
                    )
        known = set(self.schema.names)
        for footer in self.footers if all_features else ():
            extra = [name for name, t in footer.types.items() if is_feature(t) and name not in known]
            if extra:
                raise InputError(
                    f"{footer.name}: column {extra[0]!r} is missing in {self.footers[0].name}; "
                    "write the files with one schema or choose columns"
                )

    def held(self, names: Sequence[str], n_rows: int, *, together: bool) -> tuple[int, int]:
        # Stored bytes and pages of a row group, what a batch is decoded into before its columns have their
        # types, and the parsed footer, which each task parses again.
        sizes = np.concatenate([f.column_bytes[:, f.positions(names)] for f in self.footers])
        sums, whole_rows = sizes.sum(axis=1), 0
        if not together:
            group_rows = [n for footer in self.footers for n in footer.group_rows]
            for i in np.flatnonzero(sums > PACK_BYTES).tolist():
                packs = _packs(sizes[i])
                sums[i] = max(int(sizes[i, pack].sum()) for pack in packs)
                whole_rows = max(whole_rows, group_rows[i] if len(packs) > 1 else 0)
        n_leaves = max(footer.n_leaves for footer in self.footers) * len(names) // len(self.kinds)
        decoded = _DECODED_BYTES * n_leaves * n_rows
        parsed = _CHUNK_BYTES * max(len(footer.group_rows) * footer.n_leaves for footer in self.footers)
        return int(sums.max(initial=0)) + decoded + parsed, whole_rows

    def joined(self, parts: Sequence[Any]) -> list[Any]:
        runs: list[list[ParquetPart]] = []  # row groups that follow each other: a file is opened once
        for part in parts:
            last = runs[-1][-1] if runs else None
            if last is not None and (last.groups[0].path, last.stop) == (part.groups[0].path, part.start):
                runs[-1].append(part)
            else:
                runs.append([part])
        return [
            replace(run[0], stop=run[-1].stop, groups=tuple(group for part in run for group in part.groups))
            for run in runs
        ]

    def holds_only_numbers(self, names: Sequence[str] | None = None) -> bool:
        """Whether some columns, by default all numeric ones, are numbers and none lacks all values."""
        empty = frozenset.intersection(*(footer.empty for footer in self.footers))
        # Whatever the type of a column without any value: it goes to the steps, which say what becomes of it.
        numbers = {field.name for field in self.schema if is_feature(field.type)}
        return numbers.issuperset(names or ()) and empty.isdisjoint(numbers if names is None else names)

    def n_missing(self, names: Sequence[str]) -> dict[str, int]:
        """How many values columns are known to lack, for those that lack some."""
        found = np.sum([f.n_missing[f.positions(names)] for f in self.footers], axis=0)
        return {name: n for name, n in zip(names, found.tolist(), strict=True) if n}


_BYTES_OF_KIND = {"number": 8, "time": 8, "text": 32}  # about


def parquet_table(
    paths: Any, storage_options: Options = None, text_keys: Collection[str] = ()
) -> ParquetTable:
    """The files of a path, or of a list of paths, as a table; only their footers are read.

    Of the keys in their paths, `text_keys` are text whatever their values.
    """
    paths = list(paths) if isinstance(paths, (list, tuple)) else [paths]
    name = ", ".join(map(public_name, paths[:3])) + (", ..." if len(paths) > 3 else "")
    fs, files, roots = _find_files(paths, storage_options)
    keys = path_keys(files, roots, text_keys)
    # A footer is a request or two, so threads wait for many at a time.
    with storage_errors(f"{name} cannot be reached"), ThreadPoolExecutor(min(16, len(files))) as pool:
        found = list(pool.map(partial(_footer, fs), files, keys))
        # A file without rows says nothing: its columns may have no type, or not be there.
        footers = [footer for footer in found if any(footer.group_rows)] or found[:1]
        schema = _common_schema(fs, footers)
    parts: list[ParquetPart] = []
    start = 0
    for footer in footers:
        types = {f.name: f.type for f in schema if footer.types.get(f.name, f.type) != f.type}
        for number, n_rows in enumerate(footer.group_rows):
            if n_rows:
                group = RowGroup(footer.path, number, start, n_rows)
                parts.append(ParquetPart(start, start + n_rows, fs, (group,), footer.keys, types))
                start += n_rows
    nullable = frozenset().union(*(footer.nullable for footer in footers))
    return ParquetTable(
        parts=tuple(parts),
        kinds={field.name: raw_kind(field.type) for field in schema},
        dtypes=single_values((field.name, field.type, field.name in nullable) for field in schema),
        name=name,
        row_bytes=sum(_row_bytes(field.type) for field in schema),
        row_labels=footers[0].row_labels,
        fs=fs,
        schema=schema,
        footers=tuple(footers),
        nullable=nullable,
    )


def _common_schema(fs: Any, footers: Sequence[Footer]) -> pa.Schema:
    """The columns of the first file, each in the type that holds the values of all files."""
    fields = []
    for name, first in footers[0].types.items():
        types = [t for footer in footers for t in footer.types_of(name)] or [first]
        common = common_type(set(types)) or types[0]  # `ParquetTable.check` refuses types without one
        if is_number_list(common):
            width = _list_width(fs, footers, name)
            common = pa.list_(common.value_type, width) if width else pa.null()
        fields.append(pa.field(name, common))
    return pa.schema(fields)


def _list_width(fs: Any, footers: Sequence[Footer], name: str) -> int:
    """The length of the first list of a column that is not empty; 0 if there is none."""
    for footer in footers:
        with parquet_file(fs, footer.path) as parquet:
            for batch in parquet.iter_batches(_FIRST_LISTS, columns=[name], use_threads=False):
                if width := list_width(batch.column(0)):
                    return width
    return 0


def _row_bytes(column_type: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(column_type):
        return 8 * column_type.list_size
    return _BYTES_OF_KIND.get(raw_kind(column_type) or "", 1)


# Numeric columns, taken as they are.


def open_parquet(table: ParquetTable, options: TableOptions) -> Dataset:
    """The dataset of the numeric columns that the options select, by their names, taken as they are."""
    schema = table.schema
    if isinstance(options.columns, (list, tuple)):
        options = replace(options, columns=lists_by_name(schema, options.columns))
    choice = choose_columns(table, options)
    names, dropped = choice.columns, choice.dropped
    if options.columns is None:
        names = tuple(name for name in names if is_feature(schema.field(name).type))
        dropped = dropped | {name: LEFT_OUT_EMPTY for name in choice.columns if name not in names}
    weight = () if choice.weight is None else (choice.weight,)
    for name in (*names, *weight):
        column_type = schema.field(name).type
        if not is_feature(column_type) or (name in weight and not is_number(column_type)):
            raise InputError(
                f"column {name!r} of {table.name} has type {column_type}, which is not a number; "
                "convert it to numbers or leave it out"
            )
    is_default = options == TableOptions(options.target, sample_weight=options.sample_weight)
    table.check((*names, *choice.target, *weight, *options.beside), all_features=is_default)
    nullable = table.nullable
    fields = {"X": columns_of(schema, names, nullable)}
    if choice.target:
        is_1d = not isinstance(options.target, (list, tuple))
        fields["y"] = columns_of(schema, choice.target, nullable, is_1d=is_1d)
    if weight:
        fields["sample_weight"] = columns_of(schema, weight, nullable, is_1d=True)
    check_shape((table.n_rows, len(fields["X"].labels)), table.name)
    dataset = table_dataset(
        TableReader(table, PlainEncoding(fields)),
        table_report={"columns_dropped": dropped} if dropped else None,
        known_missing={f: n for f, c in fields.items() if (n := table.n_missing(c.names))},
    )
    return with_beside(dataset, table, options)


# Parquet files and their footers: rows, columns, nulls.

MAGIC = b"PAR1"  # the first bytes of every file


_FIRST_LISTS = 64  # decoded at once, to see how long a list is
_CHUNK_BYTES = 1024  # of a column of a row group in a parsed footer, about
_DECODED_BYTES = 8 + 2  # of a value as Parquet has it, in at least 4 bytes, and of its definition level


class Footer(NamedTuple):
    """The footer of one file."""

    path: str
    types: dict[str, pa.DataType]  # of the columns, in order
    group_rows: tuple[int, ...]
    nullable: frozenset[str]  # columns that hold nulls, or have no statistics to exclude them
    row_labels: frozenset[str]  # columns in which pandas kept a frame's index
    empty: frozenset[str]  # columns that hold only nulls according to the statistics
    name: str  # of the file, for messages
    n_missing: np.ndarray  # nulls of each column that the statistics count
    column_bytes: np.ndarray  # bytes that decoding takes, of shape (row groups, columns)
    n_leaves: int  # stored columns, of which a list's column is one
    keys: Mapping[str, pa.Scalar]  # the last columns, which are not in the file but in its path

    def types_of(self, name: str) -> list[pa.DataType]:
        """The type of a column; none if the file lacks it, or holds no value of it."""
        return [self.types[name]] if name in self.types and name not in self.empty else []

    def positions(self, names: Sequence[str]) -> list[int]:
        """The positions of columns in `n_missing` and `column_bytes`."""
        at = {name: j for j, name in enumerate(self.types)}
        return [at[name] for name in names]

    def with_keys(self, keys: Keys) -> Footer:
        """The footer with the keys of the path as its last columns."""
        n_rows, k = sum(self.group_rows), len(keys)
        absent = frozenset(name for name, value in keys.items() if not value.is_valid)
        return self._replace(
            types=self.types | {name: value.type for name, value in keys.items()},
            nullable=self.nullable | absent,
            empty=self.empty | absent,
            n_missing=np.array([*self.n_missing, *(n_rows * (name in absent) for name in keys)], np.int64),
            column_bytes=np.pad(self.column_bytes, ((0, 0), (0, k))),
            keys=keys,
        )


def _find_files(paths: Sequence[Any], storage_options: Options) -> tuple[Any, list[str], list[str]]:
    """The common filesystem of files, folders and globs, their files, and the paths given on it."""
    if not paths:
        raise InputError("the list of Parquet paths is empty")
    locations = [Location.of(path, storage_options) for path in paths]
    found = [location.files(PARQUET_SUFFIXES) for location in locations]
    # fsspec keeps one instance for each set of options: others are other servers or accounts.
    fs = found[0][0]
    if any(other is not fs for other, _ in found):
        raise InputError("the Parquet paths are on different filesystems; open one dataset on each")
    for location, (_, files) in zip(locations, found, strict=True):
        if not files:
            raise InputError(f"{location} does not exist or holds no Parquet files (*.parquet, *.pq)")
    # Each once, although a glob and a folder may both name it.
    files = in_natural_order({file for _, files in found for file in files})
    return fs, files, [location.file_system()[1] for location in locations]


def _footer(fs: Any, file: str, keys: Keys) -> Footer:
    with parquet_file(fs, file) as parquet:
        metadata, schema = parquet.metadata, parquet.schema_arrow
        names, shown = schema.names, file_name(fs, file)
        if (twice := first_repeated(names)) is not None:
            raise InputError(f"{shown} has two columns named {twice!r}; rename one")
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        leaves = _leaves_of(groups[0], names) if groups else []
        shape = (len(groups), len(names))
        null_counts = np.reshape([[_null_count(g, numbers) for numbers in leaves] for g in groups], shape)
        sizes = np.reshape([_group_bytes(group, leaves) for group in groups], shape)
        n_rows = np.array([group.num_rows for group in groups], np.int64)
        is_empty = np.all(null_counts == n_rows[:, None], axis=0).tolist() if groups else [False] * len(names)
        # The statistics of a list count its entries: only of plain columns they tell that no row has a value.
        single = {group.column(j).path_in_schema for group in groups[:1] for j in range(group.num_columns)}
        return Footer(
            path=file,
            types=dict(zip(names, schema.types, strict=True)),
            group_rows=tuple(n_rows.tolist()),
            nullable=frozenset(name for j, name in enumerate(names) if null_counts[:, j].any()),
            row_labels=_row_labels(schema),
            empty=frozenset(name for j, name in enumerate(names) if name in single and is_empty[j]),
            name=shown,
            n_missing=np.maximum(null_counts, 0).sum(axis=0),
            column_bytes=sizes.astype(np.int64),
            n_leaves=metadata.num_columns,
            keys={},
        ).with_keys(_outside(keys, groups, leaves, names, shown))


def _outside(
    keys: Keys, groups: Sequence[Any], leaves: Sequence[Sequence[int]], names: Sequence[str], file: str
) -> Keys:
    """The keys of a path that are not columns of the file as well; refuse values that differ."""
    for name in keys.keys() & set(names):  # some writers keep a key in the file as well
        for group in groups:
            # By the statistics alone, since opening reads no rows; a file without them is believed.
            held = group.column(leaves[names.index(name)][0]).statistics
            if held is not None and held.has_min_max:
                ends = [word_of(end) for end in (held.min, held.max)]
                if Vocabulary([str(keys[name])]).find_all(ends) != [0, 0]:
                    raise InputError(
                        f"{file}: column {name!r} holds {held.min} to {held.max}, but its path says "
                        f"{name}={keys[name]}; rename one of them"
                    )
    return {name: value for name, value in keys.items() if name not in names}


@contextmanager
def parquet_file(fs: Any, file: str) -> Iterator[pq.ParquetFile]:
    """Open one file for reading; errors in its content become an `InputError`."""
    name = file_name(fs, file)
    # Through Python's file objects, so that errors of the store keep their own type and can be retried, while
    # those of the decoder are pyarrow's, or bare OSErrors without a number.
    try:
        # cache_type: pyarrow requests the ranges that it needs; reading ahead would fetch other columns.
        with patiently(lambda: fs.open(file, "rb", cache_type="none")) as handle:
            # pre_buffer joins the ranges of a row group to few requests; checksums, where there are some,
            # show damage that decodes well.
            yield pq.ParquetFile(_PatientFile(handle), pre_buffer=True, page_checksum_verification=True)
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(
            f"{name} cannot be found by this process; open the dataset again if the file was replaced; "
            f"{SEEN_BY_ALL}"
        ) from error
    except Exception as error:
        is_damage = isinstance(error, (pa.ArrowException, ValueError))
        if isinstance(error, OSError):
            is_damage = type(error) is OSError and error.errno is None
        if not is_damage:
            raise retryable(error) from error
        remedy = (  # fsspec says "range requests" of an HTTP server that sends whole files only
            "download the file and fit that"
            if "range requests" in str(error)
            else "the file is truncated, damaged or of another kind: write it again"
        )
        raise InputError(f"{name} cannot be read as Parquet ({one_line(error)}); {remedy}") from error


class _PatientFile:
    """A file whose reads are repeated after errors that may pass; see `patiently`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.seek, self.tell, self.close = handle.seek, handle.tell, handle.close

    @property
    def closed(self) -> bool:
        return bool(self._handle.closed)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def read(self, n_bytes: int = -1) -> bytes:
        start = self._handle.tell()

        def again() -> bytes:
            self._handle.seek(start)
            return bytes(self._handle.read(n_bytes))

        return patiently(again)


def _null_count(group: Any, leaves: Sequence[int]) -> int:
    """How many values a column of a row group lacks, -1 if it has no statistics."""
    found = [group.column(leaf).statistics for leaf in leaves]
    known = all(statistics is not None and statistics.has_null_count for statistics in found)
    # -1 is no 0 either, so that such a column counts as nullable.
    return sum(statistics.null_count for statistics in found) if known else -1


def _row_labels(schema: pa.Schema) -> frozenset[str]:
    try:
        columns = json.loads((schema.metadata or {}).get(b"pandas", b"{}")).get("index_columns", [])
    except ValueError:
        columns = []
    # An index that only counts is a dict here, and no column of the file.
    return frozenset(column for column in columns if isinstance(column, str))


# Columns of a Parquet file as NumPy arrays: their labels, their common type, and the matrix of a batch.


def columns_of(
    schema: pa.Schema, names: Sequence[str], nullable: frozenset[str], is_1d: bool = False
) -> Columns:
    """The array that the columns `names` become."""
    dtypes = [numpy_type(schema.field(name).type, name in nullable) for name in names]
    dtype = np.result_type(*dtypes) if all(dtype.kind in "biuf" for dtype in dtypes) else OBJECT
    labels = [label for name in names for label in _labels(name, schema.field(name).type)]
    return Columns(tuple(names), tuple(labels), dtype, is_1d and len(labels) == 1)


def _labels(name: str, column_type: pa.DataType) -> list[str]:
    if pa.types.is_fixed_size_list(column_type):
        # As X calls the columns of a list, in every storage.
        return [f"{name}_{i}" for i in range(column_type.list_size)]
    return [name]


def lists_by_name(schema: pa.Schema, keys: Sequence[int | str]) -> list[int | str]:
    """`keys` with the labels of a list column, as models store them, replaced by its name."""
    # A model of lists knows the labels v_0, v_1 that X has, not the column v.
    found = list(keys)
    for column in schema:
        labels = _labels(column.name, column.type)
        if labels and labels != [column.name] and labels[0] in found:
            at = found.index(labels[0])
            if found[at : at + len(labels)] == labels:
                found[at : at + len(labels)] = [column.name]
    return found


# Rows of Parquet row groups in batches, with little else in memory.
#
# Decoding a column holds its stored bytes and one decoded page, which may be the whole column: hundreds of
# megabytes for a row group of a million rows, however few rows a batch has. So the columns of a large row
# group are decoded a few at a time, each over all rows that the task needs.

PACK_BYTES = 64 * 2**20
"""Stored bytes and pages of the columns that are decoded together."""


def _group_batches(
    parquet: Any, names: Sequence[str], number: int, n_rows: int, first: int, last: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield columns of the rows [first, last) of a row group; with `last` None of all, decoded together."""
    group, names = parquet.metadata.row_group(number), list(names)
    packs = _packs(_group_bytes(group, _leaves_of(group, names)))
    decoded = partial(_decoded, parquet, number=number, n_rows=n_rows, first=first)
    if last is None or len(packs) == 1:
        yield from decoded(names, last=group.num_rows if last is None else last)
        return
    columns: list[pa.ChunkedArray] = []  # each pack over all rows that the task needs
    for pack in packs:
        # Released pack by pack: only the decoded columns stay.
        columns += pa.Table.from_batches(decoded([names[j] for j in pack], last=last)).columns
    yield from pa.Table.from_arrays(columns, names).to_batches(n_rows)


def _decoded(
    parquet: Any, names: list[str], *, number: int, n_rows: int, first: int, last: int
) -> Iterator[pa.RecordBatch]:
    at = 0  # pages must be decoded in order, so from the first row of the group on
    # One thread: tasks are what runs in parallel.
    for batch in parquet.iter_batches(n_rows, row_groups=[number], columns=names, use_threads=False):
        begin, end = max(at, first), min(at + batch.num_rows, last)
        offset, at = begin - at, at + batch.num_rows
        if begin < end:
            yield batch.select(names).slice(offset, end - begin)
        del batch  # or it would be alive while the next one is decoded
        if at >= last:
            return


def _leaves_of(group: Any, names: Sequence[str]) -> list[list[int]]:
    """The indices of the stored columns (leaves) that make up each column."""
    # By the paths of a row group: the schema of a file's metadata has them too, but it and the metadata
    # refer to each other, and both would stay in memory until Python looks for such cycles.
    found: dict[str, list[int]] = {name: [] for name in names}
    for j in range(group.num_columns):
        path = group.column(j).path_in_schema
        while path not in found and "." in path:  # x.list.element of x
            path = path.rpartition(".")[0]
        if path in found:
            found[path].append(j)
    return [found[name] for name in names]


def _group_bytes(group: Any, leaves: Sequence[Sequence[int]]) -> np.ndarray:
    """The bytes that decoding each column of a row group may hold: stored bytes and pages."""
    chunks = [[group.column(j) for j in numbers] for numbers in leaves]
    sizes = [sum(c.total_compressed_size + c.total_uncompressed_size for c in column) for column in chunks]
    return np.array(sizes, np.int64)


def _packs(sizes: np.ndarray) -> list[list[int]]:
    """Runs of columns of at most `PACK_BYTES`, or of a single larger column."""
    packs: list[list[int]] = [[]]
    left = PACK_BYTES
    for j, size in enumerate(sizes.tolist()):
        if packs[-1] and size > left:
            packs.append([])
            left = PACK_BYTES
        packs[-1].append(j)
        left -= size
    return packs


# Columns that a partitioned folder of files keeps in its names, as in year=2019/part-0.parquet.

Keys = dict[str, pa.Scalar]

_MISSING = "__HIVE_DEFAULT_PARTITION__"


def path_keys(files: Sequence[str], roots: Sequence[str], as_text: Collection[str] = ()) -> list[Keys]:
    """The keys of each file below what the given paths (files, folders, globs) have in common; null without.

    Those of `as_text` stay text, as they were where other values stood beside them: "007" is no 7 then.
    """
    known = set(files)
    folders = [_folder(root, known) for root in roots]
    # Keys of the folders above are the same for all rows: opening one month of a year has no column year.
    above = len(_segments(posixpath.commonpath(folders)))
    found = [_pairs(_segments(file)[above:-1]) for file in files]
    values: dict[str, set[str | None]] = {}
    for pairs in found:
        for key, value in pairs.items():
            values.setdefault(key, set()).add(value)
    # As pyarrow infers them, int32 where all values of a key are, else text; but int64 where pyarrow has
    # text of larger integers, which are numbers in any other table.
    types = {
        key: pa.string() if key in as_text else _type_of(those - {None}) for key, those in values.items()
    }
    made = {
        (key, value): pa.scalar(value, pa.string()).cast(types[key])
        for key, those in values.items()
        for value in those | {None}
    }
    return [{key: made[key, pairs.get(key)] for key in values} for pairs in found]


def _folder(root: str, files: Collection[str]) -> str:
    """A folder itself, and the folder that a file, or all of a glob, lies in."""
    if root in files:
        return posixpath.dirname(root)
    parts = root.rstrip("/").split("/")
    fixed = next((i for i, part in enumerate(parts) if any(c in part for c in GLOB_CHARACTERS)), len(parts))
    return "/".join(parts[:fixed])


def _segments(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _pairs(folders: Sequence[str]) -> dict[str, str | None]:
    """The keys and their values in the names of nested folders."""
    pairs = [folder.partition("=") for folder in folders if "=" in folder]
    return {unquote(key): None if value == _MISSING else unquote(value) for key, _, value in pairs}


def _type_of(values: Iterable[str | None]) -> pa.DataType:
    for bits, kind in ((31, pa.int32()), (63, pa.int64())):
        if all(_INTEGER.fullmatch(text or "") and -(2**bits) <= int(text or "") < 2**bits for text in values):
            return kind
    return pa.string()


_INTEGER = re.compile(r"-?[0-9]{1,19}")
