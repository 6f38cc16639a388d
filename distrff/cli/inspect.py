"""`distrff inspect`: what a path holds, and how well rows are stored for passes over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from distrff.cli.command import command
from distrff.cli.data import arguments_of, storage_options, workers_of
from distrff.cli.options import cluster_options, flag, row_options, verbosity_options
from distrff.cli.output import aligned, dtype_name, show
from distrff.utils.text import public_name

if TYPE_CHECKING:
    from distrff.io.dataset import Dataset


@command()
@click.argument("path")
@row_options
@flag("--no-rows", "Read no rows of a dataset, its metadata only.")
@cluster_options
@verbosity_options
def inspect(path: str, as_json: bool, **options: Any) -> None:
    """Describe what is at PATH.

    That is a model, a Gram, a checkpoint, what predict, raster or transform wrote, or a dataset.

    The options are for datasets, and mean the same as for fit. One pass over a dataset's rows counts
    missing values and the target's labels, and finds the columns that drift with the row number. Advice
    follows where other chunks or a shuffle would make later passes cheaper.
    """
    from distrff.io.open import stored_dataset
    from distrff.io.storage import Location, header_of

    remote = storage_options(options)
    document = Location.of(path, remote).root() or {}
    header = header_of(document) or {}
    if header.get("kind") in ("model", "gram", "toeplitz"):
        values, lines = described_group(path, header["kind"], remote)
    elif document.get("node_type") == "array":
        values, lines = described_array(path, header, remote)
    elif header.get("kind") == "predictions":
        values, lines = described_results(header)
    elif header.get("kind") == "checkpoint":
        values, lines = described_checkpoint(path, remote)
    elif header.get("kind") == "raster":
        values, lines = described_raster(path, header, remote)
    else:
        dataset = stored_dataset(path, **arguments_of(options))
        values, lines = described_dataset(path, dataset, remote)
        if not options["no_rows"]:
            with workers_of(options):
                found, more = described_rows(dataset)
            values, lines = {**values, **found}, [*lines, *more]
    name = public_name(path)
    show({"path": name, **values}, as_json=as_json, lines=[f"{name}: {values['kind']}", *lines])


# Descriptions of what is stored: values for JSON, and lines for people.

Remote = dict[str, Any] | None
Described = tuple[dict[str, Any], list[str]]

_MAX_LISTED = 20
_LAYERS = ("prediction", "std")  # of a raster
_SIZES = ("n_components", "n_bins", "n_columns")  # of which a map has the first as its columns of Z
_FITTED = ("n_samples", "kernel", "length_scale", "alpha", "cv_score", "criterion", "rkhs_norm", "seed")
_ENDED = (
    "status", "C", "loss", "solver", "tol", "margin",
    "primal", "dual", "duality_gap", "relative_gradient", "relative_residual",
)  # fmt: skip


def described_group(path: str, kind: str, remote: Remote) -> Described:
    """Describe a model, or sums of rows; everything is checked against its checksums."""
    from distrff.fitting.equispaced_sums import ToeplitzStatistics
    from distrff.fitting.gram_sums import GramStatistics
    from distrff.io.storage import read_group
    from distrff.model.persistence import model_of

    checks = {"model": model_of, "gram": GramStatistics.of_group, "toeplitz": ToeplitzStatistics.of_group}
    arrays, metadata = read_group(path, kind=kind, storage_options=remote)
    found: Any = checks[kind](path, arrays, metadata)
    listing = [
        {"name": name, "shape": A.shape, "dtype": str(A.dtype), "bytes": A.nbytes}
        for name, A in arrays.items()
    ]
    if kind == "gram":
        folds, size = arrays["A"].shape[:2]
        values = {"n_samples": metadata["n_rows"], "n_folds": folds, "size": size}
    elif kind == "toeplitz":
        rows = metadata["fold_rows"]
        values = {"n_samples": sum(rows), "n_folds": len(rows)}
    else:
        report = metadata["report"]
        ended = {key: report[key] for key in _ENDED if key in report}
        intervals = None if found.intervals is None else str(found.intervals)
        fitted = {key: report.get(key) for key in _FITTED}
        values = {"model": metadata["model"], **fitted, **ended, "intervals": intervals}
    specification = metadata["specification"]
    inner = specification.get("inner", specification)  # of a map with a metric
    shared = {
        "kind": kind,
        **values,
        "features": inner["kind"],
        "n_columns": specification["n_columns"],
        "n_components": _n_components(metadata["specification"]),
        "dtype": metadata.get("dtype", "float64"),
        "classes": metadata.get("classes", {}).get("labels"),
        "bytes": sum(A.nbytes for A in arrays.values()),
    }
    if inner is not specification:
        shared["metric"] = inner["n_columns"], specification["n_columns"]
    lines = [*aligned(_with_names(_but_kind(shared), metadata)), *_array_lines(listing)]
    rest = {key: metadata.get(key) for key in ("column_names", "specification", "report")}
    return {**shared, "arrays": listing, **rest}, lines


def _with_names(values: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the widths of a kernel by the names of their columns, if these are known."""
    names, widths = metadata.get("column_names"), values.get("length_scale")
    if names is None or not isinstance(widths, list) or len(widths) != len(names):
        return values
    return values | {"length_scale": dict(zip(names, widths, strict=True))}


def _n_components(specification: dict[str, Any]) -> int:
    """Return the size of the map, as its parameter gives it."""
    from distrff.features.registry import specification_from_dict

    inner = specification.get("inner", specification)  # of a map with a metric
    sizes = [inner[size] for size in _SIZES if size in inner and inner["kind"] != "equispaced"]
    return int(sizes[0]) if sizes else specification_from_dict(specification).n_features


def described_array(path: str, header: dict[str, Any], remote: Remote) -> Described:
    """Describe a Zarr array, such as predictions."""
    from distrff.io.results import open_array
    from distrff.io.storage import Location

    array = open_array(Location(path, remote), mode="r")
    values = {
        "kind": header.get("kind") or "array",
        "shape": array.shape,
        "dtype": dtype_name(array.dtype),
        "chunks": array.chunks,
        "complete": header.get("complete"),
        "model": header.get("model"),
    }
    return values, aligned(_but_kind(values))


def described_results(header: dict[str, Any]) -> Described:
    """Describe predictions in several columns, by what their header says."""
    values = {key: header.get(key) for key in ("kind", "format", "n_rows", "complete", "model")}
    columns = header.get("columns")
    listing = [f"  {name}  {kind}" for name, kind in (columns or {}).items()]
    return {**values, "columns": columns}, [*aligned(_but_kind(values)), *listing]


def described_checkpoint(path: str, remote: Remote) -> Described:
    """Describe a checkpoint: how far it is, and about how long the rest takes."""
    from distrff.io.checkpoints import described
    from distrff.io.storage import Location

    found = described(Location.of(path, remote))
    header, progress = found["header"], found["progress"]
    if header.get("of") == "conversion":
        return described_conversion(found)
    n_planned = header.get("n_sweeps", 0)
    values = {
        "kind": header["kind"],
        "of": "fit",
        "model": header.get("estimator"),
        "rows from": header.get("source"),
        "n_samples": header.get("n_rows"),
        "solver": header.get("solver"),
        "passes done": progress.get("n_sweeps", 0),
        # Of iterative fits the plan presumes a number, which says nothing once it is exceeded.
        "passes planned": n_planned if n_planned > progress.get("n_sweeps", 0) else None,
        **_pass_under_way(progress),
        "seconds of passes": progress.get("seconds", 0.0),
        "seconds left": _seconds_left(header, progress),
        "last write": _clock(progress.get("written")),
        "version": header.get("version"),
        "bytes": found["bytes"],
    }
    return values, aligned(_but_kind(values))


def described_conversion(found: dict[str, Any]) -> Described:
    """Describe the checkpoint of a conversion, which looks through its files, reads them, and writes."""
    header, progress = found["header"], found["progress"]
    values = {
        "kind": header["kind"],
        "of": "conversion",
        "to": header.get("dst"),
        "under way": None,
        "seconds left of that": progress.get("seconds_left_of_stage"),
        "last write": _clock(progress.get("written")),
        "version": header.get("version"),
        "bytes": found["bytes"],
    }
    if progress.keys() >= {"stage", "done", "total", "unit"}:
        values["under way"] = "{stage}, {done:,} of {total:,} {unit}".format(**progress)
    return values, aligned(_but_kind(values))


def _pass_under_way(progress: dict[str, Any]) -> dict[str, Any]:
    """Return the name of the pass that was under way at the last write, and its segments."""
    if not progress.keys() >= {"label", "n_segments", "n_segments_done"}:
        return {}
    done = f"{progress['n_segments_done']} of {progress['n_segments']} segments"
    return {"under way": f"{progress['label']}, {done}"}


def _seconds_left(header: dict[str, Any], progress: dict[str, Any]) -> float | None:
    """Return the seconds of the passes that are left of those planned; None where that is not known.

    Passes that are not begun count as the median of those that are done, as the Gram, which is one pass of
    many, takes far longer than the light ones after it. An iterative fit may take more passes than planned.
    """
    n_done, of_pass = progress.get("n_sweeps", 0), progress.get("seconds_left_of_pass")
    under_way, usual = bool(progress.get("n_segments")), progress.get("seconds_of_usual_pass")
    n_left = header.get("n_sweeps", 0) - n_done - under_way
    if n_left <= 0 or usual is None or (under_way and of_pass is None):
        return of_pass
    return (of_pass or 0.0) + n_left * usual


def _clock(written: Any) -> str | None:
    from datetime import datetime

    with suppress(ValueError, OverflowError, OSError):  # of no time that there is
        return datetime.fromtimestamp(written).isoformat(" ", "seconds") if written else None
    return None


def described_raster(path: str, header: dict[str, Any], remote: Remote) -> Described:
    """Describe predictions on a grid: its layers, dimensions and coordinates."""
    import zarr

    from distrff.io.storage import Location

    found = dict(zarr.open_group(Location.of(path, remote).zarr_store(), mode="r").arrays())
    listing = [
        {
            "name": name,
            "shape": z.shape,
            "dtype": dtype_name(z.dtype),
            "dimensions": z.metadata.dimension_names,
            "chunks": z.chunks,
        }
        for name, z in sorted(found.items(), key=lambda item: (item[0] not in _LAYERS, item[0]))
    ]
    values = {key: header.get(key) for key in ("kind", "format", "complete", "model")}
    return {**values, "arrays": listing}, [*aligned(_but_kind(values)), *_array_lines(listing)]


def described_dataset(path: str, dataset: Dataset, remote: Remote) -> Described:
    """Describe rows: how many, of what types, and in what pieces they are stored."""
    from distrff.io.tables import TableReader

    values: dict[str, Any] = {
        "kind": "dataset",
        "n_rows": dataset.n_rows,
        "n_columns": dataset.n_columns,
        "dtype": str(dataset.dtype),
        "target_names": dataset.target_names,
        "n_targets": dataset.n_targets,
        "target_dtype": None if dataset.y_dtype is None else str(dataset.y_dtype),
        "has_weights": dataset.has_weights,
        "row_bytes": dataset.row_bytes,
        "chunk_rows": dataset.chunk_rows,
    }
    reader = dataset.reader
    stored = _parquet(reader.table) if isinstance(reader, TableReader) else _zarr(path, remote, reader)
    lines = [*aligned(_but_kind(values)), *_array_lines(stored.get("arrays", []))]
    types = stored.get("types", {})
    lines += [f"  {name}  {kind}" for name, kind in list(types.items())[:_MAX_LISTED]]
    if len(types) > _MAX_LISTED:
        lines.append(f"  … and {len(types) - _MAX_LISTED} columns more; --json lists all")
    names = {"column_names": dataset.column_names, "skipped_columns": dataset.skipped_columns}
    return {**values, **names, **stored}, lines


def _parquet(table: Any) -> dict[str, Any]:
    types = {field.name: str(field.type) for field in table.schema}
    n_groups = sum(len(footer.group_rows) for footer in table.footers)
    return {"format": "parquet", "n_files": len(table.footers), "n_row_groups": n_groups, "types": types}


def _zarr(path: str, remote: Remote, reader: Any) -> dict[str, Any]:
    import zarr

    from distrff.io.storage import Location
    from distrff.io.zarr_rows import CsrReader

    group = zarr.open_group(Location(path, remote).zarr_store(), mode="r")
    found = dict(group.arrays())
    if isinstance(reader, CsrReader):
        found |= {z.path: z for z in reader.arrays.arrays.values()}
    arrays = [
        {"name": name, "shape": z.shape, "dtype": dtype_name(z.dtype), "chunks": z.chunks, "shards": z.shards}
        for name, z in sorted(found.items())
    ]
    return {"format": "zarr", "arrays": arrays}


def _array_lines(arrays: list[dict[str, Any]]) -> list[str]:
    return [
        "  " + "  ".join([a["name"], str(tuple(a["shape"])), a["dtype"]])
        + (f"  chunks {a['chunks']}" if "chunks" in a else "")
        for a in arrays
    ]  # fmt: skip


def _but_kind(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "kind" and value is not None}


# What one pass over the rows of a dataset found: values for JSON, and lines for people.


def described_rows(dataset: Dataset) -> tuple[dict[str, Any], list[str]]:
    """Describe the rows of a dataset: missing values, target balance, drift, and how they are stored."""
    from distrff.diagnostics.survey import rechunk_advice, stored_layout, survey_rows, survey_to_dict
    from distrff.engine.run import begin_run

    run = begin_run()
    survey = survey_to_dict(survey_rows(run, dataset), dataset)
    parts = stored_layout(dataset)
    rechunking = [sentence for part in parts for sentence in rechunk_advice(part)]
    values = {
        **survey,
        "storage": parts,
        "advice": [*rechunking, *_shuffle_advice(survey)],
        "seconds": run.sweeps[-1][1],
    }
    return values, list(_lines(values, dataset.n_rows))


def _shuffle_advice(survey: dict[str, Any]) -> list[str]:
    drifting = [column for column in survey["columns"] if column["drifts"]]
    if survey["target"] is not None and survey["target"]["drifts"]:
        drifting.insert(0, {"name": "the target", **survey["target"]})
    if not drifting:
        return []
    most = max(found["drift"] for found in drifting)
    named = ", ".join(found["name"] for found in drifting[:3]) + (", …" if len(drifting) > 3 else "")
    return [
        f"shuffle the rows (distrff convert --shuffle SEED) for --solver sgd or --fold-by contiguous, which "
        f"alone need it: of {named} up to {most:.0%} of the variance lies between sixteenths of the rows"
    ]


def _lines(values: dict[str, Any], n_rows: int) -> Iterator[str]:
    yield f"rows read in {values['seconds']:.3g} s"
    remarkable = [c for c in values["columns"] if c["missing"] or c["infinite"] or c["drifts"]]
    for column in remarkable[:_MAX_LISTED]:
        yield f"  {column['name']}: " + ", ".join(_remarks(column, n_rows))
    if len(remarkable) > _MAX_LISTED:
        yield f"  … and {len(remarkable) - _MAX_LISTED} columns more; --json lists all"
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
    yield from (f"advice: {sentence}" for sentence in values["advice"] or ["none; read as they are"])


def _remarks(column: dict[str, Any], n_rows: int) -> Iterator[str]:
    for what in ("missing", "infinite"):
        if column.get(what):
            yield f"{column[what]:,} {what} ({column[what] / n_rows:.2%})"
    if column.get("drifts"):
        yield f"drifts with the row number ({column['drift']:.0%} of its variance)"
