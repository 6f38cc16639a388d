"""Tables: which raw columns become X, y and weights; the task that reads their rows also encodes them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeVar

import dask
import numpy as np
import pandas as pd
import pyarrow as pa

from distrff.engine.reduction import Arrays, Reduction
from distrff.engine.run import Run
from distrff.errors import DataWarning, InputError, warn
from distrff.io.arrays import (
    OBJECT,
    common_type,
    counted,
    has_own_order,
    is_feature,
    numpy_type,
    of_one_length,
    paired,
    persisted_text,
    raw_column,
    raw_columns,
    raw_kind,
)
from distrff.io.dataset import (
    BLOCK_BYTES,
    Dataset,
    Form,
    Reader,
    Rows,
    Span,
    TileReader,
    cuts,
    dataset_of,
    native,
    with_readers,
)
from distrff.io.storage import SPAN_BYTES, Location, one_line
from distrff.io.zarr_rows import ZarrReader, dimensions_of, open_group
from distrff.preprocessing.profile import (
    LEFT_OUT_EMPTY,
    TYPES,
    TableOptions,
    TableProfile,
    as_declared,
    find_columns,
    left_out_as,
    steps_of,
)
from distrff.preprocessing.table import FIELDS, RawColumn, TableSteps, complete_rows
from distrff.preprocessing.words import SHOWN, Unseen
from distrff.utils.text import first_repeated, listed

BATCH_ROWS = 2**16  # rows of a piece in a conversion


@dataclass(frozen=True)
class TablePart(ABC):
    """The raw rows [start, stop) of a table, as a small picklable handle.

    A field may be a Delayed that arrives in the task as data, as in `Rows`.
    """

    start: int
    stop: int

    @abstractmethod
    def batches(
        self, names: tuple[str, ...], n_rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns `names` of the part's rows [first, last), at most about `n_rows` at a time.

        With `last` None all rows are read, and never held together. Raises InputError for data that are
        missing, damaged or changed since the table was opened, and for a column with values of several types.
        """


class Piece(NamedTuple):
    """A batch of rows, from row `start` of the table on."""

    start: int
    batch: pa.RecordBatch

    @property
    def position(self) -> int:
        """Rows up to its end."""
        return self.start + self.batch.num_rows

    @property
    def mark(self) -> int:
        return self.position


class RawSource(ABC):
    """Raw rows in pieces, as conversions read them. Methods that only text needs do nothing by default.

    `kinds` maps each column, in order, to the kind of its `RawColumn`: "null" where only the values can tell,
    None for a type that no step encodes.
    """

    kinds: Mapping[str, str | None]
    name: str  # for messages; without credentials
    unit = "rows"  # of `total` and of the positions of pieces
    total: int  # the size in `unit`, for a progress bar
    row_labels: frozenset[str] = frozenset()
    odd: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def pieces(self, names: Sequence[str], after: Any = None) -> Iterator[Any]:
        """Yield batches of some columns, in order; with the mark of a batch as `after`, those after it."""

    def place(self, piece: Any, row: int) -> str:
        """The name and number of a row of a batch, for messages."""
        return f"{self.name}, row {piece.start + row}"

    def raw(self, piece: Any, names: Sequence[str]) -> dict[str, RawColumn]:
        """Some columns of a batch; may be called in any thread."""
        return raw_columns(piece.batch, names)

    def head(self, names: Sequence[str]) -> RawSource | None:
        """The first rows, with at least some columns; None if the rows have no order."""
        return self

    def with_row_labels(self, names: frozenset[str]) -> Self:
        """The same rows, of which these columns are ignored unless they are named."""
        self.row_labels = names
        return self

    def completed(self, options: TableOptions) -> TableOptions:
        """The options with kinds by the names of columns, and the target that the format itself defines."""
        return replace(options, types=declared_kinds(self, options) or None)

    def prepare(self, choice: ColumnSelection) -> None:  # noqa: B027
        """Read columns as what they become; raise InputError for those that cannot become it."""

    def follow(self, steps: TableSteps) -> None:  # noqa: B027
        """Read columns with the types that the steps take."""

    def described(self) -> str | None:
        """How the rows are read, for reports; None if the format says it all."""
        return None

    def state(self) -> Any:
        """How columns are read, as a value to be stored; see `restore`."""
        return None

    def restore(self, state: Any) -> None:  # noqa: B027
        """Read columns as in an earlier process, by its `state`."""


@dataclass(frozen=True, eq=False)
class Table(RawSource):
    """A stored table in consecutive parts, none of which is empty."""

    parts: tuple[TablePart, ...]
    kinds: Mapping[str, str | None]
    name: str
    row_bytes: int  # approximate bytes of a raw row
    row_labels: frozenset[str] = frozenset()  # columns that are ignored unless named, such as a frame's index
    is_delayed: bool = False  # whether parts hold Delayed objects
    odd: Mapping[str, str] = field(default_factory=dict)  # why columns of no kind, or of text, are left out
    persisted_bytes: int = 0  # of rows that stay in the workers' memory
    unseen: Mapping[str, Unseen] | None = None  # see `TableSteps.unseen`; None if it was not looked for
    dtypes: Mapping[str, np.dtype] = field(default_factory=dict)  # of columns that may come beside X

    is_stored = False  # whether parts read files

    @property
    def n_rows(self) -> int:
        return self.parts[-1].stop if self.parts else 0

    @property
    def total(self) -> int:  # type: ignore[override]
        return self.n_rows

    def check(self, names: Sequence[str]) -> None:
        """Raise InputError if these columns are not the same in all parts."""

    def loaded(self, names: Sequence[str], beside: Sequence[str], steps: TableSteps | None) -> Table:
        """The table with the rows of these columns, if it has no rows before columns are chosen."""
        return self

    def head(self, names: Sequence[str]) -> Table | None:
        """The first part, in memory."""
        return replace(self, parts=dask.compute(*self.parts[:1]), is_delayed=False)

    def with_row_labels(self, names: frozenset[str]) -> Self:
        return replace(self, row_labels=names)

    def held(self, names: Sequence[str], n_rows: int, *, together: bool) -> tuple[int, int]:
        """`held_bytes` and `whole_rows`, see `Dataset`, for decoding columns together or in packs.

        `n_rows` are those of the largest batch.
        """
        return 0, 0

    def joined(self, parts: Sequence[TablePart]) -> list[TablePart]:
        """The rows of some parts in fewer parts, if that saves requests."""
        return list(parts)

    def pieces(self, names: Sequence[str], after: Any = None) -> Iterator[Piece]:
        self.check(names)
        skipped = int(after or 0)
        for part in self.joined([part for part in self.parts if part.stop > skipped]):
            start = max(part.start, skipped)
            for batch in part.batches(tuple(names), BATCH_ROWS, start - part.start):
                yield Piece(start, batch)
                start += batch.num_rows


# Rows of a table, encoded in the task that reads them.


class Columns(NamedTuple):
    """Columns of a table that become one array."""

    names: tuple[str, ...]  # of the columns of the table
    labels: tuple[str, ...]  # of the columns of the array
    dtype: np.dtype  # object if some column is not numeric
    is_1d: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return () if self.is_1d else (len(self.labels),)

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * len(self.labels)


class Encoding(ABC):  # no dataclass: dask would walk its fields in each task
    """How batches become arrays."""

    columns: dict[str, Columns]  # of X, y and sample_weight
    names: tuple[str, ...]  # columns of the table that are read
    row_bytes: int  # bytes that reading a row takes
    drops_rows = False  # whether rows of a batch may be left out

    @property
    def batch_rows(self) -> int:
        """Rows to decode at once."""
        return max(1, SPAN_BYTES // max(1, self.row_bytes))

    def restricted(self, fields: tuple[str, ...]) -> Encoding:
        """The encoding of some of the fields."""
        # Columns that are not wanted stay among the names, as they may decide which rows are kept.
        found = copy(self)
        found.columns = {name: columns for name, columns in self.columns.items() if name in fields}
        return found

    @abstractmethod
    def span(self, batch: pa.RecordBatch, first_row: int) -> Span:
        """The arrays of a batch whose first row has this number in the table."""


class StepsEncoding(Encoding):
    def __init__(self, table: Table, steps: TableSteps) -> None:
        steps.check_names(table.kinds, table.name)
        self.steps, self.names, self.drops_rows = steps, steps.raw_names, bool(steps.required)
        self.row_bytes = table.row_bytes + steps.row_bytes
        self.columns = {"X": Columns((), steps.names_out, steps.dtype)}
        if (target := steps.target) is not None:
            self.columns["y"] = Columns((), target.names, np.dtype(target.dtype), target.is_1d)
        if steps.weight is not None:
            self.columns["sample_weight"] = Columns((), (steps.weight,), np.dtype(np.float64), True)

    def span(self, batch: pa.RecordBatch, first_row: int) -> Span:
        # All columns of X decide which rows are kept, also where only y is wanted.
        raw = raw_columns(batch, self.names)
        return self.steps.apply(raw, first_row=first_row, fields=tuple(self.columns))


class PlainEncoding(Encoding):
    """Encoding of columns that become arrays unchanged, of rows that lack no value of a `required` column."""

    def __init__(self, columns: dict[str, Columns], required: tuple[str, ...] = ()) -> None:
        self.columns, self.required, self.drops_rows = columns, required, bool(required)
        self.names = tuple(dict.fromkeys([*(name for c in columns.values() for name in c.names), *required]))
        self.row_bytes = sum(c.row_bytes for c in columns.values()) + _VALUE_BYTES * len(required)

    def restricted(self, fields: tuple[str, ...]) -> PlainEncoding:
        return PlainEncoding({f: c for f, c in self.columns.items() if f in fields}, self.required)

    def span(self, batch: pa.RecordBatch, first_row: int) -> Span:
        arrays = {f: array_from(batch, c) for f, c in self.columns.items()}
        if "sample_weight" in arrays:
            arrays["sample_weight"] = arrays["sample_weight"].astype(np.float64, copy=False)
        kept = complete_rows(raw_columns(batch, self.required).values())
        return arrays if kept is None else {f: A[kept] for f, A in arrays.items()}


def array_from(batch: pa.RecordBatch, columns: Columns) -> np.ndarray:
    """The columns of a batch as an array of shape (r, *columns.shape); nulls are NaN, or None in objects."""
    parts = [_array_values(batch.column(name), columns.dtype, name) for name in columns.names]
    if len(parts) == 1 and parts[0].dtype == columns.dtype:  # a view of Arrow's memory, and read-only
        return parts[0].reshape(batch.num_rows, *columns.shape)
    out = np.empty((batch.num_rows, len(columns.labels)), columns.dtype)
    at = 0
    for part in parts:
        width = 1 if part.ndim == 1 else part.shape[1]
        out[:, at : at + width] = part.reshape(-1, width)
        at += width
    return out.reshape(batch.num_rows, *columns.shape)


def _array_values(column: pa.Array, dtype: np.dtype, name: str) -> np.ndarray:
    """The values of a column: times of the `dtype`, which text may spell, numbers as they are, or objects."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if dtype.kind in "mM":
        if raw_kind(column.type) == "text":
            return as_declared({name: raw_column(column, name)}, {name: "time"})[name].plain()
        return column.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    if not is_feature(column.type):
        return _objects(column)
    raw = raw_column(column, name)
    if raw.nulls is None:
        return raw.values
    if dtype.kind in "iub":
        raise InputError(
            f"column {name!r} has nulls, although the statistics of its file count none; write the file again"
        )
    return np.where(raw.nulls, np.nan, raw.values)


def _objects(column: pa.Array) -> np.ndarray:
    values = column.to_numpy(zero_copy_only=False)
    # Dates and times would lose their type in an object array.
    # The None at the end keeps lists of one length from becoming a matrix.
    return values if values.dtype == OBJECT else np.array([*column.to_pylist(), None], dtype=object)[:-1]


@dataclass(frozen=True)
class TableRows(Rows):
    """The rows [start, stop), counted without dropped rows, with the parts of the table that hold them.

    `skipped` kept rows of the first part come before `start`.
    """

    skipped: int
    parts: list[Any] = field(repr=False)  # their paths may be signed URLs
    encoding: Encoding = field(repr=False)

    def spans(self) -> Iterable[Iterator[Span]]:
        return [self._spans()]

    def _spans(self) -> Iterator[Span]:
        # Where rows are left out, only their number in each part is known: so rows are counted from its
        # first one.
        before, left = self.skipped, self.stop - self.start
        for part in self.parts:
            first, last = 0, None
            if not self.encoding.drops_rows:  # otherwise rows are counted from the part's start
                first, last = before, min(part.stop - part.start, before + left)
                before = 0
            for given in self._encoded(part, first, last):
                n = len(next(iter(given[0].values())))
                begin, end = min(before, n), min(n, before + left)
                before -= begin
                left -= end - begin
                if end > begin:
                    # Popped: a local name would keep it alive while the next one is decoded.
                    yield {name: _rows_of(values, begin, end) for name, values in given.pop().items()}
                if not left:
                    return
                given.clear()

    def _encoded(self, part: TablePart, first: int, last: int | None) -> Iterator[list[Span]]:
        """Spans of a part, each in a list, which the caller empties to release the span."""
        at = part.start + first
        for batch in part.batches(self.encoding.names, self.encoding.batch_rows, first, last):
            yield [self.encoding.span(batch, at)]
            at += batch.num_rows
            del batch


def _rows_of(values: Any, begin: int, end: int) -> Any:
    part = values[begin:end]
    # A view keeps all of the batch, so of the lesser part of it a copy is made.
    return part.copy() if 2 * (end - begin) < values.shape[0] else part


class TableReader(Reader):
    """Reads rows of a table; `kept` is the number of rows that are kept of each part, by default all."""

    def __init__(self, table: Table, encoding: Encoding, kept: Sequence[int] | None = None) -> None:
        kept = [part.stop - part.start for part in table.parts] if kept is None else kept
        self.table, self.encoding = table, encoding
        # Parts of which no row is kept are never read.
        self._parts = [part for part, n in zip(table.parts, kept, strict=True) if n]
        self._bounds = np.cumsum([0, *(n for n in kept if n)])
        self.fields, self.are_delayed = encoding.columns, table.is_delayed

    @property
    def n_rows(self) -> int:
        return int(self._bounds[-1])

    def form(self, field: str) -> Form:
        columns = self.encoding.columns[field]
        return Form((self.n_rows, *columns.shape), columns.dtype)

    @property
    def chunk_rows(self) -> int:
        largest = int(np.diff(self._bounds).max())  # decoded at once
        # A partition of a dask DataFrame is whole in the task.
        return largest if self.table.is_delayed else min(self.encoding.batch_rows, largest)

    def rows(self, start: int, stop: int, fields: tuple[str, ...] = FIELDS) -> TableRows:
        # Only the parts that hold the rows go with the task.
        first = int(np.searchsorted(self._bounds, start, side="right")) - 1
        last = int(np.searchsorted(self._bounds, stop, side="left"))
        skipped = start - int(self._bounds[first])
        parts = self.table.joined(self._parts[first:last])
        return TableRows(start, stop, skipped, parts, self.encoding.restricted(fields))

    def row_chunks(self, field: str) -> Sequence[int]:
        # Small parts are joined, alike for all fields, since X and y go together block by block.
        limit = max(1, BLOCK_BYTES // self.encoding.row_bytes)
        row_chunks: list[int] = []
        for n in np.diff(self._bounds).tolist():
            if row_chunks and row_chunks[-1] + n <= limit:
                row_chunks[-1] += n
            else:
                row_chunks.append(n)
        return row_chunks


def table_dataset(reader: TableReader, **more: Any) -> Dataset:
    """The dataset of a reader's rows; `more` are further attributes of the dataset."""
    table, encoding = reader.table, reader.encoding
    held_bytes, whole_rows = table.held(encoding.names, reader.chunk_rows, together=encoding.drops_rows)
    return dataset_of(
        reader,
        table.name,
        {field: columns.labels for field, columns in encoding.columns.items()},
        row_bytes=encoding.row_bytes,
        chunk_rows=reader.chunk_rows,
        held_bytes=held_bytes,
        whole_rows=whole_rows,
        block_rows=reader.chunk_rows if table.is_delayed else None,
        persisted_bytes=table.persisted_bytes,
        **more,
    )


def encoded_dataset(
    table: Table, steps: TableSteps, kept: Sequence[int] | None, report: Mapping[str, Any] | None = None
) -> Dataset:
    """The dataset of a table encoded by steps, which keep `kept` rows of each part.

    `Dataset.table_report` is the report with the numbers of rows added.
    """
    reader = TableReader(table, StepsEncoding(table, steps), kept)
    if not reader.n_rows:
        raise InputError(
            f"{table.name}: none of the {table.n_rows} rows is left, since each lacks a value in one of "
            f"{listed(steps.required)}; leave out columns with few values, or use another rule for missing "
            f"values"
        )
    counts = {"rows_read": table.n_rows, "rows_dropped": table.n_rows - reader.n_rows}
    return table_dataset(reader, steps=steps, table_report=counts | dict(report or {}))


def with_beside(
    dataset: Dataset,
    table: Table,
    options: TableOptions,
    required: tuple[str, ...] = (),
    kept: Sequence[int] | None = None,
) -> Dataset:
    """The dataset with the columns beside X that the options name, of the rows that X keeps.

    The `required` columns decide which rows are `kept`.
    """
    readers = {}
    for name in options.beside:
        if name not in table.dtypes:
            why = table.odd.get(name, "it has several values a row")
            raise InputError(f"column {name!r} of {table.name} cannot come beside X: {why}")
        dtype = table.dtypes[name]
        if dtype == OBJECT and (options.types or {}).get(name) == "time":  # text that spells times
            dtype = np.dtype("M8[us]")
        columns = {"y": Columns((name,), (name,), dtype, is_1d=True)}
        readers[name] = TableReader(table, PlainEncoding(columns, required), kept)
    # A frame's columns for its folds come to rows that may have groups.
    roles = {"ids": options.ids or dataset.ids, "groups": options.groups or dataset.groups}
    return with_readers(dataset, readers, **roles)


# Which raw columns of a table become X, y and weights, and why others are left out.


class ColumnSelection(NamedTuple):
    """Names of raw columns."""

    columns: tuple[str, ...]  # of X, as named, else in the table's order
    target: tuple[str, ...]
    weight: str | None
    dropped: dict[str, str]  # columns that are left out, and why

    @property
    def used(self) -> tuple[str, ...]:
        """All names, each once."""
        weight = () if self.weight is None else (self.weight,)
        return tuple(dict.fromkeys([*self.columns, *self.target, *weight]))

    def steps(self, profile: TableProfile, options: TableOptions) -> tuple[TableSteps, dict[str, Any]]:
        """The steps that these columns need, and the report of what they do; see `steps_of`."""
        steps, report = steps_of(
            profile, options, columns=self.columns, target=self.target, weight=self.weight
        )
        report["columns_dropped"] = self.dropped | report["columns_dropped"]
        return steps, report


def choose_columns(table: RawSource, options: TableOptions) -> ColumnSelection:
    """The columns that the options select, which are those of `with_names`.

    A named column is refused if it is missing, of a kind that the options do not take, or named twice.
    """
    # What the user says of a column goes before what is stored.
    kinds = dict(table.kinds) | dict(options.types or {})
    target = named_columns(table, options.target)
    weights = named_columns(table, options.sample_weight)
    if len(weights) > 1:
        raise InputError(f"sample_weight must name one column, got {listed(weights)}")
    taken = dict.fromkeys(target, "y")
    _refuse_twice(weights, taken, "as weights")
    taken.update(dict.fromkeys(weights, "weights"))
    others = {*taken, *table.row_labels}
    rest = [n for n in kinds if n not in others]
    # What a reader knows of a column says more than its kind does.
    reasons = {n: table.odd.get(n, why) for n in rest if (why := left_out_as(kinds[n], options))}
    if options.columns is not None:
        columns, dropped = named_columns(table, options.columns), {}
        _refuse_twice(columns, taken, "as a column of X")
        for name in columns:
            if (why := left_out_as(kinds[name], options)) is not None:
                why = table.odd.get(name, why)
                raise InputError(f"column {name!r} of {table.name} cannot be a column of X: {why}")
    else:
        unwanted = named_columns(table, options.drop)
        _refuse_twice(unwanted, taken, "to be left out")
        # Whoever says how times become features wants those by which folds go as well.
        extra = [n for n in options.extra if options.datetime is None or kinds[n] != "time"]
        left_out = {*unwanted, *options.ids, options.groups, *extra}
        columns = [n for n in rest if n not in reasons and n not in left_out]
        dropped = {n: why for n, why in reasons.items() if n not in left_out}
        # Whoever misses an index among the columns finds it in the report.
        labels = (name for name in kinds if name in table.row_labels and name not in left_out)
        dropped |= {name: LEFT_OUT_ROW_NUMBERS for name in labels if name not in taken}
    if not columns:
        raise InputError(
            f"{table.name} has no columns for X; besides target and weights it has: "
            f"{', '.join(f'{name} ({why})' for name, why in list(dropped.items())[:10]) or 'none'}"
        )
    return ColumnSelection(tuple(columns), tuple(target), weights[0] if weights else None, dropped)


def _refuse_twice(names: Iterable[str], taken: Mapping[str, str], purpose: str) -> None:
    for name in names:
        if name in taken:
            raise InputError(f"column {name!r} is named both as {taken[name]} and {purpose}; name it once")


LEFT_OUT_ROW_NUMBERS = "it is an index, or numbers the rows; keep_index=True takes it"
"""Why a column of row labels is left out."""


def warn_of_left_out(dataset: Dataset) -> None:
    """Warn of columns that hold something and that no option took; `drop` says that it is meant."""
    for why, names in dataset.left_out.items():
        if why not in (LEFT_OUT_ROW_NUMBERS, LEFT_OUT_EMPTY):  # of which nobody would miss anything
            warn(f"left out: {listed(names)} ({why})", DataWarning)


_INDEX = re.compile(
    r"(index|level_0|id|nr|no|#|row([ _.]?(id|index|no|nr|num|number|names?))?)\.?", re.IGNORECASE
)


Source = TypeVar("Source", bound=RawSource)


def with_row_numbers(table: Source, options: TableOptions) -> Source:
    """The table with the columns that only number its rows among its `row_labels`."""
    if options.keep_index:
        return table.with_row_labels(frozenset())
    # A column has to be called like an index as well: one that counts under another name, such as the days
    # or the steps of a series in their order, is a feature. An index that pandas wrote to text has no name.
    first = next(iter(table.kinds), None)
    names = [name for name in table.kinds if _INDEX.fullmatch(name) or name == first == "Unnamed: 0"]
    names = [name for name in names if name not in table.row_labels]
    if not names:
        return table
    head = table.head(names)  # of the first batch alone: each file of a folder may count anew
    piece = None if head is None else next(iter(head.pieces(names)), None)
    raw = {} if head is None or piece is None else head.raw(piece, names)
    found = {name for name, column in raw.items() if _numbers_rows(column, is_index=name == "Unnamed: 0")}
    return table.with_row_labels(table.row_labels | found)


def _numbers_rows(column: RawColumn, *, is_index: bool) -> bool:
    values = column.values
    if column.kind != "number" or values.ndim > 1 or values.dtype.kind == "b" or column.missing() is not None:
        return False
    if is_index:  # it numbers the rows even where some were left out, or shuffled
        return bool((values == np.floor(values)).all()) and len(np.unique(values)) == len(values)
    # As floats: differences of unsigned integers wrap, so that 255, 0 would count up.
    return len(values) > 1 and bool((np.diff(values.astype(np.float64)) == 1).all())


def declared_kinds(table: RawSource, options: TableOptions) -> dict[str, str]:
    """The kinds of the columns whose types the user declared."""
    return {named_columns(table, [name])[0]: TYPES[kind] for name, kind in (options.types or {}).items()}


def named_columns(table: RawSource, keys: Any) -> list[str]:
    """The names of columns given by name, or by index; indices do not count row labels."""
    if keys is None:
        return []
    plain = [name for name in table.kinds if name not in table.row_labels]
    given = keys if isinstance(keys, (list, tuple)) else [keys]
    labels = [key for key in dict.fromkeys(given) if key in table.row_labels]
    if not labels:
        return [plain[i] for i in find_columns(keys, plain, table.name)]
    found = [name for key in given for name in ([key] if key in labels else named_columns(table, key))]
    if (twice := first_repeated(found)) is not None:
        raise InputError(f"column {twice!r} is named twice; name each column once")
    return found


def with_names(table: RawSource, options: TableOptions) -> TableOptions:
    """The options with the columns beside X, and those of declared types, by their names."""
    # One by one: a column may have several roles.
    ids, groups, extra = (tuple(named_columns(table, [key])[0] for key in keys) for keys in options.roles)
    types = declared_kinds(table, options) or None
    return replace(options, types=types, ids=ids, groups=groups[0] if groups else None, extra=extra)


# Passes over the raw rows of a table: the contents of its columns, and the number of complete rows.

_SEGMENT_ROWS = 2**17
_WORD_BYTES = 100


@dataclass(frozen=True)
class RawSegment:
    """Consecutive parts of a table, which one task reads."""

    start: int
    stop: int
    parts: list[Any] = field(repr=False)


def raw_segments(parts: Sequence[TablePart]) -> list[RawSegment]:
    """The parts in runs of at least 2¹⁷ rows; the last run may be shorter."""
    # Small row groups are not a task each, whose cost is some milliseconds.
    segments: list[RawSegment] = []
    run: list[TablePart] = []
    for part in parts:
        run.append(part)
        if part.stop - run[0].start >= _SEGMENT_ROWS or part is parts[-1]:
            segments.append(RawSegment(run[0].start, part.stop, run))
            run = []
    return segments


@dataclass(frozen=True)
class ProfileReduction(Reduction):
    """The profile of some columns, of the kinds that are declared."""

    names: tuple[str, ...]
    batch_rows: int
    max_words: int
    types: Mapping[str, str] | None = None

    def size_bytes(self, n_rows: int) -> int:
        return _WORD_BYTES * len(self.names) * min(self.max_words, n_rows)

    def zero(self) -> TableProfile:
        return TableProfile.empty(self.max_words)

    def update(self, found: TableProfile, rows: Any, arrays: Arrays) -> TableProfile:
        for part in rows.parts:
            for raw in _raw(part, self.names, self.batch_rows):
                found = found.merge(TableProfile.of(as_declared(raw, self.types), self.max_words))
        return found

    def merge(self, first: TableProfile, second: TableProfile) -> TableProfile:
        return first.merge(second)


class Match(NamedTuple):
    """How rows of a table fit the steps of a model."""

    n_complete: tuple[int, ...] = ()  # of each part, rows without a missing value where the steps need one
    unseen: Mapping[str, Unseen] = MappingProxyType({})  # rows with categories that the steps lack, by column

    def __add__(self, other: Any) -> Match:
        return Match(self.n_complete + other.n_complete, Unseen.total([self.unseen, other.unseen]))


@dataclass(frozen=True)
class MatchReduction(Reduction):
    """Whether `required` columns are filled, and which categories are new."""

    steps: TableSteps
    required: tuple[str, ...]
    of_categories: tuple[str, ...]
    batch_rows: int

    def size_bytes(self, n_rows: int) -> int:
        return 8 + _WORD_BYTES * SHOWN * len(self.of_categories)

    def zero(self) -> Match:
        return Match()

    def update(self, found: Match, rows: Any, arrays: Arrays) -> Match:
        names = tuple(dict.fromkeys(self.required + self.of_categories))
        for part in rows.parts:
            n_complete, unseen = 0, dict[str, Unseen]()
            for raw in _raw(part, names, self.batch_rows):
                kept = complete_rows(raw[name] for name in self.required)
                n_complete += len(raw[names[0]]) if kept is None else int(np.count_nonzero(kept))
                if self.of_categories:
                    unseen = Unseen.total([unseen, self.steps.unseen(raw)])
            found += Match((n_complete,), unseen)
        return found

    def merge(self, first: Match, second: Match) -> Match:
        return first + second


def _raw(part: TablePart, names: tuple[str, ...], batch_rows: int) -> Iterator[dict[str, RawColumn]]:
    for batch in part.batches(names, batch_rows):
        yield raw_columns(batch, names)


def profile_of(run: Run, table: Table, names: tuple[str, ...], options: TableOptions) -> TableProfile:
    """The profile of some columns, after one pass over the table."""
    reduction = ProfileReduction(names, _batch_rows(table), options.max_categories, options.types)
    return run.total("table profile", raw_segments(table.parts), reduction)


def match_of(
    run: Run, table: Table, steps: TableSteps, required: tuple[str, ...], *, are_own: bool = False
) -> tuple[tuple[int, ...] | None, Mapping[str, Unseen]]:
    """The complete rows of each part, None where all are, and the categories that the steps lack.

    `are_own` says that the steps were made of these rows.
    """
    of_categories = () if are_own or table.unseen is not None else steps.names_of_unseen
    if not required and not of_categories:
        return None, table.unseen or {}
    reduction = MatchReduction(steps, required, of_categories, _batch_rows(table))
    segments = raw_segments(table.parts)
    # Rows in memory are looked through in this process, which also encodes them.
    if table.is_stored or table.is_delayed:
        label = "complete rows" if required else "unseen categories"
        found = run.total(label, segments, reduction)
    else:
        found = reduce(lambda total, rows: reduction.update(total, rows, {}), segments, reduction.zero())
    return found.n_complete if required else None, table.unseen or found.unseen


UNSEEN_SHARE = 0.01
"""Of the rows, above which a warning says that they hold categories that the fit never saw."""


def report_of_unseen(unseen: Mapping[str, Unseen], steps: TableSteps, n_rows: int) -> dict[str, Any]:
    """The entry of a table's report for `unseen`, and warn where it is a large share of the rows."""
    for name, found in unseen.items():
        if found.n_rows > UNSEEN_SHARE * n_rows:
            some, own = ([*map(repr, words)] for words in (found.words, steps.categories[name].categories))
            warn(
                f"column {name!r}: {found.n_rows:,} of {n_rows:,} rows hold categories that the fit never "
                f"saw, such as {', '.join(some)}; they count as none of its own, {listed(own)}; give the "
                f"column these values, or fit the model to rows that have the new ones",
                DataWarning,
            )
    return {"n_unseen_categories": {name: found.n_rows for name, found in unseen.items()}} if unseen else {}


def _batch_rows(table: Table) -> int:
    return max(1, SPAN_BYTES // table.row_bytes)


# pandas, dask and xarray objects, and the arrays of a Zarr group, as tables.

_PART_ROWS = 2**17
_VALUE_BYTES = 16  # about


def _type_of(arrow_array: Callable[[], pa.Array]) -> pa.DataType:
    """The type of an empty column; that of bytes, which has no kind, where Arrow has none."""
    # Arrow itself says what it makes of it: a list of dtypes here would never be whole. Of objects, which may
    # be text, dates or decimals, it knows nothing.
    try:
        return arrow_array().type
    except InputError:
        return pa.binary()


@contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{what} cannot be read ({one_line(error)}); convert its values to one type, or leave it out"
        ) from error


# pandas and dask DataFrames as tables: a part is a run of rows, or a partition.


@dataclass(frozen=True)
class FramePart(TablePart):
    """Rows of a frame: a DataFrame, or a Delayed one that is a DataFrame in the task."""

    frame: Any = field(repr=False)

    def batches(
        self, names: tuple[str, ...], n_rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        positions = {str(name): j for j, name in enumerate(self.frame.columns)}
        last = len(self.frame) if last is None else last
        for at in range(first, last, n_rows):
            rows = self.frame.iloc[at : min(at + n_rows, last)]
            found = {name: _arrow_array(rows.iloc[:, positions[name]], name) for name in names}
            arrays = [of_one_length(array, name, self.start + at) for name, array in found.items()]
            yield pa.RecordBatch.from_arrays(arrays, names=list(names))


@dataclass(frozen=True, eq=False)
class FrameTable(Table):
    """A pandas or dask DataFrame as a table, without rows until columns are chosen."""

    frame: Any = None
    is_paired: bool = False  # whether `paired` has seen the frame

    def loaded(self, names: Sequence[str], beside: Sequence[str], steps: TableSteps | None) -> Table:
        # One pass counts the rows of a dask frame, and looks for categories that the steps lack and for the
        # types of columns beside X: a partition may hold others than its frame declares.
        by_name = {str(column): column for column in self.frame.columns}
        chosen = self.frame[[by_name[name] for name in dict.fromkeys([*names, *beside])]]  # and no others
        persisted_bytes, unseen, look = 0, None, partial(_look, beside=tuple(beside))
        if is_delayed := dask.is_dask_collection(chosen):
            of_rows = {"the DataFrame": chosen}
            if not self.is_paired:
                of_rows, persisted_bytes = paired(of_rows)
            found = counted(of_rows, partial(look, steps=steps))["the DataFrame"]
            runs, looks = [run for run, _ in found], [known.look for _, known in found]
            bounds = list(pairwise(accumulate((known.n_rows for _, known in found), initial=0)))
            unseen = None if steps is None else Unseen.total(one for one, _ in looks)
        else:
            # Slices of rows are views, so that runs of them cost no copy.
            bounds = list(cuts(0, len(chosen), _PART_ROWS))
            runs = [chosen.iloc[a:b] for a, b in bounds]
            looks = list(map(look, runs))
        table = frame_table(chosen)
        return replace(
            table,
            name=table.name + persisted_text(persisted_bytes),
            parts=tuple(FramePart(a, b, run) for (a, b), run in zip(bounds, runs, strict=True)),
            is_delayed=is_delayed,
            persisted_bytes=persisted_bytes,
            unseen=unseen,
            dtypes=single_values(map(_joint, zip(*(found for _, found in looks), strict=True))),
        )

    def head(self, names: Sequence[str]) -> Table | None:
        first = self.frame[[column for column in self.frame.columns if str(column) in names]]
        if dask.is_dask_collection(first):
            if not has_own_order(first):
                return None  # a shuffled frame has no first rows, and would be computed as a whole for them
            # The first partition alone; the rest is read by passes.
            first = first.partitions[0].compute()
        return frame_table(first).loaded(names, (), None)


def _look(
    frame: pd.DataFrame, beside: tuple[str, ...], steps: TableSteps | None = None
) -> tuple[Mapping[str, Unseen], list[Typed]]:
    """The categories that the steps lack, and the types of the columns beside X."""
    of_categories = () if steps is None else steps.names_of_unseen
    names = tuple(dict.fromkeys(of_categories + beside))
    if not names or not len(frame):
        return {}, []
    (batch,) = FramePart(0, len(frame), frame).batches(names, len(frame))
    unseen = {} if steps is None else steps.unseen(raw_columns(batch, of_categories))
    columns = ((name, batch.column(name)) for name in beside)
    return unseen, [(name, A.type, A.null_count > 0) for name, A in columns]


Typed = tuple[str, pa.DataType, bool]  # a column, its type, and whether values are missing


def _joint(runs: Sequence[Typed]) -> Typed:
    """A column of several runs; of no type where theirs have none in common."""
    names, types, nulls = zip(*runs, strict=True)
    return names[0], common_type(types) or pa.null(), any(nulls)


def single_values(columns: Iterable[Typed]) -> dict[str, np.dtype]:
    """The NumPy types of the columns that have one value a row, where they may come beside X."""
    return {name: numpy_type(t, nulls) for name, t, nulls in columns if not pa.types.is_nested(t)}


def frame_table(frame: Any) -> FrameTable:
    """A pandas or dask DataFrame as a table; raises InputError if two columns have one name."""
    names = [str(name) for name in frame.columns]
    if (twice := first_repeated(names)) is not None:
        raise InputError(f"the DataFrame has two columns named {twice!r}; rename one")
    return FrameTable(
        parts=(),
        kinds=dict(zip(names, map(_series_kind, frame.dtypes), strict=True)),
        name=f"{'dask' if dask.is_dask_collection(frame) else 'pandas'} DataFrame",
        row_bytes=max(_VALUE_BYTES, sum(_value_bytes(frame[column]) for column in frame.columns)),
        frame=frame,
    )


def _value_bytes(column: Any) -> int:
    """The bytes of a value, of a list as the first one has them; the values of dask are not known."""
    first = column.iloc[0] if isinstance(column, pd.Series) and len(column) else None
    return 8 * len(first) if isinstance(first, (list, np.ndarray)) else _VALUE_BYTES


def _series_kind(dtype: Any) -> str | None:
    if isinstance(dtype, pd.ArrowDtype):  # of some, pandas makes no empty column
        return raw_kind(dtype.pyarrow_dtype)
    return raw_kind(_type_of(lambda: _arrow_array(pd.Series([], dtype=dtype), "")))


def _arrow_array(column: pd.Series, name: str) -> pa.Array:
    if isinstance(column.dtype, pd.SparseDtype):
        column = column.sparse.to_dense()
    if isinstance(column.dtype, pd.PeriodDtype):  # which Arrow has as numbers
        column = column.dt.to_timestamp()
    with _readable(f"column {name!r} of the DataFrame"):
        # In pandas NaN stands for a missing value.
        values = pa.array(column, from_pandas=True)
    # Text of more than 2 GB comes in chunks, and a batch has none.
    return pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values


# xarray Datasets as tables; xarray itself is never imported.


@dataclass(frozen=True)
class ArraysPart(TablePart):
    """Rows of named arrays, each a list of blocks: arrays, or Delayed blocks that are arrays in the task."""

    blocks: dict[str, list[Any]] = field(repr=False)

    def batches(
        self, names: tuple[str, ...], n_rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        # The blocks of one variable may be cut otherwise than the runs of rows.
        arrays = {name: np.concatenate(self.blocks[name]) for name in names}
        last = self.stop - self.start if last is None else last
        for at in range(first, last, n_rows):
            columns = [_arrow_values(arrays[name][at : min(at + n_rows, last)], name) for name in names]
            yield pa.RecordBatch.from_arrays(columns, names=list(names))


def xarray_table(data: Any, sample_dim: str | None, names: Sequence[str] = ()) -> Table:
    """The data variables with the dimension `sample_dim` as a table; there must be one.

    A variable with further dimensions becomes a column of lists, with entries in C order. Without
    `sample_dim` it is the one dimension that the variables `names` have in common, if there is one.
    """
    dimensions = ", ".join(map(str, data.sizes))
    dims = {str(name): variable.dims for name, variable in data.variables.items()}
    # A model's columns tell the dimension; to guess one otherwise could turn features into samples.
    sample_dim = sample_dim or _common_dimension(dims, names, "an xarray Dataset")
    arrays = {
        str(name): _by_samples(variable, sample_dim)
        for name, variable in [*data.data_vars.items(), *data.coords.items()]
        if sample_dim in variable.dims
    }
    if not arrays:
        raise InputError(
            f"no data variable has the dimension {sample_dim!r}; the dimensions are {dimensions}"
        )
    # Runs of rows: the chunks of the first dask array, or runs of equal length if there is none.
    lazy = [A for A in arrays.values() if dask.is_dask_collection(A)]
    n_rows = len(next(iter(arrays.values())))
    bounds = pairwise(accumulate(lazy[0].chunks[0], initial=0)) if lazy else cuts(0, n_rows, _PART_ROWS)
    return Table(
        parts=tuple(
            ArraysPart(a, b, {name: _blocks(A[a:b]) for name, A in arrays.items()})
            for a, b in bounds
            if b > a
        ),
        **_array_kinds(arrays),
        name="xarray Dataset",
        row_bytes=sum(A.dtype.itemsize * int(np.prod(A.shape[1:])) for A in arrays.values()),
        row_labels=frozenset(map(str, data.coords)),
        is_delayed=bool(lazy),
    )


def _common_dimension(dims: Mapping[str, Sequence[str]], names: Sequence[str], source: str) -> str:
    """The one dimension that the arrays `names` have in common; raise InputError if there is none."""
    shared = [set(dims[name]) for name in names if name in dims]
    common = set.intersection(*shared) if shared else set()
    if len(common) != 1:
        found = ", ".join(dict.fromkeys(str(dim) for of_array in dims.values() for dim in of_array))
        raise InputError(f"{source} needs sample_dim, the dimension of its samples: one of {found or 'none'}")
    return str(common.pop())


def _by_samples(variable: Any, sample_dim: str) -> Any:
    A = variable.transpose(sample_dim, ...).data
    if not dask.is_dask_collection(A):
        return np.asarray(A)
    # A block of samples must hold them whole, to become rows.
    return A.rechunk({axis: -1 for axis in range(1, A.ndim)})


def _blocks(A: Any) -> list[Any]:
    return A.to_delayed().ravel().tolist() if dask.is_dask_collection(A) else [A]


def _array_kinds(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The kinds and types of a table whose columns are arrays."""
    empty = {name: np.empty((0, *A.shape[1:]), A.dtype) for name, A in arrays.items()}
    types = {name: _type_of(partial(_arrow_values, A, "")) for name, A in empty.items()}
    return {
        "kinds": {name: raw_kind(t) for name, t in types.items()},
        "dtypes": single_values((name, t, False) for name, t in types.items()),
    }


def _arrow_values(values: np.ndarray, name: str) -> pa.Array:
    values = values.astype(native(values.dtype), copy=False)
    with _readable(f"the array {name!r}"):
        if values.ndim == 1:
            return pa.array(values, from_pandas=values.dtype.kind in "OU")
        # Arrow's lists of one length are a run of values, which shares NumPy's memory.
        flat = pa.array(np.ascontiguousarray(values).reshape(-1), from_pandas=values.dtype.kind == "O")
        return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:])))


# Zarr groups as tables: a part is a run of rows, which the task reads from the arrays.


@dataclass(frozen=True)
class ZarrPart(TablePart):
    """Rows of arrays; `places` has the array of each column, and its position in a matrix."""

    reader: ZarrReader = field(repr=False)
    places: Mapping[str, tuple[str, int | None]] = field(repr=False)

    def batches(
        self, names: tuple[str, ...], n_rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        begin, end = self.start + first, self.stop if last is None else self.start + last
        arrays = {self.places[name][0] for name in names}
        # One an array, so that the columns of a matrix decode its chunks once.
        readers = {array: TileReader(self.reader.spans(array, begin, end), end - begin) for array in arrays}
        for at in range(begin, end, n_rows):
            taken = {a: reader.take(min(n_rows, end - at))[a] for a, reader in readers.items()}
            columns = [_arrow_values(self._column(taken, name), name) for name in names]
            yield pa.RecordBatch.from_arrays(columns, names=list(names))

    def _column(self, arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
        array, position = self.places[name]
        return arrays[array] if position is None else arrays[array][:, position]


@dataclass(frozen=True, eq=False)
class ZarrTable(Table):
    """Arrays of a Zarr group as a table."""

    reader: Any = None

    def held(self, names: Sequence[str], n_rows: int, *, together: bool) -> tuple[int, int]:
        # All rows are read in batches, beside the decoded chunks.
        spans = sum(self.reader.held_rows(a) * self.reader.row_bytes(a) for a in self.reader.arrays)
        return self.reader.held_bytes(0) + spans, 0


def group_table(location: Location, sample_dim: str | None, names: Sequence[str] = ()) -> ZarrTable:
    """The arrays of a Zarr group whose first dimension is `sample_dim` as a table.

    As `xarray_table` for what xarray wrote there; coordinates are columns only where they are named.
    """
    group = open_group(location)
    found = dict(sorted(group.arrays()))  # the store lists them in an order of its own
    dims = {name: dimensions_of(z) or () for name, z in found.items()}
    sample_dim = sample_dim or _common_dimension(dims, names, str(location))
    arrays = {name: z for name, z in found.items() if dims[name][:1] == (sample_dim,)}
    if not arrays:
        raise InputError(
            f"no array of {location} has the first dimension {sample_dim!r}; the arrays have the dimensions "
            f"{', '.join(f'{name} {of_array}' for name, of_array in dims.items())}"
        )
    # xarray writes the names of coordinates as an attribute of the group, or of the variables that have them.
    listed = [z.attrs.get("coordinates", "") for z in (group, *found.values())]
    coordinates = {sample_dim, *" ".join(filter(lambda one: isinstance(one, str), listed)).split()}
    reader = ZarrReader(arrays, str(location))
    places = {name: (name, None) for name in arrays}
    table = _zarr_table(reader, places, row_labels=frozenset(coordinates & arrays.keys()))
    why = f"{sample_dim} is not its first dimension; give the Dataset of xarray.open_zarr, which takes it"
    others = {name: why for name, of_array in dims.items() if sample_dim in of_array[1:]}
    if lacking := next((name for name in names if name in others), None):
        raise InputError(f"array {lacking!r} of {location} cannot be read: {why}")
    return replace(table, kinds={**table.kinds, **dict.fromkeys(others)}, odd=others)


def matrix_table(dataset: Dataset, x_name: str) -> tuple[ZarrTable, Any, str | None]:
    """The arrays of a Zarr group as a table, and the columns of it that are the target and the weights.

    Columns without a name are numbered: X_0, X_1, ...
    """
    given: Any = dataset.reader
    columns_beside: Mapping[str, Any] = dataset.id_readers
    beside = {f"beside {name}": column.arrays["y"] for name, column in columns_beside.items()}
    reader = ZarrReader(given.arrays | beside, given.source)
    reader.columns = given.columns
    numbers = range(dataset.n_columns) if reader.columns is None else reader.columns
    # A table has names; a matrix may have none.
    names = dataset.column_names or tuple(f"{x_name}_{i}" for i in numbers)
    places: dict[str, tuple[str, int | None]] = {name: ("X", i) for i, name in enumerate(names)}
    target: Any = None
    if dataset.n_targets and dataset.y_is_1d:
        (target,) = dataset.target_names or ("y",)
        places[target] = ("y", None)
    elif dataset.n_targets:
        target = [f"y_{i}" for i in range(dataset.n_targets)]
        places |= {name: ("y", i) for i, name in enumerate(target)}
    weight = "sample_weight" if dataset.has_weights else None
    if weight is not None:
        places[weight] = (weight, None)
    # A name that stands twice takes one place.
    n_places = len(names) + dataset.n_targets + dataset.has_weights
    if len(places) < n_places or not columns_beside.keys().isdisjoint(names):
        raise InputError(
            f"{dataset.source}: a column of X has the name of the target, the weights or an array beside X; "
            f"rename it"
        )
    # y itself may be beside X.
    places = {name: (f"beside {name}", None) for name in columns_beside} | places
    return _zarr_table(reader, places), target, weight


def _zarr_table(reader: ZarrReader, places: Mapping[str, tuple[str, int | None]], **more: Any) -> ZarrTable:
    first = next(iter(reader.arrays.values()))
    # Parts end with chunks, of which no two tasks decode the same.
    step = first.chunks[0] * max(1, _PART_ROWS // first.chunks[0])
    return ZarrTable(
        parts=tuple(ZarrPart(a, b, reader, places) for a, b in cuts(0, first.shape[0], step)),
        **_array_kinds({name: _no_values(reader, *place) for name, place in places.items()}),
        name=reader.source,
        row_bytes=sum(map(reader.row_bytes, reader.arrays)),
        reader=reader,
        **more,
    )


def _no_values(reader: ZarrReader, array: str, position: int | None) -> np.ndarray:
    columns = reader.arrays[array].shape[1:] if position is None else ()
    return np.empty((0, *columns), reader.decoded_dtype(array))
