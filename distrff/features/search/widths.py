"""Widths by a sample: one for all columns by a small ridge, one a column by marginal likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from scipy.linalg import cho_solve
from scipy.optimize import minimize

from distrff.errors import ColumnError, InputError
from distrff.features.base import RowSource, Sample
from distrff.features.search.ridge import SmallRidge
from distrff.features.search.sample import (
    SAMPLE_ROWS,
    THINNING,
    Line,
    SearchSample,
    coded_targets,
    descend,
    median_distance,
)
from distrff.kernels.base import Kernel
from distrff.kernels.stationary import Stationary
from distrff.preprocessing.coding import EQUAL_TO_ROUNDING, Moments
from distrff.utils.linalg import factor, inverse_of_factor
from distrff.utils.process import one_blas_thread
from distrff.utils.random import child_seed, stream

MakeRidge = Callable[[SearchSample, Kernel], SmallRidge]
"""The small model of a map for a kernel with undecided widths."""

# One width for all columns.

_MIN_ROWS = 8
# Half octaves from the median distance. Best widths were between a thirtieth of it (terrain) and about the
# distance itself; the range leaves room on both sides, and the walk goes on beyond.
_FIRST_PLACES, _STEPS = range(-14, 7, 2), (2, -2, 1, -1)
SEARCH_ERRORS = len(_FIRST_PLACES) + len(_STEPS)
"""Held-out errors of a usual search for one width."""


def automatic_length_scale(
    kernel: Kernel, sample: Sample, make_ridge: MakeRidge
) -> tuple[Kernel, dict[str, Any]]:
    """The kernel with its undecided widths set to one number, and a report of the search.

    With targets: the width of smallest held-out squared error of a small ridge with the same kind of map,
    over factors of 2 around the median distance, then √2, then by a parabola. Without targets: the median
    distance. The report holds `rule`, `median_distance`, `length_scale`, and with targets `tried`, a list of
    [width, held-out error]. Raises InputError if no two rows of positive weight differ, or a target is not
    finite.
    """
    n_rows = min(SAMPLE_ROWS, int(np.count_nonzero(sample.weights > 0)))
    if not n_rows:
        raise InputError("length_scale='auto' found no row of positive weight in its sample; give a number")
    few = sample.y is None or n_rows < _MIN_ROWS
    rows = SearchSample.of(replace(sample, y=np.zeros(sample.X.shape[0])) if few else sample)
    median = median_distance(kernel, rows.X, sample.seed)
    if few:
        why = "no targets" if sample.y is None else f"fewer than {_MIN_ROWS} rows"
        rule = f"median distance ({why})"
        return kernel.with_widths(median), {"rule": rule, "median_distance": median, "length_scale": median}
    ridge = make_ridge(replace(rows, penalty=None), kernel)
    with one_blas_thread():  # the same width whatever the client's threads
        line = descend(lambda place: ridge.error(median * 2.0 ** (place / 2)), _FIRST_PLACES, _STEPS)
    width = median * 2.0 ** (line.minimum / 2)
    return kernel.with_widths(width), {
        "rule": f"held-out error of {ridge.description} and {n_rows} rows",
        "median_distance": median,
        "length_scale": width,
        "tried": [[median * 2.0 ** (place / 2), error] for place, error in sorted(line.errors.items())],
    }


# One width a column, by marginal likelihood.

# The eigenvalues of K are at most its number of rows, a few thousand, and rounded by about 1e-12. With this
# jitter C is positive definite in float64 however small the noise.
_JITTER = 1e-9
# In log likelihood for one row: a tenth of the variance.
_CLEAR_GAIN = 0.05


@dataclass(frozen=True, eq=False)
class MarginalLikelihood:
    """−log p(Y | X) of Gaussian processes with one kernel, as a function of the logarithms of its widths.

    Each of the k outputs is drawn from N(0, a·C), C = K + λ·diag(1/s): a is the amplitude, λ the noise
    in units of it. With the best amplitude, a = tr(Yᵀ C⁻¹ Y)/(n·k), up to a constant

        f = ½·log a + log|C|/(2n)                                                  for one row and output,
        ∂f/∂K = (C⁻¹ − A Aᵀ/(a·k)) / 2n,  A = C⁻¹ Y

    (Rasmussen and Williams 2006, equations 5.8 and 5.9, at the maximum over a). The kernel is exact:
    nothing depends on drawn frequencies, and one objective serves every kernel. Its own widths are not used,
    the columns of Y are centred, and the weights s are positive.

    A value with its gradient costs n³ + O(n²·(d + k)) flops and about six n × n matrices.
    """

    kernel: Stationary
    X: np.ndarray
    Y: np.ndarray
    s: np.ndarray

    def value(self, point: np.ndarray) -> float:
        """f at `point`, the logarithms of the d widths and of λ."""
        return self.values(point[:-1], (math.exp(point[-1]),))[0]

    def values(self, log_widths: np.ndarray, noises: Sequence[float]) -> list[float]:
        """f for each λ at the same widths, which share a kernel matrix."""
        K = self._kernel_of(log_widths)(self.X)
        return [self._value(*self._solved(K, noise)) for noise in noises]

    def value_and_gradient(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """f and its gradient at `point`."""
        kernel, noise = self._kernel_of(point[:-1]), math.exp(point[-1])
        K = kernel(self.X)
        L, A = self._solved(K, noise)
        n = len(self.Y)
        M = inverse_of_factor(L)
        M += np.tril(M, -1).T
        M -= A @ A.T * (n / np.vdot(self.Y, A))
        M /= 2.0 * n
        by_noise = noise * float((1.0 / self.s) @ np.diagonal(M))
        return self._value(L, A), np.append(kernel.width_gradient(self.X, K, M), by_noise)

    def noise_alone(self) -> float:
        """f in the limit of a large λ, where all of the targets is noise."""
        n, k = self.Y.shape
        size = float(self.s @ np.square(self.Y).sum(axis=1))
        return 0.5 * math.log(size / (n * k)) - float(np.log(self.s).sum()) / (2 * n)

    def is_signal(self, value: float) -> bool:
        """Whether a value is better than that of noise alone, not only by widths fitted to noise.

        By ½·log n nats for each width and the noise (Schwarz 1978), or by .05 nats a row and output.
        """
        n, k = self.Y.shape
        by_noise = 0.5 * math.log(n) * (self.X.shape[1] + 1) / (n * k)
        return self.noise_alone() - value > min(_CLEAR_GAIN, by_noise)

    def leading(self, n: int) -> Self:
        """The likelihood of the first n rows."""
        return replace(self, X=self.X[:n], Y=self.Y[:n], s=self.s[:n])

    def _kernel_of(self, log_widths: np.ndarray) -> Stationary:
        return self.kernel.set_params(length_scale=tuple(np.exp(log_widths).tolist()))

    def _solved(self, K: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
        """The lower Cholesky factor of C, and C⁻¹ Y."""
        C = np.array(K, order="F")
        C[np.diag_indices_from(C)] += noise * (1.0 / self.s) + _JITTER
        L = factor(C, overwrite=True)
        return L, cho_solve((L, True), self.Y, check_finite=False)

    def _value(self, L: np.ndarray, A: np.ndarray) -> float:
        n, k = self.Y.shape
        return 0.5 * math.log(np.vdot(self.Y, A) / (n * k)) + float(np.log(np.diagonal(L)).sum()) / n


# The search for the largest marginal likelihood.

_START_FACTORS = 2.0 ** np.arange(-4, 4)
_START_NOISES = (1e-3, 3e-2, 1.0)
# In deviations of each column; at 1000 a column has practically no effect.
_WIDTH_BOUNDS = (1e-2, 1e3)
_NOISE_BOUNDS = (1e-7, 1e2)
CONSTANT_WIDTH = 1e30
"""Width of a constant column: whatever later rows hold there, up to times in nanoseconds, changes distances
and phases by less than 1e-11. Much larger widths, or their reciprocals, overflow in float32."""
# A start's least relevance: squared widths of columns without effect are a thousand times the shortest.
_LEAST_SHARE = 1e-3
_ONE_WIDTH, _ALONE, _IN_TREES = "one width", "columns alone", "columns in trees"
_TREES = 50, 5  # and the least rows of a leaf
_TREE_ROWS = 4096  # with 32 columns they take .9 s
_USUAL_STARTS = 2


@dataclass(frozen=True)
class LikelihoodBudget:
    """How far a likelihood is followed.

    A few steps on few rows are taken from every start, which many columns could overfit; then more from the
    best end on more rows. An evaluation costs the cube of the rows.
    """

    max_rows: int = 2000
    few_rows: int = 500
    evaluations: int = 25  # at most, on all rows
    few_evaluations: int = 12  # on few
    # A step that gains less, in log likelihood for one row, is the last. With 2000 rows, a likelihood that is
    # 2 % larger is not worth a step.
    tolerance: float = 1e-5

    @classmethod
    def quick(cls, n_rows: int) -> Self:
        """Fewer steps, which end earlier: a fifth of a nat, all rows together.

        That is far below what widths differ by from sample to sample.
        """
        return cls(n_rows, int(np.clip(n_rows // 3, 200, 500)), 12, 12, 0.2 / n_rows)

    def flops(self, n_rows: int, n_columns: int, n_starts: int = _USUAL_STARTS) -> float:
        """About the flops of a search where one of its starts finds a signal."""
        n = min(n_rows, self.few_rows, self.max_rows)
        values = len(_START_FACTORS) * n**2 * (len(_START_NOISES) * n / 3 + 3.0 * n_columns)
        few = n_starts * (values + self.few_evaluations * n**2 * (n + 10.0 * n_columns))
        n = min(n_rows, self.max_rows)
        return few + self.evaluations * n**2 * (n + 10.0 * n_columns)


def learned_length_scales(
    kernel: Kernel, sample: Sample, make_ridge: MakeRidge, *, shrinks: bool
) -> tuple[Kernel, dict[str, Any]]:
    """The kernel of width "ard" with one width for each column: likely ones, mended by the small ridge.

    With `shrinks`, or where folds hold out other rows than random ones, held-out rows judge each width.
    """
    found, search = relevant_length_scales(kernel, sample)
    if "note" in search:
        found, search = _without_signal(kernel, search, sample, make_ridge)
    if shrinks or sample.split is not None:
        rows = SearchSample.of(sample)
        if sample.split is not None:
            search |= {"length_scale": _better_start(kernel, search, sample, rows, make_ridge)}
        found, search = shrunk_length_scales(kernel, search, rows, sample.n_weighted_rows, make_ridge)
    return found, search


def _better_start(
    kernel: Kernel, search: dict[str, Any], sample: Sample, rows: SearchSample, make_ridge: MakeRidge
) -> list[float]:
    """The likely widths, or one width in deviations of the columns if that judges held-out rows better."""
    # A likelihood takes rows for independent: a width that knows each group again looks likely (.01
    # deviations of a column with one value a group), and no walk in octaves leads from there to a width for
    # new groups. On three of six such tables errors on new groups fell from 1.34, 1.37, 1.50 to 1.05 to 1.11.
    likely: list[float] = search["length_scale"]
    known = make_ridge(replace(rows, penalty=None), kernel).error(tuple(likely))
    _, other = proportional_length_scales(kernel, np.array(search["column_scale"]), sample, make_ridge)
    error = min((error for _, error in other.get("tried", ())), default=math.inf)
    return other["length_scale"] if error < known else likely


def relevant_length_scales(
    kernel: Kernel, sample: Sample, *, budget: LikelihoodBudget | None = None
) -> tuple[Kernel, dict[str, Any]]:
    """The kernel with one width for each column, and how they were found.

    The widths and the noise maximise the marginal likelihood of Gaussian processes with this kernel
    (`MarginalLikelihood`; class labels as targets ±1) by L-BFGS with exact gradients (Byrd, Lu, Nocedal and
    Zhu 1995). It has many maxima, one of them without any signal; so it is followed from several starts (see
    `LikelihoodBudget`). Each is a profile of widths, times the best factor of a grid:

    - one width for all columns;
    - widths ∝ 1/√(what the column explains alone), by `single_column_r2`, where a column explains something;
    - where these lead to nothing, widths ∝ 1/√(what its cuts explain in trees), by `shares_in_trees`.

    A column that does not matter gets a width of up to 1000 deviations (automatic relevance determination;
    Neal 1996, chapter 1). A column that is constant in all rows has no deviation, and gets a width at which
    it has no effect. The noise of a row of weight s has a variance proportional to 1/s; the mean of the
    weights does not matter.

    Widths are not believed if their likelihood is no better than that of noise alone, by ½·log n nats for
    each width (Schwarz 1978) or by .05 nats a row, a tenth of the variance. Then the result is a profile, of
    what columns explain alone if they do, and the report has a `note`.

    The report holds `rule`, `length_scale` and `column_scale` (deviations), a number for each column, `noise`
    (λ, in units of the kernel's amplitude), `stages` (for each its rows, the objective at its start and end
    in nats a row and output, and counts), `noise_alone` (the objective of noise alone on the rows of the last
    stage), `starts` (the objective there of what each start led to), `start` (the one that was followed),
    `explained_alone`, a number for each column, `unseen_columns`, constant in the sample alone, which keep
    the width of the start, `constant_columns`, constant in all rows, of scale 0 and width 1e30; where the
    widths are not believed, `note` and `likelihood_length_scale`.

    Raises InputError without targets, with fewer than 8 rows of positive weight, if all columns or the
    targets are constant, or if a target is not finite.
    """
    assert isinstance(kernel, Stationary)
    budget = budget or LikelihoodBudget()
    if sample.y is None:
        raise InputError(
            "length_scale='ard' learns the widths from targets, and there are none (principal components use "
            "no y); give y, or use 'auto'"
        )
    weights, rows = sample.weights, sample.shuffled_rows("relevance rows")
    if len(rows) < _MIN_ROWS:
        raise InputError(
            f"length_scale='ard' needs at least {_MIN_ROWS} rows of positive weight, got {len(rows)}; "
            f"give widths"
        )
    scale, unseen = _column_scales(sample.X, weights, sample.row_source)
    Y = _standardised(coded_targets(sample.y), weights)
    few, s = rows[: budget.max_rows], weights / weights[rows].mean()
    moving = np.flatnonzero(scale)
    X = sample.X[np.ix_(few, moving)]
    U = (X - X.mean(axis=0, dtype=np.float64)) / scale[moving]
    many = rows[:SAMPLE_ROWS]
    alone = single_column_r2(sample.X[np.ix_(many, moving)], Y[many], s[many])
    profiles = _profiles(alone)
    with one_blas_thread():  # the same widths whatever the client's threads
        likelihood = MarginalLikelihood(kernel, U, Y[few], s[few])
        point, report = _likeliest(likelihood, profiles, budget)
        if "note" in report and len(moving) > 1:
            some = many[:_TREE_ROWS]
            in_trees = shares_in_trees(sample.X[np.ix_(some, moving)], Y[some], s[some], sample.seed)
            again, found_again = _likeliest(likelihood, {_IN_TREES: _profile_of(in_trees)}, budget)
            if "note" not in found_again:
                point, report = again, found_again
    found = np.full(len(scale), CONSTANT_WIDTH)

    def as_widths(relative: np.ndarray) -> list[float]:
        found[moving] = relative * scale[moving]
        # Four digits: more are not known, and the last ones may differ with the processor.
        return [float(f"{width:.4g}") for width in found]

    widths = as_widths(np.exp(point[:-1]))
    if "note" in report:
        report["likelihood_length_scale"] = widths
        profile = profiles.get(_ALONE, profiles[_ONE_WIDTH])
        widths = as_widths(profile * _typical_distance(profile, kernel.is_spherical))
    shares = np.zeros(len(scale))
    shares[moving] = alone
    return kernel.with_widths(tuple(widths)), {
        "rule": f"marginal likelihood of {len(few)} rows",
        "length_scale": widths,
        "column_scale": scale.tolist(),
        "noise": float(np.exp(point[-1])),
        "explained_alone": [float(f"{share:.4g}") for share in shares],
        "unseen_columns": unseen.tolist(),
        "constant_columns": np.flatnonzero(scale == 0).tolist(),
    } | report


def _column_scales(
    X: np.ndarray, weights: np.ndarray, row_source: RowSource
) -> tuple[np.ndarray, np.ndarray]:
    """The deviation of each column, 0 if all rows are equal, and the numbers of unseen columns."""
    moments = Moments.of(X, weights)
    scale, unseen = moments.standard_deviation(), np.flatnonzero(moments.is_constant())
    if len(unseen):
        extremes = row_source(ColumnRange(X.shape[1]))
        width, magnitude = extremes.sum(axis=0), np.abs(extremes).max(axis=0)
        scale[unseen] = 0.0
        unseen = unseen[width[unseen] > EQUAL_TO_ROUNDING * magnitude[unseen]]
        # The deviation of a column in which a single row of the sample differs.
        scale[unseen] = width[unseen] / np.sqrt(len(X))
    if not scale.any():
        raise InputError(
            "length_scale='ard' cannot learn widths: every column is constant; give widths, or other columns"
        )
    huge = np.flatnonzero(~np.isfinite(scale))
    if len(huge):
        raise ColumnError(
            "the deviation of {column} overflows; scale it before length_scale='ard'", int(huge[0])
        )
    return scale, unseen


def _standardised(Y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    moments = Moments.of(Y, weights)
    moving = ~moments.is_constant()
    if not moving.any():
        raise InputError("length_scale='ard' cannot learn widths: y is constant; give widths")
    return (Y[:, moving] - moments.mean[moving]) / moments.standard_deviation()[moving]


def _likeliest(
    likelihood: MarginalLikelihood, profiles: Mapping[str, np.ndarray], budget: LikelihoodBudget
) -> tuple[np.ndarray, dict[str, Any]]:
    """The logarithms of widths and noise for columns of deviation 1, and a report."""
    n, few = len(likelihood.Y), likelihood.leading(budget.few_rows)
    is_small = n <= budget.few_rows
    points: dict[str, np.ndarray] = {}
    stages: dict[str, list[dict[str, Any]]] = {}
    for name, profile in profiles.items():
        start = _start(few, profile)
        evaluations = budget.evaluations if is_small else budget.few_evaluations
        points[name], stage = _climb(few, start, evaluations, budget.tolerance)
        stages[name] = [stage]
        if not is_small:  # few rows may lose a column that more rows would keep
            points[f"{name}, unchanged"], stages[f"{name}, unchanged"] = start, []
    values = {name: likelihood.value(point) for name, point in points.items()}
    name = min(values, key=values.__getitem__)
    point = points[name]
    if not is_small:
        point, stage = _climb(likelihood, point, budget.evaluations, budget.tolerance)
        stages[name].append(stage)
    report = {
        "start": name,
        "starts": values,
        "stages": stages[name],
        "noise_alone": likelihood.noise_alone(),
    }
    if not likelihood.is_signal(stages[name][-1]["objective_end"]):
        report["note"] = f"the likelihood of length_scale='ard' found no more than noise in {n} rows"
    return point, report


def _profiles(alone: np.ndarray) -> dict[str, np.ndarray]:
    """Profiles of widths by name, for the share that each column explains alone."""
    profiles = {_ONE_WIDTH: np.ones(len(alone))}
    if alone.any():
        profiles[_ALONE] = _profile_of(alone)
    return profiles


def _profile_of(shares: np.ndarray) -> np.ndarray:
    """Widths ∝ 1/√share."""
    return np.maximum(shares / shares.max(), _LEAST_SHARE) ** -0.5


def shares_in_trees(X: np.ndarray, Y: np.ndarray, s: np.ndarray, seed: int) -> np.ndarray:
    """The share of the variance of Y that cuts of each column remove, in trees with random cuts, (d,).

    Trees find columns that matter only together (Geurts, Ernst and Wehenkel 2006, "Extremely randomized
    trees"): from there the likelihood of 500 rows of pumadyn32nm sees two of 32 columns, where the other
    starts find noise. All shares are alike where there is nothing to cut.
    """
    from sklearn.ensemble import ExtraTreesRegressor  # few searches ask them

    n_trees, least_rows = _TREES
    trees = ExtraTreesRegressor(
        n_trees,
        min_samples_leaf=least_rows,
        max_features=1.0,
        random_state=int(child_seed(seed, "relevance trees") % 2**32),
    )
    shares: np.ndarray = trees.fit(X, Y.squeeze(axis=1) if Y.shape[1] == 1 else Y, s).feature_importances_
    return shares if shares.any() else np.ones(len(shares))


def _climb(
    likelihood: MarginalLikelihood, point: np.ndarray, evaluations: int, tolerance: float
) -> tuple[np.ndarray, dict[str, Any]]:
    """The end of a few steps from a point, and their report."""
    bounds = [tuple(np.log(_WIDTH_BOUNDS))] * (len(point) - 1) + [tuple(np.log(_NOISE_BOUNDS))]
    options = {"maxfun": evaluations, "maxiter": evaluations, "ftol": tolerance}
    start = likelihood.value(point)
    found = minimize(
        likelihood.value_and_gradient, point, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    return found.x, {
        "n_rows": len(likelihood.Y),
        "objective_start": start,
        "objective_end": float(found.fun),
        "n_iterations": int(found.nit),
        "n_evaluations": int(found.nfev),
    }


def _start(likelihood: MarginalLikelihood, profile: np.ndarray) -> np.ndarray:
    """The best point of a grid on which the widths are multiples of the profile."""
    widths = profile * _typical_distance(profile, likelihood.kernel.is_spherical)
    best, start = math.inf, np.empty(0)
    for times in _START_FACTORS:
        profile_here = np.log(np.clip(times * widths, *_WIDTH_BOUNDS))
        values = likelihood.values(profile_here, _START_NOISES)
        if (value := min(values)) < best:
            best, start = value, np.append(profile_here, math.log(_START_NOISES[values.index(value)]))
    return start


def _typical_distance(profile: np.ndarray, is_spherical: bool) -> float:
    """About the distance of two rows, Euclidean or summed over columns of these deviations⁻¹."""
    return float(np.sqrt(2.0 * np.sum(profile**-2.0)) if is_spherical else np.sum(1.0 / profile))


# Where the likelihood finds no more than noise, the map's small ridge may: it has up to 16,384 rows.

# A smaller change of an error on a few thousand rows is noise.
_WORTHWHILE = 1e-3


def proportional_length_scales(
    kernel: Kernel, scale: np.ndarray, sample: Sample, make_ridge: MakeRidge
) -> tuple[Kernel, dict[str, Any]]:
    """The kernel of width "ard" with one width in units of the columns' scales, 0 for a constant one."""
    units = np.where(scale > 0, scale, 1.0)
    free = kernel.set_params(length_scale="auto")
    _, search = automatic_length_scale(free, replace(sample, X=sample.X / units), make_ridge)
    found = np.where(scale > 0, search["length_scale"] * units, CONSTANT_WIDTH)
    widths = [float(f"{width:.4g}") for width in found]
    return kernel.with_widths(tuple(widths)), search | {
        "length_scale": widths,
        "column_scale": scale.tolist(),
    }


def _without_signal(
    kernel: Kernel, search: dict[str, Any], sample: Sample, make_ridge: MakeRidge
) -> tuple[Kernel, dict[str, Any]]:
    """One width in deviations of the columns, in place of those of a likelihood that found only noise."""
    found, own = proportional_length_scales(kernel, np.array(search["column_scale"]), sample, make_ridge)
    rule = f"{own['rule']}, one width in deviations of the columns"
    error = min((error for _, error in own.get("tried", ())), default=math.nan)
    also = "; they predict held-out rows no better than the mean does" if error > 1 - _WORTHWHILE else ""
    return found, search | {
        "rule": rule,
        "length_scale": own["length_scale"],
        "note": f"{search['note']}; instead the widths are chosen by the {rule}{also}",
    }


# Bins are the only map whose widths many rows shorten: the likelihood of few rows finds which columns matter
# most, but neither the order of the others nor the widths that many rows allow.

_MAX_COLUMNS = 24
_MAX_OCTAVES = 5  # for a single column
# Widths shrink at most like the distance of neighbours in a plane, n^(−½).
_MAX_RATE = 0.5
_PAIRS = 4096
_USUAL_ERRORS = 12  # held-out errors for the sizes


def shrunk_length_scales(
    kernel: Kernel, search: dict[str, Any], rows: SearchSample, n_rows: int, make_ridge: MakeRidge
) -> tuple[Kernel, dict[str, Any]]:
    """The kernel with likely widths shrunk as far as the map's small ridge gains by it, for `n_rows` rows.

    All widths together change in half octaves while the error falls; then those of the columns that separate
    rows most, by E|δ_j|/width_j, one by one in octaves; then all together once more.

    More rows allow shorter widths, by a power of their number (like the bandwidth n^(−1/(2s+d)) for functions
    of smoothness s; Stone 1982, "Optimal global rates of convergence for nonparametric regression"). That
    power, between 0 and ½, comes from the best common factors of the widths for the rows of the sample and
    for a quarter of them. With many columns the whole takes some 60 held-out errors, most on that quarter.

    `search` holds its likely `length_scale`, and `column_scale`. It gets another `length_scale`, its own as
    `likelihood_length_scale`, the `column_factors` by which widths were changed one by one, the common
    `size_factor`, which includes a power −`shrinking` of the ratio of the numbers of rows, and `tried`, a
    list of [common factor, held-out error].
    """
    likely, moving = np.array(search["length_scale"]), np.array(search["column_scale"]) > 0
    rows = replace(rows, penalty=None)
    ridge, few = make_ridge(rows, kernel), make_ridge(rows.thinned(), kernel)

    def widths_at(place: int, factors: np.ndarray) -> tuple[float, ...]:
        # Constant columns keep their width.
        found = np.where(moving, 2 ** (place / 2) * factors, 1.0) * likely
        return tuple(float(f"{width:.4g}") for width in found)

    def best_size(model: SmallRidge, factors: np.ndarray, start: int) -> Line:
        return descend(lambda place: model.error(widths_at(place, factors)), (start,), _STEPS)

    with one_blas_thread():  # the same widths whatever the client's threads
        factors = np.ones(len(likely))
        first = best_size(ridge, factors, 0)
        # On 12,000 rows of covtype all rows here bring the error to .42 from .50, and so does a quarter of
        # them. Widths σ_j·(ℓ_j/σ_j)^p with p < 1 beside, which draw all together, brought it to .41.
        columns = _separating_columns(rows.X, np.where(moving, likely, np.inf), rows.seed)
        known = few.error(widths_at(first.best, factors))
        for j in columns:
            factors[j], known = _column_factor(
                lambda factors: few.error(widths_at(first.best, factors)), factors, j, known
            )
        here, before = (best_size(model, factors, first.best) for model in (ridge, few))
    shrinking = float(np.clip((before.minimum - here.minimum) / 2 / np.log2(THINNING), 0.0, _MAX_RATE))
    # The error of bins is no smooth function of the width: the place that was judged, not the parabola's.
    size = float(2 ** (here.best / 2) * (n_rows / rows.n_training) ** -shrinking)
    widths = list(widths_at(0, size * factors))
    return kernel.with_widths(tuple(widths)), search | {
        "rule": f"{search['rule']}, shrunk by the held-out error of {ridge.description}",
        "length_scale": widths,
        "likelihood_length_scale": search["length_scale"],
        "column_factors": factors.tolist(),
        "size_factor": size,
        "shrinking": shrinking,
        "tried": [[2 ** (place / 2), error] for place, error in sorted(first.errors.items())],
    }


def shrinking_errors(n_columns: int) -> int:
    """About the held-out errors that `shrunk_length_scales` takes."""
    return _USUAL_ERRORS + 2 * min(n_columns, _MAX_COLUMNS) // THINNING


def _separating_columns(X: np.ndarray, widths: np.ndarray, seed: int) -> np.ndarray:
    """The columns in which random pairs of rows are farthest apart, in widths."""
    first, second = stream(seed, "tempering pairs").integers(0, len(X), (2, _PAIRS))
    apart = np.abs(X[first] - X[second]).mean(axis=0) / widths
    return np.argsort(-apart, kind="stable")[: min(_MAX_COLUMNS, np.count_nonzero(apart))]


def _column_factor(
    error: Callable[[np.ndarray], float], factors: np.ndarray, j: int, known: float
) -> tuple[float, float]:
    """The factor of one width that is best in octaves, from a known error at 1 on, and its error."""

    def error_at(octaves: int) -> float:
        changed = np.where(np.arange(len(factors)) == j, 2.0**octaves, factors)
        return error(changed) if octaves else known

    line = descend(error_at, (0,), (-1, 1), farthest=_MAX_OCTAVES, least_gain=_WORTHWHILE)
    return 2.0**line.best, line.error


# How much of the targets each column explains alone: a cheap look at all columns, blind to interactions.

_MOST_BINS = 64
_MIN_ROWS_PER_BIN = 8
# A share is believed from so many of its deviations under no effect: with a few hundred columns of noise
# and a handful of numbers of bins, few of them pass.
_DEVIATIONS = 3.0


def single_column_r2(X: np.ndarray, Y: np.ndarray, s: np.ndarray) -> np.ndarray:
    """The share of the variance of Y that a function of each column alone explains, shape (d,).

    The function is the mean of Y in each of b bins of about equally many rows, b = 2, 4, …, 64. Its share is
    the adjusted 1 − (1 − R²)·(n − 1)/(n − b) (Kelley 1935), which is 0 on average if the column has no effect
    and then has a deviation of about √(2(b − 1))/n. The result is the largest share less three of these
    deviations, at least 0. n is the effective number of rows (Σs)²/Σs²; the columns of Y have the mean 0
    under the weights s, and R² is that of all outputs together.

    O(n·(log n + k)) for each column and k outputs.
    """
    n = s.sum() ** 2 / np.square(s).sum()
    shares = np.zeros(X.shape[1])
    if n < 2 * _MIN_ROWS_PER_BIN:
        return shares
    n_bins = 2 ** min(int(np.log2(n / _MIN_ROWS_PER_BIN)), int(np.log2(_MOST_BINS)))
    levels = np.arange(1, n_bins) / n_bins
    total = float(s @ np.square(Y).sum(axis=1))
    columns = [s, *(s * y for y in Y.T)]
    for j, x in enumerate(X.T):
        # A value on an edge goes up, so that equal values share a bin and some bins may stay empty.
        bins = np.searchsorted(np.quantile(x, levels), x, side="right")
        sums = np.stack([np.bincount(bins, column, n_bins) for column in columns])
        while sums.shape[1] > 1:
            shares[j] = max(shares[j], _share(sums[0], sums[1:], total, n))
            sums = sums[:, ::2] + sums[:, 1::2]
    return shares


def _share(weights: np.ndarray, sums: np.ndarray, total: float, n: float) -> float:
    """The adjusted share less its margin, for the weights (b,) and the sums (k, b) of the bins."""
    occupied = weights > 0
    b = np.count_nonzero(occupied)
    unexplained = 1.0 - float((np.square(sums[:, occupied]) / weights[occupied]).sum()) / total
    return 1.0 - unexplained * (n - 1.0) / (n - b) - _DEVIATIONS * np.sqrt(2.0 * (b - 1.0)) / n


# The ranges of the columns over all rows: a column that is constant in a sample may vary in other rows.


@dataclass(frozen=True)
class ColumnRange:
    """The reduction of rows of positive weight to −min and max of each column, shape (2, n_columns)."""

    n_columns: int
    label = "column ranges"

    def zero(self) -> np.ndarray:
        return np.full((2, self.n_columns), -np.inf)

    def update(
        self, total: np.ndarray, start: int, X: np.ndarray, sample_weight: np.ndarray | None
    ) -> np.ndarray:
        rows = X if sample_weight is None else X[np.asarray(sample_weight) > 0]
        return self.merge(total, np.stack([-rows.min(axis=0), rows.max(axis=0)])) if len(rows) else total

    def merge(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.maximum(first, second)

    def size_bytes(self, n_rows: int) -> int:
        return 16 * self.n_columns
