"""Opening raw files: their format is recognized by their first bytes."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Sequence
from typing import Any

from distrff.errors import InputError
from distrff.io.convert.dialect import Dialect
from distrff.io.convert.libsvm import LibsvmSource, looks_like_libsvm, refuse_other_libsvm
from distrff.io.convert.npz import ArraySource
from distrff.io.convert.text import CsvSource, TextFile, head_of
from distrff.io.parquet_rows import MAGIC, SUFFIXES, parquet_table
from distrff.io.storage import Location, Options, first_bytes, size_and_version, storage_errors
from distrff.io.tables import RawSource
from distrff.utils.serialize import digest_of

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
) -> RawSource:
    """The source of raw files, given as a file, a folder, a glob or a list of these.

    `dialect`, `known` and `words` are those of `CsvSource`, `x_name` and `y_name` those of `ArraySource`.
    """
    # By the first bytes and not by names: libsvm files have any.
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
    """The files of a file, a folder, a glob or a list of these."""
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
    """Number, size and version of some files, in one line and without reading them."""
    seen: list[tuple[str, int, str]] = []
    with storage_errors(f"{files[0].name} cannot be reached"):
        for file in files:
            info = file.fs.info(file.path)
            seen.append((file.name, *size_and_version(info)))
    return f"{len(files)} files, {sum(n for _, n, _ in seen):,} bytes, version {digest_of(seen)[:8]}"


# Kinds of files that are not read, named by their first bytes, and what reads them; {} is the path.


def _frame(call: str, more: str = "") -> str:
    return f"pandas.{call}.to_parquet('rows.parquet'){more}"


_UNPACK = "unpack it and give the files in it"
_OTHER = "unpack it{}, or compress by gzip, bzip2, xz or zstd"
_XARRAY = "distrff.open_dataset(xarray.open_dataset('{}'), sample_dim=...)"
_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (rb"ARROW1|FEA1", "a Feather (Arrow IPC) file", _frame("read_feather('{}')")),
    (rb"\x89HDF\r\n\x1a\n", "an HDF5 file", _frame("read_hdf('{}')", f", or for NetCDF {_XARRAY}")),
    (rb"CDF[\x01\x02\x05]", "a NetCDF file", _XARRAY),
    (rb"\x80[\x02-\x05]", "a pickle", _frame("read_pickle('{}')", ", if you trust its source")),
    (rb"\xd0\xcf\x11\xe0", "an Excel workbook (xls)", _frame("read_excel('{}')")),
    (rb"ORC", "an ORC file", _frame("read_orc('{}')")),
    (rb"Obj\x01", "an Avro file", "polars.read_avro('{}').write_parquet('rows.parquet')"),
    (
        rb"SQLite format 3",
        "an SQLite database",
        _frame("read_sql('select * from TABLE', sqlite3.connect('{}'))"),
    ),
    (rb"<stata_dta>|[\x71-\x73][\x01\x02]\x01\x00", "a Stata file", _frame("read_stata('{}')")),
    (rb"\$FL[23]", "an SPSS file", _frame("read_spss('{}')")),
    (rb"\x00{12}\xc2\xea\x81\x60|HEADER RECORD\*{7}LIB", "a SAS file", _frame("read_sas('{}')")),
    (rb"MATLAB 5", "a MATLAB file", "numpy.savez('rows.npz', **scipy.io.loadmat('{}'))"),
    (rb"%%MatrixMarket", "a MatrixMarket file", "fit scipy.sparse.csr_array(scipy.io.mmread('{}'))"),
    (rb"X\n\x00{3}|RD[AX][23]\n", "a file of R", "arrow::write_parquet(readRDS('{}'), 'rows.parquet') in R"),
    (rb"\x04\x22\x4d\x18", "compressed by lz4", _OTHER.format(" by lz4 -d")),
    (rb"\xff\x06\x00\x00sNaPpY", "compressed by Snappy", _OTHER.format("")),
    (rb"\x1f\x9d", "compressed by compress (.Z)", "unpack it by uncompress"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", _UNPACK),
    (rb"Rar!", "a RAR archive", _UNPACK),
    (rb"(?s).{257}ustar", "a tar archive", _UNPACK),
    (rb"%PDF", "a PDF document", "give the table that it was made of"),
    (
        rb"version https://git-lfs",
        "the pointer to a file in Git LFS",
        "fetch the file itself by git lfs pull",
    ),
    (rb"\s*\{[^\n]*\}\s*(\n|$)", "JSON lines", _frame("read_json('{}', lines=True)")),
    (rb"\s*[\[{]\s*[\[{\"\]}]", "JSON", _frame("read_json('{}')")),
    (
        rb"(?i)(\s*(%[^\n]*)?\n)*\s*@relation\b",
        "an ARFF file",
        _frame("DataFrame(scipy.io.arff.loadarff('{}')[0])"),
    ),
    (rb"(?i)\s*<(!doctype html|html|table)", "an HTML page", _frame("read_html('{}')[0]")),
    (rb"\s*<\?xml|\s*<\w+[ >]", "an XML file", _frame("read_xml('{}')")),
)


def refuse_foreign(head: bytes, name: str) -> None:
    """Raise InputError for files that no format here fits, naming what would read them."""
    for begin, what, remedy in _KINDS:
        if re.match(begin, head):
            raise InputError(f"{name} is {what}, which is not read here; {remedy.replace('{}', name)}")
    if b"\x00" in head:
        order = "le" if head[1::2].count(0) > head[::2].count(0) else "be"  # of UTF-16 without a mark
        raise InputError(
            f"{name} is no text, as it holds zero bytes, and of no format that is known; write it as CSV or "
            f"Parquet, or give encoding='utf-16-{order}' if it is UTF-16"
        )


def refuse_other_archive(file: Any, name: str) -> None:
    """Raise InputError for a Zip archive that is no .npz of dense arrays."""
    try:
        members = zipfile.ZipFile(file).namelist()
    except zipfile.BadZipFile:
        return  # which the reader of .npz names
    if {"data.npy", "indices.npy", "indptr.npy"} <= set(members):
        what, remedy = "a sparse matrix of SciPy", f"fit scipy.sparse.load_npz({name!r}) itself"
    elif any(member.endswith(".npy") for member in members):
        return
    elif "xl/workbook.xml" in members:
        what, remedy = "an Excel workbook (xlsx)", f"pandas.read_excel({name!r}).to_parquet('rows.parquet')"
    else:
        what = f"a Zip archive of {len(members)} files ({', '.join(members[:3])})"
        remedy = f"unpack it by unzip, or pandas.read_csv({name!r}).to_parquet('rows.parquet')"
    raise InputError(f"{name} is {what}, which is not read here; {remedy}")
