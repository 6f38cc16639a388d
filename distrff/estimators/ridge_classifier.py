"""Classification by kernel ridge regression on ±1."""

from __future__ import annotations

from typing import Any

from distrff.estimators.classifying_machine import ClassifyingMachine
from distrff.estimators.ridge_base import RidgeMachine
from distrff.features.base import FeatureMap


class KernelRidgeClassifier(ClassifyingMachine, RidgeMachine):
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
