"""Lines `label index:value index:value ...` as sparse rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from scipy.sparse import csr_matrix

from distrff.errors import InputError
from distrff.io.convert.text import TextBlock, TextSource, line_blocks
from distrff.utils.jit import compiled, compiles_once

_LINE = re.compile(rb"\s*[-+.\deE]+(\s+\d+:[-+.\deEinfaNIF]+)*\s*(#.*)?$")
_ENTRIES = rb"(\s+\d+:[-+.\deEinfaNIF]+)+\s*(#.*)?$"
_SEVERAL_LABELS = re.compile(rb"\s*[-+.\deE]+(,[-+.\deE]+)+" + _ENTRIES)
_QUERY = re.compile(rb"\s*[-+.\deE]+\s+qid:\S+" + _ENTRIES)
_ANY_LABELS = re.compile(rb"\s*([-+.\deE]+(,[-+.\deE]+)*)?" + _ENTRIES)
_POWERS = 10.0 ** np.arange(23)  # those that float64 holds exactly
_LARGEST_INDEX = 2**31 - 2

_NO_LABEL, _NO_INDEX, _NO_VALUE, _DISORDER, _TOO_LARGE, _NOT_FINITE = range(1, 7)
_WRONG = {
    _NO_LABEL: "the label is no number; a line of a libsvm file begins with one label, a number",
    _NO_INDEX: "an entry is not index:value with a whole index; correct the line",
    _NO_VALUE: "a value is no number; correct the line",
    _DISORDER: "indices do not increase; sort the entries of the line and name each column once",
    _TOO_LARGE: f"an index is larger than {_LARGEST_INDEX}; correct the line",
    _NOT_FINITE: "this is no finite number; correct the value, or remove the line or the entry",
}


def looks_like_libsvm(head: bytes) -> bool:
    """Return whether the first lines of some text have the form of a libsvm file."""
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
    """Return up to ten lines without comments, and without the last one, if others remain."""
    lines = [line.rstrip() for line in head[: 2**16].splitlines()[:10]]
    return [line for line in (lines[:-1] or lines) if line and not line.lstrip().startswith(b"#")]


class SparseRows(NamedTuple):
    """Rows of a block: entries with the indices of the file."""

    labels: np.ndarray  # float64, of shape (r,)
    values: np.ndarray  # float64
    indices: np.ndarray  # int32
    starts: np.ndarray  # int64, of shape (r + 1,)

    def matrix(self, first_index: int, n_columns: int) -> csr_matrix:
        """Return the rows as a matrix of shape (r, n_columns) whose first column is `first_index`."""
        parts = (self.values, self.indices - np.int32(first_index), self.starts)
        return csr_matrix(parts, shape=(len(self.labels), n_columns), copy=False)


class LibsvmSource(TextSource):
    """Libsvm files with the same columns."""

    def pieces(self, names: Sequence[str], after: Any = None) -> Iterator[TextBlock]:
        """Yield the blocks of all files, in order; with the mark of a block as `after`, those after it."""
        first, *place = after or (0,)
        return self._in_order(first, lambda i: line_blocks(self._files[i], i, *(place if i == first else ())))

    def rows(self, block: TextBlock) -> SparseRows:
        """Return the rows of a block; raise InputError with file and line for what is not in libsvm form."""
        _compile_parser()
        labels, values, indices, starts, hard, (wrong, place, n_rows, n_hard) = _parsed(block.data)
        if wrong:
            self._fail(block, wrong, place)
        for where, begin, end in hard[:n_hard].tolist():
            number = _number(block.data[begin:end])
            if number is None:
                self._fail(block, _NO_LABEL if where < 0 else _NO_VALUE, begin)
            if not math.isfinite(number):
                self._fail(block, _NOT_FINITE, _word_start(block.data, begin))
            if where < 0:
                labels[-1 - where] = number
            else:
                values[where] = number
        stop = starts[n_rows]
        return SparseRows(labels[:n_rows], values[:stop], indices[:stop], starts[: n_rows + 1])

    def check_width(self, block: TextBlock, rows: SparseRows, first_index: int, n_columns: int) -> None:
        """Refuse an index outside of the columns [first_index, first_index + n_columns)."""
        outside = np.flatnonzero((rows.indices < first_index) | (rows.indices >= first_index + n_columns))
        if len(outside):
            row = int(np.searchsorted(rows.starts, outside[0], side="right")) - 1
            lines = enumerate(block.data.splitlines(), block.line)
            line = [number for number, line in lines if line.split(b"#")[0].strip()][row]
            raise InputError(
                f"{block.file}, line {line}: index {rows.indices[outside[0]]}, but "
                f"in training the indices were {first_index} to {first_index + n_columns - 1}; "
                f"remove such entries, or train on data with this column"
            )

    def _fail(self, block: TextBlock, wrong: int, place: int) -> NoReturn:
        line = block.line + block.data.count(b"\n", 0, place)
        text = block.data[place : place + 40].split(b"\n")[0].decode("utf-8", "replace").strip()
        raise InputError(f"{block.file}, line {line}, at {text!r}: {_WRONG[wrong]}")


def _word_start(data: bytes, at: int) -> int:
    """Return where the word around a position begins: for a value, at its index."""
    while at and data[at - 1] > 32:
        at -= 1
    return at


def _number(text: bytes) -> float | None:
    try:
        return None if b"_" in text else float(text)
    except ValueError:
        return None


def _parsed(text: bytes) -> Any:
    n_lines, n_entries = text.count(b"\n") + text.count(b"\r") + 1, text.count(b":")
    labels, values = np.empty(n_lines), np.empty(n_entries)
    indices, starts = np.empty(n_entries, np.int32), np.zeros(n_lines + 1, np.int64)
    hard, found = np.empty((n_lines + n_entries, 3), np.int64), np.zeros(4, np.int64)
    _parse(np.frombuffer(text, np.uint8), _POWERS, labels, values, indices, starts, hard, found)
    return labels, values, indices, starts, hard, found.tolist()


@compiles_once
def _compile_parser() -> None:
    _parsed(b"1 1:1\n")


@compiled()
def _number_at(data, i, powers, out):
    """Parse the number at i into out[0]; return its end, negated if Python must parse it."""
    begin = i
    negative = i < len(data) and data[i] == 45
    if negative or (i < len(data) and data[i] == 43):
        i += 1
    mantissa, n_digits, exponent, after_point, plain = 0, 0, 0, False, True
    while i < len(data):
        c = data[i]
        if 48 <= c <= 57:
            n_digits += mantissa > 0 or c > 48
            if n_digits <= 15:
                mantissa = mantissa * 10 + (c - 48)
                exponent -= after_point
            else:
                plain = False
        elif c == 46 and not after_point:
            after_point = True
        else:
            break
        i += 1
    plain = plain and i - begin > negative + after_point
    while i < len(data) and data[i] > 32 and data[i] != 35:  # an exponent, or no number
        plain = False
        i += 1
    plain = plain and exponent >= -22
    if not plain:
        return -i
    # Both are exact, so their quotient is the float64 nearest to the written number.
    value = mantissa / powers[-exponent]
    out[0] = -value if negative else value
    return i


@compiled()
def _parse(data, powers, labels, values, indices, starts, hard, found):
    # found: what is wrong, where it is, the number of rows, and how many numbers are left to Python. hard:
    # where such a number goes (−1 − row for a label), and where its text begins and ends.
    number = np.zeros(1)
    i, row, entry, n_hard = 0, 0, 0, 0
    n = len(data)
    while i < n:
        c = data[i]
        if c <= 32:
            i += 1
            continue
        if c == 35:
            while i < n and data[i] != 10 and data[i] != 13:
                i += 1
            continue
        end = _number_at(data, i, powers, number)
        if end == i or end == -i:
            found[0], found[1] = 1, i
            return
        if end < 0:
            hard[n_hard, 0], hard[n_hard, 1], hard[n_hard, 2] = -1 - row, i, -end
            n_hard += 1
            end = -end
        labels[row] = number[0]
        i = end
        last = -1
        while i < n and data[i] != 10 and data[i] != 13:
            if data[i] <= 32:
                i += 1
                continue
            if data[i] == 35:
                while i < n and data[i] != 10 and data[i] != 13:
                    i += 1
                break
            begin, index = i, 0
            while i < n and 48 <= data[i] <= 57 and index <= 2147483646:
                index = index * 10 + (data[i] - 48)
                i += 1
            if index > 2147483646:
                found[0], found[1] = 5, begin
                return
            if i in (begin, n) or data[i] != 58:
                found[0], found[1] = 2, begin
                return
            if index <= last:
                found[0], found[1] = 4, begin
                return
            last = index
            i += 1
            end = _number_at(data, i, powers, number)
            if end == i or end == -i:
                found[0], found[1] = 3, begin
                return
            if end < 0:
                hard[n_hard, 0], hard[n_hard, 1], hard[n_hard, 2] = entry, i, -end
                n_hard += 1
                end = -end
            indices[entry], values[entry] = index, number[0]
            entry += 1
            i = end
        row += 1
        starts[row] = entry
    found[2], found[3] = row, n_hard
