"""The report of a ridge fit, put together from what each step of it found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distrff.diagnostics.report import FitReport
from distrff.engine.run import Run
from distrff.errors import column_called
from distrff.estimators.fitting.context import Preparation, frequencies_beyond_float32
from distrff.estimators.fitting.gram import RidgeFit
from distrff.estimators.fitting.margin_fit import MarginFit
from distrff.estimators.fitting.options import MarginOptions
from distrff.estimators.fitting.plan import Plan
from distrff.estimators.fitting.result import end_of_grid
from distrff.io.dataset import Dataset
from distrff.preprocessing.targets import ClassTargets
from distrff.solvers.status import Status

_MOST_NAMES = 10


def fit_report(
    estimator: Any,
    fit: RidgeFit,
    *,
    dataset: Dataset | None = None,
    preparation: Preparation | None = None,
) -> FitReport:
    """Return the report of a fit to rows, or to a Gram when no dataset is given."""
    notes = [*fit.notes]
    values = _machine(estimator, fit) | _alpha(fit) | _solver(fit) | work_values(fit.run, fit.plan)
    if preparation is not None:
        values |= map_values(preparation)
        notes += width_notes(preparation, None if dataset is None else dataset.column_names)
        notes += precision_notes(preparation, fit.dtype)
    if dataset is not None:
        values |= data_values(dataset)
        notes += data_notes(dataset)
    return FitReport(values | {"notes": notes + thread_notes(fit.run)})


def _machine(estimator: Any, fit: RidgeFit) -> dict[str, Any]:
    norms = np.linalg.norm(fit.coef, axis=0)
    explained = 1.0 - fit.machine.residual / np.where(fit.machine.total > 0, fit.machine.total, 1.0)
    return {
        "model": type(estimator).__name__,
        "status": (Status.CONVERGED if fit.convergence is None else fit.convergence.status).name,
        "n_samples": fit.problem.n_rows,
        "n_columns": estimator.n_features_in_,
        "n_components": fit.problem.sizes[-1],
        "n_outputs": fit.coef.shape[1],
        "dtype": fit.dtype,
        "seed": estimator.seed_,
        "rkhs_norm": norms[0] if len(norms) == 1 else norms,
        "training_r2": explained[0] if len(explained) == 1 else explained,
        "kernel": None,
        "length_scale": None,
    }


def _alpha(fit: RidgeFit) -> dict[str, Any]:
    search = fit.search
    return {
        "alpha": search.alpha[0] if len(search.alpha) == 1 else search.alpha,
        "criterion": search.criterion,
        "cv_score": search.score,
        **search.results,
        "noise_floor": None if fit.grams is None else fit.grams.noise_floor(fit.problem.sizes[-1]),
        "learning_curve": search.learning_curve,
    }


def _solver(fit: RidgeFit) -> dict[str, Any]:
    convergence = fit.convergence
    if convergence is None:
        return {"solver": "gram"}
    return convergence.values()


def work_values(run: Run, plan: Plan | None) -> dict[str, Any]:
    """Return what the passes cost, beside what was planned."""
    return {
        "n_sweeps": len(run.sweeps),
        "sweep_labels": [label for label, _ in run.sweeps],
        "sweep_seconds": [seconds for _, seconds in run.sweeps],
        "phases": run.phases(),
        "seconds": run.seconds,
        "workers": run.execution.n_workers,
        "threads": run.execution.n_threads,
        "planned_peak_bytes": None if plan is None else _planned_peak_bytes(run, plan),
        "measured_peak_bytes": run.record.measured_peak_bytes or None,
        "plan": None if plan is None else plan.to_dict(),
    }


def _planned_peak_bytes(run: Run, plan: Plan) -> int:
    return plan.worker_peak_bytes + (plan.client_peak_bytes if run.execution.in_client else 0)


def map_values(preparation: Preparation) -> dict[str, Any]:
    """Return the map as fitted."""
    features = preparation.features
    kernel = getattr(features, "kernel_", None)
    return {
        "features": preparation.specification.to_dict(),
        "kernel": None if kernel is None else repr(kernel),
        "length_scale": getattr(kernel, "length_scale", None),
        "length_scale_search": getattr(features, "length_scale_search_", None),
        "expected_collisions": getattr(features, "expected_collisions_", None),
    }


def width_notes(preparation: Preparation, names: Sequence[str] | None) -> list[str]:
    """Return which columns learned widths leave out."""
    left_out = sorted(_constant_columns(preparation.features))
    if not left_out:
        return []
    called = [column_called(j, None if names is None else names[j]) for j in left_out[:_MOST_NAMES]]
    more = [f"{len(left_out) - _MOST_NAMES} more"] if len(left_out) > _MOST_NAMES else []
    return [
        f"constant, and so left out by length_scale='ard': {', '.join(called + more)}; other values there in "
        f"later rows do not count either"
    ]


def _constant_columns(features: Any) -> set[int]:
    """Return the numbers of those that the search of a map, or of its parts, found."""
    search = getattr(features, "length_scale_search_", None) or {}
    return set(search.get("constant_columns", ())).union(
        *map(_constant_columns, getattr(features, "maps_", ()))
    )


def data_notes(dataset: Dataset) -> list[str]:
    """Return what should be known of the rows that were taken."""
    notes = []
    if dataset.skipped_columns:
        notes.append(f"columns left out because they are not numbers: {', '.join(dataset.skipped_columns)}")
    table = dataset.table_report or {}
    if table.get("rows_dropped"):
        notes.append(f"{table['rows_dropped']} of {table['rows_read']} rows left out, which lack a value")
    notes += [f"column {name!r} left out: {why}" for name, why in table.get("columns_dropped", {}).items()]
    return notes


def data_values(dataset: Dataset) -> dict[str, Any]:
    """Return where the rows come from, and what was done to their table, if to any."""
    table = {} if dataset.table_report is None else {"table": dataset.table_report}
    return {
        "source": dataset.source,
        "n_columns": dataset.n_columns,
        "column_names": dataset.column_names,
        **table,
    }


def precision_notes(preparation: Preparation, dtype: str) -> list[str]:
    """Return what should be known of the dtype of the features."""
    far = frequencies_beyond_float32(preparation) if dtype == "float32" else 0
    if not far:
        return []
    return [f"{far} frequencies have phases too large for float32 on this data; use dtype='float64' for them"]


def thread_notes(run: Run) -> list[str]:
    """Return what should be known of threads inside of tasks."""
    threads = max((process.blas_threads for process in run.record.processes.values()), default=1)
    if threads == 1:
        return []
    return [
        f"BLAS ran on {threads} threads in a task; the same bits for any number of workers "
        f"are promised for one thread"
    ]


# The report of a margin machine's fit, put together from what each step of it found.


def margin_report(
    estimator: Any, fit: MarginFit, options: MarginOptions, *, dataset: Dataset, preparation: Preparation
) -> FitReport:
    """Return the report of a fit to rows."""
    norms, worst = np.linalg.norm(fit.coef, axis=0), fit.worst
    assert isinstance(preparation.targets, ClassTargets)
    values = {
        "model": type(estimator).__name__,
        "status": fit.status.name,
        "n_samples": dataset.n_rows,
        "n_components": preparation.specification.n_features,
        "n_outputs": fit.coef.shape[1],
        "dtype": fit.plan.shape.dtype,
        "seed": options.seed,
        "rkhs_norm": norms[0] if len(norms) == 1 else norms,
        **data_values(dataset),
        "C": "inf" if fit.is_hard else fit.C,
        "loss": estimator.noise if hasattr(estimator, "noise") else estimator.loss,
        "solver": fit.solver,
        "tol": options.tol,
        "primal": worst.certificate.primal,
        "dual": worst.certificate.dual,
        "duality_gap": worst.certificate.gap,
        "relative_gradient": worst.relative_gradient,
        "history": worst.history.values(worst.measure),
        **(_margins(fit) if fit.is_hard else {}),
        **({} if fit.search is None else fit.search.results),
        **map_values(preparation),
        **work_values(fit.run, fit.plan),
        "notes": [
            *_choices(estimator, fit, options, preparation.targets),
            *data_notes(dataset),
            *width_notes(preparation, dataset.column_names),
            *precision_notes(preparation, fit.plan.shape.dtype),
            *thread_notes(fit.run),
        ],
    }
    return FitReport(values)


def _margins(fit: MarginFit) -> dict[str, Any]:
    worst = min((p.smallest_margin for p in fit.progress if p.smallest_margin is not None), default=None)
    norms = np.linalg.norm(fit.coef, axis=0)
    return {"margin": (1 / norms).tolist() if len(norms) > 1 else 1 / norms[0], "smallest_margin": worst}


def _choices(estimator: Any, fit: MarginFit, options: MarginOptions, targets: ClassTargets) -> list[str]:
    notes = []
    if estimator.solver == "auto" and not fit.is_hard:
        why = {
            "lbfgs": "the loss is smooth",
            "smoothed": "the loss has a kink",
            "sgd": "the Gram of a sample does not fit in the workers' memory",
        }[fit.solver]
        notes.append(f"solver='auto' is {fit.solver!r}: {why}")
    if fit.solver != "sgd" and fit.plan.shape.gram_one_in > 1:
        notes.append(f"the preconditioner is the Gram of one row in {fit.plan.shape.gram_one_in}")
    if fit.search is not None and len(fit.search.grid):
        grid, score = fit.search.grid, fit.search.mean_scores.min()
        notes.append(f"C is the best of {len(grid)} by held-out loss, {score:.4g}")
        if fit.search.interruption is None:
            notes += end_of_grid("C", fit.C, grid, fit.search.mean_scores)
    constant = np.flatnonzero(~fit.coef.any(axis=0)).tolist()
    if constant:
        classes = ", ".join(str(label) for label in targets.classes[constant])
        whose = (
            "" if fit.coef.shape[1] == 1 else f" of {'class' if len(constant) == 1 else 'classes'} {classes}"
        )
        notes.append(f"the machine{whose} is a constant: none better was found")
    if fit.status is Status.CONVERGED_UNCERTIFIED:
        notes.append("the objective no longer falls, and the duality gap is all that bounds its error")
    return notes
