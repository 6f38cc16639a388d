"""What a person sees of one pass: a bar. It is apart from the line of a fit, which needs no tqdm."""

from __future__ import annotations

import sys

from tqdm import tqdm

from distrff.engine.progress import QUIET_SECONDS, REDRAW_SECONDS, is_watched


class Progress(tqdm):
    """A bar on standard error after two seconds, removed at the end; none if that is not a terminal.

    `with` removes it even after Ctrl-C; a bar that is kept open clutters the next one.
    """

    # tqdm's own thread would ask ten times a second whether a bar is late, and none is: `update` draws after
    # any number of rows (`miniters`).
    monitor_interval = 0
    n: int  # rows so far

    def __init__(self, label: str, total: int, unit: str = "rows") -> None:
        stream = sys.stderr
        super().__init__(
            desc=label,
            total=total,
            unit=f" {unit}",
            unit_scale=True,
            file=stream,
            disable=not is_watched(stream),
            delay=QUIET_SECONDS,
            mininterval=REDRAW_SECONDS,
            miniters=1,
            leave=False,
            dynamic_ncols=True,
        )
