"""The defaults beside the best choices by hand: `python -m tests.benchmarks defaults`.

Each set is fitted by `distrff fit DATA --target T --model M --out O --n-components 4096` and nothing else,
then with maps, kernels and widths that a person would try. Errors are those of test rows: RMSE, relative
error ‖f − y‖/‖y‖, or the share of wrong classes. `DISTRFF_DATA` names the folder of public files, those with
the loader `data_file`; what is not there is left out. The other sets are made, or come with scikit-learn.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits, load_svmlight_file, make_friedman1

import distrff as drf
from tests.support import commands

DATA = "DISTRFF_DATA"
_TARGET = "target"
_N_COMPONENTS = 4096
_TEST_ROWS = 20_000  # of made sets: the standard error of a share of a tenth is then 2 % of it

BY_HAND = (
    "--features fourier --kernel gaussian --metric learned",
    "--features nystroem --kernel gaussian --length-scale auto",
    "--features nystroem --kernel matern --nu 2.5 --length-scale ard",
    "--features nystroem --kernel gaussian --metric learned",
    "--features binning --length-scale ard",
)
"""The options of maps that a person would try; the dense ones with the same number of features.

Nyström features stand for Fourier features with the same widths, over which they are the more accurate ones.
"""

Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Task:
    """Rows to be fitted and to be tested, and how they are judged."""

    name: str
    model: str
    load: Callable[[], Rows]
    asked: float | None = None  # None where only the choice by hand is beside it
    criterion: str = "error"  # "error" of classes, "rmse" or "relative"


def data_file(name: str) -> Path:
    path = Path(os.environ.get(DATA, os.devnull)) / name
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; {DATA} names the folder")
    return path


def split_rows(X: np.ndarray, y: np.ndarray, share: float, seed: int) -> Rows:
    order = np.random.default_rng(seed).permutation(len(X))
    train, test = np.split(order, [round(share * len(X))])
    return X[train], y[train], X[test], y[test]


def kin40k() -> Rows:
    table = pd.read_csv(data_file("kin40k.csv.gz"), header=None).to_numpy(np.float64)
    mask = pd.read_csv(data_file("kin40k_test_mask.csv.gz"), header=None).to_numpy()[:, 0].astype(bool)
    return table[~mask, :-1], table[~mask, -1], table[mask, :-1], table[mask, -1]


def covtype(split: int) -> Rows:
    frame = pd.read_parquet(data_file("covtype_93k.parquet"))
    X, y = frame.drop(columns="Cover_Type").to_numpy(np.float32), frame["Cover_Type"].to_numpy()
    return split_rows(X, y, 74_000 / len(X), split)


def cpu_act() -> Rows:
    table = pd.read_csv(data_file("cpu_act.tsv.gz"), sep="\t").to_numpy(np.float64)
    return split_rows(table[:, :-1], table[:, -1], (len(table) * 4 // 5 + 1) / len(table), 0)


def a9a() -> Rows:
    (X, y), (X_test, y_test) = (
        load_svmlight_file(str(data_file(name)), n_features=123) for name in ("a9a.gz", "a9a.t.gz")
    )
    return (
        X.toarray().astype(np.float32),
        y.astype(np.int8),
        X_test.toarray().astype(np.float32),
        y_test.astype(np.int8),
    )


def digits() -> Rows:
    """Return the digits 0 to 8, the first half to be fitted, as in the example."""
    X, y = load_digits(n_class=9, return_X_y=True)
    half = len(X) // 2
    return X[:half], y[:half], X[half:], y[half:]


def friedman1() -> Rows:
    X, y = make_friedman1(1000 + _TEST_ROWS, 20, noise=1.0, random_state=0)
    return split_rows(X, y, 1000 / len(X), 0)


def breast_cancer() -> Rows:
    X, y = load_breast_cancer(return_X_y=True)
    return split_rows(X, y, 0.67, 0)


def directions() -> Rows:
    """Return made rows of a function of three hidden directions of 20 columns."""
    rng = np.random.default_rng(1)
    V = np.linalg.qr(rng.standard_normal((20, 3)))[0]
    X = rng.standard_normal((15_000 + _TEST_ROWS, 20))
    U = X @ V
    y = np.sin(2 * U[:, 0]) + 0.5 * U[:, 1] * U[:, 2] + np.tanh(U[:, 1]) + 0.1 * rng.standard_normal(len(X))
    return split_rows(X, y, 15_000 / len(X), 1)


def steps() -> Rows:
    """Return made rows of a function that jumps along two of six columns."""
    rng = np.random.default_rng(2)
    X = rng.uniform(size=(15_000 + _TEST_ROWS, 6))
    y = np.floor(8 * X[:, 0]) % 2 + np.floor(5 * X[:, 1]) % 2 + 0.1 * rng.standard_normal(len(X))
    return split_rows(X, y, 15_000 / len(X), 2)


def waves() -> Rows:
    """Return made rows of a rough function of the plane: six waves of falling size."""
    rng = np.random.default_rng(3)
    X = rng.uniform(size=(22_500 + _TEST_ROWS, 2))
    y = sum(np.sin(2 * np.pi * 2**k * (X @ rng.standard_normal(2))) / 1.6**k for k in range(6))
    return split_rows(X, np.asarray(y) + 0.05 * rng.standard_normal(len(X)), 22_500 / len(X), 3)


def linear() -> Rows:
    """Return made rows of a linear function of 30 columns, a third of the variance noise."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((3750 + _TEST_ROWS, 30))
    y = X @ rng.standard_normal(30)
    return split_rows(X, y + 0.7 * y.std() * rng.standard_normal(len(X)), 3750 / len(X), 4)


def rings() -> Rows:
    """Return made rows of three classes, rings around the origin of five of ten columns."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((9_000 + _TEST_ROWS, 10))
    radius = np.linalg.norm(X[:, :5], axis=1) + 0.1 * rng.standard_normal(len(X))
    return split_rows(X, np.digitize(radius, np.quantile(radius, [0.33, 0.67])), 9_000 / len(X), 5)


TASKS = (
    Task("kin40k", "ridge", kin40k, 0.085, "rmse"),
    *(Task(f"covtype, split {i}", "ridge-classifier", partial(covtype, i), 0.075) for i in range(5)),
    Task("cpu_act", "ridge", cpu_act, 0.030, "relative"),
    Task("a9a", "ridge-classifier", a9a, 0.151),
    Task("digits", "svc", digits, 0.040),
    Task("friedman1", "ridge", friedman1, None, "rmse"),
    Task("breast_cancer", "svc", breast_cancer),
    Task("directions", "ridge", directions, None, "rmse"),
    Task("steps", "ridge", steps, None, "rmse"),
    Task("waves", "ridge", waves, None, "rmse"),
    Task("linear", "ridge", linear, None, "rmse"),
    Task("rings", "ridge-classifier", rings),
)


def command_line(scale: float) -> Iterator[dict[str, Any]]:
    """Fit every set by default, then by hand; only the first split of several by hand."""
    yield from _lines(scale, by_hand=True)


def by_default(scale: float) -> Iterator[dict[str, Any]]:
    """Fit every set by default; only the first split of several."""
    yield from _lines(scale, by_hand=False)


def _lines(scale: float, *, by_hand: bool) -> Iterator[dict[str, Any]]:
    for task in TASKS:
        is_other_split = task.name.startswith("covtype") and not task.name.endswith(" 0")
        if is_other_split and not by_hand:
            continue
        try:
            rows = task.load()
        except FileNotFoundError as missing:
            yield {"set": task.name, "skipped": str(missing)}
            continue
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            _write(place, rows, scale)
            default = _fitted(place, task, rows, "")
            line = {"set": task.name, "asked": task.asked, "default": default.pop("error"), **default}
            if by_hand and not is_other_split:
                found = {options: _fitted(place, task, rows, options) for options in BY_HAND}
                best = min(found, key=lambda options: found[options]["error"])
                line |= {
                    "best_by_hand": found[best]["error"],
                    "by_hand": best,
                    "seconds_by_hand": found[best]["seconds"],
                    "worse_by": line["default"] / found[best]["error"] - 1,
                    "all_by_hand": {options: one["error"] for options, one in found.items()},
                }
            yield line


def _write(place: Path, rows: Rows, scale: float) -> None:
    X, y, X_test, y_test = rows
    n = max(50, int(scale * len(X)))
    for name, A, b in (("train", X[:n], y[:n]), ("test", X_test, y_test)):
        frame = pd.DataFrame(A, columns=[f"x{j}" for j in range(A.shape[1])])
        frame.assign(**{_TARGET: b}).to_parquet(place / f"{name}.parquet")


def _fitted(place: Path, task: Task, rows: Rows, options: str) -> dict[str, Any]:
    size = "" if "binning" in options else f"--n-components {_N_COMPONENTS}"
    chosen = f"--model {task.model} {size} {options}"
    words = f"--target {_TARGET} {chosen} --overwrite --random-state 0 --json".split()
    started = time.perf_counter()
    done = commands.run(
        *commands.DISTRFF, "fit", place / "train.parquet", "--out", place / "m.zarr", *words, timeout=3600
    )
    seconds = time.perf_counter() - started
    if done.returncode not in (0, 3):
        return {"error": float("inf"), "seconds": seconds, "message": done.stderr}
    report = json.loads(done.stdout)
    X_test, y_test = rows[2:]
    found = drf.load_model(str(place / "m.zarr")).predict(X_test)
    candidates = report.get("candidates") or [{"candidate": options}]
    return {
        "error": _error(task.criterion, found, y_test),
        "standard_error": _standard_error(task.criterion, found, y_test),
        "seconds": seconds,
        "chosen": candidates[0]["candidate"],
        "seconds_of_candidates": sum(row.get("seconds", 0.0) for row in candidates),
    }


def _error(criterion: str, found: np.ndarray, y: np.ndarray) -> float:
    if criterion == "error":
        return float(np.mean(found != y))
    rmse = float(np.sqrt(np.mean(np.square(found - y))))
    return rmse if criterion == "rmse" else rmse / float(np.sqrt(np.mean(np.square(y))))


def _standard_error(criterion: str, found: np.ndarray, y: np.ndarray) -> float:
    """That of the test error, from the spread of the rows' losses; of a root by the delta method."""
    losses = found != y if criterion == "error" else np.square(found - y)
    spread = float(np.std(losses) / np.sqrt(len(y)))
    if criterion == "error":
        return spread
    error = _error(criterion, found, y)
    return spread / (2 * error * (1.0 if criterion == "rmse" else float(np.mean(np.square(y)))))


BENCHMARKS = {"command_line": command_line}
