"""Bad input: one line with the remedy, exit code 2, nothing on standard output, nothing left behind."""

import re

import distributed.versions
import numpy as np
import pandas as pd
import pytest

SMALL = ("--features", "fourier", "--n-components", 16)


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


def test_fits_that_only_the_rows_make_wrong(refused, rows, tmp_path):
    fit = ("fit", rows.zarr, "--out", tmp_path / "m.zarr", *SMALL)
    assert "continuous" in refused(*fit, "--model", "ridge-classifier")
    assert "has 2 widths, the data 3 columns" in refused(*fit, "--length-scale", "1,2")


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
@pytest.mark.parametrize("command", [("fit", "--out", "m.zarr"), ("plan",), ("gram", "--out", "g.zarr")])
def test_that_the_target_is_missing_is_said_before_any_row_is_read(refused, tmp_path, name, command):
    frame = pd.DataFrame({"a": [1.0, None, 3.0], "b": [1.0, 2.0, 3.0], "c": ["u", "v", None]})
    getattr(frame, f"to_{name[5:]}")(tmp_path / name, index=False)
    words = [tmp_path / word if word.endswith(".zarr") else word for word in command[1:]]
    message = refused(command[0], tmp_path / name, "--one-hot", *words, *SMALL)
    assert f"{name} has no target yet: name it with --target; its columns are a, b, c" in message
    if name == "rows.csv":  # the text is read as the options say
        (tmp_path / name).write_bytes("größe;b\n1,5;2\n2,5;3\n".encode("latin-1"))
        options = ("--encoding", "latin-1", "--delimiter", ";", "--decimal", ",")
        message = refused(command[0], tmp_path / name, *words, *options, *SMALL)
        assert "has no target yet: name it with --target; its columns are größe, b" in message


@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_numbers_that_are_none(value, name, refused, rows, stored, models, tmp_path):
    X, y = rows.X.copy(), rows.y.copy()
    X[417, 1], y[3] = value, value
    path, plan = stored("x.zarr", X=X, y=rows.y), ("plan", *SMALL)
    fit = ("fit", *plan[1:], "--out", tmp_path / "m.zarr")
    predict = ("predict", models["numbers"], path, "--out", tmp_path / "p.zarr")
    others = ("score", models["numbers"], path), ("kernel-error", path, "--features", "fourier")
    for words in ((*plan, path), (*fit, path), predict, *others):
        assert f"X contains {name} in row 417, column 1" in refused(*words)
    path = stored("y.zarr", X=rows.X, y=y)
    for words in ((*plan, path), (*fit, path)):
        assert f"y contains {name} in row 3" in refused(*words)


# What a fit refuses for its values, a plan of it refuses as well, or says that it cannot know.

OPTIONS = ["--target", "y", "--n-components", 16, "--length-scale", 2, "--alpha", 0.1]
UNSEEN = "missing or infinite values in later rows show only in a fit's first pass"


@pytest.fixture
def both(distrff, tmp_path):
    """Run `plan` and `fit` with the same words, and return their exit codes and last lines."""

    def run(data, *words):
        out = ("--out", tmp_path / "m.zarr", "--overwrite")
        done = [distrff("plan", data, *OPTIONS, *words), distrff("fit", data, *OPTIONS, *words, *out)]
        return [(ended.code, ended.told[-1] if ended.code else "") for ended in done]

    return run


@pytest.fixture
def frame(rng):
    n = 20_000
    return pd.DataFrame({"a": rng.normal(size=n), "k": rng.integers(0, 9, n), "y": rng.normal(size=n)})


@pytest.mark.parametrize(("column", "field"), [("a", "X"), ("k", "X"), ("y", "y")])
def test_nulls_of_which_the_footers_tell_and_those_of_text(both, frame, tmp_path, column, field):
    path, text = tmp_path / "rows.parquet", tmp_path / "rows.csv"
    frame[column] = frame[column].astype("Int64" if column == "k" else "Float64")
    frame.loc[19_000:19_004, column] = pd.NA
    frame.to_parquet(path, row_group_size=3000)
    frame[18_800:19_001].to_csv(text, index=False)
    said = (
        f"{field} contains NaN: column '{column}' of {path} lacks 5 of 20000 values; drop or fill such rows"
    )
    for place, message in ((path, said), (text, "no value")):
        planned, fitted = both(place)
        assert planned == fitted
        assert planned[0] == 2
        assert message in planned[1]
    assert both(path, "--missing", "drop") == [(0, ""), (0, "")]
    if column == "a":
        frame.assign(other=frame["a"], a=0.5 * frame["k"]).to_parquet(path)  # a column that is not read
        assert both(path, "--columns", "a,k") == [(0, ""), (0, "")]


def test_of_later_rows_a_plan_says_that_it_does_not_know(distrff, stored, frame):
    frame.loc[19_000, "a"] = np.inf
    path = stored("rows.zarr", X=frame[["a", "k"]].to_numpy(), y=frame["y"].to_numpy())
    assert UNSEEN in distrff("plan", path, *OPTIONS).stdout
    few = stored("few.zarr", X=np.ones((200, 2)) * np.arange(200)[:, None], y=np.arange(200.0))
    assert UNSEEN not in distrff("plan", few, *OPTIONS).stdout


# Models, places, schedulers and workers.


def test_a_constant_target_is_fitted_with_a_warning(distrff, rows, stored, tmp_path):
    path = stored("c.zarr", X=rows.X, y=np.full(600, 2.5))
    words = ("--alpha", 1, "--length-scale", 1, "--scale", "none", "--n-components", 16)
    done = distrff("fit", path, "--out", tmp_path / "m.zarr", *words)
    assert done.code == 0
    assert done.told == ["warning: y is constant (2.5); the model will predict that constant"]


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
