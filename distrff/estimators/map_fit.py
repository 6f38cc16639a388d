"""Fitting a map to a dataset: on the sample of the first sweep, and to what it asks of all rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from distrff.columns.scaling import Scaling
from distrff.columns.targets import Targets
from distrff.data.dataset import Dataset
from distrff.features.base import FeatureMap
from distrff.features.row_question import Ask, RowQuestion
from distrff.ingest.column_statistics import ColumnStatistics
from distrff.random_streams import child_seed, resolve_seed
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.row_answers import RowAnswerReduction
from distrff.sweeps.segments import light_segmentation


@dataclass(frozen=True, eq=False)
class AskedOfDataset:
    """Who answers for all rows of a dataset, each question by a sweep.

    Parameters
    ----------
    run : SweepRun
    dataset : Dataset
    scaling : Scaling
    dtype : str
        Of the rows that are looked at.
    recount : callable, optional
        Raises PlanRefused where a machine on so many features does not fit.
    """

    run: SweepRun
    dataset: Dataset
    scaling: Scaling
    dtype: str
    recount: Callable[[int], Any] | None = None

    @property
    def n_rows(self) -> int:
        return self.dataset.n_rows

    def __call__(self, question: RowQuestion, *, least_features: int = 0) -> Any:
        if self.recount is not None and least_features:
            self.recount(least_features)
        cuts = light_segmentation(self.dataset.n_rows, self.dataset.n_columns)
        reduction = RowAnswerReduction(question, self.scaling, self.dtype, cuts.tile_rows)
        return self.run.gather([self.run.sweep(question.label, self.dataset, reduction, cuts)])[0]


def fit_map(
    features: FeatureMap,
    statistics: ColumnStatistics,
    scaling: Scaling,
    targets: Targets | None,
    *,
    seed: int,
    ask: Ask,
) -> FeatureMap:
    """Return a clone of the map, fitted on the sample and to what it asks; its own seed wins over `seed`."""
    sample = statistics.sample()
    X = scaling.apply(sample.X, np.dtype(np.float64))
    Y = None if targets is None or sample.y is None else targets.encode(sample.y)
    s = (
        sample.sample_weight
        if targets is None or sample.y is None
        else targets.row_weights(sample.y, sample.sample_weight)
    )
    own = features.random_state
    seed = child_seed(seed, "features") if own is None else resolve_seed(own)
    return clone(features).fit_sample(X, Y, s, seed=seed, ask=ask)
