"""The Gram sweep: A = Σ s·ttᵀ over rows t = [z | 1 | y], per fold, a tile of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distrff.columns.scaling import Scaling
from distrff.columns.targets import Targets
from distrff.data.rows import RowBlock, Rows
from distrff.features.specification import MapSpecification
from distrff.solvers.packed import pack, packed_length
from distrff.sweeps.folds import Folds
from distrff.sweeps.reduction import Shipped


@dataclass(frozen=True)
class GramReduction:
    """Reduction to the Grams of some folds.

    Parameters
    ----------
    specification : MapSpecification
    scaling : Scaling
    targets : Targets
        Of no output for the Gram of [z | 1], whether the rows have a y or not.
    dtype : {"float32", "float64"}
        Of the tiles and their products; sums of products are float64.
    tile_rows : int
        T. Without folds a product takes T consecutive rows. With K folds, K·T rows are
        read, ordered by fold, and each fold's rows are one product of about T.
    folds : Folds or None
    members : tuple of int
        The folds that this reduction sums; (0,) without folds.

    Notes
    -----
    The accumulator has shape (len(members), p, p), p = D + 1 + k; partials are its packed
    lower triangles. A row costs 2dD + p² flops and D cosines. One D × D product in
    `dtype`, one tile and its rows are live beside the accumulator.
    """

    specification: MapSpecification
    scaling: Scaling
    targets: Targets
    dtype: str
    tile_rows: int
    folds: Folds | None = None
    members: tuple[int, ...] = (0,)

    @property
    def size(self) -> int:
        """p, the columns of t."""
        return self.specification.n_features + 1 + self.targets.n_outputs

    def size_bytes(self, n_rows: int) -> int:
        return 8 * len(self.members) * packed_length(self.size)

    def zero(self) -> np.ndarray:
        return np.zeros((len(self.members), self.size, self.size))

    def finish(self, accumulator: np.ndarray) -> np.ndarray:
        return pack(accumulator)

    def update(self, A: np.ndarray, rows: Rows, shipped: Shipped) -> np.ndarray:
        tile = _Tile(self, shipped)
        n_folds = 1 if self.folds is None else self.folds.n_folds
        for block in rows.tiles(n_folds * self.tile_rows):
            for position, X, y, s in self.by_fold(block, tile.capacity):
                tile.add_product(A[position], X, y, s)
        return A

    def merge(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return first + second

    def by_fold(
        self, block: RowBlock, most_rows: int
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray | None]]:
        """Yield the position, X, y and sample weights of each fold that is summed, at most so many rows.

        Without folds the block is whole: it has no more.
        """
        X, s = block.X, block.sample_weight
        y = block.y if self.targets.n_outputs else np.empty((X.shape[0], 0))
        if self.folds is None:
            yield 0, X, y, s
            return
        fold = self.folds.of_rows(block.start, block.start + X.shape[0])
        for position, member in enumerate(self.members):
            members = np.flatnonzero(fold == member)
            for start in range(0, len(members), most_rows):
                rows = members[start : start + most_rows]
                yield position, X[rows], y[rows], None if s is None else s[rows]


class _Tile:
    """The buffers of one task, filled with rows t and multiplied again and again."""

    def __init__(self, reduction: GramReduction, shipped: Shipped) -> None:
        self._reduction = reduction
        self._block_map = reduction.specification.build(shipped)
        self._dtype = np.dtype(reduction.dtype)
        # A fold's share of K·T hashed rows is T ± √T; six deviations more, and only uneven folds are split.
        spread = 0 if reduction.folds is None else 6 * int(np.sqrt(reduction.tile_rows))
        self.capacity = reduction.tile_rows + spread
        self._rows = np.empty((self.capacity, reduction.size), self._dtype)

    def add_product(
        self, A: np.ndarray, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None
    ) -> None:
        """Add Σ s·ttᵀ of at most `capacity` rows to A."""
        t = self._fill(X, y, sample_weight)
        # NumPy sees XᵀX and calls syrk: half the flops. The product is not kept in a buffer: that would
        # be a fiftieth faster, but it would lie beside the next chunk while this is decoded.
        A += t.T @ t

    def _fill(self, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None) -> np.ndarray:
        reduction, D = self._reduction, self._block_map.n_features
        t = self._rows[: X.shape[0]]
        self._block_map.apply(reduction.scaling.apply(X, self._dtype), out=t[:, :D])
        t[:, D] = 1.0
        t[:, D + 1 :] = reduction.targets.encode(y)
        s = reduction.targets.row_weights(y, sample_weight)
        if s is not None:
            t *= np.sqrt(s).astype(self._dtype)[:, None]
        return t
