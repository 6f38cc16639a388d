"""Writing rows to a Zarr group, shard by shard: in the given order, split in two, or shuffled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import zarr
from scipy.sparse import csr_matrix, issparse

from distrff.errors import InputError
from distrff.io.rows import Span
from distrff.io.storage import ROOT, Location, replacing, storage_errors
from distrff.utils.random import child_seed, row_hash

KIND = "dataset"
_CHUNK_BYTES = 4 * 2**20  # several tiles are cut from a chunk
_SHARD_CHUNKS = 8  # a shard is one file and one request, and is decoded at once
_SPARSE_CHUNK = 2**19  # entries
_ZARR_LEFTOVER = re.compile(r"\.[0-9a-f]{32}\.partial$")  # a chunk whose writer was killed

Places = Mapping[str, Sequence[int]]
"""Of each array of a group, how many values it has taken and how many of them are written."""


class Sink(Protocol):
    """Takes encoded rows, in order."""

    def append(self, rows: Span) -> None:
        """Take some rows: X, dense or CSR, and y and sample_weight if there are any."""

    def finish(self) -> int:
        """Store what is left, and return the number of all rows."""


@contextmanager
def new_group(
    location: Location, *, overwrite: bool = False, token: str | None = None
) -> Iterator[zarr.Group]:
    """Yield a group, which readers see complete after the block or not at all; see `replacing`.

    It is empty, or with a `token` as the last process left it. Until `mark_complete` its header says that it
    is incomplete, and readers refuse it.
    """
    with replacing(location, overwrite=overwrite, kinds=(KIND,), token=token) as fresh:
        if token is not None and fresh.path is not None:
            for left in filter(_ZARR_LEFTOVER.search, map(str, fresh.path.rglob("*"))):
                Path(left).unlink(missing_ok=True)
        unfinished = {"kind": KIND, "format": 1, "complete": False}
        with storage_errors(f"{location} cannot be reached"):
            group = zarr.open_group(fresh.zarr_store(), mode="a", attributes={ROOT: unfinished})
        yield group


def mark_complete(group: zarr.Group) -> None:
    """Mark the group as complete; nothing is written to it afterwards."""
    group.update_attributes({ROOT: {"kind": KIND, "format": 1, "complete": True}})


class GrowingArray:
    """A Zarr array that grows by `length` rows at a time; fewer wait in a buffer of the dtype of `like`.

    With a `chunk` shorter than `length`, shards have `length` rows.
    """

    def __init__(
        self, group: zarr.Group, name: str, like: Any, length: int, *, chunk: int | None = None
    ) -> None:
        self._group, self._name, self._chunk = group, name, chunk or length
        self._buffer = np.empty((length, *like.shape[1:]), like.dtype)
        self._array: zarr.Array | None = None
        self._held = self.written = self._skipped = 0

    @property
    def taken(self) -> int:
        """The number of values that were appended."""
        return self.written + self._held - self._skipped

    def go_on(self, taken: int, written: int) -> None:
        """Go on with an array of which an earlier process wrote some values.

        The values appended next are those from number `taken` on, and the first of them are written already.
        """
        if written:
            self._array = self._group[self._name]
            if self._array.shape[0] != written:  # it may have grown before that process was killed
                self._array.resize((written, *self._array.shape[1:]))
        self.written, self._skipped = written, written - taken

    def create(self, chunk: int) -> None:
        """Create the array, empty."""
        length, *others = self._buffer.shape
        self._array = self._group.create_array(
            self._name,
            shape=(0, *others),
            chunks=(chunk, *others),
            shards=(length, *others) if self._held == length > chunk else None,
            dtype=str if self._buffer.dtype.kind == "O" else self._buffer.dtype,
            overwrite=True,  # what a killed process wrote
        )

    def append(self, values: Any) -> None:
        """Take more rows, dense or sparse; write full buffers."""
        n_rows = values.shape[0]
        at = min(self._skipped, n_rows)
        self._skipped -= at
        while at < n_rows:
            n = min(n_rows - at, len(self._buffer) - self._held)
            rows = values[at : at + n]
            # Sparse rows become dense here, at most one shard at a time.
            self._buffer[self._held : self._held + n] = rows.toarray() if issparse(rows) else rows
            at, self._held = at + n, self._held + n
            if self._held == len(self._buffer):
                self._flush()

    def _flush(self) -> None:
        if self._array is None:  # a short array has chunks of its own length
            self.create(min(self._chunk, self._held))
        assert self._array is not None
        values, stop = self._buffer[: self._held], self.written + self._held
        self._array.resize((stop, *self._array.shape[1:]))
        self._array[self.written : stop] = values.astype(str) if values.dtype.kind == "O" else values
        self.written, self._held = stop, 0

    def finish(self) -> int:
        """Write the rows in the buffer, and return the number of all rows."""
        if self._held:
            self._flush()
        return self.written


class GroupWriter(Sink):
    """Writes rows to the arrays of a group."""

    def __init__(self, group: zarr.Group, chunk_rows: int | None = None) -> None:
        self._group, self._chunk_rows = group, chunk_rows
        self._arrays: dict[str, GrowingArray] = {}
        self._before: Places = {}

    def places(self) -> dict[str, tuple[int, int]]:
        """Return how many values each array has taken and written, none before the first rows."""
        return {name: (array.taken, array.written) for name, array in self._arrays.items()}

    def go_on(self, places: Places) -> bool:
        """Go on where an earlier process was, before the first rows; return whether its arrays are there.

        The next rows to be appended are those from the number taken on.
        """
        try:
            are_there = all(self._group[name].shape[0] >= n for name, (_, n) in places.items() if n)
        except (KeyError, ValueError, TypeError, OSError):
            are_there = False
        self._before = places if are_there else {}
        return are_there

    def _went_on(self, name: str) -> tuple[int, int]:
        taken, written = self._before.get(name, (0, 0))
        return taken, written


class DenseWriter(GroupWriter):
    """Writes the arrays X (n, d), y and sample_weight.

    A chunk of X has `chunk_rows` rows, by default about 4 MB, and a shard has eight chunks. The other arrays
    have one chunk per shard of X.
    """

    def append(self, rows: Span) -> None:
        """Take some rows; write full shards."""
        if not self._arrays:
            arrays = self._new_arrays(rows)
            for name, array in arrays.items():
                array.go_on(*self._went_on(name))
            self._arrays = arrays
        for name, values in rows.items():
            self._arrays[name].append(values)

    def _new_arrays(self, rows: Span) -> dict[str, GrowingArray]:
        row_bytes = rows["X"].dtype.itemsize * rows["X"].shape[1]
        chunk = self._chunk_rows or max(1, _CHUNK_BYTES // row_bytes)
        shard = chunk * _SHARD_CHUNKS
        try:
            return {
                name: GrowingArray(self._group, name, values, shard, chunk=chunk if name == "X" else None)
                for name, values in rows.items()
            }
        except (MemoryError, ValueError) as error:  # NumPy raises ValueError for sizes beyond its integers
            raise InputError(
                f"chunk_rows={chunk} makes shards of {shard * row_bytes:.3g} bytes, which memory does not "
                f"hold; give fewer rows"
            ) from error

    def finish(self) -> int:
        """Write what is left, and return the number of rows."""
        return max((array.finish() for array in self._arrays.values()), default=0)


class SparseWriter(GroupWriter):
    """Writes X as a group with the arrays data, indices and indptr of a CSR matrix, and y, sample_weight.

    The group has the attributes by which other readers (anndata) recognize such a matrix: `encoding-type`
    "csr_matrix" and `shape`. A chunk of indptr, y and sample_weight has `chunk_rows` rows, by default 65,536.
    """

    def __init__(self, group: zarr.Group, chunk_rows: int | None = None) -> None:
        super().__init__(group, chunk_rows or 2**16)
        self._shape = (0, 0)
        self._n_entries = 0

    def go_on(self, places: Places) -> bool:
        are_there = super().go_on(places)
        self._n_entries, n_starts = (self._went_on(name)[0] for name in ("X/data", "X/indptr"))
        self._shape = (max(n_starts - 1, 0), 0)
        return are_there

    def append(self, rows: Span) -> None:
        """Take some rows, dense or sparse."""
        X = csr_matrix(rows["X"])
        parts = {"X/data": X.data, "X/indices": X.indices.astype(np.int32, copy=False)}
        parts["X/indptr"] = X.indptr[1:].astype(np.int64) + self._n_entries
        parts |= {name: values for name, values in rows.items() if name != "X"}
        if not self._arrays:
            self._group.require_group("X")
            self._arrays = self._new_arrays(parts)
            if not self._arrays["X/indptr"].taken:
                self._arrays["X/indptr"].append(np.zeros(1, np.int64))
        for name, part in parts.items():
            self._arrays[name].append(part)
        self._shape = (self._shape[0] + X.shape[0], X.shape[1])
        self._n_entries += X.nnz

    def _new_arrays(self, parts: dict[str, np.ndarray]) -> dict[str, GrowingArray]:
        assert self._chunk_rows is not None
        arrays = {}
        for name, like in parts.items():
            length = _SPARSE_CHUNK if name in ("X/data", "X/indices") else self._chunk_rows
            arrays[name] = array = GrowingArray(self._group, name, like, length)
            taken, written = self._went_on(name)
            if not written:
                array.create(length)
            array.go_on(taken, written)
        return arrays

    def finish(self) -> int:
        """Write what is left, and return the number of rows."""
        for array in self._arrays.values():
            array.finish()
        if self._arrays:
            encoding = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
            self._group["X"].update_attributes(encoding | {"shape": list(self._shape)})
        return self._shape[0]


# Test rows and training rows.


def is_test_row(rows: np.ndarray, seed: int, fraction: float) -> np.ndarray:
    """Return which rows are test rows: each with probability `fraction`, by its number and the seed only."""
    hashes = row_hash(np.asarray(rows, np.uint64), child_seed(seed, "test rows"))
    return hashes < np.uint64(fraction * 2.0**64)


class SetApart:
    """Passes rows to one of two sinks: about the share `fraction` to `test`, the others to `training`."""

    def __init__(self, training: Sink, test: Sink, fraction: float, seed: int, first_row: int = 0) -> None:
        self._sinks, self._fraction, self._seed = (training, test), fraction, seed
        self._n_rows = first_row
        self.n_written = (0, 0)

    def append(self, rows: Span) -> None:
        """Take some rows."""
        first, self._n_rows = self._n_rows, self._n_rows + rows["X"].shape[0]
        in_test = is_test_row(np.arange(first, self._n_rows), self._seed, self._fraction)
        for sink, chosen in zip(self._sinks, (~in_test, in_test), strict=True):
            if chosen.any():
                sink.append(_taken(rows, chosen))

    def finish(self) -> int:
        """Finish both sinks, and return the number of all rows."""
        self.n_written = (self._sinks[0].finish(), self._sinks[1].finish())
        return sum(self.n_written)


def _taken(rows: Span, chosen: Any) -> Span:
    return {name: values[chosen] for name, values in rows.items()}


# Rows in a uniformly random order, by two passes through buckets on disk.

_BUCKET_BITS = 6  # 64 buckets, so 64 open files per field
_BUCKET_BYTES = 64 * 2**20  # a bucket up to this size is sorted in memory
_PART_BYTES = 8 * 2**20  # of a larger one, read at a time


def shuffle_keys(rows: np.ndarray, seed: int) -> np.ndarray:
    """Return the key of each row number, uint64: shuffled rows are sorted by their keys.

    Keys are 64 hashed bits, different for different rows. So all orders are equally likely, as far as the
    hash is random, and the order does not depend on how the rows are cut into blocks.
    """
    return row_hash(np.asarray(rows, np.uint64), child_seed(seed, "shuffle"))


class Shuffled:
    """Passes all rows to a sink in the order of their keys.

    The first pass appends each row to one of 64 buckets on disk, by the leading bits of its key; the second
    reads and sorts one bucket after another. A bucket of more than 64 MB is first split into 64 by the next
    bits. So about two blocks and two buckets are in memory, whatever the number of rows.

    `folder` is empty, on a disk with room for all rows. Or they go to `buckets` of another kind, which may
    hold the first ones already.

    Independent uniform buckets, each in uniform order, make a uniform order of all rows: Sandelius 1962,
    "A simple randomization procedure"; Rao 1961.
    """

    def __init__(self, sink: Sink, seed: int, folder: Path, buckets: AnyBuckets | None = None) -> None:
        self._sink, self._seed = sink, seed
        self._buckets = Buckets(folder, level=0) if buckets is None else buckets
        self._n_rows, self._codes = self._buckets.n_rows, self._buckets.codes

    def append(self, rows: Span) -> None:
        """Take some rows."""
        first, self._n_rows = self._n_rows, self._n_rows + rows["X"].shape[0]
        rows = rows | {"keys": shuffle_keys(np.arange(first, self._n_rows), self._seed)}
        if "y" in rows and rows["y"].dtype.kind == "O":  # buckets hold text as codes
            codes = [self._codes.setdefault(word, len(self._codes)) for word in rows["y"].ravel().tolist()]
            rows["y"] = np.array(codes, np.int32).reshape(rows["y"].shape)
        self._buckets.append(rows)

    def finish(self) -> int:
        """Pass the rows on in their new order, and return their number."""
        words = np.array([*self._codes, None], dtype=object)
        for rows in self._buckets.in_order():
            del rows["keys"]
            if self._codes:
                rows["y"] = words[rows["y"]]
            self._sink.append(rows)
        return self._sink.finish()


class AnyBuckets(Protocol):
    """Rows by bits of their keys, with `n_rows` of them and the `codes` of text in y from the beginning."""

    n_rows: int
    codes: dict[str, int]

    def append(self, rows: Span) -> None:
        """Take some rows, with their `keys`."""

    def in_order(self) -> Iterator[Span]:
        """Yield all rows in the order of their keys."""


def by_bucket(rows: Span, level: int) -> tuple[Span, list[int]]:
    """Return rows by the bucket of their keys, and the bounds of the buckets among them."""
    shift = np.uint64(64 - _BUCKET_BITS * (level + 1))
    bucket = ((rows["keys"] >> shift) & np.uint64(n_buckets() - 1)).astype(np.uint8)
    ends = np.cumsum(np.bincount(bucket, minlength=n_buckets()))
    return _taken(rows, np.argsort(bucket, kind="stable")), [0, *ends.tolist()]


def n_buckets() -> int:
    """Return the number of buckets on each level."""
    return 2**_BUCKET_BITS


def is_large(n_bytes: int) -> bool:
    """Return whether a bucket is too large to be sorted in memory."""
    return n_bytes > _BUCKET_BYTES


def sorted_by_key(rows: Span) -> Span:
    """Return rows in the order of their keys."""
    return _taken(rows, np.argsort(rows["keys"]))


def flat_fields(rows: Span) -> dict[str, np.ndarray]:
    """Return the fields of rows as arrays; those of CSR as data, indices and the lengths of the rows."""
    X = rows["X"]
    if not issparse(X):
        return dict(rows)
    others = {name: values for name, values in rows.items() if name != "X"}
    return others | {"data": X.data, "indices": X.indices, "lengths": np.diff(X.indptr)}


def rows_of_fields(fields: dict[str, np.ndarray], n_columns: int) -> Span:
    """Return the rows that `flat_fields` took apart."""
    rows: Span = dict(fields)
    if "X" not in rows:
        starts = np.concatenate([[0], np.cumsum(rows.pop("lengths"), dtype=np.int64)])
        shape = (len(starts) - 1, n_columns)
        rows["X"] = csr_matrix((rows.pop("data"), rows.pop("indices"), starts), shape=shape)
    return rows


class Buckets:
    """Rows in 64 files per field, by bits of their keys; `level` counts the splits before this one."""

    def __init__(self, folder: Path, level: int) -> None:
        self.n_rows, self.codes = 0, dict[str, int]()
        self._folder, self._level = folder, level
        self._layout: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        self._n_columns = 0
        self._sizes = [0] * n_buckets()
        self._handles: dict[tuple[int, str], Any] = {}

    def append(self, rows: Span) -> None:
        self._n_columns = rows["X"].shape[1]
        rows, bounds = by_bucket(rows, self._level)
        for b, (start, stop) in enumerate(pairwise(bounds)):
            if start < stop:
                self._write(b, flat_fields(_taken(rows, slice(start, stop))))

    def _write(self, b: int, fields: dict[str, np.ndarray]) -> None:
        self._layout = {name: (values.dtype, values.shape[1:]) for name, values in fields.items()}
        for name, values in fields.items():
            if (b, name) not in self._handles:
                self._handles[b, name] = self._path(b, name).open("wb")
            self._handles[b, name].write(np.ascontiguousarray(values).data)
            self._sizes[b] += values.nbytes

    def _path(self, b: int, name: str) -> Path:
        return self._folder / f"{b:02d}-{name}"

    def in_order(self) -> Iterator[Span]:
        """Yield all rows in the order of their keys; each bucket is removed once it is read."""
        for handle in self._handles.values():
            handle.close()
        for b, size in enumerate(self._sizes):
            if is_large(size):
                yield from self._split_again(b)
            elif size:
                rows = sorted_by_key(self._read(b))
                self._remove(b)
                yield rows

    def _read(self, b: int, read: Callable[..., np.ndarray] = np.fromfile) -> Span:
        fields = {
            name: read(self._path(b, name), dtype).reshape(-1, *rest)
            for name, (dtype, rest) in self._layout.items()
        }
        return rows_of_fields(fields, self._n_columns)

    def _split_again(self, b: int) -> Iterator[Span]:
        folder = self._folder / f"{b:02d}"
        folder.mkdir()
        finer = Buckets(folder, self._level + 1)
        rows = self._read(b, _mapped)
        n_rows = len(rows["keys"])
        step = max(1, n_rows * _PART_BYTES // self._sizes[b])
        for start in range(0, n_rows, step):
            finer.append(_taken(rows, slice(start, start + step)))
        del rows
        self._remove(b)
        yield from finer.in_order()
        folder.rmdir()

    def _remove(self, b: int) -> None:
        for name in self._layout:
            self._path(b, name).unlink()


def _mapped(path: Path, dtype: np.dtype) -> np.ndarray:
    """Return a file as an array that is read on access; an empty file cannot be mapped."""
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)
