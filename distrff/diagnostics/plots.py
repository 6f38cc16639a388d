"""Plots of a fit with matplotlib, the extra `plots`; it is imported when one is drawn.

Each takes the Axes to draw in, or makes a figure, and returns the Axes. What differs in colour differs in
line, marker or hatching as well, so that grey is enough to read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from distrff.diagnostics.kernel_error import KernelError
from distrff.diagnostics.report import alpha_path, learning_curve
from distrff.errors import InputError
from distrff.preprocessing.scaling import Scaling
from distrff.utils.axes import number_text

COLORS = ("#0b62a8", "#e08214", "#2d7d46", "#7a4fa3")
MARKERS = ("o", "s", "^", "D")
_BAND = {"color": COLORS[0], "alpha": 0.18, "linewidth": 0}


def plot_kernel_error(errors: KernelError | Sequence[KernelError], *, ax: Any = None) -> Any:
    """Draw measured kernel errors against the number of features, beside what theory says of them.

    Parameters
    ----------
    errors : KernelError or sequence of them
        Of maps of different sizes on the same rows, from `kernel_error`.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    measured = [errors] if isinstance(errors, KernelError) else list(errors)
    if not measured or not all(isinstance(error, KernelError) for error in measured):
        raise InputError("errors must be what kernel_error returned, or a list of that")
    measured.sort(key=lambda error: error.n_components)
    ax = new_axes(ax)
    D = [error.n_components for error in measured]
    rms = np.array([error.rms_error for error in measured])
    low, high = np.array([error.rms_interval for error in measured]).T
    ax.errorbar(
        D,
        rms,
        yerr=[rms - low, high - rms],
        color=COLORS[0],
        marker=MARKERS[0],
        capsize=3,
        label="RMS of pairs",
    )
    largest = [error.max_error for error in measured]
    ax.plot(D, largest, color=COLORS[1], marker=MARKERS[1], linestyle="--", label="largest of the pairs")
    for name, label, color, marker, line in (
        ("rms_expected", "RMS expected", COLORS[2], MARKERS[2], ":"),
        ("rms_bound", "RMS expected at most", COLORS[2], MARKERS[2], ":"),
        ("max_bound", "bound of the largest", COLORS[3], MARKERS[3], "-."),
    ):
        known = [
            (error.n_components, value) for error in measured if (value := getattr(error, name)) is not None
        ]
        if known:
            ax.plot(*zip(*known, strict=True), color=color, marker=marker, linestyle=line, label=label)
    ax.set(xscale="log", yscale="log", xlabel="number of features", ylabel="error of the kernel")
    ax.legend()
    return ax


def plot_alpha_path(fit: Any, *, ax: Any = None) -> Any:
    """Draw the criterion against alpha: the mean of the folds, their spread, the choice, the noise floor.

    Parameters
    ----------
    fit : fitted ridge machine, or its `report_`
        With alpha chosen by "cv" or "gcv".
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    path = alpha_path(_report(fit))
    if path is None:
        raise InputError("this fit did not search for alpha; fit a ridge machine with alpha='cv' or 'gcv'")
    ax = new_axes(ax)
    alphas, mean = path["values"], np.array(path["mean"], dtype=float)
    if path["folds"]:
        folds = np.array(path["folds"], dtype=float)
        label = f"lowest to highest of {len(folds)} folds"
        ax.fill_between(alphas, folds.min(axis=0), folds.max(axis=0), label=label, **_BAND)
    ax.plot(alphas, mean, color=COLORS[0], marker=MARKERS[0], markersize=3, label=path["criterion"])
    chosen = path["chosen"]
    ax.axvline(chosen, color=COLORS[1], linestyle="--", label=f"chosen: {number_text(chosen)}")
    if path["noise_floor"] is not None:
        floor = path["noise_floor"]
        ax.axvline(floor, color=COLORS[3], linestyle=":", label=f"noise floor: {number_text(floor)}")
    ax.set(xscale="log", yscale="log", xlabel="alpha", ylabel="error")
    ax.legend()
    return ax


def plot_learning_curve(fit: Any, *, ax: Any = None) -> Any:
    """Draw the criterion against the number of features, from the nested machines of one fit.

    Parameters
    ----------
    fit : fitted ridge machine, or its `report_`
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    curve = learning_curve(_report(fit))
    if curve is None:
        raise InputError(
            "this fit has no learning curve; fit a ridge machine on Fourier or Nyström features by its Gram"
        )
    ax = new_axes(ax)
    ax.plot(
        curve["n_components"], curve["score"], color=COLORS[0], marker=MARKERS[0], label=curve["criterion"]
    )
    ax.set_xscale("log", base=2)
    ax.set(yscale="log", xlabel="number of features", ylabel="error")
    ax.legend()
    return ax


def plot_relevance(fit: Any, *, names: Sequence[str] | None = None, ax: Any = None) -> Any:
    """Draw a bar for each column: 1/length_scale, how fast the kernel falls along it.

    Parameters
    ----------
    fit : fitted feature map, or a machine fitted with one
        Whose kernel has a width for each column.
    names : sequence of str, optional
        Of the columns; default those of a data frame that was fitted, else their numbers.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    features = getattr(fit, "features_", fit)
    kernel: Any = getattr(features, "kernel_", None)
    while hasattr(kernel, "k"):  # a multiple of a kernel has its widths
        kernel = kernel.k
    widths = getattr(kernel, "length_scale", None)
    if not isinstance(widths, tuple):
        raise InputError(
            f"the kernel {kernel!r} has no width for each column; fit a map whose length_scale is a tuple"
        )
    if names is None:
        names = getattr(fit, "feature_names_in_", None)
    labels = list(map(str, range(len(widths)) if names is None else names))
    if len(labels) != len(widths):
        raise InputError(f"names has {len(labels)} entries, but the kernel has {len(widths)} widths")
    ax = new_axes(ax)
    ax.bar(range(len(widths)), 1 / np.array(widths), color=COLORS[0], edgecolor="black", linewidth=0.6)
    ax.set_xticks(range(len(widths)), labels, rotation=90 if max(map(len, labels)) > 3 else 0)
    ax.set(xlabel="column", ylabel="1 / length scale")
    return ax


def _report(fit: Any) -> Mapping[str, Any]:
    report = getattr(fit, "report_", fit)
    if not isinstance(report, Mapping):
        raise InputError(f"expected a fitted machine or its report_, got {fit!r}")
    return report


def new_axes(ax: Any) -> Any:
    """Return the Axes given, or those of a new figure."""
    if ax is not None:
        return ax
    try:
        pyplot = import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ImportError(
            "plots are drawn by matplotlib, which is not installed: pip install 'distrff[plots]'"
        ) from error
    return pyplot.subplots(layout="constrained")[1]


# What a machine says on the plane of the first two principal components of some rows.

_FILLS = ("#cfe3f4", "#f9dcb8", "#d2ead9", "#e3d7ef")
_HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_INK = ("#0b62a8", "#a65300", "#1d5e31", "#5b3685")
_MARGIN = 0.08


def plot_decision_surface(
    machine: Any, X: Any, y: Any = None, *, resolution: int = 120, ax: Any = None
) -> Any:
    """Draw a machine's classes or values on the plane of the first two principal components of rows.

    The plane goes through the mean of the rows, in the columns as the machine scales them. Rows are drawn
    where they project to, so that a row far from the plane may lie in another class's region than it is
    predicted to be in.

    Parameters
    ----------
    machine : fitted classifier or regressor of one output
    X : array-like of shape (n_samples, n_columns)
        In memory; a few thousand rows at most are readable.
    y : array-like of shape (n_samples,), optional
        Marks the rows by class, or colours them by value.
    resolution : int
        Points of the grid along either axis.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes

    Notes
    -----
    resolution² predictions.
    """
    model = getattr(machine, "model_", None)
    if model is None or not hasattr(machine, "predict"):
        raise InputError(f"expected a fitted machine that predicts, got {machine!r}")
    rows = np.asarray(X, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != model.n_columns:
        raise InputError(f"X must have shape (n_samples, {model.n_columns}), got {rows.shape}")
    if min(rows.shape) < 2 or not np.isfinite(rows).all():
        raise InputError("a plane needs at least two columns and two rows of finite numbers")
    if y is not None and np.shape(y) != (len(rows),):
        raise InputError(f"y must have shape ({len(rows)},), got {np.shape(y)}")
    if not model.is_classifier and model.n_outputs != 1:
        raise InputError(f"a surface is of one output, and the machine has {model.n_outputs}")
    plane = _Plane(rows, model.scaling)
    T = plane.coordinates(rows)
    axes = [_grid(t, resolution) for t in T.T]
    points = plane.points(np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2))
    values = np.asarray(model.predict(points))
    ax = new_axes(ax)
    if model.is_classifier:
        _draw_classes(ax, axes, values, model.targets.classes, T, y)
    else:
        _draw_values(ax, axes, values, T, y)
    ax.set(xlabel="first principal component", ylabel="second principal component")
    return ax


class _Plane:
    """The plane through the mean of the scaled rows along which they vary most."""

    def __init__(self, X: np.ndarray, scaling: Scaling) -> None:
        self._scaling = scaling
        scaled = scaling.apply(X, np.dtype(np.float64))
        self._mean = scaled.mean(axis=0)
        V = np.linalg.svd(scaled - self._mean, full_matrices=False)[2][:2]
        largest = np.abs(V).argmax(axis=1)
        self._V = V * np.sign(V[np.arange(2), largest])[:, None]

    def coordinates(self, X: np.ndarray) -> np.ndarray:
        """Return where rows project to, of shape (n, 2)."""
        return (self._scaling.apply(X, np.dtype(np.float64)) - self._mean) @ self._V.T

    def points(self, T: np.ndarray) -> np.ndarray:
        """Return the rows at coordinates on the plane, in the columns' own units."""
        scaled = T @ self._V + self._mean
        if self._scaling.scale is None or self._scaling.shift is None:
            return scaled
        return scaled * self._scaling.scale + self._scaling.shift


def _grid(t: np.ndarray, resolution: int) -> np.ndarray:
    low, high = t.min(), t.max()
    margin = _MARGIN * (high - low) or 1.0
    return np.linspace(low - margin, high + margin, resolution)


def _draw_classes(
    ax: Any, axes: list, labels: np.ndarray, classes: np.ndarray, T: np.ndarray, y: Any
) -> None:
    n = len(classes)
    index = np.searchsorted(classes, labels).reshape(len(axes[1]), len(axes[0]))
    ax.contourf(
        *axes,
        index,
        levels=np.arange(n + 1) - 0.5,
        colors=[_FILLS[i % len(_FILLS)] for i in range(n)],
        hatches=[_HATCHES[i % len(_HATCHES)] for i in range(n)],
    )
    for boundary in range(n - 1):
        ax.contour(*axes, index > boundary, levels=[0.5], colors="black", linewidths=0.8)
    if y is None:
        ax.plot(*T.T, linestyle="none", marker=".", color="black", label="rows")
        return
    for i, label in enumerate(classes):
        of_class = T[np.asarray(y) == label]
        marker, color = _MARKERS[i % len(_MARKERS)], _INK[i % len(_INK)]
        ax.plot(
            *of_class.T,
            linestyle="none",
            marker=marker,
            color=color,
            markeredgecolor="white",
            label=str(label),
        )
    ax.legend()


def _draw_values(ax: Any, axes: list, values: np.ndarray, T: np.ndarray, y: Any) -> None:
    F = values.reshape(len(axes[1]), len(axes[0]))
    filled = ax.contourf(*axes, F, levels=12, cmap="cividis")  # from dark to light
    ax.clabel(ax.contour(*axes, F, levels=filled.levels, colors="black", linewidths=0.5), fontsize=7)
    if y is None:
        ax.plot(*T.T, linestyle="none", marker=".", color="black", label="rows")
        return
    ax.scatter(*T.T, c=np.asarray(y), cmap="cividis", norm=filled.norm, edgecolors="white", linewidths=0.6)
