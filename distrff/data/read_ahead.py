"""Reading what comes next while what is there is worked on, for stores that keep one waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from distrff.data.rows import Span


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
