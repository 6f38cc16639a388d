from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from distrff.errors import InputError
from distrff.io.open import open_dataset
from distrff.io.parquet_rows import parquet_file

N = 60
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "a": RNG.normal(size=N).astype("f4"),
        "name": RNG.choice(["u", "v"], N),
        "b": RNG.integers(-9, 9, N).astype("i2"),
        "flag": RNG.random(N) < 0.5,
        "day": pd.date_range("2020-01-01", periods=N),
        "y": RNG.normal(size=N),
    }
)
X = FRAME[["a", "b", "flag"]].to_numpy("f4")


@pytest.fixture
def path(tmp_path):
    FRAME.to_parquet(tmp_path / "rows.parquet", row_group_size=25)
    return str(tmp_path / "rows.parquet")


def test_files_are_found_and_sorted(tmp_path, read_dataset):
    for i, name in enumerate(
        ["b.parquet", "a/z.parquet", "a/c.pq", "_temporary/d.parquet", "a/.hidden.parquet"]
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pd.DataFrame({"x": [float(i)]}).to_parquet(tmp_path / name)
    (tmp_path / "_SUCCESS").touch()

    def order(path):
        return read_dataset(open_dataset(path), 9, 9)[0].ravel().tolist()

    assert order(tmp_path) == [2, 1, 0]
    assert order(f"{tmp_path}/a/*") == [2, 1]
    assert order(f"{tmp_path}/**/*.parquet") == [3, 1, 0]  # a glob says itself what it means
    assert order([tmp_path / "b.parquet", tmp_path / "a"]) == [2, 1, 0]
    assert order([tmp_path / "b.parquet", f"{tmp_path}/*.parquet"]) == [0]


@pytest.mark.parametrize(
    "other, options, phrase",
    [
        (FRAME.drop(columns="b"), {}, "column 'b' is missing"),
        (FRAME.astype({"b": "i4"}), {}, "column 'b' has type int32"),
        (FRAME.assign(extra=1.0), {}, "column 'extra' is missing"),
        (FRAME.drop(columns="y"), {"columns": ["a"], "target": "y"}, "column 'y' is missing"),
    ],
)
def test_files_that_disagree(tmp_path, other, options, phrase):
    FRAME.to_parquet(tmp_path / "0.parquet")
    other.to_parquet(tmp_path / "1.parquet")
    with pytest.raises(InputError, match=phrase) as caught:
        open_dataset(tmp_path, **options)
    assert "1.parquet" in str(caught.value) and "0.parquet" in str(caught.value)


def test_files_that_differ_in_what_is_not_read(tmp_path, read_dataset):
    FRAME.to_parquet(tmp_path / "0.parquet")
    FRAME.drop(columns="day").assign(name=1).to_parquet(tmp_path / "1.parquet")
    data = open_dataset(tmp_path, columns=["a", "b", "flag"])
    np.testing.assert_array_equal(read_dataset(data, 50, 20)[0], np.concatenate([X, X]))


@pytest.mark.parametrize(
    "options, phrase",
    [
        ({"target": "price"}, "has no column 'price'; its 6 columns are: a, name, b, flag, day, y"),
        ({"target": 6}, "has no column 6"),
        ({"columns": ["a", "name"]}, "column 'name' of .* cannot be a column of X: it holds text"),
        ({"columns": ["a", "a"]}, "column 'a' is named twice"),
        ({"columns": []}, "no column is named"),
        ({"columns": ["a", "y"], "target": "y"}, "column 'y' is asked for as a column of X and as y"),
        ({"sample_weight": "name"}, "column 'name' of .* is not a number"),
        ({"sample_weight": ["a", "b"]}, "sample_weight must name one column"),
        (
            {"target": ["a", "b", "flag", "y"]},
            r"no columns for X; besides target and weights it has: name \(it holds text.*\), day \(it",
        ),
    ],
)
def test_unusable_columns(path, options, phrase):
    with pytest.raises(InputError, match=phrase) as caught:
        open_dataset(path, **options)
    assert "\n" not in str(caught.value)


def test_at_most_twenty_columns_are_listed(tmp_path):
    pd.DataFrame(np.zeros((1, 50))).rename(columns=str).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"18, 19 and 30 more"):
        open_dataset(tmp_path / "x.parquet", target="y")


def test_zero_rows(tmp_path):
    FRAME[:0].to_parquet(tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"0 sample\(s\)"):
        open_dataset(tmp_path)


@pytest.mark.parametrize("change", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"a,b\n1,2\n"])
def test_files_that_are_not_parquet(path, change):
    with open(path, "rb") as file:
        content = file.read()
    with open(path, "wb") as file:
        file.write(change(content))
    with pytest.raises(
        InputError, match=r"cannot be read as Parquet .*truncated, damaged or of another kind"
    ) as caught:
        open_dataset(path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


class WholeFilesOnly:
    """A server of HTTP as fsspec opens it."""

    protocol = "http"

    def open(self, file, mode, cache_type):
        raise ValueError("The HTTP server doesn't appear to support range requests.")

    def unstrip_protocol(self, file):
        return f"http://{file}"


def test_a_server_that_sends_whole_files_only():
    told = pytest.raises(InputError, match=r"range requests.*; download the file and fit that")
    with told, parquet_file(WholeFilesOnly(), "host/x.parquet"):
        pass


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_a_damaged_row_group_is_not_retried(tmp_path, read_rows, compression):
    path = tmp_path / "x.parquet"
    FRAME.to_parquet(path, row_group_size=25, compression=compression)
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(0)
    content = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content[start : start + 40] = bytes(40)
    data = open_dataset(path, target="y")
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_rows(data.rows(0, N), 10)
    np.testing.assert_array_equal(read_rows(data.rows(0, 25), 10)[0], X[:25])


def test_files_that_changed_meanwhile(path, read_rows, tmp_path):
    data = open_dataset(path)
    FRAME[:55].to_parquet(path, row_group_size=25)
    with pytest.raises(InputError, match="was changed after it was opened"):
        read_rows(data.rows(0, N), 10)
    (tmp_path / "rows.parquet").unlink()
    with pytest.raises(InputError, match="is not there as this process sees it, or not any more"):
        read_rows(data.rows(0, N), 10)


@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "reset"), TimeoutError("slow"), OSError(5, "I/O error")]
)
def test_errors_that_may_pass_stay_retryable(path, read_rows, monkeypatch, error):
    data = open_dataset(path)

    class Failing:
        """A file of a store that lost its connection."""

        closed = False

        def __enter__(self):
            return self

        def __exit__(self, *args):
            self.closed = True

        def seek(self, *args):
            return 0

        def tell(self):
            return 10_000

        def read(self, *args):
            raise error

    monkeypatch.setattr(type(data.reader.table.fs), "open", lambda *args, **kwargs: Failing())
    with pytest.raises(type(error)) as caught:
        read_rows(data.rows(0, N), 10)
    assert caught.value.errno == error.errno
    assert not isinstance(caught.value, InputError)
