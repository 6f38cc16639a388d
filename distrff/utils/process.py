"""What this process has to do once before its first task, and what it did since it began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

# How often a map's arrays were derived, and whatever else the record of a task tells.
COUNTS: Counter[str] = Counter()

_BEFORE_FIRST_TASK: list[Callable[[], None]] = []


def before_first_task(prepare: Callable[[], None]) -> None:
    """Have a worker call `prepare` before its idle memory is measured: it loads what tasks will use."""
    if prepare not in _BEFORE_FIRST_TASK:
        _BEFORE_FIRST_TASK.append(prepare)


def prepare_process() -> None:
    """Call all that is to be called before the first task."""
    for prepare in _BEFORE_FIRST_TASK:
        prepare()
