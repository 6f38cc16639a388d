"""Everything in an object store: a server that speaks S3, and worker processes that read and write it."""

from contextlib import nullcontext
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
import zarr

import distrff as drf
from distrff.engine.checkpoint import Checkpoint
from tests.support.fits import small_ridge

pytest.importorskip("moto", reason="the extra `test` has it")
s3fs = pytest.importorskip("s3fs", reason="the extra `test` has it")

from examples import s3_roundtrip  # noqa: E402

SECRET = "nobody-must-read-this"
FIT = ("--n-components", 32, "--random-state", 0, "--length-scale", 2)


@pytest.fixture(scope="module")
def server():
    with s3_roundtrip.s3_server() as options:
        yield options | {"secret": SECRET}


@pytest.fixture
def options(server, no_credentials) -> dict[str, Any]:
    """What leads to the server, in surroundings that know no credentials."""
    return server


@pytest.fixture
def store(options):
    """The server's file system, empty but for one bucket."""
    fs = s3fs.S3FileSystem(**options)
    fs.mkdir("bucket")
    yield fs
    fs.invalidate_cache()
    fs.rm("bucket", recursive=True)


@pytest.fixture
def words(options) -> list[Any]:
    return [part for key, value in options.items() for part in ("--storage-option", f"{key}={value}")]


@pytest.fixture
def bucket(store, rows) -> str:
    """A bucket with the session's rows, as Zarr and as Parquet."""
    store.put(str(rows.zarr), "bucket/rows.zarr", recursive=True)
    frame = pd.read_parquet(rows.parquet).assign(number=np.arange(600), name=[f"row {i}" for i in range(600)])
    with store.open("bucket/rows.parquet", "wb") as file:
        frame.to_parquet(file, index=False)
    return "s3://bucket"


def stored_text(store) -> str:
    return "".join(store.cat_file(path).decode("latin-1") for path in store.find("bucket"))


def test_rows_model_and_predictions(distrff, rows, models, bucket, options, words, store, tmp_path):
    fit = distrff("fit", f"{bucket}/rows.zarr", "--out", f"{bucket}/m.zarr", *FIT, *words, "--json")
    assert fit.json["out"] == f"{bucket}/m.zarr"
    model = drf.load_model(f"{bucket}/m.zarr", storage_options=options)
    local = drf.load_model(str(models["numbers"]))
    np.testing.assert_array_equal(model.coef, local.coef)  # the same bits as from local files
    score = distrff("score", f"{bucket}/m.zarr", f"{bucket}/rows.zarr", *words, "--json")
    assert score.json["r2"] > 0.5

    predict = ("predict", f"{bucket}/m.zarr", f"{bucket}/rows.parquet", "--columns", "a,b,c")
    out = f"{bucket}/p.parquet"
    ids = ("--id", "number", "--id", "name")
    assert distrff(*predict, *ids, "--out", out, *words).code == 0
    frame = pd.read_parquet(out, storage_options=options)
    assert list(frame) == ["number", "name", "prediction"]
    assert frame["name"].tolist() == [f"row {i}" for i in range(600)]
    np.testing.assert_array_equal(frame["prediction"], local.predict(rows.X))
    assert distrff("inspect", out, *words, "--json").json["complete"]

    refused = [distrff.refused(*predict, "--out", place, *words) for place in (out, bucket)]
    assert distrff(*predict, "--out", f"{bucket}/p.zarr", *words).code == 0
    store.get("bucket/p.zarr", str(tmp_path / "p.zarr"), recursive=True)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "p.zarr", mode="r")[:], local.predict(rows.X))

    shown = "".join([*refused, *(f"{done.stdout}{done.stderr}" for done in (fit, score))])
    assert SECRET not in shown + stored_text(store) + str(model.report) + repr(model)


def test_the_same_objects_over_http(bucket, options, store, rows):
    """Files that anybody may read; folders cannot be listed, and a signed URL is shown without its query."""
    url = f"{options['endpoint_url']}/bucket"
    for path in store.find("bucket"):
        store.chmod(path, "public-read")
    for name, how in (("rows.zarr", {}), ("rows.parquet?signature=" + SECRET, {"columns": ["a", "b", "c"]})):
        data = drf.open_dataset(f"{url}/{name}", **how)
        np.testing.assert_array_equal(data.X.compute(scheduler="synchronous"), rows.X)
        assert SECRET not in repr(data)


def test_no_credentials(distrff, bucket, options, tmp_path):
    where = ("--storage-option", f"endpoint_url={options['endpoint_url']}")
    for command in (
        ("fit", f"{bucket}/rows.zarr", "--out", tmp_path / "m.zarr", *FIT),
        ("predict", f"{bucket}/m.zarr", f"{bucket}/rows.zarr", "--out", tmp_path / "p.zarr"),
        ("inspect", f"{bucket}/rows.parquet"),
    ):
        message = distrff.refused(*command, *where)
        assert "give credentials" in message.splitlines()[-1]
        assert "Traceback" not in message
    assert not any(tmp_path.iterdir())
    assert SECRET not in distrff.refused("inspect", f"{bucket}/x", "--storage-option", SECRET)


@pytest.mark.slow
def test_the_example(options, monkeypatch, capsys):
    monkeypatch.setattr(s3_roundtrip, "s3_server", lambda: nullcontext(options))  # it takes seconds to start
    done = s3_roundtrip.main(["--n-rows", "2000", "--n-components", "64", "--workers", "1"])
    assert done["in_order"]
    assert done["columns"] == ["number", "prediction"]
    # Of a target of variance 3/2 and noise 0.1; few features explain more than half.
    assert 0.09 < done["rmse"] < 0.85
    assert "predicted 2,000 rows" in capsys.readouterr().out


class Stopped(Exception):
    """Stands for the death of a process."""


def stop_after(monkeypatch, kind, name, n_calls):
    """Let a method raise Stopped once it has returned so often."""
    method, calls = getattr(kind, name), []

    def counted(*args):
        found = method(*args)
        calls.append(name)
        if len(calls) == n_calls:
            raise Stopped
        return found

    monkeypatch.setattr(kind, name, counted)
    return calls


def test_a_fit_goes_on_from_a_checkpoint_there(store, options, rng, monkeypatch):
    X = rng.standard_normal((4000, 3))
    y, place = np.sin(X[:, 0]), {"checkpoint": "s3://bucket/kept", "storage_options": options}

    def fit(**kept):
        with dask.config.set(scheduler="synchronous"):
            return small_ridge("cv").fit(X, y, **kept)

    with monkeypatch.context() as patched:
        stop_after(patched, Checkpoint, "keep", 2)
        with pytest.raises(Stopped):
            fit(**place, checkpoint_every=0)
    fitted = fit(**place)
    assert any("passes were read from the checkpoint" in note for note in fitted.report_["notes"])
    np.testing.assert_array_equal(fitted.coef_, fit().coef_)
