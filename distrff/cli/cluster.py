"""The workers of a command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click


@contextmanager
def workers_elsewhere(options: Mapping[str, Any]) -> Iterator[None]:
    """Make a scheduler that runs already the ambient one, for a pass before a command's work.

    With `--scheduler local` the pass runs in this process: to start processes for it alone would mostly
    take longer than the pass.
    """
    if options.get("scheduler", "local") == "local":
        yield
    else:
        with workers_of(options):
            yield


@contextmanager
def workers_of(options: Mapping[str, Any]) -> Iterator[None]:
    """Make the cluster that `--scheduler` names the ambient one, with workers that can run distrff.

    Raises
    ------
    click.UsageError
        For sizes of a cluster that is there already.
    ClusterError
        If it does not answer, or its workers cannot run distrff.
    """
    from distrff.cluster import connect
    from distrff.installations import check_workers

    scheduler, n_workers, limit = options["scheduler"], options["workers"], options["memory_limit"]
    if scheduler != "local" and (n_workers, limit) != (None, None):
        raise click.UsageError("--workers and --memory-limit go with --scheduler local")
    with connect(scheduler, n_workers=n_workers, memory_limit=limit) as client:
        check_workers(client)
        yield
