"""What solvers of margin machines ask for, each answer one sweep or one small task on the cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from distrff.columns.targets import ClassTargets
from distrff.data.dataset import Dataset
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

_MOST_FACTORS = 2


class MarginOracle:
    """Evaluates machines by sweeps, and applies preconditioners where the Gram is.

    Parameters
    ----------
    run : SweepRun
    dataset : Dataset
    preparation : Preparation
    plan : Plan
    options : MarginOptions
    total : handle
        On the Gram of all rows.
    problem : GramProblem
    least_ridge : float
        The alpha below which the Gram is rounding noise.
    """

    def __init__(
        self,
        run: SweepRun,
        dataset: Dataset,
        preparation: Preparation,
        plan: Plan,
        options: MarginOptions,
        total: Any,
        problem: GramProblem,
        *,
        least_ridge: float,
    ) -> None:
        assert isinstance(preparation.targets, ClassTargets)
        self._run = run
        self._dataset = dataset
        self._weight = preparation.weight
        self._options = options
        self._total = total
        self._problem = problem
        self._least_ridge = least_ridge
        self._factors: dict[float, Any] = {}
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
        outputs, fit_intercept = tuple(points), self._options.fit_intercept
        X = np.stack([points[output] for output in outputs], axis=1)
        coef, intercept = (X[:-1], X[-1]) if fit_intercept else (X, np.zeros(len(outputs)))
        arrays = self._reduction.specification.checked_arrays() if self._run.frequencies_differ else {}
        shipped = self._run.execution.ship({**arrays, "coef": coef, "intercept": intercept})
        reduction = replace(self._reduction, outputs=outputs)
        handle = self._run.sweep("margins", self._dataset, reduction, self._cuts, shipped)
        sums: MarginSums = self._run.gather([handle])[0]
        return {
            output: Evaluation.of(
                self._options.C,
                sums,
                position,
                points[output],
                weight=self._weight,
                fit_intercept=fit_intercept,
            )
            for position, output in enumerate(outputs)
        }

    def preconditioner(self, curvature: float) -> Callable[[np.ndarray], np.ndarray]:
        """Return g ↦ (h · Gram + I)⁻¹g for a power of two h near the curvature.

        Machines of like curvature share a factor, and few are kept: one that is needed again
        after others is made again.
        """
        return partial(self._solve, 2.0 ** round(np.log2(min(curvature, 1 / self._least_ridge))))

    def _solve(self, curvature: float, gradient: np.ndarray) -> np.ndarray:
        if curvature not in self._factors:
            while len(self._factors) >= _MOST_FACTORS:
                del self._factors[next(iter(self._factors))]
            self._factors[curvature] = self._run.submit(
                preconditioner_of, self._total, curvature, self._problem
            )
        return self._run.gather([self._run.submit(preconditioned, self._factors[curvature], gradient)])[0]


def preconditioner_of(total: np.ndarray, curvature: float, problem: GramProblem) -> Preconditioner:
    """Return the preconditioner that the Gram of all rows gives."""
    system = ridge_system(total, problem.n_targets, fit_intercept=problem.fit_intercept)
    return Preconditioner.of(system, curvature)


def preconditioned(preconditioner: Preconditioner, gradient: np.ndarray) -> np.ndarray:
    """Return M⁻¹g."""
    return preconditioner.apply(gradient)
