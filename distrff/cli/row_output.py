"""What a stored machine makes of stored rows, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from distrff.cli.cluster import workers_of
from distrff.cli.data_source import open_data_for, storage_options
from distrff.errors import InputError
from distrff.public_names import public_name


def written_rows(method: str, model: str, data: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Write the method's result for every row to `--out`, and return what was written."""
    from distrff.model_store.models import load_model
    from distrff.sweeps.engine import SweepRun
    from distrff.sweeps.write import result_place, write_rows

    out, remote = options["out"], storage_options(options)
    how = {"overwrite": options["overwrite"], "resume": options["resume"], "storage_options": remote}
    machine = load_model(model, storage_options=remote)
    dataset = open_data_for(machine, data, options)
    refuse_overlap("--out", out, model=model, data=data)
    result_place(out, method, **how).check()
    with workers_of(options):
        run = SweepRun()
        return_std = options.get("return_std", False)
        written = write_rows(run, machine, dataset, out, method=method, return_std=return_std, **how)
    return {
        "out": public_name(out),
        "model": public_name(model),
        "n_samples": written.n_rows,
        **written.description(),
        "seconds": run.seconds,
        "workers": run.execution.n_workers,
    }


def _is_remote(url: str) -> bool:
    return "://" in url.removeprefix("file://") or "::" in url


def refuse_overlap(option: str, out: str, **others: str) -> None:
    """Raise if what `option` writes to `out` is, holds or lies inside one of the others."""
    system, target = _place(out)
    for name, path in others.items():
        its_system, source = _place(path)
        if system == its_system and (source.is_relative_to(target) or target.is_relative_to(source)):
            raise InputError(
                f"{option} {public_name(out)} and the {name} {public_name(path)} overlap; choose another path"
            )


def _place(url: str) -> tuple[str, PurePath]:
    """Return the kind of file system and the path on it."""
    if not _is_remote(url):
        return "file", Path(os.path.realpath(url.removeprefix("file://")))
    protocol, _, path = public_name(url).partition("://")
    return protocol, PurePosixPath(path.rstrip("/"))
