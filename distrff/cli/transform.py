"""`distrff transform`: the features Z of stored rows, as a Zarr array."""

from __future__ import annotations

from typing import Any

import click

from distrff.cli.options import cluster_options, data_options, result_options, resume_option, talk_options
from distrff.cli.output import show
from distrff.cli.row_output import written_rows


@click.command()
@click.argument("model")
@click.argument("data")
@result_options
@resume_option
@data_options
@cluster_options
@talk_options
def transform(model: str, data: str, as_json: bool, **options: Any) -> None:
    """Write the features Z of DATA to --out, or its principal components.

    The rows are scaled as MODEL scales them. --out becomes an uncompressed Zarr array
    (format 3) of shape (n_samples, n_components) in the model's dtype: 4 or 8 bytes a number. Of a
    MODEL of principal components, --out holds the rows' coordinates along these, in float64.
    """
    show(written_rows("transform", model, data, options), as_json=as_json)
