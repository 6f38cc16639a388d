"""Text files, compressed or not: blocks of whole lines, which hold delimited columns or libsvm's pairs."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import lzma
import math
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from scipy.sparse import csr_matrix

from distrff.errors import InputError
from distrff.io.arrays import raw_kind
from distrff.io.convert.dialect import NULLS, WHITESPACE, Dialect, Opening, in_columns, not_utf8, opening_of
from distrff.io.storage import file_name, one_line, retryable, storage_errors
from distrff.io.tables import ColumnSelection, RawSource
from distrff.preprocessing.profile import TableOptions
from distrff.preprocessing.table import RawColumn, TableSteps
from distrff.preprocessing.words import number_pattern
from distrff.utils.text import first_repeated, listed

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


class TextFile(NamedTuple):
    """One file: its filesystem, its path there, and its encoding; None for UTF-8, or by its mark."""

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
        # By its first bytes: names lie.
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
    """The first bytes of the text, in UTF-8 and without a byte order mark."""
    with opened(file) as (_, stream):
        return read(stream, n_bytes)


def read(stream: Any, n_bytes: int) -> bytes:
    """`n_bytes` bytes, fewer only at the end of the stream; one read may return less."""
    parts = []
    while n_bytes > 0 and (part := stream.read(n_bytes)):
        parts.append(bytes(part))
        n_bytes -= len(part)
    return b"".join(parts)


def stored_bytes(files: Sequence[TextFile]) -> int:
    """The stored size of all files, for a progress bar."""
    with storage_errors(f"{files[0].name} cannot be reached"):
        return sum(int(file.fs.size(file.path) or 0) for file in files)


class TextSource(RawSource):
    """Text files, read one after another."""

    unit = "bytes"

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
    """Yield the lines of a file in blocks of about 4 MB; with the mark of one, those after it."""
    with opened(file) as (stored, stream):
        left = n_read  # compressed text before the mark is decompressed again
        while left and (part := stream.read(min(left, BLOCK_BYTES))):
            left -= len(part)
        for block in whole_lines(stream, BLOCK_BYTES, file.name):
            begin, line, n_read = line, line + n_lines(block), n_read + len(block)
            yield TextBlock(file.name, begin, block, stored.tell(), (number, n_read, line))


def whole_lines(stream: Any, n_bytes: int, name: str) -> Iterator[bytes]:
    """Yield blocks of whole lines, `n_bytes` at a time, or several times as many where a line is longer."""
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
    """The number of line ends: line feeds, or bare carriage returns if there are none."""
    return data.count(b"\n") or data.count(b"\r")


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
        # A bytearray gives up its front without a copy of the rest.
        del self._held[:n_bytes]
        return found


def _parts(stream: Any) -> Iterator[bytes]:
    return iter(lambda: stream.read(2**18), b"")


class Utf8Stream:
    """The text of a file for Arrow and for reading by line; with `blanks` it is `in_columns`."""

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
        """`n_bytes` bytes, fewer only at the end."""
        # An odd number of quotes tells that one is open at the end, without a second pass over the file.
        data = read(self._stream, n_bytes)
        self.n_quotes += data.count(self._quote)
        return data

    def lines(self) -> Iterator[str]:
        """Yield the lines with their ends; bytes that are not UTF-8 become surrogates."""
        for block in whole_lines(self, BLOCK_BYTES, self._name):
            yield from (line.decode("utf-8", "surrogateescape") for line in block.splitlines(keepends=True))


# Delimited text as Arrow batches: the names and types of columns, and the place of a wrong record.

_WHOLE = re.compile(r"\s*[-+]?\d+\s*")
_COLUMN = re.compile(r"CSV column #(\d+).*invalid value '(.*)'", re.DOTALL)


class WiderTypes(Exception):
    """A batch holds values that do not fit the types so far; the source has wider ones, to read it again."""


class TextBatch(NamedTuple):
    """Some rows of one file."""

    file: int  # its number
    start: int  # number of the first row in the file
    batch: pa.RecordBatch
    position: int  # compressed bytes read so far
    mark: tuple[int, int]  # the file, and the number of its rows up to the end of the batch


class CsvSource(TextSource):
    """Files of delimited text with the same columns, read by Arrow.

    All columns are read with `types`, which are inferred from the first 4 MB until a `WiderTypes` tells of
    wider ones: numbers are float64, text is a dictionary, the rest is as Arrow infers it.

    What `dialect` leaves open is guessed. `known` lists columns that a model needs: if these are indices
    there is no header; if the first record holds them all, it is one. `words` are columns of text.
    """

    def __init__(
        self,
        files: Sequence[TextFile],
        dialect: Dialect | None = None,
        known: Sequence[str] = (),
        words: Collection[str] = (),
    ) -> None:
        dialect, self._known, self._words = dialect or Dialect(), known, words
        super().__init__([file._replace(encoding=dialect.encoding) for file in files])
        opening = opening_of(head_of(self._files[0]), dialect, files[0].name, known, words)
        self.dialect, self.names, self._openings = opening.dialect, opening.names, {0: opening}
        if (twice := first_repeated(self.names)) is not None:
            raise InputError(
                f"{files[0].name}, line {opening.n_lines}: two columns are named {twice!r}; rename one, or "
                f"pass header=False (--no-header) if the line is a row"
            )
        # State of the types: what is read so far (`types`), what the user said, and what only looks like
        # numbers.
        self._declared: dict[str, str] = {}
        self._categories: dict[str, frozenset[str]] = {}
        self._mixtures: dict[str, InputError] = {}
        self._closed: set[int] = set()  # files without a quote that is open at their end
        self.odd: dict[str, str] = {}  # text that looks like numbers or dates
        try:
            first = self._stream(0, self.names, {}, use_threads=False)  # which would read ahead in vain
            head = next((batch for batch, _ in first if batch.num_rows), None)
        except pa.ArrowInvalid as error:
            self._fail(0, 0, error)
        if head is None:
            raise InputError(f"{files[0].name} has a header but no rows; give a file with rows")
        for name, column in zip(self.names, head.columns, strict=True):
            self._look_at(name, column)
        inferred = {name: c.type for name, c in zip(self.names, head.columns, strict=True)}
        # Floats of this size are read as integers first, where they have to be told apart.
        self._beyond_int64 = {n for n, c in zip(self.names, head.columns, strict=True) if _is_beyond_int64(c)}
        self._whole = {n for n, kind in inferred.items() if pa.types.is_integer(kind)} | self._beyond_int64
        self.types = {name: read_as(kind) for name, kind in inferred.items()}

    @property
    def kinds(self) -> dict[str, str | None]:  # type: ignore[override]
        return {name: raw_kind(self.types[name]) for name in self.names}

    def completed(self, options: TableOptions) -> TableOptions:
        """The options with kinds by the names of columns; raise InputError if the target is the only one."""
        if len(self.names) == 1 and options.target is not None:
            raise InputError(
                f"{self.name} has one column, {self.names[0]!r}, and so none for X: neither a comma, tab, "
                f"semicolon or bar nor white space sets others apart; give the delimiter"
            )
        options = super().completed(options)
        self._declared = dict(options.types or {})
        for name, kind in self._declared.items():
            if raw_kind(self.types[name]) != kind:
                self.types[name] = {"text": TEXT, "number": pa.float64(), "time": pa.timestamp("us")}[kind]
            self._mixtures.pop(name, None)
            self.odd.pop(name, None)
        return options

    def described(self) -> str:
        """The dialect, with columns of codes such as 007 that are read as numbers."""
        codes = [
            f"column {name!r} holds {code}, which is read as a number: types={{{name!r}: 'text'}} keeps codes"
            for name, code in self._openings[0].codes.items()
            if name not in self._declared and _is_numeric(self.types[name])
        ]
        return "; ".join([self.dialect.described(), *codes])

    def prepare(self, choice: ColumnSelection) -> None:
        """Refuse a column that mixes numbers and text, or is used and holds numbers or dates as text."""
        for name in (*choice.used, *choice.dropped):
            if name in self._mixtures:
                raise self._mixtures[name]
            if name in self.odd and name in choice.used:
                raise InputError(f"{self.name}, column {name!r}: {self.odd[name]}")
        self.keep_whole(choice.target)  # read as integers from here on, so that they can be classes

    def keep_whole(self, names: Sequence[str]) -> None:
        """Read columns as integers if all their numbers are whole."""
        self.types |= {
            n: pa.uint64() if n in self._beyond_int64 else pa.int64()
            for n in names
            if n in self._whole and n not in self._declared
        }

    def state(self) -> dict[str, Any]:
        # In Arrow's own form, which reads all types back; `pa.type_for_alias` knows few of their names.
        types = pa.schema(self.types).serialize().to_pybytes()
        return {"types": types.hex(), "whole": sorted(self._whole)}

    def restore(self, state: Mapping[str, Any]) -> None:
        schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(state["types"])))
        self.types = dict(zip(schema.names, schema.types, strict=True))
        self._whole = set(state["whole"])

    def follow(self, steps: TableSteps) -> None:
        """Read text where the steps take text, and numbers where they take numbers."""
        # Arrow's guess from a few rows may differ from the fit's, as for a column of codes that are all
        # digits.
        kinds = {step.name: step.reads for step in steps.columns}
        self._categories = {name: frozenset(step.categories) for name, step in steps.categories.items()}
        if steps.target is not None:
            kinds |= dict.fromkeys(steps.target.names, "text" if steps.target.kind == "labels" else "number")
        for name, kind in kinds.items():
            known = self.types.get(name, TEXT)
            if kind == "text":
                self.types[name] = TEXT
            elif kind == "number" and not pa.types.is_boolean(known) and raw_kind(known) != "clock":
                self.types[name] = pa.float64()
        if steps.target is not None and np.dtype(steps.target.dtype).kind in "iu":
            self.keep_whole(steps.target.names)  # beyond 2⁵³ a float is another label

    # Rows.

    def pieces(self, names: Sequence[str], after: Any = None) -> Iterator[TextBatch]:
        """Yield batches of some columns of all files, in order; with the mark of one as `after`, those after.

        Raises `WiderTypes` for values that do not fit the types so far, and an InputError with file, line and
        column for those that cannot be read.
        """
        # All headers are checked before an hour is spent on the first file.
        for i in range(1, len(self._files)):
            self._opening(i)
        first, skipped = after or (0, 0)
        for piece in self._in_order(first, lambda i: self._pieces_of(i, names)):
            if piece.file > first or piece.start >= skipped:
                yield piece

    def _pieces_of(self, i: int, names: Sequence[str]) -> Iterator[TextBatch]:
        types, start = {name: self.types[name] for name in names}, 0
        try:
            for batch, position in self._stream(i, names, types):
                stop = start + batch.num_rows
                yield TextBatch(i, start, batch, position, (i, stop))
                start = stop
        except pa.ArrowInvalid as error:
            if not _COLUMN.search(str(error)):
                self._fail(i, start, error)
            wider = self._widened(i, start, types, error)
            # A column that met a fraction holds no whole numbers any more, for labels and ids alike.
            self._whole = {name for name in self._whole if wider[name] == self.types[name]}
            self.types = wider
            raise WiderTypes from error

    def identify(self, names: Sequence[str]) -> None:
        """Read columns as ids: whole numbers if they are written like that, else text as it stands."""
        self.types |= dict.fromkeys(names, TEXT)

    def ids(self, piece: TextBatch, name: str) -> np.ndarray:
        """The ids in a column of a batch; raise `WiderTypes` if they are the first with other text."""
        column = piece.batch.column(name)
        if name in self._whole:
            # 007 and 7 are two ids, but one number.
            is_plain = pc.match_substring_regex(column.dictionary, r"^(0|-?[1-9]\d{0,17})$")
            if not column.null_count and pc.all(is_plain).as_py() is not False:
                return column.dictionary.cast(pa.int64()).to_numpy()[column.indices.to_numpy()]
            self._whole = self._whole - {name}
            raise WiderTypes
        # The "" is for code -1, a missing id.
        words = np.array([*column.dictionary.to_pylist(), ""], dtype=object)
        return words[column.indices.fill_null(-1).to_numpy()]

    def raw(self, piece: TextBatch, names: Sequence[str]) -> dict[str, RawColumn]:
        raw = super().raw(piece, names)
        if self.dialect.decimal == ",":
            # Numbers of a file with a decimal comma, where the fit had them as categories.
            raw |= {n: _with_point(raw[n], known) for n, known in self._categories.items() if n in raw}
        return raw

    def place(self, piece: TextBatch, row: int) -> str:
        # Arrow knows no lines: the file is read again by record, once, for a message.
        line = next(islice(self._records(piece.file), piece.start + row, None))[0]
        return f"{self._files[piece.file].name}, line {line}"

    def _opening(self, i: int) -> Opening:
        if i not in self._openings:
            file = self._files[i]
            head, has_names = head_of(file), self.dialect.header
            # An empty file among others has no rows, but where they have headers it lacks one.
            if not head.strip() and not has_names:
                return Opening(self.dialect, self.names, 0, 0)
            found = opening_of(head, self.dialect, file.name, self._known, self._words)
            if has_names and found.names != self.names:
                raise InputError(
                    f"{file.name}, line {found.n_lines}: the columns {listed(found.names)} are not those of "
                    f"{self._files[0].name} ({listed(self.names)}); convert files with different columns one "
                    f"by one"
                )
            self._openings[i] = found
        return self._openings[i]

    def _stream(
        self, i: int, names: Sequence[str], types: Mapping[str, pa.DataType], *, use_threads: bool = True
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the batches of some columns of a file, and the stored bytes that are read."""
        quote, failure = self.dialect.quote or False, None
        known = frozenset().union(*self._categories.values())
        with opened(self._files[i]) as (stored, stream):
            text = self._text(i, stream)
            try:
                reader = arrow_csv.open_csv(
                    pa.PythonFile(text, mode="r"),
                    read_options=arrow_csv.ReadOptions(
                        use_threads=use_threads,
                        # Arrow refuses a record that is longer than two blocks.
                        block_size=max(BLOCK_BYTES, self._opening(i).longest),
                        column_names=list(self.names),
                    ),
                    # Line ends inside of quotes cost nothing that can be measured.
                    parse_options=arrow_csv.ParseOptions(
                        delimiter=self.dialect.character, quote_char=quote, newlines_in_values=True
                    ),
                    convert_options=arrow_csv.ConvertOptions(
                        column_types=dict(types),
                        include_columns=list(names),
                        # Models of earlier versions have the "?" of " ?" as a category.
                        null_values=[w for w in NULLS if w == w.strip() or w.strip() not in known],
                        strings_can_be_null=True,
                        decimal_point=self.dialect.decimal,
                    ),
                )
                with reader:
                    for batch in reader:
                        yield batch, stored.tell()
            except pa.ArrowInvalid as error:  # else it would be taken for damage of compressed text
                failure = error
        if failure is not None and "Empty CSV file" not in str(failure):
            raise failure
        if text.n_quotes % 2 and self.dialect.quote and i not in self._closed:
            self._refuse_open_quote(i)
            self._closed.add(i)

    def _text(self, i: int, stream: Any) -> Utf8Stream:
        n_bytes, blanks = self._opening(i).n_bytes, self.dialect.delimiter == WHITESPACE
        return Utf8Stream(stream, self._files[i].name, n_bytes, self.dialect.quote, blanks=blanks)

    # What does not fit the types, and what is wrong.

    def _widened(
        self, i: int, start: int, types: Mapping[str, pa.DataType], error: pa.ArrowInvalid
    ) -> dict[str, pa.DataType]:
        """Types that hold the values of the batch from a row on as well."""
        # Arrow infers types from the first rows that it reads, so the batch is read again by itself. To
        # skip rows before it (skip_rows_after_names) does not lead there: Arrow counts empty lines then,
        # and only then.
        at = 0
        try:
            for batch, _ in self._stream(i, list(types), dict.fromkeys(types, pa.string())):
                if at == start and batch.num_rows:  # empty lines may fill a batch
                    break
                at += batch.num_rows
        except pa.ArrowInvalid:
            self._fail(i, start, error)
        sink = pa.BufferOutputStream()
        arrow_csv.write_csv(batch, sink, arrow_csv.WriteOptions(include_header=False))
        found = arrow_csv.read_csv(
            pa.BufferReader(sink.getvalue()),
            # One block, since Arrow infers types from the first one alone.
            arrow_csv.ReadOptions(column_names=list(types), block_size=2 * sink.getvalue().size + 1),
            arrow_csv.ParseOptions(newlines_in_values=True),
            arrow_csv.ConvertOptions(decimal_point=self.dialect.decimal, null_values=NULLS),
        )
        wrong = _COLUMN.search(str(error))
        assert wrong is not None
        wider = dict(self.types)
        for name, column in zip(types, found.columns, strict=True):
            wide = wider_type(types[name], read_as(column.type))
            if types[name] == pa.int64() and _is_beyond_int64(column):
                wide = pa.uint64()
            is_wrong = name == self.names[int(wrong[1])]
            if is_wrong and types[name] == pa.uint64() and _WHOLE.fullmatch(wrong[2]):
                wide = None  # floats would round labels of this size to each other
            if wide is None or (name in self._declared and raw_kind(wide) != self._declared[name]):
                self._fail(i, start, error)
            wider[name] = wide
        # Else reading again would fail again, without end.
        if wider == self.types:
            self._fail(i, start, error)
        return wider

    def _look_at(self, name: str, column: pa.Array) -> None:
        """Note text in a column of mostly numbers: likely a typing error, which would become a category."""
        # Arrow has bytes where text is not UTF-8; reading by record finds the line.
        if pa.types.is_binary(column.type):
            self._fail(0, 0, None)
        if not pa.types.is_string(column.type):
            return
        held = column.drop_null()
        is_number = pc.match_substring_regex(held, rf"^\s*{number_pattern(self.dialect.decimal or '.')}\s*$")
        is_odd = pc.match_substring_regex(held, _ODD)
        n_numbers, n_odd = (pc.sum(found).as_py() or 0 for found in (is_number, is_odd))
        # More than half: a few numbers among words are words.
        if 2 * n_numbers > len(held):
            value = held.filter(pc.invert(is_number))[0].as_py()
            where = "where most values are numbers"
            self._mixtures[name] = self._error_at(0, 0, self.names.index(name), value, where)
        elif 2 * (n_numbers + n_odd) > len(held):
            value = held.filter(is_odd)[0].as_py()
            line, _ = self._found(0, 0, self.names.index(name), value)
            why = f"it holds {value!r} (line {line}); {_oddity(value)}"
            self.odd[name] = f"{why}; types={{{name!r}: 'text'}} takes it as it is"

    def _fail(self, i: int, start: int, error: pa.ArrowInvalid | None) -> NoReturn:
        """Raise the error that names the place of the mistake, found by reading record by record."""
        file = self._files[i].name
        # Record by record in Python: slow, but once, and it knows lines.
        found = None if error is None else _COLUMN.search(str(error))
        for line, fields in self._records(i):
            if len(fields) != len(self.names):
                self._refuse_open_quote(i)
                is_comment = self.names[0].startswith("#")
                remedy = (
                    f"remove the comment {self.names[0]!r}" if is_comment else "correct or remove the line"
                )
                raise InputError(
                    f"{file}, line {line}: {len(fields)} fields, but there are {len(self.names)} "
                    f"columns ({self.dialect.described()}); {remedy}"
                )
            for j, field in enumerate(fields):
                # Surrogates stand for bytes that are not UTF-8, see `Utf8Stream.lines`.
                if any("\udc80" <= c <= "\udcff" for c in field):
                    raise not_utf8(f"{file}, line {line}, column {self.names[j]!r}")
        if found is None:
            what = " ".join(str(error).split())[:160]
            raise InputError(f"{file}, after row {start}: {what}; correct the file")
        column, value = int(found[1]), found[2]
        name = self.names[column]
        kind = self.types[name]
        if name in self._declared:
            where = f"where types says {self._declared[name]}"
        elif kind == pa.uint64():
            where = (
                f"beside labels of 2⁶³ and more, which no integer type takes together; "
                f"types={{{name!r}: 'number'}} rounds them to floats"
            )
        else:
            plural = "truth values" if pa.types.is_boolean(kind) else f"values of type {kind}"
            where = f"where the lines before hold {'numbers' if _is_numeric(kind) else plural}"
        raise self._error_at(i, start, column, value, where)

    def _error_at(self, i: int, start: int, column: int, value: str, where: str) -> InputError:
        name, (line, is_first) = self.names[column], self._found(i, start, column, value)
        remedy = _oddity(value) or "correct the value, leave it empty if it is missing, or drop the column"
        if name not in self._declared:
            remedy += f"; types={{{name!r}: 'text'}} takes codes"
        if is_first:
            remedy += "; header=True (--header) takes the line as names"
        return InputError(f"{self._files[i].name}, line {line}, column {name!r}: {value!r} {where}; {remedy}")

    def _found(self, i: int, start: int, column: int, value: str) -> tuple[int, bool]:
        """The line of the next record with a value, and whether it is the first record of all."""
        for n, (line, fields) in enumerate(islice(self._records(i), start, None), start):
            if fields[column : column + 1] and fields[column].strip() == value.strip():
                return line, n == 0 and not self.dialect.header
        return start + 1, False

    def _records(self, i: int, more: Sequence[str] = ()) -> Iterator[tuple[int, list[str]]]:
        """Yield line and fields of each record of a file that is not empty, with more lines at its end."""
        with opened(self._files[i]) as (_, stream):
            text = self._text(i, stream)
            reader, before = self.dialect.records(chain(text.lines(), more)), self._opening(i).n_lines
            first = before
            try:
                for fields in reader:
                    if fields:
                        yield first + 1, fields
                    first = before + reader.line_num
            except csv.Error as error:
                raise InputError(
                    f"{self._files[i].name}, line {first + 1}: {error}; look for a quote that is opened here "
                    f"and never closed"
                ) from error

    def _refuse_open_quote(self, i: int) -> None:
        """Refuse a quote that is open at the end: all lines after it would be one field."""
        end = "\0"  # a record by itself with any delimiter and quote, but within a quote that is open
        line, fields = 0, [end]
        for line, fields in self._records(i, [end]):  # noqa: B007
            pass
        if fields != [end]:
            raise InputError(
                f"{self._files[i].name}, line {line}: a quote is opened here and never closed; close or "
                f"remove it"
            )


def _with_point(column: RawColumn, known: frozenset[str]) -> RawColumn:
    """Text in which numbers with a decimal comma have a point, but for the words of the fit."""
    words = (w if w in known or not _COMMA.fullmatch(w) else w.replace(",", ".") for w in column.words)
    return replace(column, words=tuple(words))


_COMMA = re.compile(number_pattern(","))

# Numbers and dates that are written for people.

_GROUPED = "[-+]?\\d{1,3}([.,'\\s_\u00a0\u2009\u202f\u2019]\\d{3})+([.,]\\d+)?"  # French blanks are narrow
_DIGITS = rf"[-+]?\d+([.,]\d+)?|{_GROUPED}"
_MONEY = r"([$€£¥]|EUR|USD|GBP|CHF|JPY)"
_MONTH = r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_ODDITIES = {
    rf"({_DIGITS})\s*%": "write a percentage as a number alone",
    rf"{_MONEY}\s*({_DIGITS})|({_DIGITS})\s*{_MONEY}": "write a sum of money as a number alone",
    rf"\d{{1,2}}[-./ ]?{_MONTH}[-./, ]+(\d{{4}}|\d\d)|{_MONTH} \d{{1,2}},? (\d{{4}}|\d\d)": "write a date "
    "like 2020-12-31; pandas.to_datetime(column) reads names of months",
    rf"\(({_DIGITS})\)|({_DIGITS})-|−({_DIGITS})": "write a negative number like -12",
    rf"[<>≤≥~]\s*({_DIGITS})": "write the number alone, and its sign in a column of its own",
    r"[-+]?\d+[.,]\d+\s*[kKMB]": "write the number out, like 5500 for 5.5k",
    r"\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d\d)([ T]\d\d?:\d\d.*)?": "write a date with the year first, like "
    "2020-12-31; pandas.to_datetime(column, dayfirst=True) reads it if the day is first",
    _GROUPED: "write a number without thousands separators; "
    "pandas.read_csv(path, thousands=...) reads it, or decimal=',' if it has a decimal comma",
    r"[-+]?\d*,\d+": "decimal=',' takes numbers with a decimal comma",
    r"[-+]?\d*\.\d+": "decimal='.' takes numbers with a decimal point",
}
_ODD = rf"^\s*({'|'.join(_ODDITIES)})\s*$"


def _oddity(value: str) -> str:
    """Remedy for a number or a date that is written for people; "" for any other value."""
    return next((what for how, what in _ODDITIES.items() if re.fullmatch(rf"\s*({how})\s*", value)), "")


# Types with which columns of delimited text are read.

# Arrow codes the words while it reads, in threads; categories need the codes alone.
TEXT = pa.dictionary(pa.int32(), pa.string())


def read_as(inferred: pa.DataType) -> pa.DataType:
    """The type with which a column is read, given the one inferred from its first values."""
    # A later batch may have fractions.
    if pa.types.is_integer(inferred):
        return pa.float64()
    return TEXT if pa.types.is_string(inferred) or pa.types.is_binary(inferred) else inferred


def wider_type(known: pa.DataType, found: pa.DataType) -> pa.DataType | None:
    """A type that holds the values of both; None for text among numbers."""
    t = pa.types
    if known == found or t.is_null(found):
        return known
    if t.is_null(known) or t.is_dictionary(known):
        return found if t.is_null(known) else known
    if t.is_dictionary(found):
        # Text among numbers is a mistake in the file, and no category.
        return None if _is_numeric(known) else found
    if _is_numeric(known) and _is_numeric(found):
        return pa.float64()
    if raw_kind(known) == raw_kind(found) == "time":
        # The finest unit, in which dates and seconds are exact as well.
        return pa.timestamp("ns")
    return None


def _is_beyond_int64(column: pa.Array) -> bool:
    # Where a whole number is beyond int64 Arrow infers floats, which round it.
    return pa.types.is_floating(column.type) and (pc.max(column).as_py() or 0.0) >= 2.0**63


def _is_numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


# Lines `label index:value index:value ...` as sparse rows.


# Letters of inf and nan pass: they are refused later with their line, not taken for text.
_LINE = re.compile(rb"\s*[-+.\deE]+(\s+\d+:[-+.\deEinfaNIF]+)*\s*(#.*)?$")
_ENTRIES = rb"(\s+\d+:[-+.\deEinfaNIF]+)+\s*(#.*)?$"
_SEVERAL_LABELS = re.compile(rb"\s*[-+.\deE]+(,[-+.\deE]+)+" + _ENTRIES)
_QUERY = re.compile(rb"\s*[-+.\deE]+\s+qid:\S+" + _ENTRIES)
_ANY_LABELS = re.compile(rb"\s*([-+.\deE]+(,[-+.\deE]+)*)?" + _ENTRIES)
# Indices are int32, and so must be the number of columns, one more.
_LARGEST_INDEX = 2**31 - 2
_NO_LABEL = "the label is no number; a line of a libsvm file begins with one label, a number"
_NO_INDEX = "an entry is not index:value with a whole index; correct the line"
_NO_VALUE = "a value is no number; correct the line"
_DISORDER = "indices do not increase; sort the entries of the line and name each column once"
_TOO_LARGE = f"an index is larger than {_LARGEST_INDEX}; correct the line"
_NOT_FINITE = "this is no finite number; correct the value, or remove the line or the entry"


def looks_like_libsvm(head: bytes) -> bool:
    """Whether the first lines of some text have the form of a libsvm file."""
    lines = _first_lines(head)
    return bool(lines) and all(map(_LINE.match, lines)) and any(b":" in line for line in lines)


def refuse_other_libsvm(head: bytes, name: str) -> None:
    """Raise InputError for libsvm files with several labels per line, and for those with queries."""
    lines = _first_lines(head)
    several = next(filter(_SEVERAL_LABELS.match, lines), None)
    if several is not None and all(map(_ANY_LABELS.match, lines)):
        raise InputError(
            f"{name} is a libsvm file with several labels per line ({several.split()[0].decode()!r}), but a "
            f"model learns one; write one label per line, or a table with a column of 0 and 1 for each label"
        )
    if lines and all(map(_QUERY.match, lines)):
        raise InputError(
            f"{name} is a libsvm file for ranking ({lines[0].split()[1].decode()!r}), which no model here "
            f"learns; remove the qid: fields to fit the labels alone"
        )


def _first_lines(head: bytes) -> list[bytes]:
    """Up to ten lines without comments, and without the last one, if others remain."""
    # The last line may be cut off, and say nothing of the form.
    lines = [line.rstrip() for line in head[: 2**16].splitlines()[:10]]
    return [line for line in (lines[:-1] or lines) if line and not line.lstrip().startswith(b"#")]


class SparseRows(NamedTuple):
    """Rows of a block: entries with the indices of the file."""

    labels: np.ndarray  # float64, of shape (r,)
    values: np.ndarray  # float64
    indices: np.ndarray  # int32
    starts: np.ndarray  # int64, of shape (r + 1,)

    def matrix(self, first_index: int, n_columns: int) -> csr_matrix:
        """The rows as a matrix of shape (r, n_columns) whose first column is `first_index`."""
        parts = (self.values, self.indices - np.int32(first_index), self.starts)
        return csr_matrix(parts, shape=(len(self.labels), n_columns), copy=False)


LABEL = "label"
"""Column name of the labels of libsvm files."""


class LibsvmSource(TextSource):
    """Libsvm files with the same columns, which are read as one list."""

    kinds: Mapping[str, str | None] = MappingProxyType({})

    def completed(self, options: TableOptions) -> TableOptions:
        """The options with the label as target; raise InputError for those that go with columns."""
        for name in ("target", "columns", "drop", "sample_weight", "one_hot", "missing"):
            if getattr(options, name) != getattr(TableOptions, name):
                raise InputError(
                    f"{self.name} is a libsvm file, where the label is the target and all entries are "
                    f"columns; leave out {name}"
                )
        return replace(options, target=LABEL)

    def pieces(self, names: Sequence[str], after: Any = None) -> Iterator[TextBlock]:
        """Yield the blocks of all files, in order; with the mark of a block as `after`, those after it."""
        first, *place = after or (0,)
        return self._in_order(first, lambda i: line_blocks(self._files[i], i, *(place if i == first else ())))

    def place(self, piece: TextBlock, row: int) -> str:
        lines = enumerate(piece.data.splitlines(), piece.line)
        line = [number for number, line in lines if line.split(b"#")[0].strip()][row]
        return f"{piece.file}, line {line}"

    def rows(self, block: TextBlock) -> SparseRows:
        """Rows of a block; raises InputError with file and line for what is not in libsvm form."""
        rows = _decoded(block.data)
        # The line reader decides, not Arrow: what only Arrow refuses is read, if slowly.
        return _read_by_line(block) if rows is None else rows

    def check_width(self, block: TextBlock, rows: SparseRows, first_index: int, n_columns: int) -> None:
        """Refuse an index outside of the columns [first_index, first_index + n_columns)."""
        outside = np.flatnonzero((rows.indices < first_index) | (rows.indices >= first_index + n_columns))
        if len(outside):
            row = int(np.searchsorted(rows.starts, outside[0], side="right")) - 1
            raise InputError(
                f"{self.place(block, row)}: index {rows.indices[outside[0]]}, but "
                f"in training the indices were {first_index} to {first_index + n_columns - 1}; "
                f"remove such entries, or train on data with this column"
            )


# Arrow decodes a block as a table of index and value, where records without an index are labels. It takes
# twice the time of a compiled loop of our own, which had 90 lines; sklearn's load_svmlight_file takes eight
# times, and holds the interpreter's lock. What Arrow refuses, or no line may hold, is read again by line.

_RECORDS = bytes.maketrans(bytes(c for c in range(33) if c != 10), b"\n" * 32)
_AS_TABLE: dict[str, Any] = {
    "parse_options": arrow_csv.ParseOptions(delimiter=":", quote_char=False),
    "convert_options": arrow_csv.ConvertOptions(
        column_types={"index": pa.int64(), "value": pa.float64()}, null_values=[""]
    ),
}


def _decoded(text: bytes) -> SparseRows | None:
    """Rows of some lines; None where a line is not in the usual form."""
    if b"#" in text:
        text = re.sub(rb"#[^\r\n]*", b"", text)
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = re.sub(rb"\n[ \t]+", b"\n", text.lstrip())
    text = b":" + lines.replace(b"\n", b"\n:")  # each line as ":label", then its entries
    text = re.sub(rb":\+(?=[0-9.])", b":", text.translate(_RECORDS))  # Arrow takes no plus sign
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(text),
            arrow_csv.ReadOptions(
                use_threads=False, block_size=len(text) + 1, column_names=["index", "value"]
            ),
            **_AS_TABLE,
        )
    except pa.ArrowInvalid:
        return None
    index, value = (column.combine_chunks() for column in table.columns)
    is_entry, is_held = (column.is_valid().to_numpy(zero_copy_only=False) for column in (index, value))
    if (is_entry & ~is_held).any() or np.count_nonzero(~is_entry) != lines.count(b"\n") + 1:
        return None
    numbers, is_entry = value.drop_null().to_numpy(), is_entry[is_held]  # empty lines have neither
    labels, values, indices = numbers[~is_entry], numbers[is_entry], index.drop_null().to_numpy()
    at = np.flatnonzero(~is_entry)
    starts = np.append(at - np.arange(len(at)), len(values))
    # Indices rise within a row; the first one of a row may be any.
    rises = np.diff(indices, prepend=-1) > 0
    rises[starts[:-1][starts[:-1] < len(values)]] = True
    # Before they become int32, where a larger one would be another index.
    in_range = not len(indices) or 0 <= indices.min() <= indices.max() <= _LARGEST_INDEX
    if not (in_range and rises.all() and np.isfinite(numbers).all()):
        return None
    return SparseRows(labels, values, indices.astype(np.int32), starts)


def _read_by_line(block: TextBlock) -> SparseRows:
    """Rows of a block, read by Python; raises InputError with file and line for what is wrong."""
    labels: list[float] = []
    values: list[float] = []
    indices: list[int] = []
    starts = [0]
    for number, line in enumerate(block.data.splitlines(), block.line):
        last = -1
        words = list(re.finditer(rb"\S+", line.split(b"#")[0]))
        for word in words:
            try:
                if word is words[0]:
                    labels.append(_number(word[0], _NO_LABEL))
                    continue
                last, value = _entry(word[0], last)
            except ValueError as error:
                rest = line[word.start() : word.start() + 40].decode("utf-8", "replace").strip()
                raise InputError(f"{block.file}, line {number}, at {rest!r}: {error}") from None
            indices.append(last)
            values.append(value)
        if words:
            starts.append(len(values))
    of_entries = np.array(values, float), np.array(indices, np.int32)
    return SparseRows(np.array(labels, float), *of_entries, np.array(starts, np.int64))


def _entry(word: bytes, last: int) -> tuple[int, float]:
    """Index and value of an entry after that of index `last`; a ValueError says what is wrong."""
    index, colon, value = word.partition(b":")
    if not colon or not index.isdigit():
        raise ValueError(_NO_INDEX)
    # The length first: int() takes quadratic time in it, and refuses thousands of digits by another error.
    if len(index) > 20 or int(index) > _LARGEST_INDEX:
        raise ValueError(_TOO_LARGE)
    if int(index) <= last:
        raise ValueError(_DISORDER)
    return int(index), _number(value, _NO_VALUE)


def _number(text: bytes, otherwise: str) -> float:
    try:
        # Python reads 1_000 as a number, which no other reader of such files does.
        number = float(b"_" if b"_" in text else text)
    except ValueError:
        raise ValueError(otherwise) from None
    if not math.isfinite(number):
        raise ValueError(_NOT_FINITE)
    return number
