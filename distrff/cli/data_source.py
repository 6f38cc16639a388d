"""From DATA and its options to a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distrff.errors import InputError

if TYPE_CHECKING:
    from distrff.data.dataset import Dataset
    from distrff.model import Model


def open_data(path: str, options: Mapping[str, Any], *, columns: Any = None) -> Dataset:
    """Return the dataset at `path`, its columns those of `--columns` or else `columns`.

    Raises
    ------
    InputError
        If there is none, or it lacks a column.
    """
    from distrff.data.open import open_dataset

    target = options.get("target") or ()
    return open_dataset(
        path,
        target=None if not target else target[0] if len(target) == 1 else list(target),
        columns=options["columns"] or columns,
        sample_weight=options.get("sample_weight"),
        x_name=options["x_name"],
        ids=list(options.get("ids") or ()),
        storage_options=storage_options(options),
    )


def open_data_for(model: Model, path: str, options: Mapping[str, Any]) -> Dataset:
    """Return the dataset at `path` with the columns that the model was fitted to, found by their names.

    Raises
    ------
    InputError
        If one is missing, or the number of columns is another.
    """
    names = None if model.column_names is None else list(model.column_names)
    try:
        dataset = open_data(path, options, columns=names)
    except InputError:
        if names is None or options["columns"]:
            raise
        dataset = open_data(path, options)
        if dataset.column_names is not None:
            raise
        # A Zarr X without names is taken as it is.
    if dataset.n_columns != model.n_columns:
        raise InputError(
            f"{dataset.source} has {dataset.n_columns} columns, but the model was fitted to "
            f"{model.n_columns}; choose them with --columns"
        )
    return dataset


def storage_options(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what `--storage-option` said, or None."""
    return dict(options["storage_options"]) or None
