"""Arrow columns as NumPy values: numbers, codes of words, or ticks of time, and a mask of the nulls."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distrff.errors import InputError
from distrff.preprocessing.encoders import RawColumn
from distrff.preprocessing.words import word_of
from distrff.utils.text import listed

_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400


def raw_columns(batch: pa.RecordBatch, names: Iterable[str]) -> dict[str, RawColumn]:
    """Return columns of a batch by their names; raise InputError for one that is missing."""
    columns = {}
    for name in names:
        position = batch.schema.get_field_index(name)
        if position < 0:
            raise InputError(f"there is no column {name!r} among {listed(batch.schema.names)}")
        columns[name] = raw_column(batch.column(position), name)
    return columns


def raw_kind(column_type: pa.DataType) -> str | None:
    """Return the kind of `RawColumn` of values of an Arrow type; None if there is none."""
    t = pa.types
    if isinstance(column_type, pa.BaseExtensionType):
        return raw_kind(column_type.storage_type)
    if t.is_fixed_size_list(column_type):
        return "number" if is_number(column_type.value_type) else None
    if t.is_null(column_type):
        return "null"
    if t.is_timestamp(column_type) or t.is_date(column_type):
        return "time"
    if t.is_time(column_type) or t.is_duration(column_type):
        return "clock"
    if is_number(column_type):
        return "number"
    if t.is_dictionary(column_type):
        return None if raw_kind(column_type.value_type) is None else "text"
    is_text = t.is_string(column_type) or t.is_large_string(column_type) or t.is_string_view(column_type)
    return "text" if is_text else None


def raw_column(column: pa.Array, name: str) -> RawColumn:
    """Return the values of a column; raise InputError for a type that no step encodes.

    Numbers and booleans keep their type; decimals become float64, times of day and durations float64 seconds.
    Dates are times. The values of a dictionary are the words, whatever their type.
    """
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = raw_kind(column.type)
    if kind is None:
        raise InputError(
            f"column {name!r} has the type {column.type}, which cannot be encoded; "
            f"convert it to numbers, text or times, or leave it out"
        )
    if kind == "null":
        return RawColumn("null", np.zeros(len(column)))
    if kind == "text":
        return _text(column)
    if kind == "time":
        return _times(column)
    return _lists(column) if pa.types.is_fixed_size_list(column.type) else _numbers(column)


def is_number(t: pa.DataType) -> bool:
    """Return whether values of an Arrow type are real numbers or booleans."""
    return (
        pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_boolean(t) or pa.types.is_decimal(t)
    )


def _nulls(column: pa.Array) -> np.ndarray | None:
    return column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None


def _numbers(column: pa.Array) -> RawColumn:
    t, nulls = column.type, _nulls(column)
    if pa.types.is_time(t) or pa.types.is_duration(t):
        ticks = _integers(column.view(pa.int32() if t.bit_width == 32 else pa.int64()))
        return RawColumn("clock", ticks / _TICKS[t.unit], nulls)
    if pa.types.is_decimal(t):
        column = column.cast(pa.float64())
    elif pa.types.is_float16(t) and nulls is not None:
        column = column.cast(pa.float32())
    if nulls is not None:
        column = pc.fill_null(column, False if pa.types.is_boolean(column.type) else 0)
    return RawColumn("number", column.to_numpy(zero_copy_only=False), nulls)


def _lists(column: pa.FixedSizeListArray) -> RawColumn:
    k = column.type.list_size
    if column.null_count:  # a null list has no elements in `flatten`
        entries = [_numbers(pc.list_element(column, j)) for j in range(k)]
        nulls = [np.zeros(len(column), bool) if e.nulls is None else e.nulls for e in entries]
        return RawColumn("number", np.stack([e.values for e in entries], 1), np.stack(nulls, 1))
    flat = _numbers(column.flatten())
    mask = None if flat.nulls is None else flat.nulls.reshape(-1, k)
    return RawColumn("number", flat.values.reshape(-1, k), mask)


def _integers(column: pa.Array) -> np.ndarray:
    return pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)


def _times(column: pa.Array) -> RawColumn:
    t, nulls = column.type, _nulls(column)
    if pa.types.is_date32(t):
        return RawColumn("time", _integers(column.view(pa.int32())) * _DAY, nulls)
    unit = "ms" if pa.types.is_date64(t) else t.unit
    return RawColumn("time", _integers(column.view(pa.int64())), nulls, ticks=_TICKS[unit])


def _text(column: pa.Array) -> RawColumn:
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    codes = pc.fill_null(column.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    words = column.dictionary.to_pylist()
    if None in words:  # a dictionary may hold a null as well
        absent = np.asarray([word is None for word in words] + [False])
        codes = np.where(absent[codes], -1, codes)
    nulls = codes < 0
    texts, dtype = _words_of(column.dictionary)
    return RawColumn("text", codes.astype(np.int32), nulls if nulls.any() else None, texts, dtype=dtype)


def _words_of(values: pa.Array) -> tuple[tuple[str, ...], str]:
    """Return the word of each value of a dictionary, and the dtype of numbers and booleans."""
    kind = raw_kind(values.type)
    if kind in ("number", "time") and not pa.types.is_decimal(values.type):
        column = raw_column(values, "")
        of_values = column.of_kind("text", "")
        words = tuple("" if code < 0 else of_values.words[code] for code in of_values.values.tolist())
        return words, str(column.values.dtype) if kind == "number" else ""
    words = tuple("" if value is None else word_of(value) for value in values.to_pylist())
    return words, "float64" if kind == "number" else ""
