"""Futures under way on a cluster, watched until the last has landed."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import dask
from distributed import Future, KilledWorker

from distrff.errors import ClusterError
from distrff.sweeps.cluster_values import Lost
from distrff.sweeps.cluster_watch import Roll, Watch

ANY_WORKER = "any"
_LOST_SECONDS = 0.1


class Flight:
    """Futures under way.

    Parameters
    ----------
    roll : Roll
        Of the cluster's workers. What has come to nothing raises Lost.
    """

    def __init__(self, roll: Roll) -> None:
        self.client = roll.client
        self._watch = Watch(roll)
        self._landed: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self._under_way: dict[str, Future] = {}
        self._alive: WeakSet[Future] = WeakSet()

    def compute(self, task: Any, worker: str) -> Future:
        # Rows that live in the client's memory travel inside their own segment's task, on purpose.
        with large_graphs():
            where = None if worker == ANY_WORKER else [worker]
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
            self._watch.look_when_due()
            try:
                future = self._landed.get(timeout=self._watch.seconds)
            except queue.Empty:
                continue
            if future.status in ("lost", "pending"):  # its worker died since; the scheduler computes it again
                time.sleep(_LOST_SECONDS)  # a lost future calls back at once
                future.add_done_callback(self._landed.put)
                continue
            self._under_way.pop(future.key, None)
            _raise_failure(future)
            yield future

    def gathered(self, futures: list[Any]) -> list[Any]:
        """Return the results of futures that have landed, which may be lost on their way here.

        The client's own `gather` waits without end for what no worker will compute again.
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
                self._cancel()  # which ends the thread as well
                raise

    @contextmanager
    def cancelled_on_failure(self) -> Iterator[None]:
        """Cancel what is under way, and free what is done, when the body fails or is interrupted.

        Futures that the failing frames hold would live as long as somebody keeps the traceback.
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
        f"too small: compare it with the plan's peak, or raise distributed.scheduler.allowed-failures "
        f"where workers are preempted"
    )


def _lost_by(error: CancelledError) -> Lost:
    reason = getattr(error, "reason", None)
    return Lost("the cluster was restarted", restarting=True, lacks_input=reason == "lost dependencies")


def large_graphs() -> Any:
    """Return a context in which tasks that carry rows are sent without a warning of their size."""
    return dask.config.set({"distributed.admin.large-graph-warning-threshold": "64GB"})
