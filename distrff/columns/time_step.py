"""Dates and times as numbers: seconds since the first, or where they stand in year, week and day."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distrff.columns.missing_values import refuse_missing
from distrff.columns.raw_column import RawColumn

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
class PartsStep:
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


def _fill(column: RawColumn, step: SecondsStep | PartsStep, out: np.ndarray, first_row: int) -> None:
    n_numbers = len(step.names_out) - step.indicates
    nulls = column.nulls
    if nulls is not None:
        if step.fill is None:
            refuse_missing(step.name, nulls, first_row)
        out[nulls, :n_numbers] = step.fill
    if step.indicates:
        out[:, -1] = False if nulls is None else nulls
