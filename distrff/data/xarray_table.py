"""xarray Datasets as tables whose rows go through steps; xarray itself is never imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import dask
import numpy as np
import pyarrow as pa

from distrff.data.arrow_values import raw_kind
from distrff.data.matrices import native
from distrff.data.raw_table import RawTable
from distrff.data.rows import cuts
from distrff.data.storage import one_line
from distrff.errors import InputError

_PART_ROWS = 2**17


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
            columns = [_arrow(arrays[name][at : min(at + n_rows, last)], name) for name in names]
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
        kinds={name: _kind(A) for name, A in arrays.items()},
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


def _kind(A: Any) -> str | None:
    if A.ndim == 1 and A.dtype.kind == "O":
        return "unknown"
    try:
        return raw_kind(_arrow(np.empty((0, *A.shape[1:]), A.dtype), "").type)
    except InputError:
        return None


def _arrow(values: np.ndarray, name: str) -> pa.Array:
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
