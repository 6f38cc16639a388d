"""Passes over rows: timed, counted, remembered, and run in this process or on the ambient cluster."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import dask
from distributed import default_client

from distrff.engine.checkpoint import Checkpoint, Replay
from distrff.engine.progress import FitLine, Observer
from distrff.engine.reduction import Arrays, Reduction, Rows, Segmentation, SharedArrays, light_segmentation
from distrff.engine.tasks import (
    CacheForm,
    Costs,
    Level,
    LocalExecution,
    Lost,
    Partial,
    Pass,
    SegmentCache,
    Workers,
    WorkRecord,
    in_worker,
    rows_in,
)
from distrff.errors import ClusterError, FrequencyMismatch, PlanRefused
from distrff.utils.text import human_bytes

if TYPE_CHECKING:
    from distrff.engine.distributed import ClusterExecution

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_LOSSES = 5  # in succession, without a value in between

_LOCAL_SCHEDULERS = {
    "sync", "synchronous", "single-threaded", "threads", "threading", "processes", "multiprocessing",
}  # fmt: skip


def ambient_execution() -> LocalExecution | ClusterExecution:
    """The execution on the ambient cluster or in this process.

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
    from distrff.engine.distributed import ClusterExecution  # only where there is a cluster

    return ClusterExecution(client)


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
        """The handle from which a task reads the rows [start, stop)."""


class Handle:
    """A value that tasks make: on the workers, or in this process.

    It is made at once, unless the values that were remembered may make it needless: then when it is needed.
    """

    def __init__(self, begin: Callable[[], Any] | None, made: Any = None, pass_key: str = "") -> None:
        self.begin, self.made = begin, made
        self.pass_key = pass_key  # of the pass whose sum it is
        self.total: Any = None  # of that pass, with its record, so that a checkpoint can store it

    def value(self) -> Any:
        """The value in this process, or a future."""
        if self.begin is not None:
            self.made = self.begin()
            self.begin = None  # and with it the arguments, which would live as long as the value
        return self.made


def _made(args: Any) -> Any:
    """Arguments with the value in the place of each handle, also in lists and tuples."""
    if isinstance(args, Handle):
        return args.value()
    return type(args)(map(_made, args)) if type(args) in (list, tuple) else args


class Run:
    """The passes of one fit, and what they cost; by default on the `ambient_execution`.

    Handles stand for values that tasks make. The client gets values by `get`, `gather`, `compute`, `map` and
    `total`; each time it remembers them, in the order of the calls: in the checkpoint of the fit, and on a
    cluster in any case. So if the cluster is lost, `surviving` calls the solver again, which goes through the
    same steps, meets its values and makes no pass that it has the values of. Another process that has the
    checkpoint does the same.
    """

    def __init__(self, execution: LocalExecution | ClusterExecution | None = None) -> None:
        self.execution = ambient_execution() if execution is None else execution
        self.sweeps: list[tuple[str, float]] = []  # label and seconds of each pass so far
        self.record = WorkRecord()  # of all tasks so far
        # Whether a worker derived other frequencies than this process, so that they must be sent.
        self.sends_derived = False
        self.checkpoint: Checkpoint | None = None
        self.observer = Observer()
        self._replay: Replay | None = None  # where a cluster may be lost, and there is no checkpoint
        self._survives = self._is_settled = False
        self._n_values = 0  # how often the client got values, remembered ones not counted
        self._n_kept_sweeps = 0  # of those so far, the ones of earlier steps
        self._sent: dict[SharedArrays, list[Any]] = {}
        self._caches: dict[str, tuple[Segmentation, SegmentCache]] = {}  # by the name of its passes
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
        """Name and seconds of each phase so far; their sum is `seconds`."""
        ends = [start for _, start in self._phases[1:]] + [self.seconds]
        return [(name, end - start) for (name, start), end in zip(self._phases, ends, strict=True)]

    # Passes and calls: handles.

    def reduce(
        self,
        label: str,
        dataset: SegmentSource | list[Any],
        reduction: Reduction,
        cuts: Segmentation | None = None,
        arrays: Arrays | None = None,
        cache: SegmentCache | None = None,
    ) -> Handle:
        """A handle on the reduction of all rows; `arrays` are sent to each task.

        Without `cuts` the rows are given segments, such as those that cannot be cut by row number. `cache`
        are the segments of these cuts that stay on the workers.

        If a worker derives other frequencies from the seed than the client, the pass starts again and sends
        the frequencies. Raises PlanRefused if workers lack the memory to read rows stored like these.
        """
        if isinstance(dataset, list):
            segments = dataset
        else:
            assert cuts is not None
            n_rows = min(cuts.segment_rows, dataset.n_rows)
            # With the bytes of this pass's partial, which the check before the fit does not count.
            check_reading(self.execution, dataset, reduction.size_bytes(n_rows))
            segments = [dataset.rows(start, stop) for start, stop in cuts.bounds()]
        # A callback hears of a pass when the next one is asked for: then its seconds are known.
        self.observer.passes(self.sweeps)
        place = len(self.sweeps)
        # Its place is that of the call, although it may be made later, or never.
        self.sweeps.append((label, 0.0))
        bounds = [(rows.start, rows.stop) for rows in segments]
        # Light: the arrays that are left out follow from the seed, or from values that are in the digest
        # already.
        key = self._next_key("sweep", label, reduction.light(), bounds, arrays)
        handle = Handle(None, pass_key=key)

        def begin() -> Any:
            total = self._total(place, segments, reduction, arrays, cache, key)
            if isinstance(total, Partial):
                value, record = total.value, total.record
            else:
                submit = partial(self.execution.submit, getattr, total, group="merge")
                # Only the record comes here: the value may be a Gram of gigabytes, which stays where it is.
                record = self.execution.gather([submit("record")])[0]
                value = submit("value")
            self.record = self.record.merge(record)
            if self.checkpoint is not None:
                handle.total = total
            return value

        handle.begin = begin
        return self._begun(handle)

    def _total(
        self,
        place: int,
        segments: list[Any],
        reduction: Reduction,
        arrays: Arrays | None,
        cache: SegmentCache | None,
        key: str,
    ) -> Any:
        """Sum the segments, and note the seconds at a place of `sweeps`."""
        label, started, n_rows = self.sweeps[place][0], time.perf_counter(), rows_in(segments)
        checkpoint = self.checkpoint
        sums = None if checkpoint is None else checkpoint.sums(key, len(segments))
        sent = [self.execution.send(dict(arrays))] if arrays else []
        while True:
            try:
                sent_to_all = sent + self.share(reduction.shared())
                with self.observer.rows_of(label, n_rows) as line:
                    count = self._counter(line, label, n_rows, len(segments))
                    pass_ = Pass(reduction.light(), segments, count, sent_to_all, sums, cache, group=label)
                    total = self.execution.reduce(pass_)
                break
            except BaseException as error:
                if cache is not None:  # a segment that failed, or was not finished, would be waited for again
                    cache.forget()
                if not isinstance(error, FrequencyMismatch):
                    raise
                logger.warning("%s; the frequencies are sent to the workers instead", error)
                self.sends_derived = True
                self._sent.clear()
        if checkpoint is not None:
            checkpoint.record(label=None, n_segments=None, n_segments_done=None, seconds_left_of_pass=None)
        self.sweeps[place] = label, time.perf_counter() - started
        logger.info("%s: %.3g s", *self.sweeps[place])
        return total

    def _counter(self, line: FitLine, label: str, n_rows: int, n_segments: int) -> Callable[[int], None]:
        """A function that counts rows of a pass, for the line that a person sees and for the checkpoint."""
        checkpoint, began = self.checkpoint, time.monotonic()

        def count(n: int) -> None:
            line.update(n)
            if checkpoint is not None and checkpoint.is_due():
                spent, left = time.monotonic() - began, n_rows - line.n
                checkpoint.record(
                    label=label,
                    n_segments=n_segments,
                    n_segments_done=line.n * n_segments // n_rows,
                    seconds_left_of_pass=spent * left / line.n if line.n else None,
                )
                checkpoint.write()

        return count

    def cache(self, passes: str, cuts: Segmentation, levels: Sequence[tuple[CacheForm, int]]) -> SegmentCache:
        """The cache of some passes: forms in which their segments stay, and how many in each.

        All passes of one name share it while their cuts are the same. For other cuts it is freed, and begun
        anew: a plan has room for one.
        """
        before = self._caches.get(passes)
        if before is not None and before[0] == cuts:
            return before[1]
        if before is not None:
            before[1].forget()
        first = levels[0][0]
        light = [Level(form.light(), max_segments) for form, max_segments in levels]
        self._caches[passes] = cuts, SegmentCache(light, lambda: self.share(first.shared()))
        return self._caches[passes][1]

    def forget_caches(self) -> None:
        """Free what stays on the workers: at the end of a fit, whoever may still hold its parts."""
        for _, cache in self._caches.values():
            cache.forget()

    def share(self, shared: SharedArrays | None) -> list[Any]:
        """A list of one handle on shared arrays, the same for the whole run; empty without arrays."""
        if shared is None:
            return []
        if shared not in self._sent:
            arrays = shared.arrays_to_send(derived=self.sends_derived)
            self._sent[shared] = [self.execution.send(arrays)] if arrays else []
        return self._sent[shared]

    def send(self, arrays: dict[str, Any]) -> Handle:
        """Send arrays once, as an argument for several tasks."""
        self._next_key("send", arrays)
        return self._begun(Handle(lambda: self.execution.send(arrays)))

    def submit(self, function: Callable[..., Any], *args: Any) -> Handle:
        """A handle on `function(*args)`; args may be handles, or lists of them."""
        self._next_key("call", function.__qualname__, args)
        return self._begun(Handle(lambda: self.execution.submit(function, *_made(args))))

    def submit_all(
        self, function: Callable[..., Any], calls: list[tuple], *, group: str = "", costs: Costs = None
    ) -> list[Handle]:
        """Begin `function(*args)` for each of the calls, which may run side by side.

        `group` names the tasks on Dask's dashboard; by default it is the function's name. With `costs`,
        relative ones, they are dealt out to all workers, so that these end at about the same time: for calls
        that take longer than to send their arguments.
        """
        self._next_key("calls", function.__qualname__, calls)
        all_of_them = Handle(
            lambda: self.execution.submit_all(function, [_made(c) for c in calls], group=group, costs=costs)
        )

        def one(i: int) -> Handle:
            return self._begun(Handle(lambda: all_of_them.value()[i]))

        return [one(i) for i in range(len(calls))]

    def _begun(self, handle: Handle) -> Handle:
        """Make a handle at once, unless remembered values may make it needless."""
        if self._memory is None or not self._memory.may_skip:
            handle.value()
        return handle

    def settle(self, handle: Any) -> Handle:
        """A handle on a value that outlives its fit, without the sum of a pass behind it."""
        self._is_settled = True
        return Handle(None, _made(handle))

    # Values, which are remembered.

    @property
    def _memory(self) -> Checkpoint | Replay | None:
        return self._replay if self.checkpoint is None else self.checkpoint

    def _next_key(self, *what: Any) -> str:
        return "" if self._memory is None else self._memory.next_key(*what)

    def gather(self, handles: Sequence[Handle]) -> list[Any]:
        """The values of the handles."""
        memory = self._memory
        if memory is None:
            return self._gathered(handles)
        key, first = memory.next_key("values", len(handles)), self._n_kept_sweeps
        found = memory.found(key)
        if found is None:
            values = self._gathered(handles)
            # Also whether frequencies are sent, as a run that skips this pass does not meet the mismatch
            # itself.
            is_kept = memory.keep(key, self.sweeps[first:], [self.sends_derived, *values])
            self._n_values += 1
        else:
            sweeps, (self.sends_derived, *values) = found
            # In place of the entries of 0 s that `reduce` made for passes that are not needed.
            self.sweeps[first : first + len(sweeps)] = sweeps
            is_kept = True
        self._n_kept_sweeps = len(self.sweeps)
        if self.checkpoint is not None:
            if is_kept:
                self.checkpoint.finish(h.pass_key for h in handles if h.pass_key)
                for handle in handles:
                    handle.total = None
            if found is None:
                spent = [seconds for _, seconds in self.sweeps]
                usual = median(spent) if spent else None
                self.checkpoint.record(n_sweeps=len(spent), seconds=sum(spent), seconds_of_usual_pass=usual)
            if self.checkpoint.is_due():
                self.checkpoint.write()
        return values

    def _gathered(self, handles: Sequence[Handle]) -> list[Any]:
        try:
            return self.execution.gather(_made(list(handles)))
        except Lost as lost:
            if not self._is_settled:
                raise
            raise ClusterError(
                "the cluster lost the Gram of this model (its workers were restarted or replaced since the "
                "fit); fit again"
            ) from lost

    def get(self, handle: Handle) -> Any:
        """The value of one handle."""
        return self.gather([handle])[0]

    def total(self, *args: Any, **options: Any) -> Any:
        """The reduction of all rows; see `reduce`."""
        return self.surviving(lambda: self.get(self.reduce(*args, **options)))

    def compute(self, function: Callable[..., Any], *args: Any) -> Any:
        """The value of `function(*args)`, computed where its arguments are."""
        return self.surviving(lambda: self.get(self.submit(function, *args)))

    def map(
        self, function: Callable[..., Any], calls: list[tuple], *, group: str = "", costs: Costs = None
    ) -> list[Any]:
        """The values of `function(*args)` for each of the calls; see `submit_all`."""
        return self.surviving(lambda: self.gather(self.submit_all(function, calls, group=group, costs=costs)))

    def surviving(self, solve: Callable[[], T]) -> T:
        """Call `solve()`; if the cluster is lost meanwhile, call it again: it meets its values.

        It must take the same steps each time, from what it was given and what it gets from this run.
        """
        # Inside another `surviving` the outer one takes all steps again. A fitted model cannot: its rows may
        # be gone.
        if self._survives or self._is_settled or isinstance(self.execution, LocalExecution):
            return solve()
        self._survives = True
        if self.checkpoint is None:
            self._replay = Replay()
        self._n_kept_sweeps = len(self.sweeps)
        before = len(self.sweeps), len(self._phases), self.seconds
        n_values, n_losses, lacked_input = 0, 0, False
        try:
            while True:
                try:
                    return solve()
                except Lost as lost:
                    # A cluster of preempted machines may be lost any number of times, if the fit gets on in
                    # between.
                    n_losses = n_losses + 1 if self._n_values == n_values else 1
                    n_values = self._n_values
                    # Once may be a task that was sent while its input was being lost. Twice are persisted
                    # blocks, which dask cannot make anew.
                    if lost.lacks_input and lacked_input:
                        raise ClusterError(
                            "the cluster lost the persisted blocks of a dask array, since it was restarted "
                            "or all its workers were replaced; persist the array again and fit again"
                        ) from lost
                    if n_losses >= _MAX_LOSSES:
                        raise ClusterError(
                            f"{lost}, {_MAX_LOSSES} times during one pass; unless somebody restarted the "
                            f"workers, their memory limit is probably too small: compare it with the plan's "
                            f"peak, look at their logs, and fit again"
                        ) from lost
                    lacked_input = lost.lacks_input
                    logger.warning("%s; lost values are computed again", lost)
                    self.execution.recover(lost)
                    self._begin_again(*before)
        finally:
            self._survives = False
            if self._replay is not None:
                self._replay.close()
                self._replay = None

    def _begin_again(self, n_sweeps: int, n_phases: int, seconds: float) -> None:
        assert self._memory is not None
        self._memory.rewind()
        del self.sweeps[n_sweeps:]
        self._n_kept_sweeps = n_sweeps
        self._phases[n_phases:] = [("lost with the cluster", seconds)]
        # These are handles on values of the lost cluster, as are those in the caches.
        self._sent.clear()
        self.forget_caches()
        self._caches.clear()
        self.observer.begin_again()

    def save(self, *, with_sums: bool = True) -> None:
        """Write what is finished to the checkpoint, if there is one."""
        if self.checkpoint is not None:
            self.checkpoint.write()
            if with_sums:
                self.execution.write_finished()

    def measure_peaks(self) -> None:
        """Take note of the memory that workers have taken up to now, also after the last pass."""
        self.record = self.record.merge(self.execution.measured())


def begin_run() -> Run:
    """A run of the ambient execution, after checking that each worker can run this distrff."""
    run = Run()
    run.execution.check_workers()
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
