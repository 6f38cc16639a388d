"""Random binning with learned widths on covtype: the error on rows that no choice has seen, and the time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np

from distrff.estimators.ridge import KernelRidgeClassifier
from distrff.features.bandwidth import PILOT_GRIDS
from distrff.features.binning import RandomBinningFeatures
from distrff.kernels.stationary import Laplacian
from tests.benchmarks.clusters import workers
from tests.benchmarks.labelled_rows import COVTYPE

N_GRIDS, N_SPLITS = 100, 5
_TRAINING_SHARE = 74_000 / 92_962
_MOST = 0.085
_ALPHAS = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4)
_TOL = 1e-2


def covtype_by_binning(scale: float) -> Iterator[dict[str, Any]]:
    """Test errors of five splits; widths and alpha are chosen on the training rows."""
    if COVTYPE not in os.environ:
        yield {"skipped": f"{COVTYPE} names no file"}
        return
    errors = []
    with workers():
        for split in range(N_SPLITS):
            found = _fitted(scale, split, N_GRIDS)
            errors.append(found["error"])
            yield found
    yield {"asked": f"median <= {_MOST}", "median": median(errors), "errors": errors}


def covtype_by_grids(scale: float) -> Iterator[dict[str, Any]]:
    """The error and the seconds of one split by the number of grids."""
    if COVTYPE not in os.environ:
        yield {"skipped": f"{COVTYPE} names no file"}
        return
    with workers():
        for n_grids in (25, 50, 100, 200, 400):
            yield _fitted(scale, 0, n_grids)


def _fitted(scale: float, split: int, n_grids: int) -> dict[str, Any]:
    """Widths from a sample of the training rows, alpha from a quarter of rows and grids, then all of them."""
    X, y, X_test, y_test = _split(scale, split)
    started = time.perf_counter()
    learned = RandomBinningFeatures(Laplacian("ard"), PILOT_GRIDS, random_state=0).fit(X, y.astype(str))
    widths_known = time.perf_counter()
    features = RandomBinningFeatures(learned.kernel_, n_grids)
    some = slice(len(X) // 4)  # alpha is the noise in units of the kernel, however many rows there are
    few_grids = RandomBinningFeatures(learned.kernel_, max(1, n_grids // 4))
    pilot = KernelRidgeClassifier(few_grids, "cv", alphas=_ALPHAS, cv=2, tol=_TOL, random_state=0)
    alpha = pilot.fit(X[some], y[some]).alpha_
    alpha_known = time.perf_counter()
    machine = KernelRidgeClassifier(features, alpha, tol=_TOL, random_state=0).fit(X, y)
    fitted = time.perf_counter()
    return {
        "split": split,
        "n_grids": n_grids,
        "error": float(np.mean(machine.predict(X_test) != y_test)),
        "seconds": fitted - started,
        "seconds_for_widths": widths_known - started,
        "seconds_for_alpha": alpha_known - widths_known,
        "n_bins": machine.report_["n_components"],
        "alpha": alpha,
        **{name: learned.length_scale_search_[name] for name in ("exponent", "size_factor", "shrinking")},
        "sweeps": machine.report_["n_sweeps"],
    }


def _split(scale: float, split: int) -> tuple[np.ndarray, ...]:
    """Return training rows and labels, then those of the test, without columns constant in training."""
    import pandas as pd

    frame = pd.read_parquet(os.environ[COVTYPE])
    order = np.random.default_rng(split).permutation(len(frame))
    order = order[: int(scale * len(order))]
    X, y = frame.drop(columns="Cover_Type").to_numpy(np.float32), frame["Cover_Type"].to_numpy()
    train, test = np.split(order, [round(_TRAINING_SHARE * len(order))])
    moving = np.ptp(X[train], axis=0) > 0
    return X[train][:, moving], y[train], X[test][:, moving], y[test]


BENCHMARKS = {"covtype_by_binning": covtype_by_binning, "covtype_by_grids": covtype_by_grids}
