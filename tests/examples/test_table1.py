"""`examples/table1.py` on generated files: each of the data is read, and a missing one is named."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def table1(example):
    return example("table1")


@pytest.fixture
def folder(tmp_path, rng):
    """Small files of the four kinds."""
    for name, n in (("a9a.gz", 200), ("a9a.t.gz", 80)):
        X = rng.random((n, 123)) < 0.1
        X[:, 0] = np.arange(n) % 2
        lines = (
            f"{'+1' if row[0] else '-1'} " + " ".join(f"{j + 1}:1" for j in np.flatnonzero(row)) for row in X
        )
        with gzip.open(tmp_path / name, "wt") as file:
            file.write("\n".join(lines) + "\n")
    X = rng.standard_normal((200, 4))
    frame = pd.DataFrame(np.column_stack([X, 50 + X[:, 0]]), columns=[*"abcd", "target"])
    frame.to_csv(tmp_path / "cpu_act.tsv.gz", sep="\t", index=False)
    for name in ("kddcup99_10pct.gz", "kddcup99_test.gz"):
        size = rng.integers(0, 10**6, 200)
        kind = np.where(size > 5 * 10**5, "smurf.", "normal.")
        pd.DataFrame({0: size, 1: rng.choice(["tcp", "udp"], 200), 2: kind}).to_csv(
            tmp_path / name, header=False, index=False
        )
    cover = pd.DataFrame(rng.random((300, 3)), columns=[*"abc"])
    cover["Cover_Type"] = np.where(cover["a"] > 0.5, 2, 1 + 2 * (cover["b"] > 0.5))
    cover.to_parquet(tmp_path / "covtype_93k.parquet")
    return tmp_path


@pytest.mark.parametrize("name", ["adult", "cpu", "kdd", "covtype"])
def test_each_of_the_data(table1, folder, name, capsys, monkeypatch):
    small = {n: lambda s, f=f: f(s)._replace(n_components=64, n_grids=20) for n, f in table1.TASKS.items()}
    monkeypatch.setattr(table1, "TASKS", small)
    task = small[name](folder)
    assert len(task.X) == len(task.y) and len(task.X_test) == len(task.y_test)
    for build in (table1.fourier, table1.binning):
        assert table1.fitted(task, build, 1).error < 0.3
    assert table1.main([str(folder), "--data", name, "--seeds", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(name)


def test_a_file_that_is_missing(table1, tmp_path, capsys):
    assert table1.main([str(tmp_path), "--data", "cpu"]) == 2
    assert "cpu_act.tsv.gz does not exist; give the folder" in capsys.readouterr().err
