"""Handwritten digits: how many random features stand in for a kernel, in accuracy and in time.

The first half of the digits 0 to 8 that come with scikit-learn (1,617 pictures of 8 × 8 pixels) is fitted,
the second half tested. Models on Fourier, Nyström and random binning features of growing number stand
beside the exact support vector machine of the same Gaussian kernel and beside a linear one::

    python examples/digits.py                 # writes three pictures to the folder it is run in
    python examples/digits.py --out pictures --sizes 64 128 --seeds 1

It prints a table and draws accuracy and time against the number of features, decision surfaces of three
models in the plane of the first two principal components, and how random binning works: the bins of a grid
in the plane, and the matrix of which rows share a bin, for one grid and for the mean of many.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.svm import SVC, LinearSVC

import distrff as drf
from distrff.errors import DataWarning, DistrffError, InputError

GAMMA = 0.2  # of exp(−γ‖x − x'‖²), pixels between 0 and 1
SIZES = (64, 128, 256, 500, 1000)
MANHATTAN_WIDTH = 15.0  # about the ‖x − x'‖₁ of two pictures
COLOURS = {"Fourier": "#0b5fa5", "Nyström": "#d1495b", "random binning": "#2a9d60"}
MARKERS = {"Fourier": "o", "Nyström": "s", "random binning": "^"}


class Digits(NamedTuple):
    """Pictures and what they show, half to be fitted and half to be tested on."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


class Result(NamedTuple):
    """Medians over the seeds."""

    accuracy: float
    seconds: float


Map = drf.FourierFeatures | drf.NystroemFeatures | drf.RandomBinningFeatures

MAPS: dict[str, Callable[[int, int], Map]] = {
    "Fourier": lambda size, seed: drf.FourierFeatures(
        drf.Gaussian.from_gamma(GAMMA), size, random_state=seed
    ),
    "Nyström": lambda size, seed: drf.NystroemFeatures(
        drf.Gaussian.from_gamma(GAMMA), min(size, 800), random_state=seed
    ),
    "random binning": lambda size, seed: drf.RandomBinningFeatures(
        drf.Laplacian(MANHATTAN_WIDTH), size, random_state=seed
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, draw the pictures, and return the exit code."""
    options = _parser().parse_args(arguments)
    warnings.simplefilter("ignore", DataWarning)  # pixels have one unit: their spreads may differ
    try:
        if not options.out.is_dir():
            raise InputError(f"{options.out} is not a folder; make it first")
        digits = halves()
        exact = {name: timed(model, digits) for name, model in exact_models().items()}
        found = {
            name: [approximate(build, size, options.seeds, digits) for size in options.sizes]
            for name, build in MAPS.items()
        }
        print(table(exact, found, options.sizes))
        for name, draw in PICTURES.items():
            figure = draw(digits, exact, found, options.sizes)
            figure.savefig(options.out / name, dpi=150)
            print(f"written to {options.out / name}")
    except (DistrffError, OSError) as error:
        print("digits.py: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="digits.py", description="Random features on handwritten digits.")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the pictures; default: here")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="D")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="default 5")
    return parser


def halves() -> Digits:
    """Return the digits, pixels between 0 and 1 less their means."""
    data = load_digits(n_class=9)
    X = data.data / 16.0
    X, y, n = X - X.mean(axis=0), data.target, len(X) // 2
    return Digits(X[:n], y[:n], X[n:], y[n:])


def exact_models() -> dict[str, Any]:
    """Return the two that the others are measured against."""
    return {"exact RBF": SVC(gamma=GAMMA), "linear": LinearSVC()}


def model_on(features: Map) -> Any:
    """Return a model of one class against the rest, its C that of scikit-learn's linear one.

    Its columns are not scaled, as those of the exact machine: the kernel is then the same.
    """
    return drf.KernelSVC(features, 1.0, loss="squared_hinge", scale="none", random_state=0)


def timed(model: Any, digits: Digits) -> Result:
    """Return accuracy and seconds of a fit."""
    started = time.perf_counter()
    model.fit(digits.X, digits.y)
    seconds = time.perf_counter() - started
    return Result(float(model.score(digits.X_test, digits.y_test)), seconds)


def approximate(build: Callable[[int, int], Map], size: int, n_seeds: int, digits: Digits) -> Result:
    """Return medians over the seeds."""
    runs = [timed(model_on(build(size, seed)), digits) for seed in range(n_seeds)]
    return Result(*(float(np.median(values)) for values in zip(*runs, strict=True)))


def table(exact: dict[str, Result], found: dict[str, list[Result]], sizes: Sequence[int]) -> str:
    """Return a line for each model."""
    lines = [f"{'model':>15} {'features':>8} {'accuracy':>9} {'seconds':>8}"]
    rows = [(name, "", result) for name, result in exact.items()]
    rows += [
        (name, str(size), result)
        for name, results in found.items()
        for size, result in zip(sizes, results, strict=True)
    ]
    lines += [f"{name:>15} {size:>8} {r.accuracy:9.3f} {r.seconds:8.2f}" for name, size, r in rows]
    return "\n".join(lines)


def draw_accuracy(
    digits: Digits, exact: dict[str, Result], found: dict[str, list[Result]], sizes: Sequence[int]
) -> Any:
    """Return accuracy and time against the number of features (of binning: of grids)."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for ax, what in zip(figure.subplots(1, 2), ("accuracy", "seconds"), strict=True):
        for name, results in found.items():
            values = [getattr(result, what) for result in results]
            ax.plot(sizes, values, color=COLOURS[name], marker=MARKERS[name], label=name)
        for (name, result), style in zip(exact.items(), ("-", "--"), strict=True):
            ax.axhline(getattr(result, what), color="0.3", linestyle=style, label=name)
        ax.set_xscale("log", base=2)
        ax.set_xlabel("features (binning: grids)")
        ax.set_ylabel(what)
        ax.grid(alpha=0.3)
    figure.axes[1].set_yscale("log")
    figure.axes[0].legend()
    return figure


def draw_surfaces(
    digits: Digits, exact: dict[str, Result], found: dict[str, list[Result]], sizes: Sequence[int]
) -> Any:
    """Return the decision surfaces of machines with the most features."""
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    for ax, (name, build) in zip(figure.subplots(1, 3), MAPS.items(), strict=True):
        model = model_on(build(sizes[-1], 0)).fit(digits.X, digits.y)
        drf.plot_decision_surface(model, digits.X, digits.y, ax=ax)
        ax.set_title(name)
    return figure


def draw_binning(
    digits: Digits, exact: dict[str, Result], found: dict[str, list[Result]], sizes: Sequence[int]
) -> Any:
    """Return the bins of a grid, and which rows share one: in one grid, in many, and by the kernel."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(centre, 0.35, (15, 2)) for centre in ((0, 0), (2, 1), (0.5, 2.2))])
    kernel = drf.Laplacian(1.5)
    one, many = (drf.RandomBinningFeatures(kernel, n, random_state=1).fit(X) for n in (1, 200))
    figure = Figure(figsize=(14, 3.8), layout="constrained")
    grid, *matrices = figure.subplots(1, 4)
    for lines, draw in zip(grid_lines(one, X), (grid.axvline, grid.axhline), strict=True):
        for place in lines:
            draw(place, color="0.6", linewidth=0.8)
    grid.scatter(*X.T, color=COLOURS["random binning"], edgecolors="0.2")
    for row, number in zip(X, one.transform(X).indices, strict=True):
        grid.annotate(str(number), row, textcoords="offset points", xytext=(4, 4), fontsize=7)
    grid.set_title("a grid, and rows by their bins")
    titles = ("share a bin of one grid", "share of 200 grids", "the kernel")
    for ax, K, title in zip(
        matrices, (adjacency(one, X), adjacency(many, X), kernel(X)), titles, strict=True
    ):
        ax.imshow(K, cmap="Greys", vmin=0, vmax=1)
        ax.set_title(title)
    return figure


def grid_lines(binning: drf.RandomBinningFeatures, X: np.ndarray) -> list[np.ndarray]:
    """Return for each column where its bins of the first grid begin, between the rows' extremes."""
    arrays = binning.specification_.derive()
    steps, offsets = arrays["steps"][0], arrays["offsets"][0]  # row x is in bin ⌊x·step + offset⌋
    first, last = np.floor(X.min(axis=0) * steps + offsets), np.floor(X.max(axis=0) * steps + offsets)
    return [(np.arange(first[j] + 1, last[j] + 1) - offsets[j]) / steps[j] for j in range(X.shape[1])]


def adjacency(binning: drf.RandomBinningFeatures, X: np.ndarray) -> np.ndarray:
    """Return for each pair of rows the share of grids in which they share a bin."""
    Z = binning.transform(X)
    return (Z @ Z.T).toarray()


PICTURES: dict[str, Callable[..., Any]] = {
    "digits-accuracy.png": draw_accuracy,
    "digits-surfaces.png": draw_surfaces,
    "digits-binning.png": draw_binning,
}


if __name__ == "__main__":
    sys.exit(main())
