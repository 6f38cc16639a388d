"""`examples/grid_search.py` on few rows: what it finds, on which columns, and what it refuses."""

import re

import numpy as np
import pandas as pd
import pytest

FEW = ["--sample-rows", "400", "--n-components", "128"]


@pytest.fixture
def grid_search(example, monkeypatch):
    """With one width of each kernel."""
    script = example("grid_search")
    monkeypatch.setattr(script, "KERNELS", script.KERNELS[2::4])
    return script


def test_kernels_on_a_made_up_table(grid_search, capsys):
    assert grid_search.main(["--rows", "2000", *FEW]) == 0
    *lines, last = capsys.readouterr().out.splitlines()[1:]
    scores = {line[22:]: float(line[:20]) for line in lines}
    assert list(scores) == [str(kernel) for kernel in grid_search.KERNELS]
    best = max(scores, key=scores.get)
    assert re.fullmatch(rf" +(\d\.\d+)  on other rows: {re.escape(best)}, .*", last)
    assert float(last[:20]) > 0.9  # 0.99 of the variance is no noise


@pytest.mark.parametrize("texts", [["word"], []], ids=["text", "numbers only"])
def test_a_table_that_lacks_values(grid_search, tmp_path, texts):
    table = grid_search.made_up(1500).compute()[["a", "b", *texts, "y"]].rename(columns={"y": "price"})
    table.loc[3, "a"] = table.loc[5, "price"] = None
    table.to_parquet(tmp_path / "table.parquet")
    lazy = grid_search.dd.read_parquet(tmp_path / "table.parquet")
    found = grid_search.search(lazy, "price", 10_000, 128)
    encoded = [f"word_{word}" for word in ("high", "low", "middle")] if texts else []
    assert sorted(found.model.feature_names_in_) == sorted(["a", "b", *encoded])
    assert found.score > (0.9 if texts else 0.2)


def test_what_cannot_be_used(grid_search, tmp_path, refused):
    assert refused(grid_search, tmp_path / "nowhere.parquet").startswith("grid_search.py: ")
    message = refused(grid_search, "--rows", 100, "--target", "price")
    assert "no column 'price'; name one of ['a', 'b', 'word', 'y']" in message
    message = refused(grid_search, "--rows", 100, "--target", "word")
    assert "y must hold numbers for a regressor" in message
    assert len(refused(grid_search, "--rows", 2).splitlines()) == 1
    alone = pd.DataFrame({"y": np.arange(99.0)})
    alone.to_parquet(tmp_path / "alone.parquet")
    assert len(refused(grid_search, tmp_path / "alone.parquet").splitlines()) == 1
