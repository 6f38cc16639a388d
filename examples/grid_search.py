"""Kernels compared by dask-ml's grid search, on a table with text in it.

dask-ml splits the table and encodes its text, and its `GridSearchCV` runs the fits of all kernels and folds
side by side. A model with the best kernel is then fitted on four fifths of the rows and scored on the
others, block by block::

    python examples/grid_search.py                              # a table that is made up
    python examples/grid_search.py houses.parquet --target price

dask-ml's search brings its rows together in one task, and copies of the folds beside them, so it is for rows
that fit in a worker. Here it gets a sample of them (``--sample-rows``). The last fit takes all rows, which
need not fit anywhere. The penalty is not searched: each fit chooses its own by folds of one pass over its
rows (``alpha="cv"``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple

import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask_ml.model_selection import GridSearchCV, train_test_split
from dask_ml.preprocessing import Categorizer, DummyEncoder
from sklearn.pipeline import make_pipeline

import distrff as drf
from distrff.errors import DistrffError, InputError

WIDTHS = (1.0, 2.0, 4.0, 8.0)  # in standard deviations of a column
KERNELS = [kernel(width) for kernel in (drf.Gaussian, drf.Laplacian) for width in WIDTHS]
SEED = 0


class Found(NamedTuple):
    """The mean r² of each kernel, the model with the best one, and its r² on rows that it has not seen."""

    scores: list[float]
    model: drf.KernelRidge
    score: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, print a line on each kernel and one on the best, and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        table = made_up(options.rows) if options.table is None else dd.read_parquet(options.table)
        found = search(table, options.target, options.sample_rows, options.n_components)
    except (DistrffError, ValueError, OSError) as error:  # dask-ml and scikit-learn raise ValueError
        print("grid_search.py: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    print(f"{'mean r2 of the folds':>20}  kernel")
    for kernel, score in zip(KERNELS, found.scores, strict=True):
        print(f"{score:20.4f}  {kernel}")
    print(f"{found.score:20.4f}  on other rows: {found.model.features.kernel}, fitted on all rows but these")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="grid_search.py", description="Kernels compared by dask-ml.")
    parser.add_argument("table", nargs="?", help="a Parquet file or folder; default: a table that is made up")
    parser.add_argument("--target", default="y", help="column to be predicted; default y")
    parser.add_argument("--rows", type=int, default=20_000, metavar="N", help="of the made-up table")
    parser.add_argument(
        "--sample-rows", type=int, default=4_000, metavar="N", help="for the search; default 4000"
    )
    parser.add_argument("--n-components", type=int, default=256, metavar="D", help="default 256")
    return parser


def made_up(n_rows: int) -> dd.DataFrame:
    """Return a table of two numbers, a word, and y: another wave of the numbers for each word."""
    rng = np.random.default_rng(SEED)
    X, word = rng.standard_normal((n_rows, 2)), rng.integers(0, 3, n_rows)
    y = np.sin(2 * X[:, 0] + word) + 0.5 * X[:, 1] + 0.1 * rng.standard_normal(n_rows)
    words = np.array(["low", "middle", "high"])[word]
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "word": words, "y": y})
    return dd.from_pandas(table, npartitions=8)


def search(table: dd.DataFrame, target: str, sample_rows: int, n_components: int) -> Found:
    """Return what is found on the rows that lack no value.

    Raises
    ------
    InputError
        If there is no such target, or a column is neither text, numbers nor times.
    """
    if target not in table.columns:
        raise InputError(f"there is no column {target!r}; name one of {list(table.columns)} by --target")
    train, test = train_test_split(table.dropna(), test_size=0.2, random_state=SEED, shuffle=True)
    few = train.sample(frac=min(1.0, sample_rows / max(1, len(train))), random_state=SEED)
    # A word that only the test has is encoded as all zeros.
    encoder = make_pipeline(Categorizer(), DummyEncoder()).fit(train.drop(columns=target))
    X, X_few, X_test = (encoder.transform(part.drop(columns=target)) for part in (train, few, test))

    # Maps and not their kernels are compared: those are callable, and dask would call them as tasks.
    maps = [drf.FourierFeatures(kernel, n_components, random_state=SEED) for kernel in KERNELS]
    model = drf.KernelRidge(maps[0], alpha="cv", scale="standard", random_state=SEED)
    # Without the refit, which would bring all rows together as well.
    folds = GridSearchCV(model, {"features": maps}, cv=3, refit=False).fit(X_few, few[target])
    scores = folds.cv_results_["mean_test_score"]
    model.set_params(features=maps[int(np.argmax(scores))]).fit(X, train[target])
    return Found(scores.tolist(), model, model.score(X_test, test[target]))


if __name__ == "__main__":
    sys.exit(main())
