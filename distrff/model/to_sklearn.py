"""A frozen model as a pipeline of scikit-learn's own estimators, with their fitted attributes set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from distrff.errors import InputError
from distrff.features.to_sklearn import identity, sklearn_map
from distrff.model.model import Model
from distrff.preprocessing.scaling import Scaling
from distrff.preprocessing.targets import ClassTargets


def sklearn_pipeline(model: Model) -> Pipeline:
    """Return a fitted pipeline that predicts as the model does.

    A `StandardScaler` if the model scales, the map (`sklearn_map`), and a linear model: Ridge,
    RidgeClassifier, LinearSVC, LogisticRegression (one per class against the rest) or PCA.

    Raises InputError for a map, or a noise, that scikit-learn does not have.
    """
    map_ = sklearn_map(model.specification, model.arrays)
    make = _ESTIMATORS[model.kind]
    steps = [*_scaler(model.scaling, model.n_columns)]
    steps += [("features", map_.transformer)] if map_.transformer is not None else []
    if not steps:  # the first step keeps the column names, and the last one expects unnamed features
        steps = [("features", identity(model.n_columns))]
    if model.column_names is not None:
        _first_leaf(steps[0][1]).feature_names_in_ = np.asarray(model.column_names, dtype=object)
    return Pipeline([*steps, ("machine", make(model, map_.factor * model.coef))])


def _scaler(scaling: Scaling, n_columns: int) -> list[tuple[str, Any]]:
    if scaling.scale is None:
        return []
    scaler = StandardScaler(with_mean=scaling.shift is not None)
    scaler.mean_, scaler.scale_, scaler.var_ = scaling.shift, scaling.scale, np.square(scaling.scale)
    scaler.n_features_in_ = n_columns
    return [("scale", scaler)]


def _first_leaf(transformer: Any) -> Any:
    """Return the transformer itself, or the first of a union or pipeline, which keeps the column names."""
    parts = getattr(transformer, "transformer_list", getattr(transformer, "steps", None))
    return transformer if parts is None else _first_leaf(parts[0][1])


def _ridge(model: Model, coef: np.ndarray) -> Ridge:
    estimator = Ridge()
    flat = model.n_outputs == 1 and model.y_is_1d
    estimator.coef_ = coef[:, 0] if flat else coef.T
    estimator.intercept_ = float(model.intercept[0]) if flat else model.intercept
    estimator.n_features_in_ = len(coef)
    return estimator


def _ridge_classifier(model: Model, coef: np.ndarray) -> RidgeClassifier:
    # Fitted to one row per class, for the labels; the coefficients are replaced.
    classes = np.eye(model.n_outputs, dtype=int) if model.is_multilabel else _classes(model)
    estimator = RidgeClassifier().fit(np.zeros((len(classes), len(coef))), classes)
    estimator.coef_, estimator.intercept_ = coef.T, model.intercept
    return estimator


def _likelihood_classifier(model: Model, coef: np.ndarray) -> Any:
    assert model.likelihood is not None
    noise, sigma = model.likelihood["noise"], model.likelihood["sigma"]
    if noise != "logistic":
        raise InputError(
            f"scikit-learn has no classifier with the probabilities of noise={noise!r}; "
            f"noise='logistic' has one"
        )
    classes, coef, intercept = _classes(model), coef / sigma, model.intercept / sigma
    if model.n_outputs == 1 or model.likelihood["multi_class"] == "softmax":
        return _linear(LogisticRegression(), classes, coef, intercept)
    # Fitted to one row per class, for the labels; the coefficients are replaced.
    estimator = OneVsRestClassifier(LogisticRegression()).fit(np.zeros((len(classes), len(coef))), classes)
    for k, one in enumerate(estimator.estimators_):
        _linear(one, one.classes_, coef[:, [k]], intercept[[k]])
    return estimator


def _linear(estimator: Any, classes: np.ndarray, coef: np.ndarray, intercept: np.ndarray) -> Any:
    estimator.classes_, estimator.coef_, estimator.intercept_ = classes, coef.T, intercept
    estimator.n_features_in_ = len(coef)
    return estimator


def _components(model: Model, coef: np.ndarray) -> PCA:
    """Return the projection Z·coef + intercept as PCA's (Z − mean)·coef."""
    estimator = PCA(n_components=model.n_outputs)
    estimator.components_ = coef.T
    estimator.mean_ = -np.linalg.lstsq(coef.T, model.intercept, rcond=None)[0]
    estimator.n_components_, estimator.n_features_in_ = model.n_outputs, len(coef)
    estimator.explained_variance_ = np.asarray(model.report["explained_variance"])
    estimator.explained_variance_ratio_ = np.asarray(model.report["explained_variance_ratio"])
    return estimator


def _classes(model: Model) -> np.ndarray:
    assert isinstance(model.targets, ClassTargets)
    return model.targets.classes


_ESTIMATORS: dict[str, Callable[[Model, np.ndarray], Any]] = {
    "KernelRidge": _ridge,
    "KernelRidgeClassifier": _ridge_classifier,
    "KernelSVC": lambda model, coef: _linear(LinearSVC(), _classes(model), coef, model.intercept),
    "KernelLikelihoodClassifier": _likelihood_classifier,
    "KernelPCA": _components,
}
