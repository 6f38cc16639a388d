"""Figures beside a known peer: accuracies of published or exact models, and whole fits by other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tests.benchmarks import accuracy, spine
from tests.benchmarks.book.lines import Bound, Line, Result, Setting


def _figure(
    benchmark: Callable[[float], Iterator[Result]], key: str, kept: tuple[str, ...], setting: Setting
) -> Iterator[Result]:
    for found in benchmark(setting.scale):
        if "skipped" in found:
            yield {"skipped": found["skipped"]}
        else:
            spread = found.get("spread")
            low_high = {"low": 1 / spread[1], "high": 1 / spread[0]} if spread else {}
            yield {"reached": found[key], **low_high, **{name: found[name] for name in kept}}


_RACE = ("seconds", "reference_seconds", "memory_ratio", "n_rows")
LINES = (
    Line(
        "adult",
        "Adult (a9a), ridge on 500 Fourier features: error (exact RBF SVC: 15.0 %)",
        partial(_figure, accuracy.adult, "error", ("seconds",)),
        1,
        Bound(high=0.15),
        "%",
    ),
    Line(
        "cpu",
        "CPU (cpu_act), ridge on 1024 Nyström features: relative error (exact kernel ridge: 3.6 %)",
        partial(_figure, accuracy.cpu, "error", ("seconds",)),
        3,
        Bound(high=0.037),
        "%",
    ),
    Line(
        "digits",
        "digits 0 to 8, squared hinge, 500 Fourier features: correct (exact RBF SVM: 97.2 %, linear: 93.4 %)",
        partial(_figure, accuracy.digits, "accuracy", ("seconds",)),
        1,
        Bound(low=0.954),
        "%",
    ),
    Line(
        "dask_array",
        "Fourier 2048, 500,000 rows: times as fast as dask.array by hand",
        partial(_figure, spine.against_dask_array, "speedup", _RACE),
        4,
        Bound(low=1.3),
    ),
    Line(
        "scikit_learn",
        "Fourier 2048, 200,000 rows: times as fast as RBFSampler + Ridge in memory",
        partial(_figure, spine.against_scikit_learn, "speedup", _RACE),
        4,
        Bound(low=2.5),
    ),
)
