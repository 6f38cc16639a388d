"""What specifications of a kernel's maps share: the kernel, as text that is equal for equal kernels."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from distrff.features.specification import MapSpecification
from distrff.kernels import Kernel, kernel_from_dict


@dataclass(frozen=True)
class KernelMapSpecification(MapSpecification):
    """A fitted map of a kernel, every width a number."""

    kernel_json: str = ""

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel itself."""
        return kernel_from_dict(json.loads(self.kernel_json))

    @property
    def at_zero(self) -> float:
        return self.kernel.at_zero


def canonical_json(data: Any) -> str:
    """Return JSON text that is equal for equal data."""
    return json.dumps(data, sort_keys=True, allow_nan=False)
