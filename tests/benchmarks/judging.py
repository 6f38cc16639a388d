"""What judging a model takes: `python -m tests.benchmarks judging`.

Ten million rows are evaluated, by a model of few features, so that the sums are what costs: memory of a
worker above its idle resident set, and the time beside that of the predictions alone.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import distrff as drf
from distrff.engine.tasks import resident_bytes
from tests.benchmarks.measuring import CHUNK_ROWS, peaks_above, seconds_of, workers

_ROWS, _COLUMNS = 10_000_000, 4


def evaluation(scale: float) -> Iterator[dict[str, Any]]:
    """Evaluate numbers and classes of ten million stored rows, on two workers."""
    n = round(_ROWS * scale)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("numbers", "classes"):
            data = _stored(Path(folder) / kind, n, kind)
            features = drf.FourierFeatures(drf.Gaussian(2.0), 64, random_state=0)
            few = _few(data)
            model: Any = (
                drf.KernelRidge(features, 1.0, random_state=0)
                if kind == "numbers"
                else drf.KernelLikelihoodClassifier(features, 1.0, random_state=0)
            )
            model.fit(*few)
            with workers() as client:
                drf.evaluate(model, *few)  # imports
                idle = client.run(resident_bytes)
                seconds = seconds_of(lambda data=data, model=model: drf.evaluate(model, data))
                peak = peaks_above(client, idle)
                alone = seconds_of(lambda data=data, model=model: model.predict(data.X).sum().compute())
            yield {
                "kind": kind,
                "n_rows": n,
                "peak_mb": peak / 1e6,
                "asked_peak_mb": 512,
                "seconds": seconds,
                "seconds_of_predictions": alone,
            }


def _stored(path: Path, n: int, kind: str) -> Any:
    rng = np.random.default_rng(0)
    group = zarr.open_group(str(path), mode="w")
    X = group.create_array("X", shape=(n, _COLUMNS), chunks=(CHUNK_ROWS, _COLUMNS), dtype="float32")
    y = group.create_array("y", shape=(n,), chunks=(CHUNK_ROWS,), dtype="float64")
    for start in range(0, n, 2**20):
        rows = rng.standard_normal((min(2**20, n - start), _COLUMNS)).astype(np.float32)
        values = np.sin(rows[:, 0]) + rows[:, 1] + rng.standard_t(3, len(rows))
        X[start : start + len(rows)] = rows
        y[start : start + len(rows)] = values if kind == "numbers" else values > 0
    return drf.open_dataset(str(path))


def _few(data: Any) -> tuple[np.ndarray, np.ndarray]:
    return data.X[:20_000].compute(), data.y[:20_000].compute()


BENCHMARKS = {"evaluation": evaluation}
