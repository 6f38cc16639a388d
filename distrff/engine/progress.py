"""What a person sees of a fit: one line that is drawn again, or lines in a log."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Any, Protocol, Self

logger = logging.getLogger(__name__)

QUIET_SECONDS = 2.0
REDRAW_SECONDS = 0.2
_LOG_SECONDS = 10.0


class RowCount(Protocol):
    """What a pass tells of its rows."""

    n: int

    def update(self, n: int) -> Any:
        """Count more rows."""


def _is_notebook(stream: Any) -> bool:
    return type(stream).__module__ == "ipykernel.iostream"


def is_watched(stream: Any) -> bool:
    """Return whether a person sees what is drawn over: a terminal, or a notebook."""
    return stream.isatty() or _is_notebook(stream)


# The line of a fit, which stays from its first pass to its last.

_ECHO: ContextVar[Callable[[str], None] | None] = ContextVar("echo", default=None)


@contextmanager
def lines_echoed(echo: Callable[[str], None]) -> Iterator[None]:
    """Write lines of the fits in the block by `echo` where nobody watches: one in ten seconds at most."""
    token = _ECHO.set(echo)
    try:
        yield
    finally:
        _ECHO.reset(token)


class FitLine:
    """One line on standard error that is drawn again and again; nothing in the first two seconds of a fit.

    Where standard error is no terminal or notebook, nothing is drawn; the texts between passes go to the
    `lines_echoed`, if there are any. As a `RowCount` it follows one pass after another.
    """

    def __init__(self) -> None:
        self._stream, self._echo = sys.stderr, _ECHO.get()
        self._is_watched = is_watched(self._stream)
        self._began = self._spoke = monotonic()
        self._text, self._stays = "", False
        self._n_drawn = 0  # characters that are shown
        self._label, self._n_rows, self.n = "", 0, 0
        self._pass_began = self._began

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stay until the next pass, as the client may work for minutes in between, unless logs come."""
        self._n_rows = 0
        if logger.isEnabledFor(logging.INFO):
            self.clear()

    def begin_pass(self, label: str, n_rows: int) -> Self:
        """Count the rows of another pass from now on."""
        self._label, self._n_rows, self.n, self._pass_began = label, n_rows, 0, monotonic()
        self._draw_when_due()
        return self

    def update(self, n: int) -> None:
        """Count more rows of the pass."""
        self.n += n
        self._draw_when_due()

    def say(self, text: str, *, stays: bool = True) -> None:
        """Show another text; it `stays` beside the share of the next pass, or goes when that begins."""
        self._text, self._stays = text, stays
        now = monotonic()
        if not self._is_watched and self._echo is not None and now >= self._spoke + _LOG_SECONDS:
            self._spoke = now
            self._echo(text)
        self._draw_when_due()

    def clear(self) -> None:
        """Remove the line until it is drawn again."""
        if self._n_drawn:
            self._write("\r" + " " * self._n_drawn + "\r")
            self._n_drawn = 0

    def _draw_when_due(self) -> None:
        now = monotonic()
        if not self._is_watched or now < self._began + QUIET_SECONDS:
            return
        if now < self._spoke + REDRAW_SECONDS:
            return
        self._spoke = now
        text = self._of_pass(now) if self._n_rows else self._text
        if not _is_notebook(self._stream):
            text = text[: shutil.get_terminal_size().columns - 1]
        self._write("\r" + text.ljust(self._n_drawn))
        self._n_drawn = len(text)

    def _of_pass(self, now: float) -> str:
        share = f"{self.n / self._n_rows:.0%}"
        if self._stays:  # the whole has to fit in 80 columns
            return f"{self._text} · {share}"
        text = f"{self._label}, {share} of {self._n_rows:,} rows"
        if not self.n:
            return text
        left = (now - self._pass_began) * (self._n_rows - self.n) / self.n
        return f"{text} · about {roughly(left)} left of this pass"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def roughly(seconds: float) -> str:
    """Write a duration with two digits at most, in the unit that people would say."""
    if seconds < 1:
        return f"{seconds:.1g} s"
    if seconds < 90:
        return f"{float(f'{seconds:.2g}'):g} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{float(f'{minutes / 60:.2g}'):g} h"
