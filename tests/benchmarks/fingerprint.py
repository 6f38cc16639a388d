"""Fingerprints of fits: `python -m tests.benchmarks.fingerprint --out FILE [--against FILE] [--only NAME]`.

For changes that must keep all bits: run it before and after, on one computer. Each fit gives digests of its
coefficients, intercepts, alpha or C, curve and certificate, and of the predictions of its model after saving
and loading; each command gives its JSON without seconds, bytes and paths. `--against` prints what differs
from an earlier run; the exit code is then 1. `--medians N` measures instead: the median seconds of N runs of
what a change must not make slower. Only public names are used, so that the script outlives every move.
Processors differ in the last bits: compare runs of one computer only.
"""

import argparse
import contextlib
import hashlib
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from distributed import Client, LocalCluster
from scipy import sparse
from sklearn.preprocessing import StandardScaler

import distrff as drf
from tests.benchmarks.measuring import seconds_of

N, D_COLUMNS = 3000, 6
SEED = {"random_state": 0}
SKIPPED_WORDS = (
    "seconds",
    "bytes",
    "memory",
    "path",
    "written",
    "model",
    "source",
    "started",
    "when",
    "rate",
    "version",
)


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return X, numbers, three classes and weights."""
    rng = np.random.default_rng(20)
    X = rng.standard_normal((N, D_COLUMNS)) * [1.0, 2.0, 0.5, 1.0, 1.0, 3.0]
    f = np.sin(X[:, 0]) + 0.3 * X[:, 1] * X[:, 2]
    y = f + 0.2 * rng.standard_normal(N)
    classes = np.array(["low", "middle", "high"])[np.digitize(y, [-0.5, 0.5])]
    return X, y, classes, rng.integers(1, 4, N).astype(float)


X, Y, CLASSES, WEIGHTS = rows()
TWO = Y > 0.1


def fourier(**options: Any) -> drf.FourierFeatures:
    return drf.FourierFeatures(
        **{"kernel": drf.Gaussian(2.0), "n_components": 96, "random_state": 1} | options
    )


MAPS: dict[str, Callable[[], Any]] = {
    "iid": lambda: fourier(sampling="iid"),
    "orthogonal": lambda: fourier(sampling="orthogonal"),
    "qmc": lambda: fourier(sampling="qmc"),
    "sorf": lambda: fourier(sampling="sorf"),
    "fastfood": lambda: fourier(sampling="fastfood"),
    "matern": lambda: fourier(kernel=drf.Matern(1.5, nu=1.5)),
    "laplacian, auto": lambda: fourier(kernel=drf.Laplacian("auto")),
    "ard": lambda: fourier(kernel=drf.Gaussian("ard")),
    "binning": lambda: drf.RandomBinningFeatures(drf.Laplacian(3.0), 20, random_state=1),
    "nystroem": lambda: drf.NystroemFeatures(drf.Gaussian(2.0), 64, random_state=1),
    "polynomial": lambda: drf.NystroemFeatures(drf.Polynomial(2), 40, random_state=1),
    "linear": drf.LinearFeatures,
    "concatenated": lambda: drf.ConcatenatedFeatures([drf.LinearFeatures(), fourier(n_components=32)]),
    "transformer": lambda: drf.TransformerFeatures(StandardScaler()),
}

MODELS: dict[str, tuple[Callable[[], Any], Any]] = {
    "ridge, cv": (lambda: drf.KernelRidge(fourier(), "cv", **SEED), Y),
    "ridge, gcv": (lambda: drf.KernelRidge(fourier(), "gcv", scale="standard", **SEED), Y),
    "ridge, cg": (lambda: drf.KernelRidge(fourier(), 1e-2, solver="cg", **SEED), Y),
    "ridge, sgd": (lambda: drf.KernelRidge(fourier(), 1.0, solver="sgd", **SEED), Y),
    "ridge, two targets": (lambda: drf.KernelRidge(fourier(), "cv", **SEED), np.column_stack([Y, -Y])),
    "ridge classifier": (lambda: drf.KernelRidgeClassifier(fourier(), "cv", **SEED), CLASSES),
    "hinge": (lambda: drf.KernelSVC(fourier(), **SEED), TWO),
    "hinge, classes": (lambda: drf.KernelSVC(fourier(), 10.0, class_weight="balanced", **SEED), CLASSES),
    "hinge, sweeps": (lambda: drf.KernelSVC(fourier(), solver="smoothed", **SEED), TWO),
    "hinge, C by folds": (lambda: drf.KernelSVC(fourier(), "cv", **SEED), TWO),
    "squared hinge": (lambda: drf.KernelSVC(fourier(), loss="squared_hinge", **SEED), CLASSES),
    "hard margin": (lambda: drf.KernelSVC(fourier(n_components=400), np.inf, **SEED), X[:, 0] > 0.3),
    "svc, sgd": (lambda: drf.KernelSVC(fourier(), solver="sgd", **SEED), TWO),
    "logistic": (lambda: drf.KernelLikelihoodClassifier(fourier(), 1.0, **SEED), CLASSES),
    "logistic, C by folds": (lambda: drf.KernelLikelihoodClassifier(fourier(), "cv", **SEED), TWO),
    "probit": (lambda: drf.KernelLikelihoodClassifier(fourier(), 1.0, noise="probit", **SEED), TWO),
    "softmax": (
        lambda: drf.KernelLikelihoodClassifier(fourier(), 1.0, multi_class="softmax", **SEED),
        CLASSES,
    ),
    "pca": (lambda: drf.KernelPCA(fourier(), 5, **SEED), None),
}

SPARE_ROWS: dict[str, Callable[[], Any]] = {
    "equispaced": lambda: drf.KernelRidge(
        drf.EquispacedFourierFeatures(drf.Matern(1.0, nu=1.5), 2601), 1e-2, **SEED
    ),
    "equispaced, chosen": lambda: drf.KernelRidge(
        drf.EquispacedFourierFeatures(n_components=2601), "cv", **SEED
    ),
    "automatic": lambda: drf.KernelRidge(drf.AutoFeatures(128, random_state=1), "cv", **SEED),
    "automatic, binning": lambda: drf.KernelRidge(
        drf.AutoFeatures(128, maps=("binning",), random_state=1), "cv", **SEED
    ),
    "learned metric": lambda: drf.KernelRidge(fourier(kernel=drf.Gaussian("auto", metric="learned")), **SEED),
}
"""Fits of two columns that search for what they use."""

ON_STORAGES = ("ridge, cv", "hinge", "logistic", "ridge, cg")


def digest(value: Any) -> str:
    """Return a short hash of numbers' bytes, or of anything else's text."""
    if isinstance(value, np.ndarray | np.generic | list | tuple | float):
        A = np.asarray(value)
        if A.dtype != object and A.dtype.kind in "biuf":
            return hashlib.sha256(f"{A.dtype}{A.shape}".encode() + A.tobytes()).hexdigest()[:16]
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def of_model(estimator: Any, X: Any = X) -> dict[str, str]:
    """Return the digests of a fitted estimator, and of the predictions of its stored model."""
    attributes = (
        "coef_", "intercept_", "alpha_", "C_", "alphas_", "Cs_", "cv_results_", "cv_errors_", "n_iter_",
        "classes_", "components_", "explained_variance_", "n_sweeps_",
    )  # fmt: skip
    found = {a: digest(getattr(estimator, a)) for a in attributes if hasattr(estimator, a)}
    report = estimator.report_.to_dict() if hasattr(estimator.report_, "to_dict") else {}
    found["report"] = json.dumps(without_times(report), sort_keys=True, default=str)
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder) / "model.zarr")
        estimator.save(place)
        model = drf.load_model(place)
    found["digest"] = model.digest
    if hasattr(estimator, "predict"):
        found["predictions"] = digest(np.asarray(model.predict(X)))
    found["decisions"] = digest(np.asarray(model.decision(X)))
    return found


def without_times(value: Any) -> Any:
    """Return JSON values without what two runs of the same differ in."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not any(word in k for word in SKIPPED_WORDS)}
        if "phases" in kept:
            kept["phases"] = [name for name, _ in kept["phases"]]
        return {k: without_times(v) for k, v in kept.items()}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def numbers(y: np.ndarray) -> np.ndarray:
    """Return labels as numbers, which Zarr keeps best."""
    return np.unique(y, return_inverse=True)[1] if y.dtype.kind == "U" else y.astype(float)


def storages(folder: Path) -> dict[str, Callable[[np.ndarray], tuple[Any, ...]]]:
    """Return, by storage, what gives the arguments of `fit` for some targets."""

    def as_zarr(y: np.ndarray) -> tuple[Any, ...]:
        group = zarr.open_group(folder / "rows.zarr", mode="w")
        group.create_array("X", data=X, chunks=(700, D_COLUMNS))
        group.create_array("y", data=numbers(y), chunks=(700,))
        return (drf.open_dataset(str(folder / "rows.zarr")),)

    def as_parquet(y: np.ndarray) -> tuple[Any, ...]:
        table = pa.table({f"x{i}": X[:, i] for i in range(D_COLUMNS)} | {"y": numbers(y)})
        pq.write_table(table, folder / "rows.parquet", row_group_size=800)
        return (drf.open_dataset(str(folder / "rows.parquet"), target="y"),)

    return {
        "float32": lambda y: (X.astype(np.float32), y),
        "weights": lambda y: (X, y, WEIGHTS),
        "dask": lambda y: (da.from_array(X, chunks=(900, D_COLUMNS)), da.from_array(y, chunks=800)),
        "csr": lambda y: (sparse.csr_matrix(np.where(np.abs(X) > 1, X, 0)), y),
        "zarr": as_zarr,
        "parquet": as_parquet,
    }


def fits(folder: Path, only: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}

    def fit(name: str, make: Callable[[], Any], *args: Any) -> None:
        if only in name:
            found[name] = of_model(make().fit(*args), args[0] if isinstance(args[0], np.ndarray) else X)
            print(name, flush=True)

    for name, (make, y) in MODELS.items():
        fit(name, make, X, y)
    for name, features in MAPS.items():
        wide = np.hstack([X, X**2, np.cos(X)]) if name in ("sorf", "fastfood") else X
        fit(f"map: {name}", lambda features=features: drf.KernelRidge(features(), 1e-2, **SEED), wide, Y)
    for name in ("binning", "nystroem", "iid"):
        fit(f"hinge, map: {name}", lambda name=name: drf.KernelSVC(MAPS[name](), **SEED), X, TWO)
    for storage, arguments in storages(folder).items():
        for name in ON_STORAGES:
            make, y = MODELS[name]
            fit(f"{name}, {storage}", make, *arguments(y))
    for name, make in SPARE_ROWS.items():
        fit(name, make, X[:, :2], Y)
    for name in ("hinge", "ridge, cg", "ridge, sgd"):
        if only in (label := f"resumed: {name}"):
            found[label] = resumed(folder / f"{digest(name)}.kept", name)
            print(label, flush=True)
    if only in "gram statistics":
        total = drf.gram(X, fourier(), Y, random_state=0)
        found["gram statistics"] = of_model(drf.KernelRidge(alpha="gcv", **SEED).fit_gram(total))
    return found


def resumed(kept: Path, name: str) -> dict[str, str]:
    """Digests of a fit that a callback ends after two sweeps and that goes on from its checkpoint."""
    make, y = MODELS[name]
    n_sweeps = 0

    def end(progress: Any) -> None:
        nonlocal n_sweeps
        n_sweeps += 1
        if n_sweeps == 2:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"checkpoint": str(kept), "checkpoint_every": 0}
    with contextlib.suppress(KeyboardInterrupt):
        make().set_params(callbacks=[end]).fit(X, y, **options)
        raise AssertionError(f"{name} ended before its second light sweep")
    return of_model(make().fit(X, y, **options))


def on_cluster(n_workers: int, only: str) -> dict[str, dict[str, str]]:
    """Return fits on a cluster of processes; they have the bits of those without one."""
    found = {}
    names = ("ridge, cv", "ridge, cg", "hinge", "logistic", "svc, sgd", "pca")
    lazy = da.from_array(X, chunks=(900, D_COLUMNS))
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        for name in names:
            if only not in (label := f"{name}, {n_workers} workers"):
                continue
            make, y = MODELS[name]
            found[label] = of_model(make().fit(lazy, y))
            print(label, flush=True)
    return found


def commands(folder: Path, only: str) -> dict[str, dict[str, str]]:
    """Return the JSON of commands, without times."""
    table = pa.table({f"x{i}": X[:, i] for i in range(D_COLUMNS)} | {"y": Y, "class": CLASSES})
    data, model = str(folder / "table.parquet"), str(folder / "m.zarr")
    pq.write_table(table, data, row_group_size=800)
    columns = ("--columns", ",".join(f"x{i}" for i in range(D_COLUMNS)))
    fit = ("--n-components", "64", "--random-state", "0", "--workers", "1")
    runs: dict[str, tuple[str, ...]] = {
        "cli: plan": ("plan", data, *columns, "--target", "y", *fit),
        "cli: fit": ("fit", data, *columns, "--target", "y", *fit, "--out", model),
        "cli: score": ("score", model, data, "--target", "y", "--workers", "1"),
        "cli: inspect": ("inspect", model),
        "cli: inspect rows": ("inspect", data),
        "cli: predict": ("predict", model, data, "--out", str(folder / "p.zarr"), "--workers", "1"),
        "cli: fit svc": (
            "fit", data, *columns, "--target", "class", "--model", "svc", *fit,
            "--out", str(folder / "s.zarr"),
        ),
    }  # fmt: skip
    found = {}
    for name, words in runs.items():
        if only not in name:
            continue
        command = [str(Path(sys.executable).with_name("distrff")), *words, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            told = without_times(json.loads(done.stdout))
        except ValueError:
            told = done.stdout + done.stderr
        text = json.dumps(told, sort_keys=True).replace(str(folder), "")
        found[name] = {"code": str(done.returncode), "json": digest(text), "text": text}
        print(name, done.returncode, flush=True)
    return found


# Seconds of what a change must not make slower: passes over rows, files, and what people wait for.


def medians(folder: Path, n_runs: int) -> dict[str, float]:
    """Return the median seconds of each piece of work, after one run that is not counted."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((200_000, 10)), rng.standard_normal(200_000)
    group = zarr.open_group(folder / "timed.zarr", mode="w")
    group.create_array("X", data=X, chunks=(50_000, 10))
    group.create_array("y", data=y, chunks=(50_000,))
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(10)]).assign(y=y)
    frame.to_csv(folder / "timed.csv", index=False)
    frame.to_parquet(folder / "timed.parquet", row_group_size=50_000)
    stored = drf.open_dataset(str(folder / "timed.zarr"))
    table = drf.open_dataset(str(folder / "timed.parquet"), target="y")
    wide = drf.FourierFeatures(drf.Gaussian(3.0), 512, random_state=1)
    narrow = drf.FourierFeatures(drf.Gaussian(3.0), 128, random_state=1)
    ridge = drf.KernelRidge(narrow, 1.0, random_state=0).fit(stored)
    ridge.save(str(folder / "timed_model.zarr"))
    labels, guesses = y > 0, X[:, 0] + y > 0
    work: dict[str, Callable[[], Any]] = {
        "gram pass": lambda: drf.KernelRidge(wide, "cv", random_state=0).fit(stored),
        "gram pass, parquet": lambda: drf.KernelRidge(wide, 1.0, random_state=0).fit(table),
        "conjugate gradients": lambda: drf.KernelRidge(narrow, 1.0, solver="cg", random_state=0).fit(stored),
        "hinge": lambda: drf.KernelSVC(narrow, tol=1e-2, random_state=0).fit(X[:50_000], labels[:50_000]),
        "logistic": lambda: drf.KernelLikelihoodClassifier(narrow, 1.0, random_state=0).fit(X, labels),
        "binning": lambda: drf.KernelRidge(
            drf.RandomBinningFeatures(drf.Laplacian(3.0), 16, random_state=1), 1.0, random_state=0
        ).fit(X[:50_000], y[:50_000]),
        "small fit": lambda: drf.KernelRidge(narrow, 1.0, random_state=0).fit(X[:1000], y[:1000]),
        "score": lambda: ridge.score(stored),
        "predictions": lambda: ridge.predict(X),
        "convert csv": lambda: drf.convert(
            str(folder / "timed.csv"), str(folder / "out.zarr"), target="y", overwrite=True
        ),
        "convert parquet": lambda: drf.convert(
            str(folder / "timed.parquet"), str(folder / "out.zarr"), target="y", overwrite=True
        ),
        "load model": lambda: drf.load_model(str(folder / "timed_model.zarr")),
        "AUC on arrays": lambda: drf.metrics.roc_auc_score(labels, X[:, 0]),
        "accuracy on arrays": lambda: drf.metrics.accuracy_score(labels, guesses),
        "page": ridge.report_.to_html,
        "start of the command": lambda: subprocess.run(
            [str(Path(sys.executable).with_name("distrff")), "--help"], capture_output=True, check=True
        ),
    }
    found = {}
    with dask.config.set(scheduler="synchronous"):
        for name, run in work.items():
            run()
            found[name] = median(seconds_of(run) for _ in range(n_runs))
            print(f"{name}: {found[name]:.4g} s", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.fingerprint", description=__doc__)
    parser.add_argument("--out", help="write what was found there")
    parser.add_argument("--against", help="compare with what an earlier run wrote")
    parser.add_argument("--only", default="", help="fits and commands whose name contains this")
    parser.add_argument("--medians", type=int, metavar="N", help="measure seconds instead, of N runs each")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.medians:
        with tempfile.TemporaryDirectory() as folder:
            found = {"medians": medians(Path(folder), arguments.medians)}
        if arguments.out:
            Path(arguments.out).write_text(json.dumps(found, indent=1))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        with dask.config.set(scheduler="synchronous"):
            found = fits(Path(folder), arguments.only)
        for n_workers in (1, 2):
            found |= on_cluster(n_workers, arguments.only)
        found |= commands(Path(folder), arguments.only)
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(found, indent=1, sort_keys=True))
    if not arguments.against:
        return 0
    before = json.loads(Path(arguments.against).read_text())
    differing = [
        f"{name}: {', '.join(k for k in {**before[name], **now} if before[name].get(k) != now.get(k))}"
        for name, now in found.items()
        if name in before and before[name] != now
    ]
    print(f"{len(found.keys() & before)} compared, {len(differing)} differ", *differing, sep="\n")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
