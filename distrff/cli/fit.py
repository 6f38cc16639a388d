"""`distrff fit`: from stored rows to a stored model."""

from __future__ import annotations

from typing import Any

import click

from distrff.cli import NOT_CONVERGED
from distrff.cli.build import estimator_and_data
from distrff.cli.data import storage_options, workers_of
from distrff.cli.options import fit_options, result_options, verbosity_options
from distrff.cli.output import show
from distrff.errors import InputError
from distrff.io.storage import PAGE, Location, check_writable, refuse_overlap, write_file

KEYS = (
    "model", "n_samples", "n_columns", "n_components", "n_outputs", "kernel", "length_scale", "alpha",
    "cv_score", "criterion", "noise_floor", "training_r2", "rkhs_norm", "dtype", "seed", "status",
    "C", "loss", "solver", "preconditioner", "tol", "relative_residual",
    "explained_variance", "explained_variance_ratio",
    "primal", "dual", "duality_gap", "relative_gradient",
    "n_sweeps", "sweep_seconds", "seconds", "planned_peak_bytes", "measured_peak_bytes", "workers",
    "table", "notes",
)  # fmt: skip


@click.command()
@click.argument("data")
@result_options
@click.option(
    "--report",
    "page",
    metavar="FILE",
    help="Also write the report as an HTML page to FILE, a local path; --overwrite replaces an earlier one.",
)
@fit_options
@verbosity_options
@click.pass_context
def fit(
    ctx: click.Context,
    data: str,
    out: str,
    page: str | None,
    overwrite: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Fit a model to DATA and write it to --out.

    DATA is a Parquet file, folder or glob, or a Zarr group; a path or a URL. Everything that
    can be checked is checked before the first row is read.
    """
    refuse_overlap("--out", out, data=data)
    place = Location.of(out, storage_options(options))
    check_writable(place, overwrite=overwrite, kinds=("model",))
    if page is not None:
        refuse_overlap("--report", page, data=data, model=out)
        check_page(Location.of(page), overwrite=overwrite)
    estimator, dataset = estimator_and_data(ctx, data)
    with workers_of(options):
        estimator.fit(dataset)
        extra = {"include_std": True} if options["include_std"] else {}
        estimator.save(out, overwrite=overwrite, storage_options=storage_options(options), **extra)
    report = estimator.report_
    places = {"out": str(place)}
    lines = [repr(report), f"  seed {report['seed']}", f"  written to {places['out']}"]
    if page is not None:
        try:
            write_file(report.to_html(), Location.of(page), overwrite=overwrite, kinds=(PAGE,))
        except (InputError, OSError) as error:
            error.add_note(f"the model is written to {places['out']}")
            raise
        places["report"] = page
        lines.append(f"  report page {page}")
    show({**{key: report[key] for key in KEYS if key in report}, **places}, as_json=as_json, lines=lines)
    if report["status"] not in ("CONVERGED", "CONVERGED_UNCERTIFIED"):
        ctx.exit(NOT_CONVERGED)


def check_page(page: Location, *, overwrite: bool) -> None:
    """Raise InputError for what would keep a page from being written there; writes nothing."""
    if page.path is None:
        raise InputError(f"--report {page} is not a local path; write the page to one and copy it")
    if page.path.is_dir():
        raise InputError(f"--report {page} is a folder; name a file in it")
    check_writable(page, overwrite=overwrite, kinds=(PAGE,))
