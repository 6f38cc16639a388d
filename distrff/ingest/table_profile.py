"""What the columns of a table hold, summed over its rows, and the steps that follow from that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from distrff.columns.category_step import CategoryStep, HashedStep
from distrff.columns.number_step import NumberStep
from distrff.columns.raw_column import RawColumn
from distrff.columns.table_steps import ColumnStep, TableSteps
from distrff.columns.target_step import TargetStep
from distrff.columns.time_step import PartsStep, SecondsStep
from distrff.errors import InputError
from distrff.ingest.table_options import TableOptions

_WORDS = {"number": "numbers", "text": "text", "time": "times"}


@dataclass(frozen=True)
class ColumnProfile:
    """What one column holds.

    Parameters
    ----------
    kind : {"number", "text", "time", "null"}
    n_rows, n_missing : int
        Rows, and those with a missing value.
    dtype : str
        The common type of numbers; "" of others.
    width : int
        Numbers in each list; 0 for plain numbers.
    counts, sums : tuple
        How many numbers there are and their sum, by entry of the list; of times, whole seconds since 1970.
    first : int or None
        The earliest time, in ticks.
    ticks : int
        A second's, of times: the finest unit seen.
    words : mapping of str to int, or None
        How many rows hold each word of text; None once there are more words than are counted.
    """

    kind: str
    n_rows: int = 0
    n_missing: int = 0
    dtype: str = ""
    width: int = 0
    counts: tuple[int, ...] = ()
    sums: tuple[float, ...] = ()
    first: int | None = None
    ticks: int = 1
    words: Mapping[str, int] | None = field(default_factory=dict)

    @classmethod
    def of(cls, column: RawColumn, most_words: int) -> ColumnProfile:
        """Return the profile of some rows."""
        missing = column.missing_rows()
        n_missing = 0 if missing is None else int(np.count_nonzero(missing))
        if column.kind == "null":
            return cls("null", len(column), len(column))
        if column.kind == "number":
            return _of_numbers(column, n_missing)
        if column.kind == "time":
            return _of_times(column, n_missing)
        return cls("text", len(column), n_missing, words=_counted(column, most_words))

    def merge(self, other: ColumnProfile, name: str, most_words: int) -> ColumnProfile:
        """Return the profile of both.

        Raises
        ------
        InputError
            If they hold values of different kinds.
        """
        mine, its = self._like(other), other._like(self)
        if mine.kind != its.kind or mine.width != its.width:
            raise InputError(
                f"column {name!r} holds {mine._described()} in some rows and {its._described()} in others; "
                f"give it one type, or leave it out"
            )
        ticks = max(mine.ticks, its.ticks)
        firsts = [p.first * (ticks // p.ticks) for p in (mine, its) if p.first is not None]
        return ColumnProfile(
            kind=mine.kind,
            n_rows=mine.n_rows + its.n_rows,
            n_missing=mine.n_missing + its.n_missing,
            dtype=str(np.result_type(mine.dtype, its.dtype)) if mine.kind == "number" else "",
            width=mine.width,
            counts=tuple(a + b for a, b in zip(mine.counts, its.counts, strict=True)),
            sums=tuple(a + b for a, b in zip(mine.sums, its.sums, strict=True)),
            first=min(firsts, default=None),
            ticks=ticks,
            words=_merged(mine.words, its.words, most_words),
        )

    def _like(self, other: ColumnProfile) -> ColumnProfile:
        """A column of which nothing was seen yet, as one of the other's kind."""
        if self.kind != "null":
            return self
        k = len(other.counts)
        return ColumnProfile(
            other.kind, self.n_rows, self.n_missing, other.dtype, other.width, (0,) * k, (0,) * k
        )

    def _described(self) -> str:
        return f"lists of {self.width} numbers" if self.width else _WORDS[self.kind]

    @property
    def is_empty(self) -> bool:
        """Whether there is no value at all."""
        return self.n_missing == self.n_rows and not any(self.counts)

    def means(self) -> tuple[float, ...]:
        """Return the mean of the numbers by entry of the list; 0 for an entry without numbers."""
        return tuple(s / n if n else 0.0 for s, n in zip(self.sums, self.counts, strict=True))


@dataclass(frozen=True)
class TableProfile:
    """What all columns of some rows hold.

    Parameters
    ----------
    n_rows : int
    columns : mapping of str to ColumnProfile
        Empty for no rows.
    most_words : int
        Different words counted in a column; of one that has more, only that is known.
    """

    n_rows: int
    columns: Mapping[str, ColumnProfile]
    most_words: int

    @classmethod
    def empty(cls, most_words: int) -> TableProfile:
        """Return the profile of no rows."""
        return cls(0, {}, most_words)

    @classmethod
    def of(cls, raw: Mapping[str, RawColumn], most_words: int) -> TableProfile:
        """Return the profile of some rows; their number is that of any column."""
        columns = {name: ColumnProfile.of(column, most_words) for name, column in raw.items()}
        return cls(len(next(iter(raw.values()))), columns, most_words)

    def merge(self, other: TableProfile) -> TableProfile:
        """Return the profile of both.

        Raises
        ------
        InputError
            Naming a column that holds values of different kinds.
        """
        if not self.columns or not other.columns:
            return self if self.columns else other
        merged = {
            name: column.merge(other.columns[name], name, self.most_words)
            for name, column in self.columns.items()
        }
        return TableProfile(self.n_rows + other.n_rows, merged, self.most_words)


def _of_numbers(column: RawColumn, n_missing: int) -> ColumnProfile:
    mask = column.missing()
    width = column.values.shape[1] if column.values.ndim == 2 else 0
    values = column.values.reshape(len(column), -1)
    if mask is None:
        counts = (len(column),) * values.shape[1]
        sums = values.sum(axis=0, dtype=np.float64)
    else:
        mask = mask.reshape(values.shape)
        counts = tuple(np.count_nonzero(~mask, axis=0).tolist())
        sums = np.where(mask, 0, values).sum(axis=0, dtype=np.float64)
    return ColumnProfile(
        "number", len(column), n_missing, str(column.values.dtype), width, counts, tuple(sums.tolist())
    )


def _of_times(column: RawColumn, n_missing: int) -> ColumnProfile:
    t = column.values if column.nulls is None else column.values[~column.nulls]
    return ColumnProfile(
        "time",
        len(column),
        n_missing,
        counts=(len(t),),
        sums=(int((t // column.ticks).sum()),),
        first=int(t.min()) if len(t) else None,
        ticks=column.ticks,
    )


def _counted(column: RawColumn, most_words: int) -> dict[str, int] | None:
    codes = column.values if column.nulls is None else column.values[~column.nulls]
    counts = np.bincount(codes, minlength=len(column.words)).tolist()
    words: dict[str, int] = {}
    for word, n in zip(column.words, counts, strict=True):
        if n:
            words[word] = words.get(word, 0) + n
    return words if len(words) <= most_words else None


def _merged(
    mine: Mapping[str, int] | None, its: Mapping[str, int] | None, most_words: int
) -> dict[str, int] | None:
    if mine is None or its is None:
        return None
    words = dict(mine)
    for word, n in its.items():
        words[word] = words.get(word, 0) + n
    return words if len(words) <= most_words else None


def merged_profiles(profiles: Sequence[TableProfile]) -> TableProfile:
    """Return the profile of all rows, those of `profiles` one after the other."""
    return reduce(TableProfile.merge, profiles)


def steps_of(
    profile: TableProfile,
    options: TableOptions,
    *,
    columns: Sequence[str],
    target: Sequence[str] = (),
    weight: str | None = None,
) -> tuple[TableSteps, dict[str, Any]]:
    """Return the steps that the options ask for, and a report of what they do.

    Parameters
    ----------
    profile : TableProfile
        Of all rows.
    options : TableOptions
    columns, target : sequence of str
        Names of the raw columns of X and of y, as the options meant them.
    weight : str or None

    Returns
    -------
    steps : TableSteps
    report : dict
        Strict JSON: `columns_made` (their number), `categories` (their number, by raw column),
        `missing` (rows with a missing value, by raw column, where there are any), `columns_dropped` (why, by
        raw column).

    Raises
    ------
    InputError
        If no column is left, values are missing where the options refuse them, or a target or weights are of
        a kind that cannot be used.
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
    table = TableSteps(tuple(steps), label, _checked_weight(weight, profile), options.missing == "drop")
    _refuse_missing(table, profile, options.missing)
    report = {
        "columns_made": len(table.names_out),
        "categories": {step.name: len(step.categories) for step in steps if isinstance(step, CategoryStep)},
        "missing": {
            name: profile.columns[name].n_missing
            for name in table.raw_names
            if profile.columns[name].n_missing
        },
        "columns_dropped": dropped,
    }
    return table, report


def _column_step(name: str, column: ColumnProfile, options: TableOptions) -> ColumnStep | str:
    """The step of one column, or why it is dropped."""
    fills = options.missing in ("mean", "indicator")
    indicates = options.missing == "indicator" and column.n_missing > 0
    if column.is_empty:
        return "it has no values"
    if column.kind == "number":
        dtype = str(np.result_type(column.dtype, np.float32)) if fills else column.dtype
        return NumberStep(name, dtype, column.width, column.means() if fills else None, indicates)
    if column.kind == "time":
        return _time_step(name, column, options, fills, indicates)
    return _text_step(name, column, options, fills, indicates)


def _time_step(
    name: str, column: ColumnProfile, options: TableOptions, fills: bool, indicates: bool
) -> ColumnStep | str:
    if options.datetime is None:
        return "it holds times; datetime='seconds' or 'parts' takes them"
    if options.datetime == "parts":
        return PartsStep(name, 0.0 if fills else None, indicates)
    assert column.first is not None
    fill = column.means()[0] - column.first / column.ticks if fills else None
    return SecondsStep(name, column.first, column.ticks, fill, indicates)


def _text_step(
    name: str, column: ColumnProfile, options: TableOptions, fills: bool, indicates: bool
) -> ColumnStep | str:
    if not options.one_hot:
        return "it holds text; one_hot=True takes it"
    if column.words is not None and len(column.words) <= options.max_categories:
        categories = sorted(column.words)
        n = sum(column.words.values())
        shares = [column.words[word] / n if options.missing == "mean" else 0.0 for word in categories]
        return CategoryStep(name, tuple(categories), tuple(shares) if fills else None, indicates)
    if options.hash_columns:
        places = options.max_categories
        return HashedStep(name, places, (0.0,) * places if fills else None, indicates)
    return (
        f"it has more than {options.max_categories} categories; hash_columns=True or max_categories takes it"
    )


def _target_step(names: Sequence[str], profile: TableProfile, options: TableOptions) -> TargetStep | None:
    if not names:
        return None
    columns = [profile.columns[name] for name in names]
    for name, column in zip(names, columns, strict=True):
        if column.is_empty or column.kind not in ("number", "text") or column.width:
            what = "no values" if column.is_empty else column._described()
            raise InputError(f"the target {name!r} holds {what}; name a column of numbers or labels")
    kinds = {column.kind for column in columns}
    if len(names) > 1 and kinds != {"number"}:
        raise InputError("several targets must all hold numbers; name one column of labels")
    is_1d = not isinstance(options.target, (list, tuple))
    kind = "labels" if kinds == {"text"} else "numbers"
    if options.positive is not None:
        positive = str(options.positive)
        words = columns[0].words
        if kind == "labels" and words is not None and positive not in words:
            some = ", ".join(map(repr, sorted(words)[:20]))
            raise InputError(
                f"no row of the target {names[0]!r} holds positive={positive!r}; it holds: {some}"
            )
        return TargetStep(tuple(names), kind, "uint8", is_1d, positive)
    dtype = "object" if kind == "labels" else str(np.result_type(*(column.dtype for column in columns)))
    return TargetStep(tuple(names), kind, dtype, is_1d)


def _checked_weight(name: str | None, profile: TableProfile) -> str | None:
    if name is not None and (profile.columns[name].kind != "number" or profile.columns[name].width):
        raise InputError(f"the weights {name!r} hold {profile.columns[name]._described()}, not numbers")
    return name


def _refuse_missing(table: TableSteps, profile: TableProfile, rule: str) -> None:
    if rule == "drop":
        return
    target = () if table.target is None else table.target.names
    always = {*target, table.weight}
    for name in table.raw_names:
        n = profile.columns[name].n_missing
        if n and (rule == "error" or name in always):
            remedy = "'drop'" if name in always else "'drop', 'mean' or 'indicator'"
            raise InputError(
                f"column {name!r} has no value in {n} of {profile.n_rows} rows; give missing={remedy}"
            )
