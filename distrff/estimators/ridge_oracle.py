"""What conjugate gradients ask for, each answer one light sweep over the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from distrff.data.dataset import Dataset
from distrff.errors import InputError
from distrff.estimators.preparation import Preparation
from distrff.objective.ridge_moments import RidgeEquations, RidgeMoments
from distrff.solvers.ridge_gram import GramProblem
from distrff.sweeps.conjugate_plan import ConjugatePlan, light_cuts
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.ridge_products import ProductReduction, RightSidesReduction


class RidgeOracle:
    """Answers what the solver asks of the rows, each time by one light sweep.

    Parameters
    ----------
    run : SweepRun
    dataset : Dataset
    preparation : Preparation
    plan : ConjugatePlan
    problem : GramProblem
    """

    def __init__(
        self,
        run: SweepRun,
        dataset: Dataset,
        preparation: Preparation,
        plan: ConjugatePlan,
        problem: GramProblem,
    ) -> None:
        self._run = run
        self._dataset = dataset
        self._fit_intercept = problem.fit_intercept
        self._cuts = light_cuts(plan.shape)
        shared: dict[str, Any] = {
            "specification": preparation.specification,
            "scaling": preparation.scaling,
            "targets": preparation.targets,
            "offset": problem.offset,
            "dtype": plan.shape.dtype,
            "tile_rows": self._cuts.tile_rows,
        }
        self._right_sides = RightSidesReduction(**shared)
        self._products = ProductReduction(**shared, n_directions=0)
        self.n_sweeps = 0

    def right_sides(self, coef: np.ndarray, intercept: np.ndarray) -> RidgeEquations:
        """Return the equations, with what a first machine leaves of them."""
        point = {"coef": coef, "intercept": intercept}
        handle = self._run.sweep("right sides", self._dataset, self._right_sides, self._cuts, point)
        moments: RidgeMoments = self._run.gather([handle])[0]
        self.n_sweeps += 1
        equations = None
        if moments.is_finite:
            equations = RidgeEquations.of(moments, fit_intercept=self._fit_intercept)
        if equations is None or not np.isfinite(np.linalg.norm(equations.B)):
            raise InputError(
                "the sums over the rows are not finite: some values are too large for the features' dtype; "
                "use scale='standard' or dtype='float64'"
            )
        return equations

    def products(self, vectors: Mapping[int, np.ndarray], z_mean: np.ndarray) -> dict[int, np.ndarray]:
        """Return G·v for one v of each of some outputs."""
        V = np.stack(list(vectors.values()))
        point = {"coef": np.ascontiguousarray(V.T), "intercept": -(V @ z_mean)}
        reduction = replace(self._products, n_directions=len(V))
        sums = self._run.gather([self._run.sweep("products", self._dataset, reduction, self._cuts, point)])[0]
        self.n_sweeps += 1
        GV = sums[:-1].T.copy(order="C")  # the sums of a vector together, as its solver takes them
        for i, excess in enumerate(sums[-1]):
            GV[i] -= excess * z_mean
        return dict(zip(vectors, GV, strict=True))
