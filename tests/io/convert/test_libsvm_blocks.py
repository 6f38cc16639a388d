"""Libsvm files: numbers as Python reads them, and where they are wrong."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from distrff.errors import InputError
from distrff.io.convert.text import LibsvmSource, looks_like_libsvm, refuse_other_libsvm


def rows_of(file) -> list:
    source = LibsvmSource([file])
    return [source.rows(piece) for piece in source.pieces(())]


@pytest.mark.parametrize(
    "number",
    ["1", "-1", "+1", "0.1", ".5", "5.", "1e-3", "123456789012345678", "-0.30000000000000004", "1e308",
     "0.00000000000000000000000123"],
)  # fmt: skip
def test_numbers_are_read_as_python_reads_them(text_file, number):
    (rows,) = rows_of(text_file(f"{number} 3:{number}\n".encode()))
    np.testing.assert_array_equal([rows.labels[0], rows.values[0]], [float(number)] * 2)


def test_blanks_and_comments(text_file):
    (rows,) = rows_of(text_file(b"# head\n\n 1  2:3 # 5:6\r\n-1\t\n2 1:1 7:0.5"))
    assert rows.labels.tolist() == [1, -1, 2]
    assert rows.starts.tolist() == [0, 1, 1, 3]
    assert rows.indices.tolist() == [2, 1, 7]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 3:1 2:1", "indices do not increase"),
        ("1 3:1 3:1", "indices do not increase"),
        ("x 3:1", "the label is no number"),
        ("1,2 3:1", "the label is no number"),
        ("1 qid:3 3:1", "not index:value"),
        ("1 3", "not index:value"),
        ("1 3:", "a value is no number"),
        ("1 3:1_0", "a value is no number"),
        ("1 99999999999:1", "an index is larger"),
        *(
            (f"1 1:1 3:{value} 4:1", f"at '3:{value} 4:1': this is no finite number")
            for value in ("nan", "inf", "-Infinity", "1e400")
        ),
        *((f"{value} 1:1", f"at '{value} 1:1': this is no finite number") for value in ("nan", "1e400")),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(text_file, block_bytes, line, message):
    text = "1 1:1 2:1\n" * 40 + line + "\n1 1:1\n"
    with pytest.raises(InputError, match=rf"rows.csv, line 41, .*{message}"):
        rows_of(text_file(text.encode()))


def test_an_index_beyond_the_width(text_file, block_bytes):
    source = LibsvmSource([text_file(b"# no row\n1 1:1\n\n1 2:1 5:1\n")])
    with pytest.raises(InputError, match=r"line 4: index 5, but in training the indices were 1 to 4"):
        for piece in source.pieces(()):
            source.check_width(piece, source.rows(piece), 1, 4)


def test_which_text_looks_like_libsvm():
    assert looks_like_libsvm(b"-1 3:1 11:1\n+1\n")
    assert looks_like_libsvm(b"# made today\n\n-1 3:1 # first\n+1\n")
    for other in (b"1,2\n3,4\n", b"1\n2\n", b"12:30,4\n12:31,5\n"):
        assert not looks_like_libsvm(other)


SEVERAL = r"f is a libsvm file with several labels per line \('1"
QUERIES = r"f is a libsvm file for ranking \('qid:3'\).* remove the qid: fields"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2 1:2 2:3\n1 1:3\n", SEVERAL),
        (" 1:2\n1,2 1:2\n# none\n0 5:1e-3 7:nan # end\n", SEVERAL),
        ("1.5,-2 0:2", SEVERAL),
        ("0 qid:3 1:-0.1 2:0.4\n2 qid:3 2:1 # a comment\n", QUERIES),
        ("a qid:3 b\n1 2 3\n", None),
        ("1,2\n3,4\n", None),
        ("1,2 1:2\nx,4\n5,6\n", None),
        ("a b,12:30\n1,12:31\n", None),
        ("", None),
        ("1 1:2\n", None),
        ("1:2\n", None),
    ],
)
def test_several_labels_a_line_and_queries_are_refused(text, message):
    with pytest.raises(InputError, match=message) if message else nullcontext():
        refuse_other_libsvm(text.encode(), "f")
