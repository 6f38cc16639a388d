"""The results of a frozen model as named columns for blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from distrff.engine.reduction import Arrays
from distrff.errors import InputError
from distrff.model.model import OUTSIDE, Model, std_of
from distrff.model.persistence import posterior_arrays, posterior_of
from distrff.preprocessing.coding import ClassTargets, NumericTargets
from distrff.utils.validation import one_of


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
        """Return the named results of a block of rows, each of shape (r,) or (r, k).

        Where the model skips rows with NaN these are masked arrays.
        """
        complete = self.model.complete_rows(X)
        if complete is None:
            return self._of(X)
        return {name: _spread(values, complete) for name, values in self._of(X[complete]).items()}

    def _of(self, X: np.ndarray) -> dict[str, np.ndarray]:
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


def _spread(values: np.ndarray, complete: np.ndarray) -> np.ma.MaskedArray:
    """Return the results of the complete rows with masked ones between them."""
    spread = np.ma.masked_all((len(complete), *values.shape[1:]), values.dtype)
    spread[complete] = values
    return spread
