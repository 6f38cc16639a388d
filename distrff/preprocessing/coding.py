"""Rows as the model sees them: moments of columns, and scaling and targets coded by them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from operator import eq
from typing import Any, ClassVar, Self

import numpy as np
from scipy.sparse import issparse
from scipy.special import ndtr, ndtri

from distrff.errors import InputError, ModelFileError
from distrff.preprocessing.words import Vocabulary, word_of
from distrff.utils.arrays import as_columns, dense_rows
from distrff.utils.jit import scratch
from distrff.utils.validation import is_finite

# Weighted moments of columns, merged without cancellation: what scaling, checks and a linear model need.


# Relative differences up to this one are rounding.
EQUAL_TO_ROUNDING = 8 * np.finfo(np.float64).eps

# Deviations below `_SMALL` are multiplied by 2**_LIFT before they are squared; the squares could underflow.
_SMALL, _LIFT = 2.0**-400, 600


@dataclass(frozen=True)
class Moments:
    """Weight, means and summed squared deviations of some rows' columns; arrays of shape (n_columns,)."""

    weight: float  # Σs
    mean: np.ndarray  # Σ s x / Σs; zeros where the weight is zero
    squares: np.ndarray  # Σ s (x − mean)², of columns that are `small` in units of 2⁻¹²⁰⁰
    min: np.ndarray  # over rows of positive weight; inf without any
    max: np.ndarray
    small: np.ndarray  # whether all deviations are so small that their squares might underflow

    @classmethod
    def empty(cls, n_columns: int) -> Moments:
        """Moments of no rows."""
        infinite = np.full(n_columns, np.inf)
        return cls(
            0.0, np.zeros(n_columns), np.zeros(n_columns), infinite, -infinite, np.ones(n_columns, bool)
        )

    @classmethod
    def of(cls, X: Any, sample_weight: np.ndarray | None) -> Moments:
        """Moments of the rows of X, dense or CSR, computed in float64.

        The mean is corrected by that of the deviations from it (Chan, Golub and LeVeque 1983,
        equation 1.7): a sum of equal numbers drifts by far more than their last digit.
        Columns too large for their squares have moments that are not finite.
        """
        # Contiguous: the order in which a product adds up follows the layout.
        s = np.ones(X.shape[0]) if sample_weight is None else np.ascontiguousarray(sample_weight)
        weight = float(s.sum())
        if weight == 0.0:
            return cls.empty(X.shape[1])
        if issparse(X):
            return cls._of_sparse(X, s, weight)
        # In memory that this thread keeps: on Dask's workers fresh arrays took longer than the sums.
        n_rows, n_columns = X.shape
        centred = scratch("columns", n_rows, n_columns, np.dtype(np.float64))
        centred[:] = X
        counted = X if s.all() else X[s > 0]
        low, high = (ends.astype(np.float64) for ends in (counted.min(axis=0), counted.max(axis=0)))
        with _overflow_is_infinite():
            mean = s @ centred / weight
            centred -= mean
            drift = s @ centred / weight
            centred -= drift
            mean = mean + drift
            small = np.maximum(high - mean, mean - low) < _SMALL
            if (small & (low < high)).any():
                # A power of two, so no digit changes, and the merge can take it back.
                np.ldexp(centred, np.where(small, _LIFT, 0), out=centred)
            return cls(weight, mean, s @ np.square(centred, out=centred), low, high, small)

    @classmethod
    def _of_sparse(cls, X: Any, s: np.ndarray, weight: float) -> Moments:
        """Moments of rows in CSR without writing out the zeros that are not stored."""
        X = X.astype(np.float64)
        # Two stored entries of one place are their sum; squares of the parts would be another number.
        X.sum_duplicates()
        d = X.shape[1]
        with _overflow_is_infinite():
            # The weight of each entry's row.
            of_entry = np.repeat(s, np.diff(X.indptr))
            mean = np.bincount(X.indices, of_entry * X.data, d) / weight
            stored = np.bincount(X.indices, of_entry, d).astype(np.float64)  # integers without any entry
            counted = X if s.all() else X[s > 0]
            low, high = (np.asarray(m.todense()).ravel() for m in (counted.min(axis=0), counted.max(axis=0)))
            small = np.maximum(high - mean, mean - low) < _SMALL
            lift = np.where(small, _LIFT, 0)
            centred = np.ldexp(X.data - mean[X.indices], lift[X.indices])
            squares = np.bincount(X.indices, of_entry * np.square(centred), d).astype(np.float64)
            # Of a small column far from zero all entries are stored, whatever their weights add up to.
            zeros = np.where(small & (np.abs(mean) >= _SMALL), 0.0, np.maximum(weight - stored, 0.0))
            # Zeros that are not stored deviate by the mean. Where there are none, an infinite mean would give
            # 0·∞.
            squares += zeros * np.square(np.where(zeros > 0, np.ldexp(mean, lift), 0.0))
            return cls(weight, mean, squares, low, high, small)

    def merge(self, other: Moments) -> Moments:
        """Moments of both sets of rows (Chan, Golub and LeVeque 1983, equation 2.1)."""
        weight = self.weight + other.weight
        if weight == 0.0:
            return self
        share = other.weight / weight
        with _overflow_is_infinite():
            step = other.mean - self.mean
            # Means that lie far apart have squares that do not underflow: units of both parts become 1.
            small = self.small & other.small & (np.abs(step) < _SMALL)
            lifted = np.ldexp(step, np.where(small, _LIFT, 0))
            return Moments(
                weight,
                self.mean + share * step,
                self._squares(small) + other._squares(small) + self.weight * share * np.square(lifted),
                np.minimum(self.min, other.min),
                np.maximum(self.max, other.max),
                small,
            )

    def _squares(self, small: np.ndarray) -> np.ndarray:
        """Squares in units of 2⁻¹²⁰⁰ for the columns in `small`, all small here too, else in 1."""
        return np.ldexp(self.squares, np.where(self.small & ~small, -2 * _LIFT, 0))

    @property
    def deviations(self) -> np.ndarray:
        """Σ s (x − mean)² of shape (n_columns,); 0 where it is below the smallest double."""
        return self._squares(np.zeros_like(self.small))

    def standard_deviation(self) -> np.ndarray:
        """√(Σ s (x − mean)² / Σs) of shape (n_columns,)."""
        if self.weight <= 0:
            return np.zeros_like(self.mean)
        return np.ldexp(np.sqrt(self.squares / self.weight), np.where(self.small, -_LIFT, 0))

    def is_constant(self) -> np.ndarray:
        """Mask of the columns whose deviation is below the rounding of their mean.

        Scaled to deviation 1, such a column would be rounding noise.
        """
        return self.standard_deviation() <= EQUAL_TO_ROUNDING * np.abs(self.mean)

    def has_one_value(self) -> np.ndarray:
        """Mask of the columns in which all numbers are equal, to the last bit."""
        return self.min >= self.max


def _overflow_is_infinite() -> np.errstate:
    return np.errstate(over="ignore", invalid="ignore")


# Whether columns drift along the rows, as they do where rows are sorted, or stored day by day.

N_RUNS = 16
_HARMLESS = 0.01
# Six would do for normal columns. A rare indicator has few ones, which lie in one sixteenth more often than
# a normal law has it: of such columns of 64 to 300 shuffled rows, six take one in 900 for drifting, twelve
# fewer than one in 300,000 (two million columns with 2 to 10 ones on average, and unequal weights).
_DEVIATIONS = 12.0


def drift_shares(X: np.ndarray, sample_weight: np.ndarray | None = None) -> np.ndarray:
    """Share of each column's variance that lies between sixteenths of the rows, beyond chance.

    The share is ε² = (B − (r − 1)/(m − r)·W)/(B + W) for the squared deviations B between r = 16 runs of
    the m rows and W within them (Kelley 1935): 0 on average for shuffled rows, near 1 for sorted ones. The
    rows are in stored order. Constant columns, and fewer than 64 rows, give zeros. A change within a
    sixteenth is not seen, but one that repeats that often does not bias an average.
    """
    m, n_columns = X.shape
    # With fewer than four rows a run the deviations within runs are too uncertain to compare with.
    if m < 4 * N_RUNS:
        return np.zeros(n_columns)
    total, within = Moments.empty(n_columns), np.zeros(n_columns)
    for start, stop in pairwise(m * run // N_RUNS for run in range(N_RUNS + 1)):
        s = None if sample_weight is None else sample_weight[start:stop]
        moments = Moments.of(X[start:stop], s)
        total, within = total.merge(moments), within + moments.deviations
    between = total.deviations - within - (N_RUNS - 1) / (m - N_RUNS) * within
    moves = (total.deviations > 0) & ~total.is_constant()
    return np.divide(between, total.deviations, out=np.zeros(n_columns), where=moves)


def drifting(shares: np.ndarray, n_rows: int) -> np.ndarray:
    """Mask of the columns whose `drift_shares` exceed 1 % by twelve standard deviations of chance.

    Few rows show strong drift alone: of 100 the share must exceed .67, of 300 .23, of 10,000 .017.
    """
    # The deviation of ε² for normal columns: B is then σ²·χ² of r − 1 degrees, of variance 2(r − 1)σ⁴.
    chance = np.sqrt(2.0 * (N_RUNS - 1)) / n_rows
    return shares > _HARMLESS + _DEVIATIONS * chance


def drift_message(column_shares: np.ndarray, target_shares: np.ndarray, n_rows: int) -> str | None:
    """Warning before a fit by SGD, or None if neither columns of X nor coded targets drift."""
    columns = np.flatnonzero(drifting(column_shares, n_rows))
    names = [f"column {j} of X" for j in columns[:3]]
    if len(columns) > 3:
        names.append(f"{len(columns) - 3} more columns")
    if drifting(target_shares, n_rows).any():
        names.insert(0, "y")
    if not names:
        return None
    largest = float(max(column_shares.max(initial=0.0), target_shares.max(initial=0.0)))
    return (
        "solver='sgd' takes rows in stored order and needs shuffled ones, but there is drift along the rows "
        f"in {', '.join(names)}: up to {largest:.0%} of the variance lies between sixteenths of the rows; "
        "shuffle the rows first, or use another solver"
    )


# Products of columns with each other and with the targets, from which a linear model of all rows follows.

MAX_COLUMNS = 256
"""Limit for columns and targets together, whose products then take a few microseconds a row."""

_RANK = 1e-10  # eigenvalues of correlations below this share of the largest are rounding


@dataclass(frozen=True, eq=False)
class CoMoments:
    """Weight, means and summed products of deviations of some rows' columns."""

    n_rows: int  # of positive weight
    weight: float
    mean: np.ndarray  # (c,)
    products: np.ndarray  # (c, c): Σ s (x − mean)(x − mean)ᵀ

    @classmethod
    def empty(cls, n_columns: int) -> CoMoments:
        """Co-moments of no rows."""
        return cls(0, 0.0, np.zeros(n_columns), np.zeros((n_columns, n_columns)))

    @classmethod
    def of(cls, X: np.ndarray, Y: np.ndarray, sample_weight: np.ndarray | None) -> CoMoments:
        """Co-moments of the rows [x | y]; those of too large numbers are not finite."""
        n, d = X.shape
        s = np.ones(n) if sample_weight is None else np.ascontiguousarray(sample_weight)
        weight = float(s.sum())
        if weight == 0.0:
            return cls.empty(d + Y.shape[1])
        centred = scratch("columns and targets", n, d + Y.shape[1], np.dtype(np.float64))
        centred[:, :d], centred[:, d:] = X, Y
        with np.errstate(over="ignore", invalid="ignore"):
            mean = s @ centred / weight
            centred -= mean
            products = centred.T @ (centred if sample_weight is None else s[:, None] * centred)
        return cls(int(np.count_nonzero(s)), weight, mean, products)

    def merge(self, other: CoMoments) -> CoMoments:
        """Co-moments of both sets of rows (Chan, Golub and LeVeque 1983, equation 2.1)."""
        weight = self.weight + other.weight
        if weight == 0.0:
            return self
        share = other.weight / weight
        with np.errstate(over="ignore", invalid="ignore"):
            step = other.mean - self.mean
            products = self.products + other.products + self.weight * share * np.outer(step, step)
            return CoMoments(self.n_rows + other.n_rows, weight, self.mean + share * step, products)

    def linear_mse(self, n_targets: int) -> np.ndarray | None:
        """Mean squared error of least squares for the last columns, (n_targets,).

        The columns before them and a constant predict; of linearly dependent ones a basis. The error
        is that expected of other rows by generalised cross-validation, RSS/Σs·(1 − (r + 1)/n)⁻² with the
        rank r (Golub, Heath and Wahba 1979). None where n ≤ r + 1, or numbers are too large.
        """
        d = len(self.mean) - n_targets
        if not np.isfinite(self.products).all():
            return None
        size = np.sqrt(np.diag(self.products))
        # A constant column of large numbers has deviations of rounding alone.
        moves = size > 1e-12 * np.abs(self.mean) * np.sqrt(self.weight)
        size = np.where(moves, size, 1.0)
        # Correlations, and not products: the rank must not depend on the units of the columns.
        R = np.where(np.outer(moves, moves), self.products / np.outer(size, size), 0.0)
        values, V = np.linalg.eigh(R[:d, :d])
        kept = values > _RANK * values.max(initial=0.0)
        rank = int(kept.sum())
        if self.n_rows <= rank + 1:
            return None
        explained = np.square(V[:, kept].T @ R[:d, d:]) / values[kept][:, None]
        left = np.maximum(1.0 - explained.sum(axis=0), 0.0)
        total = np.where(moves[d:], np.square(size[d:]), 0.0) / self.weight
        return total * left / (1.0 - (rank + 1) / self.n_rows) ** 2


def r2_scores(squared_error: np.ndarray, targets: Moments) -> np.ndarray:
    """1 − Σs(ŷ − y)²/Σs(y − ȳ)² of each target; for a constant target 1 without error, else 0."""
    # Rounding can leave deviations from the mean of equal numbers, and r² would be arbitrary.
    total = np.where(targets.has_one_value(), 0.0, targets.deviations)
    with np.errstate(divide="ignore", invalid="ignore"):
        r2 = 1.0 - squared_error / total
    return np.where(total > 0, r2, np.where(squared_error > 0, 0.0, 1.0))


# Functions that bend single columns before they are shifted and scaled ("input warping": Snoek, Swersky,
# Zemel and Adams 2014), for heavy tails.


class Warp(ABC):
    """A monotone function of each column, fitted to a sample of the rows."""

    @abstractmethod
    def bend(self, X: np.ndarray) -> None:
        """Replace the values of rows in float64, (n, d), in place."""

    def bend_entries(self, values: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """The values of entries of sparse rows in these columns; 0 stays 0."""
        raise InputError("ranks would write sparse rows out; use scale='log' or scale='auto'")

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays that a stored model keeps."""

    def fits(self, n_columns: int) -> bool:
        """Whether it is for so many columns, as one from a file may not be."""
        arrays = self.arrays().values()
        return all(A.shape[-1:] == (n_columns,) and bool(np.isfinite(A).all()) for A in arrays)


@dataclass(frozen=True, eq=False)
class SignedLog(Warp):
    """x ↦ sign(x − m)·log(1 + |x − m|/u) with the median m, and the median u of the |x − m| above 0."""

    middle: np.ndarray
    unit: np.ndarray

    @classmethod
    def of(cls, X: Any) -> Self:
        """Fitted to the columns of X; around 0 where it is sparse."""
        middle, unit = np.zeros(X.shape[1]), np.ones(X.shape[1])
        for j in range(X.shape[1]):
            x = X[:, [j]].data if issparse(X) else X[:, j]
            middle[j] = 0.0 if issparse(X) else np.median(x)
            far = np.abs(x - middle[j])
            unit[j] = np.median(far[far > 0]) if far.any() else 1.0
        return cls(middle, unit)

    def bend(self, X: np.ndarray) -> None:
        X -= self.middle
        X[...] = np.copysign(np.log1p(np.abs(X) / self.unit), X)

    def bend_entries(self, values: np.ndarray, columns: np.ndarray) -> np.ndarray:
        far = values.astype(np.float64) - self.middle[columns]
        return np.copysign(np.log1p(np.abs(far) / self.unit[columns]), far)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"column_middle": self.middle, "column_unit": self.unit}

    def fits(self, n_columns: int) -> bool:
        return super().fits(n_columns) and bool((self.unit > 0).all())


# Evenly spaced in scores: of as many evenly spaced in ranks the last two would have 128 of 16,384 rows
# between them, which are the whole of a tail.
_N_KNOTS = 129


@dataclass(frozen=True, eq=False)
class NormalScores(Warp):
    """x ↦ Φ⁻¹(share of rows below x), interpolated between quantiles and constant beyond them."""

    knots: np.ndarray  # (q, d), ascending in each column; the last one is repeated where values are few
    scores: np.ndarray  # (q, d)

    @classmethod
    def of(cls, X: np.ndarray) -> Self:
        """Fitted to the columns of X. Equal values have the mean of their ranks."""
        n, d = X.shape
        top = ndtri(1 - 0.5 / n)  # the first and last of n values have the ranks ½ and n − ½
        shares = ndtr(np.linspace(-top, top, _N_KNOTS))
        X = np.sort(X, axis=0)
        found = X if n <= _N_KNOTS else np.quantile(X, shares, axis=0, method="inverted_cdf")
        knots, scores = np.empty_like(found), np.empty_like(found)
        for j in range(d):
            own = np.unique(found[:, j])
            below, up_to = (np.searchsorted(X[:, j], own, side) for side in ("left", "right"))
            z = ndtri((below + up_to) / (2 * n))
            knots[:, j], scores[:, j] = own[-1], z[-1]
            knots[: len(own), j], scores[: len(own), j] = own, z
        return cls(knots, scores)

    def bend(self, X: np.ndarray) -> None:
        for j, x in enumerate(X.T):
            inside = np.isfinite(x)  # what is not finite stays so, to be refused
            x[inside] = np.interp(x[inside], self.knots[:, j], self.scores[:, j])

    def arrays(self) -> dict[str, np.ndarray]:
        return {"column_knots": self.knots, "column_scores": self.scores}

    def fits(self, n_columns: int) -> bool:
        shapes = self.knots.shape == self.scores.shape and self.knots.ndim == 2 and len(self.knots) > 1
        return shapes and super().fits(n_columns) and bool((np.diff(self.knots, axis=0) >= 0).all())


WARPS: dict[str, Any] = {"log": SignedLog, "quantile": NormalScores}
"""Functions of columns by the `scale` of estimators."""


# Entries that are scaled at a time, in memory that stays in a cache. NumPy's float64 arrays of whole tiles
# took 214 µs for 512 × 50 where malloc gives memory back at once, as on Dask's workers; this takes 66 µs.
_STRIP_VALUES = 2**15

NO_EFFECT = 2.0**500
"""Scale of a column that is 0 in all rows of a fit: what later rows hold becomes too small to change a sum.
An infinite scale would make NaN of an infinity, which is refused, and of 0 where it is scaled back."""


@dataclass(frozen=True)
class Scaling:
    """x ↦ (g(x) − shift) / scale, column by column; None is a shift of 0, a scale of 1, or g(x) = x.

    A shift never comes without a scale, nor does a warp g.
    """

    shift: np.ndarray | None = None
    scale: np.ndarray | None = None
    warp: Warp | None = None

    @classmethod
    def standard(cls, moments: Moments) -> Scaling:
        """Scaling to mean 0 and deviation 1; constant columns are divided by 1."""
        return cls(moments.mean, np.where(moments.is_constant(), 1.0, moments.standard_deviation()))

    @classmethod
    def uncentred(cls, moments: Moments) -> Scaling:
        """Division by the root mean square √(Σ s x²/Σs), which keeps zeros; by 1 if all are 0."""
        # Σ s x²/Σs = mean² + variance, without a sum of squares that could overflow.
        size = np.hypot(moments.mean, moments.standard_deviation())
        return cls(scale=np.where(size > 0, size, 1.0))

    @classmethod
    def warped(cls, name: str, X: Any, sample_weight: np.ndarray | None, moments: Moments) -> Scaling:
        """The scaling of columns bent by the function of that name, from a sample of raw rows.

        `moments` are those of all rows: a column that is constant there has no effect, whatever is sampled.
        """
        rows = X if sample_weight is None else X[sample_weight > 0]
        rows = rows.astype(np.float64) if issparse(X) else dense_rows(rows).astype(np.float64)
        warp = WARPS[name].of(rows)
        bent = cls(warp=warp).bent(rows)
        s = None if sample_weight is None else sample_weight[sample_weight > 0]
        own = Moments.of(bent, s)
        if issparse(X):
            return replace(cls.uncentred(own), warp=warp)
        # Of a column that varies in other rows alone the sample knows no deviation.
        scaling = cls.standard(own)
        constant = moments.has_one_value()
        value = cls(warp=warp).bent(np.where(constant, moments.max, 0.0)[None, :])[0]
        return cls(np.where(constant, value, own.mean), scaling.scale, warp)

    def bent(self, X: Any) -> Any:
        """Rows in float64 after the warp alone."""
        if self.warp is None:
            return X
        if issparse(X):
            return type(X)((self.warp.bend_entries(X.data, X.indices), X.indices, X.indptr), shape=X.shape)
        X = np.array(X, np.float64)
        self.warp.bend(X)
        return X

    def without_constants(self, moments: Moments) -> Scaling:
        """The scaling under which columns of zeros in all rows, once shifted, have no effect in any row."""
        if self.scale is None:
            return self
        # 0 divided by any number is 0, so that no bit of the fit changes. Columns that are constant but for
        # rounding, or shifted by rounding alone, are left: searched widths would scale them up again.
        return replace(self, scale=np.where(self._is_zero(moments), NO_EFFECT, self.scale))

    def _is_zero(self, moments: Moments) -> np.ndarray:
        zero = 0.0 if self.shift is None else self.shift
        last = np.where(moments.has_one_value(), moments.max, 0.0)[None, :]
        if self.warp is not None and self.shift is not None:  # a warp without a shift keeps zeros
            last = self.bent(last)
        return moments.has_one_value() & (last[0] == zero)

    def ignored(self, moments: Moments | None = None) -> list[int]:
        """Numbers of the columns without effect; given moments of other rows, of those that differ there."""
        if self.scale is None:
            return []
        mask = self.scale == NO_EFFECT
        return np.flatnonzero(mask if moments is None else mask & ~self._is_zero(moments)).tolist()

    def apply(self, X: Any, dtype: np.dtype) -> Any:
        """Scaled rows in `dtype`, C-contiguous; CSR rows stay CSR where nothing shifts them.

        Entries of CSR rows are put in the order of columns, in which products add them up.
        Shift and scale act in float64, before the cast: a large common offset then
        costs no digits of a float32 model.
        """
        # Numbers too large for the dtype become inf; every sweep refuses them, with the column or the dtype.
        with np.errstate(over="ignore"):
            if self.shift is None and issparse(X):
                return self._apply_to_entries(X, dtype)
            X = dense_rows(X)
            if self.scale is None:
                return np.ascontiguousarray(X, dtype=dtype)
            scaled = np.empty(X.shape, dtype)
            step = max(1, _STRIP_VALUES // max(1, X.shape[1]))
            for first in range(0, len(X), step):
                self._write(X[first : first + step], scaled[first : first + step])
            return scaled

    def _write(self, X: np.ndarray, scaled: np.ndarray) -> None:
        is_exact = scaled.dtype == np.float64
        exact = scaled if is_exact else scratch("scaled", len(X), X.shape[1], np.dtype(np.float64))
        # The cast to float64 is made here, in the strip: a cast of the whole tile would be a second copy of
        # it.
        exact[...] = X
        if self.warp is not None:
            self.warp.bend(exact)
        if self.shift is not None:
            exact -= self.shift
        exact /= self.scale
        if not is_exact:
            scaled[...] = exact

    def _apply_to_entries(self, X: Any, dtype: np.dtype) -> Any:
        X = X if X.has_sorted_indices else X.sorted_indices()
        if self.scale is None:
            return X.astype(dtype, copy=False)
        values = X.data if self.warp is None else self.warp.bend_entries(X.data, X.indices)
        entries = np.divide(values, self.scale[X.indices], dtype=np.float64).astype(dtype, copy=False)
        # Places of the entries are shared with X, which is not changed.
        return type(X)((entries, X.indices, X.indptr), shape=X.shape)

    def equals(self, other: Scaling) -> bool:
        """Whether both have the same shift and scale, to the last bit."""
        mine, its = self.arrays(), other.arrays()
        return mine.keys() == its.keys() and all(np.array_equal(mine[name], its[name]) for name in mine)

    def fits(self, n_columns: int) -> bool:
        """Whether it scales so many columns, as one from a file may not."""
        if self.scale is None:
            return self.shift is None and self.warp is None
        if self.warp is not None and not self.warp.fits(n_columns):
            return False
        has_shift = self.shift is None or (
            self.shift.shape == self.scale.shape and bool(np.isfinite(self.shift).all())
        )
        return has_shift and self.scale.shape == (n_columns,) and bool((self.scale > 0).all())

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays that a stored model keeps."""
        arrays = {"column_shift": self.shift, "column_scale": self.scale}
        own = {name: A for name, A in arrays.items() if A is not None}
        return own if self.warp is None else own | self.warp.arrays()


# Targets.

_NORMAL_IQR = 1.349  # between the quartiles of a standard normal law


class TargetCoding(ABC):
    """How the targets of rows become the columns that solvers see, and back.

    A model is fitted to ``(y − shift) / scale`` of numbers, and of labels to ±1.
    """

    kind: ClassVar[str]

    @property
    @abstractmethod
    def n_outputs(self) -> int:
        """Columns of coded targets."""

    @abstractmethod
    def fits(self, n_outputs: int) -> bool:
        """Whether it codes so many outputs, as one from a file may not."""

    @abstractmethod
    def encode(self, y: np.ndarray) -> np.ndarray:
        """Coded targets of shape (n_rows, n_outputs), float64."""

    def row_weights(self, y: np.ndarray, sample_weight: np.ndarray | None) -> np.ndarray | None:
        """Weights of rows; None where all are 1."""
        return sample_weight

    @abstractmethod
    def same_kind(self, other: Targets) -> bool:
        """Whether sums over targets of both can be added, once they are shifted and scaled alike."""

    def same_targets(self, other: Targets) -> bool:
        """Whether models of both predict the same targets."""
        return self.same_kind(other)


@dataclass(frozen=True)
class NumericTargets(TargetCoding):
    """y ↦ (y − shift) / scale, target by target.

    The shift is about the mean: the products in a tile then lose no digits to a common offset. The scale is
    a power of two near the deviation: scaling back is then exact. Or shift and scale are median and spread,
    whatever a few far targets are. Several outputs may be of one target, as quantiles are.
    """

    shift: np.ndarray
    scale: np.ndarray

    kind: ClassVar[str] = "numeric"

    @classmethod
    def centred(cls, mean: np.ndarray, deviation: np.ndarray) -> NumericTargets:
        """Coding for targets of this mean and deviation."""
        # A factor of two changes no digit, on the way there nor back.
        exponent = np.frexp(np.where(deviation > 0, deviation, 1.0))[1]
        return cls(np.asarray(mean, dtype=np.float64), np.ldexp(1.0, exponent))

    @classmethod
    def by_spread(
        cls, y: np.ndarray, sample_weight: np.ndarray | None, mean: np.ndarray, deviation: np.ndarray
    ) -> NumericTargets:
        """Coding by the median and IQR/1.349 of sampled rows, which of a normal law is the deviation.

        Where the quartiles are equal, by the deviation of all rows; where those sampled have no weight, by
        their mean, too.
        """
        Y = as_columns(np.asarray(y, dtype=np.float64))
        s = np.ones(len(Y)) if sample_weight is None else sample_weight
        shift, scale = np.array(mean, dtype=np.float64), np.array(deviation)
        if s.any():
            low, shift, high = np.quantile(Y, (0.25, 0.5, 0.75), axis=0, weights=s, method="inverted_cdf")
            # Quartiles that differ by rounding are equal.
            differ = high - low > EQUAL_TO_ROUNDING * np.maximum(np.abs(low), np.abs(high))
            scale = np.where(differ, (high - low) / _NORMAL_IQR, deviation)
        return cls(shift, np.where(scale > 0, scale, 1.0))

    @property
    def n_outputs(self) -> int:
        return len(self.shift)

    def fits(self, n_outputs: int) -> bool:
        return self.shift.shape == self.scale.shape == (n_outputs,)

    def encode(self, y: np.ndarray) -> np.ndarray:
        Y = as_columns(np.asarray(y, dtype=np.float64)) - self.shift
        Y /= self.scale
        return Y

    def same_kind(self, other: Targets) -> bool:
        return isinstance(other, NumericTargets) and len(self.shift) == len(other.shift)


class LabelTargets(TargetCoding):
    """Labels as columns of ±1."""

    @property
    def shift(self) -> np.ndarray:
        return np.zeros(self.n_outputs)

    @property
    def scale(self) -> np.ndarray:
        return np.ones(self.n_outputs)


@dataclass(frozen=True)
class ClassTargets(LabelTargets):
    """Labels as ±1: one column for two classes (the second is +1), else one column for each class.

    `classes` are the sorted labels; `class_weight` multiplies the weights of the rows of each.
    """

    classes: np.ndarray
    class_weight: np.ndarray | None = None

    kind: ClassVar[str] = "classes"

    @property
    def n_outputs(self) -> int:
        return 1 if len(self.classes) == 2 else len(self.classes)

    def fits(self, n_outputs: int) -> bool:
        classes, weights = self.classes, self.class_weight
        is_list = classes.ndim == 1 and len(classes) > 1 and self.n_outputs == n_outputs
        return is_list and (weights is None or weights.shape == classes.shape)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary([*map(word_of, self.classes.tolist())])

    def indices(self, y: np.ndarray) -> np.ndarray:
        """Positions of labels among the classes, −1 for any other label.

        Labels may have another type or spelling than the classes; see `Vocabulary`.
        """
        y = plain_values(np.reshape(y, len(y)))
        index = np.full(len(y), -1)
        # NumPy compares integers of 64 bits with other numbers as floats, which have 53.
        if y.dtype.kind == self.classes.dtype.kind != "O" or (_is_text(y) and _is_text(self.classes)):
            # A label beyond the last class has the position after it, which is no class.
            position = np.minimum(np.searchsorted(self.classes, y), len(self.classes) - 1)
            index = np.where(self.classes[position] == y, position, -1)
        others = y[index < 0].tolist()
        # Each label once: rows are many, and labels few.
        found = {label: self._vocabulary.find(word_of(label)) for label in set(others)}
        index[index < 0] = [found[label] for label in others]
        return index

    def encode(self, y: np.ndarray) -> np.ndarray:
        """Coded targets of shape (n_rows, n_outputs); raises InputError for a label of no class."""
        index = self._known_indices(y)
        if self.n_outputs == 1:
            return np.where(index == 1, 1.0, -1.0)[:, None]
        return np.where(index[:, None] == np.arange(len(self.classes)), 1.0, -1.0)

    def row_weights(self, y: np.ndarray, sample_weight: np.ndarray | None) -> np.ndarray | None:
        """Sample weights times class weights; None where all are 1."""
        if self.class_weight is None:
            return sample_weight
        by_class = self.class_weight[self._known_indices(y)]
        return by_class if sample_weight is None else by_class * sample_weight

    def decode(self, F: np.ndarray) -> np.ndarray:
        """Predicted labels from decision values of shape (n_rows, n_outputs)."""
        return self.classes[self.chosen(F)]

    def chosen(self, F: np.ndarray) -> np.ndarray:
        """Position of the predicted class of each row among the classes."""
        return (F[:, 0] > 0).astype(np.intp) if self.n_outputs == 1 else F.argmax(axis=1)

    def same_kind(self, other: Targets) -> bool:
        return (
            isinstance(other, ClassTargets)
            and np.array_equal(self.classes, other.classes)
            and np.array_equal(self._weights(), other._weights())
        )

    def same_targets(self, other: Targets) -> bool:
        """Whether models of both predict the same classes, in whatever weights."""
        return isinstance(other, ClassTargets) and np.array_equal(self.classes, other.classes)

    def _weights(self) -> np.ndarray:
        return np.ones(len(self.classes)) if self.class_weight is None else self.class_weight

    def labels_to_json(self) -> dict[str, Any]:
        """Labels as strict JSON data.

        Raises InputError if they are neither numbers, booleans nor strings.
        """
        kind = self.classes.dtype.kind
        labels = self.classes.tolist()
        if kind == "O" and all(isinstance(label, str) for label in labels):
            return {"dtype": "object", "labels": labels}
        if kind in "biufU":
            return {"dtype": self.classes.dtype.str, "labels": labels}
        raise InputError(
            f"class labels of dtype {self.classes.dtype} cannot be stored; use numbers or strings"
        )

    def _known_indices(self, y: np.ndarray) -> np.ndarray:
        index = self.indices(y)
        if (index < 0).any():
            label = np.reshape(y, len(y))[index < 0].tolist()[0]
            raise InputError(
                f"y has the label {label!r}, which is not one of the {len(self.classes)} classes"
            )
        return index


@dataclass(frozen=True)
class MultilabelTargets(LabelTargets):
    """Several labels of each row, 0 or 1 each, as columns of ±1: a row may have any number of them."""

    n_labels: int

    kind: ClassVar[str] = "multilabel"

    @property
    def n_outputs(self) -> int:
        return self.n_labels

    @property
    def classes(self) -> np.ndarray:
        return np.arange(self.n_labels)  # as scikit-learn's multilabel classifiers number labels

    def fits(self, n_outputs: int) -> bool:
        return type(self.n_labels) is int and self.n_labels == n_outputs > 1

    def encode(self, y: np.ndarray) -> np.ndarray:
        return 2.0 * as_columns(np.asarray(y, dtype=np.float64)) - 1.0

    def decode(self, F: np.ndarray) -> np.ndarray:
        """1 for each label that a row is predicted to have, else 0, of the shape of F."""
        return (F > 0).astype(np.int64)

    def same_kind(self, other: Targets) -> bool:
        return self == other


Targets = NumericTargets | ClassTargets | MultilabelTargets


def class_weights(class_weight: Any, classes: np.ndarray, weight_by_class: np.ndarray) -> np.ndarray | None:
    """One weight for each class from None, "balanced", or a mapping of labels to weights.

    Balanced: Σs / (n_classes · s_c) for the summed row weights s_c of each class. Raises InputError for
    anything else, an unknown label, or a weight that is not a finite number ≥ 0.
    """
    if class_weight is None:
        return None
    if isinstance(class_weight, str) and class_weight == "balanced":
        # As scikit-learn's "balanced", with weights of rows in place of their numbers: each class then weighs
        # as much.
        return weight_by_class.sum() / (len(weight_by_class) * weight_by_class)
    if not isinstance(class_weight, dict):
        raise InputError(
            f"class_weight must be None, 'balanced' or a dict of label: weight, got {class_weight!r}"
        )
    labels = classes.tolist()
    weights = np.ones(len(labels))
    known = Vocabulary([*map(word_of, labels)])
    # By value, as predictions find labels: {"1": 2.0} names the class 1.
    places = {label: known.find(word_of(label)) for label in class_weight}
    for label, weight in class_weight.items():
        if places[label] < 0:
            raise InputError(f"class_weight names {label!r}, which is not one of the classes {labels[:20]}")
        if not is_finite(weight) or weight < 0:
            raise InputError(f"class_weight[{label!r}] must be a finite number ≥ 0, got {weight!r}")
        weights[places[label]] = weight
    # {1: 2.0, "1": 3.0} names one class by two words; neither weight is to win in silence.
    if len(set(places.values())) < len(places):
        raise InputError(f"class_weight names one class twice, got the labels {list(class_weight)}")
    if np.count_nonzero(weights) < 2:
        raise InputError("class_weight gives fewer than two classes a positive weight; give at least two one")
    return weights


def checked_classes(classes: Any) -> np.ndarray | None:
    """Sorted labels that a user gave, or None; raises InputError unless they are two or more."""
    if classes is None:
        return None
    if np.ndim(classes) != 1:
        raise InputError(f"classes must be a list of at least two labels, got {classes!r}")
    is_array = hasattr(classes, "dtype")
    # np.asarray would turn the list [1, "a"] into text without a word.
    given = np.asarray(classes) if is_array else np.fromiter(classes, dtype=object)
    # NaN is the one label that differs from itself.
    if any(label is None or label != label for label in given.tolist()):
        raise InputError(f"classes hold a missing label, got {classes!r}; leave it out")
    labels = plain_labels(given, "classes")
    labels = np.unique(labels if is_array or labels.dtype.kind != "O" else labels.astype(str))
    if len(labels) < 2:
        raise InputError(f"classes must be a list of at least two labels, got {classes!r}")
    return labels


# Scaling and targets as the parts of a stored group: arrays beside strict JSON.


def coding_parts(scaling: Scaling, targets: Targets) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and metadata that `coding_from_parts` reads."""
    arrays = scaling.arrays()
    if isinstance(targets, MultilabelTargets):
        return arrays, {"targets": "multilabel", "n_labels": targets.n_labels}
    if isinstance(targets, NumericTargets):
        return arrays | {"target_shift": targets.shift, "target_scale": targets.scale}, {"targets": "numeric"}
    if targets.class_weight is not None:
        arrays["class_weight"] = targets.class_weight
    return arrays, {"targets": "classes", "classes": targets.labels_to_json()}


def coding_from_parts(
    arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]
) -> tuple[Scaling, Targets]:
    """Scaling and targets of a stored group."""
    warp: Warp | None = None
    if "column_knots" in arrays:
        warp = NormalScores(arrays["column_knots"], arrays["column_scores"])
    elif "column_middle" in arrays:
        warp = SignedLog(arrays["column_middle"], arrays["column_unit"])
    scaling = Scaling(arrays.get("column_shift"), arrays.get("column_scale"), warp)
    if metadata["targets"] == "numeric":
        return scaling, NumericTargets(arrays["target_shift"], arrays["target_scale"])
    if metadata["targets"] == "classes":
        return scaling, ClassTargets(_classes(metadata["classes"]), arrays.get("class_weight"))
    if metadata["targets"] == "multilabel":
        return scaling, MultilabelTargets(metadata["n_labels"])
    raise ModelFileError(f"targets of kind {metadata['targets']!r} are not known; update distrff")


def _classes(stored: Mapping[str, Any]) -> np.ndarray:
    """Labels from the result of `labels_to_json`."""
    labels, dtype = stored["labels"], np.dtype(stored["dtype"])
    # A damaged file may hold any width of strings.
    if dtype.kind not in "biufUO" or len(labels) * dtype.itemsize > _MAX_LABEL_BYTES:
        raise ModelFileError(f"{len(labels)} class labels have the dtype {stored['dtype']!r}")
    return np.asarray(labels, dtype=dtype)


# The class labels of rows.


def plain_values(values: np.ndarray) -> np.ndarray:
    """Objects that are all booleans, or all numbers, as an array of these; any other array as it is.

    Integers and floats together become floats where these hold all of them.
    """
    if values.dtype.kind != "O":
        return values
    flat = values.ravel().tolist()
    kinds = set(map(type, flat))
    if kinds and kinds <= {bool, np.bool_}:
        return values.astype(bool)
    # True among numbers would become 1, and so another label than the one given.
    if not kinds or not all(map(is_number_type, kinds)) or kinds & {bool, np.bool_}:
        return values
    if not any(issubclass(kind, float | np.floating) for kind in kinds):
        fits = (np.dtype(t) for t in (np.int64, np.uint64))
        dtype = next((t for t in fits if np.iinfo(t).min <= min(flat) and max(flat) <= np.iinfo(t).max), None)
        return values if dtype is None else values.astype(dtype)
    floats = values.astype(np.float64)
    # Integers beyond 2⁵³ among fractions would be rounded; NaN, which equals nothing, says no more.
    are_same = all(map(eq, flat, floats.ravel().tolist())) or np.isnan(floats).any()
    return floats if are_same else values


def is_number_type(kind: type) -> bool:
    """Whether values of a type are booleans or real numbers as NumPy has them."""
    is_number = issubclass(kind, int | float | np.bool_ | np.integer | np.floating)
    return is_number and not issubclass(kind, np.timedelta64)  # which NumPy counts among the integers


def plain_labels(labels: np.ndarray, name: str) -> np.ndarray:
    """Labels as an array of booleans, integers, floats or text.

    Raises InputError if they are of several types that no array holds exactly.
    """
    labels = plain_values(labels)
    if labels.dtype.kind != "O" or _is_text(labels):
        return labels
    kinds = sorted({type(label).__name__ for label in labels.tolist()})
    if kinds == ["int"]:
        raise InputError(f"{name} holds integers that 64 bits do not hold; use text")
    raise InputError(
        f"{name} mixes labels that cannot be sorted together, of {' and '.join(kinds)}; use one type"
    )


def _is_text(labels: np.ndarray) -> bool:
    kind = labels.dtype.kind
    return kind == "U" or (kind == "O" and all(isinstance(label, str) for label in labels.tolist()))


_MAX_LABELS = 10_000
_MAX_LABEL_BYTES = 2**28  # so many of 6,700 letters each


@dataclass(frozen=True)
class LabelCounts:
    """Sorted labels with the number and the weight of the rows of each."""

    labels: np.ndarray
    counts: np.ndarray
    weights: np.ndarray

    @classmethod
    def empty(cls) -> LabelCounts:
        """Counts of no rows."""
        return cls(np.empty(0, dtype=np.int8), np.empty(0, dtype=np.int64), np.empty(0))

    @classmethod
    def of(cls, y: np.ndarray, sample_weight: np.ndarray | None) -> LabelCounts:
        """Counts of one block.

        Raises InputError if labels are fractions, cannot be sorted together, or are too many to be classes,
        or if a row has several.
        """
        if y.size != len(y):
            raise InputError(f"y must be one column of class labels, got shape {y.shape}")
        y = plain_labels(y.ravel(), "y")
        if y.dtype.kind == "f" and (y != np.floor(y)).any():
            value = y[y != np.floor(y)][0]
            raise InputError(
                f"Unknown label type: continuous (y has the value {value:g}); "
                f"a classifier needs classes, use KernelRidge for numbers; where the numbers are names of "
                f"classes, make them text: y.astype(str)"
            )
        counted = cls.of_values(y, sample_weight)
        for label in counted.labels.tolist():
            if isinstance(label, str) and label.replace("\0", "").encode(errors="ignore").decode() != label:
                raise InputError(
                    f"y has the label {label!r} with a NUL or half of a surrogate pair, which files of "
                    f"predictions do not keep; remove it"
                )
        return counted

    @classmethod
    def of_values(
        cls,
        values: np.ndarray,
        weights: np.ndarray | None = None,
        counts: np.ndarray | None = None,
        *,
        max_labels: int | None = None,
    ) -> LabelCounts:
        """Summed counts and weights, each 1 if not given, of each distinct value.

        Values need not be classes. Raises InputError if they cannot be sorted together, or more than
        `max_labels` (default 10,000) are distinct.
        """
        try:
            labels, index = np.unique(values, return_inverse=True)
        except TypeError as error:
            raise InputError(
                f"y mixes labels that cannot be sorted together ({error}); use one type"
            ) from error
        max_labels = max_labels or _MAX_LABELS
        if len(labels) > max_labels:
            raise InputError(
                f"y has more than {max_labels} different values, too many for classes; "
                f"use KernelRidge if they are numbers"
            )
        n_rows, weight = (np.bincount(index, given, minlength=len(labels)) for given in (counts, weights))
        return cls(labels, n_rows.astype(np.int64), weight.astype(np.float64))

    def merge(self, other: LabelCounts, *, max_labels: int | None = None) -> LabelCounts:
        """Counts of both sets of rows; raises as `of_values`."""
        # Labels of no rows have a type of their own, which would widen or refuse that of the others.
        if not len(self.labels) or not len(other.labels):
            return self if len(self.labels) else other
        weights, counts = (
            np.concatenate([getattr(self, name), getattr(other, name)]) for name in ("weights", "counts")
        )
        both = [self.labels, other.labels]
        if self.labels.dtype.kind == other.labels.dtype.kind:
            labels = np.concatenate(both)
        else:  # integers beyond 2⁵³ would be rounded to floats, and numbers spelt as text
            labels = plain_labels(np.concatenate([A.astype(object) for A in both]), "y")
        return self.of_values(labels, weights, counts, max_labels=max_labels)
