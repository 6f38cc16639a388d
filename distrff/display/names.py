"""Names of columns or classes in a line of text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_MOST = 20


def listed(names: Iterable[Any]) -> str:
    """Return the first 20 names, and how many are left out."""
    shown = [str(name) for name in names]
    more = f" and {len(shown) - _MOST:,} more" if len(shown) > _MOST else ""
    return ", ".join(shown[:_MOST]) + more
