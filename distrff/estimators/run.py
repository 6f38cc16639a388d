"""A fit's passes over the rows, on workers that are known to be able to run them."""

from __future__ import annotations

from distrff.installations import check_workers
from distrff.sweeps.cluster_execution import ClusterExecution
from distrff.sweeps.engine import SweepRun


def begin_run() -> SweepRun:
    """Return a run where the surroundings say, after making sure that each worker has this distrff.

    Raises
    ------
    ClusterError
        If there are no workers, or one lacks distrff or has another version.
    """
    run = SweepRun()
    if isinstance(run.execution, ClusterExecution):
        check_workers(run.execution.client)
    return run
