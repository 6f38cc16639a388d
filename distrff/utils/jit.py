"""State of a process: compiled loops, arrays for the next tile or cast once, and counts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
from numba import njit


def compiled(fastmath: Iterable[str] = ()) -> Callable[[Callable[..., None]], Any]:
    """A decorator that compiles a function, which then runs without the global interpreter lock.

    Each type of arguments is compiled at its first call, and cached on disk where a folder can be written.
    `fastmath` are LLVM's names of the reorderings that the compiler may do: none as a rule, so that results
    are the same bits on every computer.
    """

    def decorator(function: Callable[..., None]) -> Any:
        options: dict[str, Any] = {"nogil": True, "fastmath": set(fastmath) or False}
        try:
            return njit(function, cache=True, **options)
        except RuntimeError:  # neither the package's folder nor a home can be written
            return njit(function, **options)

    return decorator


def in_own_thread(compile_all: Callable[[], None]) -> None:
    """Compile in a thread of its own, and wait for it.

    An interrupt of the main thread inside the compiler's callbacks would be swallowed there.
    """
    thread = threading.Thread(target=compile_all, name="distrff-compile")
    thread.start()
    thread.join()


def compiles_once(compile_all: Callable[[], None]) -> Callable[[], None]:
    """Decorate a function that calls loops to compile them, or to load them from Numba's cache.

    It runs once in a process, in a thread of its own.
    """
    return cache(lambda: in_own_thread(compile_all))


_BEFORE_FIRST_TASK: list[Callable[[], None]] = []


def before_first_task(prepare: Callable[[], None]) -> None:
    """Have a worker call `prepare` before its idle memory is measured, to load what tasks will use."""
    if prepare not in _BEFORE_FIRST_TASK:
        _BEFORE_FIRST_TASK.append(prepare)


def prepare_process() -> None:
    """Call all that was given to `before_first_task`."""
    for prepare in _BEFORE_FIRST_TASK:
        prepare()


# How often a map's arrays were derived, for the record of a task.
COUNTS: Counter[str] = Counter()

# Arrays that a thread keeps for the next tile.
#
# Dask's workers have malloc return freed memory to the system at once. Fresh memory, page by page, then costs
# as much for each tile as the sines that are written to it.

_MAX_BYTES = 2**24

_kept = threading.local()


def scratch(purpose: str, n_rows: int, n_columns: int, dtype: np.dtype) -> np.ndarray:
    """An uninitialised array of shape (n_rows, n_columns), this thread's own until its next call.

    Each purpose has its own array. A thread keeps at most 16 MiB per purpose; larger arrays are new.
    """
    n_bytes = n_rows * n_columns * np.dtype(dtype).itemsize
    if n_bytes > _MAX_BYTES:
        return np.empty((n_rows, n_columns), dtype)
    buffers: dict[str, np.ndarray] = _kept.__dict__
    if purpose not in buffers or buffers[purpose].nbytes < n_bytes:
        # Bytes, so that one array serves tiles of any shape and dtype.
        buffers[purpose] = np.empty(n_bytes, np.uint8)
    return buffers[purpose][:n_bytes].view(dtype).reshape(n_rows, n_columns)


class ByDtype:
    """A float64 array that is cast once to each dtype in use."""

    def __init__(self, A: np.ndarray) -> None:
        self._cast = {np.dtype(np.float64): A}

    def __getitem__(self, dtype: Any) -> np.ndarray:
        dtype = np.dtype(dtype)
        if dtype not in self._cast:
            self._cast[dtype] = self._cast[np.dtype(np.float64)].astype(dtype)
        return self._cast[dtype]
