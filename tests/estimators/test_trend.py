"""Covariates beside equispaced features against dense generalised least squares, and what surrounds them."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.stats import binom

import distrff as drf
from distrff.errors import InputError

pytestmark = pytest.mark.usefixtures("in_this_thread")

TOL = 1e-10  # of the solver
ALPHA = 0.3


def made(rng, n=300, field=lambda X: np.sin(5 * X["lon"]) + np.cos(4 * X["lat"])):
    """Places with an elevation in metres and an index; targets 0.1 off a field and −0.0065 a metre."""
    X = pd.DataFrame({"lon": rng.uniform(0, 1, n), "elevation": 1000 + 200 * rng.standard_normal(n)})
    X["lat"], X["index"] = rng.uniform(0, 1, n), rng.standard_normal(n)
    return X, field(X) - 0.0065 * X["elevation"] + 0.5 * X["index"] + 0.1 * rng.standard_normal(n)


def features(**how):
    how = {
        "kernel": drf.Gaussian(0.4),
        "n_components": 225,
        "tol": 1e-2,
        "trend": ["elevation", "index"],
    } | how
    return drf.EquispacedFourierFeatures(how.pop("kernel"), **how)


def dense(model, X, Y, s, alpha):
    """Z with the intercept in its first column, M, and (w, b, beta) of all features at once."""
    Z, Y, s = model.features_.transform(X.to_numpy()), np.asarray(Y), np.asarray(s)
    Z[:, 0] = 1.0
    penalty = np.full(Z.shape[1], alpha)
    penalty[[0, *range(-len(model.report_["trend"]["columns"]), 0)]] = 0.0
    M = (s[:, None] * Z).T @ Z + np.diag(penalty)
    return Z, M, np.linalg.solve(M, (s[:, None] * Z).T @ Y), penalty


@pytest.mark.parametrize("trend", [["elevation", "index"], ["linear", "elevation", 3]])
def test_equals_dense_generalised_least_squares(trend, rng):
    X, y = made(rng)
    s, Y = rng.uniform(0.5, 2.0, len(X)), np.stack([y, X["lon"] - y], axis=1)
    model = drf.KernelRidge(features(trend=trend), alpha=ALPHA, tol=TOL).fit(X, Y, s)
    Z, M, w, penalty = dense(model, X, Y, s, ALPHA)
    np.testing.assert_allclose(model.predict(X), Z @ w, rtol=1e-6)
    told, p = model.report_["trend"], len(model.features_.trend_.columns)
    assert told["columns"] == (["lon", "lat"] if p == 4 else []) + ["elevation", "index"]
    scale = np.array(model.features_.trend_.scale)[:, None]
    np.testing.assert_allclose(told["coef"], w[-p:] / scale, rtol=1e-6)
    J = (s[:, None] * np.square(Y - Z @ w)).sum(axis=0) + penalty @ np.square(w)
    errors = np.sqrt(np.outer(np.diag(np.linalg.inv(M))[-p:], J / (s.sum() - p - 1))) / scale
    np.testing.assert_allclose(told["std_error"], errors, rtol=1e-5)
    lattice = np.linalg.norm(w[1:-p], axis=0)
    np.testing.assert_allclose(model.rkhs_norm_, lattice, rtol=1e-6)


def test_folds_leave_out_their_rows(rng):
    X, y = made(rng)
    model = drf.KernelRidge(features(), alpha="cv", alphas=[ALPHA], cv=3, fold_by="contiguous", tol=TOL)
    model.fit(X, y)
    expected = np.empty(len(X))
    for own in np.split(np.arange(len(X)), 3):
        rest = np.setdiff1d(np.arange(len(X)), own)
        _, _, w, _ = dense(model, X.iloc[rest], y.iloc[rest], np.ones(len(rest)), ALPHA)
        expected[own] = dense(model, X.iloc[own], y.iloc[own], np.ones(len(own)), ALPHA)[0] @ w
    found = drf.cross_val_predict(model, X, y)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_samples_have_the_covariance_of_all_coefficients(rng):
    X, y = made(rng)
    model = drf.KernelRidge(features(), alpha=ALPHA, tol=TOL).fit(X, y)
    P, _ = made(rng, 5)
    P["elevation"] += [0, 2000, 0, 0, -3000]  # far off, where the trend is what is not known
    mean, std = model.predict(P, return_std=True)
    posterior = model.model_.posterior
    _, M, _, penalty = dense(model, X, y, np.ones(len(X)), ALPHA)
    dimension = len(M) - penalty @ np.diag(np.linalg.inv(M))
    # The mean of 64 estimates len(M) − alpha‖x‖², each of variance 2·len(M) at most; six deviations.
    assert abs(posterior.effective_dimension - dimension) < 6 * np.sqrt(2 * len(M) / 64)
    Zp = dense(model, P, np.zeros(5), np.ones(5), ALPHA)[0]
    exact = posterior.noise[0] * Zp @ np.linalg.solve(M, Zp.T)
    draws = model.sample(P, 64) - mean[:, None]
    np.testing.assert_allclose(np.sqrt(np.square(draws).mean(axis=1)), std, rtol=1e-3)
    variance = np.diag(exact)
    error = np.sqrt((np.outer(variance, variance) + np.square(exact)) / 64)
    assert (np.abs(draws @ draws.T / 64 - exact) <= 6 * error).all()


FIELD = drf.Matern(0.3, nu=1.5)


@pytest.mark.parametrize(
    ("n_fits", "kernel", "alpha"),
    [(12, FIELD, 0.01), pytest.param(100, drf.Matern("auto", nu=1.5), "cv", marks=pytest.mark.slow)],
)
def test_coefficients_are_within_two_standard_errors(n_fits, kernel, alpha, rng):
    within = 0
    for _ in range(n_fits):
        X, _ = made(rng, 400)
        X = X[["lon", "lat", "elevation"]]
        # The covariate varies over the map as the field does, which is what makes least squares too sure.
        L = np.linalg.cholesky(FIELD(X[["lon", "lat"]].to_numpy()) + 1e-10 * np.eye(len(X)))
        field, height = (L @ rng.standard_normal((len(X), 2))).T
        # Chosen widths may be off by a factor of three, for which a covariate as smooth as that is too hard.
        height = height if alpha != "cv" else (height + rng.standard_normal(len(X))) / np.sqrt(2)
        X = X.assign(elevation=1000 + 200 * height)
        y = field - 0.0065 * X["elevation"] + 0.1 * rng.standard_normal(len(X))
        how = features(kernel=kernel, n_components=4000, trend=["elevation"])
        told = drf.KernelRidge(how, alpha=alpha, random_state=0).fit(X, y).report_["trend"]
        within += abs(told["coef"][0][0] + 0.0065) <= 2 * told["std_error"][0][0]
    # Of known kernels a share of .954, and of chosen ones somewhat less.
    assert within >= (89 if n_fits == 100 else binom.ppf(1e-6, n_fits, 0.95))


def test_a_search_finds_the_kernel_under_the_trend(rng):
    X, y = made(rng, 500)
    rest = y + 0.0065 * X["elevation"] - 0.5 * X["index"]
    new, _ = made(rng, 400)
    truth = np.sin(5 * new["lon"]) + np.cos(4 * new["lat"])
    how = {
        "kernel": drf.Matern("auto", nu=1.5),
        "n_components": 1500,
        "bounds": {"lon": (0, 1), "lat": (0, 1)},
    }
    model = drf.KernelRidge(features(**how), random_state=0).fit(X, y)
    other = drf.KernelRidge(features(**how, trend=None), random_state=0).fit(X[["lon", "lat"]], rest)
    error = model.predict(new) + 0.0065 * new["elevation"] - 0.5 * new["index"] - truth
    known = other.predict(new[["lon", "lat"]]) - truth
    # Two coefficients more than the map has: errors of 0.1/√500 each, seen at deviations of about 1.
    assert np.sqrt(np.mean(error**2)) <= 1.5 * np.sqrt(np.mean(known**2)) + 6 * 0.1 * np.sqrt(2 / 500)
    assert "settings" in model.features_.length_scale_search_


@pytest.fixture
def fitted(rng):
    X, y = made(rng)
    return drf.KernelRidge(features(bounds={"lon": (0, 1), "lat": (0, 1)}), alpha=ALPHA).fit(X, y)


def test_it_is_stored_with_its_samples(fitted, rng, tmp_path):
    P, _ = made(rng, 20)
    mean, std = fitted.predict(P, return_std=True)
    fitted.save(str(tmp_path / "m.zarr"), include_std=True)
    stored = drf.load_model(str(tmp_path / "m.zarr"))
    assert stored.predict(P).tobytes() == mean.tobytes()
    assert stored.std(P).tobytes() == std.tobytes()
    outside = P.assign(lon=2.0)
    assert np.isnan(stored.predict(outside)).all()
    assert stored.predict(outside.assign(lon=0.5, elevation=9000.0)) == pytest.approx(
        fitted.predict(P.assign(lon=0.5, elevation=9000.0)), rel=1e-12
    )


def cells(rng):
    lat, lon = np.linspace(0, 1, 7), np.linspace(0, 1, 5)
    grid = {"lat": lat, "lon": lon}
    height = xr.DataArray(1000 + 200 * rng.standard_normal((5, 7)), {"lon": lon, "lat": lat}, ("lon", "lat"))
    height[1, 2] = np.nan
    return grid, xr.Dataset({"elevation": height, "index": 0.1 * height.T})


@pytest.mark.parametrize("by_rows", [False, True])
def test_a_raster_takes_covariates_by_the_names_of_their_dimensions(
    fitted, by_rows, rng, tmp_path, monkeypatch
):
    monkeypatch.setattr("distrff.model.raster._CHUNK_CELLS", 8)
    if by_rows:
        monkeypatch.setattr("distrff.features.equispaced._MAX_AXIS_NUMBERS", 0)
    grid, covariates = cells(rng)
    out = str(tmp_path / "r.zarr")
    report = drf.predict_raster(fitted, grid, out, covariates=covariates, return_std=True, draws=2)
    assert report["n_outside"] == 1
    raster = xr.open_zarr(out)
    rows = covariates.to_dataframe(["lat", "lon"]).reset_index()
    complete = rows["elevation"].notna().to_numpy()
    rows = rows.loc[complete, ["lon", "elevation", "lat", "index"]]
    mean, std = fitted.predict(rows, return_std=True)
    for name, expected in {"prediction": mean, "std": std, "draws": fitted.sample(rows, 2).T}.items():
        values = raster[name].to_numpy().reshape(*expected.shape[:-1], -1)
        assert np.isnan(values[..., ~complete]).all()
        np.testing.assert_allclose(values[..., complete], expected, rtol=2e-4)
    arrays = {name: covariates[name].transpose("lat", "lon").to_numpy().tolist() for name in covariates}
    drf.predict_raster(fitted, grid, str(tmp_path / "again.zarr"), covariates=arrays)
    np.testing.assert_array_equal(
        xr.open_zarr(str(tmp_path / "again.zarr"))["prediction"], raster["prediction"]
    )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda c: None, "has a covariate 'elevation'; give its values"),
        (lambda c: c[["elevation"]], "has a covariate 'index'"),
        (lambda c: c.rename(lat="y"), "has dimensions"),
        (lambda c: c.isel(lat=slice(3)), "has shape"),
        (lambda c: c.isel(lat=slice(None, None, -1)), "other coordinates of 'lat' than the grid"),
        (lambda c: c.assign_coords(lat=c["lat"] + 0.3 / 7), "other coordinates of 'lat' than the grid"),
    ],
)
def test_covariates_of_other_cells_are_refused(fitted, change, match, rng, tmp_path):
    grid, covariates = cells(rng)
    with pytest.raises(InputError, match=match):
        drf.predict_raster(fitted, grid, str(tmp_path / "r.zarr"), covariates=change(covariates))


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"trend": "elevation"}, "trend must be a list of columns or 'linear'"),
        ({"trend": 1}, "trend must be a list of columns or 'linear', got 1"),
        ({"trend": ["height"]}, "trend names column 'height'"),
        ({"trend": [7]}, "trend names column 7, but there are 4 columns"),
        ({"trend": ["lon", "lat", "elevation", "index"]}, "names all 4 columns"),
        ({"trend": ["elevation", "constant"]}, "column 'constant' has one value"),
        ({"trend": ["elevation", "copy"]}, "linear combination"),
        ({"bounds": {"elevation": (0, 1)}}, "'elevation', which is a covariate"),
    ],
)
def test_trends_that_are_none_are_refused(how, match, rng):
    X, y = made(rng)
    name = how["trend"][-1] if isinstance(how.get("trend"), list) else None
    if name in ("constant", "copy"):
        X[name] = 1e4 if name == "constant" else 3 * X["elevation"] + 1
        X = X.drop(columns="index")
    with pytest.raises(InputError, match=match):
        drf.KernelRidge(features(**how), alpha=ALPHA).fit(X, y)


def test_a_covariate_may_come_before_the_places_of_a_map_with_gaps(rng):
    X, y = made(rng, 1200)
    gap = (X["lon"] - 0.5) ** 2 + (X["lat"] - 0.5) ** 2 < 0.04
    X, y = X[["elevation", "index", "lon", "lat"]][~gap], y[~gap]
    map_ = drf.EquispacedFourierFeatures(n_components=2000, trend=["elevation", "index", "index"])
    folds = drf.BlockFolds(["lon", "lat"], like="gaps", n_folds=2)
    model = drf.KernelRidge(map_, cv=folds, random_state=0).fit(X, y)
    assert model.report_["trend"]["coef"][0][0] == pytest.approx(-0.0065, abs=6 * 0.1 / 200 / 30)
    assert not any("no better than a constant" in note for note in model.report_["notes"])


def test_covariates_without_a_trend_are_refused(rng, tmp_path):
    X, y = made(rng)
    model = drf.KernelRidge(features(trend=None), alpha=ALPHA).fit(X[["lon", "lat"]], y)
    grid, covariates = cells(rng)
    with pytest.raises(InputError, match="no covariates beside the grid"):
        drf.predict_raster(model, grid, str(tmp_path / "r.zarr"), covariates=covariates)


def test_models_without_a_trend_refuse_it(rng):
    X, y = made(rng)
    for model in (
        drf.KernelRidge(features(), alpha=ALPHA, fit_intercept=False),
        drf.KernelRidge(features(), alpha=ALPHA, solver="gram"),
    ):
        with pytest.raises(InputError, match="trend"):
            model.fit(X, y)
    with pytest.raises(InputError, match="trend"):
        drf.gram(X, features(), y)
    with pytest.raises(InputError, match="trend"):
        drf.KernelRidge(features(), alpha=ALPHA).partial_fit(X, y)


def test_classes_and_rows_that_lack_a_covariate(rng):
    X, y = made(rng)
    labels = np.where(y > y.mean(), "warm", "cold")
    model = drf.KernelRidgeClassifier(features(), alpha=ALPHA).fit(X, labels)
    assert model.score(X, labels) > 0.8
    X.loc[3, "elevation"] = np.nan
    with pytest.raises(InputError, match="NaN"):
        drf.KernelRidge(features(), alpha=ALPHA).fit(X, y)
