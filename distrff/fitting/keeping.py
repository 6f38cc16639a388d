"""What stays in the workers' memory between light passes: features, or rows alone, if there is room."""

from __future__ import annotations

from dataclasses import replace

from distrff.engine.execution import Workers
from distrff.engine.segments import Segmentation
from distrff.errors import PlanRefused
from distrff.fitting.plan import (
    IDLE_BYTES,
    PRESUMED_PASSES,
    PRESUMED_SWEEPS,
    Plan,
    Size,
    epoch_cuts,
    light_cuts,
    margin_cuts,
)
from distrff.utils.text import human_bytes

# Dask writes values to disk from this share of a worker's memory on (distributed.worker.memory.target).
_KEPT_SHARE = 0.6
# Of the machine's memory, where tasks run in the client: the rest is not the fit's alone.
_SHARE_OF_MACHINE = 0.25
# What a core takes, about, to tell whether features take longer to make than to read: a flop of a product, a
# cosine, a kernel value with a landmark (always float64), and a byte of features that are in no cache.
_FLOP = {"float32": 1e-11, "float64": 2e-11}
_COSINE = {"float32": 0.35e-9, "float64": 0.8e-9}
_KERNEL_VALUE = 3e-9
_BYTE = 1e-10


def with_kept(plan: Plan, wish: str | bool, workers: Workers) -> Plan:
    """Return the plan with what stays on the workers between its light passes.

    `wish` is "auto", which keeps what there is room for if features take longer to make than to read, but
    nothing in a nested fit; True for all features, or False for nothing.

    Raises PlanRefused if all were wished for and there is no room for them.
    """
    size, cuts = plan.size, _cuts_of_passes(plan)
    if wish is False or not cuts:
        return plan
    if not workers.hold_values:
        if wish is True:
            raise PlanRefused(
                "keep_features=True needs workers that hold what they made, and dask's processes send it to "
                "and fro with each task; use a cluster or threads, or keep_features='auto'"
            )
        return plan
    room = _room(plan, workers)
    of_features, of_rows = _feature_bytes(size) + size.row_bytes, size.row_bytes
    if wish is True:
        room = max(room, 0.0) if plan.memory_limit else float("inf")
    # Without a limit nothing says how much may be filled; fits beside this one would each take as much.
    elif not plan.memory_limit or workers.is_nested:
        return plan
    share, n_workers = room / len(cuts), workers.n_workers
    n_features = min(_rows_within(share, one, of_features, n_workers) for one in cuts)
    if wish is True and n_features < size.n_rows:
        needed = sum(of_features * _rows_a_worker(size.n_rows, one, n_workers) for one in cuts)
        raise PlanRefused(_refusal(plan, needed, _share(workers)))
    if wish == "auto" and not _pays(size):
        n_features = 0
    taken = [of_features * _rows_a_worker(n_features, one, n_workers) for one in cuts]
    n_rows = min(
        _rows_within(share - bytes_, one, of_rows, n_workers) for one, bytes_ in zip(cuts, taken, strict=True)
    )
    n_rows = min(n_rows, size.n_rows - n_features)
    kept_bytes = sum(taken) + sum(of_rows * _rows_a_worker(n_rows, one, n_workers) for one in cuts)
    again, joining = _n_light_passes(plan) - len(cuts), _joining_bytes(plan) if kept_bytes else 0.0
    return replace(
        plan,
        kept_features=n_features,
        kept_rows=n_rows,
        kept_bytes=int(kept_bytes),
        worker_peak_bytes=plan.worker_peak_bytes + int(kept_bytes + joining),
        flops=plan.flops - again * n_features * size.basis_flops,
        cosines=plan.cosines - again * float(n_features) * size.row_entries,
        bytes_read=plan.bytes_read - again * float(n_features + n_rows) * size.row_bytes,
    )


def _feature_bytes(size: Size) -> float:
    """Return the bytes of a row's features as light passes take them, those of a basis in float64."""
    if size.sparse_entries:
        return 4.0 * size.sparse_entries
    return float(size.n_features) * (8 if size.triangle_numbers else size.itemsize)


def _cuts_of_passes(plan: Plan) -> list[Segmentation]:
    """Return the cuts of the light passes; of SGD those of evaluations and those of epochs."""
    size = plan.size
    if plan.solver == "sgd":
        return [margin_cuts(size), epoch_cuts(size)]
    if plan.solver == "cg":
        return [margin_cuts(size) if size.n_problems else light_cuts(size)]
    has_passes = plan.solver == "gram" and size.n_light_sweeps and not size.dual_rows
    return [margin_cuts(size)] if has_passes else []


def _n_light_passes(plan: Plan) -> int:
    if plan.solver == "sgd":
        return PRESUMED_PASSES
    if plan.solver == "cg":
        return PRESUMED_SWEEPS + plan.n_search_sweeps
    return plan.size.n_light_sweeps


def _share(workers: Workers) -> float:
    return _SHARE_OF_MACHINE if workers.in_client else _KEPT_SHARE


def _room(plan: Plan, workers: Workers) -> float:
    """Return the bytes of a worker that the fit leaves of the share of its memory that may be filled."""
    return _share(workers) * plan.memory_limit - plan.worker_peak_bytes - IDLE_BYTES - _joining_bytes(plan)


def _joining_bytes(plan: Plan) -> float:
    """Return the bytes of the pieces of sparse rows that each thread joins to a segment that is kept."""
    size = plan.size
    longest = max(one.segment_rows for one in _cuts_of_passes(plan))
    return float(plan.threads_per_worker * longest * size.row_bytes) if size.column_share < 1 else 0.0


def _rows_within(room: float, cuts: Segmentation, row_bytes: float, n_workers: int) -> int:
    """Return how many rows all workers keep, in whole segments."""
    a_worker = min(room / (cuts.segment_rows * row_bytes), -(-cuts.n_segments // n_workers))
    return min(max(0, int(a_worker)) * n_workers * cuts.segment_rows, cuts.n_rows)


def segments_a_worker(n_rows: int, cuts: Segmentation, n_workers: int) -> int:
    """Return the most segments that a worker keeps where all workers together keep so many rows."""
    return -(-n_rows // (cuts.segment_rows * n_workers))


def _rows_a_worker(n_rows: int, cuts: Segmentation, n_workers: int) -> int:
    """Return their rows, of whole segments: the workers with most of them decide the peak."""
    return min(n_rows, segments_a_worker(n_rows, cuts, n_workers) * cuts.segment_rows)


def _pays(size: Size) -> bool:
    """Return whether a row's features take longer to make than to read."""
    entry = _KERNEL_VALUE if size.triangle_numbers or size.sparse_entries else _COSINE[size.dtype]
    making = size.basis_flops * _FLOP[size.dtype] + size.row_entries * entry
    return making > _feature_bytes(size) * _BYTE


def _refusal(plan: Plan, needed: float, share: float) -> str:
    whole = needed + plan.worker_peak_bytes + IDLE_BYTES
    return (
        f"keep_features=True needs {human_bytes(needed)} a worker, in whole segments, beside the "
        f"{human_bytes(plan.worker_peak_bytes)} of the fit and the {human_bytes(IDLE_BYTES)} of an idle "
        f"worker, but {share:.0%} of its memory limit of {human_bytes(plan.memory_limit)} are "
        f"{human_bytes(share * plan.memory_limit)}; use keep_features='auto', which keeps what there is room "
        f"for, or a memory limit of {human_bytes(1.01 * whole / share)}"
    )
