"""Passes over rows: timed, counted, remembered, and run in this process or on the ambient cluster."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import parent_process
from statistics import median
from typing import Any, Protocol

import dask
from dask.base import unpack_collections
from dask.system import CPU_COUNT
from distributed import default_client
from distributed.system import MEMORY_LIMIT

from distrff.engine.checkpoint import (
    Checkpoint,
    Later,
    PassSums,
    handles_in,
    read_sum,
    without_damaged,
    write_sum,
)
from distrff.engine.cluster import check_workers
from distrff.engine.distributed import ClusterExecution
from distrff.engine.progress import Observer, RowCount
from distrff.engine.reduction import (
    Arrays,
    OrderedMerge,
    Reduction,
    Rows,
    Segmentation,
    SharedArrays,
    light_segmentation,
)
from distrff.engine.tasks import (
    CacheForm,
    Level,
    Partial,
    SegmentCache,
    WorkRecord,
    delayed_task,
    in_dask_task,
    in_worker,
    keep_rows,
    merge_partials,
    reduce_rows,
    rows_in,
    say_of_last_write,
)
from distrff.errors import FrequencyMismatch, PlanRefused
from distrff.utils.process import cancel, libraries
from distrff.utils.serialize import compact
from distrff.utils.text import human_bytes

logger = logging.getLogger(__name__)


_SYNCHRONOUS = {"sync", "synchronous", "single-threaded"}
_HERE = ""  # the address of this process among workers
_IN_THREADS = {None, "threads", "threading"} | _SYNCHRONOUS


class Workers(Protocol):
    """The workers as a plan counts them."""

    @property
    def n_workers(self) -> int: ...

    @property
    def threads_per_worker(self) -> int: ...

    @property
    def memory_limit(self) -> int:
        """Bytes a worker; 0 for none."""

    @property
    def in_client(self) -> bool:
        """Whether tasks share the client's process, and its memory."""

    @property
    def is_nested(self) -> bool:
        """Whether others may run beside it: in a Dask task, or in a child process without a cluster."""

    @property
    def hold_values(self) -> bool:
        """Whether results stay in the process that made them: not with dask's scheduler of processes."""


@dataclass(frozen=True)
class PlannedWorkers:
    """Workers that need not exist yet."""

    n_workers: int
    threads_per_worker: int
    memory_limit: int
    in_client: bool = False
    is_nested: bool = False
    hold_values: bool = True


class LocalExecution:
    """Runs tasks as one of dask's own schedulers would, in rounds of one segment per thread.

    Handles on results are the results themselves. In this process functions are called directly: a single
    call in this thread, several in threads of its own. The pool and the callbacks of dask's configuration are
    not used. Blocks of dask arrays need a graph, and so do schedulers that start processes or are functions.
    """

    n_workers = 1
    in_client = True

    def __init__(self, scheduler: str | None) -> None:
        self._scheduler = scheduler
        self.is_nested = in_dask_task() or parent_process() is not None
        self.hold_values = scheduler in _IN_THREADS
        self.n_threads = 1 if scheduler in _SYNCHRONOUS else int(dask.config.get("num_workers", CPU_COUNT))
        self.threads_per_worker = self.n_threads
        self.memory_limit = int(MEMORY_LIMIT)
        self._fit = uuid.uuid4().hex

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
    ) -> Partial:
        """Return the merged partial of all segments; `sums` are those that a checkpoint has, and gets.

        `kept` are the segments that stay in memory from pass to pass. `group` names the tasks on Dask's
        dashboard, as everywhere below.
        """

        def one_pass() -> Partial:
            progress.update(-progress.n)  # a repeated pass counts from zero
            return self._pass(reduction, segments, progress, sent, sums, kept, group)

        return without_damaged(sums, one_pass)

    def _pass(
        self,
        reduction: Reduction,
        segments: list[Rows],
        progress: RowCount,
        sent: list[Any],
        sums: PassSums | None,
        kept: SegmentCache | None,
        group: str,
    ) -> Partial:
        merge = OrderedMerge(len(segments), lambda total, others: merge_partials(reduction, total, others))
        left, of_pass = list(range(len(segments))), uuid.uuid4().hex
        if sums is not None:
            for node in sums.in_order():
                merge.add(node[1], read_sum(sums.file(node), node), node[0])
            left = sums.segments_left()
            progress.update(rows_in(segments) - rows_in([segments[i] for i in left]))
        try:
            for start in range(0, len(left), self.n_threads):
                batch = left[start : start + self.n_threads]
                rows = self._kept_rows(segments, batch, kept, of_pass)
                calls = [(reduction, rows[i], sent, self._fit, of_pass) for i in batch]
                partials = self.submit_all(reduce_rows, calls, group=group)
                for i, summed in zip(batch, partials, strict=True):
                    merge.add(i, summed)
                    progress.update(segments[i].stop - segments[i].start)
                del partials, summed  # or they would be alive beside those of the next round
                if sums is not None and sums.is_due():
                    sums.write(merge.waiting)
        except BaseException as error:
            cancel(of_pass)
            if sums is not None:
                say_of_last_write(error)
                sums.write(merge.waiting)
            raise
        return merge.result()

    def _kept_rows(
        self, segments: list[Rows], numbers: list[int], kept: SegmentCache | None, of_pass: str
    ) -> dict[int, Rows]:
        """Return the rows of some segments by number: those that are kept, else the handles to read them."""
        rows = {i: segments[i] for i in numbers}
        if kept is None:
            return rows
        threads = {_HERE: self.n_threads}
        calls = {}
        for i in numbers:
            level = kept.level_with_room(_HERE, threads, len(segments)) if kept.value(i) is None else None
            if level is not None:
                kept.put(i, _HERE, level, None)
                keeping = kept.levels[level].keeping
                calls[i] = level, (keeping, segments[i], kept.arrays(), self._fit, of_pass)
        try:
            values = self.submit_all(keep_rows, [call for _, call in calls.values()], group="keep")
        except BaseException:
            kept.forget()
            raise
        for (i, (level, _)), value in zip(calls.items(), values, strict=True):
            kept.put(i, _HERE, level, value)
        return rows | {i: value for i in numbers if (value := kept.value(i)) is not None}

    def measure_idle(self, needed: Any) -> None:
        """Leave it to the first task, which finds its rows in this process anyway."""

    def measured(self) -> WorkRecord:
        """Return nothing beside the tasks' own records: what the client does is not the work of a task."""
        return WorkRecord()

    def send(self, arrays: dict[str, Any]) -> Any:
        return arrays

    def submit(self, function: Callable[..., Any], *args: Any, group: str | None = None) -> Any:
        return self.submit_all(function, [args], group=group)[0]

    def submit_all(
        self,
        function: Callable[..., Any],
        calls: list[tuple],
        *,
        group: str | None = None,
        costs: Sequence[float] | None = None,
    ) -> list[Any]:
        # One BLAS thread per task, as on the workers of a cluster: the same bits, and no more threads than
        # cores.
        with libraries().limit(limits=1, user_api="blas"):
            if self._scheduler not in _IN_THREADS or unpack_collections(calls)[0]:
                tasks = [delayed_task(function, args, group) for args in calls]
                return list(dask.compute(*tasks, scheduler=self._scheduler))
            n_threads = min(self.n_threads, len(calls))
            if n_threads <= 1:
                return [function(*args) for args in calls]
            return _in_threads(function, calls, n_threads)

    def gather(self, handles: list[Any]) -> list[Any]:
        return [compact(handle) for handle in handles]

    def settle(self, handle: Any) -> Any:
        return handle


def _in_threads(function: Callable[..., Any], calls: list[tuple], n_threads: int) -> list[Any]:
    """Return `function(*args)` for each of the calls; after a failure, or Ctrl-C, none is begun any more."""
    pool = ThreadPoolExecutor(n_threads, "distrff")
    try:
        return list(pool.map(lambda args: function(*args), calls))
    finally:
        # Threads cannot be interrupted: nobody waits for what they have begun.
        pool.shutdown(wait=False, cancel_futures=True)


_LOCAL_SCHEDULERS = {
    "sync", "synchronous", "single-threaded", "threads", "threading", "processes", "multiprocessing",
}  # fmt: skip


def ambient_execution() -> Execution:
    """Return the execution on the ambient cluster or in this process.

    Inside a Dask task that is this thread only, so that a search over parameters cannot wait for itself. Else
    it is the default client, unless dask's configuration names a local scheduler; without a client it is
    dask's configured scheduler.
    """
    if in_worker():
        return LocalExecution("synchronous")
    scheduler = dask.config.get("scheduler", None)
    if scheduler in _LOCAL_SCHEDULERS:
        return LocalExecution(scheduler)
    try:
        client = default_client()
    except ValueError:
        return LocalExecution(scheduler)
    return ClusterExecution(client)


Execution = LocalExecution | ClusterExecution


class SegmentSource(Protocol):
    """Rows that can be cut by row number, such as a dataset."""

    @property
    def n_rows(self) -> int: ...

    @property
    def n_columns(self) -> int: ...

    @property
    def source(self) -> str: ...

    @property
    def row_bytes(self) -> int: ...

    @property
    def chunk_rows(self) -> int: ...

    @property
    def held_bytes(self) -> int: ...

    def rows(self, start: int, stop: int) -> Rows:
        """Return the handle from which a task reads the rows [start, stop)."""


class Run:
    """The passes of one fit, and what they cost; by default on the `ambient_execution`."""

    def __init__(self, execution: Execution | None = None) -> None:
        self.execution = ambient_execution() if execution is None else execution
        self.sweeps: list[tuple[str, float]] = []  # label and seconds of each pass so far
        self.record = WorkRecord()  # of all tasks so far
        # Whether a worker derived other frequencies than this process, so that they must be sent.
        self.sends_derived = False
        self.checkpoint: Checkpoint | None = None
        self.observer = Observer()
        self._n_kept_sweeps = 0  # of those so far, the ones of earlier steps
        self._unsaved: dict[str, tuple[PassSums, Any]] = {}  # by key: finished passes, and their sums
        self._sent: dict[SharedArrays, list[Any]] = {}
        self._kept: dict[str, tuple[Segmentation, SegmentCache]] = {}  # by the name of its passes
        self._started = time.perf_counter()
        self._phases: list[tuple[str, float]] = [("plan", 0.0)]

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._started

    def follow(self, sweeps: Sequence[tuple[str, float]], seconds: float) -> None:
        """Count passes and seconds of earlier calls, of which this run is the end."""
        self.sweeps[:0] = sweeps
        self._started -= seconds
        self._phases = [("earlier calls", 0.0), *((name, start + seconds) for name, start in self._phases)]

    def begin_phase(self, name: str) -> None:
        """Begin a named phase, which may include more than passes over the rows."""
        self._phases.append((name, self.seconds))

    def phases(self) -> list[tuple[str, float]]:
        """Return name and seconds of each phase so far; their sum is `seconds`."""
        ends = [start for _, start in self._phases[1:]] + [self.seconds]
        return [(name, end - start) for (name, start), end in zip(self._phases, ends, strict=True)]

    def sweep(
        self,
        label: str,
        dataset: SegmentSource,
        reduction: Reduction,
        cuts: Segmentation,
        arrays: Arrays | None = None,
        kept: SegmentCache | None = None,
    ) -> Any:
        """Return the reduction of all rows, or a handle on it; `arrays` are sent to each task.

        `kept` are the segments of these cuts that stay on the workers.

        If a worker derives other frequencies from the seed than the client, the pass starts again and sends
        the frequencies. Raises PlanRefused if workers lack the memory to read rows stored like these.
        """
        check_reading(self.execution, dataset, reduction.size_bytes(min(cuts.segment_rows, dataset.n_rows)))
        segments = [dataset.rows(start, stop) for start, stop in cuts.bounds()]
        return self.sweep_segments(label, segments, reduction, arrays, kept)

    def kept(self, passes: str, cuts: Segmentation, levels: Sequence[tuple[CacheForm, int]]) -> SegmentCache:
        """Return what stays of the segments of some passes: ways to keep them, and of each how many.

        All passes of one name share it while their cuts are the same. For other cuts it is freed, and begun
        anew: a plan has room for one.
        """
        before = self._kept.get(passes)
        if before is not None and before[0] == cuts:
            return before[1]
        if before is not None:
            before[1].forget()
        first = levels[0][0]
        light = [Level(keeping.light(), max_segments) for keeping, max_segments in levels]
        self._kept[passes] = cuts, SegmentCache(light, lambda: self.share(first.shared()))
        return self._kept[passes][1]

    def forget_kept(self) -> None:
        """Free what stays on the workers: at the end of a fit, whoever may still hold its parts."""
        for _, kept in self._kept.values():
            kept.forget()

    def sweep_segments(
        self,
        label: str,
        segments: list[Any],
        reduction: Reduction,
        arrays: Arrays | None = None,
        kept: SegmentCache | None = None,
    ) -> Any:
        """Return the reduction of given segments, such as those that cannot be cut by row number."""
        self.observer.passes(self.sweeps)
        place = len(self.sweeps)
        self.sweeps.append((label, 0.0))
        if self.checkpoint is None:
            return self._summed(place, segments, reduction, arrays, None, kept)
        bounds = [(rows.start, rows.stop) for rows in segments]
        key = self.checkpoint.next_key("sweep", label, reduction.light(), bounds, arrays)
        sums = self.checkpoint.sums(key, len(segments), label)
        return self._later(lambda: self._summed(place, segments, reduction, arrays, sums, kept), key)

    def _summed(
        self,
        place: int,
        segments: list[Any],
        reduction: Reduction,
        arrays: Arrays | None,
        sums: PassSums | None,
        kept: SegmentCache | None,
    ) -> Any:
        """Return the reduction of the segments, and note its seconds at a place of `sweeps`."""
        label, started = self.sweeps[place][0], time.perf_counter()
        sent = [self.execution.send(dict(arrays))] if arrays else []
        while True:
            try:
                handle = self._pass(label, segments, reduction, sent, sums, kept)
                break
            except FrequencyMismatch as mismatch:
                logger.warning("%s; the frequencies are sent to the workers instead", mismatch)
                self.sends_derived = True
                self._sent.clear()
        if self.checkpoint is not None:
            self.checkpoint.see(label=None, n_segments=None, n_segments_done=None, seconds_left_of_pass=None)
        self.sweeps[place] = label, self.sweeps[place][1] or time.perf_counter() - started
        logger.info("%s: %.3g s", *self.sweeps[place])
        if sums is not None and not sums.is_complete:
            self._unsaved[sums.key] = sums, handle
        if isinstance(handle, Partial):
            value, record = handle.value, handle.record
        else:
            record = self.execution.gather([self.execution.submit(getattr, handle, "record", group="merge")])[
                0
            ]
            # After the record, so that a pass that a restart has lost is repeated only once.
            value = self.execution.submit(getattr, handle, "value", group="merge")
        self.record = self.record.merge(record)
        return value

    def share(self, shared: SharedArrays | None) -> list[Any]:
        """Return a list of one handle on shared arrays, the same for the whole run; empty without arrays."""
        if shared is None:
            return []
        if shared not in self._sent:
            arrays = shared.arrays_to_send(derived=self.sends_derived)
            self._sent[shared] = [self.execution.send(arrays)] if arrays else []
        return self._sent[shared]

    def _pass(
        self,
        label: str,
        segments: list[Any],
        reduction: Reduction,
        sent: list[Any],
        sums: PassSums | None,
        kept: SegmentCache | None,
    ) -> Any:
        sent = sent + self.share(reduction.shared())
        with self.observer.rows_of(label, sum(rows.stop - rows.start for rows in segments)) as progress:
            return self.execution.reduce(
                reduction.light(), segments, progress, sent, sums, kept=kept, group=label
            )

    def send(self, arrays: dict[str, Any]) -> Any:
        """Return an argument for several tasks: small arrays themselves, else a handle on them."""
        if self.checkpoint is None:
            return self.execution.send(arrays)
        self.checkpoint.next_key("send", arrays)
        return self._later(lambda: self.execution.send(arrays))

    def submit(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return a handle on `function(*args)`; args may be handles, or lists of them."""
        if self.checkpoint is None:
            return self.execution.submit(function, *handles_in(args))
        self.checkpoint.next_key("call", function.__qualname__, args)
        return self._later(lambda: self.execution.submit(function, *handles_in(args)))

    def submit_all(
        self,
        function: Callable[..., Any],
        calls: list[tuple],
        *,
        group: str | None = None,
        costs: Sequence[float] | None = None,
    ) -> list[Any]:
        """Return handles on `function(*args)` for each of the calls, which may run side by side.

        `group` names the tasks on Dask's dashboard; by default it is the function's name. With `costs`,
        relative ones, they are dealt out to all workers, so that these end at about the same time: for calls
        that take longer than to send their arguments.
        """
        options: dict[str, Any] = {"group": group, "costs": costs}
        if self.checkpoint is None:
            return self.execution.submit_all(function, [handles_in(args) for args in calls], **options)
        self.checkpoint.next_key("calls", function.__qualname__, calls)
        # Together, as they may run side by side.
        begun = self._later(
            lambda: self.execution.submit_all(function, [handles_in(c) for c in calls], **options)
        )
        return [self._later(partial(_item, begun, i)) for i in range(len(calls))]

    def gather(self, handles: list[Any]) -> list[Any]:
        """Return the values of the handles."""
        checkpoint = self.checkpoint
        if checkpoint is None:
            return self.execution.gather(handles_in(list(handles)))
        key, first = checkpoint.next_key("values", len(handles)), self._n_kept_sweeps
        passes = [handle.key for handle in handles if isinstance(handle, Later) and handle.key]
        found = checkpoint.found(key)
        if found is None:
            values = self.execution.gather(handles_in(list(handles)))
            is_kept = checkpoint.keep(key, self.sweeps[first:], [self.sends_derived, *values])
            for of_pass in passes:
                self._unsaved.pop(of_pass, None)
            spent = [seconds for _, seconds in self.sweeps]
            usual = median(spent) if spent else None
            checkpoint.see(n_sweeps=len(spent), seconds=sum(spent), seconds_of_usual_pass=usual)
        else:
            sweeps, (self.sends_derived, *values) = found
            self.sweeps[first : first + len(sweeps)] = sweeps
            is_kept = True
        if is_kept:
            checkpoint.finish(passes)
        self._n_kept_sweeps = len(self.sweeps)
        if checkpoint.is_due():
            self.save()
        return values

    def save(self, *, with_sums: bool = True) -> None:
        """Write what is finished to the checkpoint, if there is one."""
        if self.checkpoint is None:
            return
        self.checkpoint.write()
        for key, (sums, handle) in list(self._unsaved.items()) if with_sums else ():
            saved = self.execution.submit(write_sum, sums.file(sums.root), handle, group="checkpoint")
            seconds, error = self.execution.gather([saved])[0]
            if error is not None:
                self.checkpoint.failed(error)
                return
            sums.add(sums.root, is_read_from_now_on=False)
            self.checkpoint.wrote(seconds)
            del self._unsaved[key]

    def measure_peaks(self) -> None:
        """Take note of the memory that workers have taken up to now, also after the last pass."""
        self.record = self.record.merge(self.execution.measured())

    def leave_checkpoint(self) -> None:
        """Go on without a checkpoint: what a fitted model computes later is none of its steps."""
        self.checkpoint = None
        self._unsaved.clear()

    def settle(self, handle: Any) -> Any:
        """Return a handle that outlives its fit, without the rows behind it."""
        return self.execution.settle(handles_in(handle))

    def _later(self, begin: Callable[[], Any], key: str = "") -> Later:
        """Return a handle that is made at once, unless a stored value may take its place."""
        assert self.checkpoint is not None
        later = Later(begin, key)
        if not self.checkpoint.may_skip:
            later.handle()
        return later

    def value(self, handle: Any) -> Any:
        """Return the value of one handle."""
        return self.gather([handle])[0]

    def compute(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return `function(*args)`, computed where its arguments are."""
        return self.value(self.submit(function, *args))

    def compute_all(
        self,
        function: Callable[..., Any],
        calls: list[tuple],
        *,
        group: str | None = None,
        costs: Sequence[float] | None = None,
    ) -> list[Any]:
        """Return `function(*args)` for each of the calls, which may run side by side; see `submit_all`."""
        return self.gather(self.submit_all(function, calls, group=group, costs=costs))


def _item(begun: Later, i: int) -> Any:
    return begun.handle()[i]


def begin_run() -> Run:
    """Return a run of the ambient execution, after checking that each worker can run this distrff."""
    run = Run()
    if isinstance(run.execution, ClusterExecution):
        check_workers(run.execution.client)
    return run


_MAX_TASKS = 2**20  # the client makes an object for each task before it sends the first one
_SPANS = 3  # two decoded spans and a tile


def check_reading(workers: Workers, dataset: SegmentSource, sum_bytes: int = 0) -> None:
    """Raise PlanRefused for rows that the threads of a worker cannot all read at once.

    Only shape and chunks decide, before a row is read; `sum_bytes` is the size of a task's partial.
    """
    limit, threads = workers.memory_limit or math.inf, workers.threads_per_worker
    row = threads * (_SPANS * dataset.row_bytes + sum_bytes)
    unit = threads * (2 * dataset.chunk_rows * dataset.row_bytes + dataset.held_bytes + sum_bytes)
    n_tasks = light_segmentation(dataset.n_rows, dataset.n_columns).n_segments
    have = f"a worker of {threads} thread(s), whose memory limit is {human_bytes(workers.memory_limit)}"
    if row > limit:
        raise PlanRefused(
            f"{dataset.source}: rows of {dataset.n_columns:,} columns take {human_bytes(row)} in {have}; "
            f"choose columns, or give more memory"
        )
    if unit > limit:
        raise PlanRefused(
            f"{dataset.source}: reading a chunk or row group takes {human_bytes(unit)} in {have}; rewrite "
            f"the rows in smaller ones (`distrff convert`), or give more memory"
        )
    if n_tasks > _MAX_TASKS:
        raise PlanRefused(
            f"{dataset.source}: {dataset.n_rows:,} rows of {dataset.n_columns:,} columns are {n_tasks:,} "
            f"tasks per pass, but at most {_MAX_TASKS:,} are possible; fit a sample of the rows"
        )
