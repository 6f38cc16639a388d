"""Models with absurd metadata whose checksums hold: they work or are refused in one line, in little memory.

Each value of the metadata of a small model of each kind is replaced by absurd ones, and each array by ones
of other shapes and types; the group is then sealed again. Some of these are drawn.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import time
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.decomposition import PCA
from sklearn.kernel_approximation import PolynomialCountSketch
from sklearn.preprocessing import PolynomialFeatures, SplineTransformer

import distrff as drf
from distrff.cli import main
from distrff.errors import InputError
from distrff.io import groups
from distrff.io.storage import ROOT

N_PLAIN, N_SLOW = 8, 400  # forged models of each kind, of some two thousand
MOST_SECONDS, MOST_BYTES = 1.0, 2**26

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
    "probit": drf.KernelLikelihoodClassifier(SMALL, noise="probit", tol=0.1, scale="none"),
    "softmax": drf.KernelLikelihoodClassifier(SMALL, multi_class="softmax", tol=0.1, scale="none"),
    "pca": drf.KernelPCA(SMALL, n_components=2, scale="none"),
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
    estimator = ESTIMATORS.get(name) or drf.KernelRidge(MAPS[name], alpha=1e-2, solver="auto", scale="none")
    targets = {"classes": np.digitize(y, [-1, 1]), "softmax": np.digitize(y, [-1, 1])}
    y = targets.get(name, y > 0 if name in ("svc", "probit") else y)
    return estimator.fit(X, y), {"include_std": True} if name == "ridge" else {}


@pytest.fixture(scope="module")
def stored(request, tmp_path_factory) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator, how = fitted(request.param)
    path = tmp_path_factory.mktemp("forged") / "m.zarr"
    estimator.save(str(path), **how)
    return path


ABSURD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 10**12, -(10**12), 2**63, 10**400, 0.5, 1e308, -1e-320,
    float("nan"), float("inf"), "", "x", "float16", "KernelPCA", "cos_sin", [], {}, [[]], [1, "x"], ["x"] * 3,
    {"kind": "fourier"}, {"x": {"x": []}}, [None] * 20, [0.0] * 20, json.loads("[" * 300 + "]" * 300),
]  # fmt: skip
_GONE = object()


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
    if value is _GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return tree


def forged_arrays(A: np.ndarray) -> Iterator[np.ndarray | dict[str, Any]]:
    """Other arrays, and descriptions of such as nobody could hold."""
    yield from (A[:0], A[..., None], A.reshape(-1), A.astype(np.float32), A.astype(np.int8), A > 0)
    yield from (np.float64(3.0), np.zeros((2, 3, 4)), np.concatenate([A, A]) if A.ndim else A)
    yield A * np.nan if A.dtype.kind == "f" else A
    yield from (np.full_like(A, v) for v in (0, -1, 100) if A.dtype.kind in "if")
    yield from ({"shape": shape} for shape in ([10**12], [10**6, 10**6], [-1], ["x"], None, [0, 10**12]))
    yield from ({"data_type": kind} for kind in ("object", "U99", "complex128", "nonsense", None, 5))


def forgeries(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[tuple]:
    metadata = header["metadata"]
    in_metadata = [
        ("metadata", path, value)
        for path in paths_of(metadata)
        if path[0] != "report" or len(path) <= 2  # what was told of the fit, nobody works with
        for value in [*ABSURD, _GONE]
    ]
    whole = [("metadata", (), value) for value in ABSURD]
    in_arrays = [("array", name, forged) for name, A in arrays.items() for forged in forged_arrays(A)]
    return [*in_metadata, *whole, *in_arrays, *(("array", name, _GONE) for name in arrays)]


def write(path: Path, header: dict[str, Any], arrays: dict[str, np.ndarray], forgery: tuple) -> None:
    """Write the group with one thing forged, and seal it."""
    what, where, value = forgery
    metadata, arrays, descriptions = header["metadata"], dict(arrays), {}
    if what == "metadata":
        metadata = replaced(metadata, where, value) if where else value
    elif value is _GONE:
        del arrays[where]
    elif isinstance(value, dict):
        descriptions[where] = value
    else:
        arrays[where] = np.ascontiguousarray(value)
    described = {name: groups._description(A) | descriptions.get(name, {}) for name, A in arrays.items()}
    checksums = {name: hashlib.sha256(A.tobytes()).hexdigest() for name, A in arrays.items()}
    header = {k: v for k, v in header.items() if k != "metadata_checksum"}
    header |= {"metadata": metadata, "checksums": checksums}
    header["metadata_checksum"] = groups._seal(header, described)
    shutil.rmtree(path, ignore_errors=True)
    fs = fsspec.filesystem("file", auto_mkdir=True)
    for name, A in arrays.items():
        fs.pipe_file(f"{path}/{name}/zarr.json", json.dumps(described[name]).encode())
        fs.pipe_file(f"{path}/{name}/{groups._chunk_key(A.ndim)}", A.tobytes())
    document = {"zarr_format": 3, "node_type": "group", "attributes": {ROOT: header}}
    fs.pipe_file(f"{path}/zarr.json", json.dumps(document).encode())


def use(path: Path) -> None:
    """All that a stored model is for."""
    model = drf.load_model(str(path))
    X = np.zeros((3, model.n_columns))
    model.transform(X)
    if model.kind != "KernelPCA":
        model.predict(X)
        model.decision(X)
    if model.likelihood is not None:
        model.predict_proba(X)
    if model.posterior is not None:
        model.std(X)
    assert model.digest and repr(model) and model._repr_html_()


def check(path: Path, header: dict[str, Any], arrays: dict[str, np.ndarray], forgery: tuple) -> None:
    label = str(forgery)[:200]
    write(path, header, arrays, forgery)
    begun = time.perf_counter()
    tracemalloc.start()
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            use(path)
    except InputError as error:
        told = str(error)
        assert "\n" not in told and str(path) in told and len(told) < len(str(path)) + 300, (label, told)
    except Exception as error:
        pytest.fail(f"{label}: {type(error).__name__}: {error}")
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MOST_BYTES, (label, peak)
    assert time.perf_counter() - begun < 10 * MOST_SECONDS, label  # whatever else the estimator does
    done = CliRunner().invoke(main, ["inspect", str(path)], prog_name="distrff")
    assert done.exit_code in (0, 2), (label, done.output)
    if done.exit_code:
        assert done.stderr.startswith("distrff: ") and done.stderr.count("\n") == 1, label


def taken_apart(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    header = json.loads((path / "zarr.json").read_text())["attributes"][ROOT]
    return header, groups.read_group(path, kind="model")[0]


NAMES = [*ESTIMATORS, *MAPS, "table"]


@pytest.mark.parametrize("n", [N_PLAIN, pytest.param(N_SLOW, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stored", NAMES, indirect=True)
def test_forged_models(stored, tmp_path, n, rng):
    header, arrays = taken_apart(stored)
    all_of_them = forgeries(header, arrays)
    for i in rng.choice(len(all_of_them), n, replace=False):
        check(tmp_path / "m.zarr", header, arrays, all_of_them[i])


def test_a_number_that_stands_for_a_truth_value(tmp_path):
    """scikit-learn would take it for a number of columns, here 146 TiB of them."""
    fitted("splines")[0].save(str(tmp_path / "true.zarr"))
    forgery = ("metadata", ("specification", "parameters", "include_bias"), -(10**12))
    check(tmp_path / "m.zarr", *taken_apart(tmp_path / "true.zarr"), forgery)


@pytest.mark.parametrize("name", ["iid", "countsketch", "nystroem", "metric"])
@pytest.mark.parametrize("forged", [lambda A: A + 1, lambda A: A.T + 1], ids=["values", "shape"])
def test_a_forged_map_is_not_kept_for_the_next_model(name, forged, tmp_path):
    """A process keeps maps by their digest, and a forged file has that of the true map."""
    estimator, _ = fitted(name)
    estimator.save(str(tmp_path / "true.zarr"))
    header, arrays = taken_apart(tmp_path / "true.zarr")
    for array in (array for array in arrays if array.startswith("map_")):
        write(tmp_path / "m.zarr", header, arrays, ("array", array, forged(arrays[array])))
        with suppress(InputError):
            use(tmp_path / "m.zarr")
    X = np.random.default_rng(1).standard_normal((5, 20))
    true = drf.load_model(str(tmp_path / "true.zarr"))
    np.testing.assert_array_equal(true.predict(X), estimator.predict(X))


def test_a_digest_by_another_rule(tmp_path):
    """As a file of an earlier version may have."""
    estimator, _ = fitted("binning")
    estimator.save(str(tmp_path / "true.zarr"))
    header, arrays = taken_apart(tmp_path / "true.zarr")
    path = ("specification", "digest")
    assert header["metadata"]["specification"]["digest"]
    write(tmp_path / "m.zarr", header, arrays, ("metadata", path, "0" * 32))
    X = np.random.default_rng(1).standard_normal((5, 20))
    np.testing.assert_array_equal(drf.load_model(str(tmp_path / "m.zarr")).predict(X), estimator.predict(X))


@pytest.mark.parametrize("stored", NAMES, indirect=True)
def test_sizes_beyond_what_is_stored(stored, tmp_path):
    """The first thing that somebody would write: more features, or columns, than there are numbers for.

    A model that is written so, but unforged, is read.
    """
    header, arrays = taken_apart(stored)
    write(tmp_path / "m.zarr", header, arrays, ("metadata", ("model",), header["metadata"]["model"]))
    use(tmp_path / "m.zarr")
    sizes = ("n_columns", "n_components", "n_bins", "n_outputs", "n_features")
    found = [p for p in paths_of(header["metadata"]["specification"]) if p[-1] in sizes]
    assert found
    for path in found:
        for size in (10**12, 2**63, -1, 0):
            forgery = ("metadata", ("specification", *path), size)
            check(tmp_path / "m.zarr", header, arrays, forgery)
            if len(path) == 1:  # those of parts are not asked for, as their arrays tell
                with pytest.raises(InputError, match=r"m\.zarr"):
                    drf.load_model(str(tmp_path / "m.zarr"))


@pytest.mark.parametrize(
    ("name", "array", "forged"),
    [
        ("fastfood", "map_order", lambda A: A[:0]),
        ("fastfood", "map_order", lambda A: A + 1),
        ("fastfood", "map_order", lambda A: A[:, :1]),
        ("fastfood", "map_radii", lambda A: np.tile(A, 100)),
        ("sorf", "map_radii", lambda A: np.tile(A, 100)),
        ("countsketch", "map_buckets", lambda A: A[:0]),
        ("countsketch", "map_buckets", lambda A: A + 2048),
        ("countsketch", "map_buckets", lambda A: A - 2048),
        ("binning", "map_steps", lambda A: A[:, :3]),
        ("binning", "map_multipliers", lambda A: A[:1]),
        ("binning", "map_keys", lambda A: A[:-1]),
        ("binning", "map_ends", lambda A: A[::-1]),
        ("metric of bins", "map_inner_steps", lambda A: np.concatenate([A, A])),
        ("metric of bins", "map_inner_offsets", lambda A: A[:, :1]),
        ("metric of bins", "map_inner_ends", lambda A: A + 1),
        ("sketch", "map_indexHash", lambda A: A > 0),
        ("sketch", "map_bitHash", lambda A: A[..., None]),
    ],
)
def test_arrays_that_do_not_fit_together(name, array, forged, tmp_path):
    """Compiled loops would follow them out of their arrays, or a second row would end in a traceback."""
    fitted(name)[0].save(str(tmp_path / "true.zarr"))
    header, arrays = taken_apart(tmp_path / "true.zarr")
    write(tmp_path / "m.zarr", header, arrays, ("array", array, forged(arrays[array])))
    with pytest.raises(InputError, match=r"m\.zarr"):
        drf.load_model(str(tmp_path / "m.zarr"))
