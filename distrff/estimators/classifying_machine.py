"""What all classifiers share: labels, decision values, accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.exceptions import DataConversionWarning

from distrff.columns.targets import ClassTargets
from distrff.errors import InputError, warn
from distrff.estimators.machine import Machine


class ClassifyingMachine(ClassifierMixin, Machine):
    """A machine whose targets are classes."""

    @property
    def classes_(self) -> np.ndarray:
        targets = self.model_.targets
        assert isinstance(targets, ClassTargets)
        return targets.classes

    def predict(self, X: Any) -> Any:
        """Return the predicted labels, lazily for dask arrays."""
        return self._output(X, "predict")

    def decision_function(self, X: Any) -> Any:
        """Return f(x): (n_samples,) for two classes, positive for the second, else (n_samples, n_classes)."""
        F = self._output(X, "decision")
        return F[:, 0] if F.shape[1] == 1 else F

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy, in one light pass over rows of any storage."""
        return self._score_sums(X, y, sample_weight).classification_scores()["accuracy"]

    def _dataset(self, X: Any, y: Any, sample_weight: Any) -> Any:
        dataset = super()._dataset(X, y, sample_weight)
        if dataset.n_targets > 1:
            raise InputError(f"y must be one column of class labels, got {dataset.n_targets} columns")
        if not dataset.y_is_1d:
            warn(
                f"A column-vector y was passed when a 1d array was expected: shape ({dataset.n_rows}, 1); "
                f"use y.ravel()",
                DataConversionWarning,
            )
        return dataset
