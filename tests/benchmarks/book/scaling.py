"""Time against rows, features and workers, memory against rows, and the exponents that fit them."""

import gc
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distrff import KernelRidge, open_dataset
from distrff.io.dataset import Dataset
from tests.benchmarks import spine
from tests.benchmarks.book.lines import Bound, Line, Result, Setting, spread
from tests.benchmarks.measuring import (
    N_WORKERS,
    import_everything,
    peaks_above,
    seconds_of,
    workers,
    write_rows,
)

_ROWS = (250_000, 500_000, 1_000_000, 2_000_000)
_COMPONENTS = (512, 1024, 2048, 4096)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the b of the power law a·sizes^b that is nearest in logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def _exponents(sizes: Sequence[float], rounds: Sequence[Sequence[float]]) -> Result:
    """Return that of the medians, and the spread of those of each round."""
    each = [exponent(sizes, values) for values in rounds]
    medians = np.median(rounds, axis=0)
    return {
        **spread(each),
        "reached": exponent(sizes, medians),
        "sizes": [float(size) for size in sizes],
        "values": [float(value) for value in medians],
    }


def _model(setting: Setting, n_components: int = spine.N_COMPONENTS) -> KernelRidge:
    features = spine.features_of_rows().set_params(n_components=setting.components(n_components))
    return KernelRidge(features, alpha=1.0, random_state=0)


def _rounds(setting: Setting, fits: Sequence[Any], first: Any) -> list[list[float]]:
    """Return seconds of all fits in turn, some times over.

    The fit `first` is not timed: it pays for imports and fresh memory. Nor is the collection of garbage that
    is due after so many imports: .14 s, which would otherwise come in some later fit.
    """
    first()
    gc.collect()
    return [[seconds_of(fit) for fit in fits] for _ in range(setting.repeats(2))]


def _data(folder: str, setting: Setting, n: int) -> Dataset:
    return open_dataset(write_rows(Path(folder) / f"{n}.zarr", setting.rows(n), spine.N_COLUMNS))


def _by_rows(setting: Setting) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder, workers():
        data = [_data(folder, setting, n) for n in _ROWS]
        fits = [lambda rows=rows: _model(setting).fit(rows) for rows in data]
        rounds = _rounds(setting, fits, fits[0])  # a fit of more rows takes no more memory
        yield {"axis": "rows", **_exponents([rows.n_rows for rows in data], rounds)}


def _by_components(setting: Setting) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder, workers():
        rows = _data(folder, setting, 200_000)
        models = [_model(setting, n) for n in _COMPONENTS]
        fits = [lambda model=model: model.fit(rows) for model in models]
        sizes = [model.features.n_components for model in models]
        yield {"axis": "features", **_exponents(sizes, _rounds(setting, fits, fits[-1]))}


def _by_workers(setting: Setting) -> Iterator[Result]:
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    sizes = [2**k for k in range(n_cores.bit_length()) if 2**k <= n_cores]
    if len(sizes) < 2:
        yield {"skipped": "one core only"}
        return
    rounds: list[list[float]] = [[] for _ in range(setting.repeats(2))]
    with tempfile.TemporaryDirectory() as folder:
        rows = _data(folder, setting, 500_000)
        for n_workers in sizes:
            with workers(n_workers):
                _model(setting).fit(rows)
                for seconds in rounds:
                    seconds.append(seconds_of(lambda: _model(setting).fit(rows)))
    yield {"axis": "workers", **_exponents(sizes, rounds)}


def _memory(setting: Setting) -> Iterator[Result]:
    """Peaks of fresh workers above their idle resident sets."""
    rounds: list[list[float]] = []
    with tempfile.TemporaryDirectory() as folder:
        data = [_data(folder, setting, n) for n in _ROWS]
        for _ in range(setting.repeats(2)):
            peaks = []
            for rows in data:
                with workers(N_WORKERS) as client:
                    idle = client.run(import_everything)
                    _model(setting).fit(rows)
                    peaks.append(float(max(1, peaks_above(client, idle))))
            rounds.append(peaks)
    yield {"axis": "memory", **_exponents([rows.n_rows for rows in data], rounds)}


LINES = (
    Line("time_by_rows", "time against n: the exponent", _by_rows, 5, Bound(0.95, 1.05), ""),
    Line("time_by_features", "time against D: the exponent", _by_components, 2, None, ""),
    Line("time_by_workers", "time against workers: the exponent", _by_workers, 3, None, ""),
    Line("memory_by_rows", "memory of a worker against n: the exponent", _memory, 6, Bound(-0.05, 0.05), ""),
)
