"""Where tasks run: on the ambient cluster, or by dask's configured scheduler in this process."""

from __future__ import annotations

import logging
import math
import queue
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import dask
from distributed import Client, Future, KilledWorker

from distrff.engine.checkpoint import (
    DamagedPart,
    Node,
    PassSums,
    SumFile,
    read_sum,
    without_damaged,
    write_sum,
)
from distrff.engine.progress import RowCount
from distrff.engine.reduction import OrderedMerge, Reduction, Rows
from distrff.engine.tasks import (
    Partial,
    SegmentCache,
    WorkRecord,
    begin_task,
    delayed_task,
    in_dask_task,
    keep_rows,
    merge_partials,
    merged_here,
    peak_so_far,
    reduce_rows,
    rows_in,
    say_of_last_write,
)
from distrff.errors import ClusterError
from distrff.utils.random import new_key
from distrff.utils.text import human_seconds

# Tasks on a distributed cluster: one segment per thread, ordered merges, and recovery of lost values.

logger = logging.getLogger(__name__)

_MEASURE_SECONDS = 10.0
LARGE_PARTIAL = 2**25
"""Bytes; with larger partials, as plans count them, a thread has no second segment ready."""
_SMALL_BYTES = 2**23  # of all partials of a pass, which the client then merges itself
_SMALL_ARRAYS = 2**18  # bytes of arrays that are sent with each task
_MAX_ATTEMPTS = 5  # of a pass in which the cluster loses values

# The calls of all fits, as lost values that a fitted model keeps can block another fit.
_CALLS: WeakKeyDictionary[Client, WeakSet[Call]] = WeakKeyDictionary()

T = TypeVar("T")


class ClusterExecution:
    """Runs tasks through a `distributed.Client`, which stays in this object and is never pickled.

    Each thread has one segment under way, and if partials are small a second one ready, so that no thread
    waits for the client. Each segment is bound to a worker with a free thread, unless it is kept and tasks
    follow it. The scheduler by itself would queue some behind the segment of another worker, and all that
    take a sent array on the worker that has it. Real passes on two workers hardly differ (Gram of D = 2048
    over 200,000 rows: 10.3 s bound, 10.1 s free; light sweeps of D = 256 over a million rows: 4.46 and 4.48
    s). But with tasks that sleep, on two and eight workers, free passes over segments of 0.3 s took 1.08 and
    1.2 times as long as bound ones, and passes of 0.2 s that send a megabyte 1.25 and 2.1 times; free light
    sweeps of 400,000 rows of a lazy dask array took 9.5 instead of 5.1 s on two workers, since its blocks are
    spread over all workers. Partials are merged as soon as their neighbours have arrived, so that only one
    per thread and the few that wait in the tree of merges are alive.

    Lost values are computed again: those of a dead worker by the scheduler; if no worker survived, or the
    cluster was restarted, by the calls that the values keep.

    Raises ClusterError if the cluster has no workers, or none that takes tasks for a minute, or if it is
    called from the event loop of an asynchronous client.
    """

    in_client = False
    hold_values = True

    def __init__(self, client: Client) -> None:
        if client.asynchronous:
            raise ClusterError(
                "this was called from the event loop that the ambient Client(asynchronous=True) runs in, "
                "which it would block; call it in a thread, such as: await asyncio.to_thread(model.fit, X, y)"
            )
        self.client = client
        self.roll = WorkerList(client)
        self.is_nested = in_dask_task()
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

    def measure_idle(self, needed: Any) -> None:
        """Have each worker measure its idle memory; those that join later do so in their first task.

        To receive `needed` they import what their tasks will import.
        """
        with suppress(Exception):  # a worker that hangs is no reason to wait: its first task will tell
            self.client.run(
                begin_task, self._fit, needed, on_error="ignore", callback_timeout=_MEASURE_SECONDS
            )

    def measured(self) -> WorkRecord:
        """Return the workers' peaks up to now: Grams are factored after the last task of a pass."""
        record = WorkRecord()
        # A cluster that is gone, or a worker that hangs, fails what still needs it, not the measurement.
        with suppress(Exception):
            found = self.client.run(
                peak_so_far, self._fit, on_error="ignore", callback_timeout=_MEASURE_SECONDS
            )
            for of_worker in found.values():
                record = record.merge(of_worker)
        return record

    def reduce(
        self,
        reduction: Reduction,
        segments: list[Rows],
        progress: RowCount,
        sent: list[Any],
        sums: PassSums | None = None,
        *,
        kept: SegmentCache | None = None,
        group: str = "sum",
    ) -> ClusterValue | Partial:
        """Return the merged partial: a value on the workers, or the partial itself if partials are small.

        `sums` are those that a checkpoint has, and gets while the pass goes on; `kept` the segments that stay
        on the workers.
        """
        sent = calls_in(sent)
        size = reduction.size_bytes(segments[0].stop - segments[0].start)
        here = size * len(segments) <= _SMALL_BYTES  # the client merges so little faster than tasks would
        per_thread = 1 if size > LARGE_PARTIAL else 2

        def one_pass() -> Any:
            progress.update(-progress.n)  # a repeated pass counts from zero
            try:
                return self._pass(reduction, segments, progress, sent, sums, kept, here, per_thread, group)
            except BaseException:
                if kept is not None:  # what failed, or was not finished, would be waited for again
                    kept.forget()
                raise

        def begin() -> Any:
            return self._until_done(partial(without_damaged, sums, one_pass))

        return begin() if here else self._value_of(begin)

    def _pass(
        self,
        reduction: Reduction,
        segments: list[Rows],
        progress: RowCount,
        sent: list[Call],
        sums: PassSums | None,
        kept: SegmentCache | None,
        here: bool,
        per_thread: int,
        group: str,
    ) -> Future | Partial:
        threads = self.roll.running_threads()  # first, so that earlier losses do not count for this pass
        arrays = futures_in(sent)
        flight = Pending(self.roll)
        merge = OrderedMerge(
            len(segments),
            partial(merged_here, reduction)
            if here
            else lambda total, others: flight.submit(merge_partials, reduction, total, others, group="merge"),
        )
        saving: _SavingHere | _SavingThere = (
            _SavingHere(flight, merge, sums, self.n_threads) if here else _SavingThere(flight, merge, sums)
        )
        left = list(range(len(segments))) if sums is None else sums.segments_left()
        if kept is not None:
            kept.forget_beyond(threads, len(segments))
        shares = SegmentShares(left, threads, {} if kept is None else kept.by_worker())
        under_way: dict[str, tuple[int, str]] = {}  # segment and worker of each task

        def start_where_free() -> None:
            if not shares:
                return
            now = self.roll.recent_threads()
            if kept is not None:
                kept.forget_gone(now)
            busy = Counter(worker for _, worker in under_way.values())
            for worker in _free_places(now, busy, per_thread):
                index = shares.take(worker, now)
                if index is None:
                    continue
                rows, where = self._rows_for(worker, segments, index, kept, now)
                task = delayed_task(reduce_rows, (reduction, rows, arrays, self._fit), group)
                under_way[flight.compute(task, where).key] = index, worker

        with flight.cancelled_on_failure(), saving.at_failure():
            saving.take_stored()
            progress.update(rows_in(segments) - rows_in([segments[i] for i in left]))
            start_where_free()
            for future in flight.completed():
                if future.key not in under_way:
                    saving.see(future)
                    continue
                index, _ = under_way.pop(future.key)
                saving.take(index, future)  # before the next segment, or a merge would wait behind it
                start_where_free()
                progress.update(segments[index].stop - segments[index].start)
                del future
                saving.save_when_due()
            return saving.result()

    def _rows_for(
        self,
        worker: str,
        segments: list[Rows],
        index: int,
        kept: SegmentCache | None,
        threads: Mapping[str, int],
    ) -> tuple[Any, str]:
        """Return what a task takes as the rows of a segment, and the worker that it is for.

        A kept segment is a value that the task depends on, and follows.
        """
        if kept is None:
            return segments[index], worker
        value: ClusterValue | None = kept.value(index)
        if value is None:
            level = kept.level_with_room(worker, threads, len(segments))
            if level is None:
                return segments[index], worker
            value = self._keep(kept, level, segments[index], worker)
            kept.put(index, worker, level, value)
        return value.call.future(), ANY_WORKER

    def _keep(self, kept: SegmentCache, level: int, rows: Rows, worker: str) -> ClusterValue:
        """Return a segment that stays: made on the worker that sums it first, later on any."""
        arrays, places = calls_in(kept.arrays()), [worker]

        def begin() -> Future:
            where = [places.pop()] if places else None
            taken = (kept.levels[level].keeping, rows, futures_in(arrays), self._fit)
            task = delayed_task(keep_rows, taken, "keep")
            with large_graphs():
                return self.client.compute(task, workers=where, allow_other_workers=where is not None)

        return self._value_of(begin)

    def send(self, arrays: dict[str, Any]) -> Any:
        """Return an argument for tasks: small arrays themselves, sent with each task, else a value."""
        if sum(A.nbytes for A in arrays.values()) <= _SMALL_ARRAYS:
            return arrays
        return self.submit(dict, arrays, group="arrays")

    def submit(self, function: Callable[..., Any], *args: Any, group: str | None = None) -> ClusterValue:
        taken = calls_in(args)

        def begin() -> Future:
            self.roll.check_connection()
            with large_graphs():
                key = new_key(group or function)
                return self.client.submit(function, *futures_in(taken), key=key, pure=False)

        return self._value_of(begin)

    def submit_to(self, worker: str, function: Callable[..., Any], *args: Any) -> Future:
        """Return the future of a task that only this worker may run; for measurements."""
        self.roll.check_connection()
        return self.client.submit(function, *args, key=new_key(function), pure=False, workers=[worker])

    def submit_all(
        self,
        function: Callable[..., Any],
        calls: list[tuple],
        *,
        group: str | None = None,
        costs: Sequence[float] | None = None,
    ) -> list[ClusterValue]:
        dealt = costs if len(calls) > 1 else None

        # As delayed tasks, so that dask finds and computes blocks of dask arrays inside rows. `calls` stays
        # out of it, or each value would keep the arguments of all on the workers.
        def begin(taken: tuple, number: int) -> Future:
            where = None if dealt is None else self._place_of(number, dealt)
            task = delayed_task(function, futures_in(taken), group)
            return self.client.compute(task, workers=where, allow_other_workers=where is not None)

        return [self._value_of(partial(begin, calls_in(args), i)) for i, args in enumerate(calls)]

    def _place_of(self, number: int, costs: Sequence[float]) -> list[str] | None:
        """Return the worker for one of several calls, each placed where least is to do, the dearest first.

        The scheduler by itself runs all of them where their arguments are. One of two workers then reduced
        the five folds of D = 2048 alone. Dealt out in turn, one worker had two folds and half of what is
        cheap, and was idle for .5 of the 1.7 s that the other took.
        """
        places = _free_places(self.roll.recent_threads(), Counter(), 1)
        places = [worker for worker in places if worker != ANY_WORKER]
        if not places:
            return None
        loads = [0.0] * len(places)
        for dearest in sorted(range(len(costs)), key=lambda i: -costs[i]):
            least = loads.index(min(loads))
            if dearest == number:
                break
            loads[least] += costs[dearest]
        return [places[least]]

    def gather(self, handles: list[Any]) -> list[Any]:
        def look() -> list[Any]:
            found = [h.call.future() if isinstance(h, ClusterValue) else h for h in handles]
            flight = Pending(self.roll)
            for future in found:
                if isinstance(future, Future):
                    flight.watch(future)
            with flight.cancelled_on_failure():
                for _ in flight.completed():
                    pass
                return flight.gathered(found)

        return self._until_done(look)

    def settle(self, handle: ClusterValue) -> ClusterValue:
        """Return a handle that outlives its fit, and release the rows behind it."""
        handle.call.forget()
        return handle

    def _value_of(self, begin: Callable[[], Future]) -> ClusterValue:
        call = Call(begin, self.roll)
        self._calls.add(call)
        return call.value()

    def _forget_lost_values(self) -> None:
        """Have the scheduler forget the values that it will never compute again.

        While they have futures it keeps the tasks that read their rows, bound to workers that are gone, and
        does not run them. The blocks of a dask array have the same keys in every pass and fit, so the next
        pass would wait for these tasks.
        """
        gone = [future for call in self._calls if (future := call.gone_future()) is not None]
        if gone and self.client.status == "running":
            self.client.cancel(gone, force=True)

    def _until_done(self, attempt: Callable[[], T]) -> T:
        """Return the result of an attempt, which is repeated if the cluster has lost values."""
        lacked_input, cause = False, Exception()
        for _ in range(_MAX_ATTEMPTS):
            try:
                return attempt()
            except Lost as lost:
                if lost.lacks_input and lacked_input:
                    raise ClusterError(
                        "the cluster lost the persisted blocks of a dask array, since it was restarted or "
                        "all its workers were replaced; persist the array again and fit again"
                    ) from lost
                lacked_input, cause = lost.lacks_input, lost
                logger.warning("%s; lost values are computed again", lost)
                if lost.restarting:
                    self.roll.await_replacement()
                self._forget_lost_values()
            except DamagedPart as damaged:  # a worker died, and the sum that is read in the place of its own
                cause = damaged
                logger.warning("%s; what follows from it is computed again", damaged)
        raise ClusterError(
            f"{cause}, {_MAX_ATTEMPTS} times during one pass; unless somebody restarted the workers, their "
            f"memory limit is probably too small: compare it with the plan's peak, look at their logs, and "
            f"fit again"
        ) from cause


# The partials of a pass on their way into the tree of merges, and from there to a checkpoint.

_COLLECT_SECONDS = 2.0  # so that little of what a worker has finished is lost with it
_LAST_SECONDS = 15.0  # for a last write: batch systems and Kubernetes kill 30 s after they have asked


class _Saving:
    """What both ways of saving share: what is finished is saved when the pass fails or is interrupted."""

    def __init__(self, flight: Pending, merge: OrderedMerge, sums: PassSums | None) -> None:
        self._flight, self._merge, self._sums = flight, merge, sums

    def take_stored(self) -> None:
        """Take the sums that the checkpoint has."""
        for node in [] if self._sums is None else self._sums.in_order():
            assert self._sums is not None
            self._merge.add(node[1], self._stored(self._sums.file(node), node), node[0])

    @contextmanager
    def at_failure(self) -> Iterator[None]:
        try:
            yield
        except Lost:
            raise
        except BaseException as error:
            if self._sums is not None:
                say_of_last_write(error)
                with suppress(Exception):  # of workers that are gone, beside the failure itself
                    self._save_last(self._sums)
            raise

    def _stored(self, file: SumFile, node: Node) -> Any:
        raise NotImplementedError

    def _save_last(self, sums: PassSums) -> None:
        raise NotImplementedError


class _SavingHere(_Saving):
    """Small partials, which are merged in the client.

    They are fetched when a task ends more than two seconds after the last time, or when there is one for
    each thread: workers keep the rows that came with a task until its result is released.
    """

    def __init__(self, flight: Pending, merge: OrderedMerge, sums: PassSums | None, n_threads: int) -> None:
        super().__init__(flight, merge, sums)
        self._n_threads = n_threads
        self._landed: dict[int, Future] = {}
        self._collected = time.monotonic()

    def take(self, index: int, future: Future) -> None:
        self._landed[index] = future

    def see(self, future: Future) -> None:
        pass

    def save_when_due(self) -> None:
        if len(self._landed) >= self._n_threads or time.monotonic() - self._collected > _COLLECT_SECONDS:
            self._collect()
        if self._sums is not None and self._sums.is_due():
            self._collect()
            self._sums.write(self._merge.waiting)

    def result(self) -> Partial:
        self._collect()
        total: Partial = self._merge.result()
        return total

    def _collect(self) -> None:
        landed, self._landed = self._landed, {}
        try:
            found = self._flight.gathered(list(landed.values()))
        except BaseException:
            self._landed = landed
            raise
        for index, value in zip(landed, found, strict=True):
            self._merge.add(index, value)
        self._collected = time.monotonic()

    def _stored(self, file: SumFile, node: Node) -> Partial:
        return read_sum(file, node)

    def _save_last(self, sums: PassSums) -> None:
        try:
            self._collect()
        finally:
            sums.write(self._merge.waiting)


class _SavingThere(_Saving):
    """Large partials: they are merged on the workers, which write them.

    A partial that is written is then read from the file, in the place of the one that was summed: if its
    worker dies, the scheduler reads it again, and does not go back to the rows.
    """

    def __init__(self, flight: Pending, merge: OrderedMerge, sums: PassSums | None) -> None:
        super().__init__(flight, merge, sums)
        self._writing: dict[str, tuple[tuple[int, int], Future]] = {}  # node and partial of each write
        self._seconds = 0.0  # of the writes that have ended since they began together

    def take(self, index: int, future: Future) -> None:
        self._merge.add(index, future)

    def see(self, future: Future) -> None:
        """Note that a write has ended; the last one of several ends the whole."""
        if future.key not in self._writing:
            return
        assert self._sums is not None
        node, summed = self._writing.pop(future.key)
        seconds, error = self._flight.gathered([future])[0]
        self._seconds += seconds
        if error is None:
            is_waiting = self._merge.waiting.get(node) is summed
            self._sums.add(node, is_read_from_now_on=is_waiting)
            if is_waiting:
                self._merge.replace(node, self._stored(self._sums.file(node), node))
        else:
            self._sums.checkpoint.failed(error)
        if not self._writing:
            self._sums.finish_write(self._seconds)

    def save_when_due(self) -> None:
        if self._sums is not None and not self._writing and self._sums.is_due():
            self._begin_writing(self._sums)

    def result(self) -> Future:
        """Return the total; a pass that took long is stored as a whole."""
        if self._sums is not None and self._sums.is_due() and not self._sums.is_complete:
            self._begin_writing(self._sums)
            for future in self._flight.completed():
                self.see(future)
        total: Future = self._merge.result()
        return total

    def _begin_writing(self, sums: PassSums) -> None:
        waiting, self._seconds = self._merge.waiting, 0.0
        for node in sums.unsaved(waiting):
            if waiting[node].status == "finished":
                write = self._flight.submit(write_sum, sums.file(node), waiting[node], group="checkpoint")
                self._writing[write.key] = node, waiting[node]
        if not self._writing:
            sums.finish_write(0.0)

    def _stored(self, file: SumFile, node: Node) -> Future:
        return self._flight.submit(read_sum, file, node, group="checkpoint")

    def _save_last(self, sums: PassSums) -> None:
        """Write what the workers have, as far as they do so in time; a thread writes after its segment."""
        self._begin_writing(sums)
        deadline = time.monotonic() + _LAST_SECONDS
        while self._writing and time.monotonic() < deadline:
            for future in self._flight.done_among(self._writing):
                self.see(future)
            time.sleep(0.05)
        if self._writing:
            sums.finish_write(self._seconds)


# Futures under way on a cluster, watched until the last has finished.

ANY_WORKER = "any"
_LOST_SECONDS = 0.1


class Pending:
    """Futures under way; raises Lost if some will never finish."""

    def __init__(self, roll: WorkerList) -> None:
        self.client = roll.client
        self._watch = Liveness(roll)
        self._landed: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self._under_way: dict[str, Future] = {}
        self._alive: WeakSet[Future] = WeakSet()

    def compute(self, task: Any, worker: str) -> Future:
        # Rows in the client's memory are sent inside the task of their own segment, on purpose.
        with large_graphs():
            where = None if worker == ANY_WORKER else [worker]
            return self.watch(self.client.compute(task, workers=where, allow_other_workers=bool(where)))

    def submit(self, function: Callable[..., Any], *args: Any, group: str) -> Future:
        task = self.client.submit(function, *args, key=new_key(group), pure=False, priority=1)
        return self.watch(task)

    def done_among(self, keys: Iterable[str]) -> list[Future]:
        """Return those of some futures under way that have finished well."""
        return [f for key in list(keys) if (f := self._under_way.get(key)) and f.status == "finished"]

    def watch(self, future: Future) -> Future:
        self._under_way[future.key] = future
        self._alive.add(future)
        future.add_done_callback(self._landed.put)
        return future

    def completed(self) -> Iterator[Future]:
        """Yield the futures as they finish, until none is left; raise the first failure."""
        while self._under_way:
            self._watch.look_when_due()
            try:
                future = self._landed.get(timeout=self._watch.seconds)
            except queue.Empty:
                continue
            if future.status in ("lost", "pending"):  # its worker has died; the scheduler computes it again
                time.sleep(_LOST_SECONDS)  # a lost future calls back at once
                future.add_done_callback(self._landed.put)
                continue
            self._under_way.pop(future.key, None)
            _raise_failure(future)
            yield future

    def gathered(self, futures: list[Any]) -> list[Any]:
        """Return the results of finished futures, which may still be lost on their way here.

        The client's own `gather` would wait forever for a value that no worker will compute again.
        """
        with ThreadPoolExecutor(1, "distrff-gather") as pool:
            fetched = pool.submit(self.client.gather, futures)
            try:
                while not wait([fetched], self._watch.seconds).done:
                    self._watch.look_when_due()
                return fetched.result()
            except CancelledError as error:
                raise _lost_by(error) from error
            except KilledWorker as error:
                raise _deadly(error) from error
            except BaseException:
                self._cancel()  # this also ends the thread
                raise

    @contextmanager
    def cancelled_on_failure(self) -> Iterator[None]:
        """Cancel all futures, running or done, when the block fails or is interrupted.

        The failing frames hold futures, which would otherwise live as long as the traceback is kept.
        """
        try:
            yield
        except BaseException:
            self._cancel()
            raise

    def _cancel(self) -> None:
        if self.client.status == "running":
            self.client.cancel(list(self._alive), force=True)


def _raise_failure(future: Future) -> None:
    if future.status == "finished":
        return
    if future.status == "cancelled":
        try:
            future.result(timeout=1)
        except CancelledError as cancelled:
            raise _lost_by(cancelled) from cancelled
    error = future.exception()
    if isinstance(error, KilledWorker):
        raise _deadly(error) from error
    raise error


def _deadly(error: KilledWorker) -> ClusterError:
    return ClusterError(
        f"workers died repeatedly on the same task ({error.task}); most often their memory limit is "
        f"too small: compare it with the plan's peak; if workers are preempted, raise "
        f"distributed.scheduler.allowed-failures"
    )


def _lost_by(error: CancelledError) -> Lost:
    reason = getattr(error, "reason", None)
    return Lost("the cluster was restarted", restarting=True, lacks_input=reason == "lost dependencies")


def large_graphs() -> Any:
    """Return a context in which tasks that carry rows are sent without a warning about their size."""
    return dask.config.set({"distributed.admin.large-graph-warning-threshold": "64GB"})


# Values on the workers, and how each is computed again if the cluster has lost it.


class Lost(Exception):
    """The cluster lost values, and will not compute them again by itself.

    `cause` is a sentence without a full stop; `restarting` says that the present workers may be about to
    leave, `lacks_input` that a task was refused because its input is lost.
    """

    def __init__(self, cause: str, *, restarting: bool = False, lacks_input: bool = False) -> None:
        super().__init__(cause)
        self.restarting = restarting
        self.lacks_input = lacks_input


class Call:
    """A function call with its value on the workers, which can be computed again.

    `begin()` returns a new future of the value; it may take as long as a pass over the rows. A call refers to
    its arguments by their calls, never by their futures. So a value is freed on the workers as soon as
    nothing refers to it, and can still be computed again from the rows.
    """

    def __init__(self, begin: Callable[[], Future], roll: WorkerList) -> None:
        self._begin = begin
        self._roll = roll
        self._value: Callable[[], ClusterValue | None] = lambda: None

    def value(self) -> ClusterValue:
        """Start the call, and return its value."""
        value = ClusterValue(self, self._begin(), self._roll.n_losses)
        self._value = weakref.ref(value)
        return value

    def future(self) -> Future:
        """Return the future of the value if it is still in use, else of a new value."""
        value = self._value()
        if value is None:
            return self._begin()
        if value.is_gone(self._roll.n_losses):
            value.future, value.n_losses = self._begin(), self._roll.n_losses
        return value.future

    def gone_future(self) -> Future | None:
        """Return the future of the value if it is in use and will never finish."""
        value = self._value()
        if value is None:
            return None
        is_lost = self._begin is _cannot_recompute and value.future.status != "finished"
        return value.future if is_lost or value.is_gone(self._roll.n_losses) else None

    def forget(self) -> None:
        """Release the rows and arrays behind the value, which then cannot be computed again."""
        self._begin = _cannot_recompute


@dataclass(eq=False)
class ClusterValue:
    """A value on the workers, and the call that computes it again.

    `n_losses` is how often the cluster had lost all values when the future was created.
    """

    call: Call
    future: Future
    n_losses: int

    def is_gone(self, n_losses: int) -> bool:
        """Return whether the future will never finish, or has met a damaged file.

        The scheduler computes the values of a dead worker again. But if all workers are gone, a task that is
        bound to one of them waits forever (distributed 2026.8 compares only the address when a worker joins),
        and so do all tasks that depend on it.
        """
        status = self.future.status
        has_failed = status == "error" and isinstance(self.future.exception(), DamagedPart)
        is_lost = status in ("pending", "lost") and self.n_losses != n_losses
        return status == "cancelled" or has_failed or is_lost


def futures_in(args: Any) -> Any:
    """Return arguments with each call replaced by its future, also in lists and tuples."""
    if isinstance(args, Call):
        return args.future()
    return type(args)(map(futures_in, args)) if type(args) in (list, tuple) else args


def calls_in(args: Any) -> Any:
    """Return arguments with each value replaced by its call, also in lists and tuples."""
    if isinstance(args, ClusterValue):
        return args.call
    return type(args)(map(calls_in, args)) if type(args) in (list, tuple) else args


def _cannot_recompute() -> NoReturn:
    raise ClusterError(
        "the cluster lost the Gram of this model (its workers were restarted or replaced since the fit); "
        "fit again"
    )


# While the client waits, it checks from time to time whether the awaited futures can still finish.

_LOOK_SECONDS = 1.0
_SILENT_SECONDS, _SILENT_AGAIN_SECONDS = 10.0, 60.0  # until it is said that no worker takes tasks
_NO_WORKERS_SECONDS = 60.0
_IDLE_LOOKS = 5  # in succession without a task on any worker: a single look may fall between two tasks
_LEAVING_SECONDS = 5.0  # in which a restarted cluster removes its old workers
_MAX_LOOKS = 11
# The scheduler tells all about all workers at once. Asked at each of the 300 segments that 64 workers finish
# in a second of a light sweep, that was one of some eight milliseconds of a task.
_RECENT_SECONDS = 0.5


class WorkerList:
    """The workers of a cluster, and how often (`n_losses`) all values on them were lost."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.n_losses = 0
        self._known: set[str] = set()
        self._threads: dict[str, int] = {}
        self._asked = -math.inf
        self._idle_since: float | None = None  # since when no worker takes tasks
        self._say_at = 0.0

    def workers(self) -> dict[str, dict[str, Any]]:
        """Return what the scheduler knows about each worker now, by address.

        Between a request and its response the client may overwrite this with a summary that lists no workers;
        then it is requested again.
        """
        for _ in range(_MAX_LOOKS):
            info = self.client.scheduler_info(n_workers=-1)
            if "workers" not in info:  # the scheduler is gone
                self.check_connection()
                return {}
            if len(info["workers"]) == info["n_workers"]:
                break
        self._say_if_nobody_works(info["workers"])
        present = set(info["workers"])
        if present and self._known.isdisjoint(present):
            self.n_losses += bool(self._known)
        self._known = present or self._known
        return info["workers"]

    def _say_if_nobody_works(self, workers: Mapping[str, Mapping[str, Any]]) -> None:
        """Log how long no worker has taken tasks: after ten seconds, then every minute."""
        now = time.monotonic()
        if any(worker["status"] == "running" for worker in workers.values()):
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since, self._say_at = now, now + _SILENT_SECONDS
        elif now >= self._say_at:
            self._say_at = now + _SILENT_AGAIN_SECONDS
            logger.warning(
                "the cluster has had %s for %s; the work goes on once a worker takes tasks (start one by "
                "cluster.scale(2) or `dask worker ADDRESS`)",
                "only paused workers" if workers else "no workers",
                human_seconds(round(now - self._idle_since)),
            )

    def running_threads(self) -> dict[str, int]:
        """Return the threads of each worker that now takes tasks, by address."""
        workers, self._asked = self.workers(), time.monotonic()
        self._threads = {
            a: worker["nthreads"] for a, worker in workers.items() if worker["status"] == "running"
        }
        return self._threads

    def recent_threads(self) -> dict[str, int]:
        """Return the same as of half a second ago at most; a task for a lost worker goes elsewhere."""
        if time.monotonic() > self._asked + _RECENT_SECONDS:
            self.running_threads()
        return self._threads

    def check_connection(self) -> None:
        """Raise ClusterError if the scheduler is out of reach."""
        if self.client.status != "running":
            raise ClusterError(
                f"the scheduler is out of reach (the connection to it is {self.client.status}); connect to a "
                f"cluster that runs, and fit again"
            )

    def await_replacement(self) -> None:
        """Wait until a restarted cluster has replaced its workers, or evidently keeps them.

        Tasks sent earlier would go to workers that are about to leave.
        """
        began, n_losses = time.monotonic(), self.n_losses
        while self.n_losses == n_losses:
            self.check_connection()
            waited = time.monotonic() - began
            if waited > (_LEAVING_SECONDS if self.workers() else _NO_WORKERS_SECONDS):
                return
            time.sleep(0.1)


class Liveness:
    """Raises an error when waiting for futures has become useless.

    That is Lost if all workers have been replaced, or all are idle although tasks wait; ClusterError if the
    scheduler is out of reach, or no worker takes tasks for a minute.
    """

    def __init__(self, roll: WorkerList) -> None:
        self.seconds = _LOOK_SECONDS
        self._roll = roll
        self._due = time.monotonic() + self.seconds
        self._n_losses = roll.n_losses
        self._deadline = time.monotonic() + _NO_WORKERS_SECONDS
        self._idle_looks = 0

    def look_when_due(self) -> None:
        """Look if the last look is `seconds` ago, however many futures have finished since."""
        if time.monotonic() >= self._due:
            self.look()
            self._due = time.monotonic() + self.seconds

    def look(self) -> None:
        """Look once, which costs two messages to the scheduler."""
        roll = self._roll
        roll.check_connection()
        running = roll.running_threads()
        if roll.n_losses > self._n_losses:
            raise Lost("all workers of the cluster were replaced")
        now = time.monotonic()
        if not running:
            if now > self._deadline:
                raise _nobody_works(roll.workers())
            return
        self._deadline = now + _NO_WORKERS_SECONDS
        # Every ready task is assigned to a worker; the scheduler holds none back while a worker is free.
        idle = not any(roll.client.processing().values())
        self._idle_looks = self._idle_looks + 1 if idle else 0
        if self._idle_looks >= _IDLE_LOOKS and roll.client.run_on_scheduler(_has_tasks_to_give):
            roll.n_losses += 1
            raise Lost("no worker was given the tasks that are ready")


def _has_tasks_to_give(dask_scheduler: Any) -> bool:
    """Return whether tasks wait on the scheduler; large ones may still be on their way to it."""
    return any(task.state in ("waiting", "queued", "no-worker") for task in dask_scheduler.tasks.values())


def _nobody_works(workers: dict[str, dict[str, Any]]) -> ClusterError:
    if workers:
        return ClusterError(
            f"all {len(workers)} worker(s) of the cluster have been paused for {_NO_WORKERS_SECONDS:.0f} s, "
            f"as Dask does while their memory is nearly full; free their memory (client.restart()), or start "
            f"workers with more memory, and fit again"
        )
    return ClusterError(
        f"the cluster has had no workers for {_NO_WORKERS_SECONDS:.0f} s; "
        f"look at the workers' logs, start new ones and fit again"
    )


# Which segment a worker takes next, so that neighbours are merged where they were summed.


def _free_places(threads: Mapping[str, int], busy: Counter[str], per_thread: int) -> list[str]:
    """Return a worker's address for each task that it could take, the least busy workers first.

    `threads` are those of the workers that take tasks now. If all are gone, one task waits for the next
    worker to join.
    """
    places = [
        (position, worker)
        for worker, n_threads in threads.items()
        for position in range(busy[worker], per_thread * n_threads)
    ]
    if not places and not busy:
        return [ANY_WORKER]
    return [worker for _, worker in sorted(places)]


class SegmentShares:
    """A run of segments for each worker; a worker without segments takes half of the longest run.

    Runs are proportional to the threads of the workers, given by address; other workers may join later. A
    worker takes neighbours in the tree of merges one after another, so most partials are merged where they
    are, without being sent. Segments that a worker keeps come first, and no other takes them while it is
    there: to send one takes longer than to sum it.
    """

    def __init__(
        self, numbers: list[int], threads: dict[str, int], kept: Mapping[str, list[int]] | None = None
    ) -> None:
        wanted = set(numbers)
        self._kept = {worker: [i for i in own if i in wanted] for worker, own in (kept or {}).items()}
        free = sorted(wanted.difference(*self._kept.values()))
        self._left = {} if threads else {"": free}
        first_thread, n_threads = 0, sum(threads.values())
        for worker, count in threads.items():
            start, stop = (len(free) * t // n_threads for t in (first_thread, first_thread + count))
            self._left[worker] = free[start:stop]
            first_thread += count

    def __bool__(self) -> bool:
        """Return whether any segment is left."""
        return any(self._left.values()) or any(self._kept.values())

    def take(self, worker: str, present: Iterable[str] = ()) -> int | None:
        """Return the next segment for a worker, which may have joined later; None if others keep the rest.

        `present` are the workers that take tasks now.
        """
        if self._kept.get(worker):
            return self._kept[worker].pop(0)
        if not any(self._left.values()):
            gone = [other for other in self._kept if other not in set(present)]
            return next((self._kept[other].pop(0) for other in gone if self._kept[other]), None)
        if not self._left.get(worker):
            longest = max(self._left, key=lambda name: len(self._left[name]))
            run = self._left[longest]
            middle = len(run) // 2
            self._left[longest], self._left[worker] = run[:middle], run[middle:]
        return self._left[worker].pop(0)
