"""Arrays that a thread keeps for the next tile.

Dask's workers have malloc return what is freed to the system at once. To be given fresh memory, page by page,
then costs as much for each tile as the sines that are written to it.
"""

from __future__ import annotations

import threading

import numpy as np

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
