"""Bad input: one line with the remedy, exit code 2, nothing on standard output, nothing left behind."""

from __future__ import annotations

import re
import shutil

import distributed.versions
import numpy as np
import pytest


@pytest.fixture
def refused(distrff, tmp_path):
    """Run a command that must be refused, and return the line that says why."""

    def run(*words) -> str:
        before = sorted(tmp_path.rglob("*"))
        *others, line = distrff.refused(*words).splitlines()
        assert sorted(tmp_path.rglob("*")) == before
        assert line.startswith("distrff: ")
        assert all(other.startswith("defaults used: ") for other in others)
        return line

    return run


@pytest.mark.parametrize(
    ("data", "words", "message"),
    [
        ("nothing.zarr", "", "does not exist"),
        ("nothing.parquet", "--target y", "does not exist"),
        ("parquet", "", "name it with --target; its columns are a, b, c, y, flag"),
        ("parquet", "--target z", "has no column 'z'"),
        ("parquet", "--target label", "use --model ridge-classifier"),
        ("zarr", "--model ridge-classifier", "continuous"),
        ("zarr", "--length-scale 1,2", "has 2 widths, the data 3 columns"),
        ("zarr", "--kernel laplacian --sampling orthogonal", "use --sampling iid"),
        ("zarr", "--model pca --n-outputs 17", "the map has 16 features"),
        ("zarr", "--scheduler tcp://somewhere", "is not an address"),
        ("zarr", "--scheduler file.json", "there is no scheduler file"),
    ],
)
def test_fits_of_what_is_not_there_or_does_not_go_together(refused, rows, tmp_path, data, words, message):
    fit = ("fit", getattr(rows, data, data), "--out", tmp_path / "m.zarr", "--n-components", 16)
    assert message in refused(*fit, *words.split())


@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_numbers_that_are_none(value, name, refused, rows, stored, models, tmp_path):
    """A worker's task finds them, and the client says it."""
    X, y = rows.X.copy(), rows.y.copy()
    X[417, 1], y[3] = value, value
    path, fit = stored("x.zarr", X=X, y=rows.y), ("fit", "--n-components", 16, "--out", tmp_path / "m.zarr")
    predict = ("predict", models["numbers"], path, "--out", tmp_path / "p.zarr")
    for words in ((*fit, path), predict, ("score", models["numbers"], path)):
        assert f"X contains {name} in row 417, column 1" in refused(*words)
    assert f"y contains {name} in row 3" in refused(*fit, stored("y.zarr", X=rows.X, y=y))


def test_models_and_targets_that_cannot_be_used(refused, rows, models, tmp_path):
    altered = shutil.copytree(models["numbers"], tmp_path / "altered.zarr")
    coef = altered / "coef" / "c" / "0" / "0"
    coef.write_bytes(b"\0" * coef.stat().st_size)
    for words in (("inspect", altered), ("score", altered, rows.zarr)):
        assert "does not match its checksum" in refused(*words)
    for model, message in ((tmp_path / "none.zarr", "does not exist"), (rows.zarr, "not a group of distrff")):
        assert message in refused("score", model, rows.zarr)
    assert "name it with --target" in refused("score", models["labels"], rows.parquet)
    words = ("score", models["numbers"], rows.parquet, "--columns", "a,b,c", "--target", "label")
    assert "y must hold numbers" in refused(*words)


def test_places_that_cannot_be_written(refused, rows, tmp_path):
    words = ("fit", rows.zarr, "--n-components", 16, "--out")
    assert "does not exist; create it first" in refused(*words, tmp_path / "no" / "m.zarr")
    assert "overlap; choose another path" in refused(*words, rows.zarr, "--overwrite")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "kept.txt").write_text("kept")
    assert "is not a model of distrff" in refused(*words, tmp_path / "notes", "--overwrite")


def test_a_constant_target_is_fitted_with_a_warning(distrff, rows, stored, tmp_path):
    path = stored("c.zarr", X=rows.X, y=np.full(600, 2.5))
    words = ("--alpha", 1, "--length-scale", 1, "--scale", "none", "--n-components", 16)
    done = distrff("fit", path, "--out", tmp_path / "m.zarr", *words)
    assert done.code == 0
    assert done.told == ["warning: y is constant (2.5); the model will predict that constant"]


def test_schedulers_that_are_not_ours(distrff, rows, models):
    words = ("score", models["numbers"], rows.zarr, "--workers", 2)
    assert "go with --scheduler local" in distrff.refused(*words)
    *_, line = distrff.refused("plan", rows.zarr, "--scheduler", "tcp://127.0.0.1:1").splitlines()
    assert re.match(r"distrff: no Dask scheduler answers at tcp://127.0.0.1:1 \(.*\); check", line)


def test_workers_that_differ_are_warned_of_once(distrff, rows, monkeypatch):
    """Although each command looks twice: when it connects, and when its first pass begins."""
    known = distributed.versions.get_package_info
    here = {"numpy": "2.0.99"}  # the workers are other processes
    monkeypatch.setattr("distributed.versions.get_package_info", lambda names: known(names) | here)
    done = distrff("plan", rows.zarr, "--n-components", 16, "--length-scale", 2)
    assert done.code == 0
    (warning,) = [line for line in done.told if line.startswith("warning: ")]
    worker = r"warning: worker tcp://\S+ has numpy \S+, this client numpy 2.0.99"
    assert re.match(worker + r" \(and 1 other\(s\) differ\); ", warning)
