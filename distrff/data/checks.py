"""Numbers that no machine can use, found block by block and named by where they stand."""

from __future__ import annotations

import math
from numbers import Number
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import issparse

from distrff.columns.row_matrices import as_columns
from distrff.data.dataset import Dataset
from distrff.data.rows import RowBlock, Rows
from distrff.errors import InputError, NonFiniteColumnError, NonFiniteError


def check_known(dataset: Dataset, target_kind: str) -> None:
    """Raise NonFiniteError for values that are known to be missing before any row is read."""
    for name in ("X", "sample_weight", *(() if target_kind == "none" else ("y",))):
        for column, n in dataset.known_missing.get(name, {}).items():
            raise NonFiniteError(
                f"{name} contains NaN: column {column!r} of {dataset.source} lacks {n} of "
                f"{dataset.n_rows} values; drop or fill such rows, as open_dataset(..., missing='drop') and "
                f"--missing drop do"
            )


def check_rows(rows: Rows, target_kind: str) -> None:
    """Raise for a number among some rows that no machine can use; see `check_block`."""
    for block in rows.tiles(rows.stop - rows.start):
        check_block(block, target_kind)


def check_block(block: RowBlock, target_kind: str) -> None:
    """Raise for a number that no machine can use, naming where it stands.

    Raises
    ------
    NonFiniteError
        For NaN or infinity in X, numeric y or sample_weight, or a missing label.
    InputError
        For a negative weight.
    """
    check_finite("X", block.X, block.start)
    _check_weights(block)
    if block.y is not None and target_kind != "none":
        check_finite("y", block.y, block.start)
        if target_kind == "numeric":
            _check_numbers(block.y, block.start)


def check_pairs(block: RowBlock, prediction: str) -> None:
    """Raise for what no score can use, of rows whose y are truths and whose X are predictions.

    Raises
    ------
    NonFiniteError
        For NaN or infinity, or a missing label.
    InputError
        For a negative weight.
    """
    check_finite("y_true", block.y, block.start)
    check_finite(prediction, block.X, block.start)
    _check_weights(block)


def _check_weights(block: RowBlock) -> None:
    if block.sample_weight is None:
        return
    check_finite("sample_weight", block.sample_weight, block.start)
    if (block.sample_weight < 0).any():
        row = int(np.flatnonzero(block.sample_weight < 0)[0])
        raise InputError(
            f"sample_weight must not be negative, "
            f"got {block.sample_weight[row]:g} in row {block.start + row}; drop such rows"
        )


def _check_numbers(y: np.ndarray, start: int) -> None:
    """Refuse targets that are no numbers; text that spells numbers is none either."""
    if y.dtype.kind in "biuf":
        return
    for row, values in enumerate(as_columns(y).tolist(), start):
        for value in values:
            if not isinstance(value, Number):
                raise InputError(
                    f"y must hold numbers for a regressor, got {value!r} in row {row}; "
                    f"use KernelRidgeClassifier for class labels"
                )


def check_finite(name: str, values: Any, start: int) -> None:
    """Raise NonFiniteError for a missing or infinite value, naming the row; `start` is that of the first."""
    if issparse(values):
        if not np.isfinite(values.data).all():
            row = (
                int(np.searchsorted(values.indptr, np.flatnonzero(~np.isfinite(values.data))[0], "right")) - 1
            )
            check_finite(name, values[row].toarray(), start + row)
        return
    if values.dtype.kind == "O":
        infinite = [isinstance(v, float) and math.isinf(v) for v in values.flat]
        bad = pd.isna(values) | np.reshape(infinite, values.shape)
    elif values.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            total = values.sum()
        if np.isfinite(total):  # one fast pass; a sum may overflow although no value does
            return
        bad = ~np.isfinite(values)
    else:
        return
    if not bad.any():
        return
    position = np.argwhere(bad)[0]
    value = values[tuple(position)]
    what = "infinity" if isinstance(value, float | np.floating) and np.isinf(value) else "NaN"
    message = f"{name} contains {what} in row {start + position[0]}"
    if name == "X":
        raise NonFiniteColumnError(f"{message}, {{column}}; drop or fill such rows", int(position[1]))
    where = f", column {position[1]}" if values.ndim == 2 else ""
    raise NonFiniteError(f"{message}{where}; drop or fill such rows")
