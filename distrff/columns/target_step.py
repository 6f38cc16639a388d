"""What a machine learns from one or several raw columns: numbers, labels, or one label against the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from distrff.columns.missing_values import refuse_missing
from distrff.columns.raw_column import RawColumn
from distrff.errors import InputError

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
