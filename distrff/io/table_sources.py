"""pandas, dask and xarray objects as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa

from distrff.errors import InputError
from distrff.io.arrow import raw_kind
from distrff.io.dataset import native
from distrff.io.partitions import counted, paired, persisted_text
from distrff.io.rows import cuts
from distrff.io.storage import one_line
from distrff.io.tables import Table, TablePart
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
            arrays = [_arrow_array(rows.iloc[:, positions[name]], name) for name in names]
            yield pa.RecordBatch.from_arrays(arrays, names=list(names))


@dataclass(frozen=True, eq=False)
class FrameTable(Table):
    """A pandas or dask DataFrame as a table, without rows until columns are chosen."""

    frame: Any = None

    def loaded(self, names: Sequence[str]) -> Table:
        """Return some columns; the partitions of a dask DataFrame are computed once to count their rows."""
        by_name = {str(column): column for column in self.frame.columns}
        chosen = self.frame[[by_name[name] for name in names]]  # tasks get no others
        persisted_bytes = 0
        if is_delayed := dask.is_dask_collection(chosen):
            of_rows, persisted_bytes = paired({"the DataFrame": chosen})
            counts = counted(of_rows)["the DataFrame"].parts
            runs = [run for run, _ in counts]
            bounds = list(pairwise(accumulate((n for _, n in counts), initial=0)))
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
        )


def frame_table(frame: Any) -> FrameTable:
    """Return a pandas or dask DataFrame as a table; raises InputError if two columns have one name."""
    names = [str(name) for name in frame.columns]
    if (twice := first_repeated(names)) is not None:
        raise InputError(f"the DataFrame has two columns named {twice!r}; rename one")
    return FrameTable(
        parts=(),
        kinds=dict(zip(names, map(_series_kind, frame.dtypes), strict=True)),
        name=f"{'dask' if dask.is_dask_collection(frame) else 'pandas'} DataFrame",
        row_bytes=_VALUE_BYTES * max(1, len(names)),
        frame=frame,
    )


def _series_kind(dtype: Any) -> str | None:
    """Return the kind of a column; "unknown" for objects, where the values decide."""
    if isinstance(dtype, pd.SparseDtype):
        return _series_kind(dtype.subtype)
    if dtype == np.dtype(object):
        return "unknown"
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
    if sample_dim is None:
        shared = [set(data[name].dims) for name in names if name in data.data_vars]
        common = set.intersection(*shared) if shared else set()
        sample_dim = common.pop() if len(common) == 1 else None
    if sample_dim is None:
        raise InputError(
            f"an xarray Dataset needs sample_dim, the dimension of its samples: one of {dimensions}; give it "
            f"to distrff.open_dataset(data, steps=..., sample_dim=...)"
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
        is_delayed=bool(lazy),
    )


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
    with _readable(f"variable {name!r} of the xarray Dataset"):
        if values.ndim == 1:
            return pa.array(values, from_pandas=values.dtype.kind in "OU")
        flat = pa.array(np.ascontiguousarray(values).reshape(-1), from_pandas=values.dtype.kind == "O")
        return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:])))
