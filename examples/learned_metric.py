"""A function of two hidden directions, found: what `metric="learned"` does.

Rows of twenty columns are fitted whose target depends on two directions only, sums of all columns. With one
width for all columns the model hardly finds the function. The learned metric finds the directions: the first
picture shows how much of the model's variation lies along each direction of the metric, the others the true
function over the two true directions, and both models' predictions over the two directions found::

    python examples/learned_metric.py                    # writes examples/figures/learned-metric.svg
    python examples/learned_metric.py --out picture.svg --n-rows 1000 --n-components 256
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.linalg import subspace_angles

import distrff as drf
from distrff.errors import DistrffError

FIGURE = Path(__file__).parent / "figures" / "learned-metric.svg"
N_COLUMNS, NOISE = 20, 0.2


class Rows(NamedTuple):
    """Rows to be fitted and to be tested, and the two directions as columns of V."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    V: np.ndarray


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, draw, and return the exit code."""
    options = _parser().parse_args(arguments)
    matplotlib.rcParams["svg.hashsalt"] = "distrff"  # the same file each time
    try:
        data = rows(options.n_rows)
        models = {
            metric: model(metric, options.n_components).fit(data.X, data.y) for metric in (None, "learned")
        }
        directions = found_directions(models["learned"])
        for metric, fitted in models.items():
            name = "one width" if metric is None else "learned metric"
            print(f"{name}: R² {fitted.score(data.X_test, data.y_test):.3f} on rows that were not fitted")
        angle = np.degrees(subspace_angles(data.V, directions)).max()
        print(f"largest angle between the true plane and the one found: {angle:.1f} degrees")
        draw(data, models, directions).savefig(options.out, metadata={"Date": None}, dpi=120)
    except (DistrffError, OSError) as error:
        print("learned_metric.py: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    print(f"written to {options.out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="learned_metric.py", description="Find two hidden directions.")
    parser.add_argument("--out", type=Path, default=FIGURE, help="picture to write [%(default)s]")
    parser.add_argument("--n-rows", type=int, default=10_000, metavar="N", help="[%(default)s]")
    parser.add_argument("--n-components", type=int, default=1024, metavar="D", help="[%(default)s]")
    return parser


def f(U: np.ndarray) -> np.ndarray:
    """Return the true function of the coordinates along both directions."""
    return np.sin(2 * U[:, 0]) + U[:, 0] * U[:, 1] / 2 + np.tanh(U[:, 1])


def rows(n_rows: int) -> Rows:
    """Return rows of standard normal columns; as many again are for the test."""
    rng = np.random.default_rng(0)
    V = np.linalg.qr(rng.standard_normal((N_COLUMNS, 2)))[0]
    X = rng.standard_normal((2 * n_rows, N_COLUMNS))
    y = f(X @ V) + NOISE * rng.standard_normal(len(X))
    return Rows(X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:], V)


def model(metric: str | None, n_components: int) -> drf.KernelRidge:
    """Return a model that is to be fitted, with or without a learned metric."""
    features = drf.FourierFeatures(drf.Gaussian("auto", metric=metric), n_components)
    return drf.KernelRidge(features, random_state=0)


def found_directions(fitted: drf.KernelRidge) -> np.ndarray:
    """Return the two directions along which the model varies most, as orthonormal columns.

    The columns of X have mean 0 and deviation 1 already, so those of the scaled columns are hardly different.
    """
    P = np.asarray(fitted.features_.kernel_.metric)
    return np.linalg.svd(P)[2][:2].T


def draw(data: Rows, models: dict[str | None, drf.KernelRidge], directions: np.ndarray) -> Figure:
    """Return the figure of its four pictures."""
    figure = Figure(figsize=(15, 3.8), layout="constrained")
    shares, true, one_width, learned = figure.subplots(1, 4)
    P = np.asarray(models["learned"].features_.kernel_.metric)
    squares = np.square(P).sum(axis=1) / np.square(P).sum()
    shares.bar(np.arange(1, len(squares) + 1), squares, color="#0b5fa5")
    shares.set(title="share of each direction", xlabel="direction of the metric", yscale="log")
    shares.locator_params(axis="x", integer=True)
    # Signs and rotation of a plane are free: the plane found is drawn in the true coordinates.
    turn = directions.T @ data.V
    axes = np.linspace(-2.5, 2.5, 40)
    U = np.stack(np.meshgrid(axes, axes), axis=-1).reshape(-1, 2)
    plane = U @ np.linalg.pinv(turn) @ directions.T
    _surface(true, axes, f(U), "the true function")
    _surface(one_width, axes, models[None].predict(plane), "found with one width")
    _surface(learned, axes, models["learned"].predict(plane), "found with a learned metric")
    return figure


def _surface(ax: Axes, axes: np.ndarray, values: np.ndarray, title: str) -> None:
    ax.contourf(
        axes, axes, values.reshape(len(axes), -1), levels=np.linspace(-4, 4, 17), cmap="RdBu_r", extend="both"
    )
    ax.set(title=title, xlabel="first direction", ylabel="second direction")


if __name__ == "__main__":
    sys.exit(main())
