"""The Gram of rows that are weighted by the curvature of their losses at a point: the objective's Hessian."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.features.specification import BlockMap
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
    """

    loss: Loss
    output: int

    def block_map(self, shipped: Shipped) -> BlockMap:
        assert shipped is not None
        return self.specification.build(map_arrays(shipped))

    def row_weights(
        self, y: np.ndarray, sample_weight: np.ndarray | None, Z: np.ndarray, shipped: Shipped
    ) -> np.ndarray:
        assert shipped is not None
        F = values_of(Z, shipped["coef"]) + shipped["intercept"]
        Y = self.targets.encode(y)[:, [self.output]]
        s = self.targets.row_weights(y, sample_weight)
        curvature = self.loss.second_derivative(F, Y)[:, 0]
        return curvature if s is None else s * curvature
