"""What one pass tells of rows that no fit would take."""

from __future__ import annotations

from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from distrff.diagnostics import survey as row_survey
from distrff.diagnostics.survey import MAX_VALUES, few_values, survey_rows, survey_to_dict
from distrff.engine.run import Run
from distrff.engine.segments import Segmentation
from distrff.io.arrays import as_dataset
from distrff.preprocessing.targets import LabelCounts

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


def test_parts_without_a_sampled_row(rng):
    X, y = rng.standard_normal((N, 2)), np.arange(N, dtype=float)
    dataset = as_dataset(X, y)
    survey = survey_rows(Run(), dataset)
    none = replace(survey, X=(survey.X[0][:0], *survey.X), y=(survey.y[0][:0], *survey.y))
    assert survey_to_dict(none, dataset) == survey_to_dict(survey, dataset)


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


def test_values_are_counted_in_any_order_until_they_are_many(rng):
    values = rng.integers(0, MAX_VALUES, N)
    whole = few_values(LabelCounts.of_values, values / 3)
    merged = LabelCounts.empty()
    for part in np.array_split(rng.permutation(values / 3), 7):
        merged = few_values(merged.merge, LabelCounts.of_values(part))
    np.testing.assert_array_equal(merged.labels, whole.labels)
    np.testing.assert_array_equal(merged.counts, whole.counts)
    some = LabelCounts.of_values(np.arange(MAX_VALUES))
    assert few_values(some.merge, LabelCounts.of_values(np.arange(1, MAX_VALUES + 1))) is None
    assert few_values(LabelCounts.of_values, np.arange(MAX_VALUES + 1)) is None
    assert few_values(LabelCounts.of_values, np.asarray([1, "a"], dtype=object)) is None
