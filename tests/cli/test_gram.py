"""Grams on the command line: made of parts of the rows, added, and solved without any row."""

import numpy as np
import pandas as pd
import pytest

from distrff.model.persistence import load_model

MAP = ("--features", "fourier", "--n-components", 32, "--length-scale", 2, "--scale", "none")


@pytest.fixture
def parts(rows, tmp_path):
    """The session's rows in two files, with a column of text."""
    frame = pd.read_parquet(rows.parquet).assign(kind=np.where(rows.X[:, 2] > 0, "x", "z"))
    frame["low"] = (rows.y < 0).astype(int)
    paths = tmp_path / "first.parquet", tmp_path / "second.parquet"
    frame[:250].to_parquet(paths[0]), frame[250:].to_parquet(paths[1])
    whole = tmp_path / "whole.parquet"
    frame.to_parquet(whole)
    return *paths, whole


@pytest.fixture
def merged(distrff, parts, tmp_path):
    """`merged(*options, target=…)`: the path of the sum of the Grams of both parts."""

    def make(*options, target):
        out = [tmp_path / f"{name}.zarr" for name in ("first", "second", "both")]
        first = distrff("gram", parts[0], "--out", out[0], *MAP, "--random-state", 3, *target, *options)
        assert first.code == 0, first
        second = distrff("gram", parts[1], "--out", out[1], "--like", out[0], *target)
        assert second.code == 0, second
        both = distrff("merge", *out[:2], "--out", out[2], "--json").json
        assert (both["n_samples"], both["kind"]) == (600, "gram")
        return out[2]

    return make


@pytest.mark.parametrize("target", ["y", "label"])
def test_the_model_of_all_parts_is_that_of_one_fit(distrff, parts, merged, tmp_path, target):
    words = ("--columns", "a,b,c,kind", "--one-hot")
    words += ("--model", "ridge" if target == "y" else "ridge-classifier")
    both = merged(*words, target=("--target", target))
    words += ("--target", target)
    solved = distrff("solve", both, "--out", tmp_path / "solved.zarr", "--alpha", 1, "--json").json
    assert (solved["n_samples"], solved["alpha"], solved["status"]) == (600, 1.0, "CONVERGED")
    fitted = ("fit", parts[2], "--out", tmp_path / "fitted.zarr", *MAP, "--random-state", 3, *words)
    assert distrff(*fitted, "--alpha", 1).code == 0
    found, expected = (load_model(str(tmp_path / f"{name}.zarr")) for name in ("solved", "fitted"))
    # u·Σs/alpha is 1e-13, of coefficients of size 10.
    np.testing.assert_allclose(found.coef, expected.coef, rtol=0, atol=1e-9)
    assert found.column_names == expected.column_names and found.steps == expected.steps
    # A solved model encodes raw tables, as one of fit does.
    out = tmp_path / "predicted.parquet"
    assert distrff("predict", tmp_path / "solved.zarr", parts[2], "--out", out).code == 0
    predicted = pd.read_parquet(out)["prediction"]
    raw = pd.read_parquet(parts[2])[["a", "b", "c", "kind"]]
    encoded = raw[["a", "b", "c"]].assign(x=raw["kind"] == "x", z=raw["kind"] == "z").to_numpy(float)
    if target == "y":
        np.testing.assert_allclose(predicted, expected.predict(encoded), rtol=0, atol=1e-8)
    else:
        assert (predicted.to_numpy() == expected.predict(encoded)).mean() > 0.99


def test_folds_and_several_labels(distrff, merged, tmp_path):
    words = ("--columns", "a,b,c", "--model", "ridge-classifier", "--cv", 3)
    both = merged(*words, target=("--target", "flag", "--target", "low"))
    assert distrff("inspect", both, "--json").json["n_folds"] == 3
    done = distrff("solve", both, "--out", tmp_path / "m.zarr")
    assert done.code == 0 and "3 held-out folds" in done.stdout and "written to" in done.stdout
    model = load_model(str(tmp_path / "m.zarr"))
    assert model.predict(np.zeros((4, 3))).shape == (4, 2)
    assert distrff("solve", both, "--out", tmp_path / "n.zarr", "--alpha", 1, "--include-std").code == 0
    assert load_model(str(tmp_path / "n.zarr")).posterior is not None


@pytest.mark.parametrize(
    "rule", ["--groups kind", "--folds forward --by a --gap .1", "--folds groups --by kind"]
)
def test_later_grams_have_the_folds_of_the_first(distrff, parts, merged, tmp_path, rule):
    words = ("--columns", "b,c", *rule.split(), "--cv", 2)
    both = merged(*words, target=("--target", "y"))
    found, first = (distrff("inspect", path, "--json").json for path in (both, tmp_path / "first.zarr"))
    assert found["n_folds"] == 2 and found["held_out"] == first["held_out"]
    solved = distrff("solve", both, "--out", tmp_path / "solved.zarr")
    assert f"rows held out: 2 folds of {found['held_out']}" in solved.stdout
    other = tmp_path / "other.zarr"
    given = ("--target", "y", "--columns", "b,c", *MAP, "--random-state", 3, "--cv", 2)
    assert distrff("gram", parts[1], "--out", other, *given).code == 0
    message = distrff.refused("merge", tmp_path / "first.zarr", other, "--out", tmp_path / "no.zarr")
    assert "hold out other rows" in message


def test_equispaced_features(distrff, parts, tmp_path):
    words = ("--features", "equispaced", "--columns", "a", "--bounds", "a=-5:5", "--target", "y", "--cv", 2)
    first, second, both = (tmp_path / f"{i}.zarr" for i in range(3))
    assert distrff("gram", parts[0], "--out", first, *words, "--length-scale", 1, "--nu", 1.5).code == 0
    assert distrff("gram", parts[1], "--out", second, "--like", first, "--target", "y").code == 0
    assert distrff("merge", first, second, "--out", both, "--json").json["kind"] == "toeplitz"
    assert distrff("solve", both, "--out", tmp_path / "m.zarr", "--json").json["solver"] == "toeplitz"


def test_what_does_not_fit_together(distrff, parts, tmp_path):
    made = {}
    for name, words in {
        "first": ("--random-state", 3, "--cv", 1),
        "other": ("--random-state", 4, "--cv", 1),
        "scaled": ("--random-state", 3, "--cv", 1, "--scale", "standard"),
    }.items():
        made[name] = tmp_path / f"{name}.zarr"
        given = ("--out", made[name], "--target", "y", "--columns", "a,b,c", *MAP, *words)
        assert distrff("gram", parts[0], *given).code == 0
    out = ("--out", tmp_path / "out.zarr")
    message = distrff.refused("merge", made["first"], made["other"], *out)
    assert f"{made['other']} cannot be added: these Grams are of different maps (" in message
    message = distrff.refused("merge", made["first"], made["scaled"], *out)
    assert "one has a shift and the other none" in message and "--like of distrff gram" in message
    assert "needs a Gram with folds" in distrff.refused("solve", made["first"], *out)
    assert "does not hold a Gram" in distrff.refused("solve", parts[0], *out)
    like = ("gram", parts[1], "--like", made["first"], "--target", "y", *out)
    assert "--kernel goes with a Gram of its own" in distrff.refused(*like, "--kernel", "laplacian")
    assert "pass --overwrite" in distrff.refused(*like[:-1], made["other"])
    parts[1].unlink()
    pd.DataFrame({"a": [1.0], "b": [1.0], "y": [1.0]}).to_parquet(parts[1])
    assert "'c'" in distrff.refused(*like)
    text = ("gram", parts[0], "--target", "label", *out, *MAP)
    assert "the target 'label' does not hold numbers" in distrff.refused(*text)
    assert not (tmp_path / "out.zarr").exists()
