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

BLOCK_BYTES = 4 * 2**20
"""Size of a block of text: large against the fixed cost of decoding one. Arrow reads some twenty ahead: with
8 MB a conversion took 520 MB, with 4 MB it takes 360 and no longer."""

_LONGEST_LINE = 64 * 2**20
_OPENERS: tuple[tuple[bytes, Callable[[Any], Any]], ...] = (
    (b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
    (b"\x28\xb5\x2f\xfd", lambda file: pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")),
)
_DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, pa.ArrowException)
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def not_utf8(place: str) -> InputError:
    """The error of bytes at a place that are not UTF-8."""
    return InputError(
        f"{place}: bytes that are not UTF-8; name what the file is written in, such as encoding='latin-1'"
    )


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
    encoding = file.encoding
    try:
        head = stored.read(6)
        stored.seek(0)
        unpacked = next((opener(stored) for magic, opener in _OPENERS if head.startswith(magic)), stored)
        stream = _Chunks(_parts(unpacked))
        if stream.peek(2) in _UTF_16:
            encoding = encoding or "utf-16"
        if encoding is not None:
            texts = codecs.iterdecode(_parts(stream), encoding)
            stream = _Chunks(text.encode() for text in texts)
        if stream.peek(3) == codecs.BOM_UTF8:  # that of UTF-16 as well, where the order of bytes was given
            stream.read(3)
        yield stored, stream
    except InputError:
        raise
    except UnicodeError as error:
        raise InputError(f"{file.name} is not of the encoding {encoding}; give another encoding") from error
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

    def _in_order(self, first: int, pieces_of: Callable[[int], Iterator[Any]]) -> Iterator[Any]:
        """Yield the pieces of the files from one on; their positions continue from file to file."""
        before = 0
        for i, file in enumerate(self._files):
            if i >= first:
                for piece in pieces_of(i):
                    yield piece._replace(position=before + piece.position)
            before += stored_bytes([file])


class TextBlock(NamedTuple):
    """Whole lines of one file."""

    file: str  # its name, for messages
    line: int  # number of the block's first line in the file, from 1
    data: bytes  # the lines, each with its line end; the last one of a file may lack it
    position: int  # compressed bytes read so far
    mark: tuple[int, int, int]  # the file, and the bytes and lines of it up to the end of the block


def line_blocks(file: TextFile, number: int, n_read: int = 0, line: int = 1) -> Iterator[TextBlock]:
    """Yield the lines of a file in blocks of about 4 MB.

    With `n_read` and `line` of the mark of an earlier block, only the blocks after that one are yielded.
    Compressed text before it is decompressed again.
    """
    with opened(file) as (stored, stream):
        left = n_read
        while left and (part := stream.read(min(left, BLOCK_BYTES))):
            left -= len(part)
        for block in whole_lines(stream, BLOCK_BYTES, file.name):
            begin, line, n_read = line, line + n_lines(block), n_read + len(block)
            yield TextBlock(file.name, begin, block, stored.tell(), (number, n_read, line))


def whole_lines(stream: Any, n_bytes: int, name: str) -> Iterator[bytes]:
    """Yield blocks of whole lines, `n_bytes` at a time, or several times as many where a line is longer.

    Raises InputError, with the name of the file, for a line of more than 64 MB.
    """
    held: list[bytes] = []  # to join them at every step would be quadratic in the length of a line
    while data := read(stream, n_bytes):
        if len(data) < n_bytes:
            held.append(data)
            break
        # A last carriage return may be half of a line end.
        end = data.rfind(b"\n") + 1 or data.rfind(b"\r", 0, -1) + 1
        if end:
            yield b"".join([*held, data[:end]])
            held = []
        held.append(data[end:])
        if sum(map(len, held)) > _LONGEST_LINE:
            begin = b"".join(held)[:40].decode("utf-8", "replace")
            raise InputError(
                f"{name}: the line {begin!r}... is longer than {_LONGEST_LINE // 2**20} MB; cut it"
            )
    if rest := b"".join(held):
        yield rest


def n_lines(data: bytes) -> int:
    """Return the number of line ends: line feeds, or bare carriage returns if there are none."""
    return data.count(b"\n") or data.count(b"\r")


def in_columns(data: bytes, quote: str | None) -> bytes:
    """Return lines with one tab for each run of blanks between their fields."""
    lines, q = data.splitlines(), re.escape((quote or "").encode())
    if quote is None or quote.encode() not in data:
        return b"".join(b"\t".join(line.split()) + b"\n" for line in lines)
    field = re.compile(rb"%b(?:[^%b]|%b%b)*%b[^ \t]*|[^ \t]+" % (q, q, q, q, q))
    return b"".join(b"\t".join(field.findall(line)) + b"\n" for line in lines)


class _Chunks:
    """A stream of the bytes that are in some chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._held = chunks, bytearray()

    def peek(self, n_bytes: int) -> bytes:
        while len(self._held) < n_bytes and (chunk := next(self._chunks, None)) is not None:
            self._held += chunk
        return bytes(self._held[:n_bytes])

    def read(self, n_bytes: int) -> bytes:
        found = self.peek(n_bytes)
        del self._held[:n_bytes]
        return found


def _parts(stream: Any) -> Iterator[bytes]:
    return iter(lambda: stream.read(2**18), b"")


class Utf8Stream:
    """The text of a file for Arrow and for reading by line, without its first `skip` bytes.

    With `blanks` it is `in_columns`.
    """

    closed = False

    def __init__(
        self, stream: Any, name: str, skip: int = 0, quote: str | None = '"', *, blanks: bool = False
    ) -> None:
        read(stream, skip)
        if blanks:
            blocks = whole_lines(stream, BLOCK_BYTES, name)
            stream = _Chunks(in_columns(block, quote) for block in blocks)
        self._stream, self._name, self._quote, self.n_quotes = stream, name, (quote or '"').encode(), 0

    def read(self, n_bytes: int) -> bytes:
        """Return `n_bytes` bytes, fewer only at the end."""
        data = read(self._stream, n_bytes)
        self.n_quotes += data.count(self._quote)
        return data

    def lines(self) -> Iterator[str]:
        """Yield the lines with their ends; bytes that are not UTF-8 become surrogates."""
        for block in whole_lines(self, BLOCK_BYTES, self._name):
            yield from (line.decode("utf-8", "surrogateescape") for line in block.splitlines(keepends=True))
