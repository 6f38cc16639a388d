"""Axes of a chart: where a number goes, where the ticks are, and how numbers are written for reading."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Number = float | int | None
Log = bool | Literal[2, 10]


def number_text(value: Number, *, trim: bool = False) -> str:
    """Write a number for reading: three significant digits, integers up to a billion in full.

    `trim` leaves out zeros at the end, as suits the ticks of an axis.
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0 or (isinstance(value, int) and abs(value) < 10**9):
        return f"{value:,.0f}"
    text, exponent = f"{value:.2e}".split("e")
    plain = -5 < int(exponent) < 6
    if plain:
        text = f"{float(text) * 10.0 ** int(exponent):,.{max(0, 2 - int(exponent))}f}"
    if trim and "." in text:
        text = text.rstrip("0").rstrip(".")
    return text if plain else f"{text}×{power_text(10, int(exponent))}"


def power_text(base: int, exponent: int) -> str:
    """Write a power with a raised exponent, as in 10⁻⁶."""
    return f"{base}{str(exponent).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def place_of(value: Number, is_log: bool = False) -> float | None:
    """Return the finite number to draw `value` at (its logarithm if `is_log`), None for a gap.

    Beyond 1e±300, where differences would overflow, a value is drawn at that limit.
    """
    if value is None or not math.isfinite(value) or (is_log and value <= 0):
        return None
    if is_log:
        return math.log10(min(max(value, 1e-300), 1e300))
    return 0.0 if abs(value) < 1e-300 else float(min(max(value, -1e300), 1e300))


@dataclass(frozen=True)
class Scale:
    """A range of numbers, or of their decimal logarithms, with its ticks as (value, text)."""

    low: float
    high: float
    is_log: bool
    ticks: list[tuple[float, str]]

    def share(self, value: Number) -> float | None:
        """Return how far along the range `value` is, from 0 to 1, or None for a gap."""
        place = place_of(value, self.is_log)
        return None if place is None else (place - self.low) / (self.high - self.low)


def scale_of(values: Iterable[Number], log: Log = False) -> Scale:
    """Return the scale that holds all `values` with some space around them.

    Parameters
    ----------
    values : iterable of float or None
        Gaps are ignored; without any value the scale is that of 0 and 1.
    log : bool, 2 or 10
        Logarithmic; True is 10. The base decides where the ticks are.
    """
    is_log = bool(log)
    places = [place for value in values if (place := place_of(value, is_log)) is not None] or [0.0, 1.0]
    low, high = min(places), max(places)
    size = 1.0 if is_log else max(abs(low), abs(high)) or 1.0
    margin = 0.04 * (high - low) if high - low > 1e-9 * size else 0.5 * size
    lowest = -math.inf if is_log or low < 0 else 0.0  # an axis of what is never negative has no negative part
    low, high = max(low - margin, lowest), high + margin
    ticks = _log_ticks(low, high, 2 if log == 2 else 10) if is_log else _ticks(low, high)
    return Scale(low, high, is_log, ticks)


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return about five multiples of 1, 2 or 5 times a power of ten, with just enough decimals."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    values = [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    largest = max(map(abs, values))
    digits = math.floor(math.log10(step) + 1e-9)
    if step * (1 + 1e-9) >= 1e-4 and largest < 1e6:
        return [(v, f"{v:,.{max(0, -digits)}f}") for v in values]
    exponent = math.floor(math.log10(largest) + 1e-9)
    unit, decimals = 10.0**exponent, max(0, exponent - digits)
    return [(v, f"{v / unit:.{decimals}f}×{power_text(10, exponent)}" if v else "0") for v in values]


def _log_ticks(low: float, high: float, base: int) -> list[tuple[float, str]]:
    """Return ticks at powers of `base`, or at rounder numbers where there are too few of them."""
    unit = math.log10(base)
    first, last = math.ceil(low / unit - 1e-9), math.floor(high / unit + 1e-9)
    if last - first >= 2:
        stride = next(s for s in (1, 2, 3, 5, 10, 20, 50, 100, 500) if last - first < 7 * s)
        powers = range(-(-first // stride) * stride, last + 1, stride)
        plain = powers[0] >= (0 if base == 2 else -3) and powers[-1] < (20 if base == 2 else 4)
        texts = [number_text(base**e, trim=True) if plain else power_text(base, e) for e in powers]
        return [(10.0 ** (e * unit), text) for e, text in zip(powers, texts, strict=True)]
    decades = range(math.floor(low), math.ceil(high) + 1)
    values = [v for e in decades for m in (1, 2, 5) if low <= math.log10(v := m * 10.0**e) <= high]
    if len(values) > 1:
        return [(v, number_text(v, trim=True)) for v in values]
    return _ticks(10.0**low, 10.0**high)
