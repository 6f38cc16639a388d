"""What a search for widths asks of a map: a small machine of that map on a sample of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np

from distrff.kernels import Kernel

THINNING = 4


@dataclass(frozen=True, eq=False)
class PilotRows:
    """Rows in random order, the first of which are held out.

    Attributes
    ----------
    X : ndarray of shape (n, d), float64
        Centred.
    Y : ndarray of shape (n, k)
        Of mean 0 and deviation 1, where not constant.
    s : ndarray of shape (n,)
        Positive weights.
    n_held_out : int
    seed : int
    """

    X: np.ndarray
    Y: np.ndarray
    s: np.ndarray
    n_held_out: int
    seed: int

    @classmethod
    def of(cls, X: np.ndarray, Y: np.ndarray, s: np.ndarray, seed: int) -> Self:
        """Return the rows centred, a quarter of them held out."""
        deviation = Y.std(axis=0)
        Y = (Y - Y.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
        return cls(X - np.average(X, axis=0), Y, s, max(2, len(X) // 4), seed)

    @property
    def n_training(self) -> int:
        """Rows that are not held out."""
        return len(self.X) - self.n_held_out

    def thinned(self) -> Self:
        """Return the same rows held out, and one in `THINNING` of the others."""
        some = slice(self.n_held_out + max(2, self.n_training // THINNING))
        return replace(self, X=self.X[some], Y=self.Y[some], s=self.s[some])


class Pilot(Protocol):
    """A small machine, asked again and again with another kernel."""

    @property
    def description(self) -> str:
        """What it is, as people read it."""

    def held_out_error(self, kernel: Kernel) -> float:
        """Return its least weighted mean squared error on the held-out rows over all penalties."""


MakePilot = Callable[[PilotRows], Pilot]
