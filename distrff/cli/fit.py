"""`distrff fit`: from stored rows to a stored machine."""

from __future__ import annotations

from typing import Any

import click

from distrff.cli.cluster import workers_of
from distrff.cli.data_source import open_data, storage_options
from distrff.cli.exits import NOT_CONVERGED
from distrff.cli.machine import adapt_to, checked_machine, tell_defaults
from distrff.cli.options import (
    cluster_options,
    data_options,
    machine_options,
    result_options,
    table_options,
    talk_options,
    target_options,
)
from distrff.cli.output import show
from distrff.cli.row_output import refuse_overlap
from distrff.errors import InputError
from distrff.public_names import public_name

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
@target_options
@data_options
@table_options
@machine_options
@cluster_options
@talk_options
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
    """Fit a machine to DATA and write it to --out.

    DATA is a Parquet file, folder or glob, or a Zarr group; a path or a URL. Everything that
    can be checked is checked before the first row is read.
    """
    from distrff.cli.report_file import check_report_place, write_report
    from distrff.model_store.places import exists_refusal

    estimator = checked_machine(ctx)
    refuse_overlap("--out", out, data=data)
    exists_refusal(out, overwrite, storage_options(options), kinds=("model",))
    if page is not None:
        refuse_overlap("--report", page, data=data, model=out)
        check_report_place(page, overwrite=overwrite)
    dataset = open_data(data, options)
    adapt_to(estimator, dataset, options)
    tell_defaults(ctx)
    with workers_of(options):
        estimator.fit(dataset)
        extra = {"include_std": True} if options["include_std"] else {}
        estimator.save(out, overwrite=overwrite, storage_options=storage_options(options), **extra)
    report = estimator.report_
    places = {"out": public_name(out)}
    lines = [repr(report), f"  seed {report['seed']}", f"  written to {places['out']}"]
    if page is not None:
        try:
            write_report(report.to_html(), page, overwrite=overwrite)
        except (InputError, OSError) as error:
            error.add_note(f"the machine is written to {places['out']}")
            raise
        places["report"] = page
        lines.append(f"  report page {page}")
    show({**{key: report[key] for key in KEYS if key in report}, **places}, as_json=as_json, lines=lines)
    if report["status"] not in ("CONVERGED", "CONVERGED_UNCERTIFIED"):
        ctx.exit(NOT_CONVERGED)
