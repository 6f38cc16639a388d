"""Columns of a Parquet file as NumPy arrays: which, of what common type, and how a batch becomes a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from distrff.data.arrow_values import is_number, raw_column
from distrff.data.parquet_files import Footer
from distrff.errors import InputError

OBJECT = np.dtype(object)


class Columns(NamedTuple):
    """Columns of a file that become one array.

    names : of the file's columns; labels : of the array's, with name_0, name_1, ... for a list column.
    dtype : of the array; object if some column is not a number.
    is_1d : whether the array has shape (r,).
    """

    names: tuple[str, ...]
    labels: tuple[str, ...]
    dtype: np.dtype
    is_1d: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array after the rows."""
        return () if self.is_1d else (len(self.labels),)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * len(self.labels)


def columns_of(
    schema: pa.Schema, names: Sequence[str], nullable: frozenset[str], is_1d: bool = False
) -> Columns:
    """Describe the array that the columns `names` become.

    Its type is NumPy's common type; integers and booleans with nulls count as floats that hold them.
    """
    types = [_value_type(schema.field(name).type) for name in names]
    if all(map(is_number, types)):
        dtypes = [_numpy_type(t, name in nullable) for t, name in zip(types, names, strict=True)]
        dtype = np.result_type(*dtypes)
    else:
        dtype = OBJECT
    labels = [label for name in names for label in _labels(name, schema.field(name).type)]
    return Columns(tuple(names), tuple(labels), dtype, is_1d and len(labels) == 1)


def _written(column_type: pa.DataType) -> pa.DataType:
    """The type without the size of dictionary indices, which follows the number of labels in a file."""
    return column_type.value_type if pa.types.is_dictionary(column_type) else column_type


def is_feature(column_type: pa.DataType) -> bool:
    """Tell whether a column is numeric or boolean, or a list of a fixed number of such values."""
    if pa.types.is_fixed_size_list(column_type):
        return is_number(column_type.value_type)
    return is_number(column_type)


def _value_type(column_type: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(column_type) or pa.types.is_dictionary(column_type):
        return column_type.value_type
    return column_type


def _numpy_type(column_type: pa.DataType, nulls: bool) -> np.dtype:
    if pa.types.is_decimal(column_type):
        return np.dtype(np.float64)
    dtype = np.dtype(column_type.to_pandas_dtype())
    return np.result_type(dtype, np.float32) if nulls else dtype


def _labels(name: str, column_type: pa.DataType) -> list[str]:
    if pa.types.is_fixed_size_list(column_type):
        return [f"{name}_{i}" for i in range(column_type.list_size)]
    return [name]


def lists_by_name(schema: pa.Schema, keys: Sequence[int | str]) -> list[int | str]:
    """Return `keys` with all labels of a list column, where they stand in order, replaced by its name.

    A model keeps the labels, and finds its columns by them.
    """
    found = list(keys)
    for field in schema:
        labels = _labels(field.name, field.type)
        if labels and labels != [field.name] and labels[0] in found:
            at = found.index(labels[0])
            if found[at : at + len(labels)] == labels:
                found[at : at + len(labels)] = [field.name]
    return found


def check_agreement(footers: Sequence[Footer], used: Sequence[str], all_features: bool) -> None:
    """Refuse files whose columns differ from those of the first.

    `used` are the columns read; with `all_features` a further numeric column counts as well.
    """
    first = footers[0]
    for footer in footers[1:]:
        types = {f.name: f.type for f in footer.schema}
        for name in used:
            expected = first.schema.field(name).type
            if name not in types or _written(types[name]) != _written(expected):
                got = f"has type {types[name]}" if name in types else "is missing"
                raise InputError(
                    f"{footer.name}: column {name!r} {got}, but it is {expected} in "
                    f"{first.name}; write the files with one schema"
                )
        extra = [
            n for n, t in types.items() if all_features and is_feature(t) and n not in first.schema.names
        ]
        if extra:
            raise InputError(
                f"{footer.name}: column {extra[0]!r} is missing in {first.name}; "
                "write the files with one schema or choose columns"
            )


def array_from(batch: pa.RecordBatch, columns: Columns) -> np.ndarray:
    """Return the columns of a batch as an array of shape (r, *columns.shape).

    A single column of the right type is passed through without a copy (and is then read-only).
    Nulls are NaN in a float array and None in an object array.
    """
    parts = [_values(batch.column(name), columns.dtype, name) for name in columns.names]
    if len(parts) == 1 and parts[0].dtype == columns.dtype:
        return parts[0].reshape(batch.num_rows, *columns.shape)
    out = np.empty((batch.num_rows, len(columns.labels)), columns.dtype)
    at = 0
    for part in parts:
        width = 1 if part.ndim == 1 else part.shape[1]
        out[:, at : at + width] = part.reshape(-1, width)
        at += width
    return out.reshape(batch.num_rows, *columns.shape)


def _values(column: pa.Array, dtype: np.dtype, name: str) -> np.ndarray:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not is_feature(column.type):
        return _objects(column)
    raw = raw_column(column, name)
    if raw.nulls is None:
        return raw.values
    if dtype.kind in "iub":
        raise InputError(
            f"column {name!r} has nulls, which the statistics of its file deny; write the file again"
        )
    return np.where(raw.nulls, np.nan, raw.values)


def _objects(column: pa.Array) -> np.ndarray:
    values = column.to_numpy(zero_copy_only=False)
    # Dates and times would lose their type in an object array.
    return values if values.dtype == OBJECT else np.array([*column.to_pylist(), None], dtype=object)[:-1]
