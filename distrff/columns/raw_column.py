"""A column as it was found in a table, before any step: its values, and which of them are missing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.errors import InputError

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
