"""Quantities as people read them: bytes, seconds, and numbers with a unit."""

from __future__ import annotations

from distrff.display.axes import Number, number_text, place_of


def human_bytes(n_bytes: float) -> str:
    """Return a number of bytes with three digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"


def human_seconds(seconds: float) -> str:
    """Return a duration with three digits below two minutes, beyond that in minutes and hours."""
    if seconds == 0:
        return "0 s"
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (119.5, 1, "s")):
        if seconds < limit:
            return f"{number_text(float(seconds) * factor)} {unit}"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{minutes} min {rest} s" if not hours else f"{hours:,} h {minutes} min"


def quantity_text(value: Number, unit: str) -> str:
    """Write a quantity for reading: bytes and seconds in fitting units, others with three digits."""
    if value is None or place_of(value) is None:
        return "–"
    if unit == "bytes":
        return human_bytes(value)
    if unit == "s":
        return human_seconds(value)
    return f"{number_text(value)} {unit}".strip()
