"""Numbers and quantities are written as people read them."""

import pytest

from distrff.utils.text import number_text, quantity_text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "bytes", "–"),
        (2.4e9, "bytes", "2.4 GB"),
        (4.2e-7, "s", "0.420 µs"),
        (0.25, "s", "250 ms"),
        (119.4, "s", "119 s"),
        (119.9, "s", "2 min 0 s"),
        (7261, "s", "2 h 1 min"),
        (3, "", "3"),
        (2.3e12, "flop", "2.30×10¹² flop"),
    ],
)
def test_quantity_text(value, unit, text):
    assert quantity_text(value, unit) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "–"),
        (0, "0"),
        (7_200_000, "7,200,000"),
        (10**10, "1.00×10¹⁰"),
        (0.1, "0.100"),
        (-0.012345, "-0.0123"),
        (0.9996, "1.00"),
        (999.6, "1,000"),
        (1234.5, "1,230"),
        (999_999.0, "1.00×10⁶"),
        (1e-5, "1.00×10⁻⁵"),
        (1.7e308, "1.70×10³⁰⁸"),
    ],
)
def test_number_text(value, text):
    assert number_text(value) == text


def test_number_text_trimmed():
    assert [number_text(v, trim=True) for v in (0.5, 2.0, 100.0, 2e-7)] == ["0.5", "2", "100", "2×10⁻⁷"]
