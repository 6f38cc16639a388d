"""Columns named by the user: by name or by index."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from distrff.display.names import listed
from distrff.errors import InputError


def find_column(key: Any, names: Sequence[str], source: str) -> int:
    """Return the position of the column that `key` names.

    An integer, also one spelt as text, is an index (-1 the last) unless a column has that name.

    Raises
    ------
    InputError
        Listing the columns, if there is no such column.
    """
    if str(key) in names:
        return names.index(str(key))
    position = _as_index(key)
    if position is None or not -len(names) <= position < len(names):
        raise InputError(f"{source} has no column {key!r}; its {len(names)} columns are: {listed(names)}")
    return position % len(names)


def find_columns(keys: Sequence[Any] | str | int, names: Sequence[str], source: str) -> list[int]:
    """Return the positions of several columns, in the order given.

    Raises
    ------
    InputError
        If one is missing or named twice, or none is named.
    """
    keys = [keys] if isinstance(keys, (str, int)) else list(keys)
    found = [find_column(key, names, source) for key in keys]
    if not found:
        raise InputError(f"no column is named; {source} has the columns: {listed(names)}")
    for i, key in zip(found, keys, strict=True):
        if found.count(i) > 1:
            raise InputError(f"column {names[i]!r} is named twice (as {key!r}); name each column once")
    return found


def _as_index(key: Any) -> int | None:
    if isinstance(key, bool):
        return None
    try:
        return int(key) if isinstance(key, str) else index(key)
    except (TypeError, ValueError):
        return None
