"""The numbers of the feature maps: their kernel error, and the time that they take."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from distrff import FourierFeatures, Gaussian, Laplacian
from distrff.features.base import RowsInMemory
from distrff.features.binning import BinIds, Grids, occupied_bins
from tests.benchmarks.measuring import alternate, seconds_of

_N_SEEDS = 50
_N_COLUMNS, _N_GRIDS = 50, 100
_WIDTH = 20.0  # thousands of bins a grid, for a million standard normal rows
_STRIP = 2**13


def sampling_error(scale: float) -> Iterator[dict[str, Any]]:
    """RMS kernel error over the pairs of 60 rows N(0, I₁₆), ℓ = 4, 256 columns, pooled over 50 seeds."""
    kernel, upper = Gaussian(4.0), np.triu_indices(60, 1)
    asked = (("qmc", "iid", 0.8), ("sorf", "orthogonal", 1.1), ("fastfood", "iid", 1.4))
    squares: dict[str, list[float]] = {s: [] for s in ("iid", "orthogonal", "qmc", "sorf", "fastfood")}
    for seed in range(_N_SEEDS):
        X = np.random.default_rng(seed).standard_normal((60, 16))
        expected = kernel(X)[upper]
        for sampling, errors in squares.items():
            Z = FourierFeatures(kernel, 256, sampling=sampling, random_state=seed).fit_transform(X)
            errors.append(float(np.mean(((Z @ Z.T)[upper] - expected) ** 2)))
    rms = {sampling: float(np.sqrt(np.mean(errors))) for sampling, errors in squares.items()}
    for sampling, reference, most in asked:
        yield {
            "sampling": sampling,
            "asked": f"<= {most} x {reference}",
            "ratio": rms[sampling] / rms[reference],
            "rms": rms[sampling],
            "reference_rms": rms[reference],
        }


def sorf_speed(scale: float) -> Iterator[dict[str, Any]]:
    """The dense product X·W against SORF's phases: one thread, float32, 8192 frequencies."""
    n_rows, m = max(64, int(2048 * scale)), 8192
    for n_columns, least in ((784, 3), (4096, 10)):
        X = np.random.default_rng(0).standard_normal((n_rows, n_columns)).astype(np.float32)
        theta = np.zeros((n_rows, m), np.float32)
        maps = {
            sampling: FourierFeatures(Gaussian(), m, form="phase", sampling=sampling, random_state=0).fit(X)
            for sampling in ("iid", "sorf")
        }
        projections = [maps[s].specification_.build().prepared.projection for s in ("iid", "sorf")]
        with threadpool_limits(1):
            for projection in projections:  # casts once and compiles
                projection.project(X[:64], theta[:64])
            dense, structured = projections
            times = alternate(
                lambda: dense.project(X, theta),  # noqa: B023
                lambda: structured.project(X, theta),  # noqa: B023
                repeats=5,
            )
        yield {"n_columns": n_columns, "n_rows": n_rows, "asked": f">= {least} times", **times}


def binning(scale: float) -> Iterator[dict[str, Any]]:
    """Keys of all rows, then the numbers of their bins, against NumPy (`np.unique`) on one thread."""
    n = int(1_000_000 * scale)
    X = np.random.default_rng(0).standard_normal((n, _N_COLUMNS), dtype=np.float32)
    grids = Grids.draw(Laplacian(_WIDTH), _N_GRIDS, _N_COLUMNS, seed=0)
    few = slice(0, 1000)
    np.testing.assert_array_equal(_numpy_keys(X[few], grids, 0), grids.keys(X[few])[0])
    _ids(X[few], grids)
    for what, ours, theirs, least in (("keys", _keys, _numpy_keys, 30), ("dense ids", _ids, _numpy_ids, 10)):
        # A tenth of the grids is enough of what takes NumPy a minute.
        some = range(0, _N_GRIDS, 10)
        reference = 10 * seconds_of(lambda theirs=theirs: [theirs(X, grids, g) for g in some])  # noqa: B023
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


BENCHMARKS = {"sampling_error": sampling_error, "sorf_speed": sorf_speed, "binning": binning}
