"""One width for each column: by marginal likelihood, then adjusted by the held-out error of a small model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
from scipy.linalg import cho_solve
from scipy.optimize import minimize

from distrff.errors import ColumnError, InputError
from distrff.features.base import RowSource, Sample
from distrff.features.search.screening import explained_alone
from distrff.features.search.widths import (
    SAMPLE_ROWS,
    THINNING,
    ColumnRange,
    MakePilot,
    Pilot,
    coded_targets,
    search_rows,
)
from distrff.kernels.base import Kernel
from distrff.kernels.stationary import Gaussian, Laplacian, Stationary
from distrff.preprocessing.moments import EQUAL_TO_ROUNDING, Moments
from distrff.utils.linalg import factor, inverse_of_factor
from distrff.utils.process import one_blas_thread
from distrff.utils.random import stream

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
        """Return f at `point`, the logarithms of the d widths and of λ."""
        return self.values(point[:-1], (math.exp(point[-1]),))[0]

    def values(self, log_widths: np.ndarray, noises: Sequence[float]) -> list[float]:
        """Return f for each λ at the same widths, which share a kernel matrix."""
        K = self._kernel_of(log_widths)(self.X)
        return [self._value(*self._solved(K, noise)) for noise in noises]

    def value_and_gradient(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Return f and its gradient at `point`."""
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
        """Return f in the limit of a large λ: that of targets that are noise and nothing else."""
        n, k = self.Y.shape
        size = float(self.s @ np.square(self.Y).sum(axis=1))
        return 0.5 * math.log(size / (n * k)) - float(np.log(self.s).sum()) / (2 * n)

    def tells(self, value: float) -> bool:
        """Return whether a value is better than that of noise alone, not only by widths fitted to noise.

        By ½·log n nats for each width and the noise (Schwarz 1978), or by .05 nats a row and output.
        """
        n, k = self.Y.shape
        by_noise = 0.5 * math.log(n) * (self.X.shape[1] + 1) / (n * k)
        return self.noise_alone() - value > min(_CLEAR_GAIN, by_noise)

    def _kernel_of(self, log_widths: np.ndarray) -> Stationary:
        return self.kernel.set_params(length_scale=tuple(np.exp(log_widths).tolist()))

    def _solved(self, K: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower Cholesky factor of C, and C⁻¹ Y."""
        C = np.array(K, order="F")
        C[np.diag_indices_from(C)] += noise * (1.0 / self.s) + _JITTER
        L = factor(C, overwrite=True)
        return L, cho_solve((L, True), self.Y, check_finite=False)

    def _value(self, L: np.ndarray, A: np.ndarray) -> float:
        n, k = self.Y.shape
        return 0.5 * math.log(np.vdot(self.Y, A) / (n * k)) + float(np.log(np.diagonal(L)).sum()) / n


# The search for the largest marginal likelihood on a small sample.

# Rows and evaluations: first a few steps on few rows, which many columns could overfit, from every start;
# then more from the best end on more rows. An evaluation costs the cube of the rows.
_FEW_ROWS, _FEW_EVALUATIONS = 500, 12
_MAX_ROWS, _EVALUATIONS = 2000, 25
_MIN_ROWS = 8
_START_FACTORS = 2.0 ** np.arange(-4, 4)
_START_NOISES = (1e-3, 3e-2, 1.0)
_USUAL_STARTS = 2
# In deviations of each column; at 1000 a column has practically no effect.
_WIDTH_BOUNDS = (1e-2, 1e3)
_NOISE_BOUNDS = (1e-7, 1e2)
# The width of a constant column: whatever later rows hold there, up to times in nanoseconds, changes
# distances and phases by less than 1e-11. Much larger widths, or their reciprocals, overflow in float32.
CONSTANT_WIDTH = 1e30
# In log likelihood for one row: with 2000 rows, a likelihood that is 2 % larger is not worth a step.
_TOLERANCE = 1e-5
# A start's least relevance: squared widths of columns without effect are a thousand times the shortest.
_LEAST_SHARE = 1e-3
_ONE_WIDTH, _ALONE = "one width", "columns alone"


@dataclass(frozen=True)
class Effort:
    """How far a likelihood is followed.

    Parameters
    ----------
    few_rows : int
        Rows that the steps from every start are taken on.
    evaluations : int
        At most, from the best end on all rows.
    tolerance : float
        A step that gains less, in log likelihood for one row, is the last.
    """

    few_rows: int = _FEW_ROWS
    evaluations: int = _EVALUATIONS
    tolerance: float = _TOLERANCE

    @classmethod
    def quick(cls, n_rows: int) -> Self:
        """Return one with fewer steps, which end earlier.

        A fifth of a nat, all rows together, is far below what widths differ by from sample to sample.
        """
        few = int(np.clip(n_rows // _FEW_SHARE, *_FEW_OF_QUICK))
        return cls(few, _FEW_EVALUATIONS, _QUICK_GAIN / n_rows)


_FEW_SHARE, _FEW_OF_QUICK, _QUICK_GAIN = 3, (200, _FEW_ROWS), 0.2


def relevant_length_scales(
    kernel: Kernel,
    sample: Sample,
    *,
    starts: Mapping[str, Sequence[float]] | None = None,
    usual_starts: bool = True,
    max_rows: int = _MAX_ROWS,
    effort: Effort | None = None,
) -> tuple[Kernel, dict[str, Any]]:
    """Return the kernel with one width for each column, and how they were found.

    The widths and the noise maximise the marginal likelihood of Gaussian processes with this kernel
    (`MarginalLikelihood`; class labels as targets ±1) by L-BFGS with exact gradients (Byrd, Lu, Nocedal and
    Zhu 1995). It has many maxima, one of them without any signal. So a few steps on 500 rows are taken
    from several starts, and more on `max_rows` rows from the end that is best there. Each start is a
    profile of widths, times the best factor of a grid:

    - one width for all columns;
    - widths ∝ 1/√(what the column explains alone), by `explained_alone`, where a column explains something;
    - those of `starts`, a width for each column, by their name in the report; without `usual_starts` these
      alone;
    - if all that explains nothing on `max_rows` rows, what the Gaussian and the Laplacian kernel find.

    A column that does not matter gets a width of up to 1000 deviations (automatic relevance determination;
    Neal 1996, chapter 1). A column that is constant in all rows has no deviation, and gets a width at which
    it has no effect. The noise of a row of weight s has a variance proportional to 1/s; the mean of the
    weights does not matter.

    Widths are not believed if their likelihood is no better than that of noise alone, by ½·log n nats for
    each width (Schwarz 1978) or by .05 nats a row, a tenth of the variance. Then the result is a profile, of
    what columns explain alone if they do, and `search` has a `note`, for `fallback_length_scales`.

    Raises InputError without targets, with fewer than 8 rows of positive weight, if all columns or the
    targets are constant, or if a target is not finite.

    Returns
    -------
    kernel : Kernel
    search : dict
        `rule`, `length_scale` and `column_scale` (deviations), a number for each column, `noise` (λ, in
        units of the kernel's amplitude), `stages` (for each its rows, the objective at its start and end
        in nats a row and output, and counts), `noise_alone` (the objective of noise alone on the rows of
        the last stage), `starts` (the objective there of what each start led to), `start` (the one that
        was followed), `explained_alone`, a number for each column, `unseen_columns`, constant in the sample
        alone, which keep the width of the start, `constant_columns`, constant in all rows, of scale 0 and
        width 1e30; where the widths are not believed, `note` and `likelihood_length_scale`.

    Notes
    -----
    About 25 values and 12 gradients with 500 rows for each start, and 25 gradients with 2000 rows: some
    2·10¹¹ flops, and 10⁹ for each column.
    """
    assert isinstance(kernel, Stationary)
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
    few, s = rows[:max_rows], weights / weights[rows].mean()
    moving = np.flatnonzero(scale)
    X = sample.X[np.ix_(few, moving)]
    U = (X - X.mean(axis=0, dtype=np.float64)) / scale[moving]
    many = rows[:SAMPLE_ROWS]
    alone = explained_alone(sample.X[np.ix_(many, moving)], Y[many], s[many])
    simple = _profiles(alone)
    profiles = simple.copy() if usual_starts else {}
    for name, given in (starts or {}).items():
        profiles[name] = np.array(given)[moving] / scale[moving]
    with one_blas_thread():  # the same widths whatever the client's threads
        point, report = _search(kernel, U, Y[few], s[few], profiles, effort or Effort())
    found = np.full(len(scale), CONSTANT_WIDTH)

    def as_widths(relative: np.ndarray) -> list[float]:
        found[moving] = relative * scale[moving]
        # Four digits: more are not known, and the last ones may differ with the processor.
        return [float(f"{width:.4g}") for width in found]

    widths = as_widths(np.exp(point[:-1]))
    if "note" in report:
        report["likelihood_length_scale"] = widths
        profile = simple.get(_ALONE, simple[_ONE_WIDTH])
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


def relevance_flops(
    n_rows: int,
    n_columns: int,
    max_rows: int = _MAX_ROWS,
    *,
    n_starts: int = _USUAL_STARTS,
    effort: Effort | None = None,
) -> float:
    """Return about how many flops the search takes where one of its starts finds a signal."""
    effort, d = effort or Effort(), n_columns
    n = min(n_rows, effort.few_rows, max_rows)
    values = len(_START_FACTORS) * n**2 * (len(_START_NOISES) * n / 3 + 3.0 * d)
    few = n_starts * (values + _FEW_EVALUATIONS * n**2 * (n + 10.0 * d))
    n = min(n_rows, max_rows)
    return few + effort.evaluations * n**2 * (n + 10.0 * d)


def _column_scales(
    X: np.ndarray, weights: np.ndarray, row_source: RowSource
) -> tuple[np.ndarray, np.ndarray]:
    """Return the deviation of each column, 0 if all rows are equal, and the numbers of unseen columns."""
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


def _search(
    kernel: Stationary,
    U: np.ndarray,
    Y: np.ndarray,
    s: np.ndarray,
    profiles: Mapping[str, np.ndarray],
    effort: Effort,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the logarithms of widths and noise for columns of deviation 1, and a report."""
    few, many = (MarginalLikelihood(kernel, U[:n], Y[:n], s[:n]) for n in (effort.few_rows, len(U)))
    is_small, tolerance = len(U) <= effort.few_rows, effort.tolerance
    points: dict[str, np.ndarray] = {}
    stages: dict[str, list[dict[str, Any]]] = {}
    for name, profile in profiles.items():
        start = _start(few, profile)
        evaluations = effort.evaluations if is_small else _FEW_EVALUATIONS
        points[name], stage = _climb(few, start, evaluations, tolerance)
        stages[name] = [stage]
        if not is_small:  # few rows may lose a column that more rows would keep
            points[f"{name}, unchanged"] = start
    values = {name: many.value(point) for name, point in points.items()}
    if not many.tells(min(values.values())):
        others = {name: _start(many, p) for name, p in _profiles_of_others(few, profiles, tolerance).items()}
        points |= others
        values |= {name: many.value(point) for name, point in others.items()}
    name = min(values, key=lambda name: values[name])
    followed, point = stages.get(name, []), points[name]
    if not (is_small and followed):
        point, stage = _climb(many, point, effort.evaluations, tolerance)
        followed.append(stage)
    report = {"start": name, "starts": values, "stages": followed, "noise_alone": many.noise_alone()}
    if not many.tells(followed[-1]["objective_end"]):
        report["note"] = f"the likelihood of length_scale='ard' found no more than noise in {len(U)} rows"
    return point, report


def _profiles(alone: np.ndarray) -> dict[str, np.ndarray]:
    """Return profiles of widths by name, for what each column explains alone."""
    profiles = {_ONE_WIDTH: np.ones(len(alone))}
    if alone.any():
        profiles[_ALONE] = np.maximum(alone / alone.max(), _LEAST_SHARE) ** -0.5
    return profiles


def _profiles_of_others(
    likelihood: MarginalLikelihood, profiles: Mapping[str, np.ndarray], tolerance: float
) -> dict[str, np.ndarray]:
    """Return the profiles, and those that other kernels find from them: each kernel misses other signals."""
    found = {f"{name}, all rows": profile for name, profile in profiles.items()}
    for kernel in (Gaussian(), Laplacian()):
        if type(kernel) is type(likelihood.kernel):
            continue
        other = replace(likelihood, kernel=kernel)
        ends = [_climb(other, _start(other, p), _FEW_EVALUATIONS, tolerance) for p in profiles.values()]
        point, _ = min(ends, key=lambda end: end[1]["objective_end"])
        found[type(kernel).__name__] = np.exp(point[:-1])
    return found


def _climb(
    likelihood: MarginalLikelihood, point: np.ndarray, evaluations: int, tolerance: float
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the end of a few steps from a point, and their report."""
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
    """Return the best point of a grid on which the widths are multiples of the profile."""
    widths = profile * _typical_distance(profile, likelihood.kernel.is_spherical)
    best, start = math.inf, np.empty(0)
    for times in _START_FACTORS:
        profile_here = np.log(np.clip(times * widths, *_WIDTH_BOUNDS))
        values = likelihood.values(profile_here, _START_NOISES)
        if (value := min(values)) < best:
            best, start = value, np.append(profile_here, math.log(_START_NOISES[values.index(value)]))
    return start


def _typical_distance(profile: np.ndarray, is_spherical: bool) -> float:
    """Return about the distance of two rows, Euclidean or summed over columns of these deviations⁻¹."""
    return float(np.sqrt(2.0 * np.sum(profile**-2.0)) if is_spherical else np.sum(1.0 / profile))


# Where the likelihood finds no more than noise, the map's pilot judges simple profiles of widths.

_COARSE = (-8, -4, 0, 4)  # half octaves around the typical distance of two rows


def fallback_length_scales(
    kernel: Kernel, search: dict[str, Any], sample: Sample, make_pilot: MakePilot
) -> tuple[Kernel, dict[str, Any]]:
    """Return the kernel with the simple widths of smallest error of the map's pilot, and how they were found.

    For a `search` of `relevant_length_scales` that has a note. The widths are multiples of one width, in
    deviations of the columns, of widths ∝ 1/√(what the column explains alone), or of those of the likelihood.
    The factor goes in two octaves around the typical distance of two rows (1 for the likelihood), then from
    the best in smaller steps while the error falls. The pilot has up to 16,384 rows, more than the
    likelihood, and so may find a weak signal. Some 15 to 20 held-out errors.

    Returns
    -------
    kernel : Kernel
    search : dict
        `search` with `rule`, `length_scale` and `note` replaced, and `held_out_error`.
    """
    scale, found = np.array(search["column_scale"]), np.array(search["length_scale"])
    moving = np.flatnonzero(scale)
    profiles = {
        name: profile * _typical_distance(profile, kernel.is_spherical)
        for name, profile in _profiles(np.array(search["explained_alone"])[moving]).items()
    }
    profiles["likelihood"] = np.array(search["likelihood_length_scale"])[moving] / scale[moving]
    rows = search_rows(sample)
    pilot = make_pilot(rows)
    tried: dict[tuple[str, int], float] = {}

    def widths_at(name: str, half_octaves: int) -> tuple[float, ...]:
        found[moving] = 2 ** (half_octaves / 2) * profiles[name] * scale[moving]
        return tuple(float(f"{width:.4g}") for width in found)

    def error_at(name: str, half_octaves: int) -> float:
        at = name, half_octaves
        if at not in tried:
            tried[at] = pilot.held_out_error(kernel.with_widths(widths_at(*at)))
        return tried[at]

    with one_blas_thread():  # the same widths whatever the client's threads
        for profile in profiles:
            for half_octaves in _COARSE:
                error_at(profile, half_octaves)
        name, half_octaves = min(tried, key=lambda at: tried[at])
        _walk(partial(error_at, name), half_octaves)
    best = min(tried, key=lambda at: tried[at])
    widths = widths_at(*best)
    rule = f"held-out error of {pilot.description} and {len(rows.X)} rows, from those of: {best[0]}"
    nothing = tried[best] > (1 - _WORTHWHILE) * rows.error_of_mean()
    also = "; they predict held-out rows no better than the mean does" if nothing else ""
    return kernel.with_widths(widths), search | {
        "rule": rule,
        "length_scale": list(widths),
        "held_out_error": tried[best],
        "note": f"{search['note']}; instead the widths are chosen by the {rule}{also}",
    }


# Widths between those of the likelihood and one width for all columns, judged by the map's pilot.

_EXPONENTS = (0.5, 0.75, 1.0)
_MAX_COLUMNS = 24
_FARTHEST = 20  # half octaves
_MAX_OCTAVES = 5  # for a single column
# A smaller change of an error on a few thousand rows is noise.
_WORTHWHILE = 1e-3
# Widths shrink at most like the distance of neighbours in a plane, n^(−½).
_MAX_RATE = 0.5
_PAIRS = 4096
_USUAL_ERRORS = 25  # held-out errors for the exponents and sizes


def shrunk_length_scales(
    kernel: Kernel, search: dict[str, Any], sample: Sample, make_pilot: MakePilot
) -> tuple[Kernel, dict[str, Any]]:
    """Return the kernel with the shrunk widths of smallest error of the map's pilot, and how they were found.

    The likelihood of few rows finds which columns matter most, but neither the order of the others nor the
    widths that many rows allow. So widths c·σ_j·(ℓ_j/σ_j)^p are tried for its widths ℓ_j and the deviations
    σ_j of the columns, with p = ½, ¾ and 1 (no shrinking). c follows from the rate Σ_j σ_j/width_j, which
    makes widths of different p comparable: starting at the rate of the likelihood, it is changed in octaves
    while the error falls, then in half octaves. Then the widths of the columns that separate rows most, by
    E|δ_j|/width_j, are changed one by one in octaves.

    More rows allow shorter widths, by a power of their number (like the bandwidth n^(−1/(2s+d)) for functions
    of smoothness s; Stone 1982, "Optimal global rates of convergence for nonparametric regression"). That
    power, between 0 and ½, comes from the best common factors of the widths for the rows of the pilot and for
    a quarter of its rows; it sets the widths for all rows. With many columns the whole takes some 70 to 90
    held-out errors. `kernel` has the width "ard", and `search` is what `relevant_length_scales` returned for
    it and the same sample.

    Returns
    -------
    kernel : Kernel
    search : dict
        That of the likelihood with `length_scale` replaced; its own as `likelihood_length_scale`, the
        `exponent` p, `tried`, a list of [p, rate, held-out error], the `column_factors` by which widths
        were then changed, and the common `size_factor`, which includes a power −`shrinking` of the ratio of
        the numbers of rows.
    """
    moving = np.array(search["column_scale"]) > 0  # the other columns are constant and keep their width
    scale = np.where(moving, search["column_scale"], 1.0)
    relative = np.where(moving, search["length_scale"] / scale, np.inf)
    rows = search_rows(sample)
    pilot = make_pilot(rows)

    def as_widths(found: np.ndarray) -> tuple[float, ...]:
        return tuple(float(f"{width:.4g}") for width in np.where(moving, found, search["length_scale"]))

    def widths_at(p: float, rate: float) -> tuple[float, ...]:
        shrunk = relative**p
        return as_widths(scale * shrunk * (np.sum(1 / shrunk) / rate))

    own = float(np.sum(1 / relative))
    tried: dict[tuple[float, int], float] = {}

    def error_at(p: float, half_octaves: int) -> float:
        at = p, half_octaves
        if at not in tried:
            tried[at] = pilot.held_out_error(kernel.with_widths(widths_at(p, own * 2 ** (half_octaves / 2))))
        return tried[at]

    with one_blas_thread():  # the same widths whatever the client's threads
        error_at(1.0, 0)
        for p in _EXPONENTS:
            _walk(partial(error_at, p), min(tried, key=lambda at: tried[at])[1])
        p, half_octaves = min(tried, key=lambda at: tried[at])
        shrunk = np.array(widths_at(p, own * 2 ** (half_octaves / 2)))
        factors = _column_factors(
            lambda c: pilot.held_out_error(kernel.with_widths(tuple((c * shrunk).tolist()))),
            _separating_columns(rows.X, shrunk, sample.seed),
            len(shrunk),
            tried[p, half_octaves],
        )
        size, shrinking = _size_factor(
            kernel,
            factors * shrunk,
            [pilot, make_pilot(rows.thinned())],
            sample.n_weighted_rows / rows.n_training,
        )
    widths = as_widths(size * factors * shrunk)
    return kernel.with_widths(widths), search | {
        "rule": f"{search['rule']}, shrunk by the held-out error of {pilot.description}",
        "length_scale": list(widths),
        "likelihood_length_scale": search["length_scale"],
        "exponent": p,
        "column_factors": factors.tolist(),
        "size_factor": size,
        "shrinking": shrinking,
        "tried": [[p, own * 2 ** (h / 2), error] for (p, h), error in sorted(tried.items())],
    }


def shrinking_errors(n_columns: int) -> int:
    """Return about how many held-out errors `shrunk_length_scales` takes."""
    return _USUAL_ERRORS + 2 * min(n_columns, _MAX_COLUMNS)


def _separating_columns(X: np.ndarray, widths: np.ndarray, seed: int) -> np.ndarray:
    """Return the columns in which random pairs of rows are farthest apart, in widths."""
    first, second = stream(seed, "tempering pairs").integers(0, len(X), (2, _PAIRS))
    apart = np.abs(X[first] - X[second]).mean(axis=0) / widths
    return np.argsort(-apart, kind="stable")[: min(_MAX_COLUMNS, np.count_nonzero(apart))]


def _column_factors(
    error: Callable[[np.ndarray], float], columns: np.ndarray, n_columns: int, min_error: float
) -> np.ndarray:
    """Return factors of the widths after one round over `columns`, in octaves while the error falls."""
    factors = np.ones(n_columns)
    for j in columns:
        for step in (0.5, 2.0):
            for _ in range(_MAX_OCTAVES):
                changed = factors.copy()
                changed[j] *= step
                if (found := error(changed)) >= (1 - _WORTHWHILE) * min_error:
                    break
                factors, min_error = changed, found
            if factors[j] != 1:
                break
    return factors


def _size_factor(
    kernel: Kernel, widths: np.ndarray, pilots: list[Pilot], more_rows: float
) -> tuple[float, float]:
    """Return the common factor for `more_rows` times the rows of the first pilot, and the power in it.

    The second pilot has a quarter of the rows of the first.
    """

    def error_at(pilot: Pilot, half_octaves: int) -> float:
        return pilot.held_out_error(kernel.with_widths(tuple((2 ** (half_octaves / 2) * widths).tolist())))

    here, before = (_minimiser(partial(error_at, pilot)) for pilot in pilots)
    shrinking = float(np.clip((before - here) / 2 / np.log2(THINNING), 0.0, _MAX_RATE))
    return float(2 ** (here / 2) * more_rows**-shrinking), shrinking


def _minimiser(error: Callable[[int], float]) -> float:
    """Return the minimiser of the error in half octaves from 0, by a parabola through three neighbours."""
    best, errors = 0, {0: error(0)}
    while True:
        errors |= {h: error(h) for h in (best - 1, best + 1) if h not in errors}
        last, best = best, min(errors, key=lambda h: errors[h])
        if best == last or abs(best) > _FARTHEST:
            break
    if best != last:
        return float(best)
    below, above = errors[best - 1] - errors[best], errors[best + 1] - errors[best]
    return best + 0.5 * (below - above) / (below + above) if below + above > 0 else float(best)


def _walk(error: Callable[[int], float], start: int) -> None:
    """Evaluate errors in octaves from `start` while they fall, then in half octaves."""
    best = start
    for step in (2, -2, 1, -1):
        while abs(best + step) <= _FARTHEST and error(best + step) < error(best):
            best += step
