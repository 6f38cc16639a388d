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
    rows = np.argwhere(nulls)[:, 0]
    if len(rows):
        raise NonFiniteError(
            f"column {name!r} has no value in row {first_row + rows[0]}; drop or fill such rows, or fit a "
            f"machine with missing='mean' or 'indicator'"
        )
