"""The hinge on few rows: all classes, folds and C on one Gram, after one pass that returns the features."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np

from distrff.fitting.cost import Plan
from distrff.fitting.problem import PreparedFit
from distrff.fitting.result import MarginProblem
from distrff.fitting.rows import MappedRows
from distrff.preprocessing.folds import Folds
from distrff.solvers.dual import DualPoint, DualRows, ascend_pairs
from distrff.solvers.ridge_rows import products_of_rows

_PROBLEMS_A_TASK = 8


class DualAscent:
    """The problems of a fit on the Gram of its rows, each going on from what it reached before."""

    def __init__(self, fit: PreparedFit, plan: Plan, folds: Folds) -> None:
        self._run, self._fit_intercept = fit.run, fit.problem.fit_intercept
        self._rows = fit.run.submit(dual_rows, fit.mapped_rows(plan))
        self._n_rows = fit.dataset.n_rows
        self._masks = folds.masks(np.arange(self._n_rows), range(folds.n_folds))
        # By output and held-out fold: C and the multipliers.
        self._reached: dict[tuple[int, int | None], tuple[float, np.ndarray]] = {}

    def ascend(self, problems: Mapping[MarginProblem, Any], tol: float) -> dict[MarginProblem, DualPoint]:
        """Each problem's point after as many steps as rows, fewer where its gap is closed.

        They count as a pass of light sweeps, and read no row.
        """
        started, calls, order = time.perf_counter(), [], []
        for held_out, group in groupby(problems, key=lambda problem: problem.held_out):
            members = list(group)
            masks = None if held_out is None else tuple(mask[:, held_out] for mask in self._masks)
            for first in range(0, len(members), _PROBLEMS_A_TASK):
                some = members[first : first + _PROBLEMS_A_TASK]
                outputs, C = [problem.output for problem in some], [problem.C for problem in some]
                alphas = np.stack([self._start(problem) for problem in some])
                calls.append((self._rows, outputs, C, masks, alphas, self._fit_intercept, tol))
                order += some
        found = [at for some in self._run.map(ascend_pairs, calls, group="margins") for at in some]
        self._run.sweeps.append(("margins", time.perf_counter() - started))
        points = dict(zip(order, found, strict=True))
        for problem, at in points.items():
            self._reached[problem.output, problem.held_out] = problem.C, at.alpha
        return points

    def _start(self, problem: MarginProblem) -> np.ndarray:
        """Multipliers to go on from: those of the last C in proportion, so that rows stay at bounds.

        For the fit to all rows they are the mean of the folds that have the row.
        """
        key = problem.output, problem.held_out
        if key in self._reached:
            C, alpha = self._reached[key]
            return alpha * (problem.C / C)
        folds = [at for (output, _), at in self._reached.items() if output == problem.output]
        if problem.held_out is not None or not folds:
            return np.zeros(self._n_rows)
        # A row's multiplier is 0 in the folds whose models are not fitted to it.
        n_fitted = np.maximum(1, self._masks[0].sum(axis=1))
        return np.sum([alpha * (problem.C / C) for C, alpha in folds], axis=0) / n_fitted


def dual_rows(mapped: MappedRows) -> DualRows:
    """The rows with their Gram."""
    Z = mapped.Z.astype(np.float64, copy=False)
    return DualRows(Z, products_of_rows(Z), mapped.Y, mapped.s)
