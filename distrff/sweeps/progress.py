"""Progress of a sweep on standard error: a bar for people, plain lines for logs, nothing for two seconds."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_QUIET_SECONDS = 2.0
_BAR_SECONDS = 0.2
_LINE_SECONDS = 15.0
_BAR_WIDTH = 30


class Progress:
    """Counts rows of one sweep, or what else there is to do.

    Parameters
    ----------
    label : str
    n_rows : int
    stream : text stream, optional
        Default standard error.
    unit : str
        Of what is counted, in the plural.
    """

    def __init__(self, label: str, n_rows: int, stream: TextIO | None = None, *, unit: str = "rows") -> None:
        self._label, self._unit = label, unit
        self._n_rows = n_rows
        self._stream = sys.stderr if stream is None else stream
        self._draws_bar = self._stream.isatty() or _in_notebook()
        self._interval = _BAR_SECONDS if self._draws_bar else _LINE_SECONDS
        self._started = time.monotonic()
        self._shown = 0.0
        self._done = 0

    def advance(self, n_rows: int) -> None:
        """Count rows, and show it when there is something new to see."""
        self._done += n_rows
        now = time.monotonic()
        if now - self._started < _QUIET_SECONDS or now - self._shown < self._interval:
            return
        self._shown = now
        self._write(now - self._started)

    def close(self) -> None:
        """End the line, if one was begun."""
        if self._shown and self._draws_bar:
            self._write(time.monotonic() - self._started)
            self._stream.write("\n")
            self._stream.flush()

    def _write(self, seconds: float) -> None:
        share = self._done / self._n_rows
        left = f", {seconds / share - seconds:.0f} s left" if 0 < share < 1 else ""
        text = f"{self._label}: {self._done:,} of {self._n_rows:,} {self._unit}, {seconds:.0f} s{left}"
        if self._draws_bar:
            filled = round(share * _BAR_WIDTH)
            text = f"\r[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {text}\x1b[K"
        else:
            text += "\n"
        self._stream.write(text)
        self._stream.flush()


def _in_notebook() -> bool:
    """Return True in a Jupyter kernel, whose standard error is no terminal but shows carriage returns."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"
