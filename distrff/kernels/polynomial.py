"""The polynomial kernel, which depends on more than the difference of its points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from distrff.errors import InputError, InputTypeError
from distrff.kernels.base import Kernel, Streams
from distrff.utils.validation import is_number, positive_number


@dataclass(frozen=True)
class Polynomial(Kernel):
    """k(x, x') = (⟨x, x'⟩ + bias)^degree: all monomials of at most that degree.

    It is not shift-invariant and has no frequencies: it is evaluated exactly, or approximated by
    `NystroemFeatures`.

    Parameters
    ----------
    degree : int
        q, at least 1.
    bias : float
        At least 0; 0 leaves the monomials of exactly that degree.

    Raises
    ------
    InputError
        For other values.
    """

    degree: int
    bias: float = 1.0

    def __post_init__(self) -> None:
        if not is_number(self.degree) or not isinstance(self.degree, Integral):
            raise InputTypeError(f"degree must be an integer, got {self.degree!r}")
        if self.degree < 1:
            raise InputError(f"degree must be at least 1, got {self.degree}")
        object.__setattr__(self, "degree", int(self.degree))
        object.__setattr__(self, "bias", positive_number(self.bias, "bias", minimum=0.0))

    @property
    def at_zero(self) -> float:
        return math.nan

    @property
    def is_shift_invariant(self) -> bool:
        return False

    def frequencies(self, n_frequencies: int, n_columns: int, rng_of: Streams) -> np.ndarray:
        raise self._no_measure()

    def second_moment(self, n_columns: int) -> float:
        raise self._no_measure()

    def _no_measure(self) -> InputError:
        return InputError(f"{self!r} is not shift-invariant and has no frequencies")

    def _evaluate(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        K = X @ Y.T
        K += self.bias
        return np.power(K, self.degree, out=K)
