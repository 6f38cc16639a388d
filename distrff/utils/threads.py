"""One BLAS thread for work whose bits must not depend on how many there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock

from threadpoolctl import ThreadpoolController


@cache
def libraries() -> ThreadpoolController:
    """Return the BLAS libraries of this process; cached, as the search takes milliseconds."""
    return ThreadpoolController()


class _OneThread:
    """The limit that all users of this process share."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._n_users = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the limit for a block."""
        with self._lock:
            # Each time: in some builds each thread has its own count.
            limits = libraries().limit(limits=1, user_api="blas")
            if self._n_users == 0:
                self._first = limits
            self._n_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_users -= 1
                if self._n_users == 0:
                    self._first.restore_original_limits()


one_blas_thread = _OneThread().held
"""A context that limits BLAS to one thread. Contexts may overlap: the last to end restores the former number.

`libraries().limit` alone would not do: of two tasks side by side, the first to end lifts the limit of both.
"""
