"""The Gram of rows that are weighted by the curvature of their losses at a point: the objective's Hessian."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.data.rows import Rows
from distrff.losses import Loss
from distrff.objective.thin_products import values_of
from distrff.sweeps.gram import GramReduction
from distrff.sweeps.margins import map_arrays
from distrff.sweeps.reduction import Shipped


@dataclass(frozen=True, kw_only=True)
class CurvatureGramReduction(GramReduction):
    """The same sums with weights s·ℓ″(f, y) for one machine, whose point is shipped.

    Shipped are `coef` of shape (D, 1) and `intercept` of shape (1,), with the map's arrays where they are not
    derived.

    Parameters
    ----------
    loss : Loss
    output : int
        Which of the targets the machine is for.
    light_rows : int
        Rows whose features are made at a time, so few that these stay in a cache. Those of them that bend
        are gathered for products of `tile_rows`.

    Notes
    -----
    A row costs 2dD flops and D cosines, and p² flops more if it bends.
    """

    loss: Loss
    output: int
    light_rows: int

    def update(self, A: np.ndarray, rows: Rows, shipped: Shipped) -> np.ndarray:
        gathered = _Gathered(A[0], np.empty((self.tile_rows, self.size), self.dtype))
        n_folds = 1 if self.folds is None else self.folds.n_folds
        for block in rows.tiles(n_folds * self.light_rows):
            for _, X, y, s in self.by_fold(block):
                gathered.add(self._bending(X, y, s, shipped))
        gathered.multiply()
        return A

    def _bending(
        self, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None, shipped: Shipped
    ) -> np.ndarray:
        """Return the rows √(s·ℓ″)·[z | 1 | y] whose weight is not 0."""
        assert shipped is not None
        dtype, D = np.dtype(self.dtype), self.specification.n_features
        Z = self.specification.build(map_arrays(shipped)).tile(self.scaling.apply(X, dtype))
        F, Y = values_of(Z, shipped["coef"]) + shipped["intercept"], self.targets.encode(y)
        weight = self.loss.second_derivative(F, Y[:, [self.output]])[:, 0]
        s = self.targets.row_weights(y, sample_weight)
        weight = weight if s is None else s * weight
        bends = np.flatnonzero(weight)
        t = np.ones((len(bends), self.size), dtype)
        t[:, :D], t[:, D + 1 :] = Z[bends], Y[bends]
        t *= np.sqrt(weight[bends]).astype(dtype)[:, None]
        return t


class _Gathered:
    """Rows that wait until they fill a tile, whose product is then added to A."""

    def __init__(self, A: np.ndarray, tile: np.ndarray) -> None:
        self._A, self._tile, self._n_rows = A, tile, 0

    def add(self, t: np.ndarray) -> None:
        """Take some rows."""
        while len(t):
            room = self._tile[self._n_rows :]
            taken = t[: len(room)]
            room[: len(taken)] = taken
            self._n_rows += len(taken)
            t = t[len(taken) :]
            if self._n_rows == len(self._tile):
                self.multiply()

    def multiply(self) -> None:
        """Add the product of the rows that wait."""
        t = self._tile[: self._n_rows]
        self._A += t.T @ t
        self._n_rows = 0
