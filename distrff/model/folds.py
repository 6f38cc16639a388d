"""Models that left out one fold of the rows each: predictions of rows by a model that did not see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distrff.model.model import Model
from distrff.reductions.base import Folds
from distrff.utils.arrays import chosen_rows


@dataclass(frozen=True, eq=False)
class FoldModels:
    """The coefficients, on the map of the final model, that were fitted without one of the folds each.

    Map, widths, scaling and penalty are those of the final model, which all rows chose: only the
    coefficients did not see a fold. Cross-validation of the penalty has the same models.
    """

    folds: Folds
    coef: np.ndarray  # (n_folds, n_features, n_outputs), in the targets' own units
    intercept: np.ndarray  # (n_folds, n_outputs)

    def decision(self, model: Model, X: Any, start: int) -> np.ndarray:
        """Return f(X) of shape (n_rows, n_outputs), each row by the model that left out its fold.

        X has the rows from `start` on, by which they are assigned to folds. Costs as much as
        `Model.decision`: each row goes through one model.
        """
        return self.output(model, X, np.arange(start, start + X.shape[0]), "decision")

    def output(self, model: Model, X: Any, rows: np.ndarray, method: str) -> np.ndarray:
        """Return what a method of the model, such as "predict", gives for the rows of these numbers."""
        member = self.folds.of_numbers(rows)
        found: np.ndarray | None = None
        for fold in range(self.folds.n_folds):
            own_rows = np.flatnonzero(member == fold)
            if len(own_rows) or fold == 0:
                own = replace(model, coef=self.coef[fold], intercept=self.intercept[fold])
                part = np.asarray(getattr(own, method)(chosen_rows(X, own_rows)))
                if found is None:
                    found = np.empty((X.shape[0], *part.shape[1:]), part.dtype)
                found[own_rows] = part
        assert found is not None
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what is sent to tasks apart from them."""
        return {"fold_coef": self.coef, "fold_intercept": self.intercept}

    def light(self) -> FoldModels:
        """Return itself without these arrays."""
        return replace(self, coef=np.empty((0, 0, 0)), intercept=np.empty((0, 0)))

    def restored(self, arrays: Mapping[str, np.ndarray]) -> FoldModels:
        """Return itself in a task, with the arrays that were sent."""
        return replace(self, coef=arrays["fold_coef"], intercept=arrays["fold_intercept"])
