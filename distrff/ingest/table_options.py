"""What the user says about the columns of a table: which of them, and what becomes of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distrff.errors import InputError, check_count

MISSING = ("error", "drop", "mean", "indicator")
TIMES = ("seconds", "parts")
LEFT_OUT_TIMES = "it holds times; datetime='seconds' or 'parts' takes them"
"""Why a column is left out where nothing is said about times."""


@dataclass(frozen=True)
class TableOptions:
    """Columns and rules; the rest of a table is left out.

    Parameters
    ----------
    target : str, int, list of these, or None
        The columns of y.
    columns, drop : list of str or int, or None
        The columns of X, or those that are left out; only one of the two.
    sample_weight : str, int or None
    one_hot : bool
        Whether text and categories become columns of 0 and 1, one a category.
    max_categories : int
        A column with more is left out, or hashed.
    hash_columns : bool
        Whether such a column is hashed into `max_categories` columns instead.
    missing : {"error", "drop", "mean", "indicator"}
        Refuse missing values, leave out their rows, put the mean in their place, or do that and say in a
        further column where it was done. A missing target or weight is refused by all but "drop".
    datetime : {"seconds", "parts"} or None
        What becomes of dates and times: seconds since the column's minimum, or sine and cosine of year,
        weekday and hour; None leaves them out. Times of day and durations become seconds by either.
    positive : str, number or None
        The label of the target that becomes 1, all others 0.
    """

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

    def __post_init__(self) -> None:
        if self.columns is not None and self.drop is not None:
            raise InputError(
                "columns and drop were both given; name the columns to take or those to leave out"
            )
        if self.missing not in MISSING:
            raise InputError(f"missing must be one of {', '.join(map(repr, MISSING))}, got {self.missing!r}")
        if self.datetime is not None and self.datetime not in TIMES:
            raise InputError(
                f"datetime must be None or one of {', '.join(map(repr, TIMES))}, got {self.datetime!r}"
            )
        check_count("max_categories", self.max_categories, 2)
        if self.hash_columns and not self.one_hot:
            raise InputError("hash_columns goes with one_hot=True, of whose columns it hashes the widest")
        if self.positive is not None and self.target is None:
            raise InputError(f"positive={self.positive!r} is a label of the target; name the target as well")
        if self.positive is not None and isinstance(self.target, (list, tuple)) and len(self.target) != 1:
            raise InputError("positive goes with one target column, of whose labels it is one")

    @property
    def transforms(self) -> bool:
        """Whether a column of numbers may come out otherwise than it is."""
        return self.missing != "error" or self.positive is not None
