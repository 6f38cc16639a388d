"""Ridge by its Gram: against dask.array and scikit-learn; the book times its sweep against bare products."""

import tempfile
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline

from distrff import FourierFeatures, Gaussian, KernelRidge, open_dataset
from distrff.engine.reduction import gram_segmentation, gram_tile_rows
from distrff.engine.run import Run
from distrff.engine.tasks import peak_resident_bytes, resident_bytes
from distrff.fitting.gram import GramReduction
from distrff.io.dataset import Dataset
from distrff.preprocessing.coding import NumericTargets, Scaling
from tests.benchmarks.measuring import (
    alternate,
    draw_rows,
    import_everything,
    in_fresh_process,
    peaks_above,
    seconds_of,
    workers,
    write_rows,
)

N_COLUMNS = 50
N_COMPONENTS = 2048
LENGTH_SCALE = 7.0  # about √d: distances of such rows are near 10


def features_of_rows() -> FourierFeatures:
    return FourierFeatures(Gaussian(LENGTH_SCALE), N_COMPONENTS, random_state=0)


def model_of(alpha: Any) -> KernelRidge:
    return KernelRidge(features_of_rows(), alpha=alpha, random_state=0)


def sweep(dataset: Dataset, dtype: str) -> None:
    cuts = gram_segmentation(dataset.n_rows, N_COMPONENTS, 1, np.dtype(dtype))
    reduction = GramReduction(
        specification=features_of_rows().fit(np.zeros((1, N_COLUMNS))).specification_,
        scaling=Scaling(),
        targets=NumericTargets(np.zeros(1), np.ones(1)),
        dtype=dtype,
        tile_rows=cuts.tile_rows,
    )
    Run().reduce("Gram", dataset, reduction, cuts)


def products_of_workers(client: Client, n_rows: int, dtype: str, n_tiles: int | None) -> None:
    # Not from what the client has of the scheduler, which at times is without workers.
    addresses = list(client.run(int))
    share = -(-n_rows // len(addresses))
    tasks = [
        client.submit(bare_products, share, dtype, n_tiles, workers=[address], pure=False)
        for address in addresses
    ]
    client.gather(tasks)


def bare_products(n_rows: int, dtype: str, n_tiles: int | None) -> int:
    """Multiply ready tiles of the sweep's size, as often as the rows need."""
    t = ready_tile(dtype)
    full, rest = divmod(n_rows, len(t))
    for _ in range(full if n_tiles is None else n_tiles):
        t.T @ t
    return (t[:rest].T @ t[:rest]).size


@cache
def ready_tile(dtype: str) -> np.ndarray:
    """Return a tile of the sweep's size, made once per process."""
    rows = gram_tile_rows(N_COMPONENTS, 1, np.dtype(dtype))
    return np.random.default_rng(0).standard_normal((rows, N_COMPONENTS + 2)).astype(dtype)


def against_dask_array(scale: float) -> dict[str, Any]:
    """The same fit by `map_blocks` and `Z.T @ Z`, time on warm workers, memory on fresh ones."""
    n = int(500_000 * scale)
    with tempfile.TemporaryDirectory() as folder:
        path = write_rows(Path(folder) / "rows.zarr", n, N_COLUMNS)
        with workers():
            fit_stored(path), dask_array_fit(path)
            timed = alternate(lambda: fit_stored(path), lambda: dask_array_fit(path))
        ours, theirs = fresh_peak(fit_stored, path), fresh_peak(dask_array_fit, path)
    return {
        "n_rows": n,
        "reached": 1 / timed.pop("ratio"),
        **timed,
        "memory_ratio": ours / theirs,
        "peak_bytes": ours,
        "reference_peak_bytes": theirs,
    }


def fit_stored(path: Path) -> KernelRidge:
    return model_of(1.0).fit(open_dataset(path))


def dask_array_fit(path: Path) -> np.ndarray:
    X, y = da.from_zarr(str(path / "X")), da.from_zarr(str(path / "y"))
    W = np.random.default_rng(0).standard_normal((N_COLUMNS, N_COMPONENTS)).astype(np.float32) / LENGTH_SCALE
    b = np.random.default_rng(1).uniform(0, 2 * np.pi, N_COMPONENTS).astype(np.float32)
    chunks, meta = (X.chunks[0], (N_COMPONENTS,)), np.empty((0, 0), np.float32)
    Z = X.map_blocks(rbf_features, W, b, dtype=np.float32, chunks=chunks, meta=meta)
    G, B, z, total = da.compute(Z.T @ Z, Z.T @ y, Z.sum(axis=0), y.sum())
    G = G - np.outer(z, z) / len(X) + np.eye(N_COMPONENTS)
    return np.linalg.solve(G, B - z * total / len(X))


def rbf_features(X: np.ndarray, W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the textbook's random features, as fast as NumPy does them."""
    Z = X @ W
    Z += b
    np.cos(Z, out=Z)
    Z *= np.float32(np.sqrt(2.0 / len(b)))
    return Z


def fresh_peak(fit: Any, path: Path) -> int:
    with workers() as client:
        idle = client.run(import_everything)
        fit(path)
        return peaks_above(client, idle)


def against_scikit_learn(scale: float) -> dict[str, Any]:
    """The same rows in memory by RBFSampler and Ridge, in a process with all cores, in float32."""
    n = int(200_000 * scale)
    with tempfile.TemporaryDirectory() as folder:
        path = write_rows(Path(folder) / "rows.zarr", n, N_COLUMNS)
        ours, theirs = [], []
        with workers():
            fit_stored(path)
            for _ in range(3):
                theirs.append(in_fresh_process(sklearn_fit, n))
                ours.append(seconds_of(lambda: fit_stored(path)))
        our_peak, peak = fresh_peak(fit_stored, path), max(found["peak_bytes"] for found in theirs)
    return {
        "n_rows": n,
        "reached": median(found["seconds"] / seconds for found, seconds in zip(theirs, ours, strict=True)),
        "seconds": median(ours),
        "reference_seconds": median(found["seconds"] for found in theirs),
        "memory_ratio": our_peak / peak,
        "peak_bytes": our_peak,
        "reference_peak_bytes": peak,
    }


def sklearn_fit(n_rows: int) -> dict[str, float]:
    """Draw rows and fit the same model to them by scikit-learn; the seconds are of the fit alone."""
    idle = resident_bytes()
    X, y = draw_rows(0, n_rows, N_COLUMNS, "float32")
    sampler = RBFSampler(gamma=0.5 / LENGTH_SCALE**2, n_components=N_COMPONENTS, random_state=0)
    seconds = seconds_of(lambda: make_pipeline(sampler, Ridge(alpha=1.0)).fit(X, y))
    return {"seconds": seconds, "peak_bytes": peak_resident_bytes() - idle}
