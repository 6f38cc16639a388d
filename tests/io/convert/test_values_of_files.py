"""Values that every format treats alike: infinity is refused, times wait to be asked for."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from distrff.errors import InputError, NonFiniteError
from distrff.io.convert import delimited as text_blocks
from distrff.io.convert import npz as array_blocks
from distrff.io.convert.convert import convert, convert_like
from distrff.io.open import open_dataset
from distrff.io.open import open_dataset as stored
from distrff.preprocessing.table import TableSteps

LEFT_OUT = "it holds times; datetime='seconds' or 'parts' takes them"


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 100)
    monkeypatch.setattr(array_blocks, "_BLOCK_BYTES", 16 * 10)
    monkeypatch.setattr("distrff.io.tables.BATCH_ROWS", 10)


def write(frame: pd.DataFrame, path) -> None:
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".npy":
        np.save(path, frame)
    else:
        frame.to_parquet(path)


@pytest.mark.parametrize("missing", ["error", "drop", "mean", "indicator"])
@pytest.mark.parametrize("form", ["csv", "npy", "parquet"])
def test_infinity_is_refused_where_it_stands(tmp_path, small_blocks, form, missing, rng):
    frame, path = pd.DataFrame(rng.standard_normal((60, 3)), columns=list("abc")), tmp_path / f"rows.{form}"
    row = int(rng.integers(60))
    frame.loc[row, "b"] = rng.choice([np.inf, -np.inf])
    write(frame, path)
    place = f"line {row + 2}, column 'b'" if form == "csv" else f"row {row}, column ('X', entry 1|'b')"
    with pytest.raises(NonFiniteError, match=rf"rows.{form}, {place}: infinity"):
        convert(path, str(tmp_path / "out.zarr"), missing=missing)
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("value", ["inf", "-inf", "Infinity", "1e400"])
@pytest.mark.parametrize("use", ["columns", "target", "sample_weight"])
def test_infinity_in_text_whatever_the_column_is_for(tmp_path, value, use):
    (tmp_path / "rows.csv").write_text(f"a,b\n1,2\n3,{value}\n")
    with pytest.raises(NonFiniteError, match=r"rows.csv, line 3, column 'b': infinity"):
        convert(tmp_path / "rows.csv", str(tmp_path / "out.zarr"), **{use: "b"})


def test_infinity_may_stand_in_rows_and_columns_that_are_left_out(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,c\n1,2,3\n,inf,4\n5,6,inf\n")
    convert(tmp_path / "rows.csv", str(tmp_path / "out.zarr"), drop="c", missing="drop")
    np.testing.assert_array_equal(stored(tmp_path / "out.zarr").X.compute(), [[1, 2], [5, 6]])


def test_infinity_in_a_file_for_a_model(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3,4\n")
    convert(tmp_path / "rows.csv", str(tmp_path / "out.zarr"))
    (tmp_path / "more.csv").write_text("a,b\n1,2\n3,inf\n")
    steps = TableSteps.from_dict(dict(zarr.open_group(tmp_path / "out.zarr").attrs)["steps"])
    with pytest.raises(NonFiniteError, match=r"more.csv, line 3, column 'b': infinity"):
        convert_like(tmp_path / "more.csv", str(tmp_path / "more.zarr"), steps)


TIMES = {
    "day": pa.array([1, 2], pa.date32()),
    "moment": pa.array([1, 2], pa.timestamp("s")),
    "clock": pa.array([36000, 39600], pa.time32("s")),
    "span": pa.array([1, 2], pa.duration("s")),
}


@pytest.fixture
def tables(tmp_path):
    """The same times in every form that has them; text has no durations."""
    table = pa.table({"a": [1.0, 2.0], **TIMES, "y": [1.0, 2.0]})
    pq.write_table(table, tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").write_text(
        "a,day,moment,clock,y\n1,1970-01-02,1970-01-01T00:00:01,10:00:00,1\n"
        "2,1970-01-03,1970-01-01T00:00:02,11:00:00,2\n"
    )
    return {"csv": tmp_path / "rows.csv", "parquet": tmp_path / "rows.parquet", "frame": table.to_pandas()}


def taken(tables, form, to, **options):
    """The columns taken of a form, and those left out with the reasons, as `convert` or else opening says."""
    if form.startswith("open "):
        data = open_dataset(tables[form.removeprefix("open ")], target="y", **options)
        report = data.table_report or {}
        left_out = report.get("columns_dropped", dict.fromkeys(data.skipped_columns, LEFT_OUT))
        return data.column_names, data.X.compute(), left_out
    report = convert(tables[form], str(to), target="y", **options)
    data = stored(to)
    return data.column_names, data.X.compute(), report["columns_dropped"]


FORMS = ["csv", "parquet", "open parquet", "open frame"]


@pytest.mark.parametrize("form", FORMS)
def test_times_of_all_types_are_left_out_unless_they_are_asked_for(tables, form, tmp_path):
    names, _, left_out = taken(tables, form, tmp_path / "out.zarr")
    assert names == ("a",)
    assert left_out == {name: LEFT_OUT for name in TIMES if form != "csv" or name != "span"}
    names, X, left_out = taken(tables, form, tmp_path / "more.zarr", datetime="seconds")
    assert left_out == {}
    seconds = {"a": [1, 2], "day": [0, 86400], "moment": [0, 1], "clock": [36000, 39600], "span": [1, 2]}
    np.testing.assert_array_equal(X.T, [seconds[name] for name in names])
    assert set(names) == set(seconds) - ({"span"} if form == "csv" else set())


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_column_of_times_that_is_named_is_refused_with_the_remedy(tables, form, tmp_path):
    for name in ("day", "clock"):
        with pytest.raises(InputError, match=f"column '{name}' .*datetime='seconds' or 'parts' takes them"):
            convert(tables[form], str(tmp_path / "out.zarr"), columns=["a", name])


def test_times_of_day_of_a_file_for_a_model(tables, tmp_path):
    convert(tables["csv"], str(tmp_path / "out.zarr"), target="y", datetime="parts")
    steps = TableSteps.from_dict(dict(zarr.open_group(tmp_path / "out.zarr").attrs)["steps"])
    for form in ("csv", "parquet"):
        convert_like(tables[form], str(tmp_path / f"{form}.zarr"), steps)
        data = stored(tmp_path / f"{form}.zarr")
        np.testing.assert_array_equal(data.X.compute()[:, data.column_names.index("clock")], [36000, 39600])


def test_times_of_day_as_python_has_them(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0], "t": [datetime.time(1), datetime.time(2)]})
    assert open_dataset(frame).column_names == ("a",)
    np.testing.assert_array_equal(open_dataset(frame, datetime="seconds").X.compute()[:, 1], [3600, 7200])
