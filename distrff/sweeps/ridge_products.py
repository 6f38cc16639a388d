"""The light sweeps of ridge: the right-hand sides, and the product of a Gram that is never formed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distrff.columns.scaling import Scaling
from distrff.columns.targets import Targets
from distrff.data.rows import Rows
from distrff.features.specification import BlockMap, MapSpecification
from distrff.objective.ridge_moments import RidgeMoments, ridge_moments
from distrff.objective.thin_products import add_pulled_back, in_float64, values_of
from distrff.sweeps.reduction import Shipped

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
