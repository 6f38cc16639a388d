"""Raw files as Zarr groups: every format and option, bounded blocks, and nothing left by a failure."""

import datetime
import gzip
import json
import warnings
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from scipy.sparse import hstack, random_array, vstack
from sklearn.datasets import dump_svmlight_file

from distrff.errors import DataWarning, InputError, NonFiniteError
from distrff.io.convert import npz as array_blocks
from distrff.io.convert import text as texts
from distrff.io.convert.convert import convert, convert_like
from distrff.io.open import open_dataset
from distrff.preprocessing.table import TableSteps

LEFT_OUT = "it holds times; datetime='seconds', 'parts' or 'both' takes them"


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks and batches of a few rows."""
    monkeypatch.setattr(texts, "BLOCK_BYTES", 100)
    monkeypatch.setattr(array_blocks, "_BLOCK_BYTES", 16 * 10)
    monkeypatch.setattr("distrff.io.tables.BATCH_ROWS", 10)


@pytest.fixture
def dst(tmp_path):
    return str(tmp_path / "rows.zarr")


def numbers(rng, n=60, d=3) -> pd.DataFrame:
    return pd.DataFrame(rng.standard_normal((n, d)), columns=list("abcdefgh")[:d])


def rows(path: str) -> tuple[np.ndarray, np.ndarray | None]:
    data = open_dataset(path)
    return data.X.compute(), None if data.y is None else data.y.compute()


def steps_of(path: str) -> TableSteps:
    return TableSteps.from_dict(dict(zarr.open_group(path, mode="r").attrs)["steps"])


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_delimited_text(tmp_path, dst, small_blocks, compress, rng):
    frame = numbers(rng)
    (tmp_path / "rows").write_bytes(compress(frame.to_csv(index=False).encode()))
    report = convert(tmp_path / "rows", dst, target="b", chunk_rows=3)
    X, y = rows(dst)
    group = zarr.open_group(dst)
    assert (group["X"].chunks, group["X"].shards, group["y"].chunks) == ((3, 2), (24, 2), (24,))
    np.testing.assert_array_equal(X, frame[["a", "c"]])
    np.testing.assert_array_equal(y, frame["b"])
    assert open_dataset(dst).column_names == ("a", "c")
    assert (report["rows_read"], report["rows_dropped"], report["rows_written"]) == (60, 0, 60)
    assert json.loads(json.dumps(report, allow_nan=False))["columns_made"] == 2
    for i in (2, 0, 1):  # several files, which are sorted
        text = frame[20 * i : 20 * i + 20].to_csv(sep="\t", header=False, index=False)
        (tmp_path / f"part{i}").write_bytes(compress(text.encode()))
    convert(str(tmp_path / "part*"), dst, target=-1, overwrite=True)
    np.testing.assert_array_equal(np.column_stack(rows(dst)), frame)


@pytest.mark.parametrize("first_index", [0, 1])
def test_libsvm(tmp_path, dst, block_bytes, first_index, rng):
    X = random_array((70, 30), density=0.2, rng=rng, format="csr")
    X.data *= 10.0 ** rng.integers(-30, 30, len(X.data))
    y = rng.integers(0, 3, 70)
    dump_svmlight_file(X, y, str(tmp_path / "rows.txt"), zero_based=not first_index)
    report = convert(tmp_path / "rows.txt", dst)
    X_found, y_found = rows(dst)
    # Written with 16 digits, which is one too few for some.
    np.testing.assert_allclose(X_found, X.toarray()[:, : X_found.shape[1]], rtol=1e-15)
    assert X_found.shape[1] == X.indices.max() + 1
    np.testing.assert_array_equal(y_found, y)
    assert (report["layout"], y_found.dtype) == ("dense", np.int64)


@pytest.mark.parametrize("options", [{}, {"shuffle": 3}, {"test_fraction": 0.3}])
def test_wide_sparse_rows_stay_sparse(tmp_path, dst, small_blocks, options, rng):
    X = hstack([random_array((80, 2999), density=0.01, rng=rng), np.ones((80, 1))], format="csr")
    dump_svmlight_file(X, np.arange(80), str(tmp_path / "rows.txt"), zero_based=False)
    report = convert(tmp_path / "rows.txt", dst, **options)
    assert report["layout"] == "csr"
    blocks = list(open_dataset(dst).rows(0, report["rows_written"]).tiles(1000))
    if options.get("test_fraction"):
        blocks += list(open_dataset(f"{dst}/test").rows(0, report["rows_test"]).tiles(1000))
    found, order = vstack([b.X for b in blocks]), np.concatenate([b.y for b in blocks])
    assert sorted(order.tolist()) == list(range(80))
    np.testing.assert_allclose(found.toarray(), X.toarray()[order], rtol=1e-15)
    if options:
        return
    np.savetxt(tmp_path / "rows.csv", X.toarray()[:5], fmt="%.17g", delimiter=",")
    assert convert(tmp_path / "rows.csv", dst, overwrite=True)["layout"] == "csr"
    (block,) = open_dataset(dst).rows(0, 5).tiles(5)
    np.testing.assert_array_equal(block.X.toarray(), X.toarray()[:5])


def test_arrays(tmp_path, dst, small_blocks, rng):
    X, y = rng.integers(0, 256, (40, 3, 2), dtype=np.uint8), np.array(["spam", "egg"] * 20)
    np.savez(tmp_path / "rows.npz", a=np.asarray(X, order=rng.choice(["C", "F"])), b=y)
    for options, labels in (({}, y.tolist()), ({"positive": "egg"}, [0, 1] * 20)):
        convert(tmp_path / "rows.npz", dst, x_name="a", y_name="b", overwrite=True, **options)
        X_found, y_found = rows(dst)
        np.testing.assert_array_equal(X_found, X.reshape(40, 6))
        assert (X_found.dtype, y_found.tolist()) == (np.uint8, labels)
    np.save(tmp_path / "rows.npy", X[:, 0, 0][:, None] + np.arange(5.0))
    convert(tmp_path / "rows.npy", dst, target=-1, drop=[0], overwrite=True)
    X_found, y_found = rows(dst)
    np.testing.assert_array_equal(X_found - np.arange(1.0, 4), np.tile(X[:, 0, :1], 3))
    np.testing.assert_array_equal(y_found - 4, X[:, 0, 0])


def test_chunks_of_zeros_are_written_so_that_none_seems_lost(tmp_path, dst, rng):
    np.savez(tmp_path / "rows.npz", X=rng.random((64, 2)), y=np.repeat([0, 1], 32))
    convert(tmp_path / "rows.npz", dst, chunk_rows=1)
    with warnings.catch_warnings(action="error"):
        assert open_dataset(dst).n_rows == 64


def test_parquet(tmp_path, dst, rng):
    frame = numbers(rng).assign(label=["u", "v"] * 30)
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=7)
    convert(tmp_path / "rows.parquet", dst, target="label", shuffle=0)
    X, y = rows(dst)
    order = np.argsort(X[:, 0])
    np.testing.assert_array_equal(X[order], frame.sort_values("a")[["a", "b", "c"]])
    assert y[order].tolist() == frame.sort_values("a")["label"].tolist()


MIXED = b"""n,kind,when,ok,empty,label
1,red,2020-01-01 00:00:10,true,,yes
2,blue,2020-01-01 00:00:00,false,,no
?,red,2020-01-01 00:01:00,true,,yes
4,,2020-01-01 00:00:30,false,,maybe
"""


def test_mixed_columns(tmp_path, dst, small_blocks):
    mixed = tmp_path / "mixed.csv"
    mixed.write_bytes(MIXED)
    rules = {"one_hot": True, "missing": "indicator", "datetime": "seconds"}
    report = convert(mixed, dst, target="label", positive="yes", **rules)
    data = open_dataset(dst)
    X = dict(zip(data.column_names, data.X.compute().T.tolist(), strict=True))
    assert X["n"] == [1, 2, pytest.approx(7 / 3), 4]
    assert X["n is missing"] == [0, 0, 1, 0]
    assert (X["kind=red"], X["kind=blue"], X["kind is missing"]) == ([1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1])
    assert X["when"] == [10, 0, 60, 30]
    assert X["ok"] == [1, 0, 1, 0]
    assert data.y.compute().tolist() == [1, 0, 1, 0]
    assert report["columns_dropped"] == {"empty": "it has no values"}
    options = {"columns": ["n", "kind"], "missing": "drop", "overwrite": True}
    report = convert(mixed, dst, target="label", one_hot=True, **options)
    assert (report["rows_read"], report["rows_dropped"], report["rows_written"]) == (4, 2, 2)
    assert rows(dst)[1].tolist() == ["yes", "no"]
    # A row without a target teaches nothing, whatever fills its columns.
    (tmp_path / "some.csv").write_text("a,y\n1,2\n,4\n3,\n")
    report = convert(tmp_path / "some.csv", dst, target="y", missing="mean", overwrite=True)
    assert (report["rows_read"], report["rows_dropped"], report["rows_written"]) == (3, 1, 2)
    np.testing.assert_array_equal(rows(dst)[0], [[1], [2]])
    # The steps are stored with the rows.
    options = {"missing": "mean", "test_fraction": 0.5, "shuffle": 4, "overwrite": True}
    convert(mixed, dst, target="label", one_hot=True, **options)
    for path in (dst, f"{dst}/test"):
        steps = steps_of(path)
        assert steps.names_out == open_dataset(path).column_names
        assert steps.target.names == ("label",)


def test_one_pass_where_types_decide(tmp_path, dst, monkeypatch, rng):
    numbers(rng).to_csv(tmp_path / "rows.csv", index=False)
    reads = []

    def counting(*args, _open=texts.arrow_csv.open_csv, **options):
        reads.append(args)
        return _open(*args, **options)

    monkeypatch.setattr(texts.arrow_csv, "open_csv", counting)
    convert(tmp_path / "rows.csv", dst)
    assert len(reads) == 3  # the first block for the types and for the steps, then all of them


@pytest.mark.parametrize("between", ["\n", "\n\n\n"])  # lines, of which some are empty
def test_types_may_widen_on_the_way(tmp_path, dst, small_blocks, between):
    lines = ["1,2,", "3,4,"] * 40 + ["5.5,6.5,x"]
    (tmp_path / "rows.csv").write_text("a,y,z\n" + between.join(lines) + "\n")
    convert(tmp_path / "rows.csv", dst, target="y", one_hot=True, missing="mean")
    data = open_dataset(dst)
    assert data.column_names == ("a", "z=x")
    assert data.y.compute()[-2:].tolist() == [4, 6.5]
    # Whole labels stay whole.
    (tmp_path / "rows.csv").write_text("a,y\n0.5,1\n0.5,2\n")
    convert(tmp_path / "rows.csv", dst, target="y", dtype="float32", overwrite=True)
    X, y = rows(dst)
    assert (X.dtype, y.dtype) == (np.float32, np.int64)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("a,b\n1,2\n3\n", {}, r"rows.csv, line 3: 1 fields, but there are 2 columns"),
        ("a,b\n" + "1,2\n" * 40 + "3,x\n", {}, r"rows.csv, line 42, column 'b': 'x' where .* hold numbers"),
        ("a,b\n" + "1,2\n" * 40 + "3,\n", {}, r"rows.csv, line 42, column 'b': no value; .*'drop', 'mean'"),
        ("a,b\n1,\n" + "1,2\n" * 40, {}, r"rows.csv, line 2, column 'b': no value; .*'drop', 'mean'"),
        ("a,b\n1,\n1,2\n", {"target": "b"}, r"line 2, column 'b': .*'drop', 'mean' or 'indicator', or"),
        ("a,b\n1,\n1,2\n", {"sample_weight": "b", "missing": "mean"}, r"column 'b': .* missing='drop', or"),
        ("a,b\n1,2\n3,4\n5,x\n", {}, r"rows.csv, line 4, column 'b': 'x' where most values are numbers"),
        ("a,a\n1,2\n", {}, "two columns are named 'a'"),
        *((text, {}, "rows.csv is empty") for text in ("", "\n\n")),
        ("a,b\n", {}, "rows.csv has a header but no rows"),
        ("1990,b\n" + "1,2\n" * 5, {}, r"line 1, column '1': 'b' where .*header=True"),
        ("# made today\na,b\n1,2\n3,4\n", {}, r"line 2: 2 fields, but .*; remove the comment '# made today'"),
        ("a,b\n1,1e300\n", {"dtype": "float32"}, r"line 2, column 'b': a number too large for float32"),
        ("a,b\n1,2\n", {"target": "c"}, "has no column 'c'"),
        ("a,b\n1,2\n", {"columns": "a", "drop": "b"}, "columns and drop were both given"),
        ("a,b\n1,2\n", {"dtype": "int8"}, "dtype must be one of"),
        ("a,b\n1,2\n", {"chunk_rows": 0}, "chunk_rows must be a positive integer"),
        ("a,b\n1,2\n", {"chunk_rows": 10**15}, r"chunk_rows=1000000000000000 makes shards of 1.28e\+17"),
        ("a,b\n1,2\n", {"chunk_rows": 10**18}, "which memory does not hold"),
        ("a,b\n1,2\n", {"test_fraction": 1.5}, "test_fraction must lie between 0 and 1"),
        ("a,b\n1,2\n", {"test_fraction": 1e-9}, "leaves none for testing"),
        ("a,b\n1,\n,2\n", {"missing": "drop"}, "no row of .* is left"),
        ("a,b\n1,2\n", {"target": "b", "positive": 7}, r"no row of .*has the label positive=7; give"),
        ("1 1:2\n1 1:2 2:x\n", {}, r"rows.csv, line 2, at '2:x': a value is no number"),
        ("1 1:2\n", {"one_hot": True}, "leave out one_hot"),
        ("1 1:2\n0\n0 1:1e300\n", {"dtype": "float32"}, "line 3: a number too large for float32; use dtype"),
        ("1 1:1 1000000000:2\n0 1:3\n", {}, "makes 1,000,000,000 columns, but at most 33,554,432"),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_leaves_nothing(tmp_path, dst, small_blocks, content, options, message):
    (tmp_path / "rows.csv").write_text(content)
    with pytest.raises(InputError, match=message):
        convert(tmp_path / "rows.csv", dst, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_rows_and_columns_that_are_left_out_may_hold_anything(tmp_path, dst):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3,4\n5,x\n")
    for options in ({"drop": "b"}, {"columns": "a"}):
        convert(tmp_path / "rows.csv", dst, overwrite=True, **options)
        np.testing.assert_array_equal(rows(dst)[0], [[1], [3], [5]])
    (tmp_path / "rows.csv").write_text("a,b,c\n1,2,3\n,inf,4\n5,6,inf\n")
    convert(tmp_path / "rows.csv", dst, drop="c", missing="drop", overwrite=True)
    np.testing.assert_array_equal(rows(dst)[0], [[1, 2], [5, 6]])


@pytest.mark.parametrize(
    ("text", "header"), [("u,u,1\nv,u,2\nu,v,3\n", False), ("2019,2020,y\n" + "1,2,3\n" * 3, True)]
)
def test_files_for_a_model_are_read_like_those_it_was_fitted_to(tmp_path, dst, text, header):
    """By the same columns, whether or not it can be seen that the first line is names."""
    (tmp_path / "rows.csv").write_text(text)
    convert(tmp_path / "rows.csv", dst, target=-1, one_hot=True, header=header)
    again = str(tmp_path / "again.zarr")
    assert convert_like(tmp_path / "rows.csv", again, steps_of(dst))["rows_written"] == 3
    for found, expected in zip(rows(again), rows(dst), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_steps_of_other_rows_encode_files_in_place_of_their_own(tmp_path, dst, rng):
    frame = numbers(rng).assign(c=rng.choice(list("uv"), 60), w=1.0)
    frame.loc[::7, "a"] = None
    steps = open_dataset(frame, target="b", sample_weight="w", one_hot=True, missing="mean").steps
    more = frame[::-2].assign(a=frame["a"] * 2, c="u")
    more.to_csv(tmp_path / "more.csv", index=False)
    more.to_parquet(tmp_path / "more.parquet", index=False)
    more.drop(columns="b").to_csv(tmp_path / "new.csv", index=False)
    for name, table in (("more.csv", more), ("more.parquet", more), ("new.csv", more.drop(columns="b"))):
        convert(tmp_path / name, dst, steps=steps, overwrite=True)
        expected, found = open_dataset(table, steps=steps), open_dataset(dst)
        np.testing.assert_allclose(found.X, expected.X, rtol=1e-15, atol=0)
        assert steps.difference(found.steps) is None
        assert (found.n_targets, found.has_weights) == ((0, False) if name == "new.csv" else (1, True))
    dump_svmlight_file(np.eye(3), [1, 2, 3], str(tmp_path / "rows.txt"), zero_based=False)
    dump_svmlight_file(np.eye(2), [1, 2], str(tmp_path / "few.txt"), zero_based=False)
    convert(tmp_path / "rows.txt", dst, overwrite=True)
    convert(tmp_path / "few.txt", str(tmp_path / "few.zarr"), steps=steps_of(dst))
    few = open_dataset(tmp_path / "few.zarr")
    assert (few.n_columns, few.n_targets) == (3, 1)
    for given in ({"one_hot": True}, {"positive": 1}):
        with pytest.raises(InputError, match=f"{next(iter(given))} was given beside steps, which define all"):
            convert(tmp_path / "more.csv", dst, steps=steps, overwrite=True, **given)


def test_text_of_a_file_for_a_model_may_be_mostly_digits_but_not_infinite(tmp_path, dst):
    more, again = tmp_path / "more.csv", str(tmp_path / "more.zarr")
    (tmp_path / "rows.csv").write_text("a,b\n" + "1,x\n2,y\n3,7\n")
    convert(tmp_path / "rows.csv", dst, one_hot=True)
    more.write_text("a,b\n" + "1,7\n2,7\n3,x\n")
    convert_like(more, again, steps_of(dst))
    np.testing.assert_array_equal(rows(again)[0], [[1, 1, 0, 0], [2, 1, 0, 0], [3, 0, 1, 0]])
    more.write_text("a,b\n1,x\ninf,x\n")
    with pytest.raises(NonFiniteError, match=r"more.csv, line 3, column 'a': infinity"):
        convert_like(more, str(tmp_path / "other.zarr"), steps_of(dst))


def test_what_was_there_stays_when_a_conversion_fails(tmp_path, dst):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    convert(tmp_path / "rows.csv", dst)
    with pytest.raises(InputError, match="exists; pass overwrite=True"):
        convert(tmp_path / "rows.csv", dst)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(InputError, match="line 3"):
        convert(tmp_path / "rows.csv", dst, overwrite=True)
    with pytest.raises(InputError, match=r"none.csv does not exist or holds no files"):
        convert(tmp_path / "none.csv", dst, overwrite=True)
    np.testing.assert_array_equal(rows(dst)[0], [[1, 2]])


def test_object_stores(tmp_path, small_blocks, rng):
    """The same, types that widen and failures included; a failure leaves nothing there either."""
    lines = ["1,2", "3,4"] * 40 + ["5,6.5"]
    (tmp_path / "rows.csv").write_text("a,y\n" + "\n".join(lines) + "\n")
    name = f"{rng.integers(2**40)}.zarr"
    url = f"memory://{name}"
    convert(tmp_path / "rows.csv", url, target="y", test_fraction=0.5)
    assert len(rows(url)[0]) + len(rows(f"{url}/test")[0]) == 81
    (tmp_path / "rows.csv").write_text("a,y\n" + "\n".join([*lines, "1"]) + "\n")
    with pytest.raises(InputError, match="line 83: 1 fields"):
        convert(tmp_path / "rows.csv", url, target="y", overwrite=True)
    with pytest.raises(InputError, match="does not exist"):
        open_dataset(url)
    (tmp_path / "rows.csv").write_text("a,y\n1,2\n")
    report = convert(tmp_path / "rows.csv", f"memory://user:password@{name}")
    assert report["out"] == url  # which holds no password


# Values that every format treats alike: infinity is refused, and times are left out by default.


def save(frame: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".npy":
        np.save(path, frame)
    else:
        frame.to_parquet(path)


@pytest.mark.parametrize("missing", ["error", "drop", "mean", "indicator"])
@pytest.mark.parametrize("form", ["csv", "npy", "parquet"])
def test_infinity_is_refused_where_it_stands_whatever_the_column_is_for(
    tmp_path, dst, small_blocks, form, missing, rng
):
    frame, path, row = numbers(rng), tmp_path / f"rows.{form}", int(rng.integers(60))
    frame.loc[row, "b"] = rng.choice([np.inf, -np.inf])
    save(frame, path)
    place = f"line {row + 2}, column 'b'" if form == "csv" else f"row {row}, column ('X', entry 1|'b')"
    with pytest.raises(NonFiniteError, match=rf"rows.{form}, {place}: infinity"):
        convert(path, dst, missing=missing)
    text = path.read_text() if (form, missing) == ("csv", "error") else ""
    for word, use in product(
        ("inf", "Infinity", "1e400"), ("columns", "target", "sample_weight") if text else ()
    ):
        path.write_text(text.replace("inf", word))
        with pytest.raises(NonFiniteError, match=rf"rows.csv, {place}: infinity"):
            convert(path, dst, **{use: "b"})
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("form", ["npy", "parquet"])
def test_nan_is_missing_wherever_it_stands(tmp_path, dst, small_blocks, form, rng):
    path = tmp_path / f"rows.{form}"
    for row in (int(rng.integers(10, 60)), int(rng.integers(10))):  # of the first block or a later one
        frame = numbers(rng)
        frame.loc[row, "b"] = np.nan
        save(frame, path)
        with pytest.raises(NonFiniteError, match=f"rows.{form}, row {row}, column .*: no value"):
            convert(path, dst)
        assert [found.name for found in tmp_path.iterdir()] == [path.name]
    assert convert(path, dst, missing="drop")["rows_dropped"] == 1


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
        with nullcontext() if options else pytest.warns(DataWarning, match="left out: day|left out: moment"):
            data = open_dataset(tables[form.removeprefix("open ")], target="y", **options)
        return data.column_names, data.X.compute(), (data.table_report or {}).get("columns_dropped", {})
    report = convert(tables[form], str(to), target="y", **options)
    data = open_dataset(to)
    return data.column_names, data.X.compute(), report["columns_dropped"]


@pytest.mark.parametrize("form", ["csv", "parquet", "open parquet", "open frame"])
def test_times_of_all_types_are_left_out_unless_they_are_asked_for(tables, form, tmp_path):
    names, _, left_out = taken(tables, form, tmp_path / "out.zarr")
    assert names == ("a",)
    assert left_out == {name: LEFT_OUT for name in TIMES if form != "csv" or name != "span"}
    for name in ("day", "clock") if form in ("csv", "parquet") else ():
        with pytest.raises(
            InputError, match=f"column '{name}' .*datetime='seconds', 'parts' or 'both' takes them"
        ):
            taken(tables, form, tmp_path / "none.zarr", columns=["a", name])
    names, X, left_out = taken(tables, form, tmp_path / "more.zarr", datetime="seconds")
    assert left_out == {}
    seconds = {"a": [1, 2], "day": [0, 86400], "moment": [0, 1], "clock": [36000, 39600], "span": [1, 2]}
    np.testing.assert_array_equal(X.T, [seconds[name] for name in names])
    assert set(names) == set(seconds) - ({"span"} if form == "csv" else set())


def test_times_of_day_of_a_file_for_a_model(tables, tmp_path):
    convert(tables["csv"], str(tmp_path / "out.zarr"), target="y", datetime="parts")
    for form in ("csv", "parquet"):
        convert_like(tables[form], str(tmp_path / f"{form}.zarr"), steps_of(tmp_path / "out.zarr"))
        data = open_dataset(tmp_path / f"{form}.zarr")
        np.testing.assert_array_equal(data.X.compute()[:, data.column_names.index("clock")], [36000, 39600])
    frame = pd.DataFrame({"a": [1.0, 2.0], "t": [datetime.time(1), datetime.time(2)]})  # as Python has them
    with pytest.warns(DataWarning, match="left out: t"):
        assert open_dataset(frame).column_names == ("a",)
    np.testing.assert_array_equal(open_dataset(frame, datetime="seconds").X.compute()[:, 1], [3600, 7200])


# Columns beside X.


@pytest.mark.parametrize("options", [{}, {"shuffle": 3}, {"test_fraction": 0.4}])
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_groups_and_extra_columns_are_stored_beside_x(tmp_path, dst, small_blocks, form, options, rng):
    frame = numbers(rng, d=2).assign(
        who=[f"u{i % 7}" for i in range(60)],
        visit=np.arange(60) + 2**53,
        lat=rng.normal(size=60),
        day=pd.date_range("1969-12-30", periods=60, unit="us"),
        done=np.arange(60) % 3 == 0,
    )
    frame.loc[[3, 20, 59], "b"] = np.nan
    frame.loc[3, "who"] = None  # of a row that is left out
    frame["arm"] = pd.Categorical(np.arange(60) % 4 * 5)
    save(frame, tmp_path / f"rows.{form}")
    frame["arm"] = frame["arm"].astype(int)
    extra = ["visit", "lat", "day", "done", "a", "arm"]
    given = {"groups": 2, "extra": extra, "columns": ["a", "b"], "missing": "drop"}
    report = convert(tmp_path / f"rows.{form}", dst, **given, **options)
    assert report["beside"] == {"groups": "who", "extra": extra}
    frame = frame.dropna(subset=["b"]).set_index("visit", drop=False)
    parts = [dst, f"{dst}/test"] if "test_fraction" in options else [dst]
    n_rows = 0
    for part in parts:
        data = open_dataset(part, groups="who", extra=extra)
        assert (data.column_names, data.groups) == (("a", "b"), "who")
        (block,) = data.rows(0, data.n_rows).tiles(data.n_rows)
        expected = frame.loc[block.ids["visit"]]
        for name, values in block.ids.items():
            np.testing.assert_array_equal(values, expected[name].to_numpy())
            assert values.dtype.kind == ("O" if name == "who" else expected[name].dtype.kind)
        np.testing.assert_allclose(block.X, expected[["a", "b"]])
        n_rows += data.n_rows
    assert n_rows == 57
    again = convert(tmp_path / f"rows.{form}", f"{dst}.2", groups="who", steps=data.steps)
    assert (again["beside"], open_dataset(f"{dst}.2", groups="who").n_rows) == ({"groups": "who"}, 57)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("a,who\n1,u\n,\n2,\n", {"groups": "who", "missing": "drop"}, "line 4, column 'who': no value; fill"),
        ("a,who\n1,u\n2,v\n", {"extra": "when"}, "has no column 'when'; its 2 columns are: a, who"),
        ("1 1:2 2:3\n2 1:4\n", {"groups": "who"}, "is a libsvm file, which has no columns beside X"),
        ("a,who\n1,u\n2,v\n", {"groups": ["a", "who"]}, "groups must name one column"),
    ],
)
def test_columns_that_cannot_come_beside_x(tmp_path, dst, content, options, message):
    (tmp_path / "rows").write_text(content)
    with pytest.raises(InputError, match=message):
        convert(tmp_path / "rows", dst, **options)
    assert not Path(dst).exists()


def test_whole_numbers_beside_x_may_become_fractions_on_the_way(tmp_path, dst, small_blocks):
    lines = [f"{i},{i}" for i in range(50)] + ["50,.5"]
    (tmp_path / "rows.csv").write_text("a,day\n" + "\n".join(lines))
    convert(tmp_path / "rows.csv", dst, extra="day")
    (block,) = open_dataset(dst, extra="day").rows(0, 51).tiles(51)
    assert block.ids["day"].tolist() == [*range(50), 0.5]
