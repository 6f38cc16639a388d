"""Which alpha, and how error falls with the number of features: read off the Grams, on the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from distrff.errors import DataWarning, warn
from distrff.estimators.gram_context import GramContext
from distrff.estimators.grid_end import end_of_grid
from distrff.estimators.options import RidgeOptions
from distrff.solvers.ridge_gram import fold_errors, fold_weight, gcv_errors
from distrff.solvers.ridge_path import (
    AlphaChoice,
    above_noise,
    choose_alpha,
    default_alphas,
    gcv_may_overfit,
)
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
        `alphas`, `mean_score` and, by several folds, `fold_scores` (n_alphas, n_folds).
    learning_curve : list of [size, score, alpha]
    notes : list of str
        What the report should say about the choice.
    """

    alpha: np.ndarray
    score: float | None
    criterion: str
    results: dict[str, np.ndarray] = field(default_factory=dict)
    learning_curve: list[list[float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def search_alpha(run: SweepRun, grams: GramContext, options: RidgeOptions, n_folds: int) -> AlphaSearch:
    """Return the alpha that was given, or the best of the grid by the criterion asked for.

    Of `n_folds` folds one is held out alone where generalised cross-validation is asked for and may overfit.
    """
    if options.search == "cv":
        return _by_folds(run, grams, options, range(n_folds), f"{n_folds} held-out folds")
    if options.search == "gcv":
        return _by_gcv_or_fold(run, grams, options, n_folds)
    return _given(run, grams, options)


def _by_gcv_or_fold(run: SweepRun, grams: GramContext, options: RidgeOptions, n_folds: int) -> AlphaSearch:
    n_rows, D = grams.problem.n_rows, grams.problem.sizes[-1]
    if not gcv_may_overfit(D, n_rows):
        return _by_gcv(run, grams, options)[0]
    if n_folds > 1 and _stands_for_rows(run, grams, n_folds):
        found = _by_folds(run, grams, options, range(1), f"one held-out fold of {n_folds}")
        why = (
            f"alpha was chosen on one held-out fold: generalised cross-validation may overfit by far, as the "
            f"{D} features are more than a twentieth of the {n_rows} rows"
        )
        return replace(found, notes=[why, *found.notes])
    found, dimension = _by_gcv(run, grams, options)
    if not gcv_may_overfit(dimension, n_rows):
        return found
    danger = (
        f"alpha={found.alpha[0]:g} is the best by generalised cross-validation, which may overfit by far "
        f"where the effective dimension, here {dimension:.0f}, is more than a twentieth of the {n_rows} rows"
    )
    if n_folds == 1:
        danger += "; a Gram with folds, made by gram(..., cv=5), would show it: take alpha='cv' with that"
        warn(danger, DataWarning)
    return replace(found, notes=[danger, *found.notes])


def _stands_for_rows(run: SweepRun, grams: GramContext, n_folds: int) -> bool:
    """Return whether the first fold has between half and twice its share of the weight of all rows.

    Few rows, or weights of very unlike size, may leave next to nothing in it, or outside of it.
    """
    weight = run.gather([run.submit(fold_weight, grams.parts, 0, grams.problem)])[0]
    return grams.weight / 2 < n_folds * weight < 2 * grams.weight


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


def _by_folds(
    run: SweepRun, grams: GramContext, options: RidgeOptions, folds: range, held_out: str
) -> AlphaSearch:
    grams, grids, dropped = _with_grids(grams, options)
    calls = [(grams.total, grams.parts, fold, grids, grams.problem) for fold in folds]
    by_fold = run.gather(run.submit_all(fold_errors, calls))
    weights = np.array([weight for _, weight in by_fold])
    unit = np.square(grams.target_scale)
    choices = []
    for position, grid in enumerate(grids):
        errors = np.stack([errors[position] for errors, _ in by_fold]) * unit
        choices.append((errors, choose_alpha(errors, weights, alphas=grid)))
    found = _best(grams, grids, dropped, f"mean squared error over {held_out}", [c for _, c in choices])
    if len(folds) == 1:
        return found
    errors, _ = choices[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        fold_scores = errors.mean(axis=2).T / weights
    return replace(found, results=found.results | {"fold_scores": fold_scores})


def _by_gcv(run: SweepRun, grams: GramContext, options: RidgeOptions) -> tuple[AlphaSearch, float]:
    """Return the choice, and the effective dimension of its machine."""
    grams, grids, dropped = _with_grids(grams, options)
    calls = [
        (grams.total, size, grid, grams.problem)
        for size, grid in zip(grams.problem.sizes, grids, strict=True)
    ]
    values = run.gather(run.submit_all(gcv_errors, calls))
    unit = np.square(grams.target_scale)
    choices = [
        choose_alpha((errors * unit)[None], np.ones(1), alphas=grid)
        for (errors, _), grid in zip(values, grids, strict=True)
    ]
    found = _best(grams, grids, dropped, "generalised cross-validation", choices)
    return found, float(values[-1][1][choices[-1].index])


def _best(
    grams: GramContext, grids: list[np.ndarray], dropped: int, criterion: str, choices: list[AlphaChoice]
) -> AlphaSearch:
    """Return the last choice, that of all features, with the curve that all of them are."""
    best, noise = choices[-1], f"the rounding noise of {grams.dtype} products"
    remedy = ", and needs dtype='float64' (--dtype float64)" if grams.dtype == "float32" else ""
    notes = [f"alphas below {noise} were left out: {dropped}"] if dropped else []
    below = f"alpha={best.alpha:g} is the smallest above {noise}: a smaller one may be better{remedy}"
    usable = grids[-1][np.isfinite(best.scores)]
    is_cut = dropped > 0 or len(usable) < len(grids[-1])
    return AlphaSearch(
        alpha=np.array([best.alpha]),
        score=best.score,
        criterion=criterion,
        results={"alphas": grids[-1], "mean_score": best.scores},
        learning_curve=[
            [size, choice.score, choice.alpha]
            for size, choice in zip(grams.problem.sizes, choices, strict=True)
        ],
        notes=notes + end_of_grid("alpha", best.alpha, usable, best.scores, below=below if is_cut else None),
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
    scores = [float((errors * np.square(grams.target_scale)).mean()) for errors, _ in values]
    curve = [
        [size, score, float(alpha[0])]
        for size, score in zip(sizes, scores, strict=True)
        if np.isfinite(score)
    ]
    return replace(search, learning_curve=curve)
