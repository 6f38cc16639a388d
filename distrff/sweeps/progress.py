"""Progress of a sweep: nothing for two seconds, then as the screen shows it."""

from __future__ import annotations

import time

from distrff.sweeps.screens import Screen, screen_for

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
