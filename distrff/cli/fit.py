"""`distrff fit`: from stored rows to a stored machine."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any

import click

from distrff.cli.build import adapt_to, checked_machine, tell_defaults
from distrff.cli.data import open_data, storage_options, workers_of
from distrff.cli.group import NOT_CONVERGED
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
from distrff.cli.predict import refuse_overlap
from distrff.errors import InputError
from distrff.utils.html import GENERATOR
from distrff.utils.text import public_name

if TYPE_CHECKING:
    from distrff.io.storage import Url

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
    from distrff.io.storage import exists_refusal

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


# The page of a fit as a file: refused before the fit, or written whole.

_HEAD_BYTES = 512  # of a page, which names its generator there


def check_report_place(path: Url, *, overwrite: bool) -> None:
    """Raise what writing a page to `path` would raise; writes nothing.

    With `overwrite` a page of distrff may be replaced and nothing else, so that a slip of the hand costs no
    data.

    Raises
    ------
    InputError
        If it is no local path, its folder is not there or not writable, or something is there that may not
        be replaced.
    """
    from distrff.io.storage import local_path, refuse_dangling_link

    refuse_dangling_link(path)
    file, name = local_path(path), public_name(path)
    if file is None:
        raise InputError(f"--report {name} is not a local path; write the page to one and copy it")
    if file.is_dir():
        raise InputError(f"--report {name} is a folder; name a file in it")
    folder = public_name(file.parent)
    if not file.parent.is_dir():
        raise InputError(f"--report {name}: the folder {folder} does not exist; create it first")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise InputError(f"--report {name}: the folder {folder} is not writable; choose another path")
    if not file.exists():
        return
    with file.open("rb") as handle:
        is_page = GENERATOR.encode() in handle.read(_HEAD_BYTES)
    if not is_page:
        raise InputError(
            f"--report {name} exists and is not a page of distrff, so --overwrite spares it; "
            f"choose another path"
        )
    if not overwrite:
        raise InputError(f"--report {name} exists; pass --overwrite to replace it")


def write_report(page: str, path: Url, *, overwrite: bool = False) -> None:
    """Put a page of a fit at the local `path` as UTF-8: whole, or not at all.

    Raises
    ------
    InputError
        As `check_report_place`, which is asked again, since hours may have passed.
    """
    from distrff.io.storage import full_disk_told, local_path

    check_report_place(path, overwrite=overwrite)
    file = local_path(path)
    assert file is not None
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(4)}.partial")
    try:
        with full_disk_told(path):
            fresh.write_text(page, encoding="utf-8")
            fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)
