"""What the columns of a table hold, summed over its rows, and the steps that follow from that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from distrff.ingest.column_profile import ColumnProfile
from distrff.ingest.table_options import LEFT_OUT_TIMES, TableOptions


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
        If no column is left, a target or weights are of a kind that cannot be used, or two columns made
        would have one name.
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
    _refuse_twins(table)
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
    if column.kind in ("time", "clock") and options.datetime is None:
        return LEFT_OUT_TIMES
    if column.kind in ("number", "clock"):
        dtype = str(np.result_type(column.dtype, np.float32)) if fills else column.dtype
        return NumberStep(name, dtype, column.width, column.means() if fills else None, indicates)
    if column.kind == "time":
        return _time_step(name, column, options, fills, indicates)
    return _text_step(name, column, options, fills, indicates)


def _time_step(
    name: str, column: ColumnProfile, options: TableOptions, fills: bool, indicates: bool
) -> ColumnStep:
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
        if column.is_empty or column.kind not in ("number", "clock", "text") or column.width:
            what = "no values" if column.is_empty else column.described()
            raise InputError(f"the target {name!r} holds {what}; name a column of numbers or labels")
    kinds = {"text" if column.kind == "text" else "number" for column in columns}
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
        raise InputError(f"the weights {name!r} hold {profile.columns[name].described()}, not numbers")
    return name


def _refuse_twins(table: TableSteps) -> None:
    names = table.names_out
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise InputError(f"two columns of X would be named {twice!r}; rename a raw column, or drop one")


def refuse_missing_values(table: TableSteps, profile: TableProfile, rule: str) -> None:
    """Raise InputError for a column that lacks values where the rule refuses that."""
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
