"""Tasks on a distributed cluster: a segment a thread under way, ordered merges, all of it repeatable."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import dask
from distributed import Client, Future

from distrff.data.rows import Rows
from distrff.errors import ClusterError
from distrff.sweeps.cluster_flight import ANY_WORKER, Flight, large_graphs
from distrff.sweeps.cluster_values import Call, ClusterValue, Lost, calls_in, futures_in
from distrff.sweeps.cluster_watch import Roll
from distrff.sweeps.merge_order import OrderedMerge
from distrff.sweeps.progress import Progress
from distrff.sweeps.reduction import Partial, Reduction, merge_partials, merged_here, reduce_rows
from distrff.sweeps.segment_shares import SegmentShares

logger = logging.getLogger(__name__)

_LARGE_PARTIAL = 2**20
_SMALL_BYTES, _SMALL_SHIPMENT = 2**23, 2**18
_MOST_ATTEMPTS = 5

# Of all fits, as what a fitted machine keeps can be in the way of another fit.
_CALLS: WeakKeyDictionary[Client, WeakSet[Call]] = WeakKeyDictionary()

T = TypeVar("T")


class ClusterExecution:
    """Runs tasks through a `distributed.Client`, which stays in this object and is never pickled.

    A segment a thread is under way, and where partials are small a second one is ready, so
    that no thread waits for the client. Each segment is sent to the worker that has a
    thread free for it. Left to itself, the scheduler queues some behind a segment of
    another worker, and all that take a shipped array where that array is. On two workers real
    passes do not show it (Gram of D = 2048 over 200,000 rows: 10.3 s bound, 10.1 s free; light
    sweeps of D = 256 over a million: 4.46 and 4.48 s). Of tasks that sleep, with two and eight
    workers, free passes over segments of .3 s took 1.08 and 1.2 times as long, and passes of .2 s
    that ship a megabyte 1.25 and 2.1 times; light sweeps of 400,000 rows of a lazy dask array
    took 9.5 in place of 5.1 s with two workers, since its blocks are spread over all.
    Partials are merged as soon as their neighbours are there, so those alive are one a thread
    and the few that wait in the tree of merges.

    What the cluster lost for good is made again: a dead worker's part by the scheduler; where
    no worker outlived it, or the cluster was restarted, by the calls that the values keep.

    Raises
    ------
    ClusterError
        If the cluster has no workers, or none that takes tasks for a minute, or the client is
        one of an event loop, from which it is called.
    """

    in_client = False

    def __init__(self, client: Client) -> None:
        if client.asynchronous:
            raise ClusterError(
                "this was called from the event loop that the ambient Client(asynchronous=True) runs in, "
                "which it would block; call it in a thread, such as: await asyncio.to_thread(model.fit, X, y)"
            )
        self.client = client
        self.roll = Roll(client)
        self._fit = uuid.uuid4().hex
        self._calls = _CALLS.setdefault(client, WeakSet())
        workers = list(self.roll.workers().values())
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
        """Return what the scheduler knows of each worker now, by address."""
        return self.roll.workers()

    def running_threads(self) -> dict[str, int]:
        """Return the threads of each worker that takes tasks now, by address."""
        return self.roll.running_threads()

    def reduce(
        self, reduction: Reduction, segments: list[Rows], progress: Progress, shipped: list[Any]
    ) -> ClusterValue | Partial:
        """Return the merged partial as a value on the workers, or itself if partials are small."""
        shipped = calls_in(shipped)

        def one_pass() -> Any:
            progress.begin()
            return self._pass(reduction, segments, progress, shipped)

        if self._merges_here(reduction, segments):
            return self._until_done(one_pass)
        return self._call(lambda: self._until_done(one_pass)).value()

    def _pass(
        self, reduction: Reduction, segments: list[Rows], progress: Progress, shipped: list[Call]
    ) -> Future | Partial:
        threads = self.running_threads()  # first: what this finds lost is not this pass's
        arrays = futures_in(shipped)
        flight = Flight(self.roll)
        here = self._merges_here(reduction, segments)
        merge = OrderedMerge(
            len(segments),
            partial(merged_here, reduction)
            if here
            else lambda total, others: flight.submit(merge_partials, reduction, total, others),
        )
        shares = SegmentShares(len(segments), threads)
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
                task = dask.delayed(reduce_rows, pure=False)(reduction, segments[index], arrays, self._fit)
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
            for index, found in zip(landed, flight.gathered(list(landed.values())), strict=True):
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
            return [ANY_WORKER]
        return [worker for _, worker in sorted(places)]

    def _merges_here(self, reduction: Reduction, segments: list[Rows]) -> bool:
        """Say whether the client takes all partials and merges them: tasks for it would take longer."""
        n_rows = segments[0].stop - segments[0].start
        return reduction.size_bytes(n_rows) * len(segments) <= _SMALL_BYTES

    def _segments_per_thread(self, reduction: Reduction, segments: list[Rows]) -> int:
        n_rows = segments[0].stop - segments[0].start
        return 1 if reduction.size_bytes(n_rows) > _LARGE_PARTIAL else 2

    def ship(self, arrays: dict[str, Any]) -> Any:
        """Return what tasks may take: small arrays as they are, which travel in each task, else a value."""
        if sum(A.nbytes for A in arrays.values()) <= _SMALL_SHIPMENT:
            return arrays
        return self.submit(_same, arrays)

    def submit(self, function: Callable[..., Any], *args: Any) -> ClusterValue:
        taken = calls_in(args)

        def begin() -> Future:
            self.roll.check_connection()
            with large_graphs():
                return self.client.submit(function, *futures_in(taken), pure=False)

        return self._call(begin).value()

    def submit_to(self, worker: str, function: Callable[..., Any], *args: Any) -> Future:
        """Return the future of a task that only this worker may take: to measure it, for no fit."""
        self.roll.check_connection()
        return self.client.submit(function, *args, pure=False, workers=[worker])

    def submit_all(self, function: Callable[..., Any], calls: list[tuple]) -> list[ClusterValue]:
        # As delayed tasks, so that rows which hold blocks of a dask array are found and computed.
        def begin(taken: tuple) -> Future:
            return self.client.compute(dask.delayed(function, pure=False)(*futures_in(taken)))

        return [self._call(partial(begin, calls_in(args))).value() for args in calls]

    def gather(self, handles: list[Any]) -> list[Any]:
        def look() -> list[Any]:
            found = [h.call.future() if isinstance(h, ClusterValue) else h for h in handles]
            flight = Flight(self.roll)
            for future in found:
                if isinstance(future, Future):
                    flight.watch(future)
            with flight.cancelled_on_failure():
                for _ in flight.completed():
                    pass
                return flight.gathered(found)

        return self._until_done(look)

    def settle(self, handle: ClusterValue) -> ClusterValue:
        """Return the handle of a value that outlives its fit, without the rows that would make it again."""
        handle.call.forget()
        return handle

    def _call(self, begin: Callable[[], Future]) -> Call:
        call = Call(begin, lambda: self.roll.n_losses)
        self._calls.add(call)
        return call

    def _give_up_what_is_gone(self) -> None:
        """Have the scheduler forget the values that it will never compute again.

        As long as they are wanted it keeps the tasks that read their rows, bound to workers that
        are gone, and does not run them. The blocks of a dask array have the same keys in every
        pass and every fit, so the next would wait for these.
        """
        gone = [future for call in self._calls if (future := call.gone_future()) is not None]
        if gone and self.client.status == "running":
            self.client.cancel(gone, force=True)

    def _until_done(self, attempt: Callable[[], T]) -> T:
        """Return what an attempt returns, begun anew when the cluster has lost what it had made."""
        lacked_input = False
        for _ in range(_MOST_ATTEMPTS):
            try:
                return attempt()
            except Lost as lost:
                if lost.lacks_input and lacked_input:
                    raise ClusterError(
                        "the cluster lost blocks of a dask array that it held (persist), as it was restarted "
                        "or all its workers were replaced; persist the array again and fit again"
                    ) from lost
                lacked_input, cause = lost.lacks_input, lost
                logger.warning("%s; what was lost is computed again", lost)
                if lost.restarting:
                    self.roll.await_replacement()
                self._give_up_what_is_gone()
        raise ClusterError(
            f"{cause}, {_MOST_ATTEMPTS} times during one pass; if nobody restarted them, most often their "
            f"memory limit is too small: compare it with the plan's peak, look at their logs, and fit again"
        ) from cause


def _same(arrays: Any) -> Any:
    return arrays
