"""What one heavy sweep over the rows gives: the picture in README.

Rows of eight columns, of which three matter, are fitted once, and the report draws the learning curve in the
number of features and the alpha path with its folds, both from the same small matrix. A second model
learns a width for each column, which shows the three::

    python examples/one_sweep.py                    # writes examples/figures/one-sweep.svg
    python examples/one_sweep.py --out picture.svg --n-rows 5000 --n-components 256
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

import distrff as drf
from distrff.errors import DistrffError

FIGURE = Path(__file__).parent / "figures" / "one-sweep.svg"
N_COLUMNS, NOISE = 8, 0.3


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, draw, and return the exit code."""
    options = _parser().parse_args(arguments)
    matplotlib.rcParams["svg.hashsalt"] = "distrff"  # the same file each time
    try:
        figure = draw(*rows(options.n_rows), options.n_components)
        figure.savefig(options.out, metadata={"Date": None})
    except (DistrffError, OSError) as error:
        print("one_sweep.py: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    print(f"written to {options.out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="one_sweep.py", description="Draw what one sweep gives.")
    parser.add_argument("--out", type=Path, default=FIGURE, help="picture to write [%(default)s]")
    parser.add_argument("--n-rows", type=int, default=50_000, metavar="N", help="[%(default)s]")
    parser.add_argument("--n-components", type=int, default=2048, metavar="D", help="[%(default)s]")
    return parser


def rows(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return X and y = f(x₀, x₁, x₂) + noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, N_COLUMNS)).astype(np.float32)
    f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
    return X, f + NOISE * rng.normal(size=n_rows)


def draw(X: np.ndarray, y: np.ndarray, n_components: int):
    """Return the figure of its three pictures."""
    shared, relevant = (model(width, n_components).fit(X, y) for width in ("auto", "ard"))
    figure = Figure(figsize=(13, 3.8), layout="constrained")
    curve, path, relevance = figure.subplots(1, 3)
    for draw_one, ax, title in (
        (drf.plot_learning_curve, curve, "one fit: fewer features"),
        (drf.plot_alpha_path, path, "the same fit: every penalty"),
    ):
        draw_one(shared, ax=ax)
        ax.axhline(NOISE**2, color="0.4", linestyle="--", linewidth=1, label="the noise, which nothing beats")
        ax.legend(fontsize=8, loc="lower left" if ax is curve else "upper left")
        ax.set_title(title)
    path.set_ylim(top=10 * path.get_ylim()[1])  # room for the legend
    drf.plot_relevance(relevant, names=[f"x{j}" for j in range(N_COLUMNS)], ax=relevance)
    relevance.set_title('Gaussian("ard"): a width a column')
    return figure


def model(width: str, n_components: int) -> drf.KernelRidge:
    """Return a model that is to be fitted, of a width for all columns or one for each."""
    features = drf.FourierFeatures(drf.Gaussian(width), n_components, sampling="orthogonal")
    if width == "ard":
        features = drf.FourierFeatures(drf.Gaussian(width), n_components)
    return drf.KernelRidge(features, "cv", scale="standard", random_state=0)


if __name__ == "__main__":
    sys.exit(main())
