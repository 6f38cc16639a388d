"""Widths between those that a likelihood finds and one for all columns: which of them serve best."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from distrff.features.length_scale import search_rows
from distrff.features.pilot import MakePilot
from distrff.kernels import Kernel

_EXPONENTS = (0.5, 0.75, 1.0)
_MOST_COLUMNS = 24
_FARTHEST = 20  # half octaves


def tempered_widths(
    kernel: Kernel,
    search: dict[str, Any],
    X: np.ndarray,
    y: Any,
    sample_weight: Any,
    *,
    make_pilot: MakePilot,
    seed: int,
) -> tuple[Kernel, dict[str, Any]]:
    """Return the kernel of the tempered widths that the map's pilot judges best, and how they were found.

    A likelihood on few rows is sure which columns matter most, but not of the rest, and not of the widths
    that many rows allow. Tried are widths c·σ_j·(ℓ_j/σ_j)^p for its ℓ_j and the columns' deviations σ_j, with
    p = ½, ¾ and 1 (as they are). c follows from the rate Σ_j σ_j/width_j, by which the widths of different p
    are of like size: octaves of it are walked from the likelihood's own while the error falls, then half
    octaves. Then each of the columns that matter most may have half or twice its width, if that is better,
    and all together a half octave more or less.

    Parameters
    ----------
    kernel : Kernel
        Of width "ard".
    search : dict
        What `relevant_length_scales` returns for it.
    X, y, sample_weight
        The same rows.
    make_pilot : callable
    seed : int

    Returns
    -------
    kernel : Kernel
    search : dict
        That of the likelihood with `length_scale` replaced, its own as `likelihood_length_scale`, the
        `exponent` p, `tried`, a list of [p, rate, held-out error], and `column_factors` by which widths
        were changed after that.
    """
    scale = np.array(search["column_scale"])
    relative = np.array(search["length_scale"]) / scale
    pilot = make_pilot(search_rows(X, y, sample_weight, seed))

    def widths_at(p: float, rate: float) -> tuple[float, ...]:
        tempered = relative**p
        widths = scale * tempered * (np.sum(1 / tempered) / rate)
        return tuple(float(f"{width:.4g}") for width in widths)

    own = float(np.sum(1 / relative))
    tried: dict[tuple[float, int], float] = {}

    def error_at(p: float, half_octaves: int) -> float:
        at = p, half_octaves
        if at not in tried:
            tried[at] = pilot.held_out_error(kernel.with_widths(widths_at(p, own * 2 ** (half_octaves / 2))))
        return tried[at]

    with threadpool_limits(1, user_api="blas"):  # the same widths whatever the client's threads
        error_at(1.0, 0)
        for p in _EXPONENTS:
            _walk(partial(error_at, p), min(tried, key=lambda at: tried[at])[1])
        p, half_octaves = min(tried, key=lambda at: tried[at])
        tempered = np.array(widths_at(p, own * 2 ** (half_octaves / 2)))
        factors = _column_factors(
            lambda c: pilot.held_out_error(kernel.with_widths(tuple((c * tempered).tolist()))),
            np.argsort(relative, kind="stable")[:_MOST_COLUMNS],
            len(relative),
            tried[p, half_octaves],
        )
    widths = tuple(float(f"{width:.4g}") for width in factors * tempered)
    return kernel.with_widths(widths), search | {
        "rule": f"{search['rule']}, tempered by the held-out error of {pilot.description}",
        "length_scale": list(widths),
        "likelihood_length_scale": search["length_scale"],
        "exponent": p,
        "column_factors": factors.tolist(),
        "tried": [[p, own * 2 ** (h / 2), error] for (p, h), error in sorted(tried.items())],
    }


def _column_factors(
    error: Callable[[np.ndarray], float], columns: np.ndarray, n_columns: int, least: float
) -> np.ndarray:
    """Return factors of the columns' widths after one round over `columns`, then over all at once."""
    factors = np.ones(n_columns)
    moves = [(np.arange(n_columns) == j, (0.5, 2.0)) for j in columns]
    for which, steps in [*moves, (np.full(n_columns, True), (2**-0.5, 2**0.5))]:
        for step in steps:
            changed = np.where(which, step * factors, factors)
            if (found := error(changed)) < least:
                factors, least = changed, found
                break
    return factors


def _walk(error: Callable[[int], float], start: int) -> None:
    """Ask for errors in octaves from `start` while they fall, and then in half octaves."""
    best = start
    for step in (2, -2, 1, -1):
        while abs(best + step) <= _FARTHEST and error(best + step) < error(best):
            best += step
