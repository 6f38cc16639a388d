"""`distrff inspect`: what a path holds, and how well it is stored for what is to be done with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from distrff.cli.cluster import workers_of
from distrff.cli.data_source import open_stored_data, storage_options
from distrff.cli.description import (
    described_array,
    described_dataset,
    described_group,
    described_results,
    root_document,
)
from distrff.cli.options import cluster_options, data_options, talk_options, target_options
from distrff.cli.output import show
from distrff.cli.survey import described_rows
from distrff.public_names import public_name

if TYPE_CHECKING:
    from distrff.data.dataset import Dataset


@click.command()
@click.argument("path")
@target_options
@data_options
@click.option("--no-rows", is_flag=True, help="Read no rows of a dataset, its metadata only.")
@cluster_options
@talk_options
def inspect(path: str, as_json: bool, **options: Any) -> None:
    """Describe what is at PATH: a model, a Gram, what predict or transform wrote, or a dataset.

    The options are for datasets, and mean what they mean to fit. One pass over a dataset's rows counts
    missing values and the target's labels, and tells which columns drift with the row number; then
    it is said whether other chunks or a shuffle would pay.
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
        values, lines = _described_data(path, open_stored_data(path, options), options)
    name = public_name(path)
    show({"path": name, **values}, as_json=as_json, lines=[f"{name}: {values['kind']}", *lines])


def _described_data(path: str, dataset: Dataset, options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    remote = storage_options(options)
    values, lines = described_dataset(path, dataset, remote)
    if options["no_rows"]:
        return values, lines
    with workers_of(options):
        found, more = described_rows(path, dataset, remote)
    return {**values, **found}, [*lines, *more]
