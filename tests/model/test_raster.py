"""Rasters: the same values as `predict`, in a Zarr group that xarray opens."""

import shutil
import sys

import dask
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import distrff as drf
from distrff.errors import DataWarning, InputError, PlanRefused
from distrff.io.storage import Location, header_of
from distrff.model import raster
from distrff.model.write import frozen_model

pytestmark = pytest.mark.usefixtures("in_this_thread")

COLUMNS = ["lat", "lon"]


def rows(seed: int, n: int = 600, d: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 4, (n, d)) + np.arange(d) * 10
    return X, np.sin(X.sum(axis=1)) + 0.1 * rng.standard_normal(n)


def equispaced(**how) -> drf.EquispacedFourierFeatures:
    return drf.EquispacedFourierFeatures(drf.Matern(1.0, nu=1.5), 2001, tol=0.01, **how)


def random_features() -> drf.FourierFeatures:
    return drf.FourierFeatures(drf.Gaussian(1.0), 64, random_state=0)


MAPS = {"equispaced": equispaced, "random": random_features}
# Beside the bounds of `rows`, where equispaced features are NaN.
GRID = {"lon": np.linspace(9.5, 14.2, 23), "lat": np.linspace(0.1, 3.9, 17)}


def fitted(map_name: str = "equispaced", seed: int = 0):
    X, y = rows(seed)
    return drf.KernelRidge(MAPS[map_name](), alpha=1e-2).fit(pd.DataFrame(X, columns=COLUMNS), y)


def predicted(model, grid, **how):
    """What `predict` gives for the same cells, in the order of the grid's dimensions."""
    mesh = dict(zip(grid, np.meshgrid(*grid.values(), indexing="ij"), strict=True))
    X = np.stack([mesh[name].ravel() for name in model.model_.column_names], axis=1)
    found = frozen_model(model, bool(how)).predict(X, **how)
    shape = tuple(map(len, grid.values()))
    return [f.reshape(*shape, *f.shape[1:]) for f in (found if isinstance(found, tuple) else (found,))]


@pytest.fixture
def small_chunks(monkeypatch):
    """Six chunks of a grid of 23 times 17."""
    monkeypatch.setattr(raster, "_CHUNK_CELLS", 80)


@pytest.mark.parametrize("map_name", MAPS)
def test_a_raster_holds_the_predictions_of_its_cells(map_name, tmp_path, small_chunks, rng):
    model = fitted(map_name, int(rng.integers(2**31)))
    report = drf.predict_raster(model, GRID, str(tmp_path / "map.zarr"))
    (expected,) = predicted(model, GRID)
    opened = xr.open_zarr(tmp_path / "map.zarr")
    assert opened.prediction.dims == ("lon", "lat") and opened.prediction.chunks != ((23,), (17,))
    for name, x in GRID.items():
        np.testing.assert_array_equal(opened[name], x)
    # Both are sums of the same terms, by other algorithms: transforms of rows are to 1e-10 of the norm.
    np.testing.assert_allclose(opened.prediction, expected, atol=1e-8)
    assert report["n_outside"] == np.isnan(expected).sum() == int(np.isnan(opened.prediction).sum())
    assert (report["n_outside"] > 0) == (map_name == "equispaced")
    assert report["shape"] == (23, 17) and report["dimensions"] == ["lon", "lat"]


@pytest.mark.parametrize("of", [True, "observation"])
@pytest.mark.parametrize("map_name", MAPS)
def test_deviations_are_those_of_predict(map_name, of, tmp_path, small_chunks):
    model = fitted(map_name)
    drf.predict_raster(model, GRID, str(tmp_path / "map.zarr"), return_std=of)
    _, std = predicted(model, GRID, return_std=of)
    opened = xr.open_zarr(tmp_path / "map.zarr")
    # Deviations of equispaced features are sums of transforms to 1e-5.
    np.testing.assert_allclose(opened["std"], std, rtol=1e-3)
    assert opened["std"].dims == ("lon", "lat") and opened["std"].attrs["long_name"]


@pytest.mark.parametrize("n_targets", [0, 2])
@pytest.mark.parametrize("map_name", MAPS)
def test_draws_are_those_of_sample_whatever_the_chunks(map_name, n_targets, tmp_path, monkeypatch, rng):
    X, y = rows(int(rng.integers(2**31)))
    Y = np.column_stack([y, -2 * y**2]) if n_targets else y
    model = drf.KernelRidge(MAPS[map_name](), alpha=1e-2).fit(pd.DataFrame(X, columns=COLUMNS), Y)
    drf.predict_raster(model, GRID, str(tmp_path / "one.zarr"), draws=3, random_state=7)
    monkeypatch.setattr(raster, "_CHUNK_CELLS", 80)
    drf.predict_raster(model, GRID, str(tmp_path / "six.zarr"), draws=3, random_state=7)
    layers = [xr.open_zarr(tmp_path / f"{name}.zarr").draws for name in ("one", "six")]
    targets = ("target",) if n_targets else ()
    for layer in layers:
        assert layer.dims == ("draw", "lon", "lat", *targets) and layer.chunks[0] == (1, 1, 1)
    assert layers[0].chunks[1] == (23,) and layers[1].chunks[1] != (23,)
    np.testing.assert_allclose(*layers, atol=1e-8)
    lon, lat = np.meshgrid(GRID["lon"], GRID["lat"], indexing="ij")
    cells = np.column_stack([lat.ravel(), lon.ravel()])
    expected = model.model_.sample(cells, 3, random_state=7)
    found = layers[1].transpose("lon", "lat", *targets, "draw").values
    np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-8)


def test_draws_are_refused_where_there_are_none(tmp_path):
    X, y = rows(0)
    model = drf.KernelRidgeClassifier(random_features(), alpha=1e-2).fit(X, y > 0)
    grid = {0: [1.0], 1: [11.0]}
    with pytest.raises(InputError, match="draws are of numbers"):
        drf.predict_raster(model, grid, str(tmp_path / "map.zarr"), draws=2)
    with pytest.raises(InputError, match="draws must be an integer of at least 0"):
        drf.predict_raster(model, grid, str(tmp_path / "map.zarr"), draws=-1)
    with pytest.raises(InputError, match="at most 64"):
        drf.predict_raster(fitted(), GRID, str(tmp_path / "map.zarr"), draws=65)
    assert not list(tmp_path.iterdir())


def test_several_targets_have_a_dimension(tmp_path):
    X, y = rows(0)
    model = drf.KernelRidge(equispaced(), alpha=1e-2).fit(X, np.column_stack([y, -2 * y, y**2]))
    grid = {0: np.linspace(0, 4, 7), 1: np.linspace(10, 14, 5)}
    drf.predict_raster(model, grid, str(tmp_path / "map.zarr"))
    opened = xr.open_zarr(tmp_path / "map.zarr")
    assert opened.prediction.dims == ("0", "1", "target") and opened.prediction.shape == (7, 5, 3)
    G = np.stack([g.ravel() for g in np.meshgrid(*grid.values(), indexing="ij")], axis=1)
    np.testing.assert_allclose(opened.prediction.values.reshape(35, 3), model.predict(G), atol=1e-8)


@pytest.mark.parametrize("map_name", MAPS)
def test_classes_are_codes_with_their_labels_as_flags(map_name, tmp_path, small_chunks):
    X, y = rows(0)
    labels = np.array(["low", "in between", "high"])[np.digitize(y, [-0.5, 0.5])]
    model = drf.KernelRidgeClassifier(MAPS[map_name](), alpha=1e-2)
    model.fit(pd.DataFrame(X, columns=COLUMNS), labels)
    report = drf.predict_raster(model, GRID, str(tmp_path / "map.zarr"))
    layer = xr.open_zarr(tmp_path / "map.zarr", mask_and_scale=False).prediction
    assert layer.dtype == np.int32
    assert layer.attrs["flag_meanings"].split() == ["high", "in_between", "low"]
    assert list(layer.attrs["flag_values"]) == [0, 1, 2]
    inside = layer.values >= 0
    assert (~inside).sum() == report["n_outside"]
    mesh = np.meshgrid(GRID["lon"], GRID["lat"], indexing="ij")
    G = pd.DataFrame({"lat": mesh[1][inside], "lon": mesh[0][inside]})
    np.testing.assert_array_equal(model.classes_[layer.values[inside]], model.predict(G))


def test_a_column_of_one_value_is_an_axis_of_one_coordinate(tmp_path):
    X, y = rows(0, d=1)
    X = np.column_stack([X[:, 0], np.full(len(X), 7.0)])
    model = drf.KernelRidge(equispaced(), alpha=1e-2).fit(X, y)
    grid = {0: np.linspace(0.5, 3.5, 9), 1: [7.0, 8.0]}
    with pytest.warns(DataWarning, match="9 of 18 cells are outside the bounds"):
        report = drf.predict_raster(model, grid, str(tmp_path / "map.zarr"))
    opened = xr.open_zarr(tmp_path / "map.zarr").prediction.values
    assert report["n_outside"] == 9 and np.isnan(opened[:, 1]).all()
    expected = model.predict(np.column_stack([np.linspace(0.5, 3.5, 9), np.full(9, 7.0)]))
    np.testing.assert_allclose(opened[:, 0], expected, atol=1e-8)


def test_the_bits_depend_on_where_it_is_made(tmp_path, client):
    model = fitted()
    drf.predict_raster(model, GRID, str(tmp_path / "a.zarr"))
    with client.as_current(), dask.config.set(scheduler=None):
        report = drf.predict_raster(model, GRID, str(tmp_path / "b.zarr"))
    assert report["workers"] == 2
    a, b = (xr.open_zarr(tmp_path / name).prediction for name in ("a.zarr", "b.zarr"))
    np.testing.assert_array_equal(a, b)


def test_a_raster_is_replaced_only_by_overwrite_and_other_things_never(tmp_path):
    model, out = fitted(), tmp_path / "map.zarr"
    drf.predict_raster(model, GRID, str(out))
    with pytest.raises(InputError, match="overwrite"):
        drf.predict_raster(model, GRID, str(out))
    drf.predict_raster(model, {"lat": [1.0], "lon": [11.0]}, str(out), overwrite=True)
    assert xr.open_zarr(out).prediction.shape == (1, 1)
    model.save(str(tmp_path / "model.zarr"))
    with pytest.raises(InputError):
        drf.predict_raster(model, GRID, str(tmp_path / "model.zarr"), overwrite=True)
    drf.load_model(str(tmp_path / "model.zarr"))


def test_a_raster_that_fails_leaves_nothing(tmp_path, monkeypatch):
    model = fitted()

    def full(*_):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(raster, "grid_values", full)
    with pytest.raises((OSError, InputError)):
        drf.predict_raster(model, GRID, str(tmp_path / "map.zarr"))
    assert not list(tmp_path.iterdir())


def test_xarray_can_write_it_on_as_netcdf(tmp_path):
    drf.predict_raster(fitted(), GRID, str(tmp_path / "map.zarr"))
    xr.open_zarr(tmp_path / "map.zarr").to_netcdf(tmp_path / "map.nc", engine="scipy")
    again = xr.open_dataset(tmp_path / "map.nc", engine="scipy")
    assert again.prediction.shape == (23, 17) and "KernelRidge" in again.attrs["title"]
    header = header_of(Location.of(str(tmp_path / "map.zarr")).root())
    assert header["kind"] == "raster" and header["complete"]


GEOGRAPHIC = (
    'GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563]],PRIMEM["Greenwich",0],'
    'UNIT["degree",0.0174532925199433]]'
)
PLANAR = (
    f'PROJCS["UTM 33N",{GEOGRAPHIC},PROJECTION["Transverse_Mercator"],PARAMETER["latitude_of_origin",0],'
    'PARAMETER["central_meridian",15],PARAMETER["scale_factor",0.9996],PARAMETER["false_easting",500000],'
    'PARAMETER["false_northing",0],UNIT["metre",1]]'
)


def test_coordinates_say_what_they_are_by_the_conventions(tmp_path):
    drf.predict_raster(fitted("random"), GRID, str(tmp_path / "map.zarr"))
    opened = xr.open_zarr(tmp_path / "map.zarr")
    assert opened.attrs["Conventions"].startswith("CF-")
    assert opened.lon.attrs == {"standard_name": "longitude", "units": "degrees_east", "axis": "X"}
    assert opened.lat.attrs == {"standard_name": "latitude", "units": "degrees_north", "axis": "Y"}
    assert "grid_mapping" not in opened.prediction.attrs and "spatial_ref" not in opened.variables
    X, y = rows(0)
    # Of an x nobody knows whether it lies on the earth.
    model = drf.KernelRidge(random_features(), alpha=1e-2).fit(pd.DataFrame(X, columns=["x", "y"]), y)
    drf.predict_raster(model, {"y": [11.0], "x": [1.0]}, str(tmp_path / "plain.zarr"))
    assert not xr.open_zarr(tmp_path / "plain.zarr").x.attrs


@pytest.mark.parametrize("library", ["pyproj", None])
@pytest.mark.parametrize(
    ("wkt", "name", "standard"),
    [
        (GEOGRAPHIC, "lon", "longitude"),
        (GEOGRAPHIC, "x", "longitude"),
        (PLANAR, "x", "projection_x_coordinate"),
    ],
    ids=["lon", "x of degrees", "x of metres"],
)
def test_a_reference_system_goes_with_every_layer(library, wkt, name, standard, tmp_path, monkeypatch):
    if library is None:
        monkeypatch.setitem(sys.modules, "pyproj", None)
    else:
        pytest.importorskip("pyproj")
    X, y = rows(0)
    model = drf.KernelRidge(random_features(), alpha=1e-2).fit(pd.DataFrame(X, columns=["lat", name]), y)
    grid = {"lat": [1.0, 2.0], name: [11.0, 12.0]}
    drf.predict_raster(model, grid, str(tmp_path / "map.zarr"), crs=wkt, return_std=True, draws=2)
    opened = xr.open_zarr(tmp_path / "map.zarr")
    assert "spatial_ref" in opened.coords and set(opened.data_vars) == {"prediction", "std", "draws"}
    assert all(layer.attrs["grid_mapping"] == "spatial_ref" for layer in opened.data_vars.values())
    text = opened.spatial_ref.attrs
    assert text["crs_wkt"] == text["spatial_ref"] and "WGS 84" in text["crs_wkt"]
    assert opened[name].attrs["standard_name"] == standard and opened[name].attrs["axis"] == "X"


def test_epsg_codes_are_read_by_pyproj(tmp_path, monkeypatch):
    pytest.importorskip("pyproj")
    X, y = rows(0)
    model = drf.KernelRidge(random_features(), alpha=1e-2).fit(pd.DataFrame(X, columns=["x", "y"]), y)
    for crs in (32633, "32633", "EPSG:32633"):
        grid = {"y": [11.0], "x": [1.0]}
        drf.predict_raster(model, grid, str(tmp_path / "map.zarr"), crs=crs, overwrite=True)
        opened = xr.open_zarr(tmp_path / "map.zarr")
        assert opened.spatial_ref.attrs["grid_mapping_name"] == "transverse_mercator"
        assert opened.y.attrs["standard_name"] == "projection_y_coordinate"
        assert opened.y.attrs["units"] == "metre"
    with pytest.raises(InputError, match="'nonsense' is not known"):
        drf.predict_raster(model, grid, str(tmp_path / "other.zarr"), crs="nonsense")


def test_codes_without_pyproj_are_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyproj", None)
    for crs in (4326, "EPSG:4326"):
        with pytest.raises(InputError, match="install pyproj, or give the system as WKT"):
            drf.predict_raster(fitted("random"), GRID, str(tmp_path / "map.zarr"), crs=crs)
    assert not list(tmp_path.iterdir())


def test_rioxarray_writes_a_geotiff(tmp_path):
    rioxarray = pytest.importorskip("rioxarray")
    drf.predict_raster(fitted("random"), GRID, str(tmp_path / "map.zarr"), crs=GEOGRAPHIC)
    opened = xr.open_zarr(tmp_path / "map.zarr", decode_coords="all")
    opened.prediction.transpose("lat", "lon").rio.to_raster(tmp_path / "map.tif")
    again = rioxarray.open_rasterio(tmp_path / "map.tif")
    assert again.rio.crs.is_geographic and again.shape == (1, 17, 23)


def test_times_are_coordinates_as_the_fit_took_them(tmp_path, rng):
    X, _ = rows(int(rng.integers(2**31)))
    day = rng.uniform(0, 300, len(X))
    frame = pd.DataFrame(X, columns=COLUMNS).assign(
        day=pd.Timestamp("2024-01-01 06:00") + pd.to_timedelta(day, unit="D"), y=X[:, 0] + np.sin(day / 50)
    )
    data = drf.open_dataset(frame, target="y", datetime="seconds")
    features = drf.EquispacedFourierFeatures(drf.Gaussian((2.0, 2.0, 5e6)), 4001, tol=0.05)
    model = drf.KernelRidge(features, alpha=1e-2).fit(data)
    days = pd.date_range("2024-01-05", periods=4, freq="60D")
    for given in (days, days.strftime("%Y-%m-%d").tolist()):
        grid = {"day": given, "lat": [1.0, 2.0], "lon": [11.0]}
        drf.predict_raster(model, grid, str(tmp_path / "map.zarr"), overwrite=True)
        opened = xr.open_zarr(tmp_path / "map.zarr")
        # Seconds from the first time of the fit, which has nanoseconds; float64 keeps some 1e-8 of them.
        apart = pd.DatetimeIndex(opened.day.values) - days
        assert abs(apart).max() < pd.Timedelta("1us")
        cells = pd.DataFrame({"lat": 2.0, "lon": 11.0, "day": days})
        np.testing.assert_allclose(opened.prediction[:, 1, 0], model.predict(cells), atol=1e-7)
    with pytest.raises(InputError, match="NaN or infinity"):
        drf.predict_raster(model, {**grid, "day": [np.datetime64("NaT")]}, str(tmp_path / "other.zarr"))
    with pytest.raises(InputError, match="must be numbers"):
        drf.predict_raster(model, {**grid, "day": ["morning"]}, str(tmp_path / "other.zarr"))


@pytest.mark.parametrize(
    ("grid", "match"),
    [
        ([1, 2], "must map each column"),
        ({"lat": [1.0]}, "no coordinates of column 'lon'"),
        ({"lat": [1.0], "lon": [1.0], "height": [0.0]}, "no column 'height'; its columns are lat, lon"),
        ({"lat": [], "lon": [1.0]}, "with values"),
        ({"lat": [[1.0]], "lon": [1.0]}, "1-D"),
        ({"lat": ["north"], "lon": [1.0]}, "must be numbers"),
        ({"lat": [1.0, 3.0, 2.0], "lon": [1.0]}, "must rise, or fall"),
        ({"lat": [1.0, 1.0], "lon": [1.0]}, "must rise, or fall"),
        ({"lat": [np.nan], "lon": [1.0]}, "NaN"),
    ],
)
def test_grids_that_are_none_are_refused(grid, match, tmp_path):
    with pytest.raises(InputError, match=match):
        drf.predict_raster(fitted(), grid, str(tmp_path / "map.zarr"))
    assert not list(tmp_path.iterdir())


def test_a_raster_larger_than_the_disk_is_refused(tmp_path, monkeypatch):
    model = fitted()
    with pytest.raises(PlanRefused, match=r"1,000,000,000,000 cells has .* chunks, more than 100,000"):
        grid = {"lat": np.linspace(0, 4, 10**6), "lon": np.linspace(10, 14, 10**6)}
        drf.predict_raster(model, grid, str(tmp_path / "map.zarr"))
    monkeypatch.setattr(raster.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 1000))
    with pytest.raises(PlanRefused, match=r"takes up to 3\.13 kB, and .* has 1 kB free"):
        drf.predict_raster(model, GRID, str(tmp_path / "map.zarr"))
    assert not list(tmp_path.iterdir())


def test_a_grid_that_is_all_outside_is_said(tmp_path):
    with pytest.warns(DataWarning, match="all cells are outside the bounds"):
        drf.predict_raster(fitted(), {"lat": [100.0], "lon": [12.0]}, str(tmp_path / "map.zarr"))
