"""A map that chooses itself: kind, kernel, widths and metric by small models on a sample."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.sparse import issparse

from distrff.errors import InputError, PlanRefused
from distrff.features.base import FeatureMap, RowSource, Sample, sample_rows
from distrff.features.binning import RandomBinningFeatures
from distrff.features.equispaced import EquispacedFourierFeatures
from distrff.features.fitted import FittedMap, MapCost, Trait, product_cost
from distrff.features.fourier import FourierFeatures
from distrff.features.nystroem import NystroemFeatures
from distrff.features.search.metric import (
    ROWS,
    LearnedMetric,
    column_widths,
    found_nothing,
    learn_metric,
    metric_gains,
    metric_shares,
    scales_of,
)
from distrff.features.search.relevance import Effort, relevance_flops, shrunk_length_scales
from distrff.features.search.ridge import (
    ANYWHERE,
    HERE,
    HERE_OR_SHORTER,
    MODELS,
    SHORTER,
    Judged,
    Judgement,
    Trial,
    carried_on,
    steps_ahead,
)
from distrff.features.search.widths import coded_targets, median_distance
from distrff.kernels.base import Kernel
from distrff.kernels.stationary import Exponential, Gaussian, Laplacian, Matern, Stationary
from distrff.preprocessing.moments import Moments
from distrff.utils.nufft import MAX_DIMENSIONS
from distrff.utils.process import one_blas_thread
from distrff.utils.text import listed
from distrff.utils.validation import check_count

# What there is to choose from.

MAPS = ("fourier", "nystroem", "binning")
EQUISPACED = "equispaced"  # for ridge on few columns
_SMOOTHNESS: tuple[Stationary, ...] = (Matern(nu=1.5), Gaussian(), Exponential(), Matern(nu=2.5))
ONE_WIDTH, OWN_UNITS = "one width", "one width, in the columns' own units"
SMOOTH_WIDTHS, ROUGH_WIDTHS = "a width a column", "a width a column, of a rough kernel"
METRIC, DIAGONAL = "learned metric", "diagonal of the metric"
USUAL_WIDTH = "the median width"  # for few rows; nothing is sought
RULES = (ONE_WIDTH, OWN_UNITS, SMOOTH_WIDTHS, ROUGH_WIDTHS, DIAGONAL, METRIC)
_RULES_OF_LATTICE = (ONE_WIDTH, OWN_UNITS, SMOOTH_WIDTHS, ROUGH_WIDTHS)
_KERNELS: dict[str, tuple[Stationary, ...]] = {
    "fourier": _SMOOTHNESS,
    "nystroem": _SMOOTHNESS,
    "binning": (Laplacian(),),
}


@dataclass(frozen=True)
class Candidate:
    """A kind of map with a kernel, whose width is 1, and a rule for its widths."""

    kind: str
    kernel: Stationary
    rule: str

    @property
    def has_one_width(self) -> bool:
        """Whether nothing but a width is fitted to the columns."""
        return self.rule in (ONE_WIDTH, OWN_UNITS, USUAL_WIDTH)

    def __str__(self) -> str:
        smoothness = f"Matern {self.kernel.nu:g}" if isinstance(self.kernel, Matern) else None
        return f"{self.kind}, {smoothness or type(self.kernel).__name__}, {self.rule}"


def leads(kinds: Iterable[str], rules: Iterable[str]) -> list[Candidate]:
    """Return a candidate for each kind and rule; the diagonal of a metric is for binning alone.

    A kernel of a Euclidean distance takes the metric whole. Bins are boxes: they take it rotated, or by its
    diagonal.
    """
    return [
        Candidate(kind, _KERNELS[kind][0], rule)
        for kind in kinds
        for rule in rules
        if rule != DIAGONAL or kind == "binning"
    ]


def followers(lead: Candidate) -> list[Candidate]:
    """Return the candidates of the same kind and rule with other kernels."""
    return [replace(lead, kernel=kernel) for kernel in _KERNELS[lead.kind][1:]]


# How each is judged: on growing samples with growing maps.


@dataclass(frozen=True)
class Stage:
    """One of several sizes at which candidates are judged."""

    thinning: int  # one training row in so many
    n_features: int
    n_grids: int
    n_modes: int
    grid: tuple[int, ...]  # half octaves from a width found before, where the search for the next may begin

    def size(self, kind: str) -> int:
        """Return features, or for binning grids."""
        sizes = {"binning": self.n_grids, EQUISPACED: self.n_modes}
        return sizes.get(kind, self.n_features)


@dataclass(frozen=True)
class Found:
    """What a candidate reached in one stage."""

    width: float
    judgement: Judgement
    flops: float
    seconds: float


def judge_candidate(
    arrays: dict[str, np.ndarray], candidate: Candidate, stage: Stage, start: float | None, seed: int
) -> Found:
    """Return what a candidate reaches with its best width, sought from `start` on; None is the first guess.

    The rule of the usual width has that width, and nothing is sought. `arrays` are those of a trial, and
    under the name of the rule the coordinates in which the kernel has one width.
    """
    began = time.perf_counter()
    with one_blas_thread():  # the same choice whatever the process's threads
        A = arrays.get(candidate.rule)
        trial = Trial.from_arrays(arrays).thinned(stage.thinning).in_coordinates(A)
        grid: Iterable[int] = SHORTER if candidate.kind == EQUISPACED else stage.grid
        is_usual = candidate.rule == USUAL_WIDTH
        if start is None:
            grid = ANYWHERE
        if start is None or is_usual:
            try:
                start = median_distance(candidate.kernel, trial.X, seed)
            except InputError:  # no two rows differ in these coordinates
                return Found(math.nan, Judgement.useless(trial.has_classes), 0.0, 0.0)
        size = stage.size(candidate.kind)
        search = Judged(MODELS[candidate.kind](trial, candidate.kernel, size, seed), start)
        width, judgement = (start, search.judgement(0)) if is_usual else search.search(grid)
    projection = 0.0 if A is None else 2.0 * len(trial.X) * A.size
    return Found(width, judgement, search.flops + projection, time.perf_counter() - began)


# The search: coordinates first, then stage after stage with fewer and fewer candidates.

_FLOPS_A_SECOND = 3e10  # of one core, for the budget alone, which must be the same on every machine
_FEW_ROWS, _SECONDS_FOR_FEW, _SECONDS = 10_000, 4.0, 20.0
_SHARE_OF_FIT = 1 / 3
_FEATURES, _FEATURES_OF_FEW = 1024, 512
_ROWS_OF_FEATURES, _MIN_FEATURES = 4000, 384  # rows for all of these features; for fewer by the root
# A fall of the width between two samples of few rows is mostly chance, so little of it is carried on.
_MAX_STEPS_OF_FEW = 0.7
_ROWS_OF_FEW = 8_000  # take part at most
_MIN_TRAINING, _MIN_ROWS = 300, 40
_N_GRIDS = 64
_KEPT_OF_KIND = 2  # of each kind of map: few rows say little on which kind is best for many
_LEADS_OF_FEW = 3  # whose other kernels are judged
_KEPT = (10, 4)  # candidates that go on after the first and the second stage
_SHARE_OF_SEARCH = 0.6  # of the budget, for the widths of columns
# More rows of the likelihood do not help few rows: models of cpu_act with the widths of 500, 1000 and 2000
# had test errors of .1221, .1224 and .1235 (means of eight, each known to .0007). Many rows tell more widths
# apart: bins of covtype with those of 500, 1000 and 2000 had 23, 24 and 18 % of the classes wrong. Twice the
# steps of the likelihood helped neither.
_LIKELIHOOD_ROWS = (500, 1000, 2000)
_QUICK_WIDTHS = partial(column_widths, quick=True)
_EQUAL = 1.01  # errors that differ by less are equal
_MODES_OF_TRIAL = 2**16  # of the largest small model
_MODES_A_ROW, _MODES_OF_FEW = 16, 2**16  # of equispaced features for few rows, in some seconds
_MARGINS, _MARGIN_OF_ROWS = (0.05, 0.25), 25.0  # of the bounds of equispaced features, by the range
_MIN_ROWS_OF_LATTICE = 1000  # for fewer, landmarks at all rows are the kernel itself, and are judged better
_MAX_TARGETS = 8  # for equispaced features, which take a system for each
# The loss in own units beside that of standard columns: about .8 for images of digits, .9 by chance for
# breast_cancer.
_UNITS_GAIN = 0.85
_CLEARLY = 2.0  # standard errors of a difference that is no chance
_HOPELESS = 1.5  # times the loss of another kernel of the same kind and rule
_CERTAIN = 0.1  # a larger relative standard error leaves a fall from stage to stage uncertain


@dataclass(frozen=True)
class Scope:
    """What a search may choose from, and the size of the model that it is for."""

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
    def fit_flops(self) -> float:
        """About the flops of a fit on dense features."""
        D = float(self.n_components)
        return self.n_rows * D * (D + 2.0 * self.n_columns) + _FACTORS_OF_FIT * D**3

    @property
    def is_small(self) -> bool:
        """Whether there are so few rows that a user expects an answer within seconds."""
        return self.n_rows <= _FEW_ROWS

    @property
    def has_few_rows(self) -> bool:
        """Whether landmarks at all rows are the kernel itself: a third of the rows then says little."""
        return self.n_rows <= min(self.n_components, _FEATURES)

    @property
    def budget(self) -> float:
        """Flops of the search, about: a stage that has begun is finished."""
        seconds = _SECONDS_FOR_FEW if self.is_small else _SECONDS
        least = seconds * _FLOPS_A_SECOND
        return least if self.is_small else max(least, _SHARE_OF_FIT * self.fit_flops)

    @property
    def max_features(self) -> int:
        """Features of the largest small model."""
        return min(self.n_components, _FEATURES_OF_FEW if self.is_small else _FEATURES)

    def judged_features(self, n_training: int) -> int:
        """Return the features of the small models of the last stage.

        Fewer rows have less time. Where there are more features than rows, the products of rows take their
        place: then they are as many as the model's own.
        """
        if self.is_small and n_training <= _FEATURES_OF_FEW:
            return self.n_components
        few = int(_FEATURES_OF_FEW * math.sqrt(self.n_rows / _ROWS_OF_FEATURES))
        return min(self.max_features, max(_MIN_FEATURES, few)) if self.is_small else self.max_features

    def _features_of_stage(self, left: int, n_stages: int, n_training: int) -> int:
        if not left:
            return self.judged_features(n_training)
        return max(32, self.max_features // 2**left // (1 if left < n_stages - 1 else 2))

    def stages(self, trial: Trial) -> list[Stage]:
        """Return the stages, each of up to four times the rows; features grow from stage to stage, too."""
        n_stages = 2 if self.is_small else 3
        grids = min(self.n_grids, _N_GRIDS)
        return [
            Stage(
                max(1, min(4**left, trial.n_training // _MIN_TRAINING)),
                self._features_of_stage(left, n_stages, trial.n_training),
                max(8, grids // 2**left),
                _MODES_OF_TRIAL // 2**left,
                HERE if self.is_small or not left else HERE_OR_SHORTER,
            )
            for left in reversed(range(n_stages))
        ]

    def size(self, kind: str) -> int:
        """Return the size of the model itself: features, or for binning grids."""
        return self.n_grids if kind == "binning" else self.n_components


# Presumed of an entry in all sparse passes of a fit, some dozen for each fold; it is counted, not measured.
_FLOPS_OF_AN_ENTRY = 5_000.0
_MIN_GRIDS, _MAX_GRIDS = 16, 100
_FACTORS_OF_FIT = 7.0  # the alpha path of five folds, in units of D³


@dataclass(eq=False)
class Search:
    """The candidates with what they reached, and the coordinates that their rules stand for.

    `own_units` are scales of the columns that lead back to their own units; None where they have these.
    """

    scope: Scope
    trial: Trial
    seed: int
    source: RowSource
    own_units: np.ndarray | None = None
    bounds: list[tuple[float, float] | None] = field(default_factory=list)  # of an equispaced map
    coordinates: dict[str, np.ndarray] = field(default_factory=dict)
    histories: dict[Candidate, list[Found]] = field(default_factory=dict)
    flops: float = 0.0
    _metric_error: float = field(default=math.inf, init=False)

    @cached_property
    def stages(self) -> list[Stage]:
        """The stages of this trial."""
        return self.scope.stages(self.trial)

    def run(self) -> None:
        """Judge all candidates, stage after stage."""
        self._find_coordinates()
        kept = self._first_stage()
        for stage, n_kept in zip(self.stages[1:], _KEPT[1 - len(self.stages) :], strict=True):
            kept = self._survivors(kept, n_kept, 1 if stage is self.stages[-1] else _KEPT_OF_KIND)
            self._judge(kept, stage)
        if self.scope.has_few_rows:
            self._judge_usual_width()
        if EQUISPACED in self.scope.kinds:
            self._judge_equispaced()

    def _judge_usual_width(self) -> None:
        """Judge the Gaussian kernel of the median width, to which nothing is fitted.

        It is the one to beat: of 25 candidates that are judged on a third of a few hundred rows, the best is
        so by chance. Eight searches on 296 rows of diabetes, by their seeds, led to test errors from .749 to
        .782 of a deviation; this kernel has .747.
        """
        if OWN_UNITS in self.coordinates:
            self.coordinates[USUAL_WIDTH] = self.coordinates[OWN_UNITS]
        dense = [kind for kind in self.scope.judged if kind != "binning"][-1:]
        for stage in self.stages:
            self._judge([Candidate(kind, Gaussian(), USUAL_WIDTH) for kind in dense], stage)

    def _judge_equispaced(self) -> None:
        """Judge equispaced features with the rule and kernel that are best with one width or one a column.

        A Matérn kernel of 3/2 is beside it: few features hide how rough a function is. A lattice has no
        metric, and in more than one column no room for the exponential kernel.
        """
        d = self.trial.X.shape[1]
        ranked = [one for one in self.ranked() if one.kind != "binning" and one.rule in _RULES_OF_LATTICE]
        if not ranked:
            return
        best, usual = ranked[0], _KERNELS[ranked[0].kind][0]
        kernels = [usual] if d > 1 and isinstance(best.kernel, Exponential) else [best.kernel, usual]
        mine = [replace(best, kind=EQUISPACED, kernel=kernel) for kernel in dict.fromkeys(kernels)]
        for stage in self.stages:
            self._judge(mine, stage)

    def _first_stage(self) -> list[Candidate]:
        """Judge one kernel for each kind and rule, and the others, from its width on, where it does well.

        A kernel of another smoothness does not mend a rule that is far behind.
        """
        first = leads(self.scope.judged, self.rules)
        # Few rows leave no time to seek each width anywhere: one kind goes on from another's.
        waves = [first]
        if self.scope.is_small:
            waves = [[one for one in first if (one.kind != "fourier") == late] for late in (False, True)]
        for wave in waves:
            self._judge(wave, self.stages[0])
        n_leads, n_of_kind = (_LEADS_OF_FEW, 1) if self.scope.is_small else (len(first) // 2, _KEPT_OF_KIND)
        others = [one for lead in self._survivors(first, n_leads, n_of_kind) for one in followers(lead)]
        self._judge(others, self.stages[0])
        return [*first, *others]

    def _find_coordinates(self) -> None:
        """Learn a metric and widths of the columns; a metric that finds nothing starts from the widths."""
        self._weigh_units()
        d = self.trial.X.shape[1]
        if d == 1:
            return
        units = None if self.scope.is_small else self.coordinates.get(OWN_UNITS)
        n_rows = self._likelihood_rows(d)
        with_metric, with_widths = self._what_helps(units, n_rows)
        n_rows = n_rows if with_widths else 0
        calls: list[tuple] = [(_metric_of, (*self._of_metric, units))] if with_metric else []
        if n_rows:
            calls.append((_QUICK_WIDTHS, (Gaussian("ard"), n_rows, self.seed)))
            self.flops += _widths_flops(n_rows, d)
        found = self._on_trial(calls)
        learned = found.pop(0) if with_metric else None
        if learned is not None:
            self._add_metric(learned)
        if not n_rows and DIAGONAL in self.coordinates:
            self.coordinates[SMOOTH_WIDTHS] = self.coordinates.pop(DIAGONAL)
        if n_rows and found[0] is not None:
            self._add_widths(found[0], n_rows, with_metric=learned is not None and found_nothing(learned))

    @property
    def _of_metric(self) -> tuple[Kernel, int, int]:
        """The arguments of `learn_metric`."""
        n_features = min(self.scope.max_features, self.scope.judged_features(self.trial.n_training))
        return Gaussian(), n_features, self.seed

    def _likelihood_rows(self, d: int) -> int:
        """Return the most rows on which widths of columns may be sought; 0 where there is no time for any."""
        may_take = _SHARE_OF_SEARCH * self.scope.budget
        sizes = _LIKELIHOOD_ROWS[:1] if self.scope.is_small else _LIKELIHOOD_ROWS
        return max((n for n in sizes if _widths_flops(n, d) <= may_take), default=0)

    def _what_helps(self, units: np.ndarray | None, n_rows: int) -> tuple[bool, bool]:
        """Return whether a metric, and widths of `n_rows` rows, are worth their time, by what few rows say.

        Where the columns' own `units` suit many rows much better than standard columns, a metric must gain on
        them first, on a quarter of the rows; only then is it learned on all rows, from these units on. On
        kddcup99 and nycflights it gains nothing, and takes a quarter to a third of the search. On cpu_act and
        digits it gains, but they have too few rows to be asked. Without a metric, bins lack its diagonal too.
        """
        few, d = _LIKELIHOOD_ROWS[0], self.trial.X.shape[1]
        calls: list[tuple] = []
        if units is not None:
            calls.append((_metric_helps, (*self._of_metric, units)))
        if n_rows > few:
            calls.append((_QUICK_WIDTHS, (Gaussian("ard"), few, self.seed)))
            self.flops += relevance_flops(few, d, effort=Effort.quick(few))
        found = self._on_trial(calls)
        with_metric = True
        if units is not None:
            with_metric, flops = found.pop(0)
            self.flops += flops
        return with_metric, not found or self._widths_help(found[0])

    def _widths_help(self, widths: np.ndarray | None) -> bool:
        """Return whether the likelihood's widths of few rows suit a first small model better than one width.

        Those of many rows are worth their time then: 4 to 9 s for each kernel, of few rows .3 s. On kddcup99,
        where one width of the columns' own units is as good or better, they take two thirds of the whole fit.
        """
        if widths is None:  # the targets are constant in so few rows
            return True
        (one_width,) = self.rules  # no other coordinates are known yet
        its, mine = self._judgements_of([one_width, SMOOTH_WIDTHS], {SMOOTH_WIDTHS: widths})
        # Of a rare class neither may find a row yet.
        return _EQUAL * mine.squared_error < its.squared_error and mine.criterion <= its.criterion

    def _add_widths(self, smooth: np.ndarray, n_rows: int, *, with_metric: bool) -> None:
        """Add a smooth kernel's widths, and what is found from there: a rough one's, and a metric if asked.

        The rough one's can be others: on 12,000 rows of covtype, bins of the smooth one's widths have 22 %
        wrong classes, of the rough one's 17 %.
        """
        self.coordinates[SMOOTH_WIDTHS] = smooth
        starts = {SMOOTH_WIDTHS: smooth.tolist()}
        calls: list[tuple] = [(_QUICK_WIDTHS, (Laplacian("ard"), n_rows, self.seed, starts, False))]
        if with_metric:
            calls.append((_metric_of, (*self._of_metric, smooth)))
        rough, *learned = self._on_trial(calls)
        if rough is not None:
            self.coordinates[ROUGH_WIDTHS] = rough
        if with_metric and learned[0] is not None:
            self._add_metric(learned[0])

    def _on_trial(self, calls: list[tuple]) -> list[Any]:
        """Return `function(trial, *arguments)` for each function with its arguments, side by side."""
        return self.source.run_all(on_trial, self.trial.arrays(), calls) if calls else []

    def _add_metric(self, learned: LearnedMetric) -> None:
        """Keep what was learned, a metric or none, if its error is smaller than that of the one before."""
        self.flops += learned.flops
        error = learned.judgement.squared_error
        if error >= self._metric_error:
            return
        self._metric_error = error
        if learned.P is not None:
            self.coordinates |= {METRIC: learned.P, DIAGONAL: scales_of(learned.P)}

    def _weigh_units(self) -> None:
        """Let one width be that of the columns' own units where this suits a first small model much better.

        Standard columns are a guess. The dark corners of images hardly vary; once they are divided by their
        small deviations they are noise that counts as much as the rest.
        """
        if self.own_units is None:
            return
        its, mine = self._judgements_of([ONE_WIDTH, OWN_UNITS], {OWN_UNITS: self.own_units})
        if mine.squared_error < _UNITS_GAIN * its.squared_error and mine.criterion < its.criterion:
            self.coordinates[OWN_UNITS] = self.own_units

    def _judgements_of(self, rules: list[str], coordinates: dict[str, np.ndarray]) -> list[Judgement]:
        """Return how a first small model is judged, at its best width, for each of some rules."""
        kind, free = self.scope.judged[0], replace(self.trial, penalty=None)
        arrays = free.arrays() | self.coordinates | coordinates
        calls = [
            (Candidate(kind, _KERNELS[kind][0], rule), self.stages[0], None, self.seed) for rule in rules
        ]
        found = self.source.run_all(judge_candidate, arrays, calls)
        self.flops += sum(one.flops for one in found)
        return [one.judgement for one in found]

    @property
    def rules(self) -> list[str]:
        """The rules that there are coordinates for; one width has none, or those of the columns' units."""
        found = [rule for rule in RULES if rule in self.coordinates]
        return found if OWN_UNITS in found else [ONE_WIDTH, *found]

    def _judge(self, kept: Sequence[Candidate], stage: Stage) -> None:
        arrays = self.trial.arrays() | self.coordinates
        kept = sorted(kept, key=lambda one: one.kind != "nystroem")  # the dearest first: workers end together
        calls = [(one, stage, self._start(one), self.seed) for one in kept]
        for one, found in zip(kept, self.source.run_all(judge_candidate, arrays, calls), strict=True):
            self.histories.setdefault(one, []).append(found)
            self.flops += found.flops

    def _start(self, candidate: Candidate) -> float | None:
        """Return the width to go on from; None where there is none yet."""
        width = self._width_before(candidate)
        return width if width is not None and math.isfinite(width) else None

    def _width_before(self, candidate: Candidate) -> float | None:
        """Return the width of the stage before, or else that of the candidate that leads."""
        if candidate.kind == EQUISPACED and candidate not in self.histories:
            likes = [replace(candidate, kind=kind) for kind in self.scope.judged if kind != "binning"]
            likes += [replace(one, kernel=_KERNELS[one.kind][0]) for one in likes]
            return next(self.histories[one][-1].width for one in likes if one in self.histories)
        lead = replace(candidate, kernel=_KERNELS.get(candidate.kind, _SMOOTHNESS)[0])
        history = self.histories.get(candidate) or self.histories.get(lead)
        if history is None and self.scope.is_small and candidate.kind != "fourier":
            rule = METRIC if candidate.rule == DIAGONAL else candidate.rule
            history = self.histories.get(Candidate("fourier", _SMOOTHNESS[0], rule))
        return history[-1].width if history else None

    def _survivors(self, kept: list[Candidate], n: int, n_of_kind: int) -> list[Candidate]:
        """Return the candidates that go on: the n best that the budget allows, and others that may yet win.

        These are some of each kind, and the best one with one width: early stages flatter the others, whose
        metric and widths were learned on all rows of the trial. On mnist one width had 21 % of the classes
        wrong in the first stage, where a metric had 13, and 6.9 % in the last one, where that had 9.1. The
        best bins that are shrunk afterwards go on as well: no judgement counts the shrinking yet.
        """
        ranked = self.ranked(kept)
        ranked = [one for one in ranked if not self._is_hopeless(one, ranked)]
        if not ranked:
            return []
        # The next stage takes about eight times the flops.
        dearest = max(self.histories[one][-1].flops for one in ranked) * 8
        n = max(2, min(n, int((self.scope.budget - self.flops) / dearest)))
        others = [one for kind in self.scope.judged for one in self._best_of(ranked, kind, n_of_kind)]
        others += [one for one in ranked if one.has_one_width][:1]
        others += [one for one in ranked if self.is_shrunk(one)][:1]
        return ranked[:n] + [one for one in ranked[n:] if one in others]

    def _is_hopeless(self, one: Candidate, ranked: list[Candidate]) -> bool:
        """Return whether another kernel does much better with the same kind of map and rule, and surely so.

        The width of a kernel that does not suit the rows takes the longest to find: on nycflights that of an
        exponential kernel took 3.8 s in the second stage, where no other candidate took more than 1.1.
        """
        alike = [two for two in ranked if (two.kind, two.rule) == (one.kind, one.rule)]
        loss = {two: self.histories[two][-1].judgement.squared_error for two in alike}
        best = min(alike, key=loss.__getitem__)
        excess, spread = self._excess(one, best)
        return loss[one] > _HOPELESS * loss[best] and excess > _CLEARLY * spread

    def _best_of(self, ranked: list[Candidate], kind: str, n: int) -> list[Candidate]:
        return [one for one in ranked if one.kind == kind][:n]

    def _excess(self, one: Candidate, other: Candidate) -> tuple[float, float]:
        """Return by how much one's error is larger than the other's, of the same stage, with its spread."""
        mine, its = self.histories[one][-1].judgement, self.histories[other][-1].judgement
        return mine.criterion - its.criterion, mine.spread_from(its)

    def ranked(self, kept: Iterable[Candidate] | None = None) -> list[Candidate]:
        """Return candidates by the error that they are expected to have, the largest stage first."""
        among = [one for one in (self.histories if kept is None else kept) if self._is_useful(one)]
        if not among:
            return []
        last = max(len(self.histories[one]) for one in among)
        finalists = [one for one in among if len(self.histories[one]) == last]
        expected = {one: self.expected(one) for one in finalists}
        best = min(expected.values())
        spread = min(self.histories[one][-1].judgement.spread for one in finalists)

        def order(one: Candidate) -> tuple[float, ...]:
            judgement = self.histories[one][-1].judgement
            if judgement.misclassified is not None and expected[one] <= best + spread / 2:
                return 0.0, judgement.squared_error  # a tie in accuracy is broken by the loss
            return 1.0, expected[one]

        others = [one for one in among if one not in expected]
        return sorted(finalists, key=order) + sorted(others, key=self.expected)

    def choices(self) -> list[Candidate]:
        """Return all candidates, the one to take first: with one width, where that is as good as the best.

        Two errors are equally good where they differ by at most the standard error of the difference, or by a
        hundredth. Widths of columns and a metric are many numbers fitted to a sample, and rows of another
        year or writer differ from it. Where bins are the best, those that are shrunk afterwards are taken
        unless they are clearly worse: their judgement does not count that yet. On a split of covtype a metric
        was ranked first, with 8.8 % of the classes wrong in the end; shrunk widths have 5.6 %. Other
        candidates with the same rule and nearly the same loss are told apart by their cost. Equispaced
        features are taken wherever they are as good: they choose their kernel once more, by all rows.
        """
        ranked = [one for one in self.ranked() if one.kind in self.scope.kinds]
        others = [one for one in ranked if one.kind != EQUISPACED]
        equispaced = [one for one in ranked if one.kind == EQUISPACED][:1]
        chosen = self._choice(others) if others else equispaced[0] if equispaced else None
        if equispaced and others and self._is_as_good(equispaced[0], ranked[0]):
            return [equispaced[0], *_first(chosen, others)]
        return _first(chosen, sorted([*others, *equispaced], key=ranked.index))

    def _choice(self, ranked: list[Candidate]) -> Candidate:
        """Return which of some candidates, the best first, to take."""
        best = ranked[0]
        finalists = [one for one in ranked if len(self.histories[one]) == len(self.histories[best])]

        def is_clearly_worse(one: Candidate) -> bool:
            excess, spread = self._excess(one, best)
            return excess > _CLEARLY * spread

        usual = next((one for one in finalists if one.rule == USUAL_WIDTH), None)
        if usual is not None and not is_clearly_worse(usual):
            return usual
        as_good = [one for one in finalists if self._is_as_good(one, best)]
        loss = {one: self.histories[one][-1].judgement.squared_error for one in finalists}
        lead = min((one for one in as_good if one.has_one_width), key=lambda one: loss[one], default=best)
        if lead.kind == "binning" and not lead.has_one_width:
            shrunk = (one for one in finalists if self.is_shrunk(one) and not is_clearly_worse(one))
            lead = next(shrunk, lead)
        equal = [one for one in as_good if one.rule == lead.rule and loss[one] <= _EQUAL * loss[lead]]
        return lead if self.is_shrunk(lead) else min([lead, *equal], key=self._cost)

    def _is_as_good(self, one: Candidate, best: Candidate) -> bool:
        """Return whether the errors differ by less than the standard error of that, or hardly."""
        if len(self.histories[one]) < len(self.histories[best]):
            return False
        least = self.expected(best)
        excess = self.expected(one) - least
        return excess <= max((_EQUAL - 1) * least, self._excess(one, best)[1])

    def is_shrunk(self, candidate: Candidate) -> bool:
        """Return whether these are bins with a width a column, which are shrunk where there are many rows."""
        has_widths = candidate.rule in (SMOOTH_WIDTHS, ROUGH_WIDTHS, DIAGONAL)
        return candidate.kind == "binning" and has_widths and not self.scope.is_small

    def _cost(self, candidate: Candidate) -> tuple[int, int]:
        """Return an order by cost: few rows have few landmarks; then kinds in their own order."""
        size = self.scope.n_components
        if candidate.kind == "nystroem":
            size = min(size, self.scope.n_rows)
        return size, MAPS.index(candidate.kind)

    def _is_useful(self, candidate: Candidate) -> bool:
        """Return whether its small models had errors at all."""
        return math.isfinite(self.histories[candidate][-1].judgement.squared_error)

    def expected(self, candidate: Candidate) -> float:
        """Return the error that the model itself is expected to have.

        The last fall of the error goes on by as many steps as the model is larger than the last stage: what
        wins on few rows and features need not win on many.
        """
        history = self.histories[candidate]
        before, last = (found.judgement for found in (history[max(0, len(history) - 2)], history[-1]))
        steps = self._steps_ahead(candidate)
        if last.spread <= _CERTAIN * last.criterion:
            return carried_on(before.criterion, last.criterion, steps)
        # A share of few rows is too noisy for a difference of two.
        ahead = carried_on(before.squared_error, last.squared_error, steps)
        return last.criterion * ahead / last.squared_error if last.squared_error > 0 else 0.0

    def width(self, candidate: Candidate) -> float:
        """Return the width for the model itself: it goes on to fall with more rows and features."""
        history = self.histories[candidate]
        before, last = history[max(0, len(history) - 2)], history[-1]
        if candidate.rule == USUAL_WIDTH:
            return last.width
        return carried_on(before.width, last.width, self._steps_ahead(candidate))

    def _steps_ahead(self, candidate: Candidate) -> float:
        stage, size = self.stages[len(self.histories[candidate]) - 1], self.scope.size(candidate.kind)
        n_training = self.trial.n_training // stage.thinning
        rows = self.scope.n_rows / n_training
        # Equispaced features are the kernel itself: a stage has four times the rows, and no fewer features.
        features = math.sqrt(rows) if candidate.kind == EQUISPACED else size / stage.size(candidate.kind)
        steps = steps_ahead(rows, features)
        return min(steps, _MAX_STEPS_OF_FEW) if self.scope.is_small else steps

    def kernel(self, candidate: Candidate) -> Kernel:
        """Return the candidate's kernel with its widths and metric, in the columns of the rows."""
        width = self.width(candidate)
        A = self.coordinates.get(candidate.rule)
        if A is None:
            return candidate.kernel.set_params(length_scale=float(f"{width:.4g}"))
        if A.ndim == 1:
            widths = tuple(float(f"{w:.4g}") for w in width * A)
            return candidate.kernel.set_params(length_scale=widths)
        return candidate.kernel.set_params(length_scale=float(f"{width:.4g}"), metric=A)

    def feature_map(self, candidate: Candidate) -> FeatureMap:
        """Return the map of the candidate, not fitted."""
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
        """Return what each candidate reached, the one to take first, as strict JSON data."""
        return [
            {
                "candidate": str(one),
                "criterion": "share of wrong classes" if self.trial.has_classes else "squared error",
                "error": (found := self.histories[one][-1]).judgement.criterion,
                "spread": found.judgement.spread,
                "squared_error": found.judgement.squared_error,
                "expected": self.expected(one),
                "stages": len(self.histories[one]),
                "flops": sum(f.flops for f in self.histories[one]),
                "seconds": sum(f.seconds for f in self.histories[one]),
            }
            for one in self.choices()
        ]


def _first(chosen: Candidate | None, candidates: list[Candidate]) -> list[Candidate]:
    """Return the candidates with the chosen one first."""
    return candidates if chosen is None else [chosen, *(one for one in candidates if one != chosen)]


def _metric_of(
    trial: Trial, kernel: Stationary, n_features: int, seed: int, start: np.ndarray | None = None
) -> LearnedMetric | None:
    """Return the metric that is learned; None where the first few rows are all equal, and have no width."""
    with suppress(InputError):
        return learn_metric(trial, kernel, n_features, seed, start)
    return None


def _metric_helps(
    trial: Trial, kernel: Stationary, n_features: int, seed: int, scales: np.ndarray
) -> tuple[bool, float]:
    """Return what `metric_gains` does: nothing is gained where there is no width to begin with."""
    with suppress(InputError):
        return metric_gains(trial, kernel, n_features, seed, scales)
    return False, 0.0


def _widths_flops(n_rows: int, n_columns: int) -> float:
    """Return about how many flops the likelihoods of two kernels take; the second has one start."""
    effort = Effort.quick(n_rows)
    usual = relevance_flops(n_rows, n_columns, effort=effort)
    return usual + relevance_flops(n_rows, n_columns, n_starts=1, effort=effort)


def _wide_bounds(sample: Sample) -> list[tuple[float, float] | None]:
    """Return bounds with room for rows to come, where none were given; None for a column of one value.

    Few rows know little of the range of others: a quarter of theirs is added on both sides, of many a
    twentieth. Wider bounds take more frequencies for the same widths.
    """
    low, high = sample.ranges
    margin = np.clip(_MARGIN_OF_ROWS / math.sqrt(max(1, sample.n_weighted_rows)), *_MARGINS) * (high - low)
    ends = zip((low - margin).tolist(), (high + margin).tolist(), strict=True)
    return [(a, b) if a < b else None for a, b in ends]


def own_units(column_scale: np.ndarray | None) -> np.ndarray | None:
    """Return scales of the columns that undo their division; None where they are all alike."""
    if column_scale is None or column_scale.max() <= _EQUAL * column_scale.min():
        return None
    relative = column_scale / column_scale.max()  # squares of small numbers may underflow
    return np.asarray(np.sqrt(np.square(relative).mean()) / relative)


def some_differ(sample: Sample) -> bool:
    """Return whether a column holds different values in rows of positive weight."""
    X = sample.X[sample.weights > 0]
    return bool((abs(X.max(axis=0) - X.min(axis=0)) > 0).sum())


def is_constant(sample: Sample) -> bool:
    """Return whether no target differs between rows of positive weight."""
    Y = coded_targets(sample.y)[sample.weights > 0]
    return bool((Y[:1] == Y).all())


def on_trial(arrays: dict[str, np.ndarray], function: Any, arguments: tuple) -> Any:
    """Return `function(trial, *arguments)` for the trial in these arrays."""
    with one_blas_thread():  # the same result whatever the process's threads
        # A metric and widths are those of the best penalty: a strong one would hide most of the directions.
        return function(replace(Trial.from_arrays(arrays), penalty=None), *arguments)


def _fitted(features: FeatureMap, sample: Sample) -> FeatureMap:
    """Return the map, fitted.

    Raises PlanRefused where its model would not fit in the workers' memory, or the map has not the features
    that the kernel takes.
    """
    if not isinstance(features, EquispacedFourierFeatures):
        return features._fit(sample, is_part=True)
    fitted = features._fit(sample.in_own_units())
    sample.row_source.check_size(fitted.specification_.n_features)
    if fitted.kernel_error_ > fitted.tol:
        raise PlanRefused(
            f"{fitted.specification_.n_features} equispaced features do not resolve {fitted.kernel_!r} "
            f"within the range of the columns; choose other maps"
        )
    return fitted


class AutoFeatures(FeatureMap):
    """The map, kernel, widths and metric that do best in small models on a sample of the rows.

    Candidates are Fourier and Nyström features of the Gaussian and the Matérn kernels of ν = ½, 3/2 and 5/2
    and random binning of the Laplacian kernel, and for ridge with ``alpha="cv"`` on one to three columns
    equispaced features. Each has one width, one width a column, or a learned metric; one width is that of
    the columns' own units where a first small model does much better with these. With more than 10,000 rows a
    metric must then gain on them, on a quarter of the sample, to be learned. Each candidate is judged on
    held-out rows by what the estimator is for: squared error of numbers, wrong classes, of equal
    ones the squared error. Samples and maps grow from stage to stage; candidates that lag behind are dropped.
    The last fall of a candidate's error is taken to go on, since what wins on few rows need not win on many.
    One width is taken where it is as good as the best, within the standard error of the difference; bins with
    a width a column, which may be shrunk afterwards, unless other bins are clearly better; and the cheaper of
    equal candidates. With no more rows than `n_components`, and at most 1024, the Gaussian kernel of the
    median distance between rows is taken unless another candidate is clearly better, or equispaced features
    are as good: a third of so few rows hardly tells candidates apart.

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
    The search is counted in flops and so depends on `random_state` alone, not on the machine: about a third
    of the fit or 6e11 flops, whichever is more, and at most about 1.2e11 for at most 10,000 rows. That is a
    third of a minute, or four seconds, at 30 Gflop/s; fewer rows take less. A stage that has begun is
    finished. Where bins with one width a column win on more rows, their widths are then shrunk, as "ard"
    does.

    Equispaced features are judged with what is best of Fourier and Nyström features without a metric, and
    taken where they are as good as the best, for at least 1,000 rows. They then choose their kernel by all
    rows; for at most 10,000 rows they are at most 65,536. Their bounds are a quarter of the columns' range
    wider than the rows on both sides, for many rows a twentieth: further away predictions are NaN.
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

    def n_features_for(self, n_columns: int, n_rows: int | None = None) -> int:
        return int(self.n_components)

    @property
    def _chosen_maps(self) -> tuple[str, ...]:
        return MAPS if self.maps is None else tuple(self.maps)

    @property
    def n_passes(self) -> int:
        return int("nystroem" in self._chosen_maps)

    def cost_for(self, n_columns: int) -> MapCost:
        """Return the cost of the dearest candidate."""
        return product_cost(n_columns, triangle_share=1.0 if "nystroem" in self._chosen_maps else 0.0)

    def search_flops_for(self, n_rows: int, n_columns: int) -> float:
        return self._scope(n_rows, n_columns, self._chosen_maps).budget

    @property
    def takes_sparse_rows(self) -> bool:
        return "fourier" in self._chosen_maps

    @property
    def resolved(self) -> FeatureMap:
        return self.map_

    def resolved_as(self, features: FeatureMap) -> FeatureMap:
        again = copy(self)
        again.map_, again.specification_ = features, features.specification_
        again.kernel_ = getattr(features, "kernel_", None)
        again.length_scale_search_ = getattr(features, "length_scale_search_", None)
        return again

    def _scope(self, n_rows: int, n_columns: int, kinds: tuple[str, ...]) -> Scope:
        return Scope(kinds, int(self.n_components), n_rows, n_columns)

    def for_gram(self) -> FeatureMap:
        if hasattr(self, "map_"):
            if self.map_.sparse_entries:
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
        too_wide = is_sparse and _too_wide(sample_rows(n_columns), n_columns)
        if has_targets and n_rows >= _MIN_ROWS and not too_wide:
            return left
        # A single row has no typical distance.
        return left._default(width="auto" if n_rows > 1 else 1.0).set_params(random_state=self.random_state)

    def _kinds(self, is_sparse: bool) -> tuple[str, ...]:
        """Return the kinds of maps, in their own order, that take the rows."""
        maps = self._chosen_maps
        return tuple(kind for kind in MAPS if kind in maps and (kind == "fourier" or not is_sparse))

    def search_bytes_for(self, n_rows: int, n_columns: int) -> int:
        scope = self._scope(n_rows, n_columns, self._chosen_maps)
        n, D = min(n_rows, ROWS, sample_rows(n_columns)), scope.max_features
        widest = max(D, scope.judged_features(n // 2))  # at least half of the rows are trained on
        # Rows, in coordinates and in widths; frequencies and a metric in float64; phases and features in
        # float32; Grams and factors; and the kernel matrices of the likelihood.
        of_rows = 8 * n * n_columns * 3
        of_maps = 8 * n_columns * (2 * widest + min(n_columns, D)) + 16 * n * widest
        of_maps += 40 * max(D, min(n, widest)) ** 2
        return of_rows + of_maps + 48 * min(n, _LIKELIHOOD_ROWS[-1]) ** 2

    def trial(self, n_columns: int, **smaller: int) -> FeatureMap:
        """Return the dearest candidate, fitted to random rows."""
        return self._default(dearest=True).trial(n_columns, **smaller)

    def _specify(self, sample: Sample) -> FittedMap:
        self.check_parameters()
        self.candidates_: list[dict[str, Any]] = []
        refusal: PlanRefused | None = None
        for rank, features in enumerate(self._choices(sample)):
            try:
                self.map_ = _fitted(features, replace(sample, row_source=sample.row_source.of_map(features)))
                for place, row in enumerate(self.candidates_):
                    row["chosen"] = place == rank
                break
            except PlanRefused as error:  # the next best may need less memory
                refusal = refusal or error
        else:
            assert refusal is not None
            raise refusal
        self.kernel_ = getattr(self.map_, "kernel_", None)
        self.length_scale_search_ = getattr(self.map_, "length_scale_search_", None)
        if self.length_scale_search_ is None and self.kernel_ is not None and self.candidates_:
            self.length_scale_search_ = _found_widths(self.kernel_, sample)
        return self.map_.specification_

    def _choices(self, sample: Sample) -> list[FeatureMap]:
        """Return maps that are not fitted, the best first."""
        if not some_differ(sample):
            return [self._default(width=1.0)]
        n_usable, is_sparse = np.count_nonzero(sample.weights > 0), issparse(sample.X)
        n_sampled, n_columns = sample.X.shape
        too_wide = is_sparse and _too_wide(n_sampled, n_columns)
        if sample.y is None or n_usable < _MIN_ROWS or too_wide or is_constant(sample):
            return [self._default()]
        kinds = self._kinds(is_sparse)
        has_few_targets = coded_targets(sample.y).shape[1] <= _MAX_TARGETS
        may_be_equispaced = not kinds or (has_few_targets and sample.n_weighted_rows >= _MIN_ROWS_OF_LATTICE)
        if EQUISPACED in self._chosen_maps and may_be_equispaced:
            kinds = (*kinds, EQUISPACED)
        scope = self._scope(sample.n_weighted_rows, n_columns, kinds)
        if is_sparse:
            sample = replace(sample, X=sample.X.toarray())
        trial = Trial.of(sample, "candidate rows", _ROWS_OF_FEW if scope.is_small else ROWS)
        units, bounds = own_units(sample.column_scale), _wide_bounds(sample)
        search = Search(scope, trial, sample.seed, sample.row_source, units, bounds)
        search.run()
        self.candidates_ = search.table()
        choices = search.choices()
        if not choices and not self._kinds(is_sparse):
            raise InputError(
                f"maps={self.maps!r} has no map for these rows: they need widths that are too short for "
                f"equispaced features; add 'fourier'"
            )
        maps = [search.feature_map(one) for one in choices]
        if choices and search.is_shrunk(choices[0]):
            maps[0] = _shrunk(maps[0], sample)
        if is_sparse:
            maps = [one.set_params(sampling="orthogonal") for one in maps]
        return maps or [self._default()]

    def _default(self, *, width: str | float = "auto", dearest: bool = False) -> FeatureMap:
        """Return a map with this width that stands for the candidates: the cheapest one, or the dearest."""
        kinds = [kind for kind in ("fourier", "nystroem") if kind in self._chosen_maps]
        if not kinds and "binning" in self._chosen_maps:
            return RandomBinningFeatures(Laplacian(width))
        kinds = kinds or ["fourier"]
        if kinds[-1 if dearest else 0] == "nystroem":
            return NystroemFeatures(Gaussian(width), self.n_components)
        return FourierFeatures(Gaussian(width), int(self.n_components))


_MAX_DENSE_BYTES = 2**26


def _too_wide(n_rows: int, n_columns: int) -> bool:
    """Return whether sparse rows take too much memory once their zeros are written out for a search."""
    return 8 * n_rows * n_columns > _MAX_DENSE_BYTES


def _shrunk(features: FeatureMap, sample: Sample) -> FeatureMap:
    """Return bins whose widths are changed on from these, column by column, on the whole sample.

    On 12,000 rows of covtype the share of wrong classes fell from 17 % to 14 %.
    """
    assert isinstance(features, RandomBinningFeatures)
    assert features.kernel is not None
    search = {
        "rule": "small models on a sample",
        "length_scale": features.kernel.get_params()["length_scale"],
        "column_scale": Moments.of(sample.X, sample.weights).standard_deviation().tolist(),
    }
    kernel, _ = shrunk_length_scales(Laplacian("ard"), search, sample, features._pilot)
    return RandomBinningFeatures(kernel, features.n_grids)


def _found_widths(kernel: Kernel, sample: Sample) -> dict[str, Any]:
    """Return what a map would tell that had searched for the widths of this kernel itself."""
    widths = kernel.get_params()["length_scale"]
    search: dict[str, Any] = {"rule": "small models on a sample", "length_scale": widths}
    if isinstance(widths, tuple):
        search["column_scale"] = Moments.of(sample.X, sample.weights).standard_deviation().tolist()
    if kernel.metric is not None:
        search |= metric_shares(np.asarray(kernel.metric))
    return search
