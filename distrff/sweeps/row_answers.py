"""The sweep that answers what a feature map asks of all rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distrff.columns.scaling import Scaling
from distrff.data.rows import Rows
from distrff.features.row_question import RowQuestion
from distrff.sweeps.reduction import Shipped


@dataclass(frozen=True)
class RowAnswerReduction:
    """Reduction to the answer of a question.

    Parameters
    ----------
    question : RowQuestion
    scaling : Scaling
    dtype : {"float32", "float64"}
    tile_rows : int
    """

    question: RowQuestion
    scaling: Scaling
    dtype: str
    tile_rows: int

    def size_bytes(self, n_rows: int) -> int:
        return self.question.size_bytes(n_rows)

    def zero(self) -> Any:
        return self.question.zero()

    def update(self, answer: Any, rows: Rows, shipped: Shipped) -> Any:
        for block in rows.tiles(self.tile_rows):
            X = self.scaling.apply(block.X, np.dtype(self.dtype))
            answer = self.question.update(answer, block.start, X, block.sample_weight)
        return answer

    def finish(self, answer: Any) -> Any:
        return answer

    def merge(self, first: Any, second: Any) -> Any:
        return self.question.merge(first, second)
