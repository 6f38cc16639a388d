"""The steps from the raw columns of a table to X, y and weights, which a model carries with it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, get_args

import numpy as np

from distrff.errors import InputError, ModelFileError, NonFiniteError
from distrff.preprocessing.words import (
    MICROSECONDS,
    SHOWN,
    Unseen,
    Vocabulary,
    has_zone,
    is_same_label,
    microseconds_in,
    number_in,
    times_of,
    word_of,
    word_of_time,
)
from distrff.utils.arrays import as_columns
from distrff.utils.text import listed
from distrff.utils.validation import FEW_COLUMNS

# A raw column of a table: its values, and which of them are missing.


@dataclass(frozen=True, eq=False)
class RawColumn:
    """Some rows of one column of the kind "number", "text", "time", "clock" or "null".

    A clock is a time of day or a duration; null is a column without any value, and so without a type.
    `values` are numbers and booleans in their own type, of shape (r,), or (r, k) for lists of k numbers; of
    text int32 positions in `words`, −1 where missing; of times int64 ticks since 1970, of clocks float64
    seconds. Entries of missing values have no meaning.
    """

    kind: str
    values: np.ndarray
    nulls: np.ndarray | None = None  # bool, of the shape of `values`; a number may also be missing as NaN
    words: tuple[str, ...] = ()  # the different ones
    ticks: int = 1  # in a second, of times
    dtype: str = ""  # of the numbers or booleans of a category, which `words` spell
    zoned: bool | None = None  # whether times are points in time; None if that is not known

    def __len__(self) -> int:
        return len(self.values)

    def missing(self) -> np.ndarray | None:
        """Mask of missing values, NaN included, of the shape of `values`; None if none is missing."""
        if self.kind == "null":
            return np.ones(len(self), dtype=bool)
        if self.kind == "number" and self.values.dtype.kind == "f":
            nan = np.isnan(self.values)
            mask = nan if self.nulls is None else nan | self.nulls
            return mask if mask.any() else None
        return self.nulls

    def missing_rows(self) -> np.ndarray | None:
        """Rows in which a value is missing, of shape (r,); None if there are none."""
        mask = self.missing()
        return np.logical_or.reduce(mask, axis=1) if mask is not None and mask.ndim == 2 else mask

    def plain(self) -> np.ndarray:
        """The values: words as objects, None where missing; times as datetime64, NaT where missing."""
        if self.kind == "text":
            # dtype=object: NumPy's text has one width, and loses NUL characters at the ends of words.
            return np.asarray([*self.words, None], dtype=object)[self.values]
        if self.kind == "time":
            times = times_of(self.values, self.ticks)
            return times if self.nulls is None else np.where(self.nulls, np.datetime64("NaT"), times)
        return self.values

    def take(self, kept: np.ndarray) -> RawColumn:
        """Rows that a mask keeps."""
        nulls = None if self.nulls is None else self.nulls[kept]
        return replace(self, values=self.values[kept], nulls=nulls)

    def of_kind(self, kind: str, name: str) -> RawColumn:
        """The column as one of `kind`.

        Numbers, booleans and times can be read as text, by their words; text as numbers or times, where it
        spells them; clocks as their seconds. A column without any value is of any kind. Raises InputError for
        any other change of kind, naming a word that spells no number or time.
        """
        if self.kind == kind:
            return self
        # A file of few rows may lack all values of a column, and then has no type, or that of floats, for it.
        missing = self.missing()
        if missing is not None and missing.all():
            dtype = {"number": np.float64, "text": np.int32, "time": np.int64}[kind]
            values = np.full(len(self), -1 if kind == "text" else 0, dtype)
            return RawColumn(kind, values, np.ones(len(self), dtype=bool))
        if kind == "number" and self.kind == "clock":
            return RawColumn("number", self.values, self.nulls)
        if kind == "text" and self.kind in ("number", "time") and self.values.ndim == 1:
            return self._as_text(missing)
        held = PLURALS[self.kind]
        if kind in ("number", "time") and self.kind == "text":
            read = number_in if kind == "number" else microseconds_in
            # Words that no row holds are left out: a dictionary of a file may list more than its rows have.
            spelt = {i: read(self.words[i]) for i in np.unique(self.values[self.values >= 0]).tolist()}
            no_value = next((self.words[i] for i, value in spelt.items() if value is None), None)
            if no_value is None:
                found = np.asarray([spelt.get(i, 0) or 0 for i in range(-1, len(self.words))])
                # Integers of more than 64 bits.
                found = found if found.dtype.kind != "O" else found.astype(np.float64)
                zones = {has_zone(self.words[i]) for i in spelt} if kind == "time" else set()
                zoned = zones.pop() if len(zones) == 1 else None
                # The first place is that of code −1, a missing value.
                return RawColumn(kind, found[self.values + 1], self.nulls, ticks=MICROSECONDS, zoned=zoned)
            held = f"{no_value!r}"
        raise InputError(
            f"column {name!r} holds {held}, but it held {PLURALS[kind]} at the fit; give a table of the same "
            f"kind"
        )

    def _as_text(self, missing: np.ndarray | None) -> RawColumn:
        # What is stored under a missing value may be anything, also a NaN in an integer's place.
        values = self.values if missing is None else np.where(missing, self.values.dtype.type(0), self.values)
        # Each value is spelt once: spelling is slow, and rows repeat their values.
        found, codes = np.unique(values, return_inverse=True)
        if self.kind == "time":
            words = [word_of_time(ticks, self.ticks) for ticks in found.tolist()]
        else:
            words = list(map(word_of, found))  # NumPy's scalars know their precision
        # A missing value's word would be one that the fit never saw.
        codes = codes.astype(np.int32) if missing is None else np.where(missing, -1, codes).astype(np.int32)
        return RawColumn("text", codes, missing, tuple(words), dtype="bool" * (values.dtype.kind == "b"))


PLURALS = {"number": "numbers", "text": "text", "time": "times", "clock": "times of day or durations"}


def refuse_missing(name: str, nulls: np.ndarray | None, first_row: int) -> None:
    """Raise NonFiniteError naming the column and the row of the first missing value, if there is one."""
    rows = np.empty(0) if nulls is None else np.argwhere(nulls)[:, 0]
    if len(rows):
        raise NonFiniteError(
            f"column {name!r} has no value in row {first_row + rows[0]}; drop or fill such rows, or fit a "
            f"model with missing='mean' or 'indicator'"
        )


# How one raw column becomes columns of X.


class ColumnEncoder(ABC):
    """How one raw column becomes columns of X.

    `fill` replaces missing values: a number, or one for each column made. None refuses missing values. NaN
    counts as missing where there is a fill.
    """

    kind: ClassVar[str]  # its name in stored steps
    reads: ClassVar[str]  # the kind of the raw column

    name: str
    fill: Any
    indicates: bool  # whether a last column is 1 where a value was missing, else 0

    def _names(self) -> tuple[str, ...]:
        """Names of the columns made, without the indicator."""
        return (self.name,)

    @abstractmethod
    def _write(self, column: RawColumn, out: np.ndarray) -> None:
        """Write the columns made, without the indicator; entries of missing values do not matter."""

    @property
    def names_out(self) -> tuple[str, ...]:
        """Names of the columns made."""
        return (*self._names(), f"{self.name} is missing") if self.indicates else self._names()

    def meaning(self) -> dict[str, Any]:
        """What decides the values that it makes, by the words of messages; the dtype does not."""
        own = {"encoded as": self.kind, **self._meaning()}
        return {**own, "missing values marked": self.indicates, "missing values become": self.fill}

    def _meaning(self) -> dict[str, Any]:
        """What only steps of this kind have."""
        return {}

    def encode(self, column: RawColumn, out: np.ndarray, first_row: int) -> None:
        """Write the columns made to `out` of shape (r, len(names_out)).

        Raises NonFiniteError, naming the first missing value, if there is no fill.
        """
        # Without a fill a NaN goes on: the sweep that reads the row names it, as it does for arrays.
        nulls = None if self.fill is None else column.missing()
        if self.fill is None:
            refuse_missing(self.name, column.nulls, first_row)
        made = out[:, : out.shape[1] - self.indicates]
        self._write(column, made)
        if nulls is not None:
            # "unsafe" lets a fill of 0.0 into a column of bytes; a fraction has made the column a float
            # before.
            np.copyto(made, self.fill, where=as_columns(nulls), casting="unsafe")
        if self.indicates:
            out[:, -1] = False if nulls is None else as_columns(nulls).any(axis=1)


@dataclass(frozen=True)
class NumberStep(ColumnEncoder):
    """x ↦ x, or the `width` columns of a list of `width` numbers; a `width` of 0 is for plain numbers."""

    name: str
    dtype: str
    width: int = 0
    fill: tuple[float, ...] | None = None
    indicates: bool = False

    kind: ClassVar[str] = "number"
    reads: ClassVar[str] = "number"

    def _names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}_{i}" for i in range(self.width)) if self.width else (self.name,)

    def _meaning(self) -> dict[str, Any]:
        return {"numbers in a list": self.width}

    def _write(self, column: RawColumn, out: np.ndarray) -> None:
        values, dtype = as_columns(column.values), out.dtype
        if values.shape[1] != out.shape[1]:
            raise InputError(
                f"column {self.name!r} holds {values.shape[1]} numbers a row, but it held {out.shape[1]} "
                f"at the fit; give a table of the same kind"
            )
        # NumPy would wrap 300 round to 44 in a byte, and cut 1.5 down to 1.
        if dtype.kind in "iub" and not np.can_cast(values.dtype, dtype):
            low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            fits = (values == np.floor(values)) & (values >= low) & (values <= high)
            if not fits.all():
                raise InputError(
                    f"column {self.name!r} holds {values[~fits][0]}, but it held {dtype} at the fit; give a "
                    f"table of the same kind"
                )
        out[...] = values


# Text as columns of 0 and 1: one for each category, or one for each bucket of hashed words.


class _WordEncoder(ColumnEncoder):
    """x ↦ 1 in the column of its word, and 0 in the others."""

    reads: ClassVar[str] = "text"

    @abstractmethod
    def _places(self, column: RawColumn) -> list[int]:
        """Position of the column of each word, −1 for none."""

    def _write(self, column: RawColumn, out: np.ndarray) -> None:
        place = self._place_of_rows(column)
        # Not place == arange: of 100,000 hashed columns its truth values would take as much memory again.
        out[...] = 0
        rows = np.flatnonzero(place >= 0)
        out[rows, place[rows]] = 1

    def _place_of_rows(self, column: RawColumn) -> np.ndarray:
        # Missing values have the code −1 and thus the last place.
        return np.asarray([*self._places(column), -1])[column.values]


@dataclass(frozen=True)
class OneHotEncoder(_WordEncoder):
    """x ↦ 1 in the column of its category and 0 in the others; all 0 for a category that is not listed."""

    name: str
    categories: tuple[str, ...]
    fill: tuple[float, ...] | None = None
    indicates: bool = False

    kind: ClassVar[str] = "category"

    def _names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={word}" for word in self.categories)

    def _meaning(self) -> dict[str, Any]:
        return {"categories": self.categories}

    @property
    def dtype(self) -> str:
        """The dtype of the columns made: a byte for 0 and 1, float32 if a fill is a fraction."""
        return "float32" if self.fill is not None and any(self.fill) else "uint8"

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self.categories)

    def _places(self, column: RawColumn) -> list[int]:
        return self._vocabulary.find_all(column.words)

    def unseen(self, column: RawColumn) -> Unseen:
        """Rows that hold a word which equals no category."""
        column = column.of_kind("text", self.name)
        codes = column.values[(self._place_of_rows(column) < 0) & (column.values >= 0)]
        return Unseen(len(codes), tuple(column.words[i] for i in np.unique(codes)[:SHOWN].tolist()))


@dataclass(frozen=True)
class HashedStep(_WordEncoder):
    """x ↦ 1 in the column that a hash of the word names, and 0 in the others.

    Words that share one of the `n_places` columns are one category. Steps that were stored without `by_value`
    hash words with the blanks around them, floats and booleans as Python writes them: "1.0", "True".
    """

    name: str
    n_places: int
    fill: tuple[float, ...] | None = None
    indicates: bool = False
    by_value: bool = False

    kind: ClassVar[str] = "hashed"
    dtype: ClassVar[str] = "uint8"

    def _names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}=#{i}" for i in range(self.n_places))

    def _meaning(self) -> dict[str, Any]:
        return {"columns of hashes": self.n_places, "hashed by value": self.by_value}

    def _places(self, column: RawColumn) -> list[int]:
        words = list(column.words)
        if self.by_value:
            words = [word.strip() for word in words]
        elif column.dtype:
            words = [str(np.dtype(column.dtype).type(number_in(word) or 0)) for word in words]
        return [hashed_place(word, self.n_places) for word in words]


def hashed_place(word: str, n_places: int) -> int:
    """The place of a word, the same anywhere: 64 bits of BLAKE2b of its UTF-8, modulo n_places."""
    # Not Python's own hash, which differs from process to process. Half of a surrogate pair has no UTF-8 by
    # the rule, and still a place.
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % n_places


# Dates and times as numbers: seconds since the first, or angles in the year, the week and the day.

PARTS = ("year", "weekday", "hour")
_DAY = 86_400
_MONDAY = 3  # 1970-01-01 was a Thursday


@dataclass(frozen=True)
class SecondsStep(ColumnEncoder):
    """t ↦ float64 seconds since the column's minimum, which is `origin` ticks after 1970.

    A second has `ticks` ticks. `zoned` says whether the times of the fit had a zone.
    """

    name: str
    origin: int
    ticks: int
    fill: float | None = None
    indicates: bool = False
    zoned: bool | None = None

    kind: ClassVar[str] = "seconds"
    reads: ClassVar[str] = "time"
    dtype: ClassVar[str] = "float64"

    def _meaning(self) -> dict[str, Any]:
        # As text, which is the same whatever the ticks are.
        return {"seconds since": word_of_time(self.origin, self.ticks), "times with a zone": self.zoned}

    def _write(self, column: RawColumn, out: np.ndarray) -> None:
        _check_zone(column, self.zoned, self.name)
        # Whole seconds are subtracted as integers: nanoseconds then keep their digits near the origin.
        whole, part = np.divmod(column.values, column.ticks)
        # The table may have other ticks than the fit had.
        whole_origin, part_origin = divmod(self.origin, self.ticks)
        out[:, 0] = (whole - whole_origin) + (part / column.ticks - part_origin / self.ticks)


@dataclass(frozen=True)
class CyclicTimeEncoder(ColumnEncoder):
    """t ↦ sine and cosine of its angles in the year, the week and the day, in UTC.

    The year is divided by its own length, weeks begin on Monday, and weekday and hour advance by steps: at
    17:59 on a Friday, 4/7 of a week and 17/24 of a day. A fill of 0 is the centre of the three circles.
    `zoned` says whether the times of the fit had a zone.
    """

    name: str
    fill: float | None = None
    indicates: bool = False
    zoned: bool | None = None

    kind: ClassVar[str] = "parts"
    reads: ClassVar[str] = "time"
    dtype: ClassVar[str] = "float64"

    def _names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}_{part}_{wave}" for part in PARTS for wave in ("sin", "cos"))

    def _meaning(self) -> dict[str, Any]:
        return {"times with a zone": self.zoned}

    def _write(self, column: RawColumn, out: np.ndarray) -> None:
        _check_zone(column, self.zoned, self.name)
        for i, share in enumerate(_shares(column.values, column.ticks)):
            angle = 2 * np.pi * share
            out[:, 2 * i], out[:, 2 * i + 1] = np.sin(angle), np.cos(angle)


@dataclass(frozen=True)
class SecondsAndPartsStep(CyclicTimeEncoder, SecondsStep):
    """t ↦ its angles, then its seconds: a trend beside what comes back each year, week and day."""

    fill: Any = None  # a number for each
    kind: ClassVar[str] = "seconds and parts"

    def _names(self) -> tuple[str, ...]:
        return (*super()._names(), self.name)

    def _meaning(self) -> dict[str, Any]:
        return SecondsStep._meaning(self)

    def _write(self, column: RawColumn, out: np.ndarray) -> None:
        super()._write(column, out[:, :-1])
        SecondsStep._write(self, column, out[:, -1:])


def _check_zone(column: RawColumn, zoned: bool | None, name: str) -> None:
    """Refuse times without a zone where those of the fit had one, and the reverse; None is not known."""
    if None not in (zoned, column.zoned) and column.zoned != zoned:
        kinds = ("points in time, with a zone", "times without a zone")
        now, then = kinds if column.zoned else kinds[::-1]
        raise InputError(
            f"column {name!r} holds {now}, but it held {then} at the fit; convert it to times of the same "
            f"kind, as tz_localize of pandas does"
        )


def _shares(t: np.ndarray, ticks: int) -> tuple[np.ndarray, ...]:
    """Shares of year, week and day that have passed, in [0, 1)."""
    whole, part = np.divmod(t, ticks)
    day, second = np.divmod(whole, _DAY)
    # NumPy's dates know leap years.
    date = day.astype("datetime64[D]")
    first = date.astype("datetime64[Y]")
    begin = first.astype("datetime64[D]")
    length = ((first + 1).astype("datetime64[D]") - begin).astype(np.int64)
    year = ((date - begin).astype(np.int64) + (second + part / ticks) / _DAY) / length
    return year, (day + _MONDAY) % 7 / 7, second // 3600 / 24


# Targets from one or several raw columns: numbers, labels, or one label against the others.


@dataclass(frozen=True)
class TargetStep:
    """The raw columns of y and how they become y."""

    names: tuple[str, ...]
    kind: str  # "numbers", or "labels" for text: y holds the words themselves
    dtype: str  # of y: that of the numbers, "object" for words, "uint8" with `positive`
    is_1d: bool = True  # whether y has shape (r,); otherwise (r, len(names))
    positive: str | None = None  # the label that becomes 1, all others 0

    def apply(self, raw: Mapping[str, RawColumn], first_row: int) -> np.ndarray:
        """y of shape (r,) or (r, len(names)).

        Raises NonFiniteError, naming the first missing value, and InputError if a column is not of the step's
        kind.
        """
        parts = [self._values(raw[name], name, first_row) for name in self.names]
        return parts[0] if self.is_1d else np.stack(parts, axis=1)

    def _values(self, column: RawColumn, name: str, first_row: int) -> np.ndarray:
        # A class may be written as a number in one file and as text in another.
        column = column.of_kind("text" if self.kind == "labels" else "number", name)
        refuse_missing(name, column.missing(), first_row)
        if column.values.ndim > 1:
            raise InputError(
                f"column {name!r} holds lists, which cannot be targets; name columns of single values"
            )
        if self.positive is not None:
            return is_label(column, self.positive, name).astype(self.dtype)
        if self.kind == "labels":
            return column.plain()
        return column.values.astype(self.dtype, copy=False)


def is_label(column: RawColumn, label: str, name: str) -> np.ndarray:
    """Rows in which a column of text, numbers or booleans holds the label, which is given as text.

    Raises InputError if the column holds numbers and the label is not a number.
    """
    if column.kind == "text":
        return np.asarray([*(is_same_label(word, label) for word in column.words), False])[column.values]
    if (number := number_in(label)) is None:
        raise InputError(
            f"positive={label!r} is not a number, but column {name!r} holds numbers; give one of them"
        )
    return column.values == number


# All raw columns together.

ColumnStep = NumberStep | OneHotEncoder | HashedStep | SecondsStep | CyclicTimeEncoder | SecondsAndPartsStep
_KINDS: dict[str, Any] = {step.kind: step for step in get_args(ColumnStep)}
FIELDS = ("X", "y", "sample_weight")


@dataclass(frozen=True)
class TableSteps:
    """How each raw column becomes columns of X, y or weights; the same wherever it is applied."""

    columns: tuple[ColumnStep, ...]
    target: TargetStep | None = None
    weight: str | None = None  # the raw column of sample weights
    drops_missing: bool = False  # whether rows in which one of the raw columns has no value are left out
    chosen: tuple[int, ...] | None = None  # positions of those columns made that X has; None for all
    # Whether a row that lacks a value of X, where no step fills it, is kept as a row of NaN. Never stored.
    keeps_incomplete: bool = False

    def sizes_within(self, max_columns: int) -> bool:
        """Whether no step of a list or of hashed words makes more than `max_columns` columns.

        A damaged file may hold any number, and `names_out` would list that many names.
        """
        sizes = [getattr(step, size, 0) for step in self.columns for size in ("width", "n_places")]
        return all(isinstance(size, int) and 0 <= size <= max_columns for size in sizes)

    @property
    def names_out(self) -> tuple[str, ...]:
        """Names of the columns of X."""
        names = [name for step in self.columns for name in step.names_out]
        return tuple(names) if self.chosen is None else tuple(names[i] for i in self.chosen)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of X: NumPy's common type of the columns made; a float where rows may be NaN."""
        # One matrix has one type: of bytes and int16 that is int16, of int32 and float32 it is float64.
        dtypes = [np.dtype(step.dtype) for step in self.columns]
        return np.result_type(*dtypes, *([np.float32] if self.keeps_incomplete else []))

    @property
    def raw_names(self) -> tuple[str, ...]:
        """Names of the raw columns that are read: of X, then of y and weights."""
        target = () if self.target is None else self.target.names
        weight = () if self.weight is None else (self.weight,)
        return tuple(dict.fromkeys([*(step.name for step in self.columns), *target, *weight]))

    @property
    def text_names(self) -> tuple[str, ...]:
        """Names of the raw columns that are read as text, and do not only hold numbers."""
        of_y = self.target.names if self.target is not None and self.target.kind == "labels" else ()
        numbers = {n for n, step in self.categories.items() if None not in map(number_in, step.categories)}
        return (*(s.name for s in self.columns if s.reads == "text" and s.name not in numbers), *of_y)

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the raw columns that leave out a row in which they have no value."""
        if self.drops_missing:
            return self.raw_names
        # Where the steps fill missing values a filled target would be learnt as if it had been seen.
        fills = all(step.fill is not None for step in self.columns)
        return self.target.names if fills and self.target is not None else ()

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of X, y and weights."""
        target = 0 if self.target is None else len(self.target.names) * np.dtype(self.target.dtype).itemsize
        return len(self.names_out) * self.dtype.itemsize + target + 8 * (self.weight is not None)

    def check_names(self, names: Iterable[str], source: str) -> None:
        """Raise InputError if a raw column is not among `names`, which may have any order."""
        names = dict.fromkeys(names)  # in their order, and found at once
        lacking = [name for name in self.raw_names if name not in names]
        if lacking:
            raise InputError(
                f"{source} has no column {lacking[0]!r}, which the model's steps need; "
                f"it has: {listed(names)}"
            )

    @property
    def categories(self) -> dict[str, OneHotEncoder]:
        """The steps of columns of categories, by the names of these."""
        return {step.name: step for step in self.columns if isinstance(step, OneHotEncoder)}

    @property
    def names_of_unseen(self) -> tuple[str, ...]:
        """Names of the raw columns that `unseen` reads."""
        return tuple(dict.fromkeys([*self.categories, *self.required])) if self.categories else ()

    def unseen(self, raw: Mapping[str, RawColumn]) -> dict[str, Unseen]:
        """Kept rows with categories that the fit never saw, by column with any."""
        kept = self.kept(raw)
        found = {
            name: step.unseen(raw[name] if kept is None else raw[name].take(kept))
            for name, step in self.categories.items()
        }
        return {name: unseen for name, unseen in found.items() if unseen.n_rows}

    def kept(self, raw: Mapping[str, RawColumn]) -> np.ndarray | None:
        """Mask of kept rows, of shape (r,); None for all."""
        return complete_rows([raw[name] for name in self.required])

    def apply(
        self, raw: Mapping[str, RawColumn], *, first_row: int = 0, fields: tuple[str, ...] = FIELDS
    ) -> dict[str, np.ndarray]:
        """X, y and sample_weight of the rows that are kept, by name; y and weights if there are any.

        `raw` holds at least the columns of `raw_names`, all of the same rows; in messages the first row has
        the number `first_row`. `fields` says what to make; the kept rows do not depend on it. Raises
        NonFiniteError, naming the first missing value without a fill, and InputError if the kind of a column
        has changed since its step was made.
        """
        kept = self.kept(raw)
        if kept is not None:
            raw = {name: raw[name].take(kept) for name in self.raw_names}
        made = {}
        if "X" in fields:
            made["X"] = self._rows(raw, first_row)
        if "y" in fields and self.target is not None:
            made["y"] = self.target.apply(raw, first_row)
        if "sample_weight" in fields and self.weight is not None:
            made["sample_weight"] = self._weights(raw, first_row)
        return made

    def _rows(self, raw: Mapping[str, RawColumn], first_row: int) -> np.ndarray:
        complete = None
        if self.keeps_incomplete:
            complete = complete_rows([raw[step.name] for step in self.columns if step.fill is None])
        if complete is None:
            return self._encoded(raw, first_row)
        # Encoded alone: a step may refuse what an incomplete row holds in another column.
        X = np.full((len(complete), len(self.names_out)), np.nan, self.dtype)
        X[complete] = self._encoded({name: column.take(complete) for name, column in raw.items()}, first_row)
        return X

    def _encoded(self, raw: Mapping[str, RawColumn], first_row: int) -> np.ndarray:
        n_rows = len(raw[self.columns[0].name])
        widths = [len(step.names_out) for step in self.columns]
        X = np.empty((n_rows, sum(widths)), self.dtype)
        at = 0
        for step, width in zip(self.columns, widths, strict=True):
            step.encode(raw[step.name].of_kind(step.reads, step.name), X[:, at : at + width], first_row)
            at += width
        # All columns are made first: those of one category share the work of finding its words.
        return X if self.chosen is None else X[:, self.chosen]

    def _weights(self, raw: Mapping[str, RawColumn], first_row: int) -> np.ndarray:
        assert self.weight is not None
        column = raw[self.weight].of_kind("number", self.weight)
        refuse_missing(self.weight, column.missing(), first_row)
        if column.values.ndim > 1:
            raise InputError(
                f"column {self.weight!r} holds lists, which cannot be weights; name a column of numbers"
            )
        return column.values.astype(np.float64)

    def of_columns(self, positions: Iterable[int]) -> TableSteps:
        """Steps that make some of the columns of X, in the order given."""
        before = range(len(self.names_out)) if self.chosen is None else self.chosen
        return replace(self, chosen=tuple(before[i] for i in positions))

    def difference(self, others: TableSteps) -> str | None:
        """What other steps make otherwise of one of the raw columns, in words; None for the same X and y.

        A value that `others` do not fill, and a zone that one of them does not know, are no difference.
        """
        mine, theirs = self._used(), others._used()
        for name in (name for name in mine if name in theirs):
            found = theirs[name].meaning()
            for what, expected in mine[name].meaning().items():
                got = found.get(what)
                # Without a fill a missing value is refused, so no row that is read was filled otherwise.
                is_known = got is not None and (expected is not None or "zone" not in what)
                if is_known and not _same(got, expected):
                    here, there = _shown(got, expected), _shown(expected, got)
                    return f"column {name!r}: {what} {here}, at the fit {there}"
        if self.target is not None and others.target is not None:
            got, expected = others.target.positive, self.target.positive
            if got != expected:
                return (
                    f"target {others.target.names[0]!r}: positive={got!r}, at the fit positive={expected!r}"
                )
        return None

    def _used(self) -> dict[str, ColumnStep]:
        """The steps that make columns of X, by their raw columns."""
        if self.chosen is None:  # not by names: files of libsvm have millions
            return {step.name: step for step in self.columns}
        makers = [step for step in self.columns for _ in step.names_out]
        return {makers[i].name: makers[i] for i in self.chosen}

    def for_prediction(self) -> TableSteps:
        """Steps that make X alone and leave out no row: one that the fit would drop is NaN."""
        return replace(
            self, target=None, weight=None, drops_missing=False, keeps_incomplete=self.drops_missing
        )

    def for_other_rows(self) -> TableSteps:
        """Steps for other rows than the fit's: columns of integers and booleans take fractions."""
        # The fit saw whole numbers only; rows that it did not see may hold halves, which are no error.
        columns = (
            replace(step, dtype=str(np.result_type(step.dtype, np.float32)))
            if isinstance(step, NumberStep) and np.dtype(step.dtype).kind in "iub"
            else step
            for step in self.columns
        )
        return replace(self, columns=tuple(columns))

    def for_names(self, names: Iterable[str]) -> TableSteps:
        """Steps for a table of these raw columns: those for prediction if it has no target.

        A target of several columns must be there whole or not at all.
        """
        if self.target is None or not set(self.target.names).isdisjoint(names):
            return self
        return self.for_prediction()

    def to_dict(self) -> dict[str, Any]:
        """Steps as strict JSON data."""
        columns = [{"step": step.kind, **asdict(step)} for step in self.columns]
        data = asdict(replace(self, columns=())) | {"columns": columns}
        del data["keeps_incomplete"]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TableSteps:
        """Steps from the result of `to_dict`.

        Raises ModelFileError for an unknown kind of step.
        """
        target = data["target"]
        return cls(
            columns=tuple(map(_step_of, data["columns"])),
            target=None if target is None else TargetStep(**_with_tuples(target)),
            weight=data["weight"],
            drops_missing=data["drops_missing"],
            chosen=None if data["chosen"] is None else tuple(data["chosen"]),
        )


def refuse_other_steps(steps: TableSteps | None, others: TableSteps | None, source: str, remedy: str) -> None:
    """Raise InputError where both are known and `others`, those of `source`, make another X or y."""
    if steps is None or others is None:
        return
    if (difference := steps.difference(others)) is not None:
        raise InputError(f"{source} was encoded by other steps: {difference}; {remedy}")


def _same(a: Any, b: Any) -> bool:
    """Whether two values of steps are equal, but for digits of a mean that columns of float32 lose."""
    if a == b:
        return True
    x, y = np.asarray(a), np.asarray(b)
    are_means = x.dtype.kind == y.dtype.kind == "f" and x.shape == y.shape
    # No absolute tolerance: columns have any unit.
    return are_means and np.allclose(x, y, rtol=1e-7, atol=0)


def _shown(value: Any, other: Any) -> str:
    """A value of a step for a message; of a long list what the other one lacks comes first."""
    if isinstance(value, tuple):
        known = set(other) if isinstance(other, tuple) else set()
        return listed([_shown(x, None) for x in sorted(value, key=known.__contains__)])
    return f"{value:.9g}" if isinstance(value, float) else "no value" if value is None else str(value)


def complete_rows(columns: Iterable[RawColumn]) -> np.ndarray | None:
    """Rows in which no value is missing, as a bool array of shape (r,); None for all."""
    masks = [mask for column in columns if (mask := column.missing_rows()) is not None]
    return ~np.logical_or.reduce(masks) if masks else None


def _step_of(data: Mapping[str, Any]) -> ColumnStep:
    values = dict(data)
    kind = values.pop("step")
    if kind not in _KINDS:
        raise ModelFileError(f"the step {kind!r} for columns is not known; update distrff")
    # JSON has lists alone; steps are frozen, compared and hashed, and need tuples.
    return _KINDS[kind](**_with_tuples(values))


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def names_fit(names: Any, n_columns: int) -> bool:
    """Whether column names of a file, if it has any, are one text for each column."""
    return names is None or (len(names) == n_columns and all(isinstance(name, str) for name in names))


def steps_fit(steps: TableSteps | None, n_columns: int) -> bool:
    """Whether table steps of a file, if it has any, make so many columns."""
    return steps is None or (
        steps.sizes_within(max(FEW_COLUMNS, n_columns)) and len(steps.names_out) == n_columns
    )
