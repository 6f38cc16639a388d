"""Errors of predictions: sums over rows, and the scores that are read off them.

Every sum is exact but for rounding, and added field by field, so that parts of the rows can be summed apart.
Distributions, of residuals and of decision values, are sketches of fixed buckets with a known error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, xlogy

from distrff.errors import InputError
from distrff.model.intervals import QuantileSketch, aligned, class_scores
from distrff.model.model import JUDGES, Model
from distrff.preprocessing.coding import (
    ClassTargets,
    LabelCounts,
    Moments,
    MultilabelTargets,
    NumericTargets,
    r2_scores,
)
from distrff.utils.arrays import Sums, as_columns
from distrff.utils.random import row_hash


@dataclass(frozen=True, eq=False)
class Errors(Sums, ABC):
    """Sums over rows of a model's errors."""

    n_rows: int
    n_outside: int  # rows outside the bounds of the model

    @property
    @abstractmethod
    def weight(self) -> float:
        """Σs of the rows that were judged."""

    @abstractmethod
    def scores(self) -> dict[str, float]:
        """Single numbers that say how good the model is."""

    @abstractmethod
    def values(self, names: tuple[str, ...] | None = None) -> dict[str, Any]:
        """All scores and details, as data for JSON; `names` are those of the targets."""

    @property
    def n_unseen(self) -> int:
        """Rows with labels that the model never saw; always 0 for numbers."""
        return 0

    def conformal_scores(self) -> tuple[QuantileSketch, ...]:
        """Sketches of the misfit of each row's own target, for intervals and prediction sets."""
        return ()


def _items(**columns: list[Any] | np.ndarray) -> list[dict[str, Any]]:
    """A dictionary for each place of the columns."""
    lists = [column if isinstance(column, list) else column.tolist() for column in columns.values()]
    return [dict(zip(columns, item, strict=True)) for item in zip(*lists, strict=True)]


def _rates(both: np.ndarray, actual: np.ndarray, predicted: np.ndarray) -> dict[str, np.ndarray]:
    """Precision, recall and F1 from weights of rows; NaN where there are no such rows."""
    # By hand: scikit-learn's `precision_recall_fscore_support` takes rows, and refuses sums without any, as
    # those of labels never seen are.
    with np.errstate(invalid="ignore"):
        return {"precision": both / predicted, "recall": both / actual, "f1": 2 * both / (predicted + actual)}


# Numbers.

DETAILED_TARGETS = 8
"""Targets of which more than sums is kept: a sketch has up to a megabyte."""

SHARES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""Quantiles of the residuals that are shown."""


@dataclass(frozen=True, eq=False)
class NumberErrors(Errors):
    """Sums over rows of the errors f − y of one or several targets; rows outside the bounds are left out.

    Quantiles of residuals are within 2⁻¹¹ of a residual of that rank.
    """

    targets: Moments  # of y
    error: np.ndarray  # (k,): Σ s (f − y)
    absolute_error: np.ndarray  # (k,): Σ s |f − y|
    squared_error: np.ndarray  # (k,): Σ s (f − y)²
    squared_norm: np.ndarray  # (k,): Σ s y²
    residuals: tuple[QuantileSketch, ...]  # of y − f, for the first targets
    sample: RowSample
    losses: LossSums | None = None  # of models that are judged by other losses than squares
    normal: NormalSums | None = None  # where deviations are judged
    band: QuantileSketch | None = None  # of the distance of y outside the outer quantiles, negative within

    @classmethod
    def of(
        cls,
        model: Model,
        F: np.ndarray,
        y: np.ndarray,
        s: np.ndarray,
        rows: np.ndarray,
        outside: np.ndarray,
        n_sketched: int,
    ) -> NumberErrors:
        """The sums of a block: values F of f (n, k), targets, weights and row numbers (n,)."""
        try:
            Y = as_columns(np.ascontiguousarray(y, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise InputError(f"y must hold numbers, as the model predicts numbers ({error})") from error
        if Y.shape[1] != model.n_targets:
            raise InputError(f"y has {Y.shape[1]} column(s), but the model predicts {model.n_targets}")
        Y = np.broadcast_to(Y, F.shape)  # of several quantiles the same y
        n_rows, n_outside = len(F), int(np.count_nonzero(outside))
        if n_outside:
            F, Y, s, rows = F[~outside], Y[~outside], s[~outside], rows[~outside]
        losses = LossSums.of(model, F, Y, s) if model.judge else None
        F = model.of_link(F)
        E, detailed = F - Y, slice(DETAILED_TARGETS)
        beyond = np.maximum(E[:, 0], -E[:, -1]) if model.has_band else None
        return cls(
            n_rows,
            n_outside,
            Moments.of(Y, s),
            s @ E,
            s @ np.abs(E),
            s @ np.square(E),
            s @ np.square(Y),
            tuple(QuantileSketch.of(-E[:, j], s) for j in range(n_sketched)),
            RowSample.of(rows, np.column_stack([s, Y[:, detailed], F[:, detailed]])),
            losses,
            None,
            None if beyond is None else QuantileSketch.of(beyond, s),
        )

    def conformal_scores(self) -> tuple[QuantileSketch, ...]:
        """Sketches of |y − f| of each target, as far as they are sketched; of quantiles one of their band."""
        if self.band is not None:
            return (self.band,)
        return tuple(sketch.absolute() for sketch in self.residuals)

    @property
    def weight(self) -> float:
        return self.targets.weight

    def scores(self) -> dict[str, float]:
        """r2, rmse, mae, relative_error = ‖f − y‖/‖y‖, and the rmse of the targets' mean.

        The r2 and the mae are averaged over targets; the others are of all targets together. The r2 is NaN if
        it is not defined for any target.
        """
        r2 = self._r2()
        r2 = r2[~np.isnan(r2)]
        weight, norm = self.weight, self.squared_norm.sum()
        return {
            "r2": float(r2.mean()) if len(r2) else float("nan"),
            "rmse": float(np.sqrt(self.squared_error.mean() / weight)),
            "constant_rmse": float(np.sqrt(self.targets.deviations.mean() / weight)),
            "mae": float(self.absolute_error.mean() / weight),
            "relative_error": float(np.sqrt(self.squared_error.sum() / norm)) if norm > 0 else float("nan"),
            **({} if self.losses is None else self.losses.scores()),
            **({} if self.normal is None else self.normal.scores()),
        }

    def _r2(self) -> np.ndarray:
        """The r2 of each target, NaN where it is not defined: all its numbers are equal."""
        return np.where(self.targets.has_one_value(), np.nan, r2_scores(self.squared_error, self.targets))

    def values(self, names: tuple[str, ...] | None = None) -> dict[str, Any]:
        k = len(self.error)
        of_targets = _items(
            target=list(names if names and len(names) == k else _numbered(k)),
            r2=self._r2(),
            rmse=np.sqrt(self.squared_error / self.weight),
            constant_rmse=self.targets.standard_deviation(),
            mae=self.absolute_error / self.weight,
            bias=self.error / self.weight,
            **({} if self.losses is None else self.losses.of_outputs()),
        )
        if self.losses is not None and self.band is not None:
            for one, tau in zip(of_targets, self.losses.judge.quantile, strict=True):
                one["target"] = f"{(names or ['y'])[0]}, quantile {tau:g}"
        for j, sketch in enumerate(self.residuals[:DETAILED_TARGETS]):
            found = sketch.quantile(np.array(SHARES))
            of_targets[j]["residual_quantiles"] = dict(zip(map(str, SHARES), found.tolist(), strict=True))
            of_targets[j] |= self.sample.picture(j)
        bands = {} if self.losses is None or not self.losses.bands() else {"bands": self.losses.bands()}
        return {"kind": "numbers", **self.scores(), **bands, "targets": of_targets}


def _numbered(k: int) -> list[str]:
    return ["y"] if k == 1 else [f"target {j}" for j in range(k)]


# Losses that are not squares, beside those of the best constant.


@dataclass(frozen=True)
class Judge:
    """Which loss; the same in all parts of the rows."""

    name: str
    quantile: tuple[float, ...]

    def merge(self, other: Judge) -> Judge:
        return self


@dataclass(frozen=True, eq=False)
class LossSums(Sums):
    """Sums over rows of the losses of k targets, or of k quantiles of one.

    The best constant is a quantile, of a sketch that is within 2⁻¹¹ of |y − shift|; or the mean ȳ: a deviance
    is 2·(g(y) − g(μ) − g′(μ)·(y − μ)), g = y·ln y of counts and −ln y of amounts, whose mean there is
    2·(mean g(y) − g(ȳ)).
    """

    judge: Judge
    weight: float
    total: np.ndarray  # (k,): Σ s·y
    loss: np.ndarray  # (k,): Σ s·loss
    generator: np.ndarray  # (k,): Σ s·g(y), of deviances
    covered: np.ndarray  # (k,): Σ s·[y ≤ f]
    targets: tuple[QuantileSketch, ...]  # of y − shift, of quantiles

    @classmethod
    def of(cls, model: Model, F: np.ndarray, Y: np.ndarray, s: np.ndarray) -> LossSums:
        """The sums of values F of f (n, k) and targets Y of the same shape."""
        assert model.judge is not None and isinstance(model.targets, NumericTargets)
        losses, tau = s @ model.losses(F, Y), tuple(model.quantiles)
        generator = np.zeros(F.shape[1]) if tau else s @ _generator(model.judge, Y)
        own = (Y - model.targets.shift).T[: 1 if model.has_band else None] if tau else ()
        return cls(
            Judge(model.judge, tau),
            float(s.sum()),
            s @ Y,
            losses,
            generator,
            s @ (model.of_link(F) >= Y),
            tuple(QuantileSketch.of(one, s) for one in own),
        )

    def of_outputs(self) -> dict[str, np.ndarray]:
        """Mean loss, that of the best constant, and d2, the share of it that the model explains, of each
        output; of quantiles also the share of rows that are at most the prediction."""
        name, mean, constant = self.judge.name, self.loss / self.weight, self._constant()
        with np.errstate(divide="ignore", invalid="ignore"):
            d2 = np.where(constant > 0, 1 - mean / constant, np.nan)
        found = {name: mean, f"constant_{name}": constant, "d2": d2}
        return found | ({"covered": self.covered / self.weight} if self.targets else {})

    def scores(self) -> dict[str, float]:
        """Their means over the outputs; d2 is NaN where no output has one."""
        found = self.of_outputs()
        found.pop("covered", None)
        d2 = found["d2"][~np.isnan(found["d2"])]
        means = {name: float(values.mean()) for name, values in found.items()}
        return means | {"d2": float(d2.mean()) if len(d2) else float("nan")}

    def bands(self) -> list[dict[str, float]]:
        """Of each pair of quantiles τ and 1 − τ the share of rows between them, and their interval score.

        With α = 2τ the score u − l + (2/α)·(l − y)₊ + (2/α)·(y − u)₊ (Gneiting and Raftery 2007, JASA 102,
        equation 43) is 2/α times the sum of both pinball losses.
        """
        tau, found = self.judge.quantile, []
        for i, low in enumerate(tau):
            for j in range(i + 1, len(tau)):
                if abs(low + tau[j] - 1) < 1e-9:
                    covered = float(self.covered[j] - self.covered[i]) / self.weight
                    score = float(self.loss[i] + self.loss[j]) / low / self.weight
                    found.append({"nominal": tau[j] - low, "coverage": covered, "interval_score": score})
        return found

    def _constant(self) -> np.ndarray:
        """The mean loss of the best constant, of each output."""
        if self.targets:
            tau = np.broadcast_to(self.judge.quantile, len(self.loss))
            sketches = self.targets * (len(tau) // len(self.targets))
            return np.array([sketch.pinball(q) for sketch, q in zip(sketches, tau, strict=True)])
        return 2 * (self.generator / self.weight - _generator(self.judge.name, self.total / self.weight))


def _generator(judge: str, y: np.ndarray) -> np.ndarray:
    """g(y) of a deviance."""
    with np.errstate(divide="ignore"):
        return xlogy(y, y) if judge == JUDGES["poisson"] else -np.log(y)


@dataclass(frozen=True, eq=False)
class NormalSums(Sums):
    """Sums over rows that judge predictions and deviations as normal laws, over all targets together."""

    weight: float  # Σs, times the targets
    crps: float
    log_density: float  # Σ −s·log p(y)

    @classmethod
    def of(cls, model: Model, X: Any, Y: np.ndarray, s: np.ndarray) -> NormalSums:
        if not len(Y):
            return cls(0.0, 0.0, 0.0)
        sd = as_columns(model.std(X, of="observation"))
        z = (Y - as_columns(model.predict(X))) / sd
        density = np.exp(-0.5 * np.square(z)) / np.sqrt(2 * np.pi)
        crps = sd * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
        log_density = 0.5 * np.square(z) + np.log(sd) + 0.5 * np.log(2 * np.pi)
        return cls(float(s.sum() * z.shape[1]), float((s @ crps).sum()), float((s @ log_density).sum()))

    def scores(self) -> dict[str, float]:
        return {"crps": self.crps / self.weight, "negative_log_density": self.log_density / self.weight}


_SAMPLE_ROWS = 8192
_BINS = 20
_BIN_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
_POINTS = 256
_SAMPLE_SEED = 19


@dataclass(frozen=True, eq=False)
class RowSample:
    """Rows to draw: those whose numbers have the smallest hashes, so the same ones whatever the parts.

    A quantile among the m rows of a bin has a rank that is off by √(q(1 − q)/m), one standard error.
    """

    rows: np.ndarray  # (m,), uint64, in the order of their hashes
    columns: np.ndarray  # (m, 1 + 2k): weight, targets, predictions

    @classmethod
    def of(cls, rows: np.ndarray, columns: np.ndarray) -> RowSample:
        kept = columns[:, 0] > 0
        rows, columns = rows[kept].astype(np.uint64), columns[kept]
        # A fixed seed: two evaluations of the same rows draw the same ones, and their pictures can be
        # compared.
        first = np.argsort(row_hash(rows, _SAMPLE_SEED), kind="stable")[:_SAMPLE_ROWS]
        return cls(rows[first], columns[first])

    def merge(self, other: RowSample) -> RowSample:
        # The smallest hashes of both are among the smallest of each.
        return self.of(np.concatenate([self.rows, other.rows]), np.concatenate([self.columns, other.columns]))

    def picture(self, j: int) -> dict[str, Any]:
        """Quantiles of target and residual by prediction, in bins of equally many rows, and points.

        Rows count by their weights.
        """
        k = self.columns.shape[1] // 2
        s, y, f = self.columns[:, 0], self.columns[:, 1 + j], self.columns[:, 1 + k + j]
        # In the order of hashes, so that the first ones are drawn evenly.
        points = np.column_stack([f, y])[:_POINTS].tolist()
        order = np.argsort(f, kind="stable")
        bins = []
        # At least 16 rows a bin: of fewer the outer quantiles are just the extremes.
        for part in np.array_split(order, min(_BINS, max(1, len(order) // 16))):
            if len(part):
                prediction, actual, residual = (
                    QuantileSketch.of(values[part], s[part]).quantile(np.array(_BIN_SHARES)).tolist()
                    for values in (f, y, y - f)
                )
                # Drawn against the median: in the last bin the mean is far beyond.
                middle = prediction[_BIN_SHARES.index(0.5)]
                bins.append(
                    {"prediction": middle, "actual": actual, "residual": residual, "n_rows": len(part)}
                )
        return {"bin_shares": list(_BIN_SHARES), "bins": bins, "points": points}


# Several labels of a row.


@dataclass(frozen=True, eq=False)
class LabelErrors(Errors):
    """Sums over rows of true and predicted labels, each 0 or 1.

    Rows outside the bounds of the model count as wrong in every label.
    """

    total: float  # Σs
    right: float  # Σs of the rows with all labels right
    actual: np.ndarray  # (k,): Σs of the rows that have the label
    predicted: np.ndarray  # (k,): Σs of the rows that are predicted to have it
    both: np.ndarray  # (k,): Σs of the rows with both
    wrong: np.ndarray  # (k,): Σs of the rows with this label wrong

    @classmethod
    def of(
        cls, targets: MultilabelTargets, F: np.ndarray, y: np.ndarray, s: np.ndarray, outside: np.ndarray
    ) -> LabelErrors:
        """The sums of a block of decision values F and labels y, both (n, k)."""
        if y.shape != F.shape:
            raise InputError(f"y has shape {y.shape}, but the model predicts {F.shape[1]} labels")
        actual, predicted = targets.encode(y) > 0, F > 0
        wrong = (actual != predicted) | outside[:, None]
        both = actual & predicted & ~outside[:, None]
        return cls(
            len(F),
            int(np.count_nonzero(outside)),
            float(s.sum()),
            float(s @ ~wrong.any(axis=1)),
            *(s @ found for found in (actual, predicted, both, wrong)),
        )

    @property
    def weight(self) -> float:
        return self.total

    def scores(self) -> dict[str, float]:
        """Shares of rows with all labels right and of single labels that are wrong.

        `constant_hamming_loss` is the latter where each label has its more frequent value in all rows.
        """
        shares = self.actual / self.total
        return {
            "accuracy": self.right / self.total,
            # Not 1 − accuracy: of whole weights this difference is exact.
            "error": (self.total - self.right) / self.total,
            "hamming_loss": float(self.wrong.mean() / self.total),
            "constant_hamming_loss": float(np.minimum(shares, 1.0 - shares).mean()),
        }

    def values(self, names: tuple[str, ...] | None = None) -> dict[str, Any]:
        of_labels = _items(
            label=list(names or (f"label {j}" for j in range(len(self.actual)))),
            share=self.actual / self.total,
            error=self.wrong / self.total,
            **_rates(self.both, self.actual, self.predicted),
        )
        return {"kind": "labels", **self.scores(), "labels": of_labels}


# Classes.

MAX_MATRIX = 64
"""Classes up to which the whole confusion matrix is given; of more, the most frequent confusions."""

_CONFUSED = 10
_UNSEEN = 20


@dataclass(frozen=True, eq=False)
class ClassErrors(Errors):
    """Sums over rows of true and predicted classes, and of probabilities where the model has them.

    Rows outside the bounds of the model, and labels that it never saw, count as wrong. ROC and
    precision–recall come from sketches of the decision values of both classes, which cannot order two rows
    of one bucket, 2⁻¹⁰ wide relatively; the largest error that this can make in an area is given beside it.
    """

    confusion: Confusion
    unseen: LabelCounts  # labels that the model never saw
    fit: QuantileSketch  # how badly the true class fits, inside the bounds
    margins: tuple[QuantileSketch, QuantileSketch] | None  # decision values of either of two classes
    likely: ProbabilityErrors | None

    @classmethod
    def of(
        cls, model: Model, F: np.ndarray, y: np.ndarray, s: np.ndarray, outside: np.ndarray
    ) -> ClassErrors:
        """The sums of a block of decision values and labels."""
        targets, n = model.targets, len(F)
        assert isinstance(targets, ClassTargets)
        if y.size != n:
            raise InputError(f"y must be one column of class labels, got {y.shape[1]} columns")
        labels = y.reshape(n)
        P = None if model.likelihood is None else model.probabilities(F)
        actual, chosen = targets.indices(labels), targets.chosen(F)
        known = actual >= 0
        judged = known & ~outside
        fit = class_scores(F, P)[np.arange(n), np.maximum(actual, 0)]
        fit[~known] = np.inf  # no prediction set holds what the model never saw
        margins = None
        if targets.n_outputs == 1:
            below, above = (judged & (actual == c) for c in (0, 1))
            margins = QuantileSketch.of(F[below, 0], s[below]), QuantileSketch.of(F[above, 0], s[above])
        return cls(
            n,
            int(np.count_nonzero(outside)),
            Confusion.of(targets.classes, actual[known], chosen[known], outside[known], s[known]),
            LabelCounts.empty() if known.all() else LabelCounts.of_values(labels[~known], s[~known]),
            QuantileSketch.of(fit[~outside], s[~outside]),
            margins,
            None if P is None else ProbabilityErrors.of(P[judged], actual[judged], s[judged]),
        )

    @property
    def n_unseen(self) -> int:
        return int(self.unseen.counts.sum())

    def conformal_scores(self) -> tuple[QuantileSketch, ...]:
        """The sketch of how badly each row's own class fits."""
        return (self.fit,)

    @property
    def weight(self) -> float:
        """Σs of all rows, those of unseen labels included."""
        return float(self.confusion.cells.weights.sum() + self.unseen.weights.sum())

    def scores(self) -> dict[str, float]:
        """Accuracy, error = 1 − accuracy, the accuracy of the majority's class, and the mean recall.

        With probabilities also the log loss, in nats, and Brier's score.
        """
        per_class = self.confusion.per_class()
        n_right, of_class = self.confusion.right(), per_class["weight"]
        found = of_class > 0
        scores = {
            "accuracy": n_right / self.weight,
            "error": (self.weight - n_right) / self.weight,
            "majority_accuracy": float(of_class.max() / self.weight),
            "balanced_accuracy": float(per_class["recall"][found].mean()) if found.any() else np.nan,
        }
        if self.likely is not None and self.likely.weight > 0:
            scores |= self.likely.scores(of_class[found] / of_class.sum())
        return scores

    def values(self, names: tuple[str, ...] | None = None) -> dict[str, Any]:
        labels, per_class, new = self.confusion.classes.tolist(), self.confusion.per_class(), self.unseen
        unseen = _items(label=new.labels, n_rows=new.counts, weight=new.weights)
        unseen.sort(key=lambda one: -one["n_rows"])
        found = {
            "kind": "classes",
            **self.scores(),
            "majority": labels[int(per_class["weight"].argmax())],
            "classes": _items(label=labels, **per_class),
            "confused": self.confusion.most_confused(per_class["weight"]),
            "n_unseen": self.n_unseen,
            "n_unseen_labels": len(unseen),
            "unseen_labels": unseen[:_UNSEEN],
        }
        if len(labels) <= MAX_MATRIX:
            found["confusion"] = {"labels": labels, "matrix": self.confusion.matrix().tolist()}
        if self.likely is not None:
            of = f"class {labels[1]}" if len(labels) == 2 else "the predicted class"
            found["reliability"] = {"of": of, "bins": self.likely.bins()}
        if self.margins is not None and all(one.weight > 0 for one in self.margins):
            found |= {"positive": labels[1], **curves(*self.margins)}
        return found


@dataclass(frozen=True, eq=False)
class Confusion:
    """Weights and numbers of rows by true and predicted class."""

    classes: np.ndarray
    cells: LabelCounts  # of true class · (C + 1) + predicted class, C where the row is outside the bounds

    @classmethod
    def of(
        cls, classes: np.ndarray, actual: np.ndarray, chosen: np.ndarray, outside: np.ndarray, s: np.ndarray
    ) -> Confusion:
        """The counts of some rows, whose true and chosen classes are places among the classes."""
        C = len(classes)
        # One number a cell: only cells that occur are kept, of 10,000 classes some thousand of 10⁸.
        pairs = actual * (C + 1) + np.where(outside, C, chosen)
        return cls(classes, LabelCounts.of_values(pairs, s, max_labels=_MAX_CELLS))

    def merge(self, other: Confusion) -> Confusion:
        return Confusion(self.classes, self.cells.merge(other.cells, max_labels=_MAX_CELLS))

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """True and predicted class of each cell."""
        actual, predicted = np.divmod(self.cells.labels.astype(np.int64), len(self.classes) + 1)
        return actual, predicted

    def right(self) -> float:
        """Weight of the rows that are predicted right."""
        actual, predicted = self.pairs()
        return float(self.cells.weights[actual == predicted].sum())

    def per_class(self) -> dict[str, np.ndarray]:
        """Numbers and weights of the rows of each class, and how well it is found; NaN where unknown."""
        actual, predicted = self.pairs()
        C, weights, same = len(self.classes), self.cells.weights, actual == predicted
        right = np.bincount(actual[same], weights[same], minlength=C)
        of_class = np.bincount(actual, weights, minlength=C)
        of_predicted = np.bincount(predicted, weights, minlength=C + 1)[:C]
        return {
            "n_rows": np.bincount(actual, self.cells.counts, minlength=C).astype(np.int64),
            "weight": of_class,
            "predicted_weight": of_predicted,
            **_rates(right, of_class, of_predicted),
        }

    def matrix(self) -> np.ndarray:
        """Weights by true and predicted class, (C, C)."""
        C = len(self.classes)
        M = np.zeros((C, C + 1))
        M[self.pairs()] = self.cells.weights
        return M[:, :C]

    def most_confused(self, of_class: np.ndarray) -> list[dict[str, Any]]:
        """The pairs of classes that are confused most, with the share of the rows of the true one."""
        (actual, predicted), weights, names = self.pairs(), self.cells.weights, self.classes.tolist()
        wrong = np.flatnonzero((actual != predicted) & (predicted < len(names)) & (weights > 0))
        most = wrong[np.argsort(-weights[wrong], kind="stable")[:_CONFUSED]]
        return _items(
            actual=[names[c] for c in actual[most]],
            predicted=[names[c] for c in predicted[most]],
            weight=weights[most],
            share=weights[most] / of_class[actual[most]],
        )


_MAX_CELLS = 2**31  # more than pairs of 10,000 labels, to which `LabelCounts` limits those of rows


# Probabilities and decision values of classes.

_RELIABILITY_BINS = 20


@dataclass(frozen=True, eq=False)
class ProbabilityErrors(Sums):
    """Sums over rows of the errors of probabilities."""

    log_loss: float  # Σ −s log p of the true class
    brier: float  # Σ s Σ_c (p_c − [y = c])²
    reliability: np.ndarray  # (bins, 3): Σ s, Σ s p, Σ s [hit]

    @classmethod
    def of(cls, P: np.ndarray, actual: np.ndarray, s: np.ndarray) -> ProbabilityErrors:
        own = P[np.arange(len(P)), actual]
        # The least positive double in the place of zero: a sum of infinities would say nothing more.
        log_losses = -np.log(np.maximum(own, np.finfo(np.float64).tiny))
        # Σ_c (p_c − [y = c])² = Σ p² − 2·p_y + 1.
        squares = np.square(P).sum(axis=1) - 2 * own + 1
        if P.shape[1] == 2:
            p, hit = P[:, 1], actual == 1
        else:  # the probability of the predicted class
            p, hit = P.max(axis=1), P.argmax(axis=1) == actual
        # p = 1 belongs to the last bin.
        bins = np.minimum((p * _RELIABILITY_BINS).astype(np.int64), _RELIABILITY_BINS - 1)
        sums = [np.bincount(bins, w, minlength=_RELIABILITY_BINS) for w in (s, s * p, s * hit)]
        return cls(float(s @ log_losses), float(s @ squares), np.stack(sums, axis=1))

    @property
    def weight(self) -> float:
        return float(self.reliability[:, 0].sum())

    def scores(self, shares: np.ndarray) -> dict[str, float]:
        """Log loss, that of the classes' shares for all rows, and Brier's score."""
        return {
            "log_loss": self.log_loss / self.weight,
            # The entropy of the shares: the least log loss of any constant.
            "majority_log_loss": float(-(shares * np.log(shares)).sum()),
            "brier": self.brier / self.weight,
        }

    def bins(self) -> list[dict[str, float]]:
        """Shares of events that came true, by bins of their probability."""
        w, p, hit = self.reliability[self.reliability[:, 0] > 0].T
        return _items(probability=p / w, observed=hit / w, weight=w)


_CURVE_POINTS = 200


def curves(below: QuantileSketch, above: QuantileSketch) -> dict[str, Any]:
    """ROC and precision–recall with their areas, of the decision values of two classes.

    Of the rows in one bucket any order is possible. The area below the ROC curve takes half of their
    pairs, so its error is at most half of the sum of the products of their weights. The average precision
    Σ (Rₖ − Rₖ₋₁) Pₖ is taken at the buckets' ends; its error is a bound over all orders.
    """
    _, n, p = aligned(below, above)
    n, p = n[::-1], p[::-1]  # from the largest decision value down
    fp, tp = np.cumsum(n), np.cumsum(p)
    N, P = float(fp[-1]), float(tp[-1])
    precision = tp / (tp + fp)
    average = float((p * precision).sum() / P)
    before_tp, before_fp = tp - p, fp - n
    # At worst all negatives of a bucket come before its positives, at best after them. Along positives
    # the precision t/(t + fp) rises, so its integral over their weights is at most their sum.
    rise = np.log1p(np.divide(p, before_tp + fp, out=np.zeros_like(p), where=before_tp + fp > 0))
    lowest = np.where(fp > 0, p - fp * rise, p).sum() / P
    ends = np.divide(tp, tp + before_fp, out=np.ones_like(tp), where=tp + before_fp > 0)
    highest = (p * ends).sum() / P
    fpr, tpr = np.append(0.0, fp / N), np.append(0.0, tp / P)
    shown = _thinned(fpr, tpr)
    return {
        # Of each bucket of negatives the positives above it, and half of those in it (Mann and Whitney).
        "roc_auc": float(((tp - p / 2) * n).sum() / (N * P)),
        "roc_auc_error": float((n * p).sum() / (2 * N * P)),
        "average_precision": average,
        "average_precision_error": float(max(average - lowest, highest - average, 0.0)),
        "roc": {"false_positive_rate": fpr[shown].tolist(), "true_positive_rate": tpr[shown].tolist()},
        "precision_recall": {
            "recall": (tp[shown[1:] - 1] / P).tolist(),
            "precision": precision[shown[1:] - 1].tolist(),
        },
    }


def _thinned(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Indices of the points of a curve to draw: about evenly along it, with both ends."""
    # By the length of the curve, as steep and flat parts need points alike. Both axes are shares: no scaling.
    along = np.append(0.0, np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y))))
    found = np.searchsorted(along, np.linspace(0, along[-1], _CURVE_POINTS))
    return np.unique(np.append(np.minimum(found, len(x) - 1), [0, len(x) - 1]))
