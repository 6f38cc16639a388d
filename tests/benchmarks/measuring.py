"""What benchmarks share: rows, warm worker processes and their memory, and timing in alternation."""

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from distributed import Client, LocalCluster

from distrff.engine.tasks import peak_resident_bytes, resident_bytes

CHUNK_ROWS = 32_768
N_WORKERS = 2
_REST_SECONDS = 0.2


@contextmanager
def workers(n_workers: int = N_WORKERS) -> Iterator[Client]:
    """Yield a client of fresh single-threaded processes that have imported all they will use."""
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, dashboard_address=None, local_directory=folder
        ) as cluster,
        Client(cluster) as client,
    ):
        client.run(import_everything)
        yield client


def import_everything() -> int:
    """Import and compile what a fit uses; return the resident set then."""
    import distrff.estimators.ridge  # noqa: F401
    from distrff.features.trigonometry import paired_cos_sin

    for dtype in (np.float32, np.float64):
        paired_cos_sin(np.zeros((2, 2), dtype), np.zeros((2, 4), dtype), 1.0)
    return resident_bytes()


def peaks_above(client: Client, idle: dict[str, int]) -> int:
    """Return the largest peak above idle of any worker process so far, in bytes."""
    peaks = client.run(peak_resident_bytes)
    return max(peaks[address] - idle[address] for address in idle)


def seconds_of(work: Callable[[], Any]) -> float:
    """Return the wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def alternate(first: Callable[[], Any], second: Callable[[], Any], repeats: int = 3) -> dict[str, Any]:
    """Return medians of both, and the median and the spread of the ratios first/second of neighbouring runs.

    They are timed in alternation, so that a drifting computer hits both, and with a rest before each: threads
    of BLAS spin for about .1 s after their last product, and would take a core from the other.
    """

    def rested(work: Callable[[], Any]) -> float:
        time.sleep(_REST_SECONDS)
        return seconds_of(work)

    return compared([(rested(first), rested(second)) for _ in range(repeats)])


def compared(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return medians of pairs of seconds, and the median, the least and the most of their ratios."""
    ratios = [a / b for a, b in pairs]
    return {
        "ratio": median(ratios),
        "spread": [min(ratios), max(ratios)],
        "seconds": median(a for a, _ in pairs),
        "reference_seconds": median(b for _, b in pairs),
    }


def write_rows(
    path: Path, n_rows: int, n_columns: int, dtype: str = "float32", *, is_labelled: bool = False
) -> Path:
    """Write X and y, or the sign of y, chunk by chunk to Zarr, and return the path."""
    group = zarr.create_group(path)
    X = group.create_array("X", shape=(n_rows, n_columns), chunks=(CHUNK_ROWS, n_columns), dtype=dtype)
    kind = "int8" if is_labelled else dtype
    y = group.create_array("y", shape=(n_rows,), chunks=(CHUNK_ROWS,), dtype=kind)
    for start in range(0, n_rows, CHUNK_ROWS):
        stop = min(n_rows, start + CHUNK_ROWS)
        X[start:stop], targets = draw_rows(start, stop - start, n_columns, dtype)
        y[start:stop] = np.where(targets > 0, 1, -1) if is_labelled else targets
    return path


def write_table(path: Path, n_rows: int, n_columns: int, dtype: str = "float32") -> Path:
    """Write the same rows to Parquet, a row group a chunk, the target as `y`, and return the path."""
    names = [*(f"x{j}" for j in range(n_columns)), "y"]
    schema = pa.schema([(name, pa.from_numpy_dtype(np.dtype(dtype))) for name in names])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, n_rows, CHUNK_ROWS):
            X, y = draw_rows(start, min(CHUNK_ROWS, n_rows - start), n_columns, dtype)
            writer.write_table(pa.table([*np.asfortranarray(X).T, y], schema=schema))
    return path


def draw_rows(seed: int, n_rows: int, n_columns: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and targets of one block."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_columns)).astype(dtype)
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n_rows)
    return X, y.astype(dtype)


def in_fresh_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a call returns in a process that does nothing else."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def measured(work: Callable[..., Any], *arguments: Any) -> dict[str, float]:
    """Return the seconds of a call, and the bytes that this process had at most above those before."""
    idle = resident_bytes()
    seconds = seconds_of(lambda: work(*arguments))
    return {"seconds": seconds, "peak_bytes": peak_resident_bytes() - idle}
