"""A Zarr group of rows that is written shard by shard, while the number of rows is not known yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import zarr
from scipy.sparse import csr_matrix, issparse

from distrff.errors import InputError
from distrff.io.storage import ROOT, Location, replacing, storage_errors

KIND = "dataset"
_CHUNK_BYTES = 4 * 2**20  # a light sweep's tiles cut several from it
_SHARD_CHUNKS = 8  # a shard is one file and one request, and is decoded at once
_SPARSE_CHUNK = 2**19  # entries


class Sink(Protocol):
    """Takes encoded rows, in order."""

    def append(self, X: Any, y: np.ndarray | None, sample_weight: np.ndarray | None) -> None:
        """Take some rows."""

    def finish(self) -> int:
        """Return how many rows there were, when all of them are stored."""


@contextmanager
def new_group(location: Location, *, overwrite: bool = False) -> Iterator[zarr.Group]:
    """Give an empty group that readers see whole when the block is left, or not at all; see `replacing`.

    Until `mark_complete` it says that it is incomplete, and readers refuse it.

    Raises
    ------
    InputError
        If something is there that may not be replaced, or the place cannot be written.
    """
    with replacing(location, overwrite=overwrite, kinds=(KIND,)) as fresh:
        unfinished = {"kind": KIND, "format": 1, "complete": False}
        with storage_errors(f"{location} cannot be reached"):
            group = zarr.open_group(fresh.zarr_store(), mode="a", attributes={ROOT: unfinished})
        yield group


def mark_complete(group: zarr.Group) -> None:
    """Say that the group is whole; the last thing that is written to it."""
    group.update_attributes({ROOT: {"kind": KIND, "format": 1, "complete": True}})


class GrowingArray:
    """One array that grows by `length` rows at a time; what does not fill them waits.

    Parameters
    ----------
    group : zarr.Group
    name : str
    like : ndarray
        Whose type and shape after the first axis the array has.
    length : int
        Rows written at once: a shard of `chunk` rows each, or one chunk.
    chunk : int, optional
    """

    def __init__(
        self, group: zarr.Group, name: str, like: Any, length: int, *, chunk: int | None = None
    ) -> None:
        self._group, self._name, self._chunk = group, name, chunk or length
        self._buffer = np.empty((length, *like.shape[1:]), like.dtype)
        self._array: zarr.Array | None = None
        self._held = self._written = 0

    def create(self, chunk: int) -> None:
        """Create the array, empty."""
        length, *others = self._buffer.shape
        self._array = self._group.create_array(
            self._name,
            shape=(0, *others),
            chunks=(chunk, *others),
            shards=(length, *others) if self._held == length > chunk else None,
            dtype=str if self._buffer.dtype.kind == "O" else self._buffer.dtype,
        )

    def append(self, values: Any) -> None:
        """Take more rows, dense or sparse; whole lengths are written."""
        at, n_rows = 0, values.shape[0]
        while at < n_rows:
            n = min(n_rows - at, len(self._buffer) - self._held)
            rows = values[at : at + n]
            # Sparse rows become dense here, a shard of them at most.
            self._buffer[self._held : self._held + n] = rows.toarray() if issparse(rows) else rows
            at, self._held = at + n, self._held + n
            if self._held == len(self._buffer):
                self._flush()

    def _flush(self) -> None:
        if self._array is None:  # of few rows, chunks are no longer than they are
            self.create(min(self._chunk, self._held))
        assert self._array is not None
        values, stop = self._buffer[: self._held], self._written + self._held
        self._array.resize((stop, *self._array.shape[1:]))
        self._array[self._written : stop] = values.astype(str) if values.dtype.kind == "O" else values
        self._written, self._held = stop, 0

    def finish(self) -> int:
        """Write what waits, and return the number of rows."""
        if self._held:
            self._flush()
        return self._written


class DenseWriter:
    """Writes the arrays X (n, d), y and sample_weight, as many as come.

    A chunk of X has about 4 MB and a shard eight chunks; the other arrays have a chunk for each shard.

    Parameters
    ----------
    group : zarr.Group
    chunk_rows : int, optional
        Rows of a chunk of X instead.
    """

    def __init__(self, group: zarr.Group, chunk_rows: int | None = None) -> None:
        self._group, self._chunk_rows = group, chunk_rows
        self._arrays: dict[str, GrowingArray] = {}

    def append(self, X: Any, y: np.ndarray | None, sample_weight: np.ndarray | None) -> None:
        """Take some rows; whole shards are written."""
        parts = {"X": X, "y": y, "sample_weight": sample_weight}
        parts = {name: part for name, part in parts.items() if part is not None}
        if not self._arrays:
            self._begin(parts)
        for name, part in parts.items():
            self._arrays[name].append(part)

    def _begin(self, parts: dict[str, Any]) -> None:
        row_bytes = parts["X"].dtype.itemsize * parts["X"].shape[1]
        chunk = self._chunk_rows or max(1, _CHUNK_BYTES // row_bytes)
        shard = chunk * _SHARD_CHUNKS
        try:
            self._arrays = {
                name: GrowingArray(self._group, name, part, shard, chunk=chunk if name == "X" else None)
                for name, part in parts.items()
            }
        except (MemoryError, ValueError) as error:  # as many bytes, or more than can be counted
            raise InputError(
                f"chunk_rows={chunk} makes shards of {shard * row_bytes:.3g} bytes, "
                f"which memory does not hold; give fewer (--chunk-rows)"
            ) from error

    def finish(self) -> int:
        """Write what is left, and return the number of rows."""
        return max((array.finish() for array in self._arrays.values()), default=0)


class SparseWriter:
    """Writes X as a group with the arrays data, indices and indptr of a CSR matrix, and y, sample_weight.

    The group's attributes are those by which other readers know such a matrix: `encoding-type`
    "csr_matrix" and `shape`.

    Parameters
    ----------
    group : zarr.Group
    chunk_rows : int, optional
        Rows of a chunk of indptr, y and sample_weight; default 65,536.
    """

    def __init__(self, group: zarr.Group, chunk_rows: int | None = None) -> None:
        self._group, self._chunk_rows = group, chunk_rows or 2**16
        self._arrays: dict[str, GrowingArray] = {}
        self._shape = (0, 0)
        self._n_entries = 0

    def append(self, X: Any, y: np.ndarray | None, sample_weight: np.ndarray | None) -> None:
        """Take some rows, dense or sparse."""
        X = X if issparse(X) else csr_matrix(X)
        others = {"y": y, "sample_weight": sample_weight}
        parts = {name: part for name, part in others.items() if part is not None}
        if not self._arrays:
            self._begin(X, parts)
        parts["X/data"], parts["X/indices"] = X.data, X.indices.astype(np.int32, copy=False)
        parts["X/indptr"] = X.indptr[1:].astype(np.int64) + self._n_entries
        for name, part in parts.items():
            self._arrays[name].append(part)
        self._shape = (self._shape[0] + X.shape[0], X.shape[1])
        self._n_entries += X.nnz

    def _begin(self, X: Any, others: dict[str, np.ndarray]) -> None:
        self._group.create_group("X")
        likes = {"X/data": X.data, "X/indices": np.empty(0, np.int32)}
        lengths = dict.fromkeys(likes, _SPARSE_CHUNK)
        for name, like in (likes | {"X/indptr": np.empty(0, np.int64)} | others).items():
            length = lengths.get(name, self._chunk_rows)
            self._arrays[name] = GrowingArray(self._group, name, like, length)
            self._arrays[name].create(length)
        self._arrays["X/indptr"].append(np.zeros(1, np.int64))

    def finish(self) -> int:
        """Write what is left, and return the number of rows."""
        for array in self._arrays.values():
            array.finish()
        if self._arrays:
            encoding = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
            self._group["X"].update_attributes(encoding | {"shape": list(self._shape)})
        return self._shape[0]
