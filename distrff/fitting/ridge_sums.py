"""The light passes of ridge: right-hand sides, products with a Gram that is never formed, held-out errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from distrff.engine.reduction import Arrays
from distrff.fitting.rows import RowReduction
from distrff.io.dataset import Rows
from distrff.preprocessing.folds import Folds
from distrff.solvers.ridge import RidgeMoments, ridge_moments
from distrff.utils.linalg import add_transposed_product, in_float64, values_of


class _Tile(NamedTuple):
    """Rows, their features and their values."""

    B: Any
    """Z, or the values of the map's basis; overwritten by the next tile."""
    F: np.ndarray
    """Z·coef + intercept."""
    y: np.ndarray
    """Targets as they were read."""
    s: np.ndarray
    fold: np.ndarray | None


@dataclass(frozen=True, kw_only=True)
class RidgePass(RowReduction):
    """The base of these passes. Tasks are sent `coef` of shape (D, k) and `intercept` of shape (k,).

    Products are float64 whatever the `dtype` of the features: they are cheap beside the cosines, and the
    accuracy of a solution is then that of the features. Tiles are so small that their features stay in a
    cache.
    """

    offset: np.ndarray | None  # (k,), added to the coded targets
    folds: Folds | None = None

    def _tiles(self, rows: Rows, arrays: Arrays, *, of_basis: bool = False) -> Iterator[_Tile]:
        """Yield tiles with Z itself, or with the values of the map's basis in its place."""
        block_map, coef = self.block_map(arrays), arrays["coef"]
        if of_basis:
            coef = block_map.basis_coef(coef, np.dtype(np.float64))
        for block in rows.tiles(self.tile_rows):
            n = block.X.shape[0]
            B = in_float64(self.tile_of(block_map, rows, block.start, block.X, of_basis=of_basis))
            s = self.targets.row_weights(block.y, block.sample_weight)
            yield _Tile(
                B=B,
                F=values_of(B, coef) + arrays["intercept"],
                y=block.y,
                s=np.ones(n) if s is None else s,
                fold=None if self.folds is None else self.folds.of_rows(block.start, block.start + n),
            )

    def _coded(self, tile: _Tile) -> np.ndarray:
        """Return the coded targets of a tile."""
        Y = self.targets.encode(tile.y)
        return Y if self.offset is None else Y + self.offset


@dataclass(frozen=True, kw_only=True)
class RightSidesReduction(RidgePass):
    """Reduction to the `RidgeMoments` of rows and a first model.

    A row costs 2dD + 6Dk flops and D cosines.
    """

    def size_bytes(self, n_rows: int) -> int:
        return 8 * self.specification.n_features * (2 + 2 * self.targets.n_outputs)

    def update(self, total: RidgeMoments | None, rows: Rows, arrays: Arrays) -> RidgeMoments | None:
        for tile in self._tiles(rows, arrays):
            Y = self._coded(tile)
            total = self.merge(total, ridge_moments(tile.B, Y, Y - tile.F, tile.s))
        return total


@dataclass(frozen=True, kw_only=True)
class ComplementMomentsReduction(RidgePass):
    """Reduction to the `RidgeMoments` of the rows outside each held-out fold; None if there are none.

    Tasks are sent `coef` of shape (D, 0) and `intercept` of shape (0,): there is no first model.

    A row costs 2dD flops, and 2Dk more for each of the folds.
    """

    held_out: tuple[int, ...]

    def size_bytes(self, n_rows: int) -> int:
        return 8 * len(self.held_out) * self.specification.n_features * (2 + self.targets.n_outputs)

    def zero(self) -> list[RidgeMoments | None]:
        return [None] * len(self.held_out)

    def update(
        self, total: list[RidgeMoments | None], rows: Rows, arrays: Arrays
    ) -> list[RidgeMoments | None]:
        for tile in self._tiles(rows, arrays):
            Y, others = self._coded(tile), [np.flatnonzero(tile.fold != fold) for fold in self.held_out]
            moments = [
                ridge_moments(tile.B[i], Y[i], tile.F[i], tile.s[i]) if len(i) else None for i in others
            ]
            total = self.merge(total, moments)
        return total

    def merge(
        self, first: list[RidgeMoments | None], second: list[RidgeMoments | None]
    ) -> list[RidgeMoments | None]:
        merge = super().merge
        return [merge(a, b) for a, b in zip(first, second, strict=True)]


@dataclass(frozen=True, kw_only=True)
class ProductReduction(RidgePass):
    """Reduction to Σ s·[z | 1]·fᵀ of shape (D + 1, m), of values f = coefᵀz + intercept.

    With coef = V and intercept = −z̄ᵀV the first D rows are ZᵀS(Z − z̄)·V, which is the product of the centred
    Gram with V up to rounding; the last row serves to correct that.

    A row costs 2dD + 4Dm flops and D cosines.
    """

    held_out: tuple[int | None, ...]  # the fold that the product with each direction leaves out

    def size_bytes(self, n_rows: int) -> int:
        return 8 * (self.specification.n_features + 1) * len(self.held_out)

    def zero(self) -> np.ndarray:
        return np.zeros((self.specification.n_features + 1, len(self.held_out)))

    def update(self, total: np.ndarray, rows: Rows, arrays: Arrays) -> np.ndarray:
        block_map, of_basis = self.block_map(arrays), None
        for tile in self._tiles(rows, arrays, of_basis=True):
            F = tile.s[:, None] * tile.F
            if tile.fold is not None:
                F = np.where(tile.fold[:, None] == np.array(self.held_out), 0.0, F)
            if of_basis is None:
                of_basis = np.zeros((tile.B.shape[1], F.shape[1])) if block_map.has_basis else total[:-1]
            add_transposed_product(of_basis.T, F.T, tile.B)
            total[-1] += F.sum(axis=0)
        if of_basis is not None and block_map.has_basis:
            total[:-1] += block_map.feature_sums(of_basis.T).T
        return total


@dataclass(frozen=True, kw_only=True)
class HeldOutErrorReduction(RidgePass):
    """Reduction to Σ s·(y − f)² and Σ s, of shape (2, m), of each model over its held-out fold.

    Tasks are sent `coef` of shape (D, m) and `intercept` of shape (m,).
    """

    held_out: tuple[int, ...]  # the fold of each of m models
    outputs: tuple[int, ...]  # the target of each model

    def size_bytes(self, n_rows: int) -> int:
        return 8 * 2 * len(self.held_out)

    def zero(self) -> np.ndarray:
        return np.zeros((2, len(self.held_out)))

    def update(self, total: np.ndarray, rows: Rows, arrays: Arrays) -> np.ndarray:
        for tile in self._tiles(rows, arrays, of_basis=True):
            assert tile.fold is not None
            is_judged = tile.fold[:, None] == np.array(self.held_out)
            squares = np.square(self._coded(tile)[:, list(self.outputs)] - tile.F)
            total[0] += tile.s @ np.where(is_judged, squares, 0.0)
            total[1] += tile.s @ is_judged
        return total
