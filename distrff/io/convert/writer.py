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
        self._arrays: dict[str, zarr.Array] = {}
        self._buffers: dict[str, np.ndarray] = {}
        self._held = self._written = 0
        self._shard_rows = 0

    def append(self, X: Any, y: np.ndarray | None, sample_weight: np.ndarray | None) -> None:
        """Take some rows; whole shards are written."""
        parts = {"X": X, "y": y, "sample_weight": sample_weight}
        parts = {name: part for name, part in parts.items() if part is not None}
        if not self._buffers:
            self._begin(parts)
        at = 0
        while at < X.shape[0]:
            n = min(X.shape[0] - at, self._shard_rows - self._held)
            for name, part in parts.items():
                rows = part[at : at + n]
                # Sparse rows become dense here, a shard of them at most.
                self._buffers[name][self._held : self._held + n] = rows.toarray() if issparse(rows) else rows
            at, self._held = at + n, self._held + n
            if self._held == self._shard_rows:
                self._flush()

    def _begin(self, parts: dict[str, Any]) -> None:
        X = parts["X"]
        row_bytes = X.dtype.itemsize * X.shape[1]
        self._chunk_rows = self._chunk_rows or max(1, _CHUNK_BYTES // row_bytes)
        self._shard_rows = self._chunk_rows * _SHARD_CHUNKS
        shapes = {name: (self._shard_rows, *part.shape[1:]) for name, part in parts.items()}
        try:
            self._buffers = {name: np.empty(shapes[name], part.dtype) for name, part in parts.items()}
        except (MemoryError, ValueError) as error:  # as many bytes, or more than can be counted
            raise InputError(
                f"chunk_rows={self._chunk_rows} makes shards of {self._shard_rows * row_bytes:.3g} bytes, "
                f"which memory does not hold; give fewer (--chunk-rows)"
            ) from error

    def _create(self) -> None:
        # Of few rows, chunks are no longer than they are.
        chunk = min(self._chunk_rows or 1, self._held)
        shard = chunk * _SHARD_CHUNKS if self._held == self._shard_rows else chunk
        for name, buffer in self._buffers.items():
            others = buffer.shape[1:]
            self._arrays[name] = self._group.create_array(
                name,
                shape=(0, *others),
                chunks=(chunk if name == "X" else self._held, *others),
                shards=(shard, *others) if name == "X" and shard > chunk else None,
                dtype=str if buffer.dtype.kind == "O" else buffer.dtype,
            )

    def _flush(self) -> None:
        if not self._arrays:
            self._create()
        stop = self._written + self._held
        for name, array in self._arrays.items():
            values = self._buffers[name][: self._held]
            array.resize((stop, *array.shape[1:]))
            array[self._written : stop] = values.astype(str) if values.dtype.kind == "O" else values
        self._written, self._held = stop, 0

    def finish(self) -> int:
        """Write what is left, and return the number of rows."""
        if self._held:
            self._flush()
        return self._written


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
        self._X: zarr.Group | None = None
        self._tails: dict[str, Tail] = {}
        self._n_rows = self._n_entries = self._n_columns = 0

    def append(self, X: Any, y: np.ndarray | None, sample_weight: np.ndarray | None) -> None:
        """Take some rows, dense or sparse."""
        X = X if issparse(X) else csr_matrix(X)
        if self._X is None:
            self._begin(X, y, sample_weight)
        self._tails["data"].append(X.data)
        self._tails["indices"].append(X.indices.astype(np.int32, copy=False))
        self._tails["indptr"].append(X.indptr[1:].astype(np.int64) + self._n_entries)
        for name, part in (("y", y), ("sample_weight", sample_weight)):
            if part is not None:
                self._tails[name].append(part)
        self._n_rows += X.shape[0]
        self._n_entries += X.nnz

    def _begin(self, X: Any, y: np.ndarray | None, sample_weight: np.ndarray | None) -> None:
        self._n_columns = X.shape[1]
        self._X = self._group.create_group("X")
        for name, part in (("data", X.data), ("indices", np.empty(0, np.int32))):
            self._tails[name] = Tail(self._X, name, part, _SPARSE_CHUNK)
        self._tails["indptr"] = Tail(self._X, "indptr", np.empty(0, np.int64), self._chunk_rows)
        self._tails["indptr"].append(np.zeros(1, np.int64))
        for name, values in (("y", y), ("sample_weight", sample_weight)):
            if values is not None:
                self._tails[name] = Tail(self._group, name, values, self._chunk_rows)

    def finish(self) -> int:
        """Write what is left, and return the number of rows."""
        for tail in self._tails.values():
            tail.finish()
        if self._X is not None:
            shape = [self._n_rows, self._n_columns]
            self._X.update_attributes(
                {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": shape}
            )
        return self._n_rows


class Tail:
    """One array that grows by whole chunks; what does not fill one waits.

    Parameters
    ----------
    group : zarr.Group
    name : str
    like : ndarray
        Whose type and shape after the first axis the array has.
    chunk : int
        Length of a chunk.
    """

    def __init__(self, group: zarr.Group, name: str, like: np.ndarray, chunk: int) -> None:
        self._chunk = chunk
        self._waiting: list[np.ndarray] = []
        self._n_waiting = 0
        self._array = group.create_array(
            name,
            shape=(0, *like.shape[1:]),
            chunks=(chunk, *like.shape[1:]),
            dtype=str if like.dtype.kind == "O" else like.dtype,
        )

    def append(self, values: np.ndarray) -> None:
        """Take more values."""
        self._waiting.append(values)
        self._n_waiting += len(values)
        if self._n_waiting >= self._chunk:
            self._write(self._n_waiting - self._n_waiting % self._chunk)

    def finish(self) -> None:
        """Write what waits."""
        if self._n_waiting:
            self._write(self._n_waiting)

    def _write(self, n: int) -> None:
        values = np.concatenate(self._waiting)
        start = self._array.shape[0]
        self._array.resize((start + n, *self._array.shape[1:]))
        written = values[:n]
        self._array[start : start + n] = written.astype(str) if written.dtype.kind == "O" else written
        rest = values[n:].copy()
        self._waiting, self._n_waiting = [rest], len(rest)
