"""A table whose rows go through steps: parts that a task reads, and the kinds of its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa


class RawRows(Protocol):
    """Consecutive raw rows of a table, as a small picklable dataclass.

    A field may be a Delayed that arrives in the task as data, as in `Rows`.
    """

    @property
    def start(self) -> int:
        """Number of the first row in the table."""
        ...

    @property
    def stop(self) -> int: ...

    def batches(
        self, names: tuple[str, ...], n_rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns `names` of the part's rows [first, last), at most about `n_rows` at a time.

        `last` is None for all rows, which are then never held together.
        """
        ...


@dataclass(frozen=True, eq=False)
class RawTable:
    """A table that lies somewhere in parts.

    Parameters
    ----------
    parts : tuple of RawRows
        One after the other; none is empty.
    kinds : mapping of str to (str or None)
        Of the columns in their order: a kind of `RawColumn`; "unknown" where only the values tell; None for
        a type that no step takes.
    source : str
        For messages; without credentials.
    row_bytes : int
        About, of a raw row.
    row_labels : frozenset of str
        Columns that label rows: neither counted by indices nor taken unless they are named.
    is_delayed : bool
        Whether parts hold Delayed objects.
    column_bytes : mapping of str to ndarray
        What decoding a column of each part may hold, by name; empty where nothing is decoded.
    """

    parts: tuple[RawRows, ...]
    kinds: Mapping[str, str | None]
    source: str
    row_bytes: int
    row_labels: frozenset[str] = frozenset()
    is_delayed: bool = False
    column_bytes: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        return self.parts[-1].stop if self.parts else 0
