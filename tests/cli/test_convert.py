"""Raw files on the command line: converted, or given straight to the commands that want rows."""

import gzip
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr
from scipy.sparse import csr_matrix, random_array
from sklearn.datasets import dump_svmlight_file

from distrff import load_model, open_dataset

EXACT = ("--features", "linear", "--alpha", 1e-6)
"""Labels that follow from a category, and numbers that are a sum of columns, are met by these."""


@pytest.fixture
def scratch(tmp_path_factory, monkeypatch):
    """Where temporary folders are made."""
    folder = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def labelled(tmp_path, rng):
    """Two compressed files without headers: a number, a colour that decides the label, and the label."""

    def write(name: str, n: int, colours: list[str]) -> str:
        label = {"red": "warm", "blue": "cold", "lime": "green"}
        lines = [f"{rng.standard_normal():.6f},{c},{label[c]}." for c in rng.choice(colours, n)]
        (tmp_path / name).write_bytes(gzip.compress("\n".join(lines).encode()))
        return str(tmp_path / name)

    return write("rows.gz", 120, ["red", "blue"]), write("other.gz", 40, ["red", "blue", "lime"])


def test_convert_fit_and_score(distrff, tmp_path, scratch, labelled):
    rows, other = labelled
    dst, model = str(tmp_path / "rows.zarr"), str(tmp_path / "model.zarr")
    done = distrff("convert", rows, dst, "--target", -1, "--one-hot", "--shuffle", 0, "--test-fraction", 0.2,
                   "--json")  # fmt: skip
    assert done.json["rows_written"] + done.json["rows_test"] == done.json["rows_read"] == 120
    assert open_dataset(dst).column_names == ("0", "1=blue", "1=red")
    fitted = distrff("fit", dst, "--model", "ridge-classifier", *EXACT, "--out", model, "--json")
    assert fitted.json["n_columns"] == 3
    assert distrff("score", model, f"{dst}/test", "--json").json["error"] == 0
    scored = distrff("score", model, other, "--json")
    n_lime = gzip.decompress(Path(other).read_bytes()).count(b"lime")
    assert (scored.json["n_samples"], scored.json["n_unseen"]) == (40, n_lime)
    assert scored.json["error"] == n_lime / 40
    elsewhere = ("--scheduler", "tcp://192.0.2.1:8786", "--out", tmp_path / "none.zarr")
    message = distrff.refused("fit", rows, "--target", -1, *elsewhere)  # its workers would not see the rows
    assert f"distrff convert {rows} ROWS.zarr" in message
    assert not list(scratch.iterdir())


def test_the_positive_label_goes_with_the_model(distrff, tmp_path, scratch, labelled):
    rows, other = labelled
    model = str(tmp_path / "model.zarr")
    distrff("fit", rows, "--target", -1, "--positive", "warm.", "--one-hot", "--model", "ridge-classifier",
            *EXACT, "--out", model, "--json")  # fmt: skip
    assert load_model(model).targets.classes.tolist() == [0, 1]
    assert distrff("score", model, rows, "--json").json["error"] == 0
    predicted = distrff("predict", model, other, "--out", tmp_path / "p.zarr", "--json")
    assert predicted.json["n_samples"] == 40
    assert set(zarr.open_array(tmp_path / "p.zarr", mode="r")[:].tolist()) <= {0, 1}
    assert not list(scratch.iterdir())


def test_wide_rows_stay_sparse(distrff, tmp_path, scratch):
    rng = np.random.default_rng(0)
    X = csr_matrix(random_array((300, 3000), density=0.002, rng=rng))
    y = np.where(X @ np.repeat([1.0, -1.0], 1500) > 0, 1, -1)
    dump_svmlight_file(X, y, str(tmp_path / "train"), zero_based=False)
    rows, model = tmp_path / "rows.zarr", tmp_path / "model.zarr"
    assert distrff("convert", tmp_path / "train", rows, "--json").json["layout"] == "csr"
    fourier = ("--features", "fourier", "--n-components", 512, "--alpha", 1)
    fit = ("fit", rows, "--model", "ridge-classifier", *fourier, "--out", model)
    assert "sparse" in distrff.refused(*fit, "--scale", "standard")
    given = ("--random-state", 0, "--scale", "none", "--length-scale", 2, "--json")
    assert distrff(*fit, *given).json["n_samples"] == 300
    error = distrff("score", model, rows, "--json").json["error"]
    assert error < 0.25
    assert distrff("score", model, tmp_path / "train", "--json").json["error"] == error
    assert distrff("predict", model, rows, "--out", tmp_path / "p.zarr", "--json").json["n_samples"] == 300
    found = distrff("inspect", rows, "--json").json
    for key in ("arrays", "storage"):
        assert {part["name"] for part in found[key]} == {"X/data", "X/indices", "X/indptr", "y"}
    assert sum(label["rows"] for label in found["target"]["labels"]) == 300
    words = ("predict", model, tmp_path / "train", "--id", "y", "--out", tmp_path / "q.zarr")
    assert "ids go with delimited text, Parquet and Zarr" in distrff.refused(*words)
    assert not list(scratch.iterdir())


def test_a_european_table_with_ids(distrff, tmp_path, scratch, rng):
    """Read as the line on standard error says, at the fit and again, or as the options say."""
    X = rng.standard_normal((40, 2)).round(4)
    lines = [f"{7 + i};n{i:02d};0{i};{a};{b};{a + b:.4f}".replace(".", ",") for i, (a, b) in enumerate(X)]
    (tmp_path / "rows.csv").write_text("id;name;zip;a;b;y\n" + "\n".join(lines))
    model, out = str(tmp_path / "model.zarr"), tmp_path / "p.parquet"
    fitted = distrff("fit", tmp_path / "rows.csv", "--target", "y", "--drop", "zip", *EXACT, "--out", model)
    assert "rows.csv is read as: delimiter ';', decimal ',', the first line holds names" in fitted.stderr
    assert "column 'id' left out: it is an index, or numbers the rows; --keep-index takes it" in fitted.stdout
    names = ("--id", "name", "--id", "id", "--id", "zip")
    done = distrff("predict", model, tmp_path / "rows.csv", *names, "--out", out)
    assert done.code == 0, done
    found = pd.read_parquet(out)
    assert found["id"].tolist() == list(range(7, 47))
    assert found["name"].tolist() == [f"n{i:02d}" for i in range(40)]
    assert found["zip"].tolist() == [f"0{i}" for i in range(40)]  # as it stands
    np.testing.assert_allclose(found["prediction"], X.sum(axis=1), atol=1e-3)
    (tmp_path / "rows.tsv").write_text("a|b|y\n" + "|".join(lines[0].split(";")[3:]) + "\n")
    given = ("--delimiter", "|", "--decimal", ",")
    scored = distrff("score", model, tmp_path / "rows.tsv", "--target", "y", *given, "--json")
    assert scored.json["n_samples"] == 1
    assert "--delimiter goes with delimited text" in distrff.refused("score", model, out, *given)
    assert "has no column 'none'" in distrff.refused("predict", model, tmp_path / "rows.csv", "--id", "none",
                                                     "--out", tmp_path / "q.zarr")  # fmt: skip


def test_options_of_text(distrff, tmp_path):
    (tmp_path / "rows.csv").write_text("u;v;1\nw;250;2\nu;V27;3\nu;401;4\nu;401;4\n")
    (tmp_path / "config.toml").write_text('types = {1 = "text"}\nheader = false\n')
    places = (tmp_path / "rows.csv", tmp_path / "rows.zarr")
    convert = ("convert", *places, "--target", -1, "--one-hot", "--overwrite")
    assert "--types 1=text" in distrff.refused(*convert, "--header", "none")
    for more in (["--header", "none", "--types", "1=text"], ["--header=none", "--types", "0=text,1=category"],
                 ["--no-header", "--types", "1=text"], ["--config", tmp_path / "config.toml"]):  # fmt: skip
        assert distrff(*convert, *more, "--json").json["rows_written"] == 5
        assert len(open_dataset(tmp_path / "rows.zarr").column_names) == 6
    assert distrff(*convert, "--header", "--types", "v=text", "--json").json["rows_written"] == 4
    assert "is not COLUMN=TYPE" in distrff.refused(*convert, "--types", "1")


def test_columns_at_prediction_are_found_by_name(distrff, tmp_path, scratch, rng):
    lines = "\n".join(f"{a:.4f},{b:.4f},{a + b:.4f}" for a, b in rng.standard_normal((40, 2)))
    for name, text in {
        "rows": "a,b,y\n" + lines,
        "other": "a,y\n1,2\n",
        "swapped": "extra,b,a\nx,1,2\n",
        "last": "b,a,found\n1,2,3\n4,5,9\n",
    }.items():
        (tmp_path / f"{name}.csv").write_text(text)
    model, out = str(tmp_path / "model.zarr"), tmp_path / "p.zarr"
    distrff("fit", tmp_path / "rows.csv", "--target", "y", *EXACT, "--out", model, "--json")
    for target in (-1, "found"):
        done = distrff("score", model, tmp_path / "last.csv", "--target", target, "--json")
        assert done.json["rmse"] < 1e-3  # the penalty, and four digits of y
    assert "has no column 'b'" in distrff.refused("score", model, tmp_path / "other.csv")
    assert distrff("predict", model, tmp_path / "swapped.csv", "--out", out).code == 0
    expected = load_model(model).predict(np.array([[2.0, 1.0]]))
    np.testing.assert_array_equal(zarr.open_array(out, mode="r")[:], expected)


@pytest.mark.parametrize("form", ["csv", "parquet", "zarr"])
def test_folds_go_by_columns_of_any_file(distrff, tmp_path, scratch, rng, form):
    frame = pd.DataFrame(rng.standard_normal((60, 2)), columns=["a", "b"]).assign(half=np.arange(60) % 2)
    days = pd.Series(pd.date_range("2013-01-01", periods=60)).dt.strftime("%Y-%m-%d")
    frame = frame.assign(day=days, who=[f"u{i % 6}" for i in range(60)], y=frame["a"] + frame["b"])
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_parquet(tmp_path / "rows.parquet")
    beside = ("--groups", "who", "--extra", "day")
    convert = ("convert", tmp_path / "rows.csv", tmp_path / "rows.zarr", "--target", "y", *beside, "--json")
    assert distrff(*convert).json["beside"] == {"groups": "who", "extra": ["day"]}
    out = ("--out", tmp_path / "model.zarr", "--overwrite", "--features", "linear", "--cv", 2)
    fit = ("fit", tmp_path / f"rows.{form}", *(() if form == "zarr" else ("--target", "y")), *out)
    forward = (*fit, "--folds", "forward", "--by", "day", "--gap", "2d")
    if form == "parquet":
        assert "--types day=time reads '2026-01-31', pandas.to_datetime" in distrff.refused(*forward)
        forward += ("--types", "day=time")
    found = distrff(*forward, "--json").json
    assert found["n_columns"] == 3 and found["folds"]["n_never_held_out"] == 20
    assert found["folds"]["held_out"].startswith("spans of day, each held out of a model of what came before")
    if form != "zarr":  # the seven columns of a time are features beside that by which the folds go
        with_times = distrff(*forward, "--datetime", "both", "--json").json
        assert with_times["n_columns"] == 10 and with_times["folds"] == found["folds"]
    page = tmp_path / "page.html"
    for groups in ("--folds groups --by who", "--groups who", *(["--groups 4"] if form != "zarr" else [])):
        report = ("--report", page) if form == "zarr" and groups == "--groups who" else ()
        done = distrff(*fit, *groups.split(), *report)
        assert "on rows left out: whole groups of 'who' (6 of them); the mean" in done.stdout
    if form == "zarr":  # the charts of a page take a second
        assert "rows that were left out: whole groups of &#39;who&#39; (6 of them)" in page.read_text()
    assert "2 folds of whole groups of 'who' (6 of them)" in distrff("inspect", out[1]).stdout
    refused = distrff.refused(*fit, "--groups", "nobody")
    assert ("has no array 'nobody'" if form == "zarr" else "has no column 'nobody'") in refused
    # A column of the X of a Zarr group stays there; of a table it is none unless it is named.
    half = distrff(*fit, "--folds", "groups", "--by", "half")
    assert ("not features, since --groups or --by names them: half" in half.stderr) == (form != "zarr")
    words = (*fit[1 : -len(out)], *out[3:], "--folds", "groups", "--by", "half")
    plan = distrff("plan", *words)
    assert "cells of 0, 1;" in distrff(*fit, "--folds", "blocks", "--block-columns", "0,1").stdout
    assert "2 fold(s) of whole groups of 'half', 2 a task" in plan.stdout and "\n3 sweeps" in plan.stdout
