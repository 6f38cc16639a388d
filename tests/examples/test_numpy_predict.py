"""`examples/numpy_predict.py` against `predict`, for every model and map that it claims."""

import ast
import sys
from pathlib import Path

import numpy as np
import pytest

import distrff as drf
from tests.support.commands import run

SCRIPT = Path(__file__).parents[2] / "examples" / "numpy_predict.py"
N = 60
MAP = drf.FourierFeatures(drf.Gaussian(2.0), 16, random_state=0)
KERNELS = [
    drf.Gaussian(2.0),
    drf.Laplacian((1.0, 2.0, 3.0)),
    drf.Cauchy(2.0),
    drf.Exponential(2.0),
    drf.Matern(2.0, 2.5),
    drf.Polynomial(2, 0.5),
    2.0 * drf.Gaussian(2.0) * drf.Matern((1.0, 2.0, 3.0), 1.5) + drf.Cauchy(1.0),
]
MAPS = [
    *(drf.FourierFeatures(k, 16, random_state=0) for k in KERNELS if k.is_shift_invariant),
    *(drf.FourierFeatures(drf.Gaussian(2.0), 16, sampling=s, random_state=0) for s in ("orthogonal", "qmc")),
    drf.FourierFeatures(3.0 * drf.Gaussian(2.0), 15, form="phase", random_state=0),
    *(drf.NystroemFeatures(k, 16, random_state=0) for k in KERNELS),
    drf.LinearFeatures(),
    drf.ConcatenatedFeatures([drf.LinearFeatures(), MAP, drf.NystroemFeatures(n_components=4)]),
]
MODELS = {
    "numbers": drf.KernelRidge(MAP, scale="standard"),
    "ridge classifier": drf.KernelRidgeClassifier(MAP),
    "svc": drf.KernelSVC(MAP, scale="standard", dtype="float64"),
    "likelihood": drf.KernelLikelihoodClassifier(MAP),
}


@pytest.fixture
def rows(rng):
    return rng.standard_normal((N, 3)) + np.asarray([0.0, 5.0, -5.0])


@pytest.fixture
def reference(example):
    return example("numpy_predict")


@pytest.fixture
def loaded(reference, tmp_path):
    """`loaded(model)`: what the script reads of a stored model."""

    def load(model):
        model.save(str(tmp_path / "m.zarr"), overwrite=True)
        return reference.load(tmp_path / "m.zarr")

    return load


@pytest.mark.parametrize("features", MAPS, ids=repr)
def test_every_map(rows, reference, loaded, features):
    model = drf.KernelRidge(features, alpha=1e-2).fit(rows, np.sin(rows[:, 0]))
    found = reference.predict(*loaded(model), rows)
    # A factor of landmarks has a condition of at most 2²⁰, and weights are of size 1e2.
    np.testing.assert_allclose(found, model.predict(rows), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("k", [2, 3])
def test_every_model(rows, reference, loaded, name, k):
    y = np.asarray(["a", "bc", "d"])[np.arange(N) % k] if name != "numbers" else rows[:, : k - 1]
    model = MODELS[name].fit(rows, y)
    read = loaded(model)
    F = reference.decision(*read, rows)
    np.testing.assert_allclose(F, model.model_.decision(rows), atol=1e-9)
    found, expected = reference.predict(*read, rows), model.predict(rows)
    assert found.shape == expected.shape
    if name == "numbers":
        np.testing.assert_allclose(found, expected, atol=1e-9)
    else:
        second = np.partition(F, -2, axis=1)[:, -2] if F.shape[1] > 1 else 0.0
        clear = np.abs(F.max(axis=1) - second) > 1e-6
        np.testing.assert_array_equal(found[clear], expected[clear])


def test_principal_components_and_float32(rows, reference, loaded):
    model = drf.KernelPCA(MAP).fit(rows)
    found = reference.decision(*loaded(model), rows)
    np.testing.assert_allclose(found, model.transform(rows), atol=1e-9)
    X = rows.astype(np.float32)
    model = drf.KernelRidge(MAP, alpha=0.1).fit(X, rows[:, 0])
    assert model.model_.dtype == "float32"
    np.testing.assert_allclose(reference.predict(*loaded(model), X), model.predict(X), atol=1e-4)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (drf.RandomBinningFeatures(n_grids=4, n_bins=64), "no hashed binning map"),
        (drf.NystroemFeatures(drf.Matern(1.0, 0.75), 8), r"nu=0\.75 needs Bessel functions"),
    ],
)
def test_what_it_does_not_claim_is_refused(rows, reference, loaded, features, message):
    read = loaded(drf.KernelRidge(features).fit(rows, rows[:, 0]))
    with pytest.raises(ValueError, match=message):
        reference.predict(*read, rows)


def test_it_is_a_short_script_that_imports_numpy_alone(rows, tmp_path):
    model = drf.KernelRidge(MAP).fit(rows, rows[:, 0])
    model.save(str(tmp_path / "m.zarr"))
    np.save(tmp_path / "rows.npy", rows)
    done = run(sys.executable, SCRIPT, "m.zarr", "rows.npy", "out.npy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), model.predict(rows), atol=1e-9)
    text = SCRIPT.read_text()
    assert len(text.splitlines()) < 100
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports}
    assert names <= {*sys.stdlib_module_names, "numpy"}
