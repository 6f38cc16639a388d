"""The accuracy of the examples on real data, every choice made on the rows to be fitted alone.

`DISTRFF_DATA` names the folder of their files; what is missing there is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

from distrff.features.nystroem import NystroemFeatures
from distrff.kernels.stationary import Gaussian
from examples import digits as handwritten
from examples import table1
from tests.benchmarks.measuring import workers

DATA = "DISTRFF_DATA"
_SEEDS = 10

_Benchmark = Callable[[float], Iterator[dict[str, Any]]]


def _with_files(*names: str) -> Callable[[Callable[..., Any]], _Benchmark]:
    """Make a benchmark of a function of a path, that of a folder with these files, and the scale."""

    def decorated(function: Callable[[Path, float], Iterator[dict[str, Any]]]) -> _Benchmark:
        @wraps(function)
        def benchmark(scale: float) -> Iterator[dict[str, Any]]:
            place = Path(os.environ.get(DATA, os.devnull))
            missing = [place / name for name in names if not (place / name).is_file()]
            if missing:
                yield {"skipped": f"{' and '.join(map(str, missing))} not there; {DATA} names the place"}
                return
            with workers():
                yield from function(place, scale)

        return benchmark

    return decorated


@_with_files("a9a.gz", "a9a.t.gz")
def adult(folder: Path, scale: float) -> Iterator[dict[str, Any]]:
    """Ridge on 500 Fourier features, as in the example of Table 1: median of ten seeds."""
    result = table1.fitted(table1.adult(folder), table1.fourier, _n_seeds(scale))
    yield {"asked": "median error <= 0.150", "error": result.error, "seconds": result.seconds}


@_with_files("cpu_act.tsv.gz")
def cpu(folder: Path, scale: float) -> Iterator[dict[str, Any]]:
    """Ridge on 1024 Nyström features, learned widths: median of ten seeds of the error ‖f − y‖/‖y‖."""
    result = table1.fitted(
        table1.cpu(folder),
        lambda task, seed: NystroemFeatures(Gaussian("ard"), 1024, random_state=seed),
        _n_seeds(scale),
    )
    yield {"asked": "median error <= 0.037", "error": result.error, "seconds": result.seconds}


@_with_files()
def digits(folder: Path, scale: float) -> Iterator[dict[str, Any]]:
    """The squared hinge on 500 Fourier features, as in the example: median of ten seeds."""
    result = handwritten.approximate(handwritten.MAPS["Fourier"], 500, _n_seeds(scale), handwritten.halves())
    yield {"asked": "median accuracy >= 0.954", "accuracy": result.accuracy, "seconds": result.seconds}


def _n_seeds(scale: float) -> int:
    return max(1, int(_SEEDS * scale))


BENCHMARKS = {benchmark.__name__: benchmark for benchmark in (adult, cpu, digits)}
