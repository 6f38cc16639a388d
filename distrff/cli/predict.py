"""Commands on a stored model and rows: predictions, features, rasters, scores, importance, intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

import distrff as drf
from distrff.cli.command import Result, aligned, command, flag, parameter, together
from distrff.cli.data import (
    chosen,
    cluster_options,
    data_options,
    exposure_option,
    groups_option,
    model_and_targets,
    open_data_for,
    result_options,
    row_options,
    storage_option,
    storage_options,
    table_result_options,
    workers_of,
)
from distrff.errors import InputError
from distrff.utils.text import first_repeated, public_name

resume_option = together(
    flag("--resume", "Continue what an interrupted run of the same command left."), section="Result"
)
std_option = together(
    flag("--return-std", "Standard deviations as well, of a MODEL fitted with --include-std."),
    section="Result",
)

prediction_options = together(
    click.option(
        "--id",
        "ids",
        multiple=True,
        metavar="NAME",
        help="Column or array of DATA to write beside the results; may be repeated.",
    ),
    parameter(
        "write_predictions",
        "method",
        help="Labels or numbers; values of the decision function; probabilities, of --model likelihood only.",
    ),
    std_option,
    parameter(
        "write_predictions",
        "coverage",
        help="Intervals (lower, upper) or prediction sets (set) as well, that hold this share of new rows, "
        "of a MODEL that distrff calibrate gave them.",
    ),
    parameter(
        "write_predictions",
        "outside",
        help="Rows outside the bounds of a MODEL of equispaced features become NaN and are counted, or are "
        "refused; labels always are.",
    ),
    section="Result",
)


@command()
@click.argument("model")
@click.argument("data")
@table_result_options
@prediction_options
@resume_option
@data_options
@exposure_option
@cluster_options
def predict(model: str, data: str, method: str | None, **options: Any) -> Result:
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
    return _written(method or "predict", model, data, options)


@command()
@click.argument("model")
@click.argument("data")
@result_options
@resume_option
@data_options
@cluster_options
def transform(model: str, data: str, **options: Any) -> Result:
    """Write the features Z of DATA to --out, or its principal components.

    The rows are scaled as MODEL scales them. --out becomes an uncompressed Zarr array
    (format 3) of shape (n_samples, n_components) in the model's dtype: 4 or 8 bytes a number. Of a
    MODEL of principal components, --out holds the rows' coordinates along these, in float64.
    """
    return _written("transform", model, data, options)


def _written(method: str, model: str, data: str, options: Mapping[str, Any]) -> Result:
    """Write the method's result for every row to `--out`."""
    from distrff.engine.run import Run
    from distrff.io.results import ResultPlace
    from distrff.io.storage import Location, refuse_overlap
    from distrff.model.write import RowResults, write_rows

    remote = storage_options(options)
    out = Location.of(options["out"], remote)
    fitted = drf.load_model(model, storage_options=remote)
    exposure = options.get("exposure")
    if exposure is not None:  # written beside the means, as an id
        ids = dict.fromkeys((*(options.get("ids") or ()), exposure))
        options = {**options, "ids": tuple(ids), "exposure": None}
    dataset = open_data_for(fitted, data, options)
    refuse_overlap("--out", out.url, model=model, data=data)
    # Refused before workers start, which takes seconds.
    place = ResultPlace(out, overwrite=options["overwrite"], resume=options["resume"])
    place.check()
    std, outside = options.get("return_std", False), options.get("outside") or "nan"
    results = RowResults(fitted, method, std, outside, exposure=exposure)
    results = results.with_coverage(options.get("coverage"))
    results.check()
    with workers_of(options, dataset.decoded_bytes):
        # `workers_of` has checked the workers already.
        report = write_rows(Run(), results, dataset, place)
    values = {"out": str(out), "model": public_name(model), **report}
    # Rows that an interrupted run had written are shown only if there are any.
    return Result(values, aligned({k: v for k, v in values.items() if k != "n_kept" or v}))


@command()
@click.argument("model")
@click.option(
    "--grid",
    "grids",
    multiple=True,
    required=True,
    metavar="COLUMN=START:STOP:N",
    help="N coordinates of a column from START to STOP, both included; one --grid for each column of MODEL. "
    "Of a column of times, dates or hours such as 2024-01-31T06.",
)
@click.option(
    "--covariates",
    "beside",
    metavar="PATH",
    help="Those of a MODEL with --trend in the cells of the grid: a Zarr group or a NetCDF file that xarray "
    "opens, with the names of the columns.",
)
@result_options
@std_option
@parameter(
    "predict_raster",
    "draws",
    help="Maps drawn from the posterior as well, of a MODEL fitted with --include-std.",
)
@parameter("predict_raster", "random_state")
@parameter("predict_raster", "crs")
@storage_option
@cluster_options
def raster(model: str, grids: tuple[str, ...], beside: str | None, **options: Any) -> Result:
    """Write MODEL's predictions on a regular grid to --out, for xarray to open.

    --out becomes a Zarr group (format 3) with prediction, with --return-std also std, with --draws also
    draws, and the coordinates.
    Dimensions have the order of the --grid options. Cells outside the bounds of MODEL are NaN, and counted.
    """
    from distrff.io.storage import refuse_overlap

    refuse_overlap("--out", options["out"], model=model)
    axes = [_axis(text) for text in grids]
    grid: dict[Any, Any] = dict(axes)
    if len(grid) < len(axes):
        raise InputError(f"--grid has two axes of column {first_repeated([c for c, _ in axes])!r}; give one")
    remote = storage_options(options)
    fitted = drf.load_model(model, storage_options=remote)
    # Columns without names are called by their numbers.
    if fitted.column_names is None:
        grid = {int(name) if name.isdigit() else name: axis for name, axis in axes}
    arguments = chosen(options, "return_std draws random_state crs overwrite")
    if beside is not None:
        arguments["covariates"] = _opened(beside)
    n_cells = math.prod(len(axis) for axis in grid.values())
    with workers_of(options, 8 * len(grid) * n_cells):
        report = drf.predict_raster(fitted, grid, options["out"], **arguments, storage_options=remote)
    return Result({"model": public_name(model), **report})


def _opened(path: str) -> Any:
    """The dataset that xarray opens, not yet read."""
    try:
        return import_module("xarray").open_dataset(path)
    except (ImportError, OSError, ValueError) as error:
        raise InputError(f"--covariates {path} could not be opened by xarray ({error})") from error


def _axis(text: str) -> tuple[str, Any]:
    """Column and coordinates of COLUMN=START:STOP:N."""
    import numpy as np

    name, _, numbers = text.rpartition("=")
    start, stop, n = (*numbers.split(":"), "", "")[:3] if numbers.count(":") == 2 else ("", "", "")
    with suppress(ValueError):
        if name and int(n) >= 1 and math.isfinite(float(start)) and math.isfinite(float(stop)):
            return name, np.linspace(float(start), float(stop), int(n))
    with suppress(ValueError):
        first, last = np.datetime64(start, "us"), np.datetime64(stop, "us")
        if name and int(n) >= 1 and not np.isnat([first, last]).any():
            return name, first + ((last - first) * np.linspace(0, 1, int(n)))
    raise InputError(
        f"--grid must be COLUMN=START:STOP:N, such as lat=-60:60:7200 or day=2024-01-01:2024-12-31:366, "
        f"got {text!r}"
    )


# How good a model is.


@command()
@click.argument("model")
@click.argument("data")
@row_options
@exposure_option
@flag("--return-std", "Judge standard deviations as well, of a MODEL fitted with --include-std.")
@cluster_options
def score(model: str, data: str, return_std: bool, **options: Any) -> Result:
    """Score MODEL on DATA, in one pass over the rows.

    Numbers: r2, rmse, the constant_rmse of the targets' mean, mae, relative_error = ‖ŷ − y‖/‖y‖, and
    quantiles of the residuals; of quantiles pinball losses and coverage, of counts and amounts deviances, and
    d2, the share of the loss of the best constant that is explained; with --return-std CRPS and negative log
    density. Classes: accuracy, that of the most frequent class, balanced accuracy,
    precision and recall of each class, confusions, and the areas under curves of two classes; with
    probabilities log loss and Brier score. Labels that the model never saw count as wrong, and are named.
    --json prints all of it, with the points of the curves.
    Rows of a table go through the steps that the model was fitted with, its target included; those that
    these leave out are counted as rows_dropped.
    """
    fitted, dataset = model_and_targets(model, data, options)
    with workers_of(options, dataset.decoded_bytes):
        evaluation = drf.evaluate(fitted, dataset, return_std=return_std)
    table = {} if dataset.table_report is None else dataset.table_report
    # Rows that the steps of a table left out are not among those judged.
    lines = [*repr(evaluation).splitlines(), *aligned(table)]
    return Result({**evaluation, **table}, lines)


@command()
@click.argument("model")
@click.argument("data")
@row_options
@exposure_option
@parameter("permutation_importance", "max_rows")
@parameter("permutation_importance", "random_state", help="Seed of the replacement values.")
@cluster_options
def importance(model: str, data: str, **options: Any) -> Result:
    """Tell by how much each column matters to MODEL on DATA, in one pass over the rows.

    The values of a column are replaced by those of other rows, and the score falls: R² of
    numbers, with the rise of the mean squared error, or the accuracy of classes. Columns
    that one raw column of a table became are replaced together. Give rows that the fit did not see.
    """
    fitted, dataset = model_and_targets(model, data, options)
    with workers_of(options, dataset.decoded_bytes):
        found = drf.permutation_importance(fitted, dataset, **chosen(options, "max_rows random_state"))
    table = {} if dataset.table_report is None else dataset.table_report
    return Result(found.to_dict() | table, [*aligned(table), *found.lines()])


_COVERAGES = (0.8, 0.9, 0.95)


@command()
@click.argument("model")
@click.argument("data")
@row_options
@exposure_option
@groups_option
@cluster_options
def calibrate(model: str, data: str, **options: Any) -> Result:
    """Give MODEL intervals, or prediction sets of classes, from the errors on DATA, and store them with it.

    DATA are rows that the fit did not see; then a share of at least the coverage of new rows of the same kind
    lies within (split conformal prediction). With --groups this holds for rows of new groups, such as
    people, and each group counts as one. Weights count as repeated rows. predict --coverage writes
    the intervals. For some coverages it prints the half width of the intervals, target by target, or the
    largest score, 1 − p or minus the margin, of a class in a set. Of a MODEL fitted with --include-std it is
    the half width where the model is sure; intervals are wider where the fit had few rows.
    """
    from distrff.model.persistence import save_model

    remote = storage_options(options)
    fitted, dataset = model_and_targets(model, data, options)
    with workers_of(options, dataset.decoded_bytes):
        found = drf.calibrate(fitted, dataset)
    # In its own place: intervals are part of the model, whose predictions stay the same.
    save_model(found, model, overwrite=True, storage_options=remote)
    assert found.intervals is not None
    method = "constant" if found.is_classifier else found.interval_method()
    radii = {f"{c:g}": found.intervals.radius(c, method).tolist() for c in _COVERAGES}
    values = {
        "model": public_name(model),
        "n_samples": found.intervals.n_rows,
        "n_outside": found.intervals.n_outside,
        "n_unseen": found.intervals.n_unseen,
        "n_groups": found.intervals.n_groups,
        "method": method,
        "radius": radii,
    }
    of = "score of a class in the set at most" if found.is_classifier else "± around predictions"
    of = "both ends of the band moved outwards by" if method == "quantile" else of
    of += ", wider where the model is less sure," if method == "deviation" else ""
    lines = [f"{public_name(model)}: {found.intervals}"]
    for c, radius in radii.items():
        lines.append(f"  coverage {c}: {of} {', '.join(f'{r:.6g}' for r in radius)}")
    return Result(values, lines)
