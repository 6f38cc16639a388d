"""Results a row each: their columns, the place where they grow, and their files in Zarr or Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

from distrff.errors import ClusterError, InputError
from distrff.io.storage import (
    FOLDER_MARK,
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
    """One result or one id: numbers, text, or a row of numbers for each row."""

    name: str
    dtype: np.dtype  # object for text, and for ids of other kinds
    labels: tuple[str, ...]  # of the columns of a 2-D result; empty for one that is 1-D
    arrow_type: pa.DataType  # of each of its columns

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape after the rows."""
        return (len(self.labels),) if self.labels else ()

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, text counted as pointers."""
        return self.dtype.itemsize * max(1, len(self.labels))

    @property
    def type_name(self) -> str:
        """Name of the type of its values, for reports."""
        return str(self.arrow_type) if self.is_text else str(self.dtype)

    @property
    def is_text(self) -> bool:
        """Whether Zarr stores its values as text."""
        return self.dtype.kind not in "biuf"

    def arrow(self, values: np.ndarray) -> dict[str, pa.Array]:
        """Return the columns of a Parquet file, by name; refuse values of other types than the first."""
        columns = {f"{self.name}_{label}": values[:, j] for j, label in enumerate(self.labels)}
        try:
            return {
                name: pa.array(column, self.arrow_type, from_pandas=column.dtype.kind == "O")
                for name, column in (columns or {self.name: values}).items()
            }
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InputError(
                f"column {self.name!r} holds values of several types ({str(error).splitlines()[0]}); "
                f"make them one type, or write to Zarr, where they become text"
            ) from error

    def plain(self, values: np.ndarray) -> np.ndarray:
        """Return the values as a Zarr array takes them: what is no number becomes text, missing ones ""."""
        if not self.is_text:
            return values
        if values.dtype.kind in "mM":
            return values.astype(str).astype(object)
        texts = ["" if value is None or value != value else str(value) for value in values.tolist()]
        return np.array(texts, dtype=object)


def arrow_type(name: str, values: np.ndarray) -> pa.DataType:
    """Return the Arrow type of a column that holds some 1-D values."""
    if values.dtype.kind in "UT":
        return pa.string()
    if values.dtype.kind != "O":
        return pa.from_numpy_dtype(values.dtype)
    try:
        found = pa.infer_type(values.tolist(), from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(
            f"column {name!r} holds values that no file can keep ({str(error).splitlines()[0]}); "
            f"make them numbers, text or dates"
        ) from error
    return pa.string() if pa.types.is_null(found) else found


# Where a result grows: it is moved into place at the end, and kept when interrupted, to be resumed.

# What must agree with an unfinished result to resume it, and what it is called in messages.
_MUST_AGREE = {
    "model_digest": "another model",
    "data_digest": "other data",
    "columns": "other results or ids",
    "format": "another format of file",
    "n_rows": "another number of rows",
    "region_rows": "another version's cuts of the rows",
    "chunk_rows": "another version's cuts of the rows",
}


KINDS = ("predictions", "features")
"""What results may replace."""


class ResultPlace:
    """The place of a result, `out`, and where it is written until it is whole.

    On a local file system that is a folder beside it, which is moved into place. An object store cannot
    rename: there it is `out` itself, whose header says "incomplete" until the end. An empty file for each
    run of rows that is written whole is kept beside the data until then.
    """

    def __init__(self, out: Location, *, overwrite: bool = False, resume: bool = False) -> None:
        self.out, self._overwrite, self._resume = out, overwrite, resume
        path = out.path
        self.growing = out if path is None else Location(str(path.with_name(f".{path.name}.partial")))

    def check(self) -> None:
        """Raise InputError now for what `filled` would refuse later, but for another model or other data.

        Costs a look at the store, and writes nothing.
        """
        unfinished = self._unfinished()
        if unfinished is None or self.growing is not self.out:
            try:
                check_writable(self.out, overwrite=self._overwrite, kinds=KINDS)
            except InputError as error:
                if self._resume and unfinished is None:
                    raise InputError(
                        f"nothing is unfinished that --resume could go on with: {error}"
                    ) from None
                raise
        if unfinished is not None and not (self._resume or self._overwrite):
            raise InputError(
                f"{self.growing} was left unfinished, or is being written now; go on with it by resume=True "
                f"or --resume, or begin anew by overwrite=True or --overwrite"
            )

    @contextmanager
    def filled(self, header: Mapping[str, Any]) -> Iterator[frozenset[int] | None]:
        """Yield where the runs of rows begin that are written already, or None to begin with nothing.

        At the end the result is in its place. When an error of the data ends the block, nothing of
        it is left; an interrupt or a lost cluster leaves what is written, if any run of rows is.
        """
        self.check()
        unfinished, done = self._unfinished(), None
        if unfinished and self._resume:
            for key, what in _MUST_AGREE.items():
                if unfinished.get(key) != header[key]:
                    raise InputError(
                        f"what is unfinished at {self.out} is of {what}; begin anew by "
                        f"overwrite=True or --overwrite"
                    )
            done = written_runs(self.growing)
        else:
            self._remove()
        with full_disk_errors(self.out):
            try:
                yield done
            except BaseException as error:
                ends = isinstance(error, InputError) and not isinstance(error, ClusterError)
                n_written = 0 if ends else len(written_runs(self.growing))
                if n_written:
                    error.add_note(
                        f"{n_written} runs of {header['region_rows']} rows are kept; the same command with "
                        f"--resume (resume=True) goes on"
                    )
                else:
                    self._remove()
                raise
        if self.growing is not self.out:
            put_in_place(Path(self.growing.url), self.out, overwrite=self._overwrite, kinds=KINDS)

    def _unfinished(self) -> dict[str, Any] | None:
        """Return the header of an unfinished result, empty if it has none yet."""
        if self.growing is not self.out:
            return (self.growing.header() or {}) if self.growing.exists() else None
        header = self.out.header()
        incomplete = header is not None and header.get("kind") in KINDS and not header.get("complete")
        return header if incomplete else None

    def _remove(self) -> None:
        if self.growing is self.out:
            self.growing.remove()
        else:
            remove_folder(Path(self.growing.url))


RUNS = "_written"  # a folder with an empty file for each run of rows that is written


def mark_written(growing: Location, start: int) -> None:
    """Record that the run of rows that begins at row `start` is written whole."""
    growing.within(f"{RUNS}/{start:012d}").write(b"")


def written_runs(growing: Location) -> frozenset[int]:
    """Return where the runs of rows begin that are written."""
    return frozenset(map(int, growing.within(RUNS).names()))


# What results grow into: a Zarr array or group, or a folder of Parquet files in row order by their names.


@dataclass(frozen=True)
class ZarrResults:
    """A Zarr array at `place` for a single column, a group with an array a column for several.

    `compressed` is False for features: cosines do not compress.
    """

    place: Location
    columns: tuple[ResultColumn, ...]
    compressed: bool = True

    def begin(self, n_rows: int, chunk_rows: int, header: dict[str, Any]) -> None:
        """Create the arrays, empty."""
        if len(self.columns) > 1:
            zarr.create_group(self.place.zarr_store(), attributes={ROOT: header})
        for column in self.columns:
            labels = {"columns": list(column.labels)} if column.labels else {}
            zarr.create_array(
                self._place_of(column).zarr_store(),
                shape=(n_rows, *column.shape),
                chunks=(chunk_rows, *column.shape),
                dtype=str if column.is_text else column.dtype,
                compressors="auto" if self.compressed else None,
                attributes={ROOT: header} if len(self.columns) == 1 else labels,
            )

    def write(self, start: int, blocks: Iterator[dict[str, np.ndarray]]) -> None:
        """Write consecutive blocks of rows, which begin at row `start`; they hold whole chunks."""
        for values in blocks:
            stop = start + len(next(iter(values.values())))
            for column in self.columns:
                # Opened each time: once it is taken away, it must not come back chunk by chunk.
                array = open_array(self._place_of(column), mode="r+")
                array[start:stop] = column.plain(values[column.name]).astype(array.dtype, copy=False)
            start = stop

    def finish(self, header: dict[str, Any]) -> None:
        """Write the last header."""
        zarr.open(self.place.zarr_store(), mode="r+").update_attributes({ROOT: header})

    def _place_of(self, column: ResultColumn) -> Location:
        return self.place.within(column.name) if len(self.columns) > 1 else self.place


def open_array(place: Location, *, mode: Any) -> zarr.Array:
    """Return the Zarr array at a place; refuse one that this process does not see."""
    try:
        return zarr.open_array(place.zarr_store(), mode=mode)
    except FileNotFoundError:
        pass  # raised below: Zarr's own error, as a cause, could not travel from a worker
    raise InputError(f"there is no array at {place} as this process sees it; {SEEN_BY_ALL}")


@dataclass(frozen=True)
class ParquetResults:
    """A folder at `place`, a file a run of rows: ids first, a matrix as one column a class or output."""

    place: Location
    columns: tuple[ResultColumn, ...]

    def begin(self, n_rows: int, chunk_rows: int, header: dict[str, Any]) -> None:
        """Make the folder."""
        self.place.make_folder()
        self.finish(header)

    def write(self, start: int, blocks: Iterator[dict[str, np.ndarray]]) -> None:
        """Write the file of consecutive blocks of rows, which begin at row `start`."""
        buffer, writer = BytesIO(), None  # a file is not larger than a few blocks
        for values in blocks:
            arrays: dict[str, pa.Array] = {}
            for column in self.columns:
                arrays |= column.arrow(values[column.name])
            table = pa.table(arrays)
            writer = writer or pq.ParquetWriter(buffer, table.schema)
            writer.write_table(table)
        assert writer is not None, "a run of rows is never empty"
        writer.close()
        try:
            # Twelve digits: the names sort as the rows do.
            self.place.within(f"rows-{start:012d}.parquet").write(buffer.getvalue())
        except FileNotFoundError as error:
            raise InputError(
                f"there is no folder {self.place} as this process sees it; {SEEN_BY_ALL}"
            ) from error

    def finish(self, header: dict[str, Any]) -> None:
        """Write the last header."""
        text = json.dumps({"attributes": {ROOT: header}}, indent=2, allow_nan=False)
        self.place.within(FOLDER_MARK).write(text.encode())
