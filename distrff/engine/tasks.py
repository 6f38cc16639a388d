"""Tasks: their work and its record, the segments that stay in memory, and tasks in this process."""

from __future__ import annotations

import logging
import os
import resource
import socket
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import parent_process
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Self, TypeVar

import dask
from dask.base import unpack_collections
from dask.system import CPU_COUNT
from distributed import get_worker
from distributed.system import MEMORY_LIMIT
from threadpoolctl import threadpool_info

from distrff.engine.checkpoint import DamagedPart, Node, PassSums, write_finished
from distrff.engine.reduction import Arrays, Neighbour, OrderedMerge, Reduction, Rows, SharedArrays, joined
from distrff.errors import ClusterError
from distrff.utils.jit import COUNTS, prepare_process
from distrff.utils.process import cancel, libraries, working_for
from distrff.utils.random import new_key
from distrff.utils.serialize import compact

logger = logging.getLogger(__name__)

_RETRY_SECONDS = (0.2, 1.0)

R = TypeVar("R")

Costs = Sequence[float] | None
"""Relative costs of calls, by which they are dealt out to all workers; None leaves it to Dask."""

# The record of a process: memory, BLAS threads, how often it derived a map.

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class ProcessRecord:
    """State of a process at the end of a task."""

    idle_bytes: int  # resident set when the first task began, after all imports
    peak_bytes: int  # largest resident set since the fit began
    blas_threads: int
    n_derivations: int  # how often a map's arrays were derived since the process began


@dataclass
class WorkRecord:
    """The work behind a result; seconds are summed over tasks. Keys of `processes` are host:process id."""

    n_rows: int = 0
    seconds: float = 0.0
    processes: dict[str, ProcessRecord] = field(default_factory=dict)

    def merge(self, other: WorkRecord) -> WorkRecord:
        """The record of both; of a process in both the later state, which has the higher peak."""
        # Both numbers only grow while a fit runs in a process, so the largest is the latest, in whatever
        # order merges come.
        processes = self.processes | other.processes
        for name in self.processes.keys() & other.processes.keys():
            both = self.processes[name], other.processes[name]
            processes[name] = max(both, key=lambda record: (record.peak_bytes, record.n_derivations))
        return WorkRecord(self.n_rows + other.n_rows, self.seconds + other.seconds, processes)

    @property
    def measured_peak_bytes(self) -> int:
        """Largest peak above idle of any process."""
        return max((p.peak_bytes - p.idle_bytes for p in self.processes.values()), default=0)


# State of this process.
_THIS = SimpleNamespace(idle_bytes=0, blas_threads=0, fit=None)


def begin_task(fit: str, needed: Any = None) -> None:
    """Measure the idle memory before the first task, and reset the peak when a new fit begins.

    `needed` is only to be received. Workers are asked to begin before a fit's first pass, as rows that come
    with a task are in memory when it begins.
    """
    if not _THIS.idle_bytes:
        prepare_process()  # so that the idle process has loaded all that it will use
        # Once for all fits of the process: what an earlier fit has left allocated is no part of an idle one.
        _THIS.idle_bytes, _THIS.blas_threads = resident_bytes(), blas_threads()
    if fit != _THIS.fit:
        _THIS.fit = fit
        _reset_peak()


def end_task(n_rows: int, seconds: float) -> WorkRecord:
    """The record of a task that this process has just run."""
    # After a reset the peak may be below idle, as memory was given back since.
    peak = max(_THIS.idle_bytes, peak_resident_bytes())
    record = ProcessRecord(_THIS.idle_bytes, peak, _THIS.blas_threads, COUNTS["derivations"])
    return WorkRecord(n_rows, seconds, {f"{socket.gethostname()}:{os.getpid()}": record})


def peak_so_far(fit: str) -> WorkRecord:
    """The record of a process since a fit began there; an empty one if it did not."""
    return end_task(0, 0.0) if fit == _THIS.fit else WorkRecord()


def blas_threads() -> int:
    """The threads of a matrix product in this process."""
    return max((lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"), default=1)


def _status_bytes(key: str) -> int | None:
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    return None


def peak_resident_bytes() -> int:
    """The largest resident set of this process since its peak was last reset."""
    peak = _status_bytes("VmHWM:")
    if peak is not None:
        return peak
    # This one cannot be reset, so the second fit of a process reports the peak of both.
    maximum = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Bytes on macOS, KiB elsewhere.
    return maximum if sys.platform == "darwin" else maximum * 1024


def resident_bytes() -> int:
    """The resident set of this process; its peak if the system does not report the present one."""
    return _status_bytes("VmRSS:") or peak_resident_bytes()


def _reset_peak() -> None:
    """Set the peak to the present resident set, if the system allows it."""
    with suppress(OSError):
        # 5 resets VmHWM alone (Linux 4.0, proc(5)). A sandbox may refuse it: then the peak is that of the
        # process's life.
        _CLEAR_REFS.write_text("5")


# The tasks of a pass.


@dataclass(frozen=True)
class Partial:
    """The sum of some rows, with the record of the work behind it."""

    value: Any
    record: WorkRecord


def reduce_rows(
    reduction: Reduction,
    rows: Rows,
    sent: list[Arrays],
    fit: str,
    of_pass: str = "",
    sums: PassSums | None = None,
    segment: int = 0,
) -> Partial:
    """Sum one segment, from the rows and the arrays that were sent.

    `of_pass` names the pass in this process, by which it can be abandoned; `sums` are those of a checkpoint.
    """
    begin_task(fit)
    started, arrays = time.perf_counter(), joined(sent)
    with working_for(of_pass):
        # Each try has a `zero` of its own, since the one that failed may hold some of the rows.
        value = with_retries(lambda: reduction.finish(reduction.update(reduction.zero(), rows, arrays)), rows)
    partial = Partial(value, end_task(rows.stop - rows.start, time.perf_counter() - started))
    if sums is not None:
        sums.note((0, segment), partial)
    return partial


def with_retries(work: Callable[[], R], rows: Rows) -> R:
    """Do work on the rows of a segment, again after an error of the storage."""
    for wait in _RETRY_SECONDS:
        try:
            return work()
        # Lost connections and server errors of any store arrive as OSError. Wrong values are InputError,
        # which another try would meet again.
        except OSError as error:
            logger.warning(
                "rows %d to %d could not be read (%s); again in %.1f s", rows.start, rows.stop, error, wait
            )
            time.sleep(wait)
    return work()


def merge_partials(
    reduction: Reduction,
    sums: PassSums | None,
    partial: Partial,
    neighbours: list[Neighbour],
    node: Node,
    *,
    is_task: bool = True,
) -> Partial:
    """Sum a partial with its neighbours, one after another, each before or after it.

    Where it is no task, the record leaves out the process, which is the client.
    """
    started = time.perf_counter()
    value, record = partial.value, partial.record
    for neighbour, is_before in neighbours:
        # The order is that of the rows, whichever of the two came last.
        first, second = (neighbour.value, value) if is_before else (value, neighbour.value)
        value, record = reduction.merge(first, second), record.merge(neighbour.record)
    if is_task:
        record = record.merge(end_task(0, time.perf_counter() - started))
    merged = Partial(value, record)
    if sums is not None:
        sums.note(node, merged)
    return merged


def read_sum(sums: PassSums, node: Node) -> Any:
    """Read a stored sum, in the place of its segments."""
    return sums.folder.read(node)


def stored_sums(sums: PassSums | None) -> dict[Node, Any]:
    """Read all stored sums that are not damaged."""
    found: dict[Node, Any] = {}
    if sums is None:
        return found
    for node in sums.found:
        try:
            found[node] = read_sum(sums, node)
        except DamagedPart as damaged:
            logger.warning("%s; its rows are summed again", damaged)
    return found


# Segments that stay on the workers between the passes of a fit: their rows, or also their features.


class CacheForm(ABC):
    """The form in which a segment is kept, as a frozen dataclass; the same bits on every worker."""

    @abstractmethod
    def keep(self, rows: Any, arrays: Arrays) -> Rows:
        """The rows in memory, with all that reductions take from them."""

    @abstractmethod
    def shared(self) -> SharedArrays | None:
        """The arrays that it shares with the passes; None if there are none."""

    def light(self) -> Self:
        """The same value without the arrays that are sent apart."""
        return self


def keep_rows(keeping: CacheForm, rows: Rows, sent: list[Arrays], fit: str, of_pass: str = "") -> Rows:
    """Keep one segment; `of_pass` is as in `reduce_rows`."""
    begin_task(fit)  # or a worker that has just joined would count what it keeps as idle memory
    arrays = joined(sent)
    with working_for(of_pass):
        return with_retries(lambda: keeping.keep(rows, arrays), rows)


@dataclass(frozen=True)
class Level:
    """One way to keep a segment, and the most segments that a worker keeps so."""

    keeping: CacheForm
    max_segments: int


@dataclass(frozen=True)
class _Place:
    worker: str
    level: int
    value: Any


@dataclass(eq=False)
class SegmentCache:
    """The segments of one pass that stay where they are, by their numbers, for all passes of the same cuts.

    A worker keeps the segments that it sums first, at the first level that has room for them; what is beyond
    its room is read again in each pass. A value is a task's result that no worker is bound to: tasks follow
    it. What was on a worker that has gone, or is paused, is forgotten as soon as a pass sees that, and kept
    again by the workers with room. Until then the scheduler makes it anew on the other workers, whatever room
    they have.
    """

    levels: Sequence[Level]
    arrays: Callable[[], list[Any]]
    """Handles on the arrays that keeping shares with the passes."""
    _places: dict[int, _Place] = field(default_factory=dict)

    def value(self, segment: int) -> Any:
        """The handle on a kept segment; None if it is not kept."""
        place = self._places.get(segment)
        return None if place is None else place.value

    def by_worker(self) -> dict[str, list[int]]:
        """The numbers of the segments that each worker keeps, ascending."""
        found: dict[str, list[int]] = {}
        for segment, place in sorted(self._places.items()):
            found.setdefault(place.worker, []).append(segment)
        return found

    def level_with_room(self, worker: str, threads: Mapping[str, int], n_segments: int) -> int | None:
        """The first level with room on a worker; None if there is none.

        A worker takes no more than its part of all segments, so that later passes end together.
        """
        here = Counter(place.level for place in self._places.values() if place.worker == worker)
        # Counted over all levels, as a segment is summed where it is kept, in whatever form.
        if here.total() >= _part(worker, threads, n_segments):
            return None
        return next((i for i, level in enumerate(self.levels) if here[i] < level.max_segments), None)

    def put(self, segment: int, worker: str, level: int, value: Any) -> None:
        """Note where a segment is kept from now on."""
        self._places[segment] = _Place(worker, level, value)

    def forget_gone(self, threads: Mapping[str, int]) -> None:
        """Forget what was on workers that take no tasks."""
        # Dropping the handles is enough: the scheduler then forgets the tasks, and does not run them again.
        for segment in [i for i, place in self._places.items() if place.worker not in threads]:
            del self._places[segment]

    def forget_beyond(self, threads: Mapping[str, int], n_segments: int) -> None:
        """Forget what was on workers that take no tasks, or is beyond the part of those that do."""
        for worker, segments in self.by_worker().items():
            for segment in segments[_part(worker, threads, n_segments) :]:
                del self._places[segment]

    def forget(self) -> None:
        """Forget all."""
        self._places.clear()


def _part(worker: str, threads: Mapping[str, int], n_segments: int) -> int:
    """How many of all segments are a worker's, by its threads."""
    return -(-n_segments * threads.get(worker, 0) // max(1, sum(threads.values())))


# A pass, as both kinds of execution make it.


class Lost(ClusterError):
    """The cluster lost values, and will not compute them again by itself.

    `restarting` says that the present workers may be about to leave, `lacks_input` that a task was refused
    because its input is lost.
    """

    def __init__(self, cause: str, *, restarting: bool = False, lacks_input: bool = False) -> None:
        super().__init__(cause)
        self.restarting = restarting
        self.lacks_input = lacks_input


class Pass:
    """One pass: what is summed over which segments, and the tree in which partials are merged.

    `sent` are handles on arrays for each task, `sums` those of a checkpoint, `cache` the segments that stay
    in memory from pass to pass; `group` names the tasks on Dask's dashboard. `count` is told of the rows that
    are done.
    """

    def __init__(
        self,
        reduction: Reduction,
        segments: list[Rows],
        count: Callable[[int], None],
        sent: Sequence[Any] = (),
        sums: PassSums | None = None,
        cache: SegmentCache | None = None,
        *,
        group: str = "sum",
    ) -> None:
        self.reduction, self.segments, self.sent, self.group = reduction, segments, list(sent), group
        self.sums, self.cache, self._count = sums, cache, count

    def begin(self, merge: Callable[..., Any], stored: Mapping[Node, Any]) -> list[int]:
        """Take the sums that a checkpoint has; the numbers of the segments that are left."""
        self._tree = OrderedMerge(len(self.segments), merge)
        for (level, index), summed in stored.items():
            self._tree.add(index, summed, level)
        # A sum that could not be read leaves its segments among these.
        left = list(range(len(self.segments))) if self.sums is None else self.sums.segments_left(stored)
        self._count(rows_in(self.segments) - rows_in([self.segments[i] for i in left]))
        return left

    def merge(self, segment: int, summed: Any) -> None:
        """Merge the partial of a segment with the neighbours that have arrived."""
        if self.sums is not None and isinstance(summed, Partial):  # in this process; others note their own
            self.sums.note((0, segment), summed)
        self._tree.add(segment, summed)

    def done(self, segment: int) -> None:
        """Count the rows of a segment."""
        self._count(rows_in([self.segments[segment]]))

    def result(self) -> Any:
        """The merged partial of all segments."""
        return self._tree.result()

    @contextmanager
    def written_on_failure(self, write: Callable[[], None]) -> Iterator[None]:
        """Write the sums that are finished when the pass fails or is interrupted."""
        try:
            yield
        # The fit goes on by itself, and the workers that would write are gone: asking them takes seconds.
        except Lost:
            raise
        except BaseException as error:
            if self.sums is not None:
                if isinstance(error, KeyboardInterrupt):  # whoever pressed Ctrl-C sees at once why it waits
                    logger.warning("interrupted: what is finished is saved first")
                write()
            raise


# Tasks of both kinds of execution.


@dataclass(frozen=True)
class Workers:
    """Workers as a plan counts them, which need not exist yet."""

    n_workers: int
    threads_per_worker: int
    memory_limit: int  # bytes a worker; 0 for none
    in_client: bool = False  # tasks share the client's process, and its memory
    is_nested: bool = False  # others may run beside it: in a Dask task, or a child process without a cluster
    hold_values: bool = True  # results stay in the process that made them: not with dask's pool of processes


def delayed_task(function: Callable[..., Any], args: tuple, group: str) -> Any:
    """A delayed task, in a group of its function's name if no other is given."""
    return dask.delayed(function, pure=False)(*args, dask_key_name=new_key(group or function))


def rows_in(segments: list[Rows]) -> int:
    return sum(rows.stop - rows.start for rows in segments)


def in_dask_task() -> bool:
    """Whether this runs in a task of a Dask worker, or of one of dask's own schedulers."""
    # dask.local calls the tasks of those schedulers, also in the threads of its pools.
    return in_worker() or "dask.local" in calling_modules()


def calling_modules() -> Iterator[str]:
    """Yield the names of the modules whose functions led here, the nearest first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_globals.get("__name__", "")
        frame = frame.f_back


def in_worker() -> bool:
    try:
        get_worker()
    except ValueError:
        return False
    return True


# Tasks in this process.

_SYNCHRONOUS = {"sync", "synchronous", "single-threaded"}
_HERE = ""  # the address of this process among workers
_IN_THREADS = {None, "threads", "threading"} | _SYNCHRONOUS


class LocalExecution(Workers):
    """Runs tasks as one of dask's own schedulers would, in rounds of one segment per thread.

    Handles on results are the results themselves. In this process functions are called directly: a single
    call in this thread, several in threads of its own. The pool and the callbacks of dask's configuration are
    not used. Blocks of dask arrays need a graph, and so do schedulers that start processes or are functions.
    """

    def __init__(self, scheduler: str | None) -> None:
        # As many as dask's own threads would be; its CPU_COUNT heeds cgroups and affinity.
        n_threads = 1 if scheduler in _SYNCHRONOUS else int(dask.config.get("num_workers", CPU_COUNT))
        super().__init__(
            n_workers=1,
            threads_per_worker=n_threads,
            memory_limit=int(MEMORY_LIMIT),
            in_client=True,
            # A child process is most often joblib's, of a search that has one for each core.
            is_nested=in_dask_task() or parent_process() is not None,
            hold_values=scheduler in _IN_THREADS,
        )
        self._scheduler, self.n_threads = scheduler, n_threads
        self._fit = uuid.uuid4().hex

    def reduce(self, pass_: Pass) -> Partial:
        """Sum all segments."""
        of_pass, sums = uuid.uuid4().hex, pass_.sums
        left = pass_.begin(partial(merge_partials, pass_.reduction, sums), stored_sums(sums))
        with pass_.written_on_failure(self.write_finished):
            try:
                # In rounds, so that no more segments than threads are alive with their rows and partials, as
                # plans count them.
                for start in range(0, len(left), self.n_threads):
                    batch = left[start : start + self.n_threads]
                    rows = self._rows_of(pass_, batch, of_pass)
                    calls = [(pass_.reduction, rows[i], pass_.sent, self._fit, of_pass) for i in batch]
                    partials = self.submit_all(reduce_rows, calls, group=pass_.group)
                    for i, summed in zip(batch, partials, strict=True):
                        pass_.merge(i, summed)
                        pass_.done(i)
                    del partials, summed  # or they would be alive beside those of the next round
            except BaseException:
                cancel(of_pass)  # before the sums are written, which may take long
                raise
        return pass_.result()

    def write_finished(self) -> None:
        """Write the sums of a checkpoint that this process holds."""
        write_finished()

    def _rows_of(self, pass_: Pass, numbers: list[int], of_pass: str) -> dict[int, Any]:
        """The rows of some segments by number: those that are kept, else the handles to read them."""
        cache, segments = pass_.cache, pass_.segments
        rows = {i: segments[i] for i in numbers}
        if cache is None:
            return rows
        calls = {}
        for i in numbers:
            here = {_HERE: self.n_threads}
            level = cache.level_with_room(_HERE, here, len(segments)) if cache.value(i) is None else None
            if level is not None:
                cache.put(i, _HERE, level, None)  # its room is taken, for the next of these
                keeping = cache.levels[level].keeping
                calls[i] = level, (keeping, segments[i], cache.arrays(), self._fit, of_pass)
        # In one round, side by side, as the segments themselves.
        values = self.submit_all(keep_rows, [call for _, call in calls.values()], group="keep")
        for (i, (level, _)), value in zip(calls.items(), values, strict=True):
            cache.put(i, _HERE, level, value)
        return rows | {i: value for i in numbers if (value := cache.value(i)) is not None}

    def check_workers(self) -> None:
        """Do nothing: tasks run here."""

    def measure_idle(self, needed: Any) -> None:
        """Leave it to the first task, which finds its rows in this process anyway."""

    def measured(self) -> WorkRecord:
        """Nothing beside the tasks' own records: the client's work is not that of a task."""
        return WorkRecord()

    def send(self, arrays: dict[str, Any]) -> Any:
        return arrays

    def submit(self, function: Callable[..., Any], *args: Any, group: str = "") -> Any:
        return self.submit_all(function, [args], group=group)[0]

    def submit_all(
        self, function: Callable[..., Any], calls: list[tuple], *, group: str = "", costs: Costs = None
    ) -> list[Any]:
        # One BLAS thread per task, as on the workers of a cluster: the same bits, and no more threads than
        # cores.
        with libraries().limit(limits=1, user_api="blas"):
            if self._scheduler not in _IN_THREADS or unpack_collections(calls)[0]:
                tasks = [delayed_task(function, args, group) for args in calls]
                return list(dask.compute(*tasks, scheduler=self._scheduler))
            # Without a graph: to build and run one for a single task takes milliseconds, a fifth of a fit to
            # a thousand rows.
            n_threads = min(self.n_threads, len(calls))
            if n_threads <= 1:
                return [function(*args) for args in calls]
            return _in_threads(function, calls, n_threads)

    def gather(self, handles: list[Any]) -> list[Any]:
        # As a cluster would bring them: a vector with gaps takes another path through BLAS, with other last
        # bits.
        return [compact(handle) for handle in handles]


def _in_threads(function: Callable[..., Any], calls: list[tuple], n_threads: int) -> list[Any]:
    """`function(*args)` for each of the calls; after a failure, or Ctrl-C, none is begun any more."""
    pool = ThreadPoolExecutor(n_threads, "distrff")
    try:
        return list(pool.map(lambda args: function(*args), calls))
    finally:
        # Threads cannot be interrupted: nobody waits for what they have begun.
        pool.shutdown(wait=False, cancel_futures=True)
