"""The report of a margin machine's fit, put together from what each step of it found."""

from __future__ import annotations

from typing import Any

import numpy as np

from distrff.columns.targets import ClassTargets
from distrff.data.dataset import Dataset
from distrff.diagnostics.fit_report import FitReport
from distrff.estimators.grid_end import end_of_grid
from distrff.estimators.margin_fit import MarginFit
from distrff.estimators.margin_options import MarginOptions
from distrff.estimators.preparation import Preparation
from distrff.estimators.reporting import (
    data_notes,
    data_values,
    map_values,
    precision_notes,
    thread_notes,
    width_notes,
    work_values,
)
from distrff.objective import Status


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
