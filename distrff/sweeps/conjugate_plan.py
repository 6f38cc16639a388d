"""What ridge by conjugate gradients will cost, counted before its first task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distrff.errors import PlanRefused
from distrff.sweeps.merge_order import n_levels
from distrff.sweeps.plan import (
    SLACK_BYTES,
    Plan,
    Shape,
    client_peak_bytes,
    fits,
    largest,
    refusal,
    worker_peak_bytes,
)
from distrff.sweeps.segments import Segmentation, gram_one_in, margin_tile_rows, sparse_segmentation

PRESUMED_SWEEPS = 10
MOST_DIRECTIONS = 64  # that one light sweep of a search multiplies


@dataclass(frozen=True)
class ConjugatePlan(Plan):
    """A plan whose passes are light; how many they are shows only in the fit, ten are presumed.

    Parameters
    ----------
    one_in : int
        The preconditioner is the factor of the Gram of one row in so many; 0 for a diagonal one, where
        a Gram does not fit in the workers' memory.
    n_factors : int
        0 for a diagonal preconditioner.
    """

    one_in: int = 0
    n_factors: int = 0

    @property
    def preconditioner(self) -> str:
        """What it is made of, as people read it."""
        if not self.one_in:
            return "diagonal"
        return "factor of the Gram of " + ("all rows" if self.one_in == 1 else f"one row in {self.one_in}")

    def __str__(self) -> str:
        method = "no Gram" if self.shape.sparse_entries else "conjugate gradients"
        return (
            f"{super().__str__()}\n{method}, preconditioner: {self.preconditioner}; "
            f"{PRESUMED_SWEEPS} light sweeps presumed"
        )


def count_conjugate(
    shape: Shape, *, n_alphas: int, n_workers: int, threads_per_worker: int, memory_limit: int
) -> ConjugatePlan:
    """Return the plan with the preconditioner that fits: a factor if possible, else a diagonal.

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
        raise PlanRefused(refusal(plan, _remedies(plan, cluster)))
    return plan


def light_cuts(shape: Shape) -> Segmentation:
    """Return the cuts of a light sweep, whose tiles of features stay in a cache in float64."""
    if shape.sparse_entries:
        return sparse_segmentation(shape.n_rows, shape.sparse_entries)
    tile_rows = margin_tile_rows(shape.n_features, np.dtype(np.float64))
    return replace(shape.segmentation(), tile_rows=tile_rows)


def sample_shape(shape: Shape, one_in: int) -> Shape:
    """Return the shape of the sample's Gram.

    Its products are float64: its rows are few, and its rounding would cost light sweeps where alpha is small.
    """
    return replace(shape, dtype="float64", n_folds=1, gram_one_in=one_in)


def _counted(shape: Shape, n_factors: int, cluster: dict[str, int]) -> ConjugatePlan:
    s, cuts = shape, light_cuts(shape)
    one_in = gram_one_in(s.n_rows, s.n_features) if n_factors else 0
    map_flops = 2.0 * s.column_entries * s.row_entries + s.triangle_numbers
    sample_rows = s.n_rows / one_in if one_in else 0.0
    light = (
        PRESUMED_SWEEPS * s.n_rows * (map_flops + 4.0 * s.row_entries * max(s.n_outputs, s.n_light_columns))
    )
    factor = sample_rows * (map_flops + s.size**2) + n_factors * float(s.n_features) ** 3 / 3
    n_sweeps = 1 + s.n_map_passes + bool(one_in) + PRESUMED_SWEEPS
    threads = cluster["threads_per_worker"]
    peak_bytes = max(_light_peak_bytes(s, threads), _factor_peak_bytes(s, one_in, n_factors, threads))
    return ConjugatePlan(
        shape=s,
        folds_per_task=1,
        n_sweeps=n_sweeps,
        n_segments=cuts.n_segments,
        segment_rows=cuts.segment_rows,
        tile_rows=cuts.tile_rows,
        flops=light + factor,
        cosines=(PRESUMED_SWEEPS * s.n_rows + sample_rows) * s.row_entries,
        bytes_read=float(s.n_rows) * s.row_bytes * n_sweeps,
        worker_peak_bytes=peak_bytes,
        client_peak_bytes=client_peak_bytes(s),
        one_in=one_in,
        n_factors=n_factors,
        **cluster,
    )


def _light_peak_bytes(shape: Shape, threads: int) -> int:
    """Return the largest resident set above idle in a light sweep: O(D·k) a thread, and a tile.

    Each thread holds a tile of features in their dtype, in float64 and squared, its values, the rows that
    it is made of and those of a storage chunk, and its sums and those of a tile. Beside these there are
    the partials that wait, the map's arrays and the points.
    """
    s, cuts = shape, light_cuts(shape)
    k = max(s.n_outputs, s.n_light_columns)
    tile = cuts.tile_rows * (s.row_entries * (s.itemsize + 16) + 8 * 6 * k)
    rows = s.row_bytes * (2 * s.chunk_rows + cuts.tile_rows) + 2 * cuts.tile_rows * s.column_entries * 8
    sums = 8 * s.n_features * (2 + 2 * k)
    n_partials = threads + 2 + n_levels(cuts.n_segments)
    arrays = s.map_bytes + 16 * s.n_features * k
    return int(threads * (tile + rows + 2 * sums) + n_partials * sums + arrays + SLACK_BYTES)


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
        return _counted(replace(plan.shape, **changes), 0, other)

    features = largest(range(2, plan.shape.n_features, 2), lambda D: fits(again(n_features=D)))
    threads = largest(range(1, plan.threads_per_worker), lambda t: fits(again(threads=t)))
    size = "n_bins" if plan.shape.sparse_entries else "n_components"
    return [
        *([f"{size}={features}"] if features else []),
        *([f"{threads} thread(s) a worker"] if threads else []),
    ]
