"""What one column of a table holds, summed over its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from distrff.columns.exact_sum import exact_mean, exact_sum
from distrff.columns.raw_column import RawColumn
from distrff.errors import InputError

_WORDS = {"number": "numbers", "text": "text", "time": "times", "clock": "times of day or durations"}


@dataclass(frozen=True)
class ColumnProfile:
    """What one column holds.

    Parameters
    ----------
    kind : {"number", "text", "time", "clock", "null"}
    n_rows, n_missing : int
        Rows, and those with a missing value.
    dtype : str
        The common type of numbers; "" of others.
    width : int
        Numbers in each list; 0 for plain numbers.
    counts, sums : tuple of int
        How many numbers there are and their `exact_sum`, by entry of the list; of times, whole seconds since
        1970, in the same unit.
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
    sums: tuple[int, ...] = ()
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
        if column.kind in ("number", "clock"):
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
                f"column {name!r} holds {mine.described()} in some rows and {its.described()} in others; "
                f"give it one type, or leave it out"
            )
        ticks = max(mine.ticks, its.ticks)
        firsts = [p.first * (ticks // p.ticks) for p in (mine, its) if p.first is not None]
        return ColumnProfile(
            kind=mine.kind,
            n_rows=mine.n_rows + its.n_rows,
            n_missing=mine.n_missing + its.n_missing,
            dtype=str(np.result_type(mine.dtype, its.dtype)) if mine.kind in ("number", "clock") else "",
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

    def described(self) -> str:
        """Return what the column holds, for messages."""
        return f"lists of {self.width} numbers" if self.width else _WORDS[self.kind]

    @property
    def is_empty(self) -> bool:
        """Whether there is no value at all."""
        return self.n_missing == self.n_rows and not any(self.counts)

    def means(self) -> tuple[float, ...]:
        """Return the mean of the numbers by entry of the list; 0 for an entry without numbers."""
        return tuple(exact_mean(s, n) if n else 0.0 for s, n in zip(self.sums, self.counts, strict=True))


def _of_numbers(column: RawColumn, n_missing: int) -> ColumnProfile:
    mask = column.missing()
    is_list = column.values.ndim == 2
    width = column.values.shape[1] if is_list else 0
    values = column.values if is_list else column.values[:, None]
    present = np.ones(values.shape, bool) if mask is None else ~mask.reshape(values.shape)
    counts = tuple(np.count_nonzero(present, axis=0).tolist())
    sums = tuple(exact_sum(x[here]) for x, here in zip(values.T, present.T, strict=True))
    return ColumnProfile(column.kind, len(column), n_missing, str(column.values.dtype), width, counts, sums)


def _of_times(column: RawColumn, n_missing: int) -> ColumnProfile:
    t = column.values if column.nulls is None else column.values[~column.nulls]
    return ColumnProfile(
        "time",
        len(column),
        n_missing,
        counts=(len(t),),
        sums=(exact_sum(t // column.ticks),),
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
