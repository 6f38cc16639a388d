"""What all fits of ridge share: what is asked of the rows, how alpha was chosen, and the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distrff.engine.run import Run
from distrff.estimators.fitting.context import PreparedFit
from distrff.estimators.fitting.plan import Plan
from distrff.estimators.fitting.result import FitResult, rkhs_norm
from distrff.features.base import nested_sizes
from distrff.features.specification import MapSpecification
from distrff.preprocessing.targets import Targets
from distrff.solvers.ridge import GramProblem, RidgeSolution
from distrff.solvers.status import History, Status


@dataclass(frozen=True, eq=False)
class AlphaSearch:
    """The chosen alpha and what it was chosen from.

    Parameters
    ----------
    alpha : ndarray of shape (1,) or (k,)
    score : float or None
        Criterion at the chosen alpha, in squared units of the targets.
    criterion : str
    results : dict
        `alphas`, `mean_score` and, by several folds, `fold_scores` (n_alphas, n_folds).
    learning_curve : list of [size, score, alpha]
    notes : list of str
        What the report should say about the choice.
    """

    alpha: np.ndarray
    score: float | None = None
    criterion: str = "none, as alpha was given"
    results: dict[str, np.ndarray] = field(default_factory=dict)
    learning_curve: list[list[float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def gram_problem(
    specification: MapSpecification, targets: Targets, *, n_rows: int, fit_intercept: bool
) -> GramProblem:
    """Return what is asked of Grams of this specification."""
    return GramProblem(
        n_rows=n_rows,
        n_targets=targets.n_outputs,
        fit_intercept=fit_intercept,
        sizes=nested_sizes(specification),
        rescaled=specification.rescaled_when_nested,
        offset=None if fit_intercept else targets.shift / targets.scale,
    )


def problem_of(fit: PreparedFit) -> GramProblem:
    """Return what is asked of the Grams of a fit to rows."""
    return gram_problem(
        fit.specification, fit.targets, n_rows=fit.dataset.n_rows, fit_intercept=fit.options.fit_intercept
    )


def ridge_result(
    run: Run,
    plan: Plan | None,
    problem: GramProblem,
    targets: Targets,
    search: AlphaSearch,
    solution: RidgeSolution,
    *,
    dtype: str,
    notes: list[str],
    entries: dict[str, Any],
    **ending: Any,
) -> FitResult:
    """Return the result of a solver of ridge, in the targets' own units.

    `entries` say how it was solved, `ending` how that ended.
    """
    explained = 1.0 - solution.residual / np.where(solution.total > 0, solution.total, 1.0)
    coef = solution.coef * targets.scale
    shifted = solution.intercept * targets.scale + targets.shift
    return FitResult(
        run=run,
        plan=plan,
        n_rows=problem.n_rows,
        dtype=dtype,
        targets=targets,
        coef=coef,
        intercept=shifted if problem.fit_intercept else np.zeros(problem.n_targets),
        search=search,
        entries={
            "rkhs_norm": rkhs_norm(coef),
            "training_r2": explained[0] if len(explained) == 1 else explained,
            "alpha": search.alpha[0] if len(search.alpha) == 1 else search.alpha,
            "criterion": search.criterion,
            "cv_score": search.score,
            **search.results,
            "noise_floor": None,
            "learning_curve": search.learning_curve,
            **entries,
        },
        notes=notes + search.notes,
        **ending,
    )


def iterative_ending(
    solver: str,
    measure: str,
    error: float,
    history: History,
    *,
    status: Status,
    preconditioner: str,
    tol: float,
    n_sweeps: int,
    max_sweeps: int,
    interruption: KeyboardInterrupt | None,
) -> dict[str, Any]:
    """Return what `ridge_result` takes of conjugate gradients or SGD.

    Parameters
    ----------
    solver : {"cg", "sgd"}
    measure : {"relative residual", "duality gap"}
        ‖B − (G + alpha·I)·w‖/‖B‖, or (primal − dual)/max(|primal|, |dual|).
    error : float
        That of the target where it is largest; NaN where no pass told it.
    history : History
        Of that error.
    n_sweeps, max_sweeps : int
        Light passes.
    """
    # An epoch of SGD and its evaluation are two passes.
    ended = n_sweeps >= max_sweeps - (solver == "sgd")
    remedy = "allow more by max_sweeps, or" if ended else "rounding ends it; use"
    shortfall = (
        f"the {measure} is {error:.2g} after light sweep {n_sweeps}, above tol={tol:g}; {remedy} a larger tol"
    )
    return {
        "entries": {
            "solver": solver,
            "preconditioner": preconditioner,
            "tol": tol,
            measure.replace(" ", "_"): error,
            "history": history.values(measure),
        },
        "status": status,
        "shortfall": None if status.is_converged else shortfall,
        "interruption": interruption,
    }
