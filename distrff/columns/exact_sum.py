"""Sums of numbers without any rounding: the same in whatever order and parts they are made."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

_UNIT = 1074  # every double is a multiple of 2⁻¹⁰⁷⁴
_DIGITS, _LOW_DIGITS = 53, 27  # of a double, and those that are summed apart
_MOST = 2**25  # numbers at once, whose halves add up in a double without rounding


def exact_sum(values: np.ndarray) -> int:
    """Return the sum of the finite ones among real numbers, in units of 2⁻¹⁰⁷⁴.

    Digits are summed by the numbers' binary exponents, in halves of 27 and 26 digits.

    Parameters
    ----------
    values : ndarray of shape (r,)
        Integers of more than 53 digits are rounded to a double first.
    """
    if values.dtype.kind in "iub" and values.dtype.itemsize <= 4:
        return int(values.sum(dtype=np.int64)) << _UNIT
    parts = range(0, len(values), _MOST)
    return sum(_sum_of_doubles(values[at : at + _MOST].astype(np.float64)) for at in parts)


def exact_mean(total: int, n: int) -> float:
    """Return the mean of `n` numbers whose `exact_sum` is `total`, rounded once."""
    return float(Fraction(total, n << _UNIT))


def _sum_of_doubles(x: np.ndarray) -> int:
    fraction, exponent = np.frexp(x[np.isfinite(x)])
    if not len(fraction):
        return 0
    least = int(exponent.min())
    digits = np.ldexp(fraction, _DIGITS).astype(np.int64)
    place = exponent - least
    high = np.bincount(place, digits >> _LOW_DIGITS)
    low = np.bincount(place, digits & (2**_LOW_DIGITS - 1))
    total = 0
    for i in np.flatnonzero((high != 0) | (low != 0)).tolist():
        number = (int(high[i]) << _LOW_DIGITS) + int(low[i])
        shift = _UNIT + least + i - _DIGITS
        total += number << shift if shift >= 0 else number >> -shift  # below, the digits are zeros
    return total
