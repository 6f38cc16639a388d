"""pandas and dask DataFrames as tables for steps: a part is a run of rows, or a partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa

from distrff.data.arrow_values import raw_kind
from distrff.data.raw_table import RawTable
from distrff.data.storage import one_line
from distrff.errors import InputError

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
            arrays = [_arrow(rows.iloc[:, positions[name]], name) for name in names]
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
        kinds=dict(zip(names, map(_kind, frame.dtypes), strict=True)),
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


def _kind(dtype: Any) -> str | None:
    """The kind of a column; "unknown" for objects, whose values tell."""
    if isinstance(dtype, pd.SparseDtype):
        return _kind(dtype.subtype)
    if dtype == np.dtype(object):
        return "unknown"
    try:
        return raw_kind(_arrow(pd.Series([], dtype=dtype), "").type)
    except InputError:
        return None


def _arrow(column: pd.Series, name: str) -> pa.Array:
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
