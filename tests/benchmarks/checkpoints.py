"""What a checkpoint costs: the same fits with and without one, in alternation, and its bytes."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import distrff as drf
from tests.benchmarks.measuring import N_WORKERS, workers

_RUNS = 3


def cost(scale: float) -> Iterator[dict[str, Any]]:
    """Seconds with a checkpoint over those without, the time between writes left to its default."""
    rng = np.random.default_rng(0)
    n = int(1_000_000 * scale)
    X = rng.normal(size=(n, 20)).astype(np.float32)
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
    features = drf.FourierFeatures(drf.Gaussian(4.0), 2048)
    fits: dict[str, tuple[Callable[[], Any], np.ndarray]] = {
        "Gram of five folds, D = 2048": (lambda: drf.KernelRidge(features, random_state=0), y),
        "hinge, D = 2048": (lambda: drf.KernelSVC(features, loss="hinge", random_state=0), np.sign(y)),
    }
    with workers(N_WORKERS):
        for name, (estimator, target) in fits.items():
            estimator().fit(X[:50_000], target[:50_000])
            seconds: dict[str, list[float]] = {"without": [], "with": []}
            n_bytes = 0
            for _ in range(_RUNS):
                for how in seconds:
                    folder = Path(tempfile.mkdtemp())
                    kept = {"checkpoint": str(folder / "kept")} if how == "with" else {}
                    began = time.perf_counter()
                    estimator().fit(X, target, **kept)
                    seconds[how].append(time.perf_counter() - began)
                    n_bytes = max(n_bytes, sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()))
                    shutil.rmtree(folder)
            medians = {how: float(np.median(of)) for how, of in seconds.items()}
            yield {
                "fit": name, "figure": medians["with"] / medians["without"], "asked": 1.05,
                "seconds": seconds, "bytes at the end": n_bytes,
            }  # fmt: skip


BENCHMARKS = {"checkpoint cost": cost}
