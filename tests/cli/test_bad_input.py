"""Bad input: one line with the remedy, exit code 2, nothing on standard output, nothing left behind."""

from __future__ import annotations

import json
import re
import shutil

import distributed.versions
import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def refused(distrff, tmp_path):
    """Run a command that must be refused, and return what it said."""

    def run(*words) -> str:
        before = sorted(tmp_path.rglob("*"))
        done = distrff(*words)
        assert (done.code, done.stdout) == (2, ""), done
        assert sorted(tmp_path.rglob("*")) == before
        *told, line = done.told
        assert line.startswith("distrff: "), done.stderr
        assert all(line.startswith("defaults used: ") for line in told)
        return line

    return run


@pytest.fixture
def fit_refused(refused, tmp_path):
    def run(data, *words) -> str:
        return refused("fit", data, "--out", tmp_path / "m.zarr", "--n-components", 16, *words)

    return run


def test_a_path_that_does_not_exist(fit_refused):
    assert "does not exist" in fit_refused("nothing.zarr")
    assert "does not exist" in fit_refused("nothing.parquet", "--target", "y")


def test_a_group_without_rows(fit_refused, rows, stored):
    path = stored("q.zarr", Q=rows.X)
    assert "has no array 'X'; its arrays are: Q" in fit_refused(path)


def test_lengths_that_differ(fit_refused, rows, stored):
    path = stored("q.zarr", X=rows.X, y=rows.y[:-1])
    assert "X has 600 rows but y has 599" in fit_refused(path)


def test_no_rows(fit_refused, rows, tmp_path):
    pd.read_parquet(rows.parquet).iloc[:0].to_parquet(tmp_path / "none.parquet")
    assert "0 sample(s)" in fit_refused(tmp_path / "none.parquet", "--target", "y")


def test_no_target(fit_refused, refused, rows, models):
    assert "name it with --target; its columns are a, b, c, y, flag" in fit_refused(rows.parquet)
    assert "has no column 'z'" in fit_refused(rows.parquet, "--target", "z")
    assert "name it with --target" in refused("score", models["labels"], rows.parquet)


def test_text_for_a_regressor(fit_refused, refused, rows, models):
    assert "use --model ridge-classifier" in fit_refused(rows.parquet, "--target", "label")
    words = ("score", models["numbers"], rows.parquet, "--columns", "a,b,c", "--target", "label")
    assert "y must hold numbers" in refused(*words)


def test_fractions_and_one_class_for_a_classifier(fit_refused, rows, stored):
    words = ("--model", "ridge-classifier")
    assert "continuous" in fit_refused(rows.zarr, *words)
    one = stored("one.zarr", X=rows.X, y=np.ones(600, dtype=int))
    assert "one class only" in fit_refused(one, *words)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none(value, fit_refused, refused, rows, stored, models, tmp_path):
    X, y = rows.X.copy(), rows.y.copy()
    X[417, 1], y[3] = value, value
    name = "NaN" if np.isnan(value) else "infinity"
    path = stored("x.zarr", X=X, y=rows.y)
    assert f"X contains {name} in row 417, column 1" in fit_refused(path)
    assert f"y contains {name} in row 3" in fit_refused(stored("y.zarr", X=rows.X, y=y))
    predict = ("predict", models["numbers"], path, "--out", tmp_path / "p.zarr")
    assert f"X contains {name} in row 417, column 1" in refused(*predict)
    assert f"X contains {name} in row 417, column 1" in refused("score", models["numbers"], path)


def test_a_truncated_chunk(fit_refused, refused, rows, stored, models, tmp_path):
    path = stored("cut.zarr", X=rows.X, y=rows.y)
    chunk = path / "X" / "c" / "2" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-40])
    assert "rows 300 to 449 of array 'X' cannot be decoded" in fit_refused(path)
    assert "rows 300 to 449" in refused("transform", models["numbers"], path, "--out", tmp_path / "z.zarr")


def test_a_truncated_file(fit_refused, rows, tmp_path):
    (tmp_path / "cut.parquet").write_bytes(rows.parquet.read_bytes()[:-40])
    assert "cannot be read as Parquet" in fit_refused(tmp_path / "cut.parquet", "--target", "y")


def test_models_that_cannot_be_used(refused, rows, models, tmp_path):
    future, altered = (
        shutil.copytree(models["numbers"], tmp_path / name) for name in ("future.zarr", "altered.zarr")
    )
    document = json.loads((future / "zarr.json").read_text())
    document["attributes"]["distrff"]["format"] = 99
    (future / "zarr.json").write_text(json.dumps(document))
    coef = altered / "coef" / "c" / "0" / "0"
    coef.write_bytes(b"\0" * coef.stat().st_size)
    assert "update distrff" in refused("score", future, rows.zarr)
    assert "does not match its checksum" in refused("score", altered, rows.zarr)
    assert "does not match its checksum" in refused("inspect", altered)
    assert "does not exist" in refused("score", tmp_path / "none.zarr", rows.zarr)
    assert "is not a group of distrff" in refused("score", rows.zarr, rows.zarr)


def test_places_that_cannot_be_written(refused, rows, models, tmp_path):
    words = ("fit", rows.zarr, "--n-components", 16, "--out")
    assert "does not exist; create it first" in refused(*words, tmp_path / "no" / "m.zarr")
    assert "overlap; choose another path" in refused(*words, rows.zarr, "--overwrite")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "kept.txt").write_text("kept")
    assert "is not a model of distrff" in refused(*words, tmp_path / "notes", "--overwrite")


def test_widths_that_do_not_fit_the_columns(fit_refused, rows):
    assert "has 2 widths, the data 3 columns" in fit_refused(rows.zarr, "--length-scale", "1,2")
    words = ("--kernel", "laplacian", "--sampling", "orthogonal")
    assert "use --sampling iid" in fit_refused(rows.zarr, *words)


def test_a_constant_target_is_fitted_with_a_warning(distrff, rows, stored, tmp_path):
    path = stored("c.zarr", X=rows.X, y=np.full(600, 2.5))
    words = ("--alpha", 1, "--length-scale", 1, "--scale", "none", "--n-components", 16)
    done = distrff("fit", path, "--out", tmp_path / "m.zarr", *words)
    assert done.code == 0
    assert done.told == ["warning: y is constant (2.5); the model will predict that constant"]


def test_a_scheduler_that_is_not_there(fit_refused, rows):
    assert "is not an address" in fit_refused(rows.zarr, "--scheduler", "tcp://somewhere")
    assert "there is no scheduler file" in fit_refused(rows.zarr, "--scheduler", "file.json")


def test_sizes_go_with_a_cluster_of_our_own(distrff, rows, models):
    done = distrff("score", models["numbers"], rows.zarr, "--workers", 2)
    assert done.code == 2
    assert "go with --scheduler local" in done.stderr


def test_a_scheduler_that_nobody_runs(distrff, rows):
    done = distrff("plan", rows.zarr, "--scheduler", "tcp://127.0.0.1:1")
    assert (done.code, done.stdout) == (2, "")
    assert re.match(r"distrff: no Dask scheduler answers at tcp://127.0.0.1:1 \(.*\); check", done.told[-1])


def test_workers_that_differ_are_warned_of_once(distrff, rows, monkeypatch):
    """Although each command looks twice: when it connects, and when its first pass begins."""
    known = distributed.versions.get_package_info
    here = {"numpy": "2.0.99"}  # the workers are other processes
    monkeypatch.setattr("distributed.versions.get_package_info", lambda names: known(names) | here)
    done = distrff("plan", rows.zarr, "--n-components", 16, "--length-scale", 2)
    assert done.code == 0
    warnings = [line for line in done.told if line.startswith("warning: ")]
    assert len(warnings) == 1
    told = r"warning: worker tcp://\S+ has numpy \S+, this client numpy 2.0.99 \(and 1 other\(s\) differ\); "
    assert re.match(told, warnings[0])
