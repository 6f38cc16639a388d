"""Light sweeps: what one pass over the rows tells of machines at one point each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from distrff.columns.scaling import Scaling
from distrff.columns.targets import ClassTargets
from distrff.data.rows import RowBlock, Rows
from distrff.features.specification import MapSpecification
from distrff.losses import Loss
from distrff.objective.margin_sums import MarginSums, margin_sums, sided_weights
from distrff.objective.row_weights import RowWeights
from distrff.objective.softmax_sums import SoftmaxSums, softmax_slopes, softmax_sums
from distrff.objective.thin_products import add_pulled_back, values_of, zero_sums
from distrff.sweeps.folds import Folds
from distrff.sweeps.reduction import Shipped

_POINT = ("coef", "intercept", "width")
_KNOWN = "known_"
_MOST_BLOCK_TILES, _MOST_BLOCK_VALUES = 8, 15 * 2**10  # 120 KiB: from 128 arrays are fresh memory each time


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
        coef, intercept = block_map.basis_coef(shipped["coef"], dtype), shipped["intercept"]
        own: Any = None  # sums of these rows alone, over the basis of z
        for block in rows.tiles(self._block_rows(len(intercept))):
            labels, F = self._labels(block), np.empty((block.X.shape[0], len(intercept)))
            s = self.targets.row_weights(block.y, block.sample_weight)
            held_out = self._held_out(block.start, len(F))
            weights = RowWeights.of(s, held_out, (len(F), len(self.held_out)))
            vectors: np.ndarray | None = None
            for first in range(0, len(F), self.tile_rows):
                tile = slice(first, first + self.tile_rows)
                B = block_map.basis_tile(self.scaling.apply(block.X[tile], dtype))
                F[tile] = values_of(B, coef) + intercept
                pulls = self._pulls(F[tile], labels[tile], weights.at(tile), shipped)
                vectors = zero_sums(len(pulls), B) if vectors is None else vectors
                add_pulled_back(vectors, pulls, B)
            assert vectors is not None
            own = self.merge(own, self._sums(F, labels, weights, vectors, block, shipped))
        if own is not None and block_map.has_basis:
            own = own.of_features(block_map.feature_sums)
        return self.merge(sums, own)

    def _block_rows(self, n_values: int) -> int:
        """Return the rows of a few tiles: what is done once for all of them costs as much as for one."""
        n_tiles = _MOST_BLOCK_VALUES // (self.tile_rows * n_values)
        return self.tile_rows * max(1, min(_MOST_BLOCK_TILES, n_tiles))

    def _labels(self, block: RowBlock) -> np.ndarray:
        """Return what the losses take for targets, an entry a row."""
        raise NotImplementedError

    def _pulls(
        self, F: np.ndarray, labels: np.ndarray, weights: RowWeights, shipped: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Return the weights, of shape (m, r), with which the features of r rows are to be summed."""
        raise NotImplementedError

    def _sums(
        self,
        F: np.ndarray,
        labels: np.ndarray,
        weights: RowWeights,
        vectors: np.ndarray,
        block: RowBlock,
        shipped: Mapping[str, np.ndarray],
    ) -> Any:
        """Return the sums over the rows of a block; `vectors` are those of features, of shape (m, D)."""
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
    A row costs 2dD + 4Dk flops and D cosines; for many machines 6Dk.
    """

    loss: Loss
    outputs: tuple[int, ...]

    def size_bytes(self, n_rows: int) -> int:
        return 8 * len(self.outputs) * (2 * self.specification.n_features + 10)

    def _labels(self, block: RowBlock) -> np.ndarray:
        return self.targets.encode(block.y)[:, list(self.outputs)]

    def _pulls(
        self, F: np.ndarray, labels: np.ndarray, weights: RowWeights, shipped: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        return sided_weights(self.loss.rounded(shipped["width"]), F, labels, weights).reshape(-1, len(F))

    def _sums(
        self,
        F: np.ndarray,
        labels: np.ndarray,
        weights: RowWeights,
        vectors: np.ndarray,
        block: RowBlock,
        shipped: Mapping[str, np.ndarray],
    ) -> MarginSums:
        proxy = self.loss.rounded(shipped["width"])
        return margin_sums(self.loss, proxy, F, labels, weights, vectors.reshape(F.shape[1], 2, -1))


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

    def _labels(self, block: RowBlock) -> np.ndarray:
        return self.targets.indices(block.y)

    def _pulls(
        self, F: np.ndarray, labels: np.ndarray, weights: RowWeights, shipped: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        slopes = softmax_slopes(self._by_machine(F), labels, weights, sigma=self.sigma)
        return slopes.reshape(len(F), -1).T

    def _sums(
        self,
        F: np.ndarray,
        labels: np.ndarray,
        weights: RowWeights,
        vectors: np.ndarray,
        block: RowBlock,
        shipped: Mapping[str, np.ndarray],
    ) -> SoftmaxSums:
        by_machine = self._by_machine(F)
        vectors = vectors.reshape(*by_machine.shape[1:], -1)
        return softmax_sums(by_machine, labels, weights, vectors, sigma=self.sigma)

    def _by_machine(self, F: np.ndarray) -> np.ndarray:
        return F.reshape(len(F), len(self.held_out), -1)


def map_arrays(shipped: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """Return the map's arrays among what was shipped, or None if it is to be derived."""
    return {
        name: A for name, A in shipped.items() if name not in _POINT and not name.startswith(_KNOWN)
    } or None
