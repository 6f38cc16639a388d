"""Tasks in threads of this process that nobody waits for any more, and how they end early.

A thread cannot be interrupted. After Ctrl-C those of a pass would sum their segments to the end, and neither
the process nor the next fit would have its cores before that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_THIS_THREAD = threading.local()
_ABANDONED: set[str] = set()


class Abandoned(Exception):
    """Nobody waits for the result of this task."""


@contextmanager
def working_for(work: str) -> Iterator[None]:
    """Say for which work this thread runs the block."""
    before = getattr(_THIS_THREAD, "work", None)
    _THIS_THREAD.work = work
    try:
        yield
    finally:
        _THIS_THREAD.work = before


def abandon(work: str) -> None:
    """Let all threads of a work end at their next tile."""
    _ABANDONED.add(work)


def check_wanted() -> None:
    """Raise Abandoned if nobody waits for what this thread does."""
    if _ABANDONED and getattr(_THIS_THREAD, "work", None) in _ABANDONED:
        raise Abandoned
