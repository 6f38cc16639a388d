"""Who waits for the cluster looks at it from time to time: can what is awaited still come?"""

from __future__ import annotations

import time
from typing import Any

from distributed import Client

from distrff.errors import ClusterError
from distrff.sweeps.cluster_values import Lost

_LOOK_SECONDS = 1.0
_NO_WORKERS_SECONDS = 60.0
_IDLE_LOOKS = 5
_LEAVING_SECONDS = 5.0
_MOST_LOOKS = 10


class Roll:
    """The workers of a cluster, and how often all of them have been replaced.

    Attributes
    ----------
    n_losses : int
        How often all that the workers held was lost.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.n_losses = 0
        self._known: set[str] = set()

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
        present = set(info["workers"])
        if present and self._known.isdisjoint(present):
            self.n_losses += bool(self._known)
        self._known = present or self._known
        return info["workers"]

    def running_threads(self) -> dict[str, int]:
        """Return the threads of each worker that takes tasks now, by address."""
        return {
            a: worker["nthreads"] for a, worker in self.workers().items() if worker["status"] == "running"
        }

    def check_connection(self) -> None:
        """Raise ClusterError if the scheduler is out of reach."""
        if self.client.status != "running":
            raise ClusterError(
                f"the connection to the scheduler is {self.client.status}; connect to a cluster and fit again"
            )

    def await_replacement(self) -> None:
        """Wait until the workers of a cluster that is restarted have been replaced, or stay as they are.

        Tasks sent before would go to workers that are about to leave.
        """
        began, n_losses = time.monotonic(), self.n_losses
        while self.n_losses == n_losses:
            self.check_connection()
            waited = time.monotonic() - began
            if waited > (_LEAVING_SECONDS if self.workers() else _NO_WORKERS_SECONDS):
                return
            time.sleep(0.1)


class Watch:
    """Says, while somebody waits, when that has become useless.

    Raises
    ------
    Lost
        If all workers have been replaced, or no worker does anything although some could.
    ClusterError
        If the scheduler is out of reach, or no worker takes tasks for a minute.
    """

    def __init__(self, roll: Roll) -> None:
        self.seconds = _LOOK_SECONDS
        self._roll = roll
        self._due = time.monotonic() + self.seconds
        self._n_losses = roll.n_losses
        self._deadline = time.monotonic() + _NO_WORKERS_SECONDS
        self._idle_looks = 0

    def look_when_due(self) -> None:
        """Look if the last time is `seconds` ago, however much has landed since."""
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
        # Any ready task is on the list of some worker; the scheduler keeps none back where a worker is free.
        idle = not any(roll.client.processing().values())
        self._idle_looks = self._idle_looks + 1 if idle else 0
        if self._idle_looks >= _IDLE_LOOKS and roll.client.run_on_scheduler(_has_tasks_to_give):
            roll.n_losses += 1
            raise Lost("no worker was given the tasks that are ready")


def _has_tasks_to_give(dask_scheduler: Any) -> bool:
    """Tell whether tasks wait on the scheduler; those with many rows may still be on their way to it."""
    return any(task.state in ("waiting", "queued", "no-worker") for task in dask_scheduler.tasks.values())


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
