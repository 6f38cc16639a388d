"""A plan as values for the Helm chart dask/dask: what it needs of the workers and of a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distrff.display.units import human_bytes

if TYPE_CHECKING:
    from distrff.data.dataset import Dataset
    from distrff.estimators.machine import Machine
    from distrff.sweeps.plan import Plan

_MiB, _STEP = 2**20, 256
_CLIENT_IDLE_BYTES = 2**29  # a kernel with distrff, and the server that it belongs to


def planned_values(estimator: Machine, dataset: Dataset, options: Mapping[str, Any]) -> str:
    """Return the values as YAML, for workers of as many threads as `--threads-per-worker` says.

    They are counted for workers that need not be there yet. Without `--memory-limit` these may have as
    much memory as the fastest way needs.

    Raises
    ------
    PlanRefused
        If it would not fit into `--memory-limit`.
    """
    from distrff.cluster import memory_limit_bytes
    from distrff.sweeps.execution import PlannedWorkers

    threads, n_workers = options["threads_per_worker"], options["workers"]
    limit = memory_limit_bytes(options["memory_limit"], 1) if options["memory_limit"] else 0
    plan = estimator.plan_for(PlannedWorkers(n_workers or 1, threads, limit), dataset)
    plan = plan.with_posterior() if options["include_std"] else plan
    return "\n".join(_lines(plan, n_workers))


def _lines(plan: Plan, n_workers: int | None) -> list[str]:
    from distrff.sweeps.plan import least_memory_limit

    s, threads = plan.shape, plan.threads_per_worker
    presumed = " presumed until the classes are counted" if s.outputs_are_presumed else ""
    at_once = -(-plan.n_segments // threads)
    memory = _quantity(least_memory_limit(plan), plan.memory_limit)
    resources = [f"memory: {memory}", *([f"cpu: {threads}"] if threads > 1 else [])]
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
    """Return limits and requests alike, so that no neighbour on the node can take what was planned with."""
    return [
        line
        for kind in ("limits", "requests")
        for line in (f"    {kind}:", *(f"      {resource}" for resource in resources))
    ]


def _quantity(n_bytes: float, most: int = 0) -> str:
    """Return a Kubernetes quantity of at least so many bytes in round numbers, not above `most` if given."""
    mebibytes = math.ceil(n_bytes / _MiB / _STEP) * _STEP
    if most:
        mebibytes = min(mebibytes, most // _MiB)
    return f"{mebibytes // 1024}Gi" if mebibytes % 1024 == 0 else f"{mebibytes}Mi"
