"""How fast one process multiplies, takes cosines and reads: tasks that only look at the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from distrff.data.rows import Rows
from distrff.features.trigonometry import compile_loops, paired_cos_sin
from distrff.sweeps.process_record import blas_threads

DTYPES = ("float32", "float64")
_ROWS, _FEATURES = 4096, 1024
_WARM_ROWS = 16


@dataclass(frozen=True)
class ArithmeticRates:
    """What a thread does in a second while its neighbours do the same.

    Parameters
    ----------
    blas_threads : int
        That a product takes.
    flops : dict of str to float
        By dtype, of Z.T @ Z for 4096 rows of 1024 features, n·D² each.
    cosines : dict of str to float
        By dtype, cosines and sines by the compiled loop.
    """

    blas_threads: int
    flops: dict[str, float]
    cosines: dict[str, float]


def arithmetic_rates(seconds: float) -> ArithmeticRates:
    """Return the rates of this thread, each measured for so many seconds."""
    compile_loops()
    return ArithmeticRates(
        blas_threads(),
        {dtype: _product_rate(dtype, seconds) for dtype in DTYPES},
        {dtype: _cosine_rate(dtype, seconds) for dtype in DTYPES},
    )


def _product_rate(dtype: str, seconds: float) -> float:
    Z = np.full((_ROWS, _FEATURES), 0.5, dtype)
    G = np.empty((_FEATURES, _FEATURES), dtype)
    return float(_ROWS) * _FEATURES**2 * _calls_a_second(lambda: np.matmul(Z.T, Z, out=G), seconds)


def _cosine_rate(dtype: str, seconds: float) -> float:
    theta = np.linspace(-50.0, 50.0, _FEATURES**2 // 2, dtype=dtype).reshape(_FEATURES, -1)
    Z = np.empty((_FEATURES, _FEATURES), dtype)
    return float(Z.size) * _calls_a_second(lambda: paired_cos_sin(theta, Z, 1.0), seconds)


def _calls_a_second(work: Callable[[], object], seconds: float) -> float:
    work()  # touches its memory for the first time
    n, took, began = 0, 0.0, time.perf_counter()
    while took < seconds:
        work()
        n, took = n + 1, time.perf_counter() - began
    return n / took


def rows_a_second(rows: Rows, tile_rows: int, seconds: float) -> float:
    """Return the rows that this thread reads in a second, of as many as it reads in so many seconds.

    What is imported, opened and decoded for the first few rows is not counted.
    """
    tiles = rows.tiles(min(_WARM_ROWS, tile_rows, rows.stop - rows.start))
    next(tiles)
    del tiles
    n, took, began = 0, 0.0, time.perf_counter()
    for tile in rows.tiles(tile_rows):
        n, took = n + tile.X.shape[0], time.perf_counter() - began
        if took >= seconds:
            break
    return n / took


def noise(n_bytes: int, seed: int) -> np.ndarray:
    """Return bytes that no compression makes fewer."""
    return np.frombuffer(np.random.default_rng(seed).bytes(n_bytes), dtype=np.uint8)


def size_of(A: np.ndarray) -> int:
    """Return the bytes of what arrived."""
    return A.nbytes
