"""One HTML page that needs nothing outside itself.

Charts are inline SVG, styles inline CSS; the page follows the reader's light or dark theme, prints, and
fits a telephone. It is well-formed XML too, so that any parser can check it.
"""

from __future__ import annotations

from distrff.diagnostics.svg import escape


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
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        '<meta name="color-scheme" content="light dark"/>\n<link rel="icon" href="data:,"/>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def section(heading: str, content: str, *, wide: bool = False) -> str:
    """Return a card of the page; a wide one takes the whole width."""
    name = ' class="wide"' if wide else ""
    return f"<section{name}>\n<h2>{escape(heading)}</h2>\n{content}\n</section>"


_STYLE = """
:root { color-scheme: light dark; --paper: #fcfcfa; --card: #ffffff; --ink: #1b2330; --quiet: #5a6472;
  --edge: #dcdfe4; --alert: #fff4dc; --alert-edge: #b87a00;
  --series-1: #0b62a8; --series-2: #c2560c; --series-3: #2d7d46; --series-4: #7a4fa3; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --card: #1b212a; --ink: #e8ebef;
  --quiet: #a3adba; --edge: #333c48; --alert: #33290f; --alert-edge: #d9a23b;
  --series-1: #6cb6f5; --series-2: #f2a05e; --series-3: #79c992; --series-4: #c3a1e6; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.45;
  font: 1rem/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  -webkit-text-size-adjust: 100%; }
main { max-width: 64rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); align-items: start; }
h1, dl, aside, .wide { grid-column: 1 / -1; }
h1 { margin: 0.25rem 0 0; font-size: 1.6rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 0 0 0.75rem; font-size: 1.05rem; }
section, dl { min-width: 0; margin: 0; padding: 1rem; background: var(--card);
  border: 1px solid var(--edge); border-radius: 0.5rem; }
dl { display: grid; gap: 0.75rem 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 11rem), 1fr)); }
dt { color: var(--quiet); font-size: 0.85rem; }
dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
aside { padding: 0.75rem 1rem; background: var(--alert); border-left: 0.3rem solid var(--alert-edge);
  border-radius: 0.25rem; overflow-wrap: anywhere; }
ul { margin: 0.25rem 0 0; padding-left: 1.2rem; }
p { margin: 0.5rem 0 0; color: var(--quiet); font-size: 0.9rem; }
svg { display: block; width: 100%; max-width: 34rem; height: auto; font-family: inherit;
  font-variant-numeric: tabular-nums; }
.table { overflow-x: auto; }
.table + svg { margin-top: 0.75rem; }
table { width: 100%; border-collapse: collapse; font-size: 0.95rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.35rem 0 0.35rem 0.75rem; border-bottom: 1px solid var(--edge); text-align: right;
  vertical-align: baseline; }
td { white-space: nowrap; }
th:first-child { padding-left: 0; text-align: left; font-weight: 500; }
thead th { color: var(--quiet); font-weight: 500; font-size: 0.85rem; }
tbody tr:last-child > * { border-bottom: 0; }
@media (max-width: 30rem) { main { padding: 0.75rem 0.5rem 2rem; gap: 0.5rem; }
  section, dl { padding: 0.75rem; } svg { font-size: 13px; }
  dl { gap: 0.5rem 1rem; grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); } }
@media print { section, dl, aside { break-inside: avoid; } }
"""
