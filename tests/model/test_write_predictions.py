"""`write_predictions`: for whatever holds the rows, what the estimator itself predicts, with their ids."""

from __future__ import annotations

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr

import distrff as drf
from distrff.errors import InputError


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def frame(rng):
    frame = pd.DataFrame(rng.standard_normal((60, 2)), columns=["a", "b"])
    return frame.assign(who=[f"row {i}" for i in range(60)], number=np.arange(60) + 2**53 + 1)


@pytest.fixture
def fitted(frame):
    features = drf.FourierFeatures(n_components=16, random_state=0)
    return drf.KernelRidge(features, random_state=0).fit(frame[["a", "b"]], frame["a"] ** 2 + frame["b"])


def check(path, frame, prediction, **others):
    found = pd.read_parquet(path)
    assert list(found) == ["who", "number", "prediction", *others]
    assert found["who"].tolist() == frame["who"].tolist()
    assert found["number"].tolist() == frame["number"].tolist()
    for name, values in {"prediction": prediction, **others}.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-12, atol=1e-12)


def test_rows_of_any_storage(fitted, frame, tmp_path):
    X, ids = frame[["a", "b"]].to_numpy(), ["who", "number"]
    prediction, std = fitted.predict(frame[["a", "b"]], return_std=True)
    columns = {name: frame[name].to_numpy() for name in ids}
    frame.to_parquet(tmp_path / "rows.parquet")
    stored = drf.open_dataset(tmp_path / "rows.parquet", columns=["a", "b"], ids=ids)
    group = zarr.open_group(tmp_path / "rows.zarr", mode="w")
    group.create_array("X", data=X, chunks=(17, 2))
    group.create_array("number", data=columns["number"], chunks=(25,))
    group.create_array("who", data=columns["who"].astype(np.dtypes.StringDType()), chunks=(11,))
    for number, (data, given) in enumerate(
        (
            (frame, ids),
            (dd.from_pandas(frame, npartitions=3), ids),
            (X, columns),
            (da.from_array(X, chunks=(13, 2)), {name: frame[name] for name in ids}),
            (stored, None),
            (drf.open_dataset(tmp_path / "rows.zarr", ids=ids), None),
        )
    ):
        out = str(tmp_path / f"{number}.parquet")
        report = drf.write_predictions(fitted, data, out, ids=given, return_std=True)
        assert (report["n_samples"], report["n_kept"], report["shape"]) == (60, 0, (60,))
        check(out, frame, prediction, std=std)


@pytest.mark.parametrize(
    "features",
    [
        drf.NystroemFeatures(n_components=8, random_state=0),
        drf.RandomBinningFeatures(n_grids=5, random_state=0),
        drf.ConcatenatedFeatures([drf.LinearFeatures(), drf.FourierFeatures(n_components=4, random_state=0)]),
    ],
    ids=lambda features: type(features).__name__,
)
def test_maps_that_carry_arrays(features, frame, tmp_path):
    X = frame[["a", "b"]].to_numpy()
    fitted = drf.KernelRidge(features, random_state=0).fit(X, X[:, 0])
    drf.write_predictions(fitted, X, str(tmp_path / "p.zarr"))
    found = zarr.open_array(tmp_path / "p.zarr", mode="r")[:]
    np.testing.assert_allclose(found, fitted.predict(X), rtol=1e-10, atol=1e-10)


def test_a_stored_machine_goes_on_where_its_estimator_was(fitted, frame, tmp_path):
    """The digest of a model is that of its stored copy, and of no other."""
    fitted.save(str(tmp_path / "m.zarr"))
    assert drf.load_model(str(tmp_path / "m.zarr")).digest == fitted.model_.digest
    other = drf.KernelRidge(fitted.features_, alpha=2.0).fit(frame[["a", "b"]], frame["a"])
    assert other.model_.digest != fitted.model_.digest


def test_classifiers(frame, tmp_path):
    labels = np.where(frame["a"] > 0.5, "high", np.where(frame["a"] < -0.5, "low", "middle"))
    X = frame[["a", "b"]]
    machine = drf.KernelLikelihoodClassifier(
        drf.FourierFeatures(n_components=16, random_state=0), random_state=0
    ).fit(X, labels)
    for method, name in (("predict_proba", "probability"), ("decision_function", "decision")):
        drf.write_predictions(machine, X, str(tmp_path / "p.parquet"), method=method, overwrite=True)
        found = pd.read_parquet(tmp_path / "p.parquet")
        assert list(found) == [f"{name}_{label}" for label in ("high", "low", "middle")]
        np.testing.assert_allclose(found, getattr(machine, method)(X), rtol=1e-10, atol=1e-10)


def test_what_cannot_be_written(fitted, frame, tmp_path):
    X, out = frame[["a", "b"]].to_numpy(), str(tmp_path / "p.zarr")
    for data, how, message in (
        (frame, {"ids": ["nobody"]}, "no column 'nobody'"),
        (frame.drop(columns="b"), {}, "no column 'b'"),
        (X, {"ids": ["who"]}, "a dict of columns"),
        (X, {"ids": {"who": np.arange(59)}}, "'who' cannot be used"),
        (X[:, :1], {}, "has 1 columns"),
        (X, {"method": "transform"}, "no predictions"),
        (X, {"method": "predict_proba"}, "no probabilities"),
    ):
        with pytest.raises(InputError, match=message):
            drf.write_predictions(fitted, data, out, **how)
    assert not any(tmp_path.iterdir())
