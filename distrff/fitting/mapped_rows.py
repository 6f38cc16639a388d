"""The pass of few rows that returns their features, for what is solved on the Gram of the rows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from distrff.engine.reduction import Arrays
from distrff.fitting.rows import RowReduction
from distrff.io.dataset import Rows


@dataclass(frozen=True, eq=False)
class MappedRows:
    """Features, coded targets and weights of rows, in their order."""

    Z: np.ndarray  # (n, D), in the dtype of the map
    Y: np.ndarray  # (n, k)
    s: np.ndarray  # (n,)

    def __add__(self, other: Self) -> Self:
        return type(self)(
            *(np.concatenate([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self))
        )


@dataclass(frozen=True, kw_only=True)
class MappedRowsReduction(RowReduction):
    """Reduction to the `MappedRows`: not a sum that is smaller than its rows, so for few of them alone."""

    def size_bytes(self, n_rows: int) -> int:
        return 8 * n_rows * (self.specification.n_features + self.targets.n_outputs + 1)

    def update(self, total: MappedRows | None, rows: Rows, arrays: Arrays) -> MappedRows | None:
        block_map = self.block_map(arrays)
        for block in rows.tiles(self.tile_rows):
            s = self.targets.row_weights(block.y, block.sample_weight)
            mapped = MappedRows(
                Z=block_map.apply(self.scaled(block.X)),
                Y=self.targets.encode(block.y),
                s=np.ones(block.X.shape[0]) if s is None else s,
            )
            total = self.merge(total, mapped)
        return total
