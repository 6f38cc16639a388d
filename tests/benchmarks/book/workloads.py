"""Fits that this code and the baseline commit both do: `python workloads.py NAME SIZES`.

Only public names that both have are used. SIZES is JSON: `scale`, `data`, a folder, and `keep`, the value of
`keep_features` where the models have it. One JSON line is printed: seconds of the fit, and the error.
"""

import json
import sys
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sklearn.base import clone

import distrff as drf

Sizes = dict[str, Any]
_WARM_ROWS, _WARM_COMPONENTS = 5000, 64
_SCORED_ROWS = 2000


def components(sizes: Sizes, most: int, n_rows: int) -> int:
    """Return how many features there are at a scale: all at 1, fewer than half of the rows."""
    return max(32, min(int(most * min(1.0, 10 * sizes["scale"])), n_rows // 2) // 2 * 2)


def keeping(model: Any, keep: Any) -> Any:
    """Return the model told to keep its features or not, where it can be told."""
    return model.set_params(keep_features=keep) if "keep_features" in model.get_params() else model


def warm(model: Any, X: np.ndarray, y: np.ndarray) -> None:
    """Fit few features to few rows: what is imported and compiled then is not timed.

    There are far more rows than features, so that they are fitted as the many are.
    """
    few, n_components = slice(_WARM_ROWS), min(_WARM_COMPONENTS, model.features.n_components)
    clone(model).set_params(features__n_components=n_components).fit(X[few], y[few])


def mnist(sizes: Sizes) -> dict[str, float]:
    """Fit the squared hinge on 8192 Nyström features.

    Width and C are those that did best on a held-out sixth of the training rows, on half the landmarks; a gap
    of a tenth costs half the sweeps of one of a hundredth, and did as well there.
    """
    with np.load(Path(sizes["data"]) / "mnist.npz") as file:
        X, X_test = (file[f"x_{part}"].reshape(-1, 784) / np.float32(255) for part in ("train", "test"))
        y, y_test = file["y_train"], file["y_test"]
    n = max(200, int(len(X) * sizes["scale"]))
    features = drf.NystroemFeatures(drf.Gaussian(5.0), components(sizes, 8192, n), random_state=0)
    model = drf.KernelSVC(features, 4.0, loss="squared_hinge", scale="none", tol=0.1, random_state=0)
    model = keeping(model, sizes.get("keep", "auto"))
    if sizes.get("max_sweeps"):
        model.set_params(max_sweeps=sizes["max_sweeps"])
    warm(model, X[:n], y[:n])
    started = time.perf_counter()
    model.fit(X[:n], y[:n])
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "error": float(np.mean(np.asarray(model.predict(X_test)) != y_test)),
        "light_sweep_seconds": light_sweep_seconds(model.report_),
    }


def light_sweep_seconds(report: Any) -> float:
    """Return the median seconds of the light sweeps after the first, which may make what is kept."""
    pairs = zip(report["sweep_labels"], report["sweep_seconds"], strict=True)
    light = [seconds for label, seconds in pairs if label == "margins"]
    return float(np.median(light[1:] or light))


def kin40k(sizes: Sizes) -> dict[str, float]:
    """Fit ridge on 8192 Nyström features with learned widths, as `examples/uci.py` does."""
    folder = Path(sizes["data"])
    table = np.loadtxt(folder / "kin40k.csv.gz", delimiter=",")
    test = np.loadtxt(folder / "kin40k_test_mask.csv.gz", delimiter=",")[:, 0] == 1
    X, y = table[:, :-1], (table[:, -1] - table[~test, -1].mean()) / table[~test, -1].std()
    X_train, y_train = X[~test], y[~test]
    n = max(200, int(len(X_train) * sizes["scale"]))
    features = drf.NystroemFeatures(drf.Gaussian("ard"), components(sizes, 8192, n), random_state=0)
    model = drf.KernelRidge(features, alpha="gcv", scale="standard", dtype="float64", random_state=0)
    warm(model, X_train[:n], y_train[:n])
    started = time.perf_counter()
    model.fit(X_train[:n], y_train[:n])
    seconds = time.perf_counter() - started
    residuals = np.asarray(model.predict(X[test])) - y[test]
    return {"seconds": seconds, "error": float(np.sqrt(np.mean(np.square(residuals))))}


def alpha_cv(sizes: Sizes) -> dict[str, float]:
    """Fit 25 penalties and 5 folds on rows that are at hand, D = 2048."""
    rng, n = np.random.default_rng(0), max(1000, int(1_000_000 * sizes["scale"]))
    X = rng.standard_normal((n, 50), dtype=np.float32)
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
    features = drf.FourierFeatures(drf.Gaussian(7.0), components(sizes, 2048, n), random_state=0)
    model = drf.KernelRidge(features, alpha="cv", random_state=0)
    warm(model, X, y)
    started = time.perf_counter()
    model.fit(X, y)
    return {
        "seconds": time.perf_counter() - started,
        "error": float(np.sqrt(1 - model.score(X[:_SCORED_ROWS], y[:_SCORED_ROWS]))),
    }


WORKLOADS = {"mnist": mnist, "kin40k": kin40k, "alpha_cv": alpha_cv}


def main() -> int:
    """Run one fit on two single-threaded workers, and print one line, as the last one."""
    from distributed import Client, LocalCluster

    warnings.simplefilter("ignore")
    name, sizes = sys.argv[1], json.loads(sys.argv[2])
    with (
        TemporaryDirectory() as folder,
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=folder
        ) as cluster,
        Client(cluster),
    ):
        print(json.dumps(WORKLOADS[name](sizes)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
