"""Which segment a worker takes next, so that neighbours meet where they were summed."""

from __future__ import annotations


class SegmentShares:
    """A run of segments for each worker, and half of another's for the one that has none left.

    Segments that a worker takes one after another are neighbours in the tree of merges, so
    most partials are merged where they lie, as soon as they are there.

    Parameters
    ----------
    n_segments : int
    threads : dict of str to int
        Threads of each worker; runs are as long as these ask for. Others may come later.
    """

    def __init__(self, n_segments: int, threads: dict[str, int]) -> None:
        self._left = {} if threads else {"": range(n_segments)}
        first_thread, n_threads = 0, sum(threads.values())
        for worker, count in threads.items():
            start, stop = (n_segments * t // n_threads for t in (first_thread, first_thread + count))
            self._left[worker] = range(start, stop)
            first_thread += count

    def __bool__(self) -> bool:
        """Return whether any segment was not taken yet."""
        return any(self._left.values())

    def take(self, worker: str) -> int:
        """Return the next segment for a worker, also for one that came later."""
        if not self._left.get(worker):
            longest = max(self._left, key=lambda name: len(self._left[name]))
            run = self._left[longest]
            middle = len(run) // 2
            self._left[longest], self._left[worker] = run[:middle], run[middle:]
        run = self._left[worker]
        self._left[worker] = run[1:]
        return run[0]
