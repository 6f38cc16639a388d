"""Maps with gaps, by default settings: `python -m tests.benchmarks maps`.

`DISTRFF_DATA` names the folder of public files; without it what needs one is left out. `--scale` takes a
share of the seeds of `heaton` and `made`, of the rows elsewhere.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import norm

import distrff as drf
from tests.benchmarks import made_maps
from tests.benchmarks.measuring import seconds_of

SATELLITE, TERRAIN = "heaton_satellite.parquet", "srtm_terrain.parquet"
_SEEDS, _MADE_SEEDS = 5, 10
_MADE_ROWS = 20_000
_COVERAGE = 0.95
Found = dict[str, Any]


def missing(*names: str) -> str | None:
    """Which of the files is not there, as a reason; None where all are."""
    folder = os.environ.get("DISTRFF_DATA")
    gone = [name for name in names if folder is None or not (Path(folder) / name).is_file()]
    return f"{', '.join(gone)} not in DISTRFF_DATA" if gone else None


def _read(name: str) -> pd.DataFrame:
    return pd.read_parquet(Path(os.environ["DISTRFF_DATA"]) / name)


def _seeds(most: int, scale: float) -> range:
    return range(max(1, round(most * scale)))


def _rows(n: int, scale: float) -> int:
    return max(200, round(n * scale))


# What predictions are judged by.


def errors(y: np.ndarray, mean: np.ndarray) -> Found:
    """Mean absolute error, and root mean square error."""
    return {"mae": float(np.abs(mean - y).mean()), "rmse": float(np.sqrt(np.square(mean - y).mean()))}


def crps(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> float:
    """Continuous ranked probability score of normal distributions; Gneiting and Raftery 2007, section 4.2."""
    z = (y - mean) / std
    return float((std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))).mean())


def of_intervals(y: np.ndarray, low: np.ndarray, high: np.ndarray) -> Found:
    """Share of targets within intervals, and the interval score; Gneiting and Raftery 2007, equation 43."""
    missed = np.maximum(low - y, 0) + np.maximum(y - high, 0)
    score = (high - low + 2 / (1 - _COVERAGE) * missed).mean()
    return {"is95": float(score), "coverage": float(np.mean(missed == 0))}


def _chosen(model: drf.KernelRidge) -> Found:
    return {"kernel": repr(model.features_.kernel_), "alpha": float(np.max(model.alpha_))}


# The competition of Heaton et al. 2019, "A case study competition among methods for analyzing large spatial
# data", Journal of Agricultural, Biological and Environmental Statistics 24.


def satellite() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Longitudes and latitudes of the cells that are seen, their temperatures; and of those in the gaps."""
    data = _read(SATELLITE)
    seen, hidden = data[data.train_temp.notna()], data[data.train_temp.isna() & data.true_temp.notna()]
    places = ["lon", "lat"]
    return (
        seen[places].to_numpy(),
        seen.train_temp.to_numpy(),
        hidden[places].to_numpy(),
        hidden.true_temp.to_numpy(),
    )


ASKED_OF_SATELLITE: Found = {
    **{"mae": 1.10, "rmse": 1.49, "crps": 0.79, "is95": 7.6},  # at most
    "coverage": [0.93, 0.97],
    "seconds": 150,
}


def heaton(scale: float) -> Iterator[Found]:
    """Yield errors, scores and seconds of each seed, and their means."""
    if reason := missing(SATELLITE):
        yield {"left_out": reason}
        return
    X, y, X_gaps, y_gaps = satellite()
    found = []
    for seed in _seeds(_SEEDS, scale):
        started = time.perf_counter()
        model = drf.KernelRidge(drf.EquispacedFourierFeatures(), random_state=seed).fit(X, y)
        fitted = time.perf_counter() - started
        mean, std = model.predict(X_gaps, return_std=True)
        interval = model.predict_interval(X_gaps, coverage=_COVERAGE)
        found.append(
            {
                **errors(y_gaps, mean),
                "crps": crps(y_gaps, mean, std),
                **of_intervals(y_gaps, *interval),
                "fit_seconds": fitted,
                "seconds": time.perf_counter() - started,
            }
        )
        yield {"seed": seed, **found[-1], **_chosen(model)}
    yield {"seeds": len(found), **_means(found), "asked": ASKED_OF_SATELLITE}


def _means(found: Sequence[Found]) -> Found:
    return {key: float(np.mean([one[key] for one in found])) for key in found[0]}


# Made fields, whose kernels are known.


def made(scale: float) -> Iterator[Found]:
    """Yield how many times as large the default's error in the gaps is as the true kernel's, and coverages.

    Errors are those of the field; coverages are of what is measured in the gaps.
    """
    for name, known in made_maps.KERNELS.items():
        found = []
        for seed in _seeds(_MADE_SEEDS, scale):
            one = made_maps.of(known, _MADE_ROWS, seed)
            started = time.perf_counter()
            features = drf.EquispacedFourierFeatures(bounds=[(0, 1), (0, 1)])
            model = drf.KernelRidge(features, random_state=seed).fit(one.X, one.y)
            interval = model.predict_interval(one.X_gaps, coverage=_COVERAGE)
            seconds = time.perf_counter() - started
            rmse = errors(one.field_gaps, model.predict(one.X_gaps))["rmse"]
            true_rmse, true_coverage = _by_the_truth(known, one)
            result = {
                "ratio": rmse / true_rmse,
                "coverage": of_intervals(one.y_gaps, *interval)["coverage"],
                "true_coverage": true_coverage,
                "rmse": rmse,
                "true_rmse": true_rmse,
                "seconds": seconds,
            }
            found.append(result)
            yield {"field": name, "seed": seed, **result, **_chosen(model)}
        ratios = [one["ratio"] for one in found]
        spread = [min(ratios), max(ratios)]
        yield {"field": name, "seeds": len(found), **_means(found), "spread": spread, "asked": 1.03}


_DEVIATION_FEATURES = 2**16  # by which deviations in gaps are known, and do not take hours


def _by_the_truth(known: made_maps.Known, one: made_maps.MadeMap) -> tuple[float, float]:
    """Error and coverage of the true kernel, with the noise's true variance."""
    X, X_gaps = known.turned(one.X), known.turned(one.X_gaps)
    corners = known.turned(np.array([[0, 0], [0, 1], [1, 0], [1, 1]]))
    bounds = list(zip(corners.min(axis=0), corners.max(axis=0), strict=True))

    def model(most_features: int | None) -> drf.KernelRidge:
        features = drf.EquispacedFourierFeatures(known.kernel, most_features, bounds=bounds)
        return drf.KernelRidge(features, made_maps.NOISE, random_state=0).fit(X, one.y)

    mean = model(None).predict(X_gaps)
    _, std = model(_DEVIATION_FEATURES).predict(X_gaps, return_std="observation")
    half = norm.ppf(0.5 + _COVERAGE / 2) * std
    coverage = of_intervals(one.y_gaps, mean - half, mean + half)["coverage"]
    return errors(one.field_gaps, mean)["rmse"], coverage


# Terrain with discs cut out.

_DISCS, _RADII = 16, (0.05, 0.3)  # degrees; a fifth of the area
_TILE = 27.0  # longitude from which on settings by hand are compared: two fifths of the rows
_BY_HAND = tuple(product((0.5, 1.5), (0.02, 0.05, 0.1, 0.25, 0.6), (0.01, 0.1)))  # ν, widths, alphas


def discs(scale: float) -> Iterator[Found]:
    """Yield error and coverage in discs without rows: of all terrain, of a tile, and there of 20 settings."""
    if reason := missing(TERRAIN):
        yield {"left_out": reason}
        return
    table = _read(TERRAIN)
    X, y = table[["lon", "lat"]].to_numpy(np.float64), table.elevation_m.to_numpy(np.float64)
    is_hidden = _in_discs(X)
    some = np.random.default_rng(1).random(len(X)) < scale
    best = np.inf
    for place, is_there in (("all", some), ("tile", some & (X[:, 0] >= _TILE))):
        train, test = is_there & ~is_hidden, is_there & is_hidden
        started = time.perf_counter()
        model = drf.KernelRidge(drf.EquispacedFourierFeatures(), random_state=0).fit(X[train], y[train])
        fitted = time.perf_counter() - started
        interval = model.predict_interval(X[test], coverage=_COVERAGE)
        found = errors(y[test], model.predict(X[test])) | of_intervals(y[test], *interval)
        seconds = {"fit_seconds": fitted, "seconds": time.perf_counter() - started}
        rows = {"n_rows": int(train.sum()), "n_hidden": int(test.sum())}
        yield {"place": place, **found, "asked_coverage": [0.93, 0.97], **rows, **seconds, **_chosen(model)}
    for nu, width, alpha in _BY_HAND:
        features = drf.EquispacedFourierFeatures(drf.Matern(width, nu=nu))
        by_hand = drf.KernelRidge(features, alpha).fit(X[train], y[train])
        rmse = errors(y[test], by_hand.predict(X[test]))["rmse"]
        yield {"place": "tile", "by_hand": True, "nu": nu, "width": width, "alpha": alpha, "rmse": rmse}
        best = min(best, rmse)
    yield {"place": "tile", "ratio": found["rmse"] / best, "best_by_hand": best, "asked": 1.05}


def _in_discs(X: np.ndarray) -> np.ndarray:
    """Which rows are in one of the discs, whose centres are rows."""
    rng, hidden = np.random.default_rng(0), np.zeros(len(X), bool)
    centres, radii = X[rng.integers(len(X), size=_DISCS)], np.exp(rng.uniform(*np.log(_RADII), _DISCS))
    for centre, radius in zip(centres, radii, strict=True):
        hidden |= np.square(X - centre).sum(axis=1) < radius**2
    return hidden


# Standard deviations against the exact Gaussian process of the same truncated kernel.

_EXACT_ROWS, _EXACT_PLACES, _EXACT_FEATURES = 3000, 2000, 16_000
_EXACT_CASES = (
    ("Matérn ½", made_maps.NOISE),
    ("Matérn ½", made_maps.NOISE / 500),
    ("Matérn 3/2", made_maps.NOISE),
    ("Matérn 3/2", made_maps.NOISE / 50),
    ("short and long", made_maps.NOISE),
)  # and alpha


def deviations(scale: float) -> Iterator[Found]:
    """Yield errors of the ratio of deviations to exact ones, at places in gaps and beside rows.

    `shape` compares them after the common factor of both estimates of the noise is taken out.
    """
    n_rows, n_places = _rows(_EXACT_ROWS, scale), _rows(_EXACT_PLACES, scale)
    for name, alpha in _EXACT_CASES:
        known = made_maps.KERNELS[name]
        one = made_maps.of(known, n_rows, seed=0)
        rng = np.random.default_rng(0)
        places = {
            "gaps": one.X_gaps[:: max(1, len(one.X_gaps) * 2 // n_places)],
            "beside rows": one.X[rng.choice(len(one.X), n_places // 2)] + 1e-3,
        }
        features = drf.EquispacedFourierFeatures(known.kernel, _EXACT_FEATURES)
        model = drf.KernelRidge(features, alpha, random_state=0).fit(one.X, one.y)
        exact = _ExactProcess(model.features_, one.X, one.y, alpha)
        for where, X in places.items():
            ratio = model.predict(X, return_std=True)[1] / exact.std(X)
            yield {
                "field": name,
                "alpha": alpha,
                "places": where,
                **_of_ratio(ratio),
                "asked": ASKED_OF_RATIOS,
                "shape": _of_ratio(ratio / np.exp(np.mean(np.log(ratio)))),
                "kernel_error": model.features_.kernel_error_,
            }


_SAMPLING = 1 / np.sqrt(2 * 64)  # relative error of a deviation from 64 samples
ASKED_OF_RATIOS = {"rms": 0.05 + _SAMPLING, "percentile_99": 0.05 + norm.ppf(0.995) * _SAMPLING}


def _of_ratio(ratio: np.ndarray) -> Found:
    error = np.abs(ratio - 1)
    return {
        "rms": float(np.sqrt(np.square(error).mean())),
        "percentile_99": float(np.quantile(error, 0.99)),
        "mean_ratio": float(ratio.mean()),
    }


class _ExactProcess:
    """Deviations by a dense factor of K + alpha·I, K = Z·Zᵀ of the map's features.

    With a flat prior of the mean, as an intercept without a penalty is; the noise is estimated as
    RSS/(n − dimension). Rasmussen and Williams 2006, section 2.7.
    """

    def __init__(self, features: Any, X: np.ndarray, y: np.ndarray, alpha: float) -> None:
        self._features, self._alpha = features, alpha
        self._Z = features.transform(X)
        n, K = len(X), self._Z @ self._Z.T
        self._factor = cho_factor(K + alpha * np.eye(n))
        inverse = cho_solve(self._factor, np.eye(n))
        self._ones = inverse.sum(axis=0)  # C⁻¹·1
        total = self._ones.sum()
        # The residual y − f is alpha·Q·y, Q = C⁻¹ less its part along C⁻¹·1; n − dimension is alpha·tr Q.
        residual = alpha * (inverse @ y - self._ones * (self._ones @ y) / total)
        freedom = alpha * (np.trace(inverse) - np.square(self._ones).sum() / total)
        self._noise = float(residual @ residual / freedom)

    def std(self, X: np.ndarray) -> np.ndarray:
        """Of f."""
        Z = self._features.transform(X)
        k = self._Z @ Z.T
        explained = np.einsum("ij,ij->j", k, cho_solve(self._factor, k))
        of_mean = np.square(1 - self._ones @ k) / self._ones.sum()
        variance = np.einsum("ij,ij->i", Z, Z) - explained + of_mean
        return np.sqrt(self._noise / self._alpha * variance)


# Seconds of deviations.

_SPEED_ROWS, _SPEED_PLACES, _SPEED_FEATURES, _RASTER_SIDE = 100_000, 50_000, 250_000, 1000


def speed(scale: float) -> Iterator[Found]:
    """Yield seconds of deviations at places, and of a raster of terrain with deviations."""
    rng = np.random.default_rng(0)
    n_rows, n_places = _rows(_SPEED_ROWS, scale), _rows(_SPEED_PLACES, scale)
    one = made_maps.of(made_maps.KERNELS["Matérn ½"], n_rows, seed=0)
    features = drf.EquispacedFourierFeatures(drf.Exponential(0.15), _SPEED_FEATURES)
    model = drf.KernelRidge(features, made_maps.NOISE, random_state=0).fit(one.X, one.y)
    places = rng.uniform(one.X.min(axis=0), one.X.max(axis=0), (n_places, 2))
    yield {
        "what": "deviations",
        "n_places": n_places,
        "features": model.features_.specification_.n_features,
        "seconds": seconds_of(lambda: model.predict(places, return_std=True)),
        "asked": 15,
        "seconds_again": seconds_of(lambda: model.predict(places, return_std=True)),
    }
    if reason := missing(TERRAIN):
        yield {"left_out": reason}
        return
    table = _read(TERRAIN)
    table = table[rng.random(len(table)) < scale]
    model = drf.KernelRidge(drf.EquispacedFourierFeatures(), random_state=0)
    fit = seconds_of(lambda: model.fit(table[["lon", "lat"]], table.elevation_m))
    side = max(10, round(_RASTER_SIDE * np.sqrt(scale)))
    grid = {"lat": np.linspace(53, 54, side), "lon": np.linspace(_TILE, 29, side)}
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "map.zarr")
        seconds = seconds_of(lambda: drf.predict_raster(model, grid, out, return_std=True))
    rows = {"n_rows": len(table), "features": model.features_.specification_.n_features}
    yield {"what": "raster", "cells": side**2, "seconds": seconds, "asked": 180, "fit_seconds": fit, **rows}


BENCHMARKS = {
    "heaton": heaton,
    "made": made,
    "discs": discs,
    "deviations": deviations,
    "speed": speed,
}
