"""From scattered measurements to a map that says how sure it is.

A field over longitude and latitude is measured with noise, along ships' tracks and around three islands. One
region has no measurements. Equispaced Fourier features need no settings: the fit chooses the kernel, its
widths and the penalty. The picture shows the map, its standard deviation, and two of the fields that may be
the true one::

    python examples/points_to_map.py                     # writes examples/figures/points-to-map.svg
    python examples/points_to_map.py --out picture.png --n-rows 2000
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import pandas as pd
import zarr
from matplotlib.figure import Figure

import distrff as drf
from distrff.errors import DistrffError

FIGURE = Path(__file__).parent / "figures" / "points-to-map.svg"
# Near the equator, where a degree is as long to the east as to the north.
LON, LAT = (60.0, 80.0), (-7.0, 7.0)
GAP, GAP_RADIUS = np.array([73.0, -1.0]), 2.5
ISLANDS, N_TRACKS = np.array([[63.0, -3.5], [66.0, 3.5], [76.5, 4.5]]), 40
NOISE = 0.5


class Raster(NamedTuple):
    """A map on the product grid of its coordinates, rows from south to north."""

    lon: np.ndarray
    lat: np.ndarray
    prediction: np.ndarray
    std: np.ndarray
    draws: np.ndarray

    @property
    def cells(self) -> np.ndarray:
        """Longitude and latitude of each cell, (n_lat, n_lon, 2)."""
        return np.stack(np.meshgrid(self.lon, self.lat), axis=-1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, fit, draw, and return the exit code."""
    options = _parser().parse_args(arguments)
    matplotlib.rcParams["svg.hashsalt"] = "distrff"  # the same file each time
    try:
        X, y = measurements(options.n_rows)
        features = drf.EquispacedFourierFeatures(bounds={"lon": LON, "lat": LAT})
        model = drf.KernelRidge(features, random_state=0).fit(X, y)
        raster = predicted(model)
        report(model, raster)
        draw(X, raster).savefig(options.out, metadata={"Date": None}, dpi=90)
    except (DistrffError, OSError) as error:
        print("points_to_map.py: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    print(f"written to {options.out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="points_to_map.py", description="Map scattered measurements.")
    parser.add_argument("--out", type=Path, default=FIGURE, help="picture to write [%(default)s]")
    parser.add_argument("--n-rows", type=int, default=20_000, metavar="N", help="[%(default)s]")
    return parser


# The field, and where it is measured.


def waves(rng: np.random.Generator, n: int, length: float) -> tuple[np.ndarray, np.ndarray]:
    """Return frequencies and phases of n random waves, whose sum varies over about this many degrees."""
    # Frequencies with heavy tails, as of a Matérn kernel: real fields are not perfectly smooth.
    K = rng.standard_normal((2, n)) / length / np.sqrt(rng.gamma(1.5, 1 / 1.5, n))
    return K, rng.uniform(0, 2 * np.pi, n)


_RNG = np.random.default_rng(6)
BROAD, FINE = waves(_RNG, 100, 4.0), waves(_RNG, 200, 1.0)
STARTS, ENDS = _RNG.uniform((LON[0] - 4, LAT[0] - 4), (LON[1] + 4, LAT[1] + 4), (2, N_TRACKS, 2))


def field(P: np.ndarray) -> np.ndarray:
    """Return the true field at points (..., 2): structure of 4 degrees, and finer structure of 1."""
    parts = ((1.5, *BROAD), (1.0, *FINE))
    return sum(size * np.sqrt(2 / len(b)) * np.cos(P @ K + b).sum(axis=-1) for size, K, b in parts)


def places(rng: np.random.Generator, n_rows: int) -> np.ndarray:
    """Return points on tracks and around islands, inside the region and outside the gap."""
    n = 6 * n_rows + 100  # about half of them are left out
    track, along = rng.integers(N_TRACKS, size=n), rng.random((n, 1))
    P = STARTS[track] + along * (ENDS - STARTS)[track] + 0.08 * rng.standard_normal((n, 2))
    Q = ISLANDS[rng.integers(len(ISLANDS), size=n)] + rng.standard_normal((n, 2))
    P = np.where(rng.random((n, 1)) < 0.25, Q, P)
    lon, lat = P.T
    is_inside = (lon >= LON[0]) & (lon <= LON[1]) & (lat >= LAT[0]) & (lat <= LAT[1])
    return P[is_inside & (np.linalg.norm(P - GAP, axis=1) > GAP_RADIUS)][:n_rows]


def measurements(n_rows: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return longitudes and latitudes, and the field there with noise."""
    rng = np.random.default_rng(0)
    P = places(rng, n_rows)
    return pd.DataFrame(P, columns=["lon", "lat"]), field(P) + NOISE * rng.standard_normal(len(P))


# The map.


def predicted(model: drf.KernelRidge) -> Raster:
    """Write the map with its standard deviation and two draws, and return it."""
    grid = {"lat": np.linspace(*LAT, 85), "lon": np.linspace(*LON, 121)}
    with tempfile.TemporaryDirectory() as folder:
        drf.predict_raster(model, grid, f"{folder}/map.zarr", return_std=True, draws=2)
        group = zarr.open_group(f"{folder}/map.zarr", mode="r")
        return Raster(*(np.asarray(group[name][:]) for name in Raster._fields))


def report(model: drf.KernelRidge, raster: Raster) -> None:
    """Print what was chosen, and how the map compares with the truth."""
    from_gap = np.linalg.norm(raster.cells - GAP, axis=-1)
    is_gap, is_near_island = from_gap < GAP_RADIUS / 2, np.zeros(from_gap.shape, dtype=bool)
    for island in ISLANDS:
        is_near_island |= np.linalg.norm(raster.cells - island, axis=-1) < 1
    within = np.abs(raster.prediction - field(raster.cells)) <= 2 * raster.std
    print(f"chosen: {model.features_.kernel_}, alpha {model.alpha_:.3g}")
    print(f"held-out RMSE {np.sqrt(model.cv_score_):.3f}, noise {NOISE}")
    print(
        f"standard deviation {raster.std[is_gap].mean():.3f} in the gap, "
        f"{raster.std[is_near_island].mean():.3f} around the islands"
    )
    print(f"{within.mean():.1%} of the cells are within two standard deviations of the truth")


def draw(X: pd.DataFrame, raster: Raster) -> Figure:
    """Return the figure of its four pictures."""
    figure = Figure(figsize=(14, 2.5), layout="constrained")
    axes = figure.subplots(1, 4, sharey=True)
    # One scale for the map and the draws.
    colours = {"cmap": "RdYlBu_r", "vmin": raster.draws.min(), "vmax": raster.draws.max()}
    half = (raster.lon[1] - raster.lon[0]) / 2  # cells are centred on their coordinates
    place = {
        "extent": (LON[0] - half, LON[1] + half, LAT[0] - half, LAT[1] + half),
        "origin": "lower",
        "interpolation": "none",
    }
    fields, titles = (raster.prediction, *raster.draws), ("the map", "a draw", "another draw")
    for ax, field, title in zip(axes, fields, titles, strict=False):
        image = ax.imshow(field, **place, **colours)
        ax.set_title(title)
    std = axes[-1].imshow(raster.std, cmap="viridis", vmin=0, **place)
    axes[-1].scatter(X["lon"], X["lat"], c="white", s=0.1, linewidths=0, antialiased=False, rasterized=True)
    axes[-1].set_title("standard deviation, measurements")
    for ax in axes:
        ax.set(xlim=LON, ylim=LAT, xlabel="longitude (°)", aspect="equal")
        ax.set(xticks=np.arange(60, 81, 5), yticks=np.arange(-5, 6, 5))
    for ax, drawn in ((axes[2], image), (axes[3], std)):
        figure.colorbar(drawn, ax=ax, shrink=0.8, aspect=25, pad=0.02)
    axes[0].set_ylabel("latitude (°)")
    return figure


if __name__ == "__main__":
    sys.exit(main())
