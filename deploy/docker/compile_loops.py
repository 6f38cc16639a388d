"""Uses everything in distrff that is compiled once, so that Numba's cache has it in the types that fits use.

    NUMBA_CACHE_DIR=/var/cache/numba python compile_loops.py

A cache is for one kind of processor: on another one a loop is compiled when it is first used.
"""

from __future__ import annotations

import warnings

import dask
import numpy as np

import distrff as drf

DRAWS = ("iid", "sorf", "fastfood", "countsketch")


def rows(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """A few hundred rows of as many columns as structured frequencies need, and a number for each."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 20)).astype(dtype)
    return X, np.sin(X[:, 0].astype(float)) + X[:, 1]


def maps() -> list[drf.FourierFeatures]:
    """Every way to draw frequencies that has a loop of its own, and both forms."""
    drawn = [drf.FourierFeatures(drf.Gaussian(4.0), 64, sampling=sampling) for sampling in DRAWS]
    return [*drawn, drf.FourierFeatures(drf.Gaussian(4.0), 64, form="phase")]


def fit_everything(dtype: str) -> None:
    """Fit each kind of map, and the losses and searches for widths that have loops."""
    X, y = rows(dtype)
    labels = y > 0
    for features in maps():
        drf.KernelRidge(features, 1.0, random_state=0).fit(X, y)
    drf.KernelRidge(drf.AutoFeatures(64), random_state=0).fit(X, y)
    drf.KernelSVC(maps()[0], random_state=0).fit(X, labels)
    bins = drf.RandomBinningFeatures(drf.Laplacian(8.0), 20)
    drf.KernelRidge(bins, 1.0, random_state=0).fit(X, y).predict(X)
    drf.KernelSVC(bins, random_state=0).fit(X, labels)
    for kernel in (drf.Laplacian("ard"), drf.Cauchy("ard")):
        drf.KernelRidge(drf.FourierFeatures(kernel, 64), 1.0, random_state=0).fit(X, y)


def main() -> None:
    with warnings.catch_warnings(), dask.config.set(scheduler="synchronous"):
        warnings.simplefilter("ignore")  # of models on a few rows of noise
        for dtype in ("float32", "float64"):
            fit_everything(dtype)


if __name__ == "__main__":
    main()
