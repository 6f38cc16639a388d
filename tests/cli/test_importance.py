"""`distrff importance`: the numbers of the library, for stored models and rows."""

import pandas as pd

import distrff as drf


def test_it_prints_what_the_library_finds(distrff, rows, models):
    found = distrff("importance", models["numbers"], rows.zarr, "--json").json
    model = drf.load_model(str(models["numbers"]))
    assert found == drf.permutation_importance(model, rows.X, rows.y).to_dict()
    assert [column["column"] for column in found["columns"]] == ["1", "0", "2"]
    lines = distrff("importance", models["numbers"], rows.zarr).stdout.splitlines()
    assert lines[1:3] == ["rows judged: 600 of 600", "judged on: the rows given"]
    assert [line.split()[0] for line in lines[3:]] == ["column", "1", "0", "2"]
    words = ("--target", "label", "--max-rows", 300, "--random-state", 4, "--json")
    found = distrff("importance", models["labels"], rows.parquet, *words).json
    X = pd.DataFrame(rows.X, columns=["a", "b", "c"])
    model = drf.load_model(str(models["labels"]))
    options = {"max_rows": 300, "random_state": 4}
    assert found == drf.permutation_importance(model, X, rows.label, **options).to_dict()
    assert (found["n_judged"], found["measure"], found["mse"]) == (300, "accuracy", None)
