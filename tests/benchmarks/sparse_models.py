"""The models of classes on random binning: sweeps to a certified gap, and how near SGD comes to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from distrff.features.binning import RandomBinningFeatures
from distrff.io.arrays import as_dataset
from distrff.io.dataset import Dataset
from distrff.kernels.stationary import Laplacian
from tests.benchmarks.labelled_rows import KINDS, covtype
from tests.benchmarks.measuring import workers

PENALTIES = (1e-3, 1e-4, 1e-5)
_N_ROWS, _N_COLUMNS, _N_TERMS, _N_GRIDS = 100_000, 6, 200, 100
_COVTYPE_WIDTHS = (*(1.5 * w for w in (1, 3, 2.5, 1.5, 1.8, 1, 3, 3, 3, 1)), *(1.4,) * 44)


def sparse_models(scale: float) -> Iterator[dict[str, Any]]:
    """Light sweeps until the gap is certified to be 1e-3; then what ten epochs of SGD leave above that."""
    for source in (_made, _covtype):
        with source(scale) as data, workers():
            if data is None:
                continue
            name, dataset, features = data
            for loss, kind in KINDS.items():
                for penalty in PENALTIES:
                    C = 1 / (dataset.n_rows * penalty)
                    shared = {"data": name, "loss": loss, "penalty": penalty}
                    exact = kind(features, C, random_state=0).fit(dataset).report_
                    yield shared | _certified(exact)
                    by_sgd = kind(features, C, solver="sgd", max_sweeps=21, random_state=0)
                    yield shared | _by_sgd(by_sgd.fit(dataset).report_, exact["dual"])


def _certified(report: dict[str, Any]) -> dict[str, Any]:
    return {
        "solver": report["solver"],
        "asked": "gap <= 1e-3",
        "gap": report["duality_gap"],
        "sweeps": report["sweep_labels"].count("margins"),
        "n_features": report["n_components"],
        "seconds": report["seconds"],
    }


def _by_sgd(report: dict[str, Any], dual: float) -> dict[str, Any]:
    return {
        "solver": "sgd",
        "asked": "above <= 0.01 and epochs <= 10",
        "above": report["primal"] / dual - 1,
        "epochs": report["sweep_labels"].count("epoch"),
        "status": report["status"],
        "gap": report["duality_gap"],
        "seconds": report["seconds"],
    }


@contextmanager
def _made(scale: float) -> Iterator[tuple[str, Dataset, RandomBinningFeatures]]:
    """Yield rows X ~ N(0, I) with labels sign(f + 0.3·noise) of a smooth random f."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((int(_N_ROWS * scale), _N_COLUMNS)).astype(np.float32)
    W, b = 0.7 * rng.standard_normal((_N_COLUMNS, _N_TERMS)), rng.uniform(0, 2 * np.pi, _N_TERMS)
    f = np.sqrt(2 / _N_TERMS) * np.cos(X @ W + b).sum(axis=1)
    y = np.sign(f + 0.3 * rng.standard_normal(len(X)))
    yield "made", as_dataset(X, y), RandomBinningFeatures(Laplacian(4.0), _N_GRIDS, random_state=0)


@contextmanager
def _covtype(scale: float) -> Iterator[tuple[str, Dataset, RandomBinningFeatures] | None]:
    """Yield covtype's rows in any order, its ten quantities standardised; None where it is not at hand."""
    with covtype(scale) as data:
        if data is None:
            yield None
            return
        X, y = np.array(data.dataset.X), np.asarray(data.dataset.y)
        order = np.random.default_rng(0).permutation(len(X))
        X[:, :10] = (X[:, :10] - X[:, :10].mean(axis=0)) / X[:, :10].std(axis=0)
        features = RandomBinningFeatures(Laplacian(_COVTYPE_WIDTHS), _N_GRIDS, random_state=0)
        yield data.name, as_dataset(X[order], y[order]), features


BENCHMARKS = {"sparse_models": sparse_models}
