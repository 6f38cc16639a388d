"""The score sweep: errors of predictions, summed over rows in any storage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.engine.reduction import Arrays, Reduction
from distrff.errors import InputError
from distrff.features.specification import MapSpecification
from distrff.io.dataset import check_block
from distrff.io.rows import Rows
from distrff.metrics import r2_scores
from distrff.model.model import Model
from distrff.model.predict import restored
from distrff.preprocessing.scaling import Moments
from distrff.preprocessing.targets import ClassTargets


@dataclass(frozen=True)
class ScoreSums:
    """Sums over rows, from which scores follow."""

    n_rows: int
    squared_error: np.ndarray  # (k,): Σ s (ŷ − y)²; for classes the weight of wrongly labelled rows
    squared_norm: np.ndarray  # (k,): Σ s y²
    targets: Moments  # of numeric targets; for classes only the weight is used
    n_unseen: int = 0  # rows whose label is not one of the model's classes; they count as wrong
    n_outside: int = 0  # rows outside of the model's bounds; labels count as wrong, numbers are left out

    def regression_scores(self) -> dict[str, float]:
        """Return rmse, relative_error = ‖ŷ − y‖/‖y‖ and r2 (averaged over targets)."""
        weight = self.targets.weight
        r2 = r2_scores(self.squared_error, self.targets)
        norm = self.squared_norm.sum()
        return {
            "rmse": float(np.sqrt(self.squared_error.mean() / weight)),
            "relative_error": float(np.sqrt(self.squared_error.sum() / norm)) if norm > 0 else float("nan"),
            "r2": float(r2.mean()),
        }

    def classification_scores(self) -> dict[str, float]:
        """Return accuracy and error, as shares of the weight."""
        error = float(self.squared_error[0] / self.targets.weight)
        return {"accuracy": 1.0 - error, "error": error}


@dataclass(frozen=True)
class ScoreReduction(Reduction):
    """Reduction to the `ScoreSums` of a model."""

    model: Model
    tile_rows: int

    def shared(self) -> MapSpecification:
        return self.model.specification

    def size_bytes(self, n_rows: int) -> int:
        return 8 * 4 * self.model.n_outputs

    def zero(self) -> ScoreSums:
        k = 1 if self.model.is_classifier else self.model.n_outputs
        return ScoreSums(0, np.zeros(k), np.zeros(k), Moments.empty(k))

    def update(self, sums: ScoreSums, rows: Rows, arrays: Arrays) -> ScoreSums:
        model = restored(self.model, arrays)
        for block in rows.tiles(self.tile_rows):
            if block.y is None:
                raise InputError("scoring needs targets; give y, or the target's name")
            check_block(block, "classes" if model.is_classifier else "numeric")
            sums = self.merge(sums, _sums_of_rows(model, block.X, block.y, block.sample_weight))
        return sums

    def merge(self, first: ScoreSums, second: ScoreSums) -> ScoreSums:
        return ScoreSums(
            first.n_rows + second.n_rows,
            first.squared_error + second.squared_error,
            first.squared_norm + second.squared_norm,
            first.targets.merge(second.targets),
            first.n_unseen + second.n_unseen,
            first.n_outside + second.n_outside,
        )


def _sums_of_rows(model: Model, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None) -> ScoreSums:
    n, outside = X.shape[0], model.outside(X)
    n_outside = int(np.count_nonzero(outside))
    s = np.ones(n) if sample_weight is None else np.ascontiguousarray(sample_weight)
    if isinstance(model.targets, ClassTargets):
        if y.size != n:
            raise InputError(f"y must be one column of class labels, got {y.shape[1]} columns")
        labels = y.reshape(n)
        is_wrong = np.ones(n, dtype=bool)
        is_wrong[~outside] = model.predict(X[~outside] if n_outside else X) != labels[~outside]
        known = set(model.targets.classes.tolist())
        n_unseen = sum(label not in known for label in labels[is_wrong].tolist())
        wrong = is_wrong.astype(np.float64)[:, None]
        return ScoreSums(n, s @ wrong, np.zeros(1), Moments.of(wrong, s), n_unseen, n_outside)
    try:
        Y = np.ascontiguousarray(y, dtype=np.float64).reshape(n, -1)
    except (TypeError, ValueError) as error:
        raise InputError(f"y must hold numbers, as the model predicts numbers ({error})") from error
    prediction = model.predict(X).reshape(n, -1)
    if Y.shape != prediction.shape:
        raise InputError(f"y has {Y.shape[1]} column(s), but the model predicts {prediction.shape[1]}")
    if n_outside:
        prediction, Y, s = prediction[~outside], Y[~outside], s[~outside]
    return ScoreSums(
        n, s @ np.square(prediction - Y), s @ np.square(Y), Moments.of(Y, s), n_outside=n_outside
    )
