"""Light sweeps: what one pass over the rows tells of machines at one point each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from distrff.columns.scaling import Scaling
from distrff.columns.targets import ClassTargets
from distrff.data.rows import RowBlock, Rows
from distrff.features.scratch import scratch
from distrff.features.specification import MapSpecification
from distrff.losses import Loss
from distrff.objective import MarginSums, margin_sums
from distrff.objective.softmax_sums import SoftmaxSums, softmax_sums
from distrff.sweeps.folds import Folds
from distrff.sweeps.reduction import Shipped

_POINT = ("coef", "intercept", "width")
_KNOWN = "known_"


@dataclass(frozen=True)
class LightReduction:
    """What light sweeps share: the values F of machines whose points are shipped, a small tile at a time.

    Shipped is `coef` of shape (D, k) and `intercept` of shape (k,).

    Parameters
    ----------
    specification : MapSpecification
    scaling : Scaling
    targets : ClassTargets
    dtype : {"float32", "float64"}
        Of the features and of their products; sums of products are float64.
    tile_rows : int
        Small enough that a tile of Z stays in a cache.
    folds : Folds or None
    held_out : tuple of (int or None)
        The fold that each machine is judged on.
    """

    specification: MapSpecification
    scaling: Scaling
    targets: ClassTargets
    dtype: str
    tile_rows: int
    folds: Folds | None
    held_out: tuple[int | None, ...]

    def size_bytes(self, n_rows: int) -> int:
        raise NotImplementedError

    def zero(self) -> Any:
        return None

    def finish(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, first: Any, second: Any) -> Any:
        if first is None or second is None:
            return second if first is None else first
        return first + second

    def update(self, sums: Any, rows: Rows, shipped: Shipped) -> Any:
        assert shipped is not None
        dtype = np.dtype(self.dtype)
        block_map = self.specification.build(map_arrays(shipped))
        coef, intercept = shipped["coef"].astype(dtype), shipped["intercept"]
        n_rows = min(self.tile_rows, rows.stop - rows.start)
        buffer = scratch("tile", n_rows, self.specification.n_features, dtype)
        for block in rows.tiles(self.tile_rows):
            Z = buffer[: len(block.X)]
            block_map.apply(self.scaling.apply(block.X, dtype), out=Z)
            F = (Z @ coef).astype(np.float64, copy=False) + intercept
            s = self.targets.row_weights(block.y, block.sample_weight)
            held_out = self._held_out(block.start, len(Z))
            sums = self.merge(sums, self._sums(F, block, s, Z, held_out, shipped))
        return sums

    def _sums(
        self,
        F: np.ndarray,
        block: RowBlock,
        s: np.ndarray | None,
        Z: np.ndarray,
        held_out: np.ndarray | None,
        shipped: Mapping[str, np.ndarray],
    ) -> Any:
        """Return the sums over the rows of a tile."""
        raise NotImplementedError

    def _held_out(self, start: int, n_rows: int) -> np.ndarray | None:
        if self.folds is None:
            return None
        # No row is in the fold −1, which stands for None.
        members = np.array([-1 if fold is None else fold for fold in self.held_out])
        return self.folds.of_rows(start, start + n_rows)[:, None] == members


@dataclass(frozen=True)
class MarginReduction(LightReduction):
    """Reduction to the `MarginSums` of k machines; `width` of shape (k,) is shipped as well.

    Parameters
    ----------
    loss : Loss
    outputs : tuple of int
        Which target each machine is for.

    Notes
    -----
    A row costs 2dD + 6Dk flops and D cosines.
    """

    loss: Loss
    outputs: tuple[int, ...]

    def size_bytes(self, n_rows: int) -> int:
        return 8 * len(self.outputs) * (2 * self.specification.n_features + 10)

    def _sums(
        self,
        F: np.ndarray,
        block: RowBlock,
        s: np.ndarray | None,
        Z: np.ndarray,
        held_out: np.ndarray | None,
        shipped: Mapping[str, np.ndarray],
    ) -> MarginSums:
        Y = self.targets.encode(block.y)[:, list(self.outputs)]
        return margin_sums(self.loss, self.loss.rounded(shipped["width"]), F, Y, s, Z, held_out)


@dataclass(frozen=True)
class SoftmaxReduction(LightReduction):
    """Reduction to the `SoftmaxSums` of m machines of one column a class each, side by side in `coef`.

    Parameters
    ----------
    sigma : float

    Notes
    -----
    A row costs 2dD + 4Dkm flops and D cosines.
    """

    sigma: float

    def size_bytes(self, n_rows: int) -> int:
        return 8 * len(self.held_out) * (self.specification.n_features + 1) * len(self.targets.classes)

    def _sums(
        self,
        F: np.ndarray,
        block: RowBlock,
        s: np.ndarray | None,
        Z: np.ndarray,
        held_out: np.ndarray | None,
        shipped: Mapping[str, np.ndarray],
    ) -> SoftmaxSums:
        classes = self.targets.indices(block.y)
        F = F.reshape(len(F), len(self.held_out), -1)
        return softmax_sums(F, classes, s, Z, held_out, sigma=self.sigma)


def map_arrays(shipped: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """Return the map's arrays among what was shipped, or None if it is to be derived."""
    return {
        name: A for name, A in shipped.items() if name not in _POINT and not name.startswith(_KNOWN)
    } or None
