"""The margin sweep: what one light pass over the rows tells of k margin machines at one point each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from distrff.columns.scaling import Scaling
from distrff.columns.targets import ClassTargets
from distrff.data.rows import Rows
from distrff.features.specification import MapSpecification
from distrff.losses import Loss
from distrff.objective import MarginSums, margin_sums
from distrff.sweeps.reduction import Shipped

_POINT = ("coef", "intercept")


@dataclass(frozen=True)
class MarginReduction:
    """Reduction to the `MarginSums` of machines whose coefficients are shipped.

    Parameters
    ----------
    specification : MapSpecification
    scaling : Scaling
    targets : ClassTargets
    dtype : {"float32", "float64"}
        Of the features and of their products; sums of products are float64.
    tile_rows : int
        Small enough that a tile of Z stays in a cache.
    loss : Loss
    proxies : tuple of Loss
    outputs : tuple of int
        Which of the targets the machines are for.

    Notes
    -----
    A row costs 2dD + 2Dk + 4Dkc flops for k machines and c proxies, and D cosines.
    """

    specification: MapSpecification
    scaling: Scaling
    targets: ClassTargets
    dtype: str
    tile_rows: int
    loss: Loss
    proxies: tuple[Loss, ...]
    outputs: tuple[int, ...]

    def size_bytes(self, n_rows: int) -> int:
        return 8 * len(self.proxies) * len(self.outputs) * (2 * self.specification.n_features + 8)

    def zero(self) -> MarginSums | None:
        return None

    def finish(self, accumulator: MarginSums | None) -> MarginSums | None:
        return accumulator

    def merge(self, first: MarginSums | None, second: MarginSums | None) -> MarginSums | None:
        if first is None or second is None:
            return second if first is None else first
        return first + second

    def update(self, sums: MarginSums | None, rows: Rows, shipped: Shipped) -> MarginSums | None:
        assert shipped is not None
        dtype = np.dtype(self.dtype)
        block_map = self.specification.build(map_arrays(shipped))
        coef, intercept = shipped["coef"].astype(dtype), shipped["intercept"]
        outputs = list(self.outputs)
        # One buffer for all tiles: workers return large arrays to the system, page by page, at once.
        buffer = np.empty((min(self.tile_rows, rows.stop - rows.start), self.specification.n_features), dtype)
        for block in rows.tiles(self.tile_rows):
            Z = buffer[: len(block.X)]
            block_map.apply(self.scaling.apply(block.X, dtype), out=Z)
            Y = self.targets.encode(block.y)[:, outputs]
            s = self.targets.row_weights(block.y, block.sample_weight)
            F = (Z @ coef).astype(np.float64, copy=False) + intercept
            sums = self.merge(sums, margin_sums(self.loss, self.proxies, F, Y, s, Z))
        return sums


def map_arrays(shipped: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """Return the map's arrays among what was shipped, or None if it is to be derived."""
    return {name: A for name, A in shipped.items() if name not in _POINT} or None
