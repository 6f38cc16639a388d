"""Predictions for lazy dask arrays, block by block, by the frozen machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask
import numpy as np
from scipy.sparse import issparse

from distrff.errors import InputError, InputTypeError
from distrff.model import Model

_EMBEDDED_BYTES = 2**20  # a larger machine is one task of its own, that all blocks depend on


def predict_with(model: Model, X: Any, method: str) -> Any:
    """Return a lazy dask array of a method of the frozen machine, of the rows of X.

    Parameters
    ----------
    method : {"predict", "decision", "predict_proba", "std"}

    Raises
    ------
    InputError
        If X has another number of columns than the machine.
    """
    if X.ndim != 2 or X.shape[1] != model.n_columns:
        raise InputError(
            f"X must have shape (n_samples, {model.n_columns}), got a dask array of shape {X.shape}"
        )
    if issparse(X._meta) and not model.specification.takes_sparse_rows:
        raise InputTypeError(
            f"X is sparse, and {model.specification.kind} features take no sparse rows; "
            f"pass X.map_blocks(lambda block: block.toarray())"
        )
    if X.numblocks[1] > 1:
        X = X.rechunk({1: -1})
    travelling: Any = replace(
        model, report={}, steps=None, posterior=model.posterior if method == "std" else None
    )
    if model.coef.nbytes > _EMBEDDED_BYTES or model.arrays or travelling.posterior is not None:
        travelling = dask.delayed(travelling, pure=True)
    meta = _meta(model, method)
    shape: dict[str, Any] = (
        {"drop_axis": 1} if meta.ndim == 1 else {"chunks": (X.chunks[0], (meta.shape[1],))}
    )
    return X.map_blocks(apply_method, travelling, method, dtype=meta.dtype, meta=meta, **shape)


def apply_method(X: np.ndarray, model: Model, method: str) -> np.ndarray:
    """Return the method's result for one block."""
    return getattr(model, method)(X)


def _meta(model: Model, method: str) -> np.ndarray:
    if method == "predict" and model.is_classifier:
        return np.empty(0, model.targets.decode(np.zeros((1, model.n_outputs))).dtype)  # type: ignore[union-attr]
    if method == "predict_proba":
        return np.empty((0, max(2, model.n_outputs)))
    flat = method != "decision" and model.y_is_1d
    return np.empty(0) if flat else np.empty((0, model.n_outputs))
