"""A pass of SGD: points take steps over the rows of each segment, and their last points are averaged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.engine.reduction import Arrays
from distrff.fitting.rows import RowReduction
from distrff.io.dataset import Rows
from distrff.solvers.losses import Loss
from distrff.solvers.sgd import LocalStart, LocalSteps
from distrff.solvers.spectral_metric import SpectralMetric
from distrff.utils.arrays import Sums

_OF_POINTS = ("X", "gradient", "curvature", "damping", "dimension")


@dataclass(frozen=True, eq=False)
class EpochSums(Sums):
    """Weighted sums of the last points of segments."""

    weight: float  # Σs of the rows
    X: np.ndarray  # (D + 1, k), or (D, k) without an intercept: Σ of a segment's weight times its points

    def mean(self) -> np.ndarray:
        """Return the mean points, of the shape of `X`."""
        return self.X / self.weight


@dataclass(frozen=True, kw_only=True)
class EpochReduction(RowReduction):
    """Reduction to the `EpochSums` of points that start from `sent_start`.

    Rows are taken in stored order, which must be independent of their values. A row costs
    2dD + 8Dk flops and D cosines, a batch 4Dqk more for q directions of the metric. One batch of features
    and the metric are in memory. A batch has `tile_rows` rows, the last of a segment fewer. Points are
    float64.
    """

    loss: Loss  # of finite curvature
    outputs: tuple[int, ...]  # which of the targets the points are for
    fit_intercept: bool

    def size_bytes(self, n_rows: int) -> int:
        return 8 * len(self.outputs) * (self.specification.n_features + 1)

    def update(self, total: EpochSums | None, rows: Rows, arrays: Arrays) -> EpochSums | None:
        block_map, outputs = self.block_map(arrays), list(self.outputs)
        metric = SpectralMetric.from_arrays(arrays, fit_intercept=self.fit_intercept)
        of_points = {name: arrays[name] for name in _OF_POINTS}
        start = LocalStart(**of_points, penalty=float(arrays["penalty"]))
        steps = LocalSteps(self.loss, metric, start)
        for block in rows.tiles(self.tile_rows):
            Z = self.tile_of(block_map, rows, block.start, block.X, of_basis=False)
            Y = self.targets.encode(block.y)[:, outputs]
            steps.step(Z, Y, self.targets.row_weights(block.y, block.sample_weight))
        return self.merge(total, EpochSums(steps.weight, steps.weight * steps.X))


def sent_start(metric: SpectralMetric, start: LocalStart) -> dict[str, np.ndarray]:
    """Return the arrays that the tasks of an `EpochReduction` are sent."""
    return metric.arrays() | {name: np.asarray(getattr(start, name)) for name in (*_OF_POINTS, "penalty")}
