"""Before a fit: `distrff plan`, `bench` and `kernel-error`: its cost, the workers' rates, the map's error."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

import distrff as drf
from distrff.cli.build import (
    checked_map,
    estimator_and_data,
    fit_options,
    keeps_std,
    map_options,
    refuse,
    show_defaults,
)
from distrff.cli.command import AS_JSON, Result, command, flag, given, parameter
from distrff.cli.data import chosen, cluster_options, open_data, row_options, workers_of
from distrff.errors import ClusterError, InputError, PlanRefused
from distrff.utils.text import Table, human_bytes, part_lines, si_text

if TYPE_CHECKING:
    from distributed import Future

    from distrff.diagnostics.kernel_error import KernelError
    from distrff.engine.run import ClusterExecution
    from distrff.engine.tasks import Workers
    from distrff.estimators.base import KernelEstimator
    from distrff.fitting.cost import Plan
    from distrff.io.dataset import Dataset, Rows

    Counted = Callable[[KernelEstimator, Workers], Plan]


@command()
@click.argument("data")
@fit_options
@flag(
    "--as-helm-values",
    "Count for workers in Kubernetes that are not there yet, and print what they need as values for the "
    "chart dask/dask.",
)
@click.option(
    "--threads-per-worker",
    type=click.IntRange(min=1),
    default=4,
    help="For --as-helm-values, where --workers are those of the chart, and --memory-limit is what a pod may "
    "have, by default 1TiB.",
)
@click.option(
    "--checkpoint", metavar="URL", help="That of the fit: count the memory that writing to it takes as well."
)
@click.pass_context
def plan(ctx: click.Context, data: str, as_helm_values: bool, **options: Any) -> Result | None:
    """Say what `fit` with the same options would do and need.

    Sweeps, flops, bytes read and peak memory are counted; seconds are predicted from a
    measurement of about a second on the workers. Exit code 4 if it would not fit. The plan checks the
    first rows and what the files record of missing values. Missing and infinite values elsewhere show in
    the first pass of a fit.
    """
    if ctx.meta[AS_JSON] and as_helm_values:
        raise click.UsageError("--as-helm-values prints YAML; give it or --json")
    if not as_helm_values and "threads_per_worker" in given(ctx):
        refuse(ctx, "threads_per_worker", "--as-helm-values")
    if as_helm_values and options["scheduler"] not in (None, "local"):
        raise click.UsageError("--as-helm-values plans workers that are not there yet; leave out --scheduler")
    estimator, dataset = estimator_and_data(ctx, data)
    if as_helm_values:
        values, notes = planned_values(estimator, dataset, ctx.params)
        click.echo(values)
        for note in notes:
            click.echo(f"note: {note}", err=True)
        return None
    from distrff.fitting.fit import with_posterior

    with workers_of(options, dataset.decoded_bytes):
        counted = estimator.plan(dataset, checkpoint=options["checkpoint"])
    if keeps_std(ctx.params):
        counted = with_posterior(counted, each_target=bool(ctx.params.get("alpha_per_target")))
    unseen = "missing or infinite values in later rows show only in a fit's first pass"
    lines = [str(counted), *([unseen] if dataset.n_rows > counted.tile_rows else [])]
    return Result(counted.to_dict(), lines)


# A plan as values for the Helm chart dask/dask: what it needs of the workers and of a notebook.

_MiB, _STEP = 2**20, 256
_CLIENT_IDLE_BYTES = 2**29  # of a notebook's kernel with distrff, and of its server
_MAX_POD = "1TiB"  # few nodes have more
_FAR_LESS, _WORTH_A_NOTE = 2 / 3, 2**32  # share and bytes of a pod's memory that are worth a note


def planned_values(
    estimator: KernelEstimator, dataset: Dataset, options: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """Values as YAML, for workers of as many threads as `--threads-per-worker` says, and notes."""
    from distrff.engine.cluster import memory_limit_bytes
    from distrff.engine.tasks import Workers

    n_workers, limit = options["workers"], options["memory_limit"]
    n_bytes = memory_limit_bytes(limit or _MAX_POD, 1)
    workers = Workers(n_workers or 1, options["threads_per_worker"], n_bytes)

    def counted(model: KernelEstimator, workers: Workers) -> Plan:
        return model.plan_for(workers, dataset, checkpoint=options["checkpoint"])

    # By default as much as nodes have: the plan then says what the fastest way needs.
    try:
        plan = counted(estimator, workers)
    except PlanRefused as refused:
        if not limit:
            refused.add_note(f"--memory-limit is {_MAX_POD} where it is not given, for few nodes have more")
        for note in _if_the_penalty_were_given(estimator, counted, workers):
            refused.add_note(note)
        raise
    from distrff.fitting.fit import with_posterior

    if keeps_std(options):
        plan = with_posterior(plan, each_target=bool(options.get("alpha_per_target")))
    return "\n".join(_lines(plan, n_workers)), _if_one_thread_worked(estimator, counted, workers, plan)


def _if_the_penalty_were_given(estimator: KernelEstimator, counted: Counted, workers: Workers) -> list[str]:
    """A note of what a pod would need if the penalty were given, where it is searched and that fits."""
    parameters = estimator.get_params(deep=False)
    for name, grid in (("alpha", "alphas"), ("C", "Cs")):
        if not isinstance(parameters.get(name), str):
            continue
        # Any number does: sizes do not depend on it.
        own = {"alpha_per_target": False} if "alpha_per_target" in parameters else {}
        given = type(estimator)(**parameters | {name: 1.0, grid: None} | own)
        try:
            plan = counted(given, workers)
        except PlanRefused:
            continue
        how = "".join(f" ({remark})" for remark in plan.remarks())
        return [f"a given --{name} needs {_pod(plan)} a worker{how}"]
    return []


def _if_one_thread_worked(
    estimator: KernelEstimator, counted: Counted, workers: Workers, plan: Plan
) -> list[str]:
    """A note where workers of one thread need far less, since each thread holds a Gram of its own."""
    from distrff.fitting.cost import min_memory_limit

    if not plan.has_gram:
        return []
    # One thread has one Gram; BLAS may still use all cores for its products.
    alone = counted(estimator, replace(workers, threads_per_worker=1))
    needed, less = min_memory_limit(plan), min_memory_limit(alone)
    if less > _FAR_LESS * needed or needed - less < _WORTH_A_NOTE:
        return []
    return [
        f"with --threads-per-worker 1 a worker needs {_pod(alone)} in place of {_pod(plan)}: each thread "
        f"holds a Gram and rows of its own, and one alone leaves the cores to BLAS, as "
        f"deploy/helm/values-highmem.yaml sets it up"
    ]


def _pod(plan: Plan) -> str:
    """Memory of a worker's pod."""
    from distrff.fitting.cost import min_memory_limit

    return _quantity(min_memory_limit(plan), plan.memory_limit)


def _lines(plan: Plan, n_workers: int | None) -> list[str]:
    s, threads = plan.size, plan.threads_per_worker
    presumed = " presumed until the classes are counted" if s.outputs_are_presumed else ""
    at_once = -(-plan.n_segments // threads)
    resources = [f"memory: {_pod(plan)}"] + ([f"cpu: {threads}"] if threads > 1 else [])
    return [
        "# By `distrff plan --as-helm-values`, to be given after the other values files of dask/dask.",
        f"# {s.n_rows:,} rows × {s.n_columns} columns → {s.n_features} features, "
        f"{s.n_outputs} output(s){presumed}",
        f"# {plan.folds_in_words}; {human_bytes(plan.worker_peak_bytes)} a worker above an idle one at most",
        "worker:",
        *([f"  replicas: {n_workers}"] if n_workers else []),
        f"  # {plan.n_segments} segment(s) of rows, so that {at_once} worker(s) can have work at once.",
        f"  threads_per_worker: {threads}",
        *(["  # No cpu: one thread may use many cores, as in values-highmem.yaml."] if threads == 1 else []),
        "  resources:",
        *_same_twice(resources),
        "jupyter: # or the Job that fits",
        "  resources:",
        *_same_twice([f"memory: {_quantity(plan.client_peak_bytes + _CLIENT_IDLE_BYTES)}"]),
    ]


def _same_twice(resources: list[str]) -> list[str]:
    """Equal limits and requests, so that nothing else on the node takes the planned memory."""
    return [
        line
        for kind in ("limits", "requests")
        for line in (f"    {kind}:", *(f"      {resource}" for resource in resources))
    ]


def _quantity(n_bytes: float, at_most: int = 0) -> str:
    """A Kubernetes quantity of so many bytes, rounded up, but not above `at_most` if given."""
    # Rounded up: a limit a byte too small is a worker that is killed.
    mebibytes = math.ceil(n_bytes / _MiB / _STEP) * _STEP
    if at_most:
        mebibytes = min(mebibytes, at_most // _MiB)
    return f"{mebibytes // 1024}Gi" if mebibytes % 1024 == 0 else f"{mebibytes}Mi"


# How fast the workers are, and which of their rates limits a fit.


_MAX_LISTED = 20


@command()
@click.argument("data", required=False)
@fit_options
@click.pass_context
def bench(ctx: click.Context, data: str | None, **options: Any) -> Result:
    """Measure the workers: products, cosines, reading, and sending to each other.

    With DATA, reading its rows is measured too, and the result names the rate that limits a `fit` with
    the same options; exit code 4 if that would not fit in memory. All threads of all workers work at the
    same time, for some five seconds in all, and longer if workers have to import and compile first. Local
    workers are started for few rows as well.
    """
    if data is None:
        for name in given(ctx).keys() - {"scheduler", "workers", "memory_limit"}:
            refuse(ctx, name, "DATA")
        with workers_of(options):
            rates = cluster_rates()
        return Result(rates, _rate_lines(rates))
    estimator, dataset = estimator_and_data(ctx, data)
    with workers_of(options):
        plan = estimator.plan(dataset)
        rates = cluster_rates(dataset)
    limits = fit_limits(plan, rates)
    values = rates | {"fit": limits | {"planned_seconds": plan.seconds}}
    return Result(values, [*_rate_lines(rates), "", *_limit_lines(plan, limits)])


def _rate_lines(rates: dict[str, Any]) -> Iterator[str]:
    workers, row_bytes = rates["workers"], rates["row_bytes"]
    header = ("worker", "threads", "BLAS", "memory", "float32", "float64", "cosines", "reading", "receiving")
    # A pass waits for its slowest thread.
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
    total, planned = sum(limits["seconds"].values()), plan.seconds
    of_plan = "" if planned is None else f" (its plan, by a trial of the fit itself: {planned:.3g} s)"
    yield f"this fit, by these rates {total:.3g} s{of_plan}:"
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
    # All threads at once, as in a fit: one alone has the memory and the caches of all for itself.
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
    # The first trips connect and import; the median does not see them.
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
    # The senders have their bytes: only the transfer is timed.
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
        # Or late tasks would run into the next measurement, or the next command's.
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
        # NumPy turns ZᵀZ into a symmetric product, as the Gram has it: n·D² flops, not 2n·D².
        products = _calls_a_second(partial(np.matmul, Z.T, Z, out=G), seconds)
        rates["flops"][dtype] = float(_ROWS) * _FEATURES**2 * products
        # A pair takes two columns: half as many angles fill the memory of G.
        theta = np.linspace(-50.0, 50.0, _FEATURES**2 // 2, dtype=dtype).reshape(_FEATURES, -1)
        rates["cosines"][dtype] = G.size * _calls_a_second(partial(paired_cos_sin, theta, G, 1.0), seconds)
    return rates


def _calls_a_second(work: Callable[[], object], seconds: float) -> float:
    def calls() -> Iterator[int]:
        while True:
            work()
            yield 1

    work()  # touches its memory for the first time
    return _per_second(calls(), seconds)


def _per_second(done: Iterable[int], seconds: float) -> float:
    """Amount of work in a second, of steps that tell their amounts, within so many seconds."""
    n, took, began = 0, 0.0, time.perf_counter()
    for amount in done:
        n, took = n + amount, time.perf_counter() - began
        # Looked at after each step, so that one step is always done.
        if took >= seconds:
            break
    return n / took


def rows_a_second(rows: Rows, tile_rows: int, seconds: float) -> float:
    """Rows that this thread reads in a second, measured for so many seconds."""
    # A few rows are read before, so that imports and opening do not count.
    tiles = rows.tiles(min(_WARM_ROWS, tile_rows, rows.stop - rows.start))
    next(tiles)
    del tiles
    return _per_second((tile.X.shape[0] for tile in rows.tiles(tile_rows)), seconds)


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
    """Seconds of each part of a fit: the plan's counts divided by the measured rates.

    The parts follow one another in a thread, except transfers, which other tasks may hide. `busy_share` is
    the share of the threads that the fit's segments keep busy.
    """
    from distrff.fitting.cost import THIN_SLOWNESS
    from distrff.fitting.gram import factorisation_flops

    shape, n_threads = plan.size, rates["n_threads"]
    # Segments go round the threads, and the last round may leave some of these idle.
    rounds = -(-plan.n_segments // n_threads)
    busy = plan.n_segments / (rounds * n_threads)
    moved = _moved_bytes(plan, len(rates["workers"]))
    seconds = {
        "reading": plan.bytes_read / shape.row_bytes / _total(rates, "read_rows") / busy,
        "transfers": moved / _total(rates, "received_bytes") if moved else 0.0,
        "starting tasks": plan.n_sweeps * rounds * rates["task_seconds"],
    }
    if shape.sparse_entries:
        # Neither products nor cosines of sparse features are measured: they are what the plan has beside
        # reading.
        seconds["features"] = max(0.0, (plan.seconds or 0.0) - seconds["reading"])
    else:
        # Flops of products as tall as wide, of thin products, and of factorisations. Thin ones, with a few
        # vectors, wait for memory: 2.5 times as long by the flop as the others.
        gram, thin, factor = 0.0, plan.flops, 0.0
        if plan.solver == "gram":
            gram, factor = shape.gram_flops, factorisation_flops(shape) + shape.map_factor_flops
            thin = max(0.0, plan.flops - gram - factor - shape.search_flops)  # what is kept is made once
        seconds["products"] = (gram + THIN_SLOWNESS * thin) / _total(rates, "flops", shape.dtype) / busy
        seconds["cosines"] = plan.cosines / _total(rates, "cosines", shape.dtype) / busy
        # A fold's eigensystem is a task; a given alpha has one factor.
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
    # As if each partial came from another worker.
    gram = 8.0 * plan.folds_per_task * shape.gram_size**2 / 2
    return plan.n_segments * (gram + shape.n_light_sweeps * vectors)


# The error of a map's kernel on stored rows.


@command("kernel-error")
@click.argument("data")
@row_options
@map_options
@parameter("kernel_error", "n_pairs")
@parameter("kernel_error", "n_blocks", help="Blocks of rows to sample.")
@parameter("kernel_error", "block_rows", help="Rows of a block.")
@parameter("kernel_error", "alpha")
@parameter("kernel_error", "confidence", help="Confidence of the intervals and the bounds.")
@cluster_options
@click.pass_context
def kernel_error(ctx: click.Context, data: str, **options: Any) -> Result:
    """Fit a map to DATA, and measure how far its kernel is from the exact one.

    The error is measured on sampled pairs and blocks of rows, and printed beside its theoretical bound,
    which is known for independent draws, CountSketch, bins and landmarks. A target is used only to find
    an automatic width.
    """
    features = checked_map(ctx)
    if options["features"] == "linear":
        raise InputError("--features linear approximates no kernel; there is no error to measure")
    dataset = open_data(data, options)
    show_defaults(ctx)
    with workers_of(options, dataset.decoded_bytes):
        found = _measured(features, dataset, options)
    return Result(found.to_dict(), _error_lines(found))


def _measured(features: Any, dataset: Dataset, options: dict[str, Any]) -> KernelError:
    import numpy as np

    from distrff.estimators.gram import prepare_map
    from distrff.fitting.problem import features_dtype
    from distrff.utils.random import group_of, resolve_seed

    seed = resolve_seed(options["random_state"])
    scale = options["scale"] or "auto"
    preparation = prepare_map(features, dataset, scale=scale, random_state=seed)
    # Rows as a fit would have them: bins and rounding depend on their dtype.
    dtype = np.dtype(features_dtype(dataset, "auto"))
    scaled = dataset.X.map_blocks(
        preparation.scaling.apply, dtype, token=group_of("scale"), dtype=dtype, meta=np.empty((0, 0), dtype)
    )
    assert preparation.features is not None
    arguments = chosen(options, "n_pairs n_blocks block_rows alpha confidence")
    return drf.kernel_error(preparation.features, scaled, random_state=seed, **arguments)


def _error_lines(found: KernelError) -> list[str]:
    level = f"{100 * found.confidence:g} %"
    return [
        f"kernel error of {found.n_components} features on {found.n_samples:,} rows, at {level} confidence",
        f"  {found.kernel}",
        f"  RMS of {found.n_pairs:,} pairs      {found.rms_error:.4g}  {_range(found.rms_interval)}"
        + _theory("expected", found.rms_expected)
        + _theory("expected at most", found.rms_bound),
        f"  largest of the pairs   {found.max_error:.4g}" + _theory("bound", found.max_bound),
        f"    at most {found.max_exceeded_share:.2g} of all pairs have a larger error",
        f"  spectral norm, {found.n_blocks} block(s) of {found.block_rows} rows  {found.spectral_error:.4g}"
        f"  {_range(found.spectral_interval)}" + _theory("bound", found.spectral_bound),
        f"    the kernel's own norm there {found.kernel_norm:.4g}",
        f"  effective dimension of a block at alpha {found.alpha:g}  {found.effective_dimension:.4g}"
        f"  {_range(found.effective_dimension_interval)}",
        f"  seed {found.seed}",
    ]


def _range(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"({interval[0]:.4g} to {interval[1]:.4g})"


def _theory(name: str, value: float | None) -> str:
    return "" if value is None else f"  {name} {value:.4g}"
