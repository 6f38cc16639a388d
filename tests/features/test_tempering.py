"""Walks over widths: what they find where the error is a known function of the widths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from distrff.features.bandwidth import PilotRows, search_rows
from distrff.features.relevance import shrunk_length_scales
from distrff.features.specification import Sample
from distrff.kernels.stationary import Laplacian


@dataclass
class Bowl:
    """An error that is least where the widths are `widths`·n^−power for n rows."""

    rows: PilotRows
    widths: np.ndarray
    power: float
    description = "a bowl"

    def held_out_error(self, kernel):
        best = self.widths * self.rows.n_training**-self.power
        return 1 + float(np.square(np.log2(np.divide(kernel.length_scale, best))).mean())


@dataclass
class AsManyRows:
    """The source of so many rows, which are never read."""

    n_rows: int


def tempered(widths, power, n_rows, *, rng):
    """The widths from a likelihood that found 1 for all of as many columns, of 400 rows, and the report."""
    X, n = rng.standard_normal((400, len(widths))), len(widths)
    search = {"rule": "likelihood", "column_scale": [1.0] * n, "length_scale": [1.0] * n}
    sample = Sample(X, X[:, 0], None, int(rng.integers(2**62)), AsManyRows(n_rows))
    kernel, found = shrunk_length_scales(
        Laplacian("ard"), search, sample, lambda rows: Bowl(rows, np.array(widths), power)
    )
    return np.array(kernel.length_scale), found


@pytest.mark.parametrize("power", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("size", [1.0, 0.1, 77.0])
def test_widths_follow_the_rows(rng, power, size):
    """The error's logarithm is a parabola, so that nothing is lost but digits of the widths."""
    found, search = tempered([size, size], power, 10**6, rng=rng)
    assert search["shrinking"] == pytest.approx(power, abs=1e-3)
    np.testing.assert_allclose(found, size * 1e6**-power, rtol=1e-2)


def test_more_rows_never_widen_and_shrink_no_faster_than_in_a_plane(rng):
    for power, expected in ((-0.4, 0.0), (0.9, 0.5)):
        few, search = tempered([1.0, 1.0], power, 300, rng=rng)
        assert search["shrinking"] == expected
        np.testing.assert_allclose(few, 300.0**-power, rtol=1e-2)
        many, _ = tempered([1.0, 1.0], power, 3 * 10**4, rng=rng)
        np.testing.assert_allclose(many, 300.0**-power * 100.0**-expected, rtol=1e-2)


def test_single_columns_go_as_far_as_they_should(rng):
    """Each within half an octave of its own, which steps of octaves cannot tell from the best."""
    widths = np.array([1.0, 1 / 16, 8.0, 0.5])
    found, search = tempered(widths, 0.0, 300, rng=rng)
    assert (np.array(search["column_factors"]) != 1).any()
    assert np.abs(np.log2(found / widths)).max() <= 1


def test_a_pilot_is_thinned_to_the_same_rows_held_out(rng):
    X = rng.standard_normal((403, 2))
    rows = search_rows(Sample(X, X[:, 0], rng.uniform(1, 2, 403), 3, AsManyRows(403)))
    fewer = rows.thinned()
    assert (rows.n_held_out, rows.n_training) == (100, 303)
    assert (fewer.n_held_out, fewer.n_training) == (100, 75)
    for part, whole in ((fewer.X, rows.X), (fewer.Y, rows.Y), (fewer.s, rows.s)):
        np.testing.assert_array_equal(part, whole[:175])
