"""A statistic of truths and predictions, summed by a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distrff.data.dataset import Dataset
from distrff.data.pairs import paired_rows
from distrff.errors import InputError
from distrff.estimators.run import begin_run
from distrff.scores.labels import sorted_labels
from distrff.scores.pair_counts import PairCountStatistic
from distrff.scores.statistic import Statistic
from distrff.sweeps.paired import PairedReduction
from distrff.sweeps.segments import light_segmentation


@dataclass(frozen=True)
class Pairs:
    """Truths, predictions and weights, checked for their shapes, and what errors call the predictions."""

    dataset: Dataset
    prediction: str

    @classmethod
    def of(cls, y_true: Any, y_pred: Any, sample_weight: Any, *, prediction: str = "y_pred") -> Pairs:
        """Return what the user gave."""
        return cls(paired_rows(y_true, y_pred, sample_weight, prediction=prediction), prediction)

    @property
    def shape(self) -> tuple[int, int]:
        """Columns of the truths and of the predictions."""
        return self.dataset.n_targets, self.dataset.n_columns

    def summed(self, label: str, statistic: Statistic) -> Any:
        """Return the statistic of all rows, after one pass."""
        run = begin_run()
        cuts = light_segmentation(self.dataset.n_rows, sum(self.shape))
        reduction = PairedReduction(statistic, self.prediction, cuts.tile_rows)
        return run.gather([run.sweep(label, self.dataset, reduction, cuts)])[0]


def found_labels(y_true: Any, labels: Any) -> np.ndarray:
    """Return the sorted labels: those given, or those of the truths, for which they are passed over once.

    Raises
    ------
    InputError
        If there are fewer than two.
    """
    if labels is None:
        found = (
            Pairs.of(y_true, y_true, None, prediction="y_true").summed("labels", PairCountStatistic()).labels
        )
    else:
        found = sorted_labels(np.asarray(labels).ravel())[0]
    if len(found) < 2:
        raise InputError(
            f"y_true has one label only, {found.tolist()}; name all labels in labels=…, and give rows of two"
        )
    return found
