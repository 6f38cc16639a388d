"""From the report of a fit to what the report page shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distrff.diagnostics.axes import number_text

_MAY_BREAK = "\u200b"  # a space of no width
_MOST_WIDTHS = 8  # in the kernel's formula
_MOST_COLUMNS = 20  # as bars


def fit_page(
    report: Mapping[str, Any],
    *,
    title: str,
    facts: Iterable[Sequence[str]] = (),
    scores: Mapping[str, Any] | None = None,
    predicted_seconds: float | None = None,
) -> dict[str, Any]:
    """Return the argument of `report_page` for a fit.

    Parameters
    ----------
    report : mapping
        A `FitReport`, or its `to_dict()`.
    title : str
    facts : iterable of [name, text]
        What the report cannot know, shown first.
    scores : {"columns": [...], "rows": [[...], ...]}, optional
        The model beside its rivals.
    predicted_seconds : float, optional
        What `plan()` predicted before the fit.
    """
    return {
        "title": title,
        "facts": [*map(list, facts), *_facts(report)],
        "notes": list(report["notes"]),
        "scores": scores,
        "relevance": _relevance(report),
        "alpha_path": alpha_path(report),
        "learning_curve": learning_curve(report),
        "plan": _plan(report, predicted_seconds),
        "sweeps": [
            list(sweep) for sweep in zip(report["sweep_labels"], report["sweep_seconds"], strict=True)
        ],
    }


def _facts(report: Mapping[str, Any]) -> list[list[str]]:
    search = report.get("length_scale_search") or {}
    shown = {
        "machine": report["model"],
        "rows": number_text(report["n_samples"]),
        "columns": number_text(report["n_columns"]),
        "features": number_text(report["n_components"]),
        "kernel": _shortened(report.get("kernel")),
        "width found by": search.get("rule"),
        "alpha": _numbers(report["alpha"]),
        report["criterion"]: None if report["cv_score"] is None else number_text(report["cv_score"]),
        "norm of f, ‖w‖": _numbers(report["rkhs_norm"]),
        "products in": report["dtype"],
        "workers": number_text(report["workers"]),
        "seed": str(report["seed"]),
    }
    return [[name, text] for name, text in shown.items() if text]


def _shortened(kernel: str | None) -> str | None:
    """Return the kernel with its numbers to four digits, and with places where a line may break.

    Of many widths only their number is told.
    """
    if kernel is None:
        return None
    kernel = re.sub(rf"\(([^(),]+, ){{{_MOST_WIDTHS},}}[^(),]*\)", _number_of_widths, kernel)
    short = re.sub(r"\d+\.\d{4,}(e[-+]?\d+)?", lambda number: f"{float(number[0]):.4g}", kernel)
    return re.sub(r"([(=])", rf"\1{_MAY_BREAK}", short)


def _number_of_widths(widths: re.Match[str]) -> str:
    return f"{widths[0].count(', ') + 1} widths"


def _relevance(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the columns of the shortest learned widths, each width beside the column's deviation."""
    search = report.get("length_scale_search") or {}
    if "column_scale" not in search:
        return None
    widths = search["length_scale"]
    pairs = zip(search["column_scale"], widths, strict=True)
    ranked = sorted(((scale / width, j) for j, (scale, width) in enumerate(pairs)), key=lambda pair: -pair[0])
    return {
        "bars": [[f"column {j}", value, number_text(widths[j])] for value, j in ranked[:_MOST_COLUMNS]],
        "n_columns": len(widths),
    }


def _numbers(value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    return ", ".join(map(number_text, values))


def alpha_path(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how the criterion depends on alpha, as `report_page` takes it; None where alpha was given."""
    if not report.get("alphas"):
        return None
    alphas, floor = report["alphas"], report["noise_floor"]
    return {
        "alphas": alphas,
        "mean": report["mean_score"],
        "folds": list(map(list, zip(*(report.get("fold_scores") or []), strict=True))),
        "chosen": report["alpha"],
        # Farther below, it took no part in the choice and would only press the curve to one side.
        "noise_floor": floor if floor is not None and 10 * floor >= min(alphas) else None,
        "criterion": report["criterion"],
    }


def learning_curve(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the criterion for each number of features, as `report_page` takes it; None without a curve."""
    if not report.get("learning_curve"):
        return None
    sizes, scores, _ = zip(*report["learning_curve"], strict=True)
    return {"n_components": list(sizes), "score": list(scores), "criterion": report["criterion"]}


def _plan(report: Mapping[str, Any], predicted_seconds: float | None) -> dict[str, Any] | None:
    plan = report.get("plan")
    if plan is None:
        return None
    seconds = plan["seconds"] if predicted_seconds is None else predicted_seconds
    rows = [
        ["seconds of the fit", "s", seconds, report["seconds"]],
        [
            "peak memory of a worker, above idle",
            "bytes",
            plan["worker_peak_bytes"],
            report["measured_peak_bytes"],
        ],
        ["passes over the rows", "", plan["n_sweeps"], report["n_sweeps"]],
    ]
    return {"rows": [row for row in rows if row[2] is not None]}
