"""What a stored machine makes of stored rows, written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from distrff.cli.cluster import workers_of
from distrff.cli.data_source import open_data_for, storage_options
from distrff.cli.output import dtype_name
from distrff.errors import InputError, public_name

_KINDS = ("predictions", "features")


def written_rows(method: str, model: str, data: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Write the method's result for every row to `--out`, and return what was written."""
    from distrff.model_store.models import load_model
    from distrff.sweeps.engine import SweepRun
    from distrff.sweeps.write import write_rows

    out, remote = options["out"], storage_options(options)
    machine = load_model(model, storage_options=remote)
    dataset = open_data_for(machine, data, options)
    refuse_overlap(out, model=model, data=data)
    with _destination(out, options["overwrite"], remote) as (url, make_room), workers_of(options):
        make_room()
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
def _destination(
    out: str, overwrite: bool, remote: dict[str, Any] | None
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Give a place to write to, and what makes room there once workers are ready.

    A local result is there whole, or what was there before is as it was. An object store cannot
    rename: an earlier result is removed when writing begins, and a failed one is removed.
    """
    from distrff.model_store.groups import exists_refusal, replacing

    if not _is_remote(out):
        with replacing(out, overwrite=overwrite, kinds=_KINDS) as folder:
            yield str(folder), _nothing
        return
    exists_refusal(out, overwrite, remote, kinds=_KINDS)
    began = False

    def make_room() -> None:
        nonlocal began
        began = True
        _remove(out, remote)

    try:
        yield out, make_room
    except BaseException:
        if began:
            _remove(out, remote)
        raise


def _nothing() -> None:
    """Make no room: a local result is written beside its place."""


def _remove(url: str, remote: dict[str, Any] | None) -> None:
    from distrff.data.storage import locate, reaching

    fs, path = locate(url, remote)
    with reaching(url):
        if fs.exists(path):
            fs.rm(path, recursive=True)


def _is_remote(url: str) -> bool:
    return "://" in url.removeprefix("file://") or "::" in url


def refuse_overlap(out: str, **inputs: str) -> None:
    """Raise if `--out` is, holds or lies inside one of the inputs."""
    system, target = _place(out)
    for name, path in inputs.items():
        its_system, source = _place(path)
        if system == its_system and (source.is_relative_to(target) or target.is_relative_to(source)):
            raise InputError(
                f"--out {public_name(out)} and the {name} {public_name(path)} overlap; choose another path"
            )


def _place(url: str) -> tuple[str, PurePath]:
    """Return the kind of file system and the path on it."""
    if not _is_remote(url):
        return "file", Path(url.removeprefix("file://")).resolve()
    protocol, _, path = public_name(url).partition("://")
    return protocol, PurePosixPath(path.rstrip("/"))
