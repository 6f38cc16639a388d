"""Progress of a pass: nothing for two seconds, then a bar, in a terminal or a notebook."""

from __future__ import annotations

import sys

from tqdm import tqdm


class Progress(tqdm):
    """A bar on standard error after two seconds, removed at the end; none if that is not a terminal.

    A notebook shows the bar as text. `tqdm.auto` would make widgets for each of hundreds of passes, most of
    which end within two seconds, and warns if ipywidgets is missing.

    `total` is the amount of work, usually the rows of the pass, and `unit` its unit in the plural.
    """

    monitor_interval = 0  # no monitor thread of tqdm, as each update may draw

    def __init__(self, label: str, total: int, unit: str = "rows") -> None:
        stream = sys.stderr
        is_watched = stream.isatty() or type(stream).__module__ == "ipykernel.iostream"
        super().__init__(
            desc=label,
            total=total,
            unit=f" {unit}",
            unit_scale=True,
            file=stream,
            disable=not is_watched,
            delay=2,
            mininterval=0.2,
            miniters=1,
            leave=False,
            dynamic_ncols=True,
        )
