"""Pieces of a page: cards with a heading, named values, sentences, tables. All texts are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from distrff.display.axes import number_text
from distrff.display.svg import escape

_MOST_IN_A_COLUMN = 22  # characters of a value; a longer one has a row for itself


def section(heading: str, content: str, *, wide: bool = False) -> str:
    """Return a card whose content is ready to be inlined; a wide one takes the whole width."""
    name = ' class="wide"' if wide else ""
    return f"<section{name}>\n<h2>{escape(heading)}</h2>\n{content}\n</section>"


def facts(pairs: Iterable[Sequence[Any]]) -> str:
    """Return names with their values, as texts."""
    return "<dl>\n{}\n</dl>".format("\n".join(_fact(name, str(value)) for name, value in pairs))


def notes(sentences: Iterable[str]) -> str:
    """Return sentences that should not be overlooked."""
    items = "\n".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<aside aria-label="Notes">\n<strong>Notes</strong>\n<ul>\n{items}\n</ul>\n</aside>'


def paragraph(text: str) -> str:
    """Return a remark below a chart."""
    return f"<p>{escape(text)}</p>"


def table(columns: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table whose first column names the rows; only the table scrolls when it is too wide.

    Numbers are written with three digits; what is None is a dash.
    """
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    lines = []
    for first, *rest in rows:
        cells = "".join(f"<td>{_cell(value)}</td>" for value in rest)
        lines.append(f'<tr><th scope="row">{_cell(first)}</th>{cells}</tr>')
    body = "\n".join(lines)
    whole = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    return f'<div class="table" tabindex="0">\n{whole}\n</div>'


def _fact(name: str, value: str) -> str:
    place = ' class="long"' if len(value) > _MOST_IN_A_COLUMN else ""
    return f"<div{place}><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"


def _cell(value: Any) -> str:
    is_number = value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
    return escape(number_text(value) if is_number else value)
