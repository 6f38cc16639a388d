"""How often several labels of a row are right: sums over rows, and what is read off them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distrff.errors import InputError
from distrff.preprocessing.coding import MultilabelTargets
from distrff.utils.sketch import QuantileSketch


@dataclass(frozen=True, eq=False)
class LabelErrors:
    """Sums over rows of true and predicted labels, each 0 or 1; exact but for rounding.

    Rows outside the bounds of the model count as wrong in every label.
    """

    n_rows: int
    weight: float
    right: float  # Σs of the rows with all labels right
    actual: np.ndarray  # (k,): Σs of the rows that have the label
    predicted: np.ndarray  # (k,): Σs of those that are predicted to have it
    both: np.ndarray  # (k,): Σs of those that are both
    n_wrong: np.ndarray  # (k,): Σs of the rows with this label wrong
    n_outside: int = 0

    n_unseen = 0  # as of classes that the fit never saw; labels have none

    @classmethod
    def empty(cls, k: int) -> LabelErrors:
        """Return the sums of no rows."""
        zero = np.zeros(k)
        return cls(0, 0.0, 0.0, zero, zero, zero, zero)

    @classmethod
    def of(
        cls,
        targets: MultilabelTargets,
        F: np.ndarray,
        y: np.ndarray,
        s: np.ndarray | None,
        outside: np.ndarray,
    ) -> LabelErrors:
        """Return the sums of a block of decision values F and labels y, both (n, k)."""
        if y.shape != F.shape:
            raise InputError(f"y has shape {y.shape}, but the model predicts {F.shape[1]} labels")
        n = len(F)
        s = np.ones(n) if s is None else np.ascontiguousarray(s, dtype=np.float64)
        actual, predicted = targets.encode(y) > 0, F > 0
        wrong = (actual != predicted) | outside[:, None]
        return cls(
            n,
            float(s.sum()),
            float(s @ ~wrong.any(axis=1)),
            s @ actual,
            s @ predicted,
            s @ (actual & predicted & ~outside[:, None]),
            s @ wrong,
            int(np.count_nonzero(outside)),
        )

    def merge(self, other: LabelErrors) -> LabelErrors:
        """Return the sums of both sets of rows."""
        return LabelErrors(
            self.n_rows + other.n_rows,
            self.weight + other.weight,
            self.right + other.right,
            self.actual + other.actual,
            self.predicted + other.predicted,
            self.both + other.both,
            self.n_wrong + other.n_wrong,
            self.n_outside + other.n_outside,
        )

    def misfits(self) -> tuple[QuantileSketch, ...]:
        """Return nothing: there are no prediction sets of several labels."""
        return ()

    def scores(self) -> dict[str, float]:
        """Return the share of rows with all labels right, of single labels that are wrong, and of those that
        are wrong where each label has its more frequent value in all rows."""
        shares = self.actual / self.weight
        return {
            "accuracy": self.right / self.weight,
            "error": (self.weight - self.right) / self.weight,
            "hamming_loss": float(self.n_wrong.mean() / self.weight),
            "constant_hamming_loss": float(np.minimum(shares, 1.0 - shares).mean()),
        }

    def values(self, names: tuple[str, ...] | None = None) -> dict[str, Any]:
        """Return all that is known, as data for JSON; `names` are those of the labels."""
        of_labels = [
            {
                "label": names[j] if names else f"label {j}",
                "share": float(self.actual[j] / self.weight),
                "error": float(self.n_wrong[j] / self.weight),
                "precision": _ratio(self.both[j], self.predicted[j]),
                "recall": _ratio(self.both[j], self.actual[j]),
                "f1": _ratio(2 * self.both[j], self.predicted[j] + self.actual[j]),
            }
            for j in range(len(self.actual))
        ]
        return {"kind": "labels", **self.scores(), "labels": of_labels}


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None
