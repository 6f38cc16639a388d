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
        assert shipped is not None
        block_map = self.specification.build(map_arrays(shipped))
        coef = block_map.basis_coef(shipped["coef"], np.dtype(self.dtype))
        gathered = _Gathered(A[0], np.empty((self.tile_rows, self.size), self.dtype))
        n_folds = 1 if self.folds is None else self.folds.n_folds
        for block in rows.tiles(n_folds * self.light_rows):
            for _, X, y, s in self.by_fold(block, block.X.shape[0]):
                scaled = self.scaling.apply(X, np.dtype(self.dtype))
                B = block_map.basis_tile(scaled)
                weight = self._curvature(values_of(B, coef) + shipped["intercept"], y, s)
                bends = np.flatnonzero(weight)
                Z = block_map.apply(scaled[bends]) if block_map.has_basis else B[bends]
                gathered.add(self._weighted(Z, y[bends], weight[bends]))
        gathered.multiply()
        return A

    def _curvature(self, F: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None) -> np.ndarray:
        """Return s·ℓ″ of the rows."""
        curvature = self.loss.second_derivative(F, self.targets.encode(y)[:, [self.output]])[:, 0]
        s = self.targets.row_weights(y, sample_weight)
        return curvature if s is None else s * curvature

    def _weighted(self, Z: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return the rows √(s·ℓ″)·[z | 1 | y]."""
        D = self.specification.n_features
        t = np.ones((len(Z), self.size), Z.dtype)
        t[:, :D], t[:, D + 1 :] = Z, self.targets.encode(y)
        t *= np.sqrt(weight).astype(Z.dtype)[:, None]
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
