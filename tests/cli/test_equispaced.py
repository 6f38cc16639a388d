"""Equispaced features on the command line: options, plans, outside rows and rasters."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

from distrff.model.persistence import load_model

EQUISPACED = ("--features", "equispaced")
# Few modes and a given kernel: what these tests are about is not the search.
GIVEN = (*EQUISPACED, "--kernel", "matern", "--nu", 1.5, "--length-scale", "1,2", "--n-components", 5000)


@pytest.fixture(scope="session")
def places(tmp_path_factory):
    """Rows in the plane with names, and a few more of which one is far away."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("places")
    X = rng.uniform([-2, 10], [2, 14], (800, 2))
    y = np.sin(X[:, 0]) + 0.1 * X[:, 1] + 0.05 * rng.standard_normal(800)
    frame = pd.DataFrame(X, columns=["lat", "lon"]).assign(height=y, kind=np.where(y > 1.2, "hill", "plain"))
    frame[:600].to_parquet(folder / "rows.parquet", index=False)
    frame[600:].assign(lat=np.where(np.arange(200) == 7, 50.0, frame.lat[600:].clip(-1.9, 1.9))).to_parquet(
        folder / "more.parquet", index=False
    )
    return folder


ROWS = ("--columns", "lat,lon")


@pytest.fixture(scope="session")
def model(places, cluster):
    from tests.cli.conftest import Distrff

    out = places / "model.zarr"
    words = (places / "rows.parquet", *ROWS, "--target", "height", *GIVEN, "--out", out)
    done = Distrff(cluster.scheduler_address)("fit", *words)
    assert done.code == 0, done
    return out


def test_it_chooses_kernel_widths_and_alpha_by_default(distrff, places, tmp_path):
    out, page = tmp_path / "m.zarr", tmp_path / "m.html"
    words = (places / "rows.parquet", *ROWS, "--target", "height", *EQUISPACED, "--n-components", 2000)
    done = distrff("fit", *words, "--out", out, "--report", page, "--json")
    assert done.told[0] == "defaults used: --nu auto --length-scale ard --alpha cv"
    assert done.json["solver"] == "toeplitz" and done.json["n_components"] <= 2000
    assert distrff("score", out, places / "rows.parquet", "--target", "height", "--json").json["r2"] > 0.95
    search = load_model(str(out)).report["length_scale_search"]
    kernels = {setting["kernel"].partition("(")[0] for setting in search["settings"]}
    assert kernels == {"Matern", "Gaussian"}
    text = page.read_text(encoding="utf-8")
    assert search["settings"][0]["kernel"] in text


def test_an_option_of_theirs_alone_chooses_them(distrff, places):
    rows = (places / "rows.parquet", *ROWS, "--target", "height", "--length-scale", 1, "--n-components", 500)
    for words in (("--nu", "auto"), ("--bounds", "lat=-3:3"), ("--period", "lon=40"), ("--kernel-tol", 0.01)):
        assert "sums of equispaced features" in distrff("plan", *rows, *words).stdout


def test_rows_outside_are_counted_or_refused(distrff, places, model, tmp_path):
    more = places / "more.parquet"
    predicted = distrff("predict", model, more, "--out", tmp_path / "p.zarr", "--json")
    assert predicted.json["n_outside"] == 1
    assert "1 of 200 rows are outside the bounds of the model, and their results are NaN" in predicted.stderr
    predicted = zarr.open_array(tmp_path / "p.zarr", mode="r")[:]
    assert np.flatnonzero(np.isnan(predicted)).tolist() == [7]
    message = distrff.refused("predict", model, more, "--out", tmp_path / "q.zarr", "--outside", "error")
    assert "outside the bounds of the model" in message and not (tmp_path / "q.zarr").exists()
    scored = distrff("score", model, more, "--target", "height", "--json")
    assert scored.json["n_outside"] == 1
    shown = distrff("score", model, more, "--target", "height").stdout
    assert "outside the bounds: 1 rows, left out" in shown


def test_a_plan_counts_and_inspect_describes(distrff, places, model):
    rows = (places / "rows.parquet", *ROWS, "--target", "height", *GIVEN)
    plan = distrff("plan", *rows)
    assert "sums of equispaced features" in plan.stdout and "predicted" not in plan.stderr
    with_std = distrff("plan", *rows, "--json").json
    without = distrff("plan", *rows, "--no-include-std", "--json").json
    # Samples follow from the sums: no pass more.
    assert with_std["n_sweeps"] == without["n_sweeps"] and with_std["flops"] > without["flops"]
    described = distrff("inspect", model, "--json").json
    assert described["features"] == "equispaced" and described["solver"] == "toeplitz"
    assert described["n_components"] == load_model(str(model)).specification.n_features


def test_what_deviations_need_is_stored_unless_declined_or_too_hard(distrff, places, tmp_path):
    rows = (places / "rows.parquet", *ROWS, "--target", "height", *GIVEN)
    assert distrff("fit", *rows, "--out", tmp_path / "m.zarr", "--no-include-std", "--alpha", 1).code == 0
    assert load_model(str(tmp_path / "m.zarr")).posterior is None
    assert distrff("gram", *rows, "--out", tmp_path / "g.zarr").code == 0
    assert distrff("solve", tmp_path / "g.zarr", "--out", tmp_path / "s.zarr", "--alpha", 1).code == 0
    assert load_model(str(tmp_path / "s.zarr")).posterior is not None
    implied = (*rows[:5], "--bounds", "lat=-3:3", "--kernel", "gaussian", "--length-scale", 1, "--alpha", 1)
    assert distrff("fit", *implied, "--n-components", 900, "--out", tmp_path / "i.zarr").code == 0
    assert load_model(str(tmp_path / "i.zarr")).posterior is not None
    tiny = ("--alpha", 1e-13, "--out", tmp_path / "t.zarr")
    done = distrff("fit", *rows, *tiny)
    assert done.code == 0 and "written without what standard deviations need" in done.stderr
    assert load_model(str(tmp_path / "t.zarr")).posterior is None
    assert "too small" in distrff.refused("fit", *rows, *tiny, "--overwrite", "--include-std")


def test_a_raster_with_deviations(distrff, model, tmp_path):
    out = tmp_path / "map.zarr"
    grid = ("--grid", "lon=9:15:40", "--grid", "lat=-1.5:1.5:30")
    assert "overlap" in distrff.refused("raster", model, *grid, "--out", model / "map.zarr")
    words = ("--return-std", "--draws", 3, "--random-state", 1)
    done = distrff("raster", model, *grid, "--out", out, *words, "--json")
    assert done.json["shape"] == [40, 30] and done.json["dimensions"] == ["lon", "lat"]
    opened = xr.open_zarr(out)
    np.testing.assert_array_equal(opened.lat, np.linspace(-1.5, 1.5, 30))
    assert done.json["n_outside"] == int(np.isnan(opened.prediction).sum()) > 0
    assert opened["std"].dims == ("lon", "lat")
    cell = [[float(opened.lat[14]), float(opened.lon[19])]]
    expected = load_model(str(model)).sample(np.array(cell), 3, random_state=1)[0]
    np.testing.assert_allclose(opened.draws[:, 19, 14], expected, atol=1e-8)
    described = distrff("inspect", out).stdout
    assert "raster" in described and "prediction  (40, 30)" in described
    assert "--overwrite" in distrff.refused("raster", model, *grid, "--out", out)
    assert distrff("raster", model, *grid, "--out", out, "--overwrite").code == 0


def test_a_time_is_a_third_column_with_a_width_of_its_own(distrff, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform([-2, 10], [2, 12], (400, 2))
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.uniform(0, 90, 400), unit="D")
    frame = pd.DataFrame(X, columns=["lat", "lon"]).assign(day=day, height=np.sin(X[:, 0]))
    frame.to_parquet(tmp_path / "rows.parquet", index=False)
    model, out = tmp_path / "m.zarr", tmp_path / "map.zarr"
    fit = ("fit", tmp_path / "rows.parquet", "--target", "height", *EQUISPACED, "--n-components", 2000)
    # Angles of the year, the week and the day are too many columns.
    assert "times as seconds" in distrff.refused(*fit, "--datetime", "parts", "--out", model)
    assert distrff(*fit, "--datetime", "seconds", "--out", model).code == 0
    assert len(load_model(str(model)).specification.kernel.length_scale) == 3
    grid = ("--grid", "lat=-1:1:3", "--grid", "lon=10:12:4", "--grid", "day=2024-01-05:2024-03-05T12:5")
    wkt = 'GEOGCRS["WGS 84",DATUM["World",ELLIPSOID["WGS 84",6378137,298.257223563]],CS[ellipsoidal,2],'
    wkt += 'AXIS["latitude",north],AXIS["longitude",east],ANGLEUNIT["degree",0.0174532925199433]]'
    done = distrff("raster", model, *grid, "--out", out, "--crs", wkt)
    assert done.code == 0, done
    opened = xr.open_zarr(out)
    assert opened.prediction.shape == (3, 4, 5) and "WGS 84" in opened.spatial_ref.attrs["crs_wkt"]
    expected = pd.date_range("2024-01-05", "2024-03-05T12", periods=5)
    assert abs(pd.DatetimeIndex(opened.day.values) - expected).max() < pd.Timedelta("1ms")
    assert "prediction  (3, 4, 5)" in distrff("inspect", out).stdout


def test_bounds_periods_and_grids_name_columns_or_number_them(distrff, places, tmp_path):
    rows = (places / "rows.parquet", *ROWS, "--target", "height", *GIVEN, "--alpha", 1, "--overwrite")
    model, out = tmp_path / "m.zarr", tmp_path / "map.zarr"
    for lat, lon in (("lat", "lon"), ("0", "1")):
        words = ("--bounds", f"{lat}=-3:3.5", "--period", f"{lon}=40", "--out", model)
        assert distrff("fit", *rows, *words).code == 0
        lattice = load_model(str(model)).specification.lattice
        assert lattice.bounds == ((-3.0, 3.5), None)
        assert lattice.spacing[1] == 1 / 40
    group = zarr.open_group(tmp_path / "plain.zarr", mode="w")
    X = pd.read_parquet(places / "rows.parquet")[["lat", "lon"]].to_numpy()
    group.create_array("X", data=X), group.create_array("y", data=X.sum(axis=1))
    words = (*GIVEN, "--alpha", 1, "--bounds", "1=9:15", "--out", model, "--overwrite")
    assert distrff("fit", tmp_path / "plain.zarr", *words).code == 0
    done = distrff("raster", model, "--grid", "1=9.5:14.5:6", "--grid", "0=-1:1:5", "--out", out, "--json")
    assert done.json["n_outside"] == 0 and done.json["shape"] == [6, 5]


def test_a_trend_from_fit_to_raster(distrff, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.uniform(0, 1, (400, 3)), columns=["lon", "lat", "shade"])
    frame["heat"] = np.sin(5 * frame.lon) - 2 * frame.shade + 0.05 * rng.standard_normal(400)
    frame.to_parquet(tmp_path / "rows.parquet", index=False)
    words = ("--target", "heat", "--trend", "shade", "--nu", 1.5, "--n-components", 2000, "--alpha", 0.01)
    fit = (
        "fit",
        tmp_path / "rows.parquet",
        *words,
        "--bounds",
        "lon=0:1",
        "--bounds",
        "lat=0:1",
        "--include-std",
    )
    done = distrff(
        *fit, "--length-scale", 0.5, "--out", tmp_path / "m.zarr", "--json", "--report", tmp_path / "m.html"
    )
    told = done.json["trend"]
    assert told["columns"] == ["shade"]
    assert abs(told["coef"][0][0] + 2) < 6 * told["std_error"][0][0] < 0.5
    shade = xr.Dataset({"shade": (("lat", "lon"), rng.uniform(0, 1, (3, 4)))})
    shade.to_zarr(tmp_path / "shade.zarr")
    raster = (
        "raster",
        tmp_path / "m.zarr",
        "--grid",
        "lon=0:1:4",
        "--grid",
        "lat=0:1:3",
        "--out",
        tmp_path / "r.zarr",
    )
    refused = distrff(*raster)
    assert refused.code != 0 and "covariate 'shade'" in refused.stderr
    assert distrff(*raster, "--covariates", tmp_path / "none.nc").code != 0
    assert distrff(*raster, "--covariates", tmp_path / "shade.zarr", "--return-std").code == 0
    lon, lat = np.meshgrid(np.linspace(0, 1, 4), np.linspace(0, 1, 3))
    cells = pd.DataFrame({"lon": lon.ravel(), "lat": lat.ravel(), "shade": shade.shade.to_numpy().ravel()})
    mean = load_model(str(tmp_path / "m.zarr")).predict(cells).reshape(3, 4)
    np.testing.assert_allclose(xr.open_zarr(tmp_path / "r.zarr").prediction.T, mean, atol=1e-6)
