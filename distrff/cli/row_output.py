"""What a stored machine makes of stored rows, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distrff.cli.cluster import workers_of
from distrff.cli.data_source import open_data_for, storage_options
from distrff.cli.output import dtype_name
from distrff.errors import InputError


def written_rows(method: str, model: str, data: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Write the method's result for every row to `--out`, and return what was written."""
    from distrff.model_store.models import load_model
    from distrff.sweeps.engine import SweepRun
    from distrff.sweeps.write import write_rows

    out, remote = options["out"], storage_options(options)
    machine = load_model(model, storage_options=remote)
    dataset = open_data_for(machine, data, options)
    _refuse_inputs(out, model=model, data=data)
    # The workers go first when this is left early, so that none writes into a folder that is being removed.
    with _destination(out, options["overwrite"], remote) as url, workers_of(options):
        run = SweepRun()
        written = write_rows(run, machine, dataset, url, method=method, storage_options=remote)
    return {
        "out": out,
        "model": model,
        "n_samples": dataset.n_rows,
        "shape": written.shape,
        "dtype": dtype_name(written.dtype),
        "chunks": written.chunks,
        "seconds": run.seconds,
        "workers": run.execution.n_workers,
    }


@contextmanager
def _destination(out: str, overwrite: bool, remote: dict[str, Any] | None) -> Iterator[str]:
    """Give a place to write to; what is there afterwards is complete, or as it was before."""
    from distrff.model_store.groups import exists_refusal, replacing

    if not _is_remote(out):
        with replacing(out, overwrite=overwrite) as folder:
            yield str(folder)
        return
    exists_refusal(out, overwrite, remote)
    _remove(out, remote)
    try:
        yield out
    except BaseException:
        _remove(out, remote)
        raise


def _remove(url: str, remote: dict[str, Any] | None) -> None:
    from distrff.data.storage import locate, reaching

    fs, path = locate(url, remote)
    with reaching(url):
        if fs.exists(path):
            fs.rm(path, recursive=True)


def _is_remote(url: str) -> bool:
    return "://" in url.removeprefix("file://") or "::" in url


def _refuse_inputs(out: str, **inputs: str) -> None:
    """Raise if `--out` is, holds or lies inside one of the inputs."""
    if _is_remote(out):
        return
    target = Path(out.removeprefix("file://")).resolve()
    for name, path in inputs.items():
        source = Path(path.removeprefix("file://")).resolve()
        if target == source or target in source.parents or source in target.parents:
            raise InputError(f"--out {out} and the {name} {path} overlap; choose another path")
