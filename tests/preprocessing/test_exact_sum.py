"""Exact sums agree with rational arithmetic, whatever the numbers and however they are cut."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrff.preprocessing.profile import exact_mean, exact_sum

UNIT = Fraction(1, 2**1074)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True)), st.integers(0, 20))
def test_any_doubles(values, cut):
    x = np.asarray(values, np.float64)
    finite = [Fraction(v) for v in values if np.isfinite(v)]
    assert exact_sum(x) * UNIT == sum(finite)
    assert exact_sum(x[:cut]) + exact_sum(x[cut:]) == exact_sum(x)


@pytest.mark.parametrize("dtype", ["?", "u1", "i4", "i8", "f2", "f4"])
def test_other_types(rng, dtype):
    x = rng.integers(-100, 100, 50).astype(dtype)
    assert exact_sum(x) * UNIT == sum(map(Fraction, x.tolist()))


def test_the_mean_is_rounded_once():
    x = np.asarray([1e300, 1.0, -1e300, 2.0, 0.1])
    assert exact_mean(exact_sum(x), 5) == float((Fraction(3) + Fraction(0.1)) / 5)
