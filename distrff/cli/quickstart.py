"""`distrff quickstart`: a kernel machine on made-up rows, beside the best score that is possible."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import distrff as drf
from distrff.cli.command import AS_JSON, Result, command, flag
from distrff.cli.data import workers_of

if TYPE_CHECKING:
    from distrff.cli.synthetic import KnownTruth
    from distrff.io.dataset import Dataset

KIND = "quickstart"  # what the root of the folder says of itself


@command()
@click.option("--n-rows", type=click.IntRange(min=100), default=1_000_000, help="Rows to be fitted.")
@click.option("--n-columns", type=click.IntRange(min=1), default=20, help="Columns of each row.")
@click.option("--n-components", type=int, default=2048, help="Random features.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("distrff-quickstart"),
    help="Where data, model and report are put.",
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes.  [default: one a core, at most 8]")
@click.option("--memory-limit", help="Of each worker, such as 4GB.  [default: an equal share of the memory]")
@click.option("--random-state", type=click.IntRange(min=0), default=0, help="Seed of rows and features.")
@flag("--overwrite", "Replace what an earlier quickstart left in --dir.")
@click.pass_context
def quickstart(ctx: click.Context, folder: Path, overwrite: bool, **options: Any) -> Result:
    """Fit a kernel machine to made-up rows and see how good it is.

    Writes rows whose true function and noise are known, fits kernel ridge to them on a
    local cluster, and scores it on held-out rows beside the true function, which nothing
    can beat, and beside linear ridge. Data, model and a report page stay in --dir; an
    interrupted run leaves nothing.
    """
    from distrff.engine.cluster import memory_limit_bytes
    from distrff.io.storage import Location, check_writable, replacing

    place = Location.of(folder)
    # An empty folder is nobody's result.
    may_replace = overwrite or (folder.is_dir() and not any(folder.iterdir()))
    check_writable(place, overwrite=may_replace, kinds=(KIND,))
    features = drf.FourierFeatures(drf.Gaussian("auto"), options["n_components"])
    features.check_parameters()
    options["workers"] = options["workers"] or local_workers()
    # Raises here for a size that is none, before rows are written.
    memory_limit_bytes(options["memory_limit"], options["workers"])
    say = Clock(ctx.meta[AS_JSON])
    with replacing(place, overwrite=may_replace, kinds=(KIND,)) as fresh:
        result = demonstrate(features, options, Path(fresh.url), folder, say)
    result["seconds"] = say.seconds
    say("Done")
    lines = ["", f"{'on held-out rows':24}{'RMSE':>8}{'R²':>8}"]
    for name, rmse, r2, above in _score_rows(result["scores"]):
        lines.append(f"{name.replace('_', ' '):24}{rmse:>8}{r2:>8}   {above}".rstrip())
    lines += ["", *(f"{key:8}{result[key]}" for key in FILES)]
    return Result(result, lines)


class Clock:
    """Prints what is being done after how many seconds; with `aside` on standard error, beside the result."""

    def __init__(self, aside: bool) -> None:
        self._aside = aside
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def __call__(self, text: str) -> None:
        first, *rest = text.splitlines()
        lines = [f"{self.seconds:5.0f} s  {first}", *(f"{'':9}{line}" for line in rest)]
        click.echo("\n".join(lines), err=self._aside)


def _score_rows(scores: dict[str, Any]) -> list[list[str]]:
    """Name, RMSE, R² and how far the RMSE is above the best possible one."""
    best, rows = scores["best_possible"]["rmse"], []
    for name, score in scores.items():
        above = "" if name == "best_possible" else f"{score['rmse'] / best - 1:+.1%}"
        rows.append([name, f"{score['rmse']:.4f}", f"{score['r2']:.4f}", above])
    return rows


# Steps of the quickstart: rows, plan, fit, scores, model, report.

FILES = {"train": "train.zarr", "test": "test.zarr", "model": "model.zarr", "report": "report.html"}
_COPIED = (
    "n_samples", "n_columns", "n_components", "length_scale", "alpha", "cv_score", "n_sweeps", "status",
    "sweep_seconds", "planned_peak_bytes", "measured_peak_bytes", "workers"
)  # fmt: skip

_MAX_WORKERS = 8  # a million rows are sixteen segments, two each
_WORKER_BYTES = 2.5e9  # with all folds in a task, and room for other sizes than the defaults
_MAX_HELD_OUT = 100_000


def local_workers() -> int:
    """Number of workers that the cores and the memory of this machine suffice for."""
    from dask.system import CPU_COUNT
    from distributed.system import MEMORY_LIMIT

    # Dask's own counts, which know the limits of a container.
    return max(1, min(CPU_COUNT, _MAX_WORKERS, int(MEMORY_LIMIT / _WORKER_BYTES)))


def demonstrate(
    features: Any, options: dict[str, Any], folder: Path, shown: Path, say: Clock
) -> dict[str, Any]:
    """Fill the empty `folder` with data, model and report, and return the result.

    `shown` is where the folder will be in the end; texts name it.
    """
    import zarr

    from distrff.cli.synthetic import KnownTruth, write_known_rows
    from distrff.io.storage import PAGE, Location, write_file

    n_rows, n_columns, seed = options["n_rows"], options["n_columns"], options["random_state"]
    n_held_out = min(_MAX_HELD_OUT, max(10_000, n_rows // 10))
    truth = KnownTruth(n_columns, seed=seed)
    ridge = partial(drf.KernelRidge, alpha="cv", scale="standard", random_state=seed)
    # The root says whose the folder is: --overwrite replaces no other.
    zarr.create_group(folder, zarr_format=3, attributes={"distrff": {"kind": "quickstart"}})
    say(f"Writing {n_rows:,} rows of {n_columns} columns, and {n_held_out:,} to be held out")
    write_known_rows(folder / FILES["train"], truth, "train", n_rows)
    best = write_known_rows(folder / FILES["test"], truth, "test", n_held_out)
    train, test = (
        # Reports name the folder that stays, not the one that is moved into its place.
        replace(drf.open_dataset(folder / FILES[name]), source=str(shown / FILES[name]))
        for name in ("train", "test")
    )
    say(f"Starting {options['workers']} worker(s)")
    with workers_of({"scheduler": "local", **options}):
        model = ridge(features)
        say("Planning kernel ridge")
        say(f"The plan is\n{model.plan(train)}")
        say("Fitting kernel ridge: the kernel's length scale, then alpha by cross-validation")
        r = model.fit(train).report_
        say(f"Fitted in {r['seconds']:.1f} s: length scale {r['length_scale']:.3g}, alpha {r['alpha']:.3g}")
        say("Fitting linear ridge, for comparison")
        linear = ridge(drf.LinearFeatures()).fit(train)
        say("Scoring both on the held-out rows")
        scores = _scores(model, linear, test, best)
    model.save(str(folder / FILES["model"]))
    page = _page(n_held_out, truth, model, scores)
    write_file(page, Location.of(folder / FILES["report"]), kinds=(PAGE,))
    return {
        **{key: r[key] for key in _COPIED},
        "n_held_out": n_held_out,
        "noise": truth.noise,
        "scores": scores,
        "fit_seconds": r["seconds"],
        "predicted_seconds": r["plan"]["seconds"],
        **{key: str(shown / name) for key, name in FILES.items()},
    }


def _scores(model: drf.KernelRidge, linear: drf.KernelRidge, test: Dataset, best: float) -> dict[str, Any]:
    """RMSE and R² of the true function, which has the RMSE `best`, and of both models."""
    found = {
        name: drf.evaluate(one.model_, test)
        for name, one in (("kernel_ridge", model), ("linear_ridge", linear))
    }
    # R² of the truth by the variance that those of the models are measured by.
    variance = found["kernel_ridge"]["constant_rmse"] ** 2
    return {
        "best_possible": {"rmse": best, "r2": 1.0 - best**2 / variance},
        **{name: {key: score[key] for key in ("rmse", "r2")} for name, score in found.items()},
    }


def _page(n_held_out: int, truth: KnownTruth, model: drf.KernelRidge, scores: dict[str, Any]) -> str:
    names = {
        "best_possible": "best possible: the true function",
        "kernel_ridge": f"kernel ridge, {model.report_['n_components']:,} features",
        "linear_ridge": "linear ridge",
    }
    rows = [[names[name], *numbers] for name, *numbers in _score_rows(scores)]
    facts = [
        ["data", "made up: a random smooth function of four hidden factors, plus noise"],
        ["standard deviation", f"of the function 1, of the noise {truth.noise:g}"],
        ["held-out rows", f"{n_held_out:,}"],
    ]
    return model.report_.to_html(
        title="distrff quickstart",
        facts=facts,
        scores={"columns": ["", "RMSE", "R²", "RMSE above best"], "rows": rows},
    )
