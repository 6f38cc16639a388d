"""What a fit by SGD will cost, counted before its first task: no array of D × D, unless it is small."""

from __future__ import annotations

from dataclasses import dataclass, replace

from distrff.errors import PlanRefused
from distrff.sweeps.bisection import largest
from distrff.sweeps.plan import SLACK_BYTES, Plan, client_peak_bytes, fits, refusal, storage_remedy
from distrff.sweeps.segments import Segmentation, sparse_segmentation
from distrff.sweeps.shape import Shape

PRESUMED_EPOCHS = 5
PRESUMED_PASSES = 2 * PRESUMED_EPOCHS + 1
_BATCH_BYTES = 80 * 2**20
_METRIC_BYTES = 2**26
_MOST_ROWS = 2**14
_ROWS_OF_MANY_FEATURES, _MANY_FEATURES = 2**12, 2**12
_SPARSE_ROWS, _SPARSE_BYTES = 2**11, 12


@dataclass(frozen=True, repr=False)
class SGDPlan(Plan):
    """A plan of epochs and evaluations; how many they are shows only in the fit, five are presumed."""

    def remarks(self) -> list[str]:
        return [f"SGD; {PRESUMED_EPOCHS} epochs and their evaluations presumed"]


def metric_rows(n_sampled: int, shape: Shape) -> int:
    """Return how many of the sampled rows the metric is made of.

    All, up to 4096 features; beyond, where their eigenvectors would take minutes, 4096. Of sparse features
    2048, whose products with each other every step multiplies.
    """
    if shape.sparse_entries:
        return min(n_sampled, _SPARSE_ROWS)
    most = _MOST_ROWS if shape.n_features <= _MANY_FEATURES else _ROWS_OF_MANY_FEATURES
    return min(n_sampled, most)


def epoch_cuts(shape: Shape) -> Segmentation:
    """Return the cuts of an epoch, whose longer segments get further."""
    if shape.sparse_entries:
        return sparse_segmentation(shape.n_rows, shape.sparse_entries)
    return shape.segmentation()


def count_sgd(shape: Shape, *, n_workers: int, threads_per_worker: int, memory_limit: int) -> SGDPlan:
    """Return the plan of five epochs with their evaluations.

    Raises
    ------
    PlanRefused
        If a worker would need more than 0.8 of its memory limit.
    """
    cluster = {"n_workers": n_workers, "threads_per_worker": threads_per_worker, "memory_limit": memory_limit}
    plan = _counted(shape, cluster)
    if not fits(plan):
        features = largest(
            range(2, shape.n_features, 2), lambda D: fits(_counted(replace(shape, n_features=D), cluster))
        )
        size = "n_bins" if shape.sparse_entries else "n_components"
        remedies = storage_remedy(plan, lambda smaller: fits(_counted(smaller, cluster)))
        raise PlanRefused(refusal(plan, [*remedies, *([f"{size}={features}"] if features else [])]))
    return plan


def _counted(shape: Shape, cluster: dict[str, int]) -> SGDPlan:
    s, cuts = shape, epoch_cuts(shape)
    passes = PRESUMED_PASSES
    evaluation = s.n_rows * (s.basis_flops + 6.0 * s.row_entries * s.n_outputs)
    epoch = s.n_rows * (s.map_flops + 10.0 * s.row_entries * s.n_outputs)
    sample = metric_rows(min(s.n_rows, _MOST_ROWS), s)
    small = min(sample, s.n_features)
    metric = 2.0 * sample * s.row_entries * small + 9.0 * small**3
    return SGDPlan(
        shape=s,
        folds_per_task=1,
        n_sweeps=1 + s.n_map_passes + passes,
        n_segments=cuts.n_segments,
        segment_rows=cuts.segment_rows,
        tile_rows=cuts.tile_rows,
        flops=(PRESUMED_EPOCHS + 1) * evaluation + PRESUMED_EPOCHS * epoch + metric + s.map_factor_flops,
        cosines=float(s.n_rows) * s.row_entries * passes,
        bytes_read=float(s.n_rows) * s.row_bytes * (1 + s.n_map_passes + passes),
        worker_peak_bytes=_worker_peak_bytes(s, cluster["threads_per_worker"]),
        client_peak_bytes=client_peak_bytes(s) + _METRIC_BYTES,
        **cluster,
    )


def _worker_peak_bytes(shape: Shape, threads: int) -> int:
    """Return the largest resident set above idle: of an epoch, or of the making of the metric."""
    s = shape
    sample = metric_rows(min(s.n_rows, _MOST_ROWS), s)
    small = min(sample, s.n_features)
    # A batch of features with its map's phases, the rows of a storage chunk, and the points.
    entry_bytes = _SPARSE_BYTES if s.sparse_entries else s.itemsize
    batch = min(_BATCH_BYTES, epoch_cuts(s).segment_rows * s.row_entries * entry_bytes)
    rows = s.reading_bytes(epoch_cuts(s).segment_rows) + s.row_bytes * s.chunk_rows
    points = (12 if s.sparse_entries else 8) * 8 * s.n_features * s.n_outputs
    arrays = s.map_bytes
    epoch = threads * (2 * batch + rows + points) + 2 * _METRIC_BYTES + arrays
    metric = 2 * sample * s.row_entries * entry_bytes + 4 * 8 * small**2 + 2 * _METRIC_BYTES + arrays
    return int(max(epoch, metric) + SLACK_BYTES)
