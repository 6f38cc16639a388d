"""Rows of a sparse matrix that a Zarr group holds as data, indices and indptr; dense nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
from scipy.sparse import csr_matrix

from distrff.data.dataset import lazy_blocks
from distrff.data.rows import FIELDS, Feed, RowBlock, Span, cut_tiles, cuts
from distrff.data.storage import SPAN_BYTES
from distrff.errors import InputError

if TYPE_CHECKING:
    from distrff.data.zarr_rows import ZarrReader

ENTRIES = ("data", "indices", "indptr")
ENCODING = "csr_matrix"
"""What a group of these arrays calls itself in its attribute `encoding-type`."""

_INDPTR_ROWS = 2**16


class CsrReader:
    """Reads rows of a CSR matrix; pickles to a few kilobytes.

    Parameters
    ----------
    arrays : ZarrReader
        Of data, indices and indptr, and of y and sample_weight where there are any.
    fields : tuple of str
        Which of X, y and sample_weight there are.
    n_rows, n_columns : int
    columns : list of int, or None
        Those of X that are wanted, in their order.
    """

    def __init__(
        self,
        arrays: ZarrReader,
        fields: tuple[str, ...],
        n_rows: int,
        n_columns: int,
        columns: list[int] | None,
    ) -> None:
        self.arrays, self._fields = arrays, fields
        self._n_rows, self._n_columns, self._columns = n_rows, n_columns, columns

    def rows(self, start: int, stop: int, fields: tuple[str, ...] = FIELDS) -> CsrRows:
        """Return the rows [start, stop)."""
        return CsrRows(start, stop, tuple(f for f in fields if f in self._fields), self)

    def lazy(self, field: str) -> da.Array:
        """Return one field in blocks of 65,536 rows; those of X are CSR matrices."""
        if field != "X":
            return self.arrays.lazy(field)
        row_chunks = tuple(b - a for a, b in cuts(0, self._n_rows, _INDPTR_ROWS))
        n_columns = self._n_columns if self._columns is None else len(self._columns)
        dtype = self.arrays.dtype("data")
        blocks = lazy_blocks(self, field, row_chunks, (n_columns,), dtype)
        return blocks.map_blocks(_itself, meta=csr_matrix((0, 0), dtype=dtype))

    def spans(self, start: int, stop: int) -> Iterator[Span]:
        """Yield X of the rows [start, stop), about 8 MB of entries at a time.

        Raises
        ------
        InputError
            If indptr or indices are not those of a CSR matrix, naming the rows.
        """
        for a, b in cuts(start, stop, _INDPTR_ROWS):
            indptr = self._entries("indptr", a, b + 1)
            if (np.diff(indptr) < 0).any():
                raise InputError(f"rows {a} to {b - 1}: indptr decreases; write the sparse matrix again")
            itemsize = self.arrays.dtype("data").itemsize + self.arrays.dtype("indices").itemsize
            most = max(1, SPAN_BYTES // itemsize)
            first = 0
            while first < b - a:
                last = int(np.searchsorted(indptr, indptr[first] + most, side="right")) - 1
                last = min(max(last, first + 1), b - a)
                yield {"X": self._matrix(a + first, indptr[first : last + 1])}
                first = last

    def _matrix(self, row: int, indptr: np.ndarray) -> csr_matrix:
        begin, end = int(indptr[0]), int(indptr[-1])
        data, indices = (self._entries(name, begin, end) for name in ("data", "indices"))
        if len(indices) and not 0 <= indices.min() <= indices.max() < self._n_columns:
            raise InputError(
                f"rows {row} to {row + len(indptr) - 2}: indices beyond the {self._n_columns} columns of the "
                f"sparse matrix; write it again"
            )
        X = csr_matrix((data, indices, indptr - begin), shape=(len(indptr) - 1, self._n_columns), copy=False)
        return X if self._columns is None else X[:, self._columns]

    def _entries(self, name: str, begin: int, end: int) -> np.ndarray:
        parts = [span[name] for span in self.arrays.spans(name, begin, end)]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self.arrays.dtype(name)), *parts])


@dataclass(frozen=True)
class CsrRows:
    """Rows of a sparse matrix: a handle, no data."""

    start: int
    stop: int
    fields: tuple[str, ...]
    reader: CsrReader = field(repr=False)

    def tiles(self, n_rows: int) -> Iterator[RowBlock]:
        """Yield the rows in blocks of `n_rows`, X as CSR matrices.

        Raises
        ------
        InputError
            If a chunk is damaged, or this process does not see the store.
        OSError
            If the store fails otherwise; a retry may succeed.
        """
        start, stop, reader = self.start, self.stop, self.reader
        spans = (
            reader.spans(start, stop) if field == "X" else reader.arrays.spans(field, start, stop)
            for field in self.fields
        )
        return cut_tiles(start, stop, n_rows, [Feed(of_field, stop - start) for of_field in spans])


def _itself(block: Any) -> Any:
    return block
