"""Tables of mixed columns are the same rows from Parquet, pandas, dask and xarray, cut in whatever way."""

from dataclasses import replace
from datetime import date
from decimal import Decimal

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray

from distrff.errors import DataWarning, InputError
from distrff.io import open as open_table
from distrff.io import tables as encoded_rows
from distrff.io.open import open_dataset

MIXED = {"target": "y", "sample_weight": "w", "one_hot": True, "datetime": "seconds"}


@pytest.fixture(autouse=True)
def synchronous():
    with dask.config.set(scheduler="sync"):
        yield


def test_few_rows_of_a_batch_do_not_keep_all_of_it(tmp_path, frame):
    frame.to_parquet(tmp_path / "x.parquet")
    data = open_dataset(tmp_path / "x.parquet", missing="drop", **MIXED)
    n = data.n_rows // 4
    for start in (0, n, data.n_rows - n):
        (block,) = data.rows(start, start + n).tiles(n)
        for values in block[1:4]:
            base = values
            while isinstance(getattr(base, "base", None), np.ndarray):
                base = base.base
            assert base.shape[0] <= 2 * n


@pytest.mark.parametrize("span_bytes", [1, 700, 2**23])
def test_any_cut_gives_the_same_rows(tmp_path, frame, rng, monkeypatch, span_bytes):
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=int(rng.integers(5, 40)))
    data = open_dataset(tmp_path / "x.parquet", missing="drop", **MIXED)
    X, y, s = data.X.compute(), data.y.compute(), data.sample_weight.compute()
    complete = frame.drop(columns="empty").dropna()
    np.testing.assert_array_equal(y, complete["y"].to_numpy(object))
    np.testing.assert_array_equal(s, complete["w"])
    names = data.column_names
    np.testing.assert_array_equal(X[:, names.index("a")], complete["a"])
    np.testing.assert_array_equal(X[:, names.index("c=v")], complete["c"] == "v")
    seconds = (complete["t"] - frame["t"].min()).dt.total_seconds()
    np.testing.assert_array_equal(X[:, names.index("t")], seconds)
    monkeypatch.setattr(encoded_rows, "SPAN_BYTES", span_bytes)
    start = int(rng.integers(0, data.n_rows - 1))
    stop = int(rng.integers(start + 1, data.n_rows + 1))
    tiles = list(data.rows(start, stop).tiles(int(rng.integers(1, 20))))
    np.testing.assert_array_equal(np.concatenate([tile.X for tile in tiles]), X[start:stop])
    np.testing.assert_array_equal(np.concatenate([tile.y for tile in tiles]), y[start:stop])


def test_row_groups_of_which_no_row_is_kept_are_passed_over(tmp_path):
    """The row groups before and after them are of one file, and not one run of rows."""
    values = np.arange(40.0)
    values[10:20] = np.nan
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": values, "y": np.arange(40)}), path, row_group_size=5)
    data = open_dataset(path, target="y", missing="drop")
    kept = [*range(10), *range(20, 40)]
    for start, stop in ((0, 30), (7, 13), (10, 11)):
        (tile,) = data.rows(start, stop).tiles(30)
        assert tile.X.ravel().tolist() == tile.y.tolist() == kept[start:stop]
        parts = data.rows(start, stop).parts
        assert all(part.stop - part.start == sum(g.n_rows for g in part.groups) for part in parts)
    assert len(data.rows(0, 30).parts) == 2


def test_what_is_done_is_reported(tmp_path, frame):
    frame["many"] = [f"word {i}" for i in range(len(frame))]
    frame["day"] = pd.Timestamp("2020-01-01")
    frame.to_parquet(tmp_path / "x.parquet")
    options = {"target": "y", "one_hot": True, "missing": "drop", "max_categories": 10}
    with pytest.warns(DataWarning) as warned:
        report = open_dataset(tmp_path / "x.parquet", **options).table_report
    assert [str(one.message).partition(" (")[0] for one in warned] == ["left out: t, day", "left out: many"]
    complete = frame.drop(columns=["empty", "t"]).dropna()
    assert (report["rows_read"], report["rows_dropped"]) == (90, 90 - len(complete))
    assert report["columns_dropped"] == {
        "t": "it holds times; datetime='seconds', 'parts' or 'both' takes them",
        "day": "it holds times; datetime='seconds', 'parts' or 'both' takes them",
        "empty": "it has no values",
        "many": "it has more than 10 categories, such as 'word 0'; hash_columns=True or max_categories takes "
        "it",
    }
    assert report["missing"] == {name: frame[name].isna().sum() for name in ("a", "c", "ni", "y")}
    assert report["columns_made"] == len(["a", "k", "flag", "c=u", "c=v", "c=w", "g=x", "g=y", "ni", "w"])


def test_steps_of_a_model_take_other_rows_by_names(tmp_path, frame, rng):
    steps = open_dataset(frame, missing="drop", **MIXED).steps
    other = frame.iloc[rng.permutation(len(frame))[:40]].copy()
    other["c"] = other["c"].where(other["c"].isna() | (rng.random(40) < 0.5), "new")
    other[["y", "g", "a", "more", "k", "flag", "c", "t", "ni", "w"]] = other.assign(more="?")[
        ["y", "g", "a", "more", "k", "flag", "c", "t", "ni", "w"]
    ]
    other[[*reversed(other.columns)]].to_parquet(tmp_path / "x.parquet")
    complete = other.drop(columns="empty").dropna()
    is_new = (complete["c"] == "new").to_numpy()
    for source in (dd.from_pandas(other, npartitions=3), other, tmp_path / "x.parquet"):
        with pytest.warns(DataWarning, match=f"'c': {is_new.sum()} of {len(complete)} rows .* such as 'new'"):
            data = open_dataset(source, steps=steps)
        counts = {"rows_read": 40, "rows_dropped": 40 - len(complete)}
        assert data.table_report == counts | {"n_unseen_categories": {"c": is_new.sum()}}
    X = data.X.compute()
    places = [data.column_names.index(f"c={c}") for c in "uvw"]
    np.testing.assert_array_equal(X[:, places].sum(axis=1), 1.0 * ~is_new)
    with pytest.raises(InputError, match="has no column 'flag', which the model's steps need"):
        open_dataset(other.drop(columns="flag"), steps=steps)
    with pytest.raises(InputError, match="one_hot was given beside steps"):
        open_dataset(other, steps=steps, one_hot=True)


def test_numbers_are_taken_as_they_are_without_a_pass(tmp_path, frame, monkeypatch):
    data = open_dataset(frame.dropna(subset="y"), target="y", columns=["k"], positive="yes")
    assert (data.y_dtype, data.steps.target.positive) == (np.uint8, "yes")
    np.testing.assert_array_equal(data.y.compute(), frame.dropna(subset="y")["y"] == "yes")
    frame[["a", "k", "flag", "c", "t", "y"]].to_parquet(tmp_path / "x.parquet")
    monkeypatch.setattr(open_table, "Run", lambda: pytest.fail("a pass over the rows"))
    for drop, names in (("k", ("a", "flag")), (None, ("a", "k", "flag"))):
        told = r"left out: (c \(it holds text; one_hot=True|t \(it holds times; datetime=)"
        with pytest.warns(DataWarning, match=told):
            data = open_dataset(tmp_path / "x.parquet", target="y", drop=drop)
        assert (data.column_names, data.steps) == (names, None)
        assert list(data.table_report["columns_dropped"]) == ["c", "t"]
    assert open_dataset(tmp_path / "x.parquet", target="y", drop=["c", "t"]).table_report is None
    assert open_dataset(tmp_path / "x.parquet", columns=["k"]).dtype == np.int16
    assert open_dataset(tmp_path / "x.parquet", columns=["k"], one_hot=True).dtype == np.int16


def test_lists_go_beside_categories_and_columns_that_hold_nothing_are_left_out(tmp_path):
    path = tmp_path / "x.parquet"
    table = pa.table({"a": [1.0, 2, 3], "b": pa.nulls(3, pa.float64()), "n": pa.nulls(3)})
    pq.write_table(table, path)
    data = open_dataset(path)
    assert data.column_names == ("a",)
    assert data.table_report["columns_dropped"].keys() == {*data.skipped_columns} == {"b", "n"}
    assert open_dataset(path, columns=["a"]).table_report is None
    lists = pa.array([[1, 2], [3, 4], None], pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"v": lists, "c": ["u", "v", "u"]}), path)
    try:
        pq.read_table(path)
    except pa.ArrowInvalid:
        return  # this pyarrow cannot read a missing list of fixed size
    data = open_dataset(path, one_hot=True, missing="mean")
    assert (data.column_names, data.dtype) == (("v_0", "v_1", "c=u", "c=v"), np.float32)
    np.testing.assert_array_equal(data.X.compute(), [[1, 2, 1, 0], [3, 4, 0, 1], [2, 3, 1, 0]])


def test_rows_of_a_zarr_group_say_by_which_steps_they_were_made(tmp_path, frame):
    import zarr

    data = open_dataset(frame, missing="drop", **MIXED)
    group = zarr.open_group(tmp_path / "rows.zarr", mode="w")
    group.create_array("X", data=data.X.compute())
    group.attrs.update({"column_names": list(data.column_names), "steps": data.steps.to_dict()})
    assert open_dataset(tmp_path / "rows.zarr").steps == data.steps
    few = open_dataset(tmp_path / "rows.zarr", columns=["k", "a"])
    assert few.steps.names_out == few.column_names == ("k", "a")
    group.attrs["steps"] = replace(data.steps, chosen=(0,)).to_dict()
    with pytest.raises(InputError, match="its steps make 1 columns but X has"):
        open_dataset(tmp_path / "rows.zarr")
    group.attrs["steps"] = data.steps.to_dict()
    for options in ({"missing": "drop"}, {"steps": data.steps}):
        with pytest.raises(InputError, match=f"{next(iter(options))} goes with tables"):
            open_dataset(tmp_path / "rows.zarr", **options)


# xarray -------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [None, {"x": 1, "z": 2, "time": 7}])
def test_variables_of_xarray_with_further_dimensions(rng, chunks):
    field, depth = rng.normal(size=(2, 3, 30)), rng.normal(size=30)
    depth[4] = np.nan
    variables = {"field": (("x", "z", "time"), field), "depth": ("time", depth), "fixed": ("x", np.ones(2))}
    data = xarray.Dataset(variables) if chunks is None else xarray.Dataset(variables).chunk(chunks)
    found = open_dataset(data, sample_dim="time", target="depth", missing="drop")
    assert found.column_names == tuple(f"field_{i}" for i in range(6))
    kept = ~np.isnan(depth)
    np.testing.assert_array_equal(found.X.compute(), field.reshape(6, 30).T[kept])
    np.testing.assert_array_equal(found.y.compute(), depth[kept])
    with pytest.raises(InputError, match="needs sample_dim, the dimension of its samples: one of x, z, time"):
        open_dataset(data)
    with pytest.raises(InputError, match="no data variable has the dimension 'row'; the dimensions are x, z"):
        open_dataset(data, sample_dim="row")


# Bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"one_hot": True}, "column 'a' has no value in .* of 90 rows; give missing='drop', 'mean' or"),
        ({"columns": ["k"], "target": "y", "drop": None}, "column 'y' .* give missing='drop', 'mean' or"),
        ({"missing": "mean", "columns": ["k"], "sample_weight": "a"}, "column 'a' .* give missing='drop'$"),
        ({"columns": ["c"]}, r"c.*: it holds text; one_hot=True"),
        ({"columns": ["t"], "missing": "drop"}, "cannot be a column of X: it holds times; datetime"),
        ({"columns": ["y"], "target": "y", "one_hot": True}, "'y' is named both as y and as a column of X"),
        ({"target": "z", "one_hot": True}, "has no column 'z'; its 10 columns are: a, k, flag"),
        ({"drop": ["z"]}, "has no column 'z'"),
        ({"drop": ["k", "y"], "target": "y"}, "'y' is named both as y and to be left out"),
        ({"drop": "a", "target": "y", "sample_weight": "a"}, "'a' is named both as weights and to be left"),
        ({"target": "a", "sample_weight": "a"}, "'a' is named both as y and as weights; name it once"),
        ({"sample_weight": "c", "missing": "drop"}, "the weights 'c' hold text, not numbers"),
        ({"target": "t", "missing": "drop"}, "the target 't' holds times; name a column of numbers"),
    ],
)
def test_columns_that_cannot_be_used(frame, options, message):
    with pytest.raises(InputError, match=message):
        open_dataset(frame, **options)


def test_tables_that_cannot_be_used(frame, tmp_path):
    with pytest.raises(InputError, match=r"column 'mix' of the DataFrame cannot be read .* one type"):
        open_dataset(frame.assign(mix=[1, "u", *[None] * 88]), one_hot=True, missing="drop")
    with pytest.raises(InputError, match="pandas DataFrame has no rows"):
        open_dataset(frame.iloc[:0], one_hot=True)
    with pytest.raises(InputError, match="the DataFrame has two columns named 'a'; rename one"):
        open_dataset(pd.concat([frame[["a"]], frame], axis=1))
    with pytest.raises(
        InputError, match="none of the 2 rows is left, since each lacks a value in one of a, b"
    ):
        open_dataset(pd.DataFrame({"a": [1, None], "b": [None, 1]}), missing="drop")
    frame[["a"]].to_parquet(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="sample_dim='time' goes with an xarray Dataset or a Zarr group"):
        open_dataset(tmp_path, sample_dim="time")
    (tmp_path / "x.parquet").unlink()
    frame.to_parquet(tmp_path / "1.parquet")
    frame.assign(c=1.0).to_parquet(tmp_path / "2.parquet")
    with pytest.raises(InputError, match=r"2.parquet: column 'c' has type double, but it is .*string"):
        open_dataset(tmp_path, one_hot=True, missing="drop")


@pytest.mark.parametrize("as_table", [pd.DataFrame, pl.DataFrame, pa.table])
def test_lists_of_numbers_in_frames(as_table):
    rows = [[1.0, 2.0], None, [5.0, 6.0]]
    data = open_dataset(as_table({"v": rows, "s": [1.0, 2, 3]}), missing="mean")
    assert data.column_names == ("v_0", "v_1", "s")
    np.testing.assert_array_equal(data.X.compute(scheduler="sync"), [[1, 2, 1], [3, 4, 2], [5, 6, 3]])
    with pytest.raises(
        InputError, match="column 'v' holds a list of 1 numbers in row 2, but one of 2 before"
    ):
        open_dataset(as_table({"v": [*rows[:2], [5.0]], "s": [1.0, 2, 3]}), missing="mean")
    with pytest.raises(InputError, match=r"column 'v' .*(lists of text|nor a list)"):
        open_dataset(as_table({"v": [["a"], ["b"]]}), columns=["v"])


def test_a_frame_of_arrays_names_the_row_and_counts_their_bytes(monkeypatch):
    frame = pd.DataFrame({"v": [np.ones(64)] * 95 + [np.ones(63)]})
    monkeypatch.setattr("distrff.io.tables.SPAN_BYTES", 8 * 64 * 10)  # rows in batches of ten
    with pytest.raises(InputError, match="column 'v' holds a list of 63 numbers in row 95"):
        open_dataset(frame)
    assert open_dataset(frame[:95]).row_bytes == 2 * 8 * 64


@pytest.mark.parametrize("rule", ["seconds", "parts"])
def test_times_have_a_zone_in_all_rows_or_in_none(rule):
    naive = pd.DataFrame({"t": pd.date_range("2020-03-01 05:00", periods=9, freq="7h")})
    there = naive.assign(t=naive["t"].dt.tz_localize("Asia/Tokyo"))
    data = open_dataset(there, datetime=rule)
    same = open_dataset(there.assign(t=there["t"].dt.tz_convert("UTC")), steps=data.steps)
    np.testing.assert_array_equal(same.X.compute(), data.X.compute())
    told = "column 't' holds times without a zone, but it held points in time, with a zone at the fit"
    spelt = there.assign(t=[time.isoformat() for time in there["t"]])
    np.testing.assert_array_equal(open_dataset(spelt, steps=data.steps).X.compute(), data.X.compute())
    as_text = naive.assign(t=[time.isoformat() for time in naive["t"]])
    for table in (naive, pl.from_pandas(naive), pa.table({"t": naive["t"].dt.date}), as_text):
        with pytest.raises(InputError, match=told):
            open_dataset(table, steps=data.steps).X.compute()
    with pytest.raises(InputError, match="'t' holds points in time, with a zone, but it held times without"):
        open_dataset(there, steps=open_dataset(naive, datetime=rule).steps).X.compute()
    stored = data.steps.to_dict()
    del stored["columns"][0]["zoned"]  # as in models of versions that did not keep it
    open_dataset(naive, steps=type(data.steps).from_dict(stored)).X.compute()
    mixed = dd.from_delayed([dask.delayed(there), dask.delayed(naive)], meta=naive, verify_meta=False)
    with pytest.raises(
        InputError, match="'t' holds times with a zone in some rows, and without one in others"
    ):
        open_dataset(mixed, datetime=rule)


def test_decimals_are_the_nearest_floats():
    spelt = ["0.7", "19.99", "2.675", "-0.1", "100"]
    column = pa.array([Decimal(word) for word in spelt], pa.decimal128(9, 3))
    assert open_dataset(pa.table({"d": column})).X.compute().ravel().tolist() == [float(w) for w in spelt]


def test_a_word_of_a_dictionary_may_be_null():
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["u", None]))
    data = open_dataset(pa.table({"a": words, "x": [1.0, 2, 3]}), one_hot=True, missing="indicator")
    assert data.column_names == ("a=u", "a is missing", "x")
    np.testing.assert_array_equal(data.X.compute(), [[1, 0, 1], [0, 1, 2], [0, 1, 3]])


WITHOUT_A_STEP = (pa.list_(pa.string()), pa.struct([("x", pa.int8())]), pa.binary(), pa.list_(pa.string(), 2))


@pytest.mark.parametrize("kind", WITHOUT_A_STEP, ids=str)
def test_types_without_a_step(kind):
    table = pa.table({"a": pa.nulls(2, kind), "x": [1.0, 2]})
    with pytest.warns(DataWarning, match="left out: a"):
        assert open_dataset(table).column_names == ("x",)
    with pytest.raises(InputError, match=r"'a' of .* cannot be a column of X: its type is neither number"):
        open_dataset(table, columns=["a"])


def test_a_category_of_dates_in_arrow_is_that_of_pandas():
    days = [date(2020, 1, 1), date(2020, 1, 2)] * 3
    frame = pa.table({"day": pa.array(days).dictionary_encode(), "x": np.arange(6.0)})
    opened = open_dataset(frame, one_hot=True)
    assert opened.column_names == ("day=2020-01-01", "day=2020-01-02", "x")
    later = open_dataset(pd.DataFrame({"day": pd.to_datetime(days), "x": np.arange(6.0)}), steps=opened.steps)
    np.testing.assert_array_equal(later.X.compute(), opened.X.compute())


def test_lists_that_dask_made_text_are_left_out_by_name():
    frame = pd.DataFrame({"e": [np.arange(3.0) + i for i in range(4)], "x": np.arange(4.0)})
    told = pytest.warns(DataWarning, match="left out: e")
    with dask.config.set({"dataframe.convert-string": True}), told:
        data = open_dataset(dd.from_pandas(frame, npartitions=2), one_hot=True)
    assert data.column_names == ("x",)
    assert "lists that became text, such as '[0. 1. 2.]'" in data.table_report["columns_dropped"]["e"]


def test_a_word_in_brackets_among_others_is_a_word():
    data = open_dataset(pd.DataFrame({"e": ["[1]", "u", "[1]", "v"], "x": np.arange(4.0)}), one_hot=True)
    assert data.column_names == ("e=[1]", "e=u", "e=v", "x")


# Columns beside X.

VISITS = pd.DataFrame(
    {
        "a": [0.5, np.nan, 2.0, -1.0, 3.0, 0.0, 7.0],
        "b": np.arange(7),
        "subject": list("uuvvwwu"),
        "visit": np.arange(7) + 2**53,
        "day": pd.date_range("2020", periods=7, unit="us"),
        "done": [True, False, True, True, False, True, False],
        "y": [1.0, 2.0, 3.0, np.nan, 5.0, 6.0, 7.0],
    }
)
# What only frames hold: as it is stored, and as it comes beside X.
OF_FRAMES = {
    "arm": (pd.Categorical([3, 7, 3, 7, 3, 3, 3]), [3, 7, 3, 7, 3, 3, 3]),
    "at": (VISITS["day"].dt.tz_localize("Europe/Paris"), VISITS["day"] - pd.Timedelta(hours=1)),
}


def parquet_of(frame, folder):
    frame.to_parquet(folder / "rows.parquet", row_group_size=3)
    return folder / "rows.parquet"


def arrays_of(frame):
    return xarray.Dataset({n: ("row", frame[n].to_numpy(object if n == "subject" else None)) for n in frame})


def zarr_of(frame, folder):
    arrays_of(frame).to_zarr(folder / "rows.zarr", consolidated=False)
    return folder / "rows.zarr"


TABLES = {
    "parquet": parquet_of,
    "pandas": lambda frame, folder: frame,
    "polars": lambda frame, folder: pl.from_pandas(frame),
    "arrow": lambda frame, folder: pa.Table.from_pandas(frame),
    "dask": lambda frame, folder: dd.from_pandas(frame, npartitions=3),
}
ARRAYS = {
    "xarray": lambda frame, folder: arrays_of(frame),
    "chunked xarray": lambda frame, folder: arrays_of(frame).chunk(row=2),
    "zarr": zarr_of,
}


def beside(data, *names):
    """Columns beside the X of all rows but the first, in tiles of two rows, as a task reads them."""
    blocks = dask.delayed(lambda rows: list(rows.tiles(2)))(data.rows(1, data.n_rows)).compute()
    return [np.concatenate([block.ids[name] for block in blocks]) for name in names]


@pytest.mark.parametrize("missing", ["drop", "mean"])
@pytest.mark.parametrize("kind", [*TABLES, *ARRAYS])
def test_columns_beside_x_are_those_of_its_rows(kind, missing, tmp_path):
    more = OF_FRAMES if kind in TABLES else {}
    frame = VISITS.assign(**{name: stored for name, (stored, _) in more.items()})
    names = ["subject", "visit", "day", "done", *more]
    data = open_dataset(
        (TABLES | ARRAYS)[kind](frame, tmp_path), target="y", groups="subject", extra=names[1:],
        missing=missing, sample_dim="row" if kind in ARRAYS else None,
    )  # fmt: skip
    assert (data.column_names, data.groups, data.ids) == (("a", "b"), "subject", ())
    expected = VISITS.assign(**{name: values for name, (_, values) in more.items()})
    expected = expected.dropna(subset=["a", "y"] if missing == "drop" else ["y"])[1:]
    for name, values in zip(names, beside(data, *names), strict=True):
        np.testing.assert_array_equal(values, expected[name].to_numpy())
        assert values.dtype == data.id_dtypes[name]
        assert values.dtype.kind == ("O" if name == "subject" else expected[name].dtype.kind)


def test_rows_for_a_model_lose_the_values_beside_x_as_well(tmp_path):
    steps = open_dataset(VISITS, target="y", columns=["a", "b"], missing="drop").steps
    for rows in (VISITS, parquet_of(VISITS, tmp_path)):
        data = open_dataset(rows, groups="subject", ids=[4], steps=steps)
        assert (data.groups, data.ids) == ("subject", ("day",))
        assert "".join(*beside(data, "subject")) == "vwwu"
        all_rows = open_dataset(rows, groups="subject", steps=steps.for_prediction())
        assert "".join(*beside(all_rows, "subject")) == "uvvwwu"


@pytest.mark.parametrize("kind", ["parquet", "pandas"])
def test_columns_beside_x_are_of_it_only_where_they_are_named(kind, tmp_path):
    rows = TABLES[kind](VISITS[["b", "visit", "done", "subject"]], tmp_path)
    assert open_dataset(rows, groups=-1, extra=1, ids="done").column_names == ("b",)
    data = open_dataset(rows, columns=["b", "visit"], groups=-1, extra=["visit", "subject"], ids="done")
    assert (data.column_names, data.groups, data.ids) == (("b", "visit"), "subject", ("done",))
    assert list(data.id_dtypes) == ["done", "subject", "visit"]
    assert [values.tolist() for values in beside(data, "visit")] == [VISITS["visit"].tolist()[1:]]
    with pytest.raises(InputError, match="has no column 'who'; its 4 columns are"):
        open_dataset(rows, groups="who")
    with pytest.raises(InputError, match="groups must name one column, got"):
        open_dataset(rows, groups=["subject", "done"])


def test_times_beside_x_are_of_it_where_they_are_to_be_features():
    def names(**options):
        return open_dataset(VISITS[["b", "day"]].assign(at=VISITS["day"]), **options).column_names

    assert names(extra=["day"], datetime="seconds") == names(datetime="seconds") == ("b", "day", "at")
    assert names(extra="day", ids="at", datetime="seconds") == names(drop="at", datetime="seconds")
    assert names(extra=["day"], groups="day", datetime="seconds") == ("b", "at")
    assert names(extra=["day"], drop="day", datetime="seconds") == ("b", "at")
    assert names(extra=["day", "at"]) == names(extra=None, drop=["day", "at"]) == ("b",)


@pytest.mark.parametrize("as_rows", [lambda f: f, lambda f: dd.from_pandas(f, npartitions=3)])
def test_integers_of_a_frame_beside_x_are_floats_only_where_some_are_missing(as_rows):
    frame = VISITS[["b"]].assign(n=pd.array([1, None, 3, 4, 5, 6, 7], "Int64"))
    frame["whole"] = pd.array(VISITS["visit"], "Int64")
    data = open_dataset(as_rows(frame), extra=["n", "whole"])
    assert (data.id_dtypes["n"], data.id_dtypes["whole"]) == (np.float64, np.int64)
    n, whole = beside(data, "n", "whole")
    np.testing.assert_array_equal(n, [np.nan, 3, 4, 5, 6, 7])
    assert whole.tolist() == VISITS["visit"].tolist()[1:]


@pytest.mark.parametrize("kind", ["parquet", "pandas", "xarray"])
def test_lists_do_not_come_beside_x(kind, tmp_path):
    frame = VISITS[["b"]].assign(pair=pd.array([[1.0, 2.0]] * 7, pd.ArrowDtype(pa.list_(pa.float64(), 2))))
    arrays = xarray.Dataset({"b": ("row", np.arange(7.0)), "pair": (("row", "two"), np.ones((7, 2)))})
    rows = arrays if kind == "xarray" else TABLES[kind](frame, tmp_path)
    with pytest.raises(InputError, match=r"'pair' of .* cannot come beside X: it has several values a row"):
        open_dataset(rows, extra="pair", sample_dim="row" if kind == "xarray" else None)
