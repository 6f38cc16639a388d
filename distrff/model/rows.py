"""Rows for a fitted model, and its one route of predictions.

Rows of any storage are checked once: raw tables go through the model's steps, and columns must be those of
the fit. A method's result then comes at once for rows in memory, lazily for others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import dask
import numpy as np
from dask.base import tokenize
from dask.utils import is_dataframe_like
from scipy.sparse import issparse

from distrff.errors import InputError, InputTypeError
from distrff.features.fitted import FittedMap
from distrff.io.arrays import (
    as_dataset,
    as_frame,
    block_of,
    is_table,
    only_column,
    paired,
    plain_array,
    targets_of,
    weights_of,
    with_groups,
)
from distrff.io.dataset import Dataset, check_lengths, values_of
from distrff.preprocessing.coding import NumericTargets
from distrff.preprocessing.table import TableSteps, refuse_other_steps
from distrff.utils.arrays import as_columns
from distrff.utils.random import group_of
from distrff.utils.text import listed

_EMBEDDED_BYTES = 2**20  # a larger model is a task of its own, on which all blocks depend


class FittedModel(Protocol):
    """The part of a `Model` that says which rows fit it; its module imports this one."""

    @property
    def kind(self) -> str: ...
    @property
    def specification(self) -> FittedMap: ...
    @property
    def steps(self) -> TableSteps | None: ...
    @property
    def column_names(self) -> tuple[str, ...] | None: ...
    @property
    def n_columns(self) -> int: ...
    @property
    def n_targets(self) -> int: ...
    @property
    def is_classifier(self) -> bool: ...


# Predictions. Here `model` is a `Model`, whose methods come for rows that are neither arrays nor CSR.


def answer(model: Any, X: Any, method: str, **options: str) -> Any:
    """A method's result for rows of any storage, lazily for rows that are not in memory.

    It is "predict", "decision", "predict_proba", "class_scores", "std" or "transform", with its options.
    """
    rows = rows_to_predict(model, X)
    if not dask.is_dask_collection(rows):
        return model.of_block(rows, method, **options)
    if rows.ndim != 2 or rows.shape[1] != model.n_columns:
        raise InputError(
            f"X must have shape (n_samples, {model.n_columns}), got a dask array of shape {rows.shape}"
        )
    if issparse(rows._meta):
        model.specification.check_takes_sparse("pass X.map_blocks(lambda block: block.toarray())")
    # A map needs all columns of a row at once.
    if rows.numblocks[1] > 1:
        rows = rows.rechunk({1: -1})
    posterior = model.posterior if method == "std" else None
    light: Any = replace(model.light(), arrays=model.arrays, posterior=posterior)
    # A small model travels in the graph once a layer. A large one, or the posterior of D² numbers, is a task
    # of its own, or the scheduler would hold and send it with every block (dask-ml 842).
    if model.coef.nbytes > _EMBEDDED_BYTES or model.arrays or posterior is not None:
        light = dask.delayed(light, name=f"{group_of('model')}-{tokenize(light)}")
    return block_by_block(_of_block, rows, light, method, meta=_meta(model, method), **options)


def block_by_block(
    function: Callable[..., Any], rows: Any, *arguments: Any, meta: np.ndarray, **options: Any
) -> Any:
    """A function's results for blocks of rows, as a dask array; `meta` is one without a row."""
    shape: dict[str, Any] = (
        # A result of one number a row loses the axis of columns; Dask must be told either way.
        {"drop_axis": 1} if meta.ndim == 1 else {"chunks": (rows.chunks[0], (meta.shape[1],))}
    )
    named = {"token": group_of("predict"), "dtype": meta.dtype, "meta": meta}
    return rows.map_blocks(function, *arguments, **options, **named, **shape)


def _of_block(X: Any, model: Any, method: str, **options: str) -> Any:
    return model.of_block(X, method, **options)


def _meta(model: Any, method: str) -> np.ndarray:
    """No row of a method's result, of its shape and dtype."""
    # Dtypes of labels and features follow from classes and map: one row tells them.
    if method == "transform" or (method == "predict" and not isinstance(model.targets, NumericTargets)):
        return getattr(model, method)(model.specification.example)[:0]
    if method in ("predict_proba", "class_scores"):
        return np.empty((0, max(2, model.n_outputs)))
    flat = method != "decision" and model.y_is_1d
    return np.empty(0) if flat else np.empty((0, model.n_outputs))


def rows_to_predict(model: FittedModel, X: Any) -> Any:
    """Rows of any storage as the model predicts them: an array in memory, CSR, or a dask array.

    Columns of frames are found by their names; others may be there. Raises InputError for rows that do not
    fit the model.
    """
    X = as_frame(X)
    if is_raw(model.steps, X):
        return _encoded(model, X)
    if isinstance(X, Dataset):
        check_columns(model, X)
        return X.X
    if is_dataframe_like(X):
        X = fitted_columns(model, X)
        if dask.is_dask_collection(X):
            return as_dataset(X).X
        # A fit refuses a frame without rows, and so does `block_of`; predictions of none are none.
        return block_of(X)[0] if len(X) else np.empty((0, model.n_columns))
    if is_table(X):
        raise InputTypeError("this model was fitted to an array; give the values of the Dataset as one")
    return X if dask.is_dask_collection(X) or issparse(X) else plain_array(X, "X")


def fitted_columns(model: FittedModel, frame: Any) -> Any:
    """Columns of a DataFrame to which the model was fitted, in their order; all where they had no names."""
    if model.column_names is None:
        return frame
    check_has_columns(frame, model.column_names, ", which the model was fitted to")
    return frame[list(model.column_names)]


def check_has_columns(frame: Any, names: Sequence[str], purpose: str = "") -> None:
    """Raise InputError for the first name that is no column of a DataFrame."""
    if lacking := [name for name in names if name not in frame.columns]:
        raise InputError(
            f"the DataFrame has no column {lacking[0]!r}{purpose}; it has: "
            f"{listed(list(map(str, frame.columns)))}"
        )


def _encoded(model: FittedModel, table: Any) -> Any:
    """X of a raw table, in memory or lazy as the table is; a row that the fit would have dropped is NaN."""
    assert model.steps is not None
    steps = model.steps.for_prediction()
    if is_dataframe_like(table) and not dask.is_dask_collection(table) and not len(table):
        steps.check_names(table.columns, "the DataFrame")
        return np.empty((0, model.n_columns))  # which open_dataset refuses
    return values_of(_opened(table, steps))


def _opened(table: Any, steps: TableSteps, groups: str | None = None) -> Dataset:
    # With the readers of all storages, which rows in arrays come without.
    from distrff.io.open import open_dataset

    return open_dataset(table, steps=steps, groups=groups)


# Rows with targets, to fit, judge or calibrate a model.


ROWS_UNKNOWN = (
    "the rows of the fit are known only to an estimator that was fitted in this process, to rows in "
    "memory or stored ones; give data"
)


def rows_for(
    model: FittedModel,
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    groups: Any = None,
    with_target: bool = True,
) -> Dataset:
    """Rows of any storage as a dataset of the model's columns.

    A raw table brings its own target and weights, in the columns that held them at the fit, unless y or
    weights are given. Raises InputError for rows that do not fit the model, and with `with_target` for rows
    that have none.
    """
    steps = model.steps
    if steps is not None and not with_target:
        steps = replace(steps, target=None)
    X, y, sample_weight, groups = through_steps(steps, X, y, sample_weight, groups)
    dataset = as_dataset(X, y, sample_weight, groups=groups)
    check_columns(model, dataset, with_target=with_target)
    if with_target:
        check_target(model, dataset)
    return dataset


def through_steps(
    steps: TableSteps | None, X: Any, y: Any, sample_weight: Any, groups: Any = None
) -> tuple[Any, Any, Any, Any]:
    """X, y, weights and groups, where a raw table becomes a dataset, which has all four; other rows stay."""
    X = as_frame(X)
    if steps is None or not is_raw(steps, X):
        return X, y, sample_weight, groups
    return _raw_rows(steps, X, y, sample_weight, groups), None, None, None


def _raw_rows(steps: TableSteps, X: Any, y: Any, sample_weight: Any, groups: Any) -> Dataset:
    """A raw table as a dataset, with its own target and weights or those that are given, and groups.

    Rows that the steps leave out lose their y, weight and group with them, where the table is a DataFrame in
    memory. Raises InputError for a table without the column of weights, unless y or weights are given.
    """
    fields = {"X": X, "y": y, "sample_weight": sample_weight, "groups": groups}
    X, y, sample_weight, groups = paired(fields)[0].values()
    names, is_frame, group = _names(X), is_dataframe_like(X) and not dask.is_dask_collection(X), None
    if groups is not None and is_frame:
        # As columns of the frame groups, y and weights lose the rows that the steps drop.
        values = only_column(targets_of(as_frame(groups))[0])
        check_lengths({"X": len(X), "groups": len(values)})
        if values.ndim > 1:
            raise InputError(f"groups has {values.shape[1]} columns; give one, with one value per row")
        group = "".join(["groups", *names])  # a name that no column has
        X = X.assign(**{group: values})
    target, weight = steps.target, steps.weight
    if y is None and sample_weight is None:
        # Without a target nothing is judged, and weights do not matter.
        if weight is not None and weight not in names and target is not None:
            raise InputError(
                f"the table has no column {weight!r}, which held the weights at the fit; add it, or give "
                f"sample_weight"
            )
        taken = steps if weight in names else replace(steps, weight=None)
        return with_groups(_opened(X, taken, group), None if group else groups)
    if is_frame:
        given: dict[str, Any] = {}
        # A label of a yes-or-no target is turned into 1 by the step alone; a y that is given is 0 and 1
        # already.
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
            return _opened(X.assign(**given), taken, group)
    opened = _opened(X, steps.for_prediction())
    # Stored and lazy tables cannot take a column: rows that lack a value stay as NaN, beside their y.
    rows = as_dataset(values_of(opened), y, sample_weight, groups=groups)
    return replace(rows, steps=steps, column_names=steps.names_out, table_report=opened.table_report)


def is_raw(steps: TableSteps | None, X: Any) -> bool:
    """Whether X is a table of the raw columns that the steps of a model encode."""
    if steps is None or not is_table(X):
        return False
    names = _names(X)
    # With neither all raw nor all encoded columns it counts as raw: the steps then name the column that it
    # lacks.
    return names.issuperset(steps.for_prediction().raw_names) or not names.issuperset(steps.names_out)


def _names(table: Any) -> set[str]:
    return set(map(str, table.columns if is_dataframe_like(table) else table.variables))


OWN_STEPS = (
    "give the raw rows as a frame, or open them by open_dataset(..., steps=model.steps); the model of a "
    "fitted estimator is its model_"
)
"""The remedy for rows that are not encoded by the steps of a model."""


def check_steps(
    steps: TableSteps | None, dataset: Dataset, remedy: str = OWN_STEPS, *, with_target: bool = False
) -> None:
    """Raise InputError for rows that other steps than a model's encoded, if both are known."""
    others = dataset.steps
    if others is not None and not with_target:  # predictions do not look at the rows' y
        others = others.for_prediction()
    refuse_other_steps(steps, others, dataset.source, remedy)


def check_columns(model: FittedModel, dataset: Dataset, *, with_target: bool = False) -> None:
    """Raise InputError for other columns than those of the fit, or sparse rows where the map takes none.

    Columns that other steps made of the same table, with other means or first dates, are others.
    """
    check_steps(model.steps, dataset, with_target=with_target)  # first, as it names the raw column
    remedy = f"choose the columns of the fit from {dataset.source}"
    if model.steps is not None and dataset.steps is None:
        remedy = f"where {dataset.source} is a table, {OWN_STEPS}"
    # These two begin like scikit-learn's own, by which its check_estimator knows them.
    if dataset.n_columns != model.n_columns:
        raise InputError(
            f"X has {dataset.n_columns} features, but {model.kind} is expecting {model.n_columns} features "
            f"as input; {remedy}"
        )
    expected, names = model.column_names, dataset.column_names
    if expected is not None and names is not None and tuple(names) != tuple(expected):
        raise InputError(
            f"The feature names should match those that were passed during fit: got the columns "
            f"{listed(names)}, expected {listed(expected)} in this order; {remedy}"
        )
    if dataset.is_sparse:
        model.specification.check_takes_sparse("give dense rows")


def check_target(model: FittedModel, dataset: Dataset) -> None:
    """Raise InputError unless the rows have the targets that the model predicts."""
    if not dataset.n_targets:
        raise InputError("to judge a model needs targets; give y, or the target's name")
    if dataset.n_targets != model.n_targets:
        raise InputError(f"y has {dataset.n_targets} column(s), but the model predicts {model.n_targets}")
