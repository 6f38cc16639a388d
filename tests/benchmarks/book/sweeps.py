"""Passes over the rows against the best that the machine could do: heavy, light, and with kept features."""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from distrff import KernelLikelihoodClassifier, open_dataset
from distrff.cli.plan import arithmetic_rates
from distrff.errors import PlanRefused
from tests.benchmarks import spine
from tests.benchmarks.book import workloads
from tests.benchmarks.book.environments import ROOT
from tests.benchmarks.book.lines import Bound, Line, Result, Setting, ratio, spread
from tests.benchmarks.book.processes import result_and_peak
from tests.benchmarks.measuring import alternate, workers, write_rows, write_table

KEPT = "the models of this code have no keep_features"
_RATE_SECONDS = 1.0
_READ_BYTES = 2**28  # of each worker at the same time, far more than caches hold
_PENALTY = 1e-5
_SWEEPS, _SWEEPS_OF_MNIST = 8, 5
_MOST_SECONDS = 3600.0


def can_keep() -> bool:
    """Whether the models of this code can be told to keep their features."""
    return "keep_features" in KernelLikelihoodClassifier().get_params()


def _gram(setting: Setting) -> Iterator[Result]:
    n = setting.rows(500_000)
    for kind, write in (("Zarr", write_rows), ("Parquet", write_table)):
        with tempfile.TemporaryDirectory() as folder, workers() as client:
            path = write(Path(folder) / f"rows.{kind.lower()}", n, spine.N_COLUMNS)
            dataset = open_dataset(path, target=None if kind == "Zarr" else "y")
            for dtype in ("float32", "float64"):
                spine.sweep(dataset, dtype)
                spine.products_of_workers(client, n, dtype, 1)
                timed = alternate(
                    lambda dtype=dtype, dataset=dataset: spine.sweep(dataset, dtype),
                    lambda dtype=dtype, client=client: spine.products_of_workers(client, n, dtype, None),
                    repeats=setting.repeats(3),
                )
                yield {"case": f"{dtype}, {kind}", "n_rows": n, **ratio(timed)}


def _light(setting: Setting) -> Iterator[Result]:
    n, n_components = setting.rows(2_000_000), setting.components(spine.N_COMPONENTS)
    yield {"case": "features made again", **_light_sweep(n, n_components, is_kept=False)}
    if not can_keep():
        yield {"case": "features kept", "skipped": KEPT}
        return
    while True:
        try:
            yield {"case": f"features kept, {n:,} rows", **_light_sweep(n, n_components, is_kept=True)}
        except PlanRefused:  # there is no room for the features of all rows on this machine
            n //= 2
        else:
            return


def _light_sweep(n: int, n_components: int, *, is_kept: bool) -> Result:
    features = spine.features_of_rows().set_params(n_components=n_components)
    model = KernelLikelihoodClassifier(
        features, 1 / (n * _PENALTY), tol=1e-9, max_sweeps=_SWEEPS, random_state=0
    )
    with tempfile.TemporaryDirectory() as folder, workers() as client:
        path = write_rows(Path(folder) / "rows.zarr", n, spine.N_COLUMNS, is_labelled=True)
        report = workloads.keeping(model, is_kept).fit(open_dataset(path)).report_
        limit = light_limit(client, n, n_components, is_kept)
    pairs = zip(report["sweep_labels"], report["sweep_seconds"], strict=True)
    light = [seconds for label, seconds in pairs if label == "margins"]
    light = light[1:] or light  # the first sweep makes what is kept
    shares = [limit["seconds"] / seconds for seconds in light]
    return {"n_rows": n, **spread(shares), "seconds": float(np.median(light)), "limit": limit}


def light_limit(client: Client, n_rows: int, n_components: int, is_kept: bool) -> Result:
    """Return the least seconds of a light sweep: the larger of bytes/bandwidth and flops/rate.

    Rates are those of all workers at the same time, each with one thread. Kept features are read; others are
    made: products of rows and frequencies, a frequency a pair of features, and a cosine or sine a feature.
    """
    rates = client.run(arithmetic_rates, _RATE_SECONDS).values()
    flops, cosines = (sum(rate[key]["float32"] for rate in rates) for key in ("flops", "cosines"))
    bandwidth = sum(client.run(bytes_a_second, _READ_BYTES).values())
    wide = n_components if is_kept else spine.N_COLUMNS
    reading = 4.0 * n_rows * wide / bandwidth
    arithmetic = 4.0 * n_rows * n_components / flops  # once forward, once back
    if not is_kept:
        arithmetic += n_rows * n_components * (spine.N_COLUMNS / flops + 1 / cosines)
    return {
        "seconds": max(reading, arithmetic),
        "reading": reading,
        "arithmetic": arithmetic,
        "bytes_per_second": bandwidth,
        "flops": flops,
        "cosines": cosines,
    }


def bytes_a_second(n_bytes: int) -> float:
    """Return how fast one thread of this process reads memory: the best of three products with a vector."""
    Z = np.ones((n_bytes // 4096, 1024), np.float32)
    w = np.ones(1024, np.float32)
    best = np.inf
    for _ in range(3):
        started = time.perf_counter()
        Z @ w
        best = min(best, time.perf_counter() - started)
    return Z.nbytes / best


def of_workload(name: str, setting: Setting, python: str = sys.executable, **sizes: Any) -> dict[str, Any]:
    """Return what a workload measures in an environment, this checkout's code in that of the tests."""
    words = json.dumps({"scale": setting.scale, "data": setting.data, **sizes})
    command = (python, "-P", str(Path(workloads.__file__)), name, words)
    return result_and_peak(command, _MOST_SECONDS, str(ROOT) if python == sys.executable else None)


def missing(setting: Setting, *names: str) -> str | None:
    """Return why files of the data folder cannot be read, None if they are there."""
    absent = [name for name in names if not setting.data or not (Path(setting.data) / name).is_file()]
    return f"{' and '.join(absent)} not in the folder that DISTRFF_DATA names" if absent else None


def _kept_sweep(setting: Setting) -> Iterator[Result]:
    reason = missing(setting, "mnist.npz") or (None if can_keep() else KEPT)
    if reason:
        yield {"skipped": reason}
        return
    ratios, seconds = [], []
    for _ in range(setting.repeats(2)):
        again, kept = (
            of_workload("mnist", setting, keep=keep, max_sweeps=_SWEEPS_OF_MNIST)["light_sweep_seconds"]
            for keep in (False, True)
        )
        ratios.append(again / kept)
        seconds.append((kept, again))
    kept, again = np.median(seconds, axis=0)
    yield {**spread(ratios), "seconds": float(kept), "reference_seconds": float(again)}


LINES = (
    Line(
        "gram", "Gram sweep, 500,000 rows, D = 2048: time of the bare products", _gram, 11, Bound(high=1.12)
    ),
    Line(
        "light",
        "light sweep, 2M rows, D = 2048, 50 columns: share of the limit",
        _light,
        3,
        Bound(low=0.7),
        "",
    ),
    Line(
        "kept_sweep",
        "MNIST, Nyström 8192: sweeps with kept features, times as fast",
        _kept_sweep,
        12,
        Bound(low=8),
    ),
)
