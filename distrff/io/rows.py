"""Runs of consecutive rows, which tasks read themselves, and how tiles are cut from decoded spans."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat, takewhile
from typing import Any, NamedTuple, TypeVar

import numpy as np
from dask.system import CPU_COUNT
from scipy.sparse import issparse

from distrff.errors import InputError
from distrff.utils.arrays import in_one_layout, joined_rows
from distrff.utils.process import check_wanted

# A decoded span: field name -> array; X may be CSR. All arrays of a span have the same number of rows.
Span = dict[str, Any]


class RowBlock(NamedTuple):
    """Consecutive rows in memory: a tile."""

    start: int  # number of the first row in the dataset
    X: Any  # ndarray or CSR matrix of shape (r, d), of any real type, possibly a read-only view
    y: Any = None  # ndarray of shape (r,) or (r, k)
    sample_weight: Any = None  # float64 ndarray of shape (r,)


@dataclass(frozen=True)
class Rows(ABC):
    """The rows [start, stop) of a dataset, as a small picklable handle from which a task reads them.

    Implementations are dataclasses: `dask.delayed` walks dataclass fields, so a field may be a list of
    Delayed blocks, which are arrays in the task.
    """

    start: int
    stop: int

    @abstractmethod
    def spans(self) -> Iterable[Iterator[Span]]:
        """Return iterators over decoded spans, each of some fields; none keeps a span that it has yielded."""

    def tiles(self, n_rows: int) -> Iterator[RowBlock]:
        """Yield blocks cut at start, start + n_rows, ...; the last may be shorter.

        At most one decoded span of each iterator and one tile are in memory, and nothing is decoded twice.

        An InputError says which data are missing, damaged, changed since they were opened, not accessible to
        this process, or lack a required value. After an OSError a retry may succeed.
        """
        readers = [TileReader(spans, self.stop - self.start) for spans in self.spans()]
        for first in range(self.start, self.stop, n_rows):
            check_wanted()
            # Built in a function: a local name here would keep the tile alive while the next one is made.
            yield _tile(first, min(n_rows, self.stop - first), readers)


class TileReader:
    """Takes runs of rows from consecutive decoded spans, which together hold `n_rows` rows.

    A run inside one span is a view of it. A run across several is copied piece by piece, so that a span is
    released before the next one is decoded. `spans` must not keep a span that it has yielded.
    """

    def __init__(self, spans: Iterable[Span], n_rows: int) -> None:
        self._spans = iter(spans)
        self._span: Span = {}
        self._at = 0  # rows of the current span already taken
        self._size = 0  # rows of the current span
        self._left = n_rows

    def take(self, n: int) -> Span:
        """Return the next `n` rows, 1 <= n <= rows left."""
        self._refill()
        if n > self._size - self._at:
            return self._gather(n)
        part = self._next(n)
        if self._size - self._at < min(n, self._left) and n < self._size:
            # The next run needs the next span, and a view would keep this one alive until then.
            part = {name: values.copy() for name, values in part.items()}
        if self._at == self._size:
            self._span = {}
        return part

    def _next(self, n: int) -> Span:
        part = {name: values[self._at : self._at + n] for name, values in self._span.items()}
        self._at += n
        self._left -= n
        return part

    def _gather(self, n: int) -> Span:
        if any(map(issparse, self._span.values())):
            return self._gather_sparse(n)
        out = {name: np.empty((n, *v.shape[1:]), v.dtype) for name, v in self._span.items()}
        filled = 0
        while filled < n:
            self._refill()
            r = min(n - filled, self._size - self._at)
            # In a function: a local name here would keep the span alive while the next one is decoded.
            _fill(out, filled, self._next(r))
            filled += r
        return out

    def _gather_sparse(self, n: int) -> Span:
        """Return the next rows of a sparse matrix; their number of entries is not known beforehand."""
        pieces: list[Span] = []
        while n:
            self._refill()
            r = min(n, self._size - self._at)
            pieces.append(self._next(r))
            n -= r
        return {name: joined_rows([piece[name] for piece in pieces]) for name in pieces[0]}

    def _refill(self) -> None:
        while self._at == self._size:
            self._span = {}
            span = next(self._spans, None)
            if span is None:
                raise InputError(
                    f"the data ended {self._left} rows early; open it again if it was changed meanwhile"
                )
            self._span = span
            self._at, self._size = 0, next(iter(span.values())).shape[0]


def _fill(out: Span, at: int, part: Span) -> None:
    for name, values in part.items():
        out[name][at : at + len(values)] = values


def _tile(first: int, n: int, readers: Sequence[TileReader]) -> RowBlock:
    fields: dict[str, Any] = {"X": None}
    for reader in readers:
        fields.update(reader.take(n))
    # Only y and weights, which enter sums as they are; X is copied when it is scaled.
    return RowBlock(first, **{name: A if name == "X" else in_one_layout(A) for name, A in fields.items()})


def cuts(start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [start, stop) between multiples of `step`."""
    while start < stop:
        end = min(stop, (start // step + 1) * step)
        yield start, end
        start = end


# Work ahead of its consumer: reading from stores with high latency, and decoding.

P = TypeVar("P")
R = TypeVar("R")


def prefetched(calls: Iterable[Callable[[], R]], n_threads: int, n_ahead: int) -> Iterator[R]:
    """Return an iterator over the results of `calls`, in order, up to `n_ahead` computed ahead in threads.

    Work begins at once. At most n_ahead + 1 results are in memory, if the caller releases each before it
    takes the next. An exception is raised in the place of the result; after that, or when the iterator is
    closed, no further call begins.
    """
    calls = iter(calls)
    pool = ThreadPoolExecutor(n_threads, thread_name_prefix="distrff-ahead")
    waiting = deque(pool.submit(call) for call in islice(calls, n_ahead))

    def results() -> Iterator[R]:
        try:
            while waiting:
                taken = [waiting.popleft().result()]
                waiting.extend(pool.submit(call) for call in islice(calls, 1))
                yield taken.pop()  # a local name would keep it alive while the next one is awaited
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    return results()


def read_ahead(spans: Iterable[Span], n_ahead: int) -> Iterator[Span]:
    """Return the spans in order, up to `n_ahead` read ahead in a thread; see `prefetched`.

    Only that thread iterates over `spans`, which must not keep a span that it has yielded.
    """
    source = iter(spans)
    return takewhile(bool, prefetched(repeat(partial(next, source, {})), 1, n_ahead))


def in_order(function: Callable[[P], R], pieces: Iterable[P]) -> Iterator[tuple[P, R]]:
    """Yield each piece with `function(piece)`, in the order of the pieces; see `prefetched`.

    The function runs in as many threads as there are cores; one more piece is read ahead.
    """

    # Threads, since the slow parts (Arrow's decoders, compiled loops, NumPy on large arrays, compression)
    # run without the interpreter's lock.
    def with_result(piece: P) -> tuple[P, R]:
        return piece, function(piece)

    return prefetched((partial(with_result, piece) for piece in pieces), CPU_COUNT, CPU_COUNT + 1)
