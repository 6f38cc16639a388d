"""Whether workers have the memory to read rows as they are stored, known before any is read."""

from __future__ import annotations

import math

from distrff.data.dataset import Dataset
from distrff.display.units import human_bytes
from distrff.errors import PlanRefused
from distrff.sweeps.execution import Workers
from distrff.sweeps.segments import light_segmentation

_MOST_TASKS = 2**20  # the client makes an object for each of them before it sends the first
_SPANS = 3  # two that are decoded, and a tile


def check_reading(workers: Workers, dataset: Dataset, sum_bytes: int = 0) -> None:
    """Refuse rows that the threads of a worker cannot all read at a time, by their shape and chunks alone.

    Parameters
    ----------
    workers : Workers
    dataset : Dataset
    sum_bytes : int
        Of what a task sums up.

    Raises
    ------
    PlanRefused
        Naming what is too large, and what to do.
    """
    limit, threads = workers.memory_limit or math.inf, workers.threads_per_worker
    row = threads * (_SPANS * dataset.row_bytes + sum_bytes)
    unit = threads * (2 * dataset.chunk_rows * dataset.row_bytes + dataset.held_bytes + sum_bytes)
    n_tasks = light_segmentation(dataset.n_rows, dataset.n_columns).n_segments
    have = f"a worker of {threads} thread(s), whose memory limit is {human_bytes(workers.memory_limit)}"
    if row > limit:
        raise PlanRefused(
            f"{dataset.source}: rows of {dataset.n_columns:,} columns take {human_bytes(row)} in {have}; "
            f"choose columns, or give more memory"
        )
    if unit > limit:
        raise PlanRefused(
            f"{dataset.source}: to read a chunk or row group takes {human_bytes(unit)} in {have}; write the "
            f"rows anew in smaller ones (`distrff convert`), or give more memory"
        )
    if n_tasks > _MOST_TASKS:
        raise PlanRefused(
            f"{dataset.source}: {dataset.n_rows:,} rows of {dataset.n_columns:,} columns are {n_tasks:,} "
            f"tasks a pass, of at most {_MOST_TASKS:,}; fit a sample of the rows"
        )
