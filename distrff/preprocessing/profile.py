"""Profiles of the columns of a table, summed over its rows, and the steps that follow from them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import partial
from operator import index
from typing import Any

import numpy as np

from distrff.errors import InputError, NonFiniteError
from distrff.preprocessing.table import (
    PARTS,
    PLURALS,
    ColumnStep,
    CyclicTimeEncoder,
    HashedStep,
    NumberStep,
    OneHotEncoder,
    RawColumn,
    SecondsAndPartsStep,
    SecondsStep,
    TableSteps,
    TargetStep,
)
from distrff.preprocessing.words import Vocabulary, word_of
from distrff.utils.arrays import as_columns
from distrff.utils.text import listed
from distrff.utils.validation import check_count, one_of


@dataclass(frozen=True)
class TableProfile:
    """Profiles of all columns over some rows; the profile of no rows has no columns.

    In a column of more than `max_words` different words, no words are counted.
    """

    n_rows: int
    columns: Mapping[str, ColumnProfile]
    max_words: int

    @classmethod
    def empty(cls, max_words: int) -> TableProfile:
        """Profile of no rows."""
        return cls(0, {}, max_words)

    @classmethod
    def of(cls, raw: Mapping[str, RawColumn], max_words: int) -> TableProfile:
        """Profile of some rows; their number is that of any column."""
        columns = {name: ColumnProfile.of(column, max_words) for name, column in raw.items()}
        return cls(len(next(iter(raw.values()))), columns, max_words)

    def merge(self, other: TableProfile) -> TableProfile:
        """Profile of both sets of rows.

        Raises InputError, naming a column that holds values of different kinds.
        """
        if not self.columns or not other.columns:
            return self if self.columns else other
        merged = {
            name: column.merge(other.columns[name], name, self.max_words)
            for name, column in self.columns.items()
        }
        return TableProfile(self.n_rows + other.n_rows, merged, self.max_words)


def steps_of(
    profile: TableProfile,
    options: TableOptions,
    *,
    columns: Sequence[str],
    target: Sequence[str] = (),
    weight: str | None = None,
) -> tuple[TableSteps, dict[str, Any]]:
    """The steps that the options call for, and a report of what they do, as strict JSON data.

    `columns` and `target` name the raw columns of X and of y. The report holds `columns_made` (their number),
    `categories` (their number, by raw column), `missing` (rows with a missing value, by raw column with any)
    and `columns_dropped` (why, by raw column). Raises InputError if no column is left, a target or weights
    are of a kind that cannot be used, or two of the columns made would have the same name.
    """
    steps: list[ColumnStep] = []
    dropped: dict[str, str] = {}
    for name in columns:
        made = _column_step(name, profile.columns[name], options)
        if isinstance(made, str):
            dropped[name] = made
        else:
            steps.append(made)
    if not steps:
        reasons = "; ".join(f"{name}: {why}" for name, why in list(dropped.items())[:5])
        raise InputError(f"no column is left for X ({reasons})")
    label = _target_step(target, profile, options)
    if weight is not None and (profile.columns[weight].kind != "number" or profile.columns[weight].width):
        raise InputError(f"the weights {weight!r} hold {profile.columns[weight].described()}, not numbers")
    table = TableSteps(tuple(steps), label, weight, options.missing == "drop")
    names = table.names_out
    # Models name columns in messages and pages; and a step of a category may make a name that another has.
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise InputError(f"two columns of X would be named {twice!r}; rename a raw column, or drop one")
    report = {
        "columns_made": len(names),
        "categories": {step.name: len(step.categories) for step in steps if isinstance(step, OneHotEncoder)},
        "missing": {
            name: profile.columns[name].n_missing
            for name in table.raw_names
            if profile.columns[name].n_missing
        },
        "columns_dropped": dropped,
    }
    return table, report


def _column_step(name: str, column: ColumnProfile, options: TableOptions) -> ColumnStep | str:
    """Step of one column, or the reason why it is dropped."""
    fills = options.missing in ("mean", "indicator")
    indicates = options.missing == "indicator" and column.n_missing > 0
    if column.is_empty:
        return LEFT_OUT_EMPTY
    # Lists of numbers that a library turned into text would be categories without end.
    if column.kind == "text" and all(map(_LIST.fullmatch, column.words or [column.example])):
        return (
            f"it holds lists that became text, such as {column.example[:20]!r}; dask does that to columns of "
            f"objects: dask.config.set({{'dataframe.convert-string': False}}) before the frame is made, or "
            f"Parquet, keeps them"
        )
    if (why := left_out_as(column.kind, options)) is not None:
        return why
    if column.kind in ("number", "clock"):
        # A mean is a fraction.
        dtype = str(np.result_type(column.dtype, np.float32)) if fills else column.dtype
        return NumberStep(name, dtype, column.width, column.means() if fills else None, indicates)
    if column.kind == "time" and options.datetime == "parts":
        return CyclicTimeEncoder(name, 0.0 if fills else None, indicates, column.zoned)
    if column.kind == "time":
        assert column.first is not None
        # The step writes seconds since the first time, and so does its fill.
        fill = column.means()[0] - column.first / column.ticks if fills else None
        if options.datetime == "seconds":
            return SecondsStep(name, column.first, column.ticks, fill, indicates, column.zoned)
        every = None if fill is None else (*[0.0] * 2 * len(PARTS), fill)
        return SecondsAndPartsStep(name, column.first, column.ticks, every, indicates, column.zoned)
    if column.words is not None and len(column.words) <= options.max_categories:
        categories = sorted(column.words)
        n = sum(column.words.values())
        # The mean of a column of 0 and 1 is its share.
        shares = [column.words[word] / n if options.missing == "mean" else 0.0 for word in categories]
        return OneHotEncoder(name, tuple(categories), tuple(shares) if fills else None, indicates)
    if options.hash_columns:
        places = options.max_categories
        return HashedStep(name, places, (0.0,) * places if fills else None, indicates, by_value=True)
    return (
        f"it has more than {options.max_categories} categories, such as {column.example[:20]!r}; "
        f"hash_columns=True or max_categories takes it"
    )


_LIST = re.compile(r"\[\s*[-+]?\d[-+.\deE,\s]*\]", re.ASCII)  # of numbers, as Python and NumPy print it


def _target_step(names: Sequence[str], profile: TableProfile, options: TableOptions) -> TargetStep | None:
    if not names:
        return None
    columns = [profile.columns[name] for name in names]
    for name, column in zip(names, columns, strict=True):
        if column.is_empty or column.kind not in ("number", "clock", "text") or column.width:
            what = "no values" if column.is_empty else column.described()
            raise InputError(f"the target {name!r} holds {what}; name a column of numbers or labels")
    # A category of numbers or booleans is a column of labels of that type.
    kinds = {"text" if column.kind == "text" and not column.dtype else "number" for column in columns}
    if len(names) > 1 and kinds != {"number"}:
        raise InputError("several targets must all hold numbers; name one column of labels")
    # target=["y"] asks for a matrix of one column, as pandas' df[["y"]] is one.
    is_1d = not isinstance(options.target, (list, tuple))
    kind = "labels" if kinds == {"text"} else "numbers"
    if options.positive is not None:
        positive = word_of(options.positive)
        words = columns[0].words
        # More words than are counted are not all known: then a label that no row holds cannot be told.
        if kind == "labels" and words is not None:
            held = sorted(words)
            if (place := Vocabulary(held).find(positive)) < 0:
                raise InputError(
                    f"no row of the target {names[0]!r} holds positive={positive!r}; it holds: "
                    f"{', '.join(map(repr, held[:20]))}"
                )
            positive = held[place]
        return TargetStep(tuple(names), kind, "uint8", is_1d, positive)
    dtype = "object" if kind == "labels" else str(np.result_type(*(column.dtype for column in columns)))
    return TargetStep(tuple(names), kind, dtype, is_1d)


def refuse_missing_values(table: TableSteps, profile: TableProfile, rule: str) -> None:
    """Raise NonFiniteError for a column with missing values where the rule refuses them."""
    for name in table.raw_names:
        n = profile.columns[name].n_missing
        # A weight is never filled: a row without one would weigh as the mean of the others.
        if n and name not in table.required and (rule == "error" or name == table.weight):
            remedy = "'drop'" if name == table.weight else "'drop', 'mean' or 'indicator'"
            raise NonFiniteError(
                f"column {name!r} has no value in {n} of {profile.n_rows} rows; give missing={remedy}"
            )


# The profile of one column.


@dataclass(frozen=True)
class ColumnProfile:
    """Kind and values of one column; in `n_missing` of its `n_rows` rows the value is missing."""

    kind: str
    n_rows: int = 0
    n_missing: int = 0
    dtype: str = ""  # the common type of numbers, also of those that a category holds
    width: int = 0  # numbers in each list; 0 for plain numbers
    counts: tuple[int, ...] = ()  # of numbers, for each entry of the lists
    sums: tuple[int, ...] = ()  # of these, exact; times are summed as whole seconds since 1970
    first: int | None = None  # the earliest time, in ticks
    ticks: int = 1  # in a second, of times: the finest unit seen
    zoned: bool | None = None  # as `RawColumn` has it
    # How many rows hold each word of text; None once there are more words than are counted.
    words: Mapping[str, int] | None = field(default_factory=dict)
    example: str = ""  # the first word in the order of the alphabet that is not empty, for messages

    @classmethod
    def of(cls, column: RawColumn, max_words: int) -> ColumnProfile:
        """Profile of some rows."""
        if column.kind == "null":
            return cls("null", len(column), len(column))
        missing = column.missing_rows()
        n_missing = 0 if missing is None else int(np.count_nonzero(missing))
        of_kind = partial(cls, column.kind, len(column), n_missing)
        if column.kind in ("number", "clock"):
            mask, values = column.missing(), as_columns(column.values)
            present = np.ones(values.shape, bool) if mask is None else ~as_columns(mask)
            return of_kind(
                dtype=str(values.dtype),
                width=values.shape[1] if column.values.ndim == 2 else 0,
                counts=tuple(np.count_nonzero(present, axis=0).tolist()),
                sums=tuple(exact_sum(x[here]) for x, here in zip(values.T, present.T, strict=True)),
            )
        held = column.values if column.nulls is None else column.values[~column.nulls]
        if column.kind == "time":
            return of_kind(
                counts=(len(held),),
                # Whole seconds: ticks of different files differ, and 2⁶³ nanoseconds overflow a sum of two.
                sums=(exact_sum(held // column.ticks),),
                first=int(held.min()) if len(held) else None,
                ticks=column.ticks,
                zoned=column.zoned,
            )
        words: Counter[str] = Counter()
        for word, n in zip(
            column.words, np.bincount(held, minlength=len(column.words)).tolist(), strict=True
        ):
            if n:
                words[word.strip()] += n  # blanks around a word do not make it another one
        # None stays None in a merge: once there were too many, the count of those left would be wrong.
        kept = words if len(words) <= max_words else None
        return of_kind(dtype=column.dtype, words=kept, example=min(filter(None, words), default=""))

    def merge(self, other: ColumnProfile, name: str, max_words: int) -> ColumnProfile:
        """Profile of both sets of rows.

        Raises InputError if they hold values of different kinds.
        """
        # A column without a value in some rows has no kind there, and must not clash with the others'.
        mine, its = self._like(other), other._like(self)
        if mine.kind != its.kind or mine.width != its.width:
            raise InputError(
                f"column {name!r} holds {mine.described()} in some rows and {its.described()} in others; "
                f"give it one type, or leave it out"
            )
        zones = {mine.zoned, its.zoned} - {None}
        if len(zones) > 1:
            raise InputError(
                f"column {name!r} holds times with a zone in some rows, and without one in others; give all "
                f"of them one, as tz_localize of pandas does, or leave it out"
            )
        # Of seconds and nanoseconds the finer: no time loses digits.
        ticks = max(mine.ticks, its.ticks)
        # Ticks are powers of 1000, so that the coarser divide the finer.
        firsts = [p.first * (ticks // p.ticks) for p in (mine, its) if p.first is not None]
        words = None
        if mine.words is not None and its.words is not None:
            words = Counter(mine.words) + Counter(its.words)
        return ColumnProfile(
            kind=mine.kind,
            n_rows=mine.n_rows + its.n_rows,
            n_missing=mine.n_missing + its.n_missing,
            dtype=str(np.result_type(mine.dtype, its.dtype)) if mine.dtype and its.dtype else "",
            width=mine.width,
            counts=tuple(a + b for a, b in zip(mine.counts, its.counts, strict=True)),
            sums=tuple(a + b for a, b in zip(mine.sums, its.sums, strict=True)),
            first=min(firsts, default=None),
            ticks=ticks,
            zoned=next(iter(zones), None),
            words=words if words is not None and len(words) <= max_words else None,
            example=min(filter(None, (mine.example, its.example)), default=""),
        )

    def _like(self, other: ColumnProfile) -> ColumnProfile:
        """A column without a value as one of the other's kind, any other column as it is."""
        if self.kind != "null":
            return self
        k = len(other.counts)
        return ColumnProfile(
            other.kind, self.n_rows, self.n_missing, other.dtype, other.width, (0,) * k, (0,) * k
        )

    def described(self) -> str:
        """The kind of its values, for messages."""
        return f"lists of {self.width} numbers" if self.width else PLURALS[self.kind]

    @property
    def is_empty(self) -> bool:
        """Whether there is no value at all."""
        # A list may lack one entry in each row, and still have numbers in the others.
        return self.n_missing == self.n_rows and not any(self.counts)

    def means(self) -> tuple[float, ...]:
        """Mean for each entry of the lists; 0 for an entry without numbers."""
        return tuple(exact_mean(s, n) if n else 0.0 for s, n in zip(self.sums, self.counts, strict=True))


MISSING = ("error", "drop", "mean", "indicator")
TIMES = ("seconds", "parts", "both")
LEFT_OUT_EMPTY = "it has no values"


def left_out_as(kind: str | None, options: TableOptions) -> str | None:
    """Why columns of a kind are left out; None if they are not."""
    if kind is None:
        return "its type is neither number, text, time nor a list of numbers"
    if kind == "text" and not options.one_hot:
        return "it holds text; one_hot=True takes it"
    if kind in ("time", "clock") and options.datetime is None:
        return "it holds times; datetime='seconds', 'parts' or 'both' takes them"
    return None


TYPES = dict(text="text", category="text", number="number", time="time", date="time", datetime="time")
"""The kind of `RawColumn` of each type that a user may declare."""


def as_declared(raw: Mapping[str, RawColumn], types: Mapping[Any, str] | None) -> Mapping[str, RawColumn]:
    """Raw columns, of which those that the user declared have their kinds."""
    found = dict(raw)
    for name, kind in (types or {}).items():
        if name in found:
            try:
                found[name] = found[name].of_kind(kind, name)
            except InputError:
                how = ", as by pandas.to_datetime" if kind == "time" else ""
                raise InputError(
                    f"types declares column {name!r} as {PLURALS[kind]}, but it holds "
                    f"{PLURALS[found[name].kind]} that cannot be read so; declare another type, or convert "
                    f"it{how}"
                ) from None
    return found


@dataclass(frozen=True)
class TableOptions:
    """The options of a table: its columns, and how each kind of column is encoded; see `open_dataset`."""

    target: Any = None
    columns: Sequence[int | str] | str | int | None = None
    drop: Sequence[int | str] | str | int | None = None
    sample_weight: int | str | None = None
    one_hot: bool = False
    max_categories: int = 256
    hash_columns: bool = False
    missing: str = "error"
    datetime: str | None = None
    positive: Any = None
    types: Mapping[Any, str] | None = None
    keep_index: bool = False
    ids: Any = ()
    groups: Any = None
    extra: Any = ()

    def __post_init__(self) -> None:
        if not isinstance(self.groups, str | int | None):
            raise InputError(f"groups must name one column, got {self.groups!r}")
        for name, kind in (self.types or {}).items():
            one_of(f"the type of column {name!r}", kind, tuple(TYPES))
        if self.columns is not None and self.drop is not None:
            raise InputError(
                "columns and drop were both given; name the columns to take or those to leave out"
            )
        one_of("missing", self.missing, MISSING)
        one_of("datetime", self.datetime, TIMES, or_none=True)
        check_count("max_categories", self.max_categories, 2)
        if self.hash_columns and not self.one_hot:
            raise InputError(
                "hash_columns needs one_hot=True: it hashes the columns of too many categories; give both"
            )
        if self.positive is not None and self.target is None:
            raise InputError(f"positive={self.positive!r} is a label of the target; name the target as well")
        if self.positive is not None and isinstance(self.target, (list, tuple)) and len(self.target) != 1:
            raise InputError(
                f"positive goes with one target column, got {len(self.target)} columns; name the one it is in"
            )

    @property
    def roles(self) -> tuple[list[Any], ...]:
        """Ids, groups and others that come beside X, and are columns of X only where `columns` names them."""
        given = (() if keys is None else keys for keys in (self.ids, self.groups, self.extra))
        return tuple([keys] if isinstance(keys, str | int) else [*keys] for keys in given)

    @property
    def beside(self) -> tuple[Any, ...]:
        """All of these, each once."""
        return tuple(dict.fromkeys(key for keys in self.roles for key in keys))

    def first_given(self, besides: Sequence[str] = ()) -> str | None:
        """The name of the first option of X, y and weights that is not at its default."""
        others = (o for o in fields(self) if o.name not in ("ids", "groups", "extra", *besides))
        return next((o.name for o in others if getattr(self, o.name) != o.default), None)


# Columns named by the user: by name or by index.


class Numbered(Sequence[str]):
    """The names of columns without names, "0", "1" and so on, which are not stored."""

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

    def position(self, name: str) -> int | None:
        """The number that a name spells; None if it is no name."""
        return int(name) if name in self else None


def find_columns(keys: Sequence[Any] | str | int, names: Sequence[str], source: str) -> list[int]:
    """Positions of the columns that `keys` name, in the order given.

    An integer, also one written as text, is an index (-1 the last) unless a column has that name. Raises
    InputError for a column that does not exist or is named twice, or if none is named.
    """
    keys = [keys] if isinstance(keys, (str, int)) else list(keys)
    # A name before an index: a column may be called "3".
    positions: Callable[[str], int | None]
    if isinstance(names, Numbered):
        positions = names.position
    else:  # 12,000 names of 12,000 columns take .01 s so, and 4 s where each is looked for in a list
        positions = {name: i for i, name in reversed(list(enumerate(names)))}.get
    found = [_find_column(key, names, positions, source) for key in keys]
    if not found:
        raise InputError(f"no column is named; {source} has the columns: {listed(names)}")
    twice = next((i for i, count in Counter(found).items() if count > 1), None)
    if twice is not None:
        key = keys[found.index(twice)]
        raise InputError(f"column {names[twice]!r} is named twice (as {key!r}); name each column once")
    return found


def _find_column(key: Any, names: Sequence[str], positions: Callable[[str], int | None], source: str) -> int:
    named = positions(str(key))
    if named is not None:
        return named
    try:
        # `index` and not `int`: 1.5 names no column.
        position = int(key) if isinstance(key, str) else index(key)
    except (TypeError, ValueError):
        position = len(names)
    if isinstance(key, bool) or not -len(names) <= position < len(names):
        raise InputError(f"{source} has no column {key!r}; its {len(names)} columns are: {listed(names)}")
    return position % len(names)


# Sums without rounding: the means that fill missing values have the same bits for any chunks and any order.

_UNIT = 1074  # every double is a multiple of 2⁻¹⁰⁷⁴
_DIGITS, _LOW_DIGITS = 53, 27  # of a double, and of its lower half
_MAX_NUMBERS = 2**25  # at once: their halves add up in a double without rounding


def exact_sum(values: np.ndarray) -> int:
    """Sum of the finite numbers among `values`, in units of 2⁻¹⁰⁷⁴.

    The digits of numbers of the same binary exponent are summed together, in halves of 27 and 26 digits.
    Integers of more than 53 digits are rounded to a double first.
    """
    if values.dtype.kind in "iub" and values.dtype.itemsize <= 4:
        # 2³¹ values of 32 bits fit in a sum of 64; a block of a table has fewer.
        return int(values.sum(dtype=np.int64)) << _UNIT
    parts = range(0, len(values), _MAX_NUMBERS)
    return sum(_sum_of_doubles(values[at : at + _MAX_NUMBERS].astype(np.float64)) for at in parts)


def exact_mean(total: int, n: int) -> float:
    """Mean of `n` numbers whose `exact_sum` is `total`, rounded once."""
    # Fraction's division rounds once and correctly; that of two floats would round both first.
    return float(Fraction(total, n << _UNIT))


def _sum_of_doubles(x: np.ndarray) -> int:
    fraction, exponent = np.frexp(x[np.isfinite(x)])
    if not len(fraction):
        return 0
    lowest = int(exponent.min())
    # Exact: |fraction| < 1 has 53 digits.
    digits = np.ldexp(fraction, _DIGITS).astype(np.int64)
    place = exponent - lowest
    # bincount adds up in doubles. 2²⁵ numbers of at most 27 digits make 52, and stay exact.
    high = np.bincount(place, digits >> _LOW_DIGITS)
    low = np.bincount(place, digits & (2**_LOW_DIGITS - 1))
    total = 0
    for i in np.flatnonzero((high != 0) | (low != 0)).tolist():
        # Python's integers from here on, which have no end.
        number = (int(high[i]) << _LOW_DIGITS) + int(low[i])
        shift = _UNIT + lowest + i - _DIGITS
        total += number << shift if shift >= 0 else number >> -shift  # below, the digits are zeros
    return total
