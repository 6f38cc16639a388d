"""Rows for a fitted model: raw tables go through its steps, and columns must be those of the fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import dask
import numpy as np
from dask.utils import is_dataframe_like

from distrff.errors import InputError, InputTypeError
from distrff.features.base import MapSpecification
from distrff.io.arrays import as_dataset, as_frame, block_of, targets_of, weights_of
from distrff.io.dataset import Dataset, check_lengths
from distrff.io.open import is_table, open_dataset, values_of
from distrff.io.partitions import paired
from distrff.preprocessing.table import TableSteps
from distrff.utils.arrays import as_columns
from distrff.utils.text import listed


class FittedModel(Protocol):
    """What of a `Model` says which rows fit it; its module imports this one, so that it cannot be named."""

    @property
    def specification(self) -> MapSpecification: ...
    @property
    def steps(self) -> TableSteps | None: ...
    @property
    def column_names(self) -> tuple[str, ...] | None: ...
    @property
    def n_columns(self) -> int: ...
    @property
    def n_outputs(self) -> int: ...
    @property
    def is_classifier(self) -> bool: ...


def rows_for(
    model: FittedModel, X: Any, y: Any = None, sample_weight: Any = None, *, with_target: bool = True
) -> Dataset:
    """Return rows of any storage as a dataset of the model's columns.

    A raw table brings its own target and weights, in the columns that held them at the fit, unless y or
    weights are given. Raises InputError for rows that do not fit the model, and with `with_target` for rows
    that have none.
    """
    X = as_frame(X)
    if is_raw(model.steps, X):
        assert model.steps is not None
        steps = model.steps if with_target else replace(model.steps, target=None)
        X, y, sample_weight = raw_rows(steps, X, y, sample_weight), None, None
    dataset = as_dataset(X, y, sample_weight)
    check_columns(model, dataset)
    if with_target:
        check_target(model, dataset)
    return dataset


def raw_rows(steps: TableSteps, X: Any, y: Any = None, sample_weight: Any = None) -> Dataset:
    """Return a raw table as a dataset, with its own target and weights or those that are given.

    Rows that the steps leave out lose their y and weight with them, where the table is a DataFrame in memory.
    Raises InputError for a table without the column of weights, unless y or weights are given.
    """
    X, y, sample_weight = paired({"X": X, "y": y, "sample_weight": sample_weight})[0].values()
    names = _names(X)
    target, weight = steps.target, steps.weight
    if y is None and sample_weight is None:
        if weight is not None and weight not in names and target is not None:
            raise InputError(
                f"the table has no column {weight!r}, which held the weights at the fit; add it, or give "
                f"sample_weight"
            )
        return open_dataset(X, steps=steps if weight in names else replace(steps, weight=None))
    if is_dataframe_like(X) and not dask.is_dask_collection(X):
        given: dict[str, Any] = {}
        if y is not None and target is not None and target.positive is None:
            columns = as_columns(targets_of(as_frame(y))[0])
            if columns.shape[1] == len(target.names):
                given = dict(zip(target.names, columns.T, strict=True))
        if sample_weight is not None and (given or y is None):
            weight = weight or "".join(["weight", *names])  # a name that no column has
            given[weight] = weights_of(as_frame(sample_weight))
        if given:
            check_lengths({"X": len(X), **{name: len(values) for name, values in given.items()}})
            taken = replace(steps, weight=weight if sample_weight is not None else None)
            return open_dataset(X.assign(**given), steps=taken)
    opened = open_dataset(X, steps=steps.for_prediction())
    rows = as_dataset(values_of(opened), y, sample_weight)
    return replace(rows, steps=steps, column_names=steps.names_out, table_report=opened.table_report)


def rows_to_predict(model: FittedModel, X: Any) -> Any:
    """Return rows of any storage as the model predicts them: an array in memory, or a dask array.

    Columns of frames are found by their names; others may be there. An array is returned as it is. Raises
    InputError for rows that do not fit the model.
    """
    X = as_frame(X)
    if is_raw(model.steps, X):
        return encoded(model, X)
    if isinstance(X, Dataset):
        check_columns(model, X)
        return X.X
    if not is_dataframe_like(X):
        if is_table(X):
            raise InputTypeError("this model was fitted to an array; give the values of the Dataset as one")
        return X
    if model.column_names is not None:
        lacking = [name for name in model.column_names if name not in X.columns]
        if lacking:
            raise InputError(
                f"the DataFrame has no column {lacking[0]!r}, which the model was fitted to; "
                f"it has: {listed(list(map(str, X.columns)))}"
            )
        X = X[list(model.column_names)]
    if dask.is_dask_collection(X):
        return as_dataset(X).X
    return block_of(X)[0] if len(X) else np.empty((0, model.n_columns))


def is_raw(steps: TableSteps | None, X: Any) -> bool:
    """Return whether X is a table of the raw columns that the steps of a model encode."""
    if steps is None or not is_table(X):
        return False
    names = _names(X)
    return names.issuperset(steps.for_prediction().raw_names) or not names.issuperset(steps.names_out)


def encoded(model: FittedModel, table: Any) -> Any:
    """Return X of a raw table, as an array in memory or of dask, whichever the table is.

    A row that the fit would have dropped, for it lacks a value, is NaN.
    """
    assert model.steps is not None
    steps = model.steps.for_prediction()
    if is_dataframe_like(table) and not dask.is_dask_collection(table) and not len(table):
        steps.check_names(table.columns, "the DataFrame")
        return np.empty((0, model.n_columns))  # which open_dataset refuses
    return values_of(open_dataset(table, steps=steps))


def _names(table: Any) -> set[str]:
    return set(map(str, table.columns if is_dataframe_like(table) else table.variables))


def check_columns(model: FittedModel, dataset: Dataset) -> None:
    """Raise InputError for other columns than those of the fit, or sparse rows where the map takes none."""
    if dataset.n_columns != model.n_columns:
        raise InputError(
            f"{dataset.source} has {dataset.n_columns} columns, but the model was fitted to {model.n_columns}"
        )
    expected, names = model.column_names, dataset.column_names
    if expected is not None and names is not None and tuple(names) != tuple(expected):
        raise InputError(
            f"the columns must be those of the fit: got {listed(names)}, expected {listed(expected)} in this "
            f"order"
        )
    if dataset.is_sparse and not model.specification.takes_sparse_rows:
        raise InputTypeError(
            f"X is sparse, but {model.specification.kind} features take no sparse rows; give dense rows"
        )


def check_target(model: FittedModel, dataset: Dataset) -> None:
    """Raise InputError unless the rows have the targets that the model predicts."""
    if not dataset.n_targets:
        raise InputError("to judge a model needs targets; give y, or the target's name")
    n_targets = 1 if model.is_classifier else model.n_outputs
    if dataset.n_targets != n_targets:
        raise InputError(f"y has {dataset.n_targets} column(s), but the model predicts {n_targets}")
