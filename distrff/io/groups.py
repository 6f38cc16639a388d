"""A model or a Gram as a Zarr v3 group; no pickle, and NumPy alone can read its arrays.

Every array is one uncompressed little-endian chunk, so a matrix `W` is
``np.fromfile("model.zarr/W/c/0/0", dtype).reshape(shape)`` and ``sha256sum`` of that file is its
checksum. Everything else is strict JSON in the root attribute ``distrff``::

    {"kind": "model" | "gram" | "toeplitz", "format": 1, "version": writer, "complete": true,
     "metadata": {...}, "checksums": {array: sha256 of its bytes},
     "metadata_checksum": sha256 of all of this and the arrays' own zarr.json}

Checksums reveal damage and careless edits, not forgery: whoever can write the group can seal it again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from distrff.errors import ModelFileError
from distrff.io.storage import (
    Location,
    Options,
    Url,
    file_bytes,
    header_of,
    replacing,
    root_text,
    storage_errors,
)
from distrff.utils.validation import refuse_loose_json, storable

FORMAT = 1
_STORED = ("model", "gram", "toeplitz")
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
    """Write `arrays` and `metadata` as one group, which readers see complete or not at all; see `replacing`.

    Arrays hold booleans, integers or floats of at most 64 bits, in any shape (0-d and empty ones too);
    `metadata` is strict JSON: string keys, finite numbers. `kind` is "model", "gram" or "toeplitz".
    """
    arrays = {name: storable(name, A) for name, A in arrays.items()}
    refuse_loose_json(metadata, "metadata")
    header = {
        "kind": kind,
        "format": FORMAT,
        "version": package_version(),
        "complete": True,
        "checksums": {name: hashlib.sha256(A.data).hexdigest() for name, A in arrays.items()},
        "metadata": metadata,
    }
    header["metadata_checksum"] = _seal(header, {name: _description(A) for name, A in arrays.items()})
    location = Location.of(url, storage_options)
    with (
        storage_errors(f"{location} could not be written"),
        replacing(location, overwrite=overwrite, kinds=_STORED) as fresh,
    ):
        _fill(fresh, arrays, header)


def read_group(
    url: Url, *, kind: str, storage_options: Options = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return (arrays, metadata) as `write_group` wrote them, all checked against the checksums.

    Raises ModelFileError if there is no group, or it is of another kind, incomplete, of a newer format,
    damaged or altered.
    """
    location = Location.of(url, storage_options)
    with storage_errors(f"{location} cannot be read", ModelFileError):
        document = location.root()
        header = header_of(document)
        if header is None:
            what = "is not a Zarr group" if location.exists() else "does not exist"
            what = what if document is None else "is not a group of distrff (no header in its zarr.json)"
            raise ModelFileError(f"{location} {what}; give the path that a {kind} was saved to")
        found, form = header.get("kind"), header.get("format")
        if isinstance(form, int) and form > FORMAT:
            writer, mine = (f"distrff {v}" for v in (header.get("version"), package_version()))
            raise ModelFileError(
                f"{location} was written by {writer} in format {form}, unknown to {mine}; update distrff"
            )
        if found != kind:
            raise ModelFileError(f"{location}: this is a {found}, not a {kind}")
        if header.get("complete") is not True:
            raise ModelFileError(
                f"{location} is incomplete, its writing was interrupted; save the {kind} again"
            )
        fs, path = location.file_system()
        arrays, described = {}, {}
        for name, checksum in (header.get("checksums") or {}).items():
            what = f"{location}: array {name!r}"
            arrays[name], described[name] = _stored_array(what, fs, f"{path}/{name}", checksum)
        if header.get("metadata_checksum") != _seal(header, described):
            raise ModelFileError(f"{location}: the metadata do not match their checksum; {_REMEDY}")
        return arrays, header["metadata"]


def _fill(fresh: Location, arrays: Mapping[str, np.ndarray], header: dict[str, Any]) -> None:
    # File by file in this thread: the order is fixed, and nothing is written after an interrupt.
    for name, A in arrays.items():
        chunk = f"{name}/{_chunk_key(A.ndim)}"
        fresh.within(chunk.rpartition("/")[0]).make_folder()
        fresh.within(f"{name}/zarr.json").write(json.dumps(_description(A), indent=2).encode())
        if A.size:
            fresh.within(chunk).write(A.tobytes())
    fresh.within("zarr.json").write(root_text(header))


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
    with storage_errors(f"{what} cannot be read", ModelFileError, _REMEDY):
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


def package_version() -> str:
    try:
        return version("distrff")
    except PackageNotFoundError:  # run from a source folder that was never installed
        return "unknown"
