"""Text files, compressed or not: their first bytes, their text in UTF-8, and blocks of whole lines."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

from distrff.errors import InputError
from distrff.io.storage import file_name, one_line, retryable, storage_errors

BLOCK_BYTES = 8 * 2**20
"""Size of a block of text: large against the fixed cost of decoding one, small against a worker's memory."""

_LONGEST_LINE = 64 * 2**20
_OPENERS: tuple[tuple[bytes, Callable[[Any], Any]], ...] = (
    (b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
    (b"\x28\xb5\x2f\xfd", lambda file: pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")),
)
_DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, pa.ArrowException)
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class TextFile(NamedTuple):
    """One file: the filesystem that holds it, its path there, and its encoding.

    None for UTF-8, or UTF-16 where the file begins with its byte order mark.
    """

    fs: Any
    path: str
    encoding: str | None = None

    @property
    def name(self) -> str:
        """The name of the file, for messages."""
        return file_name(self.fs, self.path)


@contextmanager
def opened(file: TextFile) -> Iterator[tuple[Any, Any]]:
    """Yield the file as stored, and the stream of its text in UTF-8."""
    with storage_errors(f"{file.name} cannot be reached"):
        stored = file.fs.open(file.path, "rb")
    try:
        head = stored.read(6)
        openers = [opener for magic, opener in _OPENERS if head.startswith(magic)]

        def text() -> Any:
            stored.seek(0)
            return openers[0](stored) if openers else stored

        first, encoding = (
            text(),
            file.encoding,
        )  # where Arrow decompresses, its stream closes the file at its end
        mark, stream = read(first, 3), text()
        if mark == codecs.BOM_UTF8:
            read(stream, 3)
        elif mark.startswith(_UTF_16):
            encoding = encoding or "utf-16"
        yield stored, stream if encoding is None else _Chunks(_recoded(stream, encoding))
    except InputError:
        raise
    except UnicodeError as error:
        raise InputError(
            f"{file.name} is not of the encoding {error.args[0]}; give another encoding"
        ) from error
    except (*_DAMAGE, OSError) as error:
        # Decompressors raise OSErrors as well, without a number.
        if isinstance(error, FileNotFoundError) or getattr(error, "errno", None) is not None:
            raise retryable(error) from error
        raise InputError(
            f"{file.name} cannot be decompressed ({one_line(error)}); the file is truncated or damaged: "
            f"fetch or compress it again"
        ) from error
    finally:
        stored.close()


def head_of(file: TextFile, n_bytes: int = 8 * 2**20) -> bytes:
    """Return the first bytes of the text, in UTF-8 and without a byte order mark."""
    with opened(file) as (_, stream):
        return read(stream, n_bytes)


def read(stream: Any, n_bytes: int) -> bytes:
    """Return `n_bytes` bytes, fewer only at the end of the stream; one read may return less."""
    parts = []
    while n_bytes > 0 and (part := stream.read(n_bytes)):
        parts.append(bytes(part))
        n_bytes -= len(part)
    return b"".join(parts)


def stored_bytes(files: Sequence[TextFile]) -> int:
    """Return the stored size of all files, for a progress bar."""
    with storage_errors(f"{files[0].name} cannot be reached"):
        return sum(int(file.fs.size(file.path) or 0) for file in files)


class TextSource:
    """Text files, read one after another."""

    unit = "bytes"  # of `total` and of the positions of blocks

    def __init__(self, files: Sequence[TextFile]) -> None:
        self._files, self.total = files, stored_bytes(files)
        self.name = files[0].name + (f" and {len(files) - 1} more" if len(files) > 1 else "")


class TextBlock(NamedTuple):
    """Whole lines of one file."""

    file: str  # its name, for messages
    line: int  # number of the block's first line in the file, from 1
    data: bytes  # the lines, each with its line end; the last one of a file may lack it
    position: int  # compressed bytes read so far
    mark: tuple[int, int, int]  # the file, and the bytes and lines of it up to the end of the block


def line_blocks(files: Sequence[TextFile], after: Sequence[int] | None = None) -> Iterator[TextBlock]:
    """Yield the lines of several files in blocks of about 8 MB; positions continue from file to file.

    With the mark of an earlier block as `after`, only the blocks after that one are yielded. Compressed text
    before it is decompressed again. Damage, and a line of more than 64 MB, are refused.
    """
    before, (first, n_read, line) = 0, (0, 0, 1) if after is None else after
    for i, file in enumerate(files):
        if i >= first:
            for block in _blocks_of_one(file, n_read, line):
                yield block._replace(position=before + block.position, mark=(i, *block.mark[1:]))
            n_read, line = 0, 1
        before += stored_bytes([file])


def _blocks_of_one(file: TextFile, n_read: int, line: int) -> Iterator[TextBlock]:
    with opened(file) as (stored, stream):
        left = n_read
        while left and (part := stream.read(min(left, BLOCK_BYTES))):
            left -= len(part)
        rest, at_end = b"", False
        while not at_end:
            wanted = max(BLOCK_BYTES - len(rest), BLOCK_BYTES // 8)
            data = read(stream, wanted)
            n_read, at_end, data = n_read + len(data), len(data) < wanted, rest + data
            # A last carriage return may be half of a line end.
            end = len(data) if at_end else (data.rfind(b"\n") + 1) or (data.rfind(b"\r", 0, -1) + 1)
            block, rest = data[:end], data[end:]
            if len(rest) > _LONGEST_LINE:
                raise InputError(f"{file.name}, line {line}: longer than {_LONGEST_LINE // 2**20} MB; cut it")
            if block:
                begin, line = line, line + n_lines(block)
                yield TextBlock(file.name, begin, block, stored.tell(), (0, n_read - len(rest), line))


def n_lines(data: bytes) -> int:
    """Return the number of line ends: line feeds, or bare carriage returns if there are none."""
    return data.count(b"\n") or data.count(b"\r")


def in_columns(data: bytes) -> bytes:
    """Return lines with one tab for each run of blanks between their fields."""
    if b'"' not in data:
        return b"".join(b"\t".join(line.split()) + b"\n" for line in data.splitlines())
    return b"".join(b"\t".join(_FIELD.findall(line)) + b"\n" for line in data.splitlines())


_FIELD = re.compile(rb'(?:"[^"]*"|[^ \t])+')


class _Chunks:
    """A stream of the bytes that are in some chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._held = chunks, bytearray()

    def read(self, n_bytes: int) -> bytes:
        while len(self._held) < n_bytes and (chunk := next(self._chunks, None)) is not None:
            self._held += chunk
        found = bytes(self._held[:n_bytes])
        del self._held[:n_bytes]
        return found


_CHUNK_BYTES = 2**18


def _recoded(stream: Any, encoding: str) -> Iterator[bytes]:
    chunks = iter(lambda: stream.read(_CHUNK_BYTES), b"")
    return (text.encode() for text in codecs.iterdecode(chunks, encoding))


def _columns_of(stream: Any) -> Iterator[bytes]:
    """Yield the lines of a text `in_columns`."""
    rest = b""
    while data := stream.read(_CHUNK_BYTES):
        lines = rest + data
        end = lines.rfind(b"\n") + 1 or lines.rfind(b"\r", 0, -1) + 1
        yield in_columns(lines[:end])
        rest = lines[end:]
    yield in_columns(rest)


class Utf8Stream:
    """The text of a file for Arrow and for reading by line, without its first `skip` bytes.

    With `blanks` it is `in_columns`.
    """

    closed = False

    def __init__(self, stream: Any, skip: int = 0, *, blanks: bool = False) -> None:
        read(stream, skip)
        self._stream, self.n_quotes = _Chunks(_columns_of(stream)) if blanks else stream, 0

    def read(self, n_bytes: int = 2**16) -> bytes:
        """Return `n_bytes` bytes, fewer only at the end."""
        data = read(self._stream, n_bytes)
        self.n_quotes += data.count(b'"')
        return data

    def lines(self) -> Iterator[str]:
        """Yield the lines with their ends; bytes that are not UTF-8 become surrogates."""
        rest = b""
        while data := self.read():
            *whole, rest = (rest + data).splitlines(keepends=True)
            yield from (line.decode("utf-8", "surrogateescape") for line in whole)
        if rest:
            yield rest.decode("utf-8", "surrogateescape")
