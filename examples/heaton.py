"""The competition of large spatial data: temperatures of a satellite image, and those under its clouds.

105,569 cells of an image are fitted by default settings; 42,740 in cloud-shaped gaps are predicted,
with standard deviations and intervals. The row stands under those of the competition: Heaton et al. 2019, "A
case study competition among methods for analyzing large spatial data", Journal of Agricultural, Biological
and Environmental Statistics 24. Give the folder of `heaton_satellite.parquet`, with the columns `lon`, `lat`,
`train_temp` and `true_temp`, or name it by DISTRFF_DATA; without one the image is made up, and the published
rows are left out::

    python examples/heaton.py FOLDER
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import norm
from which_rows import made_places

import distrff as drf
from distrff.errors import DistrffError, InputError

FILE = "heaton_satellite.parquet"
COVERAGE = 0.95


class Row(NamedTuple):
    """What a method reaches in the gaps; minutes are None where none were published."""

    method: str
    mae: float
    rmse: float
    crps: float
    score: float
    coverage: float
    minutes: float | None


PUBLISHED = (
    Row("SPDE (INLA)", 1.10, 1.53, 0.83, 8.85, 0.97, 120),
    Row("nearest neighbours (NNGP)", 1.21, 1.64, 0.85, 7.57, 0.95, 2),
    Row("LatticeKrig", 1.22, 1.68, 0.87, 7.55, 0.96, 28),
    Row("periodic embedding", 1.29, 1.79, 0.91, 7.44, 0.93, None),
    Row("FRK 2 (later: arXiv 2110.02507)", 1.30, 1.69, 0.92, 8.32, 0.93, None),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, predict, print the table, and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        table = made_places() if options.source is None else _read(Path(options.source) / FILE)
        ours, chosen = competed(table, options.seed)
    except (DistrffError, OSError) as error:
        print("heaton.py: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    print("made-up cells" if options.source is None else FILE)
    print(f"  {'':32} {'MAE':>6} {'RMSE':>6} {'CRPS':>6} {'IS95':>6} {'cover':>6} {'minutes':>8}")
    for row in (*(() if options.source is None else PUBLISHED), ours):
        minutes = "" if row.minutes is None else f"{row.minutes:.1f}"
        print(
            f"  {row.method:32} {row.mae:6.3f} {row.rmse:6.3f} {row.crps:6.3f} {row.score:6.2f} "
            f"{row.coverage:6.3f} {minutes:>8}"
        )
    print(f"chosen: {chosen}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="heaton.py", description="Fill the gaps of a satellite image.")
    folder = os.environ.get("DISTRFF_DATA")
    parser.add_argument("source", nargs="?", default=folder, help=f"folder of {FILE} [DISTRFF_DATA]")
    parser.add_argument("--seed", type=int, default=0, help="of the fit [%(default)s]")
    return parser


def _read(file: Path) -> pd.DataFrame:
    if not file.is_file():
        raise InputError(f"{file} does not exist; give the folder that holds it")
    return pd.read_parquet(file)


def competed(table: pd.DataFrame, seed: int) -> tuple[Row, str]:
    """Return our row, and the kernel and penalty that the fit chose."""
    places, is_seen = ["lon", "lat"], table["train_temp"].notna()
    train, test = table[is_seen], table[~is_seen & table["true_temp"].notna()]
    started = time.perf_counter()
    model = drf.KernelRidge(drf.EquispacedFourierFeatures(), random_state=seed)
    model.fit(train[places], train["train_temp"])
    mean, std = model.predict(test[places], return_std=True)
    low, high = model.predict_interval(test[places], coverage=COVERAGE)
    minutes = (time.perf_counter() - started) / 60
    y = test["true_temp"].to_numpy()
    ours = Row("distrff, by default", *_judged(y, mean, std, low, high), minutes)
    return ours, f"{model.features_.kernel_}, alpha {model.alpha_:.3g}"


def _judged(
    y: np.ndarray, mean: np.ndarray, std: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[float, float, float, float, float]:
    """Mean absolute and root mean square error, CRPS, interval score and coverage.

    CRPS is that of a normal distribution. The interval score is the width, and 2/(1 − coverage) times how far
    outside the truth is; Gneiting and Raftery 2007, "Strictly proper scoring rules, prediction, and
    estimation".
    """
    z = (y - mean) / std
    crps = std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    outside = np.maximum(low - y, 0) + np.maximum(y - high, 0)
    score = high - low + 2 / (1 - COVERAGE) * outside
    squares = np.square(y - mean)
    columns = np.abs(y - mean), squares, crps, score, outside == 0
    mae, mse, *others = (float(values.mean()) for values in columns)
    return mae, mse**0.5, *others  # type: ignore[return-value]


if __name__ == "__main__":
    sys.exit(main())
