"""Text as columns of 0 and 1: one a category, or one a bucket of hashed words."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from distrff.columns.missing_values import refuse_missing
from distrff.columns.raw_column import RawColumn


@dataclass(frozen=True)
class CategoryStep:
    """x ↦ 1 in the column of its category and 0 in the others; all 0 for a category that is not listed.

    Parameters
    ----------
    name : str
        Of the raw column.
    categories : tuple of str
        Sorted.
    fill : tuple of float, or None
        What stands in the categories' columns where the value is missing; None where it is refused.
    indicates : bool
        Whether a last column is 1 where the value was missing, else 0.
    """

    name: str
    categories: tuple[str, ...]
    fill: tuple[float, ...] | None = None
    indicates: bool = False

    kind: ClassVar[str] = "category"
    reads: ClassVar[str] = "text"

    @property
    def names_out(self) -> tuple[str, ...]:
        """Names of the columns made."""
        return _named(self.name, self.categories, self.indicates)

    @property
    def dtype(self) -> str:
        """Of the columns made: 0 and 1 take a byte, shares a float32."""
        return "float32" if self.fill is not None and any(self.fill) else "uint8"

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.categories)}

    def encode(self, column: RawColumn, out: np.ndarray, first_row: int) -> None:
        """Write the columns made to `out` of shape (r, len(names_out)).

        Raises
        ------
        NonFiniteError
            Naming the first missing value, where there is no fill.
        """
        positions = [self._positions.get(word, -1) for word in column.words]
        _mark(column, positions, self.fill, self.indicates, out, self.name, first_row)


@dataclass(frozen=True)
class HashedStep:
    """x ↦ 1 in the column that a hash of the word names, and 0 in the others.

    Parameters
    ----------
    name : str
        Of the raw column.
    n_places : int
        Columns; words that share one are one category.
    fill : tuple of float, or None
        What stands in these columns where the value is missing; None where it is refused.
    indicates : bool
        Whether a last column is 1 where the value was missing, else 0.
    """

    name: str
    n_places: int
    fill: tuple[float, ...] | None = None
    indicates: bool = False

    kind: ClassVar[str] = "hashed"
    reads: ClassVar[str] = "text"
    dtype: ClassVar[str] = "uint8"

    @property
    def names_out(self) -> tuple[str, ...]:
        """Names of the columns made."""
        return _named(self.name, tuple(f"#{i}" for i in range(self.n_places)), self.indicates)

    def encode(self, column: RawColumn, out: np.ndarray, first_row: int) -> None:
        """Write the columns made to `out` of shape (r, len(names_out)); see `CategoryStep`."""
        positions = [hashed_place(word, self.n_places) for word in column.words]
        _mark(column, positions, self.fill, self.indicates, out, self.name, first_row)


def hashed_place(word: str, n_places: int) -> int:
    """Return the same place for a word on every machine: 64 bits of BLAKE2b of its UTF-8, modulo n_places."""
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % n_places


def _named(name: str, places: tuple[str, ...], indicates: bool) -> tuple[str, ...]:
    names = tuple(f"{name}={place}" for place in places)
    return (*names, f"{name} is missing") if indicates else names


def _mark(
    column: RawColumn,
    positions: list[int],
    fill: tuple[float, ...] | None,
    indicates: bool,
    out: np.ndarray,
    name: str,
    first_row: int,
) -> None:
    """Write 1 where each word's column is; `positions` holds these by the word's number, −1 for none."""
    nulls = column.nulls
    if nulls is not None and fill is None:
        refuse_missing(name, nulls, first_row)
    place = np.asarray([*positions, -1])[column.values]  # the last serves codes of −1
    out[...] = 0
    rows = np.flatnonzero(place >= 0)
    out[rows, place[rows]] = 1
    if nulls is not None and fill is not None:
        out[nulls, : len(fill)] = fill
        if indicates:
            out[nulls, -1] = 1
