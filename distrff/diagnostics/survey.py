"""A survey of rows in one pass, which refuses nothing: missing values, ranges, targets, drift."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import issparse
from sklearn.utils.sparsefuncs import min_max_axis

from distrff.engine.reduction import Arrays, Reduction, gram_segmentation, light_segmentation
from distrff.engine.run import Run
from distrff.errors import InputError
from distrff.io.dataset import Dataset, RowBlock, Rows
from distrff.io.storage import SPAN_BYTES
from distrff.io.zarr_rows import SHARD_BYTES, CsrReader, ZarrReader, row_bytes
from distrff.preprocessing.coding import LabelCounts, Moments, drift_shares, drifting
from distrff.utils.arrays import as_columns, chosen_rows, joined_rows
from distrff.utils.random import stream
from distrff.utils.text import human_bytes

_SAMPLE_ROWS = 16_384
_SAMPLE_NUMBERS = 2**22


@dataclass(frozen=True)
class RowSurvey:
    """Counts and ranges of the columns of X, each of shape (n_columns,), and of y."""

    n_rows: int
    missing: np.ndarray  # rows with NaN
    infinite: np.ndarray
    low: np.ndarray  # of the finite values; NaN if there are none
    high: np.ndarray
    y_missing: int
    values: LabelCounts | None  # of a single target of at most 64 values that can be sorted together
    y_moments: Moments | None  # of numeric targets, without rows that have a missing or infinite one
    X: tuple[Any, ...] = ()  # a sample of the rows, segment by segment; CSR if the rows are
    y: tuple[np.ndarray, ...] = ()

    def __add__(self, other: RowSurvey) -> RowSurvey:
        # None absorbs: what has too many values in one part has too many in all.
        values = self.values and other.values and few_values(self.values.merge, other.values)
        moments = self.y_moments and other.y_moments and self.y_moments.merge(other.y_moments)
        return RowSurvey(
            self.n_rows + other.n_rows,
            self.missing + other.missing,
            self.infinite + other.infinite,
            # fmin and fmax ignore NaN, which stands for a part without finite values.
            np.fmin(self.low, other.low),
            np.fmax(self.high, other.high),
            self.y_missing + other.y_missing,
            values,
            moments,
            self.X + other.X,
            self.y + other.y,
        )

    def column_drift(self) -> np.ndarray:
        """`drift_shares` of the columns of the sample, with column means for non-finite values."""
        X = joined_rows(self.X).copy()
        n, d = X.shape
        values, columns = _entries(X)
        finite = np.isfinite(values)
        counts = n - np.bincount(columns[~finite], minlength=d)
        means = np.bincount(columns[finite], values[finite], d) / np.maximum(counts, 1)
        # A mean adds nothing to the variance between stretches of rows; a zero would.
        values[~finite] = means[columns[~finite]]
        return drift_shares(X)

    def target_drift(self) -> np.ndarray:
        """`drift_shares` of numeric targets, or of the indicators of at most 64 labels."""
        if not self.y:
            return np.zeros(0)
        y = as_columns(np.concatenate(self.y))
        y = y[~pd.isna(y).any(axis=1)]
        if self.values is not None and y.shape[1] == 1:
            return drift_shares((y == self.values.labels).astype(np.float64))
        if y.dtype.kind not in "biuf":
            return np.zeros(0)
        return drift_shares(y[np.isfinite(y.astype(np.float64)).all(axis=1)].astype(np.float64))

    def drifts(self, shares: np.ndarray) -> np.ndarray:
        """True where shares of this sample are beyond chance."""
        return drifting(shares, sum(part.shape[0] for part in self.X))


@dataclass(frozen=True)
class RowSurveyReduction(Reduction):
    """Reduction to `RowSurvey`."""

    n_columns: int
    n_targets: int
    y_is_number: bool
    tile_rows: int
    rows_per_segment: int  # to sample
    column_share: float = 1.0  # of the columns in which a row has entries

    def size_bytes(self, n_rows: int) -> int:
        of_sample = 2 * self.column_share * min(n_rows, self.rows_per_segment)  # with indices where sparse
        return int(8 * self.n_columns * (4 + of_sample))

    def update(self, total: RowSurvey | None, rows: Rows, arrays: Arrays) -> RowSurvey:
        size = min(self.rows_per_segment, rows.stop - rows.start)
        # By the place of the segment, so that the sample is the same for any number of workers.
        rng = stream(0, "survey", rows.start)
        chosen = rows.start + np.sort(rng.choice(rows.stop - rows.start, size, replace=False, shuffle=False))
        for block in rows.tiles(self.tile_rows):
            total = self.merge(total, self._of_block(block, chosen))
        assert total is not None
        return total

    def _of_block(self, block: RowBlock, chosen: np.ndarray) -> RowSurvey:
        n = block.X.shape[0]
        inside = chosen[(chosen >= block.start) & (chosen < block.start + n)] - block.start
        y, n_missing = block.y, 0
        values: LabelCounts | None = LabelCounts.empty()
        moments = None
        if y is not None:
            is_missing = pd.isna(y).reshape(n, -1).any(axis=1)
            n_missing, known = int(is_missing.sum()), y[~is_missing]
            if self.n_targets == 1:
                values = few_values(LabelCounts.of_values, known.ravel())
            if self.y_is_number:
                Y = as_columns(known).astype(np.float64)
                moments = Moments.of(Y[np.isfinite(Y).all(axis=1)], None)
        return RowSurvey(
            n,
            *_ranges(block.X),
            y_missing=n_missing,
            values=values,
            y_moments=moments,
            # Tuples are joined at the end: to concatenate at every merge would copy the sample once a level.
            X=(chosen_rows(block.X, inside).astype(np.float64),),
            y=() if y is None else (y[inside],),
        )


MAX_VALUES = 64


def few_values(count: Callable[..., LabelCounts], values: Any) -> LabelCounts | None:
    """`count(values)` for at most 64 values that can be sorted together, else None."""
    try:
        return count(values, max_labels=MAX_VALUES)
    except InputError:
        return None


def _entries(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """The entries of dense or CSR rows, a view, and their columns."""
    n, d = X.shape
    return (X.data, X.indices) if issparse(X) else (X.reshape(-1), np.tile(np.arange(d), n))


def _ranges(X: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Missing, infinite, low and high of the columns; entries that CSR leaves out are zeros."""
    X = X.astype(np.float64)  # a copy
    if issparse(X):
        # min_max_axis counts entries to know whether a column has zeros that are not stored.
        X.sum_duplicates()
    values, columns = _entries(X)
    missing, infinite = (
        np.bincount(columns[are(values)], minlength=X.shape[1]) for are in (np.isnan, np.isinf)
    )
    # `values` is a view: X itself is changed, a copy of the rows.
    values[~np.isfinite(values)] = np.nan
    if issparse(X):
        return missing, infinite, *min_max_axis(X, axis=0, ignore_nan=True)
    return missing, infinite, np.fmin.reduce(X, axis=0), np.fmax.reduce(X, axis=0)


def survey_rows(run: Run, dataset: Dataset) -> RowSurvey:
    """The survey of a dataset, after one pass over its rows."""
    cuts = light_segmentation(dataset.n_rows, dataset.n_columns)
    # Fewer rows where they are wide: the samples of all segments go to the client.
    sample = min(_SAMPLE_ROWS, max(256, _SAMPLE_NUMBERS // dataset.n_columns))
    reduction = RowSurveyReduction(
        n_columns=dataset.n_columns,
        n_targets=dataset.n_targets,
        y_is_number=dataset.y_dtype is not None and dataset.y_dtype.kind in "biuf",
        tile_rows=cuts.tile_rows,
        rows_per_segment=-(-sample // cuts.n_segments),
        column_share=dataset.column_share,
    )
    return run.total("survey", dataset, reduction, cuts)


def survey_to_dict(survey: RowSurvey, dataset: Dataset) -> dict[str, Any]:
    """The survey as data for JSON: a list of columns, and the target."""
    names = dataset.column_names or tuple(map(str, range(dataset.n_columns)))
    shares = survey.column_drift()
    beyond_chance = survey.drifts(shares)
    columns = [
        {
            "name": name,
            "missing": int(survey.missing[j]),
            "infinite": int(survey.infinite[j]),
            "min": float(survey.low[j]),
            "max": float(survey.high[j]),
            "drift": float(shares[j]),
            "drifts": bool(beyond_chance[j]),
        }
        for j, name in enumerate(names)
    ]
    return {"columns": columns, "target": _target(survey) if dataset.n_targets else None}


def _target(survey: RowSurvey) -> dict[str, Any]:
    shares = survey.target_drift()
    target: dict[str, Any] = {
        "missing": survey.y_missing,
        "drift": float(shares.max(initial=0.0)),
        "drifts": bool(survey.drifts(shares).any()),
    }
    if survey.values is not None and len(survey.values.labels):
        counts = survey.values.counts
        labels = zip(survey.values.labels.tolist(), counts.tolist(), strict=True)
        target["labels"] = [
            {"label": label, "rows": rows, "share": rows / counts.sum()} for label, rows in labels
        ]
    if survey.y_moments is not None:
        target["mean"] = survey.y_moments.mean
        target["deviation"] = survey.y_moments.standard_deviation()
    return target


# How stored rows are chunked, and when other chunks would make passes over them cheaper.

_REQUEST_BYTES = 2**20  # a smaller request has more latency than transfer: 10 ms at 100 MB/s
_MIN_BYTES = 2**24  # less data is read quickly in any chunks
_LARGE_UNIT_BYTES = 2**28  # a unit is decoded as a whole, beside the rows of a task
_MAX_DECODED_SHARE = 1.1
_GRAM_FEATURES = 1024


def stored_layout(dataset: Dataset) -> list[dict[str, Any]]:
    """The `stored_part` of each Zarr array, or of the row groups, from metadata and sizes only.

    Segments are as for a Gram of 1024 features.
    """
    n, reader = dataset.n_rows, dataset.reader
    cuts = gram_segmentation(n, _GRAM_FEATURES, max(1, dataset.n_targets), np.dtype(np.float64))
    segment_rows = cuts.segment_rows  # of any dtype
    if isinstance(reader, ZarrReader):
        is_csr = isinstance(reader, CsrReader)
        return [_zarr_part(z.path if is_csr else f, z, n, segment_rows) for f, z in reader.arrays.items()]
    table: Any = reader.table  # type: ignore[attr-defined]
    group_rows = [part.stop - part.start for part in table.parts]
    return [
        stored_part(
            "row groups",
            n,
            segment_rows,
            unit_rows=max(group_rows),
            row_bytes=dataset.row_bytes,
            stored_bytes=sum(int(table.fs.size(footer.path)) for footer in table.footers),
            n_requests=len(group_rows),
            from_the_first=True,
        )
    ]


def _zarr_part(name: str, z: Any, n_rows: int, segment_rows: int) -> dict[str, Any]:
    """The part of an array with one item per row, or of the entries of equally filled sparse rows."""
    n, item_bytes = z.shape[0], row_bytes(z)
    # Small shards are fetched as a whole, of large ones the chunks.
    whole = z.shards if z.shards is not None and z.shards[0] * item_bytes <= SHARD_BYTES else z.chunks
    n_requests = math.prod(-(-size // step) for size, step in zip(z.shape, whole, strict=True))
    return stored_part(
        name,
        n_rows,
        segment_rows,
        # Chunks of sparse rows count entries: as if all rows had equally many.
        unit_rows=min(n_rows, -(-z.chunks[0] * n_rows // max(n, 1))),
        row_bytes=max(1, n * item_bytes // n_rows),
        stored_bytes=int(z.nbytes_stored()),
        n_requests=max(1, n_requests),
        # Of shards zarr counts the chunks inside.
    ) | {
        "absent_chunks": 0 if z.shards else z.nchunks - z.nchunks_initialized,
        "fill_value": str(z.fill_value),
    }


def stored_part(
    name: str,
    n_rows: int,
    segment_rows: int,
    *,
    unit_rows: int,
    row_bytes: int,
    stored_bytes: int,
    n_requests: int,
    from_the_first: bool = False,
) -> dict[str, Any]:
    """Bytes and requests of a pass over segments of rows, as data for JSON.

    A unit is a chunk or row group, the largest if they differ. A unit in several segments is decoded for each
    of them; with `from_the_first` from its first row to the last one needed. `proposed_rows` is the size of
    units that divide a segment and have at most 8 MiB decoded.
    """
    start = np.arange(0, n_rows, segment_rows)
    stop = np.minimum(start + segment_rows, n_rows)
    # Parquet decodes a row group from its first row on, Zarr a chunk as a whole.
    end = stop if from_the_first else np.minimum(-(-stop // unit_rows) * unit_rows, n_rows)
    # Halves of a segment divide it, so that no unit is decoded for two tasks.
    proposed_rows = segment_rows
    while proposed_rows * row_bytes > SPAN_BYTES and proposed_rows % 2 == 0:
        proposed_rows //= 2
    return {
        "name": name,
        "unit_rows": unit_rows,
        "unit_bytes": unit_rows * row_bytes,
        "n_requests": n_requests,
        "request_bytes": stored_bytes // n_requests,
        "stored_bytes": stored_bytes,
        "decoded_bytes": n_rows * row_bytes,
        "decoded_share": float((end - start // unit_rows * unit_rows).sum() / n_rows),
        "proposed_rows": proposed_rows,
        "proposed_requests": -(-n_rows // proposed_rows),
    }


def rechunk_advice(part: dict[str, Any]) -> list[str]:
    """A sentence if other chunks of a `stored_part` would pay, by one of three rules; else none."""
    if part["decoded_bytes"] < _MIN_BYTES:
        return []
    reasons = []
    if part["decoded_share"] > _MAX_DECODED_SHARE:
        reasons.append(f"a pass decodes {part['decoded_share']:.2f} times the rows it needs")
    if part["request_bytes"] < _REQUEST_BYTES and part["n_requests"] >= 2 * part["proposed_requests"]:
        reasons.append(
            f"a pass makes {part['n_requests']:,} requests of {human_bytes(part['request_bytes'])}, "
            f"afterwards {part['proposed_requests']:,}"
        )
    if part["unit_bytes"] > _LARGE_UNIT_BYTES:
        reasons.append(f"{human_bytes(part['unit_bytes'])} are decoded at once, afterwards at most 8 MiB")
    change = f"rechunk {part['name']} from {part['unit_rows']:,} to {part['proposed_rows']:,} rows: "
    return [change + "; ".join(reasons)] if reasons else []
