"""Small stored groups of every kind, and what their JSON may be replaced by."""

import copy
import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
from sklearn.decomposition import PCA
from sklearn.kernel_approximation import PolynomialCountSketch
from sklearn.preprocessing import PolynomialFeatures, SplineTransformer

import distrff as drf
from distrff.io import storage as groups
from distrff.io.storage import ROOT

GAUSSIAN = drf.Gaussian(2.0)
METRIC = np.random.default_rng(0).standard_normal((3, 20))
MAPS = {
    **{
        sampling: drf.FourierFeatures(GAUSSIAN, 8, sampling=sampling, random_state=0)
        for sampling in ("iid", "orthogonal", "qmc", "fastfood", "countsketch")
    },
    "sorf": drf.FourierFeatures(GAUSSIAN, 32, sampling="sorf", random_state=0),
    "phase": drf.FourierFeatures(drf.Matern([1.0] * 20) + 2.0 * GAUSSIAN, 8, form="phase", random_state=0),
    "product": drf.FourierFeatures(GAUSSIAN * drf.Laplacian(3.0), 8, random_state=0),
    "nystroem": drf.NystroemFeatures(drf.Polynomial(2), 6, random_state=0),
    "binning": drf.RandomBinningFeatures(drf.Laplacian(5.0), 4, random_state=0),
    "hashed": drf.RandomBinningFeatures(drf.Laplacian(5.0), 4, n_bins=16, random_state=0),
    "metric": drf.FourierFeatures(drf.Gaussian(2.0, metric=METRIC), 8, random_state=0),
    "metric of landmarks": drf.NystroemFeatures(drf.Matern(2.0, metric=METRIC), 6, random_state=0),
    "metric of bins": drf.RandomBinningFeatures(drf.Laplacian(5.0, metric=METRIC), 4, random_state=0),
    "equispaced": drf.EquispacedFourierFeatures(drf.Matern((2.0, 3.0)), 200, period={1: 9.0}),
    "linear": drf.LinearFeatures(),
    "joined": drf.ConcatenatedFeatures([drf.FourierFeatures(GAUSSIAN, 4), drf.LinearFeatures()]),
    "polynomials": drf.TransformerFeatures(PolynomialFeatures(2)),
    "components": drf.TransformerFeatures(PCA(5)),
    "splines": drf.TransformerFeatures(SplineTransformer(n_knots=3, degree=2)),
    "sketch": drf.TransformerFeatures(PolynomialCountSketch(n_components=8, random_state=0)),
}
SMALL = MAPS["iid"]
ESTIMATORS = {
    "ridge": drf.KernelRidge(SMALL, scale="standard", alpha=1e-2),
    "classes": drf.KernelRidgeClassifier(SMALL, alpha=1e-2, class_weight="balanced", scale="none"),
    "svc": drf.KernelSVC(SMALL, tol=0.1, scale="none"),
    "probit": drf.KernelLikelihoodClassifier(SMALL, 1.0, noise="probit", tol=0.1, scale="none"),
    "softmax": drf.KernelLikelihoodClassifier(SMALL, 1.0, multi_class="softmax", tol=0.1, scale="none"),
    "pca": drf.KernelPCA(SMALL, n_components=2, scale="none"),
}
NAMES = [*ESTIMATORS, *MAPS, "table", "intervals", "sets"]
PARTS = drf.ConcatenatedFeatures([drf.FourierFeatures(GAUSSIAN, 4), drf.NystroemFeatures(GAUSSIAN, 6)])
SUMS: dict[str, Any] = {
    "gram": {"features": SMALL, "cv": 3, "scale": "standard"},
    "gram of classes": {"features": SMALL, "targets": "classes", "scale": "none"},
    "gram of a sketch": {"features": MAPS["countsketch"], "scale": "none"},
    "gram of landmarks": {"features": MAPS["nystroem"], "scale": "none"},
    "gram of parts": {"features": PARTS, "scale": "none"},
    "gram of a metric": {"features": MAPS["metric"], "scale": "none"},
    "gram of splines": {"features": MAPS["splines"], "scale": "none"},
    "toeplitz": {"features": MAPS["equispaced"], "cv": 2},
    "toeplitz of classes": {"features": MAPS["equispaced"], "targets": "classes"},
}


def fitted(name: str) -> tuple[Any, dict[str, Any]]:
    """A model of a kind, and how it is saved."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 20))
    y = X[:, 0] + X[:, 1]
    if name == "equispaced":
        return drf.KernelRidge(MAPS[name], alpha=1e-2).fit(X[:, :2], y), {"include_std": True}
    if name == "table":
        frame = pd.DataFrame(X[:, :3], columns=list("abc")).assign(y=y)
        frame["word"] = rng.choice(["u", "v"], 60)
        frame["when"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(60), unit="h")
        frame.loc[3, "a"] = np.nan
        rules = {"one_hot": True, "missing": "indicator", "datetime": "parts"}
        data = drf.open_dataset(frame, target="y", **rules)
        return drf.KernelRidge(SMALL, alpha=1e-2, scale="standard").fit(data), {}
    if name == "intervals":
        ridge = drf.KernelRidge(SMALL, alpha=1e-2, scale="none").fit(X[:30], X[:30, :2])
        return ridge.calibrate(X[30:], X[30:, :2], np.arange(30) % 3), {"include_std": True}
    if name == "sets":
        labels = np.digitize(y, [-1, 1])
        svc = drf.KernelSVC(SMALL, tol=0.1, scale="none").fit(X[:30], labels[:30])
        return svc.calibrate(X[30:], labels[30:]), {}
    estimator = ESTIMATORS.get(name) or drf.KernelRidge(MAPS[name], alpha=1e-2, solver="auto", scale="none")
    targets = {"classes": np.digitize(y, [-1, 1]), "softmax": np.digitize(y, [-1, 1])}
    y = targets.get(name, y > 0 if name in ("svc", "probit") else y)
    return estimator.fit(X, y), {"include_std": True} if name == "ridge" else {}


def sums(name: str) -> Any:
    """Sums of a kind."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2 if name.startswith("toeplitz") else 20))
    how = {"random_state": 0, **SUMS[name]}
    y = X[:, 0] + X[:, 1]
    return drf.gram(X, how.pop("features"), np.digitize(y, [-1, 1]) if "targets" in how else y, **how)


ABSURD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 10**12, -(10**12), 2**63, 10**400, 0.5, 1e308, -1e-320,
    float("nan"), float("inf"), "", "x", "float16", "KernelPCA", "cos_sin", [], {}, [[]], [1, "x"], ["x"] * 3,
    {"kind": "fourier"}, {"x": {"x": []}}, [None] * 20, [0.0] * 20, json.loads("[" * 300 + "]" * 300),
]  # fmt: skip
GONE = object()


def paths_of(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Where each value stands in a tree of JSON; of long lists the first two."""
    if path:
        yield path
    items = enumerate(value[:2]) if isinstance(value, list) else getattr(value, "items", tuple)()
    for key, inner in items:
        yield from paths_of(inner, (*path, key))


def replaced(tree: Any, path: tuple, value: Any) -> Any:
    tree = copy.deepcopy(tree)
    inner = tree
    for key in path[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return tree


def sealed(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files of a group with the checksums of what they hold, as far as they can be read."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        document = json.loads(files["zarr.json"])
        header = document["attributes"][ROOT]
        described = {}
        for name in header["checksums"]:
            described[name] = json.loads(files[f"{name}/zarr.json"])
            chunk = files.get(f"{name}/{groups._chunk_key(len(described[name]['shape']))}", b"")
            header["checksums"][name] = hashlib.sha256(chunk).hexdigest()
        header["metadata_checksum"] = groups._seal(header, described)
        return files | {"zarr.json": json.dumps(document).encode()}
    return files
