"""From DATA and its options to a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distrff.cli.cluster import workers_elsewhere
from distrff.cli.raw_files import converted, converted_like
from distrff.errors import InputError
from distrff.public_names import public_name

if TYPE_CHECKING:
    from distrff.columns.table_steps import TableSteps
    from distrff.data.dataset import Dataset
    from distrff.model import Model

_RULES = ("one_hot", "missing", "datetime", "positive")  # one that is given may need a pass over the rows
_OF_TABLES = ("drop", "max_categories", "hash_columns", *_RULES)


def open_data(path: str, options: Mapping[str, Any], *, columns: Any = None) -> Dataset:
    """Return the dataset at `path`, its columns those of `--columns` or else `columns`.

    Raises
    ------
    InputError
        If there is none, or it lacks a column.
    """
    from distrff.ingest.open_table import open_dataset

    rules = {name: options[name] for name in _OF_TABLES if name in options}
    if _is_raw(path, options):
        arguments = _arguments(options, columns) | rules | {"y_name": options.get("y_name")}
        return converted(path, options, arguments.pop("storage_options"), **arguments)
    passes = any(rules.get(name) not in (None, False, "error") for name in _RULES)
    with workers_elsewhere(options) if passes else nullcontext():
        return open_dataset(path, **_arguments(options, columns), ids=_ids(options), **rules)


def open_stored_data(path: str, options: Mapping[str, Any]) -> Dataset:
    """Return the dataset at `path` as it is stored, of which no row is read.

    Raises
    ------
    InputError
        If there is none, or it lacks a column.
    """
    from distrff.data.open import open_dataset

    return open_dataset(path, **_arguments(options, None))


def _arguments(options: Mapping[str, Any], columns: Any) -> dict[str, Any]:
    return {
        "target": target_of(options),
        "columns": options["columns"] or columns,
        "sample_weight": options.get("sample_weight"),
        "x_name": options["x_name"],
        "storage_options": storage_options(options),
    }


def target_of(options: Mapping[str, Any]) -> Any:
    """Return what `--target` said: one column, a list of several, or None."""
    target = options.get("target") or ()
    return None if not target else target[0] if len(target) == 1 else list(target)


def open_data_for(model: Model, path: str, options: Mapping[str, Any]) -> Dataset:
    """Return the dataset at `path` with the columns that the model was fitted to, found by their names.

    A table goes through the model's steps, to its target as well where `options` have one.

    Raises
    ------
    InputError
        If one is missing, or the number of columns is another.
    """
    from distrff.data.open import stored_kind

    if model.steps is not None and _is_raw(path, options):
        steps = _wanted_steps(model.steps, path, options)
        return converted_like(path, options, storage_options(options), steps)
    if model.steps is not None and stored_kind(path, storage_options(options)) != "zarr":
        return _through_steps(_wanted_steps(model.steps, path, options), path, options)
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


def _wanted_steps(steps: TableSteps, path: str, options: Mapping[str, Any]) -> TableSteps:
    """The steps of a model to what a command asks for: with the target or without, perhaps another one."""
    if options["columns"]:
        raise InputError("--columns goes with models of plain numbers; this one's steps name its columns")
    if "target" not in options:
        steps = steps.for_prediction()
    elif steps.target is not None and options["target"]:
        names = _target_names(steps, path, options)
        is_1d = len(names) == 1 and steps.target.is_1d
        steps = replace(steps, target=replace(steps.target, names=names, is_1d=is_1d))
    return replace(steps, weight=options["sample_weight"]) if options.get("sample_weight") else steps


def _target_names(steps: TableSteps, path: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the columns that `--target` says, perhaps by indices."""
    from distrff.data.selection import find_columns
    from distrff.ingest.sources.libsvm_blocks import LibsvmSource
    from distrff.ingest.sources.open_source import open_source

    given = tuple(options["target"])
    source = open_source(
        [path],
        known=steps.for_prediction().raw_names,
        x_name=options["x_name"],
        y_name=options.get("y_name"),
        storage_options=storage_options(options),
    )
    if isinstance(source, LibsvmSource):
        return given
    source.follow(steps.for_prediction())
    columns = list(source.kinds)
    return tuple(columns[i] for i in find_columns(given, columns, source.name))


def _through_steps(steps: TableSteps, path: str, options: Mapping[str, Any]) -> Dataset:
    from distrff.ingest.open_table import open_dataset

    with workers_elsewhere(options) if steps.drops_missing else nullcontext():
        return open_dataset(path, steps=steps, ids=_ids(options), storage_options=storage_options(options))


def _is_raw(path: str, options: Mapping[str, Any]) -> bool:
    """Whether files must be converted before their rows can be read; those of ids then are not kept."""
    from distrff.ingest.sources.open_source import is_raw

    found = is_raw(path, storage_options(options))
    if found and _ids(options):
        raise InputError(
            f"--id goes with Parquet and Zarr; of {public_name(path)} only the columns that the model reads "
            f"are converted, so write it as Parquet first"
        )
    return found


def _ids(options: Mapping[str, Any]) -> list[str]:
    return list(options.get("ids") or ())


def storage_options(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what `--storage-option` said, or None."""
    return dict(options["storage_options"]) or None
