"""Classification by kernel ridge regression on ±1."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.exceptions import DataConversionWarning

from distrff.columns.targets import ClassTargets
from distrff.errors import InputError, warn
from distrff.estimators.ridge_base import RidgeMachine
from distrff.features.base import FeatureMap


class KernelRidgeClassifier(ClassifierMixin, RidgeMachine):
    """Classifier by kernel ridge regression on labels coded as ±1.

    Two classes are one regression on −1 (first class) and +1; more are one against the
    rest each, all from the same Gram and the same features. See `KernelRidge` for the
    objective and for the parameters not listed here.

    Parameters
    ----------
    class_weight : None, "balanced" or dict of label to weight
        Multiplies the weights of the rows of each class, the same in all the
        one-against-the-rest problems. "balanced": Σs / (n_classes · weight of the class).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1 or n_classes, n_features)
    intercept_ : ndarray of shape (1 or n_classes,)
    cv_score_ : float or None
        Weighted held-out mean squared error on the ±1 targets.

    Notes
    -----
    Labels may be of any type that sorts; numbers and strings can be stored.
    """

    _target_kind = "classes"

    def __init__(
        self,
        features: FeatureMap | None = None,
        alpha: Any = 1.0,
        *,
        alphas: Any = None,
        cv: int = 5,
        fold_by: str = "hash",
        fit_intercept: bool = True,
        scale: str = "none",
        dtype: str = "auto",
        solver: str = "auto",
        tol: float = 1e-3,
        max_sweeps: int | None = None,
        random_state: int | None = None,
        class_weight: Any = None,
    ) -> None:
        super().__init__(
            features,
            alpha,
            alphas=alphas,
            cv=cv,
            fold_by=fold_by,
            fit_intercept=fit_intercept,
            scale=scale,
            dtype=dtype,
            solver=solver,
            tol=tol,
            max_sweeps=max_sweeps,
            random_state=random_state,
        )
        self.class_weight = class_weight

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
