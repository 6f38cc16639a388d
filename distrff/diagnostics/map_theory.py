"""What theory says of the error of a fitted map: its variance and its bounds, where draws are independent."""

from __future__ import annotations

from typing import Any

import numpy as np

from distrff.diagnostics.bounds import FORMS, pairs_error, spectral_norm_error
from distrff.features.binning_specification import BinningSpecification
from distrff.features.fourier import FourierSpecification
from distrff.features.specification import MapSpecification


def is_independent(spec: MapSpecification) -> bool:
    """Return True for independent frequencies in real form, and for grids of bins without hashing."""
    if isinstance(spec, FourierSpecification):
        return spec.sampling == "iid" and spec.form in FORMS
    return isinstance(spec, BinningSpecification)


def pair_variance(spec: Any, k: np.ndarray, k_doubled: np.ndarray) -> np.ndarray:
    """Return the variance of ⟨z(x), z(x')⟩ over draws of an independent map.

    Parameters
    ----------
    spec : MapSpecification
        For which `is_independent`.
    k, k_doubled : ndarray
        k(δ) and k(2δ) of the pairs.

    Notes
    -----
    With κ = k/k(0): k(0)²/D·(1 + κ(2δ) − 2κ(δ)²) for "cos_sin", k(0)²/D·(1 + κ(2δ)/2 − κ(δ)²) for "phase"
    (Sutherland and Schneider 2015, section 2), k(0)²/P·κ(δ)(1 − κ(δ)) for P indicators of a shared bin.
    """
    unit = spec.at_zero
    kappa, kappa_doubled = k / unit, k_doubled / unit
    if isinstance(spec, BinningSpecification):
        return unit**2 / spec.n_grids * np.maximum(kappa * (1 - kappa), 0.0)
    share = 1.0 if spec.form == "cos_sin" else 0.5
    spread = 1 + share * kappa_doubled - 2 * share * kappa**2
    return unit**2 / spec.n_features * np.maximum(spread, 0.0)


def error_bounds(
    spec: MapSpecification, delta: float, n_pairs: int, block_rows: int, norms: np.ndarray
) -> dict[str, float | None]:
    """Return what errors exceed with probability at most δ over draws of the map; None where none holds.

    Parameters
    ----------
    spec : MapSpecification
    delta : float
    n_pairs : int
        Pairs that `max_bound` is for, all together.
    block_rows : int
    norms : ndarray
        ‖K‖ of the blocks that `spectral_bound` is for, all together: of the mean of their errors.
    """
    if not is_independent(spec):
        return {"max_bound": None, "spectral_bound": None}
    unit = spec.at_zero
    for_pairs = for_blocks = spec.n_features
    if isinstance(spec, BinningSpecification):
        # A grid is one indicator, which bounds a pair as eight columns do, and one positive matrix of norm
        # at most n, as two columns are.
        for_pairs, for_blocks = 8 * spec.n_grids, 2 * spec.n_grids
    spectral = [
        spectral_norm_error(delta / len(norms), for_blocks, block_rows, float(norm) / unit) for norm in norms
    ]
    return {
        "max_bound": unit * pairs_error(delta, for_pairs, n_pairs),
        "spectral_bound": unit * float(np.mean(spectral)),
    }
