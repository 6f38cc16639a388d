"""The writing sweep: a frozen model's results for all rows, in row order whatever the order of tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dask.utils import is_dataframe_like
from sklearn.utils.validation import check_is_fitted

from distrff.engine.reduction import Arrays, Reduction, Segmentation, light_segmentation
from distrff.engine.run import Run, begin_run
from distrff.errors import DataWarning, InputError, warn
from distrff.features.fitted import FittedMap, Trait
from distrff.io.arrays import as_dataset, as_frame, paired, with_columns
from distrff.io.dataset import Dataset, RowBlock, Rows, check_block
from distrff.io.open import check_exposures, exposure_reader, open_dataset
from distrff.io.results import (
    RUNS,
    CsvResults,
    ParquetResults,
    ResultColumn,
    ResultPlace,
    ZarrResults,
    arrow_type,
    mark_written,
)
from distrff.io.storage import PARQUET_SUFFIXES, Location
from distrff.model.model import OUTSIDE, Model, std_of
from distrff.model.rows import check_columns, check_has_columns, fitted_columns, is_raw
from distrff.preprocessing.coding import ClassTargets, NumericTargets
from distrff.utils.validation import one_of

_CHUNK_BYTES = 2**25


# The name of each method's result where it is stored.
RESULTS = {
    "predict": "prediction",
    "decision_function": "decision",
    "predict_proba": "probability",
    "transform": "features",
}


@dataclass(frozen=True)
class RowResults:
    """The result of a model's method, one of `RESULTS`, for blocks of rows, and perhaps its deviation.

    `radius` is that of intervals around predictions, with `floors` in standard deviations, or of prediction
    sets, if they are wanted.
    """

    model: Model
    method: str
    return_std: bool | str = False
    outside: str = "nan"
    radius: tuple[float, ...] | None = None
    floors: tuple[float, ...] = ()
    intervals: str = "constant"  # how they are made
    exposure: str | None = None  # the id whose values multiply rates

    def with_coverage(self, coverage: float | None) -> RowResults:
        """Results with intervals or sets of the model, of a coverage; None is without.

        Raises InputError for a model without them.
        """
        if coverage is None:
            return self
        if self.method != "predict":
            raise InputError(
                f"intervals belong to predictions; request them with method 'predict', not {self.method!r}"
            )
        intervals = self.model.checked_intervals()
        method = "constant" if self.model.is_classifier else self.model.interval_method()
        radius = tuple(intervals.radius(coverage, method).tolist())
        return replace(self, radius=radius, floors=intervals.floors, intervals=method)

    def check(self) -> None:
        """Raise InputError if the model has no such result."""
        if self.method not in RESULTS:
            raise InputError(f"method must be one of {', '.join(RESULTS)}, got {self.method!r}")
        one_of("outside", self.outside, OUTSIDE)
        std_of(self.return_std)
        if self.return_std and self.method != "predict":
            raise InputError(
                f"standard deviations belong to predictions; request them with method 'predict', "
                f"not {self.method!r}"
            )
        if self.exposure is not None:
            self.model.check_has_rates()
            if self.method != "predict":
                raise InputError(f"exposures multiply predictions, not the results of {self.method!r}")
        if self.method == "decision_function" and isinstance(self.model.targets, NumericTargets):
            raise InputError(
                f"a {self.model.kind} has no decision function, which only classifiers have; use predict"
            )
        if self.method == "transform" and Trait.SPARSE in self.model.specification.traits:
            raise InputError(
                "features of random binning are sparse, and are not written as a dense array; call the "
                "model's transform on blocks of rows, which returns scipy CSR matrices"
            )

    def of(
        self, X: np.ndarray, ids: Mapping[str, np.ndarray] | None = None, start: int = 0
    ) -> dict[str, np.ndarray]:
        """Named results of a block of rows from `start` on, each of shape (r,) or (r, k).

        Where the model skips rows with NaN these are masked arrays.
        """
        complete = self.model.complete_rows(X)
        found = self._of(X if complete is None else X[complete])
        if complete is not None:
            found = {name: _spread(values, complete) for name, values in found.items()}
        if self.exposure is None or ids is None:
            return found
        e = np.asarray(ids[self.exposure], dtype=np.float64)
        check_exposures(e, repr(self.exposure), start)
        return {name: (values.T * e).T for name, values in found.items()}

    def _of(self, X: np.ndarray) -> dict[str, np.ndarray]:
        if self.method == "decision_function":
            F = self.model.decision(X)
            values = F[:, 0] if F.shape[1] == 1 else F
        elif self.method == "predict":
            values = self.model.predict(X, outside=self.outside)
        else:
            values = getattr(self.model, self.method)(X)
        found = {RESULTS[self.method]: values}
        if self.return_std:
            found["std"] = self.model.std(X, of=std_of(self.return_std))
        if self.radius is not None and self.model.is_classifier:
            found["set"] = self.model.class_scores(X) <= self.radius[0]
        elif self.radius is not None:
            ends = self.model.ends_of_intervals(X, values, self.intervals, self.radius, self.floors)
            found |= dict(zip(("lower", "upper"), ends, strict=True))
        return found

    def labels(self, width: int) -> list[str]:
        """Names for the columns of a result with `width` columns: the classes, or indices."""
        targets = self.model.targets
        if isinstance(targets, ClassTargets) and len(targets.classes) == width:
            return [str(label) for label in targets.classes.tolist()]
        if len(self.model.quantiles) == width:
            return [f"{tau:g}" for tau in self.model.quantiles]
        return [str(column) for column in range(width)]


def _spread(values: np.ndarray, complete: np.ndarray) -> np.ma.MaskedArray:
    """Results of the complete rows with masked ones between them."""
    # Masked, since labels have no NaN, and Parquet tells null from NaN.
    spread = np.ma.masked_all((len(complete), *values.shape[1:]), values.dtype)
    spread[complete] = values
    return spread


# The sweep.


@dataclass(frozen=True)
class WriteReduction(Reduction):
    """Writes all results; the sum counts rows written, outside the bounds, and without some value."""

    # A segment is a file or a run of whole chunks: no two tasks write to the same one, and a task that is
    # repeated writes the same bytes.

    results: RowResults
    files: ZarrResults | ParquetResults
    ids: tuple[str, ...]
    done: frozenset[int]
    tile_rows: int

    def shared(self) -> FittedMap:
        return self.results.model.specification

    def size_bytes(self, n_rows: int) -> int:
        return 8

    def zero(self) -> np.ndarray:
        return np.zeros(3, np.int64)

    def update(self, counts: np.ndarray, rows: Rows, arrays: Arrays) -> np.ndarray:
        # Segments that an interrupted call had finished, by the number of their first row.
        if rows.start in self.done:
            return counts
        results = replace(self.results, model=self.results.model.restored(arrays))
        # Fresh, and added at the end: a task that is run again must not find counts of its first try.
        found = np.zeros(3, np.int64)
        self.files.write(rows.start, self._blocks(results, rows, found))
        # After the rows: a mark without them would be believed by whoever resumes.
        mark_written(self.files.place, rows.start)
        return counts + found

    def _blocks(self, results: RowResults, rows: Rows, found: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
        """Results of each block, whose counts are added to `found`."""
        for block in rows.tiles(self.tile_rows):
            model = results.model
            complete = model.complete_rows(block.X)
            n_missing = 0 if complete is None else np.count_nonzero(~complete)
            # NaN is a missing value there; infinity is an error in any case.
            checked = block.X if complete is None else np.where(np.isnan(block.X), 0, block.X)
            check_block(RowBlock(block.start, checked), "none")
            found += block.X.shape[0], np.count_nonzero(model.outside(block.X)), n_missing
            ids = {name: block.ids[name] for name in self.ids}
            yield ids | results.of(block.X, ids, block.start)


def write_rows(run: Run, results: RowResults, dataset: Dataset, place: ResultPlace) -> dict[str, Any]:
    """Write the results of every row, and the rows' ids, in one pass; return a report.

    The report is that of `write_predictions` without `out`. The place is a folder of Parquet files if it ends
    in .parquet or .pq, a CSV file if it ends in .csv or .csv.gz, else a Zarr array, or with ids or standard
    deviations a Zarr group. Workers must be able to write there. Raises InputError for NaN or infinity in the
    rows, a result that the model does not have, a place that a worker cannot reach or that may not be
    replaced, and an unfinished result of another model or other rows.
    """
    model, method = results.model, results.method
    results.check()
    if results.exposure is not None and results.exposure not in dataset.ids:
        raise InputError(f"the exposures {results.exposure!r} must be one of the ids, which are written too")
    if results.exposure is not None:
        exposure_reader(dataset, results.exposure)  # refuses what are no numbers
    place.check()
    is_parquet = place.out.url.rstrip("/").endswith(PARQUET_SUFFIXES)
    is_table = is_parquet or place.out.is_csv
    if is_table and method == "transform":
        raise InputError("features are one matrix, which goes to Zarr; give --out another suffix")
    columns, data_digest = _columns(run, results, dataset)
    cuts = output_segmentation(dataset.n_rows, dataset.n_columns, sum(c.row_bytes for c in columns))
    if is_table:
        cuts = replace(cuts, segment_rows=cuts.tile_rows)  # a file is made in memory
    if is_parquet:
        files: Any = ParquetResults(place.partial, columns)
    elif is_table:
        files = CsvResults(place.partial, columns, compressed=place.out.url.lower().endswith(".gz"))
    else:
        # Features are noise to a compressor: it takes time and saves nothing.
        files = ZarrResults(place.partial, columns, compressed=method != "transform")
    header = {
        "kind": "features" if method == "transform" else "predictions",
        "model": model.kind,
        "complete": False,
        "format": "parquet" if is_parquet else "csv" if is_table else "zarr",
        "columns": {column.name: column.type_name for column in columns},
        "n_rows": dataset.n_rows,
        "region_rows": cuts.segment_rows,
        "chunk_rows": cuts.tile_rows,
        "model_digest": model.digest,
        "data_digest": data_digest,
    }
    light, sent = model.for_tasks(with_std=bool(results.return_std or results.intervals == "deviation"))
    with place.filled(header) as done:
        marks = place.partial.within(RUNS)
        if done is None:
            files.begin(dataset.n_rows, cuts.tile_rows, header)
            marks.make_folder()
        results = replace(results, model=light)
        reduction = WriteReduction(results, files, dataset.ids, done or frozenset(), cuts.tile_rows)
        n_written, n_outside, n_missing = run.total(method, dataset, reduction, cuts, sent).tolist()
        n_kept = sum(stop - start for start, stop in cuts.bounds() if start in reduction.done)
        assert n_written + n_kept == dataset.n_rows, f"{n_written} of {dataset.n_rows} rows were written"
        if not place.out.is_csv:  # whose folder goes away, once its files were joined
            marks.remove()
        # Last: readers refuse what is not marked complete.
        files.finish(header | {"complete": True})
    special = {name: n for name, n in (("n_outside", n_outside), ("n_missing", n_missing)) if n}
    if n_outside:
        warn(
            f"{n_outside:,} of {n_written:,} rows are outside the bounds of the model, and their results are "
            f"NaN; to have these, fit with wider bounds",
            DataWarning,
        )
    main = next(column for column in columns if column.name == RESULTS[method])
    return {
        "n_samples": dataset.n_rows,
        "shape": (dataset.n_rows, *main.shape),
        "dtype": main.type_name,
        "chunks": (cuts.tile_rows, *main.shape),
        "columns": header["columns"],
        "n_kept": n_kept,
        **special,
        **dataset.unseen_categories,
        "seconds": run.seconds,
        "workers": run.execution.n_workers,
    }


def output_segmentation(n_rows: int, n_columns: int, row_bytes: int) -> Segmentation:
    """Cuts whose tiles are the chunks of arrays of `row_bytes` a row, at most 32 MB each."""
    segment_rows = light_segmentation(n_rows, n_columns).segment_rows
    chunk_rows = max(1, min(n_rows, segment_rows, _CHUNK_BYTES // row_bytes))
    # Whole chunks: of two tasks with parts of one chunk, the later one would undo the other.
    return Segmentation(n_rows, chunk_rows * max(1, segment_rows // chunk_rows), chunk_rows)


def _columns(run: Run, results: RowResults, dataset: Dataset) -> tuple[tuple[ResultColumn, ...], str]:
    """Columns to write, ids first, and a digest of some rows with their ids."""
    # Some rows stand for all: a pass over all to recognise them would cost as much as to begin anew.
    sampled = run.map(_digest_and_ids, [(rows,) for rows in dataset.sampled_rows()], group="read")
    digest = hashlib.sha256("".join(row_digest for row_digest, _ in sampled).encode())
    digest.update(repr((dataset.n_rows, dataset.column_names)).encode())
    if results.radius is not None:  # of another coverage, or calibrated anew
        digest.update(repr(results.radius).encode())
    if results.exposure is not None:
        digest.update(repr(results.exposure).encode())
    # One row tells columns, types and labels before the first task, and whether the model has such results.
    examples = replace(results, outside="nan", exposure=None).of(results.model.specification.example)
    columns = []
    for name in dataset.ids:
        if name in examples:
            raise InputError(f"the id column {name!r} has the name of a result; rename it")
        if "/" in name:
            raise InputError(f"the id column {name!r} has a slash in its name; rename it")
        # Ids may be objects, such as text or dates, whose type only values tell.
        values = np.concatenate([ids[name] for _, ids in sampled])
        dtype = np.dtype(dataset.id_dtypes[name])
        columns.append(ResultColumn(name, dtype, (), arrow_type(name, values)))
    for name, A in examples.items():
        labels = tuple(results.labels(A.shape[1])) if A.ndim == 2 else ()
        columns.append(ResultColumn(name, A.dtype, labels, arrow_type(name, A.reshape(-1))))
    return tuple(columns), digest.hexdigest()[:32]


def _digest_and_ids(rows: Rows) -> tuple[str, dict[str, np.ndarray]]:
    """A digest of one row, and its ids."""
    block = next(iter(rows.tiles(rows.stop - rows.start)))
    digest = hashlib.sha256(np.ascontiguousarray(block.X).tobytes())
    digest.update(repr({name: values.tolist() for name, values in block.ids.items()}).encode())
    return digest.hexdigest(), dict(block.ids)


def write_predictions(
    model: Any,
    data: Any,
    out: str,
    *,
    ids: Sequence[str] | Mapping[str, Any] | None = None,
    method: str = "predict",
    return_std: bool | str = False,
    outside: str = "nan",
    coverage: float | None = None,
    exposure: str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    storage_options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a model's predictions for all rows to Zarr, Parquet or CSV, in row order, and return a report.

    Parameters
    ----------
    model : Model or fitted estimator
    data : Dataset, array-like, DataFrame, dask array or dask DataFrame
        A dataset has the `ids` with which it was opened.
    out : str
        Path or URL. A folder of Parquet files if it ends in .parquet or .pq. One CSV file if it ends in .csv
        or .csv.gz, with a line of names, numbers in the digits that give them back, and nothing for a missing
        value. Else a Zarr group with the array "prediction", "decision" or "probability", with "std" and with
        the ids; a single array is written without a group.
    ids : list of str, or mapping of str to array-like, optional
        Columns that are written beside the predictions: their names in a DataFrame, or their values by name.
    method : {"predict", "decision_function", "predict_proba"}
        What to write.
    return_std : bool or "observation"
        Also write the standard deviations of predictions, if the model has them, or those of new
        observations.
    outside : {"nan", "error"}
        What becomes of rows outside the bounds of a model of `EquispacedFourierFeatures`; with "nan" a
        warning says how many they are.
    coverage : float, optional
        Also write intervals of this coverage, as "lower" and "upper", or the prediction set of each row, as
        "set" with a bool for each class; see `predict_interval` and `predict_set`.
    exposure : str, optional
        One of the ids, a column of exposures: of a model of counts or amounts means for these are written,
        not rates, and the exposures beside them.
    overwrite : bool
        Replace predictions that exist at `out`; a CSV file is known by the names of its columns.
    resume : bool
        Continue an interrupted call for the same model and rows, if there was one. To recognize these, the
        whole model is compared, the number of rows and a sample of the rows.
    storage_options : dict, optional
        For fsspec, where `out` is a URL.

    Returns
    -------
    dict
        `out`, `n_samples`, `n_kept` (rows that an interrupted call had written),
        `n_outside` and `n_missing` (of the rows written by this call, if there are any: those outside the
        model's bounds, and those that lack a value where the fit dropped such rows; the results of the latter
        are null in Parquet, empty in CSV, in Zarr NaN or ""), `n_unseen_categories` (rows with categories
        that the fit never saw, by raw column with any), `columns` (name to type), `shape`, `dtype` and
        `chunks` of the result, `seconds` and `workers`.

    Raises
    ------
    InputError
        For rows that cannot be used, results that this model does not have, a place that may not be
        replaced, or an unfinished result of another model or other rows.

    Notes
    -----
    One light pass of n·(2dD + 2Dk) flops (n·D² more for each alpha with standard deviations); a task holds a
    block of at most 32 MB of results. An interrupted call keeps what it has written: in an object store at
    `out`, marked incomplete, on a local file system beside `out`. A CSV file is there when it is complete.
    """
    frozen = frozen_model(model, return_std)
    if coverage is not None and hasattr(model, "_with_intervals"):
        # An estimator may still take them out of fold, by passes; a stored model has them or not.
        frozen = model._with_intervals()
    if exposure is not None and not isinstance(ids, Mapping) and not isinstance(data, Dataset):
        ids = list(dict.fromkeys([*([ids] if isinstance(ids, str) else ids or ()), exposure]))
    dataset = _identified(frozen, data, ids)
    check_columns(frozen, dataset)
    if method == "transform":
        raise InputError("method 'transform' makes features, not predictions; use the model's transform")
    place = ResultPlace(Location.of(out, storage_options), overwrite=overwrite, resume=resume)
    results = RowResults(frozen, method, return_std, outside, exposure=exposure).with_coverage(coverage)
    report = write_rows(begin_run(), results, dataset, place)
    return {"out": str(place.out), **report}


def frozen_model(model: Any, return_std: bool | str = False) -> Model:
    """Frozen model of a fitted estimator, with its posterior if deviations are wanted and it has one."""
    if isinstance(model, Model):
        return model
    check_is_fitted(model, "model_")
    has_posterior = return_std and hasattr(model, "_with_posterior")
    frozen: Model = model._with_posterior() if has_posterior else model.model_
    return frozen


def _identified(model: Model, data: Any, ids: Any) -> Dataset:
    """Rows as a dataset with their ids."""
    if isinstance(ids, str):
        ids = [ids]
    columns, data = ids, as_frame(data)
    if ids is not None and not isinstance(ids, Mapping):
        if not is_dataframe_like(data):
            raise InputError(
                "ids are columns by name: give names with a DataFrame, open_dataset(..., ids=...) for stored "
                "rows, or a dict of columns"
            )
        check_has_columns(data, ids)
        columns = {name: data[name] for name in ids}
    if columns is not None:
        data, *values = paired({"the data": data, **{f"id {n}": v for n, v in columns.items()}})[0].values()
        columns = dict(zip(columns, values, strict=True))
    if is_raw(model.steps, data):
        assert model.steps is not None
        data = open_dataset(data, steps=model.steps.for_prediction())
    elif is_dataframe_like(data) and model.column_names is not None:
        data = fitted_columns(model, data)
    # Columns that are ids are none of X.
    elif is_dataframe_like(data) and not isinstance(ids, Mapping | None):
        data = data.drop(columns=list(ids))
    dataset = as_dataset(data)
    return dataset if columns is None else with_columns(dataset, columns, ids=tuple(columns))
