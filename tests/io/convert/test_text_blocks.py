"""Text in blocks: whole records, whatever the size of blocks, compression and kind of line end."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma

import pyarrow as pa
import pytest

from distrff.errors import InputError
from distrff.io.convert import delimited as text_blocks
from distrff.io.convert.delimited import blocks_of, head_of


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


COMPRESSIONS = {
    "none": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstd,
}


def quoted_records(rng) -> tuple[bytes, list[list[str]]]:
    """Fields with delimiters, quotes and line ends inside, as the csv module writes them."""
    alphabet = ["a", "b", ",", '"', "\n", "ä", " "]
    rows = [["".join(rng.choice(alphabet, rng.integers(0, 9))) for _ in range(3)] for _ in range(60)]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_MINIMAL).writerows(rows)
    return text.getvalue().encode(), rows


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_blocks_hold_every_byte_once(text_file, block_bytes, compression, rng):
    data, rows = quoted_records(rng)
    file = text_file(COMPRESSIONS[compression](data))
    blocks = list(blocks_of([file], ","))
    assert b"".join(block.data for block in blocks) == data
    found = [
        row for b in blocks for row in csv.reader(io.StringIO(b.data.decode(), newline="")) if row
    ]  # each block alone is read like the whole
    assert found == [row for row in csv.reader(io.StringIO(data.decode(), newline="")) if row]
    assert len(found) == len(rows)


def test_blocks_know_their_lines(text_file, block_bytes, rng):
    data, _ = quoted_records(rng)
    at = 0
    for block in blocks_of([text_file(data)], ","):
        assert block.line == 1 + data.count(b"\n", 0, at)
        assert block.has_quotes == (b'"' in block.data) or block.has_quotes
        at += len(block.data)


def test_what_is_skipped_is_a_record(text_file, block_bytes):
    file = text_file(b'\xef\xbb\xbf"a\nname",b\n1,2\n3,4')
    blocks = list(blocks_of([file, file], ",", 1))
    assert b"".join(b.data for b in blocks) == b"1,2\n3,4" * 2
    assert blocks[0].line == 3
    assert blocks[-1].position == 2 * len(b'\xef\xbb\xbf"a\nname",b\n1,2\n3,4')


@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
def test_line_ends(text_file, block_bytes, ends):
    data = ends.join(b"%d,%d" % (i, -i) for i in range(50)) + ends
    blocks = list(blocks_of([text_file(data)], ","))
    assert b"".join(b.data for b in blocks) == data
    assert all(b.data.endswith(ends[-1:]) for b in blocks)


@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("n_bytes", range(13, 18))
def test_line_ends_that_the_first_block_does_not_show_or_cuts(text_file, block_bytes, ends, n_bytes):
    data = b'"' + b"a" * (n_bytes - 2) + b'"' + ends + b'"b,c"' + ends + b"d" + ends
    blocks = list(blocks_of([text_file(data)], ","))
    assert b"".join(b.data for b in blocks) == data
    assert all(b.data.endswith(ends) for b in blocks)


def test_members_of_gzip_follow_each_other(text_file):
    file = text_file(gzip.compress(b"1,2\n") + gzip.compress(b"3,4\n"))
    assert head_of(file) == b"1,2\n3,4\n"


@pytest.mark.parametrize("compression", [c for c in COMPRESSIONS if c != "none"])
def test_a_truncated_file_is_refused_by_name(text_file, compression, rng):
    data = COMPRESSIONS[compression](rng.integers(32, 127, 20_000).astype("u1").tobytes())
    with pytest.raises(InputError, match=r"rows.csv cannot be decompressed.*truncated"):
        list(blocks_of([text_file(data[: len(data) // 2])], ","))


def test_other_encodings_are_refused(text_file):
    with pytest.raises(InputError, match="UTF-16"):
        head_of(text_file("a,b\n".encode("utf-16")))


def test_a_quote_that_is_never_closed(text_file, monkeypatch):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 64)
    monkeypatch.setattr(text_blocks, "_LONGEST_RECORD", 256)
    file = text_file(b"1,2\n" * 3 + b'"5,6\n' + b"7,8\n" * 500)
    with pytest.raises(InputError, match=r"rows.csv, line 4: .*never closed"):
        list(blocks_of([file], ","))


@pytest.mark.parametrize("tail", [b'7,"8\n9,0\n', b'7,"8""\n9,""0\n', b'7,"8'])
def test_a_quote_that_is_open_at_the_end(text_file, block_bytes, tail):
    """The lines after it would become one field, as many fields as any record has."""
    with pytest.raises(InputError, match=r"rows.csv, line 5: a quote is opened there and never closed"):
        list(blocks_of([text_file(b'1,2\n3,"4\n"\n5,6\n' + tail)], ","))
