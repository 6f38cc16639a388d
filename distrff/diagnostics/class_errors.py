"""Which classes are taken for which: sums over rows, and what is read off them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from distrff.errors import InputError
from distrff.model.intervals import class_scores
from distrff.preprocessing.coding import ClassTargets, LabelCounts
from distrff.utils.sketch import QuantileSketch, aligned

MAX_MATRIX = 64
"""Classes up to which the whole confusion matrix is given; of more, the most frequent confusions."""

_MAX_CELLS = 2**31  # more than pairs of 10,000 labels, to which `LabelCounts` limits those of rows
_CONFUSED = 10
_UNSEEN = 20
_RELIABILITY_BINS = 20
_CURVE_POINTS = 200


@dataclass(frozen=True, eq=False)
class ClassErrors:
    """Sums over rows of true and predicted classes, and of probabilities where the model has them.

    All are exact but for rounding, and for curves: ROC and precision–recall come from sketches of the
    decision values of both classes, which cannot order two rows of one bucket, 2⁻¹⁰ wide relatively; the
    largest error that this can make in an area is given beside it.
    """

    classes: np.ndarray
    n_rows: int
    cells: LabelCounts  # of true class · (C + 1) + predicted class, C where the row is outside the bounds
    unseen: LabelCounts  # labels that are none of the classes; their rows count as wrong
    n_outside: int = 0  # rows outside the bounds of the model, which count as wrong
    misfit: QuantileSketch = field(default_factory=QuantileSketch)  # how badly the true class fits
    scores_below: QuantileSketch | None = None  # decision values of the rows of the first of two classes
    scores_above: QuantileSketch | None = None  # and of the second
    log_loss: float = 0.0  # Σ −s log p of the true class, over rows that have both
    brier: float = 0.0  # Σ s Σ_c (p_c − [y = c])²
    reliability: np.ndarray | None = None  # (bins, 3): Σ s, Σ s p, Σ s [hit]

    @classmethod
    def empty(cls, targets: ClassTargets, *, has_probabilities: bool) -> ClassErrors:
        """Return the sums of no rows."""
        scores = QuantileSketch() if targets.n_outputs == 1 else None
        return cls(
            targets.classes,
            0,
            LabelCounts.empty(),
            LabelCounts.empty(),
            scores_below=scores,
            scores_above=scores,
            reliability=np.zeros((_RELIABILITY_BINS, 3)) if has_probabilities else None,
        )

    @classmethod
    def of(
        cls,
        targets: ClassTargets,
        F: np.ndarray,
        P: np.ndarray | None,
        y: np.ndarray,
        s: np.ndarray | None,
        outside: np.ndarray,
    ) -> ClassErrors:
        """Return the sums of a block of decision values F, probabilities P if there are any, and labels."""
        n, C = len(F), len(targets.classes)
        if y.size != n:
            raise InputError(f"y must be one column of class labels, got {y.shape[1]} columns")
        labels = y.reshape(n)
        s = np.ones(n) if s is None else np.ascontiguousarray(s, dtype=np.float64)
        actual = targets.indices(labels)
        predicted = np.where(outside, C, targets.chosen(F))
        known = actual >= 0
        sums = replace(
            cls.empty(targets, has_probabilities=P is not None),
            n_rows=n,
            cells=LabelCounts.of_values(
                actual[known] * (C + 1) + predicted[known], s[known], max_labels=_MAX_CELLS
            ),
            unseen=LabelCounts.empty() if known.all() else LabelCounts.of_values(labels[~known], s[~known]),
            n_outside=int(np.count_nonzero(outside)),
        )
        judged = known & ~outside
        if (~outside).any():
            scores = class_scores(F, P)[np.arange(n), np.maximum(actual, 0)]
            scores = np.where(known, scores, np.inf)  # no set holds what the model never saw
            sums = replace(sums, misfit=QuantileSketch.of(scores[~outside], s[~outside]))
        if targets.n_outputs == 1:
            below, above = (
                QuantileSketch.of(F[judged & (actual == c), 0], s[judged & (actual == c)]) for c in (0, 1)
            )
            sums = replace(sums, scores_below=below, scores_above=above)
        return sums if P is None else sums._with_probabilities(P[judged], actual[judged], s[judged])

    def _with_probabilities(self, P: np.ndarray, actual: np.ndarray, s: np.ndarray) -> ClassErrors:
        own = P[np.arange(len(P)), actual]
        # The least positive double in the place of zero: a sum of infinities would say nothing more.
        losses = -np.log(np.maximum(own, np.finfo(np.float64).tiny))
        squares = np.square(P).sum(axis=1) - 2 * own + 1
        if P.shape[1] == 2:
            p, hit = P[:, 1], actual == 1
        else:  # the probability of the predicted class
            p, hit = P.max(axis=1), P.argmax(axis=1) == actual
        bins = np.minimum((p * _RELIABILITY_BINS).astype(np.int64), _RELIABILITY_BINS - 1)
        sums = [np.bincount(bins, w, minlength=_RELIABILITY_BINS) for w in (s, s * p, s * hit)]
        return replace(
            self,
            log_loss=float(s @ losses),
            brier=float(s @ squares),
            reliability=np.stack(sums, axis=1),
        )

    def merge(self, other: ClassErrors) -> ClassErrors:
        """Return the sums of both sets of rows."""
        return replace(
            self,
            n_rows=self.n_rows + other.n_rows,
            cells=self.cells.merge(other.cells, max_labels=_MAX_CELLS),
            unseen=self.unseen.merge(other.unseen),
            n_outside=self.n_outside + other.n_outside,
            misfit=self.misfit + other.misfit,
            scores_below=_both(self.scores_below, other.scores_below),
            scores_above=_both(self.scores_above, other.scores_above),
            log_loss=self.log_loss + other.log_loss,
            brier=self.brier + other.brier,
            reliability=_both(self.reliability, other.reliability),
        )

    @property
    def n_unseen(self) -> int:
        """Rows with labels that are none of the classes."""
        return int(self.unseen.counts.sum())

    def misfits(self) -> tuple[QuantileSketch, ...]:
        """Return the sketch of how badly each row's own class fits."""
        return (self.misfit,)

    @property
    def weight(self) -> float:
        """Σs of all rows, those of unseen labels included."""
        return float(self.cells.weights.sum() + self.unseen.weights.sum())

    def scores(self) -> dict[str, float]:
        """Return accuracy, error = 1 − accuracy, the accuracy of the majority's class, and the mean recall.

        With probabilities also the log loss, in nats, and Brier's score.
        """
        right, per_class = self._right(), self._weights()
        of_class = per_class["weight"]
        n_right = float(right.sum())
        found = of_class > 0
        scores = {
            "accuracy": n_right / self.weight,
            "error": (self.weight - n_right) / self.weight,
            "majority_accuracy": float(of_class.max() / self.weight),
            "balanced_accuracy": float((right[found] / of_class[found]).mean()) if found.any() else np.nan,
        }
        if self.reliability is not None and (judged := float(self.reliability[:, 0].sum())) > 0:
            shares = of_class[found] / of_class.sum()
            scores["log_loss"] = self.log_loss / judged
            scores["majority_log_loss"] = float(-(shares * np.log(shares)).sum())
            scores["brier"] = self.brier / judged
        return scores

    def values(self) -> dict[str, Any]:
        """Return all that is known, as data for JSON."""
        C = len(self.classes)
        right, per_class = self._right(), self._weights()
        names = self.classes.tolist()
        classes = [
            {
                "label": names[c],
                "n_rows": int(per_class["n_rows"][c]),
                "weight": float(per_class["weight"][c]),
                "predicted_weight": float(per_class["predicted"][c]),
                "precision": _ratio(right[c], per_class["predicted"][c]),
                "recall": _ratio(right[c], per_class["weight"][c]),
                "f1": _ratio(2 * right[c], per_class["predicted"][c] + per_class["weight"][c]),
            }
            for c in range(C)
        ]
        unseen = sorted(
            zip(
                self.unseen.labels.tolist(),
                self.unseen.counts.tolist(),
                self.unseen.weights.tolist(),
                strict=True,
            ),
            key=lambda one: -one[1],
        )
        majority = int(per_class["weight"].argmax())
        found = {
            "kind": "classes",
            **self.scores(),
            "majority": names[majority],
            "classes": classes,
            "confused": self._confused(names),
            "n_unseen": self.n_unseen,
            "n_unseen_labels": len(unseen),
            "unseen_labels": [{"label": a, "n_rows": b, "weight": w} for a, b, w in unseen[:_UNSEEN]],
        }
        if C <= MAX_MATRIX:
            found["confusion"] = {"labels": names, "matrix": self._matrix().tolist()}
        if self.reliability is not None:
            of = f"class {names[1]}" if C == 2 else "the predicted class"
            bins = [
                {"probability": p / w, "observed": hit / w, "weight": w}
                for w, p, hit in self.reliability.tolist()
                if w > 0
            ]
            found["reliability"] = {"of": of, "bins": bins}
        return found | self._curves()

    def _right(self) -> np.ndarray:
        """Return the weight of the rows of each class that are predicted right, (C,)."""
        actual, predicted = self._actual_and_predicted()
        same = actual == predicted
        return np.bincount(actual[same], self.cells.weights[same], minlength=len(self.classes))

    def _weights(self) -> dict[str, np.ndarray]:
        """Return weight and number of the rows of each class, and the weight of those predicted so, (C,)."""
        C = len(self.classes)
        actual, predicted = self._actual_and_predicted()
        return {
            "weight": np.bincount(actual, self.cells.weights, minlength=C),
            "n_rows": np.bincount(actual, self.cells.counts, minlength=C),
            "predicted": np.bincount(predicted, self.cells.weights, minlength=C + 1)[:C],
        }

    def _matrix(self) -> np.ndarray:
        """Return the weights by true and predicted class, (C, C)."""
        C = len(self.classes)
        M = np.zeros((C, C + 1))
        M[self._actual_and_predicted()] = self.cells.weights
        return M[:, :C]

    def _actual_and_predicted(self) -> tuple[np.ndarray, np.ndarray]:
        actual, predicted = np.divmod(self.cells.labels.astype(np.int64), len(self.classes) + 1)
        return actual, predicted

    def _confused(self, names: list[Any]) -> list[dict[str, Any]]:
        """Return the pairs of classes that are confused most, with the share of the rows of the true one."""
        actual, predicted = self._actual_and_predicted()
        weights, of_class = self.cells.weights, self._weights()["weight"]
        wrong = np.flatnonzero((actual != predicted) & (predicted < len(names)) & (weights > 0))
        most = wrong[np.argsort(-weights[wrong], kind="stable")[:_CONFUSED]]
        return [
            {
                "actual": names[actual[i]],
                "predicted": names[predicted[i]],
                "weight": float(weights[i]),
                "share": _ratio(weights[i], of_class[actual[i]]),
            }
            for i in most
        ]

    def _curves(self) -> dict[str, Any]:
        """Return ROC and precision–recall of two classes, positive for the second, with their areas.

        Of the rows in one bucket any order is possible. The area below the ROC curve takes half of their
        pairs, so its error is at most half of the sum of the products of their weights. The average precision
        Σ (Rₖ − Rₖ₋₁) Pₖ is taken at the buckets' ends; its error is a bound over all orders.
        """
        below, above = self.scores_below, self.scores_above
        if below is None or above is None or not (below.weight > 0 and above.weight > 0):
            return {}
        _, n, p = aligned(below, above)
        n, p = n[::-1], p[::-1]  # from the largest decision value down
        fp, tp = np.cumsum(n), np.cumsum(p)
        N, P = float(fp[-1]), float(tp[-1])
        area = float(((tp - p / 2) * n).sum() / (N * P))
        area_error = float((n * p).sum() / (2 * N * P))
        precision = tp / (tp + fp)
        average = float((p * precision).sum() / P)
        before_tp, before_fp = tp - p, fp - n
        # At worst all negatives of a bucket come before its positives, at best after them. Along positives
        # the precision t/(t + fp) rises, so its integral over their weights is at most their sum.
        rise = np.log1p(np.divide(p, before_tp + fp, out=np.zeros_like(p), where=before_tp + fp > 0))
        lowest = np.where(fp > 0, p - fp * rise, p)
        highest = p * np.divide(tp, tp + before_fp, out=np.ones_like(tp), where=tp + before_fp > 0)
        bounds = lowest.sum() / P, highest.sum() / P
        fpr, tpr = np.append(0.0, fp / N), np.append(0.0, tp / P)
        shown = _thinned(fpr, tpr)
        return {
            "roc_auc": area,
            "roc_auc_error": area_error,
            "average_precision": average,
            "average_precision_error": float(max(average - bounds[0], bounds[1] - average, 0.0)),
            "positive": self.classes.tolist()[1],
            "roc": {"false_positive_rate": fpr[shown].tolist(), "true_positive_rate": tpr[shown].tolist()},
            "precision_recall": {
                "recall": (tp[shown[1:] - 1] / P).tolist(),
                "precision": precision[shown[1:] - 1].tolist(),
            },
        }


def _thinned(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return which points of a curve to draw: about evenly along it, with both ends."""
    along = np.append(0.0, np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y))))
    found = np.searchsorted(along, np.linspace(0, along[-1], _CURVE_POINTS))
    return np.unique(np.append(np.minimum(found, len(x) - 1), [0, len(x) - 1]))


def _both(first: Any, second: Any) -> Any:
    return None if first is None else first + second


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None
