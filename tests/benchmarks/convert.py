"""Converting and shuffling files: speed beside Arrow's own reader, memory, and uniformity."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import zarr
from pyarrow import csv as arrow_csv
from scipy.stats import chi2, kstest

from distrff.io.convert.convert import convert
from tests.benchmarks.measuring import in_fresh_process, measured

_N_COLUMNS = 20
_CSV_BYTES = 2 * 10**9
_BLOCK_ROWS = 2**18
_SHUFFLE_ROWS = 10_000_000
_N_SEEDS = 20
_PARTS = 100
_BYTE = 2.0**-20


def csv_speed(scale: float) -> Iterator[dict[str, Any]]:
    """A CSV of 20 columns of 8 digits to float32, against pyarrow's reader with all threads."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        n_rows = _write_csv(path, int(_CSV_BYTES * scale))
        pairs = []
        ours_of = partial(convert, target=-1, dtype="float32")
        for i in range(3):
            ours = in_fresh_process(measured, ours_of, path, Path(folder) / f"{i}.zarr")
            pairs.append((ours, in_fresh_process(measured, arrow_csv.read_csv, path)))
        speeds = [theirs["seconds"] / ours["seconds"] for ours, theirs in pairs]
        yield {
            "n_rows": n_rows,
            "megabytes": path.stat().st_size * _BYTE,
            "asked": "speed >= 0.5 of pyarrow.csv.read_csv, <= 512 MB above idle",
            "speed": median(speeds),
            "seconds": median(ours["seconds"] for ours, _ in pairs),
            "reference_seconds": median(theirs["seconds"] for _, theirs in pairs),
            "peak_megabytes_above_idle": max(ours["peak_bytes"] for ours, _ in pairs) * _BYTE,
        }


def _write_csv(path: Path, n_bytes: int) -> int:
    rng, n_rows = np.random.default_rng(0), 0
    names = [f"x{j}" for j in range(_N_COLUMNS)]
    with path.open("wb") as file:
        while file.tell() < n_bytes:
            values = np.round(rng.uniform(-10, 10, (_N_COLUMNS, _BLOCK_ROWS)), 7)  # 8 digits
            options = arrow_csv.WriteOptions(include_header=n_rows == 0)
            arrow_csv.write_csv(pa.table(dict(zip(names, values, strict=True))), file, options)
            n_rows += _BLOCK_ROWS
    return n_rows


def shuffling(scale: float) -> Iterator[dict[str, Any]]:
    """10M rows of 20 float32 in random order, by 20 seeds; where each hundredth of them went."""
    n_rows = int(_SHUFFLE_ROWS * scale)
    p_values, seconds, peaks = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "rows.npy"
        A = np.lib.format.open_memmap(source, "w+", np.float32, (n_rows, _N_COLUMNS))
        rng = np.random.default_rng(0)
        for start in range(0, n_rows, _BLOCK_ROWS):
            part = A[start : start + _BLOCK_ROWS]
            part[...] = rng.standard_normal(part.shape, np.float32)
            part[:, 0] = np.arange(start, start + len(part))  # float32 holds whole numbers to 2²⁴
        A.flush()
        del A, part
        for seed in range(_N_SEEDS):
            dst = Path(folder) / "rows.zarr"
            done = in_fresh_process(measured, partial(convert, shuffle=seed, overwrite=True), source, dst)
            seconds.append(done["seconds"])
            peaks.append(done["peak_bytes"] * _BYTE)
            p_values.append(_p_value(dst, n_rows))
    yield {
        "n_rows": n_rows,
        "asked": "<= 1000 MB above idle; every p-value >= 1e-5; Kolmogorov-Smirnov of the p-values >= 1e-4",
        "smallest_p_value": min(p_values),
        "kolmogorov_smirnov": float(kstest(p_values, "uniform").pvalue),
        "seconds": median(seconds),
        "peak_megabytes_above_idle": max(peaks),
    }


def _p_value(path: Path, n_rows: int) -> float:
    """Of the chi-square test that a row's new place does not depend on its old one."""
    numbers = zarr.open_group(path, mode="r")["X"][:, 0].astype(np.int64)
    assert np.array_equal(np.sort(numbers), np.arange(n_rows))
    cells = numbers * _PARTS // n_rows * _PARTS + np.arange(n_rows) * _PARTS // n_rows
    expected = n_rows / _PARTS**2
    statistic = np.square(np.bincount(cells, minlength=_PARTS**2) - expected).sum() / expected
    return float(chi2.sf(statistic, (_PARTS - 1) ** 2))


BENCHMARKS = {"csv_speed": csv_speed, "shuffling": shuffling}
