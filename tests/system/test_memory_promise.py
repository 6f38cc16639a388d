"""The planner's peak is a promise: no worker of a random fit takes more memory than was planned."""

import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
import zarr
from distributed import Client, LocalCluster
from sklearn.base import is_classifier

import distrff as drf
from distrff.engine.tasks import Workers
from distrff.errors import PlanRefused
from tests.support.draws import seed_of

READERS = ("numpy", "dask", "zarr", "parquet", "scipy CSR", "dask CSR", "zarr CSR")
FILLED = 0.01  # of sparse columns, as is presumed of blocks that no one has read
MAX_FLOPS = 2e10


@dataclass(frozen=True)
class Draw:
    """A random fit; its representation has all that repeats it."""

    seed: int
    estimator: Any
    reader: str
    shape: tuple[int, int]
    n_outputs: int  # targets, or classes
    dtype: str
    weighted: bool
    layout: dict[str, Any]
    n_workers: int
    n_threads: int
    checkpoint_every: float | None  # seconds; None for no checkpoint


def drawn(
    seed: int,
    max_flops: float = MAX_FLOPS,
    max_shape: tuple[int, int, int] = (400_000, 600, 4096),
    *,
    max_workers: int = 2,
    kind: str | None = None,
    reader: str | None = None,
    features: str | None = None,
) -> Draw:
    """Return a random fit of at most so many flops, planned by its shape alone.

    `max_shape` are rows, columns and features. What is given is not drawn.
    """
    rng = np.random.default_rng(seed)
    d, n = int(_log_uniform(rng, 1, max_shape[1])), int(_log_uniform(rng, max_shape[0] / 20, max_shape[0]))
    reader = reader or str(rng.choice(READERS))
    is_sparse = reader.endswith("CSR")
    d = max(20, d) if is_sparse else min(d, 150) if reader == "parquet" else d
    D = int(_log_uniform(rng, 16, max_shape[2])) // 2 * 2
    kind = kind or str(rng.choice(list(ESTIMATORS)))
    d = min(d, 2) if kind == "toeplitz" else d
    if kind == "toeplitz" and is_sparse:
        is_sparse, reader = False, "zarr"
    n_outputs = int(rng.integers(2, 13)) if kind in CLASSIFIERS else int(rng.integers(1, 13))
    dtype = str(rng.choice(["f4", "f8", "i2"])) if not is_sparse else str(rng.choice(["f4", "f8"]))
    workers = tuple(map(int, ((1, 1), (1, 2), (2, 1))[rng.integers(1 + max_workers)]))
    map_rng, own_rng = rng.spawn(2)
    max_numbers = 2**25 * (1 / FILLED if is_sparse else 1)
    while True:
        of_map = _map(np.random.default_rng(map_rng.bit_generator.seed_seq), d, D, is_sparse, features)
        own = np.random.default_rng(own_rng.bit_generator.seed_seq)
        estimator = ESTIMATORS[kind](own, of_map).set_params(random_state=seed)
        block = da.zeros((n, d), dtype=dtype, chunks=(min(n, 8192), d))
        if is_sparse:
            empty = scipy.sparse.csr_matrix((0, 0), dtype=dtype)
            block = block.map_blocks(scipy.sparse.csr_matrix, meta=empty)
        y = da.zeros(n if kind in CLASSIFIERS else (n, n_outputs), chunks=min(n, 8192))
        plan = estimator.plan_for(Workers(*workers, 0), block, y)
        # Searches for widths and products with Toeplitz matrices take as long for fewer rows.
        flops = 0 if kind == "toeplitz" else plan.flops - plan.size.search_flops
        if (flops <= max_flops and n * d <= max_numbers) or n < 4096:
            break
        n, D = (n // 2, D) if n > 32 * D else (n, D // 4 * 2)
    layout = {"rows": int(_log_uniform(rng, 200, n)), "across": int(rng.integers(1, 4))}
    layout |= {"shard": int(rng.integers(0, 6)), "packed": bool(rng.integers(2))}
    weighted = bool(rng.integers(4) == 0)
    # With many passes, a write after each segment takes minutes.
    every = (None, None, 0.0 if kind in FEW_PASSES else 1.0)[rng.integers(3)]
    return Draw(seed, estimator, reader, (n, d), n_outputs, dtype, weighted, layout, *workers, every)


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _map(rng: np.random.Generator, d: int, D: int, is_sparse: bool, name: str | None) -> Any:
    """Return a random map of about D features, of a given kind or any."""
    width = (0.2 * d) ** 0.5 if is_sparse else d**0.5
    smooth = (drf.Gaussian, drf.Laplacian, drf.Cauchy, drf.Matern)[rng.integers(4)]
    auto = bool(rng.integers(4) == 0)
    kernel = smooth("auto" if auto else width)
    structured = () if is_sparse or d < 16 else ("sorf", "fastfood")
    samplings = ("iid", "orthogonal", "qmc", "countsketch", *structured)
    sampling = str(rng.choice(samplings))
    form = str(rng.choice(["cos_sin", "phase"]))
    fourier = drf.FourierFeatures(kernel, D, form=form)
    if sampling != "iid":  # which all kernels have
        kernel = drf.Gaussian("auto" if auto else width)
    maps = {
        "fourier": lambda: fourier,
        "sampling": lambda: drf.FourierFeatures(kernel, D, form=form, sampling=sampling),
        "nystroem": lambda: drf.NystroemFeatures(
            kernel if rng.integers(2) else drf.Polynomial(2, 1.0),
            min(D, 1500),
            landmarks=str(rng.choice(["uniform", "leverage"])),
        ),
        "binning": lambda: drf.RandomBinningFeatures(drf.Laplacian(d * width), max(4, D // 16)),
        "linear": drf.LinearFeatures,
        "metric": lambda: drf.FourierFeatures(
            drf.Gaussian(width, metric=rng.standard_normal((int(rng.integers(1, 9)), d))), D
        ),
        "learned": lambda: drf.FourierFeatures(drf.Gaussian(metric="learned"), D),
        "ard": lambda: drf.FourierFeatures(drf.Gaussian("ard"), D),
        "concatenated": lambda: drf.ConcatenatedFeatures(
            [fourier, drf.NystroemFeatures(drf.Gaussian(width), min(D, 500)), drf.LinearFeatures()]
        ),
        "auto": lambda: drf.AutoFeatures(D),
    }
    names = ("fourier", "sampling", "metric") if is_sparse else tuple(maps)
    return maps[name or str(rng.choice(names))]()


def _ridge(rng: np.random.Generator, features: Any) -> Any:
    if isinstance(features, drf.RandomBinningFeatures | drf.AutoFeatures):
        return drf.KernelRidge(features, 1.0, max_sweeps=10)
    alpha = (1.0, "cv", "cv", "gcv")[rng.integers(4)]
    return drf.KernelRidge(features, alpha, cv=int(rng.integers(2, 8)), solver="gram")


def _ridge_classifier(rng: np.random.Generator, features: Any) -> Any:
    alpha = 1.0 if isinstance(features, drf.RandomBinningFeatures) else (1.0, "cv")[rng.integers(2)]
    return drf.KernelRidgeClassifier(features, alpha, cv=int(rng.integers(2, 8)))


def _toeplitz(rng: np.random.Generator, features: Any) -> Any:
    kernel, D = drf.Gaussian((0.3, "auto")[rng.integers(2)]), int(_log_uniform(rng, 64, 2048))
    features = drf.EquispacedFourierFeatures(kernel, D)
    return drf.KernelRidge(features, (1.0, "cv")[rng.integers(2)], cv=int(rng.integers(2, 8)))


def _svc(rng: np.random.Generator, features: Any) -> Any:
    solver = (None, "auto", "sgd")[rng.integers(3)]
    C = "cv" if solver == "auto" and rng.integers(2) else 1.0
    options = {"C": C, "Cs": CS, "cv": int(rng.integers(2, 5)), "solver": solver or "auto", "loss": "hinge"}
    options |= {"loss": "squared_hinge"} if rng.integers(2) else {}
    return drf.KernelSVC(features, max_sweeps=int(rng.integers(3, 30)), **options)


def _likelihood(rng: np.random.Generator, features: Any) -> Any:
    noise, softmax = str(rng.choice(["logistic", "probit", "laplace"])), bool(rng.integers(2))
    options = {"noise": "logistic", "multi_class": "softmax"} if softmax else {"noise": noise}
    C = (1.0, "cv")[rng.integers(2)]
    return drf.KernelLikelihoodClassifier(
        features, C, Cs=CS, cv=int(rng.integers(2, 5)), max_sweeps=8, **options
    )


def _pca(rng: np.random.Generator, features: Any) -> Any:
    # Principal components have no targets from which widths of columns are learned, and no sparse features.
    kernel = getattr(features, "kernel", None)
    learns = any(word in repr(kernel) for word in ("'ard'", "'learned'"))
    is_sparse = isinstance(features, drf.RandomBinningFeatures | drf.AutoFeatures)
    features = drf.FourierFeatures(drf.Gaussian(1.0), 256) if is_sparse or learns else features
    return drf.KernelPCA(features, n_components=1)


ESTIMATORS = {
    "ridge": _ridge,
    "cg": lambda rng, features: drf.KernelRidge(features, 1.0, solver="cg", max_sweeps=10),
    "sgd": lambda rng, features: drf.KernelRidge(features, 1.0, solver="sgd", max_sweeps=6),
    "ridge classifier": _ridge_classifier,
    "svc": _svc,
    "likelihood": _likelihood,
    "pca": _pca,
    "toeplitz": _toeplitz,
}
CS = (0.1, 10.0)  # a longer grid takes more passes, and no more memory
CLASSIFIERS = ("ridge classifier", "svc", "likelihood")
FEW_PASSES = ("ridge", "ridge classifier", "pca", "toeplitz")
COVERED = (
    ("cg", "parquet", "binning"),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("likelihood", "zarr CSR", "metric"),
            ("ridge", "numpy", "ard"),
            ("svc", "dask", "learned"),
            ("sgd", "zarr", "concatenated"),
            ("ridge classifier", "dask CSR", "sampling"),
            ("pca", "scipy CSR", "fourier"),
            ("toeplitz", "numpy", None),
        )
    ),
)
"""Every solver and reader, and all maps but the one that is chosen. A worker takes three seconds to begin."""


def stored(draw: Draw, folder: Path) -> tuple[Any, ...]:
    """Return what the estimator is fitted to: arrays, or a dataset of rows that are written."""
    rng, (n, d), dtype = np.random.default_rng(draw.seed), draw.shape, np.dtype(draw.dtype)
    rows = draw.layout["rows"]
    if draw.reader == "dask CSR":
        numbers, empty = da.arange(n, chunks=rows), scipy.sparse.csr_matrix((0, 0), dtype=dtype)
        chunks, given = (*numbers.chunks, (d,)), (d, dtype, draw.seed)
        X = numbers.map_blocks(_sparse_block, *given, new_axis=1, chunks=chunks, dtype=dtype, meta=empty)
        signal = rng.standard_normal(n)
    elif draw.reader.endswith("CSR"):
        X = scipy.sparse.random(n, d, FILLED, "csr", dtype, random_state=rng)
        signal = np.asarray(X.sum(axis=1)).ravel()
    else:
        X = rng.standard_normal((n, d), "f4" if dtype == "i2" else dtype)
        X = (100 * X).astype(dtype) if dtype == "i2" else X
        signal = np.sin(X[:, 0] / X[:, 0].std()) + X[:, -1] / X[:, -1].std()
    signal = signal + 0.3 * rng.standard_normal(n)
    if is_classifier(draw.estimator):
        y = np.argsort(np.argsort(signal)) * draw.n_outputs // n
    else:
        y = np.stack([signal + j for j in range(draw.n_outputs)], axis=1)
        y = y[:, 0] if draw.n_outputs == 1 else y
    s = rng.uniform(0.5, 2.0, n) if draw.weighted else None
    match draw.reader:
        case "numpy" | "scipy CSR" | "dask CSR":
            return X, y, s
        case "dask":  # of a file: Dask keeps what is in a graph itself for longer than anyone needs it
            across = -(-d // draw.layout["across"])
            zarr.create_array(folder / "X", data=X, chunks=(rows, across))
            return da.from_zarr(str(folder / "X"), chunks=(rows, across)), y, s
        case "parquet":
            write = _write_parquet
        case "zarr":
            write = _write_zarr
        case "zarr CSR":
            write = _write_csr
    return (write(draw, folder / "rows", X, y, s),)


def _sparse_block(numbers: np.ndarray, d: int, dtype: np.dtype, seed: int) -> Any:
    rng = np.random.default_rng([seed, int(numbers[0]) if len(numbers) else 0])
    return scipy.sparse.random(len(numbers), d, FILLED, "csr", dtype, random_state=rng)


def _write_parquet(draw: Draw, path: Path, X: Any, y: Any, s: Any) -> Any:
    columns = {f"x{j}": X[:, j] for j in range(X.shape[1])}
    targets = {"y": y} if y.ndim == 1 else {f"y{j}": y[:, j] for j in range(y.shape[1])}
    weights = {} if s is None else {"s": s}
    options = {"use_dictionary": draw.layout["packed"], "compression": ("none", "snappy", "zstd")}
    options["compression"] = options["compression"][draw.layout["across"] - 1]
    pq.write_table(
        pa.table(columns | targets | weights), path.with_suffix(".parquet"),
        row_group_size=draw.layout["rows"], **options,
    )  # fmt: skip
    target = "y" if y.ndim == 1 else list(targets)
    named = {} if s is None else {"sample_weight": "s"}
    return drf.open_dataset(path.with_suffix(".parquet"), target=target, **named)


def _write_zarr(draw: Draw, path: Path, X: Any, y: Any, s: Any) -> Any:
    rows, across, shard = draw.layout["rows"], draw.layout["across"], draw.layout["shard"]
    chunks = rows, -(-X.shape[1] // across)
    shards = (rows * shard, chunks[1]) if shard else None
    compression = {} if draw.layout["packed"] else {"compressors": None}
    group = zarr.open_group(path, mode="w")
    group.create_array("X", data=X, chunks=chunks, shards=shards, **compression)
    for name, values in {"y": y, "sample_weight": s}.items():
        if values is not None:
            group.create_array(name, data=values, chunks=(rows, *values.shape[1:]), **compression)
    return drf.open_dataset(path)


def _write_csr(draw: Draw, path: Path, X: Any, y: Any, s: Any) -> Any:
    group = zarr.open_group(path, mode="w")
    matrix = group.create_group("X", attributes={"encoding-type": "csr_matrix", "shape": list(X.shape)})
    for name in ("data", "indices", "indptr"):
        values = getattr(X, name)
        matrix.create_array(name, data=values, chunks=(min(len(values), 10 * draw.layout["rows"]),))
    for name, values in {"y": y, "sample_weight": s}.items():
        if values is not None:
            group.create_array(name, data=values, chunks=(draw.layout["rows"], *values.shape[1:]))
    return drf.open_dataset(path)


def assert_as_planned(
    estimator: Any, *data: Any, n_workers: int = 1, n_threads: int = 1, **kept: Any
) -> None:
    """Fit on fresh workers: none of them takes more than its plan says."""
    cluster = LocalCluster(n_workers=n_workers, threads_per_worker=n_threads, dashboard_address=None)
    with cluster, Client(cluster), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few sweeps, and of widths that do not suit the columns
        report = estimator.fit(*data, **kept).report_
    measured, planned = report["measured_peak_bytes"], report["planned_peak_bytes"]
    assert measured <= planned, f"{measured / planned:.3f} of what was planned for {estimator}"


def _check(draw: Draw, folder: Path) -> None:
    place = None if draw.checkpoint_every is None else str(folder / "checkpoint")
    kept = {"checkpoint": place, "checkpoint_every": draw.checkpoint_every}
    try:
        data = stored(draw, folder)
        assert_as_planned(draw.estimator, *data, n_workers=draw.n_workers, n_threads=draw.n_threads, **kept)
    except AssertionError as error:
        raise AssertionError(f"{error}, of {draw}") from None


@pytest.mark.parametrize(("kind", "reader", "features"), COVERED)
def test_a_fit_takes_no_more_memory_than_planned(tmp_path, rng, kind, reader, features):
    small = (20_000, 6, 256)
    _check(
        drawn(seed_of(rng), 1e9, small, max_workers=1, kind=kind, reader=reader, features=features), tmp_path
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", range(120))
def test_nor_does_any_other(tmp_path, rng, number):
    _check(drawn(seed_of(rng)), tmp_path)


# Rows in large pieces.

FEATURES = drf.FourierFeatures(drf.Gaussian(5.0), 64, random_state=0)
ridge = partial(drf.KernelRidge, FEATURES, 1.0, scale="none", random_state=0)
IN_PIECES = {
    "gram": ridge(),
    "cg": ridge(solver="cg", max_sweeps=2),
    "sgd": ridge(solver="sgd", max_sweeps=2),
    "lbfgs": drf.KernelSVC(FEATURES, scale="none", loss="squared_hinge", max_sweeps=2, random_state=0),
    "smoothed": drf.KernelSVC(FEATURES, scale="none", max_sweeps=2, random_state=0),
    "pca": drf.KernelPCA(FEATURES, scale="none", random_state=0),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "d", "dtype", "group_rows", "solver"),
    [
        (200_000, 20, "f8", 1000, "gram"),
        (2_000_000, 20, "f4", 2_000_000, "gram"),
        (5_000_000, 4, "f4", 5_000_000, "gram"),
        *((800_000, 20, "f8", 800_000, solver) for solver in IN_PIECES),
    ],
)
def test_nor_where_a_row_group_holds_all_rows(tmp_path, n, d, dtype, group_rows, solver):
    path, rng = tmp_path / "rows.parquet", np.random.default_rng(0)
    columns = {f"x{j}": rng.standard_normal(n).astype(dtype) for j in range(d)}
    table = pa.table(columns | {"y": np.sign(rng.standard_normal(n)).astype(dtype)})
    pq.write_table(table, path, row_group_size=group_rows)
    assert_as_planned(IN_PIECES[solver], drf.open_dataset(path, target="y"))


@pytest.mark.slow
@pytest.mark.parametrize("chunk_rows", [2_000_000, 4_000_000])
def test_nor_where_a_chunk_does(tmp_path, chunk_rows):
    rng, group = np.random.default_rng(0), zarr.open_group(tmp_path / "rows.zarr", mode="w")
    group.create_array("X", data=rng.standard_normal((2_000_000, 20), dtype="f4"), chunks=(chunk_rows, 20))
    group.create_array("y", data=rng.standard_normal(2_000_000), chunks=(2_000_000,))
    assert_as_planned(IN_PIECES["gram"], drf.open_dataset(tmp_path / "rows.zarr"))


def test_a_row_group_that_does_not_fit_is_named(tmp_path):
    """A million rows of 20 columns, all the same, which take no time to write."""
    n, workers = 1_000_000, Workers(n_workers=1, threads_per_worker=8, memory_limit=1_650_000_000)
    column = pa.array(np.tile(np.arange(2.0), n // 2))
    table = pa.table({f"x{j}": column for j in range(20)} | {"y": column})
    for group_rows in (n, 2**14):
        pq.write_table(table, tmp_path / "x.parquet", row_group_size=group_rows, use_dictionary=False)
        data = drf.open_dataset(tmp_path / "x.parquet", target="y")
        refused = pytest.raises(PlanRefused, match=r"smaller chunks or row groups .*`distrff convert`")
        for model in IN_PIECES.values():
            with refused if group_rows == n else nullcontext():
                model.plan_for(workers, data)
