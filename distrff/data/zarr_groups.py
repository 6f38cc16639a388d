"""Opening a Zarr group: which of its arrays are the rows, and what is refused before any is read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import zarr

from distrff.columns.table_steps import TableSteps
from distrff.data.csr_rows import ENCODING, ENTRIES, CsrReader
from distrff.data.dataset import Dataset, check_lengths, sparse_share
from distrff.data.matrices import check_real, check_shape, check_target_shape, check_weight_shape
from distrff.data.selection import Numbered, find_columns
from distrff.data.storage import SPAN_BYTES, is_local, one_line, public_name, reaching
from distrff.data.zarr_rows import ZarrReader, row_bytes
from distrff.errors import InputError
from distrff.model_store.places import ROOT


def open_zarr(
    fs: Any,
    inner: str,
    path: str,
    *,
    columns: Any,
    names: dict[str, str],
    required: frozenset[str],
    storage_options: dict[str, Any] | None,
) -> Dataset:
    """Return the dataset of a Zarr group; see `open_dataset`.

    `names` maps X, y and sample_weight to names of arrays; those in `required` must exist.
    """
    source = public_name(path)
    with reaching(source):
        group = _open_group(fs, inner, path, source, storage_options)
        _refuse_incomplete(group, source)
        if isinstance(group.get(names["X"]), zarr.Group):
            return _open_csr(group, names, required, columns, source, is_remote=not is_local(fs))
        found = {f: _array(group, name, source, f in required) for f, name in names.items()}
    arrays = {f: z for f, z in found.items() if z is not None}
    _check(arrays)
    chosen, column_names = _columns(group, arrays["X"], columns, source)
    reader = ZarrReader(arrays, chosen, source, is_remote=not is_local(fs))
    X, y = arrays["X"], arrays.get("y")
    chunk_rows = min(X.shape[0], reader.held_rows("X"))
    return Dataset(
        reader=reader,
        n_rows=X.shape[0],
        n_columns=X.shape[1] if chosen is None else len(chosen),
        dtype=reader.dtype("X"),
        source=source,
        row_bytes=sum(map(row_bytes, arrays.values())),
        chunk_rows=chunk_rows,
        column_names=column_names,
        target_names=(names["y"],) if y is not None and y.ndim == 1 else None,
        y_dtype=None if y is None else reader.dtype("y"),
        n_targets=0 if y is None else int(np.prod(y.shape[1:])),
        y_is_1d=y is None or y.ndim == 1,
        has_weights="sample_weight" in arrays,
        steps=_steps(group, X.shape[1], chosen, source),
        held_bytes=reader.held_bytes(chunk_rows),
    )


def _open_csr(
    group: Any,
    names: dict[str, str],
    required: frozenset[str],
    columns: Any,
    source: str,
    *,
    is_remote: bool,
) -> Dataset:
    """The dataset whose X is a group that holds a CSR matrix."""
    X, label = group[names["X"]], f"{source}/{names['X']}"
    encoding, shape = X.attrs.get("encoding-type"), X.attrs.get("shape")
    if encoding != ENCODING or not isinstance(shape, (list, tuple)) or len(shape) != 2:
        raise InputError(
            f"{label} is a group of encoding-type {encoding!r} and shape {shape!r}; of groups, only a "
            f"{ENCODING!r} with its shape can be X"
        )
    n_rows, n_columns = (int(n) for n in shape)
    check_shape((n_rows, n_columns), "X")
    parts: dict[str, Any] = {part: _array(X, part, label, True) for part in ENTRIES}
    check_real(parts["data"].dtype, "X")
    if parts["indptr"].shape[0] != n_rows + 1 or parts["indices"].shape != parts["data"].shape:
        raise InputError(f"{label}: data, indices and indptr do not fit its shape {shape}; write it again")
    others = {f: _array(group, name, source, f in required) for f, name in names.items() if f != "X"}
    others = {f: z for f, z in others.items() if z is not None}
    _check_others(others)
    check_lengths({"X": n_rows} | {f: z.shape[0] for f, z in others.items()})
    arrays, y = ZarrReader(parts | others, None, source, is_remote=is_remote), others.get("y")
    chosen = None if columns is None else find_columns(columns, Numbered(n_columns), source)
    entries = parts["data"].shape[0] / n_rows
    entry_bytes = parts["data"].dtype.itemsize + parts["indices"].dtype.itemsize
    return Dataset(
        reader=CsrReader(arrays, ("X", *others), n_rows, n_columns, chosen),
        n_rows=n_rows,
        n_columns=n_columns if chosen is None else len(chosen),
        dtype=arrays.dtype("data"),
        source=source,
        row_bytes=int(entries * entry_bytes) + 8 + sum(row_bytes(z) for z in others.values()),
        chunk_rows=min(n_rows, max(1, int(SPAN_BYTES / (entries * entry_bytes + 1)))),
        target_names=(names["y"],) if y is not None and y.ndim == 1 else None,
        y_dtype=None if y is None else arrays.dtype("y"),
        n_targets=0 if y is None else int(np.prod(y.shape[1:])),
        y_is_1d=y is None or y.ndim == 1,
        has_weights="sample_weight" in others,
        steps=_steps(group, n_columns, chosen, source),
        column_share=sparse_share(entries, n_columns),
        held_bytes=arrays.held_bytes(0),
    )


def _open_group(fs: Any, inner: str, path: str, source: str, storage_options: dict[str, Any] | None) -> Any:
    try:
        if is_local(fs):
            return zarr.open_group(inner, mode="r")
        store = zarr.storage.FsspecStore.from_url(path, storage_options=storage_options, read_only=True)
        return zarr.open_group(store, mode="r")
    except (zarr.errors.ContainsArrayError, AssertionError) as error:  # zarr 3.1.0 asserts
        raise InputError(f"{source} is a Zarr array; pass the group that holds the arrays X and y") from error
    except FileNotFoundError as error:
        raise InputError(f"{source} does not exist or is not a Zarr group; check the path") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = _wrong_document(fs, inner) or one_line(error)
        raise InputError(f"{source} is not a readable Zarr group ({why}); write it again") from error


def _wrong_document(fs: Any, inner: str) -> str | None:
    """What is wrong with the root metadata before anybody looks for what it should say; None if nothing."""
    try:
        document = json.loads(fs.cat_file(f"{inner.rstrip('/')}/zarr.json"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        return "its zarr.json is no JSON"
    if not isinstance(document, dict):
        return "its zarr.json is no JSON object"
    if not isinstance(document.get("attributes", {}), dict):
        return "the attributes in its zarr.json are no JSON object"
    return None


def _refuse_incomplete(group: Any, source: str) -> None:
    """Refuse what distrff began to write and did not finish; missing chunks would read as zeros."""
    header = group.attrs.get(ROOT)
    if isinstance(header, dict) and header.get("complete") is False:
        raise InputError(f"{source} is incomplete, its writing was interrupted; write it again")


def _array(group: Any, name: str, source: str, required: bool) -> Any:
    try:
        found = group[name]
    except KeyError:
        found = None
    except (ValueError, TypeError) as error:
        raise InputError(f"{source}: the metadata of {name!r} cannot be read ({one_line(error)})") from error
    if isinstance(found, zarr.Array):
        return found
    if required:
        others = ", ".join(sorted(group.array_keys())) or "none"
        raise InputError(f"{source} has no array {name!r}; its arrays are: {others}")
    return None


def _check(arrays: dict[str, Any]) -> None:
    check_shape(arrays["X"].shape, "X")
    check_real(arrays["X"].dtype, "X")
    _check_others(arrays)
    check_lengths({f: z.shape[0] for f, z in arrays.items()})


def _check_others(arrays: dict[str, Any]) -> None:
    if "y" in arrays:
        check_target_shape(arrays["y"].shape, arrays["y"].dtype)
    if "sample_weight" in arrays:
        check_weight_shape(arrays["sample_weight"].shape)
        check_real(arrays["sample_weight"].dtype, "sample_weight")


def _steps(group: Any, n_columns: int, chosen: list[int] | None, source: str) -> TableSteps | None:
    """The steps that made X of a table, if it was made so."""
    stored = group.attrs.get("steps")
    if stored is None:
        return None
    try:
        steps = TableSteps.from_dict(stored)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{source}: the attribute steps cannot be read ({one_line(error)})") from error
    if not steps.sizes_within(n_columns):
        raise InputError(f"{source}: its steps make more columns than the {n_columns} of X; write it again")
    if len(steps.names_out) != n_columns:
        raise InputError(f"{source}: its steps make {len(steps.names_out)} columns but X has {n_columns}")
    return steps if chosen is None else steps.of_columns(chosen)


def _columns(
    group: Any, X: Any, columns: Any, source: str
) -> tuple[list[int] | None, tuple[str, ...] | None]:
    """The indices of the chosen columns (None: all) and their names."""
    given = group.attrs.get("column_names")
    names = None if given is None else tuple(map(str, given))
    if names is not None and len(names) != X.shape[1]:
        raise InputError(f"{source}: column_names lists {len(names)} names but X has {X.shape[1]} columns")
    if columns is None:
        return None, names
    labels = names or Numbered(X.shape[1])
    chosen = find_columns(columns, labels, source)
    return chosen, None if names is None else tuple(names[i] for i in chosen)
