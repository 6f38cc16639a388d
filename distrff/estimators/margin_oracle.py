"""What solvers of margin machines ask for, each answer one sweep or one small task on the cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from distrff.columns.targets import ClassTargets
from distrff.data.dataset import Dataset
from distrff.estimators.gram_context import GramContext
from distrff.estimators.options import MarginOptions
from distrff.estimators.preparation import Preparation
from distrff.objective import MarginSums, ridge_system
from distrff.objective.evaluation import Evaluation
from distrff.solvers.preconditioner import Preconditioner
from distrff.solvers.ridge_gram import GramProblem
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.margins import MarginReduction
from distrff.sweeps.plan import Plan
from distrff.sweeps.segments import margin_tile_rows

_MOST_FACTORS = 3
_LEAST_CURVATURE = 1e-100


class MarginOracle:
    """Evaluates machines by sweeps, and applies preconditioners where the Gram is.

    Parameters
    ----------
    run : SweepRun
    dataset : Dataset
    preparation : Preparation
    plan : Plan
    options : MarginOptions
    grams : GramContext
    """

    def __init__(
        self,
        run: SweepRun,
        dataset: Dataset,
        preparation: Preparation,
        plan: Plan,
        options: MarginOptions,
        grams: GramContext,
    ) -> None:
        assert isinstance(preparation.targets, ClassTargets)
        self._run = run
        self._dataset = dataset
        self._weight = preparation.weight
        self._options = options
        self._grams = grams
        self._factors: WeakValueDictionary[float, _Factor] = WeakValueDictionary()
        dtype = np.dtype(plan.shape.dtype)
        tile_rows = margin_tile_rows(preparation.specification.n_features, dtype)
        self._cuts = replace(plan.shape.segmentation(), tile_rows=tile_rows)
        self._reduction = MarginReduction(
            specification=preparation.specification,
            scaling=preparation.scaling,
            targets=preparation.targets,
            dtype=dtype.name,
            tile_rows=tile_rows,
            loss=options.loss,
            proxies=(options.loss,),
            outputs=(),
        )

    def evaluate(self, points: Mapping[int, np.ndarray]) -> dict[int, Evaluation]:
        """Return what one sweep says of one point x for each of some outputs."""
        X = np.stack(list(points.values()), axis=1)
        coef, intercept = (X[:-1], X[-1]) if self._options.fit_intercept else (X, np.zeros(X.shape[1]))
        reduction = replace(self._reduction, outputs=tuple(points))
        point = {"coef": coef, "intercept": intercept}
        handle = self._run.sweep("margins", self._dataset, reduction, self._cuts, point)
        sums: MarginSums = self._run.gather([handle])[0]
        return {
            output: Evaluation.of(
                self._options.C,
                sums,
                position,
                points[output],
                weight=self._weight,
                fit_intercept=self._options.fit_intercept,
            )
            for position, output in enumerate(points)
        }

    def preconditioner(self, curvature: float) -> Callable[[np.ndarray], np.ndarray]:
        """Return g ↦ (h · Gram + I)⁻¹g for a power of four h near the curvature.

        Machines of like curvature share a factor, which is freed when the last of them asks for
        another. There are few at a time: beyond these the nearest serves.
        """
        most = 1 / self._grams.noise_floor(self._grams.problem.sizes[-1])
        h = max(_LEAST_CURVATURE, min(curvature, most))
        level = float(np.floor(np.log2(h) / 2))
        if level not in self._factors and len(self._factors) >= _MOST_FACTORS:
            level = min(self._factors, key=lambda other: abs(other - level))
        factor = self._factors.get(level)
        if factor is None:
            grams = self._grams
            handle = self._run.submit(preconditioner_of, grams.total, 4.0**level, grams.problem)
            factor = self._factors[level] = _Factor(self._run, handle)
        return factor.solve


class _Factor:
    """A handle on a preconditioner where the Gram is."""

    def __init__(self, run: SweepRun, handle: Any) -> None:
        self._run = run
        self._handle = handle

    def solve(self, gradient: np.ndarray) -> np.ndarray:
        return self._run.gather([self._run.submit(preconditioned, self._handle, gradient)])[0]


def preconditioner_of(total: np.ndarray, curvature: float, problem: GramProblem) -> Preconditioner:
    """Return the preconditioner that the Gram of all rows gives."""
    system = ridge_system(total, problem.n_targets, fit_intercept=problem.fit_intercept)
    return Preconditioner.of(system, curvature)


def preconditioned(preconditioner: Preconditioner, gradient: np.ndarray) -> np.ndarray:
    """Return M⁻¹g."""
    return preconditioner.apply(gradient)
