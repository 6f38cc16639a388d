"""The report of a fit: the result, the cost of the passes, and notes on rows and map."""

from __future__ import annotations

from typing import Any

from distrff.diagnostics.report import FitReport
from distrff.engine.run import Run
from distrff.errors import column_called
from distrff.estimators.fitting.context import PreparedFit
from distrff.estimators.fitting.plan import Plan
from distrff.estimators.fitting.result import FitResult
from distrff.io.dataset import Dataset

_MOST_NAMES = 10


def fit_report(estimator: Any, result: FitResult, fit: PreparedFit | None = None) -> FitReport:
    """Return the report of a fit to rows, or to a Gram where `fit` is None."""
    values = {
        "model": type(estimator).__name__,
        "status": result.status.name,
        "n_samples": result.n_rows,
        "n_columns": estimator.n_features_in_,
        "n_components": result.coef.shape[0],
        "n_outputs": result.coef.shape[1],
        "dtype": result.dtype,
        "seed": estimator.seed_,
        "kernel": None,
        "length_scale": None,
        **result.entries,
        **_work(result.run, result.plan),
    }
    notes = list(result.notes)
    if fit is not None:
        table = fit.dataset.table_report
        values |= _map(fit) | {"source": fit.dataset.source, "column_names": fit.dataset.column_names}
        values |= {} if table is None else {"table": table}
        notes += [*_data_notes(fit.dataset), *_width_notes(fit), *_precision_notes(fit, result.dtype)]
    return FitReport(values | {"notes": notes + _thread_notes(result.run)})


def _work(run: Run, plan: Plan | None) -> dict[str, Any]:
    """Return the cost of the passes, beside the plan."""
    of_client = plan.client_peak_bytes if plan is not None and run.execution.in_client else 0
    return {
        "n_sweeps": len(run.sweeps),
        "sweep_labels": [label for label, _ in run.sweeps],
        "sweep_seconds": [seconds for _, seconds in run.sweeps],
        "phases": run.phases(),
        "seconds": run.seconds,
        "workers": run.execution.n_workers,
        "threads": run.execution.n_threads,
        "planned_peak_bytes": None if plan is None else plan.worker_peak_bytes + of_client,
        "measured_peak_bytes": run.record.measured_peak_bytes or None,
        "plan": None if plan is None else plan.to_dict(),
    }


def _map(fit: PreparedFit) -> dict[str, Any]:
    """Return the map as fitted."""
    features = fit.features
    kernel = getattr(features, "kernel_", None)
    return {
        "features": fit.specification.to_dict(),
        "kernel": None if kernel is None else repr(kernel),
        "length_scale": getattr(kernel, "length_scale", None),
        "length_scale_search": getattr(features, "length_scale_search_", None),
        "expected_collisions": getattr(features, "expected_collisions_", None),
    }


def _data_notes(dataset: Dataset) -> list[str]:
    """Return notes on columns and rows that were left out."""
    notes = []
    if dataset.skipped_columns:
        notes.append(f"columns left out because they are not numbers: {', '.join(dataset.skipped_columns)}")
    table = dataset.table_report or {}
    if table.get("rows_dropped"):
        notes.append(f"{table['rows_dropped']} of {table['rows_read']} rows left out, which lack a value")
    notes += [f"column {name!r} left out: {why}" for name, why in table.get("columns_dropped", {}).items()]
    return notes


def _width_notes(fit: PreparedFit) -> list[str]:
    """Return which columns learned length scales leave out."""
    left_out, names = sorted(_constant_columns(fit.features)), fit.dataset.column_names
    if not left_out:
        return []
    called = [column_called(j, None if names is None else names[j]) for j in left_out[:_MOST_NAMES]]
    more = [f"{len(left_out) - _MOST_NAMES} more"] if len(left_out) > _MOST_NAMES else []
    return [
        f"constant, and so left out by length_scale='ard': {', '.join(called + more)}; other values there in "
        f"later rows do not count either"
    ]


def _constant_columns(features: Any) -> set[int]:
    """Return the numbers of the constant columns that the length scale search found."""
    search = getattr(features, "length_scale_search_", None) or {}
    return set(search.get("constant_columns", ())).union(
        *map(_constant_columns, getattr(features, "maps_", ()))
    )


def _precision_notes(fit: PreparedFit, dtype: str) -> list[str]:
    """Return a note where float32 cannot hold the phases of the features."""
    far = fit.frequencies_beyond_float32() if dtype == "float32" else 0
    if not far:
        return []
    return [f"{far} frequencies have phases too large for float32 on this data; use dtype='float64' for them"]


def _thread_notes(run: Run) -> list[str]:
    """Return a note where BLAS had several threads in a task."""
    threads = max((process.blas_threads for process in run.record.processes.values()), default=1)
    if threads == 1:
        return []
    return [
        f"BLAS ran on {threads} threads in a task; the same bits for any number of workers "
        f"are promised for one thread"
    ]
