"""Files that are not read are called what they are, with the line that reads them."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.sparse import csr_array, save_npz

from distrff.errors import InputError
from distrff.io.convert.convert import open_source

FRAME = pd.DataFrame({"a": np.arange(50) * 0.5, "y": np.arange(50)})
CSV = FRAME.to_csv(index=False).encode()


def zipped(name: str) -> bytes:
    with zipfile.ZipFile(found := io.BytesIO(), "w") as archive:
        archive.writestr(name, CSV)
    return found.getvalue()


def written(write) -> bytes:
    write(found := io.BytesIO())
    return found.getvalue()


def tar() -> bytes:
    with tarfile.open(fileobj=(found := io.BytesIO()), mode="w:gz") as archive:
        info = tarfile.TarInfo("rows.csv")
        info.size = len(CSV)
        archive.addfile(info, io.BytesIO(CSV))
    return found.getvalue()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (zipped("rows.csv"), "a Zip archive of 1 files (rows.csv)"),
        (zipped("xl/workbook.xml"), "pandas.read_excel"),
        (written(FRAME.to_feather), "pandas.read_feather"),
        (written(FRAME.to_pickle), "pandas.read_pickle"),
        (written(FRAME.to_stata), "pandas.read_stata"),
        (written(FRAME.to_orc), "pandas.read_orc"),
        (FRAME.to_json(orient="records", lines=True).encode(), "lines=True"),
        (FRAME.to_json().encode(), "pandas.read_json"),
        (FRAME.to_html().encode(), "pandas.read_html"),
        (b"<?xml version='1.0'?>\n<a/>", "pandas.read_xml"),
        (b"\x89HDF\r\n\x1a\n" + bytes(3000), "an HDF5 file"),
        (b"SQLite format 3\x00" + bytes(90), "pandas.read_sql"),
        (bytes(pa.compress(CSV, codec="lz4", asbytes=True)), "lz4 -d"),
        (b"% made today\n\n@RELATION r\n@attribute a numeric\n@data\n" + CSV, "loadarff"),
        (b"%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 2\n", "mmread"),
        (written(lambda file: save_npz(file, csr_array(np.eye(3)))), "scipy.sparse.load_npz"),
        (tar(), "a tar archive"),
        (gzip.compress(b"RDX3\nX\n"), "a file of R"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n", "git lfs pull"),
        (b"a,b\n1,\x002\n", "zero bytes"),
        ("a,b\n1,2\n".encode("utf-16-le"), "encoding='utf-16-le'"),
        ("a,b\n1,2\n".encode("utf-16-be"), "encoding='utf-16-be'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # archives hold the time
)
def test_other_kinds_of_files(tmp_path, data, what):
    (tmp_path / "rows").write_bytes(data)
    with pytest.raises(InputError) as caught:
        open_source(tmp_path / "rows")
    assert what in str(caught.value)
    assert not any(word in str(caught.value) for word in ("iconv", "x_name", "correct the"))
