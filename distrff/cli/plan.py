"""`distrff plan`: what a fit would cost."""

from __future__ import annotations

from typing import Any

import click

from distrff.cli.cluster import workers_of
from distrff.cli.data_source import open_data
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
@talk_options
@click.pass_context
def plan(ctx: click.Context, data: str, as_json: bool, **options: Any) -> None:
    """Say what `fit` with the same options would do and need.

    Sweeps, flops, bytes read and peak memory are counted; seconds are predicted from a
    measurement of about a second on the workers. Exit code 4 if it would not fit.
    """
    estimator = checked_machine(ctx)
    dataset = open_data(data, options)
    adapt_to(estimator, dataset, options)
    tell_defaults(ctx)
    with workers_of(options):
        counted = estimator.plan(dataset)
    show(counted.to_dict(), as_json=as_json, lines=[str(counted)])
