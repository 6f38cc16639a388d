"""The hinge's last digits: models of few rows that grow where a pass over all rows shows them wrong.

A model is exact for the rows that were near the hinge y·f = 1 at its reference point, or changed sides since
(see `solvers.active_set`). Its minimum bounds the objective of all rows from below and rises with each row;
where no row outside has changed sides, it is the objective's minimum. A model of all rows is the whole
problem. The bound has to come from such a model: for the hinge w does not determine the dual point, and the
best bound that follows from w alone leaves a gap of 1 to 11 % at the exact optimum. Models of dense features
are solved by Newton steps of D³/3 flops, those of sparse ones, which have more features than rows, by steps
in the rows' multipliers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import diags_array, hstack, issparse

from distrff.engine.reduction import Arrays
from distrff.fitting.cost import WIDENING
from distrff.fitting.light import FeaturesOf, HingePoint, MarginOracle, NearestRows, NearestSums
from distrff.fitting.result import MarginProblem
from distrff.solvers.active_set import ActiveSetModel, ActiveSetSolution, ascend, first_multipliers, minimise

_MODEL_SHARE = 0.4  # of tol
_FIRST_EPSILON = 1.0
_FAR = 2.0**20  # for an intercept
# With a poor reference point, rows can be added round after round and the bound never rises enough.
# Models that do finish leave about a third of the distance at first, and those that came near all finished.
_NEAR, _FIRST_SHARE = 0.1, 0.3


@dataclass(eq=False)
class _Model:
    """One problem's model: rows, and the sums at its reference point over all rows."""

    reference: np.ndarray
    rows: NearestRows
    violating_weight: float
    violating_vector: np.ndarray
    x: np.ndarray
    alpha: np.ndarray | None = None
    distance: float = np.inf

    def is_on_course(self, distance: float, n_rounds: int) -> bool:
        """Whether the bound will be near the objective after that many rounds like the last.

        `distance` is the gap between the two, relative to the objective. The first round predicts nothing.
        """
        share = distance / self.distance if np.isfinite(self.distance) else _FIRST_SHARE
        self.distance = distance
        return distance * min(1.0, share) ** n_rounds <= _NEAR

    @property
    def known(self) -> np.ndarray:
        return np.sort(self.rows.number)

    @property
    def excess(self) -> float:
        """The intercept's slope in the linear part beyond what the rows' multipliers can balance.

        Its sign is the label of the rows that cause it; 0 where the model has a minimum.
        """
        signed = self.rows.weight * self.rows.label
        slope = float(self.violating_vector[-1] - signed[self.rows.violating].sum())
        lowest, highest = -float(signed[signed > 0].sum()), -float(signed[signed < 0].sum())
        return max(0.0, slope - highest) + min(0.0, slope - lowest)

    def without_violations(self, label: float) -> np.ndarray:
        """The reference point with an intercept at which no row of the label is violating.

        All rows of the label move alike: those that violated most are then the nearest to the hinge.
        """
        x = self.reference.copy()
        x[-1] += _FAR * max(1.0, abs(x[-1])) * label
        return x

    def add(self, rows: NearestRows, C: float) -> None:
        """Take more rows, each with the multiplier of its side at the reference point."""
        self.rows = self.rows.merge(rows, None)
        if self.alpha is not None:
            self.alpha = np.append(self.alpha, np.where(rows.violating, C * rows.weight, 0.0))


def finish_exactly(
    oracle: MarginOracle,
    points: Mapping[MarginProblem, np.ndarray],
    nearest_rows: Callable[[Mapping[MarginProblem, HingePoint], int], NearestSums | None],
    improve: Callable[[MarginProblem, np.ndarray, float, float, np.ndarray], bool],
    *,
    tol: float,
) -> None:
    """Improve each problem from its point until that is good enough, or its model cannot grow.

    `nearest_rows` is that of `MarginOracle`, and returns None once no more passes are allowed. `improve`
    takes a problem, a point, its objective, a lower bound, and the sums over held-out rows; it returns
    whether the point is good enough.
    """
    models: dict[MarginProblem, _Model] = {}
    if not points:
        return
    found = nearest_rows({problem: HingePoint(x) for problem, x in points.items()}, oracle.rows_a_label)
    if found is not None:
        for i, (problem, x) in enumerate(points.items()):
            rows, weight = found.rows(i), float(found.violating_weight[i])
            if len(rows.number):  # else no row has weight, as where a fold alone has any
                models[problem] = _Model(x, rows, weight, found.violating_vector[i], x)
        primal = {problem: _primal(problem, x, found, i) for i, (problem, x) in enumerate(points.items())}
        _widen(oracle, models, nearest_rows)
    while models:
        tols = {problem: _MODEL_SHARE * tol * primal[problem] for problem in models}
        bounds = _minimise_models(oracle, models, tols)
        found = nearest_rows(
            {p: HingePoint(m.x, m.reference, m.known) for p, m in models.items()}, oracle.rows_a_label
        )
        if found is None:
            return
        unfinished = {}
        for i, (problem, model) in enumerate(models.items()):
            value = _primal(problem, model.x, found, i)
            primal[problem] = min(primal[problem], value)
            is_good = improve(problem, model.x, value, bounds[problem], found.held_out[:, i])
            rows = found.rows(i)
            n_rows = len(rows.number)
            room = oracle.max_model_rows - len(model.rows.number)
            if is_good or not 0 < n_rows <= room:
                continue
            distance = (primal[problem] - bounds[problem]) / primal[problem]
            has_room_for_all = oracle.n_rows <= oracle.max_model_rows
            if has_room_for_all or model.is_on_course(distance, room // n_rows):
                model.add(rows, problem.C)
                unfinished[problem] = model
        models = unfinished


def _widen(
    oracle: MarginOracle,
    models: dict[MarginProblem, _Model],
    nearest_rows: Callable[[Mapping[MarginProblem, HingePoint], int], NearestSums | None],
) -> None:
    """Add rows to each model without a minimum until it has one; drop those that would grow too large."""
    while oracle.fit_intercept and (lacking := {p: model for p, model in models.items() if model.excess}):
        labels = {problem: np.sign(model.excess) for problem, model in lacking.items()}
        points = {
            problem: HingePoint(
                model.without_violations(labels[problem]), model.reference, model.known, labels[problem]
            )
            for problem, model in lacking.items()
        }
        more = nearest_rows(points, WIDENING * oracle.rows_a_label)
        if more is None:
            models.clear()
            return
        for i, (problem, model) in enumerate(lacking.items()):
            rows = more.sides[i][0 if labels[problem] > 0 else 1]
            n_needed = 1 + int(np.searchsorted(np.cumsum(rows.weight), abs(model.excess)))
            model.add(rows.first(n_needed + oracle.rows_a_label), problem.C)
            if len(model.rows.number) > oracle.max_model_rows or not len(rows.number):
                del models[problem]


def _minimise_models(
    oracle: MarginOracle, models: Mapping[MarginProblem, _Model], tols: Mapping[MarginProblem, float]
) -> dict[MarginProblem, float]:
    """Move each model to its minimum, side by side on the cluster; return their lower bounds."""
    shared = (oracle.features_of, oracle.sent_map, oracle.fit_intercept)
    calls = [(*shared, model, problem.C, tols[problem]) for problem, model in models.items()]
    solutions: list[ActiveSetSolution] = oracle.run.map(solve_model, calls)
    for model, solution in zip(models.values(), solutions, strict=True):
        model.x, model.alpha = solution.x, solution.alpha
    return {problem: solution.bound for problem, solution in zip(models, solutions, strict=True)}


def solve_model(
    features_of: FeaturesOf, sent: list[Arrays], fit_intercept: bool, at: _Model, C: float, tol: float
) -> ActiveSetSolution:
    """The minimum of the model that is exact for some rows and linear for all others."""
    rows, x = at.rows, at.x
    A = _signed(features_of(rows.X, sent), rows.label)
    linear_weight = at.violating_weight - rows.weight[rows.violating].sum()
    linear_vector = at.violating_vector - (rows.weight * rows.violating) @ A
    upper, size = C * rows.weight, len(x)
    model = ActiveSetModel(A[:, :size], upper, -C * linear_vector[:size], C * linear_weight, fit_intercept)
    alpha = first_multipliers(model, x) if at.alpha is None else at.alpha
    if issparse(A):
        return ascend(model, x, alpha, tol=tol)
    return minimise(model, x, alpha, epsilon=_FIRST_EPSILON, tol=tol)


def _signed(Z: Any, label: np.ndarray) -> Any:
    """The rows y·[z | 1] in float64, in the format of Z."""
    if issparse(Z):
        return hstack([diags_array(label) @ Z.astype(np.float64), label[:, None]], format="csr")
    A = np.empty((len(Z), Z.shape[1] + 1))
    np.multiply(Z, label[:, None], out=A[:, :-1])
    A[:, -1] = label
    return A


def _primal(problem: MarginProblem, x: np.ndarray, found: NearestSums, i: int) -> float:
    w = x[: found.violating_vector.shape[1] - 1]
    return problem.C * float(found.value[i]) + 0.5 * float(w @ w)
