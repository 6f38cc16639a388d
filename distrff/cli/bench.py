"""`distrff bench`: what a cluster delivers, and which of it limits a fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from distrff.cli.cluster import workers_of
from distrff.cli.data_source import open_data
from distrff.cli.machine import adapt_to, checked_machine, refuse_without_data, tell_defaults
from distrff.cli.options import (
    cluster_options,
    data_options,
    machine_options,
    table_options,
    talk_options,
    target_options,
)
from distrff.cli.output import show

if TYPE_CHECKING:
    from distrff.sweeps.cluster_rates import ClusterRates, WorkerRates
    from distrff.sweeps.fit_limits import FitLimits
    from distrff.sweeps.plan import Plan

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
    from distrff.sweeps.cluster_rates import cluster_rates
    from distrff.sweeps.fit_limits import fit_limits

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
    from distrff.display.units import human_bytes

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
