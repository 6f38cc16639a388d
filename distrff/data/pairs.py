"""Truths beside predictions as a dataset, so that whatever sweeps rows sweeps them."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd

from distrff.data.arrays import ArrayReader, check_known_chunks, is_frame, whole_rows
from distrff.data.dataset import BLOCK_BYTES, Dataset
from distrff.data.frames import frame_arrays
from distrff.data.matrices import in_native, plain_array, targets_of, weights_of
from distrff.errors import InputError, InputTypeError


def paired_rows(
    y_true: Any, y_pred: Any, sample_weight: Any = None, *, prediction: str = "y_pred"
) -> Dataset:
    """Return a dataset whose y are truths and whose X are predictions, both of any type.

    Parameters
    ----------
    y_true, y_pred : array-like, Series, DataFrame or their dask kinds, of shape (n,) or (n, k)
        Dask arrays may be cut into any chunks.
    sample_weight : the same, of shape (n,), optional
    prediction : str
        What errors call `y_pred`.

    Raises
    ------
    InputError
        If lengths differ, there are no rows, or chunk sizes of a dask array are unknown.
    InputTypeError
        If something is neither an array nor a frame.
    """
    given = {"y": ("y_true", y_true), "X": (prediction, y_pred)}
    if sample_weight is not None:
        given["sample_weight"] = ("sample_weight", sample_weight)
    arrays = {field: _array(field, name, values) for field, (name, values) in given.items()}
    _check_shapes(arrays, {field: name for field, (name, _) in given.items()})
    if any(isinstance(A, da.Array) for A in arrays.values()):
        chunks = next(A.chunks[0] for A in arrays.values() if isinstance(A, da.Array))
        arrays = {field: _lazy(field, A, chunks) for field, A in arrays.items()}
    X, y = arrays["X"], arrays["y"]
    row_bytes = sum(A.dtype.itemsize * _width(A) for A in arrays.values())
    return Dataset(
        reader=ArrayReader(arrays, {field: A.dtype for field, A in arrays.items()}),
        n_rows=len(X),
        n_columns=_width(X),
        dtype=X.dtype,
        source="predictions",
        row_bytes=row_bytes,
        chunk_rows=max(X.chunks[0]) if isinstance(X, da.Array) else max(1, BLOCK_BYTES // row_bytes),
        y_dtype=y.dtype,
        n_targets=_width(y),
        y_is_1d=y.ndim == 1,
        has_weights="sample_weight" in arrays,
    )


def _array(field: str, name: str, values: Any) -> Any:
    if not dask.is_dask_collection(values):
        if field == "sample_weight":
            return weights_of(values)
        if isinstance(values, pd.Series | pd.DataFrame):
            return targets_of(values)[0]
        return in_native(plain_array(values, name))
    if is_frame(values):
        return frame_arrays({"y": values})[0]["y"]
    if not isinstance(values, da.Array):
        raise InputTypeError(
            f"{name} is a dask {type(values).__name__}; pass a dask Array, DataFrame or Series"
        )
    check_known_chunks(values, name)
    return values


def _check_shapes(arrays: dict[str, Any], names: dict[str, str]) -> None:
    n = arrays["y"].shape[0] if arrays["y"].ndim else 0
    for field, A in arrays.items():
        if A.ndim not in ((1,) if field == "sample_weight" else (1, 2)) or A.shape[1:] == (0,):
            raise InputError(f"{names[field]} must have one row for each sample, got shape {A.shape}")
        if A.dtype.kind == "c":
            raise InputError(f"Complex data not supported: {names[field]} is complex")
        if A.shape[0] != n:
            raise InputError(
                f"y_true has {n} rows but {names[field]} has {A.shape[0]}; they must be of the same length"
            )
    if not n:
        raise InputError("y_true has no rows; give at least one to be scored")


def _lazy(field: str, A: Any, row_chunks: tuple[int, ...]) -> da.Array:
    if isinstance(A, np.ndarray):
        # name=False: hashing the data for a name would be a pass over it.
        A = da.from_array(A, chunks=(row_chunks, *A.shape[1:]), name=False)
    return whole_rows(A, field)


def _width(A: Any) -> int:
    return int(np.prod(A.shape[1:], dtype=int))
