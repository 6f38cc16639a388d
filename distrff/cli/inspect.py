"""`distrff inspect`: what a path holds, without reading rows."""

from __future__ import annotations

from typing import Any

import click

from distrff.cli.data_source import open_stored_data, storage_options
from distrff.cli.description import (
    described_array,
    described_dataset,
    described_group,
    described_results,
    root_document,
)
from distrff.cli.options import data_options, talk_options, target_options
from distrff.cli.output import show
from distrff.errors import public_name


@click.command()
@click.argument("path")
@target_options
@data_options
@talk_options
def inspect(path: str, as_json: bool, **options: Any) -> None:
    """Describe what is at PATH: a model, a Gram, what predict or transform wrote, or a dataset.

    The options are for datasets, and mean what they mean to fit. No rows are read.
    """
    from distrff.model_store.places import ROOT

    remote = storage_options(options)
    document = root_document(path, remote)
    attributes = document.get("attributes")
    header = attributes.get(ROOT) if isinstance(attributes, dict) else None
    header = header if isinstance(header, dict) else {}
    if header.get("kind") in ("model", "gram"):
        values, lines = described_group(path, header["kind"], remote)
    elif document.get("node_type") == "array":
        values, lines = described_array(path, header, remote)
    elif header.get("kind") == "predictions":
        values, lines = described_results(header)
    else:
        values, lines = described_dataset(path, open_stored_data(path, options), remote)
    name = public_name(path)
    show({"path": name, **values}, as_json=as_json, lines=[f"{name}: {values['kind']}", *lines])
