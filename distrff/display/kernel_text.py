"""A kernel's repr, short enough to be read."""

from __future__ import annotations

import re

_MAY_BREAK = "\u200b"  # a space of no width
_MOST_WIDTHS = 8


def kernel_text(kernel: str) -> str:
    """Return the repr with its numbers to four digits, and with places where a line may break.

    Of many widths only their number is told.
    """
    kernel = re.sub(rf"\(([^(),]+, ){{{_MOST_WIDTHS},}}[^(),]*\)", _number_of_widths, kernel)
    short = re.sub(r"\d+\.\d{4,}(e[-+]?\d+)?", lambda number: f"{float(number[0]):.4g}", kernel)
    return re.sub(r"([(=])", rf"\1{_MAY_BREAK}", short)


def _number_of_widths(widths: re.Match[str]) -> str:
    return f"{widths[0].count(', ') + 1} widths"
