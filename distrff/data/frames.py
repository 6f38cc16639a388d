"""dask DataFrames and Series as dask arrays with known chunks."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
from dask.utils import is_dataframe_like

from distrff.data.matrices import check_shape, frame_dtype, frame_matrix, names_of, series_values

OBJECT = np.dtype(object)


def frame_arrays(
    frames: dict[str, Any],
) -> tuple[dict[str, da.Array], dict[str, tuple[str, ...] | None]]:
    """Return the frames, keyed X, y or sample_weight, as dask arrays, and their column names.

    The rows of all partitions are counted in one pass. It goes over the partitions that the arrays
    are made of, because another query of the same frame (its length, one column) can be optimized
    to other partitions.
    """
    dtypes = {field: _dtype(frame, field) for field, frame in frames.items()}
    parts = {field: frame.to_delayed() for field, frame in frames.items()}
    (lengths,) = dask.compute({f: [dask.delayed(len)(p) for p in ps] for f, ps in parts.items()})
    arrays = {
        field: _array(parts[field], lengths[field], dtypes[field], _columns(frame), field)
        for field, frame in frames.items()
    }
    names = {f: names_of(v.columns if is_dataframe_like(v) else [v.name]) for f, v in frames.items()}
    return arrays, names


def _columns(frame: Any) -> tuple[int, ...]:
    return (len(frame.columns),) if is_dataframe_like(frame) else ()


def _array(
    parts: list[Any], lengths: list[int], dtype: np.dtype, columns: tuple[int, ...], field: str
) -> da.Array:
    check_shape((sum(lengths), *(columns or (1,))), field)
    meta = np.empty((0,) * (1 + len(columns)), dtype)
    values = dask.delayed(_values)
    blocks = [
        da.from_delayed(values(part, dtype), (n, *columns), dtype=dtype, meta=meta)
        for part, n in zip(parts, lengths, strict=True)
        if n
    ]
    return da.concatenate(blocks)


def _dtype(frame: Any, field: str) -> np.dtype:
    """The type of the array, which must not depend on the values of one partition."""
    pairs = list(frame.dtypes.items()) if is_dataframe_like(frame) else [(frame.name, frame.dtype)]
    if field != "y":
        return frame_dtype(pairs, field)
    numbers = pairs and all(_is_plain_number(dtype) for _, dtype in pairs)
    return frame_dtype(pairs, field) if numbers else OBJECT


def _is_plain_number(dtype: Any) -> bool:
    return not isinstance(dtype, pd.CategoricalDtype) and dtype.kind in "biufc"


def _values(part: Any, dtype: np.dtype) -> np.ndarray:
    if isinstance(part, pd.Series):
        return series_values(part).astype(dtype, copy=False)
    return part.to_numpy(dtype=object) if dtype == OBJECT else frame_matrix(part, dtype)
