"""Widths between those that a likelihood finds and one for all columns: which of them serve best."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from distrff.features.length_scale import SAMPLE_ROWS, search_rows
from distrff.features.pilot import THINNING, MakePilot, Pilot
from distrff.kernels import Kernel
from distrff.random_streams import stream

_EXPONENTS = (0.5, 0.75, 1.0)
_MOST_COLUMNS = 24
_FARTHEST = 20  # half octaves
_MOST_OCTAVES = 5  # of a single column
# Smaller changes of an error on a few thousand rows say nothing.
_WORTHWHILE = 1e-3
# Widths shrink at most as the distance of rows that fill a plane, n^(−½).
_MOST_RATE = 0.5
_PAIRS = 4096
_USUAL_ANSWERS = 25  # of exponents and sizes


def tempered_widths(
    kernel: Kernel,
    search: dict[str, Any],
    X: np.ndarray,
    y: Any,
    sample_weight: Any,
    *,
    make_pilot: MakePilot,
    seed: int,
    n_rows: int,
) -> tuple[Kernel, dict[str, Any]]:
    """Return the kernel of the tempered widths that the map's pilot judges best, and how they were found.

    A likelihood on few rows is sure which columns matter most, but not of the rest, and not of the widths
    that many rows allow. Tried are widths c·σ_j·(ℓ_j/σ_j)^p for its ℓ_j and the columns' deviations σ_j, with
    p = ½, ¾ and 1 (as they are). c follows from the rate Σ_j σ_j/width_j, by which the widths of different p
    are of like size: octaves of it are walked from the likelihood's own while the error falls, then half
    octaves. Then each of the columns that tell rows apart most, by E|δ_j|/width_j, is walked in octaves.

    More rows allow shorter widths, by a power of their number (as the bandwidth n^(−1/(2s+d)) for functions
    of smoothness s; Stone 1982, "Optimal global rates of convergence for nonparametric regression"). That
    power, between 0 and ½, is read off the factors of all widths that are best for the rows of the pilot and
    for a quarter of them; by it the widths are set for all rows.

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
    n_rows : int
        Of positive weight, that the machine will be fitted to.

    Returns
    -------
    kernel : Kernel
    search : dict
        That of the likelihood with `length_scale` replaced, its own as `likelihood_length_scale`, the
        `exponent` p, `tried`, a list of [p, rate, held-out error], `column_factors` by which widths
        were changed after that, and then all of them by `size_factor`, which has
        n_rows^−`shrinking` in it.

    Notes
    -----
    Some 70 to 90 answers of the pilot for many columns.
    """
    moving = np.array(search["column_scale"]) > 0  # the other columns are constant and keep their width
    scale = np.where(moving, search["column_scale"], 1.0)
    relative = np.where(moving, search["length_scale"] / scale, np.inf)
    rows = search_rows(X, y, sample_weight, seed)
    pilot = make_pilot(rows)

    def as_widths(found: np.ndarray) -> tuple[float, ...]:
        return tuple(float(f"{width:.4g}") for width in np.where(moving, found, search["length_scale"]))

    def widths_at(p: float, rate: float) -> tuple[float, ...]:
        tempered = relative**p
        return as_widths(scale * tempered * (np.sum(1 / tempered) / rate))

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
            _telling_columns(rows.X, tempered, seed),
            len(tempered),
            tried[p, half_octaves],
        )
        size, shrinking = _size_factor(
            kernel, factors * tempered, [pilot, make_pilot(rows.thinned())], n_rows / rows.n_training
        )
    widths = as_widths(size * factors * tempered)
    return kernel.with_widths(widths), search | {
        "rule": f"{search['rule']}, tempered by the held-out error of {pilot.description}",
        "length_scale": list(widths),
        "likelihood_length_scale": search["length_scale"],
        "exponent": p,
        "column_factors": factors.tolist(),
        "size_factor": size,
        "shrinking": shrinking,
        "tried": [[p, own * 2 ** (h / 2), error] for (p, h), error in sorted(tried.items())],
    }


def tempering_flops(n_rows: int, n_columns: int, pilot_flops: Callable[[int], float]) -> float:
    """Return about how many flops it takes, from those of a pilot on so many rows."""
    return (_USUAL_ANSWERS + 2 * min(n_columns, _MOST_COLUMNS)) * pilot_flops(min(n_rows, SAMPLE_ROWS))


def _telling_columns(X: np.ndarray, widths: np.ndarray, seed: int) -> np.ndarray:
    """Return the columns in which random pairs of rows are most widths apart."""
    first, second = stream(seed, "tempering pairs").integers(0, len(X), (2, _PAIRS))
    apart = np.abs(X[first] - X[second]).mean(axis=0) / widths
    return np.argsort(-apart, kind="stable")[: min(_MOST_COLUMNS, np.count_nonzero(apart))]


def _column_factors(
    error: Callable[[np.ndarray], float], columns: np.ndarray, n_columns: int, least: float
) -> np.ndarray:
    """Return factors of the columns' widths after one round over `columns`, in octaves while errors fall."""
    factors = np.ones(n_columns)
    for j in columns:
        for step in (0.5, 2.0):
            for _ in range(_MOST_OCTAVES):
                changed = factors.copy()
                changed[j] *= step
                if (found := error(changed)) >= (1 - _WORTHWHILE) * least:
                    break
                factors, least = changed, found
            if factors[j] != 1:
                break
    return factors


def _size_factor(
    kernel: Kernel, widths: np.ndarray, pilots: list[Pilot], more_rows: float
) -> tuple[float, float]:
    """Return the factor of all widths for so many times the rows of the first pilot, and the power in it.

    The second pilot is that of a quarter of the rows.
    """

    def error_at(pilot: Pilot, half_octaves: int) -> float:
        return pilot.held_out_error(kernel.with_widths(tuple((2 ** (half_octaves / 2) * widths).tolist())))

    here, before = (_least_at(partial(error_at, pilot)) for pilot in pilots)
    shrinking = float(np.clip((before - here) / 2 / np.log2(THINNING), 0.0, _MOST_RATE))
    return float(2 ** (here / 2) * more_rows**-shrinking), shrinking


def _least_at(error: Callable[[int], float]) -> float:
    """Return where in half octaves from 0 the error is least, by a parabola through three neighbours."""
    best, errors = 0, {0: error(0)}
    while True:
        errors |= {h: error(h) for h in (best - 1, best + 1) if h not in errors}
        last, best = best, min(errors, key=lambda h: errors[h])
        if best == last or abs(best) > _FARTHEST:
            break
    if best != last:
        return float(best)
    below, above = errors[best - 1] - errors[best], errors[best + 1] - errors[best]
    return best + 0.5 * (below - above) / (below + above) if below + above > 0 else float(best)


def _walk(error: Callable[[int], float], start: int) -> None:
    """Ask for errors in octaves from `start` while they fall, and then in half octaves."""
    best = start
    for step in (2, -2, 1, -1):
        while abs(best + step) <= _FARTHEST and error(best + step) < error(best):
            best += step
