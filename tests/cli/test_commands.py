"""The main job from stored rows to scores, command by command."""

import numpy as np
import pandas as pd
import pytest
import zarr

import distrff as drf
from distrff.model.persistence import load_model

FIT_KEYS = {
    *("model", "n_samples", "n_components", "length_scale", "alpha", "cv_score", "n_sweeps", "status"),
    *("seconds", "sweep_seconds", "planned_peak_bytes", "measured_peak_bytes", "rkhs_norm", "workers"),
}

FOURIER = ("--features", "fourier")


@pytest.fixture
def written(tmp_path):
    """The array that a command wrote, `p.zarr` where no other is named."""
    return lambda name="p.zarr": zarr.open_array(tmp_path / name, mode="r")[:]


@pytest.fixture
def expected(rows, models):
    """`expected(name)`: what the model of this name predicts of the session's rows."""
    return lambda name: load_model(str(models[name])).predict(rows.X)


def test_fit_prints_one_json_object_and_tells_defaults_aside(distrff, rows, tmp_path):
    words = (*FOURIER, "--n-components", 16, "--json")
    done = distrff("fit", rows.zarr, "--out", tmp_path / "m.zarr", *words)
    assert done.told == ["defaults used: --length-scale auto --alpha cv --scale auto"]
    report = done.json
    assert report.keys() >= FIT_KEYS
    assert (report["model"], report["n_samples"], report["n_components"]) == ("KernelRidge", 600, 16)
    assert (report["status"], report["workers"], report["n_sweeps"]) == ("CONVERGED", 2, 2)
    assert len(report["sweep_seconds"]) == 2
    assert load_model(str(tmp_path / "m.zarr")).report["seed"] == report["seed"]


def test_fit_for_people_with_options_that_are_repeated(distrff, rows, tmp_path):
    """A column that is left out by the first --drop must not come back with the second."""
    out = tmp_path / "m.zarr"
    words = (
        "--n-components",
        16,
        "--length-scale",
        2,
        "--scale",
        "none",
        "--random-state",
        5,
        "--alpha",
        "cv",
    )
    lists = ("--alphas", "5,6", "--alphas", 7, "--drop", "c", "--drop", "label,flag")
    done = distrff("fit", rows.parquet, "--target", "y", "--out", out, *words, *lists)
    assert done.code == 0
    assert "defaults used" not in done.stderr
    for text in ("600 rows, 2 columns, 16 features", "seed 5", f"written to {out}"):
        assert text in done.stdout
    model = load_model(str(out))
    assert (model.column_names, sorted(model.report["alphas"])) == (("a", "b"), [5, 6, 7])


def test_a_metric(distrff, rows, tmp_path):
    out, words = tmp_path / "m.zarr", ("--n-components", 16, "--alpha", 1, "--json")
    given = '{"kernel": "matern", "metric": [[1, 0, 0.5], [0, 2, 0]]}'
    for kernel in (("--metric", "learned"), ("--kernel", given, "--features", "nystroem")):
        done = distrff("fit", rows.zarr, *words, *kernel, "--out", out, "--overwrite")
        assert "metric=" in done.json["kernel"]
        inspected = distrff("inspect", out, "--json").json
        r, d = inspected["metric"]
        assert (d, inspected["n_columns"], inspected["n_components"]) == (3, 3, 16)
        assert f"{r} × 3" in distrff("inspect", out).stdout
    assert r == 2
    wrong = "--kernel", '{"kernel": "gaussian", "metric": [[1, 2]]}'
    assert "the metric has 2 columns, the data 3" in distrff.refused("plan", rows.zarr, *wrong)


def test_a_flag_with_class_weights_and_several_numbers_as_targets(distrff, rows, tmp_path):
    words = (*FOURIER, "--n-components", 16, "--alpha", 1, "--columns", "a,b", "--json")
    model, flag = tmp_path / "m.zarr", ("--target", "flag", "--class-weight", '{"true": 3, "false": 1}')
    widths = ("--length-scale", "1,2")
    done = distrff("fit", rows.parquet, *flag, "--model", "ridge-classifier", *words, *widths, "--out", model)
    assert done.code == 0, done
    assert "a: 1; b: 2" in distrff("inspect", model).stdout
    assert distrff("inspect", model, "--json").json["length_scale"] == [1, 2]
    targets = load_model(str(model)).targets
    np.testing.assert_array_equal(targets.classes, [False, True])
    np.testing.assert_array_equal(targets.class_weight, [1.0, 3.0])
    both = ("--target", "y", "--target=2", *words, "--out", model, "--overwrite")
    assert distrff("fit", rows.parquet, *both).json["n_outputs"] == 2
    done = distrff("predict", model, rows.parquet, "--out", tmp_path / "p.zarr", "--json")
    assert done.json["shape"] == [600, 2]
    done = distrff("score", model, rows.parquet, "--target", "y", "--target", "c", "--json")
    assert done.json["n_samples"] == 600


def test_plan_and_its_refusal(distrff, rows, tmp_path):
    """A fit that cannot fit is refused before its first task."""
    words = ("plan", rows.zarr, *FOURIER, "--n-components", 64)
    plan = distrff(*words, "--json").json
    assert plan["n_rows"] == 600
    assert plan["seconds"] > 0
    assert plan["worker_peak_bytes"] > 0
    assert "2 worker(s)" in distrff(*words).stdout
    for words in (("plan", rows.zarr), ("fit", rows.zarr, "--out", tmp_path / "m.zarr")):
        message = distrff.refused(*words, *FOURIER, "--n-components", 2_000_000, "--json", code=4)
        assert "smallest changes that fit" in message
    assert not (tmp_path / "m.zarr").exists()


def test_scores_and_features_are_those_of_the_model(distrff, rows, models, tmp_path, written, expected):
    scored = distrff("score", models["numbers"], rows.zarr, "--json").json
    error = expected("numbers") - rows.y
    assert scored.keys() >= {"n_samples", "rmse", "constant_rmse", "mae", "relative_error", "r2", "targets"}
    assert scored["n_samples"] == 600
    # Sums of 600 products in float64, added in another order.
    assert scored["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-10)
    relative = np.linalg.norm(error) / np.linalg.norm(rows.y)
    assert scored["relative_error"] == pytest.approx(relative, rel=1e-10)
    words = ("transform", models["numbers"], rows.zarr, "--out", tmp_path / "z.zarr")
    report = distrff(*words, "--json").json
    assert (report["shape"], report["dtype"]) == ([600, 32], "float64")
    Z, model = written("z.zarr"), load_model(str(models["numbers"]))
    np.testing.assert_array_equal(Z, model.transform(rows.X))
    # 32 products of numbers of about 1, in another order.
    F = Z @ model.coef[:, 0] + model.intercept
    np.testing.assert_allclose(F, expected("numbers"), rtol=0, atol=1e-12)


def test_scores_of_classes(distrff, rows, models, expected, tmp_path):
    """Labels that the model never saw count as wrong."""
    words = ("score", models["labels"])
    right = (expected("labels") == rows.label).mean()
    scored = distrff(*words, rows.parquet, "--target", "label", "--json").json
    assert scored["n_samples"] == sum(one["n_rows"] for one in scored["classes"]) == 600
    assert [scored["accuracy"], scored["error"]] == pytest.approx([right, 1 - right])
    frame = pd.DataFrame(rows.X, columns=["a", "b", "c"]).assign(label="new")
    frame.to_parquet(tmp_path / "new.parquet")
    done = distrff(*words, tmp_path / "new.parquet", "--target", "label")
    assert "accuracy: 0.000" in done.stdout
    assert "600 rows have labels that the model never saw, and count as wrong: 'new' (600)" in done.stdout


@pytest.mark.parametrize(("name", "dtype"), [("numbers", "float64"), ("labels", "string")])
def test_predictions(distrff, rows, models, tmp_path, written, expected, name, dtype):
    """Of a Zarr group, which has no names of columns and is taken as it is."""
    report = distrff("predict", models[name], rows.zarr, "--out", tmp_path / "p.zarr", "--json").json
    assert (report["shape"], report["dtype"]) == ([600], dtype)
    kind = object if name == "labels" else float
    np.testing.assert_array_equal(written().astype(kind), expected(name).astype(kind))


def test_columns_are_found_by_their_names_or_told(distrff, rows, models, tmp_path, written, expected):
    frame = pd.read_parquet(rows.parquet)[["c", "label", "b", "a"]]
    frame.to_parquet(tmp_path / "shuffled.parquet")
    frame.drop(columns=["label", "b"]).to_parquet(tmp_path / "lacks.parquet")
    words = ("predict", models["labels"], "--out", tmp_path / "p.zarr")
    assert distrff(*words, tmp_path / "shuffled.parquet").code == 0
    assert (written() == expected("labels")).all()
    message = distrff.refused(*words, tmp_path / "lacks.parquet", "--overwrite")
    assert "has no column 'b'" in message
    words = ("predict", models["numbers"], rows.parquet, "--out", tmp_path / "q.zarr")
    wrong = "has 5 columns, but the model was fitted to 3; choose them with --columns"
    assert wrong in distrff.refused(*words)
    assert distrff(*words, "--columns", "a,b,c").code == 0


def test_binning_from_fit_to_predictions(distrff, rows, tmp_path, written):
    model = tmp_path / "m.zarr"
    words = ("--features", "binning", "--n-grids", 20, "--length-scale", 2, "--alphas", "0.1,1,10")
    report = distrff("fit", rows.zarr, "--out", model, *words, "--json").json
    assert (report["solver"], report["status"]) == ("cg", "CONVERGED")
    assert distrff("inspect", model, "--json").json["n_components"] == report["n_components"]
    assert distrff("predict", model, rows.zarr, "--out", tmp_path / "p.zarr").code == 0
    np.testing.assert_array_equal(written(), load_model(str(model)).predict(rows.X))
    assert "sparse" in distrff.refused("transform", model, rows.zarr, "--out", tmp_path / "z.zarr")


def test_what_was_written_is_replaced_only_when_asked_and_inputs_never(distrff, rows, models, tmp_path):
    before = load_model(str(models["numbers"])).report["seed"]
    fit = ("fit", rows.zarr, "--out", models["numbers"], *FOURIER, "--n-components", 16)
    assert "--overwrite" in distrff.refused(*fit)
    assert load_model(str(models["numbers"])).report["seed"] == before
    words = ("predict", models["numbers"], rows.zarr, "--out")
    assert distrff(*words, tmp_path / "p.zarr").code == 0
    distrff.refused(*words, tmp_path / "p.zarr")
    assert distrff(*words, tmp_path / "p.zarr", "--overwrite").code == 0
    for own in (rows.zarr, models["numbers"], rows.zarr / "X", rows.zarr.parent):
        assert "overlap" in distrff.refused(*words, own, "--overwrite")
    (tmp_path / "other").mkdir()
    zarr.open_group(tmp_path / "other" / "data.zarr", mode="w")
    distrff.refused(*words, tmp_path / "other" / "data.zarr", "--overwrite")


def test_inspect(distrff, rows, models, tmp_path):
    def inspected(path, *words):
        return distrff("inspect", path, *words, "--json").json

    model = inspected(models["labels"])
    assert (model["kind"], model["model"], model["n_components"]) == ("model", "KernelRidgeClassifier", 32)
    assert model["classes"] == ["high", "low", "middle"]
    assert model["report"]["n_samples"] == 600
    assert {"name": "coef", "shape": [32, 3], "dtype": "float64", "bytes": 768} in model["arrays"]

    group = inspected(rows.zarr)
    assert (group["kind"], group["n_rows"], group["format"]) == ("dataset", 600, "zarr")
    assert group["arrays"][0] | {"chunks": [150, 3], "dtype": "float64"} == group["arrays"][0]

    table = inspected(rows.parquet, "--target", "label")
    assert (table["n_columns"], table["target_names"], table["n_files"]) == (5, ["label"], 1)
    assert table["types"]["a"] == "double"

    distrff("predict", models["labels"], rows.parquet, "--out", tmp_path / "p.zarr")
    array = inspected(tmp_path / "p.zarr")
    assert (array["kind"], array["shape"], array["complete"]) == ("predictions", [600], True)

    drf.gram(rows.X, drf.FourierFeatures(drf.Gaussian(1.0), 8), rows.y, cv=3).save(str(tmp_path / "g.zarr"))
    gram = inspected(tmp_path / "g.zarr")
    assert (gram["kind"], gram["n_samples"], gram["n_folds"]) == ("gram", 600, 3)

    for path in (models["numbers"], rows.zarr, rows.parquet):
        done = distrff("inspect", path)
        assert done.code == 0
        assert done.stdout.startswith(f"{path}: ")
        assert "600" in done.stdout


def test_inspect_reads_the_rows_of_a_dataset(distrff, tmp_path):
    n = 40_000
    X = np.random.default_rng(0).standard_normal((n, 3))
    X[:, 1] = np.arange(n)
    X[:7, 0] = np.nan
    group = zarr.open_group(tmp_path / "d.zarr", mode="w", attributes={"column_names": ["a", "b", "c"]})
    group.create_array("X", data=X, chunks=(128, 3))
    group.create_array("y", data=np.arange(n) % 4 // 3, chunks=(n,))
    found = distrff("inspect", tmp_path / "d.zarr", "--json").json
    assert found["storage"][0]["n_requests"] == 313
    assert found["advice"][-1].startswith("shuffle the rows")
    shown = distrff("inspect", tmp_path / "d.zarr").stdout
    for text in (
        "a: 7 missing (0.02%)", "b: drifts with the row number", "target 1: 10,000 rows (25.00%)"
    ):  # fmt: skip
        assert text in shown
    assert "absent" not in shown
    (tmp_path / "d.zarr" / "X" / "c" / "5" / "0").unlink()
    assert "X: 1 of 313 chunks absent, read as 0.0" in distrff("inspect", tmp_path / "d.zarr").stdout
    bare = distrff("inspect", tmp_path / "d.zarr", "--no-rows", "--json").json
    assert ("columns" in found, "columns" in bare, bare["n_rows"]) == (True, False, n)


SMALL = ("--n-components", 32, "--length-scale", 2, "--random-state", 0)
LIKELIHOOD = ("--target", "flag", "--columns", "a,b", "--model", "likelihood", *SMALL)
CG = ("--solver", "cg", "--alpha", 1, *SMALL)
PCA = ("--model", "pca", *SMALL)


@pytest.mark.parametrize(
    ("words", "certificate", "n_sweeps"),
    [((*LIKELIHOOD, "--C", 10, "--noise", "probit"), "duality_gap", 12), (CG, "relative_residual", 12)],
    ids=["likelihood", "cg"],
)
def test_fits_by_light_sweeps(rows, distrff, tmp_path, words, certificate, n_sweeps):
    out, data = tmp_path / "m.zarr", rows.parquet if "--target" in words else rows.zarr
    report = distrff("fit", data, *words, "--tol", 1e-4, "--out", out, "--json").json
    assert report["status"] == "CONVERGED"
    assert report[certificate] <= report["tol"] == 1e-4
    assert distrff("inspect", out, "--json").json[certificate] == report[certificate]
    of_target = ("--target", "flag") if "--target" in words else ()
    scored = distrff("score", out, data, *of_target, "--json").json
    assert scored.get("accuracy", scored.get("r2")) > 0.5
    assert distrff("plan", data, *words, "--json").json["n_sweeps"] == n_sweeps


@pytest.mark.parametrize("solver", ["margins", "cg"])
def test_a_fit_that_does_not_converge(rows, distrff, tmp_path, monkeypatch, solver):
    if solver == "margins":
        words, message = (rows.parquet, *LIKELIHOOD, "--C", 1e4, "--tol", 1e-9), "the duality gap is"
    else:
        monkeypatch.setattr("distrff.fitting.cg._factor_peak_bytes", lambda _, stride, *rest: stride * 10**18)
        message = "the relative residual is 1 after light sweep 1, above --tol 0.001"
        words = (rows.zarr, *CG)
    done = distrff("fit", *words, "--max-sweeps", 1, "--out", tmp_path / "m.zarr")
    assert done.code == 3
    assert message in done.stderr
    assert "NOT_CONVERGED" in done.stdout
    assert (tmp_path / "m.zarr").exists()


def test_principal_components(distrff, rows, tmp_path, written):
    """They are fitted without a target, and written by transform."""
    model = tmp_path / "pca.zarr"
    done = distrff("fit", rows.parquet, "--columns", "a,b,c", "--n-outputs", 3, "--out", model, *PCA)
    assert done.code == 0, done
    assert done.told == ["defaults used: --scale auto"]
    assert "3 components with" in done.stdout
    assert distrff("transform", model, rows.parquet, "--out", tmp_path / "t.zarr").code == 0
    T = written("t.zarr")
    assert T.shape == (600, 3)
    # Strips of other heights round differently.
    np.testing.assert_allclose(T, load_model(str(model)).transform(rows.X), atol=1e-12)
    np.testing.assert_allclose(T.mean(axis=0), 0, atol=1e-10)
    for words in (("predict", "--out", tmp_path / "p.zarr"), ("score", "--target", "y")):
        assert "no predictions" in distrff.refused(words[0], model, rows.parquet, *words[1:])
    message = distrff.refused("importance", model, rows.parquet, "--target", "y")
    assert "holds principal components" in message
    report = distrff("fit", rows.zarr, "--out", tmp_path / "m.zarr", "--json", *PCA).json
    assert (report["model"], report["n_outputs"], report["status"]) == ("KernelPCA", 2, "CONVERGED")
    assert len(report["explained_variance_ratio"]) == 2
    assert distrff("inspect", tmp_path / "m.zarr").code == 0
    assert distrff("plan", rows.zarr, *PCA).code == 0
