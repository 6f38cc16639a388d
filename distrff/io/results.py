"""Results with one entry per row: their columns, their place, and their Zarr, Parquet or CSV files."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

from distrff.errors import ClusterError, InputError, first_line
from distrff.io.storage import (
    FOLDER_MARK,
    PIECE_BYTES,
    ROOT,
    SEEN_BY_ALL,
    Location,
    check_writable,
    full_disk_errors,
    put_in_place,
    remove_folder,
)


@dataclass(frozen=True)
class ResultColumn:
    """One result or one id column: numbers or text, or several numbers per row."""

    name: str
    dtype: np.dtype  # object for text, and for ids of other kinds
    labels: tuple[str, ...]  # of the columns of a 2-D result; empty for a 1-D one
    arrow_type: pa.DataType  # of each column

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.labels),) if self.labels else ()

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, text counted as pointers."""
        return self.dtype.itemsize * max(1, len(self.labels))

    @property
    def type_name(self) -> str:
        """Name of the type of the values, for reports."""
        return str(self.arrow_type) if self.is_text else str(self.dtype)

    @property
    def is_text(self) -> bool:
        """Whether Zarr stores the values as text."""
        return self.dtype.kind not in "biuf"

    def split(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of a table, by name."""
        return {f"{self.name}_{label}": values[:, j] for j, label in enumerate(self.labels)} or {
            self.name: values
        }

    def arrow(self, values: np.ndarray) -> dict[str, pa.Array]:
        """The columns of a Parquet file, by name; refuse values that are not of `arrow_type`."""
        try:
            return {
                name: pa.array(
                    np.ma.getdata(column),
                    self.arrow_type,
                    mask=np.ma.getmaskarray(column) if np.ma.is_masked(column) else None,
                    from_pandas=column.dtype.kind == "O",  # NaN is a gap among objects, a number among floats
                )
                for name, column in self.split(values).items()
            }
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InputError(
                f"column {self.name!r} holds values of several types ({first_line(error)}); "
                f"convert them to one type, or write to Zarr, where they become text"
            ) from error

    def plain(self, values: np.ndarray) -> np.ndarray:
        """The values as a Zarr array takes them: all but numbers become text, missing text ""."""
        if not self.is_text:  # missing numbers are NaN, which integers and booleans lack
            if np.ma.is_masked(values) and values.dtype.kind != "f":
                raise InputError(
                    f"some rows lack a value, and Zarr has no null for {self.name!r} of {values.dtype}; "
                    f"write to Parquet, which has, or drop these rows"
                )
            return np.ma.filled(values, np.nan) if np.ma.is_masked(values) else np.ma.getdata(values)
        values = _with_none(values)
        if values.dtype.kind in "mM":
            # tolist would make integers of nanoseconds.
            return np.where(np.isnat(values), "", values.astype(str)).astype(object)
        texts = ["" if pd.isna(value) else str(value) for value in values.tolist()]
        return np.array(texts, dtype=object)


def arrow_type(name: str, values: np.ndarray) -> pa.DataType:
    """The Arrow type of a column that holds some 1-D values."""
    if values.dtype.kind in "UT":
        return pa.string()
    if values.dtype.kind != "O":
        return pa.from_numpy_dtype(values.dtype)
    try:
        found = pa.infer_type(values.tolist(), from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(
            f"column {name!r} holds values that cannot be stored ({first_line(error)}); "
            f"convert them to numbers, text or dates"
        ) from error
    # No value tells the type; text takes whatever later rows hold, or refuses it.
    return pa.string() if pa.types.is_null(found) else found


# Where a result is written: moved into place at the end, and kept after an interrupt, to be resumed.

# What must agree with an unfinished result to resume it, and what messages say if it differs.
_MUST_AGREE = {
    "model_digest": "another model",
    "data_digest": "other data",
    "columns": "other results or ids",
    "format": "another file format",
    "n_rows": "another number of rows",
    "region_rows": "another version of distrff",  # which cuts the same rows otherwise
    "chunk_rows": "another version of distrff",
}

KINDS = ("predictions", "features")
"""The kinds of stored things that a result may replace."""


class ResultPlace:
    """The place of a result, `out`, and where it is written until it is complete, `partial`.

    On a local file system that is a folder beside `out`, which is moved into place at the end; in an object
    store `out` itself, with a header that says "incomplete". An empty file marks each written run of rows.
    """

    def __init__(self, out: Location, *, overwrite: bool = False, resume: bool = False) -> None:
        self.out, self._overwrite, self._resume = out, overwrite, resume
        path = out.path
        if path is not None:
            # A name without a token, by which `resume` finds it again.
            self.partial = Location(str(path.with_name(f".{path.name}.partial")))
        elif out.is_csv:  # joined at the end from the files of a folder, in an object store too
            folder, _, name = out.url.rpartition("/")
            self.partial = Location(f"{folder}/.{name}.partial", out.options)
        else:
            self.partial = out

    def check(self) -> None:
        """Raise now the errors that `filled` would raise later, except for another model or other data."""
        unfinished = self._unfinished()
        if unfinished is None or self.partial is not self.out:
            try:
                check_writable(self.out, overwrite=self._overwrite, kinds=KINDS)
            except InputError as error:
                # Someone who wanted to go on would be told of the place alone.
                if self._resume and unfinished is None:
                    raise InputError(f"there is no unfinished result to resume: {error}") from None
                raise
        if unfinished is not None and not (self._resume or self._overwrite):
            raise InputError(
                f"{self.partial} was left unfinished, or is still being written; continue it with "
                f"resume=True (--resume), or start over with overwrite=True (--overwrite)"
            )

    @contextmanager
    def filled(self, header: Mapping[str, Any]) -> Iterator[frozenset[int] | None]:
        """Yield the first rows of the runs that are written already, or None for a new result.

        After the block the result is in its place. If an error of the data ends the block, everything
        written is removed; an interrupt or a lost cluster leaves the runs of rows that are complete.
        """
        self.check()
        unfinished, done = self._unfinished(), None
        if unfinished and self._resume:
            for key, what in _MUST_AGREE.items():
                if unfinished.get(key) != header[key]:
                    raise InputError(
                        f"the unfinished result at {self.out} is of {what}; start over with overwrite=True "
                        f"(--overwrite)"
                    )
            # Only whole runs count: a file without its mark may have been cut off.
            done = written_runs(self.partial)
        else:
            self._remove()
        with full_disk_errors(self.out):
            try:
                yield done
                if self.out.is_csv:
                    self._join()
            except BaseException as error:
                # Wrong rows stay wrong: only what a retry can finish is kept.
                ends = isinstance(error, InputError) and not isinstance(error, ClusterError)
                kept = frozenset() if ends else written_runs(self.partial)
                n_rows, region = header["n_rows"], header["region_rows"]
                if kept:
                    # At least: a task that is under way may still finish its run after this count.
                    n_kept = sum(min(region, n_rows - start) for start in kept)
                    error.add_note(
                        f"at least {n_kept:,} of {n_rows:,} rows are kept; repeat with resume=True "
                        f"(--resume) to continue"
                    )
                else:
                    self._remove()
                raise
        if self.out.is_csv:
            self._remove()
        elif self.partial is not self.out:
            put_in_place(Path(self.partial.url), self.out, overwrite=self._overwrite, kinds=KINDS)

    def _unfinished(self) -> dict[str, Any] | None:
        """The header of an unfinished result, empty if it has none yet; None without a result."""
        if self.partial is not self.out:
            return (self.partial.header() or {}) if self.partial.exists() else None
        header = self.out.header()
        incomplete = header is not None and header.get("kind") in KINDS and not header.get("complete")
        return header if incomplete else None

    def _join(self) -> None:
        """Write the files of the folder to `out`, one after the other, completely or not at all."""
        # Again, as the rows may have taken hours.
        check_writable(self.out, overwrite=self._overwrite, kinds=KINDS)
        names = sorted(name for name in self.partial.names() if name.startswith(_ROWS))
        target = self.out.path
        if target is None:
            fs, path = self.out.file_system()
            # The object appears at the end of the transaction, and never in part.
            with fs.transaction, fs.open(path, "wb", block_size=PIECE_BYTES) as file:
                self._copy(names, file)
        else:
            # On the same disk as `out`, so that it gets there by one rename.
            joined = Path(self.partial.url) / "joined"
            with joined.open("wb") as file:
                self._copy(names, file)
                os.fsync(file.fileno())
            joined.replace(target)

    def _copy(self, names: list[str], file: Any) -> None:
        for name in names:
            fs, path = self.partial.within(name).file_system()
            with fs.open(path, "rb") as part:
                shutil.copyfileobj(part, file, PIECE_BYTES)

    def _remove(self) -> None:
        if self.partial.path is None:
            self.partial.remove()
        else:
            remove_folder(Path(self.partial.url))


_ROWS = "rows-"  # begins the names of files of rows
RUNS = "_written"  # a folder with an empty file for each run of rows that is written


def mark_written(place: Location, start: int) -> None:
    """Record that the run of rows from row `start` on is completely written."""
    # A file each: several workers write at a time, and one list would need a lock.
    place.within(f"{RUNS}/{start:012d}").write(b"")


def written_runs(place: Location) -> frozenset[int]:
    """The first row of each run that is completely written."""
    return frozenset(map(int, place.within(RUNS).names()))


# The files of a result: a Zarr array or group, or a folder of Parquet files whose names sort in row order.


@dataclass(frozen=True)
class ZarrResults:
    """A Zarr array at `place` for a single column; for several, a group with one array per column."""

    place: Location
    columns: tuple[ResultColumn, ...]
    compressed: bool = True  # not features: cosines do not compress

    def begin(self, n_rows: int, chunk_rows: int, header: dict[str, Any]) -> None:
        if len(self.columns) > 1:
            zarr.create_group(self.place.zarr_store(), attributes={ROOT: header})
        for column in self.columns:
            labels = {"columns": list(column.labels)} if column.labels else {}
            zarr.create_array(
                self._place_of(column).zarr_store(),
                shape=(n_rows, *column.shape),
                chunks=(chunk_rows, *column.shape),  # of all columns, since rows are written as a whole
                dtype=str if column.is_text else column.dtype,
                compressors="auto" if self.compressed else None,
                attributes={ROOT: header} if len(self.columns) == 1 else labels,
            )

    def write(self, start: int, blocks: Iterator[dict[str, np.ndarray]]) -> None:
        """Write consecutive blocks of rows from row `start` on; each holds whole chunks."""
        for values in blocks:
            stop = start + len(next(iter(values.values())))
            for column in self.columns:
                # Opened for each block: a result that was removed meanwhile must not reappear chunk by chunk.
                array = open_array(self._place_of(column), mode="r+")
                array[start:stop] = column.plain(values[column.name]).astype(array.dtype, copy=False)
            start = stop

    def finish(self, header: dict[str, Any]) -> None:
        zarr.open(self.place.zarr_store(), mode="r+").update_attributes({ROOT: header})

    def _place_of(self, column: ResultColumn) -> Location:
        return self.place.within(column.name) if len(self.columns) > 1 else self.place


def open_array(place: Location, *, mode: Any) -> zarr.Array:
    """The Zarr array at a place; raise InputError if this process does not see it."""
    try:
        return zarr.open_array(place.zarr_store(), mode=mode)
    except FileNotFoundError:
        pass  # raised below: Zarr's own error, as a cause, could not travel from a worker
    raise InputError(f"the array {place} cannot be found by this process; {SEEN_BY_ALL}")


@dataclass(frozen=True)
class ParquetResults:
    """A folder at `place` with one file per run of rows: ids first, one column per class or output."""

    place: Location
    columns: tuple[ResultColumn, ...]

    def begin(self, n_rows: int, chunk_rows: int, header: dict[str, Any]) -> None:
        self.place.make_folder()
        self.finish(header)

    def write(self, start: int, blocks: Iterator[dict[str, np.ndarray]]) -> None:
        """Write one file of consecutive blocks of rows, which begin at row `start`."""
        buffer, writer = BytesIO(), None  # a file is no larger than a few blocks
        for values in blocks:
            arrays: dict[str, pa.Array] = {}
            for column in self.columns:
                arrays |= column.arrow(values[column.name])
            table = pa.table(arrays)
            # In memory first, so that a file goes out in one request.
            writer = writer or pq.ParquetWriter(buffer, table.schema)
            writer.write_table(table)
        assert writer is not None, "a run of rows is never empty"
        writer.close()
        self._put(start, "parquet", buffer.getvalue())

    def _put(self, start: int, suffix: str, content: bytes) -> None:
        try:
            # Twelve digits, so that the names sort in row order.
            self.place.within(f"{_ROWS}{start:012d}.{suffix}").write(content)
        except FileNotFoundError as error:
            raise InputError(
                f"the folder {self.place} cannot be found by this process; {SEEN_BY_ALL}"
            ) from error

    def finish(self, header: dict[str, Any]) -> None:
        text = json.dumps({"attributes": {ROOT: header}}, indent=2, allow_nan=False)
        self.place.within(FOLDER_MARK).write(text.encode())


@dataclass(frozen=True)
class CsvResults(ParquetResults):
    """A folder at `place` with the runs of rows of one CSV file, the first with the names."""

    compressed: bool = False

    def write(self, start: int, blocks: Iterator[dict[str, np.ndarray]]) -> None:
        """Write the text of consecutive blocks of rows, which begin at row `start`."""
        texts: list[str] = []
        for values in blocks:
            columns: dict[str, Any] = {}
            for column in self.columns:
                columns |= {name: _with_none(one) for name, one in column.split(values[column.name]).items()}
            texts.append(_csv(pd.DataFrame(columns), header=start == 0 and not texts))
        # mtime=0: the same rows give the same bytes.
        content = "".join(texts).encode()  # joined files of gzip are one such file, as joined texts are
        self._put(start, "csv", gzip.compress(content, mtime=0) if self.compressed else content)


def _with_none(values: np.ndarray) -> np.ndarray:
    """The values, with None where they are missing."""
    if not np.ma.is_masked(values):
        return np.ma.getdata(values)
    plain = np.ma.getdata(values).astype(object)
    plain[np.ma.getmaskarray(values)] = None
    return plain


def _csv(frame: pd.DataFrame, header: bool) -> str:
    text = frame.to_csv(index=False, header=header, lineterminator="\n")
    if "\r" not in text:
        return text
    # Readers end a line there, which the csv module of Python 3.11 does not expect: all texts get quotes.
    return frame.to_csv(index=False, header=header, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
