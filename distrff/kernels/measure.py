"""What a kernel knows of the measure that its random frequencies are drawn from.

By Bochner's theorem a continuous shift-invariant k(x, x') = k(δ), δ = x − x', is k(0) times the
characteristic function of a probability measure, so that k(δ) = k(0)·E cos(ωᵀδ) for ω drawn from it
(Rahimi and Recht 2007, section 3). A `Kernel` holds both sides of this equation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from distrff.errors import InputError

if TYPE_CHECKING:
    from distrff.kernels.base import Kernel

Streams = Callable[[str], np.random.Generator]


def nested_streams(rng_of: Streams, part: str) -> Streams:
    """Return the named streams of one part of an expression; no two parts share a stream."""

    def part_of(name: str) -> np.random.Generator:
        return rng_of(f"{part}/{name}")

    return part_of


class SpectralMeasure(ABC):
    """The measure of a shift-invariant kernel, which inherits from this."""

    @property
    @abstractmethod
    def is_spherical(self) -> bool:
        """True where the measure (of a sum: that of each component) is rotation invariant once
        coordinate j is multiplied by width j."""

    @abstractmethod
    def frequencies(self, n_frequencies: int, n_columns: int, rng_of: Streams) -> np.ndarray:
        """Draw independent frequencies, ndarray of shape (n_columns, n_frequencies), float64."""

    @abstractmethod
    def second_moment(self, n_columns: int) -> float:
        """Return σ² = E‖ω‖², the trace of the negative Hessian of k/k(0) at 0; may be inf."""

    def radii(self, n: int, n_columns: int, rng_of: Streams) -> np.ndarray:
        """Draw ‖diag(widths)·ω‖, ndarray of shape (n,).

        Raises
        ------
        InputError
            If the measure is not spherical, or is that of a sum: take its `components`.
        """
        raise self._no_sphere("radii")

    def widths(self, n_columns: int) -> np.ndarray:
        """Return the widths that make the measure rotation invariant, ndarray of shape (n_columns,).

        Raises
        ------
        InputError
            As `radii`.
        """
        raise self._no_sphere("widths")

    def _profile(self) -> float | tuple[float, ...]:
        """Return `widths` for any number of columns: as they are written, an "auto" one as 1."""
        raise self._no_sphere("widths")

    def _no_sphere(self, what: str) -> InputError:
        why = "is a sum, take its components" if len(self.components()) > 1 else "has no spherical measure"
        return InputError(f"no {what}: {self!r} {why}")

    @abstractmethod
    def components(self) -> list[tuple[float, Kernel]]:
        """Return the kernel as a flat sum: (share of k(0), component) with shares that add to 1.

        Scaled sums and products of sums are multiplied out; what is no sum is its own component.
        """
