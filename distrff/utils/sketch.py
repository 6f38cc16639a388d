"""Quantiles of weighted numbers from buckets of fixed edges: mergeable, deterministic, with a known error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distrff.errors import InputError, NonFiniteError
from distrff.utils.arrays import in_one_layout

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

    Parameters
    ----------
    keys : ndarray of shape (n_buckets,), int64
        Sorted; in the order of the numbers, and of opposite sign for opposite ones.
    weights : ndarray of shape (n_buckets,), float64
        Positive.

    Notes
    -----
    Buckets of fixed relative width are those of DDSketch (Masson, Rim and Lee 2019, PVLDB 12), with
    the bits of the number in the place of its logarithm, and none of them merged.
    """

    keys: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    weights: np.ndarray = field(default_factory=lambda: np.empty(0))

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
        found = np.minimum(np.searchsorted(sums, q * sums[-1]), len(sums) - 1)
        return (lower[found] / 2 + upper[found] / 2)[()]  # their sum could overflow

    def upper_at_rank(self, rank: float) -> float:
        """A number at least as large as the one at which the cumulative weight reaches `rank`.

        It is the largest number of that bucket: of whole weights, the rank-th smallest number or up to 2⁻¹⁰
        of its magnitude more, never less. Infinite where the rank exceeds the weight.
        """
        sums = np.cumsum(self.weights)
        found = int(np.searchsorted(sums, rank))
        return float(self.edges()[1][found]) if found < len(sums) else float("inf")

    def absolute(self) -> QuantileSketch:
        """The sketch of the numbers' magnitudes."""
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
        own[np.searchsorted(both.keys, sketch.keys)] = sketch.weights
    return both, weights[0], weights[1]


def _keys_of(values: np.ndarray) -> np.ndarray:
    """The key of each number: the first bits of its magnitude plus 1, with its sign; 0 for zero."""
    magnitudes = in_one_layout(np.abs(values))
    keys = (magnitudes.view(np.int64) >> _SHIFT) + 1
    keys[magnitudes == 0] = 0
    return np.where(values < 0, -keys, keys)


def _magnitudes(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and largest magnitude of each key's bucket."""
    small = np.maximum((keys - 1) << _SHIFT, 1)  # the bits of the smallest number above zero are 1
    large = np.where(keys == _INFINITE, small, (keys << _SHIFT) - 1)  # infinity is alone in its bucket
    both = np.where(keys == 0, 0, np.stack([small, large])).astype(np.int64).view(np.float64)
    return both[0], both[1]
