"""Regression by other losses on the command line: quantiles, counts with exposures, rasters of quantiles."""

import numpy as np
import pandas as pd
import pytest
import zarr

import distrff as drf

FOURIER = ("--features", "fourier", "--n-components", 64, "--length-scale", 1, "--random-state", 0)


@pytest.fixture
def table(rng, tmp_path):
    n = 600
    frame = pd.DataFrame(rng.uniform(-2, 2, (n, 2)), columns=["a", "b"])
    frame["kind"] = rng.choice(["x", "y"], n)
    mean = np.exp(np.sin(frame.a) + (frame.kind == "x"))
    frame["days"] = rng.uniform(0.5, 3, n)
    frame["claims"] = rng.poisson(mean * frame.days)
    frame["delay"] = 10 * frame.a + (1 + frame.b.abs()) * rng.standard_normal(n)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=200)
    return tmp_path


def test_quantiles_from_a_table_to_predictions(distrff, table):
    rows, model, page = table / "rows.csv", table / "m.zarr", table / "m.html"
    told = distrff(
        "fit", rows, "--target", "delay", "--one-hot", "--drop", "claims,days", "--model", "regressor",
        "--quantile", ".1,.5,.9", *FOURIER, "--out", model, "--report", page, "--json",
    ).json  # fmt: skip
    assert told["model"] == "KernelRegressor" and told["loss"] == "quantile"
    assert 0 < told["quality"]["pinball_loss"] < told["quality"]["constant_pinball_loss"]
    text = page.read_text(encoding="utf-8")
    assert "pinball loss" in text and "quantile 0.9" in text and "rows below" in text
    score = distrff("score", model, rows, "--json").json
    (band,) = score["bands"]
    assert band["nominal"] == pytest.approx(0.8) and 0.7 < band["coverage"] < 0.9
    assert "D²" in distrff("score", model, rows).stdout
    assert "fall of D²" in distrff("importance", model, rows).stdout
    told = distrff("calibrate", model, rows, "--json").json
    assert told["method"] == "quantile"
    out = table / "p.parquet"
    assert distrff("predict", model, rows, "--out", out, "--coverage", 0.8).code == 0
    found = pd.read_parquet(out)
    names = [name for name in found.columns if name not in ("lower", "upper")]
    assert [name.rpartition("_")[2] for name in names] == ["0.1", "0.5", "0.9"]
    assert (np.diff(found[names], axis=1) >= 0).all() and (found.lower <= found.upper).all()


def test_counts_with_exposures(distrff, table):
    rows, model = table / "rows.parquet", table / "m.zarr"
    words = ("--target", "claims", "--exposure", "days")
    told = distrff(
        "fit", rows, *words, "--one-hot", "--drop", "delay", "--model", "regressor", "--loss", "poisson",
        *FOURIER, "--out", model, "--json",
    ).json  # fmt: skip
    assert told["loss"] == "poisson" and told["quality"]["d2"] > 0.2
    frame = pd.read_parquet(rows).drop(columns="delay")
    y, exposure = frame.pop("claims"), frame.pop("days")
    features = drf.FourierFeatures(drf.Gaussian(1.0), 64)
    here = drf.KernelRegressor(features, loss="poisson", random_state=0).fit(frame, y, exposure=exposure)
    np.testing.assert_allclose(drf.load_model(str(model)).predict(frame), here.predict(frame), rtol=1e-6)
    score = distrff("score", model, rows, "--exposure", "days", "--json").json
    assert score["d2"] == pytest.approx(here.score(frame, y, exposure=exposure), rel=1e-6)
    assert "no column 'hours'" in distrff.refused("score", model, rows, "--exposure", "hours")
    out = table / "p.csv"
    assert distrff("predict", model, rows, "--exposure", "days", "--out", out).code == 0
    found = pd.read_csv(out)
    np.testing.assert_array_equal(found["days"], exposure)
    np.testing.assert_allclose(found["prediction"], here.predict(frame) * exposure, rtol=1e-6)


def test_rasters_of_quantiles(distrff, rng, tmp_path):
    X = rng.uniform(0, 1, (500, 2))
    frame = pd.DataFrame(X, columns=["lon", "lat"]).assign(y=X[:, 0] + 0.2 * rng.standard_normal(500))
    frame.to_parquet(tmp_path / "rows.parquet")
    model, out = tmp_path / "m.zarr", tmp_path / "map.zarr"
    words = ("--model", "regressor", "--quantile", ".2,.8", *FOURIER)
    assert distrff("fit", tmp_path / "rows.parquet", "--target", "y", *words, "--out", model).code == 0
    done = distrff("raster", model, "--grid", "lon=0:1:5", "--grid", "lat=0:1:4", "--out", out)
    assert done.code == 0, done
    found = zarr.open_group(str(out), mode="r")["prediction"][:]
    lon, lat = np.meshgrid(np.linspace(0, 1, 5), np.linspace(0, 1, 4), indexing="ij")
    expected = drf.load_model(str(model)).predict(np.column_stack([lon.ravel(), lat.ravel()]))
    np.testing.assert_allclose(found.reshape(20, 2), expected, rtol=1e-9)
