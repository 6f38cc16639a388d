"""The light sweeps of ridge: the right-hand sides, and the product of a Gram that is never formed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distrff.columns.scaling import Scaling
from distrff.columns.targets import Targets
from distrff.data.rows import Rows
from distrff.features.specification import MapSpecification
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
        assert shipped is not None
        dtype = np.dtype(self.dtype)
        arrays = {name: A for name, A in shipped.items() if name not in _SENT} or None
        block_map = self.specification.build(arrays)
        coef, intercept = shipped["coef"], shipped["intercept"]
        for block in rows.tiles(self.tile_rows):
            Z = in_float64(block_map.tile(self.scaling.apply(block.X, dtype)))
            yield (
                Z,
                values_of(Z, coef) + intercept,
                block.y,
                self.targets.row_weights(block.y, block.sample_weight),
            )


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
        for Z, F, _, s in self._tiles(rows, shipped):
            sF = F if s is None else s[:, None] * F
            add_pulled_back(sums[:-1].T, sF.T, Z)
            sums[-1] += sF.sum(axis=0)
        return sums
