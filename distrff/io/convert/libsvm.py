"""Lines `label index:value index:value ...` as sparse rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv
from scipy.sparse import csr_matrix

from distrff.errors import InputError
from distrff.io.convert.text import TextBlock, TextSource, line_blocks
from distrff.preprocessing.profile import TableOptions

_LINE = re.compile(rb"\s*[-+.\deE]+(\s+\d+:[-+.\deEinfaNIF]+)*\s*(#.*)?$")
_ENTRIES = rb"(\s+\d+:[-+.\deEinfaNIF]+)+\s*(#.*)?$"
_SEVERAL_LABELS = re.compile(rb"\s*[-+.\deE]+(,[-+.\deE]+)+" + _ENTRIES)
_QUERY = re.compile(rb"\s*[-+.\deE]+\s+qid:\S+" + _ENTRIES)
_ANY_LABELS = re.compile(rb"\s*([-+.\deE]+(,[-+.\deE]+)*)?" + _ENTRIES)
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
    rises = np.diff(indices, prepend=-1) > 0
    rises[starts[:-1][starts[:-1] < len(values)]] = True
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
    if len(index) > 20 or int(index) > _LARGEST_INDEX:
        raise ValueError(_TOO_LARGE)
    if int(index) <= last:
        raise ValueError(_DISORDER)
    return int(index), _number(value, _NO_VALUE)


def _number(text: bytes, otherwise: str) -> float:
    try:
        number = float(b"_" if b"_" in text else text)
    except ValueError:
        raise ValueError(otherwise) from None
    if not math.isfinite(number):
        raise ValueError(_NOT_FINITE)
    return number
