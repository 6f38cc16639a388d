"""A map that chooses itself: kind, kernel, widths and metric by small ridges on a sample."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.base import clone

from distrff.errors import InputError, PlanRefused
from distrff.features.base import FeatureMap, RowSource, Sample, sample_rows
from distrff.features.binning import RandomBinningFeatures
from distrff.features.equispaced import EquispacedFourierFeatures
from distrff.features.fitted import FittedMap, MapOutline, Trait, product_cost
from distrff.features.fourier import FourierFeatures
from distrff.features.nystroem import NystroemFeatures
from distrff.features.search.metric import (
    ANYWHERE,
    LearnedMetric,
    column_widths,
    extrapolated,
    learn_metric,
    metric_shares,
    scales_of,
)
from distrff.features.search.ridge import (
    FEATURES,
    GRIDS,
    LEAST_GAIN,
    MODELS,
    BinnedRidge,
    NystroemRidge,
    best_width,
)
from distrff.features.search.sample import (
    FARTHEST,
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
from distrff.preprocessing.coding import NO_EFFECT, WARPS, Moments, Scaling
from distrff.utils.nufft import MAX_DIMENSIONS
from distrff.utils.process import one_blas_thread
from distrff.utils.text import listed
from distrff.utils.validation import check_count, positive

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
_LAPLACIAN = Laplacian("auto")
_KERNELS: dict[str, tuple[Stationary, ...]] = {
    "fourier": (*_SMOOTHNESS, _LAPLACIAN),
    "nystroem": (*_SMOOTHNESS, _LAPLACIAN),
    "binning": (_LAPLACIAN,),
}


@dataclass(frozen=True)
class Candidate:
    """A kind of map with a kernel of undecided width, and a rule for its widths."""

    kind: str
    kernel: Stationary
    rule: str
    parts: tuple[tuple[float, Candidate], ...] = ()
    """Candidates whose kernels are added, with weights that sum to 1."""

    @property
    def fitted(self) -> int:
        """How much is fitted to the sample: 0 nothing, 1 a width, 2 a width a column, 3 a metric.

        Equispaced features choose their kernel once more, by all rows.
        """
        if self.parts:
            return max(part.fitted for _, part in self.parts)
        return 0 if self.kind == EQUISPACED else _FITTED[self.rule]

    def __str__(self) -> str:
        if self.parts:
            return " + ".join(f"{weight:.2g} × ({part})" for weight, part in self.parts)
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
    alpha: float = math.nan  # of the small model, as a share; NaN where it has none


# Of a dozen finalists the best is best by luck, too: the largest of as many normal errors is 1.6 deviations.
_AS_GOOD, _OF_FOLDS, _SQUARES_AS_GOOD = 2.0, 1.0, 1.05


def choose(
    errors: Mapping[Candidate, HeldOutError], cost: Callable[[Candidate], Any], *, by_folds: bool = False
) -> Candidate:
    """Within some standard errors of the best those with least fitted to the sample; of these the cheapest.

    Standard errors are those of differences on the same rows: two of held-out rows, and one of all rows out
    of fold. The cheapest is within half as many of their best. Widths of columns and a metric are many
    numbers fitted to a sample, and rows of another year or writer differ from it.
    """
    n_errors = _OF_FOLDS if by_folds else _AS_GOOD

    def as_good(some: Iterable[Candidate], n_errors: float) -> list[Candidate]:
        least = errors[min(some, key=lambda one: errors[one].criterion)]
        return [
            one
            for one in some
            if errors[one].criterion - least.criterion <= n_errors * errors[one].spread_from(least)
        ]

    good = as_good(errors, n_errors)
    least_fitted = min(one.fitted for one in good)
    simplest = as_good([one for one in good if one.fitted == least_fitted], n_errors / 2)
    # A share of wrong classes on some thousand rows tells less than squares do.
    most = _SQUARES_AS_GOOD * min(errors[one].squared_error for one in simplest)
    simplest = [one for one in simplest if errors[one].squared_error <= most]
    return min(simplest, key=lambda one: (cost(one), errors[one].squared_error))


# Tasks on the sample's arrays, side by side.


def apply(arrays: dict[str, np.ndarray], function: Callable[..., Any], *args: Any) -> Any:
    """A task among others of another kind."""
    return function(arrays, *args)


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
    return Found(width, error, ridge.flops + projection, time.perf_counter() - began, ridge.alpha)


def judge_by_folds(
    arrays: dict[str, np.ndarray],
    kind: str,
    kernel: Kernel,
    rule: str,
    size: int,
    n_folds: int,
    alpha: float,
) -> tuple[np.ndarray, Found]:
    """Values of all rows by models that left them out, and their error; `kernel` has its width."""
    began = time.perf_counter()
    with one_blas_thread():
        rows = SearchSample.from_arrays(arrays).in_coordinates(arrays.get(rule))
        ridge = MODELS[kind](replace(rows, n_held_out=0), kernel, size)
        ridge.alpha = alpha
        F = ridge.out_of_fold(kernel, n_folds)
        error = replace(rows, n_held_out=len(rows.Y)).judge(F)
    return F, Found(math.nan, error, ridge.flops, time.perf_counter() - began)


def judge_warp(
    arrays: dict[str, np.ndarray], name: str, kernel: Stationary, size: int, start: float | None
) -> Found:
    """The error of a kernel of one width, sought from `start` on, on the rows X of that name."""
    began = time.perf_counter()
    with one_blas_thread():
        rows = replace(SearchSample.from_arrays(arrays), X=arrays[name])
        try:
            ridge = NystroemRidge(rows, kernel, size)
            first, places = start, range(-2, 3, 2)
            if first is None:
                first, places = median_distance(kernel, rows.X, rows.seed), ANYWHERE
            width, error = best_width(ridge, first, places)
            if rows.is_free:
                F = ridge.out_of_fold(kernel.with_widths(width), _N_FOLDS)
                error = replace(rows, n_held_out=len(rows.Y)).judge(F)
        except InputError:
            return Found(math.nan, HeldOutError.of_no_model(rows.has_classes), 0.0, 0.0)
    return Found(width, error, ridge.flops, time.perf_counter() - began)


def find_metric(
    arrays: dict[str, np.ndarray], n_features: int, start: np.ndarray | None
) -> LearnedMetric | None:
    """The metric that is learned from scales of the columns on; None where the first few rows are equal."""
    with one_blas_thread():
        try:
            return learn_metric(SearchSample.from_arrays(arrays), Gaussian(), n_features, start)
        except InputError:
            return None


def find_widths(arrays: dict[str, np.ndarray], n_rows: int) -> np.ndarray | None:
    """Widths of the columns by the likelihood of so many rows."""
    with one_blas_thread():
        return column_widths(SearchSample.from_arrays(arrays), n_rows)


class Shrunk(NamedTuple):
    """Widths of bins for a number of rows, and the power of that number by which they fall."""

    of_rows: np.ndarray
    n_rows: int
    power: float

    def widths(self, n_rows: int) -> tuple[float, ...]:
        """The widths for another number of rows."""
        found = self.of_rows * (n_rows / self.n_rows) ** -self.power
        return tuple(float(f"{width:.4g}") for width in found)


def shrink_widths(arrays: dict[str, np.ndarray], widths: np.ndarray, n_grids: int) -> Shrunk:
    """The widths of bins, shrunk from those that the likelihood of a few rows finds."""
    rows = SearchSample.from_arrays(arrays)
    scale = Moments.of(rows.X, rows.s).standard_deviation()
    search = {"rule": "", "length_scale": widths.tolist(), "column_scale": scale.tolist()}
    n = rows.n_training
    _, found = shrunk_length_scales(
        Laplacian("ard"), search, rows, n, lambda some, kernel: BinnedRidge(some, kernel, n_grids)
    )
    return Shrunk(np.array(found["length_scale"]), n, found["shrinking"])


# The search.

_FLOPS_A_SECOND = 3e10  # of one core, for the budget alone, which must be the same on every machine
_FEW_ROWS, _SECONDS_FOR_FEW, _SECONDS = 20_000, 4.0, 20.0  # a user of few rows expects an answer at once
_ROWS_OF_FEW, _ROWS_OF_MANY, _FEATURES_OF_FEW = 4096, (8192, 16_384), 512  # that take part at most
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
# With 2,048 features of all rows the widths that the last stage found, and those half an octave shorter, do
# about as well: squared errors of five folds were 4.997 and 4.990 (cpu_act), .00759 and .00755 (elevators). A
# whole octave, as rings lost from stage to stage, left 15.3 % of the classes wrong in place of 11.7.
_SHORTENED = 0.71
_MODES_OF_TRIAL = 2**16  # of the largest small model
# Of equispaced features for few rows, in some seconds.
_FEW_ROWS_OF_LATTICE, _MODES_A_ROW, _MODES_OF_FEW = 10_000, 16, 2**16
_MARGINS, _MARGIN_OF_ROWS = (0.05, 0.25), 25.0  # of the bounds of equispaced features, by the range
_MIN_ROWS_OF_LATTICE = 1000  # for fewer, landmarks at all rows are the kernel itself, and are judged better
_MAX_TARGETS = 8  # for equispaced features, which take a system for each
_HOPELESS = 3.0  # times the error of the best: more than other candidates make up in two stages
_UNLIKELY = 0.5  # of the best's error above it; all rows out of fold seldom make up for that
_ALIKE = 1.5  # deviations of columns that differ by less
# Presumed of an entry in all sparse passes of a fit, some dozen for each fold; it is counted, not measured.
_FLOPS_OF_AN_ENTRY = 5_000.0
_MIN_GRIDS, _MAX_GRIDS = 16, 100
_N_FOLDS = 5
# Of spambase, 3,678 rows, five models whose candidates were all judged out of fold had 4.4 % of the test rows
# wrong in 12 s, others 4.2 in 9.
_LEAST_TO_TELL, _MOST_TO_KEEP_ALL = 500, 3000
_MAX_REFINED, _FARTHEST_REFINED = 3, 6  # finalists, and half octaves
_MAX_PARTS, _WEIGHTS, _PROMISING = 3, (0.2, 0.35, 0.5, 0.65, 0.8), 0.01
_WARP_ROWS, _WARP_FEATURES = 3072, 256
# Small models of one width are blind to what widths of columns would gain: with ranks, which bring their
# error on friedman1 from .150 to .147, the model itself had 1.12 in place of 1.03.
_CLEARLY = 0.05


@dataclass(frozen=True)
class Scope:
    """Kinds that a search may choose from, and the size of the model that it is for."""

    kinds: tuple[str, ...]
    n_components: int  # at most, where the size is chosen
    n_rows: int
    n_columns: int
    is_free: bool = False  # whether the size is chosen

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
    def has_few_rows(self) -> bool:
        """Whether all rows take part in the search, and may all be landmarks of the model."""
        return self.n_rows <= min(_MOST_TO_KEEP_ALL, self.n_components)

    @property
    def keeps_all(self) -> bool:
        """Whether no candidate is out before the finals: they are cheap, and held-out rows few."""
        return self.has_few_rows and self.n_rows >= _LEAST_TO_TELL

    @property
    def search_rows(self) -> int:
        """Rows by which candidates are compared until the finals: of many a quarter."""
        if self.is_small:
            return _ROWS_OF_FEW
        # With 8,192 rows of covtype the metric and the widths are poorer than with 16,384: bins had 19.8 and
        # 16.2 % of the classes wrong.
        return int(np.clip(self.n_rows // 4, *_ROWS_OF_MANY))

    @property
    def budget(self) -> float:
        """Flops of the search, about."""
        return (_SECONDS_FOR_FEW if self.is_small else _SECONDS) * _FLOPS_A_SECOND

    @property
    def max_features(self) -> int:
        """Features of the largest small models, by which finalists are judged, too."""
        return min(self.n_components, _FEATURES_OF_FEW if self.is_small else FEATURES)

    @property
    def usual_size(self) -> int:
        """Features where no learning curve says how many pay."""
        return min(self.n_components, _USUAL_SIZE) if self.is_free else self.n_components

    @property
    def likely_features(self) -> int:
        """Features that the seconds of a plan are for: between 1024 and the most, nearer to these."""
        likely = self.usual_size * (self.n_components / self.usual_size) ** _LIKELY
        return min(round(likely), max(self.n_rows, _SIZES[0]))

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


# The size.

_SIZES, _USUAL_SIZE = (256, 16_384), 1024
_LIKELY = 2 / 3  # of the way from the usual size to the most, in logarithms
# Flops of a fit that answers in some seconds, and those that a row may take, as with 2,048 features.
_FLOPS, _FLOPS_A_ROW = 2e11, 2.0 * 2048**2
_REDUCTIONS = 15.0  # of D³ flops, for five folds and the sizes of a learning curve


def fit_flops(n_rows: int, n_features: int) -> float:
    """About the flops of a fit from a Gram, with a triangular solve a row and the penalty chosen by folds."""
    n, D = float(n_rows), float(n_features)
    return 2 * n * D**2 + _REDUCTIONS * D**3


def budget_of_fit(n_rows: int) -> float:
    """The flops that `fit_flops` should not exceed for a small gain."""
    return _FLOPS + n_rows * _FLOPS_A_ROW


def size_that_pays(
    errors: Sequence[float], size: int, most: int, dearness: Callable[[int], float], min_gain: float
) -> tuple[int, float]:
    """A size, and the share by which the error is expected to fall with twice as many features.

    `errors` are those of a quarter, a half and all of `size` features. A doubling pays where this share is at
    least `min_gain`, times dearness^1.5 where the fit takes more than its budget.
    """
    fall = expected_fall(errors)
    if fall < min_gain:
        return size, fall
    while 2 * size <= most and fall >= min_gain * max(1.0, dearness(2 * size)) ** _STEEPNESS:
        size, fall = 2 * size, fall * _FADING
    return size, fall


def expected_fall(errors: Sequence[float]) -> float:
    """The share by which another doubling of the features is expected to lower the error.

    It is three quarters of what two doublings did on average, and of the next one that again: of one alone
    the noise would decide. But it is at most three halves of what the last one did: where the features begin
    to suffice the error falls no more (waves in the plane: .0189, .0090 and .0089 of the variance).
    """
    first, before, last = errors
    if not 0 < last < min(before, first) < math.inf:
        return 0.0
    return _FADING * min(1.0 - math.sqrt(last / first), 2.0 * (1.0 - last / before))


def left_with(errors: Sequence[float], size: int, larger: int) -> float:
    """The share of the error with `size` features that is expected to be left with a `larger` number."""
    fall, share = expected_fall(errors), 1.0
    while 2 * size <= larger:
        size, share, fall = 2 * size, share * (1.0 - fall), fall * _FADING
    return share


_FADING, _STEEPNESS = 0.75, 1.5
_LEAST_OF_CURVE = 64
_MOST_GAIN = 0.15  # of a doubling


@dataclass(eq=False)
class Search:
    """The candidates with the errors that they reached, and the coordinates that their rules stand for.

    `own_units` are scales of the columns that lead back to their own units; None where they have these.
    """

    scope: Scope
    rows: SearchSample
    all_rows: SearchSample  # for finalists
    source: RowSource
    own_units: np.ndarray | None
    bounds: list[tuple[float, float] | None]  # of an equispaced map
    coordinates: dict[str, np.ndarray] = field(default_factory=dict)
    histories: dict[Candidate, list[Found]] = field(default_factory=dict)
    min_gain: float = 0.01
    effort: float = 1.0
    n_features: int | None = None  # as it was chosen
    size_search: dict[str, Any] | None = None
    share: float = 1.0  # of the errors of finalists that is left with all features
    shrunk: dict[Candidate, Shrunk] = field(default_factory=dict)  # for many rows
    refined: dict[Candidate, float] = field(default_factory=dict)  # widths by all rows out of fold
    finals: dict[Candidate, Found] = field(default_factory=dict)
    values: dict[Candidate, np.ndarray] = field(default_factory=dict)

    @cached_property
    def stages(self) -> list[Stage]:
        return self.scope.stages(self.rows.n_training)

    def run(self) -> None:
        """Judge all candidates, stage after stage; then others that follow from the finalists."""
        self._find_coordinates()
        if halving(self._field(), self._judge, len(self.stages), self._kept):
            self._judge_equispaced()
            self._shrink_widths_of_bins()
            self._judge_by_folds()
            self._choose_size()
            self._judge_frequencies()

    def _find_coordinates(self) -> None:
        """Learn widths of the columns and a metric."""
        found = {IN_OWN_UNITS: self.own_units}
        if self.rows.X.shape[1] > 1:
            # They are those of the best penalty: a strong one would hide most of the directions.
            arrays = self.rows.arrays() | {"penalty": np.array(math.nan)}
            size, n_rows = self.scope.max_features, self.scope.likelihood_rows
            calls: list[tuple] = [(find_metric, size, None), (find_widths, n_rows)]
            learned, *of_columns = self.source.run_all(apply, arrays, calls[: 2 if n_rows else 1])
            widths = of_columns[0] if n_rows else None
            if learned is not None and learned.found_nothing and widths is not None:
                (again,) = self.source.run_all(find_metric, arrays, [(size, widths)])
                learned = learned if again is None else learned.or_better(again)
            P = None if learned is None else learned.P
            if widths is None and P is not None:
                widths = scales_of(P)
            found |= {BY_COLUMN: widths, METRIC: P}
        self.coordinates = {rule: A for rule, A in found.items() if A is not None}

    def _shrink_widths_of_bins(self) -> None:
        """Shrink the widths a column of bins, which many rows allow to be shorter.

        On 12,000 rows of covtype the share of wrong classes falls from 17 to 14 %.
        """
        A = self.coordinates.get(BY_COLUMN)
        if self.scope.is_small or A is None:
            return
        for one in self._finalists():
            if (one.kind, one.rule) == ("binning", BY_COLUMN):
                call = self.histories[one][-1].width * A, self.scope.n_grids
                (self.shrunk[one],) = self.source.run_all(shrink_widths, self.rows.arrays(), [call])

    def _judge_by_folds(self) -> None:
        """Judge the finalists by all rows, each out of fold, and sums of the kernels of some of them."""
        if not self.rows.is_free:
            return
        stands_for_fourier = "nystroem" in self.scope.judged
        finalists = [
            one
            for one in sorted(self._finalists(), key=self._place)
            if one.kind in self.scope.kinds and not (one.kind == "fourier" and stands_for_fourier)
        ]
        if self.scope.keeps_all:
            self._judge_out_of_fold([one for one in finalists if not self._is_unlikely(one)])
        else:
            self._judge_best_of_rules(finalists)
        if not self.finals:
            return
        if self.scope.has_few_rows:
            self._refine_widths()
        self._judge_sums()

    def _judge_best_of_rules(self, finalists: list[Candidate]) -> None:
        """Judge the best of each rule, and all kernels of the best of these."""
        best: dict[tuple[str, str], Candidate] = {}
        for one in finalists:
            kind = "dense" if one.kind in ("nystroem", "fourier") else one.kind
            best.setdefault((kind, one.rule), one)
        self._judge_out_of_fold(list(best.values()))
        if not self.finals:
            return
        # Fewer rows told the kernels of a rule apart, or halving left one of them.
        first = min(self.finals, key=self._place)
        others = [
            one
            for one in self.histories
            if (one.kind, one.rule) == (first.kind, first.rule) and one not in self.finals
        ]
        for one in others:
            self._go_on_as(one, self.histories[first])
        self._judge_out_of_fold([one for one in others if math.isfinite(self.histories[one][-1].width)])

    def _refine_widths(self) -> None:
        """Let the widths of the best finalists walk by half octaves, as all rows out of fold judge them.

        Held-out rows of few are too few to tell widths: those of `energy` were 2.8 times too long, with a
        test error of .028 in place of .022. Squares decide, since one row more that is right moves no width.
        """
        best = sorted((one for one in self.finals if one.kind == "nystroem"), key=self._place)[:_MAX_REFINED]
        self.refined = {one: self._width(one) for one in best}
        towards: dict[Candidate, tuple[float, ...]] = dict.fromkeys(best, (math.sqrt(0.5), math.sqrt(2.0)))
        for _ in range(_FARTHEST_REFINED):
            tried = [(one, step) for one, steps in towards.items() for step in steps]
            widths = [self.refined[one] * step for one, step in tried]
            judged = self._out_of_fold([one for one, _ in tried], self.scope.max_features, widths)
            towards = {}
            for (one, step), width, (F, found) in zip(tried, widths, judged, strict=True):
                before = self.finals[one]
                if found.error.squared_error < (1 - LEAST_GAIN) * before.error.squared_error:
                    self.refined[one], self.values[one], towards[one] = width, F, (step,)
                    self.finals[one] = found
                spent = before.flops + found.flops, before.seconds + found.seconds
                self.finals[one] = replace(self.finals[one], flops=spent[0], seconds=spent[1])
            if not towards:
                break

    def _width(self, candidate: Candidate) -> float:
        """The width of a candidate by which finals judge it."""
        return self.refined.get(candidate, self.histories[candidate][-1].width)

    def _is_unlikely(self, candidate: Candidate) -> bool:
        """Whether a candidate of few rows was far worse than the best, and not by chance."""
        least = min(self._finalists().values(), key=lambda error: error.criterion)
        error = self.error(candidate)
        may_differ = max(_UNLIKELY * least.criterion, _AS_GOOD * error.spread_from(least))
        return error.criterion - least.criterion > may_differ

    def _go_on_as(self, candidate: Candidate, best: list[Found]) -> None:
        """Let the width of a candidate that left early go on as that of another kernel of its rule has.

        Sought once more, the widths of three to five kernels took a seventh of the search.
        """
        history = self.histories[candidate]
        for before, found in zip(best[len(history) - 1 :], best[len(history) :], strict=False):
            width = history[-1].width * found.width / before.width
            history.append(replace(history[-1], width=width, alpha=found.alpha, flops=0.0, seconds=0.0))

    def _choose_size(self) -> None:
        """Choose the number of features by how the error of the best dense finalist falls with more of them.

        The errors of all dense finalists become those that are expected with so many.
        """
        dense = {one: e for one, e in self.judged().items() if one.kind in ("nystroem", "fourier")}
        size, most = self.scope.max_features, self.scope.n_components
        if not self.finals or not dense or size < 4 * _LEAST_OF_CURVE:
            return
        best = choose(dense, self._cost, by_folds=True)
        few = [self._out_of_fold([best], size // parts)[0][1].error for parts in (4, 2)]
        errors = [*few, self.finals[best].error]
        if self.scope.is_free:
            self.n_features, fall = self._size_for(errors, has_landmarks=best.kind == "nystroem")
            own, twice = (fit_flops(self.scope.n_rows, times * self.n_features) for times in (1, 2))
            self.size_search = {
                "curve": [[size // parts, e.criterion] for parts, e in zip((4, 2, 1), errors, strict=True)],
                "n_components": self.n_features,
                "most": most,
                "expected_fall": fall,
                "times_the_flops": twice / own,
            }
        n_features = self.n_features or self.scope.usual_size
        self.share = left_with([e.squared_error for e in errors], size, n_features)
        self._promise(dense)

    def _size_for(self, errors: list[HeldOutError], *, has_landmarks: bool) -> tuple[int, float]:
        """A size, and the share by which the error is expected to fall with twice as many."""
        if has_landmarks and self.scope.has_few_rows and self._dearness(self.scope.n_rows) <= 1:
            return self.scope.n_rows, 0.0  # the features are then the kernel itself
        # Of classes the share of wrong ones falls in steps, and squares go on where it stands.
        return max(
            size_that_pays(
                falling, self.scope.max_features, self.scope.n_components, self._dearness, self.min_gain
            )
            for falling in ([e.squared_error for e in errors], [e.criterion for e in errors])
        )

    def _promise(self, some: Iterable[Candidate]) -> None:
        """Let finalists have the errors that are expected of them with all features."""
        for one in some:
            found = self.finals[one]
            self.finals[one] = replace(found, error=found.error.times(self.share))

    def _dearness(self, n_features: int) -> float:
        n = self.scope.n_rows
        return fit_flops(n, n_features) / (self.effort * budget_of_fit(n))

    def _judge_out_of_fold(self, some: list[Candidate]) -> None:
        size = self.scope.max_features
        for one, (F, found) in zip(some, self._out_of_fold(some, size), strict=True):
            if found.error.squared_error < math.inf:  # a penalty that is given may leave no model
                self.finals[one], self.values[one] = found, F

    def _out_of_fold(
        self, some: list[Candidate], n_features: int, widths: Sequence[float] | None = None
    ) -> list[tuple[np.ndarray, Found]]:
        """Values of all rows out of fold, and their errors; with other `widths` where they are given."""
        arrays = self.all_rows.arrays() | self.coordinates
        n, calls = len(self.all_rows.Y), []
        for place, one in enumerate(some):
            size = {"binning": self.scope.n_grids, EQUISPACED: self.stages[-1].n_modes}.get(
                one.kind, min(n, n_features)
            )
            if one in self.shrunk:
                kernel, rule = one.kernel.with_widths(self.shrunk[one].widths(n)), ""
            elif one.parts:
                kernel, rule = self.kernel_of(one), ""
            else:
                width = self._width(one) if widths is None else widths[place]
                kernel, rule = one.kernel.with_widths(width), one.rule
            first = one.parts[0][1] if one.parts else one
            calls.append((one.kind, kernel, rule, size, _N_FOLDS, self.histories[first][-1].alpha))
        return self.source.run_all(judge_by_folds, arrays, calls)

    def _judge_sums(self) -> None:
        """Judge sums of kernels, as far as averages of the values of their models promise something."""
        dense = [one for one in self.finals if one.kind == "nystroem"]
        if len(dense) < 2:
            return
        judge = replace(self.all_rows, n_held_out=len(self.all_rows.Y)).judge
        parts: dict[Candidate, float] = {
            min(dense, key=lambda one: self.finals[one].error.squared_error): 1.0
        }
        F = self.values[next(iter(parts))]
        for _ in range(_MAX_PARTS - 1):
            least = judge(F).squared_error
            tried = {
                (one, w): judge((1 - w) * F + w * self.values[one]).squared_error
                for one in dense
                if one not in parts
                for w in _WEIGHTS
            }
            if not tried:
                break
            (one, w), error = min(tried.items(), key=lambda item: item[1])
            if error > (1 - _PROMISING) * least:
                break
            F = (1 - w) * F + w * self.values[one]
            parts = {part: (1 - w) * weight for part, weight in parts.items()} | {one: w}
        if len(parts) == 1:
            return
        first = next(iter(parts))
        weights = tuple((weight, part) for part, weight in parts.items())
        self._judge_out_of_fold([Candidate("nystroem", first.kernel, first.rule, weights)])

    def _field(self) -> list[Candidate]:
        """The candidates of the first stage: Nyström features stand for both kinds of dense ones.

        They are the more accurate ones of a kernel, and the closer the more there are.
        """
        judged = self.scope.judged
        kinds = [kind for kind in judged if kind != "fourier" or "nystroem" not in judged]
        if self.scope.has_few_rows and "nystroem" in kinds:  # bins are a sample of a kernel that these have
            kinds = [kind for kind in kinds if kind != "binning"]
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
        return (self.finals.get(candidate) or self.histories[candidate][-1]).error

    def _kept(self, ranked: list[Candidate]) -> list[Candidate]:
        """The best of each kind with each measure of what is fitted; of few rows all.

        Early stages flatter the candidates whose metric and widths were learned on all rows of the sample. On
        mnist one width had 21 % of the classes wrong in the first stage, where a metric had 13, and 6.9 % in
        the last one, where that had 9.1. And few grids show little of bins yet: on covtype these were behind
        in the first stage, and had 17 % of the classes wrong in the last, where dense features had 21.
        """
        if self.scope.keeps_all:
            return ranked
        first: dict[tuple[bool, int], Candidate] = {}
        for one in ranked:
            first.setdefault((one.kind == "binning", one.fitted), one)
        most = _HOPELESS * self.error(ranked[0]).criterion
        return [one for one in first.values() if self.error(one).criterion <= most]

    def _judge_frequencies(self) -> None:
        """Judge Fourier features beside the Nyström features that would be chosen: they cost less."""
        chosen = choose(self.judged(), self._cost, by_folds=bool(self.finals))
        # Of few rows landmarks are the closer to the kernel, and their triangular solve is cheap.
        is_free = self.scope.has_few_rows or chosen.parts
        if chosen.kind == "nystroem" and "fourier" in self.scope.judged and not is_free:
            twin = replace(chosen, kind="fourier")
            self.histories[twin] = [
                replace(found, flops=0.0, seconds=0.0) for found in self.histories[chosen][:-1]
            ]
            self._judge([twin], -1)
            if self.finals:
                self._judge_out_of_fold([twin])
                self._promise([twin] if twin in self.finals else [])

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

    def judged(self) -> dict[Candidate, HeldOutError]:
        """The candidates to choose from: those that were judged by folds, or else by held-out rows."""
        if self.finals:
            return {one: found.error for one, found in self.finals.items()}
        return self._finalists()

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
        allowed = {one: e for one, e in self.judged().items() if one.kind in self.scope.kinds}
        if not allowed:
            return []
        # A thinned sample in gaps says little about all rows, whose likelihood chooses the kernel of these
        # features: on a satellite image Nyström features were the best of the sample, with an RMSE under its
        # clouds of 2.39 against 1.32.
        is_map = self.rows.go_by_places and self.rows.X.shape[1] == 2
        of_map = {one: error for one, error in allowed.items() if one.kind == EQUISPACED and is_map}
        first = choose(of_map or allowed, self._cost, by_folds=bool(self.finals))
        others = [
            one
            for one in {**self.finals, **self.histories}
            if one.kind in self.scope.kinds and one != first and self.error(one).squared_error < math.inf
        ]
        return [first, *sorted(others, key=self._place)]

    def _place(self, candidate: Candidate) -> tuple[float, float]:
        """An order by the last stage that a candidate reached, then by its error there."""
        stage = math.inf if candidate in self.finals else len(self.histories[candidate])
        return -stage, self.error(candidate).criterion

    def _cost(self, candidate: Candidate) -> tuple[int, int]:
        """An order by cost: few rows have few landmarks; then kinds in their own order."""
        is_nystroem = candidate.kind == "nystroem"
        size = min(self.scope.n_components, self.scope.n_rows) if is_nystroem else self.scope.n_components
        return size, (EQUISPACED, *MAPS).index(candidate.kind)

    def expected(self, candidate: Candidate, number: Callable[[Found], float]) -> float:
        """A width or error for the model itself, if it falls on as it did from stage to stage."""
        if candidate.parts:
            return number(self.finals[candidate])
        history, kind = self.histories[candidate], candidate.kind
        sizes = [self.rows.n_training // one.thinning * one.size(kind) for one in self.stages[: len(history)]]
        before, last = (number(history[at]) for at in (max(0, len(history) - 2), -1))
        whole = self.scope.n_rows * self.scope.size(kind)
        return extrapolated(before, last, sizes[-1] / sizes[max(0, len(sizes) - 2)], whole / sizes[-1])

    def kernel(self, candidate: Candidate) -> Kernel:
        """The candidate's kernel with its widths and metric, in the columns of the rows, for all of them."""
        if candidate.parts:
            return self.kernel_of(candidate)
        if candidate in self.shrunk:
            return candidate.kernel.with_widths(self.shrunk[candidate].widths(self.scope.n_rows))
        A, width = self.coordinates.get(candidate.rule), self.expected(candidate, lambda found: found.width)
        if candidate in self.refined:
            width = self.refined[candidate]
        elif candidate.kind in ("nystroem", "fourier"):
            width = max(width, _SHORTENED * self.histories[candidate][-1].width)
        return _in_columns(candidate.kernel, A, width)

    def kernel_of(self, candidate: Candidate) -> Kernel:
        """The sum of the kernels of a candidate's parts, with the widths for the sample."""
        weighted = [
            weight * _in_columns(one.kernel, self.coordinates.get(one.rule), self._width(one))
            for weight, one in candidate.parts
        ]
        return sum(weighted[1:], weighted[0])

    def feature_map(self, candidate: Candidate) -> FeatureMap:
        """The map of the candidate, not fitted."""
        if candidate.kind == EQUISPACED:
            few = min(_MODES_A_ROW * self.scope.n_rows, _MODES_OF_FEW)
            n_components = few if self.scope.n_rows <= _FEW_ROWS_OF_LATTICE else None
            return EquispacedFourierFeatures(n_components=n_components, bounds=self.bounds)
        kernel, size = self.kernel(candidate), self.n_features or self.scope.usual_size
        if candidate.kind == "binning":
            return RandomBinningFeatures(kernel, self.scope.n_grids)
        if candidate.kind == "nystroem":
            return NystroemFeatures(kernel, min(size, self.scope.n_rows))
        return FourierFeatures(kernel, size, sampling="auto")

    def table(self) -> list[dict[str, Any]]:
        """The errors of each candidate, the one to take first, as strict JSON data."""
        return [
            {
                "candidate": str(one),
                "criterion": self.rows.criterion_name,
                "error": self.error(one).criterion,
                "spread": self.error(one).spread,
                "squared_error": self.error(one).squared_error,
                "expected": self.expected(one, lambda found: found.error.criterion),
                "stages": len(self.histories.get(one, [])),
                "flops": sum(found.flops for found in self._all_found(one)),
                "seconds": sum(found.seconds for found in self._all_found(one)),
            }
            for one in self.choices()
        ]

    def _all_found(self, candidate: Candidate) -> list[Found]:
        final = [self.finals[candidate]] if candidate in self.finals else []
        return [*self.histories.get(candidate, []), *final]


def _in_columns(kernel: Stationary, A: np.ndarray | None, width: float) -> Kernel:
    """The kernel of one width in coordinates A, as one of the columns of the rows."""
    if A is not None and A.ndim == 1:
        return kernel.with_widths(tuple(float(f"{w:.4g}") for w in width * A))
    return kernel.set_params(length_scale=float(f"{width:.4g}"), metric=A)


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
    """The map, kernel, widths, metric and size that do best in small models on a sample of the rows.

    Candidates are Fourier and Nyström features of the Gaussian, the Laplacian and the Matérn kernels of
    ν = ½, 3/2 and 5/2 and random binning of the Laplacian kernel, and for ridge with ``alpha="cv"`` on one to
    three columns equispaced features. Each has one width, of the standard columns or of the columns' own
    units, one width a column, or a learned metric. Each candidate is judged on held-out rows by what the
    estimator is for: squared error of numbers, wrong classes. Samples and maps grow from stage to stage; the
    better half of the candidates goes on, and at last an eighth, with the best bins and the best dense
    features that have one width, one a column and a metric.

    These finalists, and the other kernels of the best one's rule, are judged once more, out of fold by all
    rows of the sample, and so is the sum of the kernels of some of them, where averages of their values
    promise to lower the error by a hundredth. Of the finalists those count as equal whose error is larger
    than the best by no more than a standard error of the difference on the same rows. Of these the one is
    taken to which least was fitted: one width before one width a column, before a metric; then the cheaper
    map, whose squared error is larger by no more than a twentieth.

    At most 3,000 rows all take part from the beginning, and may all be landmarks. Nyström features then stand
    for Fourier features and bins, and the widths of the three best finalists go on by half octaves. From 500
    rows on all candidates are finalists, but for those whose error is half as large again as that of the best
    and two standard errors larger.

    Without targets, or with fewer than 40 rows, it is `FourierFeatures` of a Gaussian kernel with an
    automatic width.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        Features D of Fourier and Nyström candidates. "auto" takes as many, 256 or more in factors of 2, as
        pay: until twice as many are expected to lower the held-out error by less than `min_gain`. Binning
        has 16 to 100 grids, more for a larger D.
    max_components : int, default=16384
        Features at most for "auto", and less where memory has no room for them.
    min_gain : float, default=0.01
        The share of the held-out error that a doubling must promise. It grows as the power 3/2 of the flops
        of the fit beyond a budget, which 2,048 features keep.
    effort : float, default=1.0
        Times that budget: 1 answers in seconds, 10 may take minutes.
    maps : tuple of {"fourier", "nystroem", "binning", "equispaced"}, optional
        Kinds of maps to choose from. Default: all that the model can have, of losses with margins dense ones
        alone. Standard deviations and `gram` need dense features: leave "binning" out.
    random_state : int or None
        Seed of the sample's order, the small models and the map; None is fresh entropy, kept as `seed_`.

    Attributes
    ----------
    map_ : FeatureMap
        The chosen map, fitted.
    candidates_ : list of dict
        For each candidate, the one to take first, then the best: `candidate`, `error` out of fold, or on
        held-out rows in the last stage that it reached, by the `criterion`, with its `spread` and the
        `squared_error`, the error `expected` of the model itself, the `stages` that it took part in, `flops`
        and `seconds`; `chosen` is True for one, the first whose model fits in memory.
    scaling_ : Scaling or None
        Of columns that were bent before they met the map, in an estimator with ``scale="auto"``.
    scale_search_ : dict or None
        The held-out `errors` of small models by the `scale` of the columns, and the one that was taken. They
        are bent where that lowers the error by a twentieth and two standard errors.
    size_search_ : dict or None
        How `n_components` was chosen: `curve`, a list of [features, held-out error], and `expected_fall`, by
        which twice as many are expected to lower it, for `times_the_flops`.
    kernel_ : Kernel
    length_scale_search_ : dict or None
        As that of `map_`; else `rule` and `length_scale`, with one width a column `column_scale`
        (deviations), and with a metric `directions` and `column_shares`, as a learned metric has them.
    specification_ : FittedMap
        That of `map_`.
    seed_, n_features_in_ : int

    Notes
    -----
    The search is counted in flops and so depends on `random_state` alone, not on the machine. Where bins with
    a width a column are finalists on more than 20,000 rows, these are shrunk, as "ard" does.

    The error of Nyström and Fourier features is expected to fall with each doubling by three quarters of the
    share of the one before, beginning with what doublings of the finalists' features brought on average, but
    no more than twice what the last one did. The flops of a fit of n rows are counted as 2·n·D² + 15·D³, of
    which the second part chooses alpha by five folds, and the budget is 2e11 and those of 2,048 features a
    row.

    Equispaced features are judged with what is best of Fourier and Nyström features without a metric, for at
    least 1,000 rows. They then choose their kernel by all rows, so that nothing of them is fitted to the
    sample; for at most 10,000 rows they are at most 65,536. Their bounds are a quarter of the columns' range
    wider than the rows on both sides, for many rows a twentieth: further away predictions are NaN. Of two
    columns with gaps, judged by `BlockFolds` like these, they are taken whatever the sample says. Where they
    are among the candidates no columns are bent.
    """

    traits = frozenset({Trait.CHOOSES})

    def __init__(
        self,
        n_components: int | str = "auto",
        *,
        max_components: int = 16_384,
        min_gain: float = 0.01,
        effort: float = 1.0,
        maps: tuple[str, ...] | None = None,
        random_state: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.max_components = max_components
        self.min_gain = min_gain
        self.effort = effort
        self.maps = maps
        self.random_state = random_state

    def check_parameters(self) -> None:
        if not self._chooses_size:
            check_count("n_components", self.n_components)
        check_count("max_components", self.max_components)
        positive("min_gain", self.min_gain)
        positive("effort", self.effort)
        known = (*MAPS, EQUISPACED)
        if self.maps is None:
            return
        if not isinstance(self.maps, tuple | list) or not self.maps or not set(self.maps) <= set(known):
            raise InputError(f"maps must be None or a tuple of some of {listed(known)}, got {self.maps!r}")

    @property
    def _chooses_size(self) -> bool:
        return isinstance(self.n_components, str) and self.n_components == "auto"

    @property
    def size_limit(self) -> str | None:
        return "max_components" if self._chooses_size else None

    def _most_components(self, n_rows: int) -> int:
        """Features at most: the number that is given, or as many as could pay."""
        if not self._chooses_size:
            return int(self.n_components)
        size, most = _SIZES
        most = max(1, min(most, int(self.max_components), 2 ** math.ceil(math.log2(max(2, n_rows)))))
        allowed = self.effort * budget_of_fit(n_rows) * (_MOST_GAIN / self.min_gain)
        while 2 * size <= most and fit_flops(n_rows, 2 * size) <= allowed:
            size *= 2
        return min(size, most)

    @property
    def _chosen_maps(self) -> tuple[str, ...]:
        return MAPS if self.maps is None else tuple(self.maps)

    def outline(self, n_columns: int, n_rows: int) -> MapOutline:
        has_landmarks = "nystroem" in self._chosen_maps  # the dearest candidate
        scope = self._scope(n_rows, n_columns, self._chosen_maps)
        if self._chosen_maps == ("binning",):
            bins = RandomBinningFeatures(Laplacian(), scope.n_grids).outline(n_columns, n_rows)
            return replace(bins, search_flops=scope.budget, search_bytes=scope.search_bytes)
        return MapOutline(
            scope.n_components,
            product_cost(n_columns, triangle_share=float(has_landmarks)),
            n_passes=int(has_landmarks),
            search_flops=scope.budget,
            search_bytes=scope.search_bytes,
            likely_features=scope.likely_features if self._chooses_size else None,
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
        return Scope(kinds, self._most_components(n_rows), n_rows, n_columns, self._chooses_size)

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
        return clone(self).set_params(maps=kinds)

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
        left = clone(self).set_params(maps=kinds)
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
        self.scaling_: Scaling | None = None
        self.scale_search_: dict[str, Any] | None = None
        self.size_search_: dict[str, Any] | None = None
        choices, sample = self._choices(sample)
        for rank, features in enumerate(choices):
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

    def _choices(self, sample: Sample) -> tuple[Iterable[FeatureMap], Sample]:
        """Maps that are not fitted, the best first, and the sample with the columns that they take."""
        if not some_differ(sample):
            return [self._default(width=1.0)], sample
        n_usable, is_sparse = np.count_nonzero(sample.weights > 0), issparse(sample.X)
        n_sampled, n_columns = sample.X.shape
        too_wide = is_sparse and is_too_wide(n_sampled, n_columns)
        if sample.y is None or n_usable < _MIN_ROWS or too_wide or is_constant(sample):
            return [self._default()], sample
        kinds = self._kinds(is_sparse)
        has_few_targets = coded_targets(sample.y).shape[1] <= _MAX_TARGETS
        may_be_equispaced = not kinds or (has_few_targets and sample.n_weighted_rows >= _MIN_ROWS_OF_LATTICE)
        if self.tries_equispaced and may_be_equispaced:
            kinds = (*kinds, EQUISPACED)
        scope = self._scope(sample.n_weighted_rows, n_columns, kinds)
        if is_sparse:
            sample = replace(sample, X=sample.X.toarray())
        if sample.may_be_warped and EQUISPACED not in kinds and not is_sparse:
            sample = self._warped(sample)
        rows = SearchSample.of(sample, scope.search_rows)
        search = Search(
            scope,
            rows,
            SearchSample.of(sample) if rows.is_free else rows,
            sample.row_source,
            own_units(sample.column_scale),
            _wide_bounds(sample),
            min_gain=float(self.min_gain),
            effort=float(self.effort),
        )
        search.run()
        self.size_search_ = search.size_search
        self.candidates_ = search.table()
        choices = search.choices()
        if not choices and not self._kinds(is_sparse):
            raise InputError(
                f"maps={self.maps!r} has no map for these rows: they need widths that are too short for "
                f"equispaced features; add 'fourier'"
            )
        if not choices:
            return [self._default()], sample
        # One by one: widths of bins are shrunk for the map that is taken.
        maps = (search.feature_map(one) for one in choices)
        return ((one.set_params(sampling="orthogonal") for one in maps) if is_sparse else maps), sample

    def _warped(self, sample: Sample) -> Sample:
        """The sample with its columns bent as small models do best."""
        bent = {name: sample.warped(name) for name in WARPS}
        as_is = SearchSample.of(sample, _WARP_ROWS)
        arrays = as_is.arrays() | {
            name: SearchSample.of(one, _WARP_ROWS).X for name, (one, _) in bent.items()
        }
        run, kernels = sample.row_source.run_all, (_SMOOTHNESS[0], _LAPLACIAN)
        of_own = run(judge_warp, arrays, [("X", kernel, _WARP_FEATURES, None) for kernel in kernels])
        # Scaled columns lie about as far apart: the widths of one function are near those of another.
        starts = [found.width if math.isfinite(found.width) else None for found in of_own]
        calls = [
            (name, kernel, _WARP_FEATURES, start)
            for name in WARPS
            for kernel, start in zip(kernels, starts, strict=True)
        ]
        found = [*zip(["X"] * len(kernels), of_own, strict=True)]
        found += zip((name for name, *_ in calls), run(judge_warp, arrays, calls), strict=True)
        best = {
            name: min((one.error for of, one in found if of == name), key=lambda e: e.criterion)
            for name in ("X", *WARPS)
        }
        name = min(best, key=lambda name: best[name].criterion)
        of_own, gain = best["X"], best["X"].criterion - best[name].criterion
        if gain < math.inf and gain <= max(
            _CLEARLY * of_own.criterion, _AS_GOOD * of_own.spread_from(best[name])
        ):
            name = "X"
        if name != "X":
            sample, self.scaling_ = bent[name]
        words = {"X": "standard"}
        self.scale_search_ = {
            "scale": words.get(name, name),
            "criterion": as_is.criterion_name,
            "errors": {words.get(one, one): error.criterion for one, error in best.items()},
        }
        return sample

    def _default(self, *, width: str | float = "auto", dearest: bool = False) -> FeatureMap:
        """A map with this width that stands for the candidates: the cheapest one, or the dearest."""
        size = min(_USUAL_SIZE, int(self.max_components)) if self._chooses_size else int(self.n_components)
        kinds = [kind for kind in ("fourier", "nystroem") if kind in self._chosen_maps]
        if not kinds and "binning" in self._chosen_maps:
            return RandomBinningFeatures(Laplacian(width))
        kinds = kinds or ["fourier"]
        if kinds[-1 if dearest else 0] == "nystroem":
            return NystroemFeatures(Gaussian(width), size)
        return FourierFeatures(Gaussian(width), size)


def _found_widths(kernel: Kernel, sample: Sample) -> dict[str, Any] | None:
    """Search report for widths that were chosen elsewhere; None of a sum of kernels."""
    if not isinstance(kernel, Stationary):
        return None
    widths = kernel.get_params()["length_scale"]
    search: dict[str, Any] = {"rule": "small models on a sample", "length_scale": widths}
    if isinstance(widths, tuple):
        search["column_scale"] = Moments.of(sample.X, sample.weights).standard_deviation().tolist()
    if kernel.metric is not None:
        search |= metric_shares(np.asarray(kernel.metric))
    return search
