"""The best machines without features: what every other machine of a fit has to beat."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from distrff.columns.targets import ClassTargets
from distrff.estimators.margin_options import MarginOptions
from distrff.estimators.preparation import Preparation
from distrff.losses import Loss, MarginLoss


class Constant(NamedTuple):
    """A machine with w = 0, as a point x, and its objective C·Σ s·ℓ."""

    x: np.ndarray
    primal: float


def best_constants(preparation: Preparation, options: MarginOptions, C: float) -> list[Constant]:
    """Return the constant of least objective of each output, or the one of all classes that share a loss.

    The summed weights of the classes, which the first sweep brought, are all that it takes.
    """
    targets, labels = preparation.targets, preparation.statistics.labels
    assert isinstance(targets, ClassTargets) and labels is not None
    weights = labels.weights if targets.class_weight is None else targets.class_weight * labels.weights
    D = preparation.specification.n_features
    if options.softmax and targets.n_outputs > 1:
        b, loss = _of_all_classes(weights, options)
        X = np.zeros((D + options.fit_intercept, len(b)))
        X[D:] = b
        return [Constant(X.ravel(), C * loss)]
    above = weights[-1:] if targets.n_outputs == 1 else weights
    return [_of_one_class(s, weights.sum() - s, D, options, C) for s in above]


def _of_one_class(above: float, below: float, D: int, options: MarginOptions, C: float) -> Constant:
    loss: Loss = options.loss
    assert isinstance(loss, MarginLoss)
    b = loss.constant(above / (above + below)) if options.fit_intercept else 0.0
    f, y = np.array([b, b]), np.array([1.0, -1.0])
    x = np.zeros(D + options.fit_intercept)
    x[D:] = b
    return Constant(x, C * float(np.array([above, below]) @ loss.value(f, y)))


def _of_all_classes(weights: np.ndarray, options: MarginOptions) -> tuple[np.ndarray, float]:
    """Return the intercepts of the classes and Σ s·ℓ."""
    sigma = options.loss.clear_margin
    b = sigma * np.log(weights / weights.sum()) if options.fit_intercept else np.zeros(len(weights))
    return b, float(weights @ (logsumexp(b / sigma) - b / sigma))
