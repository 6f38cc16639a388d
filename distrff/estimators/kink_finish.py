"""The hinge's last digits: models of few rows that grow where a sweep shows them wrong.

A model is exact for the rows that were near the kink at its reference point, or changed sides since (see
`solvers.kink_model`). Its minimum bounds the objective of all rows from below and rises with each row; where
no row outside has changed sides, it is the objective's. With as many rows as there are, the first model is
already the whole problem. Models of dense features are solved by Newton steps of D³/3 flops, those of sparse
ones, which have more features than rows, by steps in the rows' multipliers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import diags_array, hstack, issparse

from distrff.estimators.margin_oracle import FeaturesOf, KinkPoint, MarginOracle, MarginProblem
from distrff.solvers.coordinate_ascent import ascend
from distrff.solvers.kink_model import KinkModel, KinkSolution, first_multipliers, minimise
from distrff.sweeps.kink_rows import KinkRows, KinkSums

_MODEL_SHARE = 0.4  # of tol
_FIRST_WIDTH = 1.0


@dataclass(eq=False)
class _Model:
    """One machine's model: rows, and the sums at its reference point over all rows."""

    reference: np.ndarray
    rows: KinkRows
    short_weight: float
    short_vector: np.ndarray
    x: np.ndarray
    alpha: np.ndarray | None = None

    @property
    def known(self) -> np.ndarray:
        return np.sort(self.rows.number)

    @classmethod
    def at(cls, C: float, x: np.ndarray, found: KinkSums, machine: int) -> _Model:
        """Return the model whose reference point is x."""
        rows = found.rows(machine)
        weight, vector = float(found.short_weight[machine]), found.short_vector[machine]
        return cls(x, rows, weight, vector, x)

    def can_balance(self) -> bool:
        """Say whether the rows' multipliers can outweigh what the linear part pulls at the intercept."""
        signed = self.rows.weight * self.rows.label
        pull = -float(self.short_vector[-1] - signed[self.rows.short].sum())
        return float(signed[signed < 0].sum()) <= pull <= float(signed[signed > 0].sum())

    def add(self, rows: KinkRows, C: float) -> None:
        """Take more rows, each with the multiplier that its side at the reference point had."""
        assert self.alpha is not None
        self.rows = self.rows.merge(rows, None)
        self.alpha = np.append(self.alpha, np.where(rows.short, C * rows.weight, 0.0))


def finish_exactly(
    oracle: MarginOracle,
    points: Mapping[MarginProblem, np.ndarray],
    kinks: Callable[[Mapping[MarginProblem, KinkPoint], int], KinkSums],
    see: Callable[[MarginProblem, np.ndarray, float, float, np.ndarray], bool],
    *,
    tol: float,
    most: int,
) -> None:
    """Improve each machine from its point until `see` is content, or its model can tell no more.

    Parameters
    ----------
    kinks : callable
        Sweeps, as `MarginOracle.kinks` does.
    see : callable
        Takes a problem, a point, its objective, a lower bound, and the sums over held-out rows; says whether
        the machine is good enough.
    most : int
        Models of one machine, each with more rows than the one before.
    """
    if not points:
        return
    found, models = _first_models(oracle, points, kinks)
    primal = {problem: _primal(problem, x, found, j) for j, (problem, x) in enumerate(points.items())}
    for _ in range(most):
        if not models:
            return
        bounds = _solve(oracle, models, {problem: _MODEL_SHARE * tol * primal[problem] for problem in models})
        asked = {p: KinkPoint(m.x, m.reference, m.known) for p, m in models.items()}
        found = kinks(asked, oracle.kept_rows)
        unfinished = {}
        for machine, (problem, model) in enumerate(models.items()):
            value = _primal(problem, model.x, found, machine)
            primal[problem] = min(primal[problem], value)
            content = see(problem, model.x, value, bounds[problem], found.held_out[:, machine])
            rows = found.rows(machine)
            has_room = len(model.rows.number) + len(rows.number) <= oracle.most_model_rows
            if not content and len(rows.number) and has_room:
                model.add(rows, problem.C)
                unfinished[problem] = model
        models = unfinished


def _first_models(
    oracle: MarginOracle,
    points: Mapping[MarginProblem, np.ndarray],
    kinks: Callable[[Mapping[MarginProblem, KinkPoint], int], KinkSums],
) -> tuple[KinkSums, dict[MarginProblem, _Model]]:
    """Return the models of the rows nearest to the kink, of so many that each has a minimum."""
    n_kept = oracle.kept_rows
    while True:
        found = kinks({problem: KinkPoint(x) for problem, x in points.items()}, n_kept)
        models = {
            problem: _Model.at(problem.C, x, found, machine)
            for machine, (problem, x) in enumerate(points.items())
        }
        if not oracle.fit_intercept or all(model.can_balance() for model in models.values()):
            return found, models
        if n_kept >= min(oracle.n_rows, oracle.most_model_rows // 2):
            return found, {problem: model for problem, model in models.items() if model.can_balance()}
        n_kept *= 4


def _solve(
    oracle: MarginOracle, models: Mapping[MarginProblem, _Model], tols: Mapping[MarginProblem, float]
) -> dict[MarginProblem, float]:
    """Move each model to its minimum, side by side on the cluster; return their lower bounds."""
    calls = [
        (oracle.features_of, oracle.shipped_map, model.rows, model.short_weight, model.short_vector,
         problem.C, model.x, model.alpha, oracle.fit_intercept, tols[problem])
        for problem, model in models.items()
    ]  # fmt: skip
    solutions: list[KinkSolution] = oracle.run.gather(oracle.run.submit_all(solve_model, calls))
    for model, solution in zip(models.values(), solutions, strict=True):
        model.x, model.alpha = solution.x, solution.alpha
    return {problem: solution.bound for problem, solution in zip(models, solutions, strict=True)}


def solve_model(
    features_of: FeaturesOf,
    shipped: list[Mapping[str, np.ndarray]],
    rows: KinkRows,
    short_weight: float,
    short_vector: np.ndarray,
    C: float,
    x: np.ndarray,
    alpha: np.ndarray | None,
    fit_intercept: bool,
    tol: float,
) -> KinkSolution:
    """Return the minimum of the model that is exact for some rows and linear for all others."""
    A = _signed(features_of(rows.X, shipped), rows.label)
    linear_weight = short_weight - rows.weight[rows.short].sum()
    linear_vector = short_vector - (rows.weight * rows.short) @ A
    upper, size = C * rows.weight, len(x)
    model = KinkModel(A[:, :size], upper, -C * linear_vector[:size], C * linear_weight, fit_intercept)
    alpha = first_multipliers(model, x) if alpha is None else alpha
    if issparse(A):
        return ascend(model, x, alpha, tol=tol)
    return minimise(model, x, alpha, width=_FIRST_WIDTH, tol=tol)


def _signed(Z: Any, label: np.ndarray) -> Any:
    """Return the rows y·[z | 1] in float64, in the format of Z."""
    if issparse(Z):
        return hstack([diags_array(label) @ Z.astype(np.float64), label[:, None]], format="csr")
    A = np.empty((len(Z), Z.shape[1] + 1))
    np.multiply(Z, label[:, None], out=A[:, :-1])
    A[:, -1] = label
    return A


def _primal(problem: MarginProblem, x: np.ndarray, found: KinkSums, machine: int) -> float:
    w = x[: found.short_vector.shape[1] - 1]
    return problem.C * float(found.value[machine]) + 0.5 * float(w @ w)
