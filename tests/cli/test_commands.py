"""The main job from stored rows to scores, command by command."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from distrff.estimators.fitting import plan
from distrff.model.persistence import load_model

FIT_KEYS = {
    "model", "n_samples", "n_components", "length_scale", "alpha", "cv_score", "n_sweeps", "status",
    "seconds", "sweep_seconds",
    "planned_peak_bytes", "measured_peak_bytes", "rkhs_norm", "workers",
}  # fmt: skip


def test_fit_prints_one_json_object_and_tells_defaults_aside(distrff, rows, tmp_path):
    done = distrff("fit", rows.zarr, "--out", tmp_path / "m.zarr", "--n-components", 16, "--json")
    assert done.told == ["defaults used: --length-scale auto --alpha cv --scale standard"]
    report = done.json
    assert report.keys() >= FIT_KEYS
    assert (report["model"], report["n_samples"], report["n_components"]) == ("KernelRidge", 600, 16)
    assert (report["status"], report["workers"], report["n_sweeps"]) == ("CONVERGED", 2, 2)
    assert len(report["sweep_seconds"]) == 2
    assert load_model(str(tmp_path / "m.zarr")).report["seed"] == report["seed"]


def test_fit_for_people(distrff, rows, tmp_path):
    out = tmp_path / "m.zarr"
    words = ("--n-components", 16, "--length-scale", 2, "--alpha", 1, "--scale", "none", "--random-state", 5)
    done = distrff("fit", rows.parquet, "--target", "y", "--out", out, *words)
    assert done.code == 0
    assert "defaults used" not in done.stderr
    for text in ("600 rows, 4 columns, 16 features", "seed 5", f"written to {out}", "label"):
        assert text in done.stdout


def test_an_existing_model_is_replaced_only_when_asked(distrff, rows, models, tmp_path):
    words = ("fit", rows.zarr, "--out", models["numbers"], "--n-components", 16)
    before = load_model(str(models["numbers"])).report["seed"]
    done = distrff(*words)
    assert (done.code, done.stdout) == (2, "")
    assert "--overwrite" in done.stderr
    assert load_model(str(models["numbers"])).report["seed"] == before


def test_a_flag_as_target_and_weights_for_its_classes(distrff, rows, tmp_path):
    done = distrff(
        *("fit", rows.parquet, "--target", "flag", "--columns", "a,b", "--model", "ridge-classifier"),
        *("--class-weight", '{"true": 3, "false": 1}', "--n-components", 16, "--alpha", 1),
        *("--out", tmp_path / "m.zarr"),
    )
    assert done.code == 0, done
    targets = load_model(str(tmp_path / "m.zarr")).targets
    np.testing.assert_array_equal(targets.classes, [False, True])
    np.testing.assert_array_equal(targets.class_weight, [1.0, 3.0])


def test_targets_by_index_and_several_of_them(distrff, rows, tmp_path):
    words = ("--n-components", 16, "--alpha", 1, "--out", tmp_path / "m.zarr", "--columns", "a,b")
    done = distrff("fit", rows.parquet, "--target", "y", "--target=2", *words, "--json")
    assert done.json["n_outputs"] == 2
    out = tmp_path / "p.zarr"
    assert distrff("predict", tmp_path / "m.zarr", rows.parquet, "--out", out, "--json").json["shape"] == [
        600,
        2,
    ]
    scored = distrff("score", tmp_path / "m.zarr", rows.parquet, "--target", "y", "--target", "c", "--json")
    assert scored.json["n_samples"] == 600


def test_plan(distrff, rows):
    words = ("plan", rows.zarr, "--n-components", 64)
    plan = distrff(*words, "--json").json
    assert plan["n_rows"] == 600
    assert plan["seconds"] > 0
    assert plan["worker_peak_bytes"] > 0
    assert "2 worker(s)" in distrff(*words).stdout


def test_a_fit_that_cannot_fit_is_refused_before_its_first_task(distrff, rows, tmp_path):
    for words in (("plan", rows.zarr), ("fit", rows.zarr, "--out", tmp_path / "m.zarr")):
        done = distrff(*words, "--n-components", 2_000_000, "--json")
        assert (done.code, done.stdout) == (4, "")
        assert "smallest changes that fit" in done.stderr
    assert not (tmp_path / "m.zarr").exists()


def test_scores_are_those_of_the_model(distrff, rows, models):
    scored = distrff("score", models["numbers"], rows.zarr, "--json").json
    error = load_model(str(models["numbers"])).predict(rows.X) - rows.y
    assert scored.keys() == {"n_samples", "rmse", "relative_error", "r2"}
    assert scored["n_samples"] == 600
    # Sums of 600 products in float64, added in another order.
    assert scored["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-10)
    assert scored["relative_error"] == pytest.approx(
        np.linalg.norm(error) / np.linalg.norm(rows.y), rel=1e-10
    )


def test_scores_of_classes(distrff, rows, models):
    scored = distrff("score", models["labels"], rows.parquet, "--target", "label", "--json").json
    right = load_model(str(models["labels"])).predict(rows.X) == rows.label
    assert scored == {
        "n_samples": 600,
        "accuracy": pytest.approx(right.mean()),
        "error": pytest.approx(1 - right.mean()),
    }


def test_labels_that_the_model_never_saw_count_as_wrong(distrff, rows, models, tmp_path):
    frame = pd.DataFrame(rows.X, columns=["a", "b", "c"]).assign(label="new")
    frame.to_parquet(tmp_path / "new.parquet")
    done = distrff("score", models["labels"], tmp_path / "new.parquet", "--target", "label")
    assert done.stdout.split() == ["n_samples", "600", "accuracy", "0", "error", "1"]


def test_predictions_of_numbers(distrff, rows, models, tmp_path):
    out = tmp_path / "p.zarr"
    written = distrff("predict", models["numbers"], rows.zarr, "--out", out, "--json").json
    assert (written["shape"], written["dtype"]) == ([600], "float64")
    expected = load_model(str(models["numbers"])).predict(rows.X)
    np.testing.assert_array_equal(zarr.open_array(out, mode="r")[:], expected)


def test_predictions_of_labels_are_the_labels(distrff, rows, models, tmp_path):
    out = tmp_path / "p.zarr"
    written = distrff("predict", models["labels"], rows.parquet, "--out", out, "--json").json
    assert written["dtype"] == "string"
    expected = load_model(str(models["labels"])).predict(rows.X)
    np.testing.assert_array_equal(zarr.open_array(out, mode="r")[:].astype(object), expected.astype(object))


def test_columns_are_found_by_their_names(distrff, rows, models, tmp_path):
    frame = pd.read_parquet(rows.parquet)[["c", "label", "b", "a"]]
    frame.to_parquet(tmp_path / "shuffled.parquet")
    frame.drop(columns=["label", "b"]).to_parquet(tmp_path / "lacks.parquet")
    out = tmp_path / "p.zarr"
    assert distrff("predict", models["labels"], tmp_path / "shuffled.parquet", "--out", out).code == 0
    expected = load_model(str(models["labels"])).predict(rows.X)
    assert (zarr.open_array(out, mode="r")[:] == expected).all()
    done = distrff("predict", models["labels"], tmp_path / "lacks.parquet", "--out", out, "--overwrite")
    assert done.code == 2
    assert "has no column 'b'" in done.stderr


def test_a_zarr_group_without_names_is_taken_as_it_is(distrff, rows, models, tmp_path):
    done = distrff("predict", models["labels"], rows.zarr, "--out", tmp_path / "p.zarr")
    assert done.code == 0, done


def test_a_model_without_names_is_told_the_columns(distrff, rows, models, tmp_path):
    words = ("predict", models["numbers"], rows.parquet, "--out", tmp_path / "p.zarr")
    done = distrff(*words)
    assert done.code == 2
    assert "has 5 columns, but the model was fitted to 3; choose them with --columns" in done.stderr
    assert distrff(*words, "--columns", "a,b,c").code == 0


def test_columns_that_are_lists(distrff, rows, tmp_path):
    """A model keeps the labels v_0, v_1, v_2, and finds the list column v by them."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.X.ravel()), 3)
    pq.write_table(pa.table({"y": rows.y, "v": column, "w": rows.y}), tmp_path / "lists.parquet")
    words = ("--columns", "w,v", "--n-components", 16, "--alpha", 1, "--out", tmp_path / "m.zarr")
    assert distrff("fit", tmp_path / "lists.parquet", "--target", "y", *words).code == 0
    model = load_model(str(tmp_path / "m.zarr"))
    assert model.column_names == ("w", "v_0", "v_1", "v_2")
    done = distrff("predict", tmp_path / "m.zarr", tmp_path / "lists.parquet", "--out", tmp_path / "p.zarr")
    assert done.code == 0, done
    expected = model.predict(np.column_stack([rows.y, rows.X]))
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "p.zarr", mode="r")[:], expected)


def test_features_are_those_of_the_model(distrff, rows, models, tmp_path):
    out = tmp_path / "z.zarr"
    written = distrff("transform", models["numbers"], rows.zarr, "--out", out, "--json").json
    assert (written["shape"], written["dtype"]) == ([600, 32], "float64")
    Z = zarr.open_array(out, mode="r")[:]
    model = load_model(str(models["numbers"]))
    np.testing.assert_array_equal(Z, model.transform(rows.X))
    # 32 products of numbers of about 1, in another order.
    np.testing.assert_allclose(
        Z @ model.coef[:, 0] + model.intercept, model.predict(rows.X), rtol=0, atol=1e-12
    )


def test_binning_from_fit_to_predictions(distrff, rows, tmp_path):
    model, out = tmp_path / "m.zarr", tmp_path / "p.zarr"
    words = ("--features", "binning", "--n-grids", 20, "--length-scale", 2, "--alphas", "0.1,1,10")
    report = distrff("fit", rows.zarr, "--out", model, *words, "--json").json
    assert (report["solver"], report["status"]) == ("cg", "CONVERGED")
    assert distrff("inspect", model, "--json").json["n_components"] == report["n_components"]
    assert distrff("predict", model, rows.zarr, "--out", out).code == 0
    np.testing.assert_array_equal(zarr.open_array(out, mode="r")[:], load_model(str(model)).predict(rows.X))
    refused = distrff("transform", model, rows.zarr, "--out", tmp_path / "z.zarr")
    assert refused.code == 2
    assert "sparse" in refused.stderr


def test_what_was_written_is_replaced_only_when_asked_and_inputs_never(distrff, rows, models, tmp_path):
    words = ("predict", models["numbers"], rows.zarr, "--out")
    assert distrff(*words, tmp_path / "p.zarr").code == 0
    assert distrff(*words, tmp_path / "p.zarr").code == 2
    assert distrff(*words, tmp_path / "p.zarr", "--overwrite").code == 0
    for own in (rows.zarr, models["numbers"], rows.zarr / "X", rows.zarr.parent):
        done = distrff(*words, own, "--overwrite")
        assert done.code == 2, own
        assert "overlap" in done.stderr
    (tmp_path / "other").mkdir()
    zarr.open_group(tmp_path / "other" / "data.zarr", mode="w")
    assert distrff(*words, tmp_path / "other" / "data.zarr", "--overwrite").code == 2


def test_inspect(distrff, rows, models, tmp_path):
    model = distrff("inspect", models["labels"], "--json").json
    assert (model["kind"], model["model"], model["n_components"]) == ("model", "KernelRidgeClassifier", 32)
    assert model["classes"] == ["high", "low", "middle"]
    assert model["report"]["n_samples"] == 600
    assert {"name": "coef", "shape": [32, 3], "dtype": "float64", "bytes": 768} in model["arrays"]

    group = distrff("inspect", rows.zarr, "--json").json
    assert (group["kind"], group["n_rows"], group["format"]) == ("dataset", 600, "zarr")
    assert group["arrays"][0] | {"chunks": [150, 3], "dtype": "float64"} == group["arrays"][0]

    table = distrff("inspect", rows.parquet, "--target", "label", "--json").json
    assert (table["n_columns"], table["target_names"], table["n_files"]) == (5, ["label"], 1)
    assert table["types"]["a"] == "double"

    distrff("predict", models["labels"], rows.parquet, "--out", tmp_path / "p.zarr")
    array = distrff("inspect", tmp_path / "p.zarr", "--json").json
    assert (array["kind"], array["shape"], array["complete"]) == ("predictions", [600], True)


def test_inspect_reads_the_rows_of_a_dataset(distrff, tmp_path):
    n = 40_000
    X = np.random.default_rng(0).standard_normal((n, 3))
    X[:, 1] = np.arange(n)
    X[:7, 0] = np.nan
    group = zarr.open_group(tmp_path / "d.zarr", mode="w")
    group.create_array("X", data=X, chunks=(128, 3))
    group.create_array("y", data=np.arange(n) % 4 // 3, chunks=(n,))
    group.attrs["column_names"] = ["a", "b", "c"]
    found = distrff("inspect", tmp_path / "d.zarr", "--json").json
    assert [column["missing"] for column in found["columns"]] == [7, 0, 0]
    assert [column["drifts"] for column in found["columns"]] == [False, True, False]
    assert found["target"]["labels"] == [
        {"label": 0, "rows": 30_000, "share": 0.75},
        {"label": 1, "rows": 10_000, "share": 0.25},
    ]
    assert found["storage"][0]["n_requests"] == 313
    assert found["advice"][-1].startswith("shuffle the rows")
    told = distrff("inspect", tmp_path / "d.zarr").stdout
    assert "a: 7 missing (0.02%)" in told
    assert "b: drifts with the row number" in told
    assert "target 1: 10,000 rows (25.00%)" in told
    bare = distrff("inspect", tmp_path / "d.zarr", "--no-rows", "--json").json
    assert "columns" not in bare
    assert bare["n_rows"] == n


def test_inspect_a_gram(distrff, rows, tmp_path):
    from distrff.estimators.gram import gram
    from distrff.features.fourier import FourierFeatures

    gram(rows.X, FourierFeatures(n_components=8), rows.y, cv=3).save(str(tmp_path / "g.zarr"))
    described = distrff("inspect", tmp_path / "g.zarr", "--json").json
    assert (described["kind"], described["n_samples"], described["n_folds"]) == ("gram", 600, 3)


@pytest.mark.parametrize("what", ["model", "zarr", "parquet"])
def test_inspect_for_people(what, distrff, rows, models):
    path = {"model": models["numbers"], "zarr": rows.zarr, "parquet": rows.parquet}[what]
    done = distrff("inspect", path)
    assert done.code == 0
    assert done.stdout.startswith(f"{path}: ")
    assert "600" in done.stdout


LIKELIHOOD = [
    "--target",
    "flag",
    "--columns",
    "a,b",
    "--model",
    "likelihood",
    "--n-components",
    "32",
    "--length-scale",
    "2",
]


def test_a_likelihood_machine(rows, distrff, tmp_path):
    words = (rows.parquet, *LIKELIHOOD, "--C", "10", "--noise", "probit", "--random-state", "0", "--json")
    done = distrff("fit", *words, "--out", tmp_path / "m.zarr")
    assert done.json["status"] == "CONVERGED"
    assert done.json["duality_gap"] <= done.json["tol"] == 1e-3
    assert done.json["primal"] >= done.json["dual"] > 0
    assert "alpha" not in done.json
    inspected = distrff("inspect", tmp_path / "m.zarr", "--json").json
    assert inspected["duality_gap"] == done.json["duality_gap"]
    scored = distrff("score", tmp_path / "m.zarr", rows.parquet, "--target", "flag", "--json").json
    assert scored["accuracy"] > 0.5
    assert distrff("plan", *words).json["n_sweeps"] == 12


def test_a_fit_that_does_not_converge(rows, distrff, tmp_path):
    words = (rows.parquet, *LIKELIHOOD, "--C", "1e4", "--max-sweeps", "1", "--tol", "1e-9")
    done = distrff("fit", *words, "--out", tmp_path / "m.zarr")
    assert done.code == 3
    assert "the duality gap is" in done.stderr
    assert "NOT_CONVERGED" in done.stdout
    assert (tmp_path / "m.zarr").exists()


CG = ["--solver", "cg", "--alpha", "1", "--n-components", "32", "--length-scale", "2", "--random-state", "0"]


def test_ridge_by_conjugate_gradients(rows, distrff, tmp_path):
    words = (rows.zarr, *CG, "--tol", "1e-9", "--json")
    done = distrff("fit", *words, "--out", tmp_path / "m.zarr")
    assert (done.json["status"], done.json["solver"]) == ("CONVERGED", "cg")
    assert done.json["relative_residual"] <= done.json["tol"] == 1e-9
    inspected = distrff("inspect", tmp_path / "m.zarr", "--json").json
    assert inspected["relative_residual"] == done.json["relative_residual"]
    by_gram = distrff("fit", rows.zarr, *CG[2:], "--out", tmp_path / "g.zarr", "--json").json
    assert by_gram["solver"] == "gram"
    assert done.json["rkhs_norm"] == pytest.approx(by_gram["rkhs_norm"], rel=1e-6)
    assert distrff("plan", *words).json["one_in"] == 1


def test_conjugate_gradients_that_do_not_converge(rows, distrff, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "_factor_peak_bytes", lambda _, stride, *rest: stride * 10**18)
    done = distrff("fit", rows.zarr, *CG, "--max-sweeps", "1", "--out", tmp_path / "m.zarr")
    assert done.code == 3
    assert "the relative residual is 1 after light sweep 1, above --tol 0.001" in done.stderr
    assert "NOT_CONVERGED" in done.stdout
    assert (tmp_path / "m.zarr").exists()
