"""Ridge on equispaced features: one pass for sums, then smoothness, widths and alpha without the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import add, attrgetter, getitem, sub
from typing import Any, ClassVar, NamedTuple

import numpy as np

from distrff.engine.reduction import Arrays, Reduction, Segmentation, light_segmentation
from distrff.engine.run import Run
from distrff.engine.tasks import LocalExecution, Workers
from distrff.errors import DataWarning, InputError, ModelFileError, warn
from distrff.features.equispaced import (
    EquispacedFourierFeatures,
    EquispacedMap,
    Lattice,
    Trend,
    coef_of,
    scaled_widths,
)
from distrff.features.fitted import FittedMap
from distrff.features.search.sample import descend, halving
from distrff.fitting.cost import SLACK_BYTES, LightPasses, Plan, Size, planned, ready_bytes
from distrff.fitting.gram import ridge_size
from distrff.fitting.problem import FitContext, Penalty, PreparedFit, Problem
from distrff.fitting.result import (
    AlphaSearch,
    FitResult,
    end_of_alphas,
    ridge_fold_models,
    ridge_result,
    rkhs_norm,
)
from distrff.fitting.rows import by_sum
from distrff.fitting.spectra import LAST_MODES, Likely, Spectrum, likeliest, of_smoothness
from distrff.fitting.sums import LIKE_THE_FIRST, RowSums
from distrff.io.dataset import RowBlock, Rows
from distrff.kernels.base import Kernel, kernel_from_dict
from distrff.model.model import FoldModels
from distrff.preprocessing.coding import Scaling as Scaling  # of fields of RowSums, which pages look up here
from distrff.preprocessing.coding import Targets
from distrff.preprocessing.folds import Folds
from distrff.preprocessing.table import TableSteps as TableSteps  # likewise
from distrff.solvers.objective import Status
from distrff.solvers.posterior import PosteriorSamples, residual_freedom
from distrff.solvers.ridge import (
    FoldTerms,
    RidgeSolution,
    above_noise,
    default_alphas,
    no_weight,
)
from distrff.solvers.toeplitz import (
    MAX_LANCZOS,
    NO_DEVIATIONS,
    Ending,
    SumsOfRows,
    ToeplitzProblem,
    ToeplitzSums,
    TrendProblem,
    TrendSums,
    finer_pairs,
    half_of,
    held_out_path,
    span_numbers,
    whole_of,
)
from distrff.utils.nufft import fine_grid_bytes_of
from distrff.utils.random import stream
from distrff.utils.validation import check_count, positive

EPS = 1e-10  # of the transforms
_ROWS_A_MODE = (4.0, 1.2, 0.4)  # of a transform of one to three coordinates: the FFT is a fifth of its work
_FEWEST = 4  # two runs from a quarter of the rows on: two workers are the least of a cluster


@dataclass(frozen=True)
class FoldRows:
    """A run of rows, of which a task makes some sums of the folds."""

    rows: Rows
    members: tuple[int, ...]

    @property
    def start(self) -> int:
        return self.rows.start

    @property
    def stop(self) -> int:
        return self.rows.stop


def rows_a_call(n_modes: int, d: int) -> int:
    """How many rows a transform of d coordinates to so many modes should have at once."""
    return 1 + int(_ROWS_A_MODE[min(d, len(_ROWS_A_MODE)) - 1] * n_modes)


@dataclass(frozen=True)
class FoldCuts:
    """Where rows and sums are cut: `n_runs` equal runs of rows, each of all sums or of one sum a task."""

    n_rows: int
    n_sums: int
    n_runs: int

    @classmethod
    def of(cls, n_rows: int, n_sums: int, call_rows: int) -> FoldCuts:
        """Cuts with `call_rows` to twice as many rows a sum and run; for fewer rows two runs, or one."""
        # A power of two, so that as many workers end together, which depends on neither their number nor
        # their speed; where a worker's memory is short, `call_rows` is smaller. Of terrain (6.5 million rows,
        # 1.8 million values of v, without folds) eight runs took two workers 1.8 s, and two runs 1.3 s.
        full = n_rows / (n_sums * call_rows)
        return cls(n_rows, n_sums, 2 ** int(math.log2(max(2, full))) if _FEWEST * full >= 1 else 1)

    @property
    def run_rows(self) -> int:
        return -(-self.n_rows // self.n_runs)

    @property
    def together(self) -> bool:
        """Whether a task makes all sums; of a single run each sum has a task, which reads all rows."""
        return self.n_runs > 1 or self.n_sums == 1

    @property
    def task_rows(self) -> int:
        """Rows that a task sums, about."""
        return self.run_rows if self.together else -(-self.run_rows // self.n_sums)

    def tasks(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Start, stop and sums of each task, the runs of a sum one after another."""
        bounds = [(a, min(a + self.run_rows, self.n_rows)) for a in range(0, self.n_rows, self.run_rows)]
        groups = [tuple(range(self.n_sums))] if self.together else [(j,) for j in range(self.n_sums)]
        return [(start, stop, members) for members in groups for start, stop in bounds]


@dataclass(frozen=True, kw_only=True)
class ToeplitzReduction(Reduction):
    """Reduction to the `ToeplitzSums` of each sum of the folds, some sums a task: a dictionary by number.

    They have the same bits for the same cuts: a call has rows of a run and a sum, in their order.
    """

    lattice: Lattice
    targets: Targets
    folds: Folds
    eps: float
    tile_rows: int  # that are read at once
    call_rows: int  # that are summed at once, at most
    trend: Trend | None = None

    def size_bytes(self, n_rows: int) -> int:
        n, d = self.lattice.n_modes, len(self.lattice.modes)
        return 8 * n * (2**d + self.targets.n_outputs + self._n_covariates) * self.folds.n_sums

    @property
    def _n_covariates(self) -> int:
        return 0 if self.trend is None else len(self.trend.columns)

    def merge(
        self, first: dict[int, ToeplitzSums] | None, second: dict[int, ToeplitzSums] | None
    ) -> dict[int, ToeplitzSums]:
        first, second = first or {}, second or {}
        return first | second | {i: first[i] + second[i] for i in first.keys() & second.keys()}

    def update(
        self, total: dict[int, ToeplitzSums] | None, rows: FoldRows, arrays: Arrays
    ) -> dict[int, ToeplitzSums]:
        n_outputs = self.targets.n_outputs + self._n_covariates
        transform = SumsOfRows(self.lattice.modes, n_outputs, self.eps)
        waiting = {
            number: _Points(self.lattice, self.targets, self.trend, n_outputs) for number in rows.members
        }
        found = dict(total or {})

        def add(number: int) -> None:
            phases, Y, s = waiting[number].joined()
            some = transform.sums(phases, Y, s)
            if self.trend is not None:
                some = TrendSums.of(some, Y, s, self._n_covariates)
            found[number] = found[number] + some if number in found else some
            waiting[number] = _Points(self.lattice, self.targets, self.trend, n_outputs)

        for block in rows.rows.tiles(self.tile_rows):
            for position, part in by_sum(self.folds, rows.members, block, self.tile_rows):
                number = rows.members[position]
                waiting[number].add(part)
                if waiting[number].n_rows >= self.call_rows:
                    add(number)
        for number in rows.members:
            # A fold without rows has zeros of its own, as every number is looked for.
            if waiting[number].n_rows or number not in found:
                add(number)
        return found


class _Points:
    """Rows that wait for a transform, with coded targets, covariates as further ones, and weights."""

    def __init__(self, lattice: Lattice, targets: Targets, trend: Trend | None, n_outputs: int) -> None:
        self._lattice, self._targets, self._trend, self._n_outputs = lattice, targets, trend, n_outputs
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.n_rows = 0

    def add(self, block: RowBlock) -> None:
        """Add a block of rows."""
        s = self._targets.row_weights(block.y, block.sample_weight)
        n = block.X.shape[0]
        weights = np.ones(n) if s is None else np.asarray(s, dtype=np.float64)
        X, Y = block.X, self._targets.encode(block.y)
        if self._trend is not None:
            X, Y = self._trend.placed(X), np.hstack([Y, self._trend.covariates(X)])
        self._parts.append((X, Y, weights))
        self.n_rows += n

    def joined(self) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
        """All phases, targets and weights; the rows are no longer kept here."""
        parts, self._parts = self._parts, []
        if not parts:
            empty = np.empty(0)
            return [empty for _ in self._lattice.modes], np.empty((0, self._n_outputs)), empty
        X, Y, s = (np.concatenate(part) for part in zip(*parts, strict=True))
        return self._lattice.phases(X), Y, s


def bytes_a_row(d: int, n_outputs: int) -> tuple[int, int]:
    """The bytes of a row that waits, and more of one that is summed."""
    waiting = 8 * (d + n_outputs + 1)
    # Its copy while parts are joined, its phases, weighted targets, strengths and sorted place.
    return waiting, waiting + 8 * (d + n_outputs) + 16 * math.ceil((n_outputs + 1) / 2) + 8


# The sums as a value.


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ToeplitzStatistics(RowSums):
    """The sums over some rows that ridge on equispaced features needs; the kernel is still free.

    Parameters
    ----------
    parts : tuple of ToeplitzSums
        Those that the folds take.
    specification : EquispacedMap
        The lattice of frequencies, and the kernel from which a search begins.
    kernel : Kernel
        As it was given, perhaps with undecided parts.
    tol : float
        Of `EquispacedFourierFeatures`.

    Notes
    -----
    The other parameters, `+` and `−` are as of `GramStatistics`. Sums are of the same lattice, and so of the
    same bounds: make the second one with ``gram(..., like=the first)``.
    """

    specification: EquispacedMap
    parts: tuple[ToeplitzSums, ...]
    kernel: Kernel
    tol: float

    dtype: ClassVar[str] = "float64"
    kind: ClassVar[str] = "toeplitz"
    own_arrays: ClassVar[tuple[str, ...]] = ("v", "b", "squares")
    words: ClassVar[tuple[str, str, str]] = "these sums have", "the first sums hold", "these sums"

    @property
    def n_sums(self) -> int:
        return len(self.parts)

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        of_parts = [(part.weight, part.sums, part.squares) for part in self.parts]
        weights, sums, squares = (np.array(values) for values in zip(*of_parts, strict=True))
        return weights, sums, squares

    @property
    def features(self) -> EquispacedFourierFeatures:
        """The map, as it was before a kernel was chosen."""
        return EquispacedFourierFeatures.of_specification(self.specification, self.kernel, self.tol)

    def _check_map(self, other: ToeplitzStatistics) -> None:
        if self.specification.lattice != other.specification.lattice:
            raise InputError(
                f"these sums are of different frequencies, since their bounds or kernels differ: "
                f"{self.specification.lattice.bounds} and {other.specification.lattice.bounds}; "
                f"{LIKE_THE_FIRST}"
            )

    def _recoded(self, ratio: np.ndarray, offset: np.ndarray) -> ToeplitzStatistics:
        return replace(self, parts=tuple(part.recoded(ratio, offset) for part in self.parts))

    def _joined(self, other: ToeplitzStatistics) -> ToeplitzStatistics:
        return replace(self, parts=tuple(a + b for a, b in zip(self.parts, other.parts, strict=True)))

    def _rest(self, other: ToeplitzStatistics) -> ToeplitzStatistics:
        first, second = (combined(one.parts, one.by_folds.total) for one in (self, other))
        return replace(self, parts=(first - second,), folds=None)

    def _parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        v, b = (np.stack([getattr(part, name) for part in self.parts]) for name in ("v", "b"))
        squares = np.stack([part.squares for part in self.parts])
        # Groups store real numbers alone; complex ones are pairs of them along the last axis.
        arrays = {"v": v.view(np.float64), "b": b.view(np.float64), "squares": squares}
        rows = [part.n_rows for part in self.parts]
        return arrays, {"kernel": self.kernel.to_dict(), "tol": self.tol, "fold_rows": rows}

    @classmethod
    def _from_parts(
        cls,
        arrays: Mapping[str, np.ndarray],
        metadata: Mapping[str, Any],
        specification: FittedMap,
        targets: Targets,
    ) -> dict[str, Any]:
        if not isinstance(specification, EquispacedMap):
            raise ModelFileError("it is of another map; write the sums again")
        if any(arrays[name].dtype != np.float64 for name in cls.own_arrays):
            raise ModelFileError("its sums are not float64; write them again")
        v, b = (arrays[name].view(np.complex128) for name in ("v", "b"))
        rows = list(metadata["fold_rows"])
        for n in rows:
            check_count("fold_rows", n, 0)
        modes, k = specification.lattice.modes, targets.n_outputs
        n_folds, last = len(rows), modes[-1]
        of_v = (n_folds, *(4 * m + 1 for m in modes[:-1]), 2 * last + 1)
        of_b = (n_folds, k, *(2 * m + 1 for m in modes[:-1]), last + 1)
        if v.shape != of_v or b.shape != of_b or arrays["squares"].shape != (n_folds, k) or not n_folds:
            raise ModelFileError("it has sums of other shapes; write them again")
        positive("tol", metadata["tol"])
        return {
            "parts": tuple(ToeplitzSums(*part) for part in zip(v, b, arrays["squares"], rows, strict=True)),
            "n_rows": sum(rows),
            "kernel": kernel_from_dict(metadata["kernel"]),
            "tol": float(metadata["tol"]),
        }


# The solver.


NO_GCV = (
    "alpha='gcv' needs a Gram that is written out, and equispaced features have its sums alone; use "
    "alpha='cv', which is exact for them"
)
NO_TREND = "a trend needs an intercept; fit with one, or leave the trend out"
NO_GROWTH = "partial_fit and gram take no trend; use fit on all rows, or leave the trend out"
# Of objectives that are only compared: held-out errors are exact for any solution.
_FIRST_TOL, _SEARCH_TOL = 3e-3, 1e-3
# Of the model's objective, times tol; the second where rows are held out at random: that asks for no gaps.
_OBJECTIVE_SHARE, _SHARE_AT_RANDOM = 0.003, 0.01
_SEARCH_STEPS, _MAX_STEPS = 200, 2000
# The default grid goes on below the usual one: many modes leave little to smooth.
_LOWER, _N_LOWER = 100.0, 5


class ToeplitzRidge:
    """Ridge on equispaced features, which are never made: their Gram is a Toeplitz matrix of some sums."""

    def refuses(self, problem: Problem) -> str | None:
        features: Any = problem.features
        if features.trend is not None and problem.grows:
            return NO_GROWTH
        if features.trend is not None and not problem.fit_intercept:
            return NO_TREND
        return NO_GCV if problem.penalty.search == "gcv" else None

    def size(self, fit: FitContext, size: Size) -> Size:
        features: Any = fit.problem.features
        n_places, n_covariates = features.sizes(size.n_columns)
        climbs = features.chooses and fit.problem.folds.go_by_places
        own = ridge_size(fit.problem, size)
        return replace(own, n_places=n_places, n_covariates=n_covariates, climbs=climbs)

    def cost(self, size: Size, workers: Workers) -> Iterator[Plan]:
        """Fewer rows a transform take less memory, and more transforms."""
        call_rows = rows_a_call(2**size.n_places * size.n_features, size.n_places)
        while True:
            yield toeplitz_plan(size, call_rows, workers)
            if call_rows <= _MIN_CALL_ROWS:
                return
            call_rows = max(_MIN_CALL_ROWS, call_rows // 2)

    def light_passes(self, plan: Plan) -> LightPasses:
        return [], 0

    def solve(self, fit: PreparedFit, plan: Plan) -> FitResult:
        fit.run.begin_phase("sums")
        return solved(summed(fit, plan), fit.problem, plan)


def fit_toeplitz_statistics(statistics: ToeplitzStatistics, problem: Problem) -> FitResult:
    """The fit of ridge to sums in the client's memory.

    Raises InputError if there are no rows, the other kind of targets, or no folds although ``alpha="cv"`` or
    undecided widths need them.
    """
    statistics.check_for(problem.target_kind)
    problem.check_targets(statistics.targets)
    features = statistics.features
    if problem.penalty.search == "gcv":
        raise InputError(NO_GCV)
    folds = statistics.by_folds
    if (problem.penalty.search == "cv" or features.chooses) and folds.n_sums < 2:
        raise InputError(
            "alpha='cv', and widths that are to be chosen, need sums with folds: make them with "
            "cv=5. A difference of sums has no folds, since those of the forgotten "
            "rows are not known: make sums of a kernel with widths, and give alpha a number"
        )
    sums = Sums(
        run=Run(LocalExecution("threads")),
        features=features,
        targets=statistics.targets,
        n_rows=statistics.n_rows,
        weight=statistics.weight,
        parts=list(statistics.parts),
        folds=folds,
        total=combined(statistics.parts, folds.total),
    )
    return solved(sums, problem, None)


@dataclass(frozen=True, eq=False)
class Sums:
    """Handles on the sums of the folds and of all rows, where they were made, and what they are sums of."""

    run: Run
    features: EquispacedFourierFeatures
    targets: Targets
    n_rows: int
    weight: float
    parts: list[Any]
    folds: Folds
    total: Any
    fit: PreparedFit | None = None  # of the rows; None where only their sums are known
    plan: Plan | None = None  # of that fit
    offset: np.ndarray | None = None  # to be added to coded targets, where these are not to be shifted
    chosen: Chosen | None = None

    @property
    def lattice(self) -> Lattice:
        return self.features.lattice_

    @property
    def n_weighted_rows(self) -> int:
        """Rows whose weight is not 0, about."""
        return self.n_rows if self.fit is None else self.features.n_weighted_rows_

    def noise_floor(self, largest_weight: float) -> float:
        """The alpha below which the Toeplitz matrix may lose its definiteness."""
        # The transforms are off by EPS of Σs, and √w·T·√w by that times the largest w.
        return EPS * self.weight * largest_weight

    def of_fold(self, fold: int) -> tuple[list[Any], FoldTerms]:
        """Handles on the sums of a fold, and its terms by these."""
        folds = self.folds
        terms = FoldTerms.of(folds.train[fold], folds.test[fold], folds.total)
        # The others may be on other workers.
        own = np.flatnonzero((terms.test != 0) | (terms.used != 0))
        return [self.parts[j] for j in own], FoldTerms(terms.test[own], terms.used[own], terms.is_left_out)

    def without_trend(self) -> Sums:
        """The sums of what least squares of the covariates, over all rows, leave of the targets."""
        beta = self.run.compute(TrendSums.least_squares, self.total)
        calls = [(one, beta) for one in (self.total, *self.parts)]
        total, *parts = self.run.submit_all(TrendSums.residual, calls)
        return replace(self, total=total, parts=parts)

    def kept(self) -> Sums:
        """The part that is kept after the fit: the sums of all rows, without those of the folds."""
        return replace(self, parts=[], total=self.run.settle(self.total))

    def fold_models(self, alpha: np.ndarray) -> FoldModels | None:
        """The models that left out one fold each, after another pass; None where there were no folds."""
        # The sums of the folds are not kept: a pass makes them in seconds, and their models take as long as
        # the final one each, which a fit that nobody judges need not wait for.
        if self.fit is None or self.plan is None or not self.fit.problem.folds.n_folds:
            return None
        problem = self.fit.problem
        assert self.chosen is not None
        again, own = summed(self.fit, self.plan), (self.chosen.setting, alpha, problem.tol)
        calls = [(again.total, *again.of_fold(fold), *own) for fold in range(problem.folds.n_folds)]
        found = self.run.map(solve_without, calls)
        solutions = [(one.solution.coef, one.solution.intercept) for one in found]
        return ridge_fold_models(problem.folds, self.targets, solutions, fit_intercept=problem.fit_intercept)

    def posterior(self, alpha: float) -> PosteriorSamples:
        """Samples of the model; no row is touched."""
        assert self.chosen is not None
        unit = self._unit_posterior(self.total, alpha, _N_GROUPS)
        noise = self.chosen.noise(self.weight, unit.effective_dimension, 2 * len(unit.C))
        return replace(unit, noise=np.square(self.targets.scale) * noise)

    def fold_posteriors(self, alphas: list[float]) -> Iterator[list[PosteriorSamples]]:
        """Yield samples without each fold at some alphas, for noise of variance 1, after another pass."""
        assert self.fit is not None and self.plan is not None
        again = summed(self.fit, self.plan)
        for fold in range(again.folds.n_folds):
            training = self.run.submit(training_sums, again.total, *again.of_fold(fold))
            yield [self._unit_posterior(training, alpha, _FOLD_GROUPS) for alpha in alphas]

    def _unit_posterior(self, total: Any, alpha: float, n_groups: int) -> PosteriorSamples:
        """Samples of the model of some sums for noise of variance 1."""
        assert self.chosen is not None
        own = total, self.chosen.setting, alpha, self.chosen.seed
        found = self.run.map(sampled, [(*own, group) for group in range(n_groups)])
        dimension = float(np.mean([dimension for _, dimension in found]))
        samples, unit = np.concatenate([C for C, _ in found]), np.ones_like(self.targets.scale)
        return PosteriorSamples(samples, unit, dimension)


def summed(fit: PreparedFit, plan: Plan) -> Sums:
    """The sums over all rows, as the folds take them, in one pass."""
    folds, features, n_rows = fit.problem.folds, fit.problem.features, fit.dataset.n_rows
    assert isinstance(features, EquispacedFourierFeatures)
    # Runs are cut to have that many rows of a sum, and up to twice as many: all of them are one transform.
    reduction = ToeplitzReduction(
        lattice=features.lattice_,
        targets=fit.targets,
        folds=folds,
        eps=EPS,
        tile_rows=light_segmentation(n_rows, fit.dataset.n_columns).tile_rows,
        call_rows=2 * plan.tile_rows,
        trend=features.trend_,
    )
    tasks = FoldCuts.of(n_rows, folds.n_sums, plan.tile_rows).tasks()
    segments = [FoldRows(fit.dataset.rows(start, stop), members) for start, stop, members in tasks]
    merged = fit.run.reduce("sums", segments, reduction)
    parts = fit.run.submit_all(getitem, [(merged, number) for number in range(folds.n_sums)])
    return Sums(
        run=fit.run,
        features=features,
        targets=fit.targets,
        n_rows=n_rows,
        weight=fit.weight,
        parts=parts,
        folds=folds,
        total=parts[0] if folds.n_sums == 1 else fit.run.submit(combined, parts, folds.total),
        fit=fit,
        plan=plan,
    )


def combined(parts: Sequence[ToeplitzSums], coefs: np.ndarray) -> ToeplitzSums:
    """Σ coefs_j·parts_j, in their order."""
    added = [part for part, coef in zip(parts, coefs, strict=True) if coef > 0]
    subtracted = [part for part, coef in zip(parts, coefs, strict=True) if coef < 0]
    first = reduce(add, added) if added else parts[0] - parts[0]  # of no rows
    return reduce(sub, subtracted, first)


def training_sums(total: ToeplitzSums, parts: list[ToeplitzSums], fold: FoldTerms) -> ToeplitzSums:
    """The sums of the rows that the model of a fold is fitted to."""
    used = combined(parts, fold.used)
    training = total - used if fold.is_left_out else used
    if not training.weight > 0:
        raise InputError(no_weight(training.weight))
    return training


@dataclass(frozen=True, eq=False)
class Chosen:
    """The kernel of a model, what its coded targets leave, and the seed of its samples."""

    setting: Setting
    residual: np.ndarray  # Σ s(y − f)²
    penalty: np.ndarray  # alpha·‖w‖²
    n_free: int  # coefficients without a penalty
    seed: int

    def noise(self, weight: float, dimension: float, n_samples: int) -> np.ndarray:
        """σ̂² = RSS/(Σs − dimension) of coded targets, for a dimension that so many samples estimate.

        Of few rows that a model explains next to no freedom is left, and it is not known: on 20 rows of a
        smooth field deviations were some ten times too small. There it is
        (RSS + alpha·‖w‖²)/(Σs − p − 1), with p covariates and an intercept: the estimate of restricted
        likelihood, which depends on alpha, as for the standard errors of a trend.
        """
        # An estimate of the dimension by one sample has the variance 2·N at most.
        unsure = math.sqrt(2.0 * self.setting.lattice.n_modes / n_samples)
        if weight - dimension > max(_LEAST_FREEDOM * weight, _FAR_OFF * unsure):
            return self.residual / residual_freedom(weight, dimension)
        return (self.residual + self.penalty) / residual_freedom(weight, self.n_free)


# Tasks on the sums: what a kernel gives with some alphas, and the solution.


@dataclass(frozen=True, eq=False)
class Setting:
    """A kernel with the part of the lattice that resolves it, and how its models are shifted and solved."""

    kernel: Kernel
    lattice: Lattice
    offset: np.ndarray | None  # to be added to coded targets, where these are not to be shifted
    fit_intercept: bool
    fills_gaps: bool = True  # whether values in gaps are wanted, which settle last

    def within(self, sums: ToeplitzSums) -> ToeplitzSums:
        """The sums of this part of the lattice, of targets that are shifted by the offset."""
        return sums.part(self.lattice.modes, self.offset)

    def problem(self, sums: ToeplitzSums) -> ToeplitzProblem:
        """The ridge problem that sums pose."""
        spectrum = half_of(self.lattice.weights(self.kernel)).copy()
        own = self.within(sums)
        if isinstance(own, TrendSums):
            return TrendProblem(own, spectrum, self.fit_intercept)
        return ToeplitzProblem(own, spectrum, self.fit_intercept)


@dataclass(frozen=True)
class Solved:
    """A ridge solution in real coefficients, with how it ended."""

    solution: RidgeSolution
    error: float  # largest relative residual
    steps: int
    trend_error: np.ndarray  # standard errors of the last coefficients, (p, k)


def solve(
    total: ToeplitzSums,
    setting: Setting,
    alpha: np.ndarray,
    tol: float,
) -> Solved:
    """The model of all rows; `alpha` has one value, or one a target."""
    problem, fit_intercept = setting.problem(total), setting.fit_intercept
    sums, k = problem.sums, len(problem.sums.b)
    coef, intercept, trend_error = list[np.ndarray](), np.zeros(k), list[np.ndarray]()
    residual, error, steps = np.empty(k), 0.0, 0
    # For terrain of 6.5 million rows without gaps larger alphas, and the smaller of the two shares, took 72 s
    # in the place of 28, for the same R².
    share = _OBJECTIVE_SHARE if setting.fills_gaps else _SHARE_AT_RANDOM
    ending = Ending(share * tol, _MAX_STEPS, tol, descends=setting.fills_gaps)
    for target, a in enumerate(np.broadcast_to(alpha, (k,))):
        found = problem.solve(target, float(a), ending)
        error, steps = max(error, found.error), steps + found.steps
        residual[target] = problem.squared_error(target, found)
        # `ToeplitzProblem` multiplies the modes whose conjugates it leaves out by √2.
        scale = np.full(found.c.shape[-1], 1.0 / math.sqrt(2.0))
        scale[0] = 1.0
        w = coef_of(whole_of(found.c * scale))
        if fit_intercept:  # mode 0 is the intercept, and no feature
            intercept[target], w[0] = w[0], 0.0
        coef.append(np.concatenate([w, found.beta]))
        trend_error.append(found.beta_error)
    means = sums.sums / sums.weight if fit_intercept else np.zeros(k)
    spread = np.maximum(sums.squares - sums.weight * means**2, 0.0)
    solution = RidgeSolution(np.stack(coef, axis=1), intercept, residual, spread)
    return Solved(solution, error, steps, np.stack(trend_error, axis=1))


def solve_without(
    total: ToeplitzSums,
    parts: list[ToeplitzSums],
    fold: FoldTerms,
    setting: Setting,
    alpha: np.ndarray,
    tol: float,
) -> Solved:
    """The model of a fold's training rows."""
    return solve(training_sums(total, parts, fold), setting, alpha, tol)


_LEAST_FREEDOM, _FAR_OFF = 0.1, 4.0  # of Σs, and in standard errors
_FAR_APART = 6.0  # times a variance that 16 samples tell: by chance once in 10¹²
_AT_ONCE = 4  # samples, whose Lanczos vectors a thread holds
_GROUP, _N_GROUPS, _FOLD_GROUPS = 16, 4, 2  # samples a task, and tasks of a model and of one without a fold


def sampled(
    total: ToeplitzSums, setting: Setting, alpha: float, seed: int, group: int
) -> tuple[np.ndarray, float]:
    """The coefficients of a group of samples of the model, two by two, and their mean dimension."""
    problem, rng = setting.problem(total), stream(seed, "posterior", group)
    found = [problem.samples(alpha, rng, _AT_ONCE) for _ in range(_GROUP // _AT_ONCE)]
    C = [c for some, _ in found for c in some]
    dimensions = [dimension for _, some in found for dimension in some]
    # zᵀBz of N normal numbers has the variance 2·tr B² ≤ 2·N for B between 0 and 1, if x are solved.
    if np.var(dimensions, ddof=1) > _FAR_APART * 2.0 * setting.lattice.n_modes:
        raise InputError(NO_DEVIATIONS.format(alpha))
    # Two real functions as one complex one, which one transform evaluates.
    pairs = [a + 1j * b for a, b in zip(C[::2], C[1::2], strict=True)]
    return np.stack(pairs), float(np.mean(dimensions))


# The choice of smoothness, widths and alpha, from the sums alone.

_SMOOTHNESS = (0.5, 1.5, 2.5, math.inf)
_STEP = 2.0**0.25  # the smallest change of a width
_OCTAVES, _HALF_OCTAVES, _STEPS = (4, -4), (2, -2), (1, -1)  # in these
# The pilot has fewer rows, and so longer widths; a rough kernel may need longer ones yet for its modes.
_RESOLVED_FROM = (0, 4, 8, 12)
_STRIDE = 3  # of the grid of alphas, for a first look
# Columns whose widths move together, and by what steps.
Lines = Sequence[tuple[Sequence[int], tuple[int, ...]]]
_MARGIN = 1.1  # a smoothness that is this much worse than the best is dropped
_FINALISTS, _CLOSE = 3, 1.01  # kernels that all folds judge: the best few, if they are nearly the best
# Of other folds than rows at random one is some part of the map, and says less about the others.
_FINALISTS_OF_PARTS, _CLOSE_OF_PARTS = 8, 1.3
_NO_BETTER = 0.99  # of the error of the mean


@dataclass(frozen=True, eq=False)
class Tried:
    """A kernel with its mean squared errors by place in the grid of alphas; none where it has no lattice."""

    kernel: Kernel
    setting: Setting | None = None
    errors: dict[int, float] = field(default_factory=dict)
    steps: int = 0  # of conjugate gradients

    @property
    def error(self) -> float:
        return min(self.errors.values(), default=math.inf)

    @property
    def place(self) -> int:
        """The place of the best alpha; of equal ones the largest alpha."""
        return min(self.errors, key=lambda i: (self.errors[i], i))


error_of = attrgetter("error")


@dataclass(frozen=True, eq=False)
class Grid:
    """The lattice and alphas that all kernels of a choice share."""

    lattice: Lattice
    tol: float | None  # None where the whole lattice is taken, whatever it leaves of a kernel
    alphas: np.ndarray  # from the largest down
    unit: np.ndarray  # of squares of coded targets
    offset: np.ndarray | None
    fit_intercept: bool

    def setting(self, kernel: Kernel) -> Setting | None:
        """The kernel on the part of the lattice that resolves it; None where there is none."""
        lattice = self.lattice if self.tol is None else self.lattice.resolving(kernel, self.tol)
        return None if lattice is None else Setting(kernel, lattice, self.offset, self.fit_intercept)

    def errors(
        self,
        training: ToeplitzSums,
        held_out: ToeplitzSums,
        setting: Setting,
        places: Sequence[int],
        tol: float,
        patience: int = 1,
    ) -> tuple[dict[int, np.ndarray], int]:
        """Each target's squares summed over held-out rows, as far as smaller alphas lower them; and steps."""
        path = held_out_path(
            setting.problem(training),
            setting.within(held_out),
            self.alphas[list(places)].tolist(),
            Ending(tol, _SEARCH_STEPS),
            patience,
        )
        found, steps = dict[int, np.ndarray](), 0
        # The path ends before the places where smaller alphas no longer help.
        for place, (_, squares, taken) in zip(places, path, strict=False):
            found[place], steps = squares * self.unit, steps + taken
        return found, steps


def walk(
    total: ToeplitzSums,
    parts: list[ToeplitzSums],
    fold: FoldTerms,
    grid: Grid,
    first: Tried,
    lines: Lines,
) -> list[Tried]:
    """Move widths down one line after another, each of some columns; all that was tried, the best first."""
    training, held_out = training_sums(total, parts, fold), combined(parts, fold.test)
    weight, at = max(held_out.weight, np.finfo(float).tiny), (0,) * grid.lattice.n_columns
    tried: dict[tuple[int, ...], Tried] = {at: first} if first.errors else {}

    def error(place: int, columns: Sequence[int] = ()) -> float:
        moved = tuple(s + place * (j in columns) for j, s in enumerate(at))
        if moved not in tried:
            # One factor leaves a kernel of one width as it is.
            factors = [_STEP**s for s in moved] if len(set(moved)) > 1 else _STEP ** moved[0]
            kernel = scaled_widths(first.kernel, factors) if any(moved) else first.kernel
            # Shorter widths may want a larger alpha than the best so far, but not a much larger one.
            best = min(tried.values(), key=error_of, default=first)
            begin = max(0, best.place - _STRIDE) if best.errors else 0
            setting, places = grid.setting(kernel), range(begin, len(grid.alphas), _STRIDE)
            squares, steps = (
                ({}, 0) if setting is None else grid.errors(training, held_out, setting, places, _FIRST_TOL)
            )
            errors = {place: float(one.mean()) / weight for place, one in squares.items()}
            tried[moved] = Tried(kernel, setting, errors, steps)
        return tried[moved].error

    for columns, steps in lines or [((), ())]:
        start = next((p for p in _RESOLVED_FROM if error(p, columns) < math.inf), 0)
        best = descend(partial(error, columns=columns), (start,), steps).best
        at = tuple(s + best * (j in columns) for j, s in enumerate(at))
    return sorted(tried.values(), key=error_of)


def judge(
    total: ToeplitzSums,
    parts: list[ToeplitzSums],
    fold: FoldTerms,
    grid: Grid,
    setting: Setting,
    places: Sequence[int],
) -> tuple[dict[int, np.ndarray], np.ndarray, int]:
    """Sums of squares of each target on one fold with each of these alphas; Σs, Σs·y, Σs·y²; and steps."""
    training, held_out = training_sums(total, parts, fold), combined(parts, fold.test)
    found, steps = grid.errors(training, held_out, setting, places, _SEARCH_TOL, patience=len(places))
    own = setting.within(held_out)
    return found, np.stack([np.full_like(own.squares, own.weight), own.sums, own.squares]), steps


class Finalist(NamedTuple):
    """A kernel that all folds judge, and the place in the grid of alphas from which on."""

    setting: Setting
    place: int


@dataclass(eq=False)
class Choice:
    """The choice among kernels of some smoothness and widths: by the first fold, of the last few by all."""

    sums: Sums
    grid: Grid
    tried: dict[float, list[Tried]] = field(default_factory=dict)  # by smoothness, the best first
    steps: int = 0  # of conjugate gradients, over all folds
    moments: np.ndarray = field(default_factory=lambda: np.zeros((1, 3, 1)))  # of each fold, as of `judge`

    @property
    def ranked(self) -> list[Tried]:
        """All that was tried, the best first."""
        return sorted((one for some in self.tried.values() for one in some), key=error_of)

    def by_one_fold(self) -> None:
        """Walk down from the pilot's kernel of each smoothness, as long as that is not far behind."""
        features, columns = self.sums.features, self.sums.lattice.columns
        kernel = features.chosen_kernel
        each = [(j,) for j in columns] if kernel.is_ard and len(columns) > 1 else []
        stages: list[Lines] = [
            [(columns, _OCTAVES)],  # at first the pilot's widths may suit one smoothness alone
            [(columns, _HALF_OCTAVES), *((j, _OCTAVES + _HALF_OCTAVES) for j in each), (columns, _STEPS)],
        ]
        if not features.widths_are_undecided:
            stages = [[]]

        def judged(some: Sequence[float], stage: int) -> list[float]:
            firsts = [
                self.tried[nu][0]
                if stage
                else Tried(of_smoothness(features.pilot_kernel_, nu) if nu else features.pilot_kernel_)
                for nu in some
            ]
            calls = [
                (self.sums.total, *self.sums.of_fold(0), self.grid, one, stages[stage]) for one in firsts
            ]
            for nu, found in zip(some, self.sums.run.map(walk, calls), strict=True):
                # A second stage begins at the best of the first, which is tried once more and counts once.
                every = {repr(one.kernel): one for one in (*self.tried.get(nu, ()), *found)}
                self.tried[nu] = sorted(every.values(), key=error_of)
            return [self.tried[nu][0].error for nu in some]

        def close(ranked: list[float]) -> list[float]:
            return [
                nu for nu in ranked if self.tried[nu][0].error <= _MARGIN * self.tried[ranked[0]][0].error
            ]

        smoothness = _SMOOTHNESS if kernel.has_undecided_smoothness else (0.0,)
        if not halving(smoothness, judged, len(stages), close) and self.grid.tol is not None:
            # The whole lattice is the best there is; the report says what it leaves of the kernel.
            self.grid = replace(self.grid, tol=None)
            self.by_one_fold()

    def finalists(self) -> list[Finalist]:
        """The best few of what was tried."""
        is_random = self.sums.folds.rows_are_exchangeable
        most, margin = (_FINALISTS, _CLOSE) if is_random else (_FINALISTS_OF_PARTS, _CLOSE_OF_PARTS)
        few = self.ranked[:most]
        close = [one for one in few if one.error <= margin * few[0].error]
        return [Finalist(one.setting, one.place) for one in close if one.setting is not None]

    def likely(self, one: Likely) -> Finalist:
        """A likely kernel with the alpha of the grid that is nearest to its own."""
        setting = self.grid.setting(one.kernel)
        assert setting is not None
        return Finalist(setting, int(np.abs(np.log(self.grid.alphas / one.alpha)).argmin()))

    def by_all_folds(self, close: list[Finalist], penalty: Penalty) -> tuple[Setting, AlphaSearch]:
        """The kernel and alpha of least error over all folds, and how alpha was found."""
        paths = [self._alphas(one, penalty.each_target) for one in close]
        choices = [penalty.choose(*path) for path in paths]
        i = min(range(len(close)), key=lambda i: choices[i].score)
        choice, setting, alphas = choices[i], close[i].setting, paths[i][0]
        has_trend = self.sums.features.trend_ is not None
        of_trend = ", less a trend of all rows" if has_trend else ""
        return setting, AlphaSearch(
            np.atleast_1d(choice.penalty),
            score=choice.score,
            criterion=f"mean squared error over {self.sums.folds.n_folds} held-out folds{of_trend}",
            results={"alphas": alphas, "mean_score": choice.scores, "fold_scores": choice.fold_scores},
            # What a trend leaves is less than the spread of the targets, and may well be noise.
            notes=([] if has_trend else self._no_better(choice.score))
            + end_of_alphas(choice, self.grid.alphas[::-1]),
        )

    def _no_better(self, score: float) -> list[str]:
        """The note, with a warning, of an error that the mean of the judged rows has as well."""
        s, sy, squares = self.moments.sum(axis=0)
        spread = np.maximum(squares - self.grid.fit_intercept * sy**2 / s, 0.0)
        constant = float((self.grid.unit * spread / s).mean())
        if not score >= _NO_BETTER * constant > 0:
            return []
        text = (
            f"the chosen model is no better than a constant: its held-out mean squared error is {score:.6g}, "
            f"that of the mean {constant:.6g}; look at columns, bounds and period, and for targets that are "
            f"far from all others"
        )
        warn(text, DataWarning)
        return [text]

    def _alphas(self, one: Finalist, each_target: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The alphas on the walk to the best, ascending; errors (n_folds, m, k), and weights of the folds.

        With `each_target` walks go on until the best of no target is at an end of them.
        """
        errors = dict[int, np.ndarray]()
        n, folds = len(self.grid.alphas), range(self.sums.folds.n_folds)

        def error(place: int, target: Any = slice(None)) -> float:
            if place not in errors and 0 <= place < n:
                # With its neighbours, which the walk asks for next: a solution starts from the one before.
                new = [i for i in range(max(0, place - 1), min(n, place + 2)) if i not in errors]
                calls = [
                    (self.sums.total, *self.sums.of_fold(fold), self.grid, one.setting, new) for fold in folds
                ]
                judged = self.sums.run.map(judge, calls)
                self.steps += sum(steps for *_, steps in judged)
                self.moments = np.stack([moments for _, moments, _ in judged])
                errors.update((i, np.stack([of_fold[i] for of_fold, *_ in judged])) for i in new)
            if place not in errors:
                return math.inf
            return float(errors[place].sum(axis=0)[target].mean() / self.moments[:, 0, 0].sum())

        descend(error, (one.place,), (1, -1))
        n_tried = 0
        while each_target and len(errors) > n_tried:
            n_tried = len(errors)
            for target in range(len(self.grid.unit)):
                descend(partial(error, target=target), tuple(errors), (1, -1))
        places = sorted(errors, reverse=True)
        return self.grid.alphas[places], np.stack([errors[i] for i in places], axis=1), self.moments[:, 0, 0]

    def report(self) -> dict[str, Any]:
        """The settings that were tried, as strict JSON data."""
        return {
            "rule": "held-out error of one fold, of the best few settings that of all folds; from the sums",
            "pilot": self.sums.features.length_scale_search_,
            "settings": [
                {
                    "kernel": repr(one.kernel),
                    "alpha": float(self.grid.alphas[one.place]),
                    "error": one.error,
                }
                for one in self.ranked
                if one.errors
            ],
            "left_out": [repr(one.kernel) for one in self.ranked if not one.errors],
            "steps": self.steps + sum(one.steps for one in self.ranked),
        }


def _report_of_likely(likely: list[Likely], pilot: dict[str, Any] | None) -> dict[str, Any]:
    """The kernels that were climbed to, as strict JSON data."""
    return {
        "rule": "likelihood of all rows, of one term and perhaps of two held-out error; from the sums",
        "pilot": pilot,
        "likely": [one.report() for one in likely],
    }


def _likeliest(sums: Sums, problem: Problem) -> list[Likely]:
    """The most likely kernels of the map, that of most terms first."""
    features, given = sums.features, problem.penalty.value
    pilot, kernel = features.pilot_kernel_, features.chosen_kernel
    is_turned = features.kernel is None
    spectrum = Spectrum(
        kernel=pilot,
        lattice=sums.lattice,
        n_terms=1,
        is_turned=is_turned,
        n_widths=features.widths_are_undecided * (sums.lattice.n_columns if kernel.is_ard else 1),
        is_smoothness_free=kernel.has_undecided_smoothness,
        # Where each target has its own, all are near their mean.
        alpha=None if given is None else float(np.exp(np.log(np.maximum(given, 1e-300)).mean())),
        largest=1.0 / (EPS * sums.weight),
    )
    found = likeliest(
        sums.run,
        sums.total,
        spectrum,
        n_rows=sums.n_weighted_rows,
        offset=sums.offset,
        fit_intercept=problem.fit_intercept,
        seed=problem.seed,
    )
    return found[::-1]


def _grid(sums: Sums, problem: Problem, floor: float) -> tuple[np.ndarray, int]:
    """Alphas from the largest down, none below the floor, and how many were left out."""
    if problem.penalty.value is not None:
        return np.sort(problem.penalty.value)[::-1], 0
    if problem.penalty.grid is not None:
        kept, n_dropped = above_noise(problem.penalty.grid, floor)
    else:
        at_zero = sums.features.kernel_.at_zero
        kept, n_dropped = default_alphas(sums.weight, at_zero, floor=floor)
        lower = np.geomspace(kept[0] / _LOWER, kept[0], _N_LOWER + 1)[:-1]
        kept = np.concatenate([lower[lower >= floor], kept])
    return kept[::-1], n_dropped


# The fit that follows from the sums.

_USELESS = 0.5  # of k(0), an error of the kernel that is more than a note
_MAX_ALPHA = 1e100  # squares of it are finite


class Searched(NamedTuple):
    """What a search chose, with its report, and whether likelihoods chose the kernel."""

    setting: Setting
    search: AlphaSearch
    report: dict[str, Any] | None
    by_likelihood: bool = False


def _searched(sums: Sums, problem: Problem, alphas: np.ndarray) -> Searched:
    """The kernel and alpha, each as given or as found."""
    features, given = sums.features, problem.penalty.value
    search = AlphaSearch(np.empty(0) if given is None else given)
    if given is not None and not (features.chooses and sums.folds.n_sums > 1):
        setting = Setting(features.kernel_, sums.lattice, sums.offset, problem.fit_intercept)
        return Searched(setting, search, features.length_scale_search_)
    sums.run.begin_phase("search")
    searched = sums if features.trend_ is None else sums.without_trend()
    by_likelihood = features.chooses and sums.folds.go_by_places
    found = _by_likelihood if by_likelihood else _by_walks
    choices, report = found(searched, problem, alphas)
    if given is None:
        sums.run.observer.between_passes("alpha by the folds")
        judged = [choice.by_all_folds(finalists, problem.penalty) for choice, finalists in choices]
        setting, search = min(judged, key=lambda one: one[1].score or 0.0)
    else:
        setting = choices[0][1][0].setting
    told = report() if features.chooses else features.length_scale_search_
    return Searched(setting, search, told, by_likelihood)


def _grid_of(sums: Sums, problem: Problem, tol: float | None, alphas: np.ndarray) -> Grid:
    unit = np.square(sums.targets.scale)
    return Grid(sums.lattice, tol, alphas, unit, sums.offset, problem.fit_intercept)


Choices = tuple[list[tuple[Choice, list[Finalist]]], Callable[[], dict[str, Any]]]


def _by_likelihood(sums: Sums, problem: Problem, alphas: np.ndarray) -> Choices:
    """The most likely kernels, on the whole lattice, and the report of them."""
    likely, choices = _likeliest(sums, problem), []
    for one in likely:
        # One alpha is as good as a grid, as the rows chose it; a given grid stays.
        is_wanted = problem.penalty.grid is not None or problem.penalty.each_target
        own = alphas if is_wanted else np.array([one.alpha])
        choice = Choice(sums, _grid_of(sums, problem, None, own))
        choices.append((choice, [choice.likely(one)]))
    return choices, partial(_report_of_likely, likely, sums.features.length_scale_search_)


def _by_walks(sums: Sums, problem: Problem, alphas: np.ndarray) -> Choices:
    """The best few kernels by held-out error, on the part of the lattice that each needs, and the report."""
    features = sums.features
    lattice, kernel = sums.lattice, features.kernel_
    # No kernel is asked to be resolved better than the one that the lattice was made for. Errors of images
    # are no allowance for modes.
    has_images = lattice.images(kernel) > features.tol
    tol = None if has_images else max(features.tol, lattice.error(kernel) * (1 + 1e-9))
    choice = Choice(sums, _grid_of(sums, problem, tol, alphas))
    sums.run.observer.between_passes("kernels by one fold")
    choice.by_one_fold()
    return [(choice, choice.finalists())], choice.report


def solved(sums: Sums, problem: Problem, plan: Plan | None) -> FitResult:
    """The fit that follows from the sums; no row is touched."""
    features, run, targets, given = sums.features, sums.run, sums.targets, problem.penalty.value
    trend = features.trend_
    if not problem.fit_intercept:
        # Without an intercept the model fits the mean too, which the coding has subtracted.
        sums = replace(sums, offset=targets.shift / targets.scale)
    floor = sums.noise_floor(float(sums.lattice.weights(features.kernel_).max()))
    notes: list[str] = []
    if given is not None:
        notes += _notes_of_given(given, floor)
    alphas, n_dropped = _grid(sums, problem, floor)
    if n_dropped:
        notes.append(
            f"alphas below {floor:.3g} were left out, where rounding of the sums may show: {n_dropped}"
        )
    searched = _searched(sums, problem, alphas)
    at_random = sums.folds.n_sums > 1 and sums.folds.rows_are_exchangeable
    setting, search = replace(searched.setting, fills_gaps=not at_random), searched.search
    run.begin_phase("model")
    run.observer.between_passes("the model of all rows")
    found = run.compute(solve, sums.total, setting, search.alpha, problem.tol)
    chosen = features.with_kernel(setting.kernel, setting.lattice, searched.report)
    notes += _notes_of_kernel_error(chosen, is_of_gaps=searched.by_likelihood)
    is_solved = found.error <= problem.tol
    shortfall = (
        f"the relative residual is {found.error:.2g} after {found.steps} steps, above tol={problem.tol:g}; "
        f"use a larger alpha or a larger tol"
    )
    solution = found.solution
    if not problem.fit_intercept:
        # Coded targets were shifted back; the result shifts no more.
        solution = replace(solution, intercept=np.zeros_like(solution.intercept))
    return ridge_result(
        run,
        plan,
        targets,
        search,
        solution,
        n_rows=sums.n_rows,
        fit_intercept=problem.fit_intercept,
        dtype="float64",
        notes=notes,
        entries={
            "solver": "toeplitz",
            "noise_floor": floor,
            "modes": list(setting.lattice.modes),
            "kernel_error": chosen.kernel_error_,
            "relative_residual": found.error,
            "steps": found.steps,
            **({} if trend is None else _of_trend(trend, sums, found, setting.lattice.n_modes)),
        },
        features=chosen,
        status=Status.CONVERGED if is_solved else Status.NOT_CONVERGED,
        shortfall=None if is_solved else shortfall,
        grams=replace(sums, chosen=_chosen(setting, solution, search.alpha, problem.seed)),
    )


def _chosen(setting: Setting, solution: RidgeSolution, alpha: np.ndarray, seed: int) -> Chosen:
    n_modes = setting.lattice.n_modes
    penalty = alpha * np.square(solution.coef[:n_modes]).sum(axis=0)
    n_free = len(solution.coef) - n_modes + setting.fit_intercept
    return Chosen(setting, solution.residual, penalty, n_free, seed)


def _of_trend(trend: Trend, sums: Sums, found: Solved, n_modes: int) -> dict[str, Any]:
    """Entries of a report: beta with standard errors in own units, (p, k), and ‖w‖ of the lattice."""
    coef, names = found.solution.coef, None if sums.fit is None else sums.fit.dataset.column_names
    unit = sums.targets.scale / np.array(trend.scale)[:, None]
    return {
        "trend": {
            "columns": [str(j) if names is None else names[j] for j in trend.columns],
            "coef": (coef[n_modes:] * unit).tolist(),
            "std_error": (found.trend_error * unit).tolist(),
        },
        "rkhs_norm": rkhs_norm(coef[:n_modes] * sums.targets.scale),
    }


def _notes_of_kernel_error(features: EquispacedFourierFeatures, *, is_of_gaps: bool) -> list[str]:
    """The note of a kernel that the modes do not resolve to the map's tol, perhaps with a warning."""
    error = features.kernel_error_
    if error <= features.tol:
        return []
    text = (
        f"{features.lattice_.n_modes} modes leave an error of up to {error:.2g} of the kernel's k(0), more "
        f"than the map's tol, {features.tol:g}"
    )
    if is_of_gaps:
        return [f"{text}: held-out errors judged the kernel as these modes have it"]
    lost = features.lattice_.left_out(features.kernel_)
    if lost < error / 2:
        return [f"{text}, by periodic images of its long range; allow more by n_components"]
    text += "; allow more by n_components, or give a wider kernel or narrower bounds"
    if lost >= _USELESS:
        warn(text, DataWarning)
    return [text]


def _notes_of_given(alpha: np.ndarray, floor: float) -> list[str]:
    """The note of an alpha that rounding may spoil; raises InputError for one whose square overflows."""
    if alpha.max() > _MAX_ALPHA:
        raise InputError(f"alpha={alpha.max():g} is too large to compute with; use a smaller one")
    if alpha.min() >= floor:
        return []
    text = f"alpha={alpha.min():g} is below {floor:.3g}, where rounding of the sums may show"
    warn(text, DataWarning)
    return [text]


# What it costs.

_MIN_CALL_ROWS = 2**17
_SPREAD_FLOPS = 26.0 * 2  # of a row and fine-grid line of 13 points, a coordinate: 13^d points, complex
_SEARCH_PRODUCTS, _SOLVE_PRODUCTS = 1000, 30  # presumed of a search and a model, with the Toeplitz matrix
_SAMPLE_PRODUCTS = 60  # presumed of a sample
_CLIMB_BYTES = 2900.0  # a mode, of two climbs at once; one of 158,123 modes took 433 MB with the sums


def toeplitz_plan(size: Size, call_rows: int, workers: Workers) -> Plan:
    s, d, threads = size, size.n_places, workers.threads_per_worker
    k = s.n_outputs + s.n_covariates
    cuts = FoldCuts.of(s.n_rows, s.n_sums, call_rows)
    # v has 4m + 1 modes a coordinate where b has 2m + 1.
    n_v = 2.0**d * s.n_features
    n_calls = cuts.n_runs * s.n_sums
    of_rows = s.memberships * s.n_rows * _SPREAD_FLOPS * 13.0 ** (d - 1)
    # An FFT of N numbers takes 5·N·log₂N flops; the grid of a transform is 1.5 times as fine as its modes.
    of_grids = n_calls * 5.0 * 1.5**d * n_v * max(1.0, float(np.log2(n_v)))
    products = toeplitz_products(s)
    solving = products * 5.0 * n_v * max(1.0, float(np.log2(n_v)))
    of_a_sum = 8.0 * s.n_features * (2**d + k)
    partial = of_a_sum * (s.n_sums if cuts.together else 1)
    of_waiting, of_summed = bytes_a_row(d, k)
    # Contiguous folds may have all rows of a run.
    waiting = cuts.task_rows * of_waiting + min(2 * call_rows, cuts.task_rows) * of_summed
    rows = s.reading_bytes(cuts.run_rows) + waiting
    grids = fine_grid_bytes_of(n_v, d) + (fine_grid_bytes_of(s.n_features, d) if k > 1 else 0)
    sweep = s.busy_bytes(threads, rows + grids + partial + of_a_sum, partial) + 3 * of_a_sum * s.n_sums
    sweep += ready_bytes(threads, partial)
    solve = (s.n_sums + 1) * of_a_sum + threads * (3 * of_a_sum + 64 * n_v)
    climb = _CLIMB_BYTES * min(s.n_features, LAST_MODES) if s.climbs else 0.0
    return planned(
        "toeplitz",
        s,
        workers,
        Segmentation(s.n_rows, cuts.run_rows, call_rows),
        n_passes=1 if cuts.together else s.n_sums,
        n_turns=1 if cuts.together else s.n_sums,
        folds_per_task=s.n_sums if cuts.together else 1,
        flops=of_rows + of_grids + solving,
        cosines=0.0,
        worker_peak_bytes=int(max(sweep, solve, climb + 3 * of_a_sum * s.n_sums) + SLACK_BYTES),
        client_peak_bytes=int(SLACK_BYTES + 8 * s.n_features * (4 + 4 * k)),
    )


def toeplitz_products(size: Size) -> int:
    """The products with the Toeplitz matrix that are presumed."""
    return (_SEARCH_PRODUCTS * (size.n_sums > 1) + _SOLVE_PRODUCTS) * size.n_outputs


def with_samples(plan: Plan) -> Plan:
    """The plan with samples of the posterior, whose Lanczos vectors a thread holds for some at a time."""
    s, d, n_samples = plan.size, plan.size.n_places, _N_GROUPS * _GROUP
    products = n_samples * _SAMPLE_PRODUCTS * 5.0 * 2**d * s.n_features
    of_a_sum = 8.0 * s.n_features * (2**d + s.n_outputs)
    samples = 4.0 * n_samples * s.n_features
    # Two arrays of the size of the basis at a time, on as many real numbers as modes.
    of_span = 16.0 * span_numbers(s.n_rows, s.n_features)
    # The coarse Gram and its factor.
    of_coarse = 16.0 * min(2 * finer_pairs(s.n_features) + 1, s.n_features) ** 2
    of_vectors = 4.0 * _AT_ONCE * MAX_LANCZOS * s.n_features
    of_thread = 3 * of_a_sum + of_vectors + 2 * samples / _N_GROUPS + of_coarse + of_span
    peak = int(plan.threads_per_worker * of_thread + of_a_sum + samples + SLACK_BYTES)
    return replace(
        plan,
        flops=plan.flops + products * float(np.log2(2**d * s.n_features)),
        worker_peak_bytes=max(plan.worker_peak_bytes, peak),
        client_peak_bytes=plan.client_peak_bytes + int(3 * samples),
    )
