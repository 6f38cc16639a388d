"""What a live cluster delivers: arithmetic, reading and receiving of each worker, and a task's round trip."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from distributed import Client, Future, as_completed

from distrff.data.dataset import Dataset
from distrff.errors import ClusterError, InputError
from distrff.sweeps.cluster_execution import ClusterExecution
from distrff.sweeps.execution import ambient_execution
from distrff.sweeps.worker_rates import DTYPES, arithmetic_rates, noise, rows_a_second, size_of

_ARITHMETIC_SECONDS = 0.3  # of each of the four rates
_READING_SECONDS = 2.0
_PATIENCE_SECONDS = 60.0  # with the tasks of one measurement, imports and compilation included
_ROUND_TRIPS = 10
_SMALL_BYTES, _FIRST_BYTES, _MOST_BYTES, _GROWTH = 2**10, 2**20, 2**27, 8
_LONG_ENOUGH_SECONDS = 0.25
_MEMORY_SHARE = 16  # of a worker's memory limit is the most that is sent at once


@dataclass(frozen=True)
class WorkerRates:
    """One worker; rates of all its threads together, busy at the same time as all other workers.

    Parameters
    ----------
    address, host : str
    n_threads, blas_threads : int
        Threads that take tasks, and those of a product in one of them.
    memory_limit : int
        Bytes; 0 for none.
    flops, cosines : dict of str to float
        By dtype, a second.
    read_rows : float or None
        Rows a second of the dataset; None without one.
    received_bytes : float or None
        A second, from another worker; None where there is only one.
    """

    address: str
    host: str
    n_threads: int
    blas_threads: int
    memory_limit: int
    flops: dict[str, float]
    cosines: dict[str, float]
    read_rows: float | None
    received_bytes: float | None


@dataclass(frozen=True)
class ClusterRates:
    """All workers of a cluster.

    Parameters
    ----------
    workers : tuple of WorkerRates
    task_seconds : float
        From the client to a worker and back, of a task that does nothing.
    row_bytes : int or None
        Decoded bytes of a row of the dataset.
    """

    workers: tuple[WorkerRates, ...]
    task_seconds: float
    row_bytes: int | None

    @property
    def n_threads(self) -> int:
        return sum(worker.n_threads for worker in self.workers)

    @property
    def received_bytes(self) -> float:
        """Bytes a second that all workers receive together; infinite where one worker needs none."""
        rates = [w.received_bytes for w in self.workers if w.received_bytes is not None]
        return sum(rates) if rates else float("inf")

    @property
    def read_rows(self) -> float:
        """Rows a second that all workers read together."""
        return sum(worker.read_rows or 0.0 for worker in self.workers)

    def flops(self, dtype: str) -> float:
        """Flops a second of all workers together."""
        return sum(worker.flops[dtype] for worker in self.workers)

    def cosines(self, dtype: str) -> float:
        """Cosines a second of all workers together."""
        return sum(worker.cosines[dtype] for worker in self.workers)

    def to_dict(self) -> dict[str, Any]:
        """Return the rates as strict JSON data."""
        return asdict(self) | {"n_threads": self.n_threads}


def cluster_rates(dataset: Dataset | None = None) -> ClusterRates:
    """Measure the ambient cluster: some five seconds, and those in which workers import and compile.

    Each thread of each worker multiplies, takes cosines and reads its share of the dataset's rows, at
    most two seconds of them, at the same time as all others. Each worker then receives from its
    neighbour in a ring, all at once, so much that it takes a quarter of a second, but 128 MiB and a
    sixteenth of its memory at most. Rows that the system keeps in memory are read from there.

    Raises
    ------
    InputError
        If Dask is set to work without a cluster.
    ClusterError
        If workers do not finish a measurement in a minute, or are lost.
    """
    execution = ambient_execution()
    if not isinstance(execution, ClusterExecution):
        raise InputError("Dask's configuration names a scheduler without workers; unset `scheduler` there")
    known = execution.workers()
    threads = execution.running_threads()
    if not threads:
        raise ClusterError("no worker of the cluster takes tasks now; look at their memory and logs")
    places = [address for address in sorted(threads) for _ in range(threads[address])]
    arithmetic = _each(execution, "arithmetic", [(p, arithmetic_rates, _ARITHMETIC_SECONDS) for p in places])
    reading = _reading(execution, dataset, places) if dataset is not None else None
    task_seconds = _round_trip(execution, sorted(threads))
    received = _receiving(execution, sorted(threads), known)
    workers = []
    for address in sorted(threads):
        own = [i for i, place in enumerate(places) if place == address]
        workers.append(
            WorkerRates(
                address=address,
                host=known[address]["host"],
                n_threads=len(own),
                blas_threads=max(arithmetic[i].blas_threads for i in own),
                memory_limit=known[address]["memory_limit"] or 0,
                flops=_sums([arithmetic[i].flops for i in own]),
                cosines=_sums([arithmetic[i].cosines for i in own]),
                read_rows=None if reading is None else sum(reading[i] for i in own),
                received_bytes=received.get(address),
            )
        )
    return ClusterRates(tuple(workers), task_seconds, None if dataset is None else dataset.row_bytes)


def _sums(rates: list[dict[str, float]]) -> dict[str, float]:
    return {dtype: sum(rate[dtype] for rate in rates) for dtype in DTYPES}


def _reading(execution: ClusterExecution, dataset: Dataset, places: list[str]) -> list[float]:
    """Return the rows a second of each thread; those of small data read the same rows."""
    n, n_parts = dataset.n_rows, min(len(places), dataset.n_rows)
    bounds = [n * part // n_parts for part in range(n_parts + 1)]
    tile_rows = max(1, dataset.chunk_rows)
    calls = []
    for i, place in enumerate(places):
        rows = dataset.rows(bounds[i % n_parts], bounds[i % n_parts + 1])
        calls.append((place, rows_a_second, rows, tile_rows, _READING_SECONDS))
    return _each(execution, "reading", calls)


def _round_trip(execution: ClusterExecution, addresses: list[str]) -> float:
    """Return the median seconds of a task that does nothing."""
    seconds = []
    for i in range(_ROUND_TRIPS):
        began = time.perf_counter()
        _each(execution, "a task", [(addresses[i % len(addresses)], int)])
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def _receiving(
    execution: ClusterExecution, addresses: list[str], known: dict[str, dict[str, Any]]
) -> dict[str, float]:
    """Return the bytes a second that each worker receives; empty for one alone."""
    if len(addresses) < 2:
        return {}
    limits = [known[a]["memory_limit"] for a in addresses if known[a]["memory_limit"]]
    most = min([_MOST_BYTES, *(limit // _MEMORY_SHARE for limit in limits)])
    without = _transfer_seconds(execution, addresses, _SMALL_BYTES)
    n_bytes = min(_FIRST_BYTES, most)
    seconds = _transfer_seconds(execution, addresses, n_bytes)
    while max(seconds.values()) < _LONG_ENOUGH_SECONDS and n_bytes < most:
        n_bytes = min(_GROWTH * n_bytes, most)
        seconds = _transfer_seconds(execution, addresses, n_bytes)
    # What Dask takes to start the task that receives is not the network's.
    return {a: n_bytes / max(seconds[a] - without[a], 0.1 * seconds[a]) for a in addresses}


def _transfer_seconds(execution: ClusterExecution, addresses: list[str], n_bytes: int) -> dict[str, float]:
    """Return for each worker the seconds until it has what its neighbour made."""
    senders = addresses[1:] + addresses[:1]
    sent = [execution.submit_to(sender, noise, n_bytes, i) for i, sender in enumerate(senders)]
    _finished(execution.client, sent, "what is to be sent")
    began = time.perf_counter()
    received = [
        execution.submit_to(address, size_of, data) for address, data in zip(addresses, sent, strict=True)
    ]
    at = _finished(execution.client, received, "transfers between workers")
    return {a: at[future.key] - began for a, future in zip(addresses, received, strict=True)}


def _each(execution: ClusterExecution, what: str, calls: list[tuple]) -> list[Any]:
    """Return the results of calls, each a worker's address, a function and its arguments."""
    futures = [execution.submit_to(*call) for call in calls]
    _finished(execution.client, futures, what)
    return execution.client.gather(futures)


def _finished(client: Client, futures: list[Future], what: str) -> dict[str, float]:
    """Wait for all, and return when each was finished, by its key."""
    at = {}
    try:
        for future in as_completed(futures, timeout=_PATIENCE_SECONDS):
            at[future.key] = time.perf_counter()
    except TimeoutError as error:
        client.cancel(futures, force=True)
        raise ClusterError(
            f"{len(futures) - len(at)} of {len(futures)} tasks did not finish ({what}) in "
            f"{_PATIENCE_SECONDS:.0f} s; look at the workers' logs: too little memory pauses them, and "
            f"transfers need each to reach the others"
        ) from error
    return at
