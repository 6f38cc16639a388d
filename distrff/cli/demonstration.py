"""What `distrff quickstart` does: rows, plan, fit, scores, model, report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import zarr
from dask.system import CPU_COUNT
from distributed.system import MEMORY_LIMIT

from distrff.cli.cluster import workers_of
from distrff.cli.report_file import write_report
from distrff.cluster import memory_limit_bytes
from distrff.data.dataset import Dataset
from distrff.data.open import open_dataset
from distrff.estimators.machine import score_sums
from distrff.estimators.ridge import KernelRidge
from distrff.features.fourier import FourierFeatures
from distrff.features.linear import LinearFeatures
from distrff.ingest.known_rows import write_known_rows
from distrff.ingest.known_truth import KnownTruth
from distrff.kernels import Gaussian

Say = Callable[[str], None]

FILES = {"train": "train.zarr", "test": "test.zarr", "model": "model.zarr", "report": "report.html"}

_MOST_WORKERS = 8  # a million rows are sixteen segments, two each
_WORKER_BYTES = 2.5e9  # with all folds in a task, and room for other sizes than the defaults
_MOST_HELD_OUT = 100_000


@dataclass(frozen=True)
class Settings:
    """What the command line asks for."""

    n_rows: int
    n_columns: int
    n_components: int
    n_workers: int
    memory_limit: str | None
    seed: int

    @property
    def n_held_out(self) -> int:
        return min(_MOST_HELD_OUT, max(10_000, self.n_rows // 10))

    def check(self) -> None:
        """Raise InputError for what would fail later."""
        self.features().check_parameters()
        memory_limit_bytes(self.memory_limit, self.n_workers)

    def features(self) -> FourierFeatures:
        return FourierFeatures(Gaussian("auto"), self.n_components)

    def kernel_ridge(self) -> KernelRidge:
        return KernelRidge(self.features(), alpha="cv", scale="standard", random_state=self.seed)

    def linear_ridge(self) -> KernelRidge:
        return KernelRidge(LinearFeatures(), alpha="cv", scale="standard", random_state=self.seed)


def local_workers() -> int:
    """Return how many workers this machine's cores and memory are good for."""
    return max(1, min(CPU_COUNT, _MOST_WORKERS, int(MEMORY_LIMIT / _WORKER_BYTES)))


def demonstrate(settings: Settings, folder: Path, shown: Path, say: Say) -> dict[str, Any]:
    """Fill `folder` with data, model and report, and return what came out.

    Parameters
    ----------
    settings : Settings
    folder : Path
        Empty.
    shown : Path
        Where the folder will be in the end, for texts.
    say : callable
        Told what is being done.
    """
    truth = KnownTruth(settings.n_columns, seed=settings.seed)
    zarr.create_group(folder, zarr_format=3, attributes={"distrff": {"kind": "quickstart"}})
    say(
        f"Writing {settings.n_rows:,} rows of {settings.n_columns} columns, "
        f"and {settings.n_held_out:,} to be held out"
    )
    write_known_rows(folder / FILES["train"], truth, "train", settings.n_rows)
    least = write_known_rows(folder / FILES["test"], truth, "test", settings.n_held_out)
    train, test = (
        replace(open_dataset(folder / FILES[name]), source=str(shown / FILES[name]))
        for name in ("train", "test")
    )
    say(f"Starting {settings.n_workers} worker(s)")
    with workers_of(
        {"scheduler": "local", "workers": settings.n_workers, "memory_limit": settings.memory_limit}
    ):
        machine = _fitted(settings, train, say)
        say("Fitting linear ridge, for comparison")
        linear = settings.linear_ridge().fit(train)
        say("Scoring both on the held-out rows")
        scores = _scores(machine, linear, test, least)
    machine.save(str(folder / FILES["model"]))
    page = _page(settings, truth, machine, scores)
    write_report(page, folder / FILES["report"])
    return _result(settings, truth, machine, scores, shown)


def _fitted(settings: Settings, train: Dataset, say: Say) -> KernelRidge:
    machine = settings.kernel_ridge()
    say("Planning kernel ridge")
    say(f"The plan is\n{machine.plan(train)}")
    say("Fitting kernel ridge: the kernel's width, then alpha by cross-validation")
    machine.fit(train)
    r = machine.report_
    say(f"Fitted in {r['seconds']:.1f} s: length scale {r['length_scale']:.3g}, alpha {r['alpha']:.3g}")
    return machine


def _scores(machine: KernelRidge, linear: KernelRidge, test: Dataset, least: float) -> dict[str, Any]:
    """Return RMSE and R² of the true function, whose RMSE is `least`, and of both machines."""
    sums = score_sums(machine.model_, test)
    variance = float(sums.targets.deviations[0]) / sums.targets.weight
    scores = {"best_possible": {"rmse": least, "r2": 1.0 - least**2 / variance}}
    for name, found in (
        ("kernel_ridge", sums.regression_scores()),
        ("linear_ridge", score_sums(linear.model_, test).regression_scores()),
    ):
        scores[name] = {key: found[key] for key in ("rmse", "r2")}
    return scores


def _page(settings: Settings, truth: KnownTruth, machine: KernelRidge, scores: dict[str, Any]) -> str:
    least = scores["best_possible"]["rmse"]
    names = {
        "best_possible": "best possible: the true function",
        "kernel_ridge": f"kernel ridge, {settings.n_components:,} features",
        "linear_ridge": "linear ridge",
    }
    rows = [
        [
            names[name],
            f"{score['rmse']:.4f}",
            f"{score['r2']:.4f}",
            "" if name == "best_possible" else f"{score['rmse'] / least - 1:+.1%}",
        ]
        for name, score in scores.items()
    ]
    facts = [
        ["data", "made up: a random smooth function of four hidden factors, plus noise"],
        ["standard deviation", f"of the function 1, of the noise {truth.noise:g}"],
        ["held-out rows", f"{settings.n_held_out:,}"],
    ]
    return machine.report_.to_html(
        title="distrff quickstart",
        facts=facts,
        scores={"columns": ["", "RMSE", "R²", "RMSE above best"], "rows": rows},
    )


def _result(
    settings: Settings,
    truth: KnownTruth,
    machine: KernelRidge,
    scores: dict[str, Any],
    shown: Path,
) -> dict[str, Any]:
    report = machine.report_
    copied = (
        *(
            "n_samples",
            "n_columns",
            "n_components",
            "length_scale",
            "alpha",
            "cv_score",
            "n_sweeps",
            "status",
        ),
        *("sweep_seconds", "planned_peak_bytes", "measured_peak_bytes", "workers"),
    )
    return {
        **{key: report[key] for key in copied},
        "n_held_out": settings.n_held_out,
        "noise": truth.noise,
        "scores": scores,
        "fit_seconds": report["seconds"],
        "predicted_seconds": report["plan"]["seconds"],
        **{key: str(shown / name) for key, name in FILES.items()},
    }
