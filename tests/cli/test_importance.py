"""`distrff importance`: the numbers of the library, for stored models and rows."""

import numpy as np
import pandas as pd

import distrff as drf


def test_it_prints_what_the_library_finds(distrff, rows, models):
    found = distrff("importance", models["numbers"], rows.zarr, "--json").json
    model = drf.load_model(str(models["numbers"]))
    assert found == drf.permutation_importance(model, rows.X, rows.y).to_dict()
    assert [column["column"] for column in found["columns"]] == ["1", "0", "2"]
    lines = distrff("importance", models["numbers"], rows.zarr).stdout.splitlines()
    assert lines[1] == "rows judged: 600 of 600"
    assert [line.split()[0] for line in lines[2:]] == ["column", "1", "0", "2"]
    words = ("--target", "label", "--max-rows", 300, "--random-state", 4, "--json")
    found = distrff("importance", models["labels"], rows.parquet, *words).json
    X = pd.DataFrame(rows.X, columns=["a", "b", "c"])
    model = drf.load_model(str(models["labels"]))
    options = {"max_rows": 300, "random_state": 4}
    assert found == drf.permutation_importance(model, X, rows.label, **options).to_dict()
    assert (found["n_judged"], found["measure"], found["mse"]) == (300, "accuracy", None)


def test_raw_columns_and_rows_dropped(distrff, rows, tmp_path):
    frame = pd.read_parquet(rows.parquet)
    frame["word"] = np.where(frame.a > 0, "up", "down")
    frame.loc[:4, "b"] = None
    frame.to_csv(tmp_path / "rows.csv", index=False)
    words = ("--target", "y", "--one-hot", "--missing", "drop", "--n-components", 16, "--length-scale", 3)
    for suffix in ("csv", "parquet"):
        frame.to_parquet(tmp_path / "rows.parquet")
        data, out = tmp_path / f"rows.{suffix}", tmp_path / f"{suffix}.zarr"
        assert distrff("fit", data, "--out", out, *words, "--random-state", 0).code == 0
        found = distrff("importance", out, data, "--json").json
        assert (found["n_samples"], found["rows_dropped"]) == (595, 5)
        assert {column["column"] for column in found["columns"]} >= {"a", "b", "c", "word", "label"}
        assert "rows_dropped" in distrff("importance", out, data).stdout
