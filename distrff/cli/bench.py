"""`distrff bench`: what a cluster delivers, and which of it limits a fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from distributed import Client, Future, as_completed

from distrff.cli.build import adapt_to, checked_machine, refuse_without_data, tell_defaults
from distrff.cli.data import open_data, workers_of
from distrff.cli.options import (
    cluster_options,
    data_options,
    machine_options,
    table_options,
    talk_options,
    target_options,
)
from distrff.cli.output import show
from distrff.engine.execution import ClusterExecution, ambient_execution
from distrff.engine.record import blas_threads
from distrff.errors import ClusterError, InputError
from distrff.estimators.fitting.plan import THIN_SLOWNESS, Plan, factorisation_flops
from distrff.features.trigonometry import compile_loops, paired_cos_sin
from distrff.io.dataset import Dataset
from distrff.io.rows import Rows

if TYPE_CHECKING:
    from distrff.estimators.fitting.plan import Plan


_MOST_LISTED = 20


@click.command()
@click.argument("data", required=False)
@target_options
@data_options
@table_options
@machine_options
@cluster_options
@talk_options
@click.pass_context
def bench(ctx: click.Context, data: str | None, as_json: bool, **options: Any) -> None:
    """Measure what the workers deliver: products, cosines, reading, and sending to each other.

    With DATA, reading its rows is measured too, and it is said which of the rates limits a `fit` with
    the same options; exit code 4 if that would not fit in memory. Every thread of all workers
    works at the same time, for some five to ten seconds in all, and longer where workers have yet to import
    and compile.
    """

    if data is None:
        refuse_without_data(ctx, ("scheduler", "workers", "memory_limit", "as_json"))
        with workers_of(options):
            rates = cluster_rates()
        show(rates.to_dict(), as_json=as_json, lines=_rate_lines(rates))
        return
    estimator = checked_machine(ctx)
    dataset = open_data(data, options)
    adapt_to(estimator, dataset, options)
    tell_defaults(ctx)
    with workers_of(options):
        plan = estimator.plan(dataset)
        rates = cluster_rates(dataset)
    limits = fit_limits(plan, rates)
    values = rates.to_dict() | {
        "fit": {
            "seconds": limits.seconds,
            "busy_share": limits.busy_share,
            "limited_by": limits.part,
            "remedy": limits.remedy,
            "planned_seconds": plan.seconds,
        }
    }
    show(values, as_json=as_json, lines=[*_rate_lines(rates), "", *_limit_lines(plan, limits)])


def _rate_lines(rates: ClusterRates) -> Iterator[str]:
    header = ("worker", "threads", "BLAS", "memory", "float32", "float64", "cosines", "reading", "receiving")
    slowest = sorted(rates.workers, key=lambda worker: worker.flops["float32"] / worker.n_threads)
    rows = [_cells(worker, rates.row_bytes) for worker in slowest[:_MOST_LISTED]]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    if len(slowest) > _MOST_LISTED:
        yield f"… and {len(slowest) - _MOST_LISTED} faster workers more; --json lists all"
    yield (
        f"together: {rates.n_threads} thread(s), {_si(rates.flops('float32'), 'flop/s')} in float32, "
        f"{_si(rates.flops('float64'), 'flop/s')} in float64"
        + ("" if rates.row_bytes is None else f", {rates.read_rows:,.0f} rows/s read")
    )
    yield f"a task there and back: {1000 * rates.task_seconds:.3g} ms"
    if len(rates.workers) > 1 and len({worker.host for worker in rates.workers}) == 1:
        yield "all workers are on one host: what they receive does not cross a network"


def _cells(worker: WorkerRates, row_bytes: int | None) -> tuple[str, ...]:
    from distrff.utils.text import human_bytes

    read, received = worker.read_rows, worker.received_bytes
    return (
        worker.address,
        str(worker.n_threads),
        str(worker.blas_threads),
        human_bytes(worker.memory_limit) if worker.memory_limit else "no limit",
        _si(worker.flops["float32"], "flop/s"),
        _si(worker.flops["float64"], "flop/s"),
        _si(worker.cosines["float32"], "/s"),
        "-" if read is None or row_bytes is None else f"{human_bytes(read * row_bytes)}/s",
        "-" if received is None else f"{human_bytes(received)}/s",
    )


def _si(value: float, unit: str) -> str:
    for prefix in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} T{unit}"


def _limit_lines(plan: Plan, limits: FitLimits) -> Iterator[str]:
    total = sum(limits.seconds.values())
    by_plan = (
        "" if plan.seconds is None else f" (its plan, by a trial of the fit itself: {plan.seconds:.3g} s)"
    )
    yield f"this fit, by these rates {total:.3g} s{by_plan}:"
    for part, seconds in sorted(limits.seconds.items(), key=lambda item: -item[1]):
        yield f"  {part:<14}  {seconds:8.3g} s  {seconds / total:4.0%}"
    if not limits.is_busy:
        yield (
            f"  {plan.n_segments} segment(s) keep {limits.busy_share:.0%} of the threads at work: "
            f"more workers would not help"
        )
    yield f"limited by {limits.part}; what helps: {limits.remedy}"


# What a live cluster delivers: arithmetic, reading and receiving of each worker, and a task's round trip.

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


# How fast one process multiplies, takes cosines and reads: tasks that only look at the clock.

DTYPES = ("float32", "float64")
_ROWS, _FEATURES = 4096, 1024
_WARM_ROWS = 16


@dataclass(frozen=True)
class ArithmeticRates:
    """What a thread does in a second while its neighbours do the same.

    Parameters
    ----------
    blas_threads : int
        That a product takes.
    flops : dict of str to float
        By dtype, of Z.T @ Z for 4096 rows of 1024 features, n·D² each.
    cosines : dict of str to float
        By dtype, cosines and sines by the compiled loop.
    """

    blas_threads: int
    flops: dict[str, float]
    cosines: dict[str, float]


def arithmetic_rates(seconds: float) -> ArithmeticRates:
    """Return the rates of this thread, each measured for so many seconds."""
    compile_loops()
    return ArithmeticRates(
        blas_threads(),
        {dtype: _product_rate(dtype, seconds) for dtype in DTYPES},
        {dtype: _cosine_rate(dtype, seconds) for dtype in DTYPES},
    )


def _product_rate(dtype: str, seconds: float) -> float:
    Z = np.full((_ROWS, _FEATURES), 0.5, dtype)
    G = np.empty((_FEATURES, _FEATURES), dtype)
    return float(_ROWS) * _FEATURES**2 * _calls_a_second(lambda: np.matmul(Z.T, Z, out=G), seconds)


def _cosine_rate(dtype: str, seconds: float) -> float:
    theta = np.linspace(-50.0, 50.0, _FEATURES**2 // 2, dtype=dtype).reshape(_FEATURES, -1)
    Z = np.empty((_FEATURES, _FEATURES), dtype)
    return float(Z.size) * _calls_a_second(lambda: paired_cos_sin(theta, Z, 1.0), seconds)


def _calls_a_second(work: Callable[[], object], seconds: float) -> float:
    work()  # touches its memory for the first time
    n, took, began = 0, 0.0, time.perf_counter()
    while took < seconds:
        work()
        n, took = n + 1, time.perf_counter() - began
    return n / took


def rows_a_second(rows: Rows, tile_rows: int, seconds: float) -> float:
    """Return the rows that this thread reads in a second, of as many as it reads in so many seconds.

    What is imported, opened and decoded for the first few rows is not counted.
    """
    tiles = rows.tiles(min(_WARM_ROWS, tile_rows, rows.stop - rows.start))
    next(tiles)
    del tiles
    n, took, began = 0, 0.0, time.perf_counter()
    for tile in rows.tiles(tile_rows):
        n, took = n + tile.X.shape[0], time.perf_counter() - began
        if took >= seconds:
            break
    return n / took


def noise(n_bytes: int, seed: int) -> np.ndarray:
    """Return bytes that no compression makes fewer."""
    return np.frombuffer(np.random.default_rng(seed).bytes(n_bytes), dtype=np.uint8)


def size_of(A: np.ndarray) -> int:
    """Return the bytes of what arrived."""
    return A.nbytes


# Which of a cluster's rates a counted fit waits for.

_LEAST_BUSY = 0.75
_MORE = "more workers or threads"  # helps where there are segments for them
_BY_MORE = {"products", "cosines", "features", "reading"}
_REMEDIES = {
    "products": "float32, or fewer features (--n-components)",
    "cosines": "float32, or fewer features (--n-components)",
    "features": "fewer grids (--n-grids)",
    "factorisation": "a given --alpha, fewer folds (--cv), fewer features, or workers with more cores each",
    "reading": "larger chunks, less compression or rows nearer to the workers (`distrff inspect DATA` "
    "says what would pay)",
    "transfers": "fewer and larger workers, fewer features, or a faster network between workers",
    "starting tasks": "nothing: the fit is small; fewer workers or --scheduler local would do",
}


@dataclass(frozen=True)
class FitLimits:
    """Where the seconds of a fit go, by the rates of the cluster.

    Parameters
    ----------
    seconds : dict of str to float
        Of each part; they follow one another in a thread but for transfers, which other tasks may hide.
    busy_share : float
        Of the threads, that the fit's segments keep at work.
    """

    seconds: Mapping[str, float]
    busy_share: float

    @property
    def part(self) -> str:
        """The part that takes longest."""
        return max(self.seconds, key=lambda part: self.seconds[part])

    @property
    def remedy(self) -> str:
        """What would make that part faster."""
        more = f"{_MORE}, " if self.part in _BY_MORE and self.is_busy else ""
        return more + _REMEDIES[self.part]

    @property
    def is_busy(self) -> bool:
        """Whether there are segments for most of the threads."""
        return self.busy_share >= _LEAST_BUSY


def fit_limits(plan: Plan, rates: ClusterRates) -> FitLimits:
    """Return the seconds of a fit's parts: what the plan counts, divided by what was measured.

    Products of a few vectors are taken to be 2.5 times slower by the flop than those of the Gram. Of
    sparse features neither products nor cosines are measured: there the plan's own seconds count, less
    those of reading. Of the partials that are merged, each is taken to come from another worker.

    Parameters
    ----------
    plan : Plan
        With its seconds.
    rates : ClusterRates
        Measured with the dataset of the plan.
    """
    shape, n_threads = plan.size, rates.n_threads
    rounds = -(-plan.n_segments // n_threads)
    busy = plan.n_segments / (rounds * n_threads)
    rows = plan.bytes_read / shape.row_bytes
    seconds = {
        "reading": rows / rates.read_rows / busy,
        "transfers": _moved_bytes(plan, len(rates.workers)) / rates.received_bytes,
        "starting tasks": plan.n_sweeps * rounds * rates.task_seconds,
    }
    if shape.sparse_entries:
        seconds["features"] = max(0.0, (plan.seconds or 0.0) - seconds["reading"])
        return FitLimits(seconds, busy)
    gram, thin, factor = _flops(plan)
    seconds["products"] = (gram + THIN_SLOWNESS * thin) / rates.flops(shape.dtype) / busy
    seconds["cosines"] = plan.cosines / rates.cosines(shape.dtype) / busy
    tasks = min(n_threads, max(1, (shape.n_paths or shape.n_folds) if shape.n_alphas > 1 else 1))
    seconds["factorisation"] = factor / (rates.flops("float64") * tasks / n_threads)
    return FitLimits(seconds, busy)


def _flops(plan: Plan) -> tuple[float, float, float]:
    """Return a plan's flops of products as tall as wide, of thin products, and of factorisations."""
    if plan.solver != "gram":
        return 0.0, plan.flops, 0.0
    shape = plan.size
    factor = factorisation_flops(shape) + shape.map_factor_flops
    return shape.gram_flops, shape.n_light_sweeps * shape.light_flops, factor


def _moved_bytes(plan: Plan, n_workers: int) -> float:
    """Return the bytes of partials that go to another worker to be merged."""
    if n_workers == 1:
        return 0.0
    shape = plan.size
    vectors = 8.0 * shape.n_features * max(1, shape.n_outputs)
    if plan.solver != "gram":
        return plan.n_sweeps * plan.n_segments * vectors
    gram = 8.0 * plan.folds_per_task * shape.gram_size**2 / 2
    return plan.n_segments * (gram + shape.n_light_sweeps * vectors)
