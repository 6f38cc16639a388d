"""Parquet files as rows: which files and columns, in what cuts, of what types, and what is refused."""

import datetime
import io
import pickle
from types import SimpleNamespace

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from distrff.errors import DataWarning, InputError
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
    data = open_dataset(path, target="y", columns=["a", "b", "flag"])
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
    with pytest.warns(DataWarning, match="left out: name|left out: day"):
        data = open_dataset(path, target="y")
    assert (data.n_rows, data.n_columns, data.dtype, data.y_dtype) == (N, 3, np.float32, np.float64)
    assert (data.column_names, data.target_names) == (("a", "b", "flag"), ("y",))
    assert list(data.table_report["columns_dropped"]) == ["name", "day"]
    assert (data.has_weights, data.row_bytes, data.chunk_rows, data.source) == (False, 3 * 4 + 8, 25, path)


def test_columns_and_targets_by_name_and_index(path, tmp_path, read_rows):
    def names(place=path, **options):
        drop = None if place != path or "columns" in options else ["name", "day"]
        data = open_dataset(place, drop=drop, **options)
        return data.column_names, data.target_names

    assert names(target=-1) == (("a", "b", "flag"), ("y",))
    assert names(target="2") == (("a", "flag", "y"), ("b",))
    assert names(columns=["y", 0, -3]) == (("y", "a", "flag"), None)
    assert names(target=["b", "y"]) == (("a", "flag"), ("b", "y"))
    assert open_dataset(path, target=["y"], columns=["a"]).y_is_1d is False
    assert open_dataset(path, target=["b", "y"], columns=["a"]).y_dtype == np.float64
    assert open_dataset(path, target="name", drop="day").column_names == ("a", "b", "flag", "y")
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


def test_fixed_size_lists(tmp_path, read_rows):
    values = np.arange(10, dtype="f4")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values), 2)
    path = write(
        tmp_path,
        v=lists,
        s=pa.array([1, 2, 3, 4, 5], pa.int8()),
        w=pa.array([[1, 2], [2, 3], [3, None], [4, 5], [6, 7]], pa.list_(pa.int8(), 2)),
        words=pa.array([["a"]] * 5, pa.list_(pa.string(), 1)),
        more=pa.array([["a"]] * 5),
    )
    with pytest.warns(DataWarning, match="left out: words, more"):
        data = open_dataset(path, target="w")
    assert (data.column_names, data.target_names) == (("v_0", "v_1", "s"), ("w_0", "w_1"))
    assert (data.n_targets, data.y_is_1d) == (2, False)
    assert list(data.table_report["columns_dropped"]) == ["words", "more"]
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


@pytest.mark.parametrize("list_of", [pa.list_, pa.large_list])
def test_lists_of_one_length(tmp_path, read_rows, list_of):
    lists = [None, [1, 2], [3, None], [4, 5], [6, 7]]
    path = write(tmp_path, v=pa.array(lists, list_of(pa.int16())), s=pa.array([1.0] * 5))
    data = open_dataset(path)
    assert (data.column_names, data.dtype) == (("v_0", "v_1", "s"), np.float64)
    nan = np.nan
    expected = [[nan, nan, 1], [1, 2, 1], [3, nan, 1], [4, 5, 1], [6, 7, 1]]
    np.testing.assert_array_equal(read_rows(data.rows(0, 5), 2)[0], expected)
    np.testing.assert_array_equal(read_rows(data.rows(2, 5), 3)[0], expected[2:])
    filled = open_dataset(path, missing="mean")
    assert filled.column_names == ("v_0", "v_1", "s")
    np.testing.assert_allclose(read_rows(filled.rows(0, 1), 1)[0], [[3.5, 14 / 3, 1]])
    other = tmp_path / "y.parquet"
    pq.write_table(pa.table({"v": pa.array(lists[1:], pa.list_(pa.float32(), 2)), "s": [1.0] * 4}), other)
    np.testing.assert_array_equal(
        read_rows(open_dataset([path, other]).rows(0, 9), 9)[0], [*expected, *expected[1:]]
    )


@pytest.mark.parametrize("options", [{}, {"missing": "mean"}])
def test_lists_of_several_lengths(tmp_path, read_rows, options):
    path = write(tmp_path, s=pa.array([1.0] * 5), v=pa.array([[1.0, 2], [3, 4], [5, 6], [7, 8], [9]]))
    with pytest.raises(InputError, match=r"x\.parquet: column 'v' holds a list of 1 numbers in row 4, but"):
        read_rows(open_dataset(path, **options).rows(0, 5), 5)
    assert open_dataset(path, drop=["v"]).column_names == ("s",)
    empty = write(tmp_path, s=pa.array([1.0] * 3), v=pa.array([[], None, []], pa.list_(pa.float64())))
    data = open_dataset(empty, **options)
    assert (data.column_names, data.table_report["columns_dropped"]) == (("s",), {"v": "it has no values"})


@pytest.mark.parametrize(
    "column, dtype",
    [
        (pa.array(["a", "b", None]), object),
        (pa.array([7, 8, 7]).dictionary_encode(), "i8"),
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


@pytest.mark.parametrize("name", ["{}", "{}/*.parquet", "list"])
def test_files_have_the_order_that_dask_gives_them(tmp_path, read_dataset, name):
    for i in (0, 2, 10, 1, 11):
        pd.DataFrame({"x": [float(i)]}).to_parquet(tmp_path / f"part.{i}.parquet")
    files = sorted(map(str, tmp_path.glob("*")))
    path = files if name == "list" else name.format(tmp_path)
    got = read_dataset(open_dataset(path), 9, 9)[0].ravel()
    assert got.tolist() == dd.read_parquet(path)["x"].compute(scheduler="sync").tolist() == [0, 1, 2, 10, 11]


def keyed(tmp_path, *keys):
    """A folder of files of one row, each below folders of keys; its rows are numbered in the column x."""
    for i, key in enumerate(keys):
        (tmp_path / key).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": [float(i)]}), tmp_path / key / f"{i}.parquet")
    return tmp_path


@pytest.mark.parametrize(
    "keys",
    [
        ["k=2", "k=10"],
        ["k=01", "k=-5", "k=2147483647"],
        ["k=1", "k=9223372036854775808"],
        ["k=1", "k=__HIVE_DEFAULT_PARTITION__"],
        ["k=a%20b", "k=c%3Dd", "k=e=f", "k="],
        ["k=1.5", "k=+5"],
        ["", "k=3"],
        ["k=1/u/j=x", "k=2/u/j=y"],
        ["k%20l=3"],
    ],
)
def test_keys_of_a_partitioned_folder_are_columns(tmp_path, keys):
    expected = pyarrow.dataset.dataset(keyed(tmp_path, *keys), partitioning="hive")
    table = parquet_rows.parquet_table(tmp_path)
    assert table.schema.names == expected.schema.names
    assert table.schema.types == expected.schema.types
    pieces = [piece.batch for piece in table.pieces(table.schema.names)]
    got = pa.Table.from_batches(pieces).sort_by("x")
    assert got.equals(expected.to_table().sort_by("x"))
    only = [piece.batch for piece in table.pieces(expected.schema.names[1:])]
    assert pa.Table.from_batches(only).num_rows == len(keys)


def test_what_reads_the_keys_of_a_folder(tmp_path, read_rows):
    keyed(tmp_path, "year=2019/m=u", "year=2020/m=v", "year=2020/m=u")
    files = sorted(map(str, tmp_path.rglob("*.parquet")))
    expected = [[0, 2019], [2, 2020], [1, 2020]]
    for path in (tmp_path, f"{tmp_path}/*/*/*.parquet", f"{tmp_path}/**/*.parquet", files):
        with pytest.warns(DataWarning, match="left out: m"):
            data = open_dataset(path)
        assert (data.column_names, data.dtype) == (("x", "year"), np.float64)
        assert list(data.table_report["columns_dropped"]) == ["m"]
        np.testing.assert_array_equal(read_rows(data.rows(0, 3), 2)[0], expected)
    data = open_dataset(tmp_path, target="m", columns=["year"], sample_weight="x", ids="year")
    X, y, weight = read_rows(data.rows(0, 3), 3)
    assert X.ravel().tolist() == [2019, 2020, 2020]
    assert (y.tolist(), weight.tolist()) == (["u", "u", "v"], [0, 2, 1])
    ids = next(data.rows(0, 3).tiles(3)).ids
    assert ids["year"].tolist() == [2019, 2020, 2020]
    coded = open_dataset(tmp_path, one_hot=True)
    assert coded.column_names == ("x", "year", "m=u", "m=v")
    assert open_dataset(tmp_path / "year=2019", drop="m").column_names == ("x",)
    with pytest.raises(InputError, match="has no column 'year', which the model's steps need; it has: x"):
        open_dataset(files[0], steps=coded.steps)
    keyed(tmp_path, "year=__HIVE_DEFAULT_PARTITION__/m=u")
    assert open_dataset(tmp_path, drop="m").known_missing == {"X": {"year": 1}}


def test_keys_beyond_32_bits_are_integers_and_declared_codes_are_text(tmp_path):
    large = open_dataset(keyed(tmp_path / "large", "k=1", "k=9007199254740993"), columns=["k"])
    assert large.X.compute().ravel().tolist() == [1, 9007199254740993]
    codes = keyed(tmp_path / "codes", "zip=02139", "zip=2139")
    found = open_dataset(codes, one_hot=True, types={"zip": "text"})
    assert found.column_names == ("x", "zip=02139", "zip=2139")


def test_keys_that_were_text_at_the_fit_stay_text(tmp_path, read_rows):
    codes = keyed(tmp_path, "code=007", "code=2A")
    steps = open_dataset(codes, one_hot=True).steps
    (tmp_path / "code=2A" / "1.parquet").unlink()  # 007 alone would be the number 7
    data = open_dataset(codes, steps=steps)
    np.testing.assert_array_equal(read_rows(data.rows(0, 1), 1)[0], [[0, 1, 0]])


def test_a_key_that_the_files_hold_as_well(tmp_path, read_rows):
    frame = pl.DataFrame({"x": [0.0, 1, 2], "k": [True, False, True], "n": [2, 1, 2]})
    frame = frame.with_columns(pl.col("n").cast(pl.Float64))  # 2.0 is 2, whatever it is written as
    frame.write_parquet(tmp_path, partition_by=["k", "n"])
    assert open_dataset(tmp_path).column_names == ("x", "k", "n")
    pq.write_table(pa.table({"x": [1.0], "k": [True], "n": [3]}), tmp_path / "k=true/n=2.0/more.parquet")
    with pytest.raises(InputError, match=r"more\.parquet: column 'n' holds 3 to 3, but its path says n=2\.0"):
        open_dataset(tmp_path)


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
        (
            FRAME.astype({"b": str}),
            {"columns": ["a", "b"]},
            "column 'b' has type large_string, but it is int16",
        ),
        (FRAME.astype({"b": str}), {}, "column 'b' has type large_string, but it is int16"),
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


DAYS = pa.array(pd.date_range("2020", periods=3))
WORDS = pa.array(["u", "v", "u"])


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    "one, other",
    [
        (WORDS, WORDS.cast(pa.string_view())),
        (WORDS, WORDS.dictionary_encode()),
        (WORDS, pa.nulls(3)),
        (WORDS, pa.nulls(3, pa.float64())),
        (WORDS, pa.array([], pa.float64())),
        (DAYS, DAYS.cast(pa.date32())),
        (DAYS.cast(pa.timestamp("s", "Asia/Tokyo")), DAYS.cast(pa.timestamp("ms", "UTC"))),
        (pa.array([7, 8, 9], pa.int64()), pa.array([7, 8, 9], pa.uint64())),
        (pa.array([7, 8, 9], pa.int64()), pa.array([7, 8, 9], pa.float32())),
        (pa.array([7, 8, 9], pa.float64()), pa.array([7, 8, 9], pa.float32())),
        (pa.array([1, 0, 1], pa.int16()), pa.array([True, False, True])),
        (pa.array([7, 8, 9]), pa.array([7, 8, 9], pa.decimal128(9, 2))),
        (pa.array([7, 8, 9]), pa.nulls(3, pa.string())),
        (pa.array([7, 8, 7]).dictionary_encode(), pa.array([7, 8, 7], pa.int32())),
        (pa.array([7, 8, 9], pa.time32("s")), pa.array([7_000_000, 8_000_000, 9_000_000], pa.time64("us"))),
    ],
)
def test_files_of_several_writers(tmp_path, read_dataset, one, other, swapped):
    tables = [
        pa.table({"k": column, "x": np.arange(float(len(column)))}).select(names)
        for column, names in ((one, ["k", "x"]), (other, ["x", "k"]))
    ]
    for i, table in enumerate(reversed(tables) if swapped else tables):
        pq.write_table(table, tmp_path / f"{i}.parquet")
    options = {"one_hot": True, "datetime": "seconds", "missing": "mean", "columns": ["k", "x"]}
    data = open_dataset(tmp_path, **options)
    alone = open_dataset(tmp_path / f"{int(swapped)}.parquet", **options)
    assert data.column_names == alone.column_names
    X, expected = (read_dataset(rows, 9, 9)[0] for rows in (data, alone))
    first = X[3:] if swapped and len(other) else X[:3]
    np.testing.assert_array_equal(first, expected)
    if len(other) and not other.null_count:
        np.testing.assert_array_equal(X[3:], X[:3])
    dtypes = {open_dataset([*tmp_path.glob("*")][::step], **options).dtype for step in (1, -1)}
    assert dtypes == {X.dtype}


@pytest.mark.parametrize(
    "one, other, phrase",
    [
        (WORDS, pa.array([1, 2, 3]), "1.parquet: column 'k' has type int64, but it is string in .*0.parquet"),
        (
            DAYS,
            DAYS.cast(pa.timestamp("ns", "UTC")),
            r"has type timestamp\[ns, tz=UTC\], but it is timestamp",
        ),
        (
            pa.array([1.5, 2, 3]),
            pa.array([2**53 + 1, 2, 3]),
            "1.parquet: column 'k' of type int64 has a value",
        ),
    ],
)
def test_files_that_have_no_type_in_common(tmp_path, read_dataset, one, other, phrase):
    for i, column in enumerate((one, other)):
        pq.write_table(pa.table({"k": column, "x": [1.0, 2, 3]}), tmp_path / f"{i}.parquet")
    for options in ({"columns": ["k", "x"]}, {}):
        with pytest.raises(InputError, match=phrase):
            read_dataset(open_dataset(tmp_path, one_hot=True, datetime="parts", **options), 9, 9)


@pytest.mark.parametrize(
    "options, phrase",
    [
        ({"target": "price"}, "has no column 'price'; its 6 columns are: a, name, b, flag, day, y"),
        ({"target": 6}, "has no column 6"),
        ({"columns": ["a", "a"]}, "column 'a' is named twice"),
        ({"columns": []}, "no column is named"),
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
    data = open_dataset(path, target="y", columns=["a", "b", "flag"])
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_rows(data.rows(0, N), 10)
    np.testing.assert_array_equal(read_rows(data.rows(0, 25), 10)[0], X[:25])


def test_files_that_changed_meanwhile(path, read_rows, tmp_path):
    data = open_dataset(path, columns=["a", "b", "flag"])
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
    data = open_dataset(path, columns=["a", "b", "flag"])

    class Failing(io.BytesIO):
        """A file of a store that lost its connection."""

        def read(self, *args):
            raise error

    monkeypatch.setattr(type(data.reader.table.fs), "open", lambda *args, **kwargs: Failing(bytes(10_000)))
    with pytest.raises(type(error)) as caught:
        read_rows(data.rows(0, N), 10)
    assert caught.value.errno == error.errno
    assert not isinstance(caught.value, InputError)
