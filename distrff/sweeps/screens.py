"""Where progress is shown: a bar on a terminal, plain lines in a log, one line of a notebook, rewritten."""

from __future__ import annotations

import sys
from typing import Any, Protocol, TextIO

from distrff.display.svg import escape

_BAR_WIDTH = 30


class Screen(Protocol):
    """What progress is shown on.

    Attributes
    ----------
    interval : float
        Seconds between two sights of the same work.
    waited : float
        Seconds of work before this one whose line it goes on with; 0 where each has a line of its own.
    """

    interval: float
    waited: float

    def show(self, share: float, text: str) -> None:
        """Show how far the work is."""
        ...

    def end(self, share: float, text: str, *, was_shown: bool, seconds: float) -> None:
        """Take leave of work that took so long."""
        ...


def screen_for(stream: TextIO | None = None) -> Screen:
    """Return what people look at: the notebook, or the stream, by default standard error."""
    display = _notebook_display()
    if display is not None:
        return Notebook(display)
    stream = sys.stderr if stream is None else stream
    return Terminal(stream) if stream.isatty() else Log(stream)


class Log:
    """Plain lines, a few a minute."""

    interval = 15.0
    waited = 0.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, share: float, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def end(self, share: float, text: str, *, was_shown: bool, seconds: float) -> None:
        pass


class Terminal:
    """A bar that is drawn again in its line."""

    interval = 0.2
    waited = 0.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, share: float, text: str) -> None:
        filled = round(share * _BAR_WIDTH)
        self._stream.write(f"\r[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {text}\x1b[K")
        self._stream.flush()

    def end(self, share: float, text: str, *, was_shown: bool, seconds: float) -> None:
        if was_shown:
            self.show(share, text)
            self._stream.write("\n")
            self._stream.flush()


class Notebook:
    """One output that all work rewrites which shares the screen, in the browser's own colours.

    Parameters
    ----------
    display : callable
        IPython's.
    """

    interval = 0.5

    def __init__(self, display: Any) -> None:
        self.waited = 0.0
        self._display = display
        self._handle: Any = None

    def show(self, share: float, text: str) -> None:
        bar = f'<progress value="{share:.3f}" max="1" style="width: 12em; vertical-align: middle"></progress>'
        output = {
            "text/html": f'<div style="font-variant-numeric: tabular-nums">{bar} {escape(text)}</div>',
            "text/plain": text,
        }
        if self._handle is None:
            self._handle = self._display(output, raw=True, display_id=True)
        else:
            self._handle.update(output, raw=True)

    def end(self, share: float, text: str, *, was_shown: bool, seconds: float) -> None:
        self.waited += seconds
        if was_shown:
            self.show(share, text)


def _notebook_display() -> Any:
    """Return IPython's `display` in a Jupyter kernel, else None; what is not imported is not in use."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if type(shell).__name__ != "ZMQInteractiveShell":
        return None
    return ipython.display.display  # type: ignore[union-attr]
