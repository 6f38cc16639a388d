"""`distrff predict`: ids, probabilities, standard deviations, and an interrupt that loses nothing."""

import numpy as np
import pandas as pd
import pytest

from distrff.model import write
from distrff.model.persistence import load_model

FIT = ("--n-components", 32, "--random-state", 0, "--length-scale", 2)


def test_standard_deviations_with_ids(distrff, rows, tmp_path):
    model, out = tmp_path / "m.zarr", tmp_path / "p.parquet"
    words = ("--target", "y", "--columns", "a,b,c", "--include-std")
    assert distrff("fit", rows.parquet, "--out", model, *words, *FIT).code == 0
    words = ("--id", "label", "--id", "flag", "--return-std", "--out", out, "--json")
    report = distrff("predict", model, rows.parquet, *words).json
    columns = {"label": "string", "flag": "bool", "prediction": "float64", "std": "float64"}
    assert report["columns"] == columns
    frame = pd.read_parquet(out)
    expected, std = load_model(str(model)).predict(rows.X, return_std=True)
    np.testing.assert_allclose(frame["prediction"], expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(frame["std"], std, rtol=1e-12)
    assert frame["label"].tolist() == rows.label.tolist()
    described = distrff("inspect", out, "--json").json
    assert (described["n_rows"], described["complete"], described["columns"]) == (600, True, columns)
    assert "prediction  float64" in distrff("inspect", out).stdout


@pytest.mark.parametrize("method", ["constant", "deviation"])
def test_intervals_after_a_calibration(distrff, rows, models, tmp_path, method):
    model, out = tmp_path / "m.zarr", tmp_path / "p.parquet"
    words = ["--target", "y", "--columns", "a,b,c", *["--include-std"] * (method == "deviation"), *FIT]
    assert distrff("fit", rows.parquet, "--out", model, *words).code == 0
    frame = pd.read_parquet(rows.parquet)
    frame[:300].to_parquet(tmp_path / "other.parquet")
    done = distrff("calibrate", model, tmp_path / "other.parquet", "--target", "y", "--json")
    assert done.code == 0 and done.json["n_samples"] == 300
    shown = distrff("calibrate", model, tmp_path / "other.parquet", "--target", "y").stdout
    assert "calibrated on 300 rows" in shown and "coverage 0.95: ±" in shown
    assert ("wider where the model is less sure" in shown) == (method == "deviation")
    assert distrff("predict", model, rows.parquet, "--coverage", 0.9, "--out", out).code == 0
    found, kept = pd.read_parquet(out), load_model(str(model))
    assert list(found) == ["prediction", "lower", "upper"]
    for name, end in zip(("lower", "upper"), kept.predict_interval(rows.X, method=method), strict=True):
        np.testing.assert_allclose(found[name], end, rtol=1e-12, atol=1e-12)
    assert done.json["radius"]["0.9"] == [kept.intervals.radius(0.9, method)[0]]
    again = ("predict", model, rows.parquet, "--coverage", 0.5, "--out", out)
    assert "overwrite" in distrff.refused(*again)
    told = distrff("calibrate", model, rows.parquet, "--target", "y").stderr
    assert "where the rows of the fit came from" in told
    frame[:300].assign(person=np.arange(300) // 10).to_csv(tmp_path / "people.csv", index=False)
    grouped = ("calibrate", model, tmp_path / "people.csv", "--target", "y", "--groups", "person")
    assert distrff(*grouped, "--json").json["n_groups"] == 30
    assert "300 rows of 30 groups, for rows of new groups" in distrff("inspect", model).stdout
    words = ("predict", model, rows.parquet, "--out", tmp_path / "q.parquet", "--coverage", 1)
    assert "coverage" in distrff.refused(*words)


def test_an_interrupted_command_goes_on(distrff, rows, models, tmp_path, monkeypatch):
    """The cut of the rows is the client's; the interrupt comes before the result is sealed."""
    monkeypatch.setattr(write, "_CHUNK_BYTES", 8 * 50)
    words = ("predict", models["numbers"], rows.zarr, "--out", tmp_path / "p.parquet")
    gather = write.Run.gather

    def interrupted(run, handles):
        found = gather(run, handles)
        if len(handles) == 1:  # the sweep's, which is at its end: nothing is marked complete yet
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(write.Run, "gather", interrupted)
        done = distrff(*words)
    assert done.code == 130
    assert "at least 600 of 600 rows are kept; repeat with --resume to continue" in done.told[-1]
    assert not (tmp_path / "p.parquet").exists()
    assert "--resume" in distrff(*words).told[-1]
    report = distrff(*words, "--resume", "--json").json
    assert report["n_kept"] == 600
    expected = load_model(str(models["numbers"])).predict(rows.X)
    found = pd.read_parquet(tmp_path / "p.parquet")["prediction"]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert [path.name for path in tmp_path.iterdir()] == ["p.parquet"]
