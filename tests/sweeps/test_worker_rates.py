"""Rates of one process: that they stop in time, and count what was done."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass

import numpy as np

from distrff.cli.bench import DTYPES, arithmetic_rates, noise, rows_a_second, size_of
from distrff.io.rows import RowBlock


@dataclass
class SlowRows:
    """Rows whose tiles take some time each, however many rows they have."""

    start: int
    stop: int
    seconds: float

    def tiles(self, n_rows):
        for first in range(self.start, self.stop, n_rows):
            time.sleep(self.seconds)
            yield RowBlock(first, np.zeros((min(n_rows, self.stop - first), 2)))


def test_every_rate_is_a_number():
    rates = arithmetic_rates(1e-3)
    assert rates.blas_threads >= 1
    for by_dtype in (rates.flops, rates.cosines):
        assert set(by_dtype) == set(DTYPES)
        assert all(0 < rate < np.inf for rate in by_dtype.values())


def test_reading_stops_in_time():
    began = time.monotonic()
    rate = rows_a_second(SlowRows(0, 10**9, 0.01), 100, 0.05)
    assert time.monotonic() - began < 5.0
    assert 0 < rate <= 100 / 0.01


def test_reading_ends_with_the_rows():
    assert 0 < rows_a_second(SlowRows(10, 20, 0.01), 4, 60.0) <= 10 / 0.03


def test_noise_cannot_be_compressed(rng):
    A = noise(10_000, int(rng.integers(2**32)))
    assert size_of(A) == 10_000
    assert len(zlib.compress(A.tobytes())) >= 10_000
