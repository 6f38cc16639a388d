"""Rows of a Zarr group: one array for X, one for y, one for the weights, each with its own chunks."""

from __future__ import annotations

import gzip
import lzma
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import dask.array as da
import numpy as np
import zarr

from distrff.data.dataset import lazy_blocks
from distrff.data.matrices import native
from distrff.data.read_ahead import read_ahead
from distrff.data.rows import FIELDS, Feed, RowBlock, cut_tiles, cuts
from distrff.data.storage import SEEN_BY_ALL, SPAN_BYTES, one_line, passing
from distrff.errors import InputError

# A shard is one object and one request; above this size only parts of it are decoded at a time.
SHARD_BYTES = 256 * 2**20

# Of an object store: as large as the latency of a request, and small against what a task works on,
# since the first span of each task is waited for.
REMOTE_SPAN_BYTES = 2 * 2**20

# What zarr raises on chunks that are cut off or altered, by codec: RuntimeError (zstd, blosc), ValueError
# (raw bytes, checksums), the others gzip. An OSError of another kind may pass and is left to be retried.
DAMAGE = (RuntimeError, ValueError, EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class ZarrRows:
    """Rows of Zarr arrays: a handle, no data."""

    start: int
    stop: int
    fields: tuple[str, ...]
    reader: ZarrReader = field(repr=False)

    def tiles(self, n_rows: int) -> Iterator[RowBlock]:
        """Yield the rows in blocks of `n_rows`.

        Raises
        ------
        InputError
            If a chunk is damaged, naming array and rows, or this process does not see the store.
        OSError
            If the store fails otherwise; a retry may succeed.
        """
        size = self.stop - self.start
        feeds = [Feed(self.reader.spans(f, self.start, self.stop), size) for f in self.fields]
        return cut_tiles(self.start, self.stop, n_rows, feeds)


class ZarrReader:
    """Reads rows of up to three Zarr arrays; pickles to a few kilobytes.

    From an object store the next few spans are read ahead, in small spans, so that tasks wait for the
    first alone. On a local disk that would not help: to decode a span is work of the same core.
    """

    def __init__(
        self, arrays: dict[str, Any], columns: list[int] | None, source: str, *, is_remote: bool = False
    ) -> None:
        self._arrays = arrays
        self._columns = columns
        self._source = source
        self._is_remote = is_remote

    @property
    def arrays(self) -> dict[str, Any]:
        """The Zarr arrays by field."""
        return dict(self._arrays)

    def rows(self, start: int, stop: int, fields: tuple[str, ...] = FIELDS) -> ZarrRows:
        """Return the rows [start, stop)."""
        return ZarrRows(start, stop, tuple(f for f in fields if f in self._arrays), self)

    def lazy(self, field: str) -> da.Array:
        """Return one array in blocks of its shards, or of its chunks if it has no shards."""
        z = self._arrays[field]
        step = (z.shards or z.chunks)[0]
        row_chunks = tuple(b - a for a, b in cuts(0, z.shape[0], step))
        columns = (len(self._columns),) if field == "X" and self._columns is not None else z.shape[1:]
        return lazy_blocks(self, field, row_chunks, columns, self.dtype(field))

    def _check_in_sight(self, field: str) -> None:
        """Raise where this process does not see the array: Zarr would read missing chunks as zeros."""
        z = self._arrays[field]
        try:
            # The format is known: to look for the other one as well would take more requests.
            zarr.open_array(store=z.store_path, mode="r", zarr_format=z.metadata.zarr_format)
            return
        except FileNotFoundError:
            pass  # raised below: Zarr's own error, as a cause, could not travel from a worker
        except Exception as error:
            raise passing(error) from error
        raise InputError(
            f"{self._source}: array {z.basename!r} is not there as this process sees it; {SEEN_BY_ALL}"
        )

    def dtype(self, field: str) -> np.dtype:
        """Return the type of the tiles of one field."""
        return np.dtype(np.float64) if field == "sample_weight" else native(self._arrays[field].dtype)

    def spans(self, field: str, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield the decoded rows [start, stop) of one field, a few chunks at a time."""
        if not self._is_remote:
            return self._spans(field, start, stop, self._span_rows(field))
        step = self._span_rows(field)
        n_ahead = spans_ahead(self._arrays[field], step)
        return read_ahead(self._spans(field, start, stop, step), n_ahead)

    def _span_rows(self, field: str) -> int:
        return span_rows(self._arrays[field], REMOTE_SPAN_BYTES if self._is_remote else SPAN_BYTES)

    def held_rows(self, field: str) -> int:
        """Return how many decoded rows of a field a task holds at most: a span, and those read ahead."""
        step = self._span_rows(field)
        return step * (1 + spans_ahead(self._arrays[field], step)) if self._is_remote else step

    def held_bytes(self, n_rows: int) -> int:
        """Return what decoding holds beside two spans of so many rows: chunks as they are, and as stored.

        That is the rest of chunks of which a task needs a part, by their whole shape: Zarr fills up those
        at the edge of an array.
        """
        rest = (unit_bytes(z) - n_rows * row_bytes(z) for z in self._arrays.values())
        return 2 * sum(max(0, n) for n in rest)

    def _spans(self, field: str, start: int, stop: int, step: int) -> Iterator[dict[str, np.ndarray]]:
        self._check_in_sight(field)
        for a, b in cuts(start, stop, step):
            yield {field: self._read(field, a, b)}

    def _read(self, field: str, a: int, b: int) -> np.ndarray:
        try:
            return self._decode(field, a, b)
        except DAMAGE:
            # Chunk by chunk, so that the message names the one that is damaged.
            step = self._arrays[field].chunks[0]
            return np.concatenate([self._decode_chunk(field, *part) for part in cuts(a, b, step)])

    def _decode_chunk(self, field: str, a: int, b: int) -> np.ndarray:
        try:
            return self._decode(field, a, b)
        except DAMAGE as error:
            step, n_rows = self._arrays[field].chunks[0], self._arrays[field].shape[0]
            first = a // step * step
            last = min(first + step, n_rows) - 1
            raise InputError(
                f"{self._source}: rows {first} to {last} of array {self._arrays[field].basename!r} cannot be "
                f"decoded ({one_line(error)}); the chunk is truncated or damaged: write it again"
            ) from error

    def _decode(self, field: str, a: int, b: int) -> np.ndarray:
        z = self._arrays[field]
        try:
            if field == "X" and self._columns is not None:
                values = z.oindex[slice(a, b), self._columns]
            else:
                values = z[a:b]
        except DAMAGE:
            raise
        except Exception as error:
            raise passing(error) from error
        return np.asarray(values).astype(self.dtype(field), copy=False)


def spans_ahead(z: Any, n_rows: int) -> int:
    """Return how many spans of `n_rows` to read ahead: as many as local storage would decode at once."""
    return max(1, SPAN_BYTES // (n_rows * row_bytes(z)))


def span_rows(z: Any, span_bytes: int) -> int:
    """Return how many rows to decode at once: whole shards or chunks, `span_bytes` if they are small."""
    n_bytes = row_bytes(z)
    unit = z.chunks[0]
    if z.shards is not None and z.shards[0] * n_bytes <= SHARD_BYTES:
        unit = z.shards[0]
    return unit * max(1, span_bytes // (unit * n_bytes))


def unit_bytes(z: Any) -> int:
    """Return the bytes of the chunks of an array that hold a row, decoded."""
    across = (-(-size // step) * step for size, step in zip(z.shape[1:], z.chunks[1:], strict=True))
    return z.dtype.itemsize * z.chunks[0] * math.prod(across)


def row_bytes(z: Any) -> int:
    """Return the decoded bytes of a row of an array."""
    return z.dtype.itemsize * math.prod(z.shape[1:])
