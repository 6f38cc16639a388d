"""Raw files given to a command that wants rows: converted into a folder that goes when the command ends."""

from __future__ import annotations

import ipaddress
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distrff.errors import InputError
from distrff.model_store.own_folders import own_folder
from distrff.public_names import public_name

if TYPE_CHECKING:
    from distrff.columns.table_steps import TableSteps
    from distrff.data.dataset import Dataset

_REPORTED = ("rows_read", "rows_dropped", "columns_made", "categories", "missing", "columns_dropped")


def converted(
    path: str, options: Mapping[str, Any], remote: dict[str, Any] | None, **arguments: Any
) -> Dataset:
    """Return the rows of raw files, converted as the arguments of `distrff.convert` say.

    Raises
    ------
    InputError
        If workers on other machines would not see the folder, and as `convert`.
    """
    from distrff.ingest.convert import convert

    rows = _room(path, options)
    report = convert(path, rows, **arguments, storage_options=remote)
    return _described(rows, path, report)


def converted_like(
    path: str, options: Mapping[str, Any], remote: dict[str, Any] | None, steps: TableSteps
) -> Dataset:
    """Return the rows of raw files by the steps of a model; see `converted`."""
    from distrff.ingest.convert import convert_like

    rows = _room(path, options)
    report = convert_like(
        path,
        rows,
        steps,
        x_name=options["x_name"],
        y_name=options.get("y_name"),
        storage_options=remote,
    )
    return _described(rows, path, report)


def _described(rows: str, path: str, report: dict[str, Any]) -> Dataset:
    from distrff.data.open import open_dataset

    told = {key: report[key] for key in _REPORTED if key in report}
    return replace(open_dataset(rows), source=public_name(path), table_report=told)


def _room(path: str, options: Mapping[str, Any]) -> str:
    """A path in a folder of the command's own."""
    scheduler = options.get("scheduler", "local")
    if scheduler != "local" and not _is_here(scheduler):
        raise InputError(
            f"{public_name(path)} would be converted to a folder of this machine, which workers of "
            f"{public_name(scheduler)} may not see; convert it first, to a place that they see: "
            f"distrff convert {public_name(path)} ROWS.zarr"
        )
    parent = Path(tempfile.gettempdir())
    folder = click.get_current_context().with_resource(own_folder(parent, "distrff-rows-", mode=0o700))
    return str(folder / "rows.zarr")


def _is_here(scheduler: str) -> bool:
    """Whether an address, or the one in a scheduler file, is of this machine itself."""
    if Path(scheduler).is_file():
        scheduler = json.loads(Path(scheduler).read_text()).get("address", "")
    protocol, _, rest = scheduler.rpartition("://")
    host = rest.rpartition(":")[0].strip("[]")
    try:
        return protocol == "inproc" or host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
