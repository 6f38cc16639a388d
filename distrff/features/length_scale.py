"""Automatic length scales: the held-out error of a small ridge over a wide grid of widths."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import eigh
from threadpoolctl import threadpool_limits

from distrff.errors import InputError, NonFiniteError
from distrff.features.frequencies import draw_frequencies
from distrff.features.trigonometry import paired_cos_sin
from distrff.kernels import Kernel
from distrff.random_streams import child_seed, stream

SAMPLE_ROWS = 16_384  # of rows that the search looks at
_MOST_OUTPUTS = 32
PILOT_COMPONENTS = 1024
_LEAST_ROWS = 8

# The best width lies between a thirtieth of the median distance (terrain) and about the
# median itself; the grid leaves room on both sides and moves on when its end wins.
_COARSE_EXPONENTS = range(-7, 4)
_FINE_STEPS = (2**-0.5, 2**0.5)
_FARTHEST = 2.0**14
# From the rounding noise of a float32 Gram of so many rows upwards.
_ALPHAS_PER_ROW = np.logspace(-7.5, 0, 16)


def automatic_length_scale(
    kernel: Kernel,
    X: np.ndarray,
    y: Any,
    sample_weight: Any,
    *,
    n_components: int,
    seed: int,
) -> tuple[Kernel, dict[str, Any]]:
    """Return the kernel with its automatic widths set, and how they were found.

    With targets: the width whose ridge on at most 1024 random features has the least
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
    n_components : int
        The pilot uses no more features than the machine will.
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
    weights = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    rows = _subsample(np.flatnonzero(weights > 0), seed)
    if not len(rows):
        raise InputError("length_scale='auto' found no row of positive weight in its sample; give a number")
    X = np.asarray(X[rows], dtype=np.float64)
    median = median_distance(kernel, X, seed)
    if y is None or len(X) < _LEAST_ROWS:
        why = "no targets" if y is None else f"fewer than {_LEAST_ROWS} rows"
        rule = f"median distance ({why})"
        return kernel.with_widths(median), {"rule": rule, "median_distance": median, "length_scale": median}
    pilot = _Pilot(kernel, X, coded_targets(y)[rows], weights[rows], n_components, seed)
    with threadpool_limits(1, user_api="blas"):  # the same width whatever the client's threads
        tried = _search(pilot.held_out_error, median)
    best = min(tried, key=lambda width: (tried[width], -width))
    return kernel.with_widths(best), {
        "rule": f"held-out error of a ridge on {pilot.n_frequencies * 2} features and {len(X)} rows",
        "median_distance": median,
        "length_scale": best,
        "tried": sorted(map(list, tried.items())),
    }


def search_flops(n_rows: int, n_components: int) -> float:
    """Return about how many flops the search with targets takes: a Gram and an eigensystem a width."""
    rows, D = min(n_rows, SAMPLE_ROWS), min(n_components, PILOT_COMPONENTS)
    n_widths = len(_COARSE_EXPONENTS) + len(_FINE_STEPS) + 1
    return n_widths * (rows * float(D) ** 2 + 9 * float(D) ** 3)


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


def _subsample(rows: np.ndarray, seed: int) -> np.ndarray:
    """Return at most SAMPLE_ROWS of the rows in random order, so that halves are random halves."""
    return stream(seed, "length scale rows").permutation(rows)[:SAMPLE_ROWS]


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


class _Pilot:
    """A small machine on a sample, asked again and again with another width."""

    def __init__(
        self, kernel: Kernel, X: np.ndarray, Y: np.ndarray, s: np.ndarray, n_components: int, seed: int
    ) -> None:
        self._kernel = kernel
        self._seed = child_seed(seed, "length scale pilot")
        self._X = X - np.average(X, axis=0)
        self._s = s
        deviation = Y.std(axis=0)
        self._Y = (Y - Y.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
        self._n_held_out = max(2, len(X) // 4)
        self.n_frequencies = max(1, min(n_components, PILOT_COMPONENTS) // 2)

    def held_out_error(self, width: float) -> float:
        """Return the least weighted mean squared error on the held-out rows over all alphas."""
        T = self._augmented_features(self._kernel.with_widths(width))
        held_out, train = T[: self._n_held_out], T[self._n_held_out :]
        A_train = (train.T @ train).astype(np.float64)
        A_held_out = (held_out.T @ held_out).astype(np.float64)
        return _least_error(A_train, A_held_out, self._Y.shape[1])

    def _augmented_features(self, kernel: Kernel) -> np.ndarray:
        """Return the rows [z | 1 | y] · √s in float32."""
        W = draw_frequencies(kernel, self.n_frequencies, self._X.shape[1], sampling="iid", seed=self._seed)
        D = 2 * self.n_frequencies
        T = np.empty((len(self._X), D + 1 + self._Y.shape[1]), np.float32)
        theta = (self._X @ W).astype(np.float32)
        paired_cos_sin(theta, T[:, :D], float(np.sqrt(1.0 / self.n_frequencies)))
        T[:, D] = 1.0
        T[:, D + 1 :] = self._Y
        T *= np.sqrt(self._s)[:, None].astype(np.float32)
        return T


def _least_error(A: np.ndarray, A_held_out: np.ndarray, n_targets: int) -> float:
    """Return the least held-out error of ridge over the grid of alphas, from two Grams of [z | 1 | y]."""
    D = len(A) - 1 - n_targets
    weight = A[D, D]
    mean, y_mean = A[:D, D] / weight, A[D, D + 1 :] / weight
    G = A[:D, :D] - weight * np.outer(mean, mean)
    B = A[:D, D + 1 :] - weight * np.outer(mean, y_mean)
    eigenvalues, Q = eigh(G, overwrite_a=True, driver="evd")
    rotated = Q.T @ B
    alphas = weight * _ALPHAS_PER_ROW
    shrunk = rotated[:, None, :] / (np.maximum(eigenvalues, 0.0)[:, None] + alphas)[:, :, None]
    coef = (Q @ shrunk.reshape(D, -1)).reshape(shrunk.shape)
    V = np.zeros((len(A), len(alphas), n_targets))
    V[:D] = coef
    V[D] = y_mean - np.einsum("d,dat->at", mean, coef)
    V[D + 1 + np.arange(n_targets), :, np.arange(n_targets)] = -1.0
    flat = V.reshape(len(A), -1)
    errors = np.einsum("pv,pv->v", flat, A_held_out @ flat).reshape(len(alphas), n_targets)
    return float(np.maximum(errors, 0.0).sum(axis=1).min() / (n_targets * max(A_held_out[D, D], 1e-300)))
