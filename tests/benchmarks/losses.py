"""The numbers of the margin machines: sweeps to a certified gap, and time against scikit-learn."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from sklearn.linear_model import LogisticRegression

from distrff.data.open import open_dataset
from distrff.estimators.likelihood_classifier import KernelLikelihoodClassifier
from distrff.features.fourier import FourierFeatures
from distrff.kernels import Gaussian
from distrff.losses import Logistic
from tests.benchmarks.clusters import workers

N_COLUMNS, N_TERMS, FREQUENCY = 20, 500, 0.35
N_COMPONENTS = 2048
PENALTIES = (1e-3, 1e-4, 1e-5, 1e-6)
MOST_SWEEPS = {"logistic": 12, "probit": 15, "laplace": 25}
CHUNK_ROWS = 32_768


def write_labelled_rows(path: Path, n_rows: int) -> Path:
    """Write rows X ~ N(0, I) and labels sign(f + 0.2·noise) of a smooth random f, chunk by chunk."""
    rng = np.random.default_rng(0)
    W = FREQUENCY * rng.standard_normal((N_COLUMNS, N_TERMS))
    b, c = rng.uniform(0, 2 * np.pi, N_TERMS), rng.standard_normal(N_TERMS) / np.sqrt(N_TERMS)
    group = zarr.create_group(path)
    X = group.create_array("X", shape=(n_rows, N_COLUMNS), chunks=(CHUNK_ROWS, N_COLUMNS), dtype="float32")
    y = group.create_array("y", shape=(n_rows,), chunks=(CHUNK_ROWS,), dtype="int8")
    for start in range(0, n_rows, CHUNK_ROWS):
        rows = rng.standard_normal((min(CHUNK_ROWS, n_rows - start), N_COLUMNS))
        f = np.sqrt(2) * np.cos(rows @ W + b) @ c
        X[start : start + len(rows)] = rows
        y[start : start + len(rows)] = np.sign(f + 0.2 * rng.standard_normal(len(rows)))
    return path


def _machine(n_rows: int, penalty: float, noise: str) -> KernelLikelihoodClassifier:
    features = FourierFeatures(Gaussian(1 / FREQUENCY), N_COMPONENTS, random_state=0)
    return KernelLikelihoodClassifier(features, 1 / (n_rows * penalty), noise=noise, random_state=0)


def likelihood_sweeps(scale: float) -> Iterator[dict[str, Any]]:
    """Light sweeps after the Gram until the duality gap is certified to be below 1e-3."""
    n = int(200_000 * scale)
    with tempfile.TemporaryDirectory() as folder, workers():
        dataset = open_dataset(write_labelled_rows(Path(folder) / "rows.zarr", n))
        for noise, most in MOST_SWEEPS.items():
            for penalty in PENALTIES:
                report = _machine(n, penalty, noise).fit(dataset).report_
                light = [
                    s
                    for s, label in zip(report["sweep_seconds"], report["sweep_labels"], strict=True)
                    if label == "margins"
                ]
                yield {
                    "noise": noise,
                    "penalty": penalty,
                    "asked": f"gap <= 1e-3 and sweeps <= {most}",
                    "gap": report["duality_gap"],
                    "sweeps": len(light),
                    "seconds": report["seconds"],
                    "light_sweep_seconds": float(np.median(light)),
                }


def against_logistic_regression(scale: float) -> Iterator[dict[str, Any]]:
    """A whole fit from Zarr against scikit-learn's on features ready in memory, at equal objective."""
    n = int(200_000 * scale)
    with tempfile.TemporaryDirectory() as folder, workers():
        dataset = open_dataset(write_labelled_rows(Path(folder) / "rows.zarr", n))
        labels = np.asarray(dataset.y).astype(np.float64)
        for penalty in (1e-3, 1e-5, 1e-6):
            ours = _machine(n, penalty, "logistic").fit(dataset)
            Z, C = ours.features_.transform(np.asarray(dataset.X)), ours.C
            started = time.perf_counter()
            seconds, objective, iterations = 0.0, np.inf, 8
            while objective > ours.report_["primal"] * (1 + 1e-6) and iterations <= 2048:
                started = time.perf_counter()
                theirs = LogisticRegression(C=C, tol=0.0, max_iter=iterations).fit(Z, labels)
                seconds = time.perf_counter() - started
                w = theirs.coef_[0]
                f = Z @ w + theirs.intercept_[0]
                objective = C * Logistic().value(f, labels).sum() + 0.5 * w @ w
                iterations = int(iterations * 1.5)
            yield {
                "penalty": penalty,
                "asked": "speedup >= 2" if penalty < 1e-4 else "reported",
                "speedup": seconds / ours.report_["seconds"],
                "seconds": ours.report_["seconds"],
                "reference_seconds": seconds,
                "objective_ratio": ours.report_["primal"] / objective,
            }


BENCHMARKS = {
    "likelihood_sweeps": likelihood_sweeps,
    "against_logistic_regression": against_logistic_regression,
}
