"""A frozen model's results for rows of any storage: lazily for dask arrays and DataFrames."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask
import numpy as np
from dask.base import tokenize
from scipy.sparse import issparse

from distrff.errors import InputError, InputTypeError
from distrff.io.arrays import plain_array
from distrff.model.rows import rows_to_predict
from distrff.preprocessing.coding import NumericTargets
from distrff.utils.random import group_of

# In this module `model` is a `Model`, whose methods come here for rows that are not NumPy arrays.

_EMBEDDED_BYTES = 2**20  # a larger model is a task of its own, on which all blocks depend


def answers_for(model: Any, X: Any, method: str, **options: str) -> Any:
    """Return a method's result for rows of any storage, lazily for rows that are not in memory."""
    X = rows_to_predict(model, X)
    if dask.is_dask_collection(X):
        return predict_with(model, X, method, **options)
    return getattr(model, method)(X if issparse(X) else plain_array(X, "X"), **options)


def predict_with(model: Any, X: Any, method: str, **options: str) -> Any:
    """Return a method's result for X as a lazy dask array; `options` are those of the method.

    It is "predict", "decision", "predict_proba", "class_scores", "std" or "transform".
    """
    if X.ndim != 2 or X.shape[1] != model.n_columns:
        raise InputError(
            f"X must have shape (n_samples, {model.n_columns}), got a dask array of shape {X.shape}"
        )
    if issparse(X._meta) and not model.specification.takes_sparse_rows:
        raise InputTypeError(
            f"X is sparse, but {model.specification.kind} features take no sparse rows; "
            f"pass X.map_blocks(lambda block: block.toarray())"
        )
    if X.numblocks[1] > 1:
        X = X.rechunk({1: -1})
    posterior = model.posterior if method == "std" else None
    light: Any = replace(model.light(), arrays=model.arrays, posterior=posterior)
    if model.coef.nbytes > _EMBEDDED_BYTES or model.arrays or light.posterior is not None:
        light = dask.delayed(light, name=f"{group_of('model')}-{tokenize(light)}")
    meta = _meta(model, method)
    shape: dict[str, Any] = (
        {"drop_axis": 1} if meta.ndim == 1 else {"chunks": (X.chunks[0], (meta.shape[1],))}
    )
    return X.map_blocks(
        apply_method,
        light,
        method,
        **options,
        token=group_of("predict"),
        dtype=meta.dtype,
        meta=meta,
        **shape,
    )


def apply_method(X: np.ndarray, model: Any, method: str, **options: str) -> np.ndarray:
    """Return the method's result for one block."""
    return getattr(model, method)(X, **options)


def _meta(model: Any, method: str) -> np.ndarray:
    if method == "predict" and not isinstance(model.targets, NumericTargets):
        return model.predict(model.specification.example)[:0]
    if method == "transform":
        return model.transform(model.specification.example)[:0]
    if method in ("predict_proba", "class_scores"):
        return np.empty((0, max(2, model.n_outputs)))
    flat = method != "decision" and model.y_is_1d
    return np.empty(0) if flat else np.empty((0, model.n_outputs))
