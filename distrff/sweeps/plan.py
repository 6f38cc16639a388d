"""What a fit will cost, counted before its first task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from distrff.display.units import human_bytes
from distrff.errors import PlanRefused
from distrff.sweeps.bisection import largest
from distrff.sweeps.merge_order import n_levels
from distrff.sweeps.plan_display import plan_card, plan_text
from distrff.sweeps.segments import light_segmentation
from distrff.sweeps.shape import Shape

# Dask pauses a worker at 0.8 of its memory limit; a fit planned beyond that would stand still.
_USABLE_SHARE = 0.8
# A worker that has imported distrff, scikit-learn included.
_IDLE_BYTES = 330 * 2**20
# What allocators and readers keep beside the arrays that are counted.
SLACK_BYTES = 80 * 2**20
# The reduction to a band runs at about half the rate of a product.
_REDUCTION_SLOWNESS = 2.0
# A flop of a thin product, whose numbers come from memory for a few flops each, beside one of the Gram's.
THIN_SLOWNESS = 2.5


@dataclass(frozen=True, repr=False)
class Plan:
    """What a fit will do and need.

    Parameters
    ----------
    shape : Shape
    folds_per_task : int
        All folds, or 1 where the Grams of all of them would not fit; then rows are read
        once a fold.
    n_sweeps : int
        Passes over the rows.
    n_segments, segment_rows, tile_rows : int
        Of the Gram sweep.
    flops : float
        Of all sweeps' products and maps, and of the factorisations.
    cosines : float
    bytes_read : float
        Decoded bytes of all passes.
    worker_peak_bytes : int
        Largest resident set of a worker above its idle one.
    client_peak_bytes : int
        Likewise of the client, data that it holds already not counted.
    n_workers, threads_per_worker, memory_limit : int
        Of the cluster that was planned for; limit 0 is none.
    seconds : float or None
        Predicted from rates measured on the live workers; None where nothing was measured.
    """

    shape: Shape
    folds_per_task: int
    n_sweeps: int
    n_segments: int
    segment_rows: int
    tile_rows: int
    flops: float
    cosines: float
    bytes_read: float
    worker_peak_bytes: int
    client_peak_bytes: int
    n_workers: int
    threads_per_worker: int
    memory_limit: int
    seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as strict JSON data."""
        flat = asdict(self)
        return flat.pop("shape") | flat

    def with_seconds(self, seconds: float | None) -> Plan:
        """Return the plan with its predicted time."""
        return replace(self, seconds=seconds)

    def with_posterior(self) -> Plan:
        """Return the plan of a fit whose client stores the posterior too: a D × D factor.

        The client holds it as it arrives, whole, and encoded.
        """
        return replace(self, client_peak_bytes=self.client_peak_bytes + 3 * 8 * self.shape.n_features**2)

    def remarks(self) -> list[str]:
        """Return sentences on how the solver works, where there is more to say than the numbers."""
        return []

    def __repr__(self) -> str:
        return plan_text(self)

    def _repr_html_(self) -> str:
        return plan_card(self)


def count(shape: Shape, *, n_workers: int, threads_per_worker: int, memory_limit: int) -> Plan:
    """Return the plan of a ridge fit, by counting alone.

    Raises
    ------
    PlanRefused
        If a worker would need more than 0.8 of its memory limit; the message names the
        smallest changes that fit.
    """
    plan = _counted(shape, shape.n_folds, n_workers, threads_per_worker, memory_limit)
    if not fits(plan) and shape.n_folds > 1:
        plan = _counted(shape, 1, n_workers, threads_per_worker, memory_limit)
    if not fits(plan):
        raise PlanRefused(refusal(plan, _remedies(plan)))
    return plan


def _counted(
    shape: Shape, folds_per_task: int, n_workers: int, threads_per_worker: int, memory_limit: int
) -> Plan:
    s, cuts = shape, shape.segmentation()
    passes = s.n_folds // folds_per_task
    return Plan(
        shape=s,
        folds_per_task=folds_per_task,
        n_sweeps=1 + s.n_map_passes + passes + s.n_light_sweeps,
        n_segments=cuts.n_segments * passes,
        segment_rows=cuts.segment_rows,
        tile_rows=cuts.tile_rows,
        flops=s.gram_flops + s.n_light_sweeps * s.light_flops + factorisation_flops(s) + s.map_factor_flops,
        cosines=float(s.n_rows) * s.n_features * (1 / s.gram_one_in + s.n_light_sweeps),
        bytes_read=float(s.n_rows) * s.row_bytes * (1 + s.n_map_passes + passes + s.n_light_sweeps),
        worker_peak_bytes=worker_peak_bytes(s, folds_per_task, threads_per_worker),
        client_peak_bytes=client_peak_bytes(s),
        n_workers=n_workers,
        threads_per_worker=threads_per_worker,
        memory_limit=memory_limit,
    )


def worker_peak_bytes(shape: Shape, folds_per_task: int, threads: int) -> int:
    """Return the largest resident set of a worker above idle, in bytes.

    Each thread holds a tile, its product, the rows of a super-tile and of one storage
    chunk, its accumulator and the partial that this is packed into. Beside these there
    are a merge's result, the partial that arrives for it, and at worst all partials that
    wait for their neighbours. The process keeps the map's arrays, in float64 and in the
    dtype of the products. The solve afterwards holds the packed Grams of all folds, and
    their sum and four matrices of its size a thread.
    """
    s, cuts = shape, shape.segmentation()
    accumulator = 8 * folds_per_task * s.size**2
    partial = accumulator / 2
    n_partials = threads + 2 + n_levels(cuts.n_segments)
    n_parts = max(s.n_folds, s.gram_one_in)
    group = cuts.tile_rows + (6 * int(cuts.tile_rows**0.5) if n_parts > 1 else 0)
    tile = group * s.size * s.itemsize + s.itemsize * s.size**2
    block_rows = min(cuts.segment_rows, n_parts * cuts.tile_rows)
    rows = (
        s.reading_bytes(cuts.segment_rows)
        + s.row_bytes * (block_rows + group)
        + 16 * group * s.column_entries
    )
    sweep = threads * (tile + rows + accumulator) + n_partials * partial + s.map_bytes
    if s.n_light_sweeps:  # a Hessian's sweep, beside the Gram
        sweep += 3 * partial
    solve = 8 * s.size**2 * (s.n_folds / 2 + 1 + 4 * threads)
    model_rows = min(s.model_rows, s.n_rows)
    model = model_rows * s.n_features * (8 + s.itemsize) + 6 * 8 * s.size**2 if model_rows else 0
    return int(max(sweep, solve, model) + SLACK_BYTES)


def client_peak_bytes(shape: Shape) -> int:
    """Return the largest resident set of the client above idle, in bytes."""
    D = shape.n_features
    of_map = 2 * D if shape.sparse_entries else shape.map_cost.numbers(D)  # keys and counts, or arrays
    from_features = 8 * (of_map + 4 * D * shape.n_outputs)
    light = light_segmentation(shape.n_rows, shape.n_columns)
    factors = 2 * 8 * shape.triangle_numbers  # K_LL while it is factored, beside the factor
    return int(SLACK_BYTES + 4 * from_features + factors + 2**25 * min(4, light.n_segments))


def factorisation_flops(shape: Shape) -> float:
    """Return the flops of the alpha path with its learning curve, the final machine and eigensystems."""
    D = float(shape.n_features)
    reduction = 4 / 3 * D**3 * _REDUCTION_SLOWNESS
    paths = (shape.n_paths or shape.n_folds) * (reduction + 4 * shape.n_alphas * shape.n_outputs * D**2)
    return (paths if shape.n_alphas > 1 else 0.0) * 8 / 7 + D**3 / 3 + shape.n_eigensystems * reduction


def fits(plan: Plan) -> bool:
    """Return whether its workers have the memory."""
    return not plan.memory_limit or plan.worker_peak_bytes + _IDLE_BYTES <= _USABLE_SHARE * plan.memory_limit


def least_memory_limit(plan: Plan) -> float:
    """Return a memory limit in bytes, hardly more than the least, under which its workers have the memory."""
    return 1.01 * (plan.worker_peak_bytes + _IDLE_BYTES) / _USABLE_SHARE


def refusal(plan: Plan, remedies: list[str]) -> str:
    """Return why a plan is refused, and the smallest changes that fit."""
    needed = plan.worker_peak_bytes + _IDLE_BYTES
    return (
        f"the plan needs {human_bytes(needed)} a worker "
        f"({human_bytes(plan.worker_peak_bytes)} above an idle worker), "
        f"but {_USABLE_SHARE:.0%} of its memory limit of {human_bytes(plan.memory_limit)} is "
        f"{human_bytes(_USABLE_SHARE * plan.memory_limit)}; smallest changes that fit: "
        + "; or ".join([f"a memory limit of {human_bytes(least_memory_limit(plan))}", *remedies])
    )


def _remedies(plan: Plan) -> list[str]:
    shape = plan.shape
    features = largest(range(2, shape.n_features, 2), lambda D: fits(_again(plan, n_features=D)))
    folds = largest(range(2, shape.n_folds), lambda K: fits(_again(plan, n_folds=K)))
    threads = largest(range(1, plan.threads_per_worker), lambda t: fits(_again(plan, threads=t)))
    return [
        *storage_remedy(
            plan, lambda smaller: fits(_counted(smaller, plan.folds_per_task, *_cluster_of(plan)))
        ),
        *([f"n_components={features}"] if features else []),
        *([f"cv={folds}"] if folds else []),
        *([f"{threads} thread(s) a worker"] if threads else []),
    ]


def storage_remedy(plan: Plan, does_fit: Callable[[Shape], bool]) -> list[str]:
    """Return that the rows are to be stored in smaller pieces, where that alone would do."""
    if not does_fit(plan.shape.in_small_chunks()):
        return []
    n_bytes = human_bytes(plan.shape.reading_bytes(plan.segment_rows))
    return [f"smaller chunks or row groups (to read one takes {n_bytes}; `distrff convert` writes them)"]


def _cluster_of(plan: Plan) -> tuple[int, int, int]:
    return plan.n_workers, plan.threads_per_worker, plan.memory_limit


def _again(plan: Plan, *, threads: int | None = None, **changes: Any) -> Plan:
    n_workers, usual_threads, memory_limit = _cluster_of(plan)
    shape = replace(plan.shape, **changes)
    return _counted(shape, plan.folds_per_task, n_workers, threads or usual_threads, memory_limit)
