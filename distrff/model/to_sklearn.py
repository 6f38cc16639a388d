"""A frozen model as a pipeline of scikit-learn's own estimators, with their fitted attributes set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from distrff.errors import DataWarning, InputError, warn
from distrff.features.to_sklearn import identity, sklearn_map
from distrff.model.model import Model
from distrff.preprocessing.coding import ClassTargets, Scaling


def sklearn_pipeline(model: Model, parameters: Mapping[str, Any]) -> Pipeline:
    """A fitted pipeline that predicts as the model does, with the `parameters` of its estimator.

    A `StandardScaler` if the model scales, the map (`sklearn_map`), and a linear model: Ridge,
    RidgeClassifier, LinearSVC, LogisticRegression (one per class against the rest) or PCA.

    Raises InputError for a map, or a noise, that scikit-learn does not have.
    """
    map_ = sklearn_map(model.specification, model.arrays)
    machine = _ESTIMATORS[model.kind](model, _refit(model, parameters))
    steps = [*_scaler(model.scaling, model.n_columns)]
    steps += [("features", map_)] if map_ is not None else []
    if not steps:  # the first step keeps the column names, and the last one expects unnamed features
        steps = [("features", identity(model.n_columns))]
    if model.column_names is not None:
        _first_leaf(steps[0][1]).feature_names_in_ = np.asarray(model.column_names, dtype=object)
    return Pipeline([*steps, ("machine", machine)])


def _refit(model: Model, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with which scikit-learn minimises what the fit did, alpha and C as found."""
    names = ("fit_intercept", "class_weight")
    found = {name: parameters[name] for name in names if name in parameters}
    # As found, and not as given: "cv" means nothing to scikit-learn.
    if "C" in parameters:
        return found | {"C": float(model.report["C"]), "max_iter": 10_000}
    if "alpha" in parameters:
        alpha = model.report["alpha"]
        return found | {"alpha": np.array(alpha) if isinstance(alpha, list) else alpha}
    return found


def _scaler(scaling: Scaling, n_columns: int) -> list[tuple[str, Any]]:
    if scaling.scale is None:
        return []
    scaler = StandardScaler(with_mean=scaling.shift is not None)
    scaler.mean_, scaler.scale_, scaler.var_ = scaling.shift, scaling.scale, np.square(scaling.scale)
    scaler.n_features_in_ = n_columns
    # Without a shift columns are divided by their root mean square, which StandardScaler would not find.
    return [("scale", scaler if scaling.shift is not None else FrozenEstimator(scaler))]


def _first_leaf(transformer: Any) -> Any:
    """The transformer itself, or the first of a union or pipeline, which keeps the column names."""
    parts = getattr(transformer, "transformer_list", getattr(transformer, "steps", None))
    if parts is not None:
        return _first_leaf(parts[0][1])
    return transformer.estimator if isinstance(transformer, FrozenEstimator) else transformer


def _ridge(model: Model, refit: dict[str, Any]) -> Ridge:
    estimator, coef = Ridge(**refit), model.coef
    flat = model.n_outputs == 1 and model.y_is_1d
    # Ridge has one row of coefficients a target, and a vector for a y that was one.
    estimator.coef_ = coef[:, 0] if flat else coef.T
    estimator.intercept_ = float(model.intercept[0]) if flat else model.intercept
    estimator.n_features_in_ = len(coef)
    return estimator


def _ridge_classifier(model: Model, refit: dict[str, Any]) -> RidgeClassifier:
    coef = model.coef
    # Fitted to one row per class, for the labels; the coefficients are replaced.
    classes = np.eye(model.n_outputs, dtype=int) if model.is_multilabel else _classes(model)
    estimator = RidgeClassifier().fit(np.zeros((len(classes), len(coef))), classes)
    estimator.coef_, estimator.intercept_ = coef.T, model.intercept
    return estimator.set_params(**refit)


def _svc(model: Model, refit: dict[str, Any]) -> LinearSVC:
    estimator = LinearSVC(loss=model.report["loss"], **refit)
    return _linear(estimator, _classes(model), model.coef, model.intercept)


def _likelihood_classifier(model: Model, refit: dict[str, Any]) -> Any:
    assert model.likelihood is not None
    noise, sigma = model.likelihood["noise"], model.likelihood["sigma"]
    if noise != "logistic":
        raise InputError(
            f"scikit-learn has no classifier with the probabilities of noise={noise!r}; "
            f"noise='logistic' has one"
        )
    # LogisticRegression knows no σ: f/σ has the same probabilities.
    classes, coef, intercept = _classes(model), model.coef / sigma, model.intercept / sigma
    refit |= {"C": refit["C"] / sigma**2}  # the penalty is that of w, and these coefficients are w/σ
    if model.n_outputs == 1 or model.likelihood["multi_class"] == "softmax":
        return _linear(LogisticRegression(**refit), classes, coef, intercept)
    if refit.pop("class_weight") is not None:
        warn(
            "a clone of this pipeline that is fitted anew has no class_weight, since OneVsRestClassifier has "
            "none; its predictions as it is are those of the model",
            DataWarning,
        )
    # Fitted to one row per class, for the labels; the coefficients are replaced.
    estimator = OneVsRestClassifier(LogisticRegression(**refit)).fit(
        np.zeros((len(classes), len(coef))), classes
    )
    for k, one in enumerate(estimator.estimators_):
        _linear(one, one.classes_, coef[:, [k]], intercept[[k]])
    return estimator


def _linear(estimator: Any, classes: np.ndarray, coef: np.ndarray, intercept: np.ndarray) -> Any:
    estimator.classes_, estimator.coef_, estimator.intercept_ = classes, coef.T, intercept
    estimator.n_features_in_ = len(coef)
    return estimator


def _components(model: Model, refit: dict[str, Any]) -> PCA:
    """The projection Z·coef + intercept as PCA's (Z − mean)·coef."""
    estimator, coef = PCA(n_components=model.n_outputs), model.coef
    estimator.components_ = coef.T
    # (Z − mean)·coef = Z·coef + intercept for each mean with meanᵀ·coef = −intercept; this is the shortest.
    estimator.mean_ = -np.linalg.lstsq(coef.T, model.intercept, rcond=None)[0]
    estimator.n_components_, estimator.n_features_in_ = model.n_outputs, len(coef)
    estimator.explained_variance_ = np.asarray(model.report["explained_variance"])
    estimator.explained_variance_ratio_ = np.asarray(model.report["explained_variance_ratio"])
    return estimator


def _classes(model: Model) -> np.ndarray:
    assert isinstance(model.targets, ClassTargets)
    return model.targets.classes


_ESTIMATORS: dict[str, Callable[[Model, dict[str, Any]], Any]] = {
    "KernelRidge": _ridge,
    "KernelRidgeClassifier": _ridge_classifier,
    "KernelSVC": _svc,
    "KernelLikelihoodClassifier": _likelihood_classifier,
    "KernelPCA": _components,
}
