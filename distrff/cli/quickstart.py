"""`distrff quickstart`: a kernel machine on made-up rows, beside the best score that there can be."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distrff.cli.data import workers_of
from distrff.cli.options import verbosity_options
from distrff.cli.output import show
from distrff.errors import InputError
from distrff.io.storage import PAGE, Location, replacing, write_file
from distrff.utils.text import public_name

if TYPE_CHECKING:
    from distrff.cli.synthetic import KnownTruth
    from distrff.estimators.ridge import KernelRidge
    from distrff.features.fourier import FourierFeatures
    from distrff.io.dataset import Dataset

KIND = "quickstart"  # what the root of the folder says of itself


@click.command()
@click.option("--n-rows", type=click.IntRange(min=100), default=1_000_000)
@click.option("--n-columns", type=click.IntRange(min=1), default=20)
@click.option("--n-components", type=int, default=2048, help="Random features.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("distrff-quickstart"),
    help="Where data, model and report are put.",
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes. Default: one a core, at most 8.")
@click.option("--memory-limit", help="Of each worker, such as 4GB. Default: an equal share of the memory.")
@click.option("--random-state", type=click.IntRange(min=0), default=0)
@click.option("--overwrite", is_flag=True, help="Replace what an earlier quickstart left in --dir.")
@verbosity_options
def quickstart(
    n_rows: int,
    n_columns: int,
    n_components: int,
    folder: Path,
    workers: int | None,
    memory_limit: str | None,
    random_state: int,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Fit a kernel machine to made-up rows and see how good it is.

    Writes rows whose true function and noise are known, fits kernel ridge to them on a
    local cluster, and scores it on held-out rows beside the true function, which nothing
    can beat, and beside linear ridge. Data, model and a report page stay in --dir; an
    interrupted run leaves nothing.
    """
    # They take a second or two, which help and refusals need not wait for.
    may_replace = _refuse_other(folder, overwrite)
    settings = Settings(
        n_rows, n_columns, n_components, workers or local_workers(), memory_limit, random_state
    )
    settings.check()
    say = Clock(as_json)
    with replacing(Location.of(folder), overwrite=may_replace, kinds=(KIND,)) as fresh:
        result = demonstrate(settings, Path(fresh.url), folder, say)
    result["seconds"] = say.seconds
    say("Done")
    show(result, as_json=as_json, lines=_summary(result))


class Clock:
    """Tells what is being done, after how many seconds.

    Parameters
    ----------
    aside : bool
        Tell it on standard error, so that standard output holds the result alone.
    """

    def __init__(self, aside: bool) -> None:
        self._aside = aside
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def __call__(self, text: str) -> None:
        first, *rest = text.splitlines()
        lines = [f"{self.seconds:5.0f} s  {first}", *(f"{'':9}{line}" for line in rest)]
        click.echo("\n".join(lines), err=self._aside)


def _refuse_other(folder: Path, overwrite: bool) -> bool:
    """Return whether something at `folder` may be replaced; raise if what is there must stay.

    Raises
    ------
    InputError
        If it is not an earlier quickstart, or is one and `overwrite` was not given.
    """
    if not folder.exists():
        return False
    if folder.is_dir() and not any(folder.iterdir()):
        return True
    name = public_name(folder)
    if (Location.of(folder).header() or {}).get("kind") != KIND:
        raise InputError(f"{name} exists and is not from an earlier quickstart; choose another --dir")
    if not overwrite:
        raise InputError(f"{name} is from an earlier quickstart; pass --overwrite to replace it")
    return True


def _summary(result: dict[str, Any]) -> list[str]:
    """Return the scores as a small table, and where everything is."""
    best = result["scores"]["best_possible"]["rmse"]
    lines = ["", f"{'on held-out rows':24}{'RMSE':>8}{'R²':>8}"]
    for name, score in result["scores"].items():
        above = "" if name == "best_possible" else f"   {score['rmse'] / best - 1:+.1%}"
        lines.append(f"{name.replace('_', ' '):24}{score['rmse']:8.4f}{score['r2']:8.4f}{above}")
    return [*lines, "", *(f"{key:8}{result[key]}" for key in ("train", "test", "model", "report"))]


# What `distrff quickstart` does: rows, plan, fit, scores, model, report.

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
        from distrff.engine.cluster import memory_limit_bytes

        self.features().check_parameters()
        memory_limit_bytes(self.memory_limit, self.n_workers)

    def features(self) -> FourierFeatures:
        from distrff.features.fourier import FourierFeatures
        from distrff.kernels.stationary import Gaussian

        return FourierFeatures(Gaussian("auto"), self.n_components)

    def machine(self, features: Any) -> KernelRidge:
        from distrff.estimators.ridge import KernelRidge

        return KernelRidge(features, alpha="cv", scale="standard", random_state=self.seed)


def local_workers() -> int:
    """Return how many workers this machine's cores and memory are good for."""
    from dask.system import CPU_COUNT
    from distributed.system import MEMORY_LIMIT

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
    import zarr

    from distrff.cli.synthetic import KnownTruth, write_known_rows
    from distrff.features.compose import LinearFeatures
    from distrff.io.open import open_dataset

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
        linear = settings.machine(LinearFeatures()).fit(train)
        say("Scoring both on the held-out rows")
        scores = _scores(machine, linear, test, least)
    machine.save(str(folder / FILES["model"]))
    page = _page(settings, truth, machine, scores)
    write_file(page, Location.of(folder / FILES["report"]), kinds=(PAGE,))
    return _result(settings, truth, machine, scores, shown)


def _fitted(settings: Settings, train: Dataset, say: Say) -> KernelRidge:
    machine = settings.machine(settings.features())
    say("Planning kernel ridge")
    say(f"The plan is\n{machine.plan(train)}")
    say("Fitting kernel ridge: the kernel's width, then alpha by cross-validation")
    machine.fit(train)
    r = machine.report_
    say(f"Fitted in {r['seconds']:.1f} s: length scale {r['length_scale']:.3g}, alpha {r['alpha']:.3g}")
    return machine


def _scores(machine: KernelRidge, linear: KernelRidge, test: Dataset, least: float) -> dict[str, Any]:
    """Return RMSE and R² of the true function, whose RMSE is `least`, and of both models."""
    from distrff.estimators.base import score_sums

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
    settings: Settings, truth: KnownTruth, machine: KernelRidge, scores: dict[str, Any], shown: Path
) -> dict[str, Any]:
    report = machine.report_
    copied = (
        "n_samples", "n_columns", "n_components", "length_scale", "alpha", "cv_score", "n_sweeps", "status",
        "sweep_seconds", "planned_peak_bytes", "measured_peak_bytes", "workers"
    )  # fmt: skip
    return {
        **{key: report[key] for key in copied},
        "n_held_out": settings.n_held_out,
        "noise": truth.noise,
        "scores": scores,
        "fit_seconds": report["seconds"],
        "predicted_seconds": report["plan"]["seconds"],
        **{key: str(shown / name) for key, name in FILES.items()},
    }
