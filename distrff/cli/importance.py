"""`distrff importance`: how much worse a stored model predicts stored rows without what a column says."""

from __future__ import annotations

from typing import Any

import click

from distrff.cli.command import command
from distrff.cli.data import model_and_targets, workers_of
from distrff.cli.options import cluster_options, integer, row_options, verbosity_options
from distrff.cli.output import aligned, show


@command()
@click.argument("model")
@click.argument("data")
@row_options
@integer("--max-rows", "Judge at most so many rows, drawn evenly from all.", 20_000, minimum=2)
@integer("--random-state", "Seed of the rows that are drawn.", 0, minimum=0)
@cluster_options
@verbosity_options
def importance(
    model: str, data: str, as_json: bool, max_rows: int, random_state: int, **options: Any
) -> None:
    """Tell by how much each column matters to MODEL on DATA, in two passes over the rows.

    The values of a column are replaced by those of other rows, and the score falls: R² of
    numbers, with the rise of the mean squared error, or the accuracy of classes. Columns
    that one raw column of a table became are replaced together. Give rows that the fit did not see.
    """
    from distrff.diagnostics.importance import permutation_importance

    fitted, dataset = model_and_targets(model, data, options)
    with workers_of(options):
        found = permutation_importance(fitted, dataset, max_rows=max_rows, random_state=random_state)
    table = {} if dataset.table_report is None else dataset.table_report
    show(found.to_dict() | table, as_json=as_json, lines=[*aligned(table), *found.lines()])
