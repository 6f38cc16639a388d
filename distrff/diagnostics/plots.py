"""Plots of a fit with matplotlib, which is imported when the first one is drawn.

Each takes the Axes to draw in, or makes a figure, and returns the Axes. Whatever differs in colour also
differs in line, marker or hatching, so plots are readable in grey. The report
page has the same plots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from distrff.diagnostics.kernel_error import KernelError
from distrff.errors import InputError
from distrff.preprocessing.coding import Scaling
from distrff.utils.text import number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#0b62a8", "#c2560c", "#2d7d46", "#7a4fa3")  # those of the page in its light theme
MARKERS = ("o", "s", "^", "D")
BAND = {"color": COLORS[0], "alpha": 0.18, "linewidth": 0}
NEAR = 0.5  # with a larger relative gap, both bounds do not fit on one linear axis
_LARGEST = 1e100  # larger values make the margins of an axis overflow


def plot_kernel_error(errors: KernelError | Sequence[KernelError], *, ax: Any = None) -> Axes:
    """Draw measured kernel errors and their theory against the number of features.

    Parameters
    ----------
    errors : KernelError or sequence of KernelError
        Of maps of different sizes on the same rows, from `kernel_error`.
    ax : matplotlib Axes, optional
    """
    measured = [errors] if isinstance(errors, KernelError) else list(errors)
    if not measured or not all(isinstance(error, KernelError) for error in measured):
        raise InputError("errors must be a KernelError, as kernel_error returns, or a list of these")
    measured.sort(key=lambda error: error.n_components)
    ax = new_axes(ax)
    D = np.array([error.n_components for error in measured])
    rms = np.array([error.rms_error for error in measured])
    low, high = np.array([error.rms_interval for error in measured]).T
    # matplotlib takes the lengths of error bars, not their ends.
    spread = [rms - low, high - rms]
    ax.errorbar(D, rms, spread, color=COLORS[0], marker=MARKERS[0], capsize=3, label="RMS of pairs")
    for i, name, label, line in (
        (1, "max_error", "largest of the pairs", "--"),
        (2, "rms_expected", "RMS expected", ":"),
        (2, "rms_bound", "RMS expected at most", ":"),
        (3, "max_bound", "bound of the largest", "-."),
    ):
        values = np.array([getattr(error, name) for error in measured], dtype=np.float64)
        # Theory knows no number for some maps: None becomes NaN, and nothing is drawn.
        known = ~np.isnan(values)
        if known.any():
            style = {"color": COLORS[i], "marker": MARKERS[i], "linestyle": line}
            ax.plot(D[known], values[known], label=label, **style)
    ax.set(xscale="log", yscale="log")
    return labelled(ax, "number of features", "error of the kernel")


def plot_alpha_path(fit: Any, *, ax: Any = None) -> Axes:
    """Draw the criterion against alpha or C: mean and spread of the folds, the choice, the noise floor.

    Parameters
    ----------
    fit : fitted estimator, or its `report_`
        With alpha chosen by "cv" or "gcv", or C by "cv".
    ax : matplotlib Axes, optional
    """
    report = _report(fit)
    if not report.get("alphas") and not report.get("Cs"):
        raise InputError("this fit searched for neither alpha nor C; fit with alpha='cv' or 'gcv', or C='cv'")
    ax = new_axes(ax)
    name = "alpha" if report.get("alphas") else "C"
    values, mean = known_numbers(report[f"{name}s"]), known_numbers(report["mean_score"])
    several = np.ravel(report[name])  # with an alpha for each target the scores are their means
    chosen, how = float(np.median(several)), "chosen" if len(several) == 1 else "median of those chosen"
    folds = known_numbers(report.get("fold_scores") or [])
    if folds.size:
        label = f"lowest to highest of {folds.shape[1]} folds"
        # A fold without an error says nothing; the others still span the band.
        low, high = np.fmin.reduce(folds, axis=1), np.fmax.reduce(folds, axis=1)
        ax.fill_between(values, low, high, label=label, **BAND)
    ax.plot(values, mean, color=COLORS[0], marker=MARKERS[0], markersize=3, label=report["criterion"])
    ax.axvline(chosen, color=COLORS[1], linestyle="--", label=f"{how}: {number_text(chosen)}")
    floor = report.get("noise_floor")
    # A floor far below the values does not affect the choice, and would press the curve to one side.
    if floor is not None and 10 * floor >= values.min():
        ax.axvline(floor, color=COLORS[3], linestyle=":", label=f"noise floor: {number_text(floor)}")
    _log_axis(ax, "x", values)
    if _spans_decades(scores := np.concatenate([mean, folds.ravel()])):
        _log_axis(ax, "y", scores)
    return labelled(ax, name, "error")


def plot_learning_curve(fit: Any, *, ax: Any = None) -> Axes:
    """Draw the criterion against the number of features, from the nested models of one fit.

    Parameters
    ----------
    fit : fitted ridge model, or its `report_`
    ax : matplotlib Axes, optional
    """
    report = _report(fit)
    if not report.get("learning_curve"):
        raise InputError(
            "this fit has no learning curve; fit a ridge model on Fourier or Nyström features by its Gram"
        )
    ax = new_axes(ax)
    sizes, scores, _ = known_numbers(report["learning_curve"]).T
    ax.plot(sizes, scores, color=COLORS[0], marker=MARKERS[0], label=report["criterion"])
    _log_axis(ax, "x", sizes, base=2)
    if _spans_decades(scores):
        _log_axis(ax, "y", scores)
    return labelled(ax, "number of features", "error")


def draw_certificate(report: Mapping[str, Any], ax: Any) -> Any:
    """Draw how the error that `tol` bounds fell from sweep to sweep."""
    known, tol = report["history"], report.get("tol")
    error = known_numbers(known["error"])
    ax.plot(known["sweep"], error, color=COLORS[0], marker=MARKERS[0], markersize=3, label=known["measure"])
    if tol is not None:
        ax.axhline(tol, color=COLORS[1], linestyle="--", label=f"tol: {number_text(tol)}")
    _log_axis(ax, "y", error)
    return labelled(ax, "light sweep", known["measure"])


def draw_bounds(report: Mapping[str, Any], ax: Any) -> Any:
    """Draw how primal and dual approach the optimum, from where both fit on one linear axis."""
    known = report["history"]
    rows = known_numbers([known[name] for name in ("sweep", "error", "primal", "dual")])
    sweep, _, primal, dual = rows[:, rows[1] <= NEAR]
    ax.fill_between(sweep, dual, primal, **BAND)
    ax.plot(sweep, primal, color=COLORS[0], marker=MARKERS[0], markersize=3, label="best objective")
    ax.plot(sweep, dual, color=COLORS[1], marker=MARKERS[1], markersize=3, ls="--", label="best lower bound")
    return labelled(ax, "light sweep", "objective")


def plot_relevance(fit: Any, *, names: Sequence[str] | None = None, ax: Any = None) -> Axes:
    """Draw a bar for each column: 1/length_scale, how fast the kernel falls along it.

    Parameters
    ----------
    fit : fitted feature map, or a model fitted with one
        The kernel must have a length scale for each column.
    names : sequence of str, optional
        Of the columns; default those of the DataFrame that was fitted, else their indices.
    ax : matplotlib Axes, optional
    """
    features = getattr(fit, "features_", fit)
    kernel: Any = getattr(features, "kernel_", None)
    while hasattr(kernel, "k"):  # a multiple of a kernel has the same length scales
        kernel = kernel.k
    scales = getattr(kernel, "length_scale", None)
    if not isinstance(scales, tuple):
        raise InputError(
            f"the kernel {kernel!r} has no length scale for each column; fit a map with a tuple of them"
        )
    if names is None:
        names = getattr(fit, "feature_names_in_", None)
    labels = list(map(str, range(len(scales)) if names is None else names))
    if len(labels) != len(scales):
        raise InputError(f"names has {len(labels)} entries, but the kernel has {len(scales)} length scales")
    ax = new_axes(ax)
    ax.bar(range(len(scales)), 1 / np.array(scales), color=COLORS[0], edgecolor="black", linewidth=0.6)
    ax.set_xticks(range(len(scales)), labels, rotation=90 if max(map(len, labels)) > 3 else 0)
    ax.set(xlabel="column", ylabel="1 / length scale")
    return ax


# Errors: from the merged sums of an evaluation.

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
    found, ax = _target(evaluation, target), new_axes(ax)
    x = _quantiles(ax, found, "actual")
    points = known_numbers(found["points"])
    ax.plot(*points.T, linestyle="none", marker=".", markersize=2, color="black", alpha=0.35, label="rows")
    ax.plot(x, x, color=COLORS[1], linestyle="--", label="equal")
    # A few rows far away would press all others together.
    seen = known_numbers([one["actual"] for one in found["bins"]])
    for ends, limits in ((x, ax.set_xlim), (np.concatenate([seen.ravel(), x]), ax.set_ylim)):
        margin = 0.1 * np.ptp(ends) or 1.0
        limits(ends.min() - margin, ends.max() + margin)
    return labelled(ax, "prediction", "actual")


def plot_residuals(evaluation: Any, *, target: int = 0, ax: Any = None) -> Axes:
    """Draw quantiles of the residual y − f against the prediction f.

    Parameters
    ----------
    evaluation : Evaluation
        Of numbers, from `evaluate`.
    target : int
    ax : matplotlib Axes, optional
    """
    found, ax = _target(evaluation, target), new_axes(ax)
    x = _quantiles(ax, found, "residual")
    ax.plot(x, np.zeros(len(x)), color=COLORS[1], linestyle="--", label="none")
    return labelled(ax, "prediction", "actual − prediction")


def plot_confusion(evaluation: Any, *, ax: Any = None) -> Axes:
    """Draw which share of the rows of each class is predicted as which; at most the 24 most frequent classes.

    Parameters
    ----------
    evaluation : Evaluation
        Of classes, from `evaluate`.
    ax : matplotlib Axes, optional
    """
    confusion, ax = _with(evaluation, "confusion", "a confusion matrix"), new_axes(ax)
    M = np.asarray(confusion["matrix"], dtype=np.float64)
    of_class = np.array([one["weight"] for one in evaluation["classes"]])
    # The most frequent ones, but in the order of the classes: what is right lies on the diagonal.
    shown = np.sort(np.argsort(-of_class, kind="stable")[:MAX_DRAWN_CLASSES])
    names = [_short(confusion["labels"][c]) for c in shown]
    # Of all rows of the class, also those taken for classes that are not shown.
    shares = M[np.ix_(shown, shown)] / np.where(of_class > 0, of_class, 1.0)[shown, None]
    for i, j in np.argwhere(shares > 0):
        # The root: a confusion of one row in a hundred is still seen.
        shade = _DARKEST * float(np.sqrt(shares[i, j]))
        color = COLORS[0] if i == j else COLORS[1]
        # Bars, and not an image: on the page their colours follow the theme, and zeros cost nothing.
        ax.barh(i, 1.0, left=j - 0.5, height=1.0, color=color, alpha=shade, linewidth=0)
        if len(shown) <= 10:
            ax.text(j, i, _percent(shares[i, j]), ha="center", va="center")
    ax.set_xticks(range(len(shown)), names, rotation=90 if max(map(len, names)) > 3 else 0)
    ax.set_yticks(range(len(shown)), names)
    ax.grid(False)
    xlabel = "predicted, % of the actual" if len(shown) <= 10 else "predicted"
    ax.set(xlim=(-0.5, len(shown) - 0.5), ylim=(len(shown) - 0.5, -0.5), xlabel=xlabel, ylabel="actual")
    return ax


def plot_roc(evaluation: Any, *, ax: Any = None) -> Axes:
    """Draw the share of true positives against that of false ones, for all thresholds.

    Parameters
    ----------
    evaluation : Evaluation
        Of two classes, from `evaluate`.
    ax : matplotlib Axes, optional
    """
    curve, ax = _with(evaluation, "roc", "an ROC curve, which two classes have"), new_axes(ax)
    area = f"area {number_text(evaluation['roc_auc'])}"
    ax.plot(curve["false_positive_rate"], curve["true_positive_rate"], color=COLORS[0], label=area)
    ax.plot([0, 1], [0, 1], color=COLORS[1], linestyle="--", label="by chance")
    return labelled(ax, "false positive rate", "true positive rate")


def plot_precision_recall(evaluation: Any, *, ax: Any = None) -> Axes:
    """Draw the precision against the recall of the second class, for all thresholds.

    Parameters
    ----------
    evaluation : Evaluation
        Of two classes, from `evaluate`.
    ax : matplotlib Axes, optional
    """
    what = "a precision–recall curve, which two classes have"
    curve, ax = _with(evaluation, "precision_recall", what), new_axes(ax)
    weights = [one["weight"] for one in evaluation["classes"]]
    average = f"average precision {number_text(evaluation['average_precision'])}"
    ax.plot(curve["recall"], curve["precision"], color=COLORS[0], label=average)
    # A classifier that guesses has the precision of the class's share, at any recall.
    chance = weights[1] / sum(weights)
    ax.plot([0, 1], [chance, chance], color=COLORS[1], linestyle="--", label="by chance")
    return labelled(ax, "recall", "precision")


def plot_reliability(evaluation: Any, *, ax: Any = None) -> Axes:
    """Draw how often events came true, against their predicted probability.

    Parameters
    ----------
    evaluation : Evaluation
        Of a model with probabilities, from `evaluate`.
    ax : matplotlib Axes, optional
    """
    what = "probabilities; fit a KernelLikelihoodClassifier"
    found, ax = _with(evaluation, "reliability", what), new_axes(ax)
    p, seen = known_numbers([[one["probability"], one["observed"]] for one in found["bins"]]).T
    ax.plot([0, 1], [0, 1], color=COLORS[1], linestyle="--", label="as predicted")
    ax.plot(p, seen, color=COLORS[0], marker=MARKERS[0], label="observed")
    return labelled(ax, f"probability of {found['of']}", "share that came true")


def _with(evaluation: Any, key: str, what: str) -> Any:
    """An entry of an evaluation."""
    if not isinstance(evaluation, Mapping) or not evaluation.get(key):
        raise InputError(f"expected an evaluation, as evaluate returns, with {what}")
    return evaluation[key]


def _target(evaluation: Any, target: int) -> Mapping[str, Any]:
    drawn = [one for one in _with(evaluation, "targets", "numbers") if one.get("bins")]
    if not 0 <= target < len(drawn):
        raise InputError(f"target must be one of the first {len(drawn)}, got {target}")
    return drawn[target]


def _quantiles(ax: Any, target: Mapping[str, Any], key: str) -> np.ndarray:
    x = known_numbers([one["prediction"] for one in target["bins"]])
    low, lower, middle, upper, high = known_numbers([one[key] for one in target["bins"]]).T
    ax.fill_between(x, low, high, label="90 % of the rows", **BAND)
    ax.fill_between(x, lower, upper, label="50 %", **BAND)
    ax.plot(x, middle, color=COLORS[0], marker=MARKERS[0], markersize=3, label="median")
    return x


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 0.095 else f"{100 * share:.1g}"


def _short(label: Any) -> str:
    text, half = str(label), _NAME // 2
    return text if len(text) <= _NAME else f"{text[:half]}…{text[1 - half :]}"


# Columns that predictions depend on: from the results of `permutation_importance` and `partial_dependence`.

_MAX_BARS = 20
_MAX_OUTPUTS = 8
_LINES = ("-", "--", ":", "-.")
_FALLS = {"r2": "fall of R²", "d2": "fall of D²", "accuracy": "fall of accuracy"}


def plot_importance(result: Any, *, ax: Any = None) -> Axes:
    """Draw a bar for each of the twenty most important columns, with its standard error.

    Parameters
    ----------
    result : PermutationImportance, or its `to_dict`
    ax : matplotlib Axes, optional
    """
    data = _data_of(result, "columns", "permutation_importance")
    ax = new_axes(ax)
    columns = data["columns"][:_MAX_BARS]
    places = range(len(columns))
    length, error = (
        known_numbers([column[name] for column in columns]) for name in ("importance", "std_error")
    )
    label = f"{_FALLS[data['measure']]} ± standard error"
    style = {"color": COLORS[0], "edgecolor": "black", "linewidth": 0.6, "ecolor": COLORS[1], "capsize": 2}
    ax.barh(places, np.nan_to_num(length), xerr=np.nan_to_num(error), label=label, **style)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_yticks(places, [str(column["column"]) for column in columns])
    ax.invert_yaxis()
    return labelled(ax, _FALLS[data["measure"]], "column")


def plot_partial_dependence(result: Any, column: str | None = None, *, ax: Any = None) -> Axes:
    """Draw the mean result of a model against the values of a column; of many classes those of eight.

    Parameters
    ----------
    result : PartialDependence, or its `to_dict`
    column : str, optional
        Which of the curves; default the first one.
    ax : matplotlib Axes, optional
    """
    data = _data_of(result, "curves", "partial_dependence")
    curves = [curve for curve in data["curves"] if column in (None, curve["column"])]
    if not curves:
        known = ", ".join(curve["column"] for curve in data["curves"])
        raise InputError(f"the result has no curve of column {column!r}; it has: {known}")
    ax, curve = new_axes(ax), curves[0]
    mean, error = known_numbers(curve["mean"]), known_numbers(curve["std_error"])
    # The outputs that vary most.
    varying = np.argsort(-np.ptp(mean, axis=0), kind="stable")[:_MAX_OUTPUTS]
    is_number = curve["kind"] == "number"
    values = (
        known_numbers(curve["values"]) if is_number else np.arange(len(curve["values"]), dtype=np.float64)
    )
    for i, output in enumerate(sorted(varying.tolist())):
        style = {"color": COLORS[i % 4], "marker": MARKERS[i % 4], "label": str(data["outputs"][output])}
        low, high = mean[:, output] - error[:, output], mean[:, output] + error[:, output]
        if curve["kind"] == "category":  # which have no order, so no line joins them
            ax.errorbar(values, mean[:, output], error[:, output], linestyle="none", capsize=3, **style)
            continue
        ax.fill_between(values, low, high, **BAND | {"color": COLORS[i % 4]})
        # Colours repeat after four; the shift gives the next four other lines.
        line = _LINES[(i + i // 4) % 4]
        ax.plot(values, mean[:, output], linestyle=line, markersize=3, **style)
    if not is_number:
        labels = list(map(str, curve["values"]))
        is_long = max(map(len, labels)) > 3 or sum(map(len, labels)) > 40
        ax.set_xticks(values, labels, rotation=90 if is_long else 0)
    name = curve["column"] if curve["unit"] is None else f"{curve['column']}, {curve['unit']}"
    return labelled(ax, name, f"mean {data['result']}")


def _data_of(result: Any, key: str, source: str) -> Mapping[str, Any]:
    data = result.to_dict() if hasattr(result, "to_dict") else result
    if not isinstance(data, Mapping) or key not in data:
        raise InputError(f"expected the result of {source}, got {result!r}")
    return data


def _report(fit: Any) -> Mapping[str, Any]:
    report = getattr(fit, "report_", fit)
    if not isinstance(report, Mapping):
        raise InputError(f"expected a fitted model or its report_, got {fit!r}")
    return report


def new_axes(ax: Any) -> Any:
    """The Axes given, or those of a new figure."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]


def labelled(ax: Any, xlabel: str, ylabel: str) -> Any:
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.legend()
    return ax


def known_numbers(values: Any) -> np.ndarray:
    """An array with NaN for missing values, clipped to what can be drawn."""
    return np.clip(np.array(values, dtype=np.float64), -_LARGEST, _LARGEST)


def _spans_decades(values: np.ndarray) -> bool:
    """Whether a linear axis would press most values onto its end."""
    known = values[np.isfinite(values)]
    return known.size > 0 and known.min() > 0 and known.max() > 10 * known.min()


def _log_axis(ax: Any, which: str, values: np.ndarray, base: Literal[2, 10] = 10) -> None:
    """Make an axis logarithmic, if any of the values is positive."""
    from matplotlib.ticker import LogLocator, NullLocator

    known = values[values > 0]
    if not known.size:
        return
    getattr(ax, f"set_{which}scale")("log", base=base, nonpositive="mask")
    axis = getattr(ax, f"{which}axis")
    # Less than two powers of the base have hardly a tick between them.
    between = {2: (1, 1.5), 10: (1, 2, 5)}[base] if known.max() < base**2 * known.min() else (1,)
    axis.set_major_locator(LogLocator(base, subs=between, numticks=6))
    axis.set_minor_locator(NullLocator())
    # Plain text such as 10⁻⁶: the mathematics that matplotlib sets by default needs a font of its own.
    axis.set_major_formatter(_tick_text if base == 10 else "{x:,.0f}")


def _tick_text(value: float, position: int | None = None) -> str:
    return number_text(value, trim=True).removeprefix("1×")


# Predictions on the plane of the first two principal components of rows.

_FILLS = ("#cfe3f4", "#f9dcb8", "#d2ead9", "#e3d7ef")
_HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")
_MARKERS = (*MARKERS, "v", "P", "X", "*")
_INK = ("#0b62a8", "#a65300", "#1d5e31", "#5b3685")
_MARGIN = 0.08


def plot_decision_surface(
    machine: Any, X: Any, y: Any = None, *, resolution: int = 120, ax: Any = None
) -> Axes:
    """Draw a model's classes or values on the plane of the first two principal components of rows.

    The plane goes through the mean of the rows, in the columns as the model scales them. Rows are projected
    onto it, so a row far from the plane may lie in another region than that of its predicted class.

    Parameters
    ----------
    machine : fitted classifier or regressor of one output
    X : array-like of shape (n_samples, n_columns)
        In memory; more than a few thousand rows are hardly readable.
    y : array-like of shape (n_samples,), optional
        Marks the rows by class, or colours them by value.
    resolution : int
        Grid points along each axis.
    ax : matplotlib Axes, optional

    Notes
    -----
    resolution² predictions.
    """
    model = getattr(machine, "model_", None)
    if model is None or not hasattr(machine, "predict"):
        raise InputError(f"expected a fitted model that predicts, got {machine!r}")
    rows = np.asarray(X, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != model.n_columns:
        raise InputError(f"X must have shape (n_samples, {model.n_columns}), got {rows.shape}")
    if min(rows.shape) < 2 or not np.isfinite(rows).all():
        raise InputError("a plane needs at least two columns and two rows of finite numbers")
    if y is not None and np.shape(y) != (len(rows),):
        raise InputError(f"y must have shape ({len(rows)},), got {np.shape(y)}")
    if not model.is_classifier and model.n_outputs != 1:
        raise InputError(f"a surface shows one output, but the model has {model.n_outputs}")
    scaled = model.scaling.apply(rows, np.dtype(np.float64))
    mean = scaled.mean(axis=0)
    V = _first_components(scaled - mean)
    T = (scaled - mean) @ V.T
    axes = [_grid(t, resolution) for t in T.T]
    points = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2) @ V + mean
    # The plane is one of scaled columns, and not every scaling has an inverse.
    values = np.asarray(replace(model, scaling=Scaling(), steps=None).predict(points))
    ax = new_axes(ax)
    if model.is_classifier:
        _draw_classes(ax, axes, values, model.targets.classes, T, y)
    else:
        _draw_values(ax, axes, values, T, y)
    if y is None:
        ax.plot(*T.T, linestyle="none", marker=".", color="black", label="rows")
    ax.set(xlabel="first principal component", ylabel="second principal component")
    return ax


def _first_components(centred: np.ndarray) -> np.ndarray:
    """The two directions along which rows vary most, each with a positive largest entry."""
    V = np.linalg.svd(centred, full_matrices=False)[2][:2]
    # The sign of a singular vector is free: left free, a plot would be mirrored from run to run.
    largest = np.abs(V).argmax(axis=1)
    return V * np.sign(V[np.arange(2), largest])[:, None]


def _grid(t: np.ndarray, resolution: int) -> np.ndarray:
    low, high = t.min(), t.max()
    margin = _MARGIN * (high - low) or 1.0
    return np.linspace(low - margin, high + margin, resolution)


def _draw_classes(
    ax: Any, axes: list, labels: np.ndarray, classes: np.ndarray, T: np.ndarray, y: Any
) -> None:
    n = len(classes)
    # `classes` are sorted, and labels of a prediction are among them.
    index = np.searchsorted(classes, labels).reshape(len(axes[1]), len(axes[0]))
    fills, hatches = (list(islice(cycle(styles), n)) for styles in (_FILLS, _HATCHES))
    ax.contourf(*axes, index, levels=np.arange(n + 1) - 0.5, colors=fills, hatches=hatches)
    # Lines between the numbers of classes, since hatches and fills alone blur where they meet.
    for boundary in range(n - 1):
        ax.contour(*axes, index > boundary, levels=[0.5], colors="black", linewidths=0.8)
    if y is None:
        return
    for label, marker, color in zip(classes, cycle(_MARKERS), cycle(_INK), strict=False):
        style = {"linestyle": "none", "marker": marker, "color": color, "markeredgecolor": "white"}
        ax.plot(*T[np.asarray(y) == label].T, label=str(label), **style)
    ax.legend()


def _draw_values(ax: Any, axes: list, values: np.ndarray, T: np.ndarray, y: Any) -> None:
    F = values.reshape(len(axes[1]), len(axes[0]))
    filled = ax.contourf(*axes, F, levels=12, cmap="cividis")  # from dark to light
    ax.clabel(ax.contour(*axes, F, levels=filled.levels, colors="black", linewidths=0.5), fontsize=7)
    if y is not None:
        style = {"cmap": "cividis", "norm": filled.norm, "edgecolors": "white", "linewidths": 0.6}
        ax.scatter(*T.T, c=np.asarray(y), **style)
