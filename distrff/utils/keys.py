"""Keys of Dask tasks: by their first words Dask's dashboard groups tasks, and names the groups."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any


def group_of(what: str | Callable[..., Any]) -> str:
    """Return the group of tasks of a pass or a function: "distrff-held-out-errors", "distrff-fold-errors".

    Dask takes the words before the first one that has a digit (`dask.utils.key_split`).
    """
    name = what if isinstance(what, str) else getattr(what, "__qualname__", type(what).__name__)
    return "-".join(["distrff", *re.findall(r"[a-z]+", re.split(r"\d", name.lower())[0])])


def new_key(what: str | Callable[..., Any]) -> str:
    """Return a key in a group that no other task has."""
    return f"{group_of(what)}-{uuid.uuid4().hex}"
