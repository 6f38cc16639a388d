"""Text files, compressed or not, as blocks of whole records; one block is in memory at a time."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from distrff.compiled import compiled, in_own_thread
from distrff.data.storage import file_name, one_line, passing, reaching
from distrff.errors import InputError

BLOCK_BYTES = 8 * 2**20
"""Of text in a block: large against the fixed cost of decoding one, small against a worker's memory."""

_LONGEST_RECORD = 64 * 2**20
_OPENERS: tuple[tuple[bytes, Callable[[Any], Any]], ...] = (
    (b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
    (b"\x28\xb5\x2f\xfd", lambda file: pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")),
)
_DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, pa.ArrowException)
_OTHER_TEXT = (b"\xff\xfe", b"\xfe\xff")  # byte order marks of UTF-16
_MARK = b"\xef\xbb\xbf"  # of UTF-8, which is allowed and says nothing


class TextFile(NamedTuple):
    """One file of text: the filesystem that holds it and its path there."""

    fs: Any
    path: str

    @property
    def name(self) -> str:
        """For messages."""
        return file_name(self.fs, self.path)


class TextBlock(NamedTuple):
    """Whole records of one file.

    file : name, for messages.
    line : number of the block's first line in the file, from 1.
    data : the records, each with its line end but perhaps the last of a file.
    has_quotes : whether a record may hold line ends of its own.
    position : compressed bytes of the file read so far.
    """

    file: str
    line: int
    data: bytes
    has_quotes: bool
    position: int


@contextmanager
def _opened(file: TextFile) -> Iterator[tuple[Any, Any]]:
    """Give the file as stored, and the stream of its text."""
    with reaching(file.name):
        stored = file.fs.open(file.path, "rb")
    try:
        head = stored.read(6)
        stored.seek(0)
        openers = [opener for magic, opener in _OPENERS if head.startswith(magic)]
        yield stored, openers[0](stored) if openers else stored
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(
            f"{file.name} cannot be decompressed ({one_line(error)}); the file is truncated or damaged: "
            f"fetch or compress it again"
        ) from error
    except OSError as error:
        if error.errno is None and not isinstance(error, FileNotFoundError):  # the decompressors' own
            raise InputError(
                f"{file.name} cannot be decompressed ({one_line(error)}); the file is truncated or damaged: "
                f"fetch or compress it again"
            ) from error
        raise passing(error) from error
    finally:
        stored.close()


def head_of(file: TextFile, n_bytes: int = BLOCK_BYTES) -> bytes:
    """Return the first bytes of the text, without a byte order mark.

    Raises
    ------
    InputError
        If the file cannot be decompressed, or is UTF-16.
    """
    with _opened(file) as (_, stream):
        return _checked_head(file, _read(stream, n_bytes))


def _checked_head(file: TextFile, head: bytes) -> bytes:
    if head.startswith(_OTHER_TEXT):
        raise InputError(
            f"{file.name} begins like UTF-16, but text must be UTF-8; convert it: iconv -f UTF-16 -t UTF-8"
        )
    return head.removeprefix(_MARK)


def text_blocks(file: TextFile, delimiter: str | None, skip_records: int = 0) -> Iterator[TextBlock]:
    """Yield the records of a file in blocks of about 8 MB.

    A block ends where a record does: at a line end outside of quotes. Files whose lines end in a bare
    carriage return are read as well.

    Parameters
    ----------
    file : TextFile
    delimiter : str or None
        Between fields; None where quotes mean nothing.
    skip_records : int
        To be left out at the beginning, such as a header.

    Raises
    ------
    InputError
        If the file is damaged, is UTF-16, a quote is never closed, or a record is longer than 64 MB.
    """
    with _opened(file) as (stored, stream):
        data = _read(stream, BLOCK_BYTES)
        at_end = len(data) < BLOCK_BYTES
        data = _checked_head(file, data)
        newline, is_known, line = b"\n", False, 1
        while data:
            if not is_known:
                newline, is_known = _line_end(data, at_end)
            has_quotes = delimiter is not None and b'"' in data
            if at_end and delimiter is not None and has_quotes:
                _refuse_open_quote(file, line, data, newline, delimiter)
            end = len(data) if at_end else _last_end(data, newline, delimiter, has_quotes)
            block, rest = data[:end], data[end:]
            if not block:
                _check_record(file, line, data)
            first = 0
            while skip_records and first < len(block):
                first += len(first_record(block[first:], delimiter))
                skip_records -= 1
            line += block.count(newline, 0, first)
            if block[first:].strip():
                yield TextBlock(file.name, line, block[first:], has_quotes, stored.tell())
            line += block.count(newline, first)
            wanted = max(BLOCK_BYTES - len(rest), BLOCK_BYTES // 8)
            more = b"" if at_end else _read(stream, wanted)
            at_end, data = len(more) < wanted, rest + more


def _line_end(data: bytes, at_end: bool) -> tuple[bytes, bool]:
    """Return what ends the lines, and whether that is certain; a carriage return may be half of a pair."""
    if b"\n" in data:
        return b"\n", True
    return (b"\r", True) if b"\r" in (data if at_end else data[:-1]) else (b"\n", at_end)


def first_record(data: bytes, delimiter: str | None) -> bytes:
    """Return the first record of some text, with its line end."""
    newline, _ = _line_end(data, at_end=True)
    end = data.find(newline) + 1 or len(data)
    if delimiter is None or b'"' not in data[:end]:
        return data[:end]
    return data[: _record_end(data, newline, delimiter, stop_at_first=True) or len(data)]


def _last_end(data: bytes, newline: bytes, delimiter: str | None, has_quotes: bool) -> int:
    """The number of bytes up to the last line end outside of quotes."""
    if delimiter is None or not has_quotes:
        return data.rfind(newline) + 1
    return _record_end(data, newline, delimiter, stop_at_first=False)


def _check_record(file: TextFile, line: int, data: bytes) -> None:
    if len(data) > _LONGEST_RECORD:
        raise InputError(
            f"{file.name}, line {line}: a record is longer than {_LONGEST_RECORD // 2**20} MB; look for a "
            f"quote that is opened there and never closed"
        )


def _refuse_open_quote(file: TextFile, line: int, data: bytes, newline: bytes, delimiter: str) -> None:
    """Refuse the end of a file inside of quotes: all lines after the quote would be one field."""
    opened = _scanned(data, newline, delimiter, stop_at_first=False)[1]
    if opened >= 0:
        raise InputError(
            f"{file.name}, line {line + data.count(newline, 0, opened)}: a quote is opened there and never "
            f"closed; close it, or remove it"
        )


def _read(stream: Any, n_bytes: int) -> bytes:
    """Read so many bytes, fewer only at the end; streams may return less at a time."""
    parts = []
    while n_bytes > 0 and (part := stream.read(n_bytes)):
        parts.append(bytes(part))
        n_bytes -= len(part)
    return b"".join(parts)


def _record_end(data: bytes, newline: bytes, delimiter: str, stop_at_first: bool) -> int:
    """The number of bytes up to the first or last line end outside of quotes; 0 without one."""
    return _scanned(data, newline, delimiter, stop_at_first)[0]


def _scanned(data: bytes, newline: bytes, delimiter: str, stop_at_first: bool) -> list[int]:
    """What `_record_end` says, and where a quote stands that is not closed; −1 without one."""
    _compile_scan()
    found = np.array([0, -1], np.int64)
    _scan_quotes(np.frombuffer(data, np.uint8), newline[0], ord(delimiter), stop_at_first, found)
    return found.tolist()


@cache
def _compile_scan() -> None:
    in_own_thread(lambda: _scan_quotes(np.frombuffer(b"a", np.uint8), 10, 44, True, np.zeros(2, np.int64)))


@compiled()
def _scan_quotes(data, newline, delimiter, stop_at_first, found):
    # A quote opens only at the beginning of a field; inside, two of them are one that is written.
    at_field_start, inside = True, False
    i, opened = 0, 0
    while i < len(data):
        c = data[i]
        if inside:
            if c == 34:
                if i + 1 < len(data) and data[i + 1] == 34:
                    i += 1
                else:
                    inside = False
        elif c == newline:
            found[0] = i + 1
            if stop_at_first:
                return
            at_field_start = True
        elif c == delimiter:
            at_field_start = True
        elif c == 34 and at_field_start:
            inside, at_field_start, opened = True, False, i
        else:
            at_field_start = False
        i += 1
    if inside:
        found[1] = opened


def blocks_of(files: Sequence[TextFile], delimiter: str | None, skip_records: int = 0) -> Iterator[TextBlock]:
    """Yield the blocks of several files, one after the other; positions count on from file to file."""
    before = 0
    for file in files:
        for block in text_blocks(file, delimiter, skip_records):
            yield block._replace(position=before + block.position)
        before += stored_bytes([file])


def stored_bytes(files: Sequence[TextFile]) -> int:
    """Return the size of all files as they are stored, for telling progress."""
    with reaching(files[0].name):
        return sum(int(file.fs.size(file.path) or 0) for file in files)


def name_of(files: Sequence[TextFile]) -> str:
    """Return what messages and reports call the files."""
    return files[0].name + (f" and {len(files) - 1} more" if len(files) > 1 else "")
