"""The numbers of the feature maps: their kernel error, and the time that they take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from distrff.features.fourier import FourierFeatures
from distrff.kernels.stationary import Gaussian
from tests.benchmarks.binning import binning
from tests.benchmarks.timing import alternate

_N_SEEDS = 50


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
        projections = [maps[s].specification_.build().projection for s in ("iid", "sorf")]
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


BENCHMARKS = {"sampling_error": sampling_error, "sorf_speed": sorf_speed, "binning": binning}
