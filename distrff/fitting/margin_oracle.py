"""Responses to the solvers of margin losses, each one pass over the rows or one small task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from distrff.engine.reduction import Arrays, gram_stride, joined
from distrff.engine.run import Run
from distrff.features.specification import MapSpecification
from distrff.fitting.context import PreparedFit
from distrff.fitting.dual import DualAscent
from distrff.fitting.gram import Grams, factor_gram, sample_of
from distrff.fitting.gram_sums import CurvatureGramReduction
from distrff.fitting.margin_sums import (
    LightReduction,
    MarginReduction,
    NearestRowsReduction,
    NearestSums,
    SmallestMarginsReduction,
    SoftmaxReduction,
    can_model,
    max_model_rows,
    rows_a_label,
)
from distrff.fitting.options import MarginOptions
from distrff.fitting.plan import MIN_GATHERED_ROWS, Plan, margin_cuts
from distrff.fitting.result import MarginProblem, coef_and_intercept
from distrff.fitting.ridge_sums import RightSidesReduction
from distrff.preprocessing.coding import ClassTargets, Scaling
from distrff.preprocessing.folds import Folds
from distrff.solvers.hard_margin import CriticalRows
from distrff.solvers.lbfgs import POINTS_A_HESSIAN, DiagonalPreconditioner, Hessian, Preconditioner
from distrff.solvers.objective import Evaluation, Point
from distrff.solvers.ridge import GramProblem, RidgeEquations, RidgeMoments, ridge_system, total_gram

Solve = Callable[[np.ndarray], np.ndarray]  # g ↦ (h · Gram + I)⁻¹g, of one column or several


class _Solved(NamedTuple):
    """A gradient, and what a factor made of it."""

    factor: Factor
    gradient: np.ndarray
    result: np.ndarray


@dataclass(frozen=True, eq=False)
class Factor:
    """A preconditioner that stays on the worker that has the Gram."""

    run: Run
    handle: Any

    def solve(self, gradient: np.ndarray) -> np.ndarray:
        """Return M⁻¹g for each column of g."""
        return self.run.compute(Preconditioner.apply, self.handle, gradient)


_MAX_FACTORS = 3
_MIN_CURVATURE = 1e-100
_LIGHT_SWEEPS = 4.0  # that the products of a Hessian may take


class HingePoint(NamedTuple):
    """A point of a hinge problem, with its model's reference point and sorted row numbers."""

    x: np.ndarray
    reference: np.ndarray | None = None
    known: np.ndarray | None = None
    label: float = 0.0  # the only one whose rows are asked for; 0 for both


@dataclass(frozen=True)
class FeaturesOf:
    """Rows as they were read ↦ their features, as passes compute them."""

    specification: MapSpecification
    scaling: Scaling
    dtype: str

    def __call__(self, X: np.ndarray, sent: list[Arrays]) -> np.ndarray:
        block_map = self.specification.build_sent(joined(sent))
        return block_map.apply(self.scaling.apply(X, np.dtype(self.dtype)))


class MarginOracle:
    """Evaluates problems by passes over the rows, and applies preconditioners on the worker with the Gram.

    `grams` is None where no preconditioner is needed, or for the diagonal one of sparse features. `folds` are
    for problems with a held-out fold.
    """

    def __init__(
        self, fit: PreparedFit, plan: Plan, grams: Grams | None = None, folds: Folds | None = None
    ) -> None:
        options = fit.options
        assert isinstance(options, MarginOptions)
        self.run, self.options = fit.run, options
        self._fit, self._plan = fit, plan
        self.n_rows = fit.dataset.n_rows
        self.n_features = fit.specification.n_features
        self.fit_intercept = options.fit_intercept
        self._grams = grams
        self.folds = folds
        self._moments: RidgeMoments | None = None
        has_dual = plan.size.dual_rows and plan.solver == "gram"
        self.ascent = DualAscent(fit, plan, folds) if has_dual else None
        self._factors: WeakValueDictionary[float, Factor] = WeakValueDictionary()
        self._factor_of: dict[MarginProblem, Factor] = {}  # the one that each problem took last
        self._solved: dict[MarginProblem, _Solved] = {}
        self._by_hessian: set[MarginProblem] = set()  # which take no factor of the Gram
        entries = plan.size.sparse_entries
        self.is_sparse = entries > 0
        self.can_model = can_model(self.n_features, entries)
        self.rows_a_label = rows_a_label(self.n_features, entries)
        self.max_model_rows = max_model_rows(self.n_features, entries)
        self._cuts = margin_cuts(plan.size)
        # A hard margin looks at the features themselves.
        self._kept = fit.kept("light", plan, self._cuts, of_basis=not options.is_hard)
        self._shared: dict[str, Any] = {"dtype": plan.size.dtype, "tile_rows": self._cuts.tile_rows}

    def evaluate(self, points: Mapping[MarginProblem, Point]) -> dict[MarginProblem, Evaluation]:
        """Return each problem's objective and gradient at its point, and more; one pass over the rows."""
        requests = [(p, point.x, epsilon) for p, point in points.items() for epsilon in point.epsilons]
        problems = tuple(problem for problem, _, _ in requests)
        reduction = self._fit.reduction(
            self._kind, **self._shared, **self._held_out(problems), **self._of_loss(problems)
        )
        X = np.concatenate([self.columns(x) for _, x, _ in requests], axis=1)
        sent = self._point(X) | {"epsilon": np.array([epsilon for _, _, epsilon in requests])}
        sums = self._fit.sum("margins", reduction, self._cuts, sent, self._kept)
        responses: dict[MarginProblem, Evaluation] = {}
        for i, (problem, x, epsilon) in enumerate(requests):
            at = self._evaluation(problem.C, sums, i, x)
            responses[problem] = (
                replace(responses[problem], next=(epsilon, at)) if problem in responses else at
            )
        self._solve_ahead(responses)
        return responses

    def nearest_rows(self, points: Mapping[MarginProblem, HingePoint], n_kept: int) -> NearestSums:
        """Return each problem's sums at its point, with `n_kept` rows a label; one pass over the rows."""
        problems, columns = tuple(points), [point.x for point in points.values()]
        references = [point.reference for point in points.values() if point.reference is not None]
        X = np.stack([*columns, *references], axis=1)
        reduction = self._fit.reduction(
            NearestRowsReduction,
            **self._shared,
            **self._held_out(problems),
            outputs=tuple(problem.output for problem in problems),
            n_kept=n_kept,
            labels=tuple(point.label for point in points.values()),
            has_reference=bool(references),
        )
        known = {f"known_{j}": p.known for j, p in enumerate(points.values()) if p.known is not None}
        return self._fit.sum("margins", reduction, self._cuts, self._point(X) | known, self._kept)

    def smallest_margins(
        self, points: Mapping[MarginProblem, np.ndarray], n_kept: int
    ) -> dict[MarginProblem, CriticalRows]:
        """Return the rows of smallest margin at one point of each problem, `n_kept` of each label."""
        outputs = tuple(problem.output for problem in points)
        reduction: SmallestMarginsReduction = self._fit.reduction(
            SmallestMarginsReduction, **self._shared, outputs=outputs, n_kept=n_kept
        )
        sent = self._point(np.stack(list(points.values()), axis=1))
        found = self._fit.sum("margins", reduction, self._cuts, sent, self._kept)
        return {problem: reduction.critical_rows(found, j) for j, problem in enumerate(points)}

    def _held_out(self, problems: tuple[MarginProblem, ...]) -> dict[str, Any]:
        held_out = tuple(problem.held_out for problem in problems)
        return {"folds": self.folds if any(f is not None for f in held_out) else None, "held_out": held_out}

    def _point(self, X: np.ndarray) -> dict[str, np.ndarray]:
        coef, intercept = coef_and_intercept(X, fit_intercept=self.fit_intercept)
        return {"coef": coef, "intercept": intercept}

    @property
    def targets(self) -> ClassTargets:
        """The classes."""
        assert isinstance(self._fit.targets, ClassTargets)
        return self._fit.targets

    @property
    def features_of(self) -> FeaturesOf:
        """The map from rows that a pass returned to their features."""
        return FeaturesOf(self._fit.specification.without_arrays(), self._fit.scaling, self._shared["dtype"])

    @property
    def sent_map(self) -> list[Any]:
        """Handles on the map's arrays, for tasks."""
        return self.run.share(self._fit.specification)

    # What differs where all classes share one loss.

    _kind: type[LightReduction] = MarginReduction

    def _of_loss(self, problems: tuple[MarginProblem, ...]) -> dict[str, Any]:
        return {"loss": self.options.loss, "outputs": tuple(problem.output for problem in problems)}

    def _evaluation(self, C: float, sums: Any, i: int, x: np.ndarray) -> Evaluation:
        return Evaluation.of(C, sums, i, x, fit_intercept=self.fit_intercept)

    def columns(self, x: np.ndarray) -> np.ndarray:
        """Return a point as columns, one an output of the problem."""
        return x[:, None]

    def preconditioner(self, problem: MarginProblem, curvature: float) -> Solve:
        """Return g ↦ (h · Gram + I)⁻¹g of a problem's gradients, for a power of four h near the curvature.

        Where the curvature is so large that I would be lost in the Gram's rounding, it is the inverse at the
        largest safe curvature, times the ratio of the two. Problems of similar curvature share a
        factor, freed when its last problem needs another. Of three factors the nearest is used.
        """
        self._by_hessian.discard(problem)
        if self._grams is None and self.ascent is not None:  # the dual leaves little to do
            self._grams = factor_gram(self._fit, self._plan)
        if self._grams is None:
            diagonal = self._diagonal(curvature)
            return lambda gradient: self._by_columns(diagonal.apply, gradient)
        max_curvature = 1 / self._grams.noise_floor()
        factor = self._factor_of[problem] = self._factor(min(curvature, max_curvature))
        ratio = min(1.0, max_curvature / curvature) if curvature > 0 else 1.0
        return lambda gradient: self._applied(problem, factor, gradient) * ratio

    def _factor(self, curvature: float) -> Factor:
        """Return the factor of a power of four near the curvature, one of three at most."""
        assert self._grams is not None
        level = float(np.floor(np.log2(max(_MIN_CURVATURE, curvature)) / 2))
        if level not in self._factors and len(self._factors) >= _MAX_FACTORS:
            level = min(self._factors, key=lambda other: abs(other - level))
        factor = self._factors.get(level)
        if factor is None:
            handle = self.run.submit(preconditioner_of, self._grams.total, 4.0**level, self._grams.problem)
            factor = self._factors[level] = Factor(self.run, handle)
        return factor

    def _solve_ahead(self, responses: Mapping[MarginProblem, Evaluation]) -> None:
        """Apply to the gradients of a pass the factors that their problems take, in one task a factor.

        A task for each of ten classes took as long as a sweep of features that are kept. A trial point of a
        line search that is rejected has one for nothing. A smooth loss takes its first factor at the
        curvature of its first point.
        """
        before, self._solved, self._factor_of = self._factor_of, {}, {}
        if self._grams is None or len(responses) == 1:
            self._factor_of = {p: factor for p, factor in before.items() if p in responses}
            return
        is_smooth, max_curvature = self.options.direct_solver == "lbfgs", 1 / self._grams.noise_floor()
        for problem, at in responses.items():
            if problem in self._by_hessian:
                continue
            if problem in before:
                self._factor_of[problem] = before[problem]
            elif is_smooth:
                self._factor_of[problem] = self._factor(min(at.curvature, max_curvature))
        for factor in dict.fromkeys(self._factor_of.values()):
            theirs = [p for p, own in self._factor_of.items() if own is factor]
            found = self._by_columns(factor.solve, np.stack([responses[p].gradient for p in theirs], axis=1))
            for i, problem in enumerate(theirs):
                self._solved[problem] = _Solved(factor, responses[problem].gradient, found[:, i].copy())

    def _applied(self, problem: MarginProblem, factor: Factor, gradient: np.ndarray) -> np.ndarray:
        ready = self._solved.get(problem)
        if ready is not None and ready.gradient is gradient and ready.factor is factor:
            return ready.result
        return self._by_columns(factor.solve, gradient)

    def _by_columns(self, solve: Solve, gradients: np.ndarray) -> np.ndarray:
        """Return M⁻¹g of a gradient, or of several in columns, as one solve for all their columns."""
        members = gradients[:, None] if gradients.ndim == 1 else gradients
        found = solve(np.concatenate([self.columns(g) for g in members.T], axis=1))
        solved = [part.ravel() for part in np.split(found, members.shape[1], axis=1)]
        return solved[0] if gradients.ndim == 1 else np.stack(solved, axis=1)

    def _diagonal(self, curvature: float) -> DiagonalPreconditioner:
        """Return the same for the Gram's diagonal; the first call takes a sweep."""
        if self._moments is None:
            reduction = self._fit.reduction(RightSidesReduction, **self._shared, offset=None)
            k = self._fit.targets.n_outputs
            zero = {"coef": np.zeros((self.n_features, k)), "intercept": np.zeros(k)}
            self._moments = self._fit.sum("diagonal", reduction, self._cuts, zero, self._kept)
        assert self._moments is not None
        equations = RidgeEquations.of(self._moments, fit_intercept=self.fit_intercept)
        return DiagonalPreconditioner(
            max(_MIN_CURVATURE, curvature),
            equations.z_mean,
            self._moments.weight,
            self.fit_intercept,
            equations.G_diagonal,
        )

    def hessian_after(self, n_problems: int) -> int | None:
        """Return after how many points so many problems take Hessians; None if the plan has none for them.

        By then the light sweeps of several took about twice as long as the pass for their Hessians does, and
        most fits have ended. On seven classes of covtype (40,000 rows, D = 1024) and C = 1, light sweeps
        alone took 3.3 s; with Hessians after half as many points it was 4.5 s. At C = 100 the fit took 7 s
        with Hessians; without them, the gap was still open after 18 s. One problem takes its Hessian after
        nine points: its sweeps are as long as those of several where features are not kept.
        """
        size = self._plan.size
        if self._grams is None or n_problems > size.n_hessians:
            return None
        waits = math.ceil(2 * size.hessian_sweeps) if n_problems > 1 else 0
        return max(POINTS_A_HESSIAN, waits)

    def hessians(self, points: Mapping[MarginProblem, Evaluation]) -> dict[MarginProblem, Hessian | None]:
        """Return each problem's Hessian at a point, from a stride of rows that leaves enough curved ones.

        None where no row has a curved loss. Problems of one stride take one sweep.
        """
        found, few = dict.fromkeys(points, None), self._few_curved()
        by_stride: dict[int, list[MarginProblem]] = {}
        for problem, at in points.items():
            if at.n_curved:
                by_stride.setdefault(gram_stride(at.n_curved, self.n_features, few), []).append(problem)
        for stride, problems in by_stride.items():
            self._by_hessian.update(problems)
            found |= {
                problem: Hessian(factor.solve, is_light=points[problem].n_curved <= few)
                for problem, factor in self._curved({p: points[p].x for p in problems}, stride).items()
            }
        return found

    def _few_curved(self) -> int:
        """Return the curved rows whose products take no longer than four light sweeps.

        Of several problems these are sweeps of kept features, less what making the features again takes.
        """
        size = self._plan.size
        if size.n_hessians == 1:
            return int(_LIGHT_SWEEPS * size.light_flops / size.hessian_size**2)
        left = _LIGHT_SWEEPS * size.kept_sweep_flops - size.n_rows * size.basis_flops
        return max(0, int(left / size.n_hessians / size.hessian_size**2))

    def _curved(self, points: Mapping[MarginProblem, np.ndarray], stride: int) -> dict[MarginProblem, Factor]:
        """Return the factors of the problems' Hessians, of one row in `stride`; one sweep."""
        assert self._grams is not None
        grams, cuts = self._grams, replace(self._plan.size, gram_stride=stride).segmentation()
        # All problems together gather as many rows as a Gram's tile has, for products of 512 at least.
        tile_rows = max(MIN_GATHERED_ROWS, min(cuts.tile_rows, self._plan.tile_rows) // len(points))
        reduction = self._fit.reduction(
            CurvatureGramReduction,
            dtype=self._plan.size.dtype,
            tile_rows=tile_rows,
            light_rows=self._cuts.tile_rows,
            folds=sample_of(self._fit, stride),
            loss=self.options.loss,
            outputs=tuple(problem.output for problem in points),
        )
        sent = self._point(np.stack(list(points.values()), axis=1))
        handle = self.run.reduce("Hessian", self._fit.dataset, reduction, cuts, sent)
        factors = {}
        for position, problem in enumerate(points):
            curvature = stride * min(problem.C, 1 / grams.noise_floor())
            factor = self.run.submit(hessian_factor, handle, position, curvature, grams.problem)
            factors[problem] = Factor(self.run, factor)
        return factors


class SoftmaxOracle(MarginOracle):
    """The same where all classes share one loss; a point has shape (D + 1, k) or (D, k), flattened."""

    _kind = SoftmaxReduction

    def _of_loss(self, problems: tuple[MarginProblem, ...]) -> dict[str, Any]:
        return {"sigma": self.options.loss.clear_margin}

    def _evaluation(self, C: float, sums: Any, i: int, x: np.ndarray) -> Evaluation:
        return Evaluation.of_softmax(C, sums, i, x, fit_intercept=self.fit_intercept)

    def columns(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, self._fit.targets.n_outputs)


def hessian_factor(
    packed: np.ndarray, position: int, curvature: float, problem: GramProblem
) -> Preconditioner:
    """Return the inverse of one of several Hessians, whose sums are packed triangles."""
    of_features = replace(problem, n_targets=0, offset=None)
    total = total_gram([packed[position : position + 1]], of_features)
    return preconditioner_of(total, curvature, of_features)


def preconditioner_of(total: np.ndarray, curvature: float, problem: GramProblem) -> Preconditioner:
    """Return the preconditioner that a Gram gives: of rows alike, or weighted by their curvature."""
    system = ridge_system(total, problem.n_targets, fit_intercept=problem.fit_intercept)
    return Preconditioner.of(system, curvature)
