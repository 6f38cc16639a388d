"""`distrff bench`: how fast a cluster is, and which of its rates limits a fit."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from distrff.cli.build import estimator_and_data, fit_options, refuse
from distrff.cli.command import command, show, verbosity_options
from distrff.cli.data import workers_of
from distrff.cli.options import given
from distrff.errors import ClusterError, InputError
from distrff.utils.html import Table, part_lines
from distrff.utils.text import human_bytes, si_text

if TYPE_CHECKING:
    from distributed import Future

    from distrff.engine.run import ClusterExecution
    from distrff.fitting.cost import Plan
    from distrff.io.dataset import Dataset, Rows

_MAX_LISTED = 20


@command()
@click.argument("data", required=False)
@fit_options
@verbosity_options
@click.pass_context
def bench(ctx: click.Context, data: str | None, as_json: bool, **options: Any) -> None:
    """Measure the workers: products, cosines, reading, and sending to each other.

    With DATA, reading its rows is measured too, and the result names the rate that limits a `fit` with
    the same options; exit code 4 if that would not fit in memory. All threads of all workers work at the
    same time, for some five seconds in all, and longer if workers have to import and compile first.
    """
    if data is None:
        for name in given(ctx).keys() - {"scheduler", "workers", "memory_limit", "as_json"}:
            refuse(ctx, name, "DATA")
        with workers_of(options):
            rates = cluster_rates()
        show(rates, as_json=as_json, lines=_rate_lines(rates))
        return
    estimator, dataset = estimator_and_data(ctx, data)
    with workers_of(options):
        plan = estimator.plan(dataset)
        rates = cluster_rates(dataset)
    limits = fit_limits(plan, rates)
    values = rates | {"fit": limits | {"planned_seconds": plan.seconds}}
    show(values, as_json=as_json, lines=[*_rate_lines(rates), "", *_limit_lines(plan, limits)])


def _rate_lines(rates: dict[str, Any]) -> Iterator[str]:
    workers, row_bytes = rates["workers"], rates["row_bytes"]
    header = ("worker", "threads", "BLAS", "memory", "float32", "float64", "cosines", "reading", "receiving")
    slowest = sorted(workers, key=lambda worker: worker["flops"]["float32"] / worker["n_threads"])
    rows = [
        (
            worker["address"],
            str(worker["n_threads"]),
            str(worker["blas_threads"]),
            human_bytes(worker["memory_limit"]) if worker["memory_limit"] else "no limit",
            *(si_text(worker["flops"][dtype], "flop/s") for dtype in _DTYPES),
            si_text(worker["cosines"]["float32"], "/s"),
            "-" if row_bytes is None else si_text(worker["read_rows"] * row_bytes, "B/s"),
            "-" if worker["received_bytes"] is None else si_text(worker["received_bytes"], "B/s"),
        )
        for worker in slowest[:_MAX_LISTED]
    ]
    yield from part_lines(Table(header, rows))
    if len(workers) > _MAX_LISTED:
        yield f"… and {len(workers) - _MAX_LISTED} faster workers more; --json lists all"
    products = [f"{si_text(_total(rates, 'flops', dtype), 'flop/s')} in {dtype}" for dtype in _DTYPES]
    reading = [] if row_bytes is None else [f"{_total(rates, 'read_rows'):,.0f} rows/s read"]
    yield f"together: {rates['n_threads']} thread(s), " + ", ".join(products + reading)
    yield f"round trip of a task: {1000 * rates['task_seconds']:.3g} ms"
    if len(workers) > 1 and len({worker["host"] for worker in workers}) == 1:
        yield "all workers are on one host: what they receive does not cross a network"


def _limit_lines(plan: Plan, limits: dict[str, Any]) -> Iterator[str]:
    total = sum(limits["seconds"].values())
    by_plan = (
        "" if plan.seconds is None else f" (its plan, by a trial of the fit itself: {plan.seconds:.3g} s)"
    )
    yield f"this fit, by these rates {total:.3g} s{by_plan}:"
    for part, seconds in sorted(limits["seconds"].items(), key=lambda item: -item[1]):
        yield f"  {part:<14}  {seconds:8.3g} s  {seconds / total:4.0%}"
    if limits["busy_share"] < _MIN_BUSY:
        yield (
            f"  {plan.n_segments} segment(s) keep {limits['busy_share']:.0%} of the threads busy: "
            f"more workers would not help"
        )
    yield f"limited by {limits['limited_by']}; what helps: {limits['remedy']}"


# The rates of a running cluster: arithmetic, reading and receiving of each worker, and a task's round trip.

_DTYPES = ("float32", "float64")
_ARITHMETIC_SECONDS = 0.3  # of each of the four rates
_READING_SECONDS = 2.0
_PATIENCE_SECONDS = 60.0  # with the tasks of one measurement, imports and compilation included
_ROUND_TRIPS = 10
# A Gram of 2048 features in float64. It takes a network of 10 Mbit/s half of the patience; at 10 Gbit/s
# it takes several times what Dask needs to start the task that receives.
_SENT_BYTES = 2**25
_MEMORY_SHARE = 16  # of a worker's memory limit is the most that is sent at once
_ROWS, _FEATURES = 4096, 1024
_WARM_ROWS = 16


def cluster_rates(dataset: Dataset | None = None) -> dict[str, Any]:
    """Measure the ambient cluster: some five seconds, and those in which workers import and compile.

    All threads of all workers multiply, take cosines and read their share of the dataset's rows at the same
    time, as in a fit. Reading takes at most two seconds. Then each worker receives 32 MiB from its neighbour
    in a ring, or a sixteenth of its memory if that is less. Cached rows are read from the cache.

    `workers` has for each the rates a second of all its threads together: `flops` by dtype (of Z.T @ Z for
    4096 rows of 1024 features, n·D² each), `cosines` by dtype (cosines and sines by the compiled loop),
    `read_rows`, None without a dataset, and `received_bytes`, None where there is one worker only.
    `blas_threads` are of a product in one thread, and a `memory_limit` of 0 is none. `task_seconds` are of
    a task that does nothing, from the client to a worker and back; `row_bytes` are decoded ones.
    """
    from distrff.engine.distributed import ClusterExecution
    from distrff.engine.run import ambient_execution

    execution = ambient_execution()
    if not isinstance(execution, ClusterExecution):
        raise InputError("Dask's configuration names a scheduler without workers; unset `scheduler` there")
    known, threads = execution.workers.known(), execution.workers.running_threads()
    if not threads:
        raise ClusterError("no worker of the cluster takes tasks now; look at their memory and logs")
    addresses = sorted(threads)
    places = [address for address in addresses for _ in range(threads[address])]
    arithmetic = _each(execution, "arithmetic", [(p, arithmetic_rates, _ARITHMETIC_SECONDS) for p in places])
    reading = [] if dataset is None else _reading(execution, dataset, places)
    task_seconds = _round_trip(execution, addresses)
    received = _receiving(execution, addresses, [known[a]["memory_limit"] for a in addresses])
    workers = []
    for address in addresses:
        own = [i for i, place in enumerate(places) if place == address]
        workers.append(
            {
                "address": address,
                "host": known[address]["host"],
                "n_threads": len(own),
                "blas_threads": max(arithmetic[i]["blas_threads"] for i in own),
                "memory_limit": known[address]["memory_limit"] or 0,
                "flops": {dtype: sum(arithmetic[i]["flops"][dtype] for i in own) for dtype in _DTYPES},
                "cosines": {dtype: sum(arithmetic[i]["cosines"][dtype] for i in own) for dtype in _DTYPES},
                "read_rows": sum(reading[i] for i in own) if reading else None,
                "received_bytes": received.get(address),
            }
        )
    row_bytes = None if dataset is None else dataset.row_bytes
    totals = {"n_threads": len(places), "task_seconds": task_seconds, "row_bytes": row_bytes}
    return {"workers": workers, **totals}


def _total(rates: dict[str, Any], name: str, dtype: str | None = None) -> float:
    """Rate of all workers together."""
    values = [worker[name] for worker in rates["workers"]]
    return sum(values if dtype is None else [value[dtype] for value in values])


def _reading(execution: ClusterExecution, dataset: Dataset, places: list[str]) -> list[float]:
    """Rows a second of each thread; those of small data read the same rows."""
    n, n_parts = dataset.n_rows, min(len(places), dataset.n_rows)
    bounds = [n * part // n_parts for part in range(n_parts + 1)]
    calls = []
    for i, place in enumerate(places):
        rows = dataset.rows(bounds[i % n_parts], bounds[i % n_parts + 1])
        calls.append((place, rows_a_second, rows, max(1, dataset.chunk_rows), _READING_SECONDS))
    return _each(execution, "reading", calls)


def _round_trip(execution: ClusterExecution, addresses: list[str]) -> float:
    """Median seconds of a task that does nothing."""
    seconds = []
    for i in range(_ROUND_TRIPS):
        began = time.perf_counter()
        _each(execution, "a task", [(addresses[i % len(addresses)], int)])
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _receiving(execution: ClusterExecution, addresses: list[str], limits: list[int]) -> dict[str, float]:
    """Bytes a second that each worker receives from the next one; empty for one alone."""
    if len(addresses) < 2:
        return {}
    n_bytes = min([_SENT_BYTES, *(limit // _MEMORY_SHARE for limit in limits if limit)])
    # Random bytes, as a connection may compress what it sends.
    senders = addresses[1:] + addresses[:1]
    sent = [execution.submit_to(sender, os.urandom, n_bytes) for sender in senders]
    _finished(execution, sent, "what is to be sent")
    began = time.perf_counter()
    received = [execution.submit_to(a, len, data) for a, data in zip(addresses, sent, strict=True)]
    at = _finished(execution, received, "transfers between workers")
    return {a: n_bytes / (at[future.key] - began) for a, future in zip(addresses, received, strict=True)}


def _each(execution: ClusterExecution, what: str, calls: list[tuple]) -> list[Any]:
    """Results of calls, each a worker's address, a function and its arguments."""
    futures = [execution.submit_to(*call) for call in calls]
    _finished(execution, futures, what)
    return execution.client.gather(futures)


def _finished(execution: ClusterExecution, futures: list[Future], what: str) -> dict[str, float]:
    """Wait for all, and return when each was finished, by its key."""
    from distributed import as_completed

    at = {}
    try:
        for future in as_completed(futures, timeout=_PATIENCE_SECONDS):
            at[future.key] = time.perf_counter()
    except TimeoutError as error:
        execution.client.cancel(futures, force=True)
        raise ClusterError(
            f"{len(futures) - len(at)} of {len(futures)} tasks did not finish ({what}) in "
            f"{_PATIENCE_SECONDS:.0f} s; look at the workers' logs: too little memory pauses them, and "
            f"transfers need each to reach the others"
        ) from error
    return at


def arithmetic_rates(seconds: float) -> dict[str, Any]:
    """BLAS threads of this process, and the flops and cosines a second of this thread.

    Each of the four rates is measured for so many seconds.
    """
    import numpy as np

    from distrff.engine.tasks import blas_threads
    from distrff.features.trigonometry import compile_loops, paired_cos_sin

    compile_loops()
    rates: dict[str, Any] = {"blas_threads": blas_threads(), "flops": {}, "cosines": {}}
    for dtype in _DTYPES:
        Z = np.full((_ROWS, _FEATURES), 0.5, dtype)
        G = np.empty((_FEATURES, _FEATURES), dtype)
        products = _calls_a_second(partial(np.matmul, Z.T, Z, out=G), seconds)
        rates["flops"][dtype] = float(_ROWS) * _FEATURES**2 * products
        theta = np.linspace(-50.0, 50.0, _FEATURES**2 // 2, dtype=dtype).reshape(_FEATURES, -1)
        rates["cosines"][dtype] = G.size * _calls_a_second(partial(paired_cos_sin, theta, G, 1.0), seconds)
    return rates


def _calls_a_second(work: Callable[[], object], seconds: float) -> float:
    work()  # touches its memory for the first time
    n, took, began = 0, 0.0, time.perf_counter()
    while took < seconds:
        work()
        n, took = n + 1, time.perf_counter() - began
    return n / took


def rows_a_second(rows: Rows, tile_rows: int, seconds: float) -> float:
    """Rows that this thread reads in a second, measured for so many seconds.

    The first few rows are read before, so that imports and opening do not count.
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


# Which of a cluster's rates a counted fit waits for.

_MIN_BUSY = 0.75
_MORE = "more workers or threads, "  # helps where there are segments for them
_REMEDIES = {
    "products": _MORE + "float32, or fewer features (--n-components)",
    "cosines": _MORE + "float32, or fewer features (--n-components)",
    "features": _MORE + "fewer grids (--n-grids)",
    "factorisation": "a given --alpha, fewer folds (--cv), fewer features, or workers with more cores each",
    "reading": _MORE + "larger chunks, less compression or rows nearer to the workers "
    "(`distrff inspect DATA` says what would pay)",
    "transfers": "fewer and larger workers, fewer features, or a faster network between workers",
    "starting tasks": "nothing: the fit is small; fewer workers or --scheduler local would do",
}


def fit_limits(plan: Plan, rates: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each part of a fit: what the plan counts, divided by the measured rates.

    Products of a few vectors are taken to be 2.5 times slower by the flop than those of the Gram. For
    sparse features neither products nor cosines are measured: there the seconds are the plan's own, less
    those of reading. Each partial that is merged is taken to come from another worker.

    The parts follow one another in a thread, except transfers, which other tasks may hide. `busy_share` is
    the share of the threads that the fit's segments keep busy.
    """
    from distrff.fitting.cost import THIN_SLOWNESS
    from distrff.fitting.gram import factorisation_flops

    shape, n_threads = plan.size, rates["n_threads"]
    rounds = -(-plan.n_segments // n_threads)
    busy = plan.n_segments / (rounds * n_threads)
    moved = _moved_bytes(plan, len(rates["workers"]))
    seconds = {
        "reading": plan.bytes_read / shape.row_bytes / _total(rates, "read_rows") / busy,
        "transfers": moved / _total(rates, "received_bytes") if moved else 0.0,
        "starting tasks": plan.n_sweeps * rounds * rates["task_seconds"],
    }
    if shape.sparse_entries:
        seconds["features"] = max(0.0, (plan.seconds or 0.0) - seconds["reading"])
    else:
        # Flops of products as tall as wide, of thin products, and of factorisations.
        gram, thin, factor = 0.0, plan.flops, 0.0
        if plan.solver == "gram":
            gram, factor = shape.gram_flops, factorisation_flops(shape) + shape.map_factor_flops
            thin = max(0.0, plan.flops - gram - factor - shape.search_flops)  # what is kept is made once
        seconds["products"] = (gram + THIN_SLOWNESS * thin) / _total(rates, "flops", shape.dtype) / busy
        seconds["cosines"] = plan.cosines / _total(rates, "cosines", shape.dtype) / busy
        tasks = min(n_threads, shape.n_folds if shape.n_alphas > 1 else 1)
        seconds["factorisation"] = factor / (_total(rates, "flops", "float64") * tasks / n_threads)
    part = max(seconds, key=seconds.__getitem__)
    remedy = _REMEDIES[part] if busy >= _MIN_BUSY else _REMEDIES[part].removeprefix(_MORE)
    return {"seconds": seconds, "busy_share": busy, "limited_by": part, "remedy": remedy}


def _moved_bytes(plan: Plan, n_workers: int) -> float:
    """Bytes of partials that go to another worker to be merged."""
    if n_workers == 1:
        return 0.0
    shape = plan.size
    vectors = 8.0 * shape.n_features * max(1, shape.n_outputs)
    if plan.solver != "gram":
        return plan.n_sweeps * plan.n_segments * vectors
    gram = 8.0 * plan.folds_per_task * shape.gram_size**2 / 2
    return plan.n_segments * (gram + shape.n_light_sweeps * vectors)
