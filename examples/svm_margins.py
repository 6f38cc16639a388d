"""Hard and soft margins of support vector machines in two dimensions, as one picture.

Run it in any folder that can be written to::

    python examples/svm_margins.py                      # writes svm_margins.svg
    python examples/svm_margins.py --out margins.pdf --n-rows 40

On the left are linear models, on the right models on random Fourier features of a Gaussian kernel. Each
panel shows the rows, the decision line f = 0, the margins f = ±1 with the band between them, and rings
around the support rows: those on or within the margins, or on the wrong side. ‖w‖ is the norm of f.

With C = ∞ no row may be within the margins. The model is then the one of the largest margin, 1/‖w‖, and
where the features do not separate the classes there is none: the fit raises an `InputError` that says how it
knows, which the picture and the terminal show. With a finite C each row pays for how far it is within the
margins; the smaller C is, the wider they are. The Gaussian kernel separates even rows that overlap, while
they are few; how small its margin then is, and how the line winds, shows what that is worth.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import linprog

import distrff as drf
from distrff.errors import InputError

SEED = 0
LEAST_ROWS = 20  # with these the rows that are to overlap do so
BOX = (3.2, 2.4)  # what is drawn
TOL = 1e-6  # of the duality gap, to tell rows on the margins from those behind; it asks for float64
ON_MARGIN = 1e-3  # rows so near to f = ±1 count as on it

COLORS, MARKERS = {1: "#0b62a8", -1: "#c2560c"}, {1: "o", -1: "D"}


class Rows(NamedTuple):
    """X of shape (n, 2) and y, ±1."""

    X: np.ndarray
    y: np.ndarray


class Panel(NamedTuple):
    """A model on some rows."""

    title: str
    rows: Rows
    features: drf.LinearFeatures | drf.FourierFeatures
    C: float


class Meeting(NamedTuple):
    """A point in the hulls of a few rows of each class, in the order +1, −1."""

    point: np.ndarray
    corners: tuple[np.ndarray, np.ndarray]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit all models, write the picture, and return the exit code."""
    options = _parser().parse_args(arguments)
    shown = panels(options.n_rows)
    figure = Figure(figsize=(10, 4.4 * len(shown) / 2), layout="constrained")
    for ax, panel in zip(figure.subplots(len(shown) // 2, 2).flat, shown, strict=True):
        text = show(ax, panel)
        ax.set_title(panel.title, pad=24)
        ax.set_xlabel(textwrap.fill(text, 75), fontsize="small")
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, fontsize="small", frameon=False)
        print(f"{panel.title}\n    {text}")
    try:
        figure.savefig(options.out)
    except (OSError, ValueError) as error:  # of a kind of file that matplotlib does not know
        print(f"svm_margins.py: {options.out} cannot be written: {error}", file=sys.stderr)
        return 2
    print(f"written to {options.out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="svm_margins.py", description="Draw hard and soft margins of support vector machines."
    )
    parser.add_argument(
        "--out", type=Path, default=Path("svm_margins.svg"), help="picture to write [%(default)s]"
    )
    parser.add_argument("--n-rows", type=_n_rows, default=80, help="rows of each panel [%(default)s]")
    return parser


def _n_rows(text: str) -> int:
    n = int(text)
    if n < LEAST_ROWS:
        raise argparse.ArgumentTypeError(f"must be at least {LEAST_ROWS}, got {n}")
    return n


def panels(n_rows: int) -> list[Panel]:
    """Return what is drawn, linear models and others in turn."""
    line, ring, overlapping = (
        make(n_rows) for make in (rows_beside_a_line, rows_in_a_ring, rows_that_overlap)
    )
    linear = drf.LinearFeatures()
    wide, narrow = (drf.FourierFeatures(drf.Gaussian(length_scale), 256) for length_scale in (1.5, 1.0))
    found = []
    for C, C_fourier in ((np.inf, np.inf), (1.0, 1.0), (0.01, 0.1)):
        found.append(Panel(f"A line separates: {_margin_name(C)}", line, linear, C))
        found.append(Panel(f"A curve separates: {_margin_name(C_fourier)}", ring, wide, C_fourier))
    for C in (1.0, np.inf):
        found.append(Panel(f"Overlapping, linear: {_margin_name(C)}", overlapping, linear, C))
        found.append(Panel(f"Overlapping, Gaussian: {_margin_name(C)}", overlapping, narrow, C))
    return found


def _margin_name(C: float) -> str:
    return "hard margin" if np.isinf(C) else f"soft margin, C = {C:g}"


def rows_beside_a_line(n_rows: int) -> Rows:
    """Return two clouds with an empty strip between them."""
    across = np.array([0.8, 0.6])
    return _drawn(n_rows, lambda X, _: _side(X @ across - 0.2, 0.45))


def rows_in_a_ring(n_rows: int) -> Rows:
    """Return a disc of the class 1 in a ring of the class −1."""
    return _drawn(n_rows, lambda X, _: _side(1.5 - np.linalg.norm(X, axis=1), 0.3))


def rows_that_overlap(n_rows: int) -> Rows:
    """Return two clouds that reach into each other: the sign of what is blurred by noise."""
    across = np.array([0.8, 0.6])
    return _drawn(n_rows, lambda X, noise: _side(X @ across + 0.6 * noise, 0.0))


def _drawn(n_rows: int, label: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Rows:
    """Return normal rows of the box whose label is not 0, half of each class; more hold those of fewer."""
    rng, noise_rng = (np.random.default_rng([SEED, stream]) for stream in (0, 1))
    X = 1.5 * rng.standard_normal((40 * n_rows, 2))
    y = label(X, noise_rng.standard_normal(len(X))) * (np.abs(X) < BOX).all(axis=1)
    chosen = [np.flatnonzero(y == side)[:n] for side, n in ((1, n_rows // 2), (-1, n_rows - n_rows // 2))]
    kept = np.sort(np.concatenate(chosen))
    return Rows(X[kept], y[kept])


def _side(distance: np.ndarray, gap: float) -> np.ndarray:
    """Return the sign of a distance, 0 within the gap."""
    return np.where(np.abs(distance) < gap, 0.0, np.sign(distance))


def show(ax: Any, panel: Panel) -> str:
    """Fit the model of a panel and draw it, or what shows that there is none; return what is to be said."""
    X, y = panel.rows
    for label in (1, -1):
        drawn = {"marker": MARKERS[label], "color": COLORS[label], "label": f"{label:+d}"}
        ax.scatter(*X[y == label].T, s=18, **drawn)
    ax.set(xlim=(-BOX[0], BOX[0]), ylim=(-BOX[1], BOX[1]), aspect="equal")
    # Without scaling 1/‖w‖ is a length in the picture.
    model = drf.KernelSVC(panel.features, panel.C, scale="none", tol=TOL, dtype="float64", random_state=SEED)
    try:
        model.fit(X, y)
    except InputError as error:
        if np.isfinite(panel.C):
            raise
        return refused(ax, panel, error)
    f = y * model.decision_function(X)
    support = f <= 1 + ON_MARGIN
    draw_model(ax, model)
    _ring(ax, X[support], "support row")
    return _summary(model, f, support)


def draw_model(ax: Any, model: drf.KernelSVC) -> None:
    """Draw the line f = 0, the margins, and the band between them."""
    x, y = (np.linspace(-end, end, 101) for end in BOX)
    points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    F = model.decision_function(points).reshape(len(y), len(x))
    ax.contourf(x, y, F, levels=[-1, 1], colors=["black"], alpha=0.09)
    ax.contour(
        x, y, F, levels=[-1, 0, 1], colors=[COLORS[-1], "black", COLORS[1]], linewidths=[1.3, 2.4, 1.3]
    )
    ax.plot([], [], color="black", linewidth=2.4, label="f = 0, between f = ±1")


def refused(ax: Any, panel: Panel, error: InputError) -> str:
    """Draw, for a linear model, a point that shows why there is none; return the error's words."""
    meeting = meeting_of(panel.rows) if isinstance(panel.features, drf.LinearFeatures) else None
    if meeting is None:
        return f"refused: {error}"
    for label, corners in zip((1, -1), meeting.corners, strict=True):
        ax.fill(*corners.T, facecolor=COLORS[label], edgecolor=COLORS[label], alpha=0.3)
    _ring(ax, np.concatenate(meeting.corners), "corner of a hull")
    cross = {"marker": "x", "markersize": 10, "color": "black", "linestyle": "none"}
    ax.plot(*meeting.point, **cross, label="in both hulls")
    reason = "The cross is in the hulls of both classes: there f would be at least 1 and at most −1."
    return f"refused: {error}. {reason}"


def _ring(ax: Any, X: np.ndarray, label: str) -> None:
    ax.scatter(*X.T, s=80, facecolors="none", edgecolors="black", linewidths=1.2, label=label)


def meeting_of(rows: Rows) -> Meeting | None:
    """Return a point that is a weighted mean of a few rows of either class; None if a line separates them.

    A basic solution of a linear program in the weights: at most four rows have any.
    """
    X, y = rows
    sides = [y > 0, y < 0]
    equal = np.concatenate([(y[:, None] * X).T, np.stack(sides).astype(float)])
    solution = linprog(-np.square(X).sum(axis=1), A_eq=equal, b_eq=[0, 0, 1, 1], method="highs-ds")
    if solution.x is None:
        return None
    weight = solution.x
    first, second = (X[side & (weight > 1e-9)] for side in sides)
    return Meeting(weight[sides[0]] @ X[sides[0]], (first, second))


def _summary(model: drf.KernelSVC, f: np.ndarray, support: np.ndarray) -> str:
    within, wrong = np.count_nonzero(f < 1 - ON_MARGIN), np.count_nonzero(f < 0)
    return (
        f"1/‖w‖ = {1 / model.rkhs_norm_:.3g}; {np.count_nonzero(support)} of {len(f)} rows are "
        f"support rows, {within} of them past their margin, {wrong} on the wrong side; relative duality gap "
        f"{model.report_['duality_gap']:.3g}"
    )


if __name__ == "__main__":
    sys.exit(main())
