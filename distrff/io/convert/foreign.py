"""Kinds of files that are not read, named by their first bytes, and the line of Python that reads them."""

from __future__ import annotations

import re
import zipfile
from typing import Any

from distrff.errors import InputError

_AS_PARQUET = ".to_parquet('rows.parquet')"
_UNPACK = "unpack it and give the files in it"

# Of each kind: how it begins, what it is, and what to do, where {} is the path.
_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (rb"ARROW1|FEA1", "a Feather (Arrow IPC) file", "pandas.read_feather('{}')" + _AS_PARQUET),
    (
        rb"\x89HDF\r\n\x1a\n",
        "an HDF5 file",
        "pandas.read_hdf('{}').to_parquet('rows.parquet'), or for NetCDF "
        "distrff.open_dataset(xarray.open_dataset('{}'), sample_dim=...)",
    ),
    (
        rb"CDF[\x01\x02\x05]",
        "a NetCDF file",
        "distrff.open_dataset(xarray.open_dataset('{}'), sample_dim=...)",
    ),
    (
        rb"\x80[\x02-\x05]",
        "a pickle",
        "pandas.read_pickle('{}').to_parquet('rows.parquet'), if you trust its source",
    ),
    (rb"\xd0\xcf\x11\xe0", "an Excel workbook (xls)", "pandas.read_excel('{}')" + _AS_PARQUET),
    (rb"ORC", "an ORC file", "pandas.read_orc('{}')" + _AS_PARQUET),
    (rb"Obj\x01", "an Avro file", "polars.read_avro('{}').write_parquet('rows.parquet')"),
    (
        rb"SQLite format 3",
        "an SQLite database",
        "pandas.read_sql('select * from TABLE', sqlite3.connect('{}')).to_parquet('rows.parquet')",
    ),
    (rb"<stata_dta>|[\x71-\x73][\x01\x02]\x01\x00", "a Stata file", "pandas.read_stata('{}')" + _AS_PARQUET),
    (rb"\$FL[23]", "an SPSS file", "pandas.read_spss('{}')" + _AS_PARQUET),
    (
        rb"\x00{12}\xc2\xea\x81\x60|HEADER RECORD\*{7}LIB",
        "a SAS file",
        "pandas.read_sas('{}')" + _AS_PARQUET,
    ),
    (rb"MATLAB 5", "a MATLAB file", "numpy.savez('rows.npz', **scipy.io.loadmat('{}'))"),
    (rb"%%MatrixMarket", "a MatrixMarket file", "fit scipy.sparse.csr_array(scipy.io.mmread('{}'))"),
    (
        rb"X\n\x00\x00\x00|RD[AX][23]\n",
        "a file of R",
        "arrow::write_parquet(readRDS('{}'), 'rows.parquet') in R",
    ),
    (
        rb"\x04\x22\x4d\x18",
        "compressed by lz4",
        "unpack it by lz4 -d, or compress by gzip, bzip2, xz or zstd",
    ),
    (rb"\xff\x06\x00\x00sNaPpY", "compressed by Snappy", "unpack it, or compress by gzip, bzip2, xz or zstd"),
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
    (
        rb"\s*\{[^\n]*\}\s*(\n|$)",
        "JSON lines",
        "pandas.read_json('{}', lines=True)" + _AS_PARQUET,
    ),
    (rb"\s*[\[{]\s*[\[{\"\]}]", "JSON", "pandas.read_json('{}')" + _AS_PARQUET),
    (
        rb"(?i)(\s*(%[^\n]*)?\n)*\s*@relation\b",
        "an ARFF file",
        "pandas.DataFrame(scipy.io.arff.loadarff('{}')[0]).to_parquet('rows.parquet')",
    ),
    (
        rb"(?i)\s*<(!doctype html|html|table)",
        "an HTML page",
        "pandas.read_html('{}')[0].to_parquet('rows.parquet')",
    ),
    (rb"\s*<\?xml|\s*<\w+[ >]", "an XML file", "pandas.read_xml('{}')" + _AS_PARQUET),
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
