"""A support vector machine on a9a, from libsvm files to a score on the command line.

a9a is the Adult census in 123 columns of zeros and ones: does a person earn more than 50,000 dollars a
year (+1) or not (−1)? This script reads its two libsvm files, `a9a.gz` (32,561 rows, to fit) and `a9a.t.gz`
(16,281 rows, to score), and writes two Zarr groups that `distrff` takes::

    python examples/a9a.py FOLDER-OF-THE-FILES build

It then prints the two commands to run next. They fit a model with the hinge and a Gaussian kernel on
2,000 random features, and score it on the other file. The exact model errs on 0.1501 of those rows.

The rows to fit are stored in a shuffled order that is the same every time. An earlier result is replaced
only with `--overwrite`; both groups are there whole or not at all.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zarr
from sklearn.datasets import load_svmlight_file

from distrff.errors import InputError

N_COLUMNS = 123
SEED = 0  # of the order of the rows to fit
CHUNK_ROWS = 4096  # two megabytes of X
KIND = "a9a"  # kept in the group's attributes, so that --overwrite replaces no other group


class Part(NamedTuple):
    """One of the two files, what is written for it, and how many rows it has."""

    file: str
    group: str
    n_rows: int
    shuffled: bool


TRAIN = Part("a9a.gz", "a9a.zarr", 32_561, shuffled=True)
TEST = Part("a9a.t.gz", "a9a-test.zarr", 16_281, shuffled=False)


class LabelledRows(NamedTuple):
    """X of shape (n, 123), float32, and y of shape (n,), int8, −1 or 1."""

    X: np.ndarray
    y: np.ndarray


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert both files as the command line says, and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        lines = convert(options.source, options.target, overwrite=options.overwrite)
    except (InputError, OSError) as error:
        print("a9a.py: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    print("\n".join([*lines, "", "Next:", "", *commands(options.target)]))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="a9a.py", description="Write the libsvm files of a9a as Zarr groups for distrff."
    )
    parser.add_argument("source", type=Path, help="folder that holds a9a.gz and a9a.t.gz")
    parser.add_argument("target", type=Path, help="folder for a9a.zarr and a9a-test.zarr; made if need be")
    parser.add_argument("--overwrite", action="store_true", help="replace what this script wrote before")
    return parser


def convert(source: Path, target: Path, *, overwrite: bool = False) -> list[str]:
    """Write both groups, and return a line on each.

    Raises
    ------
    InputError
        If a file is missing or is not what it should be, or a group is there that may not be replaced.
    """
    parts = (TRAIN, TEST)
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is not a folder; name one for the two groups")
    for part in parts:
        check_place(target / part.group, overwrite)
    loaded = [load(source / part.file, part.n_rows) for part in parts]
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as fresh:
        for part, rows in zip(parts, loaded, strict=True):
            write(Path(fresh) / part.group, part, rows)
        for part in parts:
            shutil.rmtree(target / part.group, ignore_errors=True)
            os.replace(Path(fresh) / part.group, target / part.group)
    return [
        f"{target / part.group}: {len(rows.y):,} rows of {N_COLUMNS} columns, {np.mean(rows.y > 0):.1%} of +1"
        for part, rows in zip(parts, loaded, strict=True)
    ]


def check_place(place: Path, overwrite: bool) -> None:
    """Raise InputError unless nothing is at `place`, or an earlier result that may be replaced."""
    if not place.exists():
        return
    try:
        attributes = dict(zarr.open_group(place, mode="r").attrs)
    except (OSError, ValueError):
        attributes = {}
    if attributes.get("distrff") != {"kind": KIND}:
        raise InputError(f"{place} exists and was not written by this script; choose another folder")
    if not overwrite:
        raise InputError(f"{place} exists; pass --overwrite to replace it")


def load(file: Path, n_rows: int) -> LabelledRows:
    """Return the rows of a libsvm file.

    Raises
    ------
    InputError
        If it is missing or cannot be read, or its labels or the number of its rows are others.
    """
    if not file.is_file():
        raise InputError(f"{file} does not exist; give the folder that holds {TRAIN.file} and {TEST.file}")
    try:
        X, y = load_svmlight_file(str(file), n_features=N_COLUMNS, dtype=np.float32)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(
            f"{file} is not a whole libsvm file of {N_COLUMNS} columns, compressed by gzip ({error}); "
            f"download it again"
        ) from error
    labels = np.unique(y)
    if not np.array_equal(labels, [-1, 1]):
        shown = ", ".join(f"{label:g}" for label in labels[:5])
        raise InputError(
            f"{file} must have the labels -1 and 1, got {shown or 'no rows'}; is it another set?"
        )
    if len(y) != n_rows:
        raise InputError(f"{file} must have {n_rows:,} rows, got {len(y):,}; download it again")
    return LabelledRows(X.toarray(), y.astype(np.int8))


def write(folder: Path, part: Part, rows: LabelledRows) -> None:
    """Write the group of one part to a new folder."""
    attributes = {"distrff": {"kind": KIND}, "source": part.file}
    order = np.arange(len(rows.y))
    if part.shuffled:
        # Contiguous folds and the segments of a sweep are then like random samples.
        order = np.random.default_rng(SEED).permutation(order)
        attributes["shuffled_with_seed"] = SEED
    group = zarr.create_group(folder, zarr_format=3, attributes=attributes)
    chunk = min(CHUNK_ROWS, len(order))
    group.create_array("X", data=rows.X[order], chunks=(chunk, N_COLUMNS))
    group.create_array("y", data=rows.y[order], chunks=(chunk,))


def commands(folder: Path) -> list[str]:
    """Return the command lines that fit a model to the groups in `folder`, and score it."""
    train, test = (shlex.quote(str(folder / part.group)) for part in (TRAIN, TEST))
    return [
        f"distrff fit {train} --model svc --C 1 --kernel gaussian --length-scale 4.08 --scale none "
        f"--n-components 2000 --out svc.zarr --json",
        f"distrff score svc.zarr {test} --json",
    ]


if __name__ == "__main__":
    sys.exit(main())
