"""How stored rows are cut: what a pass over them asks the store for, and decodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distrff.data.csr_rows import CsrReader
from distrff.data.dataset import Dataset
from distrff.data.parquet_files import find_files, read_footers
from distrff.data.zarr_rows import SHARD_BYTES, ZarrReader, row_bytes


@dataclass(frozen=True)
class StoredPart:
    """Rows that are stored together: an array of Zarr, or the row groups of Parquet files.

    Parameters
    ----------
    name : str
    starts : int64 ndarray
        The first rows of its units (chunks, row groups), ascending from 0, and the number of rows last.
    row_bytes : int
        Decoded.
    stored_bytes : int
        As it lies in the store.
    n_requests : int
        That a pass makes at least: one for each chunk, shard or row group.
    from_the_first : bool
        Whether a unit is decoded from its first row on, and only as far as is needed.
    """

    name: str
    starts: np.ndarray
    row_bytes: int
    stored_bytes: int
    n_requests: int
    from_the_first: bool = False

    @property
    def n_rows(self) -> int:
        return int(self.starts[-1])

    @property
    def decoded_bytes(self) -> int:
        """Of all rows, each once."""
        return self.n_rows * self.row_bytes

    def read_bytes(self, bounds: Sequence[tuple[int, int]]) -> int:
        """Return the decoded bytes of a pass over segments [start, stop); units across bounds count twice."""
        start, stop = np.asarray(bounds).T
        first = np.searchsorted(self.starts, start, side="right") - 1
        last = np.searchsorted(self.starts, stop, side="left")
        end = stop if self.from_the_first else self.starts[last]
        return int((end - self.starts[first]).sum()) * self.row_bytes

    def recut(self, unit_rows: int) -> StoredPart:
        """Return the same rows in units of so many, a request each."""
        starts = np.append(np.arange(0, self.n_rows, unit_rows), self.n_rows)
        return replace(self, starts=starts, n_requests=len(starts) - 1)


def stored_layout(path: str, dataset: Dataset, storage_options: dict[str, Any] | None) -> list[StoredPart]:
    """Return the parts that a pass over the dataset at `path` reads; metadata and sizes only."""
    if isinstance(dataset.reader, ZarrReader):
        return [_zarr_part(name, z, dataset.n_rows) for name, z in dataset.reader.arrays.items()]
    if isinstance(dataset.reader, CsrReader):
        arrays = dataset.reader.arrays.arrays.values()
        return [_zarr_part(z.path, z, dataset.n_rows) for z in arrays]
    return [_parquet_part(path, dataset, storage_options)]


def _zarr_part(name: str, z: Any, n_rows: int) -> StoredPart:
    """Return an array of one item a row; or one of the entries of sparse rows, as if all had equally many."""
    n = z.shape[0]
    item_bytes = row_bytes(z)
    whole = z.shards if z.shards is not None and z.shards[0] * item_bytes <= SHARD_BYTES else z.chunks
    first_items = np.append(np.arange(0, n, z.chunks[0]), n)
    n_requests = int(np.prod([-(-size // step) for size, step in zip(z.shape, whole, strict=True)]))
    return StoredPart(
        name=name,
        starts=np.unique(np.append(first_items * n_rows // max(n, 1), n_rows)),
        row_bytes=max(1, n * item_bytes // n_rows),
        stored_bytes=int(z.nbytes_stored()),
        n_requests=max(1, n_requests),
    )


def _parquet_part(path: str, dataset: Dataset, storage_options: dict[str, Any] | None) -> StoredPart:
    fs, files = find_files([path], storage_options)
    rows = [n for footer in read_footers(fs, files) for n in footer.group_rows if n]
    return StoredPart(
        name="row groups",
        starts=np.concatenate([[0], np.cumsum(rows)]),
        row_bytes=dataset.row_bytes,
        stored_bytes=sum(int(fs.size(file)) for file in files),
        n_requests=len(rows),
        from_the_first=True,
    )
