"""The light sweeps of ridge: the right-hand sides, and the product of a Gram that is never formed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distrff.engine.reduction import Shipped
from distrff.features.specification import BlockMap, MapSpecification
from distrff.io.rows import Rows
from distrff.preprocessing.scaling import Scaling
from distrff.preprocessing.targets import Targets
from distrff.reductions.base import Folds
from distrff.solvers.ridge import RidgeMoments, ridge_moments
from distrff.utils.products import add_pulled_back, in_float64, values_of

_SENT = ("coef", "intercept")


@dataclass(frozen=True)
class RidgePass:
    """What both passes share. Shipped are `coef` of shape (D, k) and `intercept` of shape (k,).

    Parameters
    ----------
    specification : MapSpecification
    scaling : Scaling
    targets : Targets
    offset : ndarray of shape (k,) or None
        Added to the coded targets.
    dtype : {"float32", "float64"}
        Of the features. Their products are float64 in any case: they are few beside the cosines, and
        the accuracy of a solution is then the features' own.
    tile_rows : int
        Small enough that a tile of Z stays in a cache.
    """

    specification: MapSpecification
    scaling: Scaling
    targets: Targets
    offset: np.ndarray | None
    dtype: str
    tile_rows: int

    def _tiles(
        self, rows: Rows, shipped: Shipped
    ) -> Iterator[tuple[Any, np.ndarray, np.ndarray, np.ndarray | None]]:
        """Yield Z, Z·coef + intercept, y as it was stored and the weights of a tile; Z is used again."""
        return self._evaluated(rows, shipped, self._block_map(shipped).tile, _coef_of(shipped))

    def _basis_tiles(
        self, rows: Rows, shipped: Shipped
    ) -> Iterator[tuple[Any, np.ndarray, np.ndarray, np.ndarray | None]]:
        """Yield the same with the values of the map's basis in the place of Z."""
        block_map = self._block_map(shipped)
        coef = block_map.basis_coef(_coef_of(shipped), np.dtype(np.float64))
        return self._evaluated(rows, shipped, block_map.basis_tile, coef)

    def _evaluated(
        self, rows: Rows, shipped: Shipped, tile_of: Callable[[np.ndarray], Any], coef: np.ndarray
    ) -> Iterator[tuple[Any, np.ndarray, np.ndarray, np.ndarray | None]]:
        assert shipped is not None
        for block in rows.tiles(self.tile_rows):
            B = in_float64(tile_of(self.scaling.apply(block.X, np.dtype(self.dtype))))
            s = self.targets.row_weights(block.y, block.sample_weight)
            yield B, values_of(B, coef) + shipped["intercept"], block.y, s

    def _block_map(self, shipped: Shipped) -> BlockMap:
        arrays = {name: A for name, A in (shipped or {}).items() if name not in _SENT} or None
        return self.specification.build(arrays)

    def _add_products(
        self, sums: np.ndarray, weighted: Iterable[tuple[Any, np.ndarray]], shipped: Shipped
    ) -> np.ndarray:
        """Add Σ [z | 1]·fᵀ, (D + 1, k), for the basis B and the weighted values F of each tile."""
        block_map, of_basis = self._block_map(shipped), None
        for B, F in weighted:
            if of_basis is None:
                of_basis = np.zeros((B.shape[1], F.shape[1])) if block_map.has_basis else sums[:-1]
            add_pulled_back(of_basis.T, F.T, B)
            sums[-1] += F.sum(axis=0)
        if of_basis is not None and block_map.has_basis:
            sums[:-1] += block_map.feature_sums(of_basis.T).T
        return sums


@dataclass(frozen=True)
class RightSidesReduction(RidgePass):
    """Reduction to the `RidgeMoments` of rows and of a first machine.

    Notes
    -----
    A row costs 2dD + 6Dk flops and D cosines.
    """

    def size_bytes(self, n_rows: int) -> int:
        return 8 * (self.specification.n_features * (2 + 2 * self.targets.n_outputs))

    def zero(self) -> RidgeMoments | None:
        return None

    def finish(self, accumulator: RidgeMoments | None) -> RidgeMoments | None:
        return accumulator

    def merge(self, first: RidgeMoments | None, second: RidgeMoments | None) -> RidgeMoments | None:
        if first is None or second is None:
            return second if first is None else first
        return first + second

    def update(self, moments: RidgeMoments | None, rows: Rows, shipped: Shipped) -> RidgeMoments | None:
        for Z, F, y, s in self._tiles(rows, shipped):
            Y = self.targets.encode(y)
            if self.offset is not None:
                Y = Y + self.offset
            moments = self.merge(moments, ridge_moments(Z, Y, Y - F, s))
        return moments


@dataclass(frozen=True)
class ProductReduction(RidgePass):
    """Reduction to Σ s·[z | 1]·fᵀ of shape (D + 1, k), of values f = coefᵀz + intercept.

    With coef = V and intercept = −z̄ᵀV the first D rows are ZᵀSZ·V with the columns of Z centred on one
    side, which is all that the product of the centred Gram needs but for rounding; the last row corrects
    that.

    Notes
    -----
    A row costs 2dD + 4Dk flops and D cosines.
    """

    n_directions: int

    def size_bytes(self, n_rows: int) -> int:
        return 8 * (self.specification.n_features + 1) * self.n_directions

    def zero(self) -> np.ndarray:
        return np.zeros((self.specification.n_features + 1, self.n_directions))

    def finish(self, accumulator: np.ndarray) -> np.ndarray:
        return accumulator

    def merge(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return first + second

    def update(self, sums: np.ndarray, rows: Rows, shipped: Shipped) -> np.ndarray:
        tiles = self._basis_tiles(rows, shipped)
        weighted = ((B, F if s is None else s[:, None] * F) for B, F, _, s in tiles)
        return self._add_products(sums, weighted, shipped)


def _coef_of(shipped: Shipped) -> np.ndarray:
    assert shipped is not None
    return shipped["coef"]


# The light sweeps of ridge on the complements of folds: one pass for all, each with its own machines.


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
