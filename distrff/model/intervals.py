"""Intervals and prediction sets from the errors of rows that a model did not see, and a sketch of these."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from distrff.errors import DataWarning, InputError, ModelFileError, NonFiniteError, warn
from distrff.utils.arrays import in_one_layout
from distrff.utils.validation import is_finite, is_number

# Quantiles of weighted numbers from buckets of fixed edges: mergeable, deterministic, with a known error.


MANTISSA_BITS = 10
RELATIVE_ERROR = 2.0**-MANTISSA_BITS
"""Largest width of a bucket of normal numbers, relative to its smaller edge."""

_SHIFT = 52 - MANTISSA_BITS
_INFINITE = (0x7FF << MANTISSA_BITS) + 1
"""The key of infinity, and the largest of all."""


@dataclass(frozen=True, eq=False)
class QuantileSketch:
    """The weights of numbers by bucket, of which quantiles and ranks are known within a bucket.

    A bucket is all float64 numbers of one sign, one exponent and the same first 10 bits of the mantissa: its
    edges differ by less than 2⁻¹⁰ of the smaller one. Of subnormal numbers, below 2⁻¹⁰²², they
    differ by less than 2⁻¹⁰³²; zero and both infinities have buckets of their own. As
    the edges do not depend on the data, a sketch of all rows is the sum of those of their parts, in any
    grouping: the keys exactly, the weights as float64 sums, which are exact for whole numbers below 2⁵³.

    It has 16 bytes a bucket, and at most as many buckets as numbers, 1024 for each power of two between the
    smallest and the largest magnitude of a sign, and 4,192,259 in all (64 MiB). Numbers over six decades have
    20,000, or 320 kB.

    Buckets of fixed relative width are those of DDSketch (Masson, Rim and Lee 2019, PVLDB 12), with
    the bits of the number in the place of its logarithm, and none of them merged.
    """

    # (n_buckets,), sorted; in the order of the numbers, and of opposite sign for opposite ones.
    keys: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    weights: np.ndarray = field(default_factory=lambda: np.empty(0))  # positive

    @classmethod
    def of(cls, values: np.ndarray, weights: np.ndarray | None = None) -> QuantileSketch:
        """The sketch of numbers of any shape; those of weight 0 are left out.

        Raises NonFiniteError for NaN, InputError for weights that are negative or not finite.
        """
        values = np.asarray(values, dtype=np.float64).reshape(-1)
        if np.isnan(values).any():
            raise NonFiniteError(f"number {int(np.argmax(np.isnan(values)))} of a sketch is NaN")
        if weights is None:
            keys, counts = np.unique(_keys_of(values), return_counts=True)
            return cls(keys, counts.astype(np.float64))
        weights = np.asarray(weights, dtype=np.float64).reshape(-1)
        if len(weights) != len(values) or not (np.isfinite(weights) & (weights >= 0)).all():
            raise InputError(f"weights of a sketch must be {len(values)} finite numbers ≥ 0")
        kept = weights > 0
        return cls._summed(_keys_of(values[kept]), weights[kept])

    @classmethod
    def _summed(cls, keys: np.ndarray, weights: np.ndarray) -> QuantileSketch:
        unique, index = np.unique(keys, return_inverse=True)
        # Added one by one in their order, so with the same bits for the same order.
        return cls(unique, np.bincount(index, weights, minlength=len(unique)).astype(np.float64))

    def __add__(self, other: QuantileSketch) -> QuantileSketch:
        if not len(self.keys) or not len(other.keys):
            return self if len(self.keys) else other
        keys, weights = (
            np.concatenate([getattr(self, name), getattr(other, name)]) for name in ("keys", "weights")
        )
        return self._summed(keys, weights)

    @property
    def weight(self) -> float:
        """The weights' sum; infinite if it is more than a float holds."""
        # As the ranks' cumulative sums end: a pairwise sum of fractions may differ in the last bit.
        with np.errstate(over="ignore"):
            return float(np.cumsum(self.weights)[-1]) if len(self.weights) else 0.0

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.weights.nbytes

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """The smallest and the largest number of each bucket, each of shape (n_buckets,)."""
        small, large = _magnitudes(np.abs(self.keys))
        negative = self.keys < 0
        return np.where(negative, -large, small), np.where(negative, -small, large)

    def quantile(self, q: Any) -> Any:
        """The quantiles of shares q in [0, 1], of the shape of q; NaN of no numbers.

        It is the middle of the bucket of the smallest number up to which the share q of the weight
        lies (``method="inverted_cdf"`` of NumPy), so within 2⁻¹¹ of that number, relatively.
        """
        q = np.asarray(q, dtype=np.float64)
        if not ((q >= 0) & (q <= 1)).all():
            raise InputError(f"q must be in [0, 1], got {q}")
        if not len(self.keys):
            return np.full(q.shape, np.nan)[()]
        sums = np.cumsum(self.weights)
        lower, upper = self.edges()
        # q·Σ may round to more than the last sum.
        found = np.minimum(np.searchsorted(sums, q * sums[-1]), len(sums) - 1)
        return (lower[found] / 2 + upper[found] / 2)[()]  # their sum could overflow

    def interval_score(self, radius: float, alpha: float) -> float:
        """Σ w·(2r + (2/α)·(t − r)₊) over the numbers t, in the middles of their buckets."""
        lower, upper = self.edges()
        beyond = np.maximum(lower / 2 + upper / 2 - radius, 0.0)
        return float(self.weights @ (2 * radius + 2 / alpha * beyond))

    def pinball(self, tau: float) -> float:
        """The mean pinball loss of the τ-quantile, of numbers in the middles of their buckets."""
        lower, upper = self.edges()
        r = lower / 2 + upper / 2 - self.quantile(tau)
        return float(self.weights @ np.maximum(tau * r, (tau - 1) * r) / self.weight)

    def upper_at_rank(self, rank: float) -> float:
        """A number at least as large as the one at which the cumulative weight reaches `rank`.

        It is the largest number of that bucket: of whole weights, the rank-th smallest number or up to 2⁻¹⁰
        of its magnitude more, never less. Infinite where the rank exceeds the weight.
        """
        # Whole weights add up exactly below 2⁵³, so that a whole rank is met exactly.
        sums = np.cumsum(self.weights)
        found = int(np.searchsorted(sums, rank))
        # The upper edge: a radius may be too large, and never too small, or coverage would not be guaranteed.
        return float(self.edges()[1][found]) if found < len(sums) else float("inf")

    def absolute(self) -> QuantileSketch:
        """The sketch of the numbers' magnitudes."""
        # Opposite numbers have opposite keys.
        return self._summed(np.abs(self.keys), self.weights)

    def is_valid(self) -> bool:
        """Whether keys and weights are a possible sketch; a file may hold others."""
        keys, weights = self.keys, self.weights
        return (
            keys.ndim == weights.ndim == 1
            and len(keys) == len(weights)
            and keys.dtype == np.int64
            and weights.dtype == np.float64
            and bool((keys[1:] > keys[:-1]).all())
            and (not len(keys) or (int(keys[0]) >= -_INFINITE and int(keys[-1]) <= _INFINITE))
            and bool((np.isfinite(weights) & (weights > 0)).all())
            and float(weights.max(initial=0.0)) * len(weights) < np.inf
        )


def aligned(first: QuantileSketch, second: QuantileSketch) -> tuple[QuantileSketch, np.ndarray, np.ndarray]:
    """The sketch of both, and the weights of each in its buckets, with zeros where it has none."""
    both = first + second
    weights = np.zeros((2, len(both.keys)))
    for own, sketch in zip(weights, (first, second), strict=True):
        # Every key of either is among those of both, so the search finds it exactly.
        own[np.searchsorted(both.keys, sketch.keys)] = sketch.weights
    return both, weights[0], weights[1]


def _keys_of(values: np.ndarray) -> np.ndarray:
    """The key of each number: the first bits of its magnitude plus 1, with its sign; 0 for zero."""
    # A view of bits takes native byte order and contiguous memory.
    magnitudes = in_one_layout(np.abs(values))
    # The bits of positive doubles, read as integers, are in the order of the numbers. The 1 keeps the bucket
    # of the smallest subnormal numbers apart from that of zero.
    keys = (magnitudes.view(np.int64) >> _SHIFT) + 1
    keys[magnitudes == 0] = 0
    return np.where(values < 0, -keys, keys)


def _magnitudes(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and largest magnitude of each key's bucket."""
    small = np.maximum((keys - 1) << _SHIFT, 1)  # the bits of the smallest number above zero are 1
    large = np.where(keys == _INFINITE, small, (keys << _SHIFT) - 1)  # infinity is alone in its bucket
    both = np.where(keys == 0, 0, np.stack([small, large])).astype(np.int64).view(np.float64)
    return both[0], both[1]


CALIBRATED, OUT_OF_FOLD = "calibrated", "out of fold"
INTERVAL_METHODS = ("auto", "constant", "deviation", "residual", "quantile")
_SOURCES = (CALIBRATED, OUT_OF_FOLD)
_COUNTS = ("n_rows", "n_outside", "n_unseen", "n_groups")
INTERVAL_ARRAYS = ("interval_keys", "interval_weights", "interval_ends")
"""In a stored model: of all sketches, one after the other, and where each ends."""


def class_scores(F: np.ndarray, P: np.ndarray | None) -> np.ndarray:
    """Misfit of each class to each row, shape (n_rows, n_classes).

    1 − p where there are probabilities P; else minus the margin, ∓f of two classes and −f_c of more.
    """
    if P is not None:
        return 1.0 - P
    # f is positive for the second class, so f itself is the misfit of the first.
    return np.column_stack([F[:, 0], -F[:, 0]]) if F.shape[1] == 1 else -F


def checked_coverage(coverage: Any) -> Fraction:
    """A coverage as the decimal number that was written; raises InputError outside (0, 1)."""
    if not is_number(coverage) or not 0 < coverage < 1:
        raise InputError(f"coverage must be a number between 0 and 1, such as 0.9, got {coverage!r}")
    # 0.55 stands for 55/100: its double is larger, and would take one more row than needed.
    return Fraction(repr(float(coverage)))


@dataclass(frozen=True, eq=False, repr=False)
class Intervals:
    """The scores of rows that a model did not see, from which intervals and sets follow.

    A new row is covered if its score is at most the radius r, the ⌈(n+1)c⌉-th smallest of n scores.

    *Calibrated*: the model was fitted without these rows (split conformal prediction: Vovk, Gammerman and
    Shafer 2005; Lei et al. 2018, JASA 113; for classes Sadinle, Lei and Wasserman 2019, JASA 114). If they
    and the new row are exchangeable, the new row is covered with probability at least c, whatever the model,
    the data and n. This is on average over calibration sets and rows: not for each x, each class or all
    targets of a row at once, and for one calibration set the share varies by about √(c(1−c)/n). Rows that
    chose a width, a metric or a penalty were seen.

    *Out of fold*: each row was scored by a model without its fold. This has no guarantee: these models are
    fitted to fewer rows than the final one, and map, widths and penalty were chosen with these rows too. The
    jackknife+ (Barber, Candès, Ramdas and Tibshirani 2021, Ann. Statist. 49) has one, of 1 − 2(1 − c), by
    keeping the models of all folds, which this simple rule does not.

    *Calibrated by groups*, as patients of some visits each (hierarchical conformal prediction: Lee, Barber
    and Willett 2023, arXiv:2306.06342): with G groups each score of a group of n_g rows has the weight
    1/((G + 1)·n_g), infinity has 1/(G + 1), and r is the smallest number up to which the weights add up to c.
    If the groups and a new one are exchangeable, and so are the rows within each, a row of the new one is
    covered with probability at least c, however many rows groups have and however alike these are.

    Of a model with standard deviations there are also scores |y − f|/u(x) with u² = a + std²/σ̂²: the width
    2r·u(x) grows where rows are few. A new row counts by the same rule, so all of the above holds for either.
    With a = 1, u is the deviation of a new observation in units of the noise's, which r replaces. What looks
    like noise to a model of too few features may be what these cannot follow, and grow likewise: then a is
    less.

    Scores are kept in a `QuantileSketch`; r is the upper end of a bucket, at most 2⁻¹⁰ too large and never
    too small, so that the guarantee holds.
    """

    # Of |y − f| of each target, or one of how badly the row's own class fits, infinite for a label that the
    # model never saw. Weights are multiplicities, or each row's share of its group.
    sketches: tuple[QuantileSketch, ...]
    source: str
    n_rows: int  # in all
    n_outside: int = 0  # the bounds of the model; these rows do not count
    n_unseen: int = 0  # rows of labels never seen
    n_groups: int = 0  # that count; 0 where each row stands for itself
    scaled: tuple[QuantileSketch, ...] = ()  # of |y − f|/u of each target; () without standard deviations
    floors: tuple[float, ...] = ()  # a of each of these
    residual: tuple[QuantileSketch, ...] = ()  # likewise, with u the spread that a second model has at x
    # Interval scores of the methods that were compared on the rows of the fit, that of "constant" being 1.
    scores: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Intervals {self}>"

    def __str__(self) -> str:
        rows = f"{self.n_rows - self.n_outside:,} rows"
        deviations = ", also in standard deviations" if self.scaled else ""
        deviations += ", also by the spread at x" if self.residual else ""
        if self.source != CALIBRATED:
            return f"out of fold, of {rows}, without a guarantee{deviations}"
        groups = f" of {self.n_groups:,} groups, for rows of new groups" if self.n_groups else ""
        return f"calibrated on {rows}{groups}{deviations}"

    def radius(self, coverage: float, method: str = "constant") -> np.ndarray:
        """Radius for each target, or the largest score of a class in the set, shape (n_scores,).

        By "deviation" and "residual" it is to be multiplied by u(x). Infinite, with a DataWarning, where
        there are too few rows or groups for the coverage.
        """
        c, sketches = checked_coverage(coverage), self.sketches_of(method)
        # In fractions: (n + 1)·c is often whole, and a rounding above it would take one more row.
        if self.n_groups:
            units, n = "groups", Fraction(self.n_groups)
            rank = (n + 1) * c
        else:
            units, n = "rows of weight 1", Fraction(sketches[0].weight)  # all targets have the same rows
            rank = Fraction(math.ceil((n + 1) * c))
        if rank > n:
            # ⌈(n+1)c⌉ ≤ n for whole n from c/(1 − c) on
            warn(
                f"a coverage of {coverage:g} needs {math.ceil(c / (1 - c)):,} {units}, got {float(n):,g}: "
                f"intervals are unbounded, and sets hold all classes; calibrate on more",
                DataWarning,
            )
            return np.full(len(sketches), np.inf)
        # Shares of groups add up with rounding, ten tenths to less than 1: a sum within 2⁻⁴⁰ is enough.
        met = float(rank) * (1 - 2.0**-40) if self.n_groups else float(rank)
        return np.array([sketch.upper_at_rank(min(met, sketch.weight)) for sketch in sketches])

    def sketches_of(self, method: str) -> tuple[QuantileSketch, ...]:
        """The scores of a method."""
        return {"deviation": self.scaled, "residual": self.residual}.get(method, self.sketches)

    @property
    def _all_sketches(self) -> tuple[QuantileSketch, ...]:
        return self.sketches + self.scaled + self.residual

    def fits(self, n_scores: int) -> bool:
        """Whether it is of so many targets and consistent, as one from a file may not be."""
        counts = [getattr(self, name) for name in _COUNTS]
        return (
            isinstance(self.source, str)
            and self.source in _SOURCES
            and len(self.sketches) == n_scores
            and len(self.scaled) in (0, n_scores)
            and len(self.residual) in (0, n_scores)
            and all(name in INTERVAL_METHODS and is_finite(one) for name, one in self.scores.items())
            and all(is_number(a) and 0 < a < math.inf for a in self.floors)
            and all(type(n) is int and 0 <= n < 2**63 for n in counts)
            and all(one.is_valid() and len(one.keys) > 0 for one in self._all_sketches)
        )

    def to_parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and metadata that `from_parts` reads."""
        sketches = self._all_sketches
        ends = np.cumsum([len(sketch.keys) for sketch in sketches])
        keys = np.concatenate([sketch.keys for sketch in sketches])
        weights = np.concatenate([sketch.weights for sketch in sketches])
        arrays = dict(zip(INTERVAL_ARRAYS, (keys, weights, ends.astype(np.int64)), strict=True))
        counts = {name: getattr(self, name) for name in _COUNTS}
        others = {"floors": list(self.floors), "n_residual": len(self.residual), "scores": dict(self.scores)}
        return arrays, {"source": self.source, **counts, **others}

    @classmethod
    def from_parts(cls, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Intervals:
        """Intervals of a stored model; `fits` tells whether they can be used."""
        keys, weights, ends = (arrays[name] for name in INTERVAL_ARRAYS)
        if (
            ends.ndim != 1 or ends.dtype != np.int64 or not len(ends) or (np.diff(ends, prepend=0) < 0).any()
        ) or not ends[-1] == len(keys) == len(weights):
            raise ModelFileError("the ends of its intervals' sketches do not fit their keys")
        parts = zip(np.split(keys, ends[:-1]), np.split(weights, ends[:-1]), strict=True)
        sketches = tuple(QuantileSketch(*part) for part in parts)
        # Earlier versions had neither groups nor scores in units of u.
        metadata = {"n_groups": 0, "floors": [], "n_residual": 0, "scores": {}, **metadata}
        counts, floors = {name: metadata[name] for name in _COUNTS}, tuple(metadata["floors"])
        end = len(sketches) - int(metadata["n_residual"])
        n = end - len(floors)
        others: dict[str, Any] = {"floors": floors, "scores": metadata["scores"]}
        others |= {"scaled": sketches[n:end], "residual": sketches[end:]}
        return cls(sketches[:n], metadata["source"], **counts, **others)
