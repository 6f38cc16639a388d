"""Columns named by the user: by name or by index."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from distrff.display.names import listed
from distrff.errors import InputError


class Numbered(Sequence[str]):
    """The names of columns that have none: "0", "1" and so on, none of which is stored."""

    def __init__(self, n_columns: int) -> None:
        self._numbers = range(n_columns)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, i: Any) -> Any:
        found = self._numbers[i]
        return str(found) if isinstance(found, int) else list(map(str, found))

    def __contains__(self, name: object) -> bool:
        text = str(name)
        if len(text) > len(str(len(self))):  # int() refuses texts of more than 4300 digits
            return False
        return text.isdecimal() and text == str(int(text)) and int(text) in self._numbers

    def index(self, name: str, *within: int) -> int:
        """Return the number that a name spells."""
        return int(name)


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
