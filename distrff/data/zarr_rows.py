"""Rows of a Zarr group: one array for X, one for y, one for the weights, each with its own chunks."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import dask.array as da
import numpy as np
import zarr

from distrff.data.dataset import Dataset, check_lengths, lazy_blocks
from distrff.data.matrices import check_real, check_shape, check_target_shape, check_weight_shape, native
from distrff.data.rows import FIELDS, Feed, RowBlock, cut_tiles, cuts
from distrff.data.selection import find_columns
from distrff.data.storage import SPAN_BYTES, is_local, one_line, passing, public_name, reaching
from distrff.errors import InputError

# A shard is one object and one request; above this size only parts of it are decoded at a time.
SHARD_BYTES = 256 * 2**20

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
        self.reader.check_in_sight(self.fields)
        size = self.stop - self.start
        feeds = [Feed(self.reader.spans(f, self.start, self.stop), size) for f in self.fields]
        return cut_tiles(self.start, self.stop, n_rows, feeds)


class ZarrReader:
    """Reads rows of up to three Zarr arrays; pickles to a few kilobytes."""

    def __init__(self, arrays: dict[str, Any], columns: list[int] | None, source: str) -> None:
        self._arrays = arrays
        self._columns = columns
        self._source = source

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

    def check_in_sight(self, fields: tuple[str, ...]) -> None:
        """Raise where this process does not see the arrays: Zarr would read missing chunks as zeros."""
        for name in fields:
            z = self._arrays[name]
            try:
                zarr.open_array(store=z.store_path, mode="r")
            except FileNotFoundError as error:
                raise InputError(
                    f"{self._source}: array {z.basename!r} is not there as this process sees it; if workers "
                    f"run on several machines, use a folder that all of them share, or an object store"
                ) from error
            except Exception as error:
                raise passing(error) from error

    def dtype(self, field: str) -> np.dtype:
        """Return the type of the tiles of one field."""
        return np.dtype(np.float64) if field == "sample_weight" else native(self._arrays[field].dtype)

    def spans(self, field: str, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield the decoded rows [start, stop) of one field, a few chunks at a time."""
        step = span_rows(self._arrays[field])
        return ({field: self._read(field, a, b)} for a, b in cuts(start, stop, step))

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
            raise InputError(
                f"{self._source}: rows {a} to {b - 1} of array {self._arrays[field].basename!r} cannot be "
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


def span_rows(z: Any) -> int:
    """Return how many rows to decode at once: whole shards or chunks, several if they are small."""
    row_bytes = z.dtype.itemsize * int(np.prod(z.shape[1:]))
    unit = z.chunks[0]
    if z.shards is not None and z.shards[0] * row_bytes <= SHARD_BYTES:
        unit = z.shards[0]
    return unit * max(1, SPAN_BYTES // (unit * row_bytes))


def open_zarr(
    fs: Any,
    inner: str,
    path: str,
    *,
    columns: Any,
    names: dict[str, str],
    required: frozenset[str],
    storage_options: dict[str, Any] | None,
) -> Dataset:
    """Return the dataset of a Zarr group; see `open_dataset`.

    `names` maps X, y and sample_weight to names of arrays; those in `required` must exist.
    """
    source = public_name(path)
    with reaching(source):
        group = _open_group(fs, inner, path, source, storage_options)
        found = {f: _array(group, name, source, f in required) for f, name in names.items()}
    arrays = {f: z for f, z in found.items() if z is not None}
    _check(arrays)
    chosen, column_names = _columns(group, arrays["X"], columns, source)
    reader = ZarrReader(arrays, chosen, source)
    X, y = arrays["X"], arrays.get("y")
    return Dataset(
        reader=reader,
        n_rows=X.shape[0],
        n_columns=X.shape[1] if chosen is None else len(chosen),
        dtype=reader.dtype("X"),
        source=source,
        row_bytes=sum(z.dtype.itemsize * int(np.prod(z.shape[1:])) for z in arrays.values()),
        chunk_rows=min(X.shape[0], span_rows(X)),
        column_names=column_names,
        target_names=(names["y"],) if y is not None and y.ndim == 1 else None,
        y_dtype=None if y is None else reader.dtype("y"),
        n_targets=0 if y is None else int(np.prod(y.shape[1:])),
        y_is_1d=y is None or y.ndim == 1,
        has_weights="sample_weight" in arrays,
    )


def _open_group(fs: Any, inner: str, path: str, source: str, storage_options: dict[str, Any] | None) -> Any:
    try:
        if is_local(fs):
            return zarr.open_group(inner, mode="r")
        store = zarr.storage.FsspecStore.from_url(path, storage_options=storage_options, read_only=True)
        return zarr.open_group(store, mode="r")
    except (zarr.errors.ContainsArrayError, AssertionError) as error:  # zarr 3.1.0 asserts
        raise InputError(f"{source} is a Zarr array; pass the group that holds the arrays X and y") from error
    except FileNotFoundError as error:
        raise InputError(f"{source} does not exist or is not a Zarr group; check the path") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{source} is not a readable Zarr group ({one_line(error)})") from error


def _array(group: Any, name: str, source: str, required: bool) -> Any:
    try:
        found = group[name]
    except KeyError:
        found = None
    except (ValueError, TypeError) as error:
        raise InputError(f"{source}: the metadata of {name!r} cannot be read ({one_line(error)})") from error
    if isinstance(found, zarr.Array):
        return found
    if required:
        others = ", ".join(sorted(group.array_keys())) or "none"
        raise InputError(f"{source} has no array {name!r}; its arrays are: {others}")
    return None


def _check(arrays: dict[str, Any]) -> None:
    check_shape(arrays["X"].shape, "X")
    check_real(arrays["X"].dtype, "X")
    if "y" in arrays:
        check_target_shape(arrays["y"].shape, arrays["y"].dtype)
    if "sample_weight" in arrays:
        check_weight_shape(arrays["sample_weight"].shape)
        check_real(arrays["sample_weight"].dtype, "sample_weight")
    check_lengths({f: z.shape[0] for f, z in arrays.items()})


def _columns(
    group: Any, X: Any, columns: Any, source: str
) -> tuple[list[int] | None, tuple[str, ...] | None]:
    """The indices of the chosen columns (None: all) and their names."""
    given = group.attrs.get("column_names")
    names = None if given is None else tuple(map(str, given))
    if names is not None and len(names) != X.shape[1]:
        raise InputError(f"{source}: column_names lists {len(names)} names but X has {X.shape[1]} columns")
    if columns is None:
        return None, names
    labels = names or tuple(map(str, range(X.shape[1])))
    chosen = find_columns(columns, labels, source)
    return chosen, None if names is None else tuple(names[i] for i in chosen)
