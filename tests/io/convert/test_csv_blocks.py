"""Delimited text: its names, types and values, and where it is wrong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from distrff.errors import InputError
from distrff.io.convert import delimited as text_blocks
from distrff.io.convert.delimited import CsvSource, WiderTypes


def columns(source: CsvSource) -> dict[str, list]:
    source.refuse_mixtures(source.names)
    batches = [source.batch(piece, source.names) for piece in source.pieces(source.names)]
    return {name: [v for b in batches for v in b.column(name).to_pylist()] for name in source.names}


def read_by_wider_types(source: CsvSource) -> dict[str, list]:
    while True:
        try:
            return columns(source)
        except WiderTypes as wider:
            assert wider.types != source.types
            source.widen(wider.types)


def test_numbers_come_back(text_file, block_bytes, rng):
    X = rng.standard_normal((80, 3))
    text = "a,b,c\n" + "".join(",".join(map(repr, row)) + "\n" for row in X.tolist())
    found = columns(CsvSource([text_file(text.encode())]))
    np.testing.assert_array_equal(np.column_stack([found[n] for n in "abc"]), X)


def test_every_kind_of_column(text_file):
    text = b'n,t,b,d\n1,x,true,2020-01-01 00:00:00\n?,"y, z\nq",false,2020-01-01 00:00:01\n2.5,,true,\n'
    source = CsvSource([text_file(text)])
    kinds = [str(t) for t in source.types.values()]
    assert kinds == ["double", "dictionary<values=string, indices=int32, ordered=0>", "bool", "timestamp[s]"]
    found = columns(source)
    assert found["n"] == [1.0, None, 2.5]
    assert found["t"] == ["x", "y, z\nq", None]
    assert found["b"] == [True, False, True]


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_delimiters(text_file, delimiter):
    text = delimiter.join("abc") + "\n" + delimiter.join(["1", "2", "x y"]) + "\n"
    source = CsvSource([text_file(text.encode())])
    assert source.delimiter == delimiter
    assert columns(source) == {"a": [1.0], "b": [2.0], "c": ["x y"]}


@pytest.mark.parametrize(
    ("text", "header", "names"),
    [
        (b"a,b\n1,2\n", None, ("a", "b")),
        (b"0,tcp\n1,udp\n", None, ("0", "1")),
        (b"x,y\nu,v\n", False, ("0", "1")),
        (b"1990,1991\n1,2\n", True, ("1990", "1991")),
        (b",b\n1,2\n", None, ("0", "b")),
        (b"?,b\n1,2\n", None, ("0", "1")),
        (b",\n1,2\n", None, ("0", "1")),
    ],
)
def test_headers(text_file, text, header, names):
    assert CsvSource([text_file(text)], header).names == names


@pytest.mark.parametrize(
    ("text", "known", "names"),
    [
        (b"u,u\nv,w\n", ("1", "0"), ("0", "1")),
        (b"2019,y\n1,2\n", ("2019",), ("2019", "y")),
        (b"2019,2020\n1,2\n", ("2020", "2019"), ("2019", "2020")),
        (b"0,1\n1,0\n", ("0", "1"), ("0", "1")),
        (b"a,b\n1,2\n", ("a", "c"), ("a", "b")),
    ],
)
def test_headers_of_files_for_a_model(text_file, text, known, names):
    source = CsvSource([text_file(text)], known=known)
    assert (source.names, source.has_header) == (names, not {"0", "1"} <= set(known))


def test_several_files_with_headers(text_file, block_bytes):
    files = [text_file(b"a,b\n%d,2\n" % i, f"{i}.csv") for i in range(3)]
    assert columns(CsvSource(files))["a"] == [0.0, 1.0, 2.0]
    files.append(text_file(b"a,c\n1,2\n", "3.csv"))
    with pytest.raises(
        InputError, match=r"3.csv, line 1: the columns a, c are not those of .*0.csv \(a, b\)"
    ):
        columns(CsvSource(files))


def test_whole_numbers_of_targets_stay_whole(text_file):
    source = CsvSource([text_file(b"a,t\n1,2\n3,4\n")])
    source.keep_whole(["t"])
    assert source.types == {"a": pa.float64(), "t": pa.int64()}


def test_later_blocks_may_widen_types(text_file, monkeypatch):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 16)
    source = CsvSource([text_file(b"a,t,e\n1,2,\n1,2,\n1,2,\n1,2,\n1,2.5,\n1,2,q\n")])
    source.keep_whole(["t"])
    assert pa.types.is_null(source.types["e"])
    with pytest.raises(WiderTypes):
        columns(source)
    assert read_by_wider_types(source)["t"] == [2.0, 2.0, 2.0, 2.0, 2.5, 2.0]
    assert columns(source)["e"] == [None] * 5 + ["q"]


def test_times_of_finer_units(text_file, monkeypatch):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 40)
    lines = [b"2020-01-01 00:00:00"] * 5 + [b"2020-01-01 00:00:00.5", b"2020-01-02"]
    source = CsvSource([text_file(b"t,a\n" + b"".join(line + b",1\n" for line in lines))])
    assert str(source.types["t"]) == "timestamp[s]"
    found = read_by_wider_types(source)["t"]
    assert [(t - found[0]).total_seconds() for t in found[-3:]] == [0, 0.5, 86400]


@pytest.mark.parametrize("n_before", [0, 50])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"1,2", "2 fields, but there are 3 columns"),
        (b"1,2,3,4", "4 fields, but there are 3 columns"),
        (b"1,oops,3", "column 'b': 'oops' where"),
        (b"1,2,\xe9", "column 'c': bytes that are not UTF-8"),
    ],
)
def test_what_is_wrong_is_named_by_file_line_and_column(text_file, block_bytes, n_before, line, message):
    good = b'1,2,"x\ny"\n\n'  # a record of two lines, and an empty one
    text = b"a,b,c\n" + good * (n_before + 2) + line + b"\n" + good * 3
    number = 2 + 3 * (n_before + 2)
    with pytest.raises(InputError, match=rf"rows.csv, line {number}\b.*{message}"):
        columns(CsvSource([text_file(text)]))


def test_text_among_numbers_is_refused(text_file):
    text = b"a,b\n" + b"1,2\n" * 5 + b"1,n.a.\n"
    source = CsvSource([text_file(text)])
    with pytest.raises(InputError, match=r"line 7, column 'b': 'n.a.' where most values are numbers"):
        source.refuse_mixtures(["a", "b"])
    source.refuse_mixtures(["a"])


def test_names_taken_for_a_row(text_file):
    text = b"1990,b\n" + b"1,2\n" * 5
    with pytest.raises(InputError, match=r"line 1, column '1': 'b' where .*header=True"):
        CsvSource([text_file(text)]).refuse_mixtures(["1"])
    assert CsvSource([text_file(text)], True).names == ("1990", "b")


def test_names_that_occur_twice(text_file):
    with pytest.raises(InputError, match="line 1: two columns are named 'a'"):
        CsvSource([text_file(b"a,b,a\n1,2,3\n")])


@pytest.mark.parametrize("text", [b"", b"a,b\n", b"\n\n"])
def test_no_rows(text_file, text):
    with pytest.raises(InputError, match=r"rows.csv (is empty|has a header but no rows)"):
        CsvSource([text_file(text)])
