"""The writing sweep and `write_predictions`: every row's result in its place, whatever holds the rows."""

import dataclasses
import uuid
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr

import distrff as drf
from distrff.engine.run import Run
from distrff.engine.tasks import LocalExecution
from distrff.errors import InputError, NonFiniteError
from distrff.io.arrays import as_dataset, with_columns
from distrff.io.results import ResultPlace
from distrff.io.storage import Location
from distrff.model import write
from distrff.model.model import Model
from distrff.model.write import RowResults, write_rows
from distrff.solvers.posterior import PosteriorFactor
from tests.support.models import frozen_model

pytestmark = pytest.mark.usefixtures("in_this_thread")


def model_of(classes: np.ndarray | None = None, n_outputs: int = 1, seed: int = 0) -> Model:
    rng = np.random.default_rng(seed)
    features = drf.FourierFeatures(drf.Gaussian(1.0), 8, random_state=0)
    options = dict(classes=classes, intercept=np.zeros(n_outputs))
    return frozen_model(features, rng, n_outputs=n_outputs, **options)


def written(
    model: Model, X: np.ndarray, url: object, method: str = "predict", ids=None, return_std=False, **how
):
    dataset = dataclasses.replace(with_columns(as_dataset(X), ids or {}), ids=tuple(ids or ()))
    place = ResultPlace(Location.of(str(url)), **how)
    results = RowResults(model, method, return_std)
    return write_rows(Run(LocalExecution("threads")), results, dataset, place)


@pytest.fixture
def small_cuts(monkeypatch):
    """Six rows a chunk of one float64 column, three of two, several segments."""
    monkeypatch.setattr(write, "_CHUNK_BYTES", 48)
    light = write.light_segmentation
    monkeypatch.setattr(
        write, "light_segmentation", lambda n, d: dataclasses.replace(light(n, d), segment_rows=7)
    )


@pytest.fixture
def bucket():
    """A folder of an object store of its own, which forgets when the test ends."""
    name = f"memory://{uuid.uuid4().hex}"
    yield name
    Location(name).remove()


@pytest.fixture
def fails_late(monkeypatch):
    """`fails_late(error)`: the third run of rows that is written raises it, until told None."""
    real, state = Model.predict, {"calls": 0, "error": None}

    def predict(self, X, *args, **kwargs):
        if len(X) > 1:  # not the look at one row
            state["calls"] += 1
            if state["error"] is not None and state["calls"] > 7:
                raise state["error"]
        return real(self, X, *args, **kwargs)

    monkeypatch.setattr(Model, "predict", predict)

    def set_error(error):
        state.update(calls=0, error=error)
        return state

    return set_error


@pytest.mark.parametrize(
    "classes",
    [np.array([3, 5]), np.array([False, True]), np.array(["no", "yes"]), np.array(["no", "yes"], object)],
    ids=["integers", "booleans", "text", "objects"],
)
def test_labels_are_written_as_they_are(classes, small_cuts, rng, tmp_path):
    X, model = rng.standard_normal((20, 2)), model_of(classes)
    for name in ("out.zarr", "out.parquet"):
        written(model, X, tmp_path / name)
    array = zarr.open_array(tmp_path / "out.zarr", mode="r")
    assert array.dtype.kind == ("T" if classes.dtype.kind in "OU" else classes.dtype.kind)
    np.testing.assert_array_equal(array[:].astype(classes.dtype), model.predict(X))
    frame = pd.read_parquet(tmp_path / "out.parquet")
    np.testing.assert_array_equal(frame["prediction"].to_numpy(classes.dtype), model.predict(X))


@pytest.mark.parametrize("end", ["zarr", "parquet"])
def test_ids_and_spreads_beside_predictions(end, small_cuts, bucket, rng, tmp_path):
    X = rng.standard_normal((40, 2))
    posterior = PosteriorFactor(np.tril(np.ones((8, 8))), np.zeros(8), np.ones(1), 0.1, 4.0)
    model = dataclasses.replace(model_of(), posterior=posterior)
    ids = {
        "number": np.arange(40) * 2**40,
        "name": np.array([None if i == 3 else f"row {i}" for i in range(40)], object),
        "day": np.datetime64("2013-01-01") + np.arange(40).astype("m8[D]"),
    }
    ids["day"][3] = "NaT"
    for place in (tmp_path, bucket):
        report = written(model, X, f"{place}/out.{end}", ids=ids, return_std=True)
        assert list(report["columns"]) == ["number", "name", "day", "prediction", "std"]
        store = Location(f"{place}/out.{end}")
        if end == "zarr":
            found = {name: array[:] for name, array in zarr.open_group(store.zarr_store(), mode="r").arrays()}
            assert found["name"].tolist() == ["" if i == 3 else f"row {i}" for i in range(40)]
            assert found["day"][1:4].tolist() == ["2013-01-02", "2013-01-03", ""]
        else:
            frame = pd.read_parquet(store.url)
            assert list(frame.columns) == list(report["columns"])
            assert pd.isna(frame["name"][3])
            found = {name: frame[name].to_numpy() for name in frame}
            np.testing.assert_array_equal(found["day"].astype("M8[D]"), ids["day"])
        assert set(found) == set(report["columns"])
        np.testing.assert_array_equal(found["number"], ids["number"])
        np.testing.assert_allclose(found["prediction"], model.predict(X), rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(found["std"], model.std(X), rtol=1e-13)


@pytest.mark.parametrize("end", ["csv", "csv.gz"])
def test_csv_is_that_of_pandas(end, small_cuts, bucket, rng, tmp_path):
    X = rng.standard_normal((40, 2))
    model = model_of(np.array(["a,b", 'say "x"', "two\nlines", "cr\rhere", "nul\0", "plain"], object), 6)
    ids = {
        "number": np.arange(40) + 2**53 + 1,
        "text": np.array([None, "", " blank ", "ü,"] * 10, object),
        "day": np.datetime64("2013-01-01") + np.arange(40).astype("m8[D]"),
        "gap": np.where(np.arange(40) % 3, rng.standard_normal(40) * 1e-12, np.nan),
    }
    for place in (tmp_path, bucket):
        out = f"{place}/out.{end}"
        written(model, X, out, ids=ids)
        expected = pd.DataFrame({**ids, "prediction": model.predict(X)}).astype({"day": str})
        found = pd.read_csv(out, converters={"gap": lambda text: float(text or "nan")})
        expected["text"] = expected["text"].replace("", None)
        pd.testing.assert_frame_equal(found, expected, check_dtype=False, check_exact=True)
        with pytest.raises(InputError, match="exists; pass overwrite=True"):
            written(model, X, out)
        report = written(model, X, out, "decision_function", overwrite=True)
        assert list(report["columns"]) == ["decision"]
        names = [f"decision_{label}" for label in model.targets.classes]
        decisions = pd.read_csv(out)
        assert list(decisions) == names
        np.testing.assert_allclose(decisions, RowResults(model, "decision_function").of(X)["decision"])
        assert Location(str(place)).names() == [f"out.{end}"]
    text = f"{tmp_path}/plain.csv"
    numbers = model_of()
    written(numbers, X, text, ids={"i": np.arange(40)})
    expected = pd.DataFrame({"i": np.arange(40), "prediction": pd.read_csv(text)["prediction"]})
    assert Path(text).read_bytes().decode() == expected.to_csv(index=False)


def test_a_csv_of_others_is_not_replaced(rng, tmp_path):
    X, out = rng.standard_normal((20, 2)), tmp_path / "rows.csv"
    headers = b"a,b", b"decision_date,amount", b"prediction_date,mm", b"id,probability_of_rain,mm"
    for content in (*(header + b"\n1,2\n" for header in headers), b"", b"\xff\x00"):
        out.write_bytes(content)
        with pytest.raises(
            InputError, match=r"is not a predictions or features of distrff.*--overwrite does"
        ):
            written(model_of(), X, out, overwrite=True)
        assert out.read_bytes() == content
    with pytest.raises(InputError, match="one matrix, which goes to Zarr"):
        written(model_of(), X, tmp_path / "Z.csv", "transform")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_results_that_the_model_does_not_have(rng, tmp_path):
    X, out = rng.standard_normal((20, 2)), tmp_path / "out.zarr"
    for how, message in (
        ({"method": "predict_proba"}, "no probabilities"),
        ({"method": "decision_function"}, "only classifiers"),
        ({"return_std": True}, "include_std=True"),
        ({"method": "transform", "return_std": True}, "with method 'predict'"),
        ({"ids": {"prediction": np.arange(20)}}, "has the name of a result"),
        ({"ids": {"i": np.arange(19)}}, "has 19 rows"),
    ):
        with pytest.raises(InputError, match=message):
            written(model_of(), X, out, **how)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("end", ["zarr", "parquet", "csv", "csv.gz"])
@pytest.mark.parametrize("remote", [False, True])
def test_an_interrupted_sweep_is_resumed(end, remote, small_cuts, bucket, fails_late, rng, tmp_path):
    X, model, ids = rng.standard_normal((60, 2)), model_of(), {"i": np.arange(60)}
    out = f"{bucket if remote else tmp_path}/out.{end}"
    fails_late(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as interrupt:
        written(model, X, out, ids=ids)
    assert "--resume" in interrupt.value.__notes__[0]
    assert remote or not (tmp_path / f"out.{end}").exists()
    with pytest.raises(InputError, match=r"left unfinished.*--resume.*--overwrite"):
        written(model, X, out, ids=ids)
    for other, message in (
        (lambda: written(model_of(seed=1), X, out, ids=ids, resume=True), "of another model"),
        (lambda: written(model, X + 1, out, ids=ids, resume=True), "of other data"),
        (lambda: written(model, X, out, resume=True), "of other"),
    ):
        with pytest.raises(InputError, match=message):
            other()
    calls = fails_late(None)
    report = written(model, X, out, ids=ids, resume=True)
    assert 0 < report["n_kept"] < 60
    assert calls["calls"] <= 1 + (60 - report["n_kept"]) // 3 + 1
    assert report["n_samples"] == 60
    with pytest.raises(InputError, match=r"there is no unfinished result to resume: .* exists"):
        written(model, X, out, ids=ids, resume=True)
    if end == "zarr":
        group = zarr.open_group(Location(out).zarr_store(), mode="r")
        found = {name: group[name][:] for name in ("i", "prediction")}
        assert set(Location(out).names()) == {"zarr.json", "i", "prediction"}
    else:
        found = pd.read_parquet(out) if end == "parquet" else pd.read_csv(out)
        assert end == "parquet" or Location(out.rpartition("/")[0]).names() == [f"out.{end}"]
    np.testing.assert_array_equal(found["i"], ids["i"])
    np.testing.assert_allclose(found["prediction"], model.predict(X), rtol=1e-13, atol=1e-13)
    assert [path.name for path in tmp_path.iterdir()] == ([] if remote else [f"out.{end}"])


@pytest.mark.parametrize("end", ["zarr", "parquet", "csv", "csv.gz"])
def test_rows_that_hold_no_numbers_leave_nothing(end, small_cuts, rng, tmp_path):
    X = rng.standard_normal((40, 2))
    X[37, 1] = np.nan
    with pytest.raises(NonFiniteError, match="X contains NaN in row 37, column 1"):
        written(model_of(), X, tmp_path / f"out.{end}")
    assert not any(tmp_path.iterdir())


# `write_predictions`: for whatever holds the rows, what the estimator itself predicts, with their ids


@pytest.fixture
def frame(rng):
    frame = pd.DataFrame(rng.standard_normal((60, 2)), columns=["a", "b"])
    return frame.assign(who=[f"row {i}" for i in range(60)], number=np.arange(60) + 2**53 + 1)


@pytest.fixture
def fitted(frame):
    features = drf.FourierFeatures(drf.Gaussian(1.0), 16, random_state=0)
    return drf.KernelRidge(features, 1.0, random_state=0).fit(frame[["a", "b"]], frame["a"] ** 2 + frame["b"])


def test_ids_of_a_shuffled_frame_stay_with_their_rows(fitted, frame, tmp_path):
    known = dict(zip(frame["number"], fitted.predict(frame[["a", "b"]]), strict=True))
    with dask.config.set(scheduler="threads"):
        lazy = dd.from_pandas(frame, npartitions=3).shuffle("number")
        for ids in (["number"], {"number": lazy["number"]}):
            out = str(tmp_path / f"{type(ids).__name__}.parquet")
            drf.write_predictions(fitted, lazy[["a", "b", "number"]], out, ids=ids)
            found = pd.read_parquet(out)
            expected = [known[number] for number in found["number"]]
            np.testing.assert_allclose(found["prediction"], expected, rtol=1e-12, atol=1e-12)
        with pytest.raises(
            InputError, match=r"the data comes from a merged or shuffled .* id number is in memory"
        ):
            drf.write_predictions(fitted, lazy, str(tmp_path / "p"), ids={"number": frame["number"]})


def test_classifiers(frame, tmp_path):
    labels = np.where(frame["a"] > 0.5, "high", np.where(frame["a"] < -0.5, "low", "middle"))
    X = frame[["a", "b"]]
    features = drf.FourierFeatures(drf.Gaussian(1.0), 16, random_state=0)
    estimator = drf.KernelLikelihoodClassifier(features, random_state=0).fit(X, labels)
    for method, name in (("predict_proba", "probability"), ("decision_function", "decision")):
        drf.write_predictions(estimator, X, str(tmp_path / "p.parquet"), method=method, overwrite=True)
        found = pd.read_parquet(tmp_path / "p.parquet")
        assert list(found) == [f"{name}_{label}" for label in ("high", "low", "middle")]
        np.testing.assert_allclose(found, getattr(estimator, method)(X), rtol=1e-10, atol=1e-10)


def test_what_cannot_be_written(fitted, frame, tmp_path):
    X, out = frame[["a", "b"]].to_numpy(), str(tmp_path / "p.zarr")
    for data, how, message in (
        (frame, {"ids": ["nobody"]}, "no column 'nobody'"),
        (frame.drop(columns="b"), {}, "no column 'b'"),
        (X, {"ids": ["who"]}, "a dict of columns"),
        (X, {"ids": {"who": np.arange(59)}}, "who has 59 rows but X has 60"),
        (X[:, :1], {}, "X has 1 features"),
        (X, {"method": "transform"}, "not predictions"),
        (X, {"method": "predict_proba"}, "no probabilities"),
    ):
        with pytest.raises(InputError, match=message):
            drf.write_predictions(fitted, data, out, **how)
    assert not any(tmp_path.iterdir())
