"""Which alpha, and how error falls with the number of features: read off the Grams, on the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from distrff.estimators.gram_context import GramContext
from distrff.estimators.options import RidgeOptions
from distrff.solvers.ridge_gram import fold_errors, gcv_errors
from distrff.solvers.ridge_path import above_noise, choose_alpha, default_alphas
from distrff.sweeps.engine import SweepRun

# The reduction of a matrix of D' columns costs about as much as the products of 16·D'³/D² rows; a curve
# that nobody asked for may take a sixteenth of the sweep.
_ROWS_PER_FEATURE = 16 * 16


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
        `alphas`, `mean_score` and, by folds, `fold_scores` (n_alphas, n_folds).
    learning_curve : list of [size, score, alpha]
    n_dropped : int
        Alphas of the grid below the noise floor.
    """

    alpha: np.ndarray
    score: float | None
    criterion: str
    results: dict[str, np.ndarray] = field(default_factory=dict)
    learning_curve: list[list[float]] = field(default_factory=list)
    n_dropped: int = 0


def search_alpha(run: SweepRun, grams: GramContext, options: RidgeOptions, n_folds: int) -> AlphaSearch:
    """Return the alpha that was given, or the best of the grid by the criterion asked for."""
    if options.search == "cv":
        return _by_folds(run, grams, options, n_folds)
    if options.search == "gcv":
        return _by_gcv(run, grams, options)
    return _given(run, grams, options)


def _with_grids(grams: GramContext, options: RidgeOptions) -> tuple[GramContext, list[np.ndarray], int]:
    """Return the grid of each size, cut at its noise floor, and how many values D's own lost.

    Smaller machines whose floor is above the whole grid are left out of the problem.
    """
    grids: dict[int, np.ndarray] = {}
    dropped = 0
    for size in grams.problem.sizes:
        floor, is_whole = grams.noise_floor(size), size == grams.problem.sizes[-1]
        if options.alphas is None:
            grids[size], dropped = default_alphas(grams.weight, grams.mean_square_norm, floor=floor)
        elif is_whole or options.alphas[-1] >= floor:
            grids[size], dropped = above_noise(options.alphas, floor)
    problem = replace(grams.problem, sizes=tuple(grids))
    return replace(grams, problem=problem), list(grids.values()), dropped


def _by_folds(run: SweepRun, grams: GramContext, options: RidgeOptions, n_folds: int) -> AlphaSearch:
    grams, grids, dropped = _with_grids(grams, options)
    calls = [(grams.total, grams.parts, fold, grids, grams.problem) for fold in range(n_folds)]
    by_fold = run.gather(run.submit_all(fold_errors, calls))
    weights = np.array([weight for _, weight in by_fold])
    unit = np.square(grams.target_scale)
    choices = []
    for position, grid in enumerate(grids):
        errors = np.stack([errors[position] for errors, _ in by_fold]) * unit
        choices.append((errors, choose_alpha(errors, weights, alphas=grid)))
    errors, best = choices[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        fold_scores = errors.mean(axis=2).T / weights
    return AlphaSearch(
        alpha=np.array([best.alpha]),
        score=best.score,
        criterion=f"mean squared error over {n_folds} held-out folds",
        results={"alphas": grids[-1], "mean_score": best.scores, "fold_scores": fold_scores},
        learning_curve=_curve(grams, [choice for _, choice in choices]),
        n_dropped=dropped,
    )


def _by_gcv(run: SweepRun, grams: GramContext, options: RidgeOptions) -> AlphaSearch:
    grams, grids, dropped = _with_grids(grams, options)
    choices = _gcv_choices(run, grams, grids)
    best = choices[-1]
    return AlphaSearch(
        alpha=np.array([best.alpha]),
        score=best.score,
        criterion="generalised cross-validation",
        results={"alphas": grids[-1], "mean_score": best.scores},
        learning_curve=_curve(grams, choices),
        n_dropped=dropped,
    )


def _given(run: SweepRun, grams: GramContext, options: RidgeOptions) -> AlphaSearch:
    alpha = options.alpha
    assert alpha is not None
    search = AlphaSearch(alpha, None, "generalised cross-validation at the given alpha")
    sizes = [
        s
        for s in grams.problem.sizes
        if _ROWS_PER_FEATURE * s**3 <= grams.problem.n_rows * grams.problem.sizes[-1] ** 2
        and grams.noise_floor(s) <= alpha.min()
    ]
    if len(alpha) > 1 or not sizes:
        return search
    values = run.gather(
        run.submit_all(gcv_errors, [(grams.total, size, alpha, grams.problem) for size in sizes])
    )
    scores = [float((value * np.square(grams.target_scale)).mean()) for value in values]
    curve = [
        [size, score, float(alpha[0])]
        for size, score in zip(sizes, scores, strict=True)
        if np.isfinite(score)
    ]
    return replace(search, learning_curve=curve)


def _gcv_choices(run: SweepRun, grams: GramContext, grids: list[np.ndarray]) -> list[Any]:
    calls = [
        (grams.total, size, grid, grams.problem)
        for size, grid in zip(grams.problem.sizes, grids, strict=True)
    ]
    values = run.gather(run.submit_all(gcv_errors, calls))
    unit = np.square(grams.target_scale)
    return [
        choose_alpha((value * unit)[None], np.ones(1), alphas=grid)
        for value, grid in zip(values, grids, strict=True)
    ]


def _curve(grams: GramContext, choices: list[Any]) -> list[list[float]]:
    return [
        [size, choice.score, choice.alpha] for size, choice in zip(grams.problem.sizes, choices, strict=True)
    ]
