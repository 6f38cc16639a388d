"""The choice of C by held-out loss: all folds' machines in the same sweeps, from one C to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distrff.errors import InputError
from distrff.estimators.margin_options import MarginOptions
from distrff.estimators.margin_oracle import MarginOracle, MarginProblem
from distrff.estimators.margin_solve import MarginSolution, solve_margins

_FOLDS_TOL = 1e-2
# λ = 1/(C·Σs·mean‖z‖²) of the default grid.
_DEFAULT_PENALTIES = np.geomspace(1e-1, 1e-6, 6)


@dataclass(frozen=True, eq=False)
class PenaltySearch:
    """What the search for C found.

    Attributes
    ----------
    C : float
        Of least mean held-out loss; the smaller of equals.
    grid : ndarray of shape (m,), ascending
        As far as the search came.
    fold_scores : ndarray of shape (m, n_folds)
        Weighted mean loss of each fold's rows under the machines that did not see them, mean over outputs.
    mean_scores : ndarray of shape (m,)
        Of all rows together.
    starts : list of ndarray
        A point an output to start the machine of all rows from: the mean of its folds' points.
    interruption : KeyboardInterrupt or None
    """

    C: float
    grid: np.ndarray
    fold_scores: np.ndarray
    mean_scores: np.ndarray
    starts: list[np.ndarray]
    interruption: KeyboardInterrupt | None = None

    @property
    def results(self) -> dict[str, Any]:
        """The entries of the report."""
        return {
            "criterion": "held-out loss",
            "cv_score": self.mean_scores.min(initial=np.inf),
            "Cs": self.grid,
            "mean_score": self.mean_scores,
            "fold_scores": self.fold_scores,
        }


def penalty_grid(options: MarginOptions, *, weight: float, mean_square_norm: float) -> np.ndarray:
    """Return the values of C to look at, ascending."""
    if options.Cs is not None:
        return options.Cs
    return 1 / (_DEFAULT_PENALTIES * weight * mean_square_norm)


def search_penalty(
    oracle: MarginOracle, options: MarginOptions, grid: np.ndarray, starts: list[np.ndarray]
) -> PenaltySearch:
    """Return the best C of a grid, from a start an output for the smallest."""
    folds, outputs = range(options.n_cv_folds), range(len(starts))
    points = {(output, fold): starts[output] for fold in folds for output in outputs}
    sums: list[np.ndarray] = []
    means: list[list[np.ndarray]] = []
    interruption = None
    for C in grid:
        problems = {(output, fold): MarginProblem(output, float(C), fold) for output, fold in points}
        starts_of = {problem: points[key] for key, problem in problems.items()}
        solution = solve_margins(oracle, options, starts_of, tol=max(options.tol, _FOLDS_TOL))
        points = {key: solution.progress[problem].x for key, problem in problems.items()}
        if solution.interruption is not None:
            interruption = solution.interruption
            break
        sums.append(_held_out_sums(solution, options.n_cv_folds))
        means.append([np.mean([points[output, fold] for fold in folds], axis=0) for output in outputs])
    if not means:
        means.append([np.mean([points[output, fold] for fold in folds], axis=0) for output in outputs])
    totals = np.array(sums).reshape(-1, options.n_cv_folds, 2)
    mean_scores = totals[:, :, 1].sum(axis=1) / totals[:, :, 0].sum(axis=1)
    best = int(np.argmin(mean_scores)) if len(sums) else 0
    return PenaltySearch(
        C=float(grid[best]),
        grid=grid[: len(sums)],
        fold_scores=totals[:, :, 1] / totals[:, :, 0],
        mean_scores=mean_scores,
        starts=means[best],
        interruption=interruption,
    )


def _held_out_sums(solution: MarginSolution, n_folds: int) -> np.ndarray:
    """Return Σ s and Σ s·ℓ of each fold over all outputs, of shape (n_folds, 2)."""
    sums = np.zeros((n_folds, 2))
    for problem, progress in solution.progress.items():
        sums[problem.held_out] += progress.held_out
    if not (sums[:, 0] > 0).all():
        empty = int(np.argmin(sums[:, 0]))
        raise InputError(
            f"C='cv' needs rows of positive weight in each of {n_folds} folds, but fold {empty} has none; "
            f"use a smaller cv, or a number for C"
        )
    return sums
