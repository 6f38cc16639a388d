"""Equispaced features on points of the plane: `python -m tests.benchmarks plane`.

`DISTRFF_DATA` names the folder of public files; without it the terrain is left out. Other points are made.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import distrff as drf
from distrff.engine.tasks import resident_bytes
from distrff.kernels.stationary import Gaussian
from tests.benchmarks.measuring import alternate, peaks_above, workers

_TERRAIN = "srtm_terrain.parquet"
_CHUNK_ROWS = 2**20


def terrain(scale: float) -> Iterator[dict[str, Any]]:
    """Yield accuracy and time beside 2048 random features.

    A tenth of the rows is held out by a hash; the rest is fitted on two workers, with everything chosen.
    """
    data = os.environ.get("DISTRFF_DATA")
    if data is None or not (Path(data) / _TERRAIN).exists():
        yield {"left_out": f"{_TERRAIN} is not in DISTRFF_DATA"}
        return
    with tempfile.TemporaryDirectory() as folder, workers() as client:
        rows = str(Path(folder) / "t.zarr")
        drf.convert(str(Path(data) / _TERRAIN), rows, target="elevation_m", shuffle=0, test_fraction=0.1)
        client.run(_warm)
        models = {
            "equispaced": drf.KernelRidge(drf.EquispacedFourierFeatures()),
            "fourier": drf.KernelRidge(drf.FourierFeatures(Gaussian("auto"), 2048)),
        }

        def fit(name: str) -> None:
            models[name].fit(drf.open_dataset(rows))

        times = alternate(lambda: fit("equispaced"), lambda: fit("fourier"), repeats=1)
        scores = {name: model.score(drf.open_dataset(rows + "/test")) for name, model in models.items()}
        model = models["equispaced"]
        yield {
            "r2": scores["equispaced"],
            "asked": 0.989,
            "r2_of_random_features": scores["fourier"],
            "kernel": repr(model.features_.kernel_),
            "alpha": model.alpha_,
        }
        yield {"time_ratio": times["ratio"], "asked": 0.6, **times, "phases": dict(model.report_["phases"])}


def _warm() -> None:
    """Import what a fit uses."""
    import distrff.estimators.ridge  # noqa: F401


# Made points: a field of a few hundred waves of the plane, denser on one side, with noise.

_N_WAVES, _NOISE = 300, 0.1


def _write_points(path: Path, n_rows: int) -> None:
    group = zarr.create_group(path)
    X = group.create_array("X", shape=(n_rows, 2), chunks=(_CHUNK_ROWS, 2), dtype="float32")
    y = group.create_array("y", shape=(n_rows,), chunks=(_CHUNK_ROWS,), dtype="float32")
    rng = np.random.default_rng(0)
    side = 1024  # the field is drawn once, and points take the values of its cells
    axis = np.linspace(0, 2 * np.pi, side)
    K = rng.normal(scale=12, size=(2, _N_WAVES))
    C = rng.normal(size=_N_WAVES) * np.exp(1j * rng.uniform(0, 2 * np.pi, _N_WAVES))
    field = ((np.exp(1j * np.outer(axis, K[0])) * C) @ np.exp(1j * np.outer(K[1], axis))).real
    field /= field.std()
    for start in range(0, n_rows, _CHUNK_ROWS):
        n = min(_CHUNK_ROWS, n_rows - start)
        points = rng.random((n, 2), dtype=np.float32)
        points[: n // 2, 0] **= 2
        cells = np.minimum((points * side).astype(np.int64), side - 1)
        X[start : start + n] = points
        y[start : start + n] = field[cells[:, 0], cells[:, 1]] + _NOISE * rng.standard_normal(n, np.float32)


def _made(n_rows: int, n_components: int | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "points.zarr"
        _write_points(path, n_rows)
        with workers() as client:
            client.run(_warm)
            idle = client.run(resident_bytes)
            started = time.perf_counter()
            model = drf.KernelRidge(drf.EquispacedFourierFeatures(n_components=n_components))
            model.fit(drf.open_dataset(str(path)))
            seconds = time.perf_counter() - started
            peak = peaks_above(client, idle)
            return {
                "n_rows": n_rows,
                "seconds": seconds,
                "phases": dict(model.report_["phases"]),
                "worker_peak_mb": peak / 1e6,
                "planned_mb": model.plan_.worker_peak_bytes / 1e6,
                "kernel": repr(model.features_.kernel_),
                "features": model.features_.specification_.n_features,
                "rmse": float(np.sqrt(model.cv_score_)),
            }


def growth(scale: float) -> Iterator[dict[str, Any]]:
    """Yield seconds and memory of fits of the same lattice to 4, 8 and 16 million rows."""
    for n_rows in (4_000_000, 8_000_000, 16_000_000):
        yield _made(int(n_rows * scale), 2**16)


def many(scale: float) -> Iterator[dict[str, Any]]:
    """Yield seconds and memory of a fit to 10⁸ rows.

    Greengard, Rachh and Barnett 2022 report 10⁹ points in the plane, Matérn 3/2 with given widths, in about
    two minutes on a desktop computer, all rows in memory.
    """
    yield _made(int(1e8 * scale), None)


BENCHMARKS = {"terrain": terrain, "growth": growth, "many": many}
