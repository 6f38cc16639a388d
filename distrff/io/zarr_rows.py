"""Rows of a Zarr group: one array for X, one for y, one for the weights, each with its own chunks."""

from __future__ import annotations

import base64
import gzip
import json
import lzma
import math
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from distrff.errors import DataWarning, InputError, warn
from distrff.io.dataset import (
    Dataset,
    Form,
    Reader,
    Rows,
    Span,
    check_fields,
    check_target_shape,
    cuts,
    dataset_of,
    native,
    read_ahead,
    read_type,
    sparse_share,
)
from distrff.io.storage import (
    ROOT,
    SEEN_BY_ALL,
    SPAN_BYTES,
    Location,
    one_line,
    patiently,
    retryable,
    storage_errors,
)
from distrff.preprocessing.profile import Numbered, TableOptions, find_columns
from distrff.preprocessing.table import FIELDS, TableSteps
from distrff.utils.random import group_of
from distrff.utils.text import listed

if TYPE_CHECKING:  # see arrays
    import dask.array as da


# A shard is one object and one request; above this size only parts of it are decoded at a time.
SHARD_BYTES = 256 * 2**20

# A span from an object store: sending it takes about as long as the latency of a request. It is small against
# the rows of a task, since each task waits for its first span.
REMOTE_SPAN_BYTES = 2 * 2**20

# Chunks of an array are looked for, and those that it lacks remembered, up to these numbers.
_MAX_CHUNKS, _MAX_UNWRITTEN = 2**16, 1000

# What zarr raises on truncated or altered chunks, by codec: RuntimeError (zstd, blosc), ValueError (raw
# bytes, checksums), the others gzip. Any other OSError may be temporary and is left to be retried.
DAMAGE = (RuntimeError, ValueError, EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class ZarrRows(Rows):
    """Rows of Zarr arrays: a handle, no data."""

    fields: tuple[str, ...]
    reader: ZarrReader = field(repr=False)

    def spans(self) -> Iterable[Iterator[Span]]:
        return (self.reader.spans(name, self.start, self.stop) for name in self.fields)


class ZarrReader(Reader):
    """Reads rows of Zarr arrays, decoded by their CF attributes; an array pickles to 1.5 kB."""

    columns: list[int] | None = None  # chosen ones of X
    column_share = 1.0  # see `Dataset`

    def __init__(self, arrays: dict[str, Any], source: str) -> None:
        self.arrays, self.source = arrays, source
        self.fields = tuple(arrays)
        self.codings = {field: coding for field, z in arrays.items() if (coding := coding_of(z)) is not None}
        self.unwritten = {field: _unwritten_chunks(z) for field, z in arrays.items()}
        self._is_remote = not all(map(_is_on_disk, arrays.values()))

    def rows(self, start: int, stop: int, fields: tuple[str, ...] = FIELDS) -> ZarrRows:
        return ZarrRows(start, stop, tuple(f for f in fields if f in self.fields), self)

    def form(self, field: str) -> Form:
        return self._chosen(field, self.arrays[field].shape, self.decoded_dtype(field))

    def _chosen(self, field: str, shape: tuple[int, ...], dtype: np.dtype) -> Form:
        if field == "X" and self.columns is not None:
            shape = (shape[0], len(self.columns))
        return Form(shape, dtype)

    def row_chunks(self, field: str) -> Sequence[int]:
        # da.from_zarr cuts by inner chunks, not shards: 100 blocks instead of 5, and three times slower.
        z = self.arrays[field]
        return [b - a for a, b in cuts(0, z.shape[0], _stored_chunks(z)[0])]

    def _check_found(self, field: str) -> None:
        """Raise if this process does not find the array: Zarr would read missing chunks as zeros."""
        import zarr  # not with this module, which every fit loads

        z = self.arrays[field]
        try:
            # The format is given, since looking for the other one as well would take more requests.
            store, form = z.store_path, z.metadata.zarr_format
            patiently(lambda: zarr.open_array(store=store, mode="r", zarr_format=form))
            return
        except FileNotFoundError:
            pass  # raised below: Zarr's own error, as a cause, could not travel from a worker
        except Exception as error:
            raise retryable(error) from error
        raise InputError(
            f"{self.source}: array {z.basename!r} cannot be found by this process; {SEEN_BY_ALL}"
        )

    def dtype(self, field: str) -> np.dtype:
        return read_type(field, self.decoded_dtype(field))

    def decoded_dtype(self, field: str) -> np.dtype:
        coding = self.codings.get(field)
        return native(self.arrays[field].dtype) if coding is None else coding.dtype

    def row_bytes(self, field: str) -> int:
        return self._growth(field) * row_bytes(self.arrays[field])

    def _growth(self, field: str) -> int:
        """How many times the bytes of stored values their decoded ones take; packed ones take more."""
        coding = self.codings.get(field)
        return 1 if coding is None else max(1, coding.dtype.itemsize // self.arrays[field].dtype.itemsize)

    def spans(self, field: str, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield the decoded rows [start, stop) of one field, a few chunks at a time."""
        step, n_ahead = self._steps(field)
        spans = self._spans(field, start, stop, step)
        return read_ahead(spans, n_ahead) if n_ahead else spans

    def _steps(self, field: str) -> tuple[int, int]:
        """The rows of a span, and how many spans to read ahead: together a span of local storage."""
        # From an object store spans are small and the next few are read ahead, so that a task waits for the
        # first one only. On a local disk that would not help: decoding a span is work for the same core.
        z, growth = self.arrays[field], self._growth(field)
        if not self._is_remote:
            return span_rows(z, SPAN_BYTES // growth), 0
        step = span_rows(z, REMOTE_SPAN_BYTES // growth)
        return step, max(1, SPAN_BYTES // (step * self.row_bytes(field)))

    def held_rows(self, field: str) -> int:
        """How many decoded rows of a field a task holds at most: of one span and those read ahead."""
        step, n_ahead = self._steps(field)
        return step * (1 + n_ahead)

    def held_bytes(self, n_rows: int) -> int:
        """The bytes that decoding holds beside two spans of `n_rows` rows."""
        # The rows of a chunk beyond the span, decoded and as stored. Chunks count with their whole shape,
        # since Zarr pads those at the edge of an array.
        return 2 * sum(max(0, _chunk_bytes(z) - n_rows * row_bytes(z)) for z in self.arrays.values())

    def _spans(self, field: str, start: int, stop: int, step: int) -> Iterator[dict[str, np.ndarray]]:
        self._check_found(field)
        for a, b in cuts(start, stop, step):
            yield {field: self._written(field, a, b)}

    def _written(self, field: str, start: int, stop: int) -> np.ndarray:
        values = self._read(field, start, stop)
        self._check_written(field, start, stop)  # afterwards, so that no chunk vanishes in between
        return values

    def _check_written(self, field: str, start: int, stop: int) -> None:
        """Raise for a chunk that was removed since the array was opened: Zarr reads it as the fill value."""
        z, unwritten = self.arrays[field], self.unwritten.get(field)
        if unwritten is None:
            return
        step = _stored_chunks(z)[0]
        for place in product(range(start // step, -(-stop // step)), *map(range, _chunk_grid(z)[1:])):
            key = z.metadata.encode_chunk_key(place)
            if key not in unwritten and not os.path.exists(_folder(z) / key):
                last = min((place[0] + 1) * step, z.shape[0]) - 1
                raise InputError(
                    f"{self.source}: the chunk {key!r} of array {z.basename!r}, in rows {place[0] * step} to "
                    f"{last}, was removed after it was opened; write it again, and open it again"
                )

    def _read(self, field: str, a: int, b: int) -> np.ndarray:
        z = self.arrays[field]
        step = z.chunks[0]
        first = a // step * step
        if b > first + step:
            # After any error chunk by chunk: so a message names the damaged one, and one that failed is read
            # again alone. Of 15 requests, each of which fails one time in ten, four of five spans have one.
            with suppress(Exception):
                return self._values(field, a, b)
            return np.concatenate([self._read(field, *part) for part in cuts(a, b, step)])
        try:
            return patiently(partial(self._values, field, a, b), DAMAGE)
        except DAMAGE as error:
            last = min(first + step, z.shape[0]) - 1
            raise InputError(
                f"{self.source}: rows {first} to {last} of array {z.basename!r} cannot be "
                f"decoded ({one_line(error)}); the chunk is truncated or damaged: write it again"
            ) from error
        except Exception as error:
            raise retryable(error) from error

    def _values(self, field: str, a: int, b: int) -> np.ndarray:
        z, chosen = self.arrays[field], field == "X" and self.columns is not None
        values = z.oindex[slice(a, b), self.columns] if chosen else z[a:b]
        coding = self.codings.get(field)
        values = np.asarray(values) if coding is None else coding.decode(np.asarray(values))
        return values.astype(self.dtype(field), copy=False)


def _stored_chunks(z: Any) -> tuple[int, ...]:
    """The shape of the pieces that are stored, each in a file of its own."""
    return tuple(z.shards or z.chunks)


def _chunk_grid(z: Any) -> tuple[int, ...]:
    return tuple(-(-size // step) for size, step in zip(z.shape, _stored_chunks(z), strict=True))


def _folder(z: Any) -> Path:
    return Path(z.store.root) / z.path


def _is_on_disk(z: Any) -> bool:
    from zarr.storage import LocalStore  # not with this module, which every fit loads

    return isinstance(z.store, LocalStore)


def _unwritten_chunks(z: Any) -> dict[str, None] | None:
    """The chunks that a local array lacks, by name in order; None where they are too many to be listed."""
    # In an object store each look is a request, so that this would cost as much as reading.
    if not _is_on_disk(z) or math.prod(_chunk_grid(z)) > _MAX_CHUNKS:
        return None
    # Zarr writes no chunk that holds the fill value alone, and reads a lost one as that value. Which are
    # not there is noted once, so that a chunk that is lost later is known from one that never was.
    places, folder = map(z.metadata.encode_chunk_key, np.ndindex(*_chunk_grid(z))), _folder(z)
    found = dict.fromkeys(key for key in places if not os.path.exists(folder / key))
    return found if len(found) <= _MAX_UNWRITTEN else None


def span_rows(z: Any, span_bytes: int) -> int:
    """How many rows to decode at once: whole shards or chunks, several up to `span_bytes`."""
    n_bytes = row_bytes(z)
    # Whole shards, as each is one request; of a huge one only chunks, which fit in memory.
    unit = z.chunks[0]
    if z.shards is not None and z.shards[0] * n_bytes <= SHARD_BYTES:
        unit = z.shards[0]
    return unit * max(1, span_bytes // (unit * n_bytes))


def _chunk_bytes(z: Any) -> int:
    """The decoded bytes of the chunks that one row lies in."""
    across = (-(-size // step) * step for size, step in zip(z.shape[1:], z.chunks[1:], strict=True))
    return z.dtype.itemsize * z.chunks[0] * math.prod(across)


def row_bytes(z: Any) -> int:
    return z.dtype.itemsize * math.prod(z.shape[1:])


# Opening a Zarr group: which arrays hold the rows, and what is refused before any row is read.


def open_zarr(
    location: Location,
    options: TableOptions,
    *,
    x_name: str = "X",
    y_name: str = "y",
    weight_name: str = "sample_weight",
) -> Dataset:
    """The dataset of a Zarr group; see `open_dataset`."""
    import zarr  # not with this module, which every fit loads

    target, sample_weight = options.target, cast(str | None, options.sample_weight)  # checked below
    source = str(location)
    for parameter, given in (("target", target), ("sample_weight", sample_weight)):
        if given is not None and not isinstance(given, str):
            raise InputError(f"{parameter} of a Zarr group must be the name of an array, got {given!r}")
    names = {
        "X": x_name,
        "y": y_name if target is None else target,
        "sample_weight": weight_name if sample_weight is None else sample_weight,
    }
    # Arrays that the user named must exist; the default y and weights may be absent.
    required = {"X": True, "y": target is not None or y_name != "y"}
    required["sample_weight"] = sample_weight is not None or weight_name != "sample_weight"
    with storage_errors(f"{source} cannot be reached"):
        group = open_group(location)
        X: Any = None
        with suppress(KeyError):
            X = _member(group, x_name)
        is_sparse = isinstance(X, zarr.Group)
        found = {
            field: _array(group, name, source, required=required[field])
            for field, name in names.items()
            if not (field == "X" and is_sparse)
        }
        arrays = {field: z for field, z in found.items() if z is not None}
        if is_sparse:
            parts = _csr_parts(X, f"{source}/{x_name}")
            reader: ZarrReader = CsrReader(parts | arrays, source, tuple(map(int, X.attrs["shape"])))
        else:
            reader = ZarrReader(arrays, source)
    check_fields({name: reader.form(name) for name in reader.fields})  # the next lines take X as a matrix
    for name, z in arrays.items():
        # An array that lacks all chunks was made so, as was one that lacks more than are listed.
        if (absent := reader.unwritten[name]) and len(absent) < (n_chunks := math.prod(_chunk_grid(z))):
            warn(
                f"{source}: array {names[name]!r} lacks {len(absent)} of {n_chunks} chunks, the first is "
                f"{next(iter(absent))!r}; Zarr reads them as {z.fill_value}, and leaves out chunks that hold "
                f"nothing else: write the array again if these rows hold other values",
                DataWarning,
            )
    n_rows, n_columns = reader.form("X").shape
    chosen, column_names = _columns(group, x_name, n_columns, options.columns, source, is_sparse=is_sparse)
    reader.columns = chosen
    is_1d = "y" in reader.fields and len(reader.form("y").shape) == 1
    # A span has fewer rows of the wider field, which takes the memory.
    widest = max([name for name in ("X", "y") if name in reader.fields], key=reader.row_bytes)
    chunk_rows = min(n_rows, reader.held_rows(widest))
    return dataset_of(
        reader,
        source,
        {"X": column_names, "y": (names["y"],) if is_1d else None},
        steps=_steps(group, n_columns, chosen, source),
        row_bytes=sum(map(reader.row_bytes, reader.fields)),
        chunk_rows=chunk_rows,
        column_share=reader.column_share,
        held_bytes=reader.held_bytes(chunk_rows),
    )


def has_array(location: Location, name: str) -> bool:
    """Whether a Zarr group holds an array or a group of this name."""
    with suppress(KeyError):
        _member(open_group(location), name)
        return True
    return False


def has_fill_values(dataset: Dataset) -> bool:
    """Whether an array of a Zarr group names a value other than NaN for a missing one."""
    reader: Any = dataset.reader
    return not dataset.is_sparse and any(coding.missing for coding in reader.codings.values())


BESIDE = "beside"
"""The attribute of a converted group with the names of columns beside X, and the group of their arrays."""


def stored_beside(group: Any) -> list[str]:
    """The names of the columns that a conversion stored beside X."""
    stored = group.attrs.get(BESIDE)
    return list(map(str, stored)) if isinstance(stored, list) else []


def array_column(group: Any, name: str, source: str) -> ZarrReader:
    """A reader whose y is an array of a Zarr group, or a column that a conversion stored beside X."""
    names = stored_beside(group)
    # By number: the name of a column may hold a slash, or be that of another array.
    array = f"{BESIDE}/{names.index(name)}" if name in names else name
    if (found := _array(group, array, source, required=False)) is None:
        there = listed([*names, *dict(group.arrays())])
        raise InputError(
            f"{source} has no array {name!r} to come beside X; it has: {there}. A conversion stores the "
            f"columns that its groups= and extra= name"
        )
    reader = ZarrReader({"y": found}, source)
    check_target_shape(*reader.form("y"))
    return reader


def _csr_parts(X: Any, name: str) -> dict[str, Any]:
    """The arrays of a group that holds a CSR matrix."""
    encoding, shape = X.attrs.get("encoding-type"), X.attrs.get("shape")
    if encoding != ENCODING or not isinstance(shape, (list, tuple)) or len(shape) != 2:
        raise InputError(
            f"{name} is a group of encoding-type {encoding!r} and shape {shape!r}, which cannot be X; write "
            f"an array, or a group of encoding-type {ENCODING!r} with the matrix's shape"
        )
    parts: dict[str, Any] = {part: _array(X, part, name, required=True) for part in ENTRIES}
    if parts["indptr"].shape[0] != int(shape[0]) + 1 or parts["indices"].shape != parts["data"].shape:
        raise InputError(f"{name}: data, indices and indptr do not fit its shape {shape}; write it again")
    return parts


_OF_CONTENT = (ValueError, KeyError, TypeError, AttributeError, RecursionError, AssertionError)  # do not pass


def _member(group: Any, name: str) -> Any:
    return patiently(lambda: group[name], lasting=_OF_CONTENT)


def open_group(location: Location) -> Any:
    """A Zarr group to read from; raise InputError if it is none, or was not written to its end."""
    group = _group(location)
    header = group.attrs.get(ROOT)
    if isinstance(header, dict) and header.get("complete") is False:  # missing chunks would read as zeros
        raise InputError(f"{location} is incomplete, its writing was interrupted; write it again")
    return group


def _group(location: Location) -> Any:
    import zarr

    try:
        opened = partial(zarr.open_group, location.zarr_store(read_only=True), mode="r")
        return patiently(opened, lasting=_OF_CONTENT)
    except (zarr.errors.ContainsArrayError, AssertionError) as error:  # zarr 3.1.0 asserts
        raise InputError(
            f"{location} is a Zarr array; pass the group that holds the arrays X and y"
        ) from error
    except FileNotFoundError as error:
        raise InputError(f"{location} does not exist or is not a Zarr group; check the path") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = _wrong_document(*location.file_system()) or one_line(error)
        raise InputError(f"{location} is not a readable Zarr group ({why}); write it again") from error


def _wrong_document(fs: Any, inner: str) -> str | None:
    """The fault in the form of the root metadata; None if there is none."""
    try:
        document = json.loads(fs.cat_file(f"{inner.rstrip('/')}/zarr.json"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        return "its zarr.json is no JSON"
    if not isinstance(document, dict):
        return "its zarr.json is no JSON object"
    if not isinstance(document.get("attributes", {}), dict):
        return "the attributes in its zarr.json are no JSON object"
    return None


def _array(group: Any, name: str, source: str, *, required: bool) -> Any:
    import zarr

    try:
        found = _member(group, name)
    except KeyError:
        found = None
    except (ValueError, TypeError) as error:
        raise InputError(f"{source}: the metadata of {name!r} cannot be read ({one_line(error)})") from error
    if isinstance(found, zarr.Array):
        return found
    # With all names that there are, as the default ones are often not those of a group.
    if required:
        arrays = dict(group.arrays())
        others = ", ".join(sorted(arrays)) or "none"
        dims = dict.fromkeys(dim for z in arrays.values() for dim in (dimensions_of(z) or ())[:1])
        table = f"; sample_dim makes them a table, one of {', '.join(dims)}" if dims else ""
        raise InputError(f"{source} has no array {name!r}; its arrays are: {others}{table}")
    return None


def _steps(group: Any, n_columns: int, chosen: list[int] | None, source: str) -> TableSteps | None:
    """The steps that made X from a table; None if X was not made from one."""
    stored = group.attrs.get("steps")
    if stored is None:
        return None
    try:
        steps = TableSteps.from_dict(stored)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{source}: the attribute steps cannot be read ({one_line(error)})") from error
    # Before the names are made, whose number a damaged file may forge.
    if not steps.sizes_within(n_columns):
        raise InputError(f"{source}: its steps make more columns than the {n_columns} of X; write it again")
    if len(steps.names_out) != n_columns:
        raise InputError(f"{source}: its steps make {len(steps.names_out)} columns but X has {n_columns}")
    return steps if chosen is None else steps.of_columns(chosen)


def _columns(
    group: Any, x_name: str, n_columns: int, columns: Any, source: str, *, is_sparse: bool
) -> tuple[list[int] | None, tuple[str, ...] | None]:
    """The indices of the chosen columns (None: all) and their names; sparse rows have no names."""
    given = None if is_sparse else group.attrs.get("column_names") or _coordinate(group, x_name)
    names = None if given is None else tuple(map(str, given))
    if names is not None and len(names) != n_columns:
        raise InputError(f"{source}: column_names lists {len(names)} names but X has {n_columns} columns")
    if columns is None:
        return None, names
    chosen = find_columns(columns, names or Numbered(n_columns), source)
    return chosen, None if names is None else tuple(names[i] for i in chosen)


def _coordinate(group: Any, x_name: str) -> list[Any] | None:
    """The labels of X's columns: the array that has the name of X's last dimension."""
    X = _member(group, x_name)
    name = (dimensions_of(X) or (None,))[-1]
    with suppress(KeyError):
        if name is not None and name != x_name and (z := _member(group, name)).shape == X.shape[-1:]:
            # Labels that occur twice name no column.
            values = next(ZarrReader({name: z}, name).spans(name, 0, z.shape[0]))[name].tolist()
            return values if len({*map(str, values)}) == len(values) else None
    return None


def dimensions_of(z: Any) -> tuple[str, ...] | None:
    """The names of an array's dimensions, where xarray writes them; None if it has none."""
    # Format 2 keeps them among the attributes, format 3 in the metadata.
    names = z.attrs.get("_ARRAY_DIMENSIONS", getattr(z.metadata, "dimension_names", None))
    return None if names is None else tuple(map(str, names))


# Rows of a sparse matrix that a Zarr group holds as data, indices and indptr; they never become dense.

ENTRIES = ("data", "indices", "indptr")
ENCODING = "csr_matrix"
"""The value of the attribute `encoding-type` of such a group."""

_INDPTR_ROWS = 2**16


class CsrReader(ZarrReader):
    """Reads rows of a CSR matrix: data, indices and indptr in place of X; pickles to a few kilobytes."""

    def __init__(self, arrays: dict[str, Any], source: str, shape: tuple[int, ...]) -> None:
        super().__init__(arrays, source)
        self.fields, self._shape = ("X", *(name for name in arrays if name not in ENTRIES)), shape
        row_entries = arrays["data"].shape[0] / max(1, shape[0])
        self._entries_bytes = row_entries * (arrays["data"].dtype.itemsize + arrays["indices"].dtype.itemsize)
        self.column_share = sparse_share(row_entries, max(1, shape[1]))

    def form(self, field: str) -> Form:
        if field != "X":
            return super().form(field)
        return self._chosen(field, self._shape, self.decoded_dtype("data"))

    def row_bytes(self, field: str) -> int:
        # 8: the row's own entry of indptr.
        return int(self._entries_bytes) + 8 if field == "X" else super().row_bytes(field)

    def held_rows(self, field: str) -> int:
        return (
            # + 1: a matrix may hold no entry at all.
            max(1, int(SPAN_BYTES / (self._entries_bytes + 1))) if field == "X" else super().held_rows(field)
        )

    def held_bytes(self, n_rows: int) -> int:
        return super().held_bytes(0)  # whole chunks: rows do not say how many entries a span has

    def row_chunks(self, field: str) -> Sequence[int]:
        if field != "X":
            return super().row_chunks(field)
        return [b - a for a, b in cuts(0, self._shape[0], _INDPTR_ROWS)]

    def lazy(self, field: str) -> da.Array:
        A = super().lazy(field)
        if field != "X":
            return A
        # Blocks are CSR already, but the array above declares dense ones.
        return A.map_blocks(_itself, token=group_of("read"), meta=csr_matrix((0, 0), dtype=A.dtype))

    def spans(self, field: str, start: int, stop: int) -> Iterator[Span]:
        """The decoded rows [start, stop) of one field, those of X about 8 MB of entries at a time."""
        return self._matrices(start, stop) if field == "X" else super().spans(field, start, stop)

    def _matrices(self, start: int, stop: int) -> Iterator[Span]:
        # Spans by entries, not by rows: a row may have any number of them.
        for a, b in cuts(start, stop, _INDPTR_ROWS):
            # One more than rows: the last one ends there.
            indptr = self._entries("indptr", a, b + 1)
            if (np.diff(indptr) < 0).any():
                raise InputError(f"rows {a} to {b - 1}: indptr decreases; write the sparse matrix again")
            itemsize = self.dtype("data").itemsize + self.dtype("indices").itemsize
            max_entries = max(1, SPAN_BYTES // itemsize)
            first = 0
            while first < b - a:
                last = int(np.searchsorted(indptr, indptr[first] + max_entries, side="right")) - 1
                # A row that is longer than a span is one by itself.
                last = min(max(last, first + 1), b - a)
                yield {"X": self._matrix(a + first, indptr[first : last + 1])}
                first = last

    def _matrix(self, row: int, indptr: np.ndarray) -> csr_matrix:
        begin, end = int(indptr[0]), int(indptr[-1])
        data, indices = (self._entries(name, begin, end) for name in ("data", "indices"))
        n_columns = self._shape[1]
        # SciPy would read beyond its arrays.
        if len(indices) and not 0 <= indices.min() <= indices.max() < n_columns:
            raise InputError(
                f"rows {row} to {row + len(indptr) - 2}: indices beyond the {n_columns} columns of the "
                f"sparse matrix; write it again"
            )
        X = csr_matrix((data, indices, indptr - begin), shape=(len(indptr) - 1, n_columns), copy=False)
        return X if self.columns is None else X[:, self.columns]

    def _entries(self, name: str, begin: int, end: int) -> np.ndarray:
        parts = [span[name] for span in super().spans(name, begin, end)]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self.dtype(name)), *parts])


def _itself(block: Any) -> Any:
    return block


# Stored values as numbers, times and text, by the CF conventions for the attributes of an array.

_MICROSECONDS = {
    "day": 86_400 * 10**6,
    "hour": 3_600 * 10**6,
    "minute": 60 * 10**6,
    "second": 10**6,
    "millisecond": 10**3,
    "microsecond": 1,
}
_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")
_REFORM = np.datetime64("1582-10-15")  # the first day of the Gregorian calendar
_NAT = np.iinfo(np.int64).min
_FARTHEST = 2.0**62  # ticks, which leaves room for an epoch


@dataclass(frozen=True)
class Coding:
    """How the stored values of an array, by its CF attributes, become values of `dtype`.

    `missing` are stored values that stand for a missing one; `scale` and `offset` are of packed numbers. Of
    times and durations a stored 1 is `unit` ticks, and the time 0 is `epoch` ticks after 1970.
    """

    name: str
    dtype: np.dtype
    stored: np.dtype  # integers may be signed although their bytes say that they are not
    missing: tuple[Any, ...] = ()
    scale: Any = None
    offset: Any = None
    unit: int = 0  # `dtype` says what a tick is
    epoch: int = 0

    def decode(self, values: np.ndarray) -> np.ndarray:
        """The values; a missing one is NaN or NaT, or None among objects."""
        values = values.astype(self.stored, copy=False)  # integers of one width keep their bits
        # As they are stored: scaled values would not meet them to the last bit.
        masks = [values == value for value in self.missing]
        absent = np.logical_or.reduce(masks) if masks else None
        of_numbers = self.dtype
        if self.unit:  # before they become times
            is_float = self.stored.kind == "f" or self.scale is not None or self.offset is not None
            of_numbers = np.dtype(np.float64 if is_float else np.int64)
        # Packed numbers are scaled as floats, but whole ticks of time stay integers: nanoseconds need all
        # 64 bits.
        made = values.astype(of_numbers)
        if self.scale is not None:
            made *= self.scale
        if self.offset is not None:
            made += self.offset
        if self.unit:
            return self._times(made, absent)
        if absent is not None:
            made[absent] = None if made.dtype == object else np.nan
        return made

    def _times(self, numbers: np.ndarray, absent: np.ndarray | None) -> np.ndarray:
        lost = np.isnan(numbers) if numbers.dtype.kind == "f" else numbers == _NAT
        lost = lost if absent is None else lost | absent
        # What is lost may be any number, and would be refused below as too far away.
        numbers = np.where(lost, 0, numbers)
        if (np.abs(numbers.astype(np.float64)) * self.unit > _FARTHEST).any():
            raise InputError(
                f"array {self.name!r} holds times that are too far from its epoch for {self.dtype}; name a "
                f"value that stands for a missing one by the attribute _FillValue"
            )
        ticks = np.round(numbers * self.unit).astype(np.int64) + self.epoch
        ticks[lost] = _NAT
        return ticks.view(self.dtype)


def coding_of(array: Any) -> Coding | None:
    """The coding that the attributes of a Zarr array tell of; None if they tell of none."""
    attributes = dict(array.attrs)
    if array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in attributes and array.fill_value is not None:
        attributes["_FillValue"] = array.fill_value  # where xarray keeps it in this format
    try:
        return _coding(array.basename, attributes, native(array.dtype))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"array {array.basename!r}: its CF attributes cannot be read ({one_line(error)}); write it again"
        ) from error


def _coding(name: str, attributes: Mapping[str, Any], stored: np.dtype) -> Coding | None:
    if stored.kind not in "biufOU":
        return None
    # Both may be given, and be lists; NaN needs no entry.
    given = [attributes[key] for key in ("missing_value", "_FillValue") if key in attributes]
    missing = [_fill_value(one, stored) for values in given for one in np.ravel(values).tolist()]
    missing = [one for one in dict.fromkeys(missing) if not pd.isnull(one)]
    scale, offset = (_factor(attributes.get(key)) for key in ("scale_factor", "add_offset"))
    is_packed, made = scale is not None or offset is not None, stored
    signs = {("true", "i"): "u", ("false", "u"): "i"}
    if kind := signs.get((str(attributes.get("_Unsigned")).lower(), stored.kind)):
        made = stored = np.dtype(f"{kind}{stored.itemsize}")
        missing = np.array(missing, np.int64).astype(stored).tolist()
    elif attributes.get("dtype") == "bool" and not missing:
        made = np.dtype(bool)
    if (clock := _clock(name, attributes)) is not None:
        return Coding(name, clock[0], stored, tuple(missing), scale, offset, *clock[1:])
    # Floats of which only NaN is missing keep their type although they are packed.
    if is_packed and (missing or not given or stored.kind != "f"):
        of_factors = np.float64 if offset is not None else type(scale)
        made = np.result_type(stored, of_factors) if of_factors is int else np.dtype(np.float64)
    # As xarray decodes them: integers with gaps are the floats that hold them, text with gaps objects.
    if missing and made.kind != "f":
        made = np.result_type(made, np.float32) if made.kind in "biu" else np.dtype(object)
    is_plain = made == native(made) and not (missing or is_packed or kind or made != stored)
    return None if is_plain else Coding(name, made, stored, tuple(missing), scale, offset)


def _fill_value(value: Any, stored: np.dtype) -> Any:
    """A value of an attribute; xarray writes a float in Zarr format 3 as the base64 of its bytes."""
    if stored.kind != "f" or not isinstance(value, str):
        return value
    try:
        return struct.unpack("<d", base64.b64decode(value, validate=True))[0]
    except (ValueError, struct.error):
        return float(value)


def _factor(value: Any) -> Any:
    """A number, which other writers may have in a list or as text."""
    if value is None:
        return None
    (number,) = np.ravel(value).tolist()
    return float(number) if isinstance(number, str) else number


def _clock(name: str, attributes: Mapping[str, Any]) -> tuple[np.dtype, int, int] | None:
    """The dtype of times or durations, the ticks of a unit, and the ticks from 1970 to the time 0."""
    units = attributes.get("units")
    # Not by xarray, which is no dependency, nor by cftime: the years of other calendars are refused, and
    # those of the Gregorian one are NumPy's.
    found = re.fullmatch(r"(\w+)( since (-?\d.*))?", units.strip()) if isinstance(units, str) else None
    is_duration = str(attributes.get("dtype")).startswith("timedelta64")
    if found is None or (found[2] is None and not is_duration):
        return None
    unit, tick = found[1].lower().removesuffix("s"), "us"
    if unit == "nanosecond":
        n_ticks, tick = 1, "ns"
    elif (n_ticks := _MICROSECONDS.get(unit, 0)) == 0:
        raise InputError(f"array {name!r} counts time in {units!r}; count days, hours, minutes or seconds")
    if found[2] is None:
        return np.dtype(f"m8[{tick}]"), n_ticks, 0
    calendar = str(attributes.get("calendar", "standard")).lower()
    start = pd.Timestamp(found[3])
    epoch = start.tz_convert(None) if start.tzinfo else start
    # The standard calendar is Julian before 1582, while NumPy's is Gregorian throughout.
    if calendar not in _CALENDARS or (calendar != _CALENDARS[-1] and epoch.to_datetime64() < _REFORM):
        raise InputError(
            f"array {name!r} counts {units!r} in the {calendar} calendar, whose days are not those of "
            f"{_CALENDARS[-1]}; convert it, for example with xarray's convert_calendar"
        )
    return np.dtype(f"M8[{tick}]"), n_ticks, int(epoch.to_datetime64().astype(f"M8[{tick}]").astype(np.int64))
