"""What the tests of distribution share: clusters of their own, rows, and sweeps of many small segments."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from distributed import Client, LocalCluster


@pytest.fixture
def small_segments(monkeypatch) -> None:
    """Cut sweeps into segments of a thousand or two rows; only the client decides where to cut."""
    for name, rows in (
        ("_MIN_SEGMENT_ROWS", 1024),
        ("_MAX_SEGMENT_ROWS", 1024),
        ("_LIGHT_SEGMENT_ROWS", 2048),
    ):
        monkeypatch.setattr(f"distrff.engine.reduction.{name}", rows)


@pytest.fixture
def rows(rng) -> tuple[np.ndarray, np.ndarray]:
    """X of three columns and y of many thousand rows, a number that no segment or chunk divides."""
    X = rng.standard_normal((20_009, 3))
    return X, np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(len(X))


@pytest.fixture
def start_cluster(local_cluster) -> Iterator[Callable[..., tuple[LocalCluster, Client]]]:
    """`start_cluster(n_workers)`: a cluster for this test alone, as of `local_cluster`, and its client."""
    with ExitStack() as closing:

        def start(n_workers: int, **options: bool) -> tuple[LocalCluster, Client]:
            cluster = closing.enter_context(local_cluster(n_workers, **options))
            return cluster, closing.enter_context(Client(cluster))

        yield start
