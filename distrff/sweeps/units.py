"""Numbers as people read them."""

from __future__ import annotations


def human_bytes(n_bytes: float) -> str:
    """Return a number of bytes with three digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"
