"""This code against the commit that it is measured from, in alternation, each fit in a process of its own."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from distrff.io.open import open_dataset
from tests.benchmarks import spine
from tests.benchmarks.book.environments import BASELINE
from tests.benchmarks.book.lines import Bound, Line, Result, Setting, ratio, spread
from tests.benchmarks.book.sweeps import missing, of_workload
from tests.benchmarks.measuring import alternate, compared, workers, write_rows


def _pairs(
    name: str, files: tuple[str, ...], error: tuple[str, Bound | None, str], n_pairs: int, setting: Setting
) -> Iterator[Result]:
    """Yield the ratio of the seconds, and the test error by its title, bound and unit."""
    place = setting.place("baseline")
    reason = missing(setting, *files) if files else None
    if reason or place.python is None:
        yield {"skipped": reason or place.reason}
        return
    python = place.python
    runs = [
        (of_workload(name, setting), of_workload(name, setting, python))
        for _ in range(setting.repeats(n_pairs))
    ]
    timed = compared([(ours["seconds"], theirs["seconds"]) for ours, theirs in runs])
    memory = spread([ours["peak_bytes"] / theirs["peak_bytes"] for ours, theirs in runs])["reached"]
    yield {**ratio(timed), "memory": memory}
    yield {
        "title": error[0],
        "asked": error[1],
        "unit": error[2],
        **spread([ours["error"] for ours, _ in runs]),
        "reference_error": spread([theirs["error"] for _, theirs in runs])["reached"],
    }


def _alpha_by_cv(setting: Setting) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder, workers():
        dataset = open_dataset(
            write_rows(Path(folder) / "rows.zarr", setting.rows(1_000_000), spine.N_COLUMNS)
        )
        features = spine.features_of_rows().set_params(n_components=setting.components(spine.N_COMPONENTS))

        def fit(alpha: object) -> None:
            spine.model_of(alpha).set_params(features=features).fit(dataset)

        fit("cv"), fit(1.0)
        timed = alternate(lambda: fit("cv"), lambda: fit(1.0), repeats=setting.repeats(3))
    yield {"n_rows": dataset.n_rows, **ratio(timed)}


MNIST_ERROR = ("MNIST, Nyström 8192, squared hinge: test error", Bound(high=0.017), "%")
KIN40K_ERROR = (
    "kin40k, split 0, Nyström 8192, a width a column: RMSE (exact GP with learnt widths: 0.080, published)",
    Bound(high=0.09),
    "",
)
LINES = (
    Line(
        "mnist",
        f"MNIST, Nyström 8192: time of commit {BASELINE[:7]}",
        partial(_pairs, "mnist", ("mnist.npz",), MNIST_ERROR, 1),  # ten minutes a pair
        16,
        Bound(high=1 / 3),
        environments=("baseline",),
    ),
    Line(
        "kin40k",
        f"kin40k, Nyström 8192: time of commit {BASELINE[:7]}",
        partial(_pairs, "kin40k", ("kin40k.csv.gz", "kin40k_test_mask.csv.gz"), KIN40K_ERROR, 2),
        13,
        Bound(high=0.7),
        environments=("baseline",),
    ),
    Line(
        "alpha_cv_before",
        f"25 penalties and 5 folds, 1M rows in memory: time of commit {BASELINE[:7]}",
        partial(_pairs, "alpha_cv", (), ("the same: error of the fitted rows", None, ""), 1),
        3,
        environments=("baseline",),
    ),
    Line(
        "alpha_cv",
        "25 penalties and 5 folds, 1M rows, D = 2048: time of one penalty",
        _alpha_by_cv,
        5,
        Bound(high=1.10),
    ),
)
