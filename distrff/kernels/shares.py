"""Fixed shares of frequencies for the components of a sum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def component_order(shares: Sequence[float], n: int) -> np.ndarray:
    """Return which component each of n frequencies belongs to, in proportion to the shares on every prefix.

    The t-th frequency goes to the component that is furthest behind, the largest share·t − count, so
    that the first frequencies do not depend on n. Of c components none is ever ahead of its share by
    more than 1 − 1/c: the numbers they are behind by add to 1 before each choice, so the largest is
    at least 1/c. Together the others are then ahead by at most (c − 1)(1 − 1/c), which bounds how far
    one can be behind.

    Parameters
    ----------
    shares : sequence of c floats
        Positive numbers that add to 1.
    n : int

    Returns
    -------
    ndarray of shape (n,), integer
    """
    behind = np.zeros(len(shares))
    order = np.empty(n, dtype=np.intp)
    for t in range(n):
        behind += shares
        order[t] = behind.argmax()
        behind[order[t]] -= 1.0
    return order
