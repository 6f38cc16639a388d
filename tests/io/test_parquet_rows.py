"""Parquet files as rows: which files and columns, in what cuts, of what types, and what is refused."""

import datetime
import decimal
import io
import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distrff.errors import InputError
from distrff.io import parquet_rows
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
Y = FRAME["y"].to_numpy()


@pytest.fixture
def path(tmp_path):
    FRAME.to_parquet(tmp_path / "rows.parquet", row_group_size=25)
    return str(tmp_path / "rows.parquet")


def test_rows_hold_the_row_groups_they_need_and_open_a_file_once(path, read_rows, monkeypatch):
    data = open_dataset(path, target="y")
    for (start, stop), numbers in {
        (0, 25): [0], (24, 26): [0, 1], (25, 50): [1], (30, N): [1, 2], (59, N): [2]
    }.items():  # fmt: skip
        assert [g.number for part in data.rows(start, stop).parts for g in part.groups] == numbers
    assert len(pickle.dumps(data.rows(0, N))) < 2000
    opened = []
    file = parquet_rows.parquet_file
    monkeypatch.setattr(parquet_rows, "parquet_file", lambda fs, path: opened.append(path) or file(fs, path))
    read_rows(data.rows(3, N), 7)
    assert opened == [path]


def test_description_and_lazy_arrays(path, monkeypatch):
    monkeypatch.setattr("distrff.io.tables.BLOCK_BYTES", 50 * (2 * 2 + 8 + 4))
    data = open_dataset(path, target="y", columns=["b", "flag"], sample_weight="a")
    assert data.X.chunks == ((50, 10), (2,))
    assert data.y.chunks == data.sample_weight.chunks == ((50, 10),)
    assert (data.X.dtype, data.y.dtype, data.sample_weight.dtype) == (np.int16, np.float64, np.float64)
    np.testing.assert_array_equal(data.X.compute(scheduler="sync"), FRAME[["b", "flag"]].to_numpy("i2"))
    np.testing.assert_array_equal(data.y.compute(scheduler="sync"), Y)
    np.testing.assert_array_equal(data.sample_weight.compute(scheduler="sync"), FRAME["a"].astype(float))
    data = open_dataset(path, target="y")
    assert (data.n_rows, data.n_columns, data.dtype, data.y_dtype) == (N, 3, np.float32, np.float64)
    assert (data.column_names, data.target_names) == (("a", "b", "flag"), ("y",))
    assert data.skipped_columns == ("name", "day")
    assert (data.has_weights, data.row_bytes, data.chunk_rows, data.source) == (False, 3 * 4 + 8, 25, path)


def test_columns_and_targets_by_name_and_index(path, tmp_path, read_rows):
    def names(path=path, **options):
        data = open_dataset(path, **options)
        return data.column_names, data.target_names

    assert names(target=-1) == (("a", "b", "flag"), ("y",))
    assert names(target="2") == (("a", "flag", "y"), ("b",))
    assert names(columns=["y", 0, -3]) == (("y", "a", "flag"), None)
    assert names(target=["b", "y"]) == (("a", "flag"), ("b", "y"))
    assert open_dataset(path, target=["y"]).y_is_1d is False
    assert open_dataset(path, target=["b", "y"]).y_dtype == np.float64
    assert names(target="name")[0] == ("a", "b", "flag", "y")
    # The index of a frame is not a column unless it is named.
    FRAME[["a", "b", "y"]].sample(frac=1, random_state=0).to_parquet(tmp_path / "x.parquet")
    assert names(tmp_path / "x.parquet", target=-1) == (("a", "b"), ("y",))
    report = open_dataset(tmp_path / "x.parquet", target=-1).table_report
    assert "keep_index=True" in report["columns_dropped"]["__index_level_0__"]
    kept = open_dataset(tmp_path / "x.parquet", target="y", keep_index=True)
    assert kept.column_names == ("a", "b", "__index_level_0__")
    assert names(tmp_path / "x.parquet", target="__index_level_0__")[0] == ("a", "b", "y")
    # An integer is a name if there is one, and names may hold dots.
    frame = pd.DataFrame(np.arange(8.0).reshape(2, 4), columns=["2", "0", "1.b", "1"])
    frame.to_parquet(tmp_path / "x.parquet")
    assert names(tmp_path / "x.parquet", target=0)[1] == ("0",)
    assert names(tmp_path / "x.parquet", target=-1)[1] == ("1",)
    data = open_dataset(tmp_path / "x.parquet", columns=["1", "1.b"])
    np.testing.assert_array_equal(read_rows(data.rows(0, 2), 2)[0], frame[["1", "1.b"]])


def write(tmp_path, **columns):
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=3)
    return tmp_path / "x.parquet"


def test_nulls_become_nan(tmp_path, read_rows):
    path = write(
        tmp_path,
        f=pa.array([1, None, 3, 4], pa.float32()),
        i=pa.array([1, 2, 3, None], pa.int16()),
        b=pa.array([True, None, False, True]),
        full=pa.array([1, 2, 3, 4], pa.int16()),
        y=pa.array([1, 2, None, 4], pa.int64()),
    )
    data = open_dataset(path, target="y")
    assert (data.dtype, data.y_dtype) == (np.float32, np.float64)
    x, y, _ = read_rows(data.rows(0, 4), 4)
    nan = np.nan
    np.testing.assert_array_equal(x, [[1, 1, 1, 1], [nan, 2, nan, 2], [3, 3, 0, 3], [4, nan, 1, 4]])
    np.testing.assert_array_equal(y, [1, 2, nan, 4])
    assert open_dataset(path, columns=["full"]).dtype == np.int16


@pytest.mark.parametrize(
    "types, dtype",
    [
        ((pa.int64(), pa.float32()), "f8"),
        ((pa.int8(), pa.int16()), "i2"),
        ((pa.bool_(), pa.bool_()), "?"),
        ((pa.float16(), pa.int8()), "f2"),
        ((pa.uint64(), pa.int8()), "f8"),
        ((pa.decimal128(9, 2), pa.float32()), "f8"),
    ],
)
def test_common_type(tmp_path, read_rows, types, dtype):
    one = {pa.bool_(): True, pa.float16(): np.float16(1), pa.decimal128(9, 2): decimal.Decimal(1)}
    path = write(tmp_path, **{f"c{i}": pa.array([one.get(t, 1)] * 4, t) for i, t in enumerate(types)})
    data = open_dataset(path)
    assert data.dtype == np.dtype(dtype)
    x = read_rows(data.rows(0, 4), 4)[0]
    assert x.dtype == data.dtype
    assert (x == 1).all()


def test_fixed_size_lists(tmp_path, read_rows):
    values = np.arange(10, dtype="f4")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values), 2)
    path = write(
        tmp_path,
        v=lists,
        s=pa.array([1, 2, 3, 4, 5], pa.int8()),
        w=pa.array([[1, 2], [2, 3], [3, None], [4, 5], [6, 7]], pa.list_(pa.int8(), 2)),
        words=pa.array([["a"]] * 5, pa.list_(pa.string(), 1)),
        ragged=pa.array([[1.0]] * 5),
    )
    data = open_dataset(path, target="w")
    assert (data.column_names, data.target_names) == (("v_0", "v_1", "s"), ("w_0", "w_1"))
    assert (data.n_targets, data.y_is_1d, data.skipped_columns) == (2, False, ("words", "ragged"))
    x, y, _ = read_rows(data.rows(1, 5), 2)
    np.testing.assert_array_equal(x, np.column_stack([values.reshape(5, 2), [1, 2, 3, 4, 5]])[1:])
    np.testing.assert_array_equal(y, [[2, 3], [3, np.nan], [4, 5], [6, 7]])
    tile = next(open_dataset(write(tmp_path, v=lists)).rows(0, 3).tiles(3))
    assert tile.X.shape == (3, 2)
    assert not tile.X.flags.writeable  # a view of Arrow's memory: one column of lists is not copied
    nan = np.nan
    try:
        path = write(tmp_path, v=pa.array([[1, 2], None, [3, None], None], pa.list_(pa.int8(), 2)))
    except pa.ArrowNotImplementedError:
        return  # this pyarrow does not write null lists of fixed size
    expected = [[1, 2], [nan, nan], [3, nan], [nan, nan]]
    np.testing.assert_array_equal(read_rows(open_dataset(path).rows(0, 4), 4)[0], expected)


@pytest.mark.parametrize(
    "column, dtype",
    [
        (pa.array(["a", "b", None]), object),
        (pa.array(["a", "b", "a"]).dictionary_encode(), object),
        (pa.array([7, 8, 7]).dictionary_encode(), "i8"),
        (pa.array([True, False, True]), "?"),
        (pa.array([datetime.date(2020, 1, 1)] * 3), object),
        (pa.array([datetime.datetime(2020, 1, 1)] * 3), object),
    ],
)
def test_labels(tmp_path, read_rows, column, dtype):
    data = open_dataset(write(tmp_path, x=pa.array([1.0, 2, 3]), y=column), target="y")
    y = read_rows(data.rows(0, 3), 2)[1]
    assert y.dtype == data.y_dtype == np.dtype(dtype)
    assert y.tolist() == column.to_pylist()
    assert data.y.compute(scheduler="sync").tolist() == column.to_pylist()


# Files, and what is wrong with them.


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
def test_files_that_disagree(tmp_path, read_dataset, other, options, phrase):
    FRAME.to_parquet(tmp_path / "0.parquet")
    other.to_parquet(tmp_path / "1.parquet")
    with pytest.raises(InputError, match=phrase) as caught:
        open_dataset(tmp_path, **options)
    assert "1.parquet" in str(caught.value) and "0.parquet" in str(caught.value)
    FRAME.drop(columns="day").assign(name=1).to_parquet(tmp_path / "1.parquet")  # which are not read
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
        ({"columns": ["a", "y"], "target": "y"}, "column 'y' is named both as y and as a column of X"),
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


def test_tables_of_many_columns_or_no_rows(tmp_path):
    pd.DataFrame(np.zeros((1, 50))).rename(columns=str).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"18, 19 and 30 more"):
        open_dataset(tmp_path / "x.parquet", target="y")
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


def test_a_server_of_http_that_sends_whole_files_only():
    def refuse(*args, **options):
        raise ValueError("The HTTP server doesn't appear to support range requests.")

    server = SimpleNamespace(protocol="http", open=refuse, unstrip_protocol="http://{}".format)
    told = pytest.raises(InputError, match=r"range requests.*; download the file and fit that")
    with told, parquet_file(server, "host/x.parquet"):
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
    with pytest.raises(InputError, match="cannot be found by this process"):
        read_rows(data.rows(0, N), 10)


@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "reset"), TimeoutError("slow"), OSError(5, "I/O error")]
)
def test_errors_that_may_pass_stay_retryable(path, read_rows, monkeypatch, error):
    data = open_dataset(path)

    class Failing(io.BytesIO):
        """A file of a store that lost its connection."""

        def read(self, *args):
            raise error

    monkeypatch.setattr(type(data.reader.table.fs), "open", lambda *args, **kwargs: Failing(bytes(10_000)))
    with pytest.raises(type(error)) as caught:
        read_rows(data.rows(0, N), 10)
    assert caught.value.errno == error.errno
    assert not isinstance(caught.value, InputError)
