"""Frozen models of random coefficients, made without a fit."""

from typing import Any

import numpy as np

from distrff.model.model import Model
from distrff.preprocessing.coding import ClassTargets, NumericTargets, Scaling


def frozen_model(
    features: Any,
    rng: np.random.Generator,
    *,
    n_columns: int = 2,
    n_outputs: int = 1,
    classes: np.ndarray | None = None,
    **fields: Any,
) -> Model:
    """Return a model on these features; `fields` replace those of `Model`."""
    specification = features.fit(np.zeros((1, n_columns))).specification_
    targets = NumericTargets(np.zeros(n_outputs), np.ones(n_outputs))
    values = dict(
        kind="KernelRidge",
        specification=specification,
        scaling=Scaling(),
        targets=targets if classes is None else ClassTargets(classes),
        coef=rng.standard_normal((specification.n_features, n_outputs)),
        intercept=rng.standard_normal(n_outputs),
        dtype="float64",
        y_is_1d=n_outputs == 1,
    )
    return Model(**values | fields)
