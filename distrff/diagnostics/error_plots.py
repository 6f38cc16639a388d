"""Plots of an evaluation: predictions against targets, and classes against classes, from its merged sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from distrff.diagnostics.plots import BAND, COLORS, MARKERS, known_numbers, labelled, new_axes
from distrff.errors import InputError
from distrff.utils.text import number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_DRAWN_CLASSES = 24
_NAME = 18  # characters of a class at an axis
_DARKEST = 0.5  # of a cell: the ink of either theme stands out from it at 4.5


def plot_predicted_against_actual(evaluation: Any, *, target: int = 0, ax: Any = None) -> Axes:
    """Draw quantiles of the target against the prediction, and the line on which both are equal.

    Parameters
    ----------
    evaluation : Evaluation
        Of numbers, from `evaluate`.
    target : int
    ax : matplotlib Axes, optional
    """
    return draw_predicted_against_actual(new_axes(ax), _target(evaluation, target))


def plot_residuals(evaluation: Any, *, target: int = 0, ax: Any = None) -> Axes:
    """Draw quantiles of the residual y − f against the prediction f.

    Parameters
    ----------
    evaluation : Evaluation
        Of numbers, from `evaluate`.
    target : int
    ax : matplotlib Axes, optional
    """
    return draw_residuals(new_axes(ax), _target(evaluation, target))


def plot_confusion(evaluation: Any, *, ax: Any = None) -> Axes:
    """Draw which share of the rows of each class is predicted as which; at most the 24 most frequent classes.

    Parameters
    ----------
    evaluation : Evaluation
        Of classes, from `evaluate`.
    ax : matplotlib Axes, optional
    """
    return draw_confusion(new_axes(ax), _with(evaluation, "confusion", "a confusion matrix"))


def plot_roc(evaluation: Any, *, ax: Any = None) -> Axes:
    """Draw the share of true positives against that of false ones, for all thresholds.

    Parameters
    ----------
    evaluation : Evaluation
        Of two classes, from `evaluate`.
    ax : matplotlib Axes, optional
    """
    return draw_roc(new_axes(ax), _with(evaluation, "roc", "an ROC curve, which two classes have"))


def plot_precision_recall(evaluation: Any, *, ax: Any = None) -> Axes:
    """Draw the precision against the recall of the second class, for all thresholds.

    Parameters
    ----------
    evaluation : Evaluation
        Of two classes, from `evaluate`.
    ax : matplotlib Axes, optional
    """
    what = "a precision–recall curve, which two classes have"
    return draw_precision_recall(new_axes(ax), _with(evaluation, "precision_recall", what))


def plot_reliability(evaluation: Any, *, ax: Any = None) -> Axes:
    """Draw how often what was given a probability came true, against that probability.

    Parameters
    ----------
    evaluation : Evaluation
        Of a model with probabilities, from `evaluate`.
    ax : matplotlib Axes, optional
    """
    what = "probabilities; fit a KernelLikelihoodClassifier"
    return draw_reliability(new_axes(ax), _with(evaluation, "reliability", what))


def _with(evaluation: Any, key: str, what: str) -> Mapping[str, Any]:
    if not isinstance(evaluation, Mapping) or not evaluation.get(key):
        raise InputError(f"expected an evaluation, as evaluate returns, with {what}")
    return evaluation


def _target(evaluation: Any, target: int) -> Mapping[str, Any]:
    of_targets = _with(evaluation, "targets", "numbers")["targets"]
    drawn = [one for one in of_targets if one.get("bins")]
    if not 0 <= target < len(drawn):
        raise InputError(f"target must be one of the first {len(drawn)}, got {target}")
    return drawn[target]


# What is drawn, from the data of an evaluation.


def draw_predicted_against_actual(ax: Any, target: Mapping[str, Any]) -> Any:
    """Draw quantiles of the target in bins of the prediction."""
    x = _quantiles(ax, target, "actual")
    points = known_numbers(target["points"])
    ax.plot(*points.T, linestyle="none", marker=".", markersize=2, color="black", alpha=0.35, label="rows")
    ax.plot(x, x, color=COLORS[1], linestyle="--", label="equal")
    # A few rows far away would press all others together.
    seen = known_numbers([one["actual"] for one in target["bins"]])
    for ends, limits in ((x, ax.set_xlim), (np.concatenate([seen.ravel(), x]), ax.set_ylim)):
        margin = 0.1 * np.ptp(ends) or 1.0
        limits(ends.min() - margin, ends.max() + margin)
    return labelled(ax, "prediction", "actual")


def draw_residuals(ax: Any, target: Mapping[str, Any]) -> Any:
    """Draw quantiles of the residual in bins of the prediction."""
    x = _quantiles(ax, target, "residual")
    ax.plot(x, np.zeros(len(x)), color=COLORS[1], linestyle="--", label="none")
    return labelled(ax, "prediction", "actual − prediction")


def _quantiles(ax: Any, target: Mapping[str, Any], key: str) -> np.ndarray:
    x = known_numbers([one["prediction"] for one in target["bins"]])
    low, lower, middle, upper, high = known_numbers([one[key] for one in target["bins"]]).T
    ax.fill_between(x, low, high, label="90 % of the rows", **BAND)
    ax.fill_between(x, lower, upper, label="50 %", **BAND)
    ax.plot(x, middle, color=COLORS[0], marker=MARKERS[0], markersize=3, label="median")
    return x


def draw_confusion(ax: Any, evaluation: Mapping[str, Any]) -> Any:
    """Draw the share of the rows of each class that are predicted as each, in shades."""
    confusion = evaluation["confusion"]
    M = np.asarray(confusion["matrix"], dtype=np.float64)
    of_class = np.array([one["weight"] for one in evaluation["classes"]])
    shown = np.sort(np.argsort(-of_class, kind="stable")[:MAX_DRAWN_CLASSES])
    names = [_short(confusion["labels"][c]) for c in shown]
    shares = M[np.ix_(shown, shown)] / np.where(of_class > 0, of_class, 1.0)[shown, None]
    for i, j in np.argwhere(shares > 0):
        # The root: a confusion of one row in a hundred is still seen.
        shade = _DARKEST * float(np.sqrt(shares[i, j]))
        color = COLORS[0] if i == j else COLORS[1]
        ax.barh(i, 1.0, left=j - 0.5, height=1.0, color=color, alpha=shade, linewidth=0)
        if len(shown) <= 10:
            ax.text(j, i, _percent(shares[i, j]), ha="center", va="center")
    ax.set_xticks(range(len(shown)), names, rotation=90 if max(map(len, names)) > 3 else 0)
    ax.set_yticks(range(len(shown)), names)
    ax.grid(False)
    xlabel = "predicted, % of the actual" if len(shown) <= 10 else "predicted"
    ax.set(xlim=(-0.5, len(shown) - 0.5), ylim=(len(shown) - 0.5, -0.5), xlabel=xlabel, ylabel="actual")
    return ax


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 0.095 else f"{100 * share:.1g}"


def _short(label: Any) -> str:
    text, half = str(label), _NAME // 2
    return text if len(text) <= _NAME else f"{text[:half]}…{text[1 - half :]}"


def draw_roc(ax: Any, evaluation: Mapping[str, Any]) -> Any:
    """Draw the share of true positives against that of false ones."""
    curve = evaluation["roc"]
    area = f"area {number_text(evaluation['roc_auc'])}"
    ax.plot(curve["false_positive_rate"], curve["true_positive_rate"], color=COLORS[0], label=area)
    ax.plot([0, 1], [0, 1], color=COLORS[1], linestyle="--", label="by chance")
    return labelled(ax, "false positive rate", "true positive rate")


def draw_precision_recall(ax: Any, evaluation: Mapping[str, Any]) -> Any:
    """Draw the precision against the recall."""
    curve = evaluation["precision_recall"]
    weights = [one["weight"] for one in evaluation["classes"]]
    average = f"average precision {number_text(evaluation['average_precision'])}"
    ax.plot(curve["recall"], curve["precision"], color=COLORS[0], label=average)
    chance = weights[1] / sum(weights)
    ax.plot([0, 1], [chance, chance], color=COLORS[1], linestyle="--", label="by chance")
    return labelled(ax, "recall", "precision")


def draw_reliability(ax: Any, evaluation: Mapping[str, Any]) -> Any:
    """Draw observed frequencies against predicted probabilities."""
    bins = evaluation["reliability"]["bins"]
    p, seen = known_numbers([[one["probability"], one["observed"]] for one in bins]).T
    ax.plot([0, 1], [0, 1], color=COLORS[1], linestyle="--", label="as predicted")
    ax.plot(p, seen, color=COLORS[0], marker=MARKERS[0], label="observed")
    return labelled(ax, f"probability of {evaluation['reliability']['of']}", "share that came true")
