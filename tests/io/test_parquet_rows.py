from __future__ import annotations

import datetime
import decimal
import pickle
import weakref
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrff.io import parquet_rows
from distrff.io.open import open_dataset

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


def test_description(path):
    data = open_dataset(path, target="y")
    assert (data.n_rows, data.n_columns, data.dtype, data.y_dtype) == (N, 3, np.float32, np.float64)
    assert (data.column_names, data.target_names) == (("a", "b", "flag"), ("y",))
    assert (data.n_targets, data.y_is_1d, data.has_weights) == (1, True, False)
    assert data.skipped_columns == ("name", "day")
    assert (data.row_bytes, data.chunk_rows, data.source) == (3 * 4 + 8, 25, path)


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    group=st.integers(1, 40),
    segment=st.integers(5, 70),
    tile=st.integers(1, 70),
    span_bytes=st.sampled_from([1, 100, 2**24]),
    pack_bytes=st.sampled_from([1, 700, 2**26]),
)
def test_any_files_and_row_groups_give_the_same_rows(
    tmp_path_factory, read_dataset, sizes, group, segment, tile, span_bytes, pack_bytes
):
    folder = tmp_path_factory.mktemp("p")
    ends = np.minimum(np.cumsum([0, *sizes, N]), N)
    for i, (a, b) in enumerate(pairwise(ends)):
        FRAME[a:b].reset_index(drop=True).to_parquet(folder / f"part-{i}.parquet", row_group_size=group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distrff.io.tables.SPAN_BYTES", span_bytes)
        patch.setattr(parquet_rows, "PACK_BYTES", pack_bytes)
        x, y, w = read_dataset(open_dataset(folder, target="y"), segment, tile)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)
    assert w is None


def test_rows_hold_the_row_groups_they_need(path):
    data = open_dataset(path, target="y")
    assert [
        [g.number for part in data.rows(a, b).parts for g in part.groups]
        for a, b in ((0, 25), (24, 26), (25, 50), (30, N), (59, N))
    ] == [
        [0],
        [0, 1],
        [1],
        [1, 2],
        [2],
    ]
    rows = data.rows(0, N)
    assert len(pickle.dumps(rows)) < 2000
    np.testing.assert_array_equal(next(pickle.loads(pickle.dumps(rows)).tiles(N)).X, X)


def test_one_file_is_opened_once_a_run(path, read_rows, monkeypatch):
    opened, data = [], open_dataset(path)
    file = parquet_rows.parquet_file
    monkeypatch.setattr(parquet_rows, "parquet_file", lambda fs, path: opened.append(path) or file(fs, path))
    read_rows(data.rows(3, N), 7)
    assert opened == [path]


@pytest.mark.parametrize("tile_rows", [3, 5, 10, 23])
def test_one_span_and_one_tile_are_alive(path, monkeypatch, tile_rows):
    monkeypatch.setattr("distrff.io.tables.SPAN_BYTES", 10 * (3 * 4 + 8))
    decode, alive = parquet_rows.NumbersEncoding.span, []

    def span(self, batch, first_row):
        assert all(ref() is None for ref in alive)
        arrays = decode(self, batch, first_row)
        alive.append(weakref.ref(arrays["X"]))
        return arrays

    monkeypatch.setattr(parquet_rows.NumbersEncoding, "span", span)
    data = open_dataset(path, target="y")
    assert data.chunk_rows == 10
    held = None
    for tile in data.rows(0, N).tiles(tile_rows):
        held = tile.X if tile_rows < 10 else None  # a tile of a whole span is that span
        del tile
    assert len(alive) == 7  # 10, 10, 5 rows of two row groups, and 10 of the last
    del held


def test_lazy_arrays(path, monkeypatch):
    monkeypatch.setattr("distrff.io.tables.BLOCK_BYTES", 50 * (2 * 2 + 8 + 4))
    data = open_dataset(path, target="y", columns=["b", "flag"], sample_weight="a")
    assert data.X.chunks == ((50, 10), (2,))
    assert data.y.chunks == data.sample_weight.chunks == ((50, 10),)
    assert (data.X.dtype, data.y.dtype, data.sample_weight.dtype) == (np.int16, np.float64, np.float64)
    np.testing.assert_array_equal(data.X.compute(scheduler="sync"), FRAME[["b", "flag"]].to_numpy("i2"))
    np.testing.assert_array_equal(data.y.compute(scheduler="sync"), Y)
    np.testing.assert_array_equal(data.sample_weight.compute(scheduler="sync"), FRAME["a"].astype(float))


def test_columns_and_targets_by_name_and_index(path):
    def names(**options):
        data = open_dataset(path, **options)
        return data.column_names, data.target_names

    assert names(target=-1) == (("a", "b", "flag"), ("y",))
    assert names(target="2") == (("a", "flag", "y"), ("b",))
    assert names(columns=["y", 0, -3]) == (("y", "a", "flag"), None)
    assert names(target=["b", "y"]) == (("a", "flag"), ("b", "y"))
    assert open_dataset(path, target=["y"]).y_is_1d is False
    assert open_dataset(path, target=["b", "y"]).y_dtype == np.float64
    assert names(target="name")[0] == ("a", "b", "flag", "y")


def test_an_integer_is_a_name_if_there_is_one(tmp_path):
    pd.DataFrame(np.zeros((3, 3)), columns=["2", "0", "1"]).to_parquet(tmp_path / "x.parquet")
    assert open_dataset(tmp_path / "x.parquet", target=0).target_names == ("0",)
    assert open_dataset(tmp_path / "x.parquet", target=-1).target_names == ("1",)


def test_names_with_dots(tmp_path, read_rows):
    frame = pd.DataFrame({"a": [1.0, 2.0], "a.b": [3.0, 4.0], "c.d": [5.0, 6.0]})
    frame.to_parquet(tmp_path / "x.parquet")
    data = open_dataset(tmp_path / "x.parquet", columns=["a", "c.d"])
    np.testing.assert_array_equal(read_rows(data.rows(0, 2), 2)[0], frame[["a", "c.d"]])


def test_the_index_of_a_frame_is_not_a_column(tmp_path):
    FRAME[["a", "b", "y"]].sample(frac=1, random_state=0).to_parquet(tmp_path / "x.parquet")
    data = open_dataset(tmp_path / "x.parquet", target=-1)
    assert (data.column_names, data.target_names) == (("a", "b"), ("y",))
    assert data.skipped_columns == ("__index_level_0__",)
    assert open_dataset(tmp_path / "x.parquet", target="__index_level_0__").column_names == ("a", "b", "y")


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
    path = write(
        tmp_path,
        v=pa.FixedSizeListArray.from_arrays(pa.array(values), 2),
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


def test_null_lists(tmp_path, read_rows):
    lists = pa.array([[1, 2], None, [3, None], [4, 5], None], pa.list_(pa.int8(), 2))
    try:
        path = write(tmp_path, v=lists)
    except pa.ArrowNotImplementedError:
        pytest.skip("this pyarrow does not write null lists of fixed size")
    nan = np.nan
    expected = [[1, 2], [nan, nan], [3, nan], [4, 5], [nan, nan]]
    np.testing.assert_array_equal(read_rows(open_dataset(path).rows(0, 5), 5)[0], expected)


def test_a_list_column_alone_is_not_copied(tmp_path):
    path = write(tmp_path, v=pa.FixedSizeListArray.from_arrays(pa.array(np.arange(6.0)), 2))
    tile = next(open_dataset(path).rows(0, 3).tiles(3))
    assert tile.X.shape == (3, 2)
    assert not tile.X.flags.writeable  # a view of Arrow's memory


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
