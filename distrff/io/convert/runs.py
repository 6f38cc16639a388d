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
import math
import re
import secrets
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
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
_ENTRIES = ("X/data", "X/indices")
_ZARR_LEFTOVER = re.compile(r"\.[0-9a-f]{32}\.partial$")  # a chunk whose writer was killed


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


# Zarr leaves out chunks of zeros, as of labels in order, and readers cannot tell them from lost ones.
_ALL_CHUNKS: Any = {"write_empty_chunks": True}


class GrowingArray:
    """A Zarr array that grows by `length` rows at a time; fewer wait in a buffer of the dtype of `like`."""

    def __init__(
        self, group: zarr.Group, name: str, like: Any, length: int, *, chunk: int | None = None
    ) -> None:
        self._group, self._name, self._chunk = group, name, chunk or length
        self._buffer = np.empty((length, *like.shape[1:]), like.dtype)
        self._array: zarr.Array | None = None
        self._held = self.written = self._skipped = 0

    def go_on(self, taken: int, written: int) -> None:
        """Go on with an array of which an earlier process wrote some values.

        The values appended next are those from number `taken` on, and the first of them are written already.
        """
        if written:
            self._array = self._group[self._name].with_config(_ALL_CHUNKS)
            if self._array.shape[0] != written:  # it may have grown before that process was killed
                self._array.resize((written, *self._array.shape[1:]))
        self.written, self._skipped = written, written - taken

    def create(self, chunk: int) -> None:
        # Shards of `length` rows, if their chunks are shorter: an object store has one object a shard.
        length, *others = self._buffer.shape
        self._array = self._group.create_array(
            self._name,
            shape=(0, *others),
            chunks=(chunk, *others),
            shards=(length, *others) if self._held == length > chunk else None,
            dtype=str if self._buffer.dtype.kind == "O" else self._buffer.dtype,
            overwrite=True,  # what a killed process wrote
            config=_ALL_CHUNKS,
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
        self._before: Mapping[str, int] = {}  # what an earlier process wrote of each array
        self._begin = (0, 0)  # rows and entries of CSR before those that are appended

    @abstractmethod
    def _parts(self, rows: Span) -> Span:
        """The values that some rows add to each array."""

    @abstractmethod
    def _new_array(self, name: str, parts: Span) -> GrowingArray: ...

    def _length(self, name: str, n_rows: int, n_entries: int) -> int:
        """The values of an array that holds some rows, and entries of CSR."""
        return n_rows

    def append(self, rows: Span) -> None:
        """Take some rows, X dense or CSR; write full shards."""
        parts = self._parts(rows)
        if not self._arrays:
            arrays = {name: self._new_array(name, parts) for name in parts}
            for name, array in arrays.items():
                array.go_on(self._length(name, *self._begin), self._before.get(name, 0))
            self._arrays = arrays
        for name, values in parts.items():
            self._arrays[name].append(values)

    def finish(self) -> int:
        """Write what is left, and return the number of rows."""
        return max((array.finish() for array in self._arrays.values()), default=0)

    def written(self) -> dict[str, int]:
        """How many values of each array are written, none before the first rows."""
        return {name: array.written for name, array in self._arrays.items()}

    def go_on(self, written: Mapping[str, int], begins: Sequence[tuple[int, int]]) -> int | None:
        """Go on where an earlier process was, before the first rows; return the place of the next ones.

        `begins` has the numbers of rows and entries before each run of rows that will come. None if the
        arrays are not there.
        """
        try:
            if any(n and self._group[name].shape[0] < n for name, n in written.items()):
                return None
        except (KeyError, ValueError, TypeError, OSError):
            return None
        place = 0  # of the first rows of which some value is not written
        while written and place + 1 < len(begins):
            if any(n < self._length(name, *begins[place + 1]) for name, n in written.items()):
                break
            place += 1
        self._before, self._begin = written, begins[place]
        return place


class DenseWriter(GroupWriter):
    """Writes the arrays X (n, d), y and sample_weight.

    A chunk of X has `chunk_rows` rows, by default about 4 MB, and a shard has eight chunks.
    """

    def _parts(self, rows: Span) -> Span:
        return rows

    def _new_array(self, name: str, parts: Span) -> GrowingArray:
        row_bytes = parts["X"].dtype.itemsize * parts["X"].shape[1]
        # By the rows of X for all arrays, which grow by the same number of rows at a time.
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

    A chunk of indptr, y and sample_weight has `chunk_rows` rows, by default 65,536.
    """

    _n_columns = 0
    _n_entries: int | None = None  # before the first rows

    def _length(self, name: str, n_rows: int, n_entries: int) -> int:
        if name in _ENTRIES:
            return n_entries
        return n_rows + (name == "X/indptr" and n_rows > 0)

    def _parts(self, rows: Span) -> Span:
        X = csr_matrix(rows["X"])
        n_rows, n_entries = self._begin if self._n_entries is None else (1, self._n_entries)
        starts = X.indptr[n_rows > 0 :].astype(np.int64) + n_entries  # the first one of all is the 0
        self._n_columns, self._n_entries = X.shape[1], n_entries + X.nnz
        parts = {"X/data": X.data, "X/indices": X.indices.astype(np.int32, copy=False), "X/indptr": starts}
        return parts | {name: values for name, values in rows.items() if name != "X"}

    def _new_array(self, name: str, parts: Span) -> GrowingArray:
        self._group.require_group("X")
        length = _SPARSE_CHUNK if name in _ENTRIES else self._chunk_rows or 2**16
        array = GrowingArray(self._group, name, parts[name], length)
        # At once: data and indices of rows without an entry would never be written, and readers need them.
        if not self._before.get(name):
            array.create(length)
        return array

    def finish(self) -> int:
        """Write what is left, and return the number of rows."""
        super().finish()
        if not self._arrays:
            return 0
        # indptr has one more than there are rows.
        n_rows = self._arrays["X/indptr"].written - 1
        # By these attributes other readers (anndata) recognize such a matrix.
        encoding = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
        self._group["X"].update_attributes(encoding | {"shape": [n_rows, self._n_columns]})
        return n_rows


# Which rows are set apart, and in which order all are written: by their numbers and a seed alone.


def is_test_row(rows: np.ndarray, seed: int, fraction: float) -> np.ndarray:
    """Test rows: each with probability `fraction`, by its number and the seed only."""
    hashes = row_hash(np.asarray(rows, np.uint64), child_seed(seed, "test rows"))
    return hashes < np.uint64(fraction * 2.0**64)


def shuffle_keys(rows: np.ndarray, seed: int) -> np.ndarray:
    """Key of each row number, uint64: shuffled rows are sorted by their keys."""
    # 64 hashed bits, different for different rows: all orders are equally likely, as far as the hash is
    # random, and the order does not depend on how the rows are cut into blocks.
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


class Sink:
    """Passes encoded rows to the writers of their parts: as they come, or shuffled at the end."""

    def __init__(self, writers: Sequence[GroupWriter], order: RowOrder, checkpoint: Checkpoint) -> None:
        self._writers, self._order, self._checkpoint = writers, order, checkpoint
        self._n_rows = checkpoint.runs.n_rows  # of each part; an earlier process may have taken some

    def append(self, rows: Span) -> None:
        """Take some rows: X, dense or CSR, and y and sample_weight if there are any."""
        parts = self._order.part_of(int(self._n_rows.sum()), rows["X"].shape[0])
        counts = np.bincount(parts, minlength=len(self._writers))
        if self._order.shuffle is not None:
            keys = np.empty(len(parts), np.uint64)
            for part, (first, n) in enumerate(zip(self._n_rows.tolist(), counts.tolist(), strict=True)):
                # Numbered within their part: its order must not hang on how many rows the other one has.
                keys[parts == part] = shuffle_keys(np.arange(first, first + n), self._order.shuffle)
            self._checkpoint.runs.append(parts, keys, rows)
        else:
            for part in np.flatnonzero(counts).tolist():
                if counts[part] < len(parts):
                    is_chosen = parts == part
                    self._writers[part].append({name: values[is_chosen] for name, values in rows.items()})
                else:
                    self._writers[part].append(rows)
        self._n_rows = self._n_rows + counts

    def finish(self) -> list[int]:
        """Write what is left, and return the number of rows of each part."""
        if self._order.shuffle is not None:
            for part, writer in enumerate(self._writers):
                for rows in self._checkpoint.in_order(part, writer):
                    writer.append(rows)
        return [writer.finish() for writer in self._writers]


# Runs: files of rows by the cells of their keys.

# A run's table of cells takes 32 kB; 4,096 ranges of 32 MB are 128 GB, and more rows make them longer.
_CELL_BITS = 12
_RUN_BYTES = 32 * 2**20  # of rows that wait in memory
_RANGE_BYTES = 32 * 2**20  # of rows that are sorted at once
_N_READERS = 8  # threads, for the latency of object stores
_RUN = re.compile(r"\d{6,9}\.part")


class DamagedRun(Exception):
    """A run of rows that is missing or damaged; the source is read again from its rows on."""

    def __init__(self, number: int, reason: object) -> None:
        super().__init__(f"{reason}; its rows are read again")
        self.number = number


_OF_ENTRIES = ("index", "value")  # arrays of a run that have an item for each entry of CSR, not for each row


def _sorted_arrays(rows: Span, order: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, list[str]], int]:
    """Rows in another order as plain arrays, the words of columns of text, and the columns of X."""
    # Arrays of one type each, and not records: NumPy sorts records field by field, in five times the time,
    # and a file of arrays needs no layout of its own. CSR becomes the number of entries of each row, their
    # columns and values; text the number of its word.
    arrays, words = {}, {}
    for name, given in rows.items():
        values = given[order]
        if issparse(values):
            arrays["n_entries"] = np.diff(values.indptr).astype(np.int64)
            arrays |= {"index": values.indices.astype(np.int32), "value": values.data}
        elif values.dtype.kind == "O":
            arrays[name], found = pd.factorize(values, use_na_sentinel=False)
            words[name] = found.tolist()
        else:
            arrays[name] = np.ascontiguousarray(values)  # the bytes of a row lie together
    return arrays, words, rows["X"].shape[1]


@dataclass(frozen=True)
class _Run:
    """A stored run of rows: plain arrays, one after the other, each of them cell by cell."""

    location: Location
    tree: Mapping[str, Any]
    # The dtype, the shape after the rows, and where each cell begins.
    arrays: dict[str, tuple[np.dtype, list[int], np.ndarray]]

    @classmethod
    def of(cls, location: Location, tree: Mapping[str, Any], described: list[Any], start: int) -> _Run:
        arrays = {}
        for name, (kind, (_, *shape), _) in zip(tree["names"], described, strict=True):
            counts = tree["n_entries" if name in _OF_ENTRIES else "n_rows"]
            offsets = np.cumsum([0, *counts]) * np.dtype(kind).itemsize * math.prod(shape) + start
            arrays[name], start = (np.dtype(kind), shape, offsets), int(offsets[-1])
        return cls(location, tree, arrays)

    def sizes(self) -> np.ndarray:
        none = np.zeros(len(self.tree["n_rows"]), np.int64)  # of a last run without rows
        return np.sum([none, *(np.diff(offsets) for _, _, offsets in self.arrays.values())], axis=0)

    def read(self, first: int, stop: int) -> Span:
        """The rows of the cells [first, stop); raises DamagedPart if they are not as they were written."""
        contents = []
        for _, _, offsets in self.arrays.values():
            begin, end = int(offsets[first]), int(offsets[stop])  # stores refuse a range of no bytes
            contents.append(memoryview(read_range(self.location, begin, end) if begin < end else b""))
        if self.checks(contents, first, stop) != self.tree["checks"][first:stop]:
            raise DamagedPart(f"{self.location} is damaged")
        rows: Span = {
            name: np.frombuffer(content, kind).reshape(-1, *shape)
            for content, (name, (kind, shape, _)) in zip(contents, self.arrays.items(), strict=True)
        }
        for name, words in self.tree["words"].items():
            rows[name] = np.array([*words, None], dtype=object)[rows[name]]
        if "n_entries" in rows:
            starts = np.concatenate([[0], np.cumsum(rows.pop("n_entries"))])
            entries = (rows.pop("value"), rows.pop("index"), starts)
            rows["X"] = csr_matrix(entries, shape=(len(rows["key"]), self.tree["n_columns"]))
        return rows

    def checks(self, contents: Iterable[memoryview], first: int, stop: int) -> list[int]:
        """CRC-32 of the bytes of each of the cells [first, stop) in all arrays."""
        found = [0] * (stop - first)
        for content, (_, _, offsets) in zip(contents, self.arrays.values(), strict=True):
            ends = pairwise((offsets[first : stop + 1] - offsets[first]).tolist())
            found = [zlib.crc32(content[a:b], check) for check, (a, b) in zip(found, ends, strict=True)]
        return found


class Runs:
    """Rows of one or two parts in the runs of a folder, where they stay if `is_kept`."""

    def __init__(self, place: Location, n_parts: int, done: dict[str, Any], *, is_kept: bool) -> None:
        self._place, self._n_cells, self._is_kept = place.within("runs"), n_parts << _CELL_BITS, is_kept
        self.done = done  # what the caller noted when the last run was written
        self._runs: list[_Run] = []
        self._waiting: list[tuple[np.ndarray, np.ndarray, Span]] = []  # cells, keys and rows of each piece
        self._n_bytes, self._finished = 0, (0, done)  # how many of them are whole, and what is known then

    @property
    def n_rows(self) -> np.ndarray:
        """The number of stored rows of each part."""
        counts = [np.reshape(run.tree["n_rows"], (-1, 1 << _CELL_BITS)).sum(axis=1) for run in self._runs]
        return np.sum([np.zeros(self._n_cells >> _CELL_BITS, np.int64), *counts], axis=0)

    def find(self) -> None:
        """Take the runs of an earlier process, from the first on up to one that is missing or damaged."""
        # One listing in place of a request for each number.
        names = set(filter(_RUN.fullmatch, self._place.names()))
        n = next(i for i in range(len(names) + 1) if _name(i + 1) not in names)
        places = [self._place.within(_name(i + 1)) for i in range(n)]
        heads = prefetched([partial(read_head, place) for place in places], _N_READERS, _N_READERS)
        try:
            for place, (tree, described, start) in zip(places, heads, strict=True):
                if tree["after"] != self.done:  # where two processes wrote, rows would be missing or twice
                    raise ValueError(f"{place} does not follow the run before it")
                self._runs = [*self._runs, _Run.of(place, tree, described, start)]
                self.done = dict(tree["done"])
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
        cells = (parts << _CELL_BITS) + (keys >> np.uint64(64 - _CELL_BITS)).astype(np.int64)
        self._waiting.append((cells, keys, rows))
        self._n_bytes += cells.nbytes + keys.nbytes + sum(map(_n_bytes, rows.values()))

    def note(self, done: dict[str, Any]) -> bool:
        """Note what is true once all rows so far are stored; return whether they are enough for a run."""
        self._finished = (len(self._waiting), done)
        return self._n_bytes >= _RUN_BYTES

    def write(self) -> bool:
        """Write the rows up to the last note; return whether there were any, or the last one was noted."""
        # A signal may come between any two lines, and this is called again: a run is written twice then,
        # never half of one, and the next process takes only runs that follow each other.
        n_pieces, done = self._finished
        is_end = bool(self._runs) and done["is_last"] and not self.done["is_last"]
        if done is self.done or not (n_pieces or is_end):  # the same after a signal between the last lines
            return False
        arrays: dict[str, np.ndarray] = {}
        n_rows = n_entries = np.zeros(self._n_cells, np.int64)
        tree: dict[str, Any] = {"after": self.done, "done": done, "words": {}, "n_columns": 0}
        if n_pieces:
            all_cells, keys, rows = zip(*self._waiting[:n_pieces], strict=True)
            cells = np.concatenate(all_cells)
            # By cells alone: the keys within one are sorted once, when all runs are joined.
            order = np.argsort(cells, kind="stable")
            joined = {name: joined_rows([one[name] for one in rows]) for name in rows[0]}
            arrays, tree["words"], tree["n_columns"] = _sorted_arrays(joined, order)
            arrays = {"key": np.concatenate(keys)[order], **arrays}
            n_rows = np.bincount(cells, minlength=self._n_cells)
            # Of dense rows too: the output may be CSR, and where it goes on follows from these counts.
            is_csr = "n_entries" in arrays
            filled = arrays["n_entries"] if is_csr else np.count_nonzero(arrays["X"], axis=1)
            n_entries = np.bincount(cells[order], filled, self._n_cells).astype(np.int64)
        tree |= {"names": list(arrays), "n_rows": n_rows.tolist(), "n_entries": n_entries.tolist()}
        place = self._place.within(_name(len(self._runs) + 1))
        described = [[A.dtype.str, A.shape, "C"] for A in arrays.values()]
        run = _Run.of(place, tree, described, 0)
        tree["checks"] = run.checks(map(bytes_of, arrays.values()), 0, self._n_cells)
        n_bytes = write_part(place, tree, list(arrays.values()), is_lasting=self._is_kept)
        start = n_bytes - sum(A.nbytes for A in arrays.values())
        self._runs = [*self._runs, _Run.of(place, tree, described, start)]
        self.done = done
        self._waiting, self._n_bytes, self._finished = [], 0, (0, done)
        return True

    # The second pass.

    def ranges(self, part: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """The cells of a part in runs of at most 32 MB, and how many rows and entries come before each."""
        # The counts are known without reading: by them a process finds where an earlier one was.
        first = part << _CELL_BITS
        cells = slice(first, first + (1 << _CELL_BITS))
        sizes = np.sum([run.sizes()[cells] for run in self._runs], axis=0)
        counts = np.sum([[run.tree[n][cells] for n in ("n_rows", "n_entries")] for run in self._runs], axis=0)
        bounds, left = [0], _RANGE_BYTES
        for cell, size in enumerate(sizes.tolist()):
            if size > left and cell > bounds[-1]:
                bounds.append(cell)
                left = _RANGE_BYTES
            left -= size
        before = [tuple(counts[:, :cell].sum(axis=1).tolist()) for cell in bounds]
        return [(first + a, first + b) for a, b in pairwise([*bounds, len(sizes)])], before

    def read(self, first: int, stop: int) -> Span:
        """The rows of some cells in the order of their keys; raises DamagedRun for the first damaged run."""
        reads = [partial(self._read_one, i, first, stop) for i in range(len(self._runs))]
        found = [rows for rows in prefetched(reads, _N_READERS, _N_READERS) if len(rows.get("key", ()))]
        if not found:
            return {}
        # No two keys are equal, so that any way to sort gives one order.
        order = np.argsort(np.concatenate([rows.pop("key") for rows in found]))
        return {name: joined_rows([rows.pop(name) for rows in found])[order] for name in list(found[0])}

    def _read_one(self, i: int, first: int, stop: int) -> Span:
        try:
            return self._runs[i].read(first, stop)
        except DamagedPart as damage:
            raise DamagedRun(i + 1, damage) from damage


def _name(number: int) -> str:
    return f"{number:06d}.part"


def _n_bytes(values: Any) -> int:
    if issparse(values):
        return int(values.data.nbytes + values.indices.nbytes + values.indptr.nbytes)
    return int(values.nbytes)


# The checkpoint of a conversion.


class Checkpoint:
    """The finished part of one conversion; without a location nothing is stored, and nothing is found.

    `every` are the seconds between two writes. `done` says where the first pass is: the `mark` of the last
    piece of the source, how many raw and positive rows there were up to it, whether the output is CSR, and
    whether the piece was the last one.
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
        self._stage: dict[str, Any] = {}

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
        if self._stage.get("stage") != stage:
            self._began = time.monotonic(), done  # in this process
        self._stage = {"stage": stage, "done": done, "total": total, "unit": unit}

    def _wrote(self, started: float) -> None:
        ended = time.monotonic()
        if self.location is not None and self._stage:
            began, done_before = self._began
            done, left = self._stage["done"] - done_before, self._stage["total"] - self._stage["done"]
            # By this process alone: an earlier one may have had another machine.
            seconds = (ended - began) * left / done if done > 0 else None
            progress = self._stage | {"seconds_left_of_stage": seconds, "written": time.time()}
            write_progress(self.location, progress)
        self._due = ended + seconds_between(self._every, time.monotonic() - started)

    # The end of a conversion.

    def finished(self, location: Location) -> dict[str, Any] | None:
        """The report if the output is complete at its place, and only this checkpoint was left."""
        report, target = self._header.get("report"), location.path
        # The report is noted before the output gets to its place; until then it is not finished.
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
        if self.location is not None:
            remove_checkpoint(self.location)

    # The first pass.

    def open(self, group: zarr.Group, room: Path, n_parts: int) -> None:
        """Find the runs; without a checkpoint they go to an empty folder, `room`."""
        # Whether rows are sparse is known once there are some.
        nothing = {"mark": None, "n_raw": 0, "n_positive": 0, "is_sparse": None, "is_last": False}
        self._group, place = group, self.location or Location(str(room))
        self.runs = Runs(place, n_parts, nothing, is_kept=self.location is not None)
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
        ranges, before = self.runs.ranges(part)
        found = writer.go_on(self._notes.get(part) or {}, before)
        if found is None:  # the output was removed; the note must not be taken for one on the new one
            self._set_note(part, None)
        for i in range(found or 0, len(ranges)):
            if rows := self.runs.read(*ranges[i]):
                yield rows
                del rows
            stage = "write" if part == 0 else "write the rows set apart"
            self.record(stage, i + 1, len(ranges), "ranges")
            self._set_note(part, writer.written())

    def _set_note(self, part: int, note: dict[str, int] | None) -> None:
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
            # Else a note could outlive what it speaks of when the machine fails. Two seconds more, as some
            # file systems (FAT) keep times that coarsely.
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
