"""`distrff plan`: what a fit would cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from distrff.cli.build import estimator_and_data, fit_options, refuse
from distrff.cli.command import command, show, verbosity_options
from distrff.cli.data import workers_of
from distrff.cli.options import flag, given
from distrff.errors import PlanRefused
from distrff.utils.text import human_bytes

if TYPE_CHECKING:
    from distrff.engine.tasks import Workers
    from distrff.estimators.base import KernelEstimator
    from distrff.fitting.cost import Plan
    from distrff.io.dataset import Dataset

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
@verbosity_options
@click.pass_context
def plan(ctx: click.Context, data: str, as_helm_values: bool, as_json: bool, **options: Any) -> None:
    """Say what `fit` with the same options would do and need.

    Sweeps, flops, bytes read and peak memory are counted; seconds are predicted from a
    measurement of about a second on the workers. Exit code 4 if it would not fit. The plan checks the
    first rows and what the files record of missing values. Missing and infinite values elsewhere show in
    the first pass of a fit.
    """
    if as_json and as_helm_values:
        raise click.UsageError("--as-helm-values prints YAML; give it or --json")
    if not as_helm_values and "threads_per_worker" in given(ctx):
        refuse(ctx, "threads_per_worker", "--as-helm-values")
    if as_helm_values and options["scheduler"] != "local":
        raise click.UsageError("--as-helm-values plans workers that are not there yet; leave out --scheduler")
    estimator, dataset = estimator_and_data(ctx, data)
    if as_helm_values:
        values, notes = planned_values(estimator, dataset, options)
        click.echo(values)
        for note in notes:
            click.echo(f"note: {note}", err=True)
        return
    from distrff.fitting.fit import with_posterior

    with workers_of(options):
        counted = estimator.plan(dataset, checkpoint=options["checkpoint"])
    counted = with_posterior(counted) if options["include_std"] else counted
    unseen = "missing or infinite values in later rows show only in a fit's first pass"
    lines = [str(counted), *([unseen] if dataset.n_rows > counted.tile_rows else [])]
    show(counted.to_dict(), as_json=as_json, lines=lines)


# A plan as values for the Helm chart dask/dask: what it needs of the workers and of a notebook.

_MiB, _STEP = 2**20, 256
_CLIENT_IDLE_BYTES = 2**29  # of a notebook's kernel with distrff, and of its server
_MAX_POD = "1TiB"  # few nodes have more
_FAR_LESS, _WORTH_A_NOTE = 2 / 3, 2**32  # share and bytes of a pod's memory that are worth a note


def planned_values(
    estimator: KernelEstimator, dataset: Dataset, options: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """Values as YAML, for workers of as many threads as `--threads-per-worker` says, and notes.

    They are counted for workers that need not be there yet. Without `--memory-limit` these may have as
    much memory as the fastest way needs, up to 1 TiB.
    """
    from distrff.engine.cluster import memory_limit_bytes
    from distrff.engine.tasks import Workers

    n_workers, limit = options["workers"], options["memory_limit"]
    n_bytes = memory_limit_bytes(limit or _MAX_POD, 1)
    workers = Workers(n_workers or 1, options["threads_per_worker"], n_bytes)

    def counted(model: KernelEstimator, workers: Workers) -> Plan:
        return model.plan_for(workers, dataset, checkpoint=options["checkpoint"])

    try:
        plan = counted(estimator, workers)
    except PlanRefused as refused:
        if not limit:
            refused.add_note(f"--memory-limit is {_MAX_POD} where it is not given, for few nodes have more")
        for note in _if_the_penalty_were_given(estimator, counted, workers):
            refused.add_note(note)
        raise
    from distrff.fitting.fit import with_posterior

    plan = with_posterior(plan) if options["include_std"] else plan
    return "\n".join(_lines(plan, n_workers)), _if_one_thread_worked(estimator, counted, workers, plan)


def _if_the_penalty_were_given(estimator: KernelEstimator, counted: Counted, workers: Workers) -> list[str]:
    """A note of what a pod would need if the penalty were given, where it is searched and that fits."""
    parameters = estimator.get_params(deep=False)
    for name, grid in (("alpha", "alphas"), ("C", "Cs")):
        if not isinstance(parameters.get(name), str):
            continue
        given = type(estimator)(**parameters | {name: 1.0, grid: None})
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
        f"# {s.n_folds} fold(s), {plan.folds_per_task} a task; "
        f"{human_bytes(plan.worker_peak_bytes)} a worker above an idle one at most",
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
    mebibytes = math.ceil(n_bytes / _MiB / _STEP) * _STEP
    if at_most:
        mebibytes = min(mebibytes, at_most // _MiB)
    return f"{mebibytes // 1024}Gi" if mebibytes % 1024 == 0 else f"{mebibytes}Mi"
