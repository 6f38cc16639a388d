"""What solvers of margin machines ask for, each answer one sweep or one small task on the cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from distrff.columns.scaling import Scaling
from distrff.columns.targets import ClassTargets
from distrff.data.dataset import Dataset
from distrff.estimators.factor_gram import sample_of
from distrff.estimators.gram_context import GramContext
from distrff.estimators.margin_options import MarginOptions
from distrff.estimators.preparation import Preparation
from distrff.features.specification import MapSpecification
from distrff.objective import ridge_system
from distrff.objective.evaluation import Evaluation, Point
from distrff.objective.ridge_moments import RidgeEquations, RidgeMoments
from distrff.solvers.hard_margin import CriticalRows
from distrff.solvers.margin_solvers import Hessian
from distrff.solvers.preconditioner import DiagonalPreconditioner, Preconditioner
from distrff.solvers.ridge_gram import GramProblem, total_gram
from distrff.sweeps.curvature_gram import CurvatureGramReduction
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.folds import Folds
from distrff.sweeps.kink_rows import KinkReduction, KinkSums, can_model, kept_rows, most_model_rows
from distrff.sweeps.margins import LightReduction, MarginReduction, SoftmaxReduction
from distrff.sweeps.plan import Plan
from distrff.sweeps.reduction import joined
from distrff.sweeps.ridge_products import RightSidesReduction
from distrff.sweeps.segments import (
    gram_one_in,
    light_segmentation,
    light_segmentation_of_features,
    margin_tile_rows,
    sparse_segmentation,
)
from distrff.sweeps.smallest_margins import SmallestMargins, SmallestMarginsReduction
from distrff.sweeps.twins import TwinReduction, first_pair

_MOST_FACTORS = 3
_LEAST_CURVATURE = 1e-100
_LIGHT_SWEEPS = 4.0  # that the products of a Hessian may take


class MarginProblem(NamedTuple):
    """One machine: which target it is for, its C, and the fold that is held out of it."""

    output: int
    C: float
    held_out: int | None = None


class KinkPoint(NamedTuple):
    """A point of a hinge machine, with its model's reference point and sorted row numbers."""

    x: np.ndarray
    reference: np.ndarray | None = None
    known: np.ndarray | None = None


@dataclass(frozen=True)
class FeaturesOf:
    """Rows as they were read ↦ their features, as sweeps make them."""

    specification: MapSpecification
    scaling: Scaling
    dtype: str

    def __call__(self, X: np.ndarray, shipped: list[Mapping[str, np.ndarray]]) -> np.ndarray:
        block_map = self.specification.build(joined(shipped))
        return block_map.apply(self.scaling.apply(X, np.dtype(self.dtype)))


class MarginOracle:
    """Evaluates machines by sweeps, and applies preconditioners where the Gram is.

    Parameters
    ----------
    run : SweepRun
    dataset : Dataset
    preparation : Preparation
    plan : Plan
    options : MarginOptions
    grams : GramContext or None
        None where no preconditioner is asked for, or a diagonal one of sparse features.
    folds : Folds or None
        Of the machines that are judged on some.
    """

    def __init__(
        self,
        run: SweepRun,
        dataset: Dataset,
        preparation: Preparation,
        plan: Plan,
        options: MarginOptions,
        grams: GramContext | None,
        folds: Folds | None,
    ) -> None:
        self.run = run
        self._dataset, self._preparation, self._plan = dataset, preparation, plan
        self.n_rows = dataset.n_rows
        self.n_features = preparation.specification.n_features
        self.fit_intercept = options.fit_intercept
        self._loss = options.loss
        self._grams = grams
        self._folds = folds
        self._options = options
        self._moments: RidgeMoments | None = None
        self._factors: WeakValueDictionary[float, _Factor] = WeakValueDictionary()
        dtype = np.dtype(plan.shape.dtype)
        entries = plan.shape.sparse_entries
        self.is_sparse = entries > 0
        self.can_model = can_model(self.n_features, entries)
        self.kept_rows = kept_rows(self.n_features, entries)
        self.most_model_rows = most_model_rows(self.n_features, entries)
        tile_rows = margin_tile_rows(self.n_features, dtype, plan.shape.map_cost.least_tile_rows)
        self._cuts = (
            sparse_segmentation(dataset.n_rows, entries)
            if self.is_sparse
            else light_segmentation_of_features(dataset.n_rows, self.n_features, tile_rows)
        )
        self._shared: dict[str, Any] = {
            "specification": preparation.specification,
            "scaling": preparation.scaling,
            "targets": preparation.targets,
            "dtype": dtype.name,
            "tile_rows": self._cuts.tile_rows,
        }

    def evaluate(self, points: Mapping[MarginProblem, Point]) -> dict[MarginProblem, Evaluation]:
        """Return what one sweep says of one point of each of some machines."""
        asked = [(p, point.x, width) for p, point in points.items() for width in point.widths]
        problems = tuple(problem for problem, _, _ in asked)
        held_out = tuple(problem.held_out for problem in problems)
        folds = self._folds if any(fold is not None for fold in held_out) else None
        reduction = self._reduction(problems, self._shared | {"folds": folds, "held_out": held_out})
        X = np.concatenate([self.columns(x) for _, x, _ in asked], axis=1)
        sent = self._point(X) | {"width": np.array([width for _, _, width in asked])}
        handle = self.run.sweep("margins", self._dataset, reduction, self._cuts, sent)
        sums = self.run.gather([handle])[0]
        answers: dict[MarginProblem, Evaluation] = {}
        for machine, (problem, x, width) in enumerate(asked):
            at = self._evaluation(problem.C, sums, machine, x)
            answers[problem] = replace(answers[problem], next=(width, at)) if problem in answers else at
        return answers

    def kinks(self, points: Mapping[MarginProblem, KinkPoint], n_kept: int) -> KinkSums:
        """Return what one sweep finds at each point, with `n_kept` rows a label for its model."""
        problems, columns = tuple(points), [point.x for point in points.values()]
        references = [point.reference for point in points.values() if point.reference is not None]
        X = np.stack([*columns, *references], axis=1)
        held_out = tuple(problem.held_out for problem in problems)
        reduction = KinkReduction(
            **self._shared,
            folds=self._folds if any(fold is not None for fold in held_out) else None,
            held_out=held_out,
            outputs=tuple(problem.output for problem in problems),
            n_kept=n_kept,
            has_reference=bool(references),
        )
        known = {f"known_{j}": p.known for j, p in enumerate(points.values()) if p.known is not None}
        handle = self.run.sweep("margins", self._dataset, reduction, self._cuts, self._point(X) | known)
        return self.run.gather([handle])[0]

    def smallest_margins(
        self, points: Mapping[MarginProblem, np.ndarray], n_kept: int
    ) -> dict[MarginProblem, CriticalRows]:
        """Return the rows of smallest margin at one point of each machine, `n_kept` of each label."""
        reduction, found = self._smallest_margins(points, n_kept)
        return {problem: reduction.critical_rows(found, j) for j, problem in enumerate(points)}

    def first_twins(self, problem: MarginProblem, x: np.ndarray, n_known: int) -> tuple[int, int] | None:
        """Return two equal rows of opposite labels, one among those that violate most at a point.

        Half of `n_known` are of either label.
        """
        found = self._smallest_margins({problem: x}, n_known // 2)[1]
        number, X, label, margin = found.rows(0)
        violates = margin < 1
        cuts = light_segmentation(self.n_rows, X.shape[1])
        reduction = TwinReduction(
            self.targets, problem.output, int(np.count_nonzero(violates)), cuts.tile_rows
        )
        sent = {"X": X[violates], "label": label[violates]}
        handle = self.run.sweep("twins", self._dataset, reduction, cuts, sent)
        return first_pair(number[violates], self.run.gather([handle])[0])

    def _smallest_margins(
        self, points: Mapping[MarginProblem, np.ndarray], n_kept: int
    ) -> tuple[SmallestMarginsReduction, SmallestMargins]:
        outputs = tuple(problem.output for problem in points)
        reduction = SmallestMarginsReduction(**self._shared, outputs=outputs, n_kept=n_kept)
        sent = self._point(np.stack(list(points.values()), axis=1))
        handle = self.run.sweep("margins", self._dataset, reduction, self._cuts, sent)
        return reduction, self.run.gather([handle])[0]

    def _point(self, X: np.ndarray) -> dict[str, np.ndarray]:
        coef, intercept = (X[:-1], X[-1]) if self.fit_intercept else (X, np.zeros(X.shape[1]))
        return {"coef": coef, "intercept": intercept}

    @property
    def targets(self) -> ClassTargets:
        """The classes."""
        return self._shared["targets"]

    @property
    def features_of(self) -> FeaturesOf:
        """What makes features of the rows that a sweep brought back."""
        specification = self._shared["specification"]
        return FeaturesOf(specification.without_arrays(), self._shared["scaling"], self._shared["dtype"])

    @property
    def shipped_map(self) -> list[Any]:
        """Handles on the map's arrays, as tasks take them."""
        return self.run.shipped_map(self._shared["specification"])

    def _reduction(self, problems: tuple[MarginProblem, ...], shared: dict[str, Any]) -> LightReduction:
        outputs = tuple(problem.output for problem in problems)
        return MarginReduction(**shared, loss=self._loss, outputs=outputs)

    def _evaluation(self, C: float, sums: Any, machine: int, x: np.ndarray) -> Evaluation:
        return Evaluation.of(C, sums, machine, x, fit_intercept=self.fit_intercept)

    def columns(self, x: np.ndarray) -> np.ndarray:
        """Return a point as columns, one an output of the machine."""
        return x[:, None]

    def preconditioner(self, curvature: float) -> Callable[[np.ndarray], np.ndarray]:
        """Return g ↦ (h · Gram + I)⁻¹g for a power of four h near the curvature.

        Beyond the curvature at which I would be lost to the Gram's rounding it is the inverse at that one,
        times the share of it. Machines of like curvature share a factor, which is freed when the last of
        them asks for another. There are few at a time: beyond these the nearest serves.
        """
        if self._grams is None:
            return self._diagonal(curvature).apply
        most = 1 / self._grams.noise_floor(self._grams.problem.sizes[-1])
        if curvature > most:
            at_most = self.preconditioner(most)
            return lambda gradient: at_most(gradient) * (most / curvature)
        h = max(_LEAST_CURVATURE, curvature)
        level = float(np.floor(np.log2(h) / 2))
        if level not in self._factors and len(self._factors) >= _MOST_FACTORS:
            level = min(self._factors, key=lambda other: abs(other - level))
        factor = self._factors.get(level)
        if factor is None:
            grams = self._grams
            handle = self.run.submit(preconditioner_of, grams.total, 4.0**level, grams.problem)
            factor = self._factors[level] = _Factor(self.run, handle)
        return factor.solve

    def _diagonal(self, curvature: float) -> DiagonalPreconditioner:
        """Return the same of the Gram's diagonal, which the first one takes a sweep for."""
        if self._moments is None:
            reduction = RightSidesReduction(**self._shared, offset=None)
            k = self.targets.n_outputs
            zero = {"coef": np.zeros((self.n_features, k)), "intercept": np.zeros(k)}
            handle = self.run.sweep("diagonal", self._dataset, reduction, self._cuts, zero)
            self._moments = self.run.gather([handle])[0]
        equations = RidgeEquations.of(self._moments, fit_intercept=self.fit_intercept)
        return DiagonalPreconditioner(
            max(_LEAST_CURVATURE, curvature),
            equations.z_mean,
            self._moments.weight,
            self.fit_intercept,
            equations.G_diagonal,
        )

    def hessian(self, problem: MarginProblem, at: Evaluation) -> Hessian | None:
        """Return the Hessian at a point, of one row in so many that enough of them bend there; one sweep.

        None where none bends.
        """
        if self._grams is None or not at.n_bending:
            return None
        shape, grams = self._plan.shape, self._grams
        few = int(_LIGHT_SWEEPS * shape.light_flops / shape.size**2)
        one_in = gram_one_in(at.n_bending, self.n_features, few)
        cuts = replace(shape, gram_one_in=one_in).segmentation()
        reduction = CurvatureGramReduction(
            specification=self._preparation.specification,
            scaling=self._preparation.scaling,
            targets=self._preparation.targets,
            dtype=shape.dtype,
            tile_rows=min(cuts.tile_rows, self._plan.tile_rows),
            light_rows=self._cuts.tile_rows,
            folds=sample_of(one_in, self._options, self.n_rows),
            loss=self._loss,
            output=problem.output,
        )
        handle = self.run.sweep("Hessian", self._dataset, reduction, cuts, self._point(at.x[:, None]))
        curvature = one_in * min(problem.C, 1 / grams.noise_floor(grams.problem.sizes[-1]))
        total = self.run.submit(total_gram, [handle], grams.problem)
        factor = _Factor(self.run, self.run.submit(preconditioner_of, total, curvature, grams.problem))
        return Hessian(factor.solve, is_light=at.n_bending <= few)


class SoftmaxOracle(MarginOracle):
    """The same for machines whose classes share one loss; a point is their (D + 1, k) or (D, k) numbers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._n_classes = len(self._shared["targets"].classes)

    def _reduction(self, problems: tuple[MarginProblem, ...], shared: dict[str, Any]) -> LightReduction:
        return SoftmaxReduction(**shared, sigma=self._loss.clear_margin)

    def _evaluation(self, C: float, sums: Any, machine: int, x: np.ndarray) -> Evaluation:
        return Evaluation.of_softmax(C, sums, machine, x, fit_intercept=self.fit_intercept)

    def columns(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, self._n_classes)

    def preconditioner(self, curvature: float) -> Callable[[np.ndarray], np.ndarray]:
        """Return the same map for each class."""
        solve = super().preconditioner(curvature)
        return lambda gradient: solve(self.columns(gradient)).ravel()


class _Factor:
    """A handle on a preconditioner where the Gram is."""

    def __init__(self, run: SweepRun, handle: Any) -> None:
        self.run = run
        self._handle = handle

    def solve(self, gradient: np.ndarray) -> np.ndarray:
        return self.run.gather([self.run.submit(preconditioned, self._handle, gradient)])[0]


def preconditioner_of(total: np.ndarray, curvature: float, problem: GramProblem) -> Preconditioner:
    """Return the preconditioner that a Gram gives: of rows alike, or weighted by their curvature."""
    system = ridge_system(total, problem.n_targets, fit_intercept=problem.fit_intercept)
    return Preconditioner.of(system, curvature)


def preconditioned(preconditioner: Preconditioner, gradient: np.ndarray) -> np.ndarray:
    """Return M⁻¹g."""
    return preconditioner.apply(gradient)
