"""Rows of Parquet row groups in batches, of which little more is in memory than is asked for.

To decode a column takes the bytes it is stored in, and a page of it, which may be all it holds: of a row
group of a million rows hundreds of megabytes, however few rows a batch has. So the columns of a large row
group are decoded some at a time, each over all rows that are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

PACK_BYTES = 64 * 2**20
"""Of columns that are decoded together: what they are stored in, and their pages."""


class Held(NamedTuple):
    """What reading row groups holds beside a batch.

    pack_bytes : stored bytes and pages of the columns that are decoded together.
    whole_rows : rows of the largest row group whose columns are decoded one pack after another, for which
        all of its rows that are wanted are held; 0 where there is none.
    """

    pack_bytes: int
    whole_rows: int


class GroupColumns:
    """Some columns of the row groups of an open Parquet file.

    Parameters
    ----------
    parquet : ParquetFile
    names : sequence of str
        Columns of its schema, in the order of the batches.
    """

    def __init__(self, parquet: Any, names: Sequence[str]) -> None:
        self._parquet = parquet
        self._names = list(names)
        self._leaves = leaves_of(parquet.metadata, self._names)

    def batches(self, number: int, n_rows: int, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows [first, last) of a row group, at most `n_rows` at a time.

        Decoding begins with the first row of the row group, since pages must be decoded in their order, and
        ends with the last one wanted.
        """
        packs = _packs(group_bytes(self._parquet.metadata, number, self._leaves))
        if len(packs) == 1:
            yield from self._decoded(self._names, number, n_rows, first, last)
            return
        columns: list[pa.ChunkedArray] = []
        for pack in packs:
            names = [self._names[j] for j in pack]
            columns += pa.Table.from_batches(self._decoded(names, number, n_rows, first, last)).columns
        yield from pa.Table.from_arrays(columns, self._names).to_batches(n_rows)

    def stream(self, number: int, n_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a row group, whose columns are decoded together, at most `n_rows` at a time."""
        return self._decoded(
            self._names, number, n_rows, 0, self._parquet.metadata.row_group(number).num_rows
        )

    def _decoded(
        self, names: list[str], number: int, n_rows: int, first: int, last: int
    ) -> Iterator[pa.RecordBatch]:
        at = 0
        # One thread: tasks are what runs in parallel.
        for batch in self._parquet.iter_batches(
            n_rows, row_groups=[number], columns=names, use_threads=False
        ):
            begin, end = max(at, first), min(at + batch.num_rows, last)
            offset, at = begin - at, at + batch.num_rows
            if begin < end:
                yield batch.select(names).slice(offset, end - begin)
            del batch  # else it would live while the next one is decoded
            if at >= last:
                return


def leaves_of(metadata: Any, names: Sequence[str]) -> list[list[int]]:
    """Return for each column the numbers of its stored columns: of a list those of its elements."""
    found: dict[str, list[int]] = {name: [] for name in names}
    for j in range(metadata.num_columns):
        path = metadata.schema.column(j).path
        while path not in found and "." in path:  # x.list.element of x
            path = path.rpartition(".")[0]
        if path in found:
            found[path].append(j)
    return [found[name] for name in names]


def group_bytes(metadata: Any, number: int, leaves: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the bytes that decoding each column of a row group may hold: as it is stored, and as pages."""
    group = metadata.row_group(number)
    chunks = [[group.column(j) for j in numbers] for numbers in leaves]
    sizes = [sum(c.total_compressed_size + c.total_uncompressed_size for c in column) for column in chunks]
    return np.array(sizes, np.int64)


def held_by(sizes: np.ndarray, group_rows: Sequence[int], *, together: bool = False) -> Held:
    """Return what reading row groups holds at most.

    Parameters
    ----------
    sizes : ndarray of shape (row groups, columns)
        `group_bytes` of each.
    group_rows : sequence of int
    together : bool
        Whether columns are decoded together however large they are.
    """
    sums, whole_rows = sizes.sum(axis=1), 0
    if together:
        return Held(int(sums.max(initial=0)), 0)
    for i in np.flatnonzero(sums > PACK_BYTES).tolist():
        packs = _packs(sizes[i])
        sums[i] = max(int(sizes[i, pack].sum()) for pack in packs)
        whole_rows = max(whole_rows, group_rows[i] if len(packs) > 1 else 0)
    return Held(int(sums.max(initial=0)), whole_rows)


def _packs(sizes: np.ndarray) -> list[list[int]]:
    """Return the columns in runs of at most `PACK_BYTES`, or of one column."""
    packs: list[list[int]] = [[]]
    left = PACK_BYTES
    for j, size in enumerate(sizes.tolist()):
        if packs[-1] and size > left:
            packs.append([])
            left = PACK_BYTES
        packs[-1].append(j)
        left -= size
    return packs
