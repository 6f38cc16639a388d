"""A model or a Gram as a Zarr v3 group; no pickle, and NumPy alone can read its arrays.

Every array is one uncompressed little-endian chunk, so a matrix `W` is
``np.fromfile("model.zarr/W/c/0/0", dtype).reshape(shape)`` and ``sha256sum`` of that file is its
checksum. Names are letters, digits and "_"; dtypes are those of `storable`. Everything else is strict JSON in
the root attribute ``distrff``::

    {"kind": "model" | "gram" | "toeplitz", "format": 1, "version": writer, "complete": true,
     "metadata": {...}, "checksums": {array: sha256 of its bytes},
     "metadata_checksum": sha256 of all of this and the arrays' own zarr.json}

Checksums reveal damage and careless edits, not forgery: whoever can write the group can seal it again.
So nothing is allocated by a number in a file: what is read is bounded by the size of the file that holds it.
Whoever makes something of the arrays does so within `contents_of`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from distrff.errors import InputError, ModelFileError
from distrff.io.storage import (
    MAX_JSON_BYTES,
    Location,
    Options,
    Url,
    file_bytes,
    header_of,
    json_of,
    replacing,
    root_text,
    storage_errors,
)
from distrff.utils.text import in_one_line, public_name
from distrff.utils.validation import refuse_loose_json, storable

FORMAT = 1
_STORED = ("model", "gram", "toeplitz")
_REMEDY = "it is damaged or was altered: save it again or restore a copy"
_DTYPES = tuple(np.dtype(code).name for code in "?bhilBHILefd")  # those of `storable`
_MAX_ARRAY_BYTES = 2**47  # the memory that a process can address
_MAX_DESCRIPTION_BYTES = 2**16  # of an array's zarr.json, which takes less than a thousand


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
    Raises InputError for more than `MAX_JSON_BYTES` of it, which nobody would read.
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
    location, root = Location.of(url, storage_options), root_text(header)
    if len(root) > MAX_JSON_BYTES:
        raise InputError(
            f"{location} could not be written: its metadata take {len(root):,} bytes as JSON, at most "
            f"{MAX_JSON_BYTES:,} can be read; give columns shorter names, or none"
        )
    with (
        storage_errors(f"{location} could not be written"),
        replacing(location, overwrite=overwrite, kinds=_STORED) as fresh,
    ):
        _fill(fresh, arrays, root)


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
            long = f"no header in its zarr.json, or that has more than {MAX_JSON_BYTES:,} bytes"
            what = what if document is None else f"is not a group of distrff ({long})"
            raise ModelFileError(f"{location} {what}; give the path that a {kind} was saved to")
        found, form = header.get("kind"), header.get("format")
        if isinstance(form, int) and form > FORMAT:
            writer, mine = (f"distrff {in_one_line(v)}" for v in (header.get("version"), package_version()))
            raise ModelFileError(
                f"{location} was written by {writer} in format {in_one_line(form)}, "
                f"unknown to {mine}; update distrff"
            )
        if found != kind:
            raise ModelFileError(f"{location}: this is a {in_one_line(found)}, not a {kind}")
        if header.get("complete") is not True:
            raise ModelFileError(
                f"{location} is incomplete, its writing was interrupted; save the {kind} again"
            )
        fs, path = location.file_system()
        arrays, described = {}, {}
        for name, checksum in (header.get("checksums") or {}).items():
            what = f"{location}: array {in_one_line(name)!r}"
            if re.fullmatch(r"\w{1,200}", name) is None:  # a path would lead out of the group
                raise ModelFileError(f"{what} is missing; {_REMEDY}")
            arrays[name], described[name] = _stored_array(what, fs, f"{path}/{name}", checksum)
        if header.get("metadata_checksum") != _seal(header, described):
            raise ModelFileError(f"{location}: the metadata do not match their checksum; {_REMEDY}")
        return arrays, header["metadata"]


@contextmanager
def contents_of(url: Url, kind: str) -> Iterator[None]:
    """Turn whatever is raised for the arrays and metadata of a group into a ModelFileError of one line.

    Values of a wrong type, which a forged file may hold, may raise anything.
    """
    name = public_name(url)
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f"{name}: {in_one_line(error)}") from error
    except KeyError as error:
        raise ModelFileError(f"{name} lacks {in_one_line(error)}; save the {kind} again") from error
    except Exception as error:
        detail = f"{type(error).__name__}: {in_one_line(error)}"
        raise ModelFileError(f"{name} is no {kind} ({detail}); save it again") from error


def refuse_others(arrays: Iterable[str], known: Iterable[str], prefixes: tuple[str, ...] = ()) -> None:
    """Raise ModelFileError if an array is neither known nor has a name with one of the prefixes."""
    others = [name for name in arrays if not name.startswith(prefixes)]
    for name in sorted(set(others) - set(known)):
        raise ModelFileError(f"nothing is known of an array {name!r}; it was altered, or update distrff")


def _fill(fresh: Location, arrays: Mapping[str, np.ndarray], root: bytes) -> None:
    # File by file in this thread: the order is fixed, and nothing is written after an interrupt.
    for name, A in arrays.items():
        chunk = f"{name}/{_chunk_key(A.ndim)}"
        fresh.within(chunk.rpartition("/")[0]).make_folder()
        fresh.within(f"{name}/zarr.json").write(json.dumps(_description(A), indent=2).encode())
        if A.size:
            fresh.within(chunk).write(A.tobytes())
    fresh.within("zarr.json").write(root)


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
            described = json_of(fs, f"{path}/zarr.json", _MAX_DESCRIPTION_BYTES)
            shape, dtype = _form(described)
            size = math.prod(shape) * dtype.itemsize
            data = file_bytes(fs, f"{path}/{_chunk_key(len(shape))}", size) if size else b""
        except FileNotFoundError:
            raise ModelFileError(f"{what} is missing; {_REMEDY}") from None
        if len(data) != size:
            held = f"{len(data):,}" if len(data) < size else "more"
            raise ModelFileError(
                f"{what} does not match its checksum ({held} bytes, its shape has {size:,}); {_REMEDY}"
            )
        if hashlib.sha256(data).hexdigest() != checksum:
            raise ModelFileError(f"{what} does not match its checksum; {_REMEDY}")
        return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape), described


def _form(described: dict[str, Any]) -> tuple[list[int], np.dtype]:
    """Return shape and dtype of a description; raise ValueError for others than arrays can have."""
    shape, name = described["shape"], described["data_type"]
    if name not in _DTYPES:
        raise ValueError(f"its data_type is {in_one_line(name)!r}")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"its shape is {in_one_line(shape)}")
    dtype = np.dtype(name)
    if math.prod(shape) * dtype.itemsize > _MAX_ARRAY_BYTES:
        raise ValueError(f"its shape is {in_one_line(shape)}, more than a process can address")
    return shape, dtype


def _seal(header: dict[str, Any], described: dict[str, dict[str, Any]]) -> str:
    sealed = {key: value for key, value in header.items() if key != "metadata_checksum"}
    text = json.dumps([sealed, described], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def package_version() -> str:
    try:
        return version("distrff")
    except PackageNotFoundError:  # run from a source folder that was never installed
        return "unknown"
