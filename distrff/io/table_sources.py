"""pandas, dask and xarray objects, and the arrays of a Zarr group, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa

from distrff.errors import InputError
from distrff.io.arrow import of_one_length, raw_columns, raw_kind
from distrff.io.dataset import Dataset, native
from distrff.io.partitions import counted, has_own_order, paired, persisted_text
from distrff.io.rows import TileReader, cuts
from distrff.io.storage import Location, is_local, one_line
from distrff.io.tables import Table, TablePart
from distrff.io.zarr_rows import ZarrReader, dimensions_of, open_group
from distrff.preprocessing.profile import TableOptions
from distrff.preprocessing.table import TableSteps
from distrff.preprocessing.words import Unseen
from distrff.utils.text import first_repeated

_PART_ROWS = 2**17
_VALUE_BYTES = 16  # about


def _kind_of(arrow_array: Callable[[], pa.Array]) -> str | None:
    """Return the kind of a column, given an empty array of it; None if Arrow has no type for it."""
    try:
        return raw_kind(arrow_array().type)
    except InputError:
        return None


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Turn Arrow's exceptions about values into an `InputError`."""
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
        """Yield columns, `n_rows` rows at a time."""
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

    def loaded(self, names: Sequence[str], steps: TableSteps | None = None) -> Table:
        """Return some columns; the partitions of a dask DataFrame are computed once to count their rows.

        The same pass looks for categories that the steps lack.
        """
        by_name = {str(column): column for column in self.frame.columns}
        chosen = self.frame[[by_name[name] for name in names]]  # tasks get no others
        persisted_bytes, unseen = 0, None
        if is_delayed := dask.is_dask_collection(chosen):
            of_rows, persisted_bytes = paired({"the DataFrame": chosen})
            look = None if steps is None else partial(_unseen_in, steps=steps)
            found = counted(of_rows, look)["the DataFrame"]
            runs = [run for run, _ in found.parts]
            bounds = list(pairwise(accumulate((n for _, n in found.parts), initial=0)))
            unseen = None if steps is None else Unseen.total(found.looks)
        else:
            bounds = list(cuts(0, len(chosen), _PART_ROWS))
            runs = [chosen.iloc[a:b] for a, b in bounds]
        table = frame_table(chosen)
        return replace(
            table,
            name=table.name + persisted_text(persisted_bytes),
            parts=tuple(FramePart(a, b, run) for (a, b), run in zip(bounds, runs, strict=True)),
            is_delayed=is_delayed,
            persisted_bytes=persisted_bytes,
            unseen=unseen,
        )

    def head(self, names: Sequence[str]) -> Table | None:
        """Return the first rows of some columns, of a dask DataFrame its first partition.

        A shuffled one has no first rows, and would be computed as a whole for them.
        """
        first = self.frame[[column for column in self.frame.columns if str(column) in names]]
        if dask.is_dask_collection(first):
            if not has_own_order(first):
                return None
            first = first.partitions[0].compute()
        return frame_table(first).loaded(names)


def _unseen_in(frame: pd.DataFrame, steps: TableSteps) -> dict[str, Unseen]:
    names = steps.names_of_unseen
    batches = FramePart(0, len(frame), frame).batches(names, len(frame)) if names and len(frame) else ()
    return Unseen.total(steps.unseen(raw_columns(batch, names)) for batch in batches)


def frame_table(frame: Any) -> FrameTable:
    """Return a pandas or dask DataFrame as a table; raises InputError if two columns have one name."""
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
    """Return the bytes of a value, of a list as the first one has them; the values of dask are not known."""
    first = column.iloc[0] if isinstance(column, pd.Series) and len(column) else None
    return 8 * len(first) if isinstance(first, (list, np.ndarray)) else _VALUE_BYTES


def _series_kind(dtype: Any) -> str | None:
    """Return the kind of a column; "unknown" for objects, where the values decide."""
    if isinstance(dtype, pd.SparseDtype):
        return _series_kind(dtype.subtype)
    if dtype == np.dtype(object):
        return "unknown"
    if isinstance(dtype, pd.ArrowDtype):
        return raw_kind(dtype.pyarrow_dtype)
    return _kind_of(lambda: _arrow_array(pd.Series([], dtype=dtype), ""))


def _arrow_array(column: pd.Series, name: str) -> pa.Array:
    if isinstance(column.dtype, pd.SparseDtype):
        column = column.sparse.to_dense()
    with _readable(f"column {name!r} of the DataFrame"):
        values = pa.array(column, from_pandas=True)
    return pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values


# xarray Datasets as tables; xarray itself is never imported.


@dataclass(frozen=True)
class ArraysPart(TablePart):
    """Rows of named arrays, each a list of blocks: arrays, or Delayed blocks that are arrays in the task."""

    blocks: dict[str, list[Any]] = field(repr=False)

    def batches(
        self, names: tuple[str, ...], n_rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns, `n_rows` rows at a time; rows of several dimensions become lists."""
        arrays = {name: np.concatenate(self.blocks[name]) for name in names}
        last = self.stop - self.start if last is None else last
        for at in range(first, last, n_rows):
            columns = [_arrow_values(arrays[name][at : min(at + n_rows, last)], name) for name in names]
            yield pa.RecordBatch.from_arrays(columns, names=list(names))


def xarray_table(data: Any, sample_dim: str | None, names: Sequence[str] = ()) -> Table:
    """Return the data variables with the dimension `sample_dim` as a table; there must be one.

    A variable with further dimensions becomes a column of lists, with entries in C order. Without
    `sample_dim` it is the one dimension that the variables `names` have in common, if there is one.
    """
    dimensions = ", ".join(map(str, data.sizes))
    dims = {str(name): variable.dims for name, variable in data.variables.items()}
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
        kinds={name: _variable_kind(A) for name, A in arrays.items()},
        name="xarray Dataset",
        row_bytes=sum(A.dtype.itemsize * int(np.prod(A.shape[1:])) for A in arrays.values()),
        row_labels=frozenset(map(str, data.coords)),
        is_delayed=bool(lazy),
    )


def _common_dimension(dims: Mapping[str, Sequence[str]], names: Sequence[str], source: str) -> str:
    """Return the one dimension that the arrays `names` have in common; raise InputError if there is none."""
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
    return A.rechunk({axis: -1 for axis in range(1, A.ndim)})


def _blocks(A: Any) -> list[Any]:
    return A.to_delayed().ravel().tolist() if dask.is_dask_collection(A) else [A]


def _variable_kind(A: Any) -> str | None:
    if A.ndim == 1 and A.dtype.kind == "O":
        return "unknown"
    return _kind_of(lambda: _arrow_values(np.empty((0, *A.shape[1:]), A.dtype), ""))


def _arrow_values(values: np.ndarray, name: str) -> pa.Array:
    values = values.astype(native(values.dtype), copy=False)
    with _readable(f"the array {name!r}"):
        if values.ndim == 1:
            return pa.array(values, from_pandas=values.dtype.kind in "OU")
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
        """Yield columns, `n_rows` rows at a time; rows of several dimensions become lists."""
        begin, end = self.start + first, self.stop if last is None else self.start + last
        arrays = {self.places[name][0] for name in names}
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
        """Return the bytes of the decoded chunks beside a batch; all rows are read in batches."""
        spans = sum(self.reader.held_rows(a) * self.reader.row_bytes(a) for a in self.reader.arrays)
        return self.reader.held_bytes(0) + spans, 0


def group_table(location: Location, sample_dim: str | None, names: Sequence[str] = ()) -> ZarrTable:
    """Return the arrays of a Zarr group whose first dimension is `sample_dim` as a table.

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
    listed = [z.attrs.get("coordinates", "") for z in (group, *found.values())]
    coordinates = {sample_dim, *" ".join(filter(lambda one: isinstance(one, str), listed)).split()}
    reader = ZarrReader(arrays, None, str(location), is_remote=not is_local(location.file_system()[0]))
    places = {name: (name, None) for name in arrays}
    table = _zarr_table(reader, places, row_labels=frozenset(coordinates & arrays.keys()))
    why = f"{sample_dim} is not its first dimension; give the Dataset of xarray.open_zarr, which takes it"
    others = {name: why for name, of_array in dims.items() if sample_dim in of_array[1:]}
    if lacking := next((name for name in names if name in others), None):
        raise InputError(f"array {lacking!r} of {location} cannot be read: {why}")
    return replace(table, kinds={**table.kinds, **dict.fromkeys(others)}, odd=others)


def matrix_table(dataset: Dataset, x_name: str) -> tuple[ZarrTable, TableOptions]:
    """Return the columns of X, y and the weights of a Zarr group as a table, and its target and weights.

    Columns without a name are numbered: X_0, X_1, ...
    """
    reader: Any = dataset.reader
    numbers = range(dataset.n_columns) if reader.columns is None else reader.columns
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
    if len(places) < len(names) + dataset.n_targets + dataset.has_weights:
        raise InputError(
            f"{dataset.source}: a column of X has the name of the target or the weights; rename it"
        )
    return _zarr_table(reader, places), TableOptions(target, sample_weight=weight)


def _zarr_table(reader: ZarrReader, places: Mapping[str, tuple[str, int | None]], **more: Any) -> ZarrTable:
    first = next(iter(reader.arrays.values()))
    step = first.chunks[0] * max(1, _PART_ROWS // first.chunks[0])
    return ZarrTable(
        parts=tuple(ZarrPart(a, b, reader, places) for a, b in cuts(0, first.shape[0], step)),
        kinds={name: _zarr_kind(reader, *place) for name, place in places.items()},
        name=reader.source,
        row_bytes=sum(map(reader.row_bytes, reader.arrays)),
        reader=reader,
        **more,
    )


def _zarr_kind(reader: ZarrReader, array: str, position: int | None) -> str | None:
    columns = reader.arrays[array].shape[1:] if position is None else ()
    return _variable_kind(np.empty((0, *columns), reader.decoded_dtype(array)))
