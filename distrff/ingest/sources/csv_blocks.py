"""Delimited text as Arrow batches: names, types of columns, and where a record is wrong."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from distrff.columns.raw_column import RawColumn
from distrff.columns.table_steps import TableSteps
from distrff.data.arrow_values import raw_columns, raw_kind
from distrff.display.names import listed
from distrff.errors import InputError
from distrff.ingest.sources.csv_types import TEXT, plural, read_as, wider_type
from distrff.ingest.sources.text_blocks import (
    TextBlock,
    TextFile,
    blocks_of,
    first_record,
    head_of,
    name_of,
    stored_bytes,
    text_blocks,
)

DELIMITERS = ",\t;|"
NULLS = ["", "NA", "N/A", "n/a", "#N/A", "nan", "NaN", "NAN", "-nan", "-NaN", "null", "NULL", "?"]
"""What stands for a missing value, in numbers and in text."""

_NUMBER = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*$"
_COLUMN = re.compile(r"CSV column #(\d+).*invalid value '(.*)'", re.DOTALL)


class WiderTypes(Exception):
    """A block holds values that the types of the blocks before cannot hold, but `types` can."""

    def __init__(self, types: dict[str, pa.DataType]) -> None:
        super().__init__("read the columns again by wider types")
        self.types = types


class CsvSource:
    """Files of delimited text with the same columns.

    Types of columns are those of the first 8 MB: numbers are float64, text dictionaries, the rest as Arrow
    infers it. Missing values are empty, `?` or one of NA, N/A, nan, null.

    Parameters
    ----------
    files : sequence of TextFile
    header : bool, optional
        Whether the first record of each file holds names. By default it does if it has some text and no
        number in it. Columns without a name are named by their indices.
    known : sequence of str
        Names of columns that must be there, as a model has them: if they are indices there is no header, and
        there is one if the first record holds them all.

    Attributes
    ----------
    names : tuple of str
    types : dict of str to pyarrow.DataType
        Of all columns; `WiderTypes` brings those to go on with.

    Raises
    ------
    InputError
        If the first file is empty or two columns have one name.
    """

    unit = "bytes"

    def __init__(
        self, files: Sequence[TextFile], header: bool | None = None, known: Sequence[str] = ()
    ) -> None:
        self._files = files
        self.name, self.total = name_of(files), stored_bytes(files)
        head = head_of(files[0])
        self.delimiter = _delimiter_of(head)
        first = _fields(first_record(head, self.delimiter), self.delimiter, files[0].name)
        if not first:
            raise InputError(f"{files[0].name} is empty; give a file with rows")
        self.has_header = _are_names(first, known) if header is None else header
        self.names = _named(first) if self.has_header else tuple(map(str, range(len(first))))
        for name in self.names:
            if self.names.count(name) > 1:
                raise InputError(
                    f"{files[0].name}, line 1: two columns are named {name!r}; rename one, or pass "
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
            self._note_mixture(block, name, column)
        inferred = {name: c.type for name, c in zip(self.names, table.columns, strict=True)}
        self._whole = {name for name, kind in inferred.items() if pa.types.is_integer(kind)}
        return {name: read_as(kind) for name, kind in inferred.items()}

    @property
    def kinds(self) -> dict[str, str | None]:
        """Kinds of the columns, as far as known."""
        return {name: raw_kind(self.types[name]) for name in self.names}

    def keep_whole(self, names: Sequence[str]) -> None:
        """Read targets that hold whole numbers as such, so that they are classes like any others."""
        self.types |= {name: pa.int64() for name in names if name in self._whole}

    def refuse_mixtures(self, names: Sequence[str]) -> None:
        """Raise InputError for the first of some columns that mixes numbers and text."""
        for name in names:
            if name in self._mixtures:
                raise self._mixtures[name]

    def widen(self, types: dict[str, pa.DataType]) -> None:
        """Go on with the types that `WiderTypes` brought."""
        self._whole = {name for name in self._whole if types[name] == self.types[name]}
        self.types = types

    def pieces(self, names: Sequence[str]) -> Iterator[TextBlock]:
        """Yield the blocks of all files, in order; each header is checked against the first."""
        if self.has_header:
            for file in self._files[1:]:
                self._check_header(file)
        return blocks_of(self._files, self.delimiter, int(self.has_header))

    def _check_header(self, file: TextFile) -> None:
        found = _fields(first_record(head_of(file, 2**20), self.delimiter), self.delimiter, file.name)
        names = _named(found)
        if names != self.names:
            raise InputError(
                f"{file.name}, line 1: the columns {listed(names)} are not those of {self._files[0].name} "
                f"({listed(self.names)}); convert files of different columns one by one"
            )

    def follow(self, steps: TableSteps) -> None:
        """Read text where the steps want text, and numbers where they want numbers."""
        for step in steps.columns:
            self._expect(step.name, step.reads)
        if steps.target is not None:
            for name in steps.target.names:
                self._expect(name, "text" if steps.target.kind == "labels" else "number")

    def _expect(self, name: str, kind: str) -> None:
        if kind == "text":
            self.types[name] = TEXT
        elif kind == "number":
            known = self.types.get(name, TEXT)
            if not pa.types.is_boolean(known) and raw_kind(known) != "clock":
                self.types[name] = pa.float64()

    def raw(self, piece: TextBlock, names: Sequence[str]) -> dict[str, RawColumn]:
        """Return some columns of a block; see `batch`."""
        return raw_columns(self.batch(piece, names), names)

    def place(self, piece: TextBlock, row: int) -> str:
        """Say in which line a row of a block stands."""
        line = next(islice(_records(piece, self.delimiter), row, None), (piece.line, []))[0]
        return f"{piece.file}, line {line}"

    def batch(self, block: TextBlock, columns: Sequence[str]) -> pa.RecordBatch:
        """Return some columns of a block.

        Raises
        ------
        WiderTypes
            If values are of wider types than those of the blocks before.
        InputError
            Naming file, line and column of what cannot be read.
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

    def _note_mixture(self, block: TextBlock, name: str, column: pa.ChunkedArray) -> None:
        """Note text in a column where most values are numbers: a slip, which would become a category."""
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
        """Raise the error that says where the block is wrong, by reading it once more, record by record."""
        found = None if error is None else _COLUMN.search(str(error))
        wanted = None if found is None else (int(found[1]), found[2])
        for line, fields in _records(block, self.delimiter):
            if len(fields) != len(self.names):
                raise InputError(
                    f"{block.file}, line {line}: {len(fields)} fields, but there are {len(self.names)} "
                    f"columns; mend or remove the line"
                )
            for j, field in enumerate(fields):
                if any("\udc80" <= c <= "\udcff" for c in field):
                    raise InputError(
                        f"{block.file}, line {line}, column {self.names[j]!r}: bytes that are not UTF-8; "
                        f"convert the file: iconv -f LATIN1 -t UTF-8 (or what it is written in)"
                    )
        if wanted is not None:
            kind = self.types[self.names[wanted[0]]]
            raise self._error_at(block, *wanted, f"where the lines before hold {plural(kind)}")
        raise InputError(f"{block.file}, from line {block.line} on: {_short(str(error))}; mend the file")

    def _error_at(self, block: TextBlock, column: int, value: str, where: str) -> InputError:
        records = _records(block, self.delimiter)
        lines = [line for line, fields in records if fields[column].strip() == value.strip()]
        line = lines[0] if lines else block.line
        names = "" if line > 1 else ", or pass header=True (--header) if the line holds names"
        return InputError(
            f"{block.file}, line {line}, column {self.names[column]!r}: {value!r} {where}; mend the value, "
            f"leave it empty if it is missing, or drop the column{names}"
        )


def _delimiter_of(head: bytes) -> str:
    """The delimiter that the first record has most of, outside of quotes."""
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


def _short(text: str) -> str:
    return " ".join(text.split())[:160]
