"""HTML that needs nothing outside itself: a whole page, or a card among other outputs of a notebook.

How it looks is in the template page.html beside this file. All texts are escaped there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distrff.utils.text import Number, number_text

if TYPE_CHECKING:
    from jinja2 import Template

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
