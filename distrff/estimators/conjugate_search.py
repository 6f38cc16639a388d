"""Alpha by cross-validation where no Gram is formed: conjugate gradients on some folds side by side."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distrff.data.dataset import Dataset
from distrff.errors import InputError
from distrff.estimators.alpha_search import AlphaSearch
from distrff.estimators.grid_end import end_of_grid
from distrff.estimators.options import RidgeOptions
from distrff.estimators.preparation import Preparation
from distrff.estimators.ridge_fit import folds_of
from distrff.objective.ridge_moments import RidgeEquations, RidgeMoments
from distrff.solvers.conjugate_gradients import Answer, ConjugateGradients
from distrff.solvers.lockstep import in_lockstep
from distrff.solvers.ridge_gram import GramProblem
from distrff.solvers.ridge_path import choose_alpha, default_alphas
from distrff.sweeps.conjugate_plan import MOST_DIRECTIONS, ConjugatePlan, light_cuts, walk_stride
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.fold_products import (
    ComplementMomentsReduction,
    FoldProductReduction,
    HeldOutErrorReduction,
)

_LEAST_TOL = 1e-2  # an error on held-out rows is not known better than that
_MOST_IN_VAIN = 2

# A machine: its fold and its target.
_Machine = tuple[int, int]


@dataclass(frozen=True, eq=False)
class ConjugateChoice:
    """What the search found.

    Parameters
    ----------
    search : AlphaSearch
    coef, intercept : ndarrays of shape (D, k) and (k,)
        Mean of the first folds' machines at the alpha that was best for these: a place to start.
    interruption : KeyboardInterrupt or None
        To be raised again when that mean is kept; its alpha is then that of `search`.
    """

    search: AlphaSearch
    coef: np.ndarray
    intercept: np.ndarray
    interruption: KeyboardInterrupt | None = None


class ConjugateSearch:
    """Walks over alphas while the held-out error falls (`promising_places`); each machine starts at its last.

    Where the machines of all folds side by side would take much memory, some folds walk after the others,
    over those alphas that the first ones tried.

    Parameters
    ----------
    run : SweepRun
    dataset : Dataset
    preparation : Preparation
    plan : ConjugatePlan
    options : RidgeOptions
    problem : GramProblem
    """

    def __init__(
        self,
        run: SweepRun,
        dataset: Dataset,
        preparation: Preparation,
        plan: ConjugatePlan,
        options: RidgeOptions,
        problem: GramProblem,
    ) -> None:
        self._run, self._dataset, self._preparation = run, dataset, preparation
        self._options, self._problem = options, problem
        self._cuts = light_cuts(plan.shape)
        folds = folds_of(options, dataset, options.n_folds)
        assert folds is not None
        self._groups = [
            range(first, min(first + plan.folds_per_task, folds.n_folds))
            for first in range(0, folds.n_folds, plan.folds_per_task)
        ]
        self._shared: dict[str, Any] = {
            "specification": preparation.specification,
            "scaling": preparation.scaling,
            "targets": preparation.targets,
            "offset": problem.offset,
            "dtype": plan.shape.dtype,
            "tile_rows": self._cuts.tile_rows,
            "folds": folds,
        }
        self._alphas = (
            default_alphas(preparation.weight, preparation.mean_square_norm, floor=0.0)[0]
            if options.alphas is None
            else options.alphas
        )
        self._tried: list[int] = []
        # Of each fold, for each alpha that was tried: Σ s·(y − f)² and Σ s of its rows, of shape (2, k).
        self._judged: dict[int, list[np.ndarray]] = {fold: [] for fold in range(folds.n_folds)}
        self._best: tuple[np.ndarray, np.ndarray] | None = None

    def choose(self) -> ConjugateChoice:
        """Return the alpha of least error among those tried.

        Raises
        ------
        InputError
            If one fold has all rows of positive weight.
        KeyboardInterrupt
            If it came before a machine was judged, so that there is none to keep. A later one is returned,
            with what the first folds say.
        """
        interruption, folds = None, range(len(self._judged))
        try:
            for group in self._groups:
                self._walk(group)
        except KeyboardInterrupt as caught:
            if self._best is None:
                raise KeyboardInterrupt(
                    "no machine is kept: none was judged yet in the search for alpha; fit again"
                ) from caught
            interruption, folds = caught, self._groups[0]
        assert self._best is not None
        search = self._choice(folds)
        if interruption is None:
            search = replace(
                search,
                notes=end_of_grid("alpha", search.alpha[0], self._alphas, search.results["mean_score"]),
            )
        return ConjugateChoice(search, *self._best, interruption)

    def _choice(self, folds: range) -> AlphaSearch:
        """Return the choice by the errors over these folds."""
        order = np.argsort(self._tried)
        judged = np.array([self._judged[fold] for fold in folds])[:, order]  # (n_folds, n_tried, 2, k)
        by_fold, weights = judged[:, :, 0], judged[:, 0, 1, 0]
        tried = self._alphas[np.sort(self._tried)]
        choice = choose_alpha(by_fold, weights, alphas=tried)
        with np.errstate(divide="ignore", invalid="ignore"):
            fold_scores = by_fold.mean(axis=2).T / weights
        return AlphaSearch(
            alpha=np.array([choice.alpha]),
            score=choice.score,
            criterion=f"mean squared error over {len(folds)} held-out folds",
            results={"alphas": tried, "mean_score": choice.scores, "fold_scores": fold_scores},
        )

    def _walk(self, folds: range) -> None:
        """Judge the machines of these folds: those of the first until it is in vain, others as far."""
        equations = self._equations(folds)
        kept: dict[_Machine, tuple[np.ndarray, np.ndarray, float]] = {
            (fold, j): (np.zeros(len(e.B)), e.B[:, j], 0.0)
            for fold, e in equations.items()
            for j in range(self._problem.n_targets)
        }

        def judge(place: int) -> float:
            judged = self._errors(float(self._alphas[place]), equations, kept)
            for fold, errors in judged.items():
                self._judged[fold].append(errors)
            return float(sum(errors[0].sum() for errors in judged.values()))

        if self._best is not None:
            for place in self._tried:
                judge(place)
            return
        places, totals = promising_places(len(self._alphas)), list[float]()
        while (promising := _next(places, totals)) is not None:
            totals.append(judge(promising))
            self._tried.append(promising)
            if totals[-1] == min(totals):
                self._best = self._mean_machine(equations, kept)

    def _equations(self, folds: range) -> dict[int, RidgeEquations]:
        """Return the equations of each fold's complement."""
        # No first machine, of which nothing would have to be summed.
        none = {"coef": np.zeros((self._preparation.specification.n_features, 0)), "intercept": np.zeros(0)}
        reduction = ComplementMomentsReduction(**self._shared, held_out=tuple(folds))
        moments: list[RidgeMoments | None] = self._sweep("right sides of folds", reduction, none)
        equations = {}
        for fold, sums in zip(folds, moments, strict=True):
            if sums is None or not sums.weight > 0:
                raise InputError(
                    f"fold {fold} has all rows of positive weight, so that none are left to fit; give more "
                    f"rows, or fold_by='contiguous'"
                )
            equations[fold] = RidgeEquations.of(sums, fit_intercept=self._problem.fit_intercept)
        return equations

    def _errors(
        self,
        alpha: float,
        equations: dict[int, RidgeEquations],
        kept: dict[_Machine, tuple[np.ndarray, np.ndarray, float]],
    ) -> dict[int, np.ndarray]:
        """Return Σ s·(y − f)² and Σ s over each fold, (2, k), and keep where the machines are now."""
        unit = np.square(self._preparation.targets.scale)
        judged = {fold: np.zeros((2, self._problem.n_targets)) for fold in equations}
        machines = list(kept)
        for first in range(0, len(machines), MOST_DIRECTIONS):
            some = machines[first : first + MOST_DIRECTIONS]
            systems = {m: _started(kept.pop(m), alpha, self._tol(equations, m)) for m in some}
            self._solve(alpha, systems, equations)
            kept |= {m: (system.x, system.residual, alpha) for m, system in systems.items()}
            held_out, outputs = zip(*some, strict=True)
            reduction = HeldOutErrorReduction(**self._shared, held_out=held_out, outputs=outputs)
            coef = np.stack([system.x for system in systems.values()]).T
            intercept = np.array([_intercept(equations, m, kept[m][0]) for m in some])
            point = {"coef": np.ascontiguousarray(coef), "intercept": intercept}
            found = self._sweep("held-out errors", reduction, point)
            for (fold, j), error, weight in zip(some, *found, strict=True):
                judged[fold][:, j] = error * unit[j], weight
        return judged

    def _mean_machine(
        self,
        equations: dict[int, RidgeEquations],
        kept: dict[_Machine, tuple[np.ndarray, np.ndarray, float]],
    ) -> tuple[np.ndarray, np.ndarray]:
        k = self._problem.n_targets
        coef, intercept = np.zeros((self._preparation.specification.n_features, k)), np.zeros(k)
        for (fold, j), (x, _, _) in kept.items():
            coef[:, j] += x / len(equations)
            intercept[j] += _intercept(equations, (fold, j), x) / len(equations)
        return coef, intercept

    def _solve(
        self, alpha: float, systems: dict[_Machine, ConjugateGradients], equations: dict[int, RidgeEquations]
    ) -> None:
        """Advance all systems until they converge or may not go on."""
        left = self._options.max_sweeps

        def answer(residuals: dict[_Machine, np.ndarray]) -> dict[_Machine, Answer]:
            nonlocal left
            left -= 1
            if left < 0:
                return {}
            V = np.stack([r / (equations[f].G_diagonal + alpha) for (f, _), r in residuals.items()])
            intercept = -np.array([equations[f].z_mean @ v for (f, _), v in zip(residuals, V, strict=True)])
            reduction = FoldProductReduction(**self._shared, held_out=tuple(f for f, _ in residuals))
            point = {"coef": np.ascontiguousarray(V.T), "intercept": intercept}
            sums = self._sweep("products of folds", reduction, point)
            GV = sums[:-1].T.copy(order="C")  # the sums of a vector together, as its solver takes them
            for i, (fold, _) in enumerate(residuals):
                GV[i] -= sums[-1, i] * equations[fold].z_mean
                GV[i] += alpha * V[i]
            return dict(zip(residuals, zip(V, GV, strict=True), strict=True))

        in_lockstep({m: system.solve() for m, system in systems.items()}, answer)

    def _tol(self, equations: dict[int, RidgeEquations], machine: _Machine) -> float:
        fold, output = machine
        return max(self._options.tol, _LEAST_TOL) * float(np.linalg.norm(equations[fold].B[:, output]))

    def _sweep(self, label: str, reduction: Any, point: dict[str, np.ndarray]) -> Any:
        return self._run.gather([self._run.sweep(label, self._dataset, reduction, self._cuts, point)])[0]


def promising_places(n: int) -> Generator[int, float, None]:
    """Yield places of an ascending grid of n, to be sent the error of each: from the largest down, then near.

    From 12 places on the way down is in strides of 2, from 24 on of 4 and so on, until the error rises; then
    the strides are halved on both sides of the best place. Shorter grids are walked one by one, and for two
    places in vain.
    """
    stride = walk_stride(n)
    errors: dict[int, float] = {}
    in_vain = 0
    for place in range(n - 1, -1, -stride):
        errors[place] = yield place
        in_vain = in_vain + 1 if errors[place] > min(errors.values()) else 0
        if in_vain >= (1 if stride > 1 else _MOST_IN_VAIN):
            break
    while stride > 1:
        stride //= 2
        best = min(errors, key=lambda place: errors[place])
        for place in (best - stride, best + stride):
            if 0 <= place < n and place not in errors:
                errors[place] = yield place


def _next(places: Generator[int, float, None], errors: list[float]) -> int | None:
    try:
        return places.send(errors[-1]) if errors else next(places)
    except StopIteration:
        return None


def _started(kept: tuple[np.ndarray, np.ndarray, float], alpha: float, bound: float) -> ConjugateGradients:
    """Return the system of another alpha, whose residual at the last x follows from the last one's."""
    x, residual, before = kept
    return ConjugateGradients(x, residual + (before - alpha) * x, bound=bound)


def _intercept(equations: dict[int, RidgeEquations], machine: _Machine, x: np.ndarray) -> float:
    fold, output = machine
    return float(equations[fold].y_mean[output] - equations[fold].z_mean @ x)
