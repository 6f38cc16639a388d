"""What client and scheduler cost: the engine's own passes over 64 workers whose segments only sleep.

Client, scheduler and workers share a process and its lock, so a cluster of processes pays less. What workers
do beside tasks at all times (ticks, profiles and monitors of their process, which for 64 workers fill half a
core) is turned down, as elsewhere each does it on its own machine.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster

from distrff.engine.distributed import ClusterExecution
from distrff.engine.progress import FitLine
from distrff.engine.reduction import (
    Reduction,
    Segmentation,
    gram_segmentation,
    light_segmentation_of_features,
)
from tests.benchmarks.measuring import seconds_of

_N_WORKERS = 64
_ROW_COLUMNS = 4e10  # rows times squared features that a core sums a second, as measured at D = 2048
_FEATURES_PER_SECOND = 6.5e8  # rows times features of a light sweep, as measured at D = 2048
_SPREAD = 0.1  # of the durations, as of real segments
_STAND_IN_BYTES = 2**21  # of a Gram partial: hundreds of 17 MB, of D = 2048, would fill this process


@dataclass(frozen=True)
class NumberedRows:
    """Rows that nobody reads."""

    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Sleep(Reduction):
    """Takes as long as rows would, and returns as many bytes."""

    rows_per_second: float
    n_bytes: int

    def seconds(self, rows: Any) -> float:
        """Return how long a segment takes: in proportion to its rows, give or take a tenth."""
        draw = np.random.default_rng(rows.start).uniform(-_SPREAD, _SPREAD)
        return (rows.stop - rows.start) / self.rows_per_second * (1 + draw)

    def size_bytes(self, n_rows: int) -> int:
        return self.n_bytes

    def update(self, total: Any, rows: Any, arrays: Any) -> np.ndarray:
        time.sleep(self.seconds(rows))
        return np.ones(self.n_bytes // 8)


@dataclass(frozen=True)
class Case:
    """A pass over some rows, as the estimators would cut them."""

    name: str
    n_features: int
    n_outputs: int
    n_rows: int
    n_sweeps: int
    is_gram: bool = False
    cuts: Segmentation = field(init=False)

    def __post_init__(self) -> None:
        if self.is_gram:
            cuts = gram_segmentation(self.n_rows, self.n_features, self.n_outputs, np.dtype(np.float32))
        else:
            cuts = light_segmentation_of_features(self.n_rows, self.n_features, 512)
        object.__setattr__(self, "cuts", cuts)

    def reduction(self) -> Sleep:
        """Return what takes the place of its sums."""
        if self.is_gram:
            return Sleep(rows_per_second=_ROW_COLUMNS / self.n_features**2, n_bytes=_STAND_IN_BYTES)
        rate = _FEATURES_PER_SECOND / self.n_features
        return Sleep(rows_per_second=rate, n_bytes=8 * (self.n_features + 2) * self.n_outputs)


def passes(scale: float) -> Iterator[dict[str, Any]]:
    """Overhead = wall · workers / seconds slept - 1, and the same against the best that the cuts allow."""
    cases = [
        Case("light sweep", 2048, 1, int(1e8 * scale), 3),
        Case("light sweep", 2048, 1, int(1e9 * scale), 2),
        Case("light sweep", 8192, 10, int(2e8 * scale), 3),
        Case("Gram", 2048, 1, int(1e8 * scale), 1, is_gram=True),
    ]
    with _workers() as client:
        execution = ClusterExecution(client)
        for case in cases:
            segments: list[Any] = [NumberedRows(*bounds) for bounds in case.cuts.bounds()]
            reduction = case.reduction()
            slept = sum(map(reduction.seconds, segments))
            began = time.process_time()
            walls = [_wall(execution, reduction, segments, case) for _ in range(case.n_sweeps)]
            worked = (time.process_time() - began) / case.n_sweeps
            ideal = slept / _N_WORKERS
            yield {
                "case": f"{case.name}, D={case.n_features}, {case.n_outputs} outputs, {case.n_rows:,} rows",
                "asked": "overhead <= 0.05",
                "overhead": median(walls) / ideal - 1,
                "of_the_cuts": _makespan([reduction.seconds(rows) for rows in segments]) / ideal - 1,
                "busy": worked / ideal,  # cores that client, scheduler and all workers need to keep up
                "task_cpu_seconds": worked / len(segments),
                "n_segments": len(segments),
                "segment_seconds": slept / len(segments),
                "walls": walls,
                "partial_bytes": reduction.n_bytes,
            }


def _wall(execution: ClusterExecution, reduction: Sleep, segments: list[Any], case: Case) -> float:
    """Return the seconds of one sweep: coefficients are sent, rows summed, the sum is gathered."""
    coef = np.ones((case.n_features, case.n_outputs))

    def sweep() -> None:
        sent = [] if case.is_gram else [execution.send({"coef": coef})]
        total = execution.reduce(reduction, segments, FitLine(), sent)
        if not case.is_gram:  # a Gram stays on the workers, where it is solved
            execution.gather([total])
        else:
            execution.gather([execution.submit(getattr, total, "record")])

    return seconds_of(sweep)


def _makespan(seconds: list[float]) -> float:
    """Return the wall time of free workers that each take the next segment without any delay."""
    ends = np.zeros(_N_WORKERS)
    for one in seconds:
        ends[ends.argmin()] += one
    return float(ends.max())


_QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "1 minute",
    "distributed.admin.system-monitor.disk": False,
    "distributed.admin.system-monitor.gil.enabled": False,
}


@contextmanager
def _workers() -> Iterator[Client]:
    with (
        dask.config.set(_QUIET),
        LocalCluster(
            n_workers=_N_WORKERS,
            threads_per_worker=1,
            processes=False,
            protocol="tcp://",  # in one process messages would not be serialised otherwise
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            memory_limit=0,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


BENCHMARKS = {"overhead_passes": passes}
