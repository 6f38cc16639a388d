"""Which Parquet files there are, and what their footers say: rows, columns, nulls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from distrff.data.row_group_batches import group_bytes, leaves_of
from distrff.data.storage import SEEN_BY_ALL, file_name, locate, one_line, passing, public_name, reaching
from distrff.errors import InputError

SUFFIXES = (".parquet", ".pq")
GLOB_CHARACTERS = "*?["


class Footer(NamedTuple):
    """What one file says about itself."""

    path: str
    schema: pa.Schema
    group_rows: tuple[int, ...]
    nullable: frozenset[str]  # columns of integers or booleans that hold nulls, or may
    row_labels: frozenset[str]  # columns in which pandas kept a frame's index
    empty: frozenset[str]  # columns that the statistics know to hold nothing but nulls
    name: str  # of the file, for messages
    n_missing: np.ndarray  # values that each column lacks, as far as the statistics tell
    column_bytes: np.ndarray  # that decoding takes, of shape (row groups, columns)


def find_files(paths: Sequence[Any], storage_options: dict[str, Any] | None) -> tuple[Any, list[str]]:
    """Return the filesystem and the sorted files that files, folders and globs stand for.

    Raises
    ------
    InputError
        If a path does not exist, a folder or glob holds no Parquet file, or the paths are on
        different filesystems.
    """
    if not paths:
        raise InputError("the list of Parquet paths is empty")
    located = [locate(path, storage_options) for path in paths]
    fs = located[0][0]
    if any(other is not fs for other, _ in located):
        raise InputError("the Parquet paths are on different filesystems; open one dataset on each")
    files: set[str] = set()
    for path, (_, inner) in zip(paths, located, strict=True):
        with reaching(public_name(path)):
            found = _expand(fs, inner)
        if not found:
            raise InputError(
                f"{public_name(path)} does not exist or holds no Parquet files (*.parquet, *.pq)"
            )
        files.update(found)
    return fs, sorted(files)


def _expand(fs: Any, inner: str) -> list[str]:
    if fs.isfile(inner):
        return [inner]
    if fs.isdir(inner):
        return [f for f in fs.find(inner) if f.endswith(SUFFIXES) and not _is_hidden(f, inner)]
    if any(c in inner for c in GLOB_CHARACTERS):
        return [f for f in fs.glob(inner) if fs.isfile(f) and not f.rsplit("/", 1)[-1].startswith(".")]
    return []


def _is_hidden(file: str, root: str) -> bool:
    """Writers keep files of their own (_temporary, _metadata, .crc) beside the data."""
    return any(part.startswith(("_", ".")) for part in file.removeprefix(root).split("/"))


def read_footers(fs: Any, files: Sequence[str]) -> list[Footer]:
    """Read all footers, up to 16 at a time; no rows are read."""
    with ThreadPoolExecutor(max_workers=min(16, len(files))) as pool:
        return list(pool.map(partial(read_footer, fs), files))


def read_footer(fs: Any, file: str) -> Footer:
    """Read the footer of one file.

    Raises
    ------
    InputError
        If it cannot be read as Parquet, or two columns have one name.
    """
    with parquet_file(fs, file) as parquet:
        metadata, schema = parquet.metadata, parquet.schema_arrow
        names = schema.names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{file_name(fs, file)} has two columns named {twice!r}; rename one")
        numbers = range(metadata.num_row_groups)
        leaves = leaves_of(metadata, names)
        sizes = [group_bytes(metadata, i, leaves) for i in numbers]
        null_counts = _null_counts(metadata, leaves)
        return Footer(
            path=file,
            schema=schema,
            group_rows=tuple(metadata.row_group(i).num_rows for i in numbers),
            nullable=_nullable(schema, null_counts),
            row_labels=_row_labels(schema),
            empty=_empty(metadata, schema, null_counts),
            name=file_name(fs, file),
            n_missing=np.maximum(null_counts, 0).sum(axis=0),
            column_bytes=np.reshape(sizes, (len(sizes), len(names))).astype(np.int64),
        )


@contextmanager
def parquet_file(fs: Any, file: str) -> Iterator[pq.ParquetFile]:
    """Open one file for reading; what is wrong with its content becomes an `InputError`.

    The bytes come through Python file objects, so that errors of the store keep their own type and
    can be retried, while those of the decoder are pyarrow's or bare OSErrors without a number.
    """
    name = file_name(fs, file)
    try:
        # cache_type: pyarrow asks for what it needs, reading ahead would fetch other columns.
        with fs.open(file, "rb", cache_type="none") as handle:
            yield pq.ParquetFile(handle, pre_buffer=True, page_checksum_verification=True)
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(
            f"{name} is not there as this process sees it, or not any more: open the dataset again; "
            f"{SEEN_BY_ALL}"
        ) from error
    except Exception as error:
        if not _is_damage(error):
            raise passing(error) from error
        remedy = (  # "range requests" are fsspec's words for a server of HTTP that sends whole files only
            "download the file and fit that"
            if "range requests" in str(error)
            else "the file is truncated, damaged or of another kind: write it again"
        )
        raise InputError(f"{name} cannot be read as Parquet ({one_line(error)}); {remedy}") from error


def _is_damage(error: Exception) -> bool:
    if isinstance(error, OSError):
        return type(error) is OSError and error.errno is None
    return isinstance(error, (pa.ArrowException, ValueError))


def _null_counts(metadata: Any, leaves: list[list[int]]) -> np.ndarray:
    """Return how many values each column of each row group lacks, -1 where its statistics do not tell."""
    found = np.zeros((metadata.num_row_groups, len(leaves)), np.int64)
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        for j, numbers in enumerate(leaves):
            counts = [_null_count(group.column(leaf)) for leaf in numbers]
            found[i, j] = -1 if -1 in counts else sum(counts)
    return found


def _null_count(chunk: Any) -> int:
    statistics = chunk.statistics
    known = statistics is not None and statistics.has_null_count
    return int(statistics.null_count) if known else -1


def _nullable(schema: pa.Schema, null_counts: np.ndarray) -> frozenset[str]:
    """Columns whose type has no NaN and whose statistics do not rule out nulls."""
    may_have = null_counts.any(axis=0)
    leaf_types = [f.type.value_type if pa.types.is_fixed_size_list(f.type) else f.type for f in schema]
    has_no_nan = [pa.types.is_integer(t) or pa.types.is_boolean(t) for t in leaf_types]
    return frozenset(schema.names[j] for j in np.flatnonzero(may_have & np.array(has_no_nan, bool)))


def _empty(metadata: Any, schema: pa.Schema, null_counts: np.ndarray) -> frozenset[str]:
    """Columns of single values that hold none, so far as the statistics tell."""
    rows = np.array([metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)])
    single = {metadata.schema.column(j).path for j in range(metadata.num_columns)}
    lacking = (null_counts == rows[:, None]).all(axis=0) & bool(len(rows))
    return frozenset(schema.names[j] for j in np.flatnonzero(lacking) if schema.names[j] in single)


def _row_labels(schema: pa.Schema) -> frozenset[str]:
    try:
        columns = json.loads((schema.metadata or {}).get(b"pandas", b"{}")).get("index_columns", [])
    except ValueError:
        columns = []
    return frozenset(column for column in columns if isinstance(column, str))
