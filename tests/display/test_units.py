"""Quantities are written as people read them."""

from __future__ import annotations

import pytest

from distrff.utils.text import quantity_text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "bytes", "–"),
        (4.12e8, "bytes", "412 MB"),
        (2.4e9, "bytes", "2.4 GB"),
        (0, "s", "0 s"),
        (4.2e-7, "s", "0.420 µs"),
        (0.25, "s", "250 ms"),
        (41, "s", "41.0 s"),
        (119.4, "s", "119 s"),
        (119.9, "s", "2 min 0 s"),
        (7261, "s", "2 h 1 min"),
        (3, "", "3"),
        (2.3e12, "flop", "2.30×10¹² flop"),
    ],
)
def test_quantity_text(value, unit, text):
    assert quantity_text(value, unit) == text
