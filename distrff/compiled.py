"""Loops compiled at the first call of each type of arguments, and kept on disk where there is a place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from numba import njit


def compiled(fastmath: Iterable[str] = ()) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that compiles a function, which then runs without the global interpreter lock.

    Parameters
    ----------
    fastmath : iterable of str
        LLVM's names of the liberties that the compiler may take; none as a rule, so that results are the
        same bits on every machine.
    """

    def decorator(function: Callable[..., None]) -> Any:
        options: dict[str, Any] = {"nogil": True, "fastmath": set(fastmath) or False}
        try:
            return njit(function, cache=True, **options)
        except RuntimeError:  # neither the package's folder nor a home can be written
            return njit(function, **options)

    return decorator


def in_own_thread(compile_all: Callable[[], None]) -> None:
    """Call what compiles in a thread of its own, and wait for it.

    An interrupt that hits the main thread inside the compiler's callbacks would be swallowed there.
    """
    thread = threading.Thread(target=compile_all, name="distrff-compile")
    thread.start()
    thread.join()
