"""Loops compiled at the first call of each type of arguments, and kept on disk where there is a place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numba import njit


def compiled(fastmath: Iterable[str] = ()) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that compiles a function, which then runs without the global interpreter lock.

    Parameters
    ----------
    fastmath : iterable of str
        LLVM's names of the liberties that the compiler may take; none as a rule, so that results are the
        same bits on every computer.
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


# Arrays that a thread keeps for the next tile.
#
# Dask's workers have malloc return what is freed to the system at once. To be given fresh memory, page by
# page, then costs as much for each tile as the sines that are written to it.

_MOST_BYTES = 2**24

_kept = threading.local()


def scratch(purpose: str, n_rows: int, n_columns: int, dtype: np.dtype) -> np.ndarray:
    """Return an array of shape (n_rows, n_columns) with any content, this thread's own until it asks again.

    Parameters
    ----------
    purpose : str
        Arrays of different purposes are different ones.

    Notes
    -----
    A thread keeps at most 16 MiB a purpose; larger arrays are fresh.
    """
    n_bytes = n_rows * n_columns * np.dtype(dtype).itemsize
    if n_bytes > _MOST_BYTES:
        return np.empty((n_rows, n_columns), dtype)
    buffers: dict[str, np.ndarray] = _kept.__dict__
    if purpose not in buffers or buffers[purpose].nbytes < n_bytes:
        buffers[purpose] = np.empty(n_bytes, np.uint8)
    return buffers[purpose][:n_bytes].view(dtype).reshape(n_rows, n_columns)
