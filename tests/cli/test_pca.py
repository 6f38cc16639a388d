"""Principal components on the command line: fitted without a target, written by transform."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from distrff.model.persistence import load_model

WORDS = ("--model", "pca", "--n-components", 32, "--length-scale", 2, "--random-state", 1)


@pytest.fixture
def model(distrff, rows, tmp_path):
    path = tmp_path / "pca.zarr"
    done = distrff("fit", rows.parquet, "--columns", "a,b,c", "--n-outputs", 3, "--out", path, *WORDS)
    assert done.code == 0, done
    assert done.told == ["defaults used: --scale standard"]
    assert "3 components with" in done.stdout
    return path


def test_transform_writes_the_coordinates(distrff, rows, model, tmp_path):
    assert distrff("transform", model, rows.parquet, "--out", tmp_path / "t.zarr").code == 0
    T = zarr.open_array(tmp_path / "t.zarr", mode="r")[:]
    assert T.shape == (600, 3)
    # Strips of other heights round differently.
    np.testing.assert_allclose(T, load_model(str(model)).transform(rows.X), atol=1e-12)
    np.testing.assert_allclose(T.mean(axis=0), 0, atol=1e-10)
    for words in (("predict", "--out", tmp_path / "p.zarr"), ("score", "--target", "y")):
        assert "no predictions" in distrff.refused(words[0], model, rows.parquet, *words[1:])


def test_the_report_is_json(distrff, rows, tmp_path):
    report = distrff("fit", rows.zarr, "--out", tmp_path / "m.zarr", "--json", *WORDS).json
    assert (report["model"], report["n_outputs"], report["status"]) == ("KernelPCA", 2, "CONVERGED")
    assert len(report["explained_variance_ratio"]) == 2
    assert distrff("inspect", tmp_path / "m.zarr").code == 0
    assert distrff("plan", rows.zarr, *WORDS).code == 0
