"""Results as strict JSON data, from which notebooks, the command line and pages show them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


class StrictMapping(Mapping[str, Any]):
    """A read-only mapping of strict JSON values."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values: dict[str, Any] = strict(dict(values))

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def to_dict(self) -> dict[str, Any]:
        """A copy as plain data."""
        return json.loads(json.dumps(self._values, allow_nan=False))


def strict(value: Any) -> Any:
    """The value as strict JSON data: NumPy unwrapped, non-finite numbers null."""
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return strict(value.tolist())
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, np.generic):
        return strict(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
