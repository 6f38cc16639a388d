"""Tasks on a distributed cluster: a segment for each thread, ordered merges, and what the cluster loses."""

from __future__ import annotations

import logging
import math
import queue
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import dask
from distributed import Client, Future, KilledWorker

from distrff.engine.checkpoint import DamagedPart, write_finished
from distrff.engine.cluster import check_workers
from distrff.engine.reduction import LARGE_PARTIAL
from distrff.engine.tasks import (
    Costs,
    Lost,
    Partial,
    Pass,
    Workers,
    WorkRecord,
    begin_task,
    delayed_task,
    in_dask_task,
    keep_rows,
    merge_partials,
    peak_so_far,
    read_sum,
    reduce_rows,
    stored_sums,
)
from distrff.errors import ClusterError
from distrff.utils.random import new_key
from distrff.utils.text import human_seconds

logger = logging.getLogger(__name__)

_MEASURE_SECONDS = 10.0
_SMALL_BYTES = 2**23  # of all partials of a pass, which the client then merges itself
_SMALL_ARRAYS = 2**18  # bytes of arrays that are sent with each task
_COLLECT_SECONDS = 2.0  # so that little of what a worker has finished is lost with it
_LAST_SECONDS = 15.0  # for a last write: batch systems and Kubernetes kill 30 s after they have asked

# The futures of all fits, as those of one whose rows are lost can block another fit.
_FUTURES: WeakKeyDictionary[Client, WeakSet[Future]] = WeakKeyDictionary()


class ClusterExecution(Workers):
    """Runs tasks through a `distributed.Client`, which stays in this object and is never pickled.

    Each thread has one segment under way, and if partials are small a second one ready, so that no thread
    waits for the client. Each segment is bound to a worker with a free thread, unless it is cached and tasks
    follow it. Partials are merged as soon as their neighbours have arrived, so that only one per thread and
    the few that wait in the tree of merges are alive.

    The scheduler computes the values of a dead worker again. If no worker survived, or the cluster was
    restarted, what waits for values raises Lost.

    Raises ClusterError if the cluster has no workers, or none that takes tasks for a minute, or if it is
    called from the event loop of an asynchronous client.
    """

    def __init__(self, client: Client) -> None:
        if client.asynchronous:
            raise ClusterError(
                "this was called from the event loop that the ambient Client(asynchronous=True) runs in, "
                "which it would block; call it in a thread, such as: await asyncio.to_thread(model.fit, X, y)"
            )
        self.client = client
        self.workers = WorkerList(client)
        self._fit = uuid.uuid4().hex
        self._futures = _FUTURES.setdefault(client, WeakSet())
        known = list(self.workers.known().values())
        # Now, without the minute that a pass waits for new workers: a plan goes by the workers that there
        # are.
        if not known:
            raise ClusterError(
                "the cluster has no workers; add some (cluster.scale(2), or `dask worker ADDRESS`) "
                "and try again"
            )
        super().__init__(
            n_workers=len(known),
            threads_per_worker=max(worker["nthreads"] for worker in known),
            # Of the smallest worker, as any segment may go to any of them.
            memory_limit=min((w["memory_limit"] for w in known if w["memory_limit"]), default=0),
            is_nested=in_dask_task(),
        )
        self.n_threads = sum(worker["nthreads"] for worker in known)

    def check_workers(self) -> None:
        """Raise ClusterError for workers that cannot run this distrff."""
        check_workers(self.client)

    def measure_idle(self, needed: Any) -> None:
        """Have each worker measure its idle memory; those that join later do so in their first task.

        To receive `needed` they import what their tasks will import.
        """
        self._on_all_workers(_MEASURE_SECONDS, begin_task, self._fit, needed)

    def measured(self) -> WorkRecord:
        """The workers' peaks up to now: Grams are factored after the last task of a pass."""
        record = WorkRecord()
        for of_worker in self._on_all_workers(_MEASURE_SECONDS, peak_so_far, self._fit).values():
            record = record.merge(of_worker)
        return record

    def write_finished(self) -> None:
        """Have all processes write the sums of a checkpoint that they hold, as far as they do so in time."""
        write_finished()
        self._on_all_workers(_LAST_SECONDS, write_finished)

    def _on_all_workers(self, seconds: float, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        # A cluster that is gone, or a worker that hangs, fails what still needs it.
        with suppress(Exception):
            # Tasks would wait behind the segments that run; `run` calls the function in the worker's event
            # loop.
            found = self.client.run(function, *args, on_error="ignore", callback_timeout=seconds)
            return dict(found)
        return {}

    def reduce(self, pass_: Pass) -> Future | Partial:
        """Sum all segments: the merged partial as a future, or itself if partials are small."""
        size = pass_.reduction.size_bytes(pass_.segments[0].stop - pass_.segments[0].start)
        # `fitting.cost.ready_bytes` counts the partials of ready segments by the same limit.
        per_thread = 1 if size > LARGE_PARTIAL else 2
        threads = self.workers.running_threads()  # first, so that earlier losses do not count for this pass
        pending = Pending(self.workers, self._futures)
        in_client = size * len(pass_.segments) <= _SMALL_BYTES
        # Where all partials are small, fetching and adding them here is faster than a task for each merge.
        partials = _Partials(pass_, pending, self.n_threads, in_client=in_client)
        under_way: dict[str, tuple[int, str]] = {}  # segment and worker of each task

        def start_where_free() -> None:
            if not shares:
                return
            now = self.workers.recent_threads()
            if pass_.cache is not None:
                pass_.cache.forget_gone(now)
            busy = Counter(worker for _, worker in under_way.values())
            for worker in _free_places(now, busy, per_thread):
                index = shares.take(worker, now)
                if index is None:
                    continue
                # Bound to this worker: the scheduler by itself would queue some segments behind another
                # worker's, and all that take a sent array on the worker that has it. Real passes on two
                # workers hardly differ (Gram of D = 2048 over 200,000 rows: 10.3 s bound, 10.1 s free). But
                # with tasks that sleep, on two and eight workers, free passes over segments of .3 s took 1.08
                # and 1.2 times as long, and passes of .2 s that send a megabyte 1.25 and 2.1 times; free
                # light sweeps of 400,000 rows of a lazy dask array took 9.5 instead of 5.1 s on two workers,
                # since its blocks are spread over all workers.
                rows, where = self._rows_for(worker, index, pass_, now)
                args = (pass_.reduction, rows, pass_.sent, self._fit, "", partials.sums_of_tasks, index)
                task = delayed_task(reduce_rows, args, pass_.group)
                under_way[pending.compute(task, where).key] = index, worker

        with pending.cancelled_on_failure(), pass_.written_on_failure(self.write_finished):
            left = partials.begin()
            if pass_.cache is not None:
                pass_.cache.forget_beyond(threads, len(pass_.segments))
            shares = SegmentShares(left, threads, {} if pass_.cache is None else pass_.cache.by_worker())
            start_where_free()
            for future in pending.completed():
                if future.key not in under_way:
                    continue
                index, _ = under_way.pop(future.key)
                partials.take(index, future)  # before the next segment, or a merge would wait behind it
                del future
                start_where_free()
                pass_.done(index)
            return partials.total()

    def _rows_for(self, worker: str, index: int, pass_: Pass, threads: Mapping[str, int]) -> tuple[Any, str]:
        """Rows of a segment as an argument for its task, and the worker that it is for."""
        # A cached segment is a value that the task depends on, and follows.
        cache, segments = pass_.cache, pass_.segments
        value: Future | None = None if cache is None else cache.value(index)
        if cache is not None and value is None:
            level = cache.level_with_room(worker, threads, len(segments))
            if level is not None:
                # Made on the worker that sums it first; after that worker's death on any.
                args = (cache.levels[level].keeping, segments[index], cache.arrays(), self._fit)
                value = self._compute(delayed_task(keep_rows, args, "keep"), [worker])
                cache.put(index, worker, level, value)
        return (segments[index], worker) if value is None else (value, ANY_WORKER)

    def send(self, arrays: dict[str, Any]) -> Any:
        """An argument for tasks: small arrays themselves, sent with each task, else a future."""
        if sum(A.nbytes for A in arrays.values()) <= _SMALL_ARRAYS:
            return arrays
        return self.submit(dict, arrays, group="arrays")

    def submit(self, function: Callable[..., Any], *args: Any, group: str = "") -> Future:
        self.workers.check_connection()
        with large_graphs():
            key = new_key(group or function)
            return self._known(self.client.submit(function, *args, key=key, pure=False))

    def submit_to(self, worker: str, function: Callable[..., Any], *args: Any) -> Future:
        """Begin a task that only this worker may run; for measurements."""
        self.workers.check_connection()
        # No task of a fit is bound as strictly: it would wait for ever for a worker that is gone.
        return self.client.submit(function, *args, key=new_key(function), pure=False, workers=[worker])

    def submit_all(
        self, function: Callable[..., Any], calls: list[tuple], *, group: str = "", costs: Costs = None
    ) -> list[Future]:
        self.workers.check_connection()
        places = self._places_of(costs) if costs is not None and len(calls) > 1 else [None] * len(calls)
        # As delayed tasks, so that dask finds and computes blocks of dask arrays inside rows.
        return [
            self._compute(delayed_task(function, args, group), place)
            for args, place in zip(calls, places, strict=True)
        ]

    def _compute(self, task: Any, where: list[str] | None) -> Future:
        with large_graphs():
            # Loosely bound. Even such a task is stranded if its worker dies while no other is there: the
            # scheduler then asks only the workers that it names (distributed 2026.8). `Liveness` finds that
            # out.
            future = self.client.compute(task, workers=where, allow_other_workers=where is not None)
        return self._known(future)

    def _known(self, future: Future) -> Future:
        self._futures.add(future)
        return future

    def _places_of(self, costs: Sequence[float]) -> Sequence[list[str] | None]:
        """Workers for several calls, each placed where least is to do, the dearest first."""
        # The scheduler by itself runs all of them where their arguments are. One of two workers then reduced
        # the five folds of D = 2048 alone. Dealt out in turn, one worker had two folds and half of what is
        # cheap, and was idle for .5 of the 1.7 s that the other took.
        workers = _free_places(self.workers.recent_threads(), Counter(), 1)
        workers = [worker for worker in workers if worker != ANY_WORKER]
        places: list[list[str] | None] = [None] * len(costs)
        loads = [0.0] * len(workers)
        for dearest in sorted(range(len(costs)), key=lambda i: -costs[i]) if workers else ():
            least = loads.index(min(loads))
            places[dearest] = [workers[least]]
            loads[least] += costs[dearest]
        return places

    def gather(self, values: list[Any]) -> list[Any]:
        pending = Pending(self.workers, self._futures)
        for future in values:
            if isinstance(future, Future):
                pending.watch(future)
        with pending.cancelled_on_failure():
            for _ in pending.completed():
                pass
            return pending.gathered(values)

    def recover(self, lost: Lost) -> None:
        """Wait for the workers of a restarted cluster, and have the scheduler forget what it has lost.

        While values have futures it keeps the tasks that read their rows, bound to workers that are gone, and
        does not run them. The blocks of a dask array have the same keys in every pass and fit, so the next
        pass would wait for these tasks. Other fits of this process lose theirs too, and recover likewise.
        """
        if lost.restarting:
            self.workers.await_replacement()
        self.workers.check_connection()
        unfinished = [future for future in self._futures if future.status != "finished"]
        # A task that was on its way while `client.restart()` cleared the scheduler is wanted there, and has
        # no future here: the client counts references anew after each restart.
        strays = self.client.run_on_scheduler(_unfinished_keys, self.client.id)
        self.client.cancel([*unfinished, *(Future(key, self.client) for key in strays)], force=True)


def _unfinished_keys(client: str, dask_scheduler: Any) -> list[str]:
    """The keys of our tasks that a client waits for."""
    wanted = dask_scheduler.clients[client].wants_what if client in dask_scheduler.clients else ()
    return [task.key for task in wanted if task.state != "memory" and str(task.key).startswith("distrff-")]


# The partials of a pass on their way into the tree of merges.


class _Partials:
    """The partials of one pass on their way into its tree; small ones are merged in the client.

    The client merges small ones faster than tasks would. It fetches them when a task ends more than two
    seconds after the last time, or when there is one for each thread: workers keep the rows that came with a
    task until its result is released.
    """

    def __init__(self, pass_: Pass, pending: Pending, n_at_once: int, *, in_client: bool) -> None:
        self._pass, self._pending, self._n_at_once, self._in_client = pass_, pending, n_at_once, in_client
        self.sums_of_tasks = None if in_client else pass_.sums  # which then note their own
        self._landed: dict[int, Future] = {}
        self._collected = time.monotonic()

    def begin(self) -> list[int]:
        """Take the sums that are stored; the segments that are left."""
        pass_, sums, submit = self._pass, self._pass.sums, self._pending.submit
        if self._in_client:
            merge = partial(merge_partials, pass_.reduction, sums, is_task=False)
            return pass_.begin(merge, stored_sums(sums))
        found = () if sums is None else sums.found
        read = {node: submit(read_sum, sums, node, group="checkpoint") for node in found}
        # All of them first, as the rows of those that cannot be read are among the segments that are left.
        for future in self._pending.completed(but=DamagedPart):
            if future.status == "error":
                logger.warning("%s; its rows are summed again", future.exception())
        stored = {node: future for node, future in read.items() if future.status == "finished"}
        return pass_.begin(partial(submit, merge_partials, pass_.reduction, sums, group="merge"), stored)

    def take(self, index: int, future: Future) -> None:
        """Take the partial of a segment."""
        if not self._in_client:
            self._pass.merge(index, future)
            return
        self._landed[index] = future
        if len(self._landed) >= self._n_at_once or time.monotonic() - self._collected > _COLLECT_SECONDS:
            self._collect()

    def _collect(self) -> None:
        landed, self._landed = self._landed, {}
        for index, summed in zip(landed, self._pending.gathered(list(landed.values())), strict=True):
            self._pass.merge(index, summed)
        self._collected = time.monotonic()

    def total(self) -> Any:
        """The merged partial of all segments."""
        if self._landed:
            self._collect()
        return self._pass.result()


# Futures under way on a cluster, watched until the last has finished.

ANY_WORKER = "any"
_LOST_SECONDS = 0.1


class Pending:
    """Futures under way; raises Lost if some will never finish."""

    def __init__(self, workers: WorkerList, known: WeakSet[Future]) -> None:
        self.client = workers.client
        self._liveness = Liveness(workers)
        self._known = known
        self._landed: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self._under_way: dict[str, Future] = {}
        self._alive: WeakSet[Future] = WeakSet()

    def compute(self, task: Any, worker: str) -> Future:
        # Rows in the client's memory are sent inside the task of their own segment, on purpose.
        with large_graphs():
            where = None if worker == ANY_WORKER else [worker]
            return self.watch(self.client.compute(task, workers=where, allow_other_workers=bool(where)))

    def submit(self, function: Callable[..., Any], *args: Any, group: str) -> Future:
        # Before the segments that wait on the worker: a merge frees a partial, a segment makes one more.
        task = self.client.submit(function, *args, key=new_key(group), pure=False, priority=1)
        return self.watch(task)

    def watch(self, future: Future) -> Future:
        self._under_way[future.key] = future
        self._alive.add(future)
        self._known.add(future)
        future.add_done_callback(self._landed.put)
        return future

    def completed(self, but: type[Exception] | tuple[()] = ()) -> Iterator[Future]:
        """Yield the futures as they finish, until none is left; raise the first failure, `but` not these."""
        while self._under_way:
            # Also while futures keep landing: one that is lost calls back at once, and the queue is never
            # empty then.
            self._liveness.look_when_due()
            try:
                future = self._landed.get(timeout=self._liveness.seconds)
            except queue.Empty:
                continue
            if future.status in ("lost", "pending"):  # its worker has died; the scheduler computes it again
                time.sleep(_LOST_SECONDS)  # a lost future calls back at once
                future.add_done_callback(self._landed.put)
                continue
            self._under_way.pop(future.key, None)
            if future.status != "error" or not isinstance(future.exception(), but):
                _raise_failure(future)
            yield future

    def gathered(self, futures: list[Any]) -> list[Any]:
        """The results of finished futures, which may still be lost on their way here.

        The client's own `gather` would wait forever for a value that no worker will compute again.
        """
        with ThreadPoolExecutor(1, "distrff-gather") as pool:
            fetched = pool.submit(self.client.gather, futures)
            try:
                while not wait([fetched], self._liveness.seconds).done:
                    self._liveness.look_when_due()
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
    if isinstance(error, DamagedPart):  # read again as its worker had died, and larger sums cover it now
        raise Lost(f"{error}, and the worker that had read it died") from error
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
    """A context in which tasks that carry rows are sent without a warning about their size."""
    return dask.config.set({"distributed.admin.large-graph-warning-threshold": "64GB"})


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

    def known(self) -> dict[str, dict[str, Any]]:
        """The scheduler's present knowledge of each worker, by address.

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
            # Counted once new workers are there, as nothing can be computed again before.
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
        """The threads of each worker that now takes tasks, by address."""
        workers, self._asked = self.known(), time.monotonic()
        self._threads = {
            a: worker["nthreads"] for a, worker in workers.items() if worker["status"] == "running"
        }
        return self._threads

    def recent_threads(self) -> dict[str, int]:
        """The same as of half a second ago at most; a task for a lost worker goes elsewhere."""
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
            if waited > (_LEAVING_SECONDS if self.known() else _NO_WORKERS_SECONDS):
                return
            time.sleep(0.1)


class Liveness:
    """Raises an error when waiting for futures has become useless.

    That is Lost if all workers have been replaced, or all are idle although tasks wait; ClusterError if the
    scheduler is out of reach, or no worker takes tasks for a minute.
    """

    def __init__(self, workers: WorkerList) -> None:
        self.seconds = _LOOK_SECONDS
        self._workers = workers
        self._due = time.monotonic() + self.seconds
        self._n_losses = workers.n_losses
        self._deadline = time.monotonic() + _NO_WORKERS_SECONDS
        self._idle_looks = 0

    def look_when_due(self) -> None:
        """Look if the last look is `seconds` ago, however many futures have finished since."""
        if time.monotonic() >= self._due:
            self.look()
            self._due = time.monotonic() + self.seconds

    def look(self) -> None:
        """Look once, which costs two messages to the scheduler."""
        workers = self._workers
        workers.check_connection()
        running = workers.running_threads()
        if workers.n_losses > self._n_losses:
            raise Lost("all workers of the cluster were replaced")
        now = time.monotonic()
        if not running:
            if now > self._deadline:
                raise _nobody_works(workers.known())
            return
        self._deadline = now + _NO_WORKERS_SECONDS
        # Every ready task is assigned to a worker; the scheduler holds none back while a worker is free.
        idle = not any(workers.client.processing().values())
        self._idle_looks = self._idle_looks + 1 if idle else 0
        if self._idle_looks >= _IDLE_LOOKS and workers.client.run_on_scheduler(_has_tasks_to_give):
            workers.n_losses += 1
            raise Lost("no worker was given the tasks that are ready")


def _has_tasks_to_give(dask_scheduler: Any) -> bool:
    """Whether tasks wait on the scheduler; large ones may still be on their way to it."""
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
    """A worker's address for each task that it could take, the least busy workers first."""
    # `threads` are those of the workers that take tasks now. If all are gone, one task waits for the next
    # worker to join.
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
    are, without being sent. Segments that a worker has cached come first, and no other takes them while it is
    there: to send one takes longer than to sum it.
    """

    def __init__(
        self, numbers: list[int], threads: dict[str, int], cached: Mapping[str, list[int]] | None = None
    ) -> None:
        wanted = set(numbers)
        self._cached = {worker: [i for i in own if i in wanted] for worker, own in (cached or {}).items()}
        free = sorted(wanted.difference(*self._cached.values()))
        self._left = {} if threads else {"": free}
        first_thread, n_threads = 0, sum(threads.values())
        for worker, count in threads.items():
            start, stop = (len(free) * t // n_threads for t in (first_thread, first_thread + count))
            self._left[worker] = free[start:stop]
            first_thread += count

    def __bool__(self) -> bool:
        """Whether any segment is left."""
        return any(self._left.values()) or any(self._cached.values())

    def take(self, worker: str, present: Iterable[str] = ()) -> int | None:
        """The next segment for a worker, which may have joined later; None if others keep the rest.

        `present` are the workers that take tasks now.
        """
        if self._cached.get(worker):
            return self._cached[worker].pop(0)
        if not any(self._left.values()):
            # Those of a worker that is there are left to it: sending a segment takes longer than summing it.
            gone = [other for other in self._cached if other not in set(present)]
            return next((self._cached[other].pop(0) for other in gone if self._cached[other]), None)
        if not self._left.get(worker):
            longest = max(self._left, key=lambda name: len(self._left[name]))
            run = self._left[longest]
            middle = len(run) // 2
            self._left[longest], self._left[worker] = run[:middle], run[middle:]
        return self._left[worker].pop(0)
