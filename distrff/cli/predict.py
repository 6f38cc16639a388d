"""`distrff predict`, `transform` and `score`: a stored model on stored rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from distrff.cli.command import command
from distrff.cli.data import model_and_targets, open_data_for, storage_options, workers_of
from distrff.cli.options import (
    cluster_options,
    data_options,
    prediction_options,
    result_options,
    resume_option,
    row_options,
    verbosity_options,
)
from distrff.cli.output import aligned, show
from distrff.utils.text import public_name


@command()
@click.argument("model")
@click.argument("data")
@result_options
@prediction_options
@resume_option
@data_options
@cluster_options
@verbosity_options
def predict(model: str, data: str, method: str, as_json: bool, **options: Any) -> None:
    """Write MODEL's predictions for DATA to --out, in the order of the rows.

    The columns of DATA are found by the names that the model was fitted to; others, the
    target among them, may be there or not. If --out ends in .parquet it becomes a folder of
    Parquet files; if it ends in .csv or .csv.gz, one such file with a line of names, where a missing
    value is empty; else a Zarr array (format 3) of shape (n_samples,) or (n_samples, n_targets), to be
    opened with zarr.open_array, or with --id, --return-std or --coverage a group of such arrays:
    prediction (or decision, probability), std, lower and upper or set, and the ids. Numbers are float64;
    classes are the labels themselves, text as variable-length strings; sets have a boolean a class.

    What an interrupted run has written is kept, and --resume continues it.
    """
    _show(written_rows(method, model, data, options), as_json)


@command()
@click.argument("model")
@click.argument("data")
@result_options
@resume_option
@data_options
@cluster_options
@verbosity_options
def transform(model: str, data: str, as_json: bool, **options: Any) -> None:
    """Write the features Z of DATA to --out, or its principal components.

    The rows are scaled as MODEL scales them. --out becomes an uncompressed Zarr array
    (format 3) of shape (n_samples, n_components) in the model's dtype: 4 or 8 bytes a number. Of a
    MODEL of principal components, --out holds the rows' coordinates along these, in float64.
    """
    _show(written_rows("transform", model, data, options), as_json)


@command()
@click.argument("model")
@click.argument("data")
@row_options
@cluster_options
@verbosity_options
def score(model: str, data: str, as_json: bool, **options: Any) -> None:
    """Score MODEL on DATA, in one pass over the rows.

    Numbers: r2, rmse, the constant_rmse of the targets' mean, mae, relative_error = ‖ŷ − y‖/‖y‖, and
    quantiles of the residuals. Classes: accuracy, that of the most frequent class, balanced accuracy,
    precision and recall of each class, confusions, and the areas under curves of two classes; with
    probabilities log loss and Brier score. Labels that the model never saw count as wrong, and are named.
    --json prints all of it, with the points of the curves.
    Rows of a table go through the steps that the model was fitted with, its target included; those that
    these leave out are counted as rows_dropped.
    """
    from distrff.diagnostics.evaluate import evaluate

    fitted, dataset = model_and_targets(model, data, options)
    with workers_of(options):
        evaluation = evaluate(fitted, dataset)
    table = {} if dataset.table_report is None else dataset.table_report
    lines = [*repr(evaluation).splitlines(), *aligned(table)]
    show({**evaluation, **table}, as_json=as_json, lines=lines)


def _show(values: dict[str, Any], as_json: bool) -> None:
    """Print what was written; rows kept of an interrupted run only if there are any."""
    show(values, as_json=as_json, lines=aligned({k: v for k, v in values.items() if k != "n_kept" or v}))


def written_rows(method: str, model: str, data: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Write the method's result for every row to `--out`, and return what was written."""
    from distrff.engine.run import Run
    from distrff.io.results import ResultPlace
    from distrff.io.storage import Location, refuse_overlap
    from distrff.model.persistence import load_model
    from distrff.model.write import RowResults, write_rows

    remote = storage_options(options)
    out = Location.of(options["out"], remote)
    fitted = load_model(model, storage_options=remote)
    dataset = open_data_for(fitted, data, options)
    refuse_overlap("--out", out.url, model=model, data=data)
    place = ResultPlace(out, overwrite=options["overwrite"], resume=options["resume"])
    place.check()
    with workers_of(options):
        wanted = options.get("return_std", False), options.get("outside", "nan")
        results = RowResults(fitted, method, *wanted).with_coverage(options.get("coverage"))
        report = write_rows(Run(), results, dataset, place)
    return {"out": str(out), "model": public_name(model), **report}
