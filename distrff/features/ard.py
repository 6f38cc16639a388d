"""One width a column: the search for the greatest marginal likelihood on a small sample."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from distrff.columns.moments import EQUAL_TO_ROUNDING, Moments
from distrff.errors import ColumnError, InputError
from distrff.features.column_range import ColumnRange
from distrff.features.length_scale import coded_targets
from distrff.features.relevance import MarginalLikelihood
from distrff.features.row_question import Ask
from distrff.kernels import Kernel, Stationary
from distrff.random_streams import stream

# First on few rows from afar, and not to the end: with many columns they would be fitted too closely.
# Then from there on more; an evaluation costs the cube of the rows.
_STAGES = ((500, 12), (2000, 25))
_LEAST_ROWS = 8
_START_FACTORS = 2.0 ** np.arange(-4, 4)
_START_NOISES = (1e-3, 3e-2, 1.0)
# In deviations of each column; at 1000 a column no longer counts.
_WIDTH_BOUNDS = (1e-2, 1e3)
_NOISE_BOUNDS = (1e-7, 1e2)
# Of a column that is constant: whatever later rows have there, up to times in nanoseconds, moves no distance
# or phase by more than 1e-12. Larger widths, or infinity, have no place in float32, where grids and
# frequencies take them or their reciprocals.
CONSTANT_WIDTH = 1e30
# In logarithms of likelihood for a row: of 2000 rows, a likelihood better by 2 % is worth no step.
_TOLERANCE = 1e-5


def relevant_length_scales(
    kernel: Kernel, X: np.ndarray, y: Any, sample_weight: Any, *, seed: int, ask: Ask
) -> tuple[Kernel, dict[str, Any]]:
    """Return the kernel with one width for each column, and how they were found.

    The widths and the noise maximise the marginal likelihood of Gaussian processes of this kernel
    (`MarginalLikelihood`; class labels as targets ±1) by L-BFGS with exact gradients (Byrd, Lu, Nocedal
    and Zhu 1995), a little on 500 rows and from there on 2000. A column that does not matter gets
    a width of up to 1000 of its deviations (automatic relevance determination; Neal 1996, chapter 1).
    A constant column has no deviation: it is left out, with a width at which no value of it counts.

    Parameters
    ----------
    kernel : Kernel
        Of width "ard".
    X : ndarray of shape (n_samples, n_columns)
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
        Numbers; anything else is taken as class labels.
    sample_weight : array-like of shape (n_samples,) or None
        Rows of weight s have noise of variance 1/s; their mean does not matter.
    seed : int
    ask : Ask
        Asked only where a column is constant in the sample: whether it is so in all rows.

    Returns
    -------
    kernel : Kernel
    search : dict
        `rule`, `length_scale` and `column_scale` (deviations), a number for each column, `noise` (λ, in
        units of the kernel's amplitude), `stages` (of each its rows, the objective at its start and end
        in nats a row and output, and counts), `unseen_columns`, those that are constant in the sample
        alone: they keep the width of the common start, and `constant_columns`, those that are constant in
        all rows: their scale is 0 and their width 1e30.

    Raises
    ------
    InputError
        If there are no targets or fewer than 8 rows of positive weight, all columns are constant, the
        targets are, or one is not finite.

    Notes
    -----
    At most 24 values and 12 gradients with 500 rows and 25 gradients with 2000: some 2·10¹¹ flops, and
    10⁹ a column.
    """
    assert isinstance(kernel, Stationary)
    if y is None:
        raise InputError(
            "length_scale='ard' learns the widths from targets, but y is None; give y, or use 'auto'"
        )
    weights = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    rows = stream(seed, "relevance rows").permutation(np.flatnonzero(weights > 0))
    if len(rows) < _LEAST_ROWS:
        raise InputError(
            f"length_scale='ard' needs at least {_LEAST_ROWS} rows of positive weight, got {len(rows)}; "
            f"give widths"
        )
    scale, unseen = _column_scales(X, weights, ask)
    Y = _standardised(coded_targets(y), weights)
    few, s = rows[: _STAGES[-1][0]], weights / weights[rows].mean()
    moving = np.flatnonzero(scale)
    sample = X[np.ix_(few, moving)]
    U = (sample - sample.mean(axis=0, dtype=np.float64)) / scale[moving]
    with threadpool_limits(1, user_api="blas"):  # the same widths whatever the client's threads
        point, stages = _search(kernel, U, Y[few], s[few])
    found = np.full(len(scale), CONSTANT_WIDTH)
    found[moving] = np.exp(point[:-1]) * scale[moving]
    # Four digits: more are not known, and the last ones may differ with the processor.
    widths = [float(f"{width:.4g}") for width in found]
    return kernel.with_widths(tuple(widths)), {
        "rule": f"marginal likelihood of {len(few)} rows",
        "length_scale": widths,
        "column_scale": scale.tolist(),
        "noise": float(np.exp(point[-1])),
        "stages": stages,
        "unseen_columns": unseen.tolist(),
        "constant_columns": np.flatnonzero(scale == 0).tolist(),
    }


def relevance_flops(n_rows: int, n_columns: int) -> float:
    """Return at most how many flops the search takes."""
    stages = [(min(n_rows, n), evaluations) for n, evaluations in _STAGES]
    return float(sum(evaluations * n**2 * (n + 10.0 * n_columns) for n, evaluations in stages))


def _column_scales(X: np.ndarray, weights: np.ndarray, ask: Ask) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns' deviations, 0 where all rows are equal, and the numbers of unseen columns."""
    moments = Moments.of(X, weights)
    scale, unseen = moments.standard_deviation(), np.flatnonzero(moments.is_constant())
    if len(unseen):
        extent = ask(ColumnRange(X.shape[1]))
        scale[unseen] = 0.0
        unseen = unseen[extent.width[unseen] > EQUAL_TO_ROUNDING * extent.magnitude[unseen]]
        # As if a single row of so many were elsewhere.
        scale[unseen] = extent.width[unseen] / np.sqrt(len(X))
    if not scale.any():
        raise InputError(
            "every column is constant, so that length_scale='ard' cannot learn widths; give widths, or other "
            "columns"
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
        raise InputError("y is constant, so that length_scale='ard' cannot learn widths from it; give widths")
    return (Y[:, moving] - moments.mean[moving]) / moments.standard_deviation()[moving]


def _search(
    kernel: Stationary, U: np.ndarray, Y: np.ndarray, s: np.ndarray
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Return the logarithms of widths and noise for columns of deviation 1, and what each stage did."""
    d = U.shape[1]
    bounds = [tuple(np.log(_WIDTH_BOUNDS))] * d + [tuple(np.log(_NOISE_BOUNDS))]
    few = _STAGES[0][0]
    point = _start(MarginalLikelihood(kernel, U[:few], Y[:few], s[:few]), kernel.is_spherical, d)
    stages: list[dict[str, Any]] = []
    for n, evaluations in _STAGES if len(U) > few else _STAGES[-1:]:
        likelihood = MarginalLikelihood(kernel, U[:n], Y[:n], s[:n])
        start = likelihood.value(point)
        options = {"maxfun": evaluations, "maxiter": evaluations, "ftol": _TOLERANCE}
        found = minimize(
            likelihood.value_and_gradient, point, jac=True, method="L-BFGS-B", bounds=bounds, options=options
        )
        point = found.x
        stages.append(
            {
                "n_rows": min(n, len(U)),
                "objective_start": start,
                "objective_end": float(found.fun),
                "n_iterations": int(found.nit),
                "n_evaluations": int(found.nfev),
            }
        )
    return point, stages


def _start(likelihood: MarginalLikelihood, is_spherical: bool, d: int) -> np.ndarray:
    """Return the best point of a grid on which all columns have the same width."""
    # About the distance of two rows with columns of deviation 1, Euclidean or summed over columns.
    distance = np.sqrt(2.0 * d) if is_spherical else float(d)
    widths = np.clip(distance * _START_FACTORS, *_WIDTH_BOUNDS)
    points = [np.log(np.append(np.full(d, w), noise)) for w in widths for noise in _START_NOISES]
    return min(points, key=likelihood.value)
