"""How a table is written as text: its delimiter, decimal sign and names, given or guessed."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import Any, NamedTuple

from distrff.errors import InputError
from distrff.preprocessing.words import number_pattern
from distrff.utils.text import listed

DELIMITERS = ",\t;|"
WHITESPACE = "whitespace"
"""The delimiter of fields that are set apart by runs of blanks and tabs."""
_SPELLINGS = {"tab": "\t", r"\t": "\t", r"\s+": WHITESPACE, "comma": ",", "semicolon": ";", "space": " "}
# Spellings that are usual in tables; "?" is that of the UCI sets.
_MISSING = ("", "NA", "N/A", "n/a", "#N/A", "nan", "NaN", "NAN", "-nan", "-NaN", "null", "NULL", "?")
NULLS = [before + word + after for word in _MISSING for before in ("", " ") for after in ("", " ")]
"""The spellings of a missing value, in columns of numbers and of text; Arrow does not strip blanks."""
_SAMPLE_BYTES, _SAMPLE_LINES = 2**16, 20  # a guess is judged by so much text, or by so many lines if longer
_AS_WELL = 0.9  # a guess whose score is this share of the best one's fits about as well


@dataclass(frozen=True)
class Dialect:
    """Attributes that were not given are None; `header` says whether the first record holds names."""

    delimiter: str | None = None
    decimal: str | None = None
    header: bool | None = None
    quote: str | None = '"'
    encoding: str | None = None

    def refuse_for(self, what: str) -> None:
        """Raise InputError if anything was given."""
        given = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        if given:
            raise InputError(f"{given[0]} goes with delimited text, but {what}; leave it out")

    def __post_init__(self) -> None:
        if self.delimiter is not None:
            object.__setattr__(self, "delimiter", _SPELLINGS.get(self.delimiter, self.delimiter))
        if self.delimiter not in (None, WHITESPACE) and not re.fullmatch(
            r"[^\0\r\n\x80-\U0010ffff]", self.delimiter
        ):
            raise InputError(
                f"delimiter must be one ASCII character in a line, or 'whitespace', got {self.delimiter!r}"
            )
        if self.decimal not in (None, ".", ","):
            raise InputError(f"decimal must be '.' or ',', got {self.decimal!r}")
        if self.quote == "none":
            object.__setattr__(self, "quote", None)
        if self.quote is not None and not re.fullmatch("[!-~]", self.quote):
            raise InputError(f"quote must be one ASCII character and no blank, or 'none', got {self.quote!r}")
        if self.quote is not None and self.quote == self.delimiter:
            raise InputError(
                f"delimiter and quote are both {self.quote!r}; give quote='none' if there is none"
            )
        if self.encoding is not None:
            try:
                "a".encode(self.encoding)  # refuses codecs of no text, such as base64
                name = codecs.lookup(self.encoding).name
            except (LookupError, ValueError):
                raise InputError(
                    f"encoding={self.encoding!r} is not known; give one such as latin-1"
                ) from None
            # UTF-8 is what is read anyway, without a decoder.
            object.__setattr__(self, "encoding", None if name == "utf-8" else name)

    @property
    def character(self) -> str:
        """The character between fields once blanks are tabs."""
        return "\t" if self.delimiter == WHITESPACE else self.delimiter or ","

    def described(self) -> str:
        """How the text is read, in words."""
        names = {"\t": "tab", " ": "one blank", WHITESPACE: "white space"}
        between = names.get(self.delimiter or ",", repr(self.delimiter))
        first = "the first line holds names" if self.header else "there are no names"
        return f"delimiter {between}, decimal {self.decimal!r}, {first}"

    def records(self, lines: Iterator[str]) -> Any:
        """A `csv.reader` of the records; those of empty lines are []."""
        if self.quote is None:
            return csv.reader(lines, delimiter=self.character, quoting=csv.QUOTE_NONE)
        return csv.reader(lines, delimiter=self.character, quotechar=self.quote)


class Opening(NamedTuple):
    """How the text of a file begins: its dialect, the names of its columns, and what is before the rows."""

    dialect: Dialect
    names: tuple[str, ...]
    n_bytes: int
    n_lines: int
    longest: int = 0  # of the first lines, in bytes
    codes: Mapping[str, str] = {}  # the first of numbers that begin with a zero, by column


def opening_of(
    head: bytes, given: Dialect, file: str, known: Sequence[str] = (), words: Collection[str] = ()
) -> Opening:
    """Guess the dialect of a text from its first bytes, where it was not given."""
    separator, before, head = _separator_line(head)
    lines = head.splitlines(keepends=True)
    # Enough to judge by, and quick for any file.
    n_sampled = max(_SAMPLE_LINES, head.count(b"\n", 0, _SAMPLE_BYTES), head.count(b"\r", 0, _SAMPLE_BYTES))
    head, longest = b"".join(lines[:n_sampled]), max(map(len, lines[:n_sampled]), default=0)
    if separator and given.delimiter is None:
        given = replace(given, delimiter=separator.decode())
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        text = head.decode(errors="replace")
        # A wrong byte among the names spoils them all; one further down is found with its line and column.
        if error.start <= len(head.splitlines()[0]):
            raise not_utf8(f"{file}, line 1") from None
    if not text.strip():
        raise InputError(f"{file} is empty; give a file with rows")
    reading = _reading(text, given, file, words)
    dialect, first = reading.dialect, reading.records[0]
    if len(first) == 1 < reading.n_fields - 1 and given.header is not False and reading.share > 0.5:
        raise InputError(
            f"{file}, line 1: one field, {first[0][:40]!r}, where most records have {reading.n_fields}; "
            f"remove the lines before the names of the columns, such as comments and titles"
        )
    if dialect.header is None:
        dialect = replace(dialect, header=_are_names(reading.records, known))
        _refuse_years(reading.records, bool(dialect.header), known, file)
    names, n_bytes, n_lines = tuple(map(str, range(len(first)))), len(before), int(bool(before))
    if dialect.header:
        counted = dialect.records(_lines(text, dialect))
        while not next(counted):
            pass
        lines = lines[: counted.line_num]
        if 1 < len(first) == reading.n_fields - 1 and any(
            record[-1].strip() for record in reading.records[1:]
        ):
            first = ["", *first]  # as R writes the names of a table whose rows have names
        names = _named(first, known)
        n_bytes, n_lines = n_bytes + sum(map(len, lines)), n_lines + len(lines)
    # Codes lose their zeros as numbers: the report says so, as nothing here can know.
    codes = _codes_in(reading.records[bool(dialect.header) :])
    coded = {names[i]: code for i, code in codes.items() if i < len(names)}
    return Opening(dialect, names, n_bytes, n_lines, longest, coded)


def _codes_in(records: list[list[str]]) -> dict[int, str]:
    """The first field of each column that is a number as codes have it: 007, or 1E5."""
    found: dict[int, str] = {}
    for record in records:
        for i, field in enumerate(record):
            if i not in found and re.fullmatch(r"0\d+|\d+E\d+", field.strip()):
                found[i] = field.strip()
    return found


def _lines(text: str, dialect: Dialect) -> Iterator[str]:
    if dialect.delimiter == WHITESPACE:
        text = in_columns(text.encode(), dialect.quote).decode()
    # str.splitlines would also cut at form feeds and other marks inside of fields.
    return iter(io.StringIO(text, newline=""))


def in_columns(data: bytes, quote: str | None) -> bytes:
    """Lines with one tab for each run of blanks between their fields."""
    lines, q = data.splitlines(), re.escape((quote or "").encode())
    # Without quotes bytes.split does it, far faster than a pattern.
    if quote is None or quote.encode() not in data:
        return b"".join(b"\t".join(line.split()) + b"\n" for line in lines)
    field = re.compile(rb"%b(?:[^%b]|%b%b)*%b[^ \t]*|[^ \t]+" % (q, q, q, q, q))
    return b"".join(b"\t".join(field.findall(line)) + b"\n" for line in lines)


def not_utf8(place: str) -> InputError:
    """The error of bytes at a place that are not UTF-8."""
    return InputError(
        f"{place}: bytes that are not UTF-8; name what the file is written in, such as encoding='latin-1'"
    )


def _separator_line(head: bytes) -> tuple[bytes, bytes, bytes]:
    """The delimiter that a first line like "sep=;" tells Excel, this line, and the rest."""
    found = re.match(rb"\"?sep=([^\r\n\x80-\xff])\"?(\r\n?|\n|$)", head)
    return (found[1], head[: found.end()], head[found.end() :]) if found else (b"", b"", head)


# The delimiter and the decimal sign.


class _Reading(NamedTuple):
    """The first records as they are with a delimiter."""

    dialect: Dialect
    records: list[list[str]]
    n_fields: int  # of most records
    share: float  # of the records that have as many
    typed: float  # share of their fields that are no text

    @property
    def score(self) -> float:
        # Half a point for the fields alone, or tables of words would all have 0.
        return self.share * (self.typed + 0.5)


def _reading(text: str, given: Dialect, file: str, words: Collection[str]) -> _Reading:
    delimiter = given.delimiter or _delimiter_of(text, given, file)
    reading = _read(text, replace(given, delimiter=delimiter), words)
    if given.decimal is None:
        _check_decimal(reading, file, words)
    return reading


def _delimiter_of(text: str, given: Dialect, file: str) -> str:
    # csv.Sniffer takes a character that is as frequent in every line, so the comma of "4,5;7,2". Here many
    # records judge: how many of them have the same number of fields, and how many fields are no text.
    readings = {d: _read(text, replace(given, delimiter=d)) for d in (*DELIMITERS, WHITESPACE)}
    blanks = readings.pop(WHITESPACE)
    fits = sorted((d for d, r in readings.items() if r.n_fields > 1), key=lambda d: -readings[d].score)
    # Blanks stand in text and in times as well: they set fields apart only where that makes them numbers.
    others = [_read(text, replace(given, delimiter="\x1f"))]  # lines as they are
    others += [readings[d] for d in fits[:1] if readings[d].share > 0.5]
    is_table = blanks.n_fields > 1 and blanks.share > 0.5
    if is_table and blanks.typed >= 0.5 and blanks.typed > max(1.2 * other.typed for other in others):
        return WHITESPACE
    if not fits:
        return ","
    as_well = [d for d in fits if readings[d].score >= _AS_WELL * readings[fits[0]].score]
    best, *rest = sorted(as_well, key=lambda d: -readings[d].n_fields)
    # A text with one ';' in each row does not make a ';' the delimiter of rows with many commas.
    if rest and readings[best].n_fields - 1 < 3 * (readings[rest[0]].n_fields - 1):
        one, other = (f"{d!r} (as in {listed(readings[d].records[-1])})" for d in (best, rest[0]))
        raise InputError(
            f"{file}: columns may be set apart by {one} or by {other}; give delimiter={best!r} or "
            f"delimiter={rest[0]!r}"
        )
    return best


def _read(text: str, dialect: Dialect, words: Collection[str] = ()) -> _Reading:
    try:
        records = list(filter(None, dialect.records(_lines(text, dialect))))
    except csv.Error:  # a field of more than 128 KB
        records = []
    # Names are text in any table, so the first record says nothing.
    body = records[1:] or records
    if not body:
        return _Reading(replace(dialect, decimal=dialect.decimal or "."), [[]], 0, 0.0, 0.0)
    # The most frequent number and not that of the first line, which may be a title.
    ((n_fields, n),) = Counter(map(len, body)).most_common(1)
    fields = [at for record in body if len(record) == n_fields for at in enumerate(map(str.strip, record))]
    fits = [tuple(bool(pattern.fullmatch(field)) for pattern in _TYPED.values()) for _, field in fields]
    said = _places_of(words, records[0])
    n_point, n_comma = (
        sum(fit[d] for fit, (i, _) in zip(fits, fields, strict=True) if i not in said) for d in (0, 1)
    )
    # Whole numbers fit both signs and count for both.
    dialect = replace(dialect, decimal=dialect.decimal or ("," if n_comma > n_point else "."))
    return _Reading(dialect, records, n_fields, n / len(body), sum(map(any, fits)) / len(fields))


def _places_of(columns: Collection[str], names: Sequence[str]) -> set[int]:
    """The positions of columns that are given by name or by index."""
    return {i for i, name in enumerate(names) if name.strip() in columns or str(i) in columns}


_OTHERS = r"\d{4}-\d\d-\d\d([ T].*)?|\d\d:\d\d(:\d\d(\.\d*)?)?|[Tt]rue|[Ff]alse|TRUE|FALSE|[-+]?inf|"
_OTHERS += "|".join(map(re.escape, _MISSING))
# No group begins with 0: 0.123 has no thousands.
_THOUSANDS = r"[-+]?[1-9]\d{0,2}(%s\d{3})+(%s\d+)?"
_TYPED = {
    d: re.compile("|".join([number_pattern(d), _THOUSANDS % (re.escape(o), re.escape(d)), _OTHERS]))
    for d, o in (".,", ",.")
}


def _is_typed(field: str) -> bool:
    """Whether a field is no text, with either decimal sign."""
    return any(pattern.fullmatch(field) for pattern in _TYPED.values())


def _check_decimal(reading: _Reading, file: str, words: Collection[str]) -> None:
    """Refuse numbers of which both signs may be the decimal one, or commas that may be of thousands."""
    said = _places_of(words, reading.records[0])  # known to hold text
    rows = (enumerate(map(str.strip, record)) for record in reading.records[1:])
    fields = [(field, i + 1) for row in rows for i, field in row if i not in said]
    found = {d: [at for at in fields if d in at[0] and re.fullmatch(number_pattern(d), at[0])] for d in ",."}
    n_comma, n_point = map(len, found.values())
    names = dict(enumerate(reading.records[0], 1)) if not any(map(_is_typed, reading.records[0])) else {}
    first = {d: f"{at[0][0]!r} (column {names.get(at[0][1], at[0][1])!r})" for d, at in found.items() if at}
    # Of a few odd fields the many decide; half as many leave a doubt.
    if n_comma and 2 * min(n_comma, n_point) >= max(n_comma, n_point):
        what = f"both {first[',']} and {first['.']} may be numbers with a decimal sign"
    elif n_comma > n_point and all(re.fullmatch(_THOUSANDS % (",", r"\."), f) for f, _ in found[","]):
        what = f"the comma of {first[',']} may set decimals or thousands apart"
    elif (place := _grouped_by_points(reading)) is not None:
        field = next(field for field, i in found["."] if i == place)
        where = f"{field!r} (column {names.get(place, place)!r})"
        what = f"the point of {where} may set decimals or thousands apart"
    else:
        return
    raise InputError(f"{file}: {what}; give decimal=',' or decimal='.'")


_MIN_GROUPED = 8  # in fewer numbers, three digits after each point are nothing strange


def _grouped_by_points(reading: _Reading) -> int | None:
    """The first column whose numbers have points before each three digits, and have them from 1000 on."""
    for place, column in enumerate(zip_longest(*reading.records[1:], fillvalue=""), 1):
        held = [field.strip() for field in column if field.strip() not in _MISSING]
        grouped = sum(re.fullmatch(r"[-+]?[1-9]\d{0,2}(\.\d{3})+", field) is not None for field in held)
        small = sum(re.fullmatch(r"[-+]?\d{1,3}", field) is not None for field in held)
        if grouped and small and grouped + small == len(held) >= _MIN_GROUPED:
            return place
    return None


# The names of columns.


def _refuse_years(records: list[list[str]], are_names: bool, known: Sequence[str], file: str) -> None:
    """Refuse a first record that may hold names such as 2019, 2020, or the values of a row."""
    first, others = [field.strip() for field in records[0]], records[1:]
    places = [i for i, field in enumerate(first) if _YEAR.fullmatch(field)]
    years = {first[i] for i in places}
    if are_names or known or not 1 < len(places) == len(years) or all(map(_is_typed, first)):
        return
    if not any(all(_YEAR.fullmatch(row[i].strip()) for i in places if i < len(row)) for row in others):
        raise InputError(
            f"{file}, line 1: {listed(first)} may be the names of the columns or a row; give header=True "
            f"(--header) or header=False (--no-header)"
        )


_YEAR = re.compile(r"(19|20)\d\d", re.ASCII)


def _are_names(records: list[list[str]], known: Sequence[str]) -> bool:
    """Whether the first record holds names: what a model needs, or else words and no number."""
    first, others = records[0], records[1:]
    # A model of numbered columns was fitted to rows without names.
    if known and set(known) <= set(map(str, range(len(first)))):
        return False
    if known and set(known) <= set(_named(first, known)):
        return True
    filled = [field for field in map(str.strip, first) if field]
    if not filled or any(map(_is_typed, filled)):
        return False
    if any(_is_typed(f) and f not in _MISSING for record in others for f in map(str.strip, record)):
        return True
    # Without a number anywhere, words that occur again below are values.
    return not any(a == b for record in others for a, b in zip(first, record, strict=False))


def _named(fields: Sequence[str], known: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of columns; those without one are called as pandas calls them."""
    names = (field.strip() for field in fields)  # models of earlier versions have an index for an empty one
    return tuple(name or (str(i) if str(i) in known else f"Unnamed: {i}") for i, name in enumerate(names))
