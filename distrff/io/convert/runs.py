"""Writing rows to a Zarr group, shard by shard: in the given order, split in two, or shuffled."""

from __future__ import annotations

import logging
import math
import re
import secrets
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import zarr
from scipy.sparse import csr_matrix, issparse

from distrff.engine.checkpoint import DamagedPart, seconds_between
from distrff.errors import InputError
from distrff.io.dataset import Span, prefetched
from distrff.io.parts import (
    begun,
    read_head,
    read_part,
    read_range,
    remove_checkpoint,
    remove_leftovers,
    write_header,
    write_part,
    write_progress,
)
from distrff.io.storage import ROOT, Location, partial_folder, replacing, storage_errors, sync_files
from distrff.utils.arrays import joined_rows
from distrff.utils.random import child_seed, row_hash
from distrff.utils.serialize import DamagedValue, decoded, encoded

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


# What is finished of a shuffle, so that a killed conversion goes on from there and writes the same bytes.

logger = logging.getLogger(__name__)

_RUN_BYTES = 64 * 2**20  # of rows that wait in memory; of each bucket 1 MB, which is read at once
_N_READERS = 8  # threads, for the latency of object stores
_RUN = re.compile(r"\d{6,9}\.part")


class DamagedRun(Exception):
    """A run of rows that is missing or damaged; the source is read again from its rows on."""

    def __init__(self, number: int, reason: object) -> None:
        super().__init__(f"{reason}; its rows are read again")
        self.number = number


@dataclass
class _Block:
    """Rows of one piece and one part, by bucket; see `flat_fields`."""

    part: int
    fields: dict[str, np.ndarray]
    row_bounds: list[int]  # of the buckets
    entry_bounds: list[int]  # of CSR

    def bytes_of(self, name: str, bucket: int) -> np.ndarray:
        bounds = self.entry_bounds if name in ("data", "indices") else self.row_bounds
        values = self.fields[name][bounds[bucket] : bounds[bucket + 1]]
        return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


@dataclass
class _Waiting:
    """The run that is written next.

    `finished` says how many of its blocks are of whole pieces, and what follows them. It is replaced as a
    whole: a signal may come between any two steps.
    """

    number: int
    n_words: list[int]  # of each part, in the runs before
    blocks: list[_Block] = field(default_factory=list)
    n_bytes: int = 0
    finished: tuple[int, dict[str, Any]] | None = None


@dataclass
class _Stage:
    """One of the loops of a conversion, and how far it is."""

    name: str
    total: int
    unit: str
    done_before: int  # when this process began
    done: int = 0
    began: float = field(default_factory=time.monotonic)

    def progress(self) -> dict[str, Any]:
        done_here, spent = self.done - self.done_before, time.monotonic() - self.began
        left = spent * (self.total - self.done) / done_here if done_here > 0 else None
        how_far = {"stage": self.name, "done": self.done, "total": self.total, "unit": self.unit}
        return how_far | {"seconds_left_of_stage": left, "written": time.time()}


@dataclass(frozen=True)
class _Run:
    """A run of rows that is stored. Arrays have the shape (parts, buckets)."""

    location: Location
    n_rows: np.ndarray
    n_entries: np.ndarray
    checks: np.ndarray  # CRC-32
    offsets: np.ndarray  # in the file, of shape (parts * buckets + 1,)

    @classmethod
    def of(cls, location: Location, tree: Mapping[str, Any], start: int) -> _Run:
        offsets = start + np.concatenate([[0], np.cumsum(tree["n_bytes"], dtype=np.int64)])
        n_rows, n_entries, checks = (np.array(tree[key]) for key in ("n_rows", "n_entries", "checks"))
        return cls(location, n_rows, n_entries, checks, offsets)

    def n_bytes(self, part: int, bucket: int) -> int:
        at = part * self.n_rows.shape[1] + bucket
        return int(self.offsets[at + 1] - self.offsets[at])

    def read(self, part: int, bucket: int) -> bytes:
        at = part * self.n_rows.shape[1] + bucket
        found = read_range(self.location, int(self.offsets[at]), int(self.offsets[at + 1]))
        if zlib.crc32(found) != self.checks[part, bucket]:
            raise DamagedPart(f"{self.location} is damaged")
        return found


class ConversionCheckpoint:
    """The checkpoint of one conversion, which `begin` creates or finds.

    Its rows are in one part, or two where some are set apart.

    `every` are the seconds between two writes. `done` says where the first pass is: the `mark` of the last
    piece of the source, how many raw and positive rows there were up to it, and whether it was the last one.
    """

    def __init__(self, location: Location, header: Mapping[str, Any], every: float | None) -> None:
        self.location, self._header, self._every = location, dict(header), every
        self._due = time.monotonic() + seconds_between(every)
        self._group: zarr.Group | None = None
        self._codes: list[dict[str, int]] = []
        self._stage: _Stage | None = None
        self.was_there = False

    @classmethod
    def begin(
        cls, location: Location, fingerprint: Mapping[str, Any], every: float | None
    ) -> ConversionCheckpoint:
        """Create the checkpoint, or find that of the same conversion; raise InputError for any other one."""
        header = {"fingerprint": fingerprint, "dst": fingerprint["dst"], "token": secrets.token_hex(4)}
        was_there = location.header() is not None
        found = cls(location, begun(location, header, "conversion"), every)
        found.was_there = was_there
        return found

    @property
    def token(self) -> str:
        """Names the folder of the output while it is not complete; see `replacing`."""
        return str(self._header["token"])

    # Small values, each in a file.

    def value(self, name: str) -> Any:
        """Return a stored value; None if there is none, or its writing was cut off."""
        if f"{name}.part" not in self.location.names():
            return None
        try:
            return decoded(*read_part(self.location.within(f"{name}.part")))
        except (DamagedPart, DamagedValue) as error:
            logger.warning("%s; it is found again", error)
            return None

    def keep(self, name: str, value: Any, started: float | None = None) -> None:
        """Store a value in the place of the last one of this name; its writing may have `started` before."""
        started = time.monotonic() if started is None else started
        write_part(self.location.within(f"{name}.part"), *encoded(value))
        self._wrote(started)

    def is_due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() >= self._due

    def see(self, stage: str, done: int, total: int, unit: str) -> None:
        """Note how far a stage of the conversion is, which is stored with the next write."""
        if self._stage is None or self._stage.name != stage:
            self._stage = _Stage(stage, total, unit, done)
        self._stage.done = done

    def _wrote(self, started: float) -> None:
        if self._stage is not None:
            write_progress(self.location, self._stage.progress())
        ended = time.monotonic()
        self._due = ended + seconds_between(self._every, ended - started)

    # The end of a conversion.

    def finished(self, location: Location) -> dict[str, Any] | None:
        """Return the report if the output is complete at its place, and only this checkpoint was left."""
        report, target = self._header.get("report"), location.path
        if report is None or (target is not None and partial_folder(target, self.token).exists()):
            return None
        attributes = (location.root() or {}).get("attributes") or {}
        is_complete = (location.header() or {}).get("complete") is True
        return report if is_complete and attributes.get("report") == report else None

    def finish(self, report: Mapping[str, Any]) -> None:
        """Note that all is written, before it is marked as complete."""
        self._header = self._header | {"report": report}
        write_header(self.location, self._header)

    def remove(self) -> None:
        """Remove the checkpoint."""
        remove_checkpoint(self.location)

    # The first pass.

    def open(self, group: zarr.Group, n_parts: int) -> None:
        """Find the runs, of rows in one part or two; called by the one process that holds the output."""
        self._group, self._codes = group, [{} for _ in range(n_parts)]
        self.done: dict[str, Any] = {"mark": None, "n_raw": 0, "n_positive": 0, "is_last": False}
        self.is_sparse: bool | None = None  # how the rows are written; None while there are none
        self._layout: dict[str, Any] | None = None
        self._runs: list[_Run] = []
        self.steps = self.value("steps")
        remove_leftovers(self.location)
        names = set(filter(_RUN.fullmatch, self.location.within("runs").names()))
        # Rows were encoded by these steps, so they are of no use without them.
        places = [] if self.steps is None else self._places(names)
        heads = prefetched([partial(read_head, place) for place in places], _N_READERS, _N_READERS)
        try:
            for place, (tree, start) in zip(places, heads, strict=True):
                self._take(_Run.of(place, tree, start), tree)
        except (DamagedPart, KeyError, TypeError, ValueError) as damage:
            logger.warning("%s; its rows are read again", damage)
        self._remove_runs(len(self._runs) + 1)
        self._waiting = _Waiting(len(self._runs) + 1, [len(codes) for codes in self._codes])
        self._notes: dict[int, Any] = self.value("output") or {}
        self._written_notes, self._synced = self._notes, 0.0

    def _places(self, names: set[str]) -> list[Location]:
        """Return the runs from the first on, up to one that is missing."""
        n = next(i for i in range(len(names) + 1) if _name(i + 1) not in names)
        return [self._place(i + 1) for i in range(n)]

    def _place(self, number: int) -> Location:
        return self.location.within(f"runs/{_name(number)}")

    def _take(self, run: _Run, tree: Mapping[str, Any]) -> None:
        if tree["after"] != self.done:  # where two processes wrote, rows would be missing or twice there
            raise ValueError(f"{run.location} does not follow the run before it")
        self.done, self._layout = dict(tree["done"]), tree["layout"] or self._layout
        if self._layout is not None:
            self.is_sparse = bool(self._layout["is_sparse"])
        for codes, words in zip(self._codes, tree["words"], strict=True):
            codes.update(zip(words, range(len(codes), len(codes) + len(words)), strict=True))
        self._runs.append(run)

    def _remove_runs(self, first: int) -> None:
        """Remove the runs from a number on."""
        runs = self.location.within("runs")
        for name in filter(_RUN.fullmatch, runs.names()):
            if int(name.removesuffix(".part")) >= first:
                runs.within(name).remove()

    def start_over(self) -> None:
        """Remove all that is there but the types of columns, which have become others."""
        self.drop_runs(1)
        for name in ("profile", "steps"):
            self.location.within(f"{name}.part").remove()

    def drop_runs(self, first: int) -> None:
        """Remove the runs from a number on, and the note on the output that was made of them."""
        self.location.within("output.part").remove()
        self._remove_runs(first)

    @property
    def n_rows(self) -> int:
        """The number of rows in all runs."""
        return sum(int(run.n_rows.sum()) for run in self._runs)

    def buckets(self, part: int, writer: GroupWriter, folder: Path) -> StoredBuckets:
        """Return the rows of a part as buckets, which go to a writer; `folder` is for large buckets."""
        n_rows = sum(int(run.n_rows[part].sum()) for run in self._runs)
        return StoredBuckets(self, part, writer, folder, n_rows, self._codes[part])

    def take(self, part: int, rows: Span) -> None:
        """Take some rows of a part, with their keys."""
        rows, row_bounds = by_bucket(rows, level=0)
        fields, n_columns, entry_bounds = flat_fields(rows), rows["X"].shape[1], [0] * len(row_bounds)
        if "indices" in fields:
            entry_bounds = rows["X"].indptr[row_bounds].tolist()
            fields["indices"] = fields["indices"].astype(np.int32, copy=False)
            fields["lengths"] = fields["lengths"].astype(np.int64)
        if self._layout is None:
            # The widest numbers first, so that all of them are aligned in a bucket's bytes.
            names = sorted(fields, key=lambda name: -fields[name].dtype.itemsize)
            kinds = [[name, fields[name].dtype.str, list(fields[name].shape[1:])] for name in names]
            self._layout = {"fields": kinds, "n_columns": n_columns, "is_sparse": self.is_sparse}
        self._waiting.blocks.append(_Block(part, fields, row_bounds, entry_bounds))
        self._waiting.n_bytes += sum(values.nbytes for values in fields.values())

    def advance(self, mark: Any, n_raw: int, n_positive: int) -> None:
        """Note that all rows up to a piece of the source were taken; write them if it is time to."""
        waiting = self._waiting
        words = [len(codes) for codes in self._codes]
        done = {"mark": mark, "n_raw": n_raw, "n_positive": n_positive, "is_last": False}
        waiting.finished = (len(waiting.blocks), {"done": done, "n_words": words})
        if self.is_due() or waiting.n_bytes >= _RUN_BYTES:
            self.write_run()

    def end_of_source(self) -> None:
        """Write the rows that are left, and note that they are the last ones."""
        n_words = [len(codes) for codes in self._codes]
        done = self.done if self._waiting.finished is None else self._waiting.finished[1]["done"]
        done = done | {"is_last": True}
        self._waiting.finished = (len(self._waiting.blocks), {"done": done, "n_words": n_words})
        self.write_run()

    def write_run(self) -> None:
        """Write the rows of all whole pieces since the last run, if there were any."""
        waiting = self._waiting
        if waiting.finished is None:
            return
        n_blocks, state = waiting.finished
        arrays: list[np.ndarray] = []
        n_rows, n_entries = [], []
        names = [name for name, *_ in self._layout["fields"]] if self._layout is not None else []
        for part in range(len(self._codes)):
            blocks = [block for block in waiting.blocks[:n_blocks] if block.part == part]
            n_rows.append(_sizes([block.row_bounds for block in blocks]))
            n_entries.append(_sizes([block.entry_bounds for block in blocks]))
            for bucket in range(n_buckets()):
                found = [block.bytes_of(name, bucket) for name in names for block in blocks]
                arrays.append(np.concatenate([np.empty(0, np.uint8), *found]))
        words = zip(self._codes, waiting.n_words, state["n_words"], strict=True)
        tree = {
            "after": self.done,
            "done": state["done"],
            "layout": self._layout,
            "n_rows": n_rows,
            "n_entries": n_entries,
            "n_bytes": [len(A) for A in arrays],
            "checks": np.reshape([zlib.crc32(A.data) for A in arrays], np.shape(n_rows)).tolist(),
            "words": [list(islice(codes, first, stop)) for codes, first, stop in words],
        }
        place, n_bytes = self._place(waiting.number), sum(tree["n_bytes"])
        started = time.monotonic()
        start = write_part(place, tree, arrays) - n_bytes
        self._wrote(started)
        # A signal before the last line lets the same run be written again.
        self._runs = [*self._runs[: waiting.number - 1], _Run.of(place, tree, start)]
        self.done = state["done"]
        self._waiting = _Waiting(waiting.number + 1, state["n_words"])

    # The second pass.

    @property
    def runs(self) -> list[_Run]:
        return self._runs

    def fields_of(self, found: bytes, n_rows: int, n_entries: int) -> Span:
        """Return the rows whose bytes were found."""
        assert self._layout is not None
        fields, at = {}, 0
        for name, kind, rest in self._layout["fields"]:
            n = (n_entries if name in ("data", "indices") else n_rows) * math.prod(rest)
            fields[name] = np.frombuffer(found, kind, n, at).reshape(-1, *rest)
            at += fields[name].nbytes
        return rows_of_fields(fields, self._layout["n_columns"])

    def note(self, part: int) -> dict[str, Any] | None:
        """Return up to where the rows of a part are written."""
        return self._notes.get(part)

    def set_note(self, part: int, note: dict[str, Any] | None) -> None:
        """Note up to where the rows of a part are written; store that if it is time to."""
        self._notes = self._notes | {part: note}
        if note is None or self.is_due():
            self.write_notes()

    def write_notes(self) -> None:
        """Store up to where the output is written."""
        if self._notes is self._written_notes:
            return
        started, now, notes = time.monotonic(), time.time(), self._notes
        if self._group is not None and isinstance(self._group.store, zarr.storage.LocalStore):
            # Else a note could outlive what it speaks of when the machine fails.
            sync_files(Path(self._group.store.root), self._synced - 2)
        self.keep("output", notes, started)
        self._written_notes, self._synced = notes, now


def _name(number: int) -> str:
    return f"{number:06d}.part"


def _sizes(bounds: list[list[int]]) -> list[int]:
    """Return the sizes of the buckets, summed over some blocks."""
    return sum((np.diff(b) for b in bounds), np.zeros(n_buckets(), np.int64)).tolist()


class StoredBuckets:
    """The rows of a part in the runs of a checkpoint, taken and passed on like those of `Buckets`.

    Whoever takes them in order passes them to `writer` one by one: what is written follows from that.
    """

    def __init__(
        self,
        checkpoint: ConversionCheckpoint,
        part: int,
        writer: GroupWriter,
        folder: Path,
        n_rows: int,
        codes: dict[str, int],
    ) -> None:
        self._checkpoint, self._part, self._writer, self._folder = checkpoint, part, writer, folder
        self.n_rows, self.codes = n_rows, codes

    def append(self, rows: Span) -> None:
        self._checkpoint.take(self._part, rows)

    def in_order(self) -> Iterator[Span]:
        """Yield all rows in the order of their keys, without those that are written already."""
        note, first, taken = self._checkpoint.note(self._part), (0, 0), {}
        if note is not None:
            if self._writer.go_on(note["places"]):
                first, taken = note["span"], {name: n for name, (n, _) in note["places"].items()}
            else:  # the output was removed; the note must not be taken for one on the new one
                self._checkpoint.set_note(self._part, None)
        begun: deque[tuple[tuple[int, int], dict[str, int]]] = deque()  # that are not wholly written
        for span, rows in self._spans(first):
            begun.append((span, taken))
            yield rows
            del rows
            places = self._writer.places()
            taken = {name: n for name, (n, _) in places.items()}
            # The next process goes on with the first span of which some rows are only in memory.
            while len(begun) > 1 and all(places[name][1] >= n for name, n in begun[1][1].items()):
                begun.popleft()
            restart, before = begun[0]
            written = {name: (before.get(name, 0), n) for name, (_, n) in places.items()}
            self._checkpoint.see(
                "write" if self._part == 0 else "write the rows set apart", restart[0], n_buckets(), "buckets"
            )
            self._checkpoint.set_note(self._part, {"span": restart, "places": written})

    def _spans(self, first: tuple[int, int]) -> Iterator[tuple[tuple[int, int], Span]]:
        """Yield rows in order, and their place: a bucket, and a count of what it was split into."""
        for bucket in range(first[0], n_buckets()):
            for i, rows in enumerate(self._bucket(bucket)):
                if (bucket, i) >= tuple(first):
                    yield (bucket, i), rows

    def _bucket(self, bucket: int) -> Iterator[Span]:
        n_bytes = sum(run.n_bytes(self._part, bucket) for run in self._checkpoint.runs)
        if is_large(n_bytes):
            folder = self._folder / f"{bucket:02d}"
            folder.mkdir()
            finer = Buckets(folder, level=1)
            for rows in self._read(bucket):
                finer.append(rows)
            yield from finer.in_order()
            folder.rmdir()
        elif n_bytes:
            found = list(self._read(bucket))
            joined = {name: joined_rows([rows[name] for rows in found]) for name in found[0]}
            del found
            yield sorted_by_key(joined)

    def _read(self, bucket: int) -> Iterator[Span]:
        """Yield the rows of a bucket, run by run."""
        part, runs = self._part, self._checkpoint.runs
        wanted = [i for i, run in enumerate(runs) if run.n_rows[part, bucket]]
        read = [partial(self._read_one, i, bucket) for i in wanted]
        for i, found in zip(wanted, prefetched(read, _N_READERS, _N_READERS), strict=True):
            n_rows, n_entries = int(runs[i].n_rows[part, bucket]), int(runs[i].n_entries[part, bucket])
            yield self._checkpoint.fields_of(found, n_rows, n_entries)

    def _read_one(self, i: int, bucket: int) -> bytes:
        try:
            return self._checkpoint.runs[i].read(self._part, bucket)
        except DamagedPart as damage:
            raise DamagedRun(i + 1, damage) from damage


@contextmanager
def saved_at_the_end(save: Callable[[], object] | None) -> Iterator[None]:
    """Save what is finished if the block fails or is interrupted."""
    try:
        yield
    except BaseException:
        if save is not None:
            with suppress(Exception):  # beside the failure itself
                save()
        raise
