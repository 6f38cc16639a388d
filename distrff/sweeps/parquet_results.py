"""Results as Parquet: a folder of files, one for each run of rows, in row order by their names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from distrff.errors import InputError
from distrff.model_store.places import FOLDER_MARK, ROOT
from distrff.sweeps.location import Location
from distrff.sweeps.result_columns import ResultColumn


@dataclass(frozen=True)
class ParquetResults:
    """A folder at `place`: ids first, a matrix as one column a class or output."""

    place: Location
    columns: tuple[ResultColumn, ...]

    def begin(self, n_rows: int, chunk_rows: int, header: dict[str, Any]) -> None:
        """Make the folder."""
        self.place.make_folder()
        self._seal(header)

    def write(self, start: int, blocks: Iterator[dict[str, np.ndarray]]) -> None:
        """Write the file of consecutive blocks of rows, which begin at row `start`.

        Raises
        ------
        InputError
            If the folder is not there as this process sees it.
        """
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
                f"there is no folder {self.place} as this process sees it; if workers run on several "
                f"machines, write to a folder that all of them share, or to an object store"
            ) from error

    def finish(self, header: dict[str, Any]) -> Location:
        """Seal it with the last header, and return the folder."""
        self._seal(header)
        return self.place

    def _seal(self, header: dict[str, Any]) -> None:
        text = json.dumps({"attributes": {ROOT: header}}, indent=2, allow_nan=False)
        self.place.within(FOLDER_MARK).write(text.encode())
