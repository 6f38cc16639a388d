"""Delimited text in blocks of whole records: its names, types and values, and where it is wrong."""

import bz2
import csv
import gzip
import io
import lzma

import numpy as np
import pyarrow as pa
import pytest

from distrff.errors import InputError
from distrff.io.convert import text as texts
from distrff.io.convert.dialect import NULLS, Dialect
from distrff.io.convert.text import CsvSource, WiderTypes, head_of
from distrff.io.tables import choose_columns
from distrff.preprocessing.profile import TableOptions

ALL = TableOptions(one_hot=True, datetime="seconds")


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


COMPRESSIONS = dict(none=bytes, gzip=gzip.compress, bzip2=bz2.compress, xz=lzma.compress, zstd=zstd)


def quoted_records(rng) -> tuple[bytes, list[list[str]]]:
    """Fields with delimiters, quotes and line ends inside, as the csv module writes them."""
    alphabet = ["a", "b", ",", '"', "\n", "ä", " "]
    rows = [["".join(rng.choice(alphabet, rng.integers(1, 9))) for _ in range(3)] for _ in range(60)]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_MINIMAL).writerows(rows)
    return text.getvalue().encode(), rows


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_that_blocks_cut(text_file, block_bytes, compression, rng):
    data, rows = quoted_records(rng)
    file = text_file(COMPRESSIONS[compression](b"\xef\xbb\xbf" + data))
    source = CsvSource([file, file], Dialect(delimiter=",", header=False))
    source.completed(TableOptions(types=dict.fromkeys(source.names, "text")))
    found, lines = [], []
    for piece in source.pieces(source.names):
        found += zip(*(column.to_pylist() for column in piece.batch.columns), strict=True)
        lines += [source.place(piece, row) for row in range(piece.batch.num_rows)]
    assert found == 2 * [tuple(None if field in NULLS else field for field in row) for row in rows]
    starts = np.cumsum([1] + [1 + sum(field.count("\n") for field in row) for row in rows])[:-1]
    assert lines == 2 * [f"{file.name}, line {line}" for line in starts]


@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
def test_line_ends(text_file, block_bytes, ends):
    source = CsvSource([text_file(ends.join(b"%d,%d" % (i, -i) for i in range(50)) + ends)])
    assert columns(source) == {"0": list(range(50)), "1": [-i for i in range(50)]}
    with pytest.raises(InputError, match="line 51, column '1': 'x'"):
        columns(CsvSource([text_file(ends.join([b"1,2"] * 50 + [b"1,x"]) + ends)]))


@pytest.mark.parametrize("compression", [c for c in COMPRESSIONS if c != "none"])
def test_a_truncated_file_is_refused_by_name_and_the_head_of_a_whole_one(text_file, compression, rng):
    data = COMPRESSIONS[compression](b"".join(b"%d,1\n" % i for i in rng.integers(0, 10**9, 20_000)))
    with pytest.raises(InputError, match=r"rows.csv cannot be decompressed.*truncated"):
        columns(CsvSource([text_file(data[: len(data) // 2])]))
    # The head is of all members that follow each other.
    members = map(COMPRESSIONS[compression], (b"1,2\n", b"3,4\n"))
    assert head_of(text_file(b"".join(members))) == b"1,2\n3,4\n"


@pytest.mark.parametrize(
    ("encoding", "given", "mark"),
    [
        ("utf-16", None, ""),  # a byte order mark tells it
        *((one, one, "") for one in ("latin-1", "cp1252")),
        *((one, one, "\ufeff") for one in ("utf-16-le", "utf-16-be")),  # and is in no name
    ],
)
def test_encodings(text_file, encoding, given, mark):
    file = text_file(f"{mark}größe,b\n1,ü\n2,é\n".encode(encoding))
    assert columns(CsvSource([file], Dialect(encoding=given))) == {"größe": [1, 2], "b": ["ü", "é"]}
    with pytest.raises(InputError, match=r"rows.csv is not of the encoding ascii"):
        columns(CsvSource([file], Dialect(encoding="ascii")))


@pytest.mark.parametrize("tail", [b'7,"8\n9,0\n', b'7,"8""\n9,""0\n', b'7,"8'])
def test_a_quote_that_is_open_at_the_end_or_for_too_long(text_file, block_bytes, monkeypatch, tail):
    """The lines after it would become one field, as many fields as any record has."""
    with pytest.raises(InputError, match=r"rows.csv, line 5: a quote is opened here and never closed"):
        columns(CsvSource([text_file(b'1,a\n3,"4\n"\n5,b\n' + tail)]))
    assert columns(CsvSource([text_file(b'1,5" pipe\n2,6\n')]))["1"] == ['5" pipe', "6"]
    with pytest.raises(InputError, match=r"rows.csv, line 2: a quote is opened here and never closed"):
        columns(
            CsvSource([text_file(tail.replace(b'"', b"'").replace(b"7", b"0,1\n7", 1))], Dialect(quote="'"))
        )
    with pytest.raises(InputError, match=r"rows.csv, line 4: .*never closed"):
        columns(CsvSource([text_file(b"1,a\n" * 3 + b'"5,b\n' + b"7,c\n" * 50_000)]))


def columns(source: CsvSource) -> dict[str, list]:
    source.prepare(choose_columns(source, ALL))
    batches = [piece.batch for piece in source.pieces(source.names)]
    return {name: [v for b in batches for v in b.column(name).to_pylist()] for name in source.names}


def read_by_wider_types(source: CsvSource) -> dict[str, list]:
    while True:
        try:
            return columns(source)
        except WiderTypes:
            pass


@pytest.mark.parametrize(
    ("text", "options", "names"),
    [
        (b"a,b\n1,2\n", {}, ("a", "b")),
        (b"0,tcp\n1,udp\n", {}, ("0", "1")),
        (b"x,y\nu,v\n", {"header": False}, ("0", "1")),
        (b"1990,1991\n1,2\n", {"header": True}, ("1990", "1991")),
        (b"1990,b\n" + b"1,2\n" * 5, {"header": True}, ("1990", "b")),
        (b",b\n1,2\n", {}, ("Unnamed: 0", "b")),  # as pandas calls it
        (b",b\n1,2\n", {"known": ("0", "b")}, ("0", "b")),  # as models of earlier versions call it
        (b"x y\n0 1 2\n1 2 3\n", {}, ("Unnamed: 0", "x", "y")),  # as R writes row names
        (b"red,big\nblue,big\n", {}, ("0", "1")),  # values, since one of them occurs again
        (b"2020-01-01,red\n2020-01-02,blue\n", {}, ("0", "1")),
        (b"?,b\n1,2\n", {}, ("0", "1")),
        (b",\n1,2\n", {}, ("0", "1")),
        # Files for a model have its names, or the numbers of columns.
        (b"u,u\nv,w\n", {"known": ("1", "0")}, ("0", "1")),
        (b"2019,y\n1,2\n", {"known": ("2019",)}, ("2019", "y")),
        (b"2019,2020\n1,2\n", {"known": ("2020", "2019")}, ("2019", "2020")),
        (b"0,1\n1,0\n", {"known": ("0", "1")}, ("0", "1")),
        (b"a,b\n1,2\n", {"known": ("a", "c")}, ("a", "b")),
    ],
)
def test_headers(text_file, text, options, names):
    source = CsvSource([text_file(text)], Dialect(header=options.pop("header", None)), **options)
    assert source.names == names
    if "known" in options:
        assert source.dialect.header == (not {"0", "1"} <= set(options["known"]))


@pytest.mark.parametrize(
    ("blanks", "delimiter"), [("{}, {}, {}", ","), ("{} ,{} ,{}", ","), (" {} ; {} ;{}", ";")]
)
def test_missing_values_beside_a_blank(text_file, blanks, delimiter):
    records = [("a", "b", "c"), ("1", "?", "u"), ("NA", "2", "?"), ("3", "", "v"), ("4", "5", "w")]
    source = CsvSource([text_file("\n".join(blanks.format(*record) for record in records).encode())])
    found = columns(source)
    assert source.dialect.delimiter == delimiter
    assert (found["a"], found["b"]) == ([1, None, 3, 4], [None, 2, None, 5])
    assert [word and word.strip() for word in found["c"]] == ["u", None, "v", "w"]


def test_labels_beyond_the_integers_with_a_sign(text_file, monkeypatch):
    monkeypatch.setattr(texts, "BLOCK_BYTES", 64)
    large = [2**63 + 1, 2**63 + 2]

    def labels(values):
        source = CsvSource([text_file("".join(f"u,{value}\n" for value in values).encode())])
        source.prepare(choose_columns(source, TableOptions(target="1", one_hot=True)))
        return read_by_wider_types(source)["1"]

    for values in (large * 9, [1, 2] * 20 + large, [1.0, 2.0**63] * 20 + [0.5]):
        assert labels(values) == values
    for values in ([*large, -1], [-1, *large], [1, -1] * 20 + large, [*large * 9, 10**20]):
        with pytest.raises(InputError, match=r"line \d+, column '1': '(-1|10{20})' beside labels of 2⁶³"):
            labels(values)


@pytest.mark.parametrize("quote", ['"', "'", None])
def test_fields_that_blanks_set_apart(text_file, block_bytes, quote):
    q = quote or ""
    text = f"{q}a{'_' if quote is None else ' '}b{q} c d\n" + 9 * f'{q}it is{q}  5" 7\n' * (quote is not None)
    text += 9 * "x'y\t 5\"   7\n"
    source = CsvSource([text_file(text.encode())], Dialect("whitespace", quote=quote, header=True))
    words, inches, numbers = columns(source).values()
    assert words == 9 * ["it is"] * (quote is not None) + 9 * ["x'y"]
    assert set(inches) == {'5"'}
    assert set(numbers) == {7}


def test_lines_that_are_too_long(monkeypatch):
    monkeypatch.setattr(texts, "_LONGEST_LINE", 50)
    lines = [b"a" * 30 + b"\n", b"b\r\n", b"c" * 45 + b"\n", b"d"]
    for n_bytes in (1, 7, 31, 100):
        blocks = list(texts.whole_lines(io.BytesIO(b"".join(lines)), n_bytes, "f.txt"))
        assert b"".join(blocks) == b"".join(lines)
        assert all(block.endswith(b"\n") for block in blocks[:-1])
        with pytest.raises(InputError, match=r"f.txt: the line 'xxx.* is longer than"):
            list(texts.whole_lines(io.BytesIO(b"a\n" + b"x" * 500 + b"\n"), min(n_bytes, 40), "f.txt"))


def test_several_files_with_headers(text_file, block_bytes):
    files = [text_file(b"a,b\n%d,2\n" % i, f"{i}.csv") for i in range(3)]
    assert columns(CsvSource(files))["a"] == [0.0, 1.0, 2.0]
    files.append(text_file(b"a,c\n1,2\n", "3.csv"))
    with pytest.raises(
        InputError, match=r"3.csv, line 1: the columns a, c are not those of .*0.csv \(a, b\)"
    ):
        columns(CsvSource(files))


def test_times_of_finer_units(text_file, monkeypatch):
    monkeypatch.setattr(texts, "BLOCK_BYTES", 40)
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
