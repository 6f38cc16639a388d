"""Names of columns or classes in a line of text."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Any

_MOST = 20


def listed(names: Collection[Any]) -> str:
    """Return the first 20 names, and how many are left out."""
    more = f" and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
    return ", ".join(map(str, islice(names, _MOST))) + more
