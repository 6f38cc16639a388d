"""Opening raw files: their format is recognized by their first bytes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from distrff.errors import InputError
from distrff.io.convert.delimited import CsvSource
from distrff.io.convert.dialect import Dialect
from distrff.io.convert.foreign import refuse_foreign, refuse_other_archive
from distrff.io.convert.libsvm import LibsvmSource, looks_like_libsvm, refuse_other_libsvm
from distrff.io.convert.npz import ArraySource
from distrff.io.convert.text import TextFile, head_of
from distrff.io.parquet_rows import MAGIC, SUFFIXES, parquet_table
from distrff.io.storage import Location, Options, first_bytes, size_and_version, storage_errors
from distrff.io.tables import Table
from distrff.utils.serialize import digest_of

TableSource = CsvSource | ArraySource | Table
"""Each reads raw columns in pieces, and has the kinds, names, places and progress of a `Table`."""
Source = TableSource | LibsvmSource

_NUMPY = (b"PK\x03\x04", b"\x93NUMPY")  # .npz, .npy


def open_source(
    paths: Any,
    *,
    dialect: Dialect | None = None,
    known: Sequence[str] = (),
    words: Collection[str] = (),
    x_name: str = "X",
    y_name: str | None = None,
    storage_options: Options = None,
) -> Source:
    """Return the source of raw files, given as a file, a folder, a glob or a list of these.

    All have one format, which is recognized by the first bytes, not by the names: Parquet, a .npz or .npy
    file of NumPy, libsvm if the first lines have its form, else delimited text; text may be compressed by
    gzip, bzip2, xz or Zstandard. `dialect`, `known` and `words` are those of `CsvSource`, `x_name` and
    `y_name` those of `ArraySource`.
    """
    files, dialect = files_of(paths, storage_options), dialect or Dialect()
    with storage_errors(f"{files[0].name} cannot be reached"):
        magic = first_bytes(files[0].fs, files[0].path)
    if magic.startswith(MAGIC) or files[0].path.endswith(SUFFIXES):
        dialect.refuse_for(f"{files[0].name} is Parquet")
        return parquet_table(paths, storage_options)
    if magic.startswith(_NUMPY[0]):
        with files[0].fs.open(files[0].path, "rb") as archive:
            refuse_other_archive(archive, files[0].name)
    if magic.startswith(_NUMPY):
        if len(files) > 1:
            raise InputError(f"{files[0].name} is one of {len(files)} NumPy files; convert them one by one")
        dialect.refuse_for(f"{files[0].name} is a file of NumPy")
        return ArraySource(files[0], x_name, y_name)
    head = head_of(files[0]._replace(encoding=dialect.encoding), 2**16)
    if looks_like_libsvm(head) and dialect.delimiter is None:
        dialect.refuse_for(f"{files[0].name} is a libsvm file")
        return LibsvmSource(files)
    refuse_other_libsvm(head, files[0].name)
    refuse_foreign(head, files[0].name)
    return CsvSource(files, dialect, known, words)


def files_of(paths: Any, storage_options: Options = None) -> list[TextFile]:
    """Return the files of a file, a folder, a glob or a list of these."""
    files: list[TextFile] = []
    for path in paths if isinstance(paths, (list, tuple)) else [paths]:
        location = Location.of(path, storage_options)
        fs, found = location.files()
        if not found:
            raise InputError(f"{location} does not exist or holds no files; check the path")
        files.extend(TextFile(fs, file) for file in found)
    if not files:
        raise InputError("the list of files is empty; give at least one file to convert")
    return files


def version_of(files: Sequence[TextFile]) -> str:
    """Return in one line what some files are, and of which version, without reading them."""
    seen: list[tuple[str, int, str]] = []
    with storage_errors(f"{files[0].name} cannot be reached"):
        for file in files:
            info = file.fs.info(file.path)
            seen.append((file.name, *size_and_version(info)))
    return f"{len(files)} files, {sum(n for _, n, _ in seen):,} bytes, version {digest_of(seen)[:8]}"
