"""Which raw format files are of, by what they begin with."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from distrff.errors import InputError
from distrff.io.convert.delimited import CsvSource, TextFile, head_of
from distrff.io.convert.libsvm import LibsvmSource, looks_like_libsvm, refuse_other_libsvm
from distrff.io.convert.npz import ArraySource
from distrff.io.open import ZARR_MARKERS
from distrff.io.parquet_rows import SUFFIXES, parquet_table
from distrff.io.storage import GLOB_CHARACTERS, Location, is_local, storage_errors
from distrff.io.tables import Table

TableSource = CsvSource | ArraySource | Table
"""Each reads raw columns in pieces, and has the kinds, names, places and progress that `Table` has."""
Source = TableSource | LibsvmSource

_PARQUET, _ZIP, _NPY = b"PAR1", b"PK\x03\x04", b"\x93NUMPY"


def raw_files(paths: Sequence[Any], storage_options: dict[str, Any] | None) -> list[TextFile]:
    """Return the files that files, folders and globs stand for, each path's in sorted order.

    Raises
    ------
    InputError
        If a path does not exist or is a folder without files.
    """
    found: list[TextFile] = []
    for location in (Location.of(path, storage_options) for path in paths):
        fs, files = location.files()
        if not files:
            raise InputError(f"{location} does not exist or holds no files; check the path")
        found.extend(TextFile(fs, file) for file in files)
    return found


def open_source(
    paths: Sequence[Any],
    *,
    header: bool | None = None,
    known: Sequence[str] = (),
    x_name: str = "X",
    y_name: str | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Source:
    """Return the source of raw files of one format.

    The format is recognized by the first bytes, not the names: Parquet, a .npz or .npy file of NumPy,
    libsvm if the first lines have its form, else delimited text; text may be compressed by gzip, bzip2,
    xz or Zstandard.

    Parameters
    ----------
    paths : sequence of str or path
        Files, folders and globs.
    header : bool, optional
    known : sequence of str
        See `CsvSource`.
    x_name, y_name : str
        See `ArraySource`.
    storage_options : dict, optional
        For fsspec.

    Raises
    ------
    InputError
        If there are no files, several where one is read at a time, or as the source.
    """
    files = raw_files(paths, storage_options)
    magic = _first_bytes(files[0])
    if magic.startswith(_PARQUET) or files[0].path.endswith(SUFFIXES):
        return parquet_table(paths, storage_options)
    if magic.startswith((_ZIP, _NPY)):
        if len(files) > 1:
            raise InputError(f"{files[0].name} is one of {len(files)} NumPy files; convert them one by one")
        return ArraySource(files[0], x_name, y_name)
    head = head_of(files[0], 2**16)
    if looks_like_libsvm(head):
        return LibsvmSource(files)
    refuse_other_libsvm(head, files[0].name)
    return CsvSource(files, header, known)


def _first_bytes(file: TextFile) -> bytes:
    with storage_errors(f"{file.name} cannot be reached"), file.fs.open(file.path, "rb") as handle:
        return handle.read(io.DEFAULT_BUFFER_SIZE)[:8]


def is_raw(path: Any, storage_options: dict[str, Any] | None) -> bool:
    """Tell whether `path` stands for files that must be converted: there, and neither Zarr nor Parquet."""
    with Location.of(path, storage_options).reached() as (fs, inner):
        if fs.isfile(inner) and not _is_group(fs, inner):
            return not inner.endswith(SUFFIXES) and not _first_bytes(TextFile(fs, inner)).startswith(_PARQUET)
        if any(c in inner for c in GLOB_CHARACTERS):
            return any(fs.isfile(file) and not file.endswith(SUFFIXES) for file in fs.glob(inner))
    return False


def _is_group(fs: Any, inner: str) -> bool:
    """Whether what looks like a file is a folder: web servers return a page for a folder."""
    return not is_local(fs) and any(fs.exists(f"{inner.rstrip('/')}/{marker}") for marker in ZARR_MARKERS)
