"""What users hold in memory (NumPy, lists, pandas) as plain arrays, or one clear error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import issparse

from distrff.errors import InputError, InputTypeError


def block_of(X: Any, name: str = "X") -> tuple[Any, tuple[str, ...] | None]:
    """Return `X` as a 2-D array of real numbers, or CSR, and its column names if all are strings.

    Parameters
    ----------
    X : array-like, DataFrame or scipy sparse matrix of shape (n, d)
        A sparse one of any format becomes CSR. Numbers and booleans keep their type, long doubles become
        float64, object arrays are converted to float64, nullable pandas columns to floats with NaN. No
        copy if none is needed.

    Raises
    ------
    InputError
        If it is not 2-D, has no rows or columns, is complex, or holds something else than numbers.
    InputTypeError
        If it is None, or holds objects that are no numbers.
    """
    if issparse(X):
        check_shape(X.shape, name)
        return sparse_rows(X, name), None
    if isinstance(X, pd.DataFrame):
        check_shape(X.shape, name)
        return frame_matrix(X, frame_dtype(X.dtypes.items(), name)), names_of(X.columns)
    values = plain_array(X, name)
    check_shape(values.shape, name)
    return real_numbers(values, name), None


def sparse_rows(X: Any, name: str) -> Any:
    """Return a scipy sparse matrix of real numbers as CSR, in native byte order."""
    check_real(X.dtype, name)
    return X.tocsr().astype(native(X.dtype), copy=False)


def targets_of(y: Any) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return `y` as an array of shape (n,) or (n, k) of any type, and the target names."""
    values, names = (
        _pandas_targets(y) if isinstance(y, (pd.DataFrame, pd.Series)) else (plain_array(y, "y"), None)
    )
    check_target_shape(values.shape, values.dtype)
    return in_native(values), names


def weights_of(sample_weight: Any) -> np.ndarray:
    """Return `sample_weight` as a float64 array of shape (n,); its values are not checked."""
    if isinstance(sample_weight, pd.Series):
        sample_weight = series_values(sample_weight)
    values = real_numbers(plain_array(sample_weight, "sample_weight"), "sample_weight")
    check_weight_shape(values.shape)
    return np.asarray(values, dtype=np.float64)


def check_shape(shape: tuple[Any, ...], name: str) -> None:
    """Refuse a matrix that is not 2-D or has no rows or columns."""
    if len(shape) == 1:
        raise InputError(
            f"Expected 2D array, got 1D array instead: {name} has shape {shape}. Reshape your data with "
            f"{name}.reshape(-1, 1) if it is one column, or {name}.reshape(1, -1) if it is one row."
        )
    if len(shape) != 2:
        raise InputError(f"Expected 2D array, got {len(shape)}D array instead: {name} has shape {shape}")
    for axis, what in enumerate(("sample(s)", "feature(s)")):
        if shape[axis] == 0:
            raise InputError(
                f"{name}: Found array with 0 {what} (shape={shape}) while a minimum of 1 is required; "
                f"check the path, or what was selected from it"
            )


def check_target_shape(shape: tuple[Any, ...], dtype: np.dtype) -> None:
    """Refuse a y that is complex or neither 1-D nor 2-D with at least one column."""
    if dtype.kind == "c":
        raise InputError("Complex data not supported: y is complex")
    if len(shape) not in (1, 2) or shape[1:] == (0,):
        raise InputError(f"y must have shape (n,) or (n, k), got {shape}")


def check_weight_shape(shape: tuple[Any, ...]) -> None:
    """Refuse weights that are not 1-D."""
    if len(shape) != 1:
        raise InputError(f"sample_weight must be 1-D, one number a row, got shape {shape}")


def check_real(dtype: np.dtype, name: str) -> None:
    """Refuse a dtype that is neither integer, floating nor boolean."""
    if dtype.kind == "c":
        raise InputError(
            f"Complex data not supported: {name} has dtype {dtype}; pass real and imaginary parts as columns"
        )
    if dtype.kind not in "biuf":
        raise InputError(
            f"{name} must hold numbers, got dtype {dtype}; convert its columns to numbers or drop them"
        )


def plain_array(values: Any, name: str) -> np.ndarray:
    """Return array-like `values` as a base-class ndarray of any type."""
    if issparse(values) or hasattr(values, "todense"):
        raise InputTypeError(
            f"{name} is a sparse {type(values).__name__}, and only X may be one, of scipy's; "
            f"pass {name}.toarray() if it fits in memory"
        )
    if isinstance(values, np.ma.MaskedArray):
        raise InputTypeError(
            f"masked arrays are not supported: pass {name}.filled(np.nan), or drop the masked rows"
        )
    if values is None:
        raise InputTypeError(f"{name} is None; pass an array or a DataFrame")
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name} cannot be made an array: {' '.join(str(error).split())}") from error


def real_numbers(values: np.ndarray, name: str) -> np.ndarray:
    """Return `values` as real numbers: objects converted, long doubles to float64."""
    if values.dtype.kind == "O":
        try:
            values = values.astype(np.float64)
        except TypeError as error:
            raise InputTypeError(f"{name} holds objects that are not numbers: {error}") from error
        except ValueError as error:
            raise InputError(f"{name} holds objects that are not numbers: {error}") from error
    check_real(values.dtype, name)
    return in_native(values)


def in_native(values: np.ndarray) -> np.ndarray:
    """Return `values` in the type that `native` names."""
    return values.astype(native(values.dtype), copy=False)


def native(dtype: np.dtype) -> np.dtype:
    """Return `dtype` in native byte order, long double as float64, variable-length text as objects."""
    if dtype.kind == "T":
        return np.dtype(object)
    return np.dtype(np.float64) if dtype.kind == "f" and dtype.itemsize > 8 else dtype.newbyteorder("=")


def names_of(columns: Iterable[Any]) -> tuple[str, ...] | None:
    """Return column names if every one is a string."""
    names = tuple(columns)
    return tuple(map(str, names)) if all(isinstance(name, str) for name in names) else None


# pandas -------------------------------------------------------------------------------------


def frame_dtype(dtypes: Iterable[tuple[Any, Any]], name: str = "X") -> np.dtype:
    """Return the common NumPy type of the columns of a frame, from its (column, dtype) pairs.

    Nullable types count as floats that hold them, whether or not there are nulls.

    Raises
    ------
    InputError
        Naming the first column that is neither numeric nor boolean.
    """
    found = []
    for column, dtype in dtypes:
        if dtype.kind == "c":
            raise InputError(f"Complex data not supported: column {column!r} of {name} has dtype {dtype}")
        if not _is_number(dtype):
            raise InputError(
                f"column {column!r} of {name} has dtype {dtype}, which is not a number; convert it to "
                f"numbers or drop it, or have it made numbers by distrff.open_dataset(frame, one_hot=True)"
            )
        found.append(_numpy_dtype(dtype))
    return native(np.result_type(*found))


def frame_matrix(frame: pd.DataFrame, dtype: np.dtype) -> np.ndarray:
    """Return the values of a frame of numeric columns as one array; nulls become NaN."""
    if all(isinstance(d, np.dtype) for d in frame.dtypes):
        return frame.to_numpy(dtype=dtype)
    return frame.to_numpy(dtype=dtype, na_value=np.nan)


def series_values(series: pd.Series) -> np.ndarray:
    """Return a column of any type; nullable numbers become floats, other extension types objects."""
    dtype = series.dtype
    if isinstance(dtype, np.dtype):
        return series.to_numpy()
    if _is_number(dtype):
        if series.hasnans:
            return series.to_numpy(dtype=_numpy_dtype(dtype), na_value=np.nan)
        return series.to_numpy(dtype=getattr(dtype, "numpy_dtype", None))
    return series.to_numpy(dtype=object)


def _pandas_targets(y: pd.DataFrame | pd.Series) -> tuple[np.ndarray, tuple[str, ...] | None]:
    if isinstance(y, pd.Series):
        return series_values(y), names_of([y.name])
    numeric = y.shape[1] > 0 and all(_is_number(dtype) for dtype in y.dtypes)
    values = frame_matrix(y, frame_dtype(y.dtypes.items(), "y")) if numeric else y.to_numpy(dtype=object)
    return values, names_of(y.columns)


def _is_number(dtype: Any) -> bool:
    return dtype.kind in "biufc" and not isinstance(dtype, pd.CategoricalDtype)


def _numpy_dtype(dtype: Any) -> np.dtype:
    if isinstance(dtype, np.dtype):
        return dtype
    if isinstance(dtype, pd.SparseDtype):
        return np.dtype(dtype.subtype)
    return np.result_type(dtype.numpy_dtype, np.float32)
