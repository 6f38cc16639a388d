"""A run of consecutive rows that a task reads for itself, and how tiles are cut from what was decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from dask.system import CPU_COUNT
from scipy.sparse import issparse

from distrff.errors import InputError
from distrff.utils.arrays import in_one_layout, joined_rows

FIELDS = ("X", "y", "sample_weight")

# A decoded span: field name -> array, of X also CSR; all of one span have the same number of rows.
Span = dict[str, Any]


class RowBlock(NamedTuple):
    """Consecutive rows in memory: a tile.

    start : number of the first row in the dataset.
    X : ndarray or CSR matrix of shape (r, d), any real dtype, possibly a read-only view.
    y : ndarray of shape (r,) or (r, k), or None.
    sample_weight : float64 ndarray of shape (r,), or None.
    """

    start: int
    X: Any
    y: Any = None
    sample_weight: Any = None


class Rows(Protocol):
    """The rows `start` to `stop` of a dataset, as a small picklable dataclass.

    An implementation must be a dataclass: `dask.delayed` walks dataclass fields, so a field may
    be a list of Delayed blocks that arrive in the task as arrays.
    """

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...

    def tiles(self, n_rows: int) -> Iterator[RowBlock]:
        """Yield blocks cut at start, start + n_rows, ...; the last may be shorter.

        At most one decoded span and one tile are in memory, and nothing is decoded twice.
        """
        ...


class Feed:
    """Takes runs of rows off a sequence of decoded spans, one span at a time.

    A run inside one span is a view of it. A run that needs several is copied piece by piece, so
    that a span is released before the next is decoded.

    Parameters
    ----------
    spans : iterable of Span
        Consecutive decoded spans; empty ones are passed over. The iterable must not hold on to
        what it has yielded.
    n_rows : int
        Number of rows that all spans hold together.
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
            # The next run needs the next span, and a view held meanwhile would keep this one alive.
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
            _fill(out, filled, self._next(r))
            filled += r
        return out

    def _gather_sparse(self, n: int) -> Span:
        """Return the same of rows whose number of entries shows piece by piece."""
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


def cut_tiles(start: int, stop: int, n_rows: int, feeds: Sequence[Feed]) -> Iterator[RowBlock]:
    """Yield the tiles of the rows [start, stop) from feeds that each carry some of the fields."""
    for first in range(start, stop, n_rows):
        # Built in a call of its own: a local name here would keep the tile alive while the next is made.
        yield _tile(first, min(n_rows, stop - first), feeds)


def _tile(first: int, n: int, feeds: Sequence[Feed]) -> RowBlock:
    fields: dict[str, Any] = {"X": None}
    for feed in feeds:
        fields.update(feed.take(n))
    # X is copied as it is scaled; y and weights enter sums as they are.
    return RowBlock(first, **{name: A if name == "X" else in_one_layout(A) for name, A in fields.items()})


def cuts(start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [start, stop) between multiples of `step`."""
    while start < stop:
        end = min(stop, (start // step + 1) * step)
        yield start, end
        start = end


# Reading what comes next while what is there is worked on, for stores that keep one waiting.


def read_ahead(spans: Iterable[Span], n_ahead: int) -> Iterator[Span]:
    """Return the spans in their order, up to `n_ahead` of them read in a thread beforehand.

    Reading begins with the call. At most n_ahead + 1 spans are in memory, if the caller lets go of one
    before it asks for the next. What reading raises is raised where its span would have come.

    Parameters
    ----------
    spans : iterable of Span
        Only the thread goes on with it; it must not hold on to what it has yielded.
    n_ahead : int
        At least 1.
    """
    source = iter(spans)
    pool = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
    waiting = deque(pool.submit(next, source, None) for _ in range(n_ahead))
    return _taken(pool, source, waiting)


def _taken(
    pool: ThreadPoolExecutor, source: Iterator[Span], waiting: deque[Future[Span | None]]
) -> Iterator[Span]:
    try:
        while (span := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, source, None))
            given = [span]
            del span  # else it would live here while the next one is waited for
            yield given.pop()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


# Blocks decoded side by side and handed on in their order, a few at a time.

P = TypeVar("P")
R = TypeVar("R")


def in_order(function: Callable[[P], R], pieces: Iterable[P]) -> Iterator[tuple[P, R]]:
    """Yield each piece with `function(piece)`, in the order of the pieces.

    The function runs in as many threads as there are cores; at most two pieces more than that are in
    memory, so that the reader is ahead of the threads but not by much. When the consumer leaves, or a
    piece fails, no further piece is begun.

    Notes
    -----
    Threads, since what takes time here (Arrow's decoders, compiled loops, NumPy on large arrays,
    compression) runs without the interpreter's lock.
    """
    waiting: deque[tuple[P, Future[R]]] = deque()
    pool = ThreadPoolExecutor(CPU_COUNT, thread_name_prefix="distrff-ingest")
    try:
        for piece in pieces:
            waiting.append((piece, pool.submit(function, piece)))
            if len(waiting) > CPU_COUNT + 1:
                first, future = waiting.popleft()
                yield first, future.result()
                del first, future
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
            del first, future
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
