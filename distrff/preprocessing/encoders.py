"""Numbers, and lists of a fixed number of them, as columns of X."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from distrff.errors import InputError, NonFiniteError


@dataclass(frozen=True)
class NumberStep:
    """x ↦ x, and where it is missing ↦ its fill; then perhaps a column that says where it was missing.

    Parameters
    ----------
    name : str
        Of the raw column.
    dtype : str
        Of the columns made.
    width : int
        Numbers in each list; 0 for plain numbers.
    fill : tuple of float, or None
        What stands for missing numbers, one an entry of the list; None where they are refused.
    indicates : bool
        Whether a last column is 1 where a number was missing, else 0.
    """

    name: str
    dtype: str
    width: int = 0
    fill: tuple[float, ...] | None = None
    indicates: bool = False

    kind: ClassVar[str] = "number"
    reads: ClassVar[str] = "number"

    @property
    def names_out(self) -> tuple[str, ...]:
        """Names of the columns made."""
        names = [f"{self.name}_{i}" for i in range(self.width)] if self.width else [self.name]
        return (*names, f"{self.name} is missing") if self.indicates else tuple(names)

    def encode(self, column: RawColumn, out: np.ndarray, first_row: int) -> None:
        """Write the columns made to `out` of shape (r, len(names_out)).

        Raises
        ------
        NonFiniteError
            Naming the first missing number, where there is no fill.
        """
        values = self._shaped(column.values)
        nulls = column.nulls if self.fill is None else column.missing()
        if nulls is not None:
            if self.fill is None:
                refuse_missing(self.name, nulls, first_row)
            nulls = self._shaped(nulls)
            values = np.where(nulls, self.fill or 0.0, values)
        self._check_whole(values, out.dtype)
        out[:, : values.shape[1]] = values
        if self.indicates:
            out[:, -1] = False if nulls is None else nulls.any(axis=1)

    def _check_whole(self, values: np.ndarray, dtype: np.dtype) -> None:
        """Refuse numbers that columns of integers cannot hold."""
        if dtype.kind in "iub" and not np.can_cast(values.dtype, dtype):
            least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            held = (values == np.floor(values)) & (values >= least) & (values <= most)
            if not held.all():
                raise InputError(
                    f"column {self.name!r} holds {values[~held][0]}, but it held {dtype} when its step was "
                    f"made; give a table of the same kind"
                )

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        k = self.width or 1
        shaped = values[:, None] if values.ndim == 1 else values
        if shaped.shape[1] != k:
            raise InputError(
                f"column {self.name!r} holds {shaped.shape[1]} numbers a row, but it held {k} when its step "
                f"was made; give a table of the same kind"
            )
        return shaped


# Text as columns of 0 and 1: one a category, or one a bucket of hashed words.


@dataclass(frozen=True)
class OneHotEncoder:
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
        """Write the columns made to `out` of shape (r, len(names_out)); see `OneHotEncoder`."""
        positions = [hashed_place(word, self.n_places) for word in column.words]
        _mark(column, positions, self.fill, self.indicates, out, self.name, first_row)


def hashed_place(word: str, n_places: int) -> int:
    """Return the same place for a word anywhere: 64 bits of BLAKE2b of its UTF-8, modulo n_places."""
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


# Dates and times as numbers: seconds since the first, or where they stand in year, week and day.

PARTS = ("year", "weekday", "hour")
_DAY = 86_400
_MONDAY = 3  # 1970-01-01 was a Thursday


@dataclass(frozen=True)
class SecondsStep:
    """t ↦ float64 seconds since an origin.

    Parameters
    ----------
    name : str
        Of the raw column.
    origin : int
        Ticks since 1970 at which the number is 0: the column's minimum.
    ticks : int
        A second's.
    fill : float or None
        The number that stands for a missing time; None where it is refused.
    indicates : bool
        Whether a last column is 1 where the time was missing, else 0.
    """

    name: str
    origin: int
    ticks: int
    fill: float | None = None
    indicates: bool = False

    kind: ClassVar[str] = "seconds"
    reads: ClassVar[str] = "time"
    dtype: ClassVar[str] = "float64"

    @property
    def names_out(self) -> tuple[str, ...]:
        """Names of the columns made."""
        return (self.name, f"{self.name} is missing") if self.indicates else (self.name,)

    def encode(self, column: RawColumn, out: np.ndarray, first_row: int) -> None:
        """Write the columns made to `out` of shape (r, len(names_out)).

        Raises
        ------
        NonFiniteError
            Naming the first missing time, where there is no fill.
        """
        out[:, 0] = seconds_since(column.values, column.ticks, self.origin, self.ticks)
        _fill(column, self, out, first_row)


@dataclass(frozen=True)
class CyclicTimeEncoder:
    """t ↦ sine and cosine of the angles at which it stands in its year, its week and its day, in UTC.

    Parameters
    ----------
    name : str
        Of the raw column.
    fill : float or None
        The number that stands in all six columns for a missing time: 0 is the centre of the three circles.
        None where a missing time is refused.
    indicates : bool
        Whether a last column is 1 where the time was missing, else 0.

    Notes
    -----
    The year is divided by its own length, weeks begin on Monday, and weekday and hour advance by steps: at
    17:59 on a Friday, 4/7 of a week and 17/24 of a day.
    """

    name: str
    fill: float | None = None
    indicates: bool = False

    kind: ClassVar[str] = "parts"
    reads: ClassVar[str] = "time"
    dtype: ClassVar[str] = "float64"

    @property
    def names_out(self) -> tuple[str, ...]:
        """Names of the columns made."""
        names = [f"{self.name}_{part}_{wave}" for part in PARTS for wave in ("sin", "cos")]
        return (*names, f"{self.name} is missing") if self.indicates else tuple(names)

    def encode(self, column: RawColumn, out: np.ndarray, first_row: int) -> None:
        """Write the columns made to `out` of shape (r, len(names_out)); see `SecondsStep`."""
        for i, share in enumerate(_shares(column.values, column.ticks)):
            angle = 2 * np.pi * share
            out[:, 2 * i], out[:, 2 * i + 1] = np.sin(angle), np.cos(angle)
        _fill(column, self, out, first_row)


def seconds_since(t: np.ndarray, ticks: int, origin: int, origin_ticks: int) -> np.ndarray:
    """Return float64 seconds between times and an origin, each in ticks of its own.

    Whole seconds are subtracted as integers, so that nanoseconds keep their digits near the origin.
    """
    whole, part = np.divmod(t, ticks)
    whole_origin, part_origin = divmod(origin, origin_ticks)
    return (whole - whole_origin) + (part / ticks - part_origin / origin_ticks)


def _shares(t: np.ndarray, ticks: int) -> tuple[np.ndarray, ...]:
    """Return the shares of year, week and day that have passed, in [0, 1)."""
    whole, part = np.divmod(t, ticks)
    day, second = np.divmod(whole, _DAY)
    date = day.astype("datetime64[D]")
    first = date.astype("datetime64[Y]")
    begin = first.astype("datetime64[D]")
    length = ((first + 1).astype("datetime64[D]") - begin).astype(np.int64)
    year = ((date - begin).astype(np.int64) + (second + part / ticks) / _DAY) / length
    return year, (day + _MONDAY) % 7 / 7, second // 3600 / 24


def _fill(column: RawColumn, step: SecondsStep | CyclicTimeEncoder, out: np.ndarray, first_row: int) -> None:
    n_numbers = len(step.names_out) - step.indicates
    nulls = column.nulls
    if nulls is not None:
        if step.fill is None:
            refuse_missing(step.name, nulls, first_row)
        out[nulls, :n_numbers] = step.fill
    if step.indicates:
        out[:, -1] = False if nulls is None else nulls


# What a model learns from one or several raw columns: numbers, labels, or one label against the others.

_TRUTH = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class TargetStep:
    """The raw columns of y and what becomes of them.

    Parameters
    ----------
    names : tuple of str
        Of the raw columns.
    kind : {"numbers", "labels"}
        "labels" for text: y holds the words themselves.
    dtype : str
        Of y: a number's, "object" for words, "uint8" with `positive`.
    is_1d : bool
        Whether y has shape (r,); otherwise (r, len(names)).
    positive : str or None
        The label that becomes 1, all others 0.
    """

    names: tuple[str, ...]
    kind: str
    dtype: str
    is_1d: bool = True
    positive: str | None = None

    def apply(self, raw: Mapping[str, RawColumn], first_row: int) -> np.ndarray:
        """Return y of shape (r,) or (r, len(names)).

        Raises
        ------
        NonFiniteError
            Naming the first missing value.
        InputError
            If a column is of another kind than the step's.
        """
        parts = [self._values(raw[name], name, first_row) for name in self.names]
        return parts[0] if self.is_1d else np.stack(parts, axis=1)

    def _values(self, column: RawColumn, name: str, first_row: int) -> np.ndarray:
        column = column.of_kind("text" if self.kind == "labels" else "number", name)
        missing = column.missing()
        if missing is not None:
            refuse_missing(name, missing, first_row)
        if column.values.ndim > 1:
            raise InputError(
                f"column {name!r} holds lists, which are no targets; name columns of single values"
            )
        if self.positive is not None:
            return is_label(column, self.positive, name).astype(self.dtype)
        if self.kind == "labels":
            return np.asarray([*column.words, None], dtype=object)[column.values]
        return column.values.astype(self.dtype, copy=False)


def is_label(column: RawColumn, label: str, name: str) -> np.ndarray:
    """Return where a column of text, numbers or booleans holds the label, which is given as text.

    Raises
    ------
    InputError
        If the column holds numbers and the label is none.
    """
    if column.kind == "text":
        return np.asarray([word == label for word in column.words] + [False])[column.values]
    try:
        number = _TRUTH[label.lower()] if label.lower() in _TRUTH else float(label)
    except ValueError:
        raise InputError(f"positive={label!r} is no number, but column {name!r} holds numbers") from None
    return column.values == number


# A column as it was found in a table, before any step: its values, and which of them are missing.

KINDS = ("number", "text", "time", "clock", "null")


@dataclass(frozen=True, eq=False)
class RawColumn:
    """Some rows of one column.

    Parameters
    ----------
    kind : {"number", "text", "time", "clock", "null"}
        "time" of dates and points in time, "clock" of times of day and durations; "null"
        where every value is missing and nothing tells what they would have been.
    values : ndarray
        Numbers and booleans in their own type, of shape (r,), or (r, k) for lists of k numbers. For text
        int32 positions in `words`, −1 where missing. For times int64 ticks since 1970, for clocks
        float64 seconds. Whatever stands where a value is missing means nothing.
    nulls : bool ndarray of the shape of `values`, or None
        Where the table has no value; None if it has all of them. NaN may stand for a missing number as well.
    words : tuple of str
        Of text.
    ticks : int
        A second's, of times.
    """

    kind: str
    values: np.ndarray
    nulls: np.ndarray | None = None
    words: tuple[str, ...] = ()
    ticks: int = 1

    def __len__(self) -> int:
        return len(self.values)

    def missing(self) -> np.ndarray | None:
        """Return where values are missing, NaN included, of the shape of `values`; None if nowhere."""
        if self.kind == "number" and self.values.dtype.kind == "f":
            nan = np.isnan(self.values)
            mask = nan if self.nulls is None else nan | self.nulls
            return mask if mask.any() else None
        return self.nulls

    def missing_rows(self) -> np.ndarray | None:
        """Return the rows in which a value is missing, of shape (r,); None if there are none."""
        mask = self.missing()
        return np.logical_or.reduce(mask, axis=1) if mask is not None and mask.ndim == 2 else mask

    def take(self, kept: np.ndarray) -> RawColumn:
        """Return the rows of a mask."""
        nulls = None if self.nulls is None else self.nulls[kept]
        return RawColumn(self.kind, self.values[kept], nulls, self.words, self.ticks)

    def of_kind(self, kind: str, name: str) -> RawColumn:
        """Return the column as one of `kind`; whole numbers can be read as text, clocks as their seconds.

        Raises
        ------
        InputError
            If it is of another kind.
        """
        if self.kind == kind:
            return self
        if self.kind == "null":
            return self._empty(kind)
        if kind == "number" and self.kind == "clock":
            return RawColumn("number", self.values, self.nulls)
        if kind == "text" and self.kind == "number" and self.values.dtype.kind in "iub":
            numbers, codes = np.unique(self.values.reshape(len(self)), return_inverse=True)
            words = tuple(map(str, numbers.tolist()))
            codes = codes.astype(np.int32)
            return RawColumn(
                "text", codes if self.nulls is None else np.where(self.nulls, -1, codes), self.nulls, words
            )
        raise InputError(
            f"column {name!r} holds {_PLURALS[self.kind]}, but it held {_PLURALS[kind]} when its step was "
            f"made; give a table of the same kind"
        )

    def _empty(self, kind: str) -> RawColumn:
        """A column without any value, as one of a kind."""
        n = len(self)
        dtype = {"number": np.float64, "text": np.int32, "time": np.int64}[kind]
        values = np.full(n, -1, dtype) if kind == "text" else np.zeros(n, dtype)
        return RawColumn(kind, values, np.ones(n, dtype=bool))


_PLURALS = {"number": "numbers", "text": "text", "time": "times", "clock": "times of day or durations"}


# The refusal of a missing value that no rule covers.


def refuse_missing(name: str, nulls: np.ndarray, first_row: int) -> None:
    """Raise for the first missing value of a column, if there is one.

    Raises
    ------
    NonFiniteError
        Naming row and column.
    """
    rows = np.argwhere(nulls)[:, 0]
    if len(rows):
        raise NonFiniteError(
            f"column {name!r} has no value in row {first_row + rows[0]}; drop or fill such rows, or fit a "
            f"model with missing='mean' or 'indicator'"
        )
