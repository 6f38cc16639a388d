"""Rows for the benchmarks: Gaussian columns, a smooth target, in chunked Zarr."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr

CHUNK_ROWS = 32_768


def write_rows(path: Path, n_rows: int, n_columns: int, dtype: str = "float32") -> Path:
    """Write X and y chunk by chunk, and return the path."""
    group = zarr.create_group(path)
    X = group.create_array("X", shape=(n_rows, n_columns), chunks=(CHUNK_ROWS, n_columns), dtype=dtype)
    y = group.create_array("y", shape=(n_rows,), chunks=(CHUNK_ROWS,), dtype=dtype)
    for start in range(0, n_rows, CHUNK_ROWS):
        stop = min(n_rows, start + CHUNK_ROWS)
        X[start:stop], y[start:stop] = draw_rows(start, stop - start, n_columns, dtype)
    return path


def draw_rows(seed: int, n_rows: int, n_columns: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and targets of one block."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_columns)).astype(dtype)
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n_rows)
    return X, y.astype(dtype)
