"""Arrow columns as NumPy values: numbers, codes of words, or ticks of time, and a mask of the nulls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distrff.errors import InputError
from distrff.io.storage import one_line
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
    if t.is_fixed_size_list(column_type) or is_number_list(column_type):
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
    return "text" if _is_text(column_type) else None


def raw_column(column: pa.Array, name: str) -> RawColumn:
    """Return the values of a column; raise InputError for a type that no step encodes.

    Numbers and booleans keep their type; decimals become float64, times of day and durations float64 seconds.
    Dates are times. The values of a dictionary are the words, whatever their type. Lists have a fixed size.
    """
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = raw_kind(column.type)
    if kind is None:
        raise InputError(
            f"column {name!r} has the type {column.type}, which cannot be encoded; convert it to numbers, "
            f"text or times (lists of text to one text a row, or to a column for each word), or leave it out"
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


def is_number_list(t: pa.DataType) -> bool:
    """Return whether values of an Arrow type are lists of numbers, each with a length of its own."""
    return (pa.types.is_list(t) or pa.types.is_large_list(t)) and is_number(t.value_type)


def _is_text(t: pa.DataType) -> bool:
    return pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t)


# One type for the values of several files.


def common_type(types: Iterable[pa.DataType]) -> pa.DataType | None:
    """Return the type that holds the values of all types, in whatever order; None if there is none.

    That of numbers is NumPy's. Whether each value fits is seen when it is cast, see `in_type`.
    """
    t = pa.types
    found = sorted({one for one in types if not t.is_null(one)}, key=str)
    if len(found) < 2:
        return found[0] if found else pa.null()
    if any(map(t.is_dictionary, found)):
        values = common_type(one.value_type if t.is_dictionary(one) else one for one in found)
        return values if values is None or _is_text(values) else pa.dictionary(pa.int32(), values)
    if all(map(is_number, found)):
        if any(map(t.is_decimal, found)):
            return pa.float64()
        return pa.from_numpy_dtype(np.result_type(*(one.to_pandas_dtype() for one in found)))
    if all(map(_is_text, found)):
        return pa.large_string()
    if all(t.is_timestamp(one) or t.is_date(one) for one in found):
        zones = {None if t.is_date(one) else one.tz for one in found}
        if None in zones and len(zones) > 1:
            return None  # a time without a zone is no point in time
        units = ["s" if t.is_date(one) else one.unit for one in found]
        return pa.timestamp(max(units, key=_TICKS.__getitem__), zones.pop() if len(zones) == 1 else "UTC")
    for is_kind, of_unit in ((t.is_duration, pa.duration), (t.is_time, _time_of_day)):
        if all(map(is_kind, found)):
            return of_unit(max((one.unit for one in found), key=_TICKS.__getitem__))
    if all(t.is_fixed_size_list(one) or is_number_list(one) for one in found):
        sizes = {one.list_size for one in found if t.is_fixed_size_list(one)}
        values = common_type(one.value_type for one in found)
        if values is not None and len(sizes) < 2:
            return pa.list_(values, sizes.pop()) if sizes else pa.list_(values)
    return None


def _time_of_day(unit: str) -> pa.DataType:
    return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)


def in_type(column: pa.Array, to: pa.DataType, source: str, first_row: int) -> pa.Array:
    """Return a column in a type that `common_type` found; raise InputError for a value that it cannot hold.

    `source` and the number of the first row are for messages.
    """
    if column.null_count == len(column) or pa.types.is_null(to):  # a null type is that of empty lists
        return pa.nulls(len(column), to)
    if pa.types.is_fixed_size_list(to) and is_number_list(column.type):
        _check_lengths(column, to.list_size, source, first_row)
    if pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(to):
        column = column.dictionary_decode()
    try:
        if pa.types.is_dictionary(to):
            return column.cast(to.value_type).dictionary_encode()
        return column.cast(to)
    except pa.ArrowException as error:
        last = first_row + len(column) - 1
        raise InputError(
            f"{source} of type {column.type} has a value in rows {first_row} to {last} that {to}, the type "
            f"for all files, cannot hold ({one_line(error)}); write the files with one schema"
        ) from error


def of_one_length(column: pa.Array, name: str, first_row: int) -> pa.Array:
    """Return lists of numbers as lists of a fixed size, nulls if all are empty; other columns as they are.

    Raises InputError, naming the row, for a list of another length than the first.
    """
    if not is_number_list(column.type):
        return column
    width = list_width(column)
    to = pa.list_(column.type.value_type, width) if width else pa.null()
    return in_type(column, to, f"column {name!r}", first_row)


def list_width(column: pa.Array) -> int:
    """Return the length of the first list that is not empty; 0 if there is none."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    return int(next(iter(lengths[lengths > 0]), 0))


def _check_lengths(column: pa.Array, width: int, source: str, first_row: int) -> None:
    """Raise InputError for the first list of another length."""
    lengths = pc.fill_null(pc.list_value_length(column), width).to_numpy(zero_copy_only=False)
    others = np.flatnonzero(lengths != width)
    if len(others):
        row = others[0]
        raise InputError(
            f"{source} holds a list of {lengths[row]} numbers in row {first_row + row}, but one of {width} "
            f"before it; give every list the same length, or leave the column out"
        )


def _nulls(column: pa.Array) -> np.ndarray | None:
    return column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None


def _numbers(column: pa.Array) -> RawColumn:
    t, nulls = column.type, _nulls(column)
    if pa.types.is_time(t) or pa.types.is_duration(t):
        ticks = _integers(column.view(pa.int32() if t.bit_width == 32 else pa.int64()))
        return RawColumn("clock", ticks / _TICKS[t.unit], nulls)
    if pa.types.is_decimal(t):
        column = column.cast(pa.string()).cast(pa.float64())  # Arrow's own cast misses the nearest float
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
        return RawColumn("time", _integers(column.view(pa.int32())) * _DAY, nulls, zoned=False)
    unit, zone = ("ms", None) if pa.types.is_date64(t) else (t.unit, t.tz)
    ticks = _integers(column.view(pa.int64()))
    return RawColumn("time", ticks, nulls, ticks=_TICKS[unit], zoned=zone is not None)


def _text(column: pa.Array) -> RawColumn:
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    codes = pc.fill_null(column.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    words = column.dictionary.to_pylist()
    if None in words:  # a dictionary may hold a null as well
        absent = np.asarray([word is None for word in words] + [False])
        codes = np.where(absent[codes], -1, codes)
    nulls = codes < 0
    texts, dtype = _words_of(column.dictionary, words)
    return RawColumn("text", codes.astype(np.int32), nulls if nulls.any() else None, texts, dtype=dtype)


def _words_of(values: pa.Array, items: list[Any]) -> tuple[tuple[str, ...], str]:
    """Return the word of each value of a dictionary, also given as `items`, and the dtype of numbers."""
    if _is_text(values.type):
        return tuple(item or "" for item in items), ""
    kind = raw_kind(values.type)
    if kind in ("number", "time") and not pa.types.is_decimal(values.type):
        column = raw_column(values, "")
        of_values = column.of_kind("text", "")
        words = tuple("" if code < 0 else of_values.words[code] for code in of_values.values.tolist())
        return words, str(column.values.dtype) if kind == "number" else ""
    words = tuple("" if item is None else word_of(item) for item in items)
    return words, "float64" if kind == "number" else ""
