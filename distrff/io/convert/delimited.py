"""Text files, compressed or not, as blocks of whole records; one block is in memory at a time."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from distrff.errors import InputError
from distrff.io.arrow import raw_columns, raw_kind
from distrff.io.storage import file_name, one_line, retryable, storage_errors
from distrff.preprocessing.encoders import RawColumn
from distrff.preprocessing.table import TableSteps
from distrff.utils.jit import compiled, compiles_once
from distrff.utils.text import first_repeated, listed

BLOCK_BYTES = 8 * 2**20
"""Size of a block of text: large against the fixed cost of decoding one, small against a worker's memory."""

_LONGEST_RECORD = 64 * 2**20
_OPENERS: tuple[tuple[bytes, Callable[[Any], Any]], ...] = (
    (b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
    (b"\x28\xb5\x2f\xfd", lambda file: pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")),
)
_DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, pa.ArrowException)
_OTHER_TEXT = (b"\xff\xfe", b"\xfe\xff")  # byte order marks of UTF-16
_MARK = b"\xef\xbb\xbf"  # byte order mark of UTF-8, which is allowed and skipped


class TextFile(NamedTuple):
    """One file: the filesystem that holds it and its path there."""

    fs: Any
    path: str

    @property
    def name(self) -> str:
        """The name of the file, for messages."""
        return file_name(self.fs, self.path)


class TextBlock(NamedTuple):
    """Whole records of one file."""

    file: str  # its name, for messages
    line: int  # number of the block's first line in the file, from 1
    data: bytes  # the records, each with its line end; the last one of a file may lack it
    has_quotes: bool  # whether records may contain line ends
    position: int  # compressed bytes read so far
    mark: tuple[Any, ...] = ()  # where the next block begins, for `text_blocks` or `blocks_of` to go on there


@contextmanager
def _opened(file: TextFile) -> Iterator[tuple[Any, Any]]:
    """Yield the file as stored, and the stream of its text."""
    with storage_errors(f"{file.name} cannot be reached"):
        stored = file.fs.open(file.path, "rb")
    try:
        head = stored.read(6)
        stored.seek(0)
        openers = [opener for magic, opener in _OPENERS if head.startswith(magic)]
        yield stored, openers[0](stored) if openers else stored
    except InputError:
        raise
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


def head_of(file: TextFile, n_bytes: int = BLOCK_BYTES) -> bytes:
    """Return the first bytes of the text, without a byte order mark; refuse UTF-16."""
    with _opened(file) as (_, stream):
        return _checked_head(file, _read(stream, n_bytes))


def _checked_head(file: TextFile, head: bytes) -> bytes:
    if head.startswith(_OTHER_TEXT):
        raise InputError(
            f"{file.name} begins like UTF-16, but text must be UTF-8; convert it: iconv -f UTF-16 -t UTF-8"
        )
    return head.removeprefix(_MARK)


def text_blocks(
    file: TextFile, delimiter: str | None, skip_records: int = 0, after: Sequence[Any] | None = None
) -> Iterator[TextBlock]:
    """Yield the records of a file in blocks of about 8 MB, without the first `skip_records`.

    With the mark of an earlier block as `after`, only the blocks after that one are yielded. Compressed text
    before it is decompressed again.

    A block ends where a record does: at a line end outside of quotes; with `delimiter` None, quotes have no
    meaning. Lines may also end in a bare carriage return. Damage, UTF-16, a quote that is never closed and a
    record of more than 64 MB are refused.
    """
    with _opened(file) as (stored, stream):
        newline, is_known, line, n_read = b"\n", False, 1, 0
        if after is not None:
            n_read, line, newline, is_known = int(after[0]), int(after[1]), str(after[2]).encode(), True
            skip_records = 0
            _skip(stream, n_read, seekable=stream is stored)
        data = _read(stream, BLOCK_BYTES)
        n_read, at_end = n_read + len(data), len(data) < BLOCK_BYTES
        if after is None:
            data = _checked_head(file, data)
        while data:
            if not is_known:
                newline, is_known = _line_end(data, at_end)
            has_quotes = delimiter is not None and b'"' in data
            end, opened = len(data) if at_end else data.rfind(newline) + 1, -1
            if delimiter is not None and has_quotes:
                last, opened = _scanned(data, newline, delimiter)
                end = end if at_end else last
            if at_end and opened >= 0:  # all lines after the quote would be one field
                raise InputError(
                    f"{file.name}, line {line + data.count(newline, 0, opened)}: a quote is opened here and "
                    f"never closed; close or remove it"
                )
            block, rest = data[:end], data[end:]
            if not block and len(data) > _LONGEST_RECORD:
                raise InputError(
                    f"{file.name}, line {line}: a record is longer than {_LONGEST_RECORD // 2**20} MB; look "
                    f"for a quote that is opened here and never closed"
                )
            first = 0
            while skip_records and first < len(block):
                first += len(first_record(block[first:], delimiter))
                skip_records -= 1
            line += block.count(newline, 0, first)
            begin, line = line, line + block.count(newline, first)
            if block[first:].strip():
                mark = (n_read - len(rest), line, newline.decode())
                yield TextBlock(file.name, begin, block[first:], has_quotes, stored.tell(), mark)
            wanted = max(BLOCK_BYTES - len(rest), BLOCK_BYTES // 8)
            more = b"" if at_end else _read(stream, wanted)
            n_read, at_end, data = n_read + len(more), len(more) < wanted, rest + more


def _line_end(data: bytes, at_end: bool) -> tuple[bytes, bool]:
    """Return the line end, and whether it is certain; a last carriage return may be half of a pair."""
    if b"\n" in data:
        return b"\n", True
    return (b"\r", True) if b"\r" in (data if at_end else data[:-1]) else (b"\n", at_end)


def first_record(data: bytes, delimiter: str | None) -> bytes:
    """Return the first record of some text, with its line end."""
    newline, _ = _line_end(data, at_end=True)
    end = data.find(newline) + 1 or len(data)
    if delimiter is None or b'"' not in data[:end]:
        return data[:end]
    return data[: _scanned(data, newline, delimiter, stop_at_first=True)[0] or len(data)]


def _read(stream: Any, n_bytes: int) -> bytes:
    """Return `n_bytes` bytes, fewer only at the end of the stream; one read may return less."""
    parts = []
    while n_bytes > 0 and (part := stream.read(n_bytes)):
        parts.append(bytes(part))
        n_bytes -= len(part)
    return b"".join(parts)


def _scanned(data: bytes, newline: bytes, delimiter: str, *, stop_at_first: bool = False) -> list[int]:
    """Return the end of the last (or first) line outside of quotes, and the position of an unclosed quote.

    The end is 0 if there is none, the position −1.
    """
    _compile_scan()
    found = np.array([0, -1], np.int64)
    _scan_quotes(np.frombuffer(data, np.uint8), newline[0], ord(delimiter), stop_at_first, found)
    return found.tolist()


@compiles_once
def _compile_scan() -> None:
    _scan_quotes(np.frombuffer(b"a", np.uint8), 10, 44, True, np.zeros(2, np.int64))


@compiled()
def _scan_quotes(data, newline, delimiter, stop_at_first, found):
    # A quote opens only at the beginning of a field; inside, a doubled quote stands for one character.
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


def _skip(stream: Any, n_bytes: int, *, seekable: bool) -> None:
    if seekable:
        stream.seek(n_bytes)
        return
    while n_bytes > 0 and (part := stream.read(min(n_bytes, BLOCK_BYTES))):
        n_bytes -= len(part)


def blocks_of(
    files: Sequence[TextFile],
    delimiter: str | None,
    skip_records: int = 0,
    after: Sequence[Any] | None = None,
) -> Iterator[TextBlock]:
    """Yield the blocks of several files in order; positions continue from file to file.

    With the mark of a block as `after`, only those after it.
    """
    before, first = 0, 0 if after is None else int(after[0])
    for i, file in enumerate(files):
        if i >= first:
            within = after[1:] if after is not None and i == first else None
            for block in text_blocks(file, delimiter, skip_records, within):
                yield block._replace(position=before + block.position, mark=(i, *block.mark))
        before += stored_bytes([file])


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


# Delimited text as Arrow batches: the names and types of columns, and the place of a wrong record.

DELIMITERS = ",\t;|"
NULLS = ["", "NA", "N/A", "n/a", "#N/A", "nan", "NaN", "NAN", "-nan", "-NaN", "null", "NULL", "?"]
"""The spellings of a missing value, in columns of numbers and of text."""

_NUMBER = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*$"
_COLUMN = re.compile(r"CSV column #(\d+).*invalid value '(.*)'", re.DOTALL)


class WiderTypes(Exception):
    """A block holds values that do not fit the types so far; those in `types` hold all values."""

    def __init__(self, types: dict[str, pa.DataType]) -> None:
        super().__init__("read the columns again with wider types")
        self.types = types


class CsvSource(TextSource):
    """Files of delimited text with the same columns.

    All columns are read with `types`, which are inferred from the first 8 MB until a `WiderTypes` gives wider
    ones: numbers are float64, text is a dictionary, the rest is as Arrow infers it. A missing value is empty,
    `?` or one of NA, N/A, nan, null.

    `header` says whether the first record of each file holds names. By default it does if it has some text
    and no number. Columns without a name are named by their indices. `known` lists columns that a model
    needs: if these are indices there is no header; if the first record holds them all, it is one.
    """

    row_labels: frozenset[str] = frozenset()

    def __init__(
        self, files: Sequence[TextFile], header: bool | None = None, known: Sequence[str] = ()
    ) -> None:
        super().__init__(files)
        head = head_of(files[0])
        self.delimiter = _delimiter_of(head)
        first = _fields(first_record(head, self.delimiter), self.delimiter, files[0].name)
        if not first:
            raise InputError(f"{files[0].name} is empty; give a file with rows")
        self.has_header = _are_names(first, known) if header is None else header
        self.names = _named(first) if self.has_header else tuple(map(str, range(len(first))))
        if (twice := first_repeated(self.names)) is not None:
            raise InputError(
                f"{files[0].name}, line 1: two columns are named {twice!r}; rename one, or pass "
                f"header=False (--no-header) if the line is a row"
            )
        self.types = self._types_of_head()

    def _types_of_head(self) -> dict[str, pa.DataType]:
        block = next(text_blocks(self._files[0], self.delimiter, int(self.has_header)), None)
        if block is None:
            raise InputError(f"{self._files[0].name} has a header but no rows; give a file with rows")
        table = self._parse(block, {}, None)
        self._mixtures: dict[str, InputError] = {}
        for name, column in zip(self.names, table.columns, strict=True):
            self._record_mixture(block, name, column)
        inferred = {name: c.type for name, c in zip(self.names, table.columns, strict=True)}
        self._whole = {name for name, kind in inferred.items() if pa.types.is_integer(kind)}
        return {name: read_as(kind) for name, kind in inferred.items()}

    @property
    def kinds(self) -> dict[str, str | None]:
        """Kinds of the columns, as far as they are known."""
        return {name: raw_kind(self.types[name]) for name in self.names}

    def keep_whole(self, names: Sequence[str]) -> None:
        """Read targets of whole numbers as integers, so that they can be classes."""
        self.types |= {name: pa.int64() for name in names if name in self._whole}

    def refuse_mixtures(self, names: Sequence[str]) -> None:
        """Refuse the first of some columns that mixes numbers and text."""
        for name in names:
            if name in self._mixtures:
                raise self._mixtures[name]

    def widen(self, types: dict[str, pa.DataType]) -> None:
        """Read columns with the types of a `WiderTypes` from here on."""
        self._whole = {name for name in self._whole if types[name] == self.types[name]}
        self.types = types

    def state(self) -> dict[str, Any]:
        """Return with which types columns are read, as a value to be stored; see `restore`."""
        types = np.frombuffer(pa.schema(self.types).serialize(), np.uint8)
        return {"types": types, "whole": sorted(self._whole)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Read columns with the types that `state` returned in an earlier process."""
        schema = pa.ipc.read_schema(pa.py_buffer(state["types"].tobytes()))
        self.types = dict(zip(schema.names, schema.types, strict=True))
        self._whole = set(state["whole"])

    def pieces(self, names: Sequence[str], after: Any = None) -> Iterator[TextBlock]:
        """Yield the blocks of all files, in order; each header is checked against the first.

        With the mark of a block as `after`, only those after it.
        """
        if self.has_header:
            for file in self._files[1:]:
                self._check_header(file)
        return blocks_of(self._files, self.delimiter, int(self.has_header), after)

    def _check_header(self, file: TextFile) -> None:
        found = _fields(first_record(head_of(file, 2**20), self.delimiter), self.delimiter, file.name)
        names = _named(found)
        if names != self.names:
            raise InputError(
                f"{file.name}, line 1: the columns {listed(names)} are not those of {self._files[0].name} "
                f"({listed(self.names)}); convert files with different columns one by one"
            )

    def follow(self, steps: TableSteps) -> None:
        """Read text where the steps take text, and numbers where they take numbers."""
        kinds = {step.name: step.reads for step in steps.columns}
        if steps.target is not None:
            kinds |= dict.fromkeys(steps.target.names, "text" if steps.target.kind == "labels" else "number")
        for name, kind in kinds.items():
            known = self.types.get(name, TEXT)
            if kind == "text":
                self.types[name] = TEXT
            elif kind == "number" and not pa.types.is_boolean(known) and raw_kind(known) != "clock":
                self.types[name] = pa.float64()

    def raw(self, piece: TextBlock, names: Sequence[str]) -> dict[str, RawColumn]:
        """Return some columns of a block; see `batch`."""
        return raw_columns(self.batch(piece, names), names)

    def place(self, piece: TextBlock, row: int) -> str:
        """Return the file and line of a row of a block."""
        line = next(islice(_records(piece, self.delimiter), row, None), (piece.line, []))[0]
        return f"{piece.file}, line {line}"

    def batch(self, block: TextBlock, columns: Sequence[str]) -> pa.RecordBatch:
        """Return some columns of a block.

        Raises `WiderTypes` for values that do not fit the types so far, and an `InputError` that names file,
        line and column for values that cannot be read.
        """
        types = {name: self.types[name] for name in columns}
        try:
            table = self._parse(block, types, list(columns))
        except pa.ArrowInvalid as error:
            if not _COLUMN.search(str(error)):
                self._fail(block, error)
            raise WiderTypes(self._widened(block, types, error)) from error
        return table.combine_chunks().to_batches()[0]

    def _widened(
        self, block: TextBlock, types: Mapping[str, pa.DataType], error: pa.ArrowInvalid
    ) -> dict[str, pa.DataType]:
        found = self._parse(block, {}, list(types))
        wider = dict(self.types)
        for name, column in zip(types, found.columns, strict=True):
            wide = wider_type(types[name], read_as(column.type))
            if wide is None:
                self._fail(block, error)
            wider[name] = wide
        if wider == self.types:
            self._fail(block, error)
        return wider

    def _parse(
        self, block: TextBlock, types: Mapping[str, pa.DataType], columns: list[str] | None
    ) -> pa.Table:
        try:
            return arrow_csv.read_csv(
                pa.py_buffer(block.data),
                # One thread: blocks are what runs in parallel.
                read_options=arrow_csv.ReadOptions(
                    use_threads=False, block_size=len(block.data) + 1, column_names=list(self.names)
                ),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=self.delimiter, newlines_in_values=block.has_quotes
                ),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict(types),
                    include_columns=columns,
                    null_values=NULLS,
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid as error:
            if types:
                raise
            self._fail(block, error)

    def _record_mixture(self, block: TextBlock, name: str, column: pa.ChunkedArray) -> None:
        """Record text in a column of mostly numbers: likely a typing error, which would become a category."""
        if pa.types.is_binary(column.type):
            self._fail(block, None)
        if not pa.types.is_string(column.type):
            return
        is_number = pc.match_substring_regex(column.drop_null(), _NUMBER)
        n_numbers = pc.sum(is_number).as_py() or 0
        if 2 * n_numbers > len(is_number):
            value = column.drop_null().filter(pc.invert(is_number))[0].as_py()
            where = "where most values are numbers"
            self._mixtures[name] = self._error_at(block, self.names.index(name), value, where)

    def _fail(self, block: TextBlock, error: pa.ArrowInvalid | None) -> NoReturn:
        """Raise the error that names the place of the mistake, found by reading record by record."""
        found = None if error is None else _COLUMN.search(str(error))
        wanted = None if found is None else (int(found[1]), found[2])
        for line, fields in _records(block, self.delimiter):
            if len(fields) != len(self.names):
                raise InputError(
                    f"{block.file}, line {line}: {len(fields)} fields, but there are {len(self.names)} "
                    f"columns; correct or remove the line"
                )
            for j, field in enumerate(fields):
                if any("\udc80" <= c <= "\udcff" for c in field):
                    raise InputError(
                        f"{block.file}, line {line}, column {self.names[j]!r}: bytes that are not UTF-8; "
                        f"convert the file: iconv -f LATIN1 -t UTF-8 (or what it is written in)"
                    )
        if wanted is not None:
            kind = self.types[self.names[wanted[0]]]
            plural = "truth values" if pa.types.is_boolean(kind) else f"values of type {kind}"
            plural = "numbers" if _is_numeric(kind) else plural
            raise self._error_at(block, *wanted, f"where the lines before hold {plural}")
        raise InputError(
            f"{block.file}, from line {block.line} on: {' '.join(str(error).split())[:160]}; correct the file"
        )

    def _error_at(self, block: TextBlock, column: int, value: str, where: str) -> InputError:
        records = _records(block, self.delimiter)
        lines = [line for line, fields in records if fields[column].strip() == value.strip()]
        line = lines[0] if lines else block.line
        names = "" if line > 1 else ", or pass header=True (--header) if the line holds names"
        return InputError(
            f"{block.file}, line {line}, column {self.names[column]!r}: {value!r} {where}; correct the "
            f"value, leave it empty if it is missing, or drop the column{names}"
        )


def _delimiter_of(head: bytes) -> str:
    """Return the most frequent delimiter of the first record, outside of quotes."""
    text = re.sub(r'"[^"]*"', "", first_record(head, ",").decode("utf-8", "replace"))
    return max(DELIMITERS, key=text.count)


def _fields(record: bytes, delimiter: str, name: str) -> list[str]:
    try:
        text = record.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}, line 1: bytes that are not UTF-8 ({error.reason}); convert the file: "
            f"iconv -f LATIN1 -t UTF-8 (or what it is written in)"
        ) from error
    return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])


def _are_names(fields: Sequence[str], known: Sequence[str]) -> bool:
    if known and set(known) <= set(map(str, range(len(fields)))):
        return False
    if known and set(known) <= set(_named(fields)):
        return True
    filled = [field for field in map(str.strip, fields) if field]
    return bool(filled) and not any(field in NULLS or re.match(_NUMBER, field) for field in filled)


def _named(fields: Sequence[str]) -> tuple[str, ...]:
    return tuple(field.strip() or str(i) for i, field in enumerate(fields))


def _records(block: TextBlock, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line and the fields of each record that is not empty."""
    text = io.StringIO(block.data.decode("utf-8", "surrogateescape"), newline="")
    reader = csv.reader(text, delimiter=delimiter)
    before = 0
    for fields in reader:
        if fields:
            yield block.line + before, fields
        before = reader.line_num


# Types with which columns of delimited text are read.

TEXT = pa.dictionary(pa.int32(), pa.string())


def read_as(inferred: pa.DataType) -> pa.DataType:
    """Return the type with which a column is read, given the one inferred from its first values."""
    if pa.types.is_integer(inferred):
        return pa.float64()
    return TEXT if pa.types.is_string(inferred) or pa.types.is_binary(inferred) else inferred


def wider_type(known: pa.DataType, found: pa.DataType) -> pa.DataType | None:
    """Return a type that holds the values of both; None for text among numbers."""
    t = pa.types
    if known == found or t.is_null(found):
        return known
    if t.is_null(known) or t.is_dictionary(known):
        return found if t.is_null(known) else known
    if t.is_dictionary(found):
        return None if _is_numeric(known) else found
    if _is_numeric(known) and _is_numeric(found):
        return pa.float64()
    if raw_kind(known) == raw_kind(found) == "time":
        return pa.timestamp("ns")
    return None


def _is_numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)
