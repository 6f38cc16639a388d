"""The light sweeps of ridge on the complements of folds: one pass for all, each with its own machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distrff.data.rows import Rows
from distrff.objective.ridge_moments import RidgeMoments, ridge_moments
from distrff.sweeps.folds import Folds
from distrff.sweeps.reduction import Shipped
from distrff.sweeps.ridge_products import RidgePass


@dataclass(frozen=True)
class _FoldPass(RidgePass):
    """A pass that knows the fold of each row.

    Parameters
    ----------
    folds : Folds
    """

    folds: Folds

    def _tiles_of_folds(
        self, tiles: Iterator[tuple[Any, np.ndarray, np.ndarray, np.ndarray | None]], start: int
    ) -> Iterator[tuple[np.ndarray, Any, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield the rows' folds, Z or its basis, the values, coded targets and weights of a tile."""
        for Z, F, y, s in tiles:
            Y = self.targets.encode(y)
            if self.offset is not None:
                Y = Y + self.offset
            fold = self.folds.of_rows(start, start + len(F))
            start += len(F)
            yield fold, Z, F, Y, np.ones(len(F)) if s is None else s


@dataclass(frozen=True)
class ComplementMomentsReduction(_FoldPass):
    """Reduction to the `RidgeMoments` of the rows outside of each of some folds; None where there are none.

    Shipped are `coef` of shape (D, 0) and an `intercept` of length 0: there is no first machine.

    Notes
    -----
    A row costs 2dD flops, and 2Dk more for each of the folds.
    """

    held_out: tuple[int, ...]

    def size_bytes(self, n_rows: int) -> int:
        return 8 * len(self.held_out) * self.specification.n_features * (2 + self.targets.n_outputs)

    def zero(self) -> list[RidgeMoments | None]:
        return [None] * len(self.held_out)

    def finish(self, accumulator: list[RidgeMoments | None]) -> list[RidgeMoments | None]:
        return accumulator

    def merge(
        self, first: list[RidgeMoments | None], second: list[RidgeMoments | None]
    ) -> list[RidgeMoments | None]:
        return [b if a is None else a if b is None else a + b for a, b in zip(first, second, strict=True)]

    def update(
        self, moments: list[RidgeMoments | None], rows: Rows, shipped: Shipped
    ) -> list[RidgeMoments | None]:
        for fold, Z, no_values, Y, s in self._tiles_of_folds(self._tiles(rows, shipped), rows.start):
            others = [np.flatnonzero(fold != number) for number in self.held_out]
            moments = self.merge(
                moments,
                [ridge_moments(Z[i], Y[i], no_values[i], s[i]) if len(i) else None for i in others],
            )
        return moments


@dataclass(frozen=True)
class FoldProductReduction(_FoldPass):
    """Reduction to Σ s·[z | 1]·f over the rows that are not in the fold that each direction holds out.

    Shipped are `coef` = V of shape (D, m) and `intercept` = −z̄ᵀV with the mean of those rows.

    Notes
    -----
    A row costs 2dD + 4Dm flops.
    """

    held_out: tuple[int, ...]

    def size_bytes(self, n_rows: int) -> int:
        return 8 * (self.specification.n_features + 1) * len(self.held_out)

    def zero(self) -> np.ndarray:
        return np.zeros((self.specification.n_features + 1, len(self.held_out)))

    def finish(self, accumulator: np.ndarray) -> np.ndarray:
        return accumulator

    def merge(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return first + second

    def update(self, sums: np.ndarray, rows: Rows, shipped: Shipped) -> np.ndarray:
        tiles = self._tiles_of_folds(self._basis_tiles(rows, shipped), rows.start)
        weighted = (
            (B, np.where(fold[:, None] == np.array(self.held_out), 0.0, s[:, None] * F))
            for fold, B, F, _, s in tiles
        )
        return self._add_products(sums, weighted, shipped)


@dataclass(frozen=True)
class HeldOutErrorReduction(_FoldPass):
    """Reduction to Σ s·(y − f)² and Σ s, of shape (2, m): each machine over the fold that it did not see.

    Shipped are `coef` of shape (D, m) and `intercept` of shape (m,); machine i is for target `outputs[i]`.
    """

    held_out: tuple[int, ...]
    outputs: tuple[int, ...]

    def size_bytes(self, n_rows: int) -> int:
        return 8 * 2 * len(self.held_out)

    def zero(self) -> np.ndarray:
        return np.zeros((2, len(self.held_out)))

    def finish(self, accumulator: np.ndarray) -> np.ndarray:
        return accumulator

    def merge(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return first + second

    def update(self, sums: np.ndarray, rows: Rows, shipped: Shipped) -> np.ndarray:
        for fold, _, F, Y, s in self._tiles_of_folds(self._basis_tiles(rows, shipped), rows.start):
            is_judged = fold[:, None] == np.array(self.held_out)
            sums[0] += s @ np.where(is_judged, np.square(Y[:, list(self.outputs)] - F), 0.0)
            sums[1] += s @ is_judged
        return sums
