"""Callbacks of a fit: what may be given as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distrff.engine.progress import SweepProgress
from distrff.errors import InputError


def callbacks_of(estimator: Any) -> list[Callable[[SweepProgress], Any]]:
    """Return the callbacks of a new fit of the estimator.

    Raises InputError for what is no list of functions.
    """
    given = getattr(estimator, "callbacks", None)
    if given is None:
        return []
    if not isinstance(given, (list, tuple)):
        raise InputError(f"callbacks must be None or a list of functions, got {given!r}; give [{given!r}]")
    for callback in given:
        if not callable(callback):
            raise InputError(f"callbacks must be functions of a SweepProgress, got {callback!r}")
    return list(given)
