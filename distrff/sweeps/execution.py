"""Where tasks run: on the ambient cluster, or by dask's configured scheduler in this process."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import dask
from dask.system import CPU_COUNT
from distributed import default_client, get_worker
from distributed.system import MEMORY_LIMIT
from threadpoolctl import ThreadpoolController

from distrff.data.rows import Rows
from distrff.sweeps.cluster_execution import ClusterExecution
from distrff.sweeps.merge_order import OrderedMerge
from distrff.sweeps.progress import Progress
from distrff.sweeps.reduction import Partial, Reduction, merge_partials, reduce_rows

_LOCAL_SCHEDULERS = {
    "sync", "synchronous", "single-threaded", "threads", "threading", "processes", "multiprocessing",
}  # fmt: skip
_SYNCHRONOUS = {"sync", "synchronous", "single-threaded"}


class Workers(Protocol):
    """What a plan asks of workers."""

    @property
    def n_workers(self) -> int: ...

    @property
    def threads_per_worker(self) -> int: ...

    @property
    def memory_limit(self) -> int:
        """Bytes a worker; 0 for none."""


@dataclass(frozen=True)
class PlannedWorkers:
    """Workers that need not be there yet."""

    n_workers: int
    threads_per_worker: int
    memory_limit: int


class Execution(Workers, Protocol):
    """Runs a sweep's tasks and keeps what they return near the workers."""

    n_threads: int
    in_client: bool
    """Whether the tasks share the client's process, and its memory."""

    def reduce(
        self, reduction: Reduction, segments: list[Rows], progress: Progress, shipped: list[Any]
    ) -> Any:
        """Return a handle on the merged partial of all segments."""

    def submit(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return a handle on `function(*args)`, where args may be handles or lists of them."""

    def submit_all(self, function: Callable[..., Any], calls: list[tuple]) -> list[Any]:
        """Return handles on `function(*args)` for each of the calls, which may run side by side."""

    def ship(self, arrays: dict[str, Any]) -> Any:
        """Return a handle on arrays that tasks may take."""

    def gather(self, handles: list[Any]) -> list[Any]:
        """Return the results behind the handles."""

    def settle(self, handle: Any) -> Any:
        """Return a handle that outlives its fit, without the rows that would make its value again."""


class LocalExecution:
    """Runs tasks by one of dask's own schedulers, a round of one segment a thread at a time."""

    n_workers = 1
    in_client = True

    def __init__(self, scheduler: str | None) -> None:
        self._scheduler = scheduler
        self.n_threads = 1 if scheduler in _SYNCHRONOUS else int(dask.config.get("num_workers", CPU_COUNT))
        self.threads_per_worker = self.n_threads
        self.memory_limit = int(MEMORY_LIMIT)
        self._fit = uuid.uuid4().hex

    def reduce(
        self, reduction: Reduction, segments: list[Rows], progress: Progress, shipped: list[Any]
    ) -> Partial:
        merge = OrderedMerge(len(segments), lambda total, others: merge_partials(reduction, total, others))
        for start in range(0, len(segments), self.n_threads):
            batch = segments[start : start + self.n_threads]
            partials = self.submit_all(reduce_rows, [(reduction, rows, shipped, self._fit) for rows in batch])
            for offset, partial in enumerate(partials):
                merge.add(start + offset, partial)
                progress.advance(batch[offset].stop - batch[offset].start)
            del partials, partial  # or they would wait beside those of the next round
        return merge.result()

    def _compute(self, tasks: list[Any]) -> tuple[Any, ...]:
        # One BLAS thread a task, as on a cluster's workers: the same bits, and no more threads than cores.
        with _libraries().limit(limits=1, user_api="blas"):
            return dask.compute(*tasks, scheduler=self._scheduler)

    def ship(self, arrays: dict[str, Any]) -> Any:
        return arrays

    def submit(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.submit_all(function, [args])[0]

    def submit_all(self, function: Callable[..., Any], calls: list[tuple]) -> list[Any]:
        tasks = [dask.delayed(function, pure=False)(*args) for args in calls]
        return list(self._compute(tasks))

    def gather(self, handles: list[Any]) -> list[Any]:
        return handles

    def settle(self, handle: Any) -> Any:
        return handle


@cache
def _libraries() -> ThreadpoolController:
    """Return the BLAS libraries of this process; to look for them takes milliseconds."""
    return ThreadpoolController()


def ambient_execution() -> Execution:
    """Return the execution that the surroundings ask for.

    Inside a Dask task: this thread alone, so that a search over parameters cannot wait
    for itself. Else the default client, unless dask's configuration names a local
    scheduler; without a client, dask's configured scheduler.
    """
    if _inside_task():
        return LocalExecution("synchronous")
    scheduler = dask.config.get("scheduler", None)
    if scheduler in _LOCAL_SCHEDULERS:
        return LocalExecution(scheduler)
    try:
        client = default_client()
    except ValueError:
        return LocalExecution(scheduler)
    return ClusterExecution(client)


def _inside_task() -> bool:
    try:
        get_worker()
    except ValueError:
        return False
    return True
