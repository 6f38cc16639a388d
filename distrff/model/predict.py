"""Predictions of the frozen model for lazy dask arrays, and as named columns for blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import dask
import numpy as np
from dask.base import tokenize
from scipy.sparse import issparse

from distrff.engine.reduction import Arrays
from distrff.errors import InputError, InputTypeError
from distrff.model.model import OUTSIDE, Model, std_of
from distrff.model.persistence import posterior_arrays, posterior_of
from distrff.preprocessing.targets import ClassTargets, NumericTargets
from distrff.utils.keys import group_of
from distrff.utils.validation import one_of

_EMBEDDED_BYTES = 2**20  # a larger model is a task of its own, on which all blocks depend


def predict_with(model: Model, X: Any, method: str, **options: str) -> Any:
    """Return a method's result for X as a lazy dask array; `options` are those of the method.

    It is "predict", "decision", "predict_proba", "class_scores" or "std".
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


def apply_method(X: np.ndarray, model: Model, method: str, **options: str) -> np.ndarray:
    """Return the method's result for one block."""
    return getattr(model, method)(X, **options)


def _meta(model: Model, method: str) -> np.ndarray:
    if method == "predict" and not isinstance(model.targets, NumericTargets):
        return model.targets.decode(np.zeros((1, model.n_outputs)))[:0]
    if method in ("predict_proba", "class_scores"):
        return np.empty((0, max(2, model.n_outputs)))
    flat = method != "decision" and model.y_is_1d
    return np.empty(0) if flat else np.empty((0, model.n_outputs))


def light_model(model: Model, *, with_std: bool = False) -> tuple[Model, Arrays]:
    """Return the model without its large arrays, and the arrays to send to the tasks.

    The map's arrays of a model from a file are sent to each worker once. For a model that was just fitted the
    workers derive them, as in the fit. `with_std` adds what standard deviations need, D² numbers.
    """
    posterior = posterior_arrays(model.posterior) if with_std and model.posterior is not None else {}
    return model.light(), model.sent_arrays() | posterior


def restored(model: Model, arrays: Arrays) -> Model:
    """Return the model in a task, with the arrays that were sent."""
    return replace(model.restored(arrays), posterior=posterior_of(arrays))


# The name of each method's result where it is stored.
RESULTS = {
    "predict": "prediction",
    "decision_function": "decision",
    "predict_proba": "probability",
    "transform": "features",
}


@dataclass(frozen=True)
class RowResults:
    """The result of a model's method, one of `RESULTS`, for blocks of rows, and perhaps its deviation.

    `radius` is that of intervals around predictions, or of prediction sets, if they are wanted.
    """

    model: Model
    method: str
    return_std: bool | str = False
    outside: str = "nan"
    radius: tuple[float, ...] | None = None

    def with_coverage(self, coverage: float | None) -> RowResults:
        """Return the results with intervals or sets of the model, of a coverage; None is without.

        Raises InputError for a model without them.
        """
        if coverage is None:
            return self
        if self.method != "predict":
            raise InputError(
                f"intervals belong to predictions; request them with method 'predict', not {self.method!r}"
            )
        method = "predict_set" if self.model.is_classifier else "predict_interval"
        return replace(self, radius=tuple(self.model.checked_intervals(method).radius(coverage).tolist()))

    def check(self) -> None:
        """Raise InputError if the model has no such result."""
        if self.method not in RESULTS:
            raise InputError(f"method must be one of {', '.join(RESULTS)}, got {self.method!r}")
        one_of("outside", self.outside, OUTSIDE)
        std_of(self.return_std)
        if self.return_std and self.method != "predict":
            raise InputError(
                f"standard deviations belong to predictions; request them with method 'predict', "
                f"not {self.method!r}"
            )
        if self.method == "decision_function" and isinstance(self.model.targets, NumericTargets):
            raise InputError(
                f"a {self.model.kind} has no decision function, which only classifiers have; use predict"
            )
        if self.method == "transform" and self.model.specification.is_sparse:
            raise InputError(
                "features of random binning are sparse, and are not written as a dense array; call the "
                "model's transform on blocks of rows, which returns scipy CSR matrices"
            )

    def of(self, X: np.ndarray) -> dict[str, np.ndarray]:
        """Return the named results of a block of rows, each of shape (r,) or (r, k)."""
        if self.method == "decision_function":
            F = self.model.decision(X)
            values = F[:, 0] if F.shape[1] == 1 else F
        elif self.method == "predict":
            values = self.model.predict(X, outside=self.outside)
        else:
            values = getattr(self.model, self.method)(X)
        found = {RESULTS[self.method]: values}
        if self.return_std:
            found["std"] = self.model.std(X, of=std_of(self.return_std))
        if self.radius is not None and self.model.is_classifier:
            found["set"] = self.model.class_scores(X) <= self.radius[0]
        elif self.radius is not None:
            half = self.radius[0] if values.ndim == 1 else np.array(self.radius)
            found |= {"lower": values - half, "upper": values + half}
        return found

    def labels(self, width: int) -> list[str]:
        """Return names for the columns of a result with `width` columns: the classes, or indices."""
        targets = self.model.targets
        if isinstance(targets, ClassTargets) and len(targets.classes) == width:
            return [str(label) for label in targets.classes.tolist()]
        return [str(column) for column in range(width)]
