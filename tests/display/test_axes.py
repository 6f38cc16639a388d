"""Ticks are round, inside the range and distinct, whatever the numbers; numbers read well."""

from __future__ import annotations

import math

import pytest

from distrff.utils.axes import number_text, place_of, scale_of

NASTY = [
    [],
    [None],
    [float("nan"), float("inf"), -float("inf")],
    [0],
    [0.0, 0.0],
    [7.25],
    [-3.0, -3.0, None],
    [1e-320, 2e-320],
    [1e-300, 1e300],
    [-1.7e308, 1.7e308],
    [1e9, 1e9 + 1e-3],
    [1e15, 1e15 + 3],
    [1.0, 1.0 + 1e-15],
    [123456.7, 123456.9],
    [1e-9, 3e-9],
    [-5, 12],
    [True, False],
]


@pytest.mark.parametrize("values", NASTY)
@pytest.mark.parametrize("log", [False, True, 2, 10])
def test_any_numbers_give_a_usable_scale(values, log):
    scale = scale_of(values, log)
    assert math.isfinite(scale.low) and math.isfinite(scale.high) and scale.low < scale.high
    assert 1 <= len(scale.ticks) <= 12
    assert len({text for _, text in scale.ticks}) == len(scale.ticks)
    for value, _ in scale.ticks:
        assert -1e-6 <= scale.share(value) <= 1 + 1e-6
    for value in values:
        share = scale.share(value)
        if place_of(value, bool(log)) is None:
            assert share is None
        else:
            assert 0 <= share <= 1


@pytest.mark.parametrize(
    ("values", "log", "texts"),
    [
        ([0, 1], False, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ([0, 40], False, ["0", "10", "20", "30", "40"]),
        ([-1, 1], False, ["-1.0", "-0.5", "0.0", "0.5", "1.0"]),
        ([2e6, 4e6], False, ["2.0×10⁶", "2.5×10⁶", "3.0×10⁶", "3.5×10⁶", "4.0×10⁶"]),
        ([0, 2e-6], False, ["0", "0.5×10⁻⁶", "1.0×10⁻⁶", "1.5×10⁻⁶", "2.0×10⁻⁶"]),
        ([1e-9, 1e-5], 10, ["10⁻⁹", "10⁻⁸", "10⁻⁷", "10⁻⁶", "10⁻⁵"]),
        ([0.1, 100], 10, ["0.1", "1", "10", "100"]),
        ([1e-12, 1e8], 10, ["10⁻¹²", "10⁻⁹", "10⁻⁶", "10⁻³", "10⁰", "10³", "10⁶"]),
        ([128, 2048], 2, ["128", "256", "512", "1,024", "2,048"]),
        ([3, 30], 10, ["5", "10", "20"]),
        ([300, 400], 2, ["300", "320", "340", "360", "380", "400"]),
    ],
)
def test_ticks(values, log, texts):
    assert [text for _, text in scale_of(values, log).ticks] == texts


def test_no_negative_part_below_what_is_never_negative():
    assert scale_of([0, 5]).low == 0
    assert scale_of([0.01, 5]).low == 0
    assert scale_of([-0.01, 5]).low < -0.01


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "–"),
        (0, "0"),
        (0.0, "0"),
        (7_200_000, "7,200,000"),
        (-3, "-3"),
        (10**10, "1.00×10¹⁰"),
        (0.1, "0.100"),
        (3.14159, "3.14"),
        (-0.012345, "-0.0123"),
        (0.9996, "1.00"),
        (999.6, "1,000"),
        (1234.5, "1,230"),
        (999_999.0, "1.00×10⁶"),
        (1e-5, "1.00×10⁻⁵"),
        (5e-324, "4.94×10⁻³²⁴"),
        (1.7e308, "1.70×10³⁰⁸"),
    ],
)
def test_number_text(value, text):
    assert number_text(value) == text


def test_number_text_trimmed():
    assert [number_text(v, trim=True) for v in (0.5, 2.0, 100.0, 2e-7)] == ["0.5", "2", "100", "2×10⁻⁷"]
