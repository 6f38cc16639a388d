"""Automatic length scales: the width at which a small model has the smallest held-out error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
from scipy.linalg import eigh, eigh_tridiagonal
from scipy.sparse import issparse

from distrff.errors import InputError, NonFiniteError
from distrff.features.base import RowsInMemory, Sample
from distrff.features.binning import BinIds, Grids, occupied_bins
from distrff.features.fourier import draw_frequencies
from distrff.features.trigonometry import paired_cos_sin
from distrff.kernels.base import Kernel
from distrff.utils.arrays import dense_rows
from distrff.utils.linalg import OneHotTile
from distrff.utils.process import one_blas_thread
from distrff.utils.random import child_seed, stream

SAMPLE_ROWS = 16_384  # that a search uses
_DENSE_BYTES = 2**26
MAX_OUTPUTS = 32
_MIN_ROWS = 8

# Best widths were between a thirtieth of the median distance (terrain) and about the median
# itself; the grid leaves room on both sides, and is extended when the best width is its end.
_COARSE_EXPONENTS = range(-7, 4)
_FINE_STEPS = (2**-0.5, 2**0.5)
_FARTHEST = 2.0**14
SEARCH_ERRORS = len(_COARSE_EXPONENTS) + len(_FINE_STEPS) + 1  # held-out errors of a usual search


def automatic_length_scale(
    kernel: Kernel, sample: Sample, make_pilot: MakePilot
) -> tuple[Kernel, dict[str, Any]]:
    """Return the kernel with its automatic widths set, and a report of the search.

    With targets: the width of smallest held-out squared error of a pilot, a small model with the same kind of
    map, over a grid of factors 2 around the median distance, refined by factors √2. Without targets: the
    median distance. All widths "auto" of the kernel get the same number. At most `SAMPLE_ROWS` rows are used.
    The report holds `rule`, `median_distance`, `length_scale`, and with targets `tried`, a list of
    [width, held-out error]. Raises InputError if no two rows of positive weight differ, or a target is not
    finite.
    """
    rows = _searched(sample)
    if not len(rows):
        raise InputError("length_scale='auto' found no row of positive weight in its sample; give a number")
    median = median_distance(kernel, _searched_rows(sample.X, rows), sample.seed)
    if sample.y is None or len(rows) < _MIN_ROWS:
        why = "no targets" if sample.y is None else f"fewer than {_MIN_ROWS} rows"
        rule = f"median distance ({why})"
        return kernel.with_widths(median), {"rule": rule, "median_distance": median, "length_scale": median}
    pilot = make_pilot(search_rows(sample))
    with one_blas_thread():  # the same width whatever the client's threads
        tried = _search(lambda width: pilot.held_out_error(kernel.with_widths(width)), median)
    best = min(tried, key=lambda width: (tried[width], -width))
    return kernel.with_widths(best), {
        "rule": f"held-out error of {pilot.description} and {len(rows)} rows",
        "median_distance": median,
        "length_scale": best,
        "tried": sorted(map(list, tried.items())),
    }


def coded_targets(y: Any) -> np.ndarray:
    """Return targets as numbers of shape (n_samples, n_outputs): ±1 by class unless they are numbers.

    Of more than 32 outputs those of largest variance are used, which for classes are the frequent ones.
    Raises NonFiniteError if a number is NaN or infinite.
    """
    Y = np.asarray(y)
    if Y.dtype.kind in "fiu":
        if not np.isfinite(Y).all():
            raise NonFiniteError("y contains NaN or infinity; drop or fill such rows before fitting")
        return _most_varied(Y.astype(np.float64).reshape(len(Y), -1))
    classes, index = np.unique(Y.astype(str), return_inverse=True)
    return _most_varied(np.where(index.reshape(-1, 1) == np.arange(len(classes)), 1.0, -1.0))


def _most_varied(Y: np.ndarray) -> np.ndarray:
    if Y.shape[1] <= MAX_OUTPUTS:
        return Y
    return Y[:, np.sort(np.argsort(-Y.var(axis=0), kind="stable")[:MAX_OUTPUTS])]


def median_distance(kernel: Kernel, X: Any, seed: int) -> float:
    """Return the median distance of random pairs of different rows, dense or CSR.

    Euclidean for rotation-invariant kernels, else the sum over columns.
    """
    rng = stream(seed, "length scale pairs")
    first, second = rng.integers(0, X.shape[0], (2, 4096))
    differences = abs(X[first] - X[second])
    if kernel.is_spherical:
        differences = differences.power(2) if issparse(differences) else np.square(differences)
    sums = np.asarray(differences.sum(axis=1)).ravel()
    distances = np.sqrt(sums) if kernel.is_spherical else sums
    positive = distances[distances > 0]
    if not len(positive):
        raise InputError(
            "length_scale='auto' found no two different rows in its sample "
            f"(n_samples={X.shape[0]}; columns of extreme size count as equal); give a number, or check X"
        )
    return float(np.median(positive))


def search_rows(sample: Sample) -> PilotRows:
    """Return the rows of positive weight that a search looks at, at most 16,384, in float64."""
    rows = _searched(sample)
    X, Y = _searched_rows(sample.X, rows), coded_targets(sample.y)[rows]
    return PilotRows.of(X, Y, sample.weights[rows], sample.seed)


def _searched(sample: Sample) -> np.ndarray:
    """Return at most SAMPLE_ROWS row numbers in random order: leading parts are then random samples too."""
    return sample.shuffled_rows("length scale rows")[:SAMPLE_ROWS]


def _searched_rows(X: Any, rows: np.ndarray) -> Any:
    """Return these rows in float64; CSR stays so if it would take more than 64 MiB to write its zeros out."""
    chosen = X[rows]
    if issparse(chosen) and 8 * np.prod(chosen.shape) > _DENSE_BYTES:
        return chosen.astype(np.float64, copy=False)
    return dense_rows(chosen).astype(np.float64, copy=False)


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


# The small models that widths are judged by, and their rows.

THINNING = 4


@dataclass(frozen=True, eq=False)
class SplitRows:
    """Rows in random order; the first `n_held_out` are held out.

    The columns of Y have mean 0 and deviation 1 where they are not constant, the weights s are positive.
    """

    X: Any
    Y: np.ndarray
    s: np.ndarray
    n_held_out: int

    @property
    def n_training(self) -> int:
        """Rows that are not held out."""
        return len(self.Y) - self.n_held_out

    def thinned(self, factor: int = THINNING) -> Self:
        """Return the same held-out rows, and one in `factor` of the others."""
        some = slice(self.n_held_out + max(2, self.n_training // factor))
        return replace(self, X=self.X[some], Y=self.Y[some], s=self.s[some])


@dataclass(frozen=True, eq=False)
class PilotRows(SplitRows):
    """Rows for pilots; X is centred unless it is CSR."""

    seed: int

    @classmethod
    def of(cls, X: Any, Y: np.ndarray, s: np.ndarray, seed: int) -> Self:
        """Return the rows centred, a quarter of them held out."""
        deviation = Y.std(axis=0)
        Y = (Y - Y.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
        X = X if issparse(X) else X - np.average(X, axis=0)
        return cls(X, Y, s, max(2, X.shape[0] // 4), seed)

    def error_of_mean(self) -> float:
        """Return the held-out error of the mean of the other rows, as `Pilot.held_out_error` measures it."""
        held_out, train = slice(self.n_held_out), slice(self.n_held_out, None)
        mean = np.average(self.Y[train], axis=0, weights=self.s[train])
        squares = np.square(self.Y[held_out] - mean).mean(axis=1)
        return float(np.average(squares, weights=self.s[held_out]))


class Pilot(Protocol):
    """A small model that is fitted with one kernel after another."""

    description: str
    """What it is, for reports."""

    def held_out_error(self, kernel: Kernel) -> float:
        """Return the weighted mean squared error on the held-out rows, the smallest over all penalties."""


MakePilot = Callable[[PilotRows], Pilot]

PILOT_COMPONENTS = 1024
# The smallest is about the rounding noise of a float32 Gram of a sample.
_FOURIER_ALPHAS_PER_ROW = np.logspace(-7.5, 0, 16)


class FourierPilot:
    """Ridge on at most 1024 iid Fourier features, and on no more than the model's `n_components`."""

    def __init__(self, rows: PilotRows, *, n_components: int) -> None:
        self._rows = rows
        self._seed = child_seed(rows.seed, "length scale pilot")
        self._n_frequencies = max(1, min(n_components, PILOT_COMPONENTS) // 2)
        self.description = f"a ridge on {2 * self._n_frequencies} features"

    def held_out_error(self, kernel: Kernel) -> float:
        T = self._augmented_features(kernel)
        held_out, train = T[: self._rows.n_held_out], T[self._rows.n_held_out :]
        if len(train) < 2 * self._n_frequencies:
            return _min_error_of_few(train, held_out, self._rows.Y.shape[1])
        A_train = (train.T @ train).astype(np.float64)
        A_held_out = (held_out.T @ held_out).astype(np.float64)
        return _min_error(A_train, A_held_out, self._rows.Y.shape[1])

    def _augmented_features(self, kernel: Kernel) -> np.ndarray:
        """Return the rows [z | 1 | y] · √s in float32."""
        X, Y, m = self._rows.X, self._rows.Y, self._n_frequencies
        W = draw_frequencies(kernel, m, X.shape[1], sampling="iid", seed=self._seed)
        D = 2 * m
        T = np.empty((len(Y), D + 1 + Y.shape[1]), np.float32)
        paired_cos_sin((X @ W).astype(np.float32), T[:, :D], float(np.sqrt(1.0 / m)))
        T[:, D] = 1.0
        T[:, D + 1 :] = Y
        T *= np.sqrt(self._rows.s)[:, None].astype(np.float32)
        return T


def fourier_pilot_flops(n_rows: int, n_components: int) -> float:
    """Return about how many flops one held-out error takes."""
    D = float(min(n_components, PILOT_COMPONENTS))
    small = min(D, n_rows)
    return n_rows * D * small + 9 * small**3


def _min_error(A: np.ndarray, A_held_out: np.ndarray, n_targets: int) -> float:
    """Return the smallest held-out error of ridge over the grid of alphas, from two Grams of [z | 1 | y]."""
    D = len(A) - 1 - n_targets
    weight = A[D, D]
    mean, y_mean = A[:D, D] / weight, A[D, D + 1 :] / weight
    G = A[:D, :D] - weight * np.outer(mean, mean)
    B = A[:D, D + 1 :] - weight * np.outer(mean, y_mean)
    eigenvalues, Q = eigh(G, overwrite_a=True, driver="evd")
    rotated = Q.T @ B
    alphas = weight * _FOURIER_ALPHAS_PER_ROW
    shrunk = rotated[:, None, :] / (np.maximum(eigenvalues, 0.0)[:, None] + alphas)[:, :, None]
    coef = (Q @ shrunk.reshape(D, -1)).reshape(shrunk.shape)
    V = np.zeros((len(A), len(alphas), n_targets))
    V[:D] = coef
    V[D] = y_mean - np.einsum("d,dat->at", mean, coef)
    V[D + 1 + np.arange(n_targets), :, np.arange(n_targets)] = -1.0
    flat = V.reshape(len(A), -1)
    errors = np.einsum("pv,pv->v", flat, A_held_out @ flat).reshape(len(alphas), n_targets)
    return float(np.maximum(errors, 0.0).sum(axis=1).min() / (n_targets * max(A_held_out[D, D], 1e-300)))


def _min_error_of_few(train: np.ndarray, held_out: np.ndarray, n_targets: int) -> float:
    """Return what `_min_error` does, from rows [z | 1 | y] · √s that are fewer than the features.

    It solves the dual problem, (C Cᵀ + alpha·I) u = b with the centred rows C = S^½(Z − z̄), and w = Cᵀ u.
    """
    train, held_out = train.astype(np.float64), held_out.astype(np.float64)
    D = train.shape[1] - 1 - n_targets
    root, held_out_root = train[:, D], held_out[:, D]
    weight = root @ root
    mean = root @ train / weight
    centred = train - np.outer(root, mean)
    C, b = centred[:, :D], centred[:, D + 1 :]
    eigenvalues, Q = eigh(C @ C.T, overwrite_a=True, driver="evd")
    alphas = weight * _FOURIER_ALPHAS_PER_ROW
    shrunk = (Q.T @ b)[:, None, :] / (np.maximum(eigenvalues, 0.0)[:, None] + alphas)[:, :, None]
    held_out_centred = held_out - np.outer(held_out_root, mean)
    values = (held_out_centred[:, :D] @ C.T @ Q) @ shrunk.reshape(len(Q), -1)
    residuals = held_out_centred[:, None, D + 1 :] - values.reshape(len(held_out), *shrunk.shape[1:])
    errors = np.square(residuals).sum(axis=(0, 2))
    return float(errors.min() / (n_targets * max(held_out_root @ held_out_root, 1e-300)))


# The pilot of random binning: kernel ridge on a few grids, for all penalties at once.

PILOT_GRIDS = 64
# Stopping after so many steps acts as a penalty itself: smaller alphas then all give the same model.
_MAX_STEPS = 16
_PRESUMED_OUTPUTS = 8
_BINNING_ALPHAS_PER_ROW = np.logspace(-7, 0, 15)


class BinningPilot:
    """Ridge on the bins of at most 64 grids, and on no more than the model's `n_grids`, in its dual form.

    S are the weights of the rows that are not held out, and K holds for each pair of them its share of common
    bins. The model is f(x) = Σ_i k(x, x_i)·s_i^½·u_i with (S^½KS^½ + alpha·I)u = b = S^½y. All alphas have
    the same Krylov space. The Lanczos process takes one product with K for each of its dimensions and gives
    an orthonormal basis V, in which S^½KS^½ is a tridiagonal T: u = V(T + alpha·I)⁻¹Vᵀb (Golub and Van Loan,
    Matrix Computations, 4th edition, section 10.1).

    n·P look-ups, then at most 16 products of 4·n·P·k flops.
    """

    def __init__(self, rows: PilotRows, *, n_grids: int, penalty: float | None = None) -> None:
        self._rows = rows
        self._seed = child_seed(rows.seed, "length scale pilot")
        self._n_grids = min(n_grids, PILOT_GRIDS)
        self._alphas_per_row = _BINNING_ALPHAS_PER_ROW if penalty is None else np.array([penalty])
        self.description = f"a ridge on the bins of {self._n_grids} grids"

    def held_out_error(self, kernel: Kernel) -> float:
        return float(self._by_alpha(kernel)[1].min())

    def held_out_values(self, kernel: Kernel) -> np.ndarray:
        """Return the values on the held-out rows, (n_held_out, k), with the penalty of smallest error."""
        F, errors = self._by_alpha(kernel)
        return F[:, :, errors.argmin()]

    def _by_alpha(self, kernel: Kernel) -> tuple[np.ndarray, np.ndarray]:
        """Return the values on the held-out rows and their mean squared errors, for each penalty."""
        rows, n_held_out = self._rows, self._rows.n_held_out
        root = np.sqrt(rows.s)[:, None]
        Z = self._bins(kernel)
        B = root[n_held_out:] * rows.Y[n_held_out:]
        F = self._held_out_values(Z, B, root[n_held_out:], rows.s[n_held_out:].sum())
        squares = rows.s[:n_held_out] @ np.square(rows.Y[:n_held_out, :, None] - F).transpose(2, 0, 1)
        return F, squares.mean(axis=1) / rows.s[:n_held_out].sum()

    def _bins(self, kernel: Kernel) -> OneHotTile:
        grids = Grids.draw(kernel, self._n_grids, self._rows.X.shape[1], self._seed)
        bins = occupied_bins(grids, RowsInMemory(self._rows.X, None))
        ids = BinIds(bins["keys"], bins["ends"]).find(grids.keys(self._rows.X))
        return OneHotTile(ids, float(np.sqrt(1.0 / self._n_grids)), len(bins["keys"]))

    def _held_out_values(self, Z: OneHotTile, B: np.ndarray, root: np.ndarray, weight: float) -> np.ndarray:
        """Return the values on the held-out rows, (n_held_out, k, n_alphas); `root` is S^½, `weight` ΣS."""
        n_held_out, (n_train, k) = self._rows.n_held_out, B.shape
        train = Z[np.arange(n_held_out, len(Z))]
        size = np.linalg.norm(B, axis=0)
        v, before, beta = B / np.where(size > 0, size, 1.0), np.zeros_like(B), np.zeros(k)
        diagonal, off_diagonal, values = [], [], []
        for _ in range(min(_MAX_STEPS, n_train)):
            coef = np.zeros((Z.n_features, k))
            train.add_transposed_product(coef.T, (root * v).T)
            F = Z.values(coef)
            values.append(F[:n_held_out])
            w = root * F[n_held_out:] - beta * before
            diagonal.append(np.einsum("ij,ij->j", w, v))
            w -= diagonal[-1] * v
            beta = np.linalg.norm(w, axis=0)
            off_diagonal.append(beta)
            v, before = w / np.where(beta > 0, beta, 1.0), v
        found = np.empty((n_held_out, k, len(self._alphas_per_row)))
        alphas = weight * self._alphas_per_row
        for j in range(k):
            eigenvalues, Q = eigh_tridiagonal([a[j] for a in diagonal], [b[j] for b in off_diagonal[:-1]])
            shrunk = (size[j] * Q[0])[:, None] / (np.maximum(eigenvalues, 0)[:, None] + alphas)
            found[:, j] = np.stack([F[:, j] for F in values], axis=1) @ (Q @ shrunk)
        return found


def binning_pilot_flops(n_rows: int, n_columns: int, n_grids: int) -> float:
    """Return about how many flops one held-out error takes for a handful of outputs."""
    return float(n_rows) * min(n_grids, PILOT_GRIDS) * (3 * n_columns + 4 * _PRESUMED_OUTPUTS * _MAX_STEPS)


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
