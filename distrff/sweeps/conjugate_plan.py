"""What ridge by conjugate gradients will cost, counted before its first task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distrff.errors import PlanRefused
from distrff.features.binning_specification import KEY_ROWS
from distrff.sweeps.bisection import largest
from distrff.sweeps.kink_rows import kept_rows
from distrff.sweeps.merge_order import n_levels
from distrff.sweeps.plan import (
    SLACK_BYTES,
    Plan,
    client_peak_bytes,
    fits,
    refusal,
    storage_remedy,
    worker_peak_bytes,
)
from distrff.sweeps.segments import Segmentation, gram_one_in, margin_tile_rows, sparse_segmentation
from distrff.sweeps.shape import Shape

PRESUMED_SWEEPS = 10
PRESUMED_SWEEPS_AN_ALPHA = 3  # that a search has for each: two products, and the held-out error
MOST_DIRECTIONS = 64  # that one light sweep of a search multiplies
_KEPT_BYTES = 33  # of a row's numbers beside X
_ENTRY_BYTES = 12  # of a sparse number in float64
# In all of them together: half a gigabyte, of which the client holds some at a time.
_MOST_DIRECTION_NUMBERS = 2**26


@dataclass(frozen=True, repr=False)
class ConjugatePlan(Plan):
    """A plan whose passes are light; how many they are shows only in the fit, ten are presumed.

    Parameters
    ----------
    one_in : int
        The preconditioner is the factor of the Gram of one row in so many; 0 for a diagonal one, where
        a Gram does not fit in the workers' memory.
    n_factors : int
        0 for a diagonal preconditioner.
    n_search_sweeps : int
        Among the sweeps, those presumed for the choice of alpha, in which the machines of `folds_per_task`
        folds are side by side.
    """

    one_in: int = 0
    n_factors: int = 0
    n_search_sweeps: int = 0

    @property
    def preconditioner(self) -> str:
        """What it is made of, as people read it."""
        if not self.one_in:
            return "diagonal"
        return "factor of the Gram of " + ("all rows" if self.one_in == 1 else f"one row in {self.one_in}")

    def remarks(self) -> list[str]:
        method = "no Gram" if self.shape.sparse_entries else "conjugate gradients"
        search = f" after {self.n_search_sweeps} that choose alpha" if self.n_search_sweeps else ""
        sweeps = f"{PRESUMED_SWEEPS} light sweeps presumed{search}"
        return [f"{method}, preconditioner: {self.preconditioner}; {sweeps}"]


def count_conjugate(
    shape: Shape, *, n_alphas: int, n_workers: int, threads_per_worker: int, memory_limit: int
) -> ConjugatePlan:
    """Return the plan with the preconditioner that fits: a factor if possible, else a diagonal.

    A search by folds has as many of them side by side as fit.

    Parameters
    ----------
    n_alphas : int
        Factors at most, one for each of the different penalties.

    Raises
    ------
    PlanRefused
        If a worker would need more than 0.8 of its memory limit; the message names the
        smallest changes that fit.
    """
    cluster = {"n_workers": n_workers, "threads_per_worker": threads_per_worker, "memory_limit": memory_limit}
    plan = _counted(shape, 0 if shape.sparse_entries else n_alphas, cluster)
    if not fits(plan):
        plan = _counted(shape, 0, cluster)
    if not fits(plan):
        plan = _counted(shape, 0, cluster, most_folds=1)
    if not fits(plan):
        too_many = f"too many bins, {shape.n_features:,} at least: " if shape.sparse_entries else ""
        raise PlanRefused(too_many + refusal(plan, _remedies(plan, cluster)))
    return plan


def light_cuts(shape: Shape) -> Segmentation:
    """Return the cuts of a light sweep, whose tiles of features stay in a cache in float64."""
    if shape.sparse_entries:
        return sparse_segmentation(shape.n_rows, shape.sparse_entries)
    exact = np.dtype(np.float64)
    tile_rows = margin_tile_rows(shape.n_features, exact, shape.map_cost.least_tile_rows)
    return replace(shape.segmentation(), tile_rows=tile_rows)


def sample_shape(shape: Shape, one_in: int) -> Shape:
    """Return the shape of the sample's Gram.

    Its products are float64: its rows are few, and its rounding would cost light sweeps where alpha is small.
    """
    return replace(shape, dtype="float64", n_folds=1, gram_one_in=one_in)


def _counted(
    shape: Shape, n_factors: int, cluster: dict[str, int], most_folds: int = MOST_DIRECTIONS
) -> ConjugatePlan:
    s, cuts = shape, light_cuts(shape)
    one_in = gram_one_in(s.n_rows, s.n_features) if n_factors else 0
    sample_rows = s.n_rows / one_in if one_in else 0.0
    folds_at_once = min(most_folds, _folds_at_once(s))
    in_search = min(MOST_DIRECTIONS, s.n_outputs * folds_at_once)
    after_it = s.n_outputs if s.n_folds > 1 else max(s.n_outputs, s.n_light_columns)
    most_columns = max(in_search, after_it)
    n_search = _search_sweeps(s, folds_at_once)
    light = s.n_rows * (
        (PRESUMED_SWEEPS + n_search) * s.basis_flops
        + 4.0 * s.row_entries * (PRESUMED_SWEEPS * after_it + n_search * in_search)
    )
    factor = sample_rows * (s.map_flops + s.size**2) + n_factors * float(s.n_features) ** 3 / 3
    n_sweeps = 1 + s.n_map_passes + bool(one_in) + PRESUMED_SWEEPS + n_search
    threads = cluster["threads_per_worker"]
    peak_bytes = max(
        _light_peak_bytes(s, most_columns, threads),
        _factor_peak_bytes(s, one_in, n_factors, threads),
        _model_peak_bytes(s, threads),
    )
    return ConjugatePlan(
        shape=s,
        folds_per_task=folds_at_once,
        n_sweeps=n_sweeps,
        n_segments=cuts.n_segments,
        segment_rows=cuts.segment_rows,
        tile_rows=cuts.tile_rows,
        flops=light + factor + s.map_factor_flops,
        cosines=((PRESUMED_SWEEPS + n_search) * s.n_rows + sample_rows) * s.row_entries,
        bytes_read=float(s.n_rows) * s.row_bytes * n_sweeps,
        worker_peak_bytes=peak_bytes,
        client_peak_bytes=client_peak_bytes(replace(s, n_outputs=most_columns)),
        one_in=one_in,
        n_factors=n_factors,
        n_search_sweeps=n_search,
        **cluster,
    )


def _folds_at_once(shape: Shape) -> int:
    """Return how many folds' machines a search has side by side: a function of n, D, k and folds alone."""
    numbers = max(1, shape.n_features * shape.n_outputs)
    most = min(MOST_DIRECTIONS // max(1, shape.n_outputs), _MOST_DIRECTION_NUMBERS // numbers)
    return max(1, min(shape.n_folds, most))


def walk_stride(n_alphas: int) -> int:
    """Return in which strides a search walks down a grid of alphas before it looks between them."""
    return 1 << max(0, (n_alphas // 6).bit_length() - 1)


def _search_sweeps(shape: Shape, folds_at_once: int) -> int:
    """Return the sweeps presumed for a search by folds, as if its first walk went to the end of the grid."""
    if shape.n_folds == 1:
        return 0
    stride = walk_stride(shape.n_alphas)
    n_alphas = -(-shape.n_alphas // stride) + 2 * (stride.bit_length() - 1)
    turns = -(-shape.n_outputs * folds_at_once // MOST_DIRECTIONS)
    return -(-shape.n_folds // folds_at_once) * (1 + n_alphas * turns * PRESUMED_SWEEPS_AN_ALPHA)


def _light_peak_bytes(shape: Shape, k: int, threads: int) -> int:
    """Return the largest resident set above idle in a light sweep of k vectors: O(D·k) a thread, and a tile.

    Each thread holds a tile of features in their dtype, in float64 and squared, or the bins of a sparse one
    and the keys of some rows; its values, the rows that it is made of and those of a storage chunk, and its
    sums and those of a tile. Beside these there are the partials that wait, the map's arrays and the points.
    """
    s, cuts = shape, light_cuts(shape)
    features = (
        4 * cuts.tile_rows * s.sparse_entries + 3 * 8 * KEY_ROWS * s.sparse_entries
        if s.sparse_entries
        else cuts.tile_rows * s.n_features * (s.itemsize + 16)
    )
    tile = features + cuts.tile_rows * 8 * 6 * k
    tile_bytes = s.row_bytes + 16 * s.column_entries
    rows = s.reading_bytes(cuts.segment_rows) + tile_bytes * cuts.tile_rows
    n_kept = min(2 * kept_rows(s.n_features, s.sparse_entries), s.n_rows) if s.model_rows else 0
    kept = n_kept * (8 * s.n_columns + _KEPT_BYTES) * k
    sums = 8 * s.n_features * (2 + 2 * k) + kept
    n_partials = threads + 2 + n_levels(cuts.n_segments)
    arrays = s.map_bytes + 16 * s.n_features * k
    return int(threads * (tile + rows + 2 * sums) + n_partials * sums + arrays + SLACK_BYTES)


def _model_peak_bytes(shape: Shape, threads: int) -> int:
    """Return the largest resident set above idle in solving models of sparse rows, one a thread."""
    s = shape
    n_rows = min(s.model_rows, s.n_rows)
    # The rows, their features as they are made, signed, squared and while their formats change, and points.
    features = n_rows * s.row_entries * (s.itemsize + 4 + 4 * _ENTRY_BYTES)
    rows = n_rows * (8 * s.n_columns + _KEPT_BYTES)
    points = 8 * 8 * s.n_features
    tasks = min(threads, s.n_outputs)
    return int(tasks * (features + 2 * rows + points) + s.map_bytes + SLACK_BYTES) if n_rows else 0


def _factor_peak_bytes(shape: Shape, one_in: int, n_factors: int, threads: int) -> int:
    """Return the largest resident set above idle in making the factors.

    It is that of the sample's Gram sweep, and the factors.
    """
    if not one_in:
        return 0
    return worker_peak_bytes(sample_shape(shape, one_in), 1, threads) + 8 * n_factors * shape.size**2


def _remedies(plan: ConjugatePlan, cluster: dict[str, int]) -> list[str]:
    def again(threads: int | None = None, **changes: Any) -> ConjugatePlan:
        other = cluster if threads is None else cluster | {"threads_per_worker": threads}
        return _counted(replace(plan.shape, **changes), 0, other, most_folds=1)

    features = largest(range(2, plan.shape.n_features, 2), lambda D: fits(again(n_features=D)))
    threads = largest(range(1, plan.threads_per_worker), lambda t: fits(again(threads=t)))
    size = "n_bins" if plan.shape.sparse_entries else "n_components"
    return [
        *storage_remedy(plan, lambda smaller: fits(_counted(smaller, 0, cluster, most_folds=1))),
        *([f"{size}={features}"] if features else []),
        *([f"{threads} thread(s) a worker"] if threads else []),
    ]
