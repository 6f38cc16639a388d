"""What a frozen machine says of each row, as named columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.columns.targets import ClassTargets
from distrff.errors import InputError
from distrff.model import Model

# Of each method, what its result is called where it is stored.
RESULTS = {
    "predict": "prediction",
    "decision_function": "decision",
    "predict_proba": "probability",
    "transform": "features",
}


@dataclass(frozen=True)
class RowResults:
    """The result of a machine's method for blocks of rows.

    Parameters
    ----------
    model : Model
    method : {"predict", "decision_function", "predict_proba", "transform"}
    return_std : bool
        Add the standard deviation of the prediction.
    """

    model: Model
    method: str
    return_std: bool = False

    def check(self) -> None:
        """Raise InputError if the machine has no such result."""
        if self.method not in RESULTS:
            raise InputError(f"method must be one of {', '.join(RESULTS)}, got {self.method!r}")
        if self.return_std and self.method != "predict":
            raise InputError(
                f"standard deviations are of predictions; ask for them with method 'predict', "
                f"not {self.method!r}"
            )
        if self.method == "decision_function" and not self.model.is_classifier:
            raise InputError(
                f"a {self.model.kind} decides nothing; decision_function is of classifiers, use predict"
            )
        if self.method == "transform" and self.model.specification.is_sparse:
            raise InputError(
                "features of random binning are sparse, and no dense array is made of them; call the "
                "model's transform on blocks of rows, which returns scipy CSR matrices"
            )

    def of(self, X: np.ndarray) -> dict[str, np.ndarray]:
        """Return the named results of a block of rows, each of shape (r,) or (r, k)."""
        if self.method == "decision_function":
            F = self.model.decision(X)
            values = F[:, 0] if F.shape[1] == 1 else F
        else:
            values = getattr(self.model, self.method)(X)
        found = {RESULTS[self.method]: values}
        if self.return_std:
            found["std"] = self.model.std(X)
        return found

    def example(self) -> dict[str, np.ndarray]:
        """Return the results of one row, for their shapes and types."""
        return self.of(np.zeros((1, self.model.n_columns)))

    def labels(self, width: int) -> list[str]:
        """Return what tells the columns of a result of `width` columns apart: classes, or numbers."""
        targets = self.model.targets
        if isinstance(targets, ClassTargets) and len(targets.classes) == width:
            return [str(label) for label in targets.classes.tolist()]
        return [str(column) for column in range(width)]
