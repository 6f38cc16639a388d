"""The sweep over truths and predictions, whatever is summed of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distrff.data.checks import check_pairs
from distrff.data.rows import Rows
from distrff.scores.statistic import Statistic
from distrff.sweeps.reduction import Shipped


@dataclass(frozen=True)
class PairedReduction:
    """Reduction of rows whose X are predictions and whose y are truths.

    Parameters
    ----------
    statistic : Statistic
    prediction : str
        What errors call the predictions.
    tile_rows : int
    """

    statistic: Statistic
    prediction: str
    tile_rows: int

    def size_bytes(self, n_rows: int) -> int:
        return self.statistic.size_bytes(n_rows)

    def zero(self) -> Any:
        return self.statistic.zero()

    def finish(self, accumulator: Any) -> Any:
        return accumulator

    def update(self, found: Any, rows: Rows, shipped: Shipped) -> Any:
        for block in rows.tiles(self.tile_rows):
            check_pairs(block, self.prediction)
            s = np.ones(len(block.X)) if block.sample_weight is None else block.sample_weight
            found = found.merge(self.statistic.of(block.y, block.X, s, block.start))
        return found

    def merge(self, first: Any, second: Any) -> Any:
        return first.merge(second)
