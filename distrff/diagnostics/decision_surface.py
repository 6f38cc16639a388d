"""What a machine says on the plane of the first two principal components of some rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from distrff.columns.scaling import Scaling
from distrff.diagnostics.plots import new_axes
from distrff.errors import InputError

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
