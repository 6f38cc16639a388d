"""The merged Grams of a fit, and all that is known of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distrff.estimators.preparation import Preparation
from distrff.solvers.ridge_gram import GramProblem, total_gram
from distrff.solvers.ridge_path import noise_floor
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.plan import Plan


@dataclass(frozen=True, eq=False)
class GramContext:
    """The merged Grams and all that is known of them.

    Parameters
    ----------
    parts : list of handles
        One on the Grams of all folds, or one a fold.
    total : handle
        On their sum.
    problem : GramProblem
    weight : float
    mean_square_norm : float
    tile_rows : int
    dtype : str
    target_scale : ndarray of shape (k,)
        From coded units back to the targets' own.
    """

    parts: list[Any]
    total: Any
    problem: GramProblem
    weight: float
    mean_square_norm: float
    tile_rows: int
    dtype: str
    target_scale: np.ndarray

    def noise_floor(self, size: int) -> float:
        """Return the alpha below which the machine of `size` features is noise."""
        return noise_floor(
            self.weight,
            self.problem.n_rows,
            tile_rows=self.tile_rows,
            n_features=size,
            at_zero=self.mean_square_norm,
            dtype=np.dtype(self.dtype),
        )


def context_of(
    run: SweepRun, parts: list[Any], problem: GramProblem, preparation: Preparation, plan: Plan
) -> GramContext:
    """Return what is known of Grams that were just swept."""
    return GramContext(
        parts=parts,
        total=run.submit(total_gram, parts, problem),
        problem=problem,
        weight=preparation.weight,
        mean_square_norm=preparation.mean_square_norm,
        tile_rows=plan.tile_rows,
        dtype=plan.shape.dtype,
        target_scale=preparation.targets.scale,
    )
