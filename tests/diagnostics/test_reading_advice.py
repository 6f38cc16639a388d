"""What passes decode and ask for, counted one by one, and when it is said that other chunks pay."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import zarr

from distrff.diagnostics.survey import rechunk_advice, stored_layout, stored_part
from distrff.engine.segments import gram_segmentation
from distrff.io.open import open_dataset

MIB = 2**20
SEGMENT_ROWS = gram_segmentation(600_000, 1024, 1, np.dtype("float32")).segment_rows


def part(n_rows, unit_rows, *, request_bytes=4 * MIB):
    n_requests = -(-n_rows // unit_rows)
    sizes = {"row_bytes": 400, "stored_bytes": n_requests * request_bytes, "n_requests": n_requests}
    return stored_part("X", n_rows, SEGMENT_ROWS, unit_rows=unit_rows, **sizes)


@pytest.mark.parametrize("from_the_first", [False, True])
def test_decoded_rows_are_counted_unit_by_unit(rng, from_the_first):
    n, unit, step = int(rng.integers(50, 200)), int(rng.integers(1, 60)), int(rng.integers(1, 250))
    stored = stored_part(
        "X", n, step, unit_rows=unit, row_bytes=8, stored_bytes=1, n_requests=1, from_the_first=from_the_first
    )
    expected = 0
    for a in range(0, n, step):
        b = min(a + step, n)
        for first in range(0, n, unit):
            end = min(first + unit, n)
            if first < b and end > a:
                expected += (min(end, b) if from_the_first else end) - first
    assert stored["decoded_share"] == pytest.approx(expected / n)
    assert stored["decoded_bytes"] == 8 * n


def test_what_is_advised():
    """Where units lie across bounds, requests are small, or a unit fills a worker; else nothing."""
    values = part(600_000, 100_000)
    (sentence,) = rechunk_advice(values)
    assert sentence.startswith("rechunk X from 100,000 to ")
    assert values["decoded_share"] > 1.1
    assert f" to {values['proposed_rows']:,} rows: a pass decodes " in sentence
    assert f"{values['decoded_share']:.2f} times the rows it needs" in sentence

    values = part(600_000, 512, request_bytes=MIB // 8)
    (sentence,) = rechunk_advice(values)
    assert f"1,172 requests of 131 kB, then {values['proposed_requests']}" in sentence
    assert 400 * values["proposed_rows"] <= 8 * MIB
    assert rechunk_advice(part(600_000, 512, request_bytes=2 * MIB)) == []

    (sentence,) = rechunk_advice(part(700_000, 700_000))
    assert "280 MB are decoded at once" in sentence

    good = part(600_000, part(600_000, 512)["proposed_rows"])
    assert SEGMENT_ROWS % good["unit_rows"] == 0
    assert good["decoded_share"] == 1
    assert rechunk_advice(good) == rechunk_advice(part(20_000, 16, request_bytes=100)) == []


@pytest.mark.parametrize("shards", [None, (120, 4)])
def test_the_layout_of_zarr(rng, tmp_path, shards):
    group = zarr.open_group(tmp_path / "d.zarr", mode="w")
    z = group.create_array("X", shape=(300, 4), chunks=(40, 2), shards=shards, dtype="f4")
    z[...] = rng.standard_normal((300, 4))
    group.create_array("y", data=rng.standard_normal(300), chunks=(100,))
    dataset = open_dataset(str(tmp_path / "d.zarr"))
    X, y = stored_layout(dataset)
    assert (X["name"], X["unit_rows"], X["unit_bytes"], X["decoded_bytes"]) == ("X", 40, 640, 4800)
    assert (y["name"], y["unit_rows"], y["decoded_bytes"]) == ("y", 100, 2400)
    assert X["n_requests"] == (3 if shards else 16)
    files = [f for f in (tmp_path / "d.zarr" / "X").rglob("*") if f.is_file()]
    assert X["stored_bytes"] == sum(f.stat().st_size for f in files)
    assert y["n_requests"] == 3


def test_the_layout_of_parquet(rng, tmp_path):
    frame = pd.DataFrame(rng.standard_normal((100, 3)), columns=list("abc"))
    frame[:60].to_parquet(tmp_path / "1.parquet", row_group_size=25)
    frame[60:].to_parquet(tmp_path / "2.parquet")
    dataset = open_dataset(str(tmp_path), target="c")
    (groups,) = stored_layout(dataset)
    assert (groups["unit_rows"], groups["unit_bytes"], groups["n_requests"]) == (40, 960, 4)
    assert groups["stored_bytes"] == sum(f.stat().st_size for f in tmp_path.iterdir())
