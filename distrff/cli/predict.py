"""`distrff predict`: a stored machine's predictions for stored rows, as a Zarr array."""

from __future__ import annotations

from typing import Any

import click

from distrff.cli.options import cluster_options, data_options, result_options, talk_options
from distrff.cli.output import show
from distrff.cli.row_output import written_rows


@click.command()
@click.argument("model")
@click.argument("data")
@result_options
@data_options
@cluster_options
@talk_options
def predict(model: str, data: str, as_json: bool, **options: Any) -> None:
    """Write MODEL's predictions for DATA to --out.

    The columns of DATA are found by the names that the model was fitted to; others, the
    target among them, may be there or not. --out becomes a Zarr array (format 3) of shape
    (n_samples,) or (n_samples, n_targets), to be opened with zarr.open_array: float64 for
    numbers; for classes the labels themselves, text as variable-length strings.
    """
    show(written_rows("predict", model, data, options), as_json=as_json)
