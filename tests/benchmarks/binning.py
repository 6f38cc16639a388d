"""Random binning against the same arithmetic in NumPy, on one thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from distrff.features.bins import BinIds, Grids, occupied_bins
from distrff.features.specification import RowsInMemory
from distrff.kernels.stationary import Laplacian
from tests.benchmarks.timing import seconds_of

N_COLUMNS, N_GRIDS = 50, 100
_WIDTH = 20.0  # thousands of bins a grid, for a million standard normal rows
_STRIP = 2**13


def binning(scale: float) -> Iterator[dict[str, Any]]:
    """Keys of all rows, then the numbers of their bins; NumPy has `np.unique` for these."""
    n = int(1_000_000 * scale)
    X = np.random.default_rng(0).standard_normal((n, N_COLUMNS), dtype=np.float32)
    grids = Grids.draw(Laplacian(_WIDTH), N_GRIDS, N_COLUMNS, seed=0)
    few = slice(0, 1000)
    np.testing.assert_array_equal(_numpy_keys(X[few], grids, 0), grids.keys(X[few])[0])
    _ids(X[few], grids)
    for what, ours, theirs, least in (
        ("keys", _keys, _numpy_keys, 30),
        ("dense ids", _ids, _numpy_ids, 10),
    ):
        # A tenth of the grids is enough of what takes NumPy a minute.
        reference = 10 * seconds_of(
            lambda theirs=theirs: [theirs(X, grids, g) for g in range(0, N_GRIDS, 10)]
        )
        seconds = min(seconds_of(lambda ours=ours: ours(X, grids)) for _ in range(3))
        yield {
            "what": what,
            "n_rows": n,
            "asked": f"ratio >= {least}",
            "ratio": reference / seconds,
            "seconds": seconds,
            "reference_seconds": reference,
        }


def _keys(X: np.ndarray, grids: Grids) -> None:
    for first in range(0, len(X), _STRIP):
        grids.keys(X[first : first + _STRIP])


def _ids(X: np.ndarray, grids: Grids) -> None:
    bins = occupied_bins(grids, RowsInMemory(X, None))
    ids = BinIds(bins["keys"], bins["ends"])
    for first in range(0, len(X), _STRIP):
        ids.find(grids.keys(X[first : first + _STRIP]))


def _numpy_keys(X: np.ndarray, grids: Grids, g: int) -> np.ndarray:
    bins = np.floor(X * grids.steps[g].astype(X.dtype) + grids.offsets[g].astype(X.dtype)).astype(np.int32)
    high, low = ((bins * a).sum(axis=1, dtype=np.int32).view(np.uint32) for a in grids.multipliers[:, g])
    return (high.astype(np.uint64) << np.uint64(32)) | low


def _numpy_ids(X: np.ndarray, grids: Grids, g: int) -> None:
    np.unique(_numpy_keys(X, grids, g), return_inverse=True)
