"""`distrff quickstart`: a kernel machine on made-up rows, beside the best score that there can be."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from distrff.cli.options import talk_options
from distrff.cli.output import show
from distrff.errors import InputError
from distrff.public_names import public_name

KIND = "quickstart"  # what the root of the folder says of itself


@click.command()
@click.option("--n-rows", type=click.IntRange(min=100), default=1_000_000, show_default=True)
@click.option("--n-columns", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--n-components", type=int, default=2048, show_default=True, help="Random features.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("distrff-quickstart"),
    show_default=True,
    help="Where data, model and report are put.",
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes. Default: one a core, at most 8.")
@click.option("--memory-limit", help="Of each worker, such as 4GB. Default: an equal share of the memory.")
@click.option("--random-state", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--overwrite", is_flag=True, help="Replace what an earlier quickstart left in --dir.")
@talk_options
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
    from distrff.cli.demonstration import Settings, demonstrate, local_workers
    from distrff.model_store.places import replacing

    may_replace = _refuse_other(folder, overwrite)
    settings = Settings(
        n_rows, n_columns, n_components, workers or local_workers(), memory_limit, random_state
    )
    settings.check()
    say = Clock(as_json)
    with replacing(folder, overwrite=may_replace, kinds=("quickstart",)) as fresh:
        result = demonstrate(settings, fresh, folder, say)
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
    if _kind(folder) != KIND:
        raise InputError(f"{name} exists and is not from an earlier quickstart; choose another --dir")
    if not overwrite:
        raise InputError(f"{name} is from an earlier quickstart; pass --overwrite to replace it")
    return True


def _kind(folder: Path) -> Any:
    try:
        return json.loads((folder / "zarr.json").read_text())["attributes"]["distrff"]["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _summary(result: dict[str, Any]) -> list[str]:
    """Return the scores as a small table, and where everything is."""
    best = result["scores"]["best_possible"]["rmse"]
    lines = ["", f"{'on held-out rows':24}{'RMSE':>8}{'R²':>8}"]
    for name, score in result["scores"].items():
        above = "" if name == "best_possible" else f"   {score['rmse'] / best - 1:+.1%}"
        lines.append(f"{name.replace('_', ' '):24}{score['rmse']:8.4f}{score['r2']:8.4f}{above}")
    return [*lines, "", *(f"{key:8}{result[key]}" for key in ("train", "test", "model", "report"))]
