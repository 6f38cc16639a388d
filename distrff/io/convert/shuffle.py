"""Rows in a uniformly random order, by two passes through buckets on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse

from distrff.io.convert.writer import Sink
from distrff.utils.random import child_seed, row_hash

_BUCKET_BITS = 6  # 64 buckets: so many files of each field are open at a time
_BUCKET_BYTES = 64 * 2**20  # in memory when it is put in order
_PART_BYTES = 8 * 2**20  # handed on at once


def shuffle_keys(rows: np.ndarray, seed: int) -> np.ndarray:
    """Return the key of each row number, uint64: shuffled rows stand in the order of their keys.

    Keys are 64 hashed bits, different for different rows, so that which order they give is uniform
    over all orders as far as the hash is random, and is the same however the rows are cut into blocks.
    """
    return row_hash(np.asarray(rows, np.uint64), child_seed(seed, "shuffle"))


def is_test_row(rows: np.ndarray, seed: int, fraction: float) -> np.ndarray:
    """Return which rows are set apart: each with probability `fraction`, by its number and the seed alone."""
    return row_hash(np.asarray(rows, np.uint64), child_seed(seed, "test rows")) < np.uint64(
        fraction * 2.0**64
    )


class SetApart:
    """Hands rows on to one of two sinks: those set apart for testing, and the others.

    Parameters
    ----------
    training, test : Sink
    fraction : float
        Share of test rows.
    seed : int
    """

    def __init__(self, training: Sink, test: Sink, fraction: float, seed: int) -> None:
        self._sinks, self._fraction, self._seed = (training, test), fraction, seed
        self._n_rows = 0
        self.n_written = (0, 0)

    def append(self, X: Any, y: np.ndarray | None, sample_weight: np.ndarray | None) -> None:
        """Take some rows."""
        numbers = np.arange(self._n_rows, self._n_rows + X.shape[0])
        self._n_rows += X.shape[0]
        in_test = is_test_row(numbers, self._seed, self._fraction)
        for sink, chosen in zip(self._sinks, (~in_test, in_test), strict=True):
            if chosen.any():
                sink.append(
                    X[chosen],
                    None if y is None else y[chosen],
                    None if sample_weight is None else sample_weight[chosen],
                )

    def finish(self) -> int:
        """Return the number of rows of both."""
        self.n_written = (self._sinks[0].finish(), self._sinks[1].finish())
        return sum(self.n_written)


class Shuffled:
    """Hands all rows on to a sink in the order of their keys.

    The first pass appends each row to one of 64 buckets on disk, by the leading bits of its key; the
    second reads them one by one and puts each in order. A bucket of more than 64 MB is first cut into 64
    by the next bits. Hence about two blocks and two buckets are in memory, whatever the number of rows.

    Parameters
    ----------
    sink : Sink
    seed : int
    folder : Path
        Existing and empty, on a disk that holds all rows once.

    Notes
    -----
    Independent uniform buckets followed by a uniform order in each are a uniform order of all: Sandelius
    1962, "A simple randomization procedure"; Rao 1961.
    """

    def __init__(self, sink: Sink, seed: int, folder: Path) -> None:
        self._sink, self._seed = sink, seed
        self._buckets = _Buckets(folder, level=0)
        self._n_rows = 0

    def append(self, X: Any, y: np.ndarray | None, sample_weight: np.ndarray | None) -> None:
        """Take some rows."""
        n = X.shape[0]
        keys = shuffle_keys(np.arange(self._n_rows, self._n_rows + n), self._seed)
        self._n_rows += n
        self._buckets.append(_Rows(keys, X, self._buckets.coded(y), sample_weight))

    def finish(self) -> int:
        """Hand the rows on in their new order; return their number."""
        for rows in self._buckets.in_order():
            self._sink.append(rows.X, self._buckets.decoded(rows.y), rows.sample_weight)
        return self._sink.finish()


@dataclass(frozen=True)
class _Rows:
    """Rows with their keys; X dense or CSR."""

    keys: np.ndarray
    X: Any
    y: np.ndarray | None
    sample_weight: np.ndarray | None

    def take(self, rows: Any) -> _Rows:
        return _Rows(
            self.keys[rows],
            self.X[rows],
            None if self.y is None else self.y[rows],
            None if self.sample_weight is None else self.sample_weight[rows],
        )

    def fields(self) -> dict[str, np.ndarray]:
        """The arrays that are stored; their first axes are rows, or entries of sparse rows."""
        X = {"X": self.X}
        if issparse(self.X):
            X = {"data": self.X.data, "indices": self.X.indices, "lengths": np.diff(self.X.indptr)}
        others = {"y": self.y, "sample_weight": self.sample_weight}
        return {"keys": self.keys} | X | {name: a for name, a in others.items() if a is not None}

    @property
    def n_bytes(self) -> int:
        return sum(a.nbytes for a in self.fields().values())


class _Buckets:
    """Rows in 64 folders by bits of their keys.

    Parameters
    ----------
    folder : Path
    level : int
        How many times the rows were cut before.
    """

    def __init__(self, folder: Path, level: int) -> None:
        self._folder, self._level = folder, level
        self._layout: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        self._n_columns = 0
        self._n_buckets = 2**_BUCKET_BITS
        self._sizes = [0] * self._n_buckets
        self._words: dict[str, int] | None = None
        self._handles: dict[tuple[int, str], Any] = {}

    def coded(self, y: np.ndarray | None) -> np.ndarray | None:
        """Labels of text as numbers."""
        if y is None or y.dtype.kind != "O":
            return y
        if self._words is None:
            self._words = {}
        words = self._words
        codes = [words.setdefault(word, len(words)) for word in y.ravel().tolist()]
        return np.array(codes, np.int32).reshape(y.shape)

    def decoded(self, codes: np.ndarray | None) -> np.ndarray | None:
        """The labels that stand behind the numbers."""
        if codes is None or self._words is None:
            return codes
        return np.array([*self._words, None], dtype=object)[codes]

    def append(self, rows: _Rows) -> None:
        shift = np.uint64(64 - _BUCKET_BITS * (self._level + 1))
        bucket = ((rows.keys >> shift) & np.uint64(self._n_buckets - 1)).astype(np.uint8)
        order = np.argsort(bucket, kind="stable")
        ends = np.cumsum(np.bincount(bucket, minlength=self._n_buckets))
        rows = rows.take(order)
        self._layout = {name: (a.dtype, a.shape[1:]) for name, a in rows.fields().items()}
        self._n_columns = rows.X.shape[1]
        for b, (start, stop) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)):
            if start < stop:
                self._write(b, rows.take(slice(start, stop)))

    def _write(self, b: int, rows: _Rows) -> None:
        for name, values in rows.fields().items():
            if (b, name) not in self._handles:
                self._handles[b, name] = self._path(b, name).open("wb")
            self._handles[b, name].write(np.ascontiguousarray(values).data)
        self._sizes[b] += rows.n_bytes

    def _path(self, b: int, name: str) -> Path:
        return self._folder / f"{b:02d}-{name}"

    def in_order(self) -> Iterator[_Rows]:
        """Yield all rows in the order of their keys; each bucket is removed when it was read."""
        for handle in self._handles.values():
            handle.close()
        for b, size in enumerate(self._sizes):
            if size > _BUCKET_BYTES:
                yield from self._cut_again(b)
            elif size:
                rows = self._read(b)
                rows = rows.take(np.argsort(rows.keys))
                self._remove(b)
                yield rows

    def _read(self, b: int, read: Callable[..., np.ndarray] = np.fromfile) -> _Rows:
        found = {
            name: read(self._path(b, name), dtype).reshape(-1, *rest)
            for name, (dtype, rest) in self._layout.items()
        }
        if "X" in found:
            X = found["X"]
        else:
            starts = np.concatenate([[0], np.cumsum(found["lengths"], dtype=np.int64)])
            X = csr_matrix(
                (found["data"], found["indices"], starts), shape=(len(found["keys"]), self._n_columns)
            )
        return _Rows(found["keys"], X, found.get("y"), found.get("sample_weight"))

    def _cut_again(self, b: int) -> Iterator[_Rows]:
        folder = self._folder / f"{b:02d}"
        folder.mkdir()
        finer = _Buckets(folder, self._level + 1)
        for rows in self._parts(b):
            finer.append(rows)
        self._remove(b)
        yield from finer.in_order()
        folder.rmdir()

    def _parts(self, b: int) -> Iterator[_Rows]:
        """The rows of a bucket, a few at a time."""
        rows = self._read(b, _mapped)
        n_rows = len(rows.keys)
        step = max(1, n_rows * _PART_BYTES // self._sizes[b])
        for start in range(0, n_rows, step):
            yield rows.take(slice(start, start + step))

    def _remove(self, b: int) -> None:
        for name in self._layout:
            self._path(b, name).unlink()


def _mapped(path: Path, dtype: np.dtype) -> np.ndarray:
    """A file as an array that is not read yet; of an empty file there is no map."""
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)
