"""What a fit refuses for its values, a plan of it refuses as well, or says that it cannot know."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

OPTIONS = ["--target", "y", "--n-components", 16, "--length-scale", 2, "--alpha", 0.1]
UNSEEN = "missing or infinite values in later rows show only in a fit's first pass"


@pytest.fixture
def both(distrff, tmp_path):
    """Run `plan` and `fit` with the same words, and return their exit codes and last lines."""

    def run(data, *words):
        planned = distrff("plan", data, *OPTIONS, *words)
        fitted = distrff("fit", data, *OPTIONS, *words, "--out", tmp_path / "m.zarr", "--overwrite")
        return [(done.code, done.told[-1] if done.code else "") for done in (planned, fitted)]

    return run


@pytest.fixture
def frame(rng):
    n = 20_000
    return pd.DataFrame({"a": rng.normal(size=n), "k": rng.integers(0, 9, n), "y": rng.normal(size=n)})


@pytest.mark.parametrize(("column", "field"), [("a", "X"), ("k", "X"), ("y", "y")])
def test_nulls_of_which_the_footers_tell(both, frame, tmp_path, column, field):
    path = tmp_path / "rows.parquet"
    frame[column] = frame[column].astype("Int64" if column == "k" else "Float64")
    frame.loc[19_000:19_004, column] = pd.NA
    frame.to_parquet(path, row_group_size=3000)
    planned, fitted = both(path)
    assert planned == fitted
    assert planned[0] == 2
    said = (
        f"{field} contains NaN: column '{column}' of {path} lacks 5 of 20000 values; drop or fill such rows"
    )
    assert said in planned[1]
    assert both(path, "--missing", "drop") == [(0, ""), (0, "")]
    if column == "a":
        frame.assign(other=frame["a"], a=0.5 * frame["k"]).to_parquet(path)  # a column that is not read
        assert both(path, "--columns", "a,k") == [(0, ""), (0, "")]


@pytest.mark.parametrize("column", ["a", "y"])
def test_a_number_that_is_none_in_the_first_rows_or_in_text(both, stored, frame, tmp_path, column):
    frame.loc[7, column] = np.nan
    path = stored("rows.zarr", X=frame[["a", "k"]].to_numpy(), y=frame["y"].to_numpy())
    frame[299::-1].to_csv(tmp_path / "rows.csv", index=False)
    found, of_text = both(path), both(tmp_path / "rows.csv")
    assert f"{'X' if column == 'a' else 'y'} contains NaN in row 7" in found[0][1]
    for planned, fitted in (found, of_text):
        assert planned == fitted
        assert planned[0] == 2


def test_of_later_rows_a_plan_says_that_it_does_not_know(distrff, stored, frame):
    frame.loc[19_000, "a"] = np.inf
    path = stored("rows.zarr", X=frame[["a", "k"]].to_numpy(), y=frame["y"].to_numpy())
    assert UNSEEN in distrff("plan", path, *OPTIONS).stdout
    few = stored("few.zarr", X=np.ones((200, 2)) * np.arange(200)[:, None], y=np.arange(200.0))
    assert UNSEEN not in distrff("plan", few, *OPTIONS).stdout
