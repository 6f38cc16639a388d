"""`distrff raster`: a stored model on a regular grid."""

from __future__ import annotations

import math
from typing import Any

import click

from distrff.cli.command import command
from distrff.cli.data import storage_options, workers_of
from distrff.cli.options import cluster_options, flag, result_options, storage_option, verbosity_options
from distrff.cli.output import show
from distrff.errors import InputError
from distrff.utils.text import public_name


@command()
@click.argument("model")
@click.option(
    "--grid",
    "grids",
    multiple=True,
    required=True,
    metavar="COLUMN=START:STOP:N",
    help="N coordinates of a column from START to STOP, both included; one --grid for each column of MODEL.",
)
@result_options
@flag("--return-std", "Standard deviations as well, of a MODEL fitted with --include-std.")
@storage_option
@cluster_options
@verbosity_options
def raster(model: str, grids: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Write MODEL's predictions on a regular grid to --out, for xarray to open.

    --out becomes a Zarr group (format 3) with prediction, with --return-std also std, and the coordinates.
    Dimensions have the order of the --grid options. Cells outside the bounds of MODEL are NaN, and counted.
    """
    from distrff.io.storage import refuse_overlap
    from distrff.model.persistence import load_model
    from distrff.model.raster import predict_raster

    refuse_overlap("--out", options["out"], model=model)
    axes: dict[str, Any] = {}
    for text in grids:
        name, axis = _axis(text)
        if name in axes:
            raise InputError(f"--grid has two axes of column {name!r}; give one")
        axes[name] = axis
    remote = storage_options(options)
    fitted = load_model(model, storage_options=remote)
    grid: dict[Any, Any] = dict(axes)
    if fitted.column_names is None:
        grid = {int(name) if name.isdigit() else name: axis for name, axis in axes.items()}
    with workers_of(options):
        report = predict_raster(
            fitted,
            grid,
            options["out"],
            return_std=options["return_std"],
            overwrite=options["overwrite"],
            storage_options=remote,
        )
    show({"model": public_name(model), **report}, as_json=as_json)


def _axis(text: str) -> tuple[str, Any]:
    """Return column and coordinates of COLUMN=START:STOP:N."""
    import numpy as np

    name, equals, numbers = text.rpartition("=")
    parts = numbers.split(":")
    try:
        start, stop, n = float(parts[0]), float(parts[1]), int(parts[2])
    except (ValueError, IndexError):
        start = math.nan
    if (
        not name
        or not equals
        or len(parts) != 3
        or not math.isfinite(start)
        or not math.isfinite(stop)
        or n < 1
    ):
        raise InputError(f"--grid must be COLUMN=START:STOP:N, such as lat=-60:60:7200, got {text!r}")
    return name, np.linspace(start, stop, n)
