"""Automatic length scales: the held-out error of a small ridge over a wide grid of widths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from distrff.errors import InputError, NonFiniteError
from distrff.features.pilot import MakePilot, PilotRows
from distrff.kernels import Kernel
from distrff.random_streams import stream

SAMPLE_ROWS = 16_384  # of rows that the search looks at
_MOST_OUTPUTS = 32
_LEAST_ROWS = 8

# The best width lies between a thirtieth of the median distance (terrain) and about the
# median itself; the grid leaves room on both sides and moves on when its end wins.
_COARSE_EXPONENTS = range(-7, 4)
_FINE_STEPS = (2**-0.5, 2**0.5)
_FARTHEST = 2.0**14


def automatic_length_scale(
    kernel: Kernel,
    X: np.ndarray,
    y: Any,
    sample_weight: Any,
    *,
    make_pilot: MakePilot,
    seed: int,
) -> tuple[Kernel, dict[str, Any]]:
    """Return the kernel with its automatic widths set, and how they were found.

    With targets: the width whose pilot, a small machine of the map that asks, has the least
    squared error on held-out rows, over a grid of factors 2 around the median distance,
    refined by factors √2. Without: the median distance.

    Parameters
    ----------
    kernel : Kernel
        With at least one width "auto"; all of them get the same number.
    X : ndarray of shape (n_samples, n_columns)
        At most `SAMPLE_ROWS` rows of it are looked at.
    y : array-like of shape (n_samples,) or (n_samples, n_targets), or None
        Numbers; anything else is taken as class labels.
    sample_weight : array-like of shape (n_samples,) or None
    make_pilot : callable
        Makes the map's `Pilot` from `PilotRows`.
    seed : int

    Returns
    -------
    kernel : Kernel
    search : dict
        `rule`, `median_distance`, `length_scale`, and with targets `tried`, a list of
        [width, held-out error].

    Raises
    ------
    InputError
        If the rows of positive weight have no two different points, or a target is not finite.
    """
    rows, _ = _searched(sample_weight, len(X), seed)
    if not len(rows):
        raise InputError("length_scale='auto' found no row of positive weight in its sample; give a number")
    median = median_distance(kernel, np.asarray(X[rows], dtype=np.float64), seed)
    if y is None or len(rows) < _LEAST_ROWS:
        why = "no targets" if y is None else f"fewer than {_LEAST_ROWS} rows"
        rule = f"median distance ({why})"
        return kernel.with_widths(median), {"rule": rule, "median_distance": median, "length_scale": median}
    pilot = make_pilot(search_rows(X, y, sample_weight, seed))
    with threadpool_limits(1, user_api="blas"):  # the same width whatever the client's threads
        tried = _search(lambda width: pilot.held_out_error(kernel.with_widths(width)), median)
    best = min(tried, key=lambda width: (tried[width], -width))
    return kernel.with_widths(best), {
        "rule": f"held-out error of {pilot.description} and {len(rows)} rows",
        "median_distance": median,
        "length_scale": best,
        "tried": sorted(map(list, tried.items())),
    }


def search_flops(n_rows: int, pilot_flops: Callable[[int], float]) -> float:
    """Return about how many flops the search with targets takes, from those of a pilot on so many rows."""
    n_widths = len(_COARSE_EXPONENTS) + len(_FINE_STEPS) + 1
    return n_widths * pilot_flops(min(n_rows, SAMPLE_ROWS))


def coded_targets(y: Any) -> np.ndarray:
    """Return targets as numbers of shape (n_samples, n_outputs): ±1 by class unless they are numbers.

    Of many outputs the 32 of largest variance stand for all: of classes those are the frequent ones.

    Raises
    ------
    NonFiniteError
        If a number is NaN or infinite.
    """
    Y = np.asarray(y)
    if Y.dtype.kind in "fiu":
        if not np.isfinite(Y).all():
            raise NonFiniteError("y contains NaN or infinity; drop or fill such rows before fitting")
        return _most_varied(Y.astype(np.float64).reshape(len(Y), -1))
    classes, index = np.unique(Y.astype(str), return_inverse=True)
    return _most_varied(np.where(index.reshape(-1, 1) == np.arange(len(classes)), 1.0, -1.0))


def _most_varied(Y: np.ndarray) -> np.ndarray:
    if Y.shape[1] <= _MOST_OUTPUTS:
        return Y
    return Y[:, np.sort(np.argsort(-Y.var(axis=0), kind="stable")[:_MOST_OUTPUTS])]


def median_distance(kernel: Kernel, X: np.ndarray, seed: int) -> float:
    """Return the median distance of random pairs of different rows.

    Euclidean for rotation-invariant kernels, else the sum over columns.
    """
    rng = stream(seed, "length scale pairs")
    first, second = rng.integers(0, len(X), (2, 4096))
    differences = np.abs(X[first] - X[second])
    distances = np.sqrt(np.square(differences).sum(1)) if kernel.is_spherical else differences.sum(1)
    positive = distances[distances > 0]
    if not len(positive):
        raise InputError(
            "length_scale='auto' found no two different rows in its sample "
            f"(n_samples={len(X)}; columns of extreme size count as equal); give a number, or check X"
        )
    return float(np.median(positive))


def search_rows(X: np.ndarray, y: Any, sample_weight: Any, seed: int) -> PilotRows:
    """Return the rows of positive weight that a search looks at, at most 16,384, in float64."""
    rows, weights = _searched(sample_weight, len(X), seed)
    return PilotRows.of(np.asarray(X[rows], dtype=np.float64), coded_targets(y)[rows], weights, seed)


def _searched(sample_weight: Any, n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return at most SAMPLE_ROWS row numbers in random order, so that parts are random parts, and weights."""
    weights = np.ones(n_rows) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    rows = stream(seed, "length scale rows").permutation(np.flatnonzero(weights > 0))[:SAMPLE_ROWS]
    return rows, weights[rows]


def _search(error: Any, median: float) -> dict[float, float]:
    tried = {median * 2.0**e: error(median * 2.0**e) for e in _COARSE_EXPONENTS}
    while True:
        best = min(tried, key=lambda width: tried[width])
        outward = best / 2 if best == min(tried) else best * 2 if best == max(tried) else None
        if outward is None or not 1 / _FARTHEST <= outward / median <= _FARTHEST:
            break
        tried[outward] = error(outward)
    for step in _FINE_STEPS:
        tried[best * step] = error(best * step)
    return tried
