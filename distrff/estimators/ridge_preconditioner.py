"""Preconditioners of ridge: factors of a sample's Gram, which stay on the cluster, or a diagonal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from distrff.data.dataset import Dataset
from distrff.estimators.factor_gram import factor_gram
from distrff.estimators.options import RidgeOptions
from distrff.estimators.preparation import Preparation
from distrff.solvers.sampled_factor import machine_of_sample, preconditioned, sampled_factor
from distrff.sweeps.conjugate_plan import ConjugatePlan, sample_shape
from distrff.sweeps.engine import SweepRun

MOST_FACTORS = 3

Vectors = Mapping[int, np.ndarray]


class RidgePreconditioner(Protocol):
    """M⁻¹ for each of the outputs."""

    def solve(self, residuals: Vectors) -> dict[int, np.ndarray]:
        """Return M⁻¹r by output."""


class DiagonalPreconditioner:
    """M = diag(G) + alpha·I.

    Parameters
    ----------
    G_diagonal : ndarray of shape (D,)
    alpha : ndarray of shape (k,)
    """

    def __init__(self, G_diagonal: np.ndarray, alpha: np.ndarray) -> None:
        self._G_diagonal = G_diagonal
        self._alpha = alpha

    def solve(self, residuals: Vectors) -> dict[int, np.ndarray]:
        return {j: r / (self._G_diagonal + self._alpha[j]) for j, r in residuals.items()}


class FactorPreconditioner:
    """M = G + alpha·I for the Gram of a sample, by its factor; outputs of one alpha are solved for together.

    Parameters
    ----------
    run : SweepRun
    factors : list of handles
    factor_of : ndarray of shape (k,)
        Which of them an output takes.
    """

    def __init__(self, run: SweepRun, factors: list[Any], factor_of: np.ndarray) -> None:
        self._run = run
        self._factors = factors
        self._factor_of = factor_of

    def solve(self, residuals: Vectors) -> dict[int, np.ndarray]:
        outputs = np.array(list(residuals))
        groups = [outputs[self._factor_of[outputs] == f] for f in range(len(self._factors))]
        asked = [(f, group) for f, group in enumerate(groups) if len(group)]
        calls = [(self._factors[f], np.stack([residuals[j] for j in group], axis=1)) for f, group in asked]
        solved = self._run.gather(self._run.submit_all(preconditioned, calls))
        return {
            int(j): V[:, i] for (_, group), V in zip(asked, solved, strict=True) for i, j in enumerate(group)
        }

    def machine(self) -> tuple[np.ndarray, np.ndarray]:
        """Return coef and intercept of the sample's own ridge machines."""
        found = self._run.gather(self._run.submit_all(machine_of_sample, [(f,) for f in self._factors]))
        chosen = list(enumerate(self._factor_of))
        coef = np.stack([found[f][0][:, j] for j, f in chosen], axis=1)
        return coef, np.array([found[f][1][j] for j, f in chosen])


def sample_preconditioner(
    run: SweepRun,
    dataset: Dataset,
    preparation: Preparation,
    plan: ConjugatePlan,
    options: RidgeOptions,
    alpha: np.ndarray,
) -> FactorPreconditioner:
    """Return the preconditioner that one sweep over a sample of the rows gives."""
    shape = sample_shape(plan.shape, plan.one_in)
    gram_plan = replace(plan, shape=shape, tile_rows=shape.segmentation().tile_rows)
    grams = factor_gram(run, dataset, preparation, gram_plan, options)
    # That of a sum over fewer rows.
    floor = np.sqrt(plan.one_in) * grams.noise_floor(shape.n_features)
    levels = factor_levels(alpha)
    calls = [(grams.total, max(floor, level), grams.problem) for level in levels]
    nearest = np.abs(np.log(alpha[:, None] / levels)).argmin(axis=1)
    return FactorPreconditioner(run, run.submit_all(sampled_factor, calls), nearest)


def factor_levels(alpha: np.ndarray) -> np.ndarray:
    """Return the penalties that get a factor: each one, or three over their range where they are more.

    Where alpha is off by a factor a, the condition number that conjugate gradients see grows by at most a.
    """
    different = np.unique(alpha)
    if len(different) <= MOST_FACTORS:
        return different
    return np.geomspace(different[0], different[-1], MOST_FACTORS)
