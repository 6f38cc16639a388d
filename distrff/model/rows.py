"""Rows for a fitted model: raw frames go through its steps, and columns must be those of the fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask
from dask.utils import is_dataframe_like

from distrff.errors import InputError, InputTypeError
from distrff.io.arrays import as_dataset
from distrff.io.dataset import Dataset
from distrff.io.open import open_dataset
from distrff.model.model import Model
from distrff.utils.text import listed


def rows_for(
    model: Model, X: Any, y: Any = None, sample_weight: Any = None, *, with_target: bool = True
) -> Dataset:
    """Return rows of any storage as a dataset of the model's columns.

    A raw frame brings its own target and weights, in the columns that held them at the fit, unless y or
    weights are given. Raises InputError for rows that do not fit the model, and with `with_target` for rows
    that have none.
    """
    if is_raw(model, X):
        assert model.steps is not None
        if y is None and sample_weight is None:
            weight, names = model.steps.weight, set(map(str, X.columns))
            steps = replace(
                model.steps,
                target=model.steps.target if with_target else None,
                weight=weight if with_target or weight in names else None,
            )
            X = open_dataset(X, steps=steps)
        else:
            X = encoded(model, X)
    dataset = as_dataset(X, y, sample_weight)
    check_columns(model, dataset)
    if with_target:
        check_target(model, dataset)
    return dataset


def is_raw(model: Model, X: Any) -> bool:
    """Return whether X is a DataFrame of the raw columns that the model's steps encode."""
    if model.steps is None or not is_dataframe_like(X):
        return False
    names = set(map(str, X.columns))
    return names.issuperset(model.steps.for_prediction().raw_names) or not names.issuperset(
        model.steps.names_out
    )


def encoded(model: Model, frame: Any) -> Any:
    """Return X of a raw frame, as an array of the frame's kind."""
    assert model.steps is not None
    dataset = open_dataset(frame, steps=model.steps.for_prediction())
    if dask.is_dask_collection(frame):
        return dataset.X
    (block,) = dataset.rows(0, dataset.n_rows).tiles(dataset.n_rows)
    return block.X


def check_columns(model: Model, dataset: Dataset) -> None:
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


def check_target(model: Model, dataset: Dataset) -> None:
    """Raise InputError unless the rows have the targets that the model predicts."""
    if not dataset.n_targets:
        raise InputError("to judge a model needs targets; give y, or the target's name")
    n_targets = 1 if model.is_classifier else model.n_outputs
    if dataset.n_targets != n_targets:
        raise InputError(f"y has {dataset.n_targets} column(s), but the model predicts {n_targets}")
