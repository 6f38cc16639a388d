"""Encoded rows on their way into Zarr groups: written shard by shard, split in two, shuffled, resumed.

A shuffle sorts the rows by a hashed key of their number, in two passes over the disk. The first one writes
runs: files of some 32 MB of rows, each sorted by the cell of their keys (their leading 12 bits). The second
one joins, sorts and writes one range of cells after another, as many as fit 32 MB, from all runs. So memory
holds a run or a range, whatever the number of rows, and a store needs no files that grow.

With a checkpoint the runs stay after the death of the process. Each says up to where it has read the source,
so that it goes on after the last whole one, and a note says up to which range the output is written::

    _distrff.json              by what the same conversion is recognized; once all is written its report
    types.part, profile.part   where the pass that looks through the source is
    steps.part                 how raw columns are encoded
    runs/000001.part ...       rows; all begins again at the first one that is missing or damaged
    output.part                which rows of the output are written
    progress.json              how far it is, for whoever looks at it

Independent uniform cells, each in uniform order, make a uniform order of all rows: Sandelius 1962, "A simple
randomization procedure"; Rao 1961.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

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
from distrff.utils.serialize import DamagedValue, bytes_of, decoded, encoded

logger = logging.getLogger(__name__)

KIND = "dataset"
_CHUNK_BYTES = 4 * 2**20  # several tiles are cut from a chunk
_SHARD_CHUNKS = 8  # a shard is one file and one request, and is decoded at once
_SPARSE_CHUNK = 2**19  # entries
_ZARR_LEFTOVER = re.compile(r"\.[0-9a-f]{32}\.partial$")  # a chunk whose writer was killed

Places = Mapping[str, Sequence[int]]
"""Of each array of a group, how many values it has taken and how many of them are written."""
_NOTHING = (0, 0)


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


class GroupWriter(ABC):
    """Writes rows to the arrays of a group."""

    def __init__(self, group: zarr.Group, chunk_rows: int | None = None) -> None:
        self._group, self._chunk_rows = group, chunk_rows
        self._arrays: dict[str, GrowingArray] = {}
        self._before: Places = {}

    @abstractmethod
    def _parts(self, rows: Span) -> Span:
        """The values that some rows add to each array."""

    @abstractmethod
    def _new_array(self, name: str, parts: Span) -> GrowingArray: ...

    def append(self, rows: Span) -> None:
        """Take some rows, X dense or CSR; write full shards."""
        parts = self._parts(rows)
        if not self._arrays:
            arrays = {name: self._new_array(name, parts) for name in parts}
            for name, array in arrays.items():
                array.go_on(*self._before.get(name, _NOTHING))
            self._arrays = arrays
        for name, values in parts.items():
            self._arrays[name].append(values)

    def finish(self) -> int:
        """Write what is left, and return the number of rows."""
        return max((array.finish() for array in self._arrays.values()), default=0)

    def places(self) -> dict[str, tuple[int, int]]:
        """How many values each array has taken and written, none before the first rows."""
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


class DenseWriter(GroupWriter):
    """Writes the arrays X (n, d), y and sample_weight.

    A chunk of X has `chunk_rows` rows, by default about 4 MB, and a shard has eight chunks. The other arrays
    have one chunk per shard of X.
    """

    def _parts(self, rows: Span) -> Span:
        return rows

    def _new_array(self, name: str, parts: Span) -> GrowingArray:
        row_bytes = parts["X"].dtype.itemsize * parts["X"].shape[1]
        chunk = self._chunk_rows or max(1, _CHUNK_BYTES // row_bytes)
        shard = chunk * _SHARD_CHUNKS
        try:
            return GrowingArray(self._group, name, parts[name], shard, chunk=chunk if name == "X" else None)
        except (MemoryError, ValueError) as error:  # NumPy raises ValueError for sizes beyond its integers
            raise InputError(
                f"chunk_rows={chunk} makes shards of {shard * row_bytes:.3g} bytes, which memory does not "
                f"hold; give fewer rows"
            ) from error


class SparseWriter(GroupWriter):
    """Writes X as a group with the arrays data, indices and indptr of a CSR matrix, and y, sample_weight.

    The group has the attributes by which other readers (anndata) recognize such a matrix: `encoding-type`
    "csr_matrix" and `shape`. A chunk of indptr, y and sample_weight has `chunk_rows` rows, by default 65,536.
    """

    _n_entries = _n_columns = 0

    def go_on(self, places: Places) -> bool:
        are_there = super().go_on(places)
        self._n_entries = self._before.get("X/data", _NOTHING)[0]
        return are_there

    def _parts(self, rows: Span) -> Span:
        X = csr_matrix(rows["X"])
        starts = X.indptr[1:].astype(np.int64) + self._n_entries
        if not self._arrays and not self._before.get("X/indptr", _NOTHING)[0]:
            starts = np.concatenate([np.zeros(1, np.int64), starts])
        self._n_columns, self._n_entries = X.shape[1], self._n_entries + X.nnz
        parts = {"X/data": X.data, "X/indices": X.indices.astype(np.int32, copy=False), "X/indptr": starts}
        return parts | {name: values for name, values in rows.items() if name != "X"}

    def _new_array(self, name: str, parts: Span) -> GrowingArray:
        self._group.require_group("X")
        length = _SPARSE_CHUNK if name in ("X/data", "X/indices") else self._chunk_rows or 2**16
        array = GrowingArray(self._group, name, parts[name], length)
        if not self._before.get(name, _NOTHING)[1]:
            array.create(length)
        return array

    def finish(self) -> int:
        """Write what is left, and return the number of rows."""
        super().finish()
        if not self._arrays:
            return 0
        n_rows = self._arrays["X/indptr"].written - 1
        encoding = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
        self._group["X"].update_attributes(encoding | {"shape": [n_rows, self._n_columns]})
        return n_rows


# Which rows are set apart, and in which order all are written: by their numbers and a seed alone.


def is_test_row(rows: np.ndarray, seed: int, fraction: float) -> np.ndarray:
    """Test rows: each with probability `fraction`, by its number and the seed only."""
    hashes = row_hash(np.asarray(rows, np.uint64), child_seed(seed, "test rows"))
    return hashes < np.uint64(fraction * 2.0**64)


def shuffle_keys(rows: np.ndarray, seed: int) -> np.ndarray:
    """Key of each row number, uint64: shuffled rows are sorted by their keys.

    Keys are 64 hashed bits, different for different rows. So all orders are equally likely, as far as the
    hash is random, and the order does not depend on how the rows are cut into blocks.
    """
    return row_hash(np.asarray(rows, np.uint64), child_seed(seed, "shuffle"))


class RowOrder(NamedTuple):
    """The seed of a shuffle, and the share of rows that are set apart; None for neither."""

    shuffle: int | None = None
    test_fraction: float | None = None

    @property
    def n_parts(self) -> int:
        """Training rows are part 0, test rows part 1."""
        return 1 if self.test_fraction is None else 2

    def part_of(self, first: int, n: int) -> np.ndarray:
        """The part of each of n rows, of which `first` is the first number."""
        if self.test_fraction is None:
            return np.zeros(n, np.int64)
        rows = np.arange(first, first + n)
        return is_test_row(rows, self.shuffle or 0, self.test_fraction).astype(np.int64)


class InGivenOrder:
    """Passes rows to the writer of their part as they come."""

    def __init__(self, writers: Sequence[GroupWriter], order: RowOrder) -> None:
        self._writers, self._order, self._n_rows = writers, order, 0

    def append(self, rows: Span) -> None:
        """Take some rows: X, dense or CSR, and y and sample_weight if there are any."""
        n_rows = rows["X"].shape[0]
        parts = self._order.part_of(self._n_rows, n_rows)
        self._n_rows += n_rows
        for part, writer in enumerate(self._writers):
            if (chosen := parts == part).all():
                writer.append(rows)
            elif chosen.any():
                writer.append({name: values[chosen] for name, values in rows.items()})

    def finish(self) -> list[int]:
        """Store what is left, and return the number of rows of each part."""
        return [writer.finish() for writer in self._writers]


class InRandomOrder:
    """Keeps rows in runs, and passes them to the writers of their parts in the order of their keys."""

    def __init__(self, writers: Sequence[GroupWriter], order: RowOrder, checkpoint: Checkpoint) -> None:
        assert order.shuffle is not None
        self._writers, self._order, self._seed = writers, order, order.shuffle
        self._checkpoint, self._runs = checkpoint, checkpoint.runs
        self._n_rows = self._runs.n_rows  # of each part; an earlier process may have taken some

    def append(self, rows: Span) -> None:
        """Take some rows: X, dense or CSR, and y and sample_weight if there are any."""
        n_rows = rows["X"].shape[0]
        parts = self._order.part_of(int(self._n_rows.sum()), n_rows)
        keys = np.empty(n_rows, np.uint64)
        for part, first in enumerate(self._n_rows.tolist()):
            n = np.count_nonzero(parts == part)
            keys[parts == part] = shuffle_keys(np.arange(first, first + n), self._seed)
        self._n_rows = self._n_rows + np.bincount(parts, minlength=len(self._n_rows))
        self._runs.append(parts, keys, rows)

    def finish(self) -> list[int]:
        """Store the rows in their order, and return the number of rows of each part."""
        for part, writer in enumerate(self._writers):
            for rows in self._checkpoint.in_order(part, writer):
                writer.append(rows)
        return [writer.finish() for writer in self._writers]


# Runs: files of rows by the cells of their keys.

_CELL_BITS = (
    12  # a run's table of cells takes 32 kB; 4,096 ranges of 32 MB are 128 GB, more makes them longer
)
_RUN_BYTES = 32 * 2**20  # of rows that wait in memory
_RANGE_BYTES = 32 * 2**20  # of rows that are sorted at once
_N_READERS = 8  # threads, for the latency of object stores
_RUN = re.compile(r"\d{6,9}\.part")


class DamagedRun(Exception):
    """A run of rows that is missing or damaged; the source is read again from its rows on."""

    def __init__(self, number: int, reason: object) -> None:
        super().__init__(f"{reason}; its rows are read again")
        self.number = number


class RowLayout(NamedTuple):
    """How rows lie in a run: a record for each row, and of CSR one for each entry."""

    rows: np.dtype
    entries: np.dtype | None
    n_columns: int

    @property
    def kinds(self) -> list[np.dtype]:
        return [self.rows] if self.entries is None else [self.rows, self.entries]

    @classmethod
    def of(cls, rows: Span) -> RowLayout:
        X, others = rows["X"], {name: values for name, values in rows.items() if name != "X"}
        fields: list[Any] = [("key", "<u8")]
        entries = None
        if issparse(X):
            entries = np.dtype([("index", "<i4"), ("value", X.dtype.str)])
            fields.append(("n_entries", "<i8"))
        else:
            fields.append(("X", X.dtype.str, X.shape[1:]))
        for name, values in others.items():
            kind = "<i4" if values.dtype.kind == "O" else values.dtype.str  # text as the number of a word
            fields.append((name, kind, values.shape[1:]))
        return cls(np.dtype(fields), entries, X.shape[1])

    def no_rows(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """The parts and records of no rows."""
        return np.empty(0, np.int64), [np.empty(0, kind) for kind in self.kinds]

    def to_json(self) -> dict[str, Any]:
        descriptions = [None if one is None else one.descr for one in (self.rows, self.entries)]
        return {"rows": descriptions[0], "entries": descriptions[1], "n_columns": self.n_columns}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> RowLayout:
        def read(fields: Any) -> np.dtype:
            return np.dtype([(name, kind, *map(tuple, shape)) for name, kind, *shape in fields])

        entries = None if found["entries"] is None else read(found["entries"])
        return cls(read(found["rows"]), entries, int(found["n_columns"]))

    def packed(self, keys: np.ndarray, rows: Span, words: dict[str, int]) -> list[np.ndarray]:
        """Records of rows, and of the entries of CSR; `words` numbers text, and takes new words."""
        records = np.empty(len(keys), self.rows)
        records["key"] = keys
        for name, values in rows.items():
            if name == "X" and self.entries is not None:
                records["n_entries"] = np.diff(values.indptr)
            elif values.dtype.kind == "O":
                codes = [words.setdefault(word, len(words)) for word in values.ravel().tolist()]
                records[name] = np.array(codes, np.int32).reshape(values.shape)
            else:
                records[name] = values
        if self.entries is None:
            return [records]
        entries = np.empty(rows["X"].nnz, self.entries)
        entries["index"], entries["value"] = rows["X"].indices, rows["X"].data
        return [records, entries]

    def unpacked(self, records: list[np.ndarray], words: Sequence[str]) -> Span:
        """The rows of some records, with their keys as `key`."""
        found: Span = {name: records[0][name] for name in self.rows.names or ()}
        if words:
            found["y"] = np.array([*words, None], dtype=object)[found["y"]]
        if self.entries is not None:
            starts = np.concatenate([[0], np.cumsum(found.pop("n_entries"))])
            parts = (records[1]["value"].copy(), records[1]["index"].copy(), starts)
            found["X"] = csr_matrix(parts, shape=(len(starts) - 1, self.n_columns))
        return found


@dataclass(frozen=True)
class _Run:
    """A run of rows that is stored; arrays count by cell, those of all parts one after the other."""

    location: Location
    layout: RowLayout
    words: list[str]  # that its text is made of
    counts: list[np.ndarray]  # of rows, and of the entries of CSR
    checks: list[np.ndarray]  # CRC-32 of their bytes
    offsets: list[np.ndarray]  # where the bytes of each cell begin, and at last end, in the file

    @classmethod
    def of(cls, location: Location, tree: Mapping[str, Any], start: int) -> _Run:
        layout = RowLayout.from_json(tree["layout"])
        counts, checks = ([np.array(one) for one in tree[key]] for key in ("counts", "checks"))
        offsets = []
        for n, kind in zip(counts, layout.kinds, strict=True):
            offsets.append(start + np.concatenate([[0], np.cumsum(n)]) * kind.itemsize)
            start = int(offsets[-1][-1])
        return cls(location, layout, list(tree["words"]), counts, checks, offsets)

    def sizes(self) -> np.ndarray:
        """Bytes of each cell."""
        return np.sum([np.diff(ends) for ends in self.offsets], axis=0)

    def read(self, first: int, stop: int) -> Span:
        """The rows of the cells [first, stop); raises DamagedPart if they are not as they were written."""
        records = []
        for offsets, checks, kind in zip(self.offsets, self.checks, self.layout.kinds, strict=True):
            ends = (offsets[first : stop + 1] - offsets[first]).tolist()
            begin, end = int(offsets[first]), int(offsets[stop])  # stores refuse a range of no bytes
            found = memoryview(read_range(self.location, begin, end) if begin < end else b"")
            for check, (a, b) in zip(checks[first:stop], pairwise(ends), strict=True):
                if b > a and zlib.crc32(found[a:b]) != check:
                    raise DamagedPart(f"{self.location} is damaged")
            records.append(np.frombuffer(found, kind))
        return self.layout.unpacked(records, self.words)


@dataclass
class _Waiting:
    """The rows of the next run, in blocks.

    `finished` says how many blocks are of whole pieces of the source, and what is known after these. It is
    replaced as a whole: a signal may come between any two steps.
    """

    blocks: list[tuple[np.ndarray, list[np.ndarray]]] = field(default_factory=list)  # parts, and records
    words: dict[str, int] = field(default_factory=dict)
    n_bytes: int = 0
    finished: tuple[int, dict[str, Any]] | None = None


class Runs:
    """Rows of one or two parts in the runs of a folder, where they stay if `is_kept`.

    `done` says what the caller noted when the last run was written.
    """

    def __init__(self, place: Location, n_parts: int, done: dict[str, Any], *, is_kept: bool) -> None:
        self._place, self._n_parts, self._is_kept = place.within("runs"), n_parts, is_kept
        self.done = done
        self._layout: RowLayout | None = None
        self._runs: list[_Run] = []
        self._waiting = _Waiting()
        if not is_kept:
            self._place.make_folder()

    @property
    def is_sparse(self) -> bool | None:
        """Whether the rows are CSR; None while there are none."""
        return None if self._layout is None else self._layout.entries is not None

    @property
    def n_rows(self) -> np.ndarray:
        """The number of stored rows of each part."""
        counts = [run.counts[0].reshape(self._n_parts, -1).sum(axis=1) for run in self._runs]
        return np.sum([np.zeros(self._n_parts, np.int64), *counts], axis=0)

    def find(self) -> None:
        """Take the runs of an earlier process, from the first on up to one that is missing or damaged."""
        names = set(filter(_RUN.fullmatch, self._place.names()))
        n = next(i for i in range(len(names) + 1) if _name(i + 1) not in names)
        places = [self._place.within(_name(i + 1)) for i in range(n)]
        heads = prefetched([partial(read_head, place) for place in places], _N_READERS, _N_READERS)
        try:
            for place, (tree, start) in zip(places, heads, strict=True):
                if tree["after"] != self.done:  # where two processes wrote, rows would be missing or twice
                    raise ValueError(f"{place} does not follow the run before it")
                run = _Run.of(place, tree, start)
                self._runs, self._layout, self.done = [*self._runs, run], run.layout, dict(tree["done"])
        except (DamagedPart, KeyError, TypeError, ValueError) as damage:
            logger.warning("%s; its rows are read again", damage)
        self.remove(len(self._runs) + 1)

    def remove(self, first: int) -> None:
        """Remove the stored runs from a number on."""
        for name in filter(_RUN.fullmatch, self._place.names()):
            if int(name.removesuffix(".part")) >= first:
                self._place.within(name).remove()

    # The first pass.

    def append(self, parts: np.ndarray, keys: np.ndarray, rows: Span) -> None:
        """Take some rows of these parts and keys."""
        if self._layout is None:
            self._layout = RowLayout.of(rows)
        records = self._layout.packed(keys, rows, self._waiting.words)
        self._waiting.blocks.append((parts, records))
        self._waiting.n_bytes += sum(one.nbytes for one in records)

    def note(self, done: dict[str, Any]) -> bool:
        """Note what is true once all rows so far are stored; return whether they are enough for a run."""
        self._waiting.finished = (len(self._waiting.blocks), done)
        return self._waiting.n_bytes >= _RUN_BYTES

    def write(self) -> bool:
        """Write the rows up to the last note; return whether there were any."""
        waiting = self._waiting
        n_blocks, done = waiting.finished or (0, self.done)
        if self._layout is None or (not n_blocks and done["is_last"] == self.done["is_last"]):
            return False
        blocks = waiting.blocks[:n_blocks] or [self._layout.no_rows()]
        parts, *records = (np.concatenate(found) for found in zip(*((p, *r) for p, r in blocks), strict=True))
        counts, records = _by_cell(parts, records, self._n_parts)
        tree = {
            "after": self.done,
            "done": done,
            "layout": self._layout.to_json(),
            "words": list(waiting.words),
            "counts": [n.tolist() for n in counts],
            "checks": [_checks(n, one) for n, one in zip(counts, records, strict=True)],
        }
        place = self._place.within(_name(len(self._runs) + 1))
        run = _Run.of(place, tree, self._stored(place, tree, records))
        # A signal before the last line lets the same run be written again.
        self._runs, self.done = [*self._runs, run], done
        self._waiting = _Waiting()
        return True

    def _stored(self, place: Location, tree: dict[str, Any], records: list[np.ndarray]) -> int:
        """Write a file, and return where its rows begin."""
        if self._is_kept:
            return write_part(place, tree, records) - sum(one.nbytes for one in records)
        with open(place.url, "wb") as file:  # which nobody finds again: no header, and no wait for the disk
            for one in records:
                file.write(bytes_of(one))
        return 0

    # The second pass.

    def ranges(self, part: int) -> list[tuple[int, int]]:
        """The cells of a part in runs of at most 32 MB, or of a single larger one."""
        first = part << _CELL_BITS
        sizes = np.sum([run.sizes() for run in self._runs], axis=0)[first : first + (1 << _CELL_BITS)]
        bounds, left = [0], _RANGE_BYTES
        for cell, size in enumerate(sizes.tolist()):
            if size > left and cell > bounds[-1]:
                bounds.append(cell)
                left = _RANGE_BYTES
            left -= size
        return [(first + a, first + b) for a, b in zip(bounds, [*bounds[1:], len(sizes)], strict=True)]

    def read(self, first: int, stop: int) -> Span:
        """The rows of some cells in the order of their keys; raises DamagedRun for the first damaged run."""
        reads = [partial(self._read_one, i, first, stop) for i in range(len(self._runs))]
        found = [rows for rows in prefetched(reads, _N_READERS, _N_READERS) if len(rows["key"])]
        if not found:
            return {}
        order = np.argsort(np.concatenate([rows["key"] for rows in found]))
        return {
            name: joined_rows([rows.pop(name) for rows in found])[order]
            for name in list(found[0])
            if name != "key"
        }

    def _read_one(self, i: int, first: int, stop: int) -> Span:
        try:
            return self._runs[i].read(first, stop)
        except DamagedPart as damage:
            raise DamagedRun(i + 1, damage) from damage


def _by_cell(
    parts: np.ndarray, records: list[np.ndarray], n_parts: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """How many rows, and entries of CSR, each cell has, and their records cell by cell."""
    cells = (parts << _CELL_BITS) + (records[0]["key"] >> np.uint64(64 - _CELL_BITS)).astype(np.int64)
    order, n_cells = np.argsort(cells, kind="stable"), n_parts << _CELL_BITS
    counts, found = [np.bincount(cells, minlength=n_cells)], [_at(records[0], order)]
    if len(records) > 1:
        lengths = records[0]["n_entries"]
        counts.append(np.bincount(cells, lengths, n_cells).astype(np.int64))
        # An entry goes from the begin of its row before to that of its row now, as far as it is within it.
        shift = (np.cumsum(lengths) - lengths)[order] - (np.cumsum(lengths[order]) - lengths[order])
        found.append(_at(records[1], np.repeat(shift, lengths[order]) + np.arange(len(records[1]))))
    return counts, found


def _at(records: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The records at some places, taken as bytes: field by field NumPy takes five times as long."""
    return records.view(np.dtype((np.void, records.itemsize)))[places].view(records.dtype)


def _checks(counts: np.ndarray, records: np.ndarray) -> list[int]:
    """CRC-32 of the bytes of each cell."""
    content, ends = bytes_of(records), (np.cumsum(counts) * records.itemsize).tolist()
    return [zlib.crc32(content[begin:end]) for begin, end in pairwise([0, *ends])]


def _name(number: int) -> str:
    return f"{number:06d}.part"


# The checkpoint of a conversion.


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


class Checkpoint:
    """The finished part of one conversion; without a location nothing is stored, and nothing is found.

    `every` are the seconds between two writes. `done` says where the first pass is: the `mark` of the last
    piece of the source, how many raw and positive rows there were up to it, and whether it was the last one.
    """

    def __init__(
        self,
        location: Location | None = None,
        header: Mapping[str, Any] | None = None,
        every: float | None = None,
    ) -> None:
        self.location, self._header, self._every = location, dict(header or {}), every
        self._due = time.monotonic() + seconds_between(every)
        self._group: zarr.Group | None = None
        self._stage: _Stage | None = None

    @classmethod
    def begin(cls, location: Location, fingerprint: Mapping[str, Any], every: float | None) -> Checkpoint:
        """Create the checkpoint, or find that of the same conversion; raise InputError for any other one."""
        header = {"fingerprint": fingerprint, "dst": fingerprint["dst"], "token": secrets.token_hex(4)}
        return cls(location, begun(location, header, "conversion"), every)

    @property
    def token(self) -> str | None:
        """Names the folder of the output while it is not complete; see `replacing`."""
        return self._header.get("token")

    # Small values, each in a file.

    def value(self, name: str) -> Any:
        """A stored value; None if there is none, or its writing was cut off."""
        if self.location is None or f"{name}.part" not in self.location.names():
            return None
        try:
            return decoded(*read_part(self.location.within(f"{name}.part")))
        except (DamagedPart, DamagedValue) as error:
            logger.warning("%s; it is found again", error)
            return None

    def keep(self, name: str, value: Any, started: float | None = None) -> None:
        """Store a value in the place of the last one of this name; its writing may have `started` before."""
        if self.location is not None:
            started = time.monotonic() if started is None else started
            write_part(self.location.within(f"{name}.part"), *encoded(value))
            self._wrote(started)

    def is_due(self) -> bool:
        """Whether it is time to write."""
        return self.location is not None and time.monotonic() >= self._due

    def record(self, stage: str, done: int, total: int, unit: str) -> None:
        """Note how far a stage of the conversion is, which is stored with the next write."""
        if self._stage is None or self._stage.name != stage:
            self._stage = _Stage(stage, total, unit, done)
        self._stage.done = done

    def _wrote(self, started: float) -> None:
        if self.location is not None and self._stage is not None:
            write_progress(self.location, self._stage.progress())
        ended = time.monotonic()
        self._due = ended + seconds_between(self._every, ended - started)

    # The end of a conversion.

    def finished(self, location: Location) -> dict[str, Any] | None:
        """The report if the output is complete at its place, and only this checkpoint was left."""
        report, target = self._header.get("report"), location.path
        if report is None or (target is not None and partial_folder(target, str(self.token)).exists()):
            return None
        attributes = (location.root() or {}).get("attributes") or {}
        is_complete = (location.header() or {}).get("complete") is True
        return report if is_complete and attributes.get("report") == report else None

    def finish(self, report: Mapping[str, Any]) -> None:
        """Note that all is written, before it is marked as complete."""
        if self.location is not None:
            self._header = self._header | {"report": report}
            write_header(self.location, self._header)

    def remove(self) -> None:
        """Remove the checkpoint."""
        if self.location is not None:
            remove_checkpoint(self.location)

    # The first pass.

    def open(self, group: zarr.Group, room: Path, n_parts: int) -> None:
        """Find the runs, of rows in one part or two; without a checkpoint they go to an empty folder, `room`.

        Called by the one process that holds the output.
        """
        self._group, nothing = group, {"mark": None, "n_raw": 0, "n_positive": 0, "is_last": False}
        self.runs = Runs(
            self.location or Location(str(room)), n_parts, nothing, is_kept=self.location is not None
        )
        self.steps = self.value("steps")
        if self.location is not None:
            remove_leftovers(self.location)
            if self.steps is None:  # by which the rows of the runs were encoded
                self.runs.remove(1)
            self.runs.find()
        self._notes: dict[int, Any] = self.value("output") or {}
        self._written_notes, self._synced = self._notes, 0.0

    def start_over(self, types: Any) -> None:
        """Remove all that is there; columns have become of other types."""
        if self.location is not None:
            self.drop_runs(1)
            for name in ("profile", "steps"):
                self.location.within(f"{name}.part").remove()
            self.keep("types", types)

    def drop_runs(self, first: int) -> None:
        """Remove the runs from a number on, and the note on the output that was made of them."""
        if self.location is not None:
            self.location.within("output.part").remove()
        self.runs.remove(first)

    def advance(self, done: dict[str, Any]) -> None:
        """Note that all rows up to a piece of the source were taken; write them if it is time to."""
        if self.runs.note(done) or self.is_due() or done["is_last"]:
            self.write_run()

    def write_run(self) -> None:
        """Write the rows of all whole pieces since the last run, if there were any."""
        started = time.monotonic()
        if self.runs.write():
            self._wrote(started)

    # The second pass.

    def in_order(self, part: int, writer: GroupWriter) -> Iterator[Span]:
        """Yield the rows of a part in the order of their keys, without those that are written already.

        Whoever takes them passes them to `writer` one by one: what is written follows from that.
        """
        note, first, taken = self._notes.get(part), 0, dict[str, int]()
        if note is not None:
            if writer.go_on(note["places"]):
                first, taken = note["range"], {name: n for name, (n, _) in note["places"].items()}
            else:  # the output was removed; the note must not be taken for one on the new one
                self._set_note(part, None)
        ranges = self.runs.ranges(part)
        begun: deque[tuple[int, dict[str, int]]] = deque()  # that are not wholly written
        for i in range(first, len(ranges)):
            begun.append((i, taken))
            if rows := self.runs.read(*ranges[i]):
                yield rows
                del rows
            places = writer.places()
            taken = {name: n for name, (n, _) in places.items()}
            # The next process goes on with the first range of which some rows are only in memory.
            while len(begun) > 1 and all(places[name][1] >= n for name, n in begun[1][1].items()):
                begun.popleft()
            restart, before = begun[0]
            written = {name: (before.get(name, 0), n) for name, (_, n) in places.items()}
            stage = "write" if part == 0 else "write the rows set apart"
            self.record(stage, restart, len(ranges), "ranges")
            self._set_note(part, {"range": restart, "places": written})

    def _set_note(self, part: int, note: dict[str, Any] | None) -> None:
        """Note up to where the rows of a part are written; store that if it is time to."""
        self._notes = self._notes | {part: note}
        if note is None or self.is_due():
            self.write_notes()

    def write_notes(self) -> None:
        """Store up to where the output is written."""
        if self.location is None or self._notes is self._written_notes:
            return
        started, now, notes = time.monotonic(), time.time(), self._notes
        if self._group is not None and isinstance(self._group.store, zarr.storage.LocalStore):
            # Else a note could outlive what it speaks of when the machine fails.
            sync_files(Path(self._group.store.root), self._synced - 2)
        self.keep("output", notes, started)
        self._written_notes, self._synced = notes, now


@contextmanager
def saved_at_the_end(save: Callable[[], object]) -> Iterator[None]:
    """Save what is finished if the block fails or is interrupted."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # beside the failure itself
            save()
        raise
