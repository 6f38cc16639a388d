"""Warm worker processes of one thread each, and how much memory their work took."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client, LocalCluster

N_WORKERS = 2


@contextmanager
def workers(n_workers: int = N_WORKERS) -> Iterator[Client]:
    """Yield a client of fresh single-threaded processes that have imported all they will use."""
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            dashboard_address=None,
            local_directory=folder,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.run(import_everything)
        yield client


def import_everything() -> int:
    """Import and compile what a fit uses; return the resident set then."""
    import numpy as np

    import distrff.estimators.ridge  # noqa: F401
    from distrff.engine.record import resident_bytes
    from distrff.features.trigonometry import paired_cos_sin

    for dtype in (np.float32, np.float64):
        paired_cos_sin(np.zeros((2, 2), dtype), np.zeros((2, 4), dtype), 1.0)
    return resident_bytes()


def peaks_above(client: Client, idle: dict[str, int]) -> int:
    """Return the largest peak above idle of any worker process so far, in bytes."""
    from distrff.engine.record import peak_resident_bytes

    peaks = client.run(peak_resident_bytes)
    return max(peaks[address] - idle[address] for address in idle)
