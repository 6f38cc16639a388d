"""A machine or a Gram as a Zarr v3 group; no pickle, and NumPy alone can read its arrays.

Every array is one uncompressed little-endian chunk, so a matrix `W` is
``np.fromfile("model.zarr/W/c/0/0", dtype).reshape(shape)`` and ``sha256sum`` of that file is its
checksum. Everything else is strict JSON in the root attribute ``distrff``::

    {"kind": "model" | "gram", "format": 1, "version": writer, "complete": true,
     "metadata": {...}, "checksums": {array: sha256 of its bytes},
     "metadata_checksum": sha256 of all of this and the arrays' own zarr.json}

Checksums tell damage and careless edits, not forgery: whoever can write the group can seal it again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from distrff.errors import InputError, ModelFileError
from distrff.io.storage import (
    ROOT,
    Options,
    Url,
    exists_refusal,
    file_bytes,
    file_system,
    header_of,
    in_one_line,
    local_path,
    replacing,
    root_document,
)
from distrff.utils.storable import refuse_loose_json, storable
from distrff.utils.text import public_name

FORMAT = 1
_STORED = ("model", "gram")
_REMEDY = "it is damaged or was altered: save it again or restore a copy"


def write_group(
    url: Url,
    arrays: Mapping[str, np.ndarray],
    metadata: dict[str, Any],
    *,
    kind: str,
    overwrite: bool = False,
    storage_options: Options = None,
) -> None:
    """Write `arrays` and `metadata` as one group that readers see whole or not at all.

    A local group is written beside its place and renamed into it. Object stores have no rename:
    there the group is marked incomplete first, then come the arrays, and the root metadata with the
    ``complete`` marker last; what an interrupted write leaves is refused by readers.

    Parameters
    ----------
    url : str or path
        A local path, or a URL that fsspec understands.
    arrays : mapping of str to ndarray
        Booleans, integers and floats of at most 64 bits, any shape (0-d and empty ones too).
    metadata : dict
        Strict JSON: string keys, finite numbers.
    kind : {"model", "gram"}
        `read_group` asks for the same.
    overwrite : bool
        Replace an existing group of distrff; anything else is never replaced.
    storage_options : dict, optional
        Given to fsspec; not used for local paths.

    Raises
    ------
    InputError
        If the target cannot be written (see `exists_refusal`), or the content cannot be stored.
    """
    arrays = {name: storable(name, A) for name, A in arrays.items()}
    refuse_loose_json(metadata, "metadata")
    header = {
        "kind": kind,
        "format": FORMAT,
        "version": _version(),
        "complete": True,
        "checksums": {name: hashlib.sha256(A.data).hexdigest() for name, A in arrays.items()},
        "metadata": metadata,
    }
    header["metadata_checksum"] = _seal(header, {name: _description(A) for name, A in arrays.items()})
    with in_one_line(InputError, f"{public_name(url)} could not be written"):
        if local_path(url) is not None:
            with replacing(url, overwrite=overwrite, kinds=_STORED) as folder:
                _fill(*file_system(folder, None), arrays, header)
        else:
            exists_refusal(url, overwrite, storage_options, kinds=_STORED)
            _unmark(*file_system(url, storage_options), header)
            _fill(*file_system(url, storage_options), arrays, header)


def read_group(
    url: Url, *, kind: str, storage_options: Options = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return (arrays, metadata) as `write_group` wrote them; everything is checked against its checksum.

    Raises
    ------
    ModelFileError
        If there is no such group, it is of another kind, incomplete, newer, damaged or altered.
    """
    with in_one_line(ModelFileError, f"{public_name(url)} cannot be read"):
        exists, document = root_document(url, storage_options)
        header = header_of(document)
        if header is None:
            what = "does not exist" if not exists else "is not a Zarr group"
            what = what if document is None else "is not a group of distrff (nothing of it in zarr.json)"
            raise ModelFileError(f"{public_name(url)} {what}; give the path that a {kind} was saved to")
        _refuse_header(url, header, kind)
        fs, path = file_system(url, storage_options)
        arrays, described = {}, {}
        for name, checksum in (header.get("checksums") or {}).items():
            what = f"{public_name(url)}: array {name!r}"
            arrays[name], described[name] = _stored_array(what, fs, f"{path}/{name}", checksum)
        if header.get("metadata_checksum") != _seal(header, described):
            raise ModelFileError(f"{public_name(url)}: the metadata do not match their checksum; {_REMEDY}")
        return arrays, header["metadata"]


def _refuse_header(url: Url, header: dict[str, Any], kind: str) -> None:
    found, form = header.get("kind"), header.get("format")
    if isinstance(form, int) and form > FORMAT:
        writer, mine = (f"distrff {v}" for v in (header.get("version"), _version()))
        raise ModelFileError(
            f"{public_name(url)} was written by {writer} in format {form}, unknown to {mine}; update distrff"
        )
    if found != kind:
        raise ModelFileError(f"{public_name(url)}: this is a {found}, not a {kind}")
    if header.get("complete") is not True:
        raise ModelFileError(
            f"{public_name(url)} is incomplete, its writing was interrupted; save the {kind} again"
        )


def _unmark(fs: Any, path: str, header: dict[str, Any]) -> None:
    """Leave a root that says "incomplete" before anything else, and nothing of an older group."""
    unfinished = {"kind": header["kind"], "format": FORMAT, "complete": False}
    fs.pipe_file(f"{path}/zarr.json", _root_text(unfinished))
    fs.invalidate_cache(path)
    for item in fs.ls(path, detail=False):
        if item.strip("/") not in (path.strip("/"), f"{path}/zarr.json".strip("/")):
            fs.rm(item, recursive=True)


def _fill(fs: Any, path: str, arrays: Mapping[str, np.ndarray], header: dict[str, Any]) -> None:
    # File by file in this thread: the order is certain, and nothing is written after an interrupt.
    for name, A in arrays.items():
        fs.pipe_file(f"{path}/{name}/zarr.json", json.dumps(_description(A), indent=2).encode())
        if A.size:
            fs.pipe_file(f"{path}/{name}/{_chunk_key(A.ndim)}", A.tobytes())
    fs.pipe_file(f"{path}/zarr.json", _root_text(header))


def _root_text(header: dict[str, Any]) -> bytes:
    root = {"zarr_format": 3, "node_type": "group", "attributes": {ROOT: header}}
    return json.dumps(root, indent=2, allow_nan=False).encode()


def _chunk_key(n_dimensions: int) -> str:
    return "/".join(["c", *"0" * n_dimensions])


def _description(A: np.ndarray) -> dict[str, Any]:
    """Return the array's zarr.json (Zarr v3 core specification, whose type names are NumPy's)."""
    chunk_shape = [max(1, size) for size in A.shape]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(A.shape),
        "data_type": A.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "fill_value": A.dtype.type(0).item(),
        "attributes": {},
    }


def _stored_array(what: str, fs: Any, path: str, checksum: str) -> tuple[np.ndarray, dict[str, Any]]:
    with in_one_line(ModelFileError, f"{what} cannot be read; {_REMEDY}"):
        try:
            described = json.loads(file_bytes(fs, f"{path}/zarr.json"))
            shape, dtype = described["shape"], np.dtype(described["data_type"])
            data = file_bytes(fs, f"{path}/{_chunk_key(len(shape))}") if math.prod(shape) else b""
        except FileNotFoundError:
            raise ModelFileError(f"{what} is missing; {_REMEDY}") from None
        if hashlib.sha256(data).hexdigest() != checksum:
            raise ModelFileError(f"{what} does not match its checksum; {_REMEDY}")
        return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape), described


def _seal(header: dict[str, Any], described: dict[str, dict[str, Any]]) -> str:
    sealed = {key: value for key, value in header.items() if key != "metadata_checksum"}
    text = json.dumps([sealed, described], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _version() -> str:
    try:
        return version("distrff")
    except PackageNotFoundError:  # run from a source folder that was never installed
        return "unknown"
