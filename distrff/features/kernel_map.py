"""What maps of a kernel share: their parameter, its widths, and the kernel in their specifications."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import numpy as np

from distrff.errors import InputError
from distrff.features.base import FeatureMap
from distrff.features.pilot import Pilot, PilotRows
from distrff.features.row_question import Ask
from distrff.features.specification import MapSpecification
from distrff.features.widths import chosen_widths, width_flops
from distrff.kernels import Gaussian, Kernel, kernel_from_dict


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


class KernelFeatureMap(FeatureMap):
    """Base of the maps with a parameter `kernel`, whose widths `fit` may have to find."""

    kernel: Kernel | None
    kernel_: Kernel
    length_scale_search_: dict[str, Any] | None
    _default_kernel: ClassVar[Kernel] = Gaussian()
    _tempers_ard: ClassVar[bool] = False  # whether its pilot judges learned widths as well

    def check_parameters(self) -> None:
        """Raise InputError for parameters that no data could make right."""
        if self.kernel is not None and not isinstance(self.kernel, Kernel):
            raise InputError(f"kernel must be a distrff kernel or None, got {self.kernel!r}")

    @property
    def _chosen_kernel(self) -> Kernel:
        """The kernel asked for, widths undecided as they may be."""
        return self._default_kernel if self.kernel is None else self.kernel

    def _pilot(self, rows: PilotRows) -> Pilot:
        """Return the small machine of this map by which widths are judged."""
        raise NotImplementedError

    def _pilot_flops(self, n_rows: int, n_columns: int) -> float:
        """Return about how many flops one of its answers takes."""
        raise NotImplementedError

    def _decide_widths(self, X: np.ndarray, y: Any, sample_weight: Any, seed: int, ask: Ask) -> Kernel:
        """Set and return the kernel with every width a number."""
        self.kernel_, self.length_scale_search_ = chosen_widths(
            self._chosen_kernel,
            X,
            y,
            sample_weight,
            make_pilot=self._pilot,
            seed=seed,
            ask=ask,
            tempers_ard=self._tempers_ard,
        )
        return self.kernel_

    def search_flops_for(self, n_rows: int, n_columns: int) -> float:
        return width_flops(
            self.kernel,
            n_rows,
            n_columns,
            partial(self._pilot_flops, n_columns=n_columns),
            tempers_ard=self._tempers_ard,
        )

    def _prepare_trial(self, smaller: Mapping[str, int]) -> None:
        if self._chosen_kernel.is_auto:
            self.set_params(kernel=self._chosen_kernel.with_widths(1.0))
        super()._prepare_trial(smaller)

    def set_params(self, **params: Any) -> Self:
        """Set parameters; `kernel__…` replaces the kernel, which is an immutable value."""
        inner = {
            name.removeprefix("kernel__"): v for name, v in params.items() if name.startswith("kernel__")
        }
        super().set_params(**{name: v for name, v in params.items() if not name.startswith("kernel__")})
        if inner:
            if self.kernel is None:
                raise InputError("kernel__… parameters need an explicit kernel; the map's kernel is None")
            super().set_params(kernel=self.kernel.set_params(**inner))
        return self


def canonical_json(data: Any) -> str:
    """Return JSON text that is equal for equal data."""
    return json.dumps(data, sort_keys=True, allow_nan=False)
