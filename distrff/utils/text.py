"""What people read: numbers, quantities, kernels, names and URLs in a line of text, and pages of HTML.

How a page looks is in the template page.html beside this file. All texts are escaped there.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from distrff.errors import InputError

if TYPE_CHECKING:
    from jinja2 import Template

Number = float | int | None
T = TypeVar("T")


def number_text(value: Number, *, trim: bool = False) -> str:
    """Write a number for reading: three significant digits, integers up to a billion in full.

    `trim` leaves out zeros at the end, as suits the ticks of an axis.
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0 or (isinstance(value, int) and abs(value) < 10**9):
        return f"{value:,.0f}"
    # By the digits that are shown: .9996 is 1.00, and has the exponent of 1.
    text, exponent = f"{value:.2e}".split("e")
    plain = -5 < int(exponent) < 6
    if plain:
        text = f"{float(text) * 10.0 ** int(exponent):,.{max(0, 2 - int(exponent))}f}"
    if trim and "." in text:
        text = text.rstrip("0").rstrip(".")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return text if plain else f"{text}×10{raised}"


def si_text(value: float, unit: str) -> str:
    """A quantity with three digits and a decimal prefix of its unit."""
    for prefix in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} T{unit}"


def human_bytes(n_bytes: float) -> str:
    """A number of bytes with three digits and a decimal unit."""
    return si_text(n_bytes, "B")


def human_seconds(seconds: float) -> str:
    """A duration with three digits below two minutes, beyond that in minutes and hours."""
    if seconds == 0:
        return "0 s"
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (119.5, 1, "s")):
        if seconds < limit:
            return f"{number_text(float(seconds) * factor)} {unit}"
    # Rounded before it is split, or 119.9 s would be 1 min 60 s.
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{minutes} min {rest} s" if not hours else f"{hours:,} h {minutes} min"


def quantity_text(value: Number, unit: str) -> str:
    """Write a quantity for reading: bytes and seconds in fitting units, others with three digits."""
    if value is None or not math.isfinite(value):
        return "–"
    if unit == "bytes":
        return human_bytes(value)
    if unit == "s":
        return human_seconds(value)
    return f"{number_text(value)} {unit}".strip()


# Names of columns or classes in a line of text.

_MAX_LISTED = 20


def listed(names: Collection[Any]) -> str:
    """The first 20 names, and how many are left out."""
    more = f" and {len(names) - _MAX_LISTED:,} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(map(str, islice(names, _MAX_LISTED))) + more


def first_repeated(names: Collection[T]) -> T | None:
    """The first name that is there more than once; None if each is there once."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def column_text(name: str) -> str:
    """The name of a column; a number alone is its index."""
    return f"column {name}" if name.isdigit() else name


# A kernel's repr, short enough to be read.

_MAY_BREAK = "\u200b"  # a space of no width
_MAX_WIDTHS = 8


def kernel_text(kernel: str) -> str:
    """The repr with its numbers to four digits, and with places where a line may break.

    A long list of length scales is replaced by how many there are.
    """
    many = rf"\(([^(),]+, ){{{_MAX_WIDTHS},}}[^(),]*\)"
    kernel = re.sub(many, lambda widths: f"{widths[0].count(', ') + 1} widths", kernel)
    short = re.sub(r"\d+\.\d{4,}(e[-+]?\d+)?", lambda number: f"{float(number[0]):.4g}", kernel)
    return re.sub(r"([(=])", rf"\1{_MAY_BREAK}", short)


# The public part of a URL, which messages may show: the place, without user names, passwords and keys.
#
# A password that is not percent-encoded makes a URL ambiguous: `s3://user:pa/ss@bucket/x` may as well be
# the path `ss@bucket/x` of a host `user:pa`. What is hidden is what any reading takes for a secret: all
# between `://` and the last `@`, and all from the first `?` or `#` on. Only where nothing before the first
# slash looks like a password, does an `@` in the path stay.

HIDDEN = "***"
"""Stands for a URL of which no part is public in every reading."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/{1,3}")
_CHAIN = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*(?:://|::))")  # of fsspec: simplecache::s3://bucket/x
# A user or container without a password, and a host or bucket. One with a capital may be a key.
_PLAIN = r"(?:[\w.~%+-]*@)?(?P<host>[a-z0-9._*-]*)"
_WHOLE = re.compile(_PLAIN + r"(?=[/?#]|$)")
_IN_TEXT = re.compile(_PLAIN + r"(?P<port>:\d+(?![\w/@]))?(?=[/?#\s'\"`<>(),;\]}]|::|:(?:\s|$)|$)")
_NEXT_URL = re.compile(r"(?:(?<=[\s'\"`<>(\[,;={])|(?<=::))" + _SCHEME.pattern)
_HOST_AND_PORT = re.compile(r"[^:]*:\d*|\[.*\](:\d*)?|arn:.*")  # S3's access points begin with arn:
_ENDS = re.compile(r"[\s'\"`<>]")
_QUERY = re.compile(r"[?#](?=\S)")
_KEY_PATH = re.compile(r"(^|/)[^/]*?:.*@", re.DOTALL)  # user:password@bucket/key, as file systems strip it
_WORD = re.compile(r"[^\s'\"]+")
_QUERY_WORD = re.compile(r"\?[^\s'\"=]+=[^\s'\"]*")


def in_one_line(value: Any) -> str:
    """A value, or an error's message, in one line of at most 160 characters: it may be huge."""
    return " ".join(str(value)[:1000].split())[:160]


def public_name(path: Any) -> str:
    """A path or URL, perhaps one of fsspec's chains, without user names, passwords and queries."""
    text = path if isinstance(path, str) else str(path)
    return "::".join(map(_public_link, _CHAIN.split(text)))


def public_text(text: str) -> str:
    """A message, perhaps of another library, with each URL in it as `public_name` has it."""
    shown, at = [], 0
    while found := _SCHEME.search(text, at):
        shown.append(_without_words(text[at : found.start()]))
        following = _NEXT_URL.search(text, found.end())
        limit = following.start() if following else len(text)
        url, at = _public_start(text, found, limit)
        shown.append(url)
    return "".join([*shown, _without_words(text[at:])])


def refuse_open_secret(url: str) -> None:
    """Refuse a URL that holds a password with a slash, ? or #, which no library takes for one.

    They would look for a host or bucket that is half of the password, and name it in their errors.
    """
    for link in _CHAIN.split(url):
        scheme, _, rest = link.partition("://")
        head = re.split("[/?#]", rest, maxsplit=1)[0]
        is_port = _HOST_AND_PORT.fullmatch(head)
        if scheme and ":" in head and "@" not in head and "@" in rest and not is_port:
            raise InputError(
                f"{public_name(url)}: a user name or password with a slash, ? or # cannot be read from a "
                f"URL; write %2F, %3F or %23, or give it by storage_options (--storage-option)"
            )


def _public_link(link: str) -> str:
    scheme = _SCHEME.match(link)
    if scheme is None:
        return public_text(link) if "://" in link else _QUERY_WORD.sub("", _KEY_PATH.sub(r"\1", link))
    return scheme.group() + _public_rest(link[scheme.end() :])


def _public_rest(rest: str) -> str:
    """The public part of all that follows on `://`."""
    plain = _WHOLE.match(rest)
    if plain:
        path = re.split("[?#]", rest[plain.end() :], maxsplit=1)[0]
        inner = _SCHEME.search(path)  # a proxy's: https://proxy/https://user:password@host/x
        if inner:
            path = path[: inner.start()] + _public_link(path[inner.start() :])
        return plain["host"] + path
    end, query = rest.rfind("@"), re.search("[?#]", rest)
    if query is None:
        return rest[end + 1 :]
    # A ? before the @ belongs to the password, or the @ to the query.
    return rest[end + 1 : query.start()] if end < query.start() else HIDDEN


def _public_start(text: str, scheme: re.Match[str], limit: int) -> tuple[str, int]:
    """The public part of the URL with this scheme in a text, and the place where it ends."""
    begin = scheme.end()
    quote = text[scheme.start() - 1 : scheme.start()]
    closing = text.find(quote, begin, limit) if quote in tuple("'\"`") else -1
    if closing >= 0 and (_WHOLE.match(text[begin:closing]) or "@" in text[begin:closing]):
        return _public_link(text[scheme.start() : closing]), closing
    plain = _IN_TEXT.match(text, begin, limit)
    if plain is None and "@" in text[begin:limit]:
        return scheme.group() + _public_rest(text[begin:limit]), limit
    stop = plain.end() if plain else begin
    word_end = _ENDS.search(text, stop, limit)
    query = _QUERY.search(text, stop, word_end.start() if word_end else limit)
    host = plain["host"] + (plain["port"] or "") if plain else ""
    if query:  # it may hold blanks, so where it ends is not known
        return scheme.group() + host + text[stop : query.start()], limit
    return scheme.group() + host, stop


def _without_words(text: str) -> str:
    """A text without a URL in it; file systems quote theirs without the scheme."""
    return _QUERY_WORD.sub("", _WORD.sub(_without_key, text))


def _without_key(word: re.Match[str]) -> str:
    """A word without the user:password@ in it; one pattern for that would take cubic time."""
    text = word.group()
    end = text.rfind("@")
    colon = text.find(":", 0, max(end, 0))
    if colon < 0:
        return text
    begin = 1 + max(text.rfind(separator, 0, colon) for separator in "/=(")
    return text[:begin] + text[end + 1 :]


# HTML that needs nothing outside itself: a whole page, or a card among other outputs of a notebook.

GENERATOR = '<meta name="generator" content="distrff"/>'  # how a page is known again, to be replaced
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Table(NamedTuple):
    """A table whose first column names the rows; numbers get three digits, and None is a dash."""

    columns: Sequence[Any]
    rows: Sequence[Sequence[Any]]


class Bars(NamedTuple):
    """Horizontal bars; a row is (label, value, value as text)."""

    rows: Sequence[tuple[str, Number, str]]

    def percent(self, value: Number) -> float:
        """Length of a bar in percent of the longest; 0 for missing or negative values."""
        longest = max(map(_length, (row[1] for row in self.rows)))
        return 100 * _length(value) / longest if longest else 0.0


class Chart(NamedTuple):
    """An ``<svg>`` element."""

    svg: str


class Facts(NamedTuple):
    """Names with their values, in this order on screens of any width."""

    pairs: Sequence[Sequence[Any]]


class Items(NamedTuple):
    """A list of sentences."""

    sentences: Sequence[str]


Part = str | Table | Bars | Chart | Facts | Items
"""The content of a section; a text is a paragraph."""


class Section(NamedTuple):
    """A heading with the parts below it. A wide one takes the whole width."""

    heading: str
    parts: Sequence[Part]
    wide: bool = False


def html_page(
    title: str,
    facts: Iterable[Sequence[Any]] = (),
    notes: Sequence[str] = (),
    sections: Iterable[Section] = (),
    *,
    alerts: Sequence[str] = (),
    is_card: bool = False,
) -> str:
    """The page as text; write it as UTF-8.

    Its `alerts` are sentences that should not be overlooked, its `facts` names with their values, its
    `notes` sentences that call for nothing. With `is_card` it is an element for a notebook instead, whose
    styles touch nothing but itself.
    """
    values = {"title": title, "alerts": alerts, "facts": [*facts], "notes": notes, "sections": [*sections]}
    # Names of columns may hold control characters, which no escape makes valid.
    return _NOT_IN_XML.sub("\ufffd", _template().render(generator=GENERATOR, is_card=is_card, **values))


html_card = partial(html_page, is_card=True)


def page_lines(facts: Iterable[Sequence[Any]], sections: Iterable[Section] = ()) -> Iterator[str]:
    """Facts and sections as lines of text; drawings are left out."""
    yield from (f"{name}: {_shown(value)}" for name, value in facts)
    for section in sections:
        lines = [line for part in section.parts for line in part_lines(part)]
        if lines:
            yield f"{section.heading}:"
            yield from (f"  {line}" for line in lines)


def part_lines(part: Part) -> Iterator[str]:
    """One part as lines of text; none for a drawing."""
    if isinstance(part, Table):
        rows = [[str(_shown(value)) for value in row] for row in (part.columns, *part.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            yield "  ".join(map(str.ljust, row, widths)).rstrip()
    elif isinstance(part, Facts):
        yield from (f"{name}: {_shown(value)}" for name, value in part.pairs)
    elif isinstance(part, Items):
        yield from part.sentences
    elif isinstance(part, str):
        yield part


@cache
def _template() -> Template:
    from jinja2 import Environment  # only where something is shown

    environment = Environment(autoescape=True, finalize=_shown, keep_trailing_newline=True)
    return environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def _shown(value: Any) -> Any:
    is_number = value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
    return number_text(value) if is_number else value


def _length(value: Number) -> float:
    # 100 times the longest bar has to be finite.
    return 0.0 if value is None or not math.isfinite(value) else min(max(value, 0.0), 1e300)
