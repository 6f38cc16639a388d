"""Opening whatever holds rows: stored X and y as they are, tables through steps, counts as rates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask
import numpy as np
from dask.utils import is_dataframe_like

from distrff.engine.run import Run
from distrff.errors import DataWarning, InputError, NonFiniteError, warn
from distrff.io.arrays import arrays_dataset, as_frame, is_table, paired, persisted_text, with_groups
from distrff.io.dataset import Dataset, Form, Reader, Rows, Span, values_of, with_readers
from distrff.io.parquet_rows import MAGIC, ParquetTable, open_parquet, parquet_table
from distrff.io.storage import GLOB_CHARACTERS, PARQUET_SUFFIXES, Location, Options, first_bytes
from distrff.io.tables import (
    Table,
    choose_columns,
    encoded_dataset,
    frame_table,
    group_table,
    match_of,
    matrix_table,
    profile_of,
    report_of_unseen,
    warn_of_left_out,
    with_beside,
    with_names,
    with_row_numbers,
    xarray_table,
)
from distrff.io.zarr_rows import (
    array_column,
    has_array,
    has_fill_values,
    open_group,
    open_zarr,
    stored_beside,
)
from distrff.preprocessing.profile import TableOptions, refuse_missing_values
from distrff.preprocessing.table import FIELDS, TableSteps
from distrff.utils.text import listed


def open_dataset(
    path: Any,
    *,
    target: Any = None,
    columns: Sequence[int | str] | str | int | None = None,
    drop: Sequence[int | str] | str | int | None = None,
    sample_weight: int | str | None = None,
    one_hot: bool = False,
    max_categories: int = 256,
    hash_columns: bool = False,
    missing: str = "error",
    datetime: str | None = None,
    positive: Any = None,
    types: Mapping[Any, str] | None = None,
    keep_index: bool = False,
    steps: TableSteps | None = None,
    sample_dim: str | None = None,
    x_name: str = "X",
    y_name: str = "y",
    weight_name: str = "sample_weight",
    ids: Sequence[int | str] | str = (),
    groups: int | str | None = None,
    extra: Sequence[int | str] | str = (),
    storage_options: dict[str, Any] | None = None,
) -> Dataset:
    """The dataset that a path, a DataFrame or an xarray Dataset holds; rows are read in the tasks.

    Parameters
    ----------
    path : str, path-like, list of these, DataFrame or xarray Dataset
        A Zarr group that holds the arrays X (n, d), y (n,) or (n, k) and sample_weight (n,), the
        last two optional, decoded by their CF attributes as xarray does; or one that holds an array for each
        column, see `sample_dim`. Or Parquet: a file, a folder (searched for \\*.parquet and \\*.pq), a glob,
        a list; files are read in the natural order of their names, and keys such as year=2019 in the names
        of folders are the last columns. URLs are opened through fsspec. Or a DataFrame of pandas, polars or
        dask, or a pyarrow Table. Or an xarray Dataset: its data variables along `sample_dim`, with all other
        dimensions flattened, and the coordinates that are named.
    target : str, int or list, optional
        Tables: the column that is y, or a list of columns for a 2-D y. An integer is an index (-1
        the last) unless a column has that name; columns that hold a pandas index are not counted.
        None: no y. Zarr: the array that is y, by default `y_name` if the group has it.
    columns : list of str or int, optional
        The columns of X. By default all that the options below take, in the table's order, except target and
        weights; a `DataWarning` names others that hold something, unless `drop` does. Names for Zarr are
        those of the group's attribute `column_names`, or of the coordinate along the columns that xarray
        writes.
    drop : list of str or int, optional
        Columns of a table to leave out instead.
    sample_weight : str or int, optional
        Column (tables) or array (Zarr) of the weights.
    one_hot : bool
        Whether text and categories become columns of 0 and 1, one per category; otherwise such columns are
        left out. Categories that first occur in later data are encoded as all zeros; `table_report` counts
        their rows as "n_unseen_categories", and above one row in a hundred a `DataWarning` names some.
    max_categories : int
        A column with more is left out; the report says so.
    hash_columns : bool
        Hash the words of such a column into `max_categories` columns instead.
    missing : {"error", "drop", "mean", "indicator"}
        Refuse missing values; leave out their rows; replace them by the column's mean (for a category the
        shares of all, for a time the mean time, for its parts 0); or replace them by the mean (0 in all
        columns of categories) and add a column that marks them by 1. All but "error" leave out rows without a
        target; a missing weight is refused except with "drop". Columns without any value are always left out.
    datetime : {"seconds", "parts", "both"}, optional
        What becomes of dates and times: float64 seconds since the column's minimum, in which a trend is; sine
        and cosine of their place in the year, the week (by days) and the day (by hours), in UTC; or both.
        Times of day and durations become seconds in all cases. With None all are left out.
    positive : str or number, optional
        The label of the target that becomes 1; all others become 0.
    types : mapping of str to {"text", "number", "time"}, optional
        Kinds of columns of a table where the stored types do not tell: codes stored as integers are "text"
        ("category" is the same), text may spell times ("date" and "datetime" are the same).
    keep_index : bool
        Take columns that hold a frame's index or number the rows, which are left out otherwise: those called
        like an index (index, id, row, "Unnamed: 0" and the like) that count in steps of one.
    steps : TableSteps, optional
        The `steps` of a model: encode the columns of a table as for the fit of this model. They are found by
        their names, and the options above must not be given. Without the target's column the rows are those
        to predict, none is left out: one that the fit would have dropped is NaN.
    sample_dim : str, optional
        The dimension of the samples in an xarray Dataset, or in a Zarr group that is to be read as a table.
        Beside `steps` it may be left out where the variables that these name have one dimension in common.
    x_name, y_name, weight_name : str
        Names of the Zarr arrays.
    ids : list of str or int, optional
        Columns of a table, or arrays of a Zarr group beside X, of any type, that identify the rows:
        `write_predictions` writes them beside its predictions. They are no columns of X unless `columns`
        names them.
    groups : str or int, optional
        The column that says which group a row belongs to, such as a person or a site; none of X unless
        `columns` names it.
    extra : list of str or int, optional
        Further columns that folds need, such as the day, and none of X unless `columns` names them, or
        `datetime` says how times become some. Values come as they are stored, times as datetime64, those with
        a zone in UTC.
    storage_options : dict, optional
        Passed to the fsspec filesystem.

    Returns
    -------
    Dataset
        Its `steps` say how the raw columns are encoded, and `table_report` what was done.

    Raises
    ------
    InputError
        If the path does not exist, is of no accepted kind, or cannot be read; if a column or array is
        missing, of a kind that the options do not take, or lacks values that the options require; if
        lengths disagree, or there are no rows or columns.

    Notes
    -----
    Reads the metadata of the group (Zarr) or one footer per file (Parquet), the first list of a column of
    lists, and the first rows of a column that is called like an index. Numbers without nulls are taken as
    they are. Categories, times, means and rows to leave out need one pass over their columns; leaving out
    rows needs a second one over the columns that lack values. Zarr arrays with a value that stands for a
    missing one are read once, to see whether it occurs. With `steps` one pass over the columns of categories
    looks for values that the fit never saw; of a dask DataFrame it is the pass that counts its rows. The
    passes run on the current Dask scheduler, like those of a fit.
    """
    options = TableOptions(
        target=target, columns=columns, drop=drop, sample_weight=sample_weight, one_hot=one_hot,
        max_categories=max_categories, hash_columns=hash_columns, missing=missing, datetime=datetime,
        positive=positive, types=types, keep_index=keep_index, ids=ids, groups=groups, extra=extra,
    )  # fmt: skip
    if steps is not None and (name := options.first_given()):
        raise InputError(f"{name} was given beside steps, which define all columns; leave it out")
    path = as_frame(path)
    if is_table(path):
        if is_dataframe_like(path):
            dataset = _of_table(frame_table(path), options, steps)
        else:
            named = () if steps is None else steps.for_names(path.variables).raw_names
            dataset = _of_table(xarray_table(path, sample_dim, named), options, steps)
        warn_of_left_out(dataset)
        return dataset
    paths = path if isinstance(path, (list, tuple)) else [path]
    places = tuple(Location.of(one, storage_options) for one in paths)
    # By markers in the store, not by trying one reader after the other, whose errors would hide each other.
    if stored_kind(path, storage_options) == "zarr":
        arrays = {"x_name": x_name, "y_name": y_name, "weight_name": weight_name}
        dataset = _of_zarr(places[0], options, steps, sample_dim, arrays)
    elif sample_dim is not None:
        raise InputError(
            f"sample_dim={sample_dim!r} goes with an xarray Dataset or a Zarr group, got Parquet files"
        )
    else:
        texts = [name for name, kind in (types or {}).items() if kind == "text"]
        if steps is not None:
            # The fit decides: a key that was text there stays text, even if all its values here are digits.
            texts = list(steps.text_names)
        table = parquet_table(path, storage_options, texts)
        dataset = _of_parquet(table, options, steps)
    # A checkpoint compares the versions of these files, so that it never goes on with other rows.
    dataset = replace(dataset, places=places)
    warn_of_left_out(dataset)
    return dataset


def encoded_frame(frame: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> Dataset:
    """A frame that holds more than numbers, encoded by steps, which the dataset has.

    Text and categories become columns of 0 and 1, times become sine and cosine of year, weekday and hour.
    Frames in memory are encoded in memory.

    Raises InputError as `as_dataset` and `open_dataset` do, and for missing values.
    """
    given, persisted_bytes = paired({"X": frame, "y": y, "sample_weight": sample_weight, "groups": groups})
    X, y, sample_weight, groups = given.values()
    # A frame keeps its index apart, so that all of its columns are meant to be used.
    options = TableOptions(one_hot=True, datetime="parts", keep_index=True)
    try:
        # `paired` has seen X together with y; X alone would be computed once more.
        opened = _of_table(replace(frame_table(X), is_paired=True), options, None)
    except NonFiniteError as error:
        # The message of the error ends with an option, such as missing='drop'; here it is said where that
        # goes.
        raise NonFiniteError(
            f"{error} to distrff.open_dataset(frame, target=..., one_hot=True) and fit what it returns, or "
            f"fill the gaps in a pipeline before this estimator"
        ) from None
    assert opened.table_report is not None
    for name, why in opened.table_report["columns_dropped"].items():
        warn(
            f"column {name!r} of the frame is left out: {why}; see distrff.open_dataset",
            DataWarning,
        )
    # y and weights go beside the steps: what labels mean is for the estimator to say.
    fields = {"X": values_of(opened), "y": y, "sample_weight": sample_weight}
    rows = arrays_dataset({name: as_frame(values) for name, values in fields.items() if values is not None})
    return replace(
        with_groups(rows, groups),
        column_names=opened.column_names,
        steps=opened.steps,
        source=opened.source + persisted_text(persisted_bytes),
        table_report=opened.table_report,
        persisted_bytes=persisted_bytes,
    )


def _of_parquet(table: ParquetTable, options: TableOptions, steps: TableSteps | None) -> Dataset:
    """The dataset of a Parquet table: numbers as they are, all else encoded by steps."""
    if steps is not None:
        return _of_table(table, options, steps)
    table = with_row_numbers(table, options)
    options = with_names(table, options)
    # Numbers are taken as they are, with no pass over the rows, unless an option or a column asks for steps.
    if options == TableOptions(options.target, options.columns, sample_weight=options.sample_weight):
        # Columns that are named are taken as they are; one that is no number is refused there.
        are_numbers = options.columns is not None or table.holds_only_numbers()
    else:
        # Of the columns that the options leave: text that nobody takes must not cost a pass.
        are_changed = options.missing != "error" or options.positive is not None
        are_numbers = not are_changed and table.holds_only_numbers(choose_columns(table, options).columns)
    return open_parquet(table, options) if are_numbers else _of_table(table, options, None)


def _of_zarr(
    location: Location,
    options: TableOptions,
    steps: TableSteps | None,
    sample_dim: str | None,
    arrays: Mapping[str, str],
) -> Dataset:
    """The dataset of a Zarr group: X as it is, or a table of its columns where values are missing.

    Arrays that name a value for missing ones are read once, to see whether it occurs.
    """
    if sample_dim is not None or (steps is not None and not has_array(location, arrays["x_name"])):
        named = () if steps is None else steps.for_prediction().raw_names
        return _of_table(group_table(location, sample_dim, named), options, steps)
    if name := options.first_given(besides=("target", "columns", "sample_weight", "missing")):
        raise InputError(
            f"{name} goes with tables; the X and y of a Zarr group are taken as they are (sample_dim makes a "
            f"table of its arrays)"
        )
    dataset, of_rows = open_zarr(location, options, **arrays), TableOptions(missing=options.missing)
    if options.beside:
        group, source = open_group(location), str(location)
        ids, groups, extra = (tuple(map(str, keys)) for keys in options.roles)
        # Folds may go by a column of X, which it keeps; a time beside X has the units in which gaps are told.
        kept = {*(dataset.column_names or ())}.difference(stored_beside(group))
        extra = tuple(name for name in extra if name not in kept)
        of_rows = replace(of_rows, ids=ids, groups=next(iter(groups), None), extra=extra)
        readers = {name: array_column(group, name, source) for name in of_rows.beside}
        dataset = with_readers(dataset, readers, ids=ids, groups=of_rows.groups)
    if steps is None and options.missing == "error" and not has_fill_values(dataset):
        return dataset
    if dataset.is_sparse or dataset.steps is not None:
        name = "missing" if steps is None else "steps"
        raise InputError(f"{name} goes with tables; the X and y of this Zarr group are taken as they are")
    # Only a table has rules for missing values, so the matrix is read as one.
    table, target, weight = matrix_table(dataset, arrays["x_name"])
    if steps is None and options.missing == "error":
        profile = profile_of(Run(), table, tuple(table.kinds), options)
        # Where none occurs X stays one matrix; as a table it has a step for each of its columns.
        if not any(column.n_missing for column in profile.columns.values()):
            return dataset
    return _of_table(table, replace(of_rows, target=target, sample_weight=weight), steps)


def _of_table(table: Table, options: TableOptions, steps: TableSteps | None) -> Dataset:
    """The rows of a table, encoded by the steps of a model or by those that its contents require."""
    if steps is not None:
        # Rows to score have the target, rows to predict do not.
        steps = steps.for_names(table.kinds)
        steps.check_names(table.kinds, table.name)
        options = with_names(table, options)
        table, run = _with_rows(table, steps.raw_names, options.beside, steps), Run()
        kept, unseen = match_of(run, table, steps, steps.required)
        opened = encoded_dataset(table, steps.for_other_rows(), kept)
        opened = with_beside(opened, table, options, steps.required, kept)
        report = report_of_unseen(unseen, steps, opened.n_rows)
        return replace(opened, steps=steps, table_report={**(opened.table_report or {}), **report})
    table = with_row_numbers(table, options)
    options = with_names(table, options)
    choice = choose_columns(table, options)
    table = _with_rows(table, choice.used, options.beside, None)
    run = Run()
    profile = profile_of(run, table, choice.used, options)
    steps, report = choice.steps(profile, options)
    refuse_missing_values(steps, profile, options.missing)
    # Only columns in which the profile found a gap: complete ones need no second pass.
    lacking = tuple(name for name in steps.required if name in report["missing"])
    kept, _ = match_of(run, table, steps, lacking, are_own=True)
    dataset = encoded_dataset(table, steps, kept, report)
    return with_beside(dataset, table, options, lacking, kept)


def _with_rows(table: Table, names: Sequence[str], beside: Sequence[str], steps: TableSteps | None) -> Table:
    table.check([*names, *beside])
    table = table.loaded(names, beside, steps)
    # Or every column would look like one that lacks all values.
    if not table.n_rows:
        raise InputError(f"{table.name} has no rows; check the path, or what was selected from it")
    return table


# Stored rows, taken as they are.

_ZARR_MARKERS = ("zarr.json", ".zgroup", ".zattrs", ".zarray")
_ACCEPTED = (
    "a Zarr group (zarr.json or .zgroup in a folder) or Parquet (a *.parquet file, a folder of them, a glob)"
    "; convert CSV, TSV, libsvm, .npz and .npy files to a Zarr group by distrff.convert or `distrff convert`"
)


def stored_dataset(
    path: Any,
    *,
    target: Any = None,
    columns: Any = None,
    sample_weight: int | str | None = None,
    x_name: str = "X",
    storage_options: Options = None,
) -> Dataset:
    """The dataset of the numbers stored at `path`, as they are; see `open_dataset`."""
    options = TableOptions(target, columns, sample_weight=sample_weight)
    if stored_kind(path, storage_options) == "parquet":
        return open_parquet(parquet_table(path, storage_options), options)
    return open_zarr(Location.of(path, storage_options), options, x_name=x_name)


def stored_kind(path: Any, storage_options: Options) -> str:
    """The format of a stored dataset, "zarr" or "parquet"; a list of paths is Parquet."""
    if isinstance(path, (list, tuple)):
        return "parquet"
    location = Location.of(path, storage_options)
    with location.reached() as (fs, inner):
        base, shown = inner.rstrip("/"), str(location).rstrip("/")  # the latter without a signed URL's query
        # By the name first: that takes no request.
        if shown.endswith(".zarr"):
            return "zarr"
        if shown.endswith(PARQUET_SUFFIXES):
            return "parquet"
        # A file may have such characters in its name, so what exists is no glob.
        if any(c in base for c in GLOB_CHARACTERS) and not fs.exists(base):
            return "parquet"
        if not fs.exists(inner):
            raise InputError(f"{location} does not exist; check the path")
        if not fs.isdir(inner):
            if first_bytes(fs, inner).startswith(MAGIC):
                raise InputError(
                    f"{location} holds Parquet, and its name ends otherwise; rename it to end in .parquet"
                )
            raise InputError(f"{location} is a file of an unknown kind; accepted is {_ACCEPTED}")
        if any(fs.exists(f"{base}/{marker}") for marker in _ZARR_MARKERS):
            return "zarr"
        # Last, as the files of a large folder take many requests.
        if any(file.endswith(PARQUET_SUFFIXES) for file in fs.find(inner)):
            return "parquet"
    raise InputError(f"{location} is a folder without data; accepted is {_ACCEPTED}")


def takes_steps(path: Any, steps: TableSteps, x_name: str, storage_options: Options) -> bool:
    """Whether the steps of a model encode what is stored at `path`, which otherwise holds their X."""
    if stored_kind(path, storage_options) == "parquet":
        return True
    location = Location.of(path, storage_options)
    # Without the matrix only a table of arrays can hold the columns.
    if not has_array(location, x_name):
        return True
    dataset = open_zarr(location, TableOptions(), x_name=x_name)
    # Rows that a conversion has encoded, or that are sparse, are X already.
    if dataset.is_sparse or dataset.steps is not None:
        return False
    return set(matrix_table(dataset, x_name)[0].kinds).issuperset(steps.for_prediction().raw_names)


def is_raw(path: Any, storage_options: Options) -> bool:
    """Whether `path` names existing files that are neither Zarr nor Parquet, so must be converted."""
    location = Location.of(path, storage_options)
    with location.reached() as (fs, inner):
        markers = [f"{inner.rstrip('/')}/{marker}" for marker in _ZARR_MARKERS]
        # Web servers return a page for a folder, so that a Zarr group looks like a file.
        if fs.isfile(inner) and (location.path is not None or not any(map(fs.exists, markers))):
            # Also by its first bytes, since a Parquet file may have any name.
            return not inner.endswith(PARQUET_SUFFIXES) and not first_bytes(fs, inner).startswith(MAGIC)
        if any(c in inner for c in GLOB_CHARACTERS):
            return any(fs.isfile(file) and not file.endswith(PARQUET_SUFFIXES) for file in fs.glob(inner))
    return False


# Rates: targets that are divided by a column of exposures.


def with_rates(dataset: Dataset, exposure: str, *, weighted: bool) -> Dataset:
    """The dataset with y/e in the place of y, for the column e beside X, and with weights s·e if `weighted`.

    Of counts y with means e·μ the deviance is e times that of the rates y/e with means μ, so that a model of
    rates needs to know no more of exposures; of amounts it is the same.
    """
    reader = RatedReader(dataset.reader, exposure_reader(dataset, exposure), exposure, weighted)
    return replace(
        dataset, reader=reader, y_dtype=np.dtype(np.float64), has_weights=weighted or dataset.has_weights
    )


def exposure_reader(dataset: Dataset, exposure: Any) -> Reader:
    """The reader of the column of exposures beside X."""
    if not isinstance(exposure, str) or exposure not in dataset.id_readers:
        known = listed(list(dataset.id_readers)) if dataset.id_readers else "none"
        raise InputError(
            f"a dataset has its exposures in a column beside X, where there is {known}, got {exposure!r}: "
            f"open it with that column beside X (extra) and give its name"
        )
    if dataset.id_dtypes[exposure].kind not in "biuf":
        raise InputError(f"the exposures {exposure!r} are no numbers, but {dataset.id_dtypes[exposure]}")
    return dataset.id_readers[exposure]


@dataclass(frozen=True, eq=False)
class RatedReader(Reader):
    """The rows of a reader with rates for targets."""

    reader: Reader
    exposures: Reader  # as its y
    name: str
    weighted: bool

    @property
    def fields(self) -> Collection[str]:  # type: ignore[override]
        return {*self.reader.fields, *(["sample_weight"] if self.weighted else [])}

    @property
    def are_delayed(self) -> bool:  # type: ignore[override]
        return self.reader.are_delayed or self.exposures.are_delayed

    @property
    def has_rates(self) -> bool:  # type: ignore[override]
        return True

    def rows(self, start: int, stop: int, fields: tuple[str, ...] = FIELDS) -> Rows:
        if not {"y", "sample_weight"} & set(fields):
            return self.reader.rows(start, stop, fields)
        rows = self.reader.rows(start, stop, tuple(dict.fromkeys((*fields, "y"))))
        exposures = self.exposures.rows(start, stop, ("y",))
        return RatedRows(start, stop, rows, exposures, self.name, self.weighted)

    def form(self, field: str) -> Form:
        shape, dtype = self.reader.form("y" if field == "sample_weight" else field)
        is_rate = field in ("y", "sample_weight")
        return Form(
            shape[:1] if field == "sample_weight" else shape, np.dtype(np.float64) if is_rate else dtype
        )

    def row_chunks(self, field: str) -> Sequence[int]:
        return self.reader.row_chunks("y" if field == "sample_weight" else field)


@dataclass(frozen=True)
class RatedRows(Rows):
    """Rows of which y is divided by the exposures."""

    rows: Rows
    exposures: Rows
    name: str
    weighted: bool

    def spans(self) -> Iterable[Iterator[Span]]:
        # A tile of each at a time: targets and exposures may be stored in other chunks.
        yield self._rated()

    def _rated(self) -> Iterator[Span]:
        n_rows = min(self.stop - self.start, _RATED_ROWS)
        for block, of_exposure in zip(self.rows.tiles(n_rows), self.exposures.tiles(n_rows), strict=True):
            e = np.ravel(np.asarray(of_exposure.y, dtype=np.float64))
            check_exposures(e, self.name, block.start)
            span: Span = {"X": block.X} if block.X is not None else {}
            if block.y is not None:
                y = np.asarray(block.y, dtype=np.float64)
                span["y"] = y / (e if y.ndim == 1 else e[:, None])
            s = block.sample_weight
            if self.weighted:
                s = e if s is None else s * e
            yield span | ({} if s is None else {"sample_weight": s})


_RATED_ROWS = 2**14


def check_exposures(exposure: np.ndarray, name: str, start: int = 0) -> None:
    """Raise InputError for an exposure that is not a positive, finite number, naming its row."""
    wrong = ~(np.isfinite(exposure) & (exposure > 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"exposures must be positive numbers, got {exposure[row]:g} in row {start + row} of {name}; drop "
            f"such rows"
        )


def exposed(X: Any, y: Any, sample_weight: Any, exposure: Any, *, weighted: bool) -> tuple[Any, Any, Any]:
    """X, y and weights with rates y/e for y and, if `weighted`, weights s·e; see `with_rates`.

    The exposures are an array, or the name of a column: of a dataset one beside X, of a frame one that X then
    is without.
    """
    if isinstance(X, Dataset):
        return with_rates(X, exposure, weighted=weighted), y, sample_weight
    X, e = without_exposure(X, exposure)
    if y is None:
        raise InputError("exposures divide y, and y is missing; give it")
    y, s = (plain_or_lazy(values) for values in (y, sample_weight))
    if isinstance(y, np.ndarray) and isinstance(e, np.ndarray) and len(y) != len(e):
        raise InputError(f"y has {len(y)} rows but exposure has {len(e)}; they must have the same length")
    rates = (y.T / e.T).T  # row by row, of one target or several
    return X, rates, (sample_weight if not weighted else e if s is None else s * e)


def without_exposure(X: Any, exposure: Any) -> tuple[Any, Any]:
    """X without the column that holds the exposures, if they are named, and the exposures, one a row."""
    name = "exposure"
    if isinstance(X, Dataset):
        return X, exposure_reader(X, exposure).lazy("y").map_blocks(
            _checked, repr(exposure), meta=np.empty(0)
        )
    if isinstance(exposure, str):
        X, name = as_frame(X), repr(exposure)
        if not is_dataframe_like(X) or exposure not in X.columns:
            raise InputError(
                f"X has no column {exposure!r} of exposures; name one of a frame, or give an array"
            )
        X, exposure = X.drop(columns=[exposure]), X[exposure]
    e = plain_or_lazy(exposure)
    e = e[:, 0] if e.ndim == 2 and e.shape[1] == 1 else e
    if e.ndim != 1:
        raise InputError(f"exposures must be one number a row, got shape {e.shape}")
    if not isinstance(e, np.ndarray):  # checked where they are read
        return X, e.map_blocks(_checked, name, meta=np.empty(0))
    check_exposures(e, name)
    return X, e


def times_exposure(rates: Any, exposure: Any) -> Any:
    """Means: the rates of rows, of one target or several, times their exposures."""
    if isinstance(exposure, np.ndarray) and len(exposure) != len(rates):
        raise InputError(f"X has {len(rates)} rows but exposure has {len(exposure)}; they must be as many")
    return (rates.T * exposure.T).T


def _checked(e: Any, name: str) -> np.ndarray:
    e = np.asarray(e, dtype=np.float64)
    check_exposures(e, f"a block of {name}")
    return e


def plain_or_lazy(values: Any) -> Any:
    """An array of what is in memory; None and collections of dask as they are."""
    if values is None or dask.is_dask_collection(values):
        # A Series has lengths only when it is counted, and no arithmetic with arrays before.
        return values.to_dask_array(lengths=True) if hasattr(values, "to_dask_array") else values
    try:
        found = np.asarray(as_frame(values))
        if found.dtype.kind in "mM":  # whose nanoseconds NumPy would take
            raise TypeError(f"got {found.dtype}")
        return found.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"targets, weights and exposures must be numbers where there are exposures ({error})"
        ) from error
