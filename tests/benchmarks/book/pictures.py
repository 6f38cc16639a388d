"""Pictures of a run: error against seconds, growth with its exponents, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tests.benchmarks.book.contestants import CONTESTANTS
from tests.benchmarks.book.lines import Result
from tests.benchmarks.book.races import OURS

_OURS, _THEIRS, _FIT = "#0b5fa5", "#777777", "#d1495b"
_AXES = {
    "rows": ("rows", "seconds"),
    "features": ("features", "seconds"),
    "workers": ("workers", "seconds"),
    "memory": ("rows", "bytes of a worker above idle"),
}
_PARTS = (
    "products",
    "cosines",
    "features",
    "factorisation",
    "reading",
    "transfers",
    "starting tasks",
    "waiting",
)


def draw(found: Sequence[Result], folder: Path) -> list[Path]:
    """Draw what the results have, and return the files."""
    finished = [one for one in found if "reached" in one]
    figures: dict[str, Figure] = {}
    for name in dict.fromkeys(one["set"] for one in finished if "contestant" in one):
        figures[f"set_{name}"] = _race([one for one in finished if one.get("set") == name], name)
    growth = [one for one in finished if "axis" in one]
    if growth:
        figures["growth"] = _growth(growth)
    limits = [one for one in finished if "parts" in one]
    if limits:
        figures["limit"] = _limits(limits)
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.svg")
        figure.savefig(paths[-1], metadata={"Date": None})
    return paths


def _race(results: Sequence[Result], name: str) -> Figure:
    figure, axes = _axes(1)
    ax = axes[0]
    for one in (one for one in results if "contestant" in one):
        colour = _OURS if one["contestant"] == OURS else _THEIRS
        beside = ([one["reached"] - one["low"]], [one["high"] - one["reached"]])
        ax.errorbar(one["reached"], one["error"], xerr=np.array(beside), fmt="o", color=colour)
        title = CONTESTANTS[one["contestant"]].title
        ax.annotate(title, (one["reached"], one["error"]), xytext=(5, 4), textcoords="offset points",
                    fontsize=8, color=colour)  # fmt: skip
    ax.set_xscale("log")
    ax.set_xlabel("seconds of fit and prediction")
    ax.set_ylabel("test error")
    ax.set_title(name)
    ax.margins(x=0.3)
    return figure


def _growth(results: Sequence[Result]) -> Figure:
    figure, axes = _axes(len(results))
    for ax, one in zip(axes, results, strict=True):
        sizes, values = np.array(one["sizes"]), np.array(one["values"])
        b = one["reached"]
        fitted = np.exp(np.mean(np.log(values) - b * np.log(sizes))) * sizes**b
        ax.loglog(sizes, values, "o", color=_OURS)
        ax.loglog(sizes, fitted, "-", color=_FIT, linewidth=1, label=f"exponent {b:.2f}")
        across, up = _AXES[one["axis"]]
        ax.set_xlabel(across)
        ax.set_ylabel(up)
        ax.legend(frameon=False)
    return figure


def _limits(results: Sequence[Result]) -> Figure:
    figure, axes = _axes(1)
    ax = axes[0]
    left = np.zeros(len(results))
    for part in _PARTS:
        seconds = np.array([one["parts"].get(part, 0.0) for one in results])
        if seconds.any():
            ax.barh(range(len(results)), seconds, left=left, label=part)
            left += seconds
    labels = [f"{one['case']}\n{one['reached']:.0%} of the limit" for one in results]
    ax.set_yticks(range(len(results)), labels)
    ax.set_xlabel("seconds")
    ax.legend(frameon=False, fontsize=8)
    return figure


def _axes(n: int) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(max(6.0, 3.5 * n), 4.0), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, n)).tolist()
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes
