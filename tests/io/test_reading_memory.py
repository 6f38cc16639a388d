"""What a task that reads holds in memory, against what the dataset says of it.

Measured is what Arrow's pool and Python's allocator (NumPy's arrays and the bytes of files) gave out at most:
the same on every machine, unlike a resident set, which follows the allocator and its threads.
"""

import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from distrff.io.open import open_dataset

SPAN_BYTES = 2**18
PACK_BYTES = 2**20
TILE_ROWS = 500
REST = 2**19  # footers, readers and their buffers
N_FLOATS = 12
# They stay: Arrow's threads may give back memory after a test, to a pool that must still be there.
POOLS = []


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Let files of megabytes be as large as those of gigabytes are."""
    monkeypatch.setattr("distrff.io.tables.SPAN_BYTES", SPAN_BYTES)
    monkeypatch.setattr("distrff.io.parquet_rows.PACK_BYTES", PACK_BYTES)


def peak_bytes(data, start, stop):
    """The most bytes that reading a run of rows held."""
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    POOLS.append(counted)
    pa.set_memory_pool(counted)
    tracemalloc.start()
    try:
        read(data, start, stop)
        return counted.max_memory() + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)


def assert_within_plan(data, *runs):
    """What reading each run of rows held is at most what the dataset says."""
    read(data, 0, TILE_ROWS)
    for start, stop in runs:
        held = 2 * data.chunk_rows + min(data.whole_rows, stop - start) + TILE_ROWS
        assert peak_bytes(data, start, stop) <= data.row_bytes * held + data.held_bytes + REST


def read(data, start, stop):
    for tile in data.rows(start, stop).tiles(TILE_ROWS):
        del tile


def floats(rng, n):
    return {f"x{j}": rng.standard_normal(n) for j in range(N_FLOATS)}


def codes(rng, n):
    return {f"x{j}": rng.integers(0, 50, n) * 1e-3 for j in range(N_FLOATS)}


def words(rng, n):
    names = np.array([f"place {i}" for i in range(40)])
    return {f"s{j}": names[rng.integers(0, 40, n)] for j in range(3)} | {"x": rng.standard_normal(n)}


def table_path(tmp_path, columns, **options):
    n = len(next(iter(columns.values())))
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({**columns, "y": np.arange(n) * 0.5}), path, **options)
    return path


WORDS = {"one_hot": True, "missing": "error"}


@pytest.mark.parametrize(
    ("columns", "group_rows", "written", "opened"),
    [
        (floats, 2000, {}, {}),
        (floats, 60_000, {}, {}),
        (floats, 60_000, {"use_dictionary": False, "compression": "none", "data_page_size": 2**30}, {}),
        (codes, 60_000, {"compression": "zstd"}, {}),
        (words, 4000, {}, WORDS),
        (words, 60_000, {}, WORDS | {"missing": "drop"}),
        (words, 60_000, {"use_dictionary": False}, WORDS),
    ],
)
def test_row_groups(tmp_path, rng, columns, group_rows, written, opened):
    path = table_path(tmp_path, columns(rng, 60_000), row_group_size=group_rows, **written)
    assert_within_plan(open_dataset(path, target="y", **opened), (0, 8000), (31_000, 39_000))


def test_the_columns_of_a_large_row_group_are_not_decoded_together(tmp_path, rng):
    """They would be some 12 MB, of which a task wants 0.4."""
    path = table_path(tmp_path, floats(rng, 60_000), row_group_size=60_000)
    data = open_dataset(path, target="y")
    read(data, 0, TILE_ROWS)
    whole = 60_000 * data.row_bytes
    assert peak_bytes(data, 31_000, 35_000) < whole / 2
    assert data.held_bytes < whole / 2
    assert data.whole_rows == 60_000


def test_a_table_is_encoded_from_where_a_segment_begins(tmp_path, rng, monkeypatch):
    """Not from where its row group does: of a large one that would take as long as all its rows."""
    path = table_path(tmp_path, words(rng, 60_000), row_group_size=60_000)
    data = open_dataset(path, target="y", one_hot=True)
    encoded = []
    apply = type(data.steps).apply

    def counting(self, raw, **options):
        made = apply(self, raw, **options)
        encoded.append(len(made["X"]))
        return made

    monkeypatch.setattr(type(data.steps), "apply", counting)
    read(data, 31_000, 35_000)
    assert sum(encoded) == 4000


@pytest.mark.parametrize(
    ("x_chunks", "y_chunks", "shards"),
    [
        ((60_000, 4), (60_000,), None),
        ((60_000, 1), (500,), None),
        ((400_000, 4), (500,), None),  # beyond the array: filled up
        ((500, 4), (60_000,), None),
        ((500, 4), (60_000,), (60_000, 4)),
    ],
)
def test_chunks_of_zarr(tmp_path, rng, x_chunks, y_chunks, shards):
    group = zarr.open_group(tmp_path / "rows.zarr", mode="w")
    group.create_array("X", data=rng.standard_normal((60_000, 4)), chunks=x_chunks, shards=shards)
    group.create_array("y", data=rng.standard_normal(60_000), chunks=y_chunks)
    data = open_dataset(tmp_path / "rows.zarr")
    assert_within_plan(data, (31_000, 39_000))
