"""A map that chooses itself: kind, kernel, widths and metric by small ridges on a sample."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy.sparse import issparse

from distrff.errors import InputError, PlanRefused
from distrff.features.base import FeatureMap, RowSource, Sample, sample_rows
from distrff.features.binning import RandomBinningFeatures
from distrff.features.equispaced import EquispacedFourierFeatures
from distrff.features.fitted import FittedMap, MapOutline, Trait, product_cost
from distrff.features.fourier import FourierFeatures
from distrff.features.nystroem import NystroemFeatures
from distrff.features.search.metric import (
    ANYWHERE,
    column_widths,
    extrapolated,
    learn_metric,
    metric_shares,
    scales_of,
)
from distrff.features.search.ridge import FEATURES, GRIDS, MODELS, BinnedRidge, best_width
from distrff.features.search.sample import (
    FARTHEST,
    SAMPLE_ROWS,
    THINNING,
    HeldOutError,
    SearchSample,
    coded_targets,
    halving,
    is_too_wide,
    median_distance,
)
from distrff.features.search.widths import LikelihoodBudget, shrunk_length_scales
from distrff.kernels.base import Kernel
from distrff.kernels.stationary import Exponential, Gaussian, Laplacian, Matern, Stationary
from distrff.preprocessing.coding import NO_EFFECT, Moments
from distrff.utils.nufft import MAX_DIMENSIONS
from distrff.utils.process import one_blas_thread
from distrff.utils.text import listed
from distrff.utils.validation import check_count

# The candidates: a kind of map, a kernel, and a rule for its widths.

MAPS = ("fourier", "nystroem", "binning")
EQUISPACED = "equispaced"  # for ridge on few columns
ONE_WIDTH, IN_OWN_UNITS = "one width", "one width, in the columns' own units"
BY_COLUMN, METRIC = "a width a column", "learned metric"
_FITTED = {ONE_WIDTH: 1, IN_OWN_UNITS: 1, BY_COLUMN: 2, METRIC: 3}  # how much a rule fits to the sample
_SMOOTHNESS: tuple[Stationary, ...] = (
    Matern("auto", nu=1.5),
    Gaussian("auto"),
    Exponential("auto"),
    Matern("auto", nu=2.5),
)
_KERNELS: dict[str, tuple[Stationary, ...]] = {
    "fourier": _SMOOTHNESS,
    "nystroem": _SMOOTHNESS,
    "binning": (Laplacian("auto"),),
}


@dataclass(frozen=True)
class Candidate:
    """A kind of map with a kernel of undecided width, and a rule for its widths."""

    kind: str
    kernel: Stationary
    rule: str

    @property
    def fitted(self) -> int:
        """How much is fitted to the sample: 0 nothing, 1 a width, 2 a width a column, 3 a metric.

        Equispaced features choose their kernel once more, by all rows.
        """
        return 0 if self.kind == EQUISPACED else _FITTED[self.rule]

    def __str__(self) -> str:
        smoothness = f"Matern {self.kernel.nu:g}" if isinstance(self.kernel, Matern) else None
        return f"{self.kind}, {smoothness or type(self.kernel).__name__}, {self.rule}"


@dataclass(frozen=True)
class Stage:
    """One of several sizes at which candidates are judged."""

    thinning: int  # one training row in so many
    n_features: int
    n_grids: int
    n_modes: int

    def size(self, kind: str) -> int:
        """Features, or for binning grids."""
        return {"binning": self.n_grids, EQUISPACED: self.n_modes}.get(kind, self.n_features)


@dataclass(frozen=True)
class Found:
    """The best width of a candidate in one stage, and its error there."""

    width: float
    error: HeldOutError
    flops: float
    seconds: float


# Of a dozen finalists the best is best by luck, too: the largest of as many normal errors is 1.6 deviations.
_AS_GOOD, _AS_CHEAP = 2.0, 1.0


def choose(errors: Mapping[Candidate, HeldOutError], cost: Callable[[Candidate], Any]) -> Candidate:
    """Within two standard errors of the best those with least fitted to the sample; of these the cheapest.

    The cheapest is within a standard error of their best. Standard errors are those of differences on the
    same rows. Widths of columns and a metric are many numbers fitted to a sample, and rows of another year or
    writer differ from it.
    """

    def as_good(some: Iterable[Candidate], n_errors: float) -> list[Candidate]:
        least = errors[min(some, key=lambda one: errors[one].criterion)]
        return [
            one
            for one in some
            if errors[one].criterion - least.criterion <= n_errors * errors[one].spread_from(least)
        ]

    good = as_good(errors, _AS_GOOD)
    least_fitted = min(one.fitted for one in good)
    simplest = as_good([one for one in good if one.fitted == least_fitted], _AS_CHEAP)
    return min(simplest, key=lambda one: (cost(one), errors[one].squared_error))


# Tasks on the sample's arrays, side by side.


def judge_candidate(
    arrays: dict[str, np.ndarray], candidate: Candidate, stage: Stage, start: float | None, farthest: int
) -> Found:
    """The best width of a candidate, sought from `start` on; None is anywhere around the median distance.

    `arrays` are those of a sample, and under the name of the rule the coordinates in which the kernel has one
    width.
    """
    began = time.perf_counter()
    with one_blas_thread():  # the same choice whatever the process's threads
        A = arrays.get(candidate.rule)
        rows = SearchSample.from_arrays(arrays).thinned(stage.thinning).in_coordinates(A)
        ridge = MODELS[candidate.kind](rows, candidate.kernel, stage.size(candidate.kind))
        try:
            if start is None:
                first = median_distance(candidate.kernel, rows.X, rows.seed)
                width, error = best_width(ridge, first, ANYWHERE)
            else:
                # Few features make widths long, and a lattice of few modes has no room for the longest. The
                # error of bins has valleys, where cells match the jumps of a function: with a function of
                # two steps on 15,000 rows a walk ended at a width of 11, with .123 of the variance, where a
                # width of .49 leaves .063. Shorter ones are tried before the last stage, where a width costs
                # about an eighth.
                if candidate.kind == EQUISPACED:
                    places: Sequence[int] = (0, -2, -4)
                else:
                    places = (0, -4) if candidate.kind == "binning" and stage.thinning > 1 else (0,)
                width, error = best_width(ridge, start, places, farthest=farthest)
        except InputError:  # no two rows differ in these coordinates
            return Found(math.nan, HeldOutError.of_no_model(rows.has_classes), 0.0, 0.0)
    projection = 0.0 if A is None else 2.0 * len(rows.Y) * A.size
    return Found(width, error, ridge.flops + projection, time.perf_counter() - began)


def find_metric(
    arrays: dict[str, np.ndarray], n_features: int, widths: np.ndarray | None
) -> np.ndarray | None:
    """The metric that is learned; None where the first few rows are all equal."""
    with one_blas_thread():
        try:
            return learn_metric(SearchSample.from_arrays(arrays), Gaussian(), n_features, lambda: widths).P
        except InputError:
            return None


def find_widths(arrays: dict[str, np.ndarray], n_rows: int) -> np.ndarray | None:
    """Widths of the columns by the likelihood of so many rows."""
    with one_blas_thread():
        return column_widths(SearchSample.from_arrays(arrays), n_rows)


def shrink_widths(
    arrays: dict[str, np.ndarray], widths: np.ndarray, n_grids: int, n_rows: int
) -> tuple[float, ...]:
    """The widths of bins shrunk for `n_rows` rows, from those that are best for the rows of the sample."""
    rows = SearchSample.from_arrays(arrays)
    scale = Moments.of(rows.X, rows.s).standard_deviation()
    search = {"rule": "", "length_scale": widths.tolist(), "column_scale": scale.tolist()}
    _, found = shrunk_length_scales(
        Laplacian("ard"), search, rows, n_rows, lambda some, kernel: BinnedRidge(some, kernel, n_grids)
    )
    return tuple(found["length_scale"])


# The search.

_FLOPS_A_SECOND = 3e10  # of one core, for the budget alone, which must be the same on every machine
_FEW_ROWS, _SECONDS_FOR_FEW, _SECONDS = 10_000, 4.0, 20.0  # a user of few rows expects an answer at once
_ROWS_OF_FEW, _FEATURES_OF_FEW = 8_000, 512  # that take part at most
_MIN_TRAINING, _MIN_ROWS = 300, 40
_LEAST_FEATURES = 128  # of any stage
_MANY_TRAINING = 4800  # for three stages
_SHARE_OF_SEARCH = 0.6  # of the budget, for the widths of columns
# More rows of the likelihood do not help few rows: models of cpu_act with the widths of 500, 1000 and 2000
# had test errors of .1221, .1224 and .1235 (means of eight, each known to .0007). Many rows tell more widths
# apart: bins of covtype with those of 500, 1000 and 2000 had 23, 24 and 18 % of the classes wrong.
_LIKELIHOOD_ROWS = (500, 1000, 2000)
# The width of dense features falls from stage to stage by less than an octave. Where the error is flat a walk
# would go on for nothing: in the last stage of covtype it took eleven widths of a metric, half of the search.
# The widths of bins fall further, and one of them costs a tenth of one of dense features: they walk on.
_FARTHEST = 2
_MODES_OF_TRIAL = 2**16  # of the largest small model
_MODES_A_ROW, _MODES_OF_FEW = 16, 2**16  # of equispaced features for few rows, in some seconds
_MARGINS, _MARGIN_OF_ROWS = (0.05, 0.25), 25.0  # of the bounds of equispaced features, by the range
_MIN_ROWS_OF_LATTICE = 1000  # for fewer, landmarks at all rows are the kernel itself, and are judged better
_MAX_TARGETS = 8  # for equispaced features, which take a system for each
_HOPELESS = 3.0  # times the error of the best: more than other candidates make up in two stages
_ALIKE = 1.5  # deviations of columns that differ by less
# Presumed of an entry in all sparse passes of a fit, some dozen for each fold; it is counted, not measured.
_FLOPS_OF_AN_ENTRY = 5_000.0
_MIN_GRIDS, _MAX_GRIDS = 16, 100


@dataclass(frozen=True)
class Scope:
    """Kinds that a search may choose from, and the size of the model that it is for."""

    kinds: tuple[str, ...]
    n_components: int
    n_rows: int
    n_columns: int

    @property
    def judged(self) -> tuple[str, ...]:
        """Kinds of maps of the first stages; equispaced ones follow from what these find."""
        return tuple(kind for kind in MAPS if kind in self.kinds) or ("nystroem",)

    @property
    def n_grids(self) -> int:
        """Grids of binning for about the flops of the dense features, between 16 and 100."""
        row = 3.0 * self.n_columns + _FLOPS_OF_AN_ENTRY
        return int(np.clip(self.n_components**2 / row, _MIN_GRIDS, _MAX_GRIDS))

    @property
    def is_small(self) -> bool:
        return self.n_rows <= _FEW_ROWS

    @property
    def budget(self) -> float:
        """Flops of the search, about."""
        return (_SECONDS_FOR_FEW if self.is_small else _SECONDS) * _FLOPS_A_SECOND

    @property
    def max_features(self) -> int:
        """Features of the largest small model."""
        return min(self.n_components, _FEATURES_OF_FEW if self.is_small else FEATURES)

    @property
    def likelihood_rows(self) -> int:
        """The most rows on which widths of columns may be sought; 0 where there is no time for any."""
        may_take = _SHARE_OF_SEARCH * self.budget
        sizes = _LIKELIHOOD_ROWS[:1] if self.is_small else _LIKELIHOOD_ROWS
        flops = {n: LikelihoodBudget.quick(n).flops(n, self.n_columns) for n in sizes}
        return max((n for n in sizes if flops[n] <= may_take), default=0)

    def stages(self, n_training: int) -> list[Stage]:
        """The stages, each of up to four times the rows and features of the one before."""
        n_stages = 2 if n_training < _MANY_TRAINING else 3
        return [
            Stage(
                thinning=max(1, min(4**left, n_training // _MIN_TRAINING)),
                n_features=max(min(_LEAST_FEATURES, self.max_features), self.max_features >> 2 * left),
                n_grids=max(8, min(self.n_grids, GRIDS) >> left),
                n_modes=_MODES_OF_TRIAL,
            )
            for left in reversed(range(n_stages))
        ]

    @property
    def search_bytes(self) -> int:
        """Most bytes of a small model and its rows."""
        d, n, D = self.n_columns, min(self.n_rows, sample_rows(self.n_columns)), self.max_features
        # Rows, in coordinates and in widths; frequencies and a metric in float64; phases and features in
        # float32; Grams and factors; and the kernel matrices of the likelihood.
        of_maps = 8 * d * (2 * D + min(d, D)) + 16 * n * D + 40 * D**2
        return 24 * n * d + of_maps + 48 * min(n, _LIKELIHOOD_ROWS[-1]) ** 2

    def size(self, kind: str) -> int:
        """The size of the model itself: features, or for binning grids."""
        return self.n_grids if kind == "binning" else self.n_components


@dataclass(eq=False)
class Search:
    """The candidates with the errors that they reached, and the coordinates that their rules stand for.

    `own_units` are scales of the columns that lead back to their own units; None where they have these.
    """

    scope: Scope
    rows: SearchSample
    source: RowSource
    own_units: np.ndarray | None
    bounds: list[tuple[float, float] | None]  # of an equispaced map
    coordinates: dict[str, np.ndarray] = field(default_factory=dict)
    histories: dict[Candidate, list[Found]] = field(default_factory=dict)

    @cached_property
    def stages(self) -> list[Stage]:
        return self.scope.stages(self.rows.n_training)

    def run(self) -> None:
        """Judge all candidates, stage after stage; then others that follow from the finalists."""
        self._find_coordinates()
        if halving(self._field(), self._judge, len(self.stages), self._kept):
            self._judge_equispaced()
            self._judge_frequencies()

    def _find_coordinates(self) -> None:
        """Learn widths of the columns and a metric."""
        found = {IN_OWN_UNITS: self.own_units}
        if self.rows.X.shape[1] > 1:
            # They are those of the best penalty: a strong one would hide most of the directions.
            arrays = self.rows.arrays() | {"penalty": np.array(math.nan)}
            widths, n_rows = None, self.scope.likelihood_rows
            if n_rows:
                (widths,) = self.source.run_all(find_widths, arrays, [(n_rows,)])
            (P,) = self.source.run_all(find_metric, arrays, [(self.scope.max_features, widths)])
            if widths is None and P is not None:
                widths = scales_of(P)
            found |= {BY_COLUMN: widths, METRIC: P}
        self.coordinates = {rule: A for rule, A in found.items() if A is not None}

    def _field(self) -> list[Candidate]:
        """The candidates of the first stage: Nyström features stand for both kinds of dense ones.

        They are the more accurate ones of a kernel, and the closer the more there are.
        """
        judged = self.scope.judged
        kinds = [kind for kind in judged if kind != "fourier" or "nystroem" not in judged]
        rules = [ONE_WIDTH, *self.coordinates]
        return [
            Candidate(kind, kernel, rule) for rule in rules for kind in kinds for kernel in _KERNELS[kind]
        ]

    def _judge(self, field: Sequence[Candidate], stage: int) -> list[float]:
        """Judge candidates in a stage; the first of a rule gives the others a width to start from."""
        waves: list[list[Candidate]] = [[], []]
        for one in field:
            is_first = one.kernel == _SMOOTHNESS[0] or self.scope.judged == ("binning",)
            waves[self._start(one) is not None or not is_first].append(one)
        arrays = self.rows.arrays() | self.coordinates
        for wave in waves:
            wave.sort(key=lambda one: one.kind != "nystroem")  # the dearest first: workers end together
            calls = [(one, self.stages[stage], self._start(one), self._farthest(one)) for one in wave]
            for one, found in zip(wave, self.source.run_all(judge_candidate, arrays, calls), strict=True):
                self.histories.setdefault(one, []).append(found)
        return [self.error(one).criterion for one in field]

    def _start(self, candidate: Candidate) -> float | None:
        """A width to go on from: that of the stage before, or of another candidate of the rule; or None."""
        alike = [found for one, found in self.histories.items() if found and one.rule == candidate.rule]
        history = self.histories.get(candidate) or max(alike, key=len, default=[])
        widths = [found.width for found in history if math.isfinite(found.width)]
        if len(widths) > 1:  # it goes on to fall
            return extrapolated(widths[-2], widths[-1], THINNING, THINNING)
        return widths[0] if widths else None

    def _farthest(self, candidate: Candidate) -> int:
        return FARTHEST if candidate.kind == "binning" or candidate not in self.histories else _FARTHEST

    def error(self, candidate: Candidate) -> HeldOutError:
        return self.histories[candidate][-1].error

    def _kept(self, ranked: list[Candidate]) -> list[Candidate]:
        """The best of each kind with each measure of what is fitted.

        Early stages flatter the candidates whose metric and widths were learned on all rows of the sample. On
        mnist one width had 21 % of the classes wrong in the first stage, where a metric had 13, and 6.9 % in
        the last one, where that had 9.1. And few grids show little of bins yet: on covtype these were behind
        in the first stage, and had 17 % of the classes wrong in the last, where dense features had 21.
        """
        first: dict[tuple[bool, int], Candidate] = {}
        for one in ranked:
            first.setdefault((one.kind == "binning", one.fitted), one)
        most = _HOPELESS * self.error(ranked[0]).criterion
        return [one for one in first.values() if self.error(one).criterion <= most]

    def _judge_frequencies(self) -> None:
        """Judge Fourier features beside the Nyström features that would be chosen: they cost less."""
        chosen = choose(self._finalists(), self._cost)
        if chosen.kind == "nystroem" and "fourier" in self.scope.judged:
            twin = replace(chosen, kind="fourier")
            self.histories[twin] = [
                replace(found, flops=0.0, seconds=0.0) for found in self.histories[chosen][:-1]
            ]
            self._judge([twin], -1)

    def _judge_equispaced(self) -> None:
        """Judge equispaced features with the rule and kernel that are best with one width or one a column.

        A Matérn kernel of 3/2 is beside it: few features hide how rough a function is. A lattice has no
        metric, and in more than one column no room for the exponential kernel.
        """
        ranked = [one for one in self.histories if one.kind != "binning" and one.rule != METRIC]
        if EQUISPACED not in self.scope.kinds or not ranked:
            return
        best, usual = min(ranked, key=self._place), _SMOOTHNESS[0]
        is_rough = self.rows.X.shape[1] > 1 and isinstance(best.kernel, Exponential)
        kernels = [usual] if is_rough else [best.kernel, usual]
        mine = [replace(best, kind=EQUISPACED, kernel=kernel) for kernel in dict.fromkeys(kernels)]
        self._judge(mine, -1)

    def _finalists(self) -> dict[Candidate, HeldOutError]:
        """The candidates that were judged in the last stage, with their errors there."""
        return {
            one: self.error(one)
            for one, history in self.histories.items()
            if self.error(one).squared_error < math.inf
            and (len(history) == len(self.stages) or one.kind == EQUISPACED)
        }

    def choices(self) -> list[Candidate]:
        """All candidates, the one to take first, then the finalists, the best first."""
        allowed = {one: e for one, e in self._finalists().items() if one.kind in self.scope.kinds}
        if not allowed:
            return []
        # A thinned sample in gaps says little about all rows, whose likelihood chooses the kernel of these
        # features: on a satellite image Nyström features were the best of the sample, with an RMSE under its
        # clouds of 2.39 against 1.32.
        is_map = self.rows.go_by_places and self.rows.X.shape[1] == 2
        of_map = {one: error for one, error in allowed.items() if one.kind == EQUISPACED and is_map}
        first = choose(of_map or allowed, self._cost)
        others = [
            one
            for one in self.histories
            if one.kind in self.scope.kinds and one != first and self.error(one).squared_error < math.inf
        ]
        return [first, *sorted(others, key=self._place)]

    def _place(self, candidate: Candidate) -> tuple[int, float]:
        """An order by the last stage that a candidate reached, then by its error there."""
        return -len(self.histories[candidate]), self.error(candidate).criterion

    def _cost(self, candidate: Candidate) -> tuple[int, int]:
        """An order by cost: few rows have few landmarks; then kinds in their own order."""
        is_nystroem = candidate.kind == "nystroem"
        size = min(self.scope.n_components, self.scope.n_rows) if is_nystroem else self.scope.n_components
        return size, (EQUISPACED, *MAPS).index(candidate.kind)

    def expected(self, candidate: Candidate, number: Callable[[Found], float]) -> float:
        """A width or error for the model itself, if it falls on as it did from stage to stage."""
        history, kind = self.histories[candidate], candidate.kind
        sizes = [self.rows.n_training // one.thinning * one.size(kind) for one in self.stages[: len(history)]]
        before, last = (number(history[at]) for at in (max(0, len(history) - 2), -1))
        whole = self.scope.n_rows * self.scope.size(kind)
        return extrapolated(before, last, sizes[-1] / sizes[max(0, len(sizes) - 2)], whole / sizes[-1])

    def kernel(self, candidate: Candidate) -> Kernel:
        """The candidate's kernel with its widths and metric, in the columns of the rows."""
        A, width = self.coordinates.get(candidate.rule), self.expected(candidate, lambda found: found.width)
        is_shrunk = candidate.kind == "binning" and candidate.rule == BY_COLUMN and not self.scope.is_small
        if is_shrunk and A is not None:
            # On 12,000 rows of covtype the share of wrong classes falls from 17 to 14 %.
            call = self.histories[candidate][-1].width * A, self.scope.n_grids, self.scope.n_rows
            (widths,) = self.source.run_all(shrink_widths, self.rows.arrays(), [call])
            return candidate.kernel.with_widths(widths)
        if A is not None and A.ndim == 1:
            return candidate.kernel.with_widths(tuple(float(f"{w:.4g}") for w in width * A))
        return candidate.kernel.set_params(length_scale=float(f"{width:.4g}"), metric=A)

    def feature_map(self, candidate: Candidate) -> FeatureMap:
        """The map of the candidate, not fitted."""
        if candidate.kind == EQUISPACED:
            few = min(_MODES_A_ROW * self.scope.n_rows, _MODES_OF_FEW)
            n_components = few if self.scope.is_small else None
            return EquispacedFourierFeatures(n_components=n_components, bounds=self.bounds)
        kernel = self.kernel(candidate)
        if candidate.kind == "binning":
            return RandomBinningFeatures(kernel, self.scope.n_grids)
        if candidate.kind == "nystroem":
            return NystroemFeatures(kernel, min(self.scope.n_components, self.scope.n_rows))
        return FourierFeatures(kernel, self.scope.n_components, sampling="auto")

    def table(self) -> list[dict[str, Any]]:
        """The errors of each candidate, the one to take first, as strict JSON data."""
        return [
            {
                "candidate": str(one),
                "criterion": "share of wrong classes" if self.rows.has_classes else "squared error",
                "error": self.error(one).criterion,
                "spread": self.error(one).spread,
                "squared_error": self.error(one).squared_error,
                "expected": self.expected(one, lambda found: found.error.criterion),
                "stages": len(self.histories[one]),
                "flops": sum(found.flops for found in self.histories[one]),
                "seconds": sum(found.seconds for found in self.histories[one]),
            }
            for one in self.choices()
        ]


def _wide_bounds(sample: Sample) -> list[tuple[float, float] | None]:
    """Bounds with room for rows to come, where none were given; None for a column of one value.

    Few rows know little of the range of others: a quarter of theirs is added on both sides, of many a
    twentieth. Wider bounds take more frequencies for the same widths.
    """
    low, high = sample.ranges
    margin = np.clip(_MARGIN_OF_ROWS / math.sqrt(max(1, sample.n_weighted_rows)), *_MARGINS) * (high - low)
    ends = zip((low - margin).tolist(), (high + margin).tolist(), strict=True)
    return [(a, b) if a < b else None for a, b in ends]


def own_units(column_scale: np.ndarray | None) -> np.ndarray | None:
    """Scales of the columns that undo their division; None where they are all alike."""
    if column_scale is not None:  # a column without effect has no units
        column_scale = np.where(column_scale == NO_EFFECT, 1.0, column_scale)
    if column_scale is None or column_scale.max() <= _ALIKE * column_scale.min():
        return None
    relative = column_scale / column_scale.max()  # squares of small numbers may underflow
    return np.asarray(np.sqrt(np.square(relative).mean()) / relative)


def some_differ(sample: Sample) -> bool:
    """Whether a column holds different values in rows of positive weight."""
    X = sample.X[sample.weights > 0]
    return bool((abs(X.max(axis=0) - X.min(axis=0)) > 0).sum())


def is_constant(sample: Sample) -> bool:
    """Whether no target differs between rows of positive weight."""
    Y = coded_targets(sample.y)[sample.weights > 0]
    return bool((Y[:1] == Y).all())


def _fitted(features: FeatureMap, sample: Sample) -> FeatureMap:
    """The map, fitted.

    Raises PlanRefused where its model would not fit in the workers' memory, or the map has not the features
    that the kernel takes.
    """
    if not isinstance(features, EquispacedFourierFeatures):
        return features.fit_sample(sample, is_part=True)
    fitted = features.fit_sample(sample.in_own_units())
    sample.row_source.check_size(fitted.specification_.n_features)
    # On a map with gaps truncated kernels are judged like any other.
    is_map = sample.split is not None and sample.split.go_by_places
    if fitted.kernel_error_ > fitted.tol and not is_map:
        raise PlanRefused(
            f"{fitted.specification_.n_features} equispaced features do not resolve {fitted.kernel_!r} "
            f"within the range of the columns; choose other maps"
        )
    return fitted


class AutoFeatures(FeatureMap):
    """The map, kernel, widths and metric that do best in small models on a sample of the rows.

    Candidates are Fourier and Nyström features of the Gaussian and the Matérn kernels of ν = ½, 3/2 and 5/2
    and random binning of the Laplacian kernel, and for ridge with ``alpha="cv"`` on one to three columns
    equispaced features. Each has one width, of the standard columns or of the columns' own units, one width a
    column, or a learned metric. Each candidate is judged on held-out rows by what the estimator is for:
    squared error of numbers, wrong classes. Samples and maps grow from stage to stage; the better half of the
    candidates goes on, and at last an eighth, with the best bins and the best dense features that have one
    width, one a column and a metric.

    Of the last ones those count as equal whose error is larger than the best by no more than two standard
    errors of the difference on the same rows. Of these the one is taken to which least was fitted: one width
    before one width a column, before a metric; then the cheaper map.

    Without targets, or with fewer than 40 rows, it is `FourierFeatures` of a Gaussian kernel with an
    automatic width.

    Parameters
    ----------
    n_components : int, default=1024
        Features D of Fourier and Nyström candidates. Binning has 16 to 100 grids, more for a larger D.
    maps : tuple of {"fourier", "nystroem", "binning", "equispaced"}, optional
        Kinds of maps to choose from. Default: all that the model can have. Standard deviations and `gram`
        need dense features: leave "binning" out.
    random_state : int or None
        Seed of the sample's order, the small models and the map; None is fresh entropy, kept as `seed_`.

    Attributes
    ----------
    map_ : FeatureMap
        The chosen map, fitted.
    candidates_ : list of dict
        For each candidate, the one to take first, then the best: `candidate`, `error` on held-out rows in the
        last stage that it reached with its `spread`, the error `expected` of the model itself, `flops` and
        `seconds`; `chosen` is True for one, the first whose model fits in memory.
    kernel_ : Kernel
    length_scale_search_ : dict or None
        As that of `map_`; else `rule` and `length_scale`, with one width a column `column_scale`
        (deviations), and with a metric `directions` and `column_shares`, as a learned metric has them.
    specification_ : FittedMap
        That of `map_`.
    seed_, n_features_in_ : int

    Notes
    -----
    The search is counted in flops and so depends on `random_state` alone, not on the machine: about 6e11
    flops, and about 1.2e11 for at most 10,000 rows. That is a third of a minute, or four seconds, at 30
    Gflop/s; fewer rows take less. Where bins with a width a column are best on more than 10,000 rows, these
    are shrunk beside it, as "ard" does.

    Equispaced features are judged with what is best of Fourier and Nyström features without a metric, for at
    least 1,000 rows. They then choose their kernel by all rows, so that nothing of them is fitted to the
    sample; for at most 10,000 rows they are at most 65,536. Their bounds are a quarter of the columns' range
    wider than the rows on both sides, for many rows a twentieth: further away predictions are NaN. Of two
    columns with gaps, judged by `BlockFolds` like these, they are taken whatever the sample says.
    """

    traits = frozenset({Trait.CHOOSES})

    def __init__(
        self,
        n_components: int = 1024,
        *,
        maps: tuple[str, ...] | None = None,
        random_state: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.maps = maps
        self.random_state = random_state

    def check_parameters(self) -> None:
        check_count("n_components", self.n_components)
        known = (*MAPS, EQUISPACED)
        if self.maps is None:
            return
        if not isinstance(self.maps, tuple | list) or not self.maps or not set(self.maps) <= set(known):
            raise InputError(f"maps must be None or a tuple of some of {listed(known)}, got {self.maps!r}")

    @property
    def _chosen_maps(self) -> tuple[str, ...]:
        return MAPS if self.maps is None else tuple(self.maps)

    def outline(self, n_columns: int, n_rows: int) -> MapOutline:
        has_landmarks = "nystroem" in self._chosen_maps  # the dearest candidate
        scope = self._scope(n_rows, n_columns, self._chosen_maps)
        return MapOutline(
            int(self.n_components),
            product_cost(n_columns, triangle_share=float(has_landmarks)),
            n_passes=int(has_landmarks),
            search_flops=scope.budget,
            search_bytes=scope.search_bytes,
        )

    @property
    def takes_sparse_rows(self) -> bool:
        return "fourier" in self._chosen_maps

    def with_map(self, features: FeatureMap) -> Self:
        """This fitted map with its chosen map as the fit has changed it."""
        again = copy(self)
        again._take(features)
        again.specification_ = features.specification_
        return again

    def _take(self, features: FeatureMap) -> None:
        self.map_ = features
        self.kernel_ = getattr(features, "kernel_", None)
        self.length_scale_search_ = getattr(features, "length_scale_search_", None)

    def _scope(self, n_rows: int, n_columns: int, kinds: tuple[str, ...]) -> Scope:
        return Scope(kinds, int(self.n_components), n_rows, n_columns)

    def for_gram(self) -> FeatureMap:
        """The map for a Gram: a search among dense features alone, or the map that was chosen."""
        if hasattr(self, "map_"):
            if Trait.SPARSE in self.map_.traits:
                raise InputError(
                    "the map that was chosen has the sparse features of random binning, and a Gram needs "
                    "dense ones; choose among Fourier and Nyström features alone"
                )
            return self.map_
        kinds = tuple(name for name in self._chosen_maps if name in ("fourier", "nystroem"))
        if not kinds:
            raise InputError(
                f"maps={self.maps!r} has sparse features only, and a Gram needs dense ones; "
                f"add 'fourier' or 'nystroem'"
            )
        return AutoFeatures(self.n_components, maps=kinds, random_state=self.random_state)

    def for_rows(
        self, n_rows: int, n_columns: int, *, is_sparse: bool, has_targets: bool, by_sums: bool
    ) -> FeatureMap:
        """The search among the kinds for such rows, or `FourierFeatures` where nothing can be judged."""
        if hasattr(self, "map_"):
            return self
        kinds = self._kinds(is_sparse)
        is_wanted = self.maps is None or EQUISPACED in self.maps
        if is_wanted and by_sums and n_columns <= MAX_DIMENSIONS and not is_sparse:
            kinds = (*kinds, EQUISPACED)
        if not kinds:
            raise InputError(
                f"maps={self.maps!r} has no map for these rows and this model: equispaced features are for "
                f"ridge with alpha='cv' on 1 to 3 dense columns; add 'fourier'"
            )
        left = AutoFeatures(self.n_components, maps=kinds, random_state=self.random_state)
        too_wide = is_sparse and is_too_wide(sample_rows(n_columns), n_columns)
        if has_targets and n_rows >= _MIN_ROWS and not too_wide:
            return left
        # A single row has no typical distance.
        return left._default(width="auto" if n_rows > 1 else 1.0).set_params(random_state=self.random_state)

    @property
    def tries_equispaced(self) -> bool:
        """Whether equispaced features are among the kinds to choose from."""
        return EQUISPACED in self._chosen_maps

    def _kinds(self, is_sparse: bool) -> tuple[str, ...]:
        """The kinds of maps, in their own order, that take the rows."""
        maps = self._chosen_maps
        return tuple(kind for kind in MAPS if kind in maps and (kind == "fourier" or not is_sparse))

    def trial(self, n_columns: int, most_components: int | None = None) -> FeatureMap:
        """The dearest candidate, fitted to random rows."""
        return self._default(dearest=True).trial(n_columns, most_components)

    def freeze(self, sample: Sample) -> FittedMap:
        self.candidates_: list[dict[str, Any]] = []
        refusal: PlanRefused | None = None
        for rank, features in enumerate(self._choices(sample)):
            try:
                self._take(_fitted(features, replace(sample, row_source=sample.row_source.of_map(features))))
                for place, row in enumerate(self.candidates_):
                    row["chosen"] = place == rank
                break
            except PlanRefused as error:  # the next best may need less memory
                refusal = refusal or error
        else:
            assert refusal is not None
            raise refusal
        if self.length_scale_search_ is None and self.kernel_ is not None and self.candidates_:
            self.length_scale_search_ = _found_widths(self.kernel_, sample)
        return self.map_.specification_

    def _choices(self, sample: Sample) -> Iterable[FeatureMap]:
        """Maps that are not fitted, the best first."""
        if not some_differ(sample):
            return [self._default(width=1.0)]
        n_usable, is_sparse = np.count_nonzero(sample.weights > 0), issparse(sample.X)
        n_sampled, n_columns = sample.X.shape
        too_wide = is_sparse and is_too_wide(n_sampled, n_columns)
        if sample.y is None or n_usable < _MIN_ROWS or too_wide or is_constant(sample):
            return [self._default()]
        kinds = self._kinds(is_sparse)
        has_few_targets = coded_targets(sample.y).shape[1] <= _MAX_TARGETS
        may_be_equispaced = not kinds or (has_few_targets and sample.n_weighted_rows >= _MIN_ROWS_OF_LATTICE)
        if self.tries_equispaced and may_be_equispaced:
            kinds = (*kinds, EQUISPACED)
        scope = self._scope(sample.n_weighted_rows, n_columns, kinds)
        if is_sparse:
            sample = replace(sample, X=sample.X.toarray())
        rows = SearchSample.of(sample, _ROWS_OF_FEW if scope.is_small else SAMPLE_ROWS)
        search = Search(scope, rows, sample.row_source, own_units(sample.column_scale), _wide_bounds(sample))
        search.run()
        self.candidates_ = search.table()
        choices = search.choices()
        if not choices and not self._kinds(is_sparse):
            raise InputError(
                f"maps={self.maps!r} has no map for these rows: they need widths that are too short for "
                f"equispaced features; add 'fourier'"
            )
        if not choices:
            return [self._default()]
        # One by one: widths of bins are shrunk for the map that is taken.
        maps = (search.feature_map(one) for one in choices)
        return (one.set_params(sampling="orthogonal") for one in maps) if is_sparse else maps

    def _default(self, *, width: str | float = "auto", dearest: bool = False) -> FeatureMap:
        """A map with this width that stands for the candidates: the cheapest one, or the dearest."""
        kinds = [kind for kind in ("fourier", "nystroem") if kind in self._chosen_maps]
        if not kinds and "binning" in self._chosen_maps:
            return RandomBinningFeatures(Laplacian(width))
        kinds = kinds or ["fourier"]
        if kinds[-1 if dearest else 0] == "nystroem":
            return NystroemFeatures(Gaussian(width), self.n_components)
        return FourierFeatures(Gaussian(width), int(self.n_components))


def _found_widths(kernel: Kernel, sample: Sample) -> dict[str, Any]:
    """Search report for widths that were chosen elsewhere."""
    widths = kernel.get_params()["length_scale"]
    search: dict[str, Any] = {"rule": "small models on a sample", "length_scale": widths}
    if isinstance(widths, tuple):
        search["column_scale"] = Moments.of(sample.X, sample.weights).standard_deviation().tolist()
    if kernel.metric is not None:
        search |= metric_shares(np.asarray(kernel.metric))
    return search
