"""`distrff predict`: a stored machine's predictions for stored rows, as Zarr or Parquet."""

from __future__ import annotations

from typing import Any

import click

from distrff.cli.options import (
    cluster_options,
    data_options,
    prediction_options,
    result_options,
    resume_option,
    talk_options,
)
from distrff.cli.output import show
from distrff.cli.row_output import written_rows


@click.command()
@click.argument("model")
@click.argument("data")
@result_options
@prediction_options
@resume_option
@data_options
@cluster_options
@talk_options
def predict(model: str, data: str, method: str, as_json: bool, **options: Any) -> None:
    """Write MODEL's predictions for DATA to --out, in the order of the rows.

    The columns of DATA are found by the names that the model was fitted to; others, the
    target among them, may be there or not. If --out ends in .parquet it becomes a folder of
    Parquet files; else a Zarr array (format 3) of shape (n_samples,) or (n_samples, n_targets), to be
    opened with zarr.open_array, or with --id or --return-std a group of such arrays: prediction (or
    decision, probability), std and the ids. Numbers are float64; classes are the labels
    themselves, text as variable-length strings.

    What an interrupted run has written is kept, and --resume goes on with it.
    """
    show(written_rows(method, model, data, options), as_json=as_json)
