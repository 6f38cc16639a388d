"""Raw files as a Zarr group of rows: what may be asked for, and what goes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from distrff.columns.table_steps import TableSteps
from distrff.errors import InputError, check_count
from distrff.ingest.encoders import LABEL
from distrff.ingest.sources.array_blocks import ArraySource
from distrff.ingest.sources.libsvm_blocks import LibsvmSource
from distrff.ingest.sources.open_source import Source, open_source
from distrff.ingest.table_options import TableOptions
from distrff.ingest.table_writer import Layout, write_table
from distrff.model_store.groups import exists_refusal
from distrff.random_streams import resolve_seed

_DTYPES = {"auto": None, "float32": np.dtype(np.float32), "float64": np.dtype(np.float64)}


def convert(
    src: Any,
    dst: Any,
    *,
    target: Any = None,
    positive: Any = None,
    columns: Sequence[int | str] | str | int | None = None,
    drop: Sequence[int | str] | str | int | None = None,
    sample_weight: int | str | None = None,
    one_hot: bool = False,
    max_categories: int = 256,
    hash_columns: bool = False,
    datetime: str | None = None,
    missing: str = "error",
    shuffle: int | None = None,
    test_fraction: float | None = None,
    dtype: str = "auto",
    chunk_rows: int | None = None,
    header: bool | None = None,
    x_name: str = "X",
    y_name: str | None = None,
    overwrite: bool = False,
    storage_options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Convert files to a Zarr group with the arrays X, y and sample_weight, and return a report.

    Parameters
    ----------
    src : str, path, or list of these
        Files, folders or globs of one format, told by their first bytes: delimited text (comma, tab,
        semicolon or bar) and libsvm files, both perhaps compressed by gzip, bzip2, xz or Zstandard; a .npz or
        .npy file; Parquet. Rows of several files follow each other in sorted order.
    dst : str or path
        The group to be written; a path or a URL.
    target : str, int or list, optional
        Columns of y. Text becomes labels. Libsvm files and .npz files bring their own.
    positive : str or number, optional
        The label of the target that becomes 1; all others become 0.
    columns, drop : list of str or int, optional
        Columns of X, or those to be left out. An integer is an index unless a column has that name.
    sample_weight : str or int, optional
    one_hot : bool
        Make a column of 0 and 1 of each category of text columns; otherwise they are left out.
    max_categories : int
        A column with more categories is left out, or hashed.
    hash_columns : bool
        Hash such a column into `max_categories` columns.
    datetime : {"seconds", "parts"}, optional
        What becomes of dates and times: seconds since the column's minimum, or sine and cosine of year,
        weekday and hour. Times of day and durations become seconds by either. None leaves them all out.
    missing : {"error", "drop", "mean", "indicator"}
        What becomes of missing values: refused, their rows left out, the mean in their place, or that and
        a further column that says where.
    shuffle : int, optional
        Seed of a uniformly random order over all rows.
    test_fraction : float, optional
        Share of rows that go to the group `test` inside of dst, each with this probability.
    dtype : {"auto", "float32", "float64"}
        Of X. "auto": the common type of its columns; decimal numbers in text are float64.
    chunk_rows : int, optional
        Rows of a chunk of X; default about 4 MB, eight to a shard.
    header : bool, optional
        Whether delimited text begins with names; by default if its first line has text and no number in it.
    x_name, y_name : str
        Arrays of a .npz file; default "X" and, if there is one, "y". For a .npy file y_name is the path
        of another with the targets.
    overwrite : bool
        Replace what was converted to dst before; in an object store it is removed first.
    storage_options : dict, optional
        For the fsspec filesystems of URLs.

    Returns
    -------
    dict
        Strict JSON: rows read, dropped and written, columns made, columns left out and why, layout, seconds.

    Raises
    ------
    InputError
        For anything in the files that cannot be used, naming file, line or row, and column; nothing is
        left at dst then, or on a local disk what was there before.

    Notes
    -----
    One pass over the files where the types of columns decide everything; a first pass for categories,
    means, minima, and the width of libsvm files. Text is decoded in as many threads as there are cores;
    memory is that of a few blocks of 8 MB and one shard, whatever the size of the files. Shuffling takes
    as much room on disk, beside dst, as the rows of X decoded. Rows of more than 2,048 columns of which fewer
    than a tenth are filled are stored as a sparse matrix: X is then a group with data, indices and indptr.
    """
    layout = _checked_layout(dtype, chunk_rows, shuffle, test_fraction)
    exists_refusal(dst, overwrite, storage_options, kinds=("dataset",))
    options = TableOptions(
        target=target, columns=columns, drop=drop, sample_weight=sample_weight, one_hot=one_hot,
        max_categories=max_categories, hash_columns=hash_columns, missing=missing, datetime=datetime,
    )  # fmt: skip
    source = open_source(
        _listed(src),
        header=header,
        x_name=x_name,
        y_name=y_name,
        storage_options=storage_options,
    )
    options = fitting_options(source, options, positive)
    return write_table(source, dst, options, layout, overwrite=overwrite, storage_options=storage_options)


def convert_like(
    src: Any,
    dst: Any,
    steps: TableSteps,
    *,
    x_name: str = "X",
    y_name: str | None = None,
    storage_options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Convert files by the steps of a model, or of what was converted before; see `convert`.

    Parameters
    ----------
    src, dst : as of `convert`
    steps : TableSteps
        Which columns are read and what becomes of them; `steps.for_prediction()` wants no target.
    x_name, y_name, storage_options : as of `convert`

    Raises
    ------
    InputError
        If a column is missing or of another kind than it was, and as `convert`.
    """
    source = open_source(
        _listed(src),
        known=steps.raw_names,
        x_name=x_name,
        y_name=y_name,
        storage_options=storage_options,
    )
    return write_table(source, dst, TableOptions(), Layout(), steps=steps, storage_options=storage_options)


def _listed(src: Any) -> list[Any]:
    return list(src) if isinstance(src, (list, tuple)) else [src]


def fitting_options(source: Source, options: TableOptions, positive: Any) -> TableOptions:
    """Return the options with the target that the format itself says, and its positive label.

    Raises
    ------
    InputError
        For options of columns where there are none to choose from.
    """
    if isinstance(source, LibsvmSource):
        _refuse_for_libsvm(source, options)
        return replace(options, target=LABEL, positive=positive)
    if isinstance(source, ArraySource):
        chosen = (options.target, options.columns, options.drop, options.sample_weight)
        source.by_columns(any(choice is not None for choice in chosen))
        if options.target is None and source.targets:
            own = source.targets[0] if source.targets == ("y",) else list(source.targets)
            options = replace(options, target=own)
    return replace(options, positive=positive)


def _refuse_for_libsvm(source: LibsvmSource, options: TableOptions) -> None:
    named = {name: getattr(options, name) for name in ("target", "columns", "drop", "sample_weight")}
    named |= {"one_hot": options.one_hot or None, "missing": None if options.missing == "error" else True}
    for name, value in named.items():
        if value is not None:
            raise InputError(
                f"{source.name} is a libsvm file, whose label is the target and whose entries are all "
                f"columns; {name} does not apply to it: leave it out"
            )


def _checked_layout(
    dtype: str, chunk_rows: int | None, shuffle: int | None, test_fraction: float | None
) -> Layout:
    if dtype not in _DTYPES:
        raise InputError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
    check_count("chunk_rows", chunk_rows, or_none=True)
    if test_fraction is not None and not 0 < test_fraction < 1:
        raise InputError(f"test_fraction must lie between 0 and 1, got {test_fraction!r}")
    return Layout(
        _DTYPES[dtype], chunk_rows, None if shuffle is None else resolve_seed(shuffle), test_fraction
    )
