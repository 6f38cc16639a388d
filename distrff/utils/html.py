"""HTML that needs nothing outside itself: a whole page, or a card among other outputs of a notebook.

Charts are inline SVG, styles inline CSS. Both follow the reader's light or dark theme: the page that of the
browser, the card that of JupyterLab or VS Code where one of them shows it. They print, fit a telephone, and
are well-formed XML too, so that any parser can check them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from distrff.utils.axes import number_text
from distrff.utils.svg import escape

GENERATOR = '<meta name="generator" content="distrff"/>'  # how a page is known again, to be replaced


def html_page(title: str, body: str) -> str:
    """Return the page as text; write it as UTF-8.

    Parameters
    ----------
    title : str
    body : str
        Sections and other elements, ready to be inlined.
    """
    title = escape(title)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f"{GENERATOR}\n<title>{title}</title>\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        '<meta name="color-scheme" content="light dark"/>\n<link rel="icon" href="data:,"/>\n'
        f'<style>{_PAGE_STYLE}{_STYLE}</style>\n</head>\n<body class="distrff">\n'
        f'<main class="distrff-grid">\n<h1>{title}</h1>\n{body}\n</main>\n</body>\n</html>\n'
    )


def html_card(title: str, body: str) -> str:
    """Return the same as an element for a notebook, as text; its styles touch nothing but itself."""
    return (
        f'<div class="distrff distrff-card"><style>{_STYLE}</style>\n<div class="distrff-grid">\n'
        f'<div class="distrff-title">{escape(title)}</div>\n{body}\n</div>\n</div>\n'
    )


_LIGHT = """--paper: #fcfcfa; --card: var(--jp-layout-color0, #ffffff);
  --ink: var(--jp-content-font-color0, #1b2330); --quiet: #5a6472; --edge: var(--jp-border-color2, #dcdfe4);
  --alert: #fff4dc; --alert-ink: #1b2330; --alert-edge: #b87a00;
  --series-1: #0b62a8; --series-2: #c2560c; --series-3: #2d7d46; --series-4: #7a4fa3;"""
_DARK = """--paper: #14181f; --card: var(--jp-layout-color0, #1b212a);
  --ink: var(--jp-content-font-color0, #e8ebef); --quiet: #a3adba; --edge: var(--jp-border-color2, #333c48);
  --alert: #33290f; --alert-ink: #e8ebef; --alert-edge: #d9a23b;
  --series-1: #6cb6f5; --series-2: #f2a05e; --series-3: #79c992; --series-4: #c3a1e6;"""

_PAGE_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0; background: var(--paper); -webkit-text-size-adjust: 100%; }
main { max-width: 64rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
@media (max-width: 30rem) { main { padding: 0.75rem 0.5rem 2rem; } }
@media print { section, dl, aside { break-inside: avoid; } }
"""

# Hosts style elements by their names: JupyterLab floats dt and dd, and colours table rows below the mouse.
# A card takes all of that back. Its rules exclude an identifier, which no element has: that alone makes them
# outrank rules of classes and names.
_D = ".distrff:not(#_)"
_RESET = f"{_D}:where(.distrff-card), {_D}:where(.distrff-card) :where(:not(svg, svg *)) {{ all: revert; }}"

# A host that says which theme it shows is believed before the browser is. Lengths do not follow the font of
# the host's root, which is 10 pixels in the classic notebook.
_STYLE = f"""
{_RESET}
.distrff {{ {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ .distrff {{ {_DARK} }} }}
body[data-jp-theme-light="true"] .distrff, html[data-theme="light"] .distrff, body.vscode-light .distrff
  {{ {_LIGHT} }}
body[data-jp-theme-light="false"] .distrff, html[data-theme="dark"] .distrff, body.vscode-dark .distrff
  {{ {_DARK} }}
{_D} {{ color: var(--ink);
  font: 1rem/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }}
{_D} * {{ box-sizing: border-box; }}
{_D}.distrff-card {{ box-sizing: border-box; max-width: 64em; padding: 0.85em; background: var(--card);
  border: 1px solid var(--edge); border-radius: 0.5em; font-size: 14px; }}
{_D} .distrff-title {{ grid-column: 1 / -1; font-weight: 600; overflow-wrap: anywhere; }}
{_D} .distrff-grid {{ display: grid; gap: 1em;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24em), 1fr)); }}
{_D} h1, {_D} dl, {_D} aside, {_D} .wide {{ grid-column: 1 / -1; }}
{_D} h1 {{ margin: 0.15em 0 0; font-size: 1.6em; line-height: 1.2; overflow-wrap: anywhere; }}
{_D} h2 {{ margin: 0 0 0.75em; font-size: 1.05em; font-weight: 600; line-height: 1.3; }}
{_D} section, {_D} dl {{ min-width: 0; margin: 0; padding: 1em; background: var(--card);
  border: 1px solid var(--edge); border-radius: 0.5em; }}
{_D} dl {{ display: grid; gap: 0.75em 1.5em; grid-auto-flow: dense;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 11em), 1fr)); }}
{_D} dl .long {{ grid-column: 1 / -1; }}
{_D} dt {{ color: var(--quiet); font-size: 0.85em; font-weight: 400; }}
{_D} dd {{ margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }}
{_D} aside {{ padding: 0.75em 1em; background: var(--alert); color: var(--alert-ink);
  border-left: 0.3em solid var(--alert-edge); border-radius: 0.25em; overflow-wrap: anywhere; }}
{_D} ul {{ margin: 0.25em 0 0; padding-left: 1.2em; }}
{_D} p {{ margin: 0.5em 0 0; color: var(--quiet); font-size: 0.9em; }}
{_D} svg {{ display: block; width: 100%; max-width: 34em; height: auto; font-family: inherit;
  font-variant-numeric: tabular-nums; }}
{_D} .table {{ overflow-x: auto; }}
{_D} .table + svg, {_D} svg + svg {{ margin-top: 0.75em; }}
{_D} table {{ width: 100%; margin: 0; border-collapse: collapse; font-size: 0.95em;
  font-variant-numeric: tabular-nums; }}
{_D} th, {_D} td {{ padding: 0.35em 0 0.35em 0.75em; border-bottom: 1px solid var(--edge);
  text-align: right; vertical-align: baseline; }}
{_D} td {{ white-space: nowrap; }}
{_D} th:first-child {{ padding-left: 0; text-align: left; font-weight: 500; }}
{_D} thead th {{ color: var(--quiet); font-weight: 500; font-size: 0.85em; }}
{_D} tbody tr:last-child > * {{ border-bottom: 0; }}
@media (max-width: 30rem) {{ {_D} .distrff-grid {{ gap: 0.5em; }}
  {_D} section, {_D} dl {{ padding: 0.75em; }} {_D} svg {{ font-size: 13px; }}
  {_D} dl {{ gap: 0.5em 1em; grid-template-columns: repeat(auto-fill, minmax(8em, 1fr)); }} }}
{_D}.distrff-card .distrff-grid {{ gap: 1em 1.5em; }}
{_D}.distrff-card section, {_D}.distrff-card dl {{ padding: 0; border: 0; }}
"""


# Pieces of a page: cards with a heading, named values, sentences, tables. All texts are escaped.

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
