"""Predictions for rows of any storage, written beside the columns that tell who the rows are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dask.utils import is_dataframe_like
from sklearn.utils.validation import check_is_fitted

from distrff.data.arrays import as_dataset
from distrff.data.dataset import Dataset
from distrff.data.identified import with_ids
from distrff.display.names import listed
from distrff.errors import InputError
from distrff.estimators.machine import Machine
from distrff.estimators.run import begin_run
from distrff.model import Model
from distrff.public_names import public_name
from distrff.sweeps.write import write_rows


def write_predictions(
    model: Model | Machine,
    data: Any,
    out: str,
    *,
    ids: Sequence[str] | Mapping[str, Any] | None = None,
    method: str = "predict",
    return_std: bool = False,
    overwrite: bool = False,
    resume: bool = False,
    storage_options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a machine's predictions for all rows to Zarr or Parquet, in row order, and return a report.

    Parameters
    ----------
    model : Model or fitted estimator
    data : Dataset, array-like, DataFrame, dask array or dask DataFrame
        A dataset brings the `ids` that it was opened with.
    out : str
        Path or URL. A folder of Parquet files if it ends in .parquet or .pq. Else Zarr: an array
        "prediction", "decision" or "probability" and "std" and the ids in a group, or where there
        is only one of these that array itself.
    ids : list of str, or mapping of str to array-like, optional
        Columns of a DataFrame, or columns by name, one value a row, that are written beside.
    method : {"predict", "decision_function", "predict_proba"}
    return_std : bool
        Standard deviations of predictions as well, of a machine that has them.
    overwrite : bool
        Replace predictions that are there.
    resume : bool
        Go on with what an interrupted call for the same machine and rows left, if there is any.
        The machine is compared whole, the rows by their number and some of them.
    storage_options : dict, optional
        For fsspec, where `out` is a URL.

    Returns
    -------
    dict
        `out`, `n_samples`, `n_kept` (rows that an interrupted call had written), `columns` (name to
        type), `shape`, `dtype` and `chunks` of the result, `seconds` and `workers`.

    Raises
    ------
    InputError
        For rows that no machine can use, results that this one does not have, a place that may not be
        replaced, or an unfinished result of another machine or other rows.

    Notes
    -----
    One light pass, n·(2dD + 2Dk) flops (with standard deviations n·D² more); a task holds a block of
    at most 32 MB of results. An interrupted call leaves what is written, at `out` marked incomplete in
    an object store, beside it on a local file system.
    """
    machine = model if isinstance(model, Model) else _frozen(model, return_std)
    dataset = _identified(machine, data, ids)
    if dataset.n_columns != machine.n_columns:
        raise InputError(
            f"{dataset.source} has {dataset.n_columns} columns, but the model was fitted to "
            f"{machine.n_columns}; choose them when the dataset is opened"
        )
    if method == "transform":
        raise InputError("method 'transform' makes features, no predictions; use the machine's transform")
    run = begin_run()
    written = write_rows(
        run,
        machine,
        dataset,
        out,
        method=method,
        return_std=return_std,
        overwrite=overwrite,
        resume=resume,
        storage_options=storage_options,
    )
    return {
        "out": public_name(out),
        "n_samples": written.n_rows,
        **written.description(),
        "seconds": run.seconds,
        "workers": run.execution.n_workers,
    }


def _frozen(estimator: Machine, return_std: bool) -> Model:
    check_is_fitted(estimator, "model_")
    with_posterior = getattr(estimator, "_with_posterior", None)
    return with_posterior() if return_std and with_posterior is not None else estimator.model_


def _identified(machine: Model, data: Any, ids: Any) -> Dataset:
    """Return the rows as a dataset with its ids."""
    if isinstance(ids, str):
        ids = [ids]
    names, columns = machine.column_names, ids
    if is_dataframe_like(data):
        if ids is not None and not isinstance(ids, Mapping):
            _check_has(data, ids)
            columns = {name: data[name] for name in ids}
        if names is not None:
            _check_has(data, names)
            data = data[list(names)]
        elif columns is not ids:
            data = data.drop(columns=list(ids))
    elif ids is not None and not isinstance(ids, Mapping):
        raise InputError(
            "ids are columns by name: give names with a DataFrame, open_dataset(..., ids=...) for stored "
            "rows, or a dict of columns"
        )
    dataset = as_dataset(data)
    if columns is None:
        return dataset
    nothing = np.broadcast_to(np.float32(0), (dataset.n_rows, 1))
    return with_ids(dataset, {name: _column(name, nothing, values) for name, values in columns.items()})


def _column(name: str, nothing: np.ndarray, values: Any) -> Dataset:
    try:
        return as_dataset(nothing, values)
    except InputError as error:
        raise InputError(f"the id column {name!r} cannot be used: {error}") from error


def _check_has(frame: Any, names: Sequence[str]) -> None:
    missing = [name for name in names if name not in frame.columns]
    if missing:
        columns = listed([str(name) for name in frame.columns])
        raise InputError(f"the DataFrame has no column {missing[0]!r}; its columns are: {columns}")
