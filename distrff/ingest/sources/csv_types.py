"""Types by which columns of delimited text are read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

TEXT = pa.dictionary(pa.int32(), pa.string())


def read_as(inferred: pa.DataType) -> pa.DataType:
    """The type by which a column is read whose first values are of the type `inferred`."""
    if pa.types.is_integer(inferred):
        return pa.float64()
    return TEXT if pa.types.is_string(inferred) or pa.types.is_binary(inferred) else inferred


def wider_type(known: pa.DataType, found: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both; None for text among numbers."""
    t = pa.types
    if known == found or t.is_null(found):
        return known
    if t.is_null(known) or t.is_dictionary(known):
        return found if t.is_null(known) else known
    if t.is_dictionary(found):
        return None if _is_numeric(known) else found
    if _is_numeric(known) and _is_numeric(found):
        return pa.float64()
    if _is_date(known) and _is_date(found):
        return pa.timestamp("ns")
    return None


def _is_numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _is_date(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def plural(kind: Any) -> str:
    if _is_numeric(kind):
        return "numbers"
    return "truth values" if pa.types.is_boolean(kind) else f"values of type {kind}"
