"""Alpha by cross-validation where no Gram is formed: conjugate gradients on all folds side by side."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from distrff.data.dataset import Dataset
from distrff.estimators.alpha_search import AlphaSearch
from distrff.estimators.options import RidgeOptions
from distrff.estimators.preparation import Preparation
from distrff.estimators.ridge_fit import folds_of
from distrff.objective.ridge_moments import RidgeEquations, RidgeMoments
from distrff.solvers.conjugate_gradients import Answer, ConjugateGradients
from distrff.solvers.lockstep import in_lockstep
from distrff.solvers.ridge_gram import GramProblem
from distrff.solvers.ridge_path import choose_alpha, default_alphas
from distrff.sweeps.conjugate_plan import MOST_DIRECTIONS, ConjugatePlan, light_cuts
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.fold_products import FoldMomentsReduction, FoldProductReduction, HeldOutErrorReduction

_LEAST_TOL = 1e-2  # an error on held-out rows is not known better than that
_MOST_IN_VAIN = 2

# A machine: its fold and its target.
_Machine = tuple[int, int]


class ConjugateSearch:
    """Walks from the largest alpha down while the held-out error falls; each machine starts at its last.

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
        folds = folds_of(options, dataset)
        assert folds is not None
        self._shared: dict[str, Any] = {
            "specification": preparation.specification,
            "scaling": preparation.scaling,
            "targets": preparation.targets,
            "offset": problem.offset,
            "dtype": plan.shape.dtype,
            "tile_rows": self._cuts.tile_rows,
            "folds": folds,
        }

    def best(self) -> AlphaSearch:
        """Return the alpha of least error among those tried."""
        options = self._options
        alphas = options.alphas
        if alphas is None:
            alphas, _ = default_alphas(
                self._preparation.weight, self._preparation.mean_square_norm, floor=0.0
            )
        equations, weights = self._equations()
        kept: dict[_Machine, tuple[np.ndarray, np.ndarray, float]] = {
            (fold, j): (np.zeros_like(e.B[:, j]), e.B[:, j], 0.0)
            for fold, e in enumerate(equations)
            for j in range(self._problem.n_targets)
        }
        unit = np.square(self._preparation.targets.scale)
        errors: list[np.ndarray] = []
        for alpha in alphas[::-1].tolist():
            errors.append(self._errors(alpha, equations, kept) * unit)
            totals = [float(error.sum()) for error in errors]
            if len(totals) - 1 - int(np.argmin(totals)) >= _MOST_IN_VAIN:
                break
        tried, by_fold = alphas[-len(errors) :], np.stack(errors[::-1], axis=1)
        choice = choose_alpha(by_fold, weights, alphas=tried)
        with np.errstate(divide="ignore", invalid="ignore"):
            fold_scores = by_fold.mean(axis=2).T / weights
        return AlphaSearch(
            alpha=np.array([choice.alpha]),
            score=choice.score,
            criterion=f"mean squared error over {len(equations)} held-out folds",
            results={"alphas": tried, "mean_score": choice.scores, "fold_scores": fold_scores},
        )

    def _equations(self) -> tuple[list[RidgeEquations], np.ndarray]:
        """Return the equations of each fold's complement, and the weight of each fold."""
        D, k = self._preparation.specification.n_features, self._problem.n_targets
        zero = {"coef": np.zeros((D, k)), "intercept": np.zeros(k)}
        moments = self._sweep("right sides of folds", FoldMomentsReduction(**self._shared), zero)
        there = [m for m in moments if m is not None]
        total = sum(there[1:], there[0])
        complements = [total if m is None else _difference(total, m) for m in moments]
        weights = np.array([0.0 if m is None else m.weight for m in moments])
        intercept = self._problem.fit_intercept
        return [RidgeEquations.of(m, fit_intercept=intercept) for m in complements], weights

    def _errors(
        self,
        alpha: float,
        equations: list[RidgeEquations],
        kept: dict[_Machine, tuple[np.ndarray, np.ndarray, float]],
    ) -> np.ndarray:
        """Return Σ s·(y − f)² over each fold, (n_folds, k), and keep where the machines are now."""
        errors = np.zeros((len(equations), self._problem.n_targets))
        machines = list(kept)
        for first in range(0, len(machines), MOST_DIRECTIONS):
            some = machines[first : first + MOST_DIRECTIONS]
            systems = {m: _started(kept[m], alpha, self._tol(equations, m)) for m in some}
            self._solve(alpha, systems, equations)
            kept |= {m: (system.x, system.residual, alpha) for m, system in systems.items()}
            coef = np.stack([system.x for system in systems.values()], axis=1)
            intercept = [equations[f].y_mean[j] - equations[f].z_mean @ systems[f, j].x for f, j in some]
            held_out, outputs = zip(*some, strict=True)
            reduction = HeldOutErrorReduction(**self._shared, held_out=held_out, outputs=outputs)
            point = {"coef": coef, "intercept": np.array(intercept)}
            errors[held_out, outputs] = self._sweep("held-out errors", reduction, point)
        return errors

    def _solve(
        self, alpha: float, systems: dict[_Machine, ConjugateGradients], equations: list[RidgeEquations]
    ) -> None:
        """Advance all systems until they converge or may not go on."""
        left = self._options.max_sweeps

        def answer(residuals: dict[_Machine, np.ndarray]) -> dict[_Machine, Answer]:
            nonlocal left
            left -= 1
            if left < 0:
                return {}
            V = np.stack([r / (equations[f].G_diagonal + alpha) for (f, _), r in residuals.items()], axis=1)
            means = np.stack([equations[f].z_mean for f, _ in residuals], axis=1)
            point = {"coef": V, "intercept": -np.einsum("ij,ij->j", means, V)}
            reduction = FoldProductReduction(**self._shared, held_out=tuple(f for f, _ in residuals))
            sums = self._sweep("products of folds", reduction, point)
            GV = sums[:-1] - means * sums[-1]
            return {m: (V[:, i], GV[:, i] + alpha * V[:, i]) for i, m in enumerate(residuals)}

        in_lockstep({m: system.solve() for m, system in systems.items()}, answer)

    def _tol(self, equations: list[RidgeEquations], machine: _Machine) -> float:
        fold, output = machine
        return max(self._options.tol, _LEAST_TOL) * float(np.linalg.norm(equations[fold].B[:, output]))

    def _sweep(self, label: str, reduction: Any, point: dict[str, np.ndarray]) -> Any:
        return self._run.gather([self._run.sweep(label, self._dataset, reduction, self._cuts, point)])[0]


def _started(kept: tuple[np.ndarray, np.ndarray, float], alpha: float, bound: float) -> ConjugateGradients:
    """Return the system of another alpha, whose residual at the last x follows from the last one's."""
    x, residual, before = kept
    return ConjugateGradients(x, residual + (before - alpha) * x, bound=bound)


def _difference(total: RidgeMoments, part: RidgeMoments) -> RidgeMoments:
    return RidgeMoments(*(getattr(total, f.name) - getattr(part, f.name) for f in fields(RidgeMoments)))
