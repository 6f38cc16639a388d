"""Progress of a sweep: nothing for two seconds, then as the screen shows it."""

from __future__ import annotations

import sys
import time
from html import escape
from typing import Any, Protocol, TextIO

_QUIET_SECONDS = 2.0


class Progress:
    """Counts rows of one sweep, or what else there is to do.

    Parameters
    ----------
    label : str
    n_rows : int
    screen : Screen, optional
        Default: the notebook, or standard error.
    unit : str
        Of what is counted, in the plural.
    """

    def __init__(self, label: str, n_rows: int, screen: Screen | None = None, *, unit: str = "rows") -> None:
        self._label, self._unit = label, unit
        self._n_rows = n_rows
        self._screen = screen_for() if screen is None else screen
        self._started = time.monotonic()
        self._shown = 0.0
        self._done = 0

    def begin(self) -> None:
        """Count from the start, also of a pass that is made again."""
        self._done = 0

    def advance(self, n_rows: int) -> None:
        """Count rows, and show it when there is something new to see."""
        self._done += n_rows
        now = time.monotonic()
        # Many short sweeps are as long to wait for as one, where they have a line in common.
        waited = self._screen.waited + now - self._started
        if waited < _QUIET_SECONDS or now - self._shown < self._screen.interval:
            return
        self._shown = now
        self._screen.show(*self._state(now - self._started))

    def close(self) -> None:
        """Show where it ended, if anything was shown."""
        seconds = time.monotonic() - self._started
        self._screen.end(*self._state(seconds), was_shown=self._shown > 0, seconds=seconds)

    def _state(self, seconds: float) -> tuple[float, str]:
        """Return the share that is done, and all there is to say."""
        share = self._done / self._n_rows
        left = f", {seconds / share - seconds:.0f} s left" if 0 < share < 1 else ""
        return share, f"{self._label}: {self._done:,} of {self._n_rows:,} {self._unit}, {seconds:.0f} s{left}"


# Where progress is shown: a bar on a terminal, plain lines in a log, one line of a notebook, rewritten.

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
