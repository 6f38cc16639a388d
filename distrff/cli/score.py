"""`distrff score`: how good a stored machine is on stored rows."""

from __future__ import annotations

from typing import Any

import click

from distrff.cli.cluster import workers_of
from distrff.cli.data_source import open_data_for, storage_options
from distrff.cli.options import cluster_options, data_options, talk_options, target_options
from distrff.cli.output import show
from distrff.errors import InputError
from distrff.public_names import public_name


@click.command()
@click.argument("model")
@click.argument("data")
@target_options
@data_options
@cluster_options
@talk_options
def score(model: str, data: str, as_json: bool, **options: Any) -> None:
    """Score MODEL on DATA, in one pass over the rows.

    Numbers: rmse, relative_error = ‖ŷ − y‖/‖y‖ and r2. Classes: accuracy and error, the
    share of wrong labels; labels that the model never saw count as wrong, and their number is told.
    Rows of a table go through the steps that the model was fitted with, its target included; those that
    these leave out are counted as rows_dropped.
    """
    from distrff.estimators.machine import score_sums
    from distrff.model_store.models import load_model

    machine = load_model(model, storage_options=storage_options(options))
    if machine.kind == "KernelPCA":
        raise InputError(
            f"{public_name(model)} holds principal components, which predict nothing to be scored"
        )
    dataset = open_data_for(machine, data, options)
    if not dataset.n_targets:
        raise InputError(f"{dataset.source} has no target yet: name it with --target")
    with workers_of(options):
        sums = score_sums(machine, dataset)
    scores = sums.classification_scores() if machine.is_classifier else sums.regression_scores()
    if sums.n_unseen:
        click.echo(f"{sums.n_unseen} rows have labels that the model never saw", err=True)
        scores |= {"unseen_labels": sums.n_unseen} if as_json else {}
    table = {} if dataset.table_report is None else dataset.table_report
    show({"n_samples": sums.n_rows, **scores, **table}, as_json=as_json)
