"""Commands on Parquet of mixed columns, and what a stored model makes of such files."""

import numpy as np
import pandas as pd
import pytest
import zarr

from distrff.model.persistence import load_model

FIT = ["--n-components", 16, "--length-scale", 2, "--alpha", 0.1, "--random-state", 0]


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(3)
    n = 400
    frame = pd.DataFrame(
        {"a": rng.normal(size=n), "c": rng.choice(list("uvw"), n), "k": rng.integers(0, 9, n)}
    )
    frame["delay"] = frame["a"] + 2 * (frame["c"] == "u") + 0.1 * rng.normal(size=n)
    frame["answer"] = np.where(frame["delay"] > 1, "yes", np.where(frame["delay"] > 0, "perhaps", "no"))
    frame.loc[::10, "a"] = None
    frame.loc[::25, "delay"] = None
    frame["day"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(n), unit="h")
    return frame


@pytest.fixture(scope="module")
def path(frame, tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "rows.parquet"
    frame.to_parquet(path, row_group_size=90)
    return path


def test_rows_without_a_target_are_dropped_and_counted(distrff, path, frame, tmp_path):
    out = tmp_path / "m.zarr"
    columns = ["--drop", "answer", "--missing", "drop", "--one-hot", "--datetime", "parts"]
    fitted = distrff("fit", path, "--target", "delay", *columns, *FIT, "--out", out, "--json").json
    complete = frame.dropna()
    assert fitted["n_samples"] == len(complete)
    table = fitted["table"]
    assert (table["rows_read"], table["rows_dropped"]) == (400, 400 - len(complete))
    assert (table["categories"], table["columns_made"]) == ({"c": 3}, 1 + 3 + 1 + 6)
    planned = distrff("plan", path, "--target", "delay", *columns, *FIT, "--json").json
    assert planned["n_rows"] == len(complete)
    scored = distrff("score", out, path, "--json").json
    assert (scored["n_samples"], scored["rows_dropped"]) == (len(complete), 400 - len(complete))
    assert scored["r2"] > 0.5
    frame.assign(c=frame["c"].replace("w", "new")).to_parquet(tmp_path / "other.parquet")
    done = distrff("score", out, tmp_path / "other.parquet", "--json")
    assert list(done.json["n_unseen_categories"]) == ["c"]
    assert "rows hold categories that the fit never saw" in done.stderr
    # Predictions leave no row out.
    frame.drop(columns="delay").to_csv(tmp_path / "new.csv", index=False)
    lacking = frame["a"].isna().to_numpy()
    for new in (path, tmp_path / "new.csv"):
        written = distrff("predict", out, new, "--out", tmp_path / "p.zarr", "--overwrite", "--json").json
        assert (written["n_samples"], written["n_missing"]) == (400, lacking.sum())
        np.testing.assert_array_equal(np.isnan(zarr.open_array(tmp_path / "p.zarr")[:]), lacking)


def test_predictions_of_a_raw_file(distrff, path, frame, tmp_path):
    out = tmp_path / "m.zarr"
    columns = ["--drop", "delay", "--missing", "mean", "--one-hot"]
    classes = ["--model", "ridge-classifier", "--target", "answer"]
    assert distrff("fit", path, *classes, *columns, *FIT, "--out", out).code == 0
    frame[["k", "day", "c", "a"]].to_parquet(tmp_path / "new.parquet")
    assert distrff("predict", out, tmp_path / "new.parquet", "--out", tmp_path / "p.zarr").code == 0
    model = load_model(str(out))
    a = frame["a"].fillna(frame["a"].mean())
    X = np.column_stack([a, *(frame["c"] == c for c in "uvw"), frame["k"]])
    assert model.column_names == ("a", "c=u", "c=v", "c=w", "k")
    predictions = zarr.open_array(tmp_path / "p.zarr", mode="r")[:]
    np.testing.assert_array_equal(predictions, model.predict(X))
    named = ("--id", "day", "--out", tmp_path / "named.parquet")
    assert distrff("predict", out, path, *named).code == 0
    assert pd.read_parquet(tmp_path / "named.parquet")["day"].tolist() == frame["day"].tolist()
    scored = distrff("score", out, path, "--json").json
    right = (predictions == frame["answer"]).mean()
    assert scored.keys() >= {"n_samples", "accuracy", "error", "classes", "rows_read", "rows_dropped"}
    assert scored["accuracy"] == pytest.approx(right)
    predict = ("predict", out, "--out", tmp_path / "q.zarr")
    distrff.refused(*predict, path.parent, "--columns", "a")
    frame.drop(columns="c").to_parquet(tmp_path / "less.parquet")
    message = distrff.refused(*predict, tmp_path / "less.parquet")
    assert "has no column 'c', which the model's steps need" in message


def test_rows_converted_by_steps_of_their_own_are_refused(distrff, frame, tmp_path):
    """Their means and first times are others than those of the fit, though all names of columns agree."""
    frame.to_csv(tmp_path / "old.csv", index=False)
    frame[200:].to_csv(tmp_path / "recent.csv", index=False)
    frame[200:].replace({"c": {"w": "v"}}).to_csv(tmp_path / "few.csv", index=False)
    rules = ["--target", "delay", "--missing", "mean", "--datetime", "seconds", "--one-hot"]
    for name in ("old", "recent", "few"):
        distrff("convert", tmp_path / f"{name}.csv", tmp_path / f"{name}.zarr", *rules)
    model = tmp_path / "m.zarr"
    assert distrff("fit", tmp_path / "old.zarr", *FIT, "--out", model).code == 0
    predict, score = ("predict", model, "--out", tmp_path / "p.csv", "--overwrite"), ("score", model)
    gram = ("gram", "--like", tmp_path / "g.zarr", "--out", tmp_path / "h.zarr")
    distrff("gram", tmp_path / "old.zarr", *FIT[:4], "--out", tmp_path / "g.zarr")
    for words in (predict, score, ("calibrate", model), ("importance", model), gram):
        message = distrff.refused(*words, tmp_path / "recent.zarr")
        assert "recent.zarr was encoded by other steps: column 'a': missing values become" in message
        assert (
            "give the raw file, which the model encodes itself, or convert it with --steps MODEL" in message
        )
    assert "was encoded by other steps" in distrff.refused(*predict, tmp_path / "few.zarr")
    for i, steps in enumerate((model, tmp_path / "old.zarr")):
        alike = tmp_path / f"alike{i}.zarr"
        assert distrff("convert", tmp_path / "recent.csv", alike, "--steps", steps).code == 0
        found = distrff(*score, alike, "--json").json
        raw = distrff(*score, tmp_path / "recent.csv", "--json").json
        assert (raw["r2"], raw["targets"][0]["target"]) == (found["r2"], "delay")
        assert distrff(*predict, alike).code == 0
    other = ("convert", tmp_path / "recent.csv", tmp_path / "other.zarr", "--steps")
    assert "--missing was given beside steps" in distrff.refused(*other, model, "--missing", "mean")
    numbers = tmp_path / "numbers.zarr"
    zarr.create_group(numbers).create_array("X", data=np.eye(3))
    assert "has no steps" in distrff.refused(*other, numbers)
