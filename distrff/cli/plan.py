"""`distrff plan`: what a fit would cost."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from distrff.cli.cluster import workers_of
from distrff.cli.data_source import open_data
from distrff.cli.helm_values import planned_values
from distrff.cli.machine import adapt_to, checked_machine, tell_defaults
from distrff.cli.options import (
    cluster_options,
    data_options,
    machine_options,
    table_options,
    talk_options,
    target_options,
)
from distrff.cli.output import show


@click.command()
@click.argument("data")
@target_options
@data_options
@table_options
@machine_options
@cluster_options
@click.option(
    "--as-helm-values",
    is_flag=True,
    help="Count for workers in Kubernetes that are not there yet, and print what they need as values for the "
    "chart dask/dask.",
)
@click.option(
    "--threads-per-worker",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="For --as-helm-values, whose --workers are the chart's, and --memory-limit what a pod may have, "
    "1TiB where it is not given.",
)
@talk_options
@click.pass_context
def plan(ctx: click.Context, data: str, as_helm_values: bool, as_json: bool, **options: Any) -> None:
    """Say what `fit` with the same options would do and need.

    Sweeps, flops, bytes read and peak memory are counted; seconds are predicted from a
    measurement of about a second on the workers. Exit code 4 if it would not fit. Of the values
    only those are looked at that files are known to lack, and those of the first rows; missing
    values and infinity elsewhere show in the first pass of a fit.
    """
    if as_json and as_helm_values:
        raise click.UsageError("--as-helm-values prints YAML; give it or --json")
    if not as_helm_values and ctx.get_parameter_source("threads_per_worker") is not ParameterSource.DEFAULT:
        raise click.UsageError("--threads-per-worker goes with --as-helm-values")
    if as_helm_values and options["scheduler"] != "local":
        raise click.UsageError("--as-helm-values plans workers that are not there yet; leave out --scheduler")
    estimator = checked_machine(ctx)
    dataset = open_data(data, options)
    adapt_to(estimator, dataset, options)
    tell_defaults(ctx)
    if as_helm_values:
        values, notes = planned_values(estimator, dataset, options)
        click.echo(values)
        for note in notes:
            click.echo(f"note: {note}", err=True)
        return
    with workers_of(options):
        counted = estimator.plan(dataset)
    counted = counted.with_posterior() if options["include_std"] else counted
    unseen = "of later rows only a fit's first pass shows whether values are missing or infinite"
    lines = [str(counted), *([unseen] if dataset.n_rows > counted.tile_rows else [])]
    show(counted.to_dict(), as_json=as_json, lines=lines)
