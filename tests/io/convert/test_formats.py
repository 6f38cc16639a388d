"""Files of libsvm and of NumPy, and files of kinds that are not read: numbers, and what is wrong where."""

import gzip
import io
import tarfile
import zipfile
from contextlib import nullcontext

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.sparse import csr_array, save_npz

from distrff.errors import InputError
from distrff.io.convert.convert import open_source
from distrff.io.convert.npz import ArraySource
from distrff.io.convert.text import LibsvmSource, TextFile, looks_like_libsvm, refuse_other_libsvm


def rows_of(file) -> list:
    source = LibsvmSource([file])
    return [source.rows(piece) for piece in source.pieces(())]


@pytest.mark.parametrize(
    "number",
    ["1", "-1", "+1", "0.1", ".5", "5.", "1e-3", "123456789012345678", "-0.30000000000000004", "1e308",
     "0.00000000000000000000000123"],
)  # fmt: skip
def test_numbers_are_read_as_python_reads_them(text_file, number):
    (rows,) = rows_of(text_file(f"{number} 3:{number}\n".encode()))
    np.testing.assert_array_equal([rows.labels[0], rows.values[0]], [float(number)] * 2)


def test_blanks_and_comments(text_file):
    (rows,) = rows_of(text_file(b"# head\n\n 1  2:3 # 5:6\r\n-1\t\n2 1:1 7:0.5"))
    assert rows.labels.tolist() == [1, -1, 2]
    assert rows.starts.tolist() == [0, 1, 1, 3]
    assert rows.indices.tolist() == [2, 1, 7]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 3:1 2:1", "indices do not increase"),
        ("1 3:1 3:1", "indices do not increase"),
        ("x 3:1", "the label is no number"),
        ("1,2 3:1", "the label is no number"),
        ("1 qid:3 3:1", "not index:value"),
        ("1 3", "not index:value"),
        ("1 3:", "a value is no number"),
        ("1 3:1_0", "a value is no number"),
        ("1 99999999999:1", "an index is larger"),
        *(
            (f"1 1:1 3:{value} 4:1", f"at '3:{value} 4:1': this is no finite number")
            for value in ("nan", "inf", "-Infinity", "1e400")
        ),
        *((f"{value} 1:1", f"at '{value} 1:1': this is no finite number") for value in ("nan", "1e400")),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(text_file, block_bytes, line, message):
    text = "1 1:1 2:1\n" * 40 + line + "\n1 1:1\n"
    with pytest.raises(InputError, match=rf"rows.csv, line 41, .*{message}"):
        rows_of(text_file(text.encode()))


def test_an_index_beyond_the_width(text_file, block_bytes):
    source = LibsvmSource([text_file(b"# no row\n1 1:1\n\n1 2:1 5:1\n")])
    with pytest.raises(InputError, match=r"line 4: index 5, but in training the indices were 1 to 4"):
        for piece in source.pieces(()):
            source.check_width(piece, source.rows(piece), 1, 4)


def test_which_text_looks_like_libsvm():
    assert looks_like_libsvm(b"-1 3:1 11:1\n+1\n")
    assert looks_like_libsvm(b"# made today\n\n-1 3:1 # first\n+1\n")
    for other in (b"1,2\n3,4\n", b"1\n2\n", b"12:30,4\n12:31,5\n"):
        assert not looks_like_libsvm(other)


SEVERAL = r"f is a libsvm file with several labels per line \('1"
QUERIES = r"f is a libsvm file for ranking \('qid:3'\).* remove the qid: fields"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2 1:2 2:3\n1 1:3\n", SEVERAL),
        (" 1:2\n1,2 1:2\n# none\n0 5:1e-3 7:nan # end\n", SEVERAL),
        ("1.5,-2 0:2", SEVERAL),
        ("0 qid:3 1:-0.1 2:0.4\n2 qid:3 2:1 # a comment\n", QUERIES),
        ("a qid:3 b\n1 2 3\n", None),
        ("1,2\n3,4\n", None),
        ("1,2 1:2\nx,4\n5,6\n", None),
        ("a b,12:30\n1,12:31\n", None),
        ("", None),
        ("1 1:2\n", None),
        ("1:2\n", None),
    ],
)
def test_several_labels_a_line_and_queries_are_refused(text, message):
    with pytest.raises(InputError, match=message) if message else nullcontext():
        refuse_other_libsvm(text.encode(), "f")


# Arrays of .npy and .npz files.


@pytest.fixture
def saved(tmp_path):
    def save(name: str = "rows.npz", **arrays: np.ndarray) -> TextFile:
        path = tmp_path / name
        if name.endswith(".npy"):
            np.save(path, arrays["X"])
        else:
            np.savez_compressed(path, **arrays)
        return TextFile(fsspec.filesystem("file"), str(path))

    return save


def read(source: ArraySource) -> dict[str, np.ndarray]:
    names = list(source.kinds)
    found = [source.raw(piece, names) for piece in source.pieces(names)]
    return {name: np.concatenate([raw[name].values for raw in found]) for name in names}


def test_targets_of_one_and_several_columns_and_of_another_file(saved, tmp_path, rng):
    X, y, Y = rng.standard_normal((20, 2)), rng.integers(0, 3, 20), rng.standard_normal((20, 2))
    source = ArraySource(saved(a=X, y=y, Y=Y), "a")
    np.testing.assert_array_equal(read(source)["y"], y)
    source = ArraySource(saved(a=X, y=y, Y=Y), "a", "Y")
    assert source.targets == ("y_0", "y_1")
    np.testing.assert_array_equal(read(source)["y_1"], Y[:, 1])
    np.save(tmp_path / "labels.npy", y)
    file = saved("rows.npy", X=X)
    np.testing.assert_array_equal(read(ArraySource(file, y_name=str(tmp_path / "labels.npy")))["y"], y)
    with pytest.raises(InputError, match=r"none.npy does not exist; for a .npy file y_name"):
        ArraySource(file, y_name=str(tmp_path / "none.npy"))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"Z": np.zeros((2, 2))}, r"has no array 'X'; give x_name as one of: Z"),
        ({"X": np.zeros((2, 2)), "y": np.zeros(3)}, r"shape \(3,\), but .* has 2 rows"),
        ({"X": np.zeros((0, 2))}, "holds no rows"),
        ({"X": np.zeros((2, 2), complex)}, "Complex data not supported"),
        ({"X": np.array([[object()]])}, "save plain numbers"),
        ({"X": np.zeros((2, 1)), "y": np.array(["2020"] * 2, "M8")}, "targets are numbers or text"),
    ],
)
def test_arrays_that_cannot_be_rows(saved, arrays, message):
    with pytest.raises(InputError, match=message):
        ArraySource(saved(**arrays))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", ["rows.npz", "rows.npy"])
def test_truncated_files_and_damaged_archives(saved, tmp_path, order, name, rng):
    X = np.asarray(rng.standard_normal((10_000, 3)), order=order)
    file = saved("rows.npy", X=X)
    data = (tmp_path / "rows.npy").read_bytes()
    (tmp_path / "rows.npy").write_bytes(data[:-50])
    if name.endswith("npz"):
        file = TextFile(file.fs, str(tmp_path / "rows.npz"))
        with zipfile.ZipFile(file.path, "w") as archive:
            archive.write(tmp_path / "rows.npy", "X.npy")
    with pytest.raises(InputError, match="ends before its 10000 rows"):
        read(ArraySource(file))
    file = saved(X=X)
    data = bytearray((tmp_path / "rows.npz").read_bytes())
    data[len(data) // 2] ^= 255
    (tmp_path / "rows.npz").write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        read(ArraySource(file))


# Files that are not read are called what they are, with the line that reads them.

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
