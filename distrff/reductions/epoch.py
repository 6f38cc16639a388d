"""The epoch sweep: machines take steps over each segment's rows, and the mean of where they end is kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.engine.reduction import Shipped
from distrff.features.specification import MapSpecification
from distrff.io.rows import Rows
from distrff.preprocessing.scaling import Scaling
from distrff.preprocessing.targets import Targets
from distrff.solvers.losses import Loss
from distrff.solvers.sgd import LocalStart, LocalSteps
from distrff.solvers.spectral_metric import SpectralMetric

_OF_MACHINES = ("X", "gradient", "curvature", "damping", "dimension")
_PREFIX = "sgd_"


@dataclass(frozen=True, eq=False)
class EpochSums:
    """Weighted sums of segments' last points.

    Attributes
    ----------
    weight : float
        Σs of the rows that were stepped over.
    X : ndarray of shape (D + 1, k), or (D, k) without an intercept
        Σ over segments of the segment's weight times its points.
    """

    weight: float
    X: np.ndarray

    def mean(self) -> np.ndarray:
        """Return the mean point of each machine, of the shape of `X`."""
        return self.X / self.weight


@dataclass(frozen=True)
class EpochReduction:
    """Reduction to the `EpochSums` of machines that start where `shipped_start` says.

    Parameters
    ----------
    specification : MapSpecification
    scaling : Scaling
    targets : Targets
    dtype : {"float32", "float64"}
        Of the features and of their products; points are float64.
    batch_rows : int
        Rows of one step; the last of a segment may be shorter.
    loss : Loss
        Of finite curvature.
    outputs : tuple of int
        Which of the targets the machines are for.
    fit_intercept : bool

    Notes
    -----
    Rows are taken in the order in which they are stored, which must say nothing about them. A row costs
    2dD + 8Dk flops and D cosines, a batch 4Dqk more for q directions of the metric. One batch of features
    and the metric are live.
    """

    specification: MapSpecification
    scaling: Scaling
    targets: Targets
    dtype: str
    batch_rows: int
    loss: Loss
    outputs: tuple[int, ...]
    fit_intercept: bool

    def size_bytes(self, n_rows: int) -> int:
        return 8 * len(self.outputs) * (self.specification.n_features + 1)

    def zero(self) -> EpochSums | None:
        return None

    def finish(self, accumulator: EpochSums | None) -> EpochSums | None:
        return accumulator

    def merge(self, first: EpochSums | None, second: EpochSums | None) -> EpochSums | None:
        if first is None or second is None:
            return second if first is None else first
        return EpochSums(first.weight + second.weight, first.X + second.X)

    def update(self, sums: EpochSums | None, rows: Rows, shipped: Shipped) -> EpochSums | None:
        assert shipped is not None
        dtype = np.dtype(self.dtype)
        mine = {name.removeprefix(_PREFIX): A for name, A in shipped.items() if name.startswith(_PREFIX)}
        of_map = {name: A for name, A in shipped.items() if not name.startswith(_PREFIX)}
        block_map = self.specification.build(of_map or None)
        metric = SpectralMetric.from_arrays(mine, fit_intercept=self.fit_intercept)
        steps = LocalSteps(self.loss, metric, _start_of(mine))
        outputs = list(self.outputs)
        for block in rows.tiles(self.batch_rows):
            Z = block_map.tile(self.scaling.apply(block.X, dtype))
            Y = self.targets.encode(block.y)[:, outputs]
            steps.step(Z, Y, self.targets.row_weights(block.y, block.sample_weight))
        return self.merge(sums, EpochSums(steps.weight, steps.weight * steps.X))


def shipped_start(metric: SpectralMetric, start: LocalStart) -> dict[str, np.ndarray]:
    """Return the arrays that an `EpochReduction`'s tasks are sent, under names that no map uses."""
    arrays = metric.arrays() | {name: np.asarray(getattr(start, name)) for name in (*_OF_MACHINES, "penalty")}
    return {_PREFIX + name: A for name, A in arrays.items()}


def _start_of(arrays: dict[str, np.ndarray]) -> LocalStart:
    of_machines = {name: arrays[name] for name in _OF_MACHINES}
    return LocalStart(**of_machines, penalty=float(arrays["penalty"]))
