"""Opening a stored dataset: which reader a path is for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from distrff.data.dataset import Dataset
from distrff.data.parquet_files import GLOB_CHARACTERS, SUFFIXES
from distrff.data.parquet_rows import open_parquet, parquet_source
from distrff.data.storage import locate, public_name, reaching
from distrff.data.zarr_groups import open_zarr
from distrff.errors import InputError

ZARR_MARKERS = ("zarr.json", ".zgroup", ".zattrs", ".zarray")
ACCEPTED = (
    "a Zarr group (zarr.json or .zgroup in a folder) or Parquet (a *.parquet file, a folder of them, a glob)"
    "; CSV, TSV, libsvm, .npz and .npy files become a Zarr group by distrff.convert or `distrff convert`"
)


def open_dataset(
    path: Any,
    *,
    target: Any = None,
    columns: Sequence[int | str] | str | int | None = None,
    sample_weight: int | str | None = None,
    x_name: str = "X",
    y_name: str = "y",
    weight_name: str = "sample_weight",
    storage_options: dict[str, Any] | None = None,
) -> Dataset:
    """Return the dataset stored at `path`; its rows are read later, in the tasks.

    Parameters
    ----------
    path : str, path-like, or list of these for Parquet
        A Zarr group that holds the arrays X (n, d), y (n,) or (n, k) and sample_weight (n,), the
        last two optional; or Parquet: a file, a folder (searched for \\*.parquet and \\*.pq), a glob,
        a list. Files are taken in sorted order. URLs are opened through fsspec.
    target : str, int or list, optional
        Parquet: the column that is y, or a list of columns for a 2-D y. An integer is an index (-1
        the last) unless a column has that name; columns that hold a pandas index are not counted.
        None: no y. Zarr: the array that is y, by default `y_name` if the group has it.
    columns : list of str or int, optional
        The columns of X. By default all of a Zarr X, and for Parquet all numeric and boolean
        columns, lists of fixed length included, except target and weights, in file order. Names
        for Zarr are those of the group's attribute `column_names`.
    sample_weight : str or int, optional
        Column (Parquet) or array (Zarr) of the weights.
    x_name, y_name, weight_name : str
        Names of the Zarr arrays.
    storage_options : dict, optional
        Passed to the fsspec filesystem.

    Raises
    ------
    InputError
        If the path does not exist, is of no accepted kind, or cannot be read; if a column or array
        is missing, lengths disagree, or there are no rows or columns.

    Notes
    -----
    Costs one metadata read (Zarr) or one footer a file (Parquet). In Parquet, nulls in numeric
    columns become NaN and the type of X is NumPy's common type of the columns.
    """
    if stored_kind(path, storage_options) == "parquet":
        paths = list(path) if isinstance(path, (list, tuple)) else [path]
        parquet = parquet_source(paths, storage_options)
        return open_parquet(parquet, target=target, columns=columns, sample_weight=sample_weight)
    return open_zarr_path(
        path,
        target=target,
        columns=columns,
        sample_weight=sample_weight,
        x_name=x_name,
        y_name=y_name,
        weight_name=weight_name,
        storage_options=storage_options,
    )


def open_zarr_path(
    path: Any,
    *,
    target: Any,
    columns: Any,
    sample_weight: Any,
    x_name: str,
    y_name: str,
    weight_name: str,
    storage_options: dict[str, Any] | None,
) -> Dataset:
    """Return the dataset of the Zarr group at `path`; see `open_dataset`."""
    fs, inner = locate(path, storage_options)
    names = {"X": x_name, "y": _array_name(target, y_name, "target")}
    names["sample_weight"] = _array_name(sample_weight, weight_name, "sample_weight")
    # A y or weights that the user named must be there; the defaults may be absent.
    optional = {"y": target is None and y_name == "y"}
    optional["sample_weight"] = sample_weight is None and weight_name == "sample_weight"
    required = frozenset(field for field in names if not optional.get(field, False))
    return open_zarr(
        fs,
        inner,
        os.fspath(path),
        columns=columns,
        names=names,
        required=required,
        storage_options=storage_options,
    )


def stored_kind(path: Any, storage_options: dict[str, Any] | None) -> str:
    """Return what lies at a path: "zarr" or "parquet"; a list of paths is Parquet.

    Raises
    ------
    InputError
        If there is nothing, or nothing of either kind.
    """
    if isinstance(path, (list, tuple)):
        return "parquet"
    fs, inner = locate(path, storage_options)
    with reaching(public_name(path)):
        return _kind(fs, inner, public_name(path))


def id_datasets(
    path: Any, ids: Sequence[str] | str, *, columns: Any, x_name: str, storage_options: dict[str, Any] | None
) -> dict[str, Dataset]:
    """Return for each column of ids the dataset of which it is y."""
    opened = partial(open_dataset, path, x_name=x_name, storage_options=storage_options)
    names = [ids] if isinstance(ids, str) else list(ids)
    return {name: opened(target=name, columns=_without(columns, name)) for name in names}


def _without(columns: Any, name: str) -> Any:
    """Return the columns of X but one, which may be an id as well."""
    if isinstance(columns, (list, tuple)):
        return [column for column in columns if column != name] or None
    return None if columns == name else columns


def _array_name(given: Any, default: str, parameter: str) -> str:
    if given is None:
        return default
    if not isinstance(given, str):
        raise InputError(f"{parameter} of a Zarr group must be the name of an array, got {given!r}")
    return given


def _kind(fs: Any, inner: str, name: str) -> str:
    base, shown = inner.rstrip("/"), name.rstrip("/")  # the latter without the query of a signed URL
    if shown.endswith(".zarr"):
        return "zarr"
    if shown.endswith(SUFFIXES) or (any(c in base for c in GLOB_CHARACTERS) and not fs.exists(base)):
        return "parquet"
    if not fs.exists(inner):
        raise InputError(f"{name} does not exist; check the path")
    if not fs.isdir(inner):
        raise InputError(f"{name} is a file of an unknown kind; accepted is {ACCEPTED}")
    if any(fs.exists(f"{base}/{marker}") for marker in ZARR_MARKERS):
        return "zarr"
    if any(file.endswith(SUFFIXES) for file in fs.find(inner)):
        return "parquet"
    raise InputError(f"{name} is a folder without data; accepted is {ACCEPTED}")
