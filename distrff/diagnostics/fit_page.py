"""From the report of a fit to what the report page shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distrff.display.axes import number_text
from distrff.display.kernel_text import kernel_text

_MOST_COLUMNS = 20  # as bars
_MOST_NUMBERS = 8  # one a target or class


def fit_page(
    report: Mapping[str, Any],
    *,
    title: str,
    facts: Iterable[Sequence[str]] = (),
    scores: Mapping[str, Any] | None = None,
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
    """
    return {
        "title": title,
        "facts": [*map(list, facts), *_facts(report)],
        "notes": list(report["notes"]),
        "scores": scores,
        "penalty_path": alpha_path(report) or _path_of_C(report),
        "learning_curve": learning_curve(report),
        "certificate": _certificate(report),
        "relevance": _relevance(report),
        "components": _components(report),
        "plan": _plan(report),
        "time": {
            "phases": report.get("phases"),
            "sweeps": [
                list(sweep) for sweep in zip(report["sweep_labels"], report["sweep_seconds"], strict=True)
            ],
        },
    }


def _facts(report: Mapping[str, Any]) -> list[list[str]]:
    search = report.get("length_scale_search") or {}
    shown = {
        "machine": report["model"],
        "ended": report["status"].lower().replace("_", " "),
        "rows from": report.get("source"),
        "rows": number_text(report["n_samples"]),
        "columns": number_text(report["n_columns"]),
        "features": number_text(report["n_components"]),
        "kernel": kernel_text(report["kernel"]) if report.get("kernel") else None,
        "width found by": search.get("rule"),
        **_objective(report),
        "products in": report["dtype"],
        "workers": number_text(report["workers"]),
        "seed": str(report["seed"]),
    }
    return [[name, text] for name, text in shown.items() if text]


def _objective(report: Mapping[str, Any]) -> dict[str, str | None]:
    """Return what was minimised, and how well."""
    shown: dict[str, str | None] = {}
    if "C" in report:
        shown |= {"loss": report["loss"], "C": _numbers(report["C"]), "solver": report["solver"]}
    if "alpha" in report:
        shown["alpha"] = _numbers(report["alpha"])
    if report.get("cv_score") is not None:
        shown[report["criterion"]] = number_text(report["cv_score"])
    for name in ("duality_gap", "relative_gradient", "relative_residual"):
        if report.get(name) is not None:
            shown[name.replace("_", " ")] = number_text(report[name])
            break
    if "margin" in report:
        shown["margin"] = _numbers(report["margin"])
    if "rkhs_norm" in report:
        shown["norm of f, ‖w‖"] = _numbers(report["rkhs_norm"])
    if "explained_variance_ratio" in report:
        kept = report["explained_variance_ratio"]
        shown[f"variance along {len(kept)} component(s)"] = f"{sum(kept):.1%}"
    return shown


def _relevance(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the columns of the shortest learned widths, each width beside the column's deviation."""
    search = report.get("length_scale_search") or {}
    if "column_scale" not in search:
        return None
    widths = search["length_scale"]
    names = report.get("column_names") or [f"column {j}" for j in range(len(widths))]
    pairs = zip(search["column_scale"], widths, strict=True)
    ranked = sorted(((scale / width, j) for j, (scale, width) in enumerate(pairs)), key=lambda pair: -pair[0])
    return {
        "bars": [[names[j], value, number_text(widths[j])] for value, j in ranked[:_MOST_COLUMNS]],
        "n_columns": len(widths),
    }


def _components(report: Mapping[str, Any]) -> dict[str, Any] | None:
    shares = report.get("explained_variance_ratio")
    return {"share": shares} if shares else None


def _numbers(value: Any) -> str:
    """Write one number or some; C may be "inf"."""
    values = value if isinstance(value, list) else [value]
    shown = [one if isinstance(one, str) else number_text(one) for one in values[:_MOST_NUMBERS]]
    left_out = len(values) - len(shown)
    return ", ".join(shown) + (f" and {left_out} more" if left_out else "")


def alpha_path(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how the criterion depends on alpha, as `report_page` takes it; None where alpha was given."""
    if not report.get("alphas"):
        return None
    alphas, floor = report["alphas"], report["noise_floor"]
    return {
        **_path(report, "alpha", alphas),
        # Farther below, it took no part in the choice and would only press the curve to one side.
        "noise_floor": floor if floor is not None and 10 * floor >= min(alphas) else None,
    }


def _path_of_C(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how the held-out loss depends on C; None where C was given."""
    return _path(report, "C", report["Cs"]) if report.get("Cs") else None


def _path(report: Mapping[str, Any], parameter: str, values: list[float]) -> dict[str, Any]:
    return {
        "parameter": parameter,
        "values": values,
        "mean": report["mean_score"],
        "folds": list(map(list, zip(*(report.get("fold_scores") or []), strict=True))),
        "chosen": report[parameter],
        "criterion": report["criterion"],
    }


def _certificate(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how the error fell from sweep to sweep; None of a direct solution."""
    history = report.get("history")
    return {**history, "tol": report["tol"]} if history else None


def learning_curve(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the criterion for each number of features, as `report_page` takes it; None without a curve."""
    if not report.get("learning_curve"):
        return None
    sizes, scores, _ = zip(*report["learning_curve"], strict=True)
    return {"n_components": list(sizes), "score": list(scores), "criterion": report["criterion"]}


def _plan(report: Mapping[str, Any]) -> dict[str, Any] | None:
    plan = report.get("plan")
    if plan is None:
        return None
    rows = [
        ["time of the fit", "s", plan["seconds"], report["seconds"]],
        [
            "peak memory of a worker, above idle",
            "bytes",
            report["planned_peak_bytes"],
            report["measured_peak_bytes"],
        ],
        ["passes over the rows", "", plan["n_sweeps"], report["n_sweeps"]],
    ]
    return {"rows": [row for row in rows if row[2] is not None]}
