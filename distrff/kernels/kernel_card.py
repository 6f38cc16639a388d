"""A kernel as a card of a notebook: its parameters, and how it falls with distance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from distrff.display.axes import number_text
from distrff.display.elements import facts, paragraph, section
from distrff.display.kernel_text import kernel_text
from distrff.display.page import html_card
from distrff.display.svg import Line, bar_chart, line_chart

if TYPE_CHECKING:
    from distrff.kernels.base import Kernel

_N_POINTS = 65
_SMALL = 0.02  # of k(0): where the curve ends
_FARTHEST = 2.0**12
_MOST_COLUMNS = 12  # as bars


def kernel_card(kernel: Kernel, n_widths: int) -> str:
    """Return the card; `n_widths` is the number of columns that the kernel has widths for, 0 for any."""
    shown = {
        "kernel": kernel_text(repr(kernel)),
        "k(0)": number_text(kernel.at_zero) if math.isfinite(kernel.at_zero) else "depends on the row",
        "columns": str(n_widths) if n_widths else "any",
        "widths": "still to be found by the fit" if kernel.is_auto else "decided",
        "frequencies": _frequencies(kernel),
    }
    parts = [facts(shown.items())]
    if kernel.is_shift_invariant:
        parts.append(_by_column(kernel, n_widths) if n_widths else _curve(kernel))
    return html_card(type(kernel).__name__, "\n".join(parts))


def _frequencies(kernel: Kernel) -> str:
    if not kernel.is_shift_invariant:
        return "none: evaluated exactly, or approximated by NystroemFeatures"
    if kernel.is_spherical:
        return "spherical: any sampling of FourierFeatures"
    return "not spherical: independent draws or Sobol points"


def _curve(kernel: Kernel) -> str:
    kernel = kernel.with_widths(1.0)
    at_zero, end = kernel.at_zero, 1.0
    while end > 1 / _FARTHEST and _at(kernel, end / 2) < _SMALL * at_zero:
        end /= 2
    while end < _FARTHEST and _at(kernel, end) > _SMALL * at_zero:
        end *= 2
    X = np.linspace(0.0, end, _N_POINTS)
    K = kernel(X[:, None], np.zeros((1, 1)))[:, 0]
    chart = line_chart(
        [Line("", X.tolist(), K.tolist())],
        title="The kernel against distance",
        x_label="distance along one column",
        y_label="k",
    )
    return section("Along one column", chart + paragraph("Widths that are still to be found are drawn as 1."))


def _at(kernel: Kernel, distance: float) -> float:
    return float(kernel(np.array([[distance]]), np.zeros((1, 1)))[0, 0])


def _by_column(kernel: Kernel, n_columns: int) -> str:
    """Draw how far the kernel reaches along each column: where it has fallen to a half."""
    kernel = kernel.with_widths(1.0)
    reach = np.array([_half_distance(kernel, j, n_columns) for j in range(min(n_columns, _MOST_COLUMNS))])
    bars = [(f"column {j}", 1 / r, number_text(float(r))) for j, r in enumerate(reach)]
    chart = bar_chart(bars, title="How fast the kernel falls along each column")
    more = f" Of {n_columns} columns the first {len(reach)}." if n_columns > len(reach) else ""
    told = "The longer a bar, the faster the kernel falls along the column; beside it, where it is a half."
    return section("By column", chart + paragraph(told + more))


def _half_distance(kernel: Kernel, j: int, n_columns: int) -> float:
    """Return by bisection of its logarithm the distance along a column where the kernel is half of k(0)."""
    x, origin = np.zeros((1, n_columns)), np.zeros((1, n_columns))
    low, high = -300.0, 300.0
    for _ in range(40):
        middle = (low + high) / 2
        x[0, j] = 10.0**middle
        low, high = (middle, high) if kernel(x, origin)[0, 0] > kernel.at_zero / 2 else (low, middle)
    return 10.0**high
