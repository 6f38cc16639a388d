"""Named sets of rows, most of them public: those of `DISTRFF_DATA`, and those of scikit-learn.

Twelve are for all neighbours, and tables for those who fit tables. Of large sets a random part is fitted, so
that one run of the book has all neighbours on all sets.
"""

import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_diabetes

from tests.benchmarks import defaults
from tests.benchmarks.book.contestants import Rows
from tests.benchmarks.defaults import data_file, split_rows

_MOST_TEST_ROWS = 50_000  # the standard error of a share of a tenth is then 1.3 % of it
_LEAST_ROWS, _MOST_ROWS = 200, 100_000
TABLES_OF_USER = "DISTRFF_TABLES"


@dataclass(frozen=True)
class NamedSet:
    """A set of rows, and its task: "numbers" or "classes"."""

    name: str
    task: str
    load: Callable[[], defaults.Rows]

    def rows(self, scale: float) -> Rows:
        """Return that share of the rows to be fitted, 100,000 at most; classes are coded 0, 1, …

        Raises
        ------
        FileNotFoundError
            Where its file is not at hand.
        """
        X, y, X_test, y_test = self.load()
        if self.task == "classes":
            _, codes = np.unique(np.concatenate([y, y_test]), return_inverse=True)
            y, y_test = codes[: len(y)], codes[len(y) :]
        else:
            y, y_test = y.astype(np.float64), y_test.astype(np.float64)
        n = min(_MOST_ROWS, max(min(_LEAST_ROWS, len(X)), round(scale * len(X))))
        order = np.random.default_rng(0).permutation(len(X))[:n]
        some = np.random.default_rng(1).permutation(len(X_test))[:_MOST_TEST_ROWS]
        return Rows(
            X[order].astype(np.float32), y[order], X_test[some].astype(np.float32), y_test[some], self.task
        )


def _mnist() -> defaults.Rows:
    with np.load(data_file("mnist.npz")) as file:
        X, X_test = (file[f"x_{part}"].reshape(-1, 784) / np.float32(255) for part in ("train", "test"))
        return X, file["y_train"], X_test, file["y_test"]


def _kddcup99() -> defaults.Rows:
    """Return connections, attacks or not; their three columns of words are one-hot, counts are logarithms."""
    names = ("kddcup99_10pct.gz", "kddcup99_test.gz")
    train, test = (_csv(data_file(name)) for name in names)
    both = pd.concat([train, test], ignore_index=True)
    words = both.columns[both.dtypes.map(lambda dtype: not pd.api.types.is_numeric_dtype(dtype))]
    y = (both.iloc[:, -1].str.strip(".") != "normal").to_numpy()
    table = pd.get_dummies(both.iloc[:, :-1], columns=[c for c in words if c != both.columns[-1]])
    X = np.log1p(table.to_numpy(np.float32))
    return X[: len(train)], y[: len(train)], X[len(train) :], y[len(train) :]


def _csv(path: Path) -> pd.DataFrame:
    with gzip.open(path, "rt") as file:
        return pd.read_csv(file, header=None)


def _nycflights() -> defaults.Rows:
    """Return delays at arrival from what is known at departure."""
    frame = pd.read_parquet(data_file("nycflights.parquet"))
    known = [
        "month",
        "day",
        "dep_time",
        "dep_delay",
        "distance",
        "hour",
        "minute",
        "carrier",
        "origin",
        "dest",
    ]
    frame = frame[[*known, "arr_delay"]].dropna()
    X = pd.get_dummies(frame[known], columns=["carrier", "origin", "dest"]).to_numpy(np.float32)
    return split_rows(X, frame["arr_delay"].to_numpy(), 0.8, 0)


def _terrain() -> defaults.Rows:
    frame = pd.read_parquet(data_file("srtm_terrain.parquet"))
    return split_rows(frame[["lon", "lat"]].to_numpy(np.float32), frame["elevation_m"].to_numpy(), 0.9, 0)


def _diabetes() -> defaults.Rows:
    return split_rows(*load_diabetes(return_X_y=True), 0.67, 0)


SETS = (
    NamedSet("a9a", "classes", defaults.a9a),
    NamedSet("covtype", "classes", partial(defaults.covtype, 0)),
    NamedSet("kddcup99", "classes", _kddcup99),
    NamedSet("mnist", "classes", _mnist),
    NamedSet("digits", "classes", defaults.digits),
    NamedSet("breast_cancer", "classes", defaults.breast_cancer),
    NamedSet("cpu_act", "numbers", defaults.cpu_act),
    NamedSet("kin40k", "numbers", defaults.kin40k),
    NamedSet("nycflights", "numbers", _nycflights),
    NamedSet("terrain", "numbers", _terrain),
    NamedSet("diabetes", "numbers", _diabetes),
    NamedSet("friedman1", "numbers", defaults.friedman1),
)


def _table(path: Path) -> defaults.Rows:
    """Return the rows of a Parquet file by its column `is_test`; words are one-hot, rows with gaps left out.

    Raises
    ------
    ValueError
        Where it lacks the column `y` or `is_test`.
    """
    frame = pd.read_parquet(path)
    if not {"y", "is_test"} <= set(frame):
        raise ValueError(f"{path} needs the columns y and is_test, has {', '.join(map(str, frame))}")
    frame = frame.dropna()
    is_test, y = frame.pop("is_test").to_numpy(bool), frame.pop("y").to_numpy()
    X = pd.get_dummies(frame).to_numpy(np.float64)
    return X[~is_test], y[~is_test], X[is_test], y[is_test]


def _parkinsons() -> defaults.Rows:
    """Return voices; a fifth of the people are tested, since the rows of one person are alike."""
    frame = pd.read_parquet(data_file("parkinsons.parquet"))
    people, y = frame.pop("subject").to_numpy(), frame.pop("y").to_numpy()
    known = np.random.default_rng(0).permutation(np.unique(people))
    is_test = np.isin(people, known[: len(known) // 5])
    X = frame.to_numpy(np.float64)
    return X[~is_test], y[~is_test], X[is_test], y[is_test]


TABLES = (
    *(
        NamedSet(
            task.name.removesuffix(", split 0"),
            "classes" if task.criterion == "error" else "numbers",
            task.load,
        )
        for task in defaults.TASKS
        if ", split" not in task.name or task.name.endswith(" 0")
    ),
    *(
        NamedSet(name, task, lambda name=name: _table(data_file(f"{name}.parquet")))
        for name, task in (
            ("spambase", "classes"),
            ("letter", "classes"),
            ("concrete", "numbers"),
            ("energy", "numbers"),
        )
    ),
    NamedSet("parkinsons", "numbers", _parkinsons),
    *(named for named in SETS if named.name in ("nycflights", "kddcup99")),
)
"""The sets of the group `defaults`, one split of each, and the other tables of `DISTRFF_DATA`."""


def tables_of_user() -> list[NamedSet]:
    """Return the Parquet files of the folder `DISTRFF_TABLES`; their `y` are numbers if floats, else classes.

    Raises
    ------
    FileNotFoundError
        Where there is no such folder.
    """
    folder = os.environ.get(TABLES_OF_USER)
    if not folder:
        return []
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"there is no folder {folder}, which {TABLES_OF_USER} names")
    return [
        NamedSet(path.stem, _task_of(path), partial(_table, path))
        for path in sorted(Path(folder).glob("*.parquet"))
    ]


def _task_of(path: Path) -> str:
    types = {field.name: field.type for field in pq.read_schema(path)}
    return "numbers" if pa.types.is_floating(types.get("y", pa.null())) else "classes"
