"""Figures beside a known peer: accuracies of published or exact models, and whole fits by other libraries."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from distrff import Gaussian, NystroemFeatures
from examples import digits, table1
from tests.benchmarks import spine
from tests.benchmarks.book.lines import Bound, Line, Result, Setting
from tests.benchmarks.book.sweeps import missing
from tests.benchmarks.measuring import workers

_SEEDS = 10


def _adult(folder: Path, n_seeds: int) -> Any:
    return table1.fitted(table1.adult(folder), table1.fourier, n_seeds)


def _cpu(folder: Path, n_seeds: int) -> Any:
    """Learned widths; the error is ‖f − y‖/‖y‖."""

    def features(task: table1.Task, seed: int) -> NystroemFeatures:
        return NystroemFeatures(Gaussian("ard"), 1024, random_state=seed)

    return table1.fitted(table1.cpu(folder), features, n_seeds)


def _digits(folder: Path, n_seeds: int) -> Any:
    return digits.approximate(digits.MAPS["Fourier"], 500, n_seeds, digits.halves())


def _median_of_seeds(
    fit: Callable[[Path, int], Any], files: tuple[str, ...], setting: Setting
) -> Iterator[Result]:
    """Fit as an example does; widths and penalties are chosen on the rows to be fitted alone."""
    if files and (reason := missing(setting, *files)):
        yield {"skipped": reason}
        return
    with workers():
        reached, seconds = fit(Path(setting.data), max(1, int(_SEEDS * setting.scale)))
    yield {"reached": reached, "seconds": seconds}


def _race(against: Callable[[float], Result], setting: Setting) -> Iterator[Result]:
    found = against(setting.scale)
    least, most = found.pop("spread", (None, None))
    yield {**found, **({} if least is None else {"low": 1 / most, "high": 1 / least})}


LINES = (
    Line(
        "adult",
        "Adult (a9a), ridge on 500 Fourier features: error (exact RBF SVC: 15.0 %)",
        partial(_median_of_seeds, _adult, ("a9a.gz", "a9a.t.gz")),
        1,
        Bound(high=0.15),
        "%",
    ),
    Line(
        "cpu",
        "CPU (cpu_act), ridge on 1024 Nyström features: relative error (exact kernel ridge: 3.6 %)",
        partial(_median_of_seeds, _cpu, ("cpu_act.tsv.gz",)),
        3,
        Bound(high=0.037),
        "%",
    ),
    Line(
        "digits",
        "digits 0 to 8, squared hinge, 500 Fourier features: correct (exact RBF SVM: 97.2 %, linear: 93.4 %)",
        partial(_median_of_seeds, _digits, ()),
        1,
        Bound(low=0.954),
        "%",
    ),
    Line(
        "dask_array",
        "Fourier 2048, 500,000 rows: times as fast as dask.array by hand",
        partial(_race, spine.against_dask_array),
        4,
        Bound(low=1.3),
    ),
    Line(
        "scikit_learn",
        "Fourier 2048, 200,000 rows: times as fast as RBFSampler + Ridge in memory",
        partial(_race, spine.against_scikit_learn),
        4,
        Bound(low=2.5),
    ),
)
