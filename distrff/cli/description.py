"""Descriptions of what is stored: values for JSON, and lines for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distrff.cli.output import aligned, dtype_name

if TYPE_CHECKING:
    from distrff.data.dataset import Dataset

Remote = dict[str, Any] | None
Described = tuple[dict[str, Any], list[str]]

_MOST_LISTED = 20
_SIZES = ("n_components", "n_bins", "n_columns")  # of which a map has the first as its columns of Z


def root_document(path: str, remote: Remote) -> dict[str, Any]:
    """Return what the root zarr.json or folder mark at `path` says; empty where nothing can be read."""
    from distrff.data.storage import public_name, reaching
    from distrff.model_store import places

    with reaching(public_name(path)):
        _, document = places.root_document(path, remote)
    return document if isinstance(document, dict) else {}


def described_group(path: str, kind: str, remote: Remote) -> Described:
    """Describe a model or a Gram; everything is checked against its checksums."""
    from distrff.model_store.groups import read_group
    from distrff.model_store.models import model_of

    arrays, metadata = read_group(path, kind=kind, storage_options=remote)
    if kind == "model":
        model_of(path, arrays, metadata)
    listing = [
        {"name": name, "shape": A.shape, "dtype": str(A.dtype), "bytes": A.nbytes}
        for name, A in arrays.items()
    ]
    if kind == "gram":
        folds, size = arrays["A"].shape[:2]
        values = {"n_samples": metadata["n_rows"], "n_folds": folds, "size": size}
    else:
        report = metadata["report"]
        keys = ("n_samples", "kernel", "length_scale", "alpha", "cv_score", "criterion", "rkhs_norm", "seed")
        ended = ("status", "C", "loss", "solver", "tol", "margin")
        how_well = ("primal", "dual", "duality_gap", "relative_gradient", "relative_residual")
        iterative = {key: report[key] for key in (*ended, *how_well) if key in report}
        values = {"model": metadata["model"], **{key: report.get(key) for key in keys}, **iterative}
    specification = metadata["specification"]
    shared = {
        "kind": kind,
        **values,
        "features": specification["kind"],
        "n_columns": specification["n_columns"],
        "n_components": next(specification[size] for size in _SIZES if size in specification),
        "dtype": metadata["dtype"],
        "classes": metadata.get("classes", {}).get("labels"),
        "bytes": sum(A.nbytes for A in arrays.values()),
    }
    lines = [*aligned(_but_kind(shared)), *_array_lines(listing)]
    rest = {key: metadata.get(key) for key in ("column_names", "specification", "report")}
    return {**shared, "arrays": listing, **rest}, lines


def described_array(path: str, header: dict[str, Any], remote: Remote) -> Described:
    """Describe a Zarr array, such as predictions."""
    from distrff.sweeps.location import Location
    from distrff.sweeps.zarr_results import open_array

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
    values = {key: header.get(key) for key in ("kind", "format", "n_rows", "complete", "model", "columns")}
    columns = [f"  {name}  {kind}" for name, kind in (header.get("columns") or {}).items()]
    shown = {key: value for key, value in values.items() if key != "columns"}
    return values, [*aligned(_but_kind(shown)), *columns]


def described_dataset(path: str, dataset: Dataset, remote: Remote) -> Described:
    """Describe rows: how many, of what types, and in what pieces they are stored."""
    from distrff.data.parquet_rows import ParquetReader

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
    is_parquet = isinstance(dataset.reader, ParquetReader)
    stored = _parquet(path, remote) if is_parquet else _zarr(path, remote, dataset.reader)
    lines = [*aligned(_but_kind(values)), *_array_lines(stored.get("arrays", []))]
    types = stored.get("types", {})
    lines += [f"  {name}  {kind}" for name, kind in list(types.items())[:_MOST_LISTED]]
    if len(types) > _MOST_LISTED:
        lines.append(f"  … and {len(types) - _MOST_LISTED} columns more; --json lists all")
    names = {"column_names": dataset.column_names, "skipped_columns": dataset.skipped_columns}
    return {**values, **names, **stored}, lines


def _parquet(path: str, remote: Remote) -> dict[str, Any]:
    from distrff.data.parquet_files import find_files, read_footers

    fs, files = find_files([path], remote)
    footers = read_footers(fs, files)
    types = {field.name: str(field.type) for field in footers[0].schema}
    n_groups = sum(len(footer.group_rows) for footer in footers)
    return {"format": "parquet", "n_files": len(files), "n_row_groups": n_groups, "types": types}


def _zarr(path: str, remote: Remote, reader: Any) -> dict[str, Any]:
    import zarr

    from distrff.data.csr_rows import CsrReader
    from distrff.sweeps.location import Location

    group = zarr.open_group(Location(path, remote).store(), mode="r")
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
