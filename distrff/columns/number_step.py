"""Numbers, and lists of a fixed number of them, as columns of X."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distrff.columns.missing_values import refuse_missing
from distrff.columns.raw_column import RawColumn
from distrff.errors import InputError


@dataclass(frozen=True)
class NumberStep:
    """x ↦ x, and where it is missing ↦ its fill; then perhaps a column that says where it was missing.

    Parameters
    ----------
    name : str
        Of the raw column.
    dtype : str
        Of the columns made.
    width : int
        Numbers in each list; 0 for plain numbers.
    fill : tuple of float, or None
        What stands for missing numbers, one an entry of the list; None where they are refused.
    indicates : bool
        Whether a last column is 1 where a number was missing, else 0.
    """

    name: str
    dtype: str
    width: int = 0
    fill: tuple[float, ...] | None = None
    indicates: bool = False

    kind: ClassVar[str] = "number"
    reads: ClassVar[str] = "number"

    @property
    def names_out(self) -> tuple[str, ...]:
        """Names of the columns made."""
        names = [f"{self.name}_{i}" for i in range(self.width)] if self.width else [self.name]
        return (*names, f"{self.name} is missing") if self.indicates else tuple(names)

    def encode(self, column: RawColumn, out: np.ndarray, first_row: int) -> None:
        """Write the columns made to `out` of shape (r, len(names_out)).

        Raises
        ------
        NonFiniteError
            Naming the first missing number, where there is no fill.
        """
        values = self._shaped(column.values)
        nulls = column.nulls if self.fill is None else column.missing()
        if nulls is not None:
            if self.fill is None:
                refuse_missing(self.name, nulls, first_row)
            nulls = self._shaped(nulls)
            values = np.where(nulls, self.fill or 0.0, values)
        self._check_whole(values, out.dtype)
        out[:, : values.shape[1]] = values
        if self.indicates:
            out[:, -1] = False if nulls is None else nulls.any(axis=1)

    def _check_whole(self, values: np.ndarray, dtype: np.dtype) -> None:
        """Refuse numbers that columns of integers cannot hold."""
        if dtype.kind in "iub" and not np.can_cast(values.dtype, dtype):
            least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            held = (values == np.floor(values)) & (values >= least) & (values <= most)
            if not held.all():
                raise InputError(
                    f"column {self.name!r} holds {values[~held][0]}, but it held {dtype} when its step was "
                    f"made; give a table of the same kind"
                )

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        k = self.width or 1
        shaped = values[:, None] if values.ndim == 1 else values
        if shaped.shape[1] != k:
            raise InputError(
                f"column {self.name!r} holds {shaped.shape[1]} numbers a row, but it held {k} when its step "
                f"was made; give a table of the same kind"
            )
        return shaped
