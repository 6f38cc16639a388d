"""Spans that are read ahead: in order, few at a time, errors where they belong, the same rows."""

from __future__ import annotations

import threading
import uuid
import weakref

import fsspec
import numpy as np
import pytest
import zarr

from distrff.io import zarr_rows
from distrff.io.open import open_dataset
from distrff.io.rows import TileReader, read_ahead


def numbered(n_spans, read):
    for i in range(n_spans):
        read.append(i)
        yield {"X": np.full(3, i)}


@pytest.mark.parametrize("n_ahead", [1, 3, 20])
def test_the_order_is_kept(n_ahead):
    feed = TileReader(read_ahead(numbered(8, []), n_ahead), 24)
    np.testing.assert_array_equal(feed.take(24)["X"], np.repeat(np.arange(8), 3))


def test_no_more_is_read_than_asked_for():
    read: list[int] = []
    spans = read_ahead(numbered(100, read), 3)
    for i in range(5):
        assert next(spans)["X"][0] == i
        assert max(read) <= i + 3
    del spans


def test_the_next_one_is_read_meanwhile():
    """Reading waits for a gate that is opened only after the first span was handed out."""
    gate = threading.Event()

    def gated():
        yield {"X": np.zeros(1)}
        assert gate.wait(30)
        yield {"X": np.ones(1)}

    spans = read_ahead(gated(), 1)
    assert next(spans)["X"] == 0
    gate.set()
    assert next(spans)["X"] == 1
    assert next(spans, None) is None


def test_a_span_is_let_go_before_the_next():
    spans = read_ahead(numbered(3, []), 1)
    first = weakref.ref(next(spans)["X"])
    next(spans)
    assert first() is None


def test_errors_come_where_their_span_would():
    def failing():
        yield {"X": np.zeros(1)}
        raise OSError("the store is gone")

    spans = read_ahead(failing(), 4)
    next(spans)
    with pytest.raises(OSError, match="is gone"):
        next(spans)


@pytest.mark.parametrize("shards", [None, (140, 3)])
def test_an_object_store_gives_the_same_rows_as_a_folder(shards, rng, tmp_path, monkeypatch):
    X, y = rng.standard_normal((500, 3)), rng.standard_normal(500)
    name = f"memory://{uuid.uuid4().hex}"
    monkeypatch.setattr(zarr_rows, "REMOTE_SPAN_BYTES", 24 * 70)
    monkeypatch.setattr(zarr_rows, "SPAN_BYTES", 24 * 300)
    stores = {str(tmp_path / "x.zarr"): str(tmp_path / "x.zarr")}
    stores[f"{name}/x.zarr"] = zarr.storage.FsspecStore.from_url(f"{name}/x.zarr")
    found = []
    try:
        for path, store in stores.items():
            group = zarr.open_group(store, mode="w")
            stored = group.create_array("X", shape=X.shape, dtype=X.dtype, chunks=(35, 3), shards=shards)
            stored[:] = X  # `data=` loses chunks of shards in zarr 3.1.0
            group.create_array("y", data=y, chunks=(50,))
            data = open_dataset(path)
            found.append([block for a, b in ((0, 500), (33, 401)) for block in data.rows(a, b).tiles(90)])
            assert data.chunk_rows == {None: 350, (140, 3): 420}[shards] if name in path else 280
    finally:
        fsspec.filesystem("memory").rm(name, recursive=True)
    for block, other in zip(*found, strict=True):
        assert block.start == other.start
        np.testing.assert_array_equal(block.X, other.X)
        np.testing.assert_array_equal(block.y, other.y)
