"""A stored model predicts the same bits, anywhere, and only if it is whole; models on NumPy blocks."""

import json
import subprocess
import sys

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

import distrff as drf
from distrff import FourierFeatures, Gaussian
from distrff.errors import InputError, ModelFileError
from distrff.io.storage import read_group, write_group
from distrff.preprocessing.coding import Scaling
from tests.support.models import frozen_model

KERNEL = 0.5 * drf.Matern(2.0, nu=1.5) + drf.Gaussian((1.0, 2.0, 3.0))


@pytest.fixture
def X(rng):
    return rng.standard_normal((500, 3))


def ridge(X, y, **options):
    features = drf.FourierFeatures(KERNEL, 32)
    return drf.KernelRidge(features, **{"alpha": 1.0, "scale": "none"} | options).fit(X, y)


def classifier(X, names, dtype, **options):
    labels = np.asarray(names)[np.digitize(X[:, 0] * X[:, 1], [-0.3, 0.3][: len(names) - 1])]
    features = drf.FourierFeatures(KERNEL, 32)
    return drf.KernelRidgeClassifier(features, alpha=1.0, **options).fit(X, labels.astype(dtype))


# Every map and solver: tests/estimators/test_matrix.py.
MODELS = {
    "one target": lambda X: ridge(X, X[:, 0]),
    "scaled": lambda X: ridge(X + 9, X[:, 0], scale="standard"),
    "from a Gram": lambda X: drf.KernelRidge(alpha=1.0).fit_gram(
        drf.gram(X, drf.FourierFeatures(KERNEL, 32), X[:, 0], scale="standard")
    ),
    "text labels": lambda X: classifier(X, ["a", "ü", "a long name"], str),
    "object labels": lambda X: classifier(X, ["a", "b", "c"], object),
    "numbered labels": lambda X: classifier(X, [-5, 2**60, 7], int, class_weight="balanced"),
    "yes or no": lambda X: classifier(X, [True, False], bool),
}


@pytest.mark.parametrize("kind", MODELS)
def test_predicts_the_same_bits(X, tmp_path, kind):
    estimator = MODELS[kind](X)
    path = str(tmp_path / "model.zarr")
    estimator.save(path)
    model = drf.load_model(path)
    expected, found = estimator.predict(X), model.predict(X)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(model.decision(X), estimator.model_.decision(X))
    assert (model.kind, model.dtype) == (type(estimator).__name__, estimator.report_["dtype"])
    assert model.report == dict(estimator.report_)
    json.dumps(model.report, allow_nan=False)


def test_spreads_and_names_of_columns(X, tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    estimator = drf.KernelRidge(drf.FourierFeatures(KERNEL, 32), 1.0, scale="none")
    estimator.fit(frame, 100 * X[:, :2] + X[:, 2:])
    estimator.save(str(tmp_path / "with.zarr"), include_std=True)
    _, expected = estimator.predict(frame, return_std=True)
    loaded = drf.load_model(str(tmp_path / "with.zarr"))
    np.testing.assert_array_equal(loaded.std(X), expected)
    np.testing.assert_array_equal(loaded.predict(X, return_std=True)[1], expected)
    assert loaded.column_names == ("a", "b", "c")


def test_a_process_without_a_cluster(X, tmp_path):
    """The file is enough: no scheduler, no Dask, and no draw of frequencies."""
    estimator = MODELS["scaled"](X)
    estimator.save(str(tmp_path / "model.zarr"))
    np.save(tmp_path / "X.npy", X)
    script = """
import sys
import numpy as np
import distrff
from distrff.utils.jit import COUNTS
folder = sys.argv[1]
prediction = distrff.load_model(f"{folder}/model.zarr").predict(np.load(f"{folder}/X.npy"))
np.save(f"{folder}/prediction.npy", prediction)
assert "distributed" not in sys.modules and "dask" not in sys.modules
assert COUNTS["derivations"] == 0
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=120)
    np.testing.assert_array_equal(np.load(tmp_path / "prediction.npy"), estimator.predict(X))


def test_numpy_alone_can_predict(X, tmp_path):
    estimator = MODELS["scaled"](X)
    estimator.save(str(tmp_path / "model.zarr"))

    def read(name):
        folder = tmp_path / "model.zarr" / name
        shape = json.loads((folder / "zarr.json").read_text())["shape"]
        return np.fromfile(folder / "c" / "/".join("0" * len(shape)), "<f8").reshape(shape)

    theta = (X - read("column_shift")) / read("column_scale") @ read("map_frequencies")
    pairs = np.stack([np.cos(theta), np.sin(theta)], axis=2).reshape(len(X), -1)
    Z = np.sqrt(KERNEL.at_zero / theta.shape[1]) * pairs
    prediction = Z @ read("coef")[:, 0] + read("intercept")[0]
    # Cosines within 4e-16 and a sum of 32 terms.
    bound = 64 * np.finfo(float).eps * np.abs(estimator.coef_).sum()
    np.testing.assert_allclose(prediction, estimator.predict(X), rtol=0, atol=bound)


@pytest.fixture
def stored(X, tmp_path):
    MODELS["one target"](X).save(str(tmp_path / "model.zarr"))
    return tmp_path / "model.zarr"


def flip_a_bit(stored):
    chunk = stored / "coef" / "c" / "0" / "0"
    data = bytearray(chunk.read_bytes())
    data[5] ^= 1
    chunk.write_bytes(bytes(data))


def truncate(stored):
    chunk = stored / "map_frequencies" / "c" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-8])


def edited(change):
    """Return what changes the header in place, without a new checksum."""

    def edit(stored):
        document = json.loads((stored / "zarr.json").read_text())
        change(document["attributes"]["distrff"])
        (stored / "zarr.json").write_text(json.dumps(document))

    return edit


def rewritten(change):
    """Return what stores, whole and well, what another version of distrff might have written."""

    def rewrite(stored):
        arrays, metadata = read_group(str(stored), kind="model")
        change(metadata)
        write_group(str(stored), arrays, metadata, kind="model", overwrite=True)

    return rewrite


UNKNOWN_MAP = "feature map of kind 'quantum' is not known .*update distrff"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip_a_bit, "coef.* checksum"),
        (edited(lambda header: header["metadata"].update(dtype="float32")), "do not match their checksum"),
        (truncate, "map_frequencies"),
        (lambda stored: (stored / "intercept" / "c" / "0").unlink(), "intercept"),
        (edited(lambda header: header.pop("complete")), "complete"),
        (edited(lambda header: header.update(format=header["format"] + 1)), "update distrff"),
        (rewritten(lambda metadata: metadata["specification"].update(kind="quantum")), UNKNOWN_MAP),
        (rewritten(lambda metadata: metadata.pop("dtype")), "lacks 'dtype'; save the model again"),
        (rewritten(lambda metadata: metadata.update(targets="ranks")), "'ranks' are not known; update"),
    ],
)
def test_damaged_files_are_refused(stored, damage, words):
    damage(stored)
    with pytest.raises(ModelFileError, match=words) as caught:
        drf.load_model(str(stored))
    assert "\n" not in str(caught.value)


def test_refusals(X, stored, tmp_path):
    estimator = MODELS["one target"](X)
    with pytest.raises(InputError, match="overwrite"):
        estimator.save(str(stored))
    estimator.save(str(stored), overwrite=True)
    with pytest.raises(NotFittedError):
        drf.KernelRidge(alpha=1.0, scale="none").save(str(tmp_path / "other.zarr"))
    with pytest.raises(InputError, match=r"does not exist|there is no"):
        drf.load_model(str(tmp_path / "nowhere.zarr"))
    with pytest.raises(ModelFileError):
        drf.GramStatistics.load(str(stored))


# The frozen model on NumPy blocks


def model_of(rng, dtype="float64", n_outputs=2, y_is_1d=True):
    features = FourierFeatures(Gaussian(2.0), 64, random_state=0)
    scaling = Scaling(np.full(3, 0.5), np.full(3, 2.0))
    fields = dict(scaling=scaling, dtype=dtype, y_is_1d=y_is_1d)
    return frozen_model(features, rng, n_columns=3, n_outputs=n_outputs, **fields), features


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_predicts_the_formula_by_strips_of_any_height(rng, X, dtype, monkeypatch):
    """Memory is bounded by cutting rows into strips, which show only in the last digits."""
    model, features = model_of(rng, dtype, y_is_1d=False)
    whole, Z = model.predict(X), features.transform(((X - 0.5) / 2).astype(dtype))
    np.testing.assert_array_equal(model.transform(X), Z)
    # A sum of 64 products in `dtype`, each at most max|w|·√(1/32).
    bound = 64 * np.finfo(dtype).eps * np.abs(model.coef).sum(0).max()
    np.testing.assert_allclose(whole, Z @ model.coef + model.intercept, rtol=0, atol=bound)
    monkeypatch.setattr("distrff.model.model._STRIP_BYTES", 1)  # the least, sixteen rows
    np.testing.assert_allclose(model.predict(X), whole, rtol=0, atol=bound)
    # Phases of a few units, in products of other heights.
    np.testing.assert_allclose(model.transform(X), Z, rtol=0, atol=64 * np.finfo(dtype).eps)


def test_rows_of_any_container_and_real_type(rng, X):
    model, _ = model_of(rng)
    expected = model.predict(X)
    for same in (X.tolist(), pd.DataFrame(X), da.from_array(X, chunks=100)):
        np.testing.assert_array_equal(model.predict(same), expected)
    for dtype in (np.float32, np.int16, bool):
        rows = X.astype(dtype)
        np.testing.assert_array_equal(model.predict(rows), model.predict(rows.astype(np.float64)))
    assert repr(model) == "<Model KernelRidge: 3 columns → 64 features → 2 output(s)>"


@pytest.mark.parametrize("method", ["predict", "decision", "transform"])
def test_rows_that_cannot_be_used(rng, X, method):
    model, _ = model_of(rng)
    X[7, 2] = np.nan
    for rows, message in (
        *((bad, r"X must have shape \(n_samples, 3\), got") for bad in (X[:, :2], X[:, 0], X[..., None])),
        (pd.DataFrame(X).assign(name="a"), "column 'name' of X has dtype .*, which is not a number"),
        (np.full(X.shape, "a", object), "X must hold numbers, got dtype object"),
        (X.astype(object), "NaN or infinity in row 7, column 2"),
    ):
        with pytest.raises(InputError, match=message):
            getattr(model, method)(rows)
    with pytest.raises(InputError, match="include_std=True"):
        model.std(X)
