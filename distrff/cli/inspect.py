"""`distrff inspect`: what a path holds, and how well rows are stored for passes over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

import distrff as drf
from distrff.cli.command import Result, aligned, command, flag
from distrff.cli.data import arguments_of, cluster_options, row_options, storage_options, workers_of
from distrff.utils.text import public_name

if TYPE_CHECKING:
    from distrff.io.dataset import Dataset

Remote = dict[str, Any] | None
Described = tuple[dict[str, Any], dict[str, Any]]
"""Values that are shown one a line, and further ones for JSON, of which arrays and columns are listed."""


@command()
@click.argument("path")
@row_options
@flag("--no-rows", "Read no rows of a dataset, its metadata only.")
@cluster_options
def inspect(path: str, **options: Any) -> Result:
    """Describe what is at PATH.

    That is a model, a Gram, a checkpoint, what predict, raster or transform wrote, or a dataset.

    The options are for datasets, and mean the same as for fit. One pass over a dataset's rows counts
    missing values and the target's labels, and finds the columns that drift with the row number. Advice
    follows where other chunks or a shuffle would make later passes cheaper.
    """
    from distrff.io.open import stored_dataset
    from distrff.io.storage import Location, header_of

    remote, name = storage_options(options), public_name(path)
    document = Location.of(path, remote).root() or {}
    header = header_of(document) or {}
    # Predictions of one column are an array, whose own attributes hold the header.
    kind = "array" if document.get("node_type") == "array" else header.get("kind")
    rows_of: Dataset | None = None
    if kind in ("model", "gram", "toeplitz"):
        shown, more = described_group(path, kind, remote)
    elif kind == "array":
        shown, more = described_array(path, header, remote), {}
    elif kind == "predictions":
        shown, more = _of_header(header, "n_rows"), {"columns": header.get("columns")}
    elif kind == "raster":
        arrays = [array | {"dimensions": names} for array, names in _arrays_of(path, remote)]
        # Results before coordinates.
        arrays.sort(key=lambda array: array["name"] not in ("prediction", "std"))
        shown, more = _of_header(header), {"arrays": arrays}
    elif kind == "checkpoint":
        shown, more = described_checkpoint(path, remote), {}
    else:
        # Files of text are not converted for this: a look at a path must not take a pass of writing.
        dataset = stored_dataset(path, **arguments_of(options))
        shown, more = described_dataset(path, dataset, remote)
        rows_of = None if options["no_rows"] else dataset
    lines = [f"{name}: {shown['kind']}", *_lines(shown, more)]
    if rows_of is not None:
        with workers_of(options, rows_of.decoded_bytes):
            found = described_rows(rows_of)
        more, lines = more | found, [*lines, *_row_lines(found, rows_of.n_rows)]
    return Result({"path": name, **shown, **more}, lines)


# Descriptions of what is stored.

_MAX_LISTED = 20
_FITTED = ("n_samples", "kernel", "length_scale", "alpha", "cv_score", "criterion", "rkhs_norm", "seed")
_ENDED = (
    "status", "C", "loss", "solver", "tol", "margin",
    "primal", "dual", "duality_gap", "relative_gradient", "relative_residual",
)  # fmt: skip


def _of_header(header: dict[str, Any], *more: str) -> dict[str, Any]:
    """The description of results that their own header gives."""
    return {key: header.get(key) for key in ("kind", "format", *more, "complete", "model")}


def described_group(path: str, kind: str, remote: Remote) -> Described:
    """Describe a model, or sums of rows; everything is checked against its checksums."""
    from distrff.cli.gram import held_out_by
    from distrff.diagnostics.report import folds_text
    from distrff.io.storage import read_group
    from distrff.model.persistence import model_of

    kinds = {
        "model": model_of,
        "gram": drf.GramStatistics.of_group,
        "toeplitz": drf.ToeplitzStatistics.of_group,
    }
    arrays, metadata = read_group(path, kind=kind, storage_options=remote)
    found: Any = kinds[kind](path, arrays, metadata)
    if kind == "gram":
        values = {"n_samples": found.n_rows, **held_out_by(found), "size": arrays["A"].shape[1]}
    elif kind == "toeplitz":
        values = {"n_samples": found.n_rows, **held_out_by(found)}
    else:
        report = metadata["report"]
        values = {"model": metadata["model"], **{key: report.get(key) for key in _FITTED}}
        values |= {key: report[key] for key in _ENDED if key in report}
        values["held_out"] = folds_text(report.get("folds"))
        values["intervals"] = None if found.intervals is None else str(found.intervals)
    specification = metadata["specification"]
    inner = specification.get("inner", specification)  # of a map with a metric
    shown = {
        "kind": kind,
        **values,
        "features": inner["kind"],
        "n_columns": specification["n_columns"],
        "n_components": found.specification.n_features,
        "dtype": metadata.get("dtype", "float64"),
        "classes": metadata.get("classes", {}).get("labels"),
        "bytes": sum(A.nbytes for A in arrays.values()),
    }
    if inner is not specification:
        shown["metric"] = inner["n_columns"], specification["n_columns"]
    more = {key: metadata.get(key) for key in ("column_names", "specification", "report")}
    more["arrays"] = [
        {"name": name, "shape": A.shape, "dtype": str(A.dtype), "bytes": A.nbytes}
        for name, A in arrays.items()
    ]
    names, widths = metadata.get("column_names"), shown.get("length_scale")
    if names is not None and isinstance(widths, list) and len(widths) == len(names):
        # People see which column a width is of; JSON keeps the list.
        shown["length_scale"], more["length_scale"] = dict(zip(names, widths, strict=True)), widths
    return shown, more


def described_array(path: str, header: dict[str, Any], remote: Remote) -> dict[str, Any]:
    """Describe a Zarr array, such as predictions."""
    from distrff.io.results import open_array
    from distrff.io.storage import Location

    array = open_array(Location(path, remote), mode="r")
    return {
        "kind": header.get("kind") or "array",
        "shape": array.shape,
        "dtype": _dtype_name(array.dtype),
        "chunks": array.chunks,
        **{key: header.get(key) for key in ("complete", "model")},
    }


def described_checkpoint(path: str, remote: Remote) -> dict[str, Any]:
    """Describe a checkpoint of a fit or a conversion: how far it is, and about how long the rest takes."""
    from distrff.io.parts import described
    from distrff.io.storage import Location

    found = described(Location.of(path, remote))
    header, progress = found["header"], found["progress"]
    if header.get("of") == "conversion":
        how_far = {"of": "conversion", "to": header.get("dst"), "under way": None}
        if progress.keys() >= {"stage", "done", "total", "unit"}:
            how_far["under way"] = "{stage}, {done:,} of {total:,} {unit}".format(**progress)
        how_far["seconds left of that"] = progress.get("seconds_left_of_stage")
    else:
        n_planned, n_done = header.get("n_sweeps", 0), progress.get("n_sweeps", 0)
        how_far = {
            "of": "fit",
            "model": header.get("estimator"),
            "rows from": header.get("source"),
            "n_samples": header.get("n_rows"),
            "solver": header.get("solver"),
            "passes done": n_done,
            # Of iterative fits the plan presumes a number, which says nothing once it is exceeded.
            "passes planned": n_planned if n_planned > n_done else None,
        }
        if progress.keys() >= {"label", "n_segments", "n_segments_done"}:
            how_far["under way"] = "{label}, {n_segments_done} of {n_segments} segments".format(**progress)
        how_far["seconds of passes"] = progress.get("seconds", 0.0)
        how_far["seconds left"] = _seconds_left(header, progress)
    about = {"last write": _clock(progress.get("written")), "version": header.get("version")}
    return {"kind": header["kind"], **how_far, **about, "bytes": found["bytes"]}


def _seconds_left(header: dict[str, Any], progress: dict[str, Any]) -> float | None:
    """Seconds of the passes that are left of those planned; None where that is not known."""
    n_done, of_pass = progress.get("n_sweeps", 0), progress.get("seconds_left_of_pass")
    under_way, usual = bool(progress.get("n_segments")), progress.get("seconds_of_usual_pass")
    n_left = header.get("n_sweeps", 0) - n_done - under_way
    # An iterative fit may take more passes than planned.
    if n_left <= 0 or usual is None or (under_way and of_pass is None):
        return of_pass
    # Passes that are not begun count as the median of those that are done: the Gram, which is one pass of
    # many, takes far longer than the light ones after it.
    return (of_pass or 0.0) + n_left * usual


def _clock(written: Any) -> str | None:
    from datetime import datetime

    with suppress(ValueError, OverflowError, OSError):  # of no time that there is
        return datetime.fromtimestamp(written).isoformat(" ", "seconds") if written else None
    return None


def _arrays_of(path: str, remote: Remote, more: Iterable[Any] = ()) -> Iterator[tuple[dict[str, Any], Any]]:
    """Descriptions of a Zarr group's arrays, and of more, by name; each with the names of its dimensions."""
    import zarr

    from distrff.io.storage import Location

    found = dict(zarr.open_group(Location.of(path, remote).zarr_store(), mode="r").arrays())
    found |= {z.path: z for z in more}
    for name, z in sorted(found.items()):
        array = {"name": name, "shape": z.shape, "dtype": _dtype_name(z.dtype), "chunks": z.chunks}
        yield array | {"shards": z.shards}, z.metadata.dimension_names


def described_dataset(path: str, dataset: Dataset, remote: Remote) -> Described:
    """Describe rows: how many, of what types, and in what pieces they are stored."""
    from distrff.io.tables import TableReader
    from distrff.io.zarr_rows import CsrReader

    y_dtype, reader = dataset.y_dtype, dataset.reader
    shown: dict[str, Any] = {
        "kind": "dataset",
        "n_rows": dataset.n_rows,
        "n_columns": dataset.n_columns,
        "dtype": str(dataset.dtype),
        "target_names": dataset.target_names,
        "n_targets": dataset.n_targets,
        "target_dtype": None if y_dtype is None else str(y_dtype),
        **{name: getattr(dataset, name) for name in ("has_weights", "row_bytes", "chunk_rows")},
    }
    skipped = (dataset.table_report or {}).get("columns_dropped", {})
    more = {"column_names": dataset.column_names, "skipped_columns": list(skipped)}
    if isinstance(reader, TableReader):
        table: Any = reader.table
        n_groups = sum(len(footer.group_rows) for footer in table.footers)
        types = {field.name: str(field.type) for field in table.schema}
        stored = {"n_files": len(table.footers), "n_row_groups": n_groups, "types": types}
        return shown, more | {"format": "parquet"} | stored
    # The three arrays of a CSR matrix lie in a group inside, where a listing of arrays does not look.
    of_csr = reader.arrays.values() if isinstance(reader, CsrReader) else ()
    arrays = [array for array, _ in _arrays_of(path, remote, of_csr)]
    return shown, more | {"format": "zarr", "arrays": arrays}


def _dtype_name(dtype: Any) -> str:
    """Name of a dtype, "string" for NumPy's variable-length one."""
    return "string" if dtype.kind == "T" else str(dtype)


def _lines(shown: dict[str, Any], more: dict[str, Any]) -> Iterator[str]:
    """Lines of what is known, the kind apart, then of each array and column."""
    yield from aligned({name: v for name, v in shown.items() if name != "kind" and v is not None})
    for a in more.get("arrays", ()):
        chunks = f"  chunks {a['chunks']}" if "chunks" in a else ""
        yield f"  {a['name']}  {tuple(a['shape'])}  {a['dtype']}{chunks}"
    columns, types = more.get("columns") or {}, more.get("types") or {}
    listed = [*columns.items(), *list(types.items())[:_MAX_LISTED]]
    yield from (f"  {name}  {kind}" for name, kind in listed)
    yield from _columns_left_out(len(types))


def _columns_left_out(n_columns: int) -> Iterator[str]:
    if n_columns > _MAX_LISTED:
        yield f"  … and {n_columns - _MAX_LISTED} columns more; --json lists all"


# Findings of one pass over the rows of a dataset.


def described_rows(dataset: Dataset) -> dict[str, Any]:
    """Describe the rows of a dataset: missing values, target balance, drift, and how they are stored."""
    from distrff.diagnostics.survey import rechunk_advice, stored_layout, survey_rows, survey_to_dict
    from distrff.engine.run import begin_run

    run = begin_run()
    survey = survey_to_dict(survey_rows(run, dataset), dataset)
    parts = stored_layout(dataset)
    rechunking = [sentence for part in parts for sentence in rechunk_advice(part)]
    advice = [*rechunking, *_shuffle_advice(survey)]
    return survey | {"storage": parts, "advice": advice, "seconds": run.sweeps[-1][1]}


def _shuffle_advice(survey: dict[str, Any]) -> list[str]:
    target = [{"name": "the target"} | (survey["target"] or {"drifts": False})]
    drifting = [column for column in (*target, *survey["columns"]) if column["drifts"]]
    if not drifting:
        return []
    most = max(found["drift"] for found in drifting)
    named = ", ".join(found["name"] for found in drifting[:3]) + (", …" if len(drifting) > 3 else "")
    return [
        f"shuffle the rows (distrff convert --shuffle SEED) for --solver sgd or --fold-by contiguous, which "
        f"alone need it: of {named} up to {most:.0%} of the variance lies between sixteenths of the rows"
    ]


def _row_lines(values: dict[str, Any], n_rows: int) -> Iterator[str]:
    yield f"rows read in {values['seconds']:.3g} s"
    remarkable = [(c["name"], said) for c in values["columns"] if (said := list(_remarks(c, n_rows)))]
    yield from (f"  {name}: {', '.join(said)}" for name, said in remarkable[:_MAX_LISTED])
    yield from _columns_left_out(len(remarkable))
    if not any(column["missing"] for column in values["columns"]):
        yield "  no missing values in X"
    target = values["target"] or {}
    yield from (f"  target: {remark}" for remark in _remarks(target, n_rows))
    for found in target.get("labels", [])[:_MAX_LISTED]:
        yield f"  target {found['label']}: {found['rows']:,} rows ({found['share']:.2%})"
    for part in values["storage"]:
        yield (
            f"  {part['name']}: {part['n_requests']:,} request(s) per pass, "
            f"{part['stored_bytes'] / max(part['decoded_bytes'], 1):.2f} stored bytes per decoded byte, "
            f"each row decoded {part['decoded_share']:.2f} times"
        )
        if absent := part.get("absent_chunks"):
            chunks = f"{absent:,} of {part['n_requests']:,} chunks"
            yield f"  {part['name']}: {chunks} absent, read as {part['fill_value']}"
    yield from (f"advice: {sentence}" for sentence in values["advice"] or ["none; read as they are"])


def _remarks(column: dict[str, Any], n_rows: int) -> Iterator[str]:
    for what in ("missing", "infinite"):
        if column.get(what):
            yield f"{column[what]:,} {what} ({column[what] / n_rows:.2%})"
    if column.get("drifts"):
        yield f"drifts with the row number ({column['drift']:.0%} of its variance)"
