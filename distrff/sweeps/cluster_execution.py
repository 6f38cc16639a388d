"""Tasks on a distributed cluster: a segment a thread under way, ordered merges, nothing pinned."""

from __future__ import annotations

import queue
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

import dask
from distributed import Client, Future, KilledWorker

from distrff.data.rows import Rows
from distrff.errors import ClusterError
from distrff.sweeps.merge_order import OrderedMerge
from distrff.sweeps.progress import Progress
from distrff.sweeps.reduction import Partial, Reduction, merge_partials, merged_here, reduce_rows
from distrff.sweeps.segment_shares import SegmentShares

_LARGE_PARTIAL = 2**20
_SMALL_BYTES, _SMALL_SHIPMENT = 2**23, 2**18
_LOOK_AT_WORKERS_SECONDS = 5.0
_NO_WORKERS_SECONDS = 60.0
_LOST_TASK_SECONDS = 0.1
_MOST_LOOKS = 10
_ANY_WORKER = "any"


class ClusterExecution:
    """Runs tasks through a `distributed.Client`, which stays in this object and is never pickled.

    A segment a thread is under way, and where partials are small a second one is ready, so
    that no thread waits for the client. Each segment is sent to the worker that has a
    thread free for it: left to itself, the scheduler may queue it behind a segment of
    another. Partials are merged as soon as their neighbours are there, so those alive are
    one a thread and the few that wait in the tree of merges.

    Raises
    ------
    ClusterError
        If the cluster has no workers, or none that takes tasks for a minute.
    """

    in_client = False

    def __init__(self, client: Client) -> None:
        self.client = client
        self._fit = uuid.uuid4().hex
        workers = list(self.workers().values())
        if not workers:
            raise ClusterError(
                "the cluster has no workers; add some (cluster.scale(2), or `dask worker ADDRESS`) "
                "and try again"
            )
        self.n_workers = len(workers)
        self.n_threads = sum(worker["nthreads"] for worker in workers)
        self.threads_per_worker = max(worker["nthreads"] for worker in workers)
        self.memory_limit = min((w["memory_limit"] for w in workers if w["memory_limit"]), default=0)

    def workers(self) -> dict[str, dict[str, Any]]:
        """Return what the scheduler knows of each worker now, by address.

        The client renews what it shows from time to time without any worker, which can come
        between asking and looking: then it is asked again.
        """
        info = self.client.scheduler_info(n_workers=-1)
        for _ in range(_MOST_LOOKS):
            if len(info["workers"]) == info["n_workers"]:
                break
            info = self.client.scheduler_info(n_workers=-1)
        return info["workers"]

    def running_threads(self) -> dict[str, int]:
        """Return the threads of each worker that takes tasks now, by address."""
        return {
            a: worker["nthreads"] for a, worker in self.workers().items() if worker["status"] == "running"
        }

    def reduce(
        self, reduction: Reduction, segments: list[Rows], progress: Progress, shipped: list[Any]
    ) -> Future | Partial:
        """Return the future of the merged partial when it is finished, or itself if partials are small."""
        flight = _Flight(self)
        here = self._merges_here(reduction, segments)
        merge = OrderedMerge(
            len(segments),
            partial(merged_here, reduction)
            if here
            else lambda total, others: flight.submit(merge_partials, reduction, total, others),
        )
        shares = SegmentShares(len(segments), self.running_threads())
        per_thread = self._segments_per_thread(reduction, segments)
        under_way: dict[str, tuple[int, str]] = {}  # segment and worker of each task
        landed: dict[int, Future] = {}

        def start_where_free() -> None:
            if not shares:
                return
            busy = Counter(worker for _, worker in under_way.values())
            for worker in self._free_places(busy, per_thread):
                if not shares:
                    return
                index = shares.take(worker)
                task = dask.delayed(reduce_rows, pure=False)(reduction, segments[index], shipped, self._fit)
                under_way[flight.compute(task, worker).key] = index, worker

        with flight.cancelled_on_failure():
            start_where_free()
            for future in flight.completed():
                if future.key not in under_way:
                    continue
                index, _ = under_way.pop(future.key)
                if here:
                    landed[index] = future
                else:
                    merge.add(index, future)  # before the next segment, or it would wait behind that
                start_where_free()
                progress.advance(segments[index].stop - segments[index].start)
            for index, found in zip(landed, self.gather(list(landed.values())), strict=True):
                merge.add(index, found)
        return merge.result()

    def _free_places(self, busy: Counter[str], per_thread: int) -> list[str]:
        """Return a worker's address for each task that it could take, the least busy first.

        Workers that joined since the sweep began are among them. If all are gone, one task
        waits for the next to come.
        """
        places = [
            (position, worker)
            for worker, n_threads in self.running_threads().items()
            for position in range(busy[worker], per_thread * n_threads)
        ]
        if not places and not busy:
            return [_ANY_WORKER]
        return [worker for _, worker in sorted(places)]

    def _merges_here(self, reduction: Reduction, segments: list[Rows]) -> bool:
        """Say whether the client takes all partials and merges them: tasks for it would take longer."""
        n_rows = segments[0].stop - segments[0].start
        return reduction.size_bytes(n_rows) * len(segments) <= _SMALL_BYTES

    def _segments_per_thread(self, reduction: Reduction, segments: list[Rows]) -> int:
        n_rows = segments[0].stop - segments[0].start
        return 1 if reduction.size_bytes(n_rows) > _LARGE_PARTIAL else 2

    def ship(self, arrays: dict[str, Any]) -> Any:
        """Return what tasks may take: small arrays as they are, which travel in each task, else a handle.

        Behind it they are recomputed if their worker is lost.
        """
        if sum(A.nbytes for A in arrays.values()) <= _SMALL_SHIPMENT:
            return arrays
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "64GB"}):
            return self.client.submit(_same, arrays, pure=False)

    def check_connection(self) -> None:
        """Raise ClusterError if the scheduler is out of reach."""
        if self.client.status != "running":
            raise ClusterError(
                f"the connection to the scheduler is {self.client.status}; connect to a cluster and fit again"
            )

    def submit(self, function: Callable[..., Any], *args: Any) -> Future:
        self.check_connection()
        return self.client.submit(function, *args, pure=False)

    def submit_to(self, worker: str, function: Callable[..., Any], *args: Any) -> Future:
        """Return the future of a task that only this worker may take: to measure it, for no fit."""
        self.check_connection()
        return self.client.submit(function, *args, pure=False, workers=[worker])

    def submit_all(self, function: Callable[..., Any], calls: list[tuple]) -> list[Future]:
        # As delayed tasks, so that rows which hold blocks of a dask array are found and computed.
        return [self.client.compute(dask.delayed(function, pure=False)(*args)) for args in calls]

    def gather(self, handles: list[Future]) -> list[Any]:
        flight = _Flight(self)
        for handle in handles:
            if isinstance(handle, Future):
                flight.watch(handle)
        with flight.cancelled_on_failure():
            for _ in flight.completed():
                pass
        return self.client.gather(handles)


class _Flight:
    """Futures under way, watched until the last has landed."""

    def __init__(self, execution: ClusterExecution) -> None:
        self._execution = execution
        self.client = execution.client
        self._landed: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self._under_way: dict[str, Future] = {}
        self._alive: WeakSet[Future] = WeakSet()

    def compute(self, task: Any, worker: str) -> Future:
        # Rows that live in the client's memory travel inside their own segment's task, on purpose.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "64GB"}):
            where = None if worker == _ANY_WORKER else [worker]
            return self.watch(self.client.compute(task, workers=where, allow_other_workers=bool(where)))

    def submit(self, function: Callable[..., Any], *args: Any) -> Future:
        return self.watch(self.client.submit(function, *args, pure=False, priority=1))

    def watch(self, future: Future) -> Future:
        self._under_way[future.key] = future
        self._alive.add(future)
        future.add_done_callback(self._landed.put)
        return future

    def completed(self) -> Iterator[Future]:
        """Yield the futures as they finish, until none is left; raise the first failure."""
        while self._under_way:
            future = self._next_landed()
            if future.status in ("lost", "pending"):  # its worker died since; the scheduler computes it again
                self._wait_for_workers()
                future.add_done_callback(self._landed.put)
                continue
            self._under_way.pop(future.key, None)
            _raise_failure(future)
            yield future

    def _wait_for_workers(self) -> None:
        """Give the scheduler a moment to find a lost task's next place; raise if there is none for long."""
        time.sleep(_LOST_TASK_SECONDS)
        deadline = time.monotonic() + _NO_WORKERS_SECONDS
        while not self._execution.running_threads():
            self._execution.check_connection()
            if time.monotonic() > deadline:
                raise _nobody_works(self._execution.workers())
            time.sleep(_LOST_TASK_SECONDS)

    def _next_landed(self) -> Future:
        deadline = time.monotonic() + _NO_WORKERS_SECONDS
        while True:
            try:
                return self._landed.get(timeout=_LOOK_AT_WORKERS_SECONDS)
            except queue.Empty:
                self._execution.check_connection()
                if self._execution.running_threads():
                    deadline = time.monotonic() + _NO_WORKERS_SECONDS
                elif time.monotonic() > deadline:
                    raise _nobody_works(self._execution.workers()) from None

    @contextmanager
    def cancelled_on_failure(self) -> Iterator[None]:
        """Cancel what is under way, and free what is done, when the body fails or is interrupted.

        Futures that the failing frames hold would live as long as somebody keeps the traceback.
        """
        try:
            yield
        except BaseException:
            if self.client.status == "running":
                self.client.cancel(list(self._alive), force=True)
            raise


def _nobody_works(workers: dict[str, dict[str, Any]]) -> ClusterError:
    if workers:
        return ClusterError(
            f"all {len(workers)} worker(s) of the cluster have been paused for "
            f"{_NO_WORKERS_SECONDS:.0f} s, which they are while their memory is nearly full; free what "
            f"else they hold (client.restart()), or start workers with more memory, and fit again"
        )
    return ClusterError(
        f"the cluster has had no workers for {_NO_WORKERS_SECONDS:.0f} s; "
        f"look at the workers' logs, start new ones and fit again"
    )


def _raise_failure(future: Future) -> None:
    if future.status == "finished":
        return
    if future.status != "error":
        raise ClusterError(f"a task was {future.status} on the cluster before it finished; fit again")
    error = future.exception()
    if isinstance(error, KilledWorker):
        raise ClusterError(
            f"workers died repeatedly on the same task ({error.task}); most often their memory limit is "
            f"too small: compare it with the plan's peak, or raise distributed.scheduler.allowed-failures "
            f"where workers are preempted"
        ) from error
    raise error


def _same(arrays: Any) -> Any:
    return arrays
