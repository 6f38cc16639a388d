"""How a text is read: delimiter, decimal sign and names that are guessed, given, or refused as ambiguous."""

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from distrff import FourierFeatures, Gaussian, KernelRidge, open_dataset
from distrff.errors import InputError
from distrff.io.convert.convert import convert, convert_like
from distrff.io.convert.dialect import WHITESPACE, Dialect, opening_of
from distrff.io.convert.text import CsvSource


def rows(form: str, n: int = 40) -> str:
    """Rows of a format of i."""
    return "".join(form.format(i=i, j=i + 1) + "\n" for i in range(n))


@pytest.mark.parametrize(
    ("text", "delimiter", "decimal", "names"),
    [
        (rows("{i},5;{j},25;7,{i}"), ";", ",", ("0", "1", "2")),  # four fields by the comma
        (rows("0,{i};0,{j};0,1"), ";", ",", ("0", "1", "2")),
        (rows("{i},5\t{j},25"), "\t", ",", ("0", "1")),
        (
            "time (d, h);pos (x, y, z);val\n" + rows("{i};{j}.5;3"),
            ";",
            ".",
            ("time (d, h)", "pos (x, y, z)", "val"),
        ),
        ("sep=;\nx,y;z\n" + rows("{i};{j}"), ";", ".", ("x,y", "z")),
        ('"sep=|"\r\nx|z\r\n' + rows("{i},5|{j}"), "|", ",", ("x", "z")),
        ("a\tb\n" + rows("Rome, IT\t{i}"), "\t", ".", ("a", "b")),
        ("a,b,c\n" + rows("{i},x;y,{j}"), ",", ".", ("a", "b", "c")),
        ("a, b\n" + rows("{i}, {j}.5"), ",", ".", ("a", "b")),
        (rows(" {i}.25   {j}\t3"), WHITESPACE, ".", ("0", "1", "2")),
        ("a b\n" + rows(" {i},25   {j}"), WHITESPACE, ",", ("a", "b")),
        ('"x y" z\n' + rows('"p q" {i}'), WHITESPACE, ".", ("x y", "z")),
        ("t,v\n" + rows("2020-01-01 00:00:00,{i}"), ",", ".", ("t", "v")),
        ("t\n" + rows("2020-01-01 00:00:00"), ",", ".", ("t",)),
        ("words\n" + rows("p{i} q"), ",", ".", ("words",)),
        ("a;b\n" + rows("1.1{i:02d},5;{j},5"), ";", ",", ("a", "b")),
    ],
)
def test_what_is_guessed(text_file, text, delimiter, decimal, names):
    found = CsvSource([text_file(text.encode())])
    assert (found.dialect.delimiter, found.dialect.decimal, found.names) == (delimiter, decimal, names)
    assert f"decimal {decimal!r}" in found.dialect.described()
    (piece,) = found.pieces(names[-1:])
    assert piece.batch.num_rows == 40


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (rows("Smith{i}, J;Rome, IT"), "give delimiter=',' or delimiter=';'"),
        (rows("{i},5;{j}.25"), r"both '1,5' .* and '2.25' .*; give decimal=',' or decimal='\.'"),
        ("sep=§\na§b\n", "bytes that are not UTF-8"),
        (
            "a\tb\n" + rows("{j},100\t{i}"),
            r"comma of '1,100' \(column 'a'\) may set decimals or thousands apart; give decimal",
        ),
    ],
)
def test_two_guesses_that_fit_as_well_are_refused(text, remedy):
    with pytest.raises(InputError, match=f"f.csv.*: .*{remedy}"):
        opening_of(text.encode("latin-1"), Dialect(), "f.csv")


def test_what_is_given_is_not_guessed(tmp_path):
    path, dst = tmp_path / "rows.csv", str(tmp_path / "rows.zarr")
    path.write_text(rows("{i},1;{j},2;3,{i}"))
    for given, n_columns in (({}, 3), ({"delimiter": ","}, 4)):
        report = convert(path, dst, overwrite=True, **given)
        assert len(open_dataset(dst).column_names) + len(report["columns_dropped"]) == n_columns
    with pytest.raises(InputError, match=r"'0,1' \(line 1\); decimal=',' takes"):
        convert(path, dst, overwrite=True, one_hot=True, delimiter="semicolon", decimal=".")
    path.write_text("a;b;y\n'1;x';1;2\n'2;x';3;4\n")
    convert(path, dst, target="y", quote="'", one_hot=True, overwrite=True)
    assert open_dataset(dst).column_names == ("a=1;x", "a=2;x", "b")
    path.write_bytes("größe,y\n1,2\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"line 1: bytes that are not UTF-8; .*encoding='latin-1'"):
        convert(path, dst, target="y", overwrite=True)
    convert(path, dst, target="y", encoding="latin-1", overwrite=True)
    assert open_dataset(dst).column_names == ("größe",)
    for name, values in {
        "delimiter": ("::", "§", "→", "\n", "\r", "\0", '"'),
        "decimal": ("x",),
        "quote": ("ab", "é", "\n", " "),
        "encoding": ("nonsense", "base64"),
    }.items():
        for value in values:
            with pytest.raises(InputError, match=name):
                convert(path, dst, overwrite=True, **{name: value})
    np.save(tmp_path / "rows.npy", np.ones((3, 2)))
    with pytest.raises(InputError, match=r"decimal goes with delimited text, but .* NumPy"):
        convert(tmp_path / "rows.npy", dst, decimal=",", overwrite=True)


def test_one_column_without_a_delimiter(tmp_path):
    (tmp_path / "rows.csv").write_text("a::b\n" + rows("{i}::{j}"))
    with pytest.raises(InputError, match=r"one column, 'a::b', .*nor white space .*give the delimiter"):
        convert(tmp_path / "rows.csv", str(tmp_path / "rows.zarr"), target=-1)


# Types that are declared, and values that are written for people.


def codes(n: int = 60) -> pd.DataFrame:
    icd = np.array(["250", "401", "V27", "715"])[np.arange(n) * 7 % 4]
    day = [f"2020-01-{1 + i % 28:02d}" for i in range(n)]
    return pd.DataFrame({"icd": icd, "zip": 100 + np.arange(n) % 3, "day": day, "y": np.arange(n) * 0.5})


def test_declared_types_give_the_same_columns_everywhere(tmp_path):
    codes().to_csv(tmp_path / "t.csv", index=False)
    codes().to_parquet(tmp_path / "t.parquet")
    options = {"target": "y", "one_hot": True, "datetime": "seconds"}
    with pytest.raises(InputError, match=r"'icd': 'V27' where most .*types=\{'icd': 'text'\}"):
        convert(tmp_path / "t.csv", str(tmp_path / "t.zarr"), **options)
    types = {"icd": "text", "zip": "category", "day": "date"}
    convert(tmp_path / "t.csv", str(tmp_path / "t.zarr"), types=types, **options)
    expected = open_dataset(tmp_path / "t.zarr")
    assert set(expected.column_names) > {"icd=V27", "icd=250", "zip=100", "zip=101", "day"}
    convert(tmp_path / "t.parquet", str(tmp_path / "p.zarr"), types=types, **options)
    opened = [open_dataset(path, types=types, **options) for path in (tmp_path / "t.parquet", codes())]
    for found in (open_dataset(tmp_path / "p.zarr"), *opened):
        assert found.column_names == expected.column_names
        np.testing.assert_array_equal(found.X.compute(), expected.X.compute())
    # The steps of a model read new rows in the same way.
    again = open_dataset(codes(), steps=opened[0].steps)
    np.testing.assert_array_equal(again.X.compute(), expected.X.compute())


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"none": "text"}, "has no column 'none'"),
        ({"zip": "txt"}, "type of column 'zip' must be one of 'text'"),
        ({"icd": "number"}, "'V27' where types says number"),
        ({"icd": "time"}, "where types says time"),
    ],
)
def test_types_that_do_not_fit(tmp_path, types, message):
    codes().to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=message):
        convert(tmp_path / "t.csv", str(tmp_path / "t.zarr"), target="y", datetime="parts", types=types)
    codes().to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=message if "says" not in message else "types declares column 'icd'"):
        open_dataset(tmp_path / "t.parquet", target="y", one_hot=True, datetime="parts", types=types)


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ('"{j},100.5"', "without thousands separators"),
        ("{j} 100", "without thousands separators"),
        ("${i}", "a sum of money"),
        ("{i}.5 €", "a sum of money"),
        ("{i}%", "a percentage"),
        ("USD {i}.50", "a sum of money"),
        ('"Jan {i}, 2024"', "a date"),
        ("{i}-Feb-2024", "a date"),
        ("({i})", "a negative number"),
        ("−{i}", "a negative number"),
        ("<{i}.5", "its sign in a column of its own"),
        ("{i}.5k", "the number out"),
        ("{i}\u202f500", "a number without thousands separators"),
        ("31.12.2020", "the year first"),
        ("12/31/2020 10:00", "the year first"),
    ],
)
def test_numbers_and_dates_that_are_written_for_people(tmp_path, value, remedy):
    (tmp_path / "t.csv").write_text("a,b,y\n" + rows("{i}.5," + value + ",{i}"))
    dst = str(tmp_path / "t.zarr")
    why = convert(tmp_path / "t.csv", dst, target="y")["columns_dropped"]["b"]
    assert "it holds '" in why
    assert "(line 2)" in why
    assert remedy in why
    assert "one_hot" not in why
    for options in ({"target": "y", "one_hot": True}, {"target": "b"}):
        with pytest.raises(InputError, match=f"column 'b': it holds .*{remedy}"):
            convert(tmp_path / "t.csv", dst, overwrite=True, **options)
    convert(tmp_path / "t.csv", dst, target="y", one_hot=True, types={"b": "text"}, overwrite=True)
    assert open_dataset(dst).column_names[1].startswith("b=")


# Columns that only number the rows.


def test_an_index_is_left_out_as_it_is_of_parquet(tmp_path, rng):
    frame = pd.DataFrame(rng.normal(size=(30, 2)), columns=["x", "y"])
    dst = str(tmp_path / "t.zarr")
    for one in (frame, frame.sample(frac=0.5, random_state=0)):  # shuffled, and with gaps
        one.to_csv(tmp_path / "t.csv")
        report = convert(tmp_path / "t.csv", dst, target=1, overwrite=True)  # an index does not count it
        assert open_dataset(dst).column_names == ("x",)
        assert "keep_index=True" in report["columns_dropped"]["Unnamed: 0"]
        again = open_dataset(pd.read_csv(tmp_path / "t.csv"), target="y")
        assert again.column_names == ("x",)
        assert again.table_report["columns_dropped"] == report["columns_dropped"]
    for named in ({"keep_index": True}, {"columns": ["Unnamed: 0", "x"]}):
        convert(tmp_path / "t.csv", dst, target="y", overwrite=True, **named)
        assert open_dataset(dst).column_names == ("Unnamed: 0", "x")


@pytest.mark.parametrize(
    ("name", "values", "is_feature"),
    [
        ("id", range(1, 21), False),
        ("Index", range(20), False),
        ("row_id", range(20), False),
        ("id", [30, *range(19)], True),
        ("t", range(20), True),  # the steps of a series
        ("year", range(1990, 2010), True),
    ],
)
def test_which_columns_only_number_the_rows(tmp_path, name, values, is_feature):
    frame = pd.DataFrame({name: list(values), "x": np.arange(20) * 0.5, "y": np.arange(20) % 3})
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    convert(tmp_path / "t.csv", str(tmp_path / "t.zarr"), target="y")
    lazy = dd.from_pandas(frame, npartitions=2)
    for source in (tmp_path / "t.parquet", frame, lazy, tmp_path / "t.zarr"):
        options = {} if str(source).endswith("t.zarr") else {"target": "y"}
        found = open_dataset(source, **options)
        assert found.column_names == ((name, "x") if is_feature else ("x",))
        assert set((found.table_report or {}).get("columns_dropped", {})) <= {name}
    assert open_dataset(frame, target="y", keep_index=True).column_names == (name, "x")


def test_a_fit_names_what_numbers_the_rows_and_what_is_constant(rng):
    frame = pd.DataFrame({"id": np.arange(60), "c": 2.0, "x": rng.normal(size=60)})
    data = open_dataset(frame.assign(y=frame["x"] ** 2), target="y")
    text = repr(KernelRidge(FourierFeatures(Gaussian(1.0), 16)).fit(data).report_)
    assert "column 'id' left out: it is an index, or numbers the rows; keep_index=True takes it" in text
    assert "constant in all rows: column 'c'; nothing is learnt from them" in text


def test_numbers_that_may_be_codes_are_named_unless_they_are_declared(tmp_path):
    (tmp_path / "t.csv").write_text("zip,x,y\n" + "02139,0.5,1\n10001,1E5,2\n" * 5)
    read_as = convert(tmp_path / "t.csv", str(tmp_path / "t.zarr"), target="y")["read_as"]
    assert "column 'zip' holds 02139, which is read as a number: types={'zip': 'text'} keeps codes" in read_as
    assert "column 'x' holds 1E5" in read_as
    types = {"zip": "text", "x": "text"}
    report = convert(tmp_path / "t.csv", str(tmp_path / "u.zarr"), target="y", types=types, one_hot=True)
    assert "codes" not in report["read_as"]


@pytest.mark.parametrize(
    ("column", "y", "how"),
    [
        ([1.5, 2.0, 3.0], range(12), {"sep": ";", "decimal": ","}),  # categories of numbers
        ([" ?", " u"], range(12), {}),  # which a blank keeps from being missing
        (["a", "b"], [2**53 + 1, 2**53 + 2] * 6, {}),  # labels beyond the integers of a float
    ],
)
def test_a_file_for_a_model_holds_what_the_frame_of_its_fit_held(tmp_path, column, y, how):
    frame = pd.DataFrame({"k": pd.Categorical(column * (12 // len(column))), "w": ["1,5", "2"] * 6, "y": y})
    steps = open_dataset(frame, target="y", one_hot=True).steps
    frame.astype({"k": type(column[0])}).to_csv(tmp_path / "t.csv", index=False, **how)
    assert "n_unseen_categories" not in convert_like(tmp_path / "t.csv", str(tmp_path / "t.zarr"), steps)
    rows, expected = open_dataset(tmp_path / "t.zarr"), open_dataset(frame, steps=steps)
    np.testing.assert_array_equal(rows.X.compute(), expected.X.compute())
    assert rows.y.compute().tolist() == list(y)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "a;y\n" + "985;1\n1.020;2\n8.000;3\n" * 4,
            r"point of '1\.020' \(column 'a'\) may set decimals or th",
        ),
        (
            "city,2019,2020\n" + "rome,.5,1.5\n" * 9,
            r"line 1: city, 2019, 2020 may be the names .*header=True",
        ),
        (
            "# made by a tool\n" + "a,b,c\n" + "1,2,3\n" * 9,
            "line 1: one field, '# made by a tool', where most",
        ),
    ],
)
def test_first_lines_and_points_that_may_mean_two_things_are_refused(text_file, text, told):
    with pytest.raises(InputError, match=told):
        CsvSource([text_file(text.encode())])


@pytest.mark.parametrize(
    "text",
    [
        "a;y\n" + "985.5;1\n1.020;2\n" * 9,  # one digit, then three
        "a;y\n" + "0.985;1\n1.020;2\n12;3\n" * 9,  # a zero in front
        "rome,2019,2020\n" + "oslo,2018,2021\n" * 9,  # a row like the others
    ],
)
def test_numbers_of_three_digits_and_rows_of_years_are_read(text_file, text):
    assert CsvSource([text_file(text.encode())]).dialect.decimal == "."


def test_words_that_look_like_numbers_tell_nothing_of_the_decimal_sign(tmp_path):
    (tmp_path / "t.csv").write_text("n,y\n" + '0.5,"1,5"\n12.5,"V27"\n' * 6)
    with pytest.raises(InputError, match=r"both '1,5' \(column 'y'\) and '0\.5' \(column 'n'\) may"):
        convert(tmp_path / "t.csv", str(tmp_path / "t.zarr"), target="y")
    convert(tmp_path / "t.csv", str(tmp_path / "t.zarr"), target="y", types={"y": "text"})
    rows = open_dataset(tmp_path / "t.zarr")
    assert rows.y.compute().tolist()[:2] == ["1,5", "V27"]
    convert_like(tmp_path / "t.csv", str(tmp_path / "u.zarr"), rows.steps)
    assert open_dataset(tmp_path / "u.zarr").y.compute().tolist() == rows.y.compute().tolist()
