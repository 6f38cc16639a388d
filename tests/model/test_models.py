"""A stored model predicts the same bits, anywhere, and only if it is whole and unaltered."""

from __future__ import annotations

import json
import subprocess
import sys

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

import distrff as drf
from distrff.errors import InputError, ModelFileError
from distrff.io.groups import read_group, write_group

KERNEL = 0.5 * drf.Matern(2.0, nu=1.5) + drf.Gaussian((1.0, 2.0, 3.0))


@pytest.fixture
def X(rng):
    return rng.standard_normal((500, 3))


def labels_of(X, names):
    return np.asarray(names)[np.digitize(X[:, 0] * X[:, 1], [-0.3, 0.3][: len(names) - 1])]


MACHINES = {
    "one target": lambda X: drf.KernelRidge(drf.FourierFeatures(KERNEL, 32)).fit(X, X[:, 0]),
    "two targets": lambda X: drf.KernelRidge(drf.FourierFeatures(KERNEL, 32), "cv").fit(X, 1e6 + X[:, :2]),
    "a column": lambda X: drf.KernelRidge(drf.FourierFeatures(None, 32)).fit(X, X[:, :1]),
    "float32": lambda X: drf.KernelRidge(drf.FourierFeatures(KERNEL, 32), dtype="float32").fit(X, X[:, 0]),
    "scaled": lambda X: drf.KernelRidge(drf.FourierFeatures(KERNEL, 32), scale="standard").fit(
        X + 9, X[:, 0]
    ),
    "phases": lambda X: drf.KernelRidge(drf.FourierFeatures(None, 31, form="phase")).fit(X, X[:, 0]),
    "orthogonal": lambda X: drf.KernelRidge(
        drf.FourierFeatures(None, 32, sampling="orthogonal"), fit_intercept=False
    ).fit(X, X[:, 0]),
    "qmc": lambda X: drf.KernelRidge(drf.FourierFeatures(KERNEL, 32, sampling="qmc")).fit(X, X[:, 0]),
    "fastfood": lambda X: drf.KernelRidge(drf.FourierFeatures(KERNEL, 32, sampling="fastfood")).fit(
        X, X[:, 0]
    ),
    "countsketch": lambda X: drf.KernelRidge(drf.FourierFeatures(KERNEL, 32, sampling="countsketch")).fit(
        X, X[:, 0]
    ),
    "linear": lambda X: drf.KernelRidge(drf.LinearFeatures()).fit(X, X[:, 0]),
    "from a Gram": lambda X: drf.KernelRidge().fit_gram(
        drf.gram(X, drf.FourierFeatures(KERNEL, 32), X[:, 0], scale="standard")
    ),
    "text labels": lambda X: drf.KernelRidgeClassifier(drf.FourierFeatures(None, 32)).fit(
        X, labels_of(X, ["a", "ü", "a long name"])
    ),
    "object labels": lambda X: drf.KernelRidgeClassifier(drf.FourierFeatures(None, 32)).fit(
        X, labels_of(X, ["a", "b", "c"]).astype(object)
    ),
    "numbered labels": lambda X: drf.KernelRidgeClassifier(
        drf.FourierFeatures(None, 32), class_weight="balanced"
    ).fit(X, labels_of(X, [-5, 2**60, 7])),
    "yes or no": lambda X: drf.KernelRidgeClassifier(drf.FourierFeatures(None, 32)).fit(
        X, labels_of(X, [True, False])
    ),
}


@pytest.mark.parametrize("kind", MACHINES)
def test_predicts_the_same_bits(X, tmp_path, kind):
    machine = MACHINES[kind](X)
    path = str(tmp_path / "model.zarr")
    machine.save(path)
    model = drf.load_model(path)
    expected, found = machine.predict(X), model.predict(X)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(model.decision(X), machine.model_.decision(X))
    assert (model.kind, model.dtype) == (type(machine).__name__, machine.report_["dtype"])
    assert model.report == dict(machine.report_)
    json.dumps(model.report, allow_nan=False)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_structured_frequencies_of_wide_rows_predict_the_same_bits(rng, tmp_path, dtype):
    wide = rng.standard_normal((300, 20))
    features = drf.FourierFeatures(drf.Gaussian(5.0) + drf.Matern(5.0), 64, sampling="sorf")
    machine = drf.KernelRidge(features, dtype=dtype).fit(wide, wide[:, 0])
    machine.save(str(tmp_path / "model.zarr"))
    model = drf.load_model(str(tmp_path / "model.zarr"))
    np.testing.assert_array_equal(model.predict(wide), machine.predict(wide))
    np.testing.assert_allclose(
        machine.predict(da.from_array(wide, chunks=70)), machine.predict(wide), rtol=0, atol=1e-4
    )


def test_spread_of_predictions(X, tmp_path):
    machine = drf.KernelRidge(drf.FourierFeatures(KERNEL, 32)).fit(X, 100 * X[:, :2] + X[:, 2:])
    machine.save(str(tmp_path / "with.zarr"), include_std=True)
    _, expected = machine.predict(X, return_std=True)
    loaded = drf.load_model(str(tmp_path / "with.zarr"))
    np.testing.assert_array_equal(loaded.std(X), expected)
    np.testing.assert_array_equal(loaded.predict(X, return_std=True)[1], expected)
    drf.KernelRidge(drf.FourierFeatures(KERNEL, 32)).fit(X, X[:, 0]).save(str(tmp_path / "without.zarr"))
    with pytest.raises(InputError, match="saved without its posterior; save it with include_std=True"):
        drf.load_model(str(tmp_path / "without.zarr")).std(X)


def test_names_of_columns(X, tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    machine = drf.KernelRidge(drf.FourierFeatures(KERNEL, 32)).fit(frame, X[:, 0])
    machine.save(str(tmp_path / "model.zarr"))
    assert drf.load_model(str(tmp_path / "model.zarr")).column_names == ("a", "b", "c")


def test_a_process_without_a_cluster(X, tmp_path):
    """The file is enough: no scheduler, no Dask, and no draw of frequencies."""
    machine = MACHINES["scaled"](X)
    machine.save(str(tmp_path / "model.zarr"))
    np.save(tmp_path / "X.npy", X)
    script = """
import sys
import numpy as np
import distrff
from distrff.features.specification import derivations_in_this_process
folder = sys.argv[1]
prediction = distrff.load_model(f"{folder}/model.zarr").predict(np.load(f"{folder}/X.npy"))
np.save(f"{folder}/prediction.npy", prediction)
assert "distributed" not in sys.modules and "dask" not in sys.modules
assert derivations_in_this_process() == 0
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=120)
    np.testing.assert_array_equal(np.load(tmp_path / "prediction.npy"), machine.predict(X))


def test_numpy_alone_can_predict(X, tmp_path):
    machine = MACHINES["scaled"](X)
    machine.save(str(tmp_path / "model.zarr"))

    def read(name):
        folder = tmp_path / "model.zarr" / name
        shape = json.loads((folder / "zarr.json").read_text())["shape"]
        return np.fromfile(folder / "c" / "/".join("0" * len(shape)), "<f8").reshape(shape)

    theta = (X - read("column_shift")) / read("column_scale") @ read("map_frequencies")
    pairs = np.stack([np.cos(theta), np.sin(theta)], axis=2).reshape(len(X), -1)
    Z = np.sqrt(KERNEL.at_zero / theta.shape[1]) * pairs
    prediction = Z @ read("coef")[:, 0] + read("intercept")[0]
    # Cosines within 4e-16 and a sum of 32 terms.
    bound = 64 * np.finfo(float).eps * np.abs(machine.coef_).sum()
    np.testing.assert_allclose(prediction, machine.predict(X), rtol=0, atol=bound)


@pytest.fixture
def stored(X, tmp_path):
    MACHINES["one target"](X).save(str(tmp_path / "model.zarr"))
    return tmp_path / "model.zarr"


def edit(stored, change):
    document = json.loads((stored / "zarr.json").read_text())
    change(document["attributes"]["distrff"])
    (stored / "zarr.json").write_text(json.dumps(document))


def flip_a_bit(stored):
    chunk = stored / "coef" / "c" / "0" / "0"
    data = bytearray(chunk.read_bytes())
    data[5] ^= 1
    chunk.write_bytes(bytes(data))


def truncate(stored):
    chunk = stored / "map_frequencies" / "c" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-8])


def remove_an_array(stored):
    (stored / "intercept" / "c" / "0").unlink()


def remove_the_marker(stored):
    edit(stored, lambda header: header.pop("complete"))


def come_from_the_future(stored):
    edit(stored, lambda header: header.update(format=header["format"] + 1))


def rewrite(stored, change):
    """Store whole and well what another version of distrff might have written."""
    arrays, metadata = read_group(str(stored), kind="model")
    change(metadata)
    write_group(str(stored), arrays, metadata, kind="model", overwrite=True)


def alter_the_metadata(stored):
    edit(stored, lambda header: header["metadata"].update(dtype="float32"))


def be_of_an_unknown_map(stored):
    rewrite(stored, lambda metadata: metadata["specification"].update(kind="quantum"))


def lack_a_field(stored):
    rewrite(stored, lambda metadata: metadata.pop("dtype"))


def have_other_targets(stored):
    rewrite(stored, lambda metadata: metadata.update(targets="ranks"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip_a_bit, "coef.* checksum"),
        (alter_the_metadata, "the metadata do not match their checksum"),
        (truncate, "map_frequencies"),
        (remove_an_array, "intercept"),
        (remove_the_marker, "complete"),
        (come_from_the_future, "update distrff"),
        (be_of_an_unknown_map, "feature map of kind 'quantum' is not known .*update distrff"),
        (lack_a_field, "lacks 'dtype'; save the model again"),
        (have_other_targets, "targets of kind 'ranks' are not known; update distrff"),
    ],
)
def test_damaged_files_are_refused(stored, damage, words):
    damage(stored)
    with pytest.raises(ModelFileError, match=words) as caught:
        drf.load_model(str(stored))
    assert "\n" not in str(caught.value)


def test_refusals(X, stored, tmp_path):
    machine = MACHINES["one target"](X)
    with pytest.raises(InputError, match="overwrite"):
        machine.save(str(stored))
    machine.save(str(stored), overwrite=True)
    with pytest.raises(NotFittedError):
        drf.KernelRidge().save(str(tmp_path / "other.zarr"))
    with pytest.raises(InputError, match=r"does not exist|there is no"):
        drf.load_model(str(tmp_path / "nowhere.zarr"))
    with pytest.raises(ModelFileError):
        drf.GramStatistics.load(str(stored))
    odd = drf.KernelRidgeClassifier(drf.FourierFeatures(None, 32))
    odd.fit(X, np.array([1, 2], dtype=object)[(X[:, 0] > 0).astype(int)])
    with pytest.raises(
        InputError, match="class labels of dtype object cannot be stored; use numbers or strings"
    ):
        odd.save(str(tmp_path / "odd.zarr"))
    assert not (tmp_path / "odd.zarr").exists()


def test_the_predicted_rows_are_checked(X, stored):
    model = drf.load_model(str(stored))
    with pytest.raises(InputError, match=r"X must have shape \(n_samples, 3\), got \(500, 2\)"):
        model.predict(X[:, :2])
    with pytest.raises(InputError, match=r"got \(3,\)"):
        model.predict(X[0])
