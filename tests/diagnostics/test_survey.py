"""What one pass tells of rows that no fit would take, and when other chunks pay."""

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from scipy import sparse

from distrff.diagnostics import survey as row_survey
from distrff.diagnostics.survey import rechunk_advice, stored_layout, stored_part, survey_rows, survey_to_dict
from distrff.engine.reduction import Segmentation, gram_segmentation
from distrff.engine.run import Run
from distrff.io.arrays import as_dataset
from distrff.io.open import open_dataset

N = 640


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    monkeypatch.setattr(row_survey, "light_segmentation", lambda n, d: Segmentation(n, 96, 40))
    with dask.config.set(scheduler="synchronous"):
        yield


def surveyed(X, y=None):
    dataset = as_dataset(X, y)
    return survey_to_dict(survey_rows(Run(), dataset), dataset)


def test_missing_values_and_ranges(rng):
    X = rng.standard_normal((N, 3))
    X[:, 2] = np.arange(N)
    X[rng.choice(N, 17, replace=False), 0] = np.nan
    X[rng.choice(N, 2, replace=False), 1] = [np.inf, -np.inf]
    for rows in (X, da.from_array(X, chunks=(77, 2)), pd.DataFrame(X, columns=list("abc"))):
        a, b, c = surveyed(rows)["columns"]
        assert (a["missing"], a["infinite"], b["missing"], b["infinite"]) == (17, 0, 0, 2)
        assert (a["min"], a["max"]) == (np.nanmin(X[:, 0]), np.nanmax(X[:, 0]))
        assert (c["min"], c["max"], c["drifts"]) == (0, N - 1, True)
        assert c["drift"] > 0.9
        # Six deviations of chance on top of a hundredth.
        assert not a["drifts"]
        assert not b["drifts"]
    assert a["name"] == "a"
    whole = rng.integers(0, 2, (N, 2))
    for rows in (whole, whole.astype(bool)):
        first = surveyed(rows)["columns"][0]
        assert (first["min"], first["max"], first["missing"]) == (0, 1, 0)


def test_sparse_rows_are_surveyed_as_dense_ones(rng):
    X = np.where(rng.random((N, 5)) < 0.2, rng.standard_normal((N, 5)), 0.0)
    X[:, 1] = np.arange(N) + 1.0  # no zeros, and a drift
    X[:, 2] = 0.0
    X[rng.choice(N, 9, replace=False), 3] = np.nan
    X[rng.choice(N, 2, replace=False), 4] = [np.inf, -np.inf]
    found = surveyed(sparse.csr_matrix(X))["columns"]
    for column, expected in zip(found, surveyed(X)["columns"], strict=True):
        assert column.pop("drift") == pytest.approx(expected.pop("drift"), abs=1e-12)
        assert column == expected
    assert (found[1]["drifts"], found[3]["missing"], found[4]["infinite"]) == (True, 9, 2)


def test_labels_are_counted(rng):
    y = np.asarray(["no", "yes", None], dtype=object)[rng.integers(0, 3, N)]
    target = surveyed(np.zeros((N, 1)), y)["target"]
    known = y[y != None]  # noqa: E711
    assert target["missing"] == N - len(known)
    counts = {found["label"]: found["rows"] for found in target["labels"]}
    assert counts == {label: int((known == label).sum()) for label in ("no", "yes")}
    assert sum(found["share"] for found in target["labels"]) == pytest.approx(1.0)
    assert not target["drifts"]
    assert surveyed(np.zeros((N, 1)), np.sort(rng.integers(0, 3, N)))["target"]["drifts"]


def test_numbers_have_a_mean_instead(rng):
    y = rng.standard_normal(N)
    y[3] = np.nan
    target = surveyed(np.zeros((N, 1)), y)["target"]
    assert "labels" not in target
    assert target["missing"] == 1
    np.testing.assert_allclose(target["mean"], np.nanmean(y))
    np.testing.assert_allclose(target["deviation"], np.nanstd(y))
    several = surveyed(np.zeros((N, 1)), np.stack([y, np.arange(N)], axis=1))["target"]
    assert len(several["mean"]) == 2
    assert several["drifts"]


MIB = 2**20
SEGMENT_ROWS = gram_segmentation(600_000, 1024, 1, np.dtype("float32")).segment_rows


def part(n_rows, unit_rows, *, request_bytes=4 * MIB):
    n_requests = -(-n_rows // unit_rows)
    sizes = {"row_bytes": 400, "stored_bytes": n_requests * request_bytes, "n_requests": n_requests}
    return stored_part("X", n_rows, SEGMENT_ROWS, unit_rows=unit_rows, **sizes)


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
    assert f"1,172 requests of 131 kB, afterwards {values['proposed_requests']}" in sentence
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
