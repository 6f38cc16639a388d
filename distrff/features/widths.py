"""Widths that a kernel leaves to the fit: what every map calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distrff.features.ard import relevance_flops, relevant_length_scales
from distrff.features.length_scale import automatic_length_scale, search_flops
from distrff.features.pilot import MakePilot
from distrff.features.row_question import Ask
from distrff.features.tempering import tempered_widths, tempering_flops
from distrff.kernels import Kernel


def chosen_widths(
    kernel: Kernel,
    X: np.ndarray,
    y: Any,
    sample_weight: Any,
    *,
    make_pilot: MakePilot,
    seed: int,
    ask: Ask,
    tempers_ard: bool = False,
) -> tuple[Kernel, dict[str, Any] | None]:
    """Return the kernel with every width a number, and how they were found.

    Parameters
    ----------
    kernel : Kernel
        Returned as it is where no width is undecided.
    X : ndarray of shape (n_samples, n_columns)
        The sample of rows that the map is handed.
    y : array-like of shape (n_samples,) or (n_samples, n_targets), or None
    sample_weight : array-like of shape (n_samples,) or None
    make_pilot : callable
        Makes the map's pilot, by which an automatic width is judged.
    seed : int
        The map's own.
    ask : Ask
        What the map may ask of all rows.
    tempers_ard : bool
        Whether the pilot judges learned widths as well (`tempered_widths`).

    Returns
    -------
    kernel : Kernel
    search : dict or None
        Strict JSON, see `automatic_length_scale` and `relevant_length_scales`; None for explicit widths.

    Raises
    ------
    InputError
        If the widths cannot be found from these rows and targets.
    """
    if kernel.is_ard:
        learned, search = relevant_length_scales(kernel, X, y, sample_weight, seed=seed, ask=ask)
        if not tempers_ard:
            return learned, search
        # Rows without weight are no rows; there are as many among all as in the sample.
        share = 1.0 if sample_weight is None else np.count_nonzero(sample_weight) / len(X)
        return tempered_widths(
            kernel,
            search,
            X,
            y,
            sample_weight,
            make_pilot=make_pilot,
            seed=seed,
            n_rows=round(share * ask.n_rows),
        )
    if kernel.is_auto:
        return automatic_length_scale(kernel, X, y, sample_weight, make_pilot=make_pilot, seed=seed)
    return kernel, None


def width_flops(
    kernel: Kernel | None,
    n_rows: int,
    n_columns: int,
    pilot_flops: Callable[[int], float],
    *,
    tempers_ard: bool = False,
) -> float:
    """Return about how many flops `chosen_widths` takes; `pilot_flops` are those of one width and n rows."""
    if kernel is None or not kernel.is_auto:
        return 0.0
    if not kernel.is_ard:
        return search_flops(n_rows, pilot_flops)
    tempering = tempering_flops(n_rows, n_columns, pilot_flops) if tempers_ard else 0.0
    return relevance_flops(n_rows, n_columns) + tempering
