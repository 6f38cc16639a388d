"""A table whose rows go through steps: parts that a task reads, and the kinds of its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol

import dask
import numpy as np
import pandas as pd
import pyarrow as pa

from distrff.errors import InputError
from distrff.io.arrays import native
from distrff.io.arrow import raw_kind
from distrff.io.parquet_rows import (
    Footer,
    GroupColumns,
    ParquetSource,
    RowGroup,
    check_unchanged,
    is_feature,
    parquet_file,
    row_groups,
)
from distrff.io.rows import cuts
from distrff.io.storage import one_line
from distrff.preprocessing.profile import LEFT_OUT_TIMES, TableOptions, find_columns
from distrff.utils.text import listed


class RawRows(Protocol):
    """Consecutive raw rows of a table, as a small picklable dataclass.

    A field may be a Delayed that arrives in the task as data, as in `Rows`.
    """

    @property
    def start(self) -> int:
        """Number of the first row in the table."""
        ...

    @property
    def stop(self) -> int: ...

    def batches(
        self, names: tuple[str, ...], n_rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns `names` of the part's rows [first, last), at most about `n_rows` at a time.

        `last` is None for all rows, which are then never held together.
        """
        ...


@dataclass(frozen=True, eq=False)
class RawTable:
    """A table that lies somewhere in parts.

    Parameters
    ----------
    parts : tuple of RawRows
        One after the other; none is empty.
    kinds : mapping of str to (str or None)
        Of the columns in their order: a kind of `RawColumn`; "unknown" where only the values tell; None for
        a type that no step takes.
    source : str
        For messages; without credentials.
    row_bytes : int
        About, of a raw row.
    row_labels : frozenset of str
        Columns that label rows: neither counted by indices nor taken unless they are named.
    is_delayed : bool
        Whether parts hold Delayed objects.
    column_bytes : mapping of str to ndarray
        What decoding a column of each part may hold, by name; empty where nothing is decoded.
    """

    parts: tuple[RawRows, ...]
    kinds: Mapping[str, str | None]
    source: str
    row_bytes: int
    row_labels: frozenset[str] = frozenset()
    is_delayed: bool = False
    column_bytes: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        return self.parts[-1].stop if self.parts else 0


# Which raw columns of a table become X, y and weights, and why others do not.


class Choice(NamedTuple):
    """Names of raw columns.

    columns : of X, in the table's order unless they were named in another.
    target : of y; weight : of sample weights, or None.
    dropped : why others are left out, by name.
    """

    columns: tuple[str, ...]
    target: tuple[str, ...]
    weight: str | None
    dropped: dict[str, str]

    @property
    def used(self) -> tuple[str, ...]:
        """All names, each once."""
        weight = () if self.weight is None else (self.weight,)
        return tuple(dict.fromkeys([*self.columns, *self.target, *weight]))


def choose_columns(table: RawTable, options: TableOptions) -> Choice:
    """Return what the options mean in this table.

    Raises
    ------
    InputError
        If a column that they name is missing, of a kind that they do not take, or named for two uses.
    """
    target = _named(table, options.target)
    weights = _named(table, options.sample_weight)
    if len(weights) > 1:
        raise InputError(f"sample_weight must name one column, got {listed(weights)}")
    rest = [n for n in table.kinds if n not in {*target, *weights, *table.row_labels}]
    reasons = {name: why for name in rest if (why := _left_out(table.kinds[name], options))}
    if options.columns is not None:
        columns, dropped = _named(table, options.columns), {}
        _check_named(table, columns, target, weights, options)
    else:
        unwanted = set(_named(table, options.drop))
        columns = [n for n in rest if n not in reasons and n not in unwanted]
        dropped = {n: why for n, why in reasons.items() if n not in unwanted}
    if not columns:
        raise InputError(
            f"{table.source} has no columns for X; besides target and weights it has: "
            f"{', '.join(f'{name} ({why})' for name, why in list(dropped.items())[:10]) or 'none'}"
        )
    return Choice(tuple(columns), tuple(target), weights[0] if weights else None, dropped)


def _named(table: RawTable, keys: Any) -> list[str]:
    if keys is None:
        return []
    plain = [name for name in table.kinds if name not in table.row_labels]
    if isinstance(keys, str) and keys in table.kinds:
        return [keys]
    return [plain[i] for i in find_columns(keys, plain, table.source)]


def _left_out(kind: str | None, options: TableOptions) -> str | None:
    """Why columns of a kind are left out; None if they are not."""
    if kind is None:
        return "its type is neither numbers nor text nor times"
    if kind == "text" and not options.one_hot:
        return "it holds text; one_hot=True takes it"
    if kind in ("time", "clock") and options.datetime is None:
        return LEFT_OUT_TIMES
    return None


def _check_named(
    table: RawTable, columns: list[str], target: list[str], weights: list[str], options: TableOptions
) -> None:
    for name in columns:
        if name in target or name in weights:
            other = "y" if name in target else "weights"
            raise InputError(f"column {name!r} is asked for as a column of X and as {other}")
        why = _left_out(table.kinds[name], options)
        if why is not None:
            raise InputError(f"column {name!r} of {table.source} cannot be a column of X: {why}")


# Parquet files as a table whose rows go through steps: a part is a row group.

_BYTES_OF_KIND = {"number": 8, "time": 8, "text": 32}  # about


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
    return _BYTES_OF_KIND.get(raw_kind(column_type) or "", 1)


# pandas and dask DataFrames as tables for steps: a part is a run of rows, or a partition.

_PART_ROWS = 2**17
_VALUE_BYTES = 16  # about


@dataclass(frozen=True)
class FramePart:
    """Rows of a frame: a DataFrame, or a Delayed one that is a DataFrame in the task."""

    start: int
    stop: int
    frame: Any = field(repr=False)

    def batches(
        self, names: tuple[str, ...], n_rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns, `n_rows` rows at a time.

        Raises
        ------
        InputError
            If a column holds values of several types, or a partition has another number of rows than before.
        """
        if len(self.frame) != self.stop - self.start:
            raise InputError(
                f"a partition of the DataFrame has {len(self.frame)} rows, but had {self.stop - self.start} "
                f"when it was opened; its source was changed, or random numbers without a seed are in it"
            )
        positions = {str(name): j for j, name in enumerate(self.frame.columns)}
        last = len(self.frame) if last is None else last
        for at in range(first, last, n_rows):
            rows = self.frame.iloc[at : min(at + n_rows, last)]
            arrays = [_arrow_array(rows.iloc[:, positions[name]], name) for name in names]
            yield pa.RecordBatch.from_arrays(arrays, names=list(names))


def described_frame(frame: Any) -> RawTable:
    """Return what a pandas or dask DataFrame says of its columns, as a table without rows.

    Raises
    ------
    InputError
        If two columns have one name.
    """
    names = [str(name) for name in frame.columns]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"the DataFrame has two columns named {name!r}; rename one")
    return RawTable(
        parts=(),
        kinds=dict(zip(names, map(_series_kind, frame.dtypes), strict=True)),
        source=f"{'dask' if dask.is_dask_collection(frame) else 'pandas'} DataFrame",
        row_bytes=_VALUE_BYTES * max(1, len(names)),
    )


def frame_table(frame: Any, names: Sequence[str]) -> RawTable:
    """Return some columns of a pandas or dask DataFrame as a table.

    Notes
    -----
    The partitions of a dask DataFrame are computed once to count their rows.
    """
    of = {str(column): column for column in frame.columns}
    chosen = frame[[of[name] for name in names]]  # no others travel to the tasks
    is_delayed = dask.is_dask_collection(frame)
    parts = _partitions(chosen) if is_delayed else _runs(chosen)
    return replace(described_frame(chosen), parts=parts, is_delayed=is_delayed)


def _runs(frame: pd.DataFrame) -> tuple[FramePart, ...]:
    bounds = [*range(0, len(frame), _PART_ROWS), len(frame)]
    return tuple(FramePart(a, b, frame.iloc[a:b]) for a, b in pairwise(bounds) if b > a)


def _partitions(frame: Any) -> tuple[FramePart, ...]:
    # Rows are counted of the very partitions that are read: another query of the frame, such as its
    # length, can be optimized to other partitions.
    delayed = frame.to_delayed()
    (lengths,) = dask.compute([dask.delayed(len)(part) for part in delayed])
    bounds = pairwise(accumulate(lengths, initial=0))
    return tuple(FramePart(a, b, part) for (a, b), part in zip(bounds, delayed, strict=True) if b > a)


def _series_kind(dtype: Any) -> str | None:
    """The kind of a column; "unknown" for objects, whose values tell."""
    if isinstance(dtype, pd.SparseDtype):
        return _series_kind(dtype.subtype)
    if dtype == np.dtype(object):
        return "unknown"
    try:
        return raw_kind(_arrow_array(pd.Series([], dtype=dtype), "").type)
    except InputError:
        return None


def _arrow_array(column: pd.Series, name: str) -> pa.Array:
    if isinstance(column.dtype, pd.SparseDtype):
        column = column.sparse.to_dense()
    try:
        values = pa.array(column, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"column {name!r} of the DataFrame cannot be read ({one_line(error)}); give it values of one "
            f"type, or leave it out"
        ) from error
    return pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values


# xarray Datasets as tables whose rows go through steps; xarray itself is never imported.


@dataclass(frozen=True)
class ArraysPart:
    """Rows of arrays by name: each a list of blocks, or of Delayed ones that are arrays in the task."""

    start: int
    stop: int
    blocks: dict[str, list[Any]] = field(repr=False)

    def batches(
        self, names: tuple[str, ...], n_rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns, `n_rows` rows at a time; what lies beyond the rows becomes a list.

        Raises
        ------
        InputError
            If an array of objects holds values of several types.
        """
        arrays = {name: np.concatenate(self.blocks[name]) for name in names}
        last = self.stop - self.start if last is None else last
        for at in range(first, last, n_rows):
            columns = [_arrow_values(arrays[name][at : min(at + n_rows, last)], name) for name in names]
            yield pa.RecordBatch.from_arrays(columns, names=list(names))


def is_xarray(data: Any) -> bool:
    """Tell whether `data` is an xarray Dataset."""
    return hasattr(data, "data_vars") and hasattr(data, "sizes")


def xarray_table(data: Any, sample_dim: str | None) -> RawTable:
    """Return the data variables that lie along `sample_dim` as a table.

    A variable with further dimensions becomes a column of lists, their entries in C order.

    Raises
    ------
    InputError
        If no variable has the dimension.
    """
    dimensions = ", ".join(map(str, data.sizes))
    if sample_dim is None:
        raise InputError(
            f"an xarray Dataset needs sample_dim, the dimension of its samples: one of {dimensions}"
        )
    arrays = {
        str(name): _by_samples(variable, sample_dim)
        for name, variable in data.data_vars.items()
        if sample_dim in variable.dims
    }
    if not arrays:
        raise InputError(
            f"no data variable has the dimension {sample_dim!r}; the dimensions are {dimensions}"
        )
    return RawTable(
        parts=_parts(arrays),
        kinds={name: _variable_kind(A) for name, A in arrays.items()},
        source="xarray Dataset",
        row_bytes=sum(A.dtype.itemsize * int(np.prod(A.shape[1:])) for A in arrays.values()),
        is_delayed=any(map(dask.is_dask_collection, arrays.values())),
    )


def _by_samples(variable: Any, sample_dim: str) -> Any:
    A = variable.transpose(sample_dim, ...).data
    if not dask.is_dask_collection(A):
        return np.asarray(A)
    return A.rechunk({axis: -1 for axis in range(1, A.ndim)})


def _parts(arrays: dict[str, Any]) -> tuple[ArraysPart, ...]:
    """Runs of rows: the chunks of the first dask array, or else of equal length."""
    lazy = [A for A in arrays.values() if dask.is_dask_collection(A)]
    n_rows = len(next(iter(arrays.values())))
    bounds = pairwise(accumulate(lazy[0].chunks[0], initial=0)) if lazy else cuts(0, n_rows, _PART_ROWS)
    return tuple(
        ArraysPart(a, b, {name: _blocks(A[a:b]) for name, A in arrays.items()}) for a, b in bounds if b > a
    )


def _blocks(A: Any) -> list[Any]:
    return A.to_delayed().ravel().tolist() if dask.is_dask_collection(A) else [A]


def _variable_kind(A: Any) -> str | None:
    if A.ndim == 1 and A.dtype.kind == "O":
        return "unknown"
    try:
        return raw_kind(_arrow_values(np.empty((0, *A.shape[1:]), A.dtype), "").type)
    except InputError:
        return None


def _arrow_values(values: np.ndarray, name: str) -> pa.Array:
    values = values.astype(native(values.dtype), copy=False)
    try:
        if values.ndim == 1:
            return pa.array(values, from_pandas=values.dtype.kind in "OU")
        flat = pa.array(np.ascontiguousarray(values).reshape(-1), from_pandas=values.dtype.kind == "O")
        return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:])))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(
            f"variable {name!r} of the xarray Dataset cannot be read ({one_line(error)}); give it values of "
            f"one type, or leave it out"
        ) from error
