"""Blocks decoded side by side and handed on in their order, a few at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from dask.system import CPU_COUNT

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
