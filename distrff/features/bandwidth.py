"""Automatic length scales: the held-out error of a small ridge over a wide grid of widths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
from threadpoolctl import threadpool_limits

from distrff.errors import InputError, NonFiniteError
from distrff.kernels.base import Kernel
from distrff.utils.random import stream

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

    With targets: the width whose pilot, a small model of the map that asks, has the least
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


# What a search for widths asks of a map: a small model of that map on a sample of rows.

THINNING = 4


@dataclass(frozen=True, eq=False)
class PilotRows:
    """Rows in random order, the first of which are held out.

    Attributes
    ----------
    X : ndarray of shape (n, d), float64
        Centred.
    Y : ndarray of shape (n, k)
        Of mean 0 and deviation 1, where not constant.
    s : ndarray of shape (n,)
        Positive weights.
    n_held_out : int
    seed : int
    """

    X: np.ndarray
    Y: np.ndarray
    s: np.ndarray
    n_held_out: int
    seed: int

    @classmethod
    def of(cls, X: np.ndarray, Y: np.ndarray, s: np.ndarray, seed: int) -> Self:
        """Return the rows centred, a quarter of them held out."""
        deviation = Y.std(axis=0)
        Y = (Y - Y.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
        return cls(X - np.average(X, axis=0), Y, s, max(2, len(X) // 4), seed)

    @property
    def n_training(self) -> int:
        """Rows that are not held out."""
        return len(self.X) - self.n_held_out

    def thinned(self) -> Self:
        """Return the same rows held out, and one in `THINNING` of the others."""
        some = slice(self.n_held_out + max(2, self.n_training // THINNING))
        return replace(self, X=self.X[some], Y=self.Y[some], s=self.s[some])


class Pilot(Protocol):
    """A small model, asked again and again with another kernel."""

    @property
    def description(self) -> str:
        """What it is, as people read it."""

    def held_out_error(self, kernel: Kernel) -> float:
        """Return its least weighted mean squared error on the held-out rows over all penalties."""


MakePilot = Callable[[PilotRows], Pilot]


# How far the columns of all rows reach: what a sample in which a column is constant cannot tell.


@dataclass(frozen=True)
class Extent:
    """Least and largest value of each column over rows of positive weight; of no rows +∞ and −∞."""

    least: np.ndarray
    largest: np.ndarray

    @property
    def width(self) -> np.ndarray:
        """largest − least, at most 0 for a column of one value."""
        return self.largest - self.least

    @property
    def magnitude(self) -> np.ndarray:
        """The largest absolute value."""
        return np.maximum(np.abs(self.least), np.abs(self.largest))


@dataclass(frozen=True)
class ColumnRange:
    """The question of the columns' extents.

    Parameters
    ----------
    n_columns : int
    """

    n_columns: int
    label = "column ranges"

    def zero(self) -> Extent:
        return Extent(np.full(self.n_columns, np.inf), np.full(self.n_columns, -np.inf))

    def update(self, answer: Extent, start: int, X: np.ndarray, sample_weight: np.ndarray | None) -> Extent:
        rows = X if sample_weight is None else X[np.asarray(sample_weight) > 0]
        if not len(rows):
            return answer
        return self.merge(
            answer, Extent(rows.min(axis=0).astype(np.float64), rows.max(axis=0).astype(np.float64))
        )

    def merge(self, first: Extent, second: Extent) -> Extent:
        return Extent(np.minimum(first.least, second.least), np.maximum(first.largest, second.largest))

    def size_bytes(self, n_rows: int) -> int:
        return 16 * self.n_columns
