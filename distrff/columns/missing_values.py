"""The refusal of a missing value that no rule covers."""

from __future__ import annotations

import numpy as np

from distrff.errors import NonFiniteError


def refuse_missing(name: str, nulls: np.ndarray, first_row: int) -> None:
    """Raise for the first missing value of a column, if there is one.

    Raises
    ------
    NonFiniteError
        Naming row and column.
    """
    rows = np.flatnonzero(nulls if nulls.ndim == 1 else nulls.any(axis=1))
    if len(rows):
        raise NonFiniteError(
            f"column {name!r} has no value in row {first_row + rows[0]}, and no rule for missing values was "
            f"given when its step was made; drop or fill such rows"
        )
