"""`distrff inspect`: what a path holds, and how well rows are stored for passes over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

import distrff as drf
from distrff.cli.command import aligned, command, flag, show, verbosity_options
from distrff.cli.data import arguments_of, cluster_options, row_options, storage_options, workers_of
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
_FITTED = ("n_samples", "kernel", "length_scale", "alpha", "cv_score", "criterion", "rkhs_norm", "seed")
_ENDED = (
    "status", "C", "loss", "solver", "tol", "margin",
    "primal", "dual", "duality_gap", "relative_gradient", "relative_residual",
)  # fmt: skip


def described_group(path: str, kind: str, remote: Remote) -> Described:
    """Describe a model, or sums of rows; everything is checked against its checksums."""
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
        folds, size = arrays["A"].shape[:2]
        values = {"n_samples": metadata["n_rows"], "n_folds": folds, "size": size}
    elif kind == "toeplitz":
        rows = metadata["fold_rows"]
        values = {"n_samples": sum(rows), "n_folds": len(rows)}
    else:
        report = metadata["report"]
        values = {"model": metadata["model"], **{key: report.get(key) for key in _FITTED}}
        values |= {key: report[key] for key in _ENDED if key in report}
        values["intervals"] = None if found.intervals is None else str(found.intervals)
    specification = metadata["specification"]
    inner = specification.get("inner", specification)  # of a map with a metric
    shared = {
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
        shared["metric"] = inner["n_columns"], specification["n_columns"]
    names, widths = metadata.get("column_names"), shared.get("length_scale")
    shown = dict(shared)
    if names is not None and isinstance(widths, list) and len(widths) == len(names):
        shown["length_scale"] = dict(zip(names, widths, strict=True))
    listing = [
        {"name": name, "shape": A.shape, "dtype": str(A.dtype), "bytes": A.nbytes}
        for name, A in arrays.items()
    ]
    rest = {key: metadata.get(key) for key in ("column_names", "specification", "report")}
    return {**shared, "arrays": listing, **rest}, [*_value_lines(shown), *_array_lines(listing)]


def described_array(path: str, header: dict[str, Any], remote: Remote) -> Described:
    """Describe a Zarr array, such as predictions."""
    from distrff.io.results import open_array
    from distrff.io.storage import Location

    array = open_array(Location(path, remote), mode="r")
    values = {
        "kind": header.get("kind") or "array",
        "shape": array.shape,
        "dtype": _dtype_name(array.dtype),
        "chunks": array.chunks,
        **{key: header.get(key) for key in ("complete", "model")},
    }
    return values, _value_lines(values)


def described_results(header: dict[str, Any]) -> Described:
    """Describe predictions in several columns, by what their header says."""
    values = {key: header.get(key) for key in ("kind", "format", "n_rows", "complete", "model")}
    columns = header.get("columns")
    listing = [f"  {name}  {kind}" for name, kind in (columns or {}).items()]
    return {**values, "columns": columns}, [*_value_lines(values), *listing]


def described_checkpoint(path: str, remote: Remote) -> Described:
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
            **_pass_under_way(progress),
            "seconds of passes": progress.get("seconds", 0.0),
            "seconds left": _seconds_left(header, progress),
        }
    values = {
        "kind": header["kind"],
        **how_far,
        "last write": _clock(progress.get("written")),
        "version": header.get("version"),
        "bytes": found["bytes"],
    }
    return values, _value_lines(values)


def _pass_under_way(progress: dict[str, Any]) -> dict[str, Any]:
    """Name of the pass that was under way at the last write, and its segments."""
    if not progress.keys() >= {"label", "n_segments", "n_segments_done"}:
        return {}
    done = f"{progress['n_segments_done']} of {progress['n_segments']} segments"
    return {"under way": f"{progress['label']}, {done}"}


def _seconds_left(header: dict[str, Any], progress: dict[str, Any]) -> float | None:
    """Seconds of the passes that are left of those planned; None where that is not known.

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
    listing = [array | {"dimensions": names} for array, names in _arrays_of(path, remote)]
    listing.sort(key=lambda array: array["name"] not in ("prediction", "std"))
    values = {key: header.get(key) for key in ("kind", "format", "complete", "model")}
    return {**values, "arrays": listing}, [*_value_lines(values), *_array_lines(listing)]


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

    values: dict[str, Any] = {
        "kind": "dataset",
        **{name: getattr(dataset, name) for name in ("n_rows", "n_columns")},
        "dtype": str(dataset.dtype),
        **{name: getattr(dataset, name) for name in ("target_names", "n_targets")},
        "target_dtype": None if dataset.y_dtype is None else str(dataset.y_dtype),
        **{name: getattr(dataset, name) for name in ("has_weights", "row_bytes", "chunk_rows")},
    }
    reader = dataset.reader
    lines = _value_lines(values)
    if isinstance(reader, TableReader):
        table: Any = reader.table
        types, footers = {field.name: str(field.type) for field in table.schema}, table.footers
        n_groups = sum(len(footer.group_rows) for footer in footers)
        stored = {"format": "parquet", "n_files": len(footers), "n_row_groups": n_groups, "types": types}
        lines += [f"  {name}  {kind}" for name, kind in list(types.items())[:_MAX_LISTED]]
        if len(types) > _MAX_LISTED:
            lines.append(f"  … and {len(types) - _MAX_LISTED} columns more; --json lists all")
    else:
        more = reader.arrays.values() if isinstance(reader, CsrReader) else ()
        arrays = [array for array, _ in _arrays_of(path, remote, more)]
        stored = {"format": "zarr", "arrays": arrays}
        lines += _array_lines(arrays)
    names = {"column_names": dataset.column_names, "skipped_columns": dataset.skipped_columns}
    return {**values, **names, **stored}, lines


def _array_lines(arrays: list[dict[str, Any]]) -> list[str]:
    return [
        "  " + "  ".join([a["name"], str(tuple(a["shape"])), a["dtype"]])
        + (f"  chunks {a['chunks']}" if "chunks" in a else "")
        for a in arrays
    ]  # fmt: skip


def _value_lines(values: dict[str, Any]) -> list[str]:
    """Lines of what is known; the kind is in the first line."""
    return aligned({name: value for name, value in values.items() if name != "kind" and value is not None})


def _dtype_name(dtype: Any) -> str:
    """Name of a dtype, "string" for NumPy's variable-length one."""
    return "string" if dtype.kind == "T" else str(dtype)


# Findings of one pass over the rows of a dataset: values for JSON, and lines for people.


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
