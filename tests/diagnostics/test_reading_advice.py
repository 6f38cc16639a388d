"""What passes decode and ask for, counted one by one, and when it is said that other chunks pay."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import zarr

from distrff.diagnostics.survey import StoredPart, proposed_rows, reading_advice, stored_layout
from distrff.engine.segments import gram_segmentation
from distrff.io.open import open_dataset

MIB = 2**20


def part(n_rows, unit_rows, *, row_bytes=400, request_bytes=4 * MIB, from_the_first=False):
    starts = np.append(np.arange(0, n_rows, unit_rows), n_rows)
    n = len(starts) - 1
    return StoredPart("X", starts, row_bytes, n * request_bytes, n, from_the_first)


def advised(*parts):
    return reading_advice(parts, n_columns=100, n_outputs=1, dtype="float32")["advice"]


@pytest.mark.parametrize("from_the_first", [False, True])
def test_decoded_bytes_are_counted_unit_by_unit(rng, from_the_first):
    n = int(rng.integers(50, 200))
    cut = np.sort(rng.choice(np.arange(1, n), size=rng.integers(1, 9), replace=False))
    starts = np.concatenate([[0], cut, [n]])
    stored = StoredPart("X", starts, 8, 1, len(starts) - 1, from_the_first)
    step = int(rng.integers(1, n))
    bounds = [(a, min(a + step, n)) for a in range(0, n, step)]
    expected = 0
    for a, b in bounds:
        for first, end in pairwise(starts):
            if first < b and end > a:
                expected += (min(end, b) if from_the_first else end) - first
    assert stored.read_bytes(bounds) == 8 * expected
    assert stored.read_bytes([(0, n)]) == stored.decoded_bytes == 8 * n


def test_units_across_bounds_are_told_of():
    (sentence,) = advised(part(600_000, 100_000))
    assert sentence.startswith("rechunk X from 100,000 to ")
    values = reading_advice([part(600_000, 100_000)], n_columns=100, n_outputs=1, dtype="float32")["parts"][0]
    assert values["decoded_share"] > 1.1 * values["proposed_share"]
    assert f" to {values['proposed_rows']:,} rows: a pass decodes " in sentence
    assert f"{values['decoded_share']:.2f} times the rows it needs" in sentence


def test_small_requests_are_told_of():
    (sentence,) = advised(part(600_000, 512, request_bytes=MIB // 8))
    then = reading_advice([part(600_000, 512)], n_columns=100, n_outputs=1, dtype="float32")["parts"][0]
    assert f"1,172 requests of 131 kB, then {then['proposed_requests']}" in sentence
    assert 400 * then["proposed_rows"] <= 8 * MIB
    assert advised(part(600_000, 512, request_bytes=2 * MIB)) == []


def test_units_that_fill_a_worker_are_told_of():
    (sentence,) = advised(part(700_000, 700_000))
    assert "280 MB are decoded at once" in sentence


def test_good_chunks_and_little_data_are_left_alone():
    segments = gram_segmentation(600_000, 1024, 1, np.dtype("float32"))
    good = part(600_000, proposed_rows(segments.segment_rows, 400))
    assert segments.segment_rows % int(good.starts[1]) == 0
    assert good.read_bytes(segments.bounds()) == good.decoded_bytes
    assert advised(good) == []
    assert advised(part(20_000, 16, request_bytes=100)) == []


@pytest.mark.parametrize("shards", [None, (120, 4)])
def test_the_layout_of_zarr(rng, tmp_path, shards):
    group = zarr.open_group(tmp_path / "d.zarr", mode="w")
    z = group.create_array("X", shape=(300, 4), chunks=(40, 2), shards=shards, dtype="f4")
    z[...] = rng.standard_normal((300, 4))
    group.create_array("y", data=rng.standard_normal(300), chunks=(100,))
    dataset = open_dataset(str(tmp_path / "d.zarr"))
    X, y = stored_layout(dataset)
    assert (X.name, y.name, X.n_rows, X.row_bytes, y.row_bytes) == ("X", "y", 300, 16, 8)
    assert X.starts.tolist() == [*range(0, 300, 40), 300]
    assert X.n_requests == (3 if shards else 16)
    files = [f for f in (tmp_path / "d.zarr" / "X").rglob("*") if f.is_file()]
    assert X.stored_bytes == sum(f.stat().st_size for f in files)
    assert y.n_requests == 3


def test_the_layout_of_parquet(rng, tmp_path):
    frame = pd.DataFrame(rng.standard_normal((100, 3)), columns=list("abc"))
    frame[:60].to_parquet(tmp_path / "1.parquet", row_group_size=25)
    frame[60:].to_parquet(tmp_path / "2.parquet")
    dataset = open_dataset(str(tmp_path), target="c")
    (groups,) = stored_layout(dataset)
    assert groups.starts.tolist() == [0, 25, 50, 60, 100]
    assert (groups.row_bytes, groups.n_requests, groups.from_the_first) == (24, 4, True)
    assert groups.stored_bytes == sum(f.stat().st_size for f in tmp_path.iterdir())
