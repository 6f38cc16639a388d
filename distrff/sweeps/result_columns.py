"""The columns that a writing sweep makes, and a block of them as Arrow or as Zarr takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from distrff.errors import InputError


@dataclass(frozen=True)
class ResultColumn:
    """One result or one id: numbers, text, or a row of numbers for each row.

    Parameters
    ----------
    name : str
    dtype : dtype
        Object for text, and for ids of other kinds.
    labels : tuple of str
        What tells the columns of a 2-D result apart; empty for one that is 1-D.
    arrow_type : pyarrow.DataType
        Of each of its columns.
    """

    name: str
    dtype: np.dtype
    labels: tuple[str, ...]
    arrow_type: pa.DataType

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape after the rows."""
        return (len(self.labels),) if self.labels else ()

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, text counted as pointers."""
        return self.dtype.itemsize * max(1, len(self.labels))

    @property
    def type_name(self) -> str:
        """Name of the type of its values, for reports."""
        return str(self.arrow_type) if self.is_text else str(self.dtype)

    @property
    def is_text(self) -> bool:
        """Whether Zarr stores its values as text."""
        return self.dtype.kind not in "biuf"

    def arrow(self, values: np.ndarray) -> dict[str, pa.Array]:
        """Return the columns of a Parquet file, by name.

        Raises
        ------
        InputError
            If a value is not of the type that the first rows had.
        """
        columns = {f"{self.name}_{label}": values[:, j] for j, label in enumerate(self.labels)}
        try:
            return {
                name: pa.array(column, self.arrow_type, from_pandas=column.dtype.kind == "O")
                for name, column in (columns or {self.name: values}).items()
            }
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InputError(
                f"column {self.name!r} holds values of several types ({str(error).splitlines()[0]}); "
                f"make them one type, or write to Zarr, where they become text"
            ) from error

    def plain(self, values: np.ndarray) -> np.ndarray:
        """Return the values as a Zarr array takes them: what is no number becomes text, missing ones ""."""
        if not self.is_text:
            return values
        if values.dtype.kind in "mM":
            return values.astype(str).astype(object)
        texts = ["" if value is None or value != value else str(value) for value in values.tolist()]
        return np.array(texts, dtype=object)


def result_column(name: str, example: np.ndarray, labels: list[str]) -> ResultColumn:
    """Describe a result by what the machine makes of one row."""
    wide = tuple(labels) if example.ndim == 2 else ()
    return ResultColumn(name, example.dtype, wide, _arrow_type(name, example.reshape(-1)))


def id_column(name: str, dtype: np.dtype, values: np.ndarray) -> ResultColumn:
    """Describe an id column by its type and some of its values."""
    return ResultColumn(name, dtype, (), _arrow_type(name, values))


def _arrow_type(name: str, values: np.ndarray) -> pa.DataType:
    if values.dtype.kind in "UT":
        return pa.string()
    if values.dtype.kind != "O":
        return pa.from_numpy_dtype(values.dtype)
    try:
        found = pa.infer_type(values.tolist(), from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(
            f"column {name!r} holds values that no file can keep ({str(error).splitlines()[0]}); "
            f"make them numbers, text or dates"
        ) from error
    return pa.string() if pa.types.is_null(found) else found


def refuse_equal_names(columns: Mapping[str, object], ids: Mapping[str, object]) -> None:
    """Raise InputError for an id that is called like a result."""
    for name in ids:
        if name in columns:
            raise InputError(f"the id column {name!r} is called like a result; rename it")
        if "/" in name:
            raise InputError(f"the id column {name!r} has a slash in its name; rename it")
